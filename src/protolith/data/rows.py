"""The run's endless sequence of rows.

Comes in: a ``RowSource`` and a seed. Goes out: rows by their number in the run, g = 0, 1, 2, ...

    epoch e = g // num_rows,    place i = g % num_rows,    row = row_order(seed, e).at(i)

so which row is number g depends on nothing but (seed, g): not on ranks, workers, batches, or where the run
was interrupted. The state is one integer, the number of the next row, and the caller keeps it.

The loader asks a ``RowSequence`` for two things only, the rows of a range and what became of their tokens
by source and epoch, so a sequence over several sources can stand in the same place.

Cost: the order is computed in blocks of 1024 places, the last of which is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from protolith.data.packing import Ints, Row, RowCounts, Rows, RowSource
from protolith.data.sampler import row_order

DEFAULT_SOURCE = "data"
_BLOCK = 1024


class CountKey(NamedTuple):
    """Whose tokens were counted: the source's name and its epoch, counted from 0."""

    source: str
    epoch: int


StepCounts = dict[CountKey, RowCounts]


class RowSequence(Protocol):
    """Rows by their number in the run."""

    seq_len: int

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop - 1`` of the run, in that order."""

    def counts(self, start: int, stop: int) -> StepCounts:
        """What became of their tokens; reads none of them."""

    def epoch_of(self, row: int) -> int:
        """The epoch, counted from 0, that a row of the run falls in."""


@dataclass(frozen=True)
class Span:
    """Neighbouring rows of the run that fall in one epoch; ``numbers`` are those of the source's rows."""

    epoch: int
    numbers: Ints


class RowStream:
    """One source, over and over, each epoch in its own order.

    Args:
        source: the rows.
        seed: any whole number; another seed is another order.
        shuffle: off means as they lie, in every epoch.
        name: how the ledger calls this source.
    """

    def __init__(
        self, source: RowSource, *, seed: int, shuffle: bool = True, name: str = DEFAULT_SOURCE
    ) -> None:
        self.source = source
        self.name = name
        self.seed = seed
        self.shuffle = shuffle
        self.seq_len = source.seq_len
        # Replaced as a whole, never changed: threads may read it, and at worst compute a block twice.
        self._block: tuple[int, int, Ints] = (-1, -1, np.empty(0, dtype=np.int64))

    def spans(self, start: int, stop: int) -> list[Span]:
        """Which rows of the source stand at ``start`` to ``stop - 1`` of the run."""
        if not 0 <= start <= stop:
            raise IndexError(f"rows {start} to {stop} of a run")
        spans = []
        while start < stop:
            epoch, place = divmod(start, self.source.num_rows)
            until = min(place + stop - start, self.source.num_rows)
            spans.append(Span(epoch, self._in_order(epoch, place, until)))
            start += until - place
        return spans

    def read(self, start: int, stop: int) -> Rows:
        parts = [self.source.read(span.numbers) for span in self.spans(start, stop)]
        if len(parts) == 1:
            return parts[0]
        empty = np.empty((0, self.seq_len), dtype=np.int64)
        return Rows(
            np.concatenate([empty, *(part.inputs for part in parts)]),
            np.concatenate([empty, *(part.targets for part in parts)]),
        )

    def counts(self, start: int, stop: int) -> StepCounts:
        return {
            CountKey(self.name, span.epoch): self.source.counts(span.numbers)
            for span in self.spans(start, stop)
        }

    def epoch_of(self, row: int) -> int:
        return row // self.source.num_rows

    def rows(self, next_row: int = 0) -> Iterator[tuple[Row, int]]:
        """(row, number of the row after it) from ``next_row`` on, without end: for reading along."""
        while True:
            (span,) = self.spans(next_row, next_row + 1)
            next_row += 1
            yield self.source.row(int(span.numbers[0])), next_row

    def _in_order(self, epoch: int, start: int, stop: int) -> Ints:
        """Source rows at places ``start`` to ``stop - 1`` of an epoch."""
        first, last = start // _BLOCK, (stop - 1) // _BLOCK
        pieces = [self._order_block(epoch, block) for block in range(first, last + 1)]
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return joined[start - first * _BLOCK : stop - first * _BLOCK]

    def _order_block(self, epoch: int, block: int) -> Ints:
        held_epoch, held_block, numbers = self._block
        if (held_epoch, held_block) != (epoch, block):
            num_rows = self.source.num_rows
            places = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, num_rows), dtype=np.int64)
            numbers = row_order(self.seed, epoch, num_rows, self.shuffle).take(places)
            self._block = (epoch, block, numbers)
        return numbers
