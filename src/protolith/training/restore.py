"""Putting a run back where its checkpoint left it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protolith.data.ledger import Ledger
from protolith.data.row_ranges import merged
from protolith.distributed.engine import Engine
from protolith.distributed.world import World
from protolith.formats.rundir import RunDir, read_metrics
from protolith.training.checkpoint import Checkpoints
from protolith.training.checkpoint_read import load_checkpoint
from protolith.training.loop import RunState
from protolith.training.monitors.console import Console
from protolith.training.resume import check_identity, set_aside_later


def restore(
    folder: Path,
    run_dir: RunDir,
    engine: Engine,
    checkpoints: Checkpoints,
    identity: dict[str, Any],
    consent: frozenset[str],
    console: Console,
    world: World,
) -> RunState:
    """Load ``folder`` into the engine, after it was found to be of the same run.

    Args:
        identity: of the run as it is asked for now.
        consent: areas in which it may differ from what was saved.

    Raises:
        ResumeMismatchError: it differs elsewhere.
        CheckpointError: the folder is damaged, or holds another model.
    """
    engine_state, progress = load_checkpoint(folder)
    for line in check_identity(progress.identity, identity, accepted=consent, where=str(folder)):
        console.warn(f"accepted change: {line}")
    engine.load_state(engine_state)
    metrics: dict[str, Any] = {}
    if folder.parent.resolve() == run_dir.checkpoints.resolve():
        if world.is_main:
            for note in set_aside_later(run_dir, progress.step):
                console.info(note)
        checkpoints.last_saved = progress.step
        metrics = _last_values(run_dir, progress.step)
    console.info(f"resumed from {folder.name}: step {progress.step}, {progress.tokens:,} tokens")
    return RunState(
        Ledger.from_dict(progress.ledger),
        step=progress.step,
        next_row=progress.next_row,
        tokens=progress.tokens,
        skipped_steps=progress.skipped_steps,
        position=progress.position,
        skip_rows=merged(progress.skip_rows),
        best=progress.best,
        metrics=metrics,
    )


def _last_values(run_dir: RunDir, step: int) -> dict[str, Any]:
    """The newest value of each metric up to ``step``, for a run that has nothing left to do."""
    values: dict[str, Any] = {}
    for at, line in read_metrics(run_dir.metrics).items():
        if at <= step:
            values.update({k: float(v) for k, v in line.items() if k not in ("step", "time")})
    return values
