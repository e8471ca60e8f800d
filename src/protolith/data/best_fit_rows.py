"""Rows of whole documents (``packing: best_fit``).

A document of at most S tokens lies in one row, whole. A longer one is cut into pieces of S, each a row of
its own, and what remains is an item like any short document: nothing is dropped. Items are put together by
``data/best_fit.py``, 2^17 documents at a time, which leaves well under 1 % of the slots of real text empty.

    documents   a a a a a   b b b   c c       S = 5      row 0: a a a a a      row 1: b b b c c

Every token of a document but its first is a target once: a piece's last slot has the next piece's first token
as its target. Nothing is predicted across documents, so a row's targets do not depend on what else it holds;
with ``document_mask`` attention does not cross either.

A document of fewer than two tokens has no target and makes no item.

State: 13 bytes a document and 8 a row, in memory up to 4 million documents, beyond that in an unnamed
temporary file that the system drops with the process. Cost when opened: one pass over the indexes, about a
microsecond a document.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from protolith.data.best_fit import GOES_ON, best_fit, count_items, items_of
from protolith.data.document_index import lengths_in_pieces, require_indexes, segments_between
from protolith.data.document_rows import SHORT
from protolith.data.packing import (
    NO_TARGET,
    PADDING_INPUT,
    Ints,
    Row,
    RowCounts,
    Rows,
    Segment,
    check_numbers,
    fill_positions,
    single_row,
)
from protolith.data.shards import TokenPool
from protolith.errors import CorpusTooSmallError

_GROUP_DOCUMENTS = 1 << 17
_MOST_IN_MEMORY = 1 << 22


class BestFitRows:
    """Whole documents, several to a row.

    Args:
        poll: called once a group of documents while opening; what it raises ends it.

    Raises:
        DataError: a shard without an index.
        CorpusTooSmallError: no document of at least two tokens.
    """

    def __init__(
        self,
        pool: TokenPool,
        seq_len: int,
        *,
        document_mask: bool = False,
        poll: Callable[[], None] | None = None,
    ) -> None:
        require_indexes(pool, "packing: best_fit")
        self.pool = pool
        self.seq_len = seq_len
        self.document_mask = document_mask
        on_disk = pool.num_documents > _MOST_IN_MEMORY
        starts, lengths = _Column(np.int64, on_disk), _Column(np.int32, on_disk)
        flags, firsts = _Column(np.uint8, on_disk), _Column(np.int64, on_disk)
        self.num_rows = num_items = num_short = 0
        counts = RowCounts()
        for group in _groups(pool):
            if poll is not None:
                poll()
            long_enough = group[:, 1] >= 2
            num_short += len(group) - int(np.count_nonzero(long_enough))
            items = items_of(group[long_enough, 0], group[long_enough, 1], seq_len)
            row_of, num_rows = best_fit(items.lengths, seq_len)
            order = np.argsort(row_of, kind="stable")
            starts.append(items.starts[order])
            lengths.append(items.lengths[order])
            flags.append(items.flags[order])
            firsts.append(num_items + np.searchsorted(row_of[order], np.arange(num_rows)))
            counts += count_items(items.lengths, items.flags, num_rows, seq_len)
            num_items += len(order)
            self.num_rows += num_rows
        if self.num_rows == 0:
            raise CorpusTooSmallError(
                f"{pool.num_documents} documents found, none of at least 2 tokens",
                hint="a row needs a token and the one after it",
            )
        firsts.append(np.array([num_items]))
        #: of each item, row after row: its first token in the pool, how many, and what of a document it is
        self._starts, self._lengths, self._flags = starts.whole(), lengths.whole(), flags.whole()
        #: int64[num_rows + 1]: the first item of each row
        self._firsts = firsts.whole()
        self.num_targets = counts.trained
        self.epoch_counts = counts
        self.skipped = {SHORT: num_short} if num_short else {}
        self.notes = self._notes(num_short)

    def row(self, number: int) -> Row:
        return single_row(self, number)

    def read(self, numbers: Ints) -> Rows:
        check_numbers(numbers, self.num_rows)
        shape = (len(numbers), self.seq_len)
        inputs = np.full(shape, PADDING_INPUT, dtype=np.int64)
        targets = np.full(shape, NO_TARGET, dtype=np.int64)
        positions = np.empty(shape, dtype=np.int64) if self.document_mask else None
        for place, number in enumerate(numbers.tolist()):
            slot, borders = 0, []
            for start, length, goes_on in self._row_items(number):
                tokens = self.pool.read(start, start + length + goes_on)
                inputs[place, slot : slot + length] = tokens[:length]
                targets[place, slot : slot + len(tokens) - 1] = tokens[1:]
                slot += length
                borders.append(slot)
            if positions is not None:
                starts = np.array(borders, dtype=np.int64)
                fill_positions(positions[place], starts[starts < self.seq_len])
        return Rows(inputs, targets, positions)

    def counts(self, numbers: Ints) -> RowCounts:
        check_numbers(numbers, self.num_rows)
        begins, ends = self._firsts[numbers], self._firsts[numbers + 1]
        within = np.arange(int((ends - begins).sum())) - np.repeat(
            np.cumsum(ends - begins) - (ends - begins), ends - begins
        )
        items = np.repeat(begins, ends - begins) + within
        return count_items(self._lengths[items], self._flags[items], len(numbers), self.seq_len)

    def segments(self, number: int) -> list[Segment]:
        parts: list[Segment] = []
        slot = 0
        for start, length, _goes_on in self._row_items(number):
            parts += segments_between(self.pool, start, start + length, slot)
            slot += length
        return parts

    def _row_items(self, number: int) -> Iterator[tuple[int, int, int]]:
        """(first token, tokens, 1 if the document goes on after them) of each item of a row."""
        here = slice(int(self._firsts[number]), int(self._firsts[number + 1]))
        goes_on = (self._flags[here] & GOES_ON) // GOES_ON
        return zip(self._starts[here].tolist(), self._lengths[here].tolist(), goes_on.tolist(), strict=True)

    def _notes(self, num_short: int) -> tuple[str, ...]:
        share = 100 * self.epoch_counts.padded / (self.num_rows * self.seq_len)
        notes = [f"best_fit: {share:.2g} % of the slots of {self.num_rows:,} rows are empty"]
        if num_short:
            notes.append(f"{num_short:,} {SHORT} make no row")
        return tuple(notes)


def _groups(pool: TokenPool) -> Iterator[Ints]:
    """All documents (int64[n, 2]: first token in the pool, tokens), so many at a time; groups run across
    shards."""
    waiting: list[Ints] = []
    size = 0
    for shard in range(len(pool.shards)):
        start = int(pool.starts[shard])
        for _first, lengths in lengths_in_pieces(pool, shard):
            ends = start + np.cumsum(lengths)
            documents = np.stack([ends - lengths, lengths], axis=1)
            start = int(ends[-1])
            while size + len(documents) >= _GROUP_DOCUMENTS:
                taken = _GROUP_DOCUMENTS - size
                yield np.concatenate([*waiting, documents[:taken]])
                documents, waiting, size = documents[taken:], [], 0
            waiting.append(documents)
            size += len(documents)
    if size:
        yield np.concatenate(waiting)


class _Column:
    """Numbers that are appended and then read, in memory or in an unnamed file."""

    def __init__(self, dtype: npt.DTypeLike, on_disk: bool) -> None:
        self._dtype = np.dtype(dtype)
        self._parts: list[npt.NDArray[Any]] = []
        self._file = tempfile.TemporaryFile() if on_disk else None  # noqa: SIM115 - lives with the map

    def append(self, values: npt.NDArray[Any]) -> None:
        values = values.astype(self._dtype)
        if self._file is None:
            self._parts.append(values)
        else:
            self._file.write(values.tobytes())

    def whole(self) -> npt.NDArray[Any]:
        if self._file is None:
            return np.concatenate(self._parts)
        self._file.flush()
        return np.memmap(self._file, dtype=self._dtype, mode="r")
