"""From opened data to the batches that are still to do."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.data.loader import Batch, EvalLoader, StepLoader
from protolith.data.mixture import MixedRows, Stage, continued
from protolith.data.row_ranges import stop_after
from protolith.data.rows import RowStream
from protolith.data.stream_loader import StreamLoader
from protolith.data.stream_mixture import StreamMixture
from protolith.data.stream_sharing import Sharing
from protolith.data.streams import TextStream
from protolith.distributed.world import World
from protolith.training.datasets import Datasets
from protolith.training.loop import RunState

HeldOut = Callable[[], dict[str, Iterable[Batch]]]


def row_sequence(
    config: TrainConfig,
    datasets: Datasets,
    global_rows: int,
    *,
    record: Sequence[Mapping[str, Any]] = (),
    next_row: int = 0,
) -> RowStream | MixedRows:
    """The run's rows by number.

    Args:
        global_rows: of a step; stages of a mixture begin with steps.
        record, next_row: the stages as they really were up to that row, on resume.
    """
    data = config.data
    if not datasets.mixed:
        return RowStream(datasets.rows, seed=data.seed, shuffle=data.shuffle)
    streams = [
        RowStream(rows, seed=data.seed, shuffle=data.shuffle, name=name, purpose=f"rows of {name}")
        for name, rows in datasets.numbered
    ]
    return MixedRows(streams, _stages(datasets, global_rows, record, next_row))


def _stages(
    datasets: Datasets, global_rows: int, record: Sequence[Mapping[str, Any]], next_row: int
) -> tuple[Stage, ...]:
    stages = datasets.stages(global_rows)
    return continued(stages, record, next_row) if record else stages


def step_loader(
    config: TrainConfig,
    datasets: Datasets,
    plan: Plan,
    world: World,
    state: RunState,
    warn: Callable[[str], None],
) -> StepLoader | StreamLoader:
    """The steps from where ``state`` stands; a context manager that ends what reads ahead."""
    data, batch = config.data, plan.batch
    if not datasets.streams:
        rows = row_sequence(
            config,
            datasets,
            batch.global_rows,
            record=state.position.get("stages", ()),
            next_row=state.next_row,
        )
        state.position = {"stages": rows.record()} if isinstance(rows, MixedRows) else {}
        return StepLoader(
            rows,
            micro_batch_rows=batch.micro_batch_rows,
            accumulation=batch.accumulation,
            rank=world.rank,
            world_size=world.size,
            start_row=state.next_row,
            stop_row=_stop_row(plan, state),
            num_workers=data.num_workers,
            left_out=state.skip_rows,
        )
    if state.next_row and "shape" not in state.position:  # the data was no stream when it was saved
        epoch = state.next_row // plan.rows_per_epoch
        state.position = {"shape": None, "rows": state.next_row, "epoch": epoch}
    limit, num_epochs = plan.row_limit, config.trainer.num_epochs
    stream: TextStream | StreamMixture = datasets.streams[0]
    if datasets.mixed:  # its sources end at different times: a mixture is as long as was estimated
        record = state.position.get("stages", ())
        stages = _stages(datasets, batch.global_rows, record, state.next_row)
        stream = StreamMixture(datasets.streams, stages)
        limit, num_epochs = plan.total_rows, None
    loader = StreamLoader(
        stream,
        micro_batch_rows=batch.micro_batch_rows,
        accumulation=batch.accumulation,
        rank=world.rank,
        world_size=world.size,
        position=state.position,
        num_epochs=num_epochs,
        stop_row=None if limit is None else stop_after(limit, state.skip_rows),
        num_workers=data.num_workers,
        left_out=state.skip_rows,
        sharing=_sharing(world),
    )
    if loader.restarts:
        epoch = f"epoch {state.position['epoch'] + 1}" if "epoch" in state.position else "its epoch"
        warn(f"this is other text: {epoch} begins anew, at row {state.next_row}")
    return loader


def _sharing(world: World) -> Sharing | None:
    """A folder in which the ranks of this machine share what they tokenize."""
    if world.size == 1:
        return None
    name = world.tell("stream", secrets.token_hex(8))
    if world.local_size == 1:
        return None
    folder = Path(tempfile.gettempdir()) / f"protolith-stream-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return Sharing(folder, world.local_rank, world.local_size)


def _stop_row(plan: Plan, state: RunState) -> int:
    """Epochs end where they end; steps and tokens are counted without the rows that are left out."""
    return plan.total_rows if plan.ends_by == "epochs" else stop_after(plan.total_rows, state.skip_rows)


def held_out_loader(config: TrainConfig, datasets: Datasets, plan: Plan, world: World) -> HeldOut | None:
    """Makes the same batches of each held-out set each time it is called; None without held-out data."""
    if not datasets.held_out:
        return None
    rows = config.eval.batch_size or plan.batch.micro_batch_rows
    return lambda: {
        name: EvalLoader(
            source,
            batch_rows=rows,
            max_batches=config.eval.max_batches,
            rank=world.rank,
            world_size=world.size,
        )
        for name, source in datasets.held_out.items()
    }
