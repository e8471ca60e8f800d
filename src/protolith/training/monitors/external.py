"""Trackers outside (TensorBoard, W&B): fed from bounded queues on threads, never waited for.

Comes in: ``log(step, numbers)`` from the training loop, a constant-time append. Each tracker has a queue
and a thread of its own, so one that hangs takes nothing from the other. A full queue drops its oldest
rows and counts them: ``metrics.jsonl`` is the truth, a tracker is a view of it. Whatever goes wrong with
a tracker (missing server, refused key, full disk, a crash in its library) ends in one warning that says
how to fill it in later; the run goes on as if nothing had been asked.

Warnings are handed to ``warn`` on the caller's thread, by ``log`` and ``close``. ``close`` returns within
its deadline whatever the tracker does. Training never reads anything from here.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from protolith.errors import InvalidValueError, MissingExtraError
from protolith.formats.rundir import RunDir
from protolith.training.monitors.tensorboard_files import TensorBoardFiles
from protolith.training.monitors.wandb_link import WandbLink

QUEUE_ROWS = 10_000
_IDLE_FLUSH_S = 5.0
_KILL_MARGIN_S = 0.5

#: Name in ``logging.backends`` -> what people call it, package to import.
_TRACKERS = {"tensorboard": ("TensorBoard", "tensorboard"), "wandb": ("W&B", "wandb")}


class Sink(Protocol):
    """One tracker. All methods but ``kill`` run on the feed's thread and may take their time."""

    #: How to fill in what did not arrive.
    later: str

    def open(self) -> None: ...

    def write(self, step: int, numbers: Mapping[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self, deadline_s: float) -> None: ...

    def kill(self) -> None:
        """Let go at once; called from another thread while the feed's thread may hang in the sink."""

    def complaint(self) -> str | None:
        """What the user must be told, if anything; asked often, cheap."""


class ExternalMonitors:
    """The trackers of one attempt.

    Args:
        backends: names from ``logging.backends`` ("console" is none of ours and is passed over).
        run_dir: trackers keep their files under ``run_dir.monitors``.
        project, run_name: what W&B shows; default "protolith" and the folder's name.
        config_dict: the resolved config, shown by W&B.
        resume_step: the step this attempt goes on from; None or 0 from the start.
        warn: told each warning once, on the caller's thread.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """

    def __init__(
        self,
        backends: Iterable[str],
        run_dir: RunDir,
        *,
        project: str | None = None,
        run_name: str | None = None,
        config_dict: Mapping[str, Any] | None = None,
        resume_step: int | None = None,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._feeds: list[_Feed] = []
        wanted = [name for name in dict.fromkeys(backends) if name != "console"]
        for name in wanted:
            if name not in _TRACKERS:
                raise InvalidValueError(
                    f"unknown tracker {name!r}",
                    where="logging.backends",
                    hint=f"one of console, {', '.join(_TRACKERS)}",
                )
            _require(name)
        for name in wanted:
            sink: Sink
            if name == "tensorboard":
                sink = TensorBoardFiles(run_dir.tensorboard, resume_step or 0)
            else:
                sink = WandbLink(run_dir, project, run_name, config_dict or {}, resume_step or 0)
            self._feeds.append(_Feed(_TRACKERS[name][0], sink))

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Hand one row to every tracker; constant time, never raises because of a tracker."""
        for feed in self._feeds:
            feed.put(step, dict(numbers))
        self._say()

    def close(self, deadline_s: float = 10.0) -> None:
        """Let trackers finish for at most ``deadline_s`` seconds, then leave them. Safe to call twice."""
        end = time.monotonic() + deadline_s
        for feed in self._feeds:
            feed.begin_close(end)
        for feed in self._feeds:
            feed.end_close(end)
        self._say()

    def _say(self) -> None:
        for feed in self._feeds:
            text = feed.take_warning()
            if text is not None:
                self._warn(text)


def _require(name: str) -> None:
    shown, package = _TRACKERS[name]
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"{shown} was asked for and the package {package} is not installed",
            where="logging.backends",
            hint=f"pip install 'protolith[{name}]', or take {name} out of logging.backends",
        )


class _Feed:
    """A bounded queue and the thread that empties it into one sink."""

    def __init__(self, name: str, sink: Sink, capacity: int = QUEUE_ROWS) -> None:
        self._name = name
        self._sink = sink
        self._rows: deque[tuple[int, dict[str, Any]]] = deque()
        self._capacity = capacity
        self._changed = threading.Condition()
        self._end: float | None = None  # monotonic time by which all must be done, once closing
        self._dead = False
        self._dropped = 0
        self._trouble: str | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._work, name=f"monitor-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, numbers: dict[str, Any]) -> None:
        with self._changed:
            if self._dead or self._end is not None:
                self._dropped += 1
                return
            if len(self._rows) >= self._capacity:
                self._rows.popleft()
                self._dropped += 1
            self._rows.append((step, numbers))
            self._changed.notify()

    def begin_close(self, end: float) -> None:
        with self._changed:
            if self._end is None:
                self._end = end
            self._changed.notify()

    def end_close(self, end: float) -> None:
        self._thread.join(max(0.0, end - _KILL_MARGIN_S - time.monotonic()))
        if self._thread.is_alive():
            with self._changed:
                self._dead = True
                self._dropped += len(self._rows)
                self._rows.clear()
            self._trouble = self._trouble or "did not take everything in time"
            self._sink.kill()
            self._thread.join(max(0.05, end - time.monotonic()))

    def take_warning(self) -> str | None:
        """The one warning of this tracker, when there is reason for it."""
        if self._warned:
            return None
        trouble = self._trouble or self._sink.complaint()
        if trouble is None and self._dropped and self._end is not None:
            trouble = "was too slow"
        if trouble is None:
            return None
        self._warned = True
        lost = f", {self._dropped} rows were not sent" if self._dropped else ""
        kept = "training is not affected, metrics.jsonl has every number"
        return f"{self._name}: {trouble}{lost}; {kept}. {self._sink.later}"

    def _work(self) -> None:
        try:
            self._sink.open()
            while self._step():
                pass
            self._sink.close(max(0.0, (self._end or 0.0) - _KILL_MARGIN_S - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - a tracker's library may raise anything, and it must not matter
            with self._changed:
                self._dead = True
                self._dropped += len(self._rows)
                self._rows.clear()
            if self._trouble is None:
                self._trouble = f"stopped ({type(error).__name__}: {_first_line(error)})"

    def _step(self) -> bool:
        """Write one row, or flush when there is none for a while; False when there is nothing left to do."""
        with self._changed:
            if not self._rows and self._end is None:
                self._changed.wait(_IDLE_FLUSH_S)
            if self._dead or (not self._rows and self._end is not None):
                return False
            row = self._rows.popleft() if self._rows else None
        if row is None:
            self._sink.flush()
        else:
            self._sink.write(*row)
        return True


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")[:300]
