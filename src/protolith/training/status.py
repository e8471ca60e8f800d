"""``status.json``: what a run is doing, for whoever looks from outside.

A thread rewrites the file every two seconds, so a heartbeat that stands still means that the process
is gone or frozen. Losing the disk for a while only delays it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from protolith.errors import NoSpaceError, NotAllowedError, ProtolithError
from protolith.formats.rundir import read_json, write_json

HEARTBEAT_S = 2.0


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def kept_on_refusal(path: Path) -> Iterator[dict[str, Any]]:
    """A run that is asked to go on and refuses (another corpus, no such step) is what it was before.

    Yields the status of the attempt before, empty when there was none. It is put back when an error comes
    before training has begun.
    """
    before = read_status(path)
    try:
        yield before
    except ProtolithError:
        if before and read_status(path).get("phase") in ("starting", "tokenizing"):
            write_json(path, before)
        raise


def read_status(path: Path) -> dict[str, Any]:
    """The file's content, empty when it is not there or not ours."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and "heartbeat" in value else {}


class Status:
    """The state of one attempt, written whole on every change of phase and by the heartbeat.

    phase: starting, tokenizing, training, evaluating, saving, exporting, done.
    state: running, completed, stopped, failed.
    """

    def __init__(self, path: Path, *, attempt: int, before: dict[str, Any] | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._value: dict[str, Any] = {
            "phase": "starting",
            "state": "running",
            "step": (before or {}).get("step", 0),
            "total": (before or {}).get("total", 0),
            "tokens": (before or {}).get("tokens", 0),
            "attempt": attempt,
            "pid": os.getpid(),
            "started": utc_now(),
            "heartbeat": utc_now(),
            "stopped_by": None,
            "error": None,
        }

    def __enter__(self) -> Status:
        self.write(must=True)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(error, ProtolithError):
            self.update(state="failed", error=error.to_dict())
        elif error is not None and self._value["state"] == "running":
            self.update(
                state="failed",
                error={
                    "code": "internal",
                    "message": f"{type(error).__name__}: {error}",
                    "hint": "see the log of this attempt",
                    "where": "",
                },
            )

    def update(self, **values: Any) -> None:
        """Change fields and write at once."""
        with self._lock:
            self._value.update(values)
        self.write()

    def note(self, **values: Any) -> None:
        """Change fields; the next heartbeat writes them."""
        with self._lock:
            self._value.update(values)

    def write(self, *, must: bool = False) -> None:
        with self._lock:
            self._value["heartbeat"] = utc_now()
            value = dict(self._value)
        try:
            write_json(self._path, value)
        except (NoSpaceError, NotAllowedError, OSError):
            # A full disk must not end a run over its heartbeat; the old file still stands.
            if must:
                raise

    def _beat(self) -> None:
        while not self._end.wait(HEARTBEAT_S):
            self.write()
