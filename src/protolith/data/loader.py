"""From rows to the tensors of one optimizer step. Torch begins here.

Comes in: a ``RowSequence`` and how a global batch is split. Goes out: ``StepBatches``, one a step, with the
position *after* that step: what was prefetched and never consumed is nowhere in the state.

How a global batch is dealt. With W ranks, A micro-batches (``accumulation``) of b rows each, a step takes the
next G = W * A * b rows of the run, or what is left of them before ``stop_row``: R rows. Rank r gets the
neighbouring rows R*r//W to R*(r+1)//W of the batch, and cuts them into micro-batches of b in that order:

    W = 2, A = 2, b = 2:     rank 0: [0 1] [2 3]      rank 1: [4 5] [6 7]
    the last step, R = 5:    rank 0: [0 1]            rank 1: [2 3] [4]       -> rank 0 adds [filler]

So the rows of a step are the same for every split with the same G. Ranks of a last, smaller step differ by
one row at most; where that would leave a rank with fewer micro-batches than another, it adds one of a single
row without targets, because every rank must come to every collective. A filler is no row and is not counted.

``num_targets`` and ``counts`` are those of the whole global batch, computed on every rank from row numbers
alone, so that a sum of losses can be divided before anyone has communicated.

Threads: with workers, whole steps are assembled ahead, at most ``2 * num_workers`` of them, and given out in
order, whoever finishes first. Errors surface where the step would have come, with their own type. Threads
end with the iteration: exhausted, closed, or left by an exception; ``with StepLoader(...)`` makes sure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protolith.data.iteration import OneIteration
from protolith.data.packing import NO_TARGET, PADDING_INPUT, Rows, RowSource
from protolith.data.row_ranges import Range, StepRows, merged, step_rows
from protolith.data.rows import Origin, RowSequence, StepCounts, add_counts, join_rows


@dataclass(frozen=True)
class Batch:
    """One micro-batch. inputs: int64[B, T]; targets: int64[B, T], -100 where there is none;
    num_targets: those of this micro-batch; positions: int64[B, T], from 0 in each document, where documents
    do not see each other, else None."""

    inputs: Tensor
    targets: Tensor
    num_targets: int
    positions: Tensor | None = None


@dataclass(frozen=True)
class StepBatches:
    """One optimizer step, as seen by one rank.

    Attributes:
        micro_batches: this rank's share; as many on every rank.
        next_row: the run's next row after this step: all that a resume needs.
        num_targets: targets of the whole global batch.
        counts: what became of the tokens of the whole global batch, by source and epoch.
        left_out: tokens of rows that this step jumped over, in the same form.
        origins: gives where its rows come from.
        epoch: the epoch (from 0) of the step's first row; a step may run across into the next.
        position: where streamed text goes on after this step, in JSON types; empty where ``next_row`` is all.
        last: the rows end with this step.
    """

    micro_batches: list[Batch]
    next_row: int
    num_targets: int
    counts: StepCounts
    epoch: int
    position: Mapping[str, Any] = field(default_factory=dict)
    last: bool = False
    left_out: StepCounts = field(default_factory=dict)
    origins: Callable[[], list[Origin]] = list


def share(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Which of ``num_rows`` neighbouring rows a rank takes: first and one after the last."""
    return num_rows * rank // world_size, num_rows * (rank + 1) // world_size


class StepLoader(OneIteration[StepBatches]):
    """Steps from ``start_row`` to ``stop_row`` (None: without end). Each iteration begins at ``start_row``.

    Args:
        sequence: the run's rows, such as a ``RowStream``.
        micro_batch_rows, accumulation, rank, world_size: see the top of this file.
        num_workers: threads that read ahead; 0 reads when asked.
        left_out: ranges of rows that no step takes, see ``data/row_ranges.py``.
    """

    def __init__(
        self,
        sequence: RowSequence,
        *,
        micro_batch_rows: int,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        start_row: int = 0,
        stop_row: int | None = None,
        num_workers: int = 0,
        left_out: Sequence[Range] = (),
    ) -> None:
        if min(micro_batch_rows, accumulation, world_size) < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank} of {world_size}, {accumulation} micro-batches of {micro_batch_rows} rows"
            )
        if min(start_row, num_workers) < 0:
            raise ValueError(f"start_row {start_row}, num_workers {num_workers}")
        self.global_rows = world_size * accumulation * micro_batch_rows
        self.start_row = start_row
        self.stop_row = stop_row
        self.sequence = sequence
        self._micro_batch_rows = micro_batch_rows
        self._rank = rank
        self._world_size = world_size
        self._num_workers = num_workers
        self._left_out = merged(left_out)
        super().__init__(ahead=num_workers > 0)

    def _rows_of_steps(self) -> Iterator[StepRows]:
        start = self.start_row
        while (rows := self._rows_from(start)) is not None:
            yield rows
            start = rows.next_row

    def _rows_from(self, start: int) -> StepRows | None:
        return step_rows(start, self.global_rows, self._left_out, self.stop_row)

    def _read_when_asked(self) -> Generator[StepBatches, None, None]:
        for rows in self._rows_of_steps():
            yield self._step(rows)

    def _prefetched(self) -> Generator[StepBatches, None, None]:
        threads = ThreadPoolExecutor(self._num_workers, thread_name_prefix="rows")
        ahead: deque[Future[StepBatches]] = deque()
        try:
            for rows in self._rows_of_steps():
                ahead.append(threads.submit(self._step, rows))
                if len(ahead) >= 2 * self._num_workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def _step(self, rows: StepRows) -> StepBatches:
        counts = self._counts(rows.taken)
        return StepBatches(
            micro_batches=self._micro_batches(rows),
            next_row=rows.next_row,
            num_targets=sum((c.trained for c in counts.values()), 0),
            counts=counts,
            epoch=self.sequence.epoch_of(rows.taken[0][0]),
            last=self._rows_from(rows.next_row) is None,
            left_out=self._counts(rows.jumped),
            origins=lambda: [origin for part in rows.taken for origin in self.sequence.origins(*part)],
        )

    def _counts(self, ranges: Sequence[Range]) -> StepCounts:
        return add_counts(self.sequence.counts(*part) for part in ranges)

    def _micro_batches(self, rows: StepRows) -> list[Batch]:
        return deal(
            lambda begin, end: join_rows([self.sequence.read(*part) for part in rows.between(begin, end)]),
            rows.num_rows,
            micro_batch_rows=self._micro_batch_rows,
            rank=self._rank,
            world_size=self._world_size,
            seq_len=self.sequence.seq_len,
        )


def deal(
    read: Callable[[int, int], Rows],
    num_rows: int,
    *,
    micro_batch_rows: int,
    rank: int,
    world_size: int,
    seq_len: int,
) -> list[Batch]:
    """One rank's micro-batches of a step of ``num_rows`` rows; ``read(a, b)`` gives rows a to b - 1 of the
    step. See the top of this file."""
    first, last = share(num_rows, rank, world_size)
    largest_share = -(-num_rows // world_size)
    num_batches = -(-largest_share // micro_batch_rows)
    batches = []
    for begin in range(first, last, micro_batch_rows):
        batches.append(_batch(read(begin, min(begin + micro_batch_rows, last))))
    while len(batches) < num_batches:
        batches.append(_filler(seq_len))
    return batches


class EvalLoader:
    """Every row of a source, once, in the order they are numbered: the same batches each time.

    Args:
        source: held-out rows.
        batch_rows: rows of one rank's batch.
        max_batches: stop after so many batches (of every rank); None: the whole set.
        rank, world_size: ranks share the set as they share a step; all of them see as many batches.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        batch_rows: int,
        max_batches: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_rows < 1 or not 0 <= rank < world_size:
            raise ValueError(f"batches of {batch_rows} rows, rank {rank} of {world_size}")
        self._source = source
        self._batch_rows = batch_rows
        self._rank = rank
        self._world_size = world_size
        num_batches = -(-source.num_rows // (batch_rows * world_size))
        self._num_batches = num_batches if max_batches is None else min(max_batches, num_batches)
        #: rows that are evaluated, on all ranks together
        self.num_rows = min(source.num_rows, self._num_batches * batch_rows * world_size)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Batch]:
        group = self._batch_rows * self._world_size
        for start in range(0, self._num_batches * group, group):
            num_rows = min(group, self._source.num_rows - start)
            first, last = share(num_rows, self._rank, self._world_size)
            if first == last:
                yield _filler(self._source.seq_len)
            else:
                yield _batch(self._source.read(np.arange(start + first, start + last, dtype=np.int64)))


def _batch(rows: Rows) -> Batch:
    num_targets = int(np.count_nonzero(rows.targets != NO_TARGET))
    positions = None if rows.positions is None else torch.from_numpy(rows.positions)
    return Batch(torch.from_numpy(rows.inputs), torch.from_numpy(rows.targets), num_targets, positions)


def _filler(seq_len: int) -> Batch:
    return Batch(
        torch.full((1, seq_len), PADDING_INPUT, dtype=torch.int64),
        torch.full((1, seq_len), NO_TARGET, dtype=torch.int64),
        0,
    )
