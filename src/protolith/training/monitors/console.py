"""What a person sees of a run: a banner, then a progress bar on a terminal or plain lines elsewhere.

Every line also goes to the attempt's log file. Without a terminal (a pipe, a file, TERM=dumb) no
carriage return and no escape byte is written, and each line is flushed at once.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from protolith.errors import ProtolithError
from protolith.training.status import utc_now

_QUIET_S = 10.0


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Console:
    """Lines and progress of one run.

    Args:
        stream: stdout, or stderr when stdout carries a JSON document.
        quiet: of a run, only warnings and how it ended (the console backend is off); the log file has all.
        silent: nothing at all but the log file: not the process that prints.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False, silent: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._quiet = quiet
        self._lost = silent
        self._log: TextIO | None = None
        self._said: set[str] = set()
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._task_name = ""
        self._last_line_s = 0.0
        self._held_out = ""
        self.warnings: list[str] = []
        if is_terminal(self._stream) and not quiet and not silent:
            rich = RichConsole(file=self._stream, highlight=False, markup=False)
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[text]}", markup=False),
                console=rich,
            )

    def __enter__(self) -> Console:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        if isinstance(error, ProtolithError):
            self._to_log("ERROR", str(error))
        elif error is not None:
            self._to_log("ERROR", "".join(traceback.format_exception(error)))
        if self._log is not None:
            self._log.close()
            self._log = None

    def log_to(self, path: Path) -> None:
        """From now on, copy every line into the attempt's log."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed on exit
        latest = path.parent.parent / "latest"
        aside = latest.with_name(f".latest.{os.getpid()}")
        aside.unlink(missing_ok=True)
        aside.symlink_to(path.parent.name)
        os.replace(aside, latest)

    def info(self, text: str) -> None:
        self._write("INFO", text)

    def ended(self, text: str) -> None:
        """What a run came to: also said when it is quiet."""
        self._write("INFO", text, always=True)

    def warn(self, text: str) -> None:
        """A warning, each text once."""
        if text not in self._said:
            self._said.add(text)
            self.warnings.append(text)
            self._write("WARNING", f"warning: {text}", always=True)

    def step(self, step: int, total: int, numbers: dict[str, Any]) -> None:
        """One logged training step."""
        loss, speed = numbers["loss/mean"], numbers["perf/throughput"]
        left = timedelta(seconds=round(numbers["time/step"] * (total - step)))
        line = (
            f"step {step}/{total}  loss {loss:.4f}  lr {numbers['optim/lr']:.3e}  "
            f"grad_norm {numbers['optim/grad_norm']:.3f}  tokens/s {speed:.0f}  left {left}"
        )
        if self._progress is not None:
            short = f"{step}/{total}  loss {loss:.3f}{self._held_out}  {speed:,.0f} tokens/s  {left} left"
            self._bar("training", step, total, short)
            self._to_log("INFO", line)
        else:
            self._write("INFO", line)

    def advance(self, step: int, total: int) -> None:
        """Move the bar between logged steps; nothing where there is no bar."""
        if self._progress is not None and self._task is not None and self._task_name == "training":
            self._progress.update(self._task, completed=step, total=total)

    def validation(self, step: int, total: int, numbers: dict[str, Any]) -> None:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        if "val/loss" in numbers:
            self._held_out = f"  val {numbers['val/loss']:.3f}"
        self._write("INFO", f"step {step}/{total}  {shown}")

    def working(self, name: str, done: int, total: int, text: str) -> None:
        """Progress of a phase before training, in any unit."""
        if self._progress is not None:
            self._bar(name, done, max(total, 1), text)
            return
        now = time.monotonic()
        if now - self._last_line_s >= _QUIET_S:
            self._last_line_s = now
            self._write("INFO", f"{name} {100 * done / max(total, 1):.0f}%  {text}")

    def _bar(self, name: str, done: int, total: int, text: str) -> None:
        assert self._progress is not None
        if self._task is None or self._task_name != name:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(name, total=total, text=text)
            self._task_name = name
        self._progress.update(self._task, completed=done, total=total, text=text)

    def _write(self, level: str, text: str, *, always: bool = False) -> None:
        self._to_log(level, text)
        if self._lost or (self._quiet and not always):
            return
        try:
            if self._progress is not None:
                self._progress.console.print(text)
            else:
                print(text, file=self._stream, flush=True)
        except (BrokenPipeError, OSError):
            self._lost = True  # nobody reads any more, or the disk behind the pipe is full

    def _to_log(self, level: str, text: str) -> None:
        if self._log is None:
            return
        try:
            for line in text.splitlines() or [""]:
                self._log.write(f"{utc_now()} {level} {line}\n")
        except OSError:
            pass  # a full disk takes the copy, not the run; metrics.jsonl waits in memory
