"""All places a run's numbers go, behind one value. The loop knows only this."""

from __future__ import annotations

from typing import Any

from protolith.data.ledger import Ledger
from protolith.errors import NoSpaceError
from protolith.formats.rundir import RunDir, read_metrics, write_json
from protolith.training.monitors.builtin import MetricsFile
from protolith.training.monitors.console import Console
from protolith.training.monitors.external import ExternalMonitors


class Monitors:
    """The metrics file, the console, and trackers that can never stop training.

    A rank that is not the one to write has no metrics file: it writes nothing but its console's log.
    """

    def __init__(
        self,
        run_dir: RunDir,
        console: Console,
        metrics: MetricsFile | None,
        external: ExternalMonitors | None,
    ) -> None:
        self.console = console
        self._run_dir = run_dir
        self._metrics = metrics
        self._external = external

    def warn(self, text: str) -> None:
        self.console.warn(text)

    def numbers(self, step: int, numbers: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.log(step, numbers)
        if self._external is not None:
            self._external.log(step, numbers)

    def step(self, step: int, total: int, numbers: dict[str, Any]) -> None:
        self.numbers(step, numbers)
        self.console.step(step, total, numbers)

    def validation(self, step: int, total: int, numbers: dict[str, Any], shown: list[str]) -> None:
        """All numbers are kept; the console shows those named."""
        self.numbers(step, numbers)
        self.console.validation(step, total, {name: numbers[name] for name in shown})

    def has_validation(self, step: int) -> bool:
        return any(name.startswith("val/") for name in read_metrics(self._run_dir.metrics).get(step, {}))

    def ledger(self, ledger: Ledger) -> None:
        if self._metrics is None:
            return
        try:
            write_json(self._run_dir.ledger, ledger.to_dict())
        except (NoSpaceError, OSError) as error:
            self.warn(f"ledger.json not written: {error}")
