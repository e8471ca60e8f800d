"""Who writes: rank 0. What the other ranks have in place of the things that only one may do.

Rank 0 claims the output folder, keeps its status, writes metrics, ledger and checkpoints, prints. The
others have objects of the same kind that write nothing but their own log, so whoever uses them need not ask
which rank this is. Where rank 0 learns something that decides what all do next (which attempt this is,
whether a checkpoint was written), it tells the others there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith.config.schema import TrainConfig
from protolith.distributed.agreement import Agreement
from protolith.distributed.outcome import meeting
from protolith.distributed.world import World
from protolith.formats.rundir import RunDir
from protolith.training.checkpoint import Checkpoints
from protolith.training.monitors.all import Monitors
from protolith.training.monitors.builtin import MetricsFile
from protolith.training.monitors.console import Console
from protolith.training.monitors.external import ExternalMonitors
from protolith.training.output_folder import claim
from protolith.training.status import Status, kept_on_refusal
from protolith.training.stop import StopFlag


@dataclass
class Front:
    """The run's folder as this rank has it.

    Attributes:
        status: where it says what it does.
        before: status of the attempt before; empty when there was none.
        notes: what was done to the folder, one sentence each.
    """

    status: Status
    before: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def open_front(
    stack: ExitStack,
    world: World,
    run_dir: RunDir,
    console: Console,
    stop: StopFlag,
    *,
    resume: bool,
    overwrite: bool,
) -> Front:
    """Take the folder (rank 0), or wait until it is taken. From then on the console writes its log.

    Raises:
        OutputInUseError, NotAllowedError, NoSpaceError: on rank 0, see ``claim``.
    """
    if not world.is_main:
        attempt = world.tell("attempt")
        stop.watch(run_dir.control_stop)
        log = run_dir.attempt_log(attempt, world.rank)
        console.log_to(log)
        _send_streams_to(log)
        return Front(_NoStatus(run_dir.status, attempt=attempt))
    notes = stack.enter_context(claim(run_dir, resume=resume, overwrite=overwrite))
    stop.watch(run_dir.control_stop)
    attempt = run_dir.last_attempt() + 1
    before = stack.enter_context(kept_on_refusal(run_dir.status))
    status = stack.enter_context(Status(run_dir.status, attempt=attempt, before=before))
    console.log_to(run_dir.attempt_log(attempt, 0))
    world.tell("attempt", attempt)
    return Front(status, before, notes)


def open_monitors(
    stack: ExitStack, world: World, run_dir: RunDir, console: Console, config: TrainConfig, step: int
) -> Monitors:
    """Where numbers go; ``step``: that the run goes on from, 0 at its beginning."""
    if not world.is_main:
        return Monitors(run_dir, console, None, None)
    logging = config.logging
    external = ExternalMonitors(
        [name for name in logging.backends if name != "console"],
        run_dir,
        project=logging.project,
        run_name=logging.run_name,
        config_dict=config.model_dump(mode="json"),
        resume_step=step or None,
        warn=console.warn,
    )
    stack.callback(external.close, 10.0)
    return Monitors(run_dir, console, MetricsFile(run_dir.metrics, console.warn), external)


def open_checkpoints(
    world: World,
    run_dir: RunDir,
    config: TrainConfig,
    companions: Callable[[Path], None],
    warn: Callable[[str], None],
) -> Checkpoints:
    """Those of the run: rank 0 writes what is whole, all ranks what is sharded; all learn what was saved."""
    return Checkpoints(
        run_dir.checkpoints,
        keep_last=config.trainer.keep_last,
        keep_every=config.trainer.keep_every,
        background=config.trainer.async_checkpoint,
        companions=companions,
        warn=warn,
        writes=world.is_main,
        agree=lambda saved: world.tell("saved", saved),
        ranks=lambda: Agreement(world),
    )


class _NoStatus(Status):
    def __enter__(self) -> Status:
        return self

    def write(self, *, must: bool = False) -> None:
        pass


def _send_streams_to(log: Path) -> None:
    """What libraries print on a rank whose output nobody sees goes into its log."""
    if meeting() is None:
        return
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
