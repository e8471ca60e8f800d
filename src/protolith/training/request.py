"""How a run is asked for, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from protolith.training.stop import StopFlag


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """What a run came to.

    ``step`` and ``global_step`` are optimizer steps done, ``tokens`` trained targets, ``metrics`` the last
    values by their public names (``metrics["loss"]`` is short for ``metrics["loss/mean"]``), ``stopped_by``
    one of "steps", "epochs", "tokens", "signal", "user".
    """

    global_step: int
    epoch: float
    tokens: int
    metrics: dict[str, Any]
    run_dir: Path
    stopped_by: str

    @property
    def step(self) -> int:
        return self.global_step

    @property
    def resumable(self) -> bool:
        return self.stopped_by in ("signal", "user")


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a run is asked for, beside its config."""

    resume: str | None = None
    overwrite: bool = False
    accept_changes: tuple[str, ...] = ()
    #: ranges of rows that are never trained on, beside those recorded before
    skip_rows: tuple[tuple[int, int], ...] = ()
    stream: TextIO | None = None
    #: signal handlers that were set before the run (a command sets them before it loads torch)
    stop: StopFlag | None = None
    #: processes that were asked for; None: as many as the config says, or as this one was started with
    num_ranks: int | None = None
    #: a loaded (model, tokenizer) pair in place of ``config.model.name``
    loaded: tuple[Any, Any] | None = None
    #: warnings that came up before the run, to be said in it
    spoken: tuple[str, ...] = ()
