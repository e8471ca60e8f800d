"""TensorBoard event files of a run, on one axis: the optimizer step.

A later attempt opens a new file whose first record tells readers to forget every point at or above its
first step, so that each step is shown once however often the run was killed and resumed. Readers take
files in the order of their names, which begin with a time in whole seconds: a new file waits until its
second is later than that of any file already there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FLUSH_S = 5
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_LONGEST_WAIT_S = 3.0


class TensorBoardFiles:
    """See ``external.Sink``. ``resume_step`` 0 means from the start."""

    def __init__(self, folder: Path, resume_step: int) -> None:
        self._folder = folder
        self._resume_step = resume_step
        self._writer: Any = None
        self.later = "The next attempt writes event files again."

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter  # optional, and slow to load

        starts = [int(match.group(1)) for match in map(_EVENT_FILE.match, self._names()) if match]
        give_up = time.monotonic() + _LONGEST_WAIT_S
        while starts and int(time.time()) <= max(starts) and time.monotonic() < give_up:
            time.sleep(0.05)
        again = bool(starts) or self._resume_step > 0
        self._writer = SummaryWriter(
            str(self._folder), purge_step=self._resume_step + 1 if again else None, flush_secs=_FLUSH_S
        )

    def write(self, step: int, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, deadline_s: float) -> None:
        self._writer.close()

    def kill(self) -> None:
        """Nothing to do: its threads die with the process."""

    def complaint(self) -> str | None:
        return None

    def _names(self) -> list[str]:
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
