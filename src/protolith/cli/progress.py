"""Progress of a long command on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from protolith.cli.render import clean, is_terminal, say

_QUIET_S = 10.0


class ProgressLine:
    """A context manager with ``update`` and ``note``. The first line comes after ``quiet_s``."""

    def __init__(self, quiet_s: float = _QUIET_S) -> None:
        self._quiet_s = quiet_s
        self._next_s = time.monotonic() + quiet_s
        self._bar: Any = None
        self._task: Any = None
        self._name = ""

    def __enter__(self) -> ProgressLine:
        if is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[text]}", markup=False),
                console=Console(file=sys.stderr, highlight=False, markup=False),
                transient=True,
            )
            self._bar.start()
        return self

    def update(self, name: str, done: float, total: float, text: str) -> None:
        """What is done, how much of it, and numbers in words."""
        if self._bar is not None:
            if self._name != name:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task, self._name = self._bar.add_task(name, total=total, text=text), name
            self._bar.update(self._task, completed=done, total=total, text=text)
            return
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self._quiet_s
            say(f"{name} {100 * done / max(total, 1):.0f}%  {text}", error=True)

    def note(self, text: str) -> None:
        """A sentence that stays."""
        if self._bar is not None:
            self._bar.console.print(clean(text))
        else:
            say(text, error=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
