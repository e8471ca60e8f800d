"""The run directory: the only thing through which trainer, CLI and platform meet.

    config.json  plan.json  status.json  ledger.json
    monitors/metrics.jsonl  monitors/tensorboard/
    logs/attempt_<n>/rank_<r>.log   logs/latest -> attempt_<n>
    checkpoints/step_<N>/           see ``formats/checkpoint_files.py``
    model/                          final Hugging Face export
    control/stop                    present: finish the step, save, end

This module owns those names and how small files are written (aside, then renamed) and read back
(whoever reads while a run writes sees the old file or the new one, never half of one).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.errors import NoSpaceError, NotAllowedError

_ATTEMPT = re.compile(r"attempt_(\d+)\Z")

#: Names that a run makes in its folder: what ``--overwrite`` may remove, and nothing else.
OWN_NAMES = (
    "config.json",
    "plan.json",
    "status.json",
    "ledger.json",
    "monitors",
    "logs",
    "checkpoints",
    "model",
    "control",
)


@dataclass(frozen=True)
class RunDir:
    """Paths inside one run's folder. Creating the value touches nothing."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.json"

    @property
    def monitors(self) -> Path:
        return self.root / "monitors"

    @property
    def metrics(self) -> Path:
        return self.monitors / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.monitors / "tensorboard"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def control_stop(self) -> Path:
        return self.root / "control" / "stop"

    @property
    def lock(self) -> Path:
        """Held with ``flock`` by the living trainer; the kernel frees it when that process ends."""
        return self.root / ".lock"

    def attempt_log(self, attempt: int, rank: int) -> Path:
        return self.logs / f"attempt_{attempt}" / f"rank_{rank}.log"

    def last_attempt(self) -> int:
        """Number of the newest attempt, 0 when there was none."""
        if not self.logs.is_dir():
            return 0
        found = (_ATTEMPT.match(entry.name) for entry in self.logs.iterdir())
        return max((int(match.group(1)) for match in found if match), default=0)

    def holds_a_run(self) -> bool:
        """Whether any of our own names is already here."""
        return any((self.root / name).exists() for name in OWN_NAMES)


def is_run_dir(path: Path) -> bool:
    """A folder in which a run has begun."""
    return (path / "config.json").is_file() and (path / "status.json").is_file()


def find_runs(root: Path) -> list[Path]:
    """Run folders at or below ``root``, sorted by path. Does not follow links or enter runs."""
    if is_run_dir(root):
        return [root]
    found: list[Path] = []
    for folder, names, _files in os.walk(root):
        here = Path(folder)
        if is_run_dir(here):
            found.append(here)
            names.clear()
    return sorted(found)


def fsync_dir(path: Path) -> None:
    """Make a rename inside ``path`` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text_atomic(path: Path, text: str, *, durable: bool = False) -> None:
    """Write ``text`` so that a reader sees the old file or the new one.

    Raises:
        NoSpaceError: the disk is full; the old file still stands.
        NotAllowedError: the folder cannot be written.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(aside, "w", encoding="utf-8") as out:
            out.write(text)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(aside, path)
        if durable:
            fsync_dir(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise from_os_error(error, path) from error


def from_os_error(error: OSError, path: Path) -> NoSpaceError | NotAllowedError:
    """The typed form of an operating-system error while writing ``path``: no room, or any other refusal."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(
            f"no space left while writing {path.name}",
            where=str(path),
            hint="free some space or choose another output folder",
        )
    return NotAllowedError(
        f"cannot write {path.name}: {error.strerror or error}",
        where=str(path),
        hint="choose a folder you may write to",
    )


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write one JSON document whole, indented, with numbers JSON can hold (see ``jsonable``)."""
    text = json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n"
    write_text_atomic(path, text, durable=durable)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def jsonable(value: Any) -> Any:
    """The same value with floats that JSON has no number for written as "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def number(value: Any) -> float:
    """A metric read back: the inverse of ``jsonable`` for numbers."""
    return float(value)


def metrics_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a ``metrics.jsonl`` in file order; a torn last line (a killed writer) is passed over."""
    if not path.is_file():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict) and "step" in value:
                yield value


def read_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Metrics by step, as a reader must see them.

    Lines of the same step are merged (training and validation values arrive apart). A line whose step
    is lower than the one before it means that the run went back to an earlier checkpoint: it
    supersedes what was written for its own and all later steps.
    """
    by_step: dict[int, dict[str, Any]] = {}
    newest = -1
    for line in metrics_lines(path):
        step = int(line["step"])
        if step < newest:
            by_step = {known: value for known, value in by_step.items() if known < step}
        by_step.setdefault(step, {}).update(line)
        newest = step
    return by_step
