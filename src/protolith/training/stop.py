"""Being asked to stop: SIGTERM, Ctrl-C, or a file named ``control/stop`` in the run directory.

The first request sets a flag that every phase looks at between pieces of its work: the loop finishes
its step and saves, an evaluation or a tokenization is left, a save is completed. A second signal ends
the process at once: what is on disk is whole by construction.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from protolith.errors import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_EVERY_S = 0.5


class StopRequested(Exception):  # noqa: N818 - not an error
    """Raised to leave a phase that has nothing of its own to save."""


class StopFlag:
    """Whether somebody asked this run to stop, and who: "signal" or "user" (control/stop).

    A context manager: signal handlers are set on entry (main thread only) and given back on exit. The
    first signal is answered with a line on stderr, so that the person knows it was heard.

    Args:
        shared: of one of several processes: a file that stands for a signal to any of them. It is looked
            for, and made when a signal comes here. The line on stderr is left to whoever started them.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self.by: str | None = None
        self._quiet = shared is not None
        self._shared = shared
        self._files: dict[Path, str] = {} if shared is None else {shared: "signal"}
        self._old: dict[int, Any] = {}
        self._next_look = 0.0

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # a background job stays deaf to Ctrl-C
                    self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def watch(self, control_stop: Path) -> None:
        """From now on a file of this name is a request too."""
        self._files[control_stop] = "user"

    def pass_on(self, shared: Path) -> None:
        """From now on a signal makes this file, for processes that look for it; at once if it has come."""
        self._shared = shared
        if self.by is not None:
            shared.touch()

    @property
    def requested(self) -> bool:
        """Cheap enough to ask between any two pieces of work."""
        if self.by is None and self._files:
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + _LOOK_EVERY_S
                self.by = next((by for path, by in self._files.items() if path.exists()), None)
        return self.by is not None

    def agree(self, *, failed: bool = False) -> bool:
        """Come to know what other ranks know; returns whether any has failed. One process knows it all."""
        return failed

    def raise_if_requested(self) -> None:
        if self.requested:
            raise StopRequested

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:
            os._exit(EXIT_INTERRUPTED)
        self.by = "signal"
        if self._shared is not None:
            with suppress(OSError):
                self._shared.touch()
        if self._quiet:
            return
        heard = f"{signal.Signals(number).name} received: finishing the step and saving; "
        with suppress(OSError):  # nobody may be listening any more
            os.write(2, (heard + "a second signal ends at once\n").encode())
