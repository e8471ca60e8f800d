"""The run's endless sequence of rows.

Comes in: a ``RowSource`` and a seed. Goes out: rows by their number in the run, g = 0, 1, 2, ...

    epoch e = g // num_rows,    place i = g % num_rows,    row = row_order(seed, e).at(i)

so which row is number g depends on nothing but (seed, g): not on ranks, workers, batches, or where the run
was interrupted. The state is one integer, the number of the next row, and the caller keeps it.

The loader asks a ``RowSequence`` for little, the rows of a range and what became of their tokens by source
and epoch, so a sequence over several sources (``data/mixture.py``) can stand in the same place.

Cost: the order is computed in blocks of 1024 places, the last of which is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from protolith.data.packing import Ints, Row, RowCounts, Rows, RowSource, Segment
from protolith.data.sampler import row_order

DEFAULT_SOURCE = "data"
_BLOCK = 1024
#: Tokens of a block that ``shuffle: blocks`` reads at one go.
_SHUFFLE_BLOCK_TOKENS = 1 << 21


class CountKey(NamedTuple):
    """Whose tokens were counted: the source's name and its epoch, counted from 0."""

    source: str
    epoch: int


StepCounts = dict[CountKey, RowCounts]


@dataclass(frozen=True)
class Origin:
    """Where a row of the run comes from.

    Attributes:
        row: its number in the run.
        source, epoch: whose row it is, in which of its passes (from 0).
        number: its number among the source's rows.
        segments: the documents in it.
    """

    row: int
    source: str
    epoch: int
    number: int
    segments: tuple[Segment, ...]


class RowSequence(Protocol):
    """Rows by their number in the run."""

    seq_len: int

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop - 1`` of the run, in that order."""

    def counts(self, start: int, stop: int) -> StepCounts:
        """What became of their tokens; reads none of them."""

    def origins(self, start: int, stop: int) -> list[Origin]:
        """Where they come from."""

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
        shuffle: True: any row anywhere; "blocks": nearly sequential reads; False: as they lie.
        name: how the ledger calls this source.
        purpose: sources of one run get orders of their own by different ones.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        seed: int,
        shuffle: bool | str = True,
        name: str = DEFAULT_SOURCE,
        purpose: str = "rows",
    ) -> None:
        self.source = source
        self.name = name
        self.seed = seed
        self.shuffle = shuffle
        self.purpose = purpose
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
        return join_rows(parts) if parts else self.source.read(np.empty(0, dtype=np.int64))

    def counts(self, start: int, stop: int) -> StepCounts:
        return {
            CountKey(self.name, span.epoch): self.source.counts(span.numbers)
            for span in self.spans(start, stop)
        }

    def origins(self, start: int, stop: int) -> list[Origin]:
        numbers = [(span.epoch, int(number)) for span in self.spans(start, stop) for number in span.numbers]
        return [
            Origin(row, self.name, epoch, number, tuple(self.source.segments(number)))
            for row, (epoch, number) in enumerate(numbers, start)
        ]

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
            order = row_order(
                self.seed,
                epoch,
                num_rows,
                self.shuffle,
                block_rows=max(1, _SHUFFLE_BLOCK_TOKENS // self.seq_len),
                purpose=self.purpose,
            )
            numbers = order.take(places)
            self._block = (epoch, block, numbers)
        return numbers


def add_counts(parts: Iterable[StepCounts]) -> StepCounts:
    """The sum, source by source and epoch by epoch."""
    total: StepCounts = {}
    for part in parts:
        for key, more in part.items():
            total[key] = total[key] + more if key in total else more
    return total


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one after another; at least one part."""
    if len(parts) == 1:
        return parts[0]
    positions = [part.positions for part in parts if part.positions is not None]
    return Rows(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate(positions) if positions else None,
    )
