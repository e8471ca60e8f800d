"""``monitors/metrics.jsonl``: the truth about a run's numbers.

One JSON object a line, appended and flushed at once. A disk that is full for a while loses nothing:
lines wait in memory (a bounded number of them) and are written when there is room again.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protolith.formats.rundir import jsonable
from protolith.training.status import utc_now

_WAITING_LINES = 100_000


class MetricsFile:
    """Append-only writer. ``warn`` is called once when the disk refuses."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._warn = warn
        self._warned = False
        self._waiting: deque[str] = deque(maxlen=_WAITING_LINES)
        _end_torn_line(path)

    def log(self, step: int, numbers: dict[str, Any]) -> None:
        line = json.dumps(jsonable({"step": step, "time": utc_now(), **numbers}), allow_nan=False)
        self._waiting.append(line + "\n")
        self.flush()

    def flush(self) -> bool:
        """Write what waits; False when the disk refuses."""
        while self._waiting:
            data = self._waiting[0].encode()
            try:
                _append(self._path, data)
            except OSError as error:
                if not self._warned:
                    self._warn(f"metrics cannot be written ({error.strerror}); they wait until there is room")
                    self._warned = True
                return False
            self._waiting.popleft()
        return True


def _append(path: Path, data: bytes) -> None:
    """Append all of ``data`` or nothing."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(handle).st_size
        try:
            written = os.write(handle, data)
            if written != len(data):
                written += os.write(handle, data[written:])
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def _end_torn_line(path: Path) -> None:
    """A writer killed in the middle of a line must not spoil the next one."""
    if path.is_file() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
