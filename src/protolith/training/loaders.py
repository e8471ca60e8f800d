"""From opened data to the batches that are still to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.data.loader import Batch, EvalLoader, StepLoader
from protolith.data.rows import RowStream
from protolith.data.stream_loader import StreamLoader
from protolith.distributed.world import World
from protolith.training.datasets import Datasets, StreamedText
from protolith.training.loop import RunState


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
    if not isinstance(datasets.train, StreamedText):
        state.position = {}
        return StepLoader(
            RowStream(datasets.train, seed=data.seed, shuffle=data.shuffle),
            micro_batch_rows=batch.micro_batch_rows,
            accumulation=batch.accumulation,
            rank=world.rank,
            world_size=world.size,
            start_row=state.next_row,
            stop_row=plan.total_rows,
            num_workers=data.num_workers,
        )
    if state.next_row and not state.position:  # the data was no stream when it was saved
        epoch = state.next_row // plan.rows_per_epoch
        state.position = {"shape": None, "rows": state.next_row, "epoch": epoch}
    loader = StreamLoader(
        datasets.train.stream,
        micro_batch_rows=batch.micro_batch_rows,
        accumulation=batch.accumulation,
        rank=world.rank,
        world_size=world.size,
        position=state.position,
        num_epochs=config.trainer.num_epochs,
        stop_row=plan.row_limit,
        num_workers=data.num_workers,
    )
    if loader.restarts:
        epoch = state.position["epoch"] + 1
        warn(f"this is other text: epoch {epoch} begins anew, at row {state.next_row}")
    return loader


def held_out_loader(
    config: TrainConfig, datasets: Datasets, plan: Plan, world: World
) -> Callable[[], Iterable[Batch]] | None:
    """Makes the same batches of held-out rows each time it is called; None without held-out data."""
    source = datasets.held_out
    if source is None:
        return None
    rows = config.eval.batch_size or plan.batch.micro_batch_rows
    return lambda: EvalLoader(
        source,
        batch_rows=rows,
        max_batches=config.eval.max_batches,
        rank=world.rank,
        world_size=world.size,
    )
