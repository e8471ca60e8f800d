"""Whole documents to rows: what the items are, and which share a row: best fit, longest first.

A document of at most S tokens is one item; a longer one is cut into pieces of S and what remains.

``best_fit`` takes item lengths and gives the row of each. Each item, the longest first, goes where the least
room is left that still takes it; items of one length are placed together, so the cost depends on how many
different lengths and rooms there are, not on how many items: some 50 ms for a hundred thousand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protolith.data.packing import Ints, RowCounts

#: Of an item: a document's first token is in it; the document goes on after it.
BEGINS, GOES_ON = 1, 2


@dataclass(frozen=True)
class Items:
    """Documents and pieces of documents. starts: where the first token lies; lengths: tokens; flags: BEGINS
    and GOES_ON."""

    starts: Ints
    lengths: Ints
    flags: npt.NDArray[np.uint8]


def items_of(starts: Ints, lengths: Ints, seq_len: int) -> Items:
    """The items of documents, in order."""
    pieces = -(-lengths // seq_len)
    document = np.repeat(np.arange(len(lengths)), pieces)
    piece = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    flags = np.where(piece == 0, BEGINS, 0) + np.where(piece < pieces[document] - 1, GOES_ON, 0)
    return Items(
        starts[document] + piece * seq_len,
        np.minimum(lengths[document] - piece * seq_len, seq_len),
        flags.astype(np.uint8),
    )


def count_items(lengths: Ints, flags: npt.NDArray[np.uint8], num_rows: int, seq_len: int) -> RowCounts:
    """Counts of rows of these items. A document's first token is masked; of each item all tokens but the
    first are targets, and one more where the document goes on."""
    num_tokens = int(lengths.sum(dtype=np.int64))
    masked = int(np.count_nonzero(flags & BEGINS))
    trained = num_tokens - len(lengths) + int(np.count_nonzero(flags & GOES_ON))
    return RowCounts(
        read=trained + masked, trained=trained, masked=masked, padded=num_rows * seq_len - num_tokens
    )


def best_fit(lengths: Ints, capacity: int) -> tuple[Ints, int]:
    """(row of each item: int64, as many as items; number of rows). Rows are numbered by their first item.

    Args:
        lengths: 1 to ``capacity``.
    """
    row_of = np.empty(len(lengths), dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    borders = np.flatnonzero(np.diff(lengths[order])) + 1
    rooms = _Rooms(capacity)
    for items in np.split(order, borders) if len(order) else ():
        length, placed = int(lengths[items[0]]), 0
        while placed < len(items):
            room, rows = rooms.take(length, len(items) - placed)
            each = room // length  # the one just filled is the best fit until it is full
            used = min(len(rows), -(-(len(items) - placed) // each))
            count = min(len(items) - placed, used * each)
            row_of[items[placed : placed + count]] = np.repeat(rows[:used], each)[:count]
            full, rest = divmod(count, each)
            rooms.give(room - each * length, rows[:full])
            rooms.give(room - rest * length, rows[full:used])
            rooms.give(room, rows[used:])
            placed += count
    return _by_first_item(row_of, rooms.num_rows), rooms.num_rows


class _Rooms:
    """Rows that are not full, by how much room they have."""

    def __init__(self, capacity: int) -> None:
        self.num_rows = 0
        self._capacity = capacity
        self._rows: dict[int, list[Ints]] = {}
        self._sizes: list[int] = []

    def take(self, length: int, num_items: int) -> tuple[int, Ints]:
        """The least room that takes ``length``, and all rows that have it; else as many new rows as are
        needed."""
        at = bisect_left(self._sizes, length)
        if at < len(self._sizes):
            room = self._sizes.pop(at)
            return room, np.concatenate(self._rows.pop(room))
        count = -(-num_items // (self._capacity // length))
        first, self.num_rows = self.num_rows, self.num_rows + count
        return self._capacity, np.arange(first, self.num_rows, dtype=np.int64)

    def give(self, room: int, rows: Ints) -> None:
        if room == 0 or not len(rows):
            return
        if room not in self._rows:
            self._rows[room] = []
            insort(self._sizes, room)
        self._rows[room].append(rows)


def _by_first_item(row_of: Ints, num_rows: int) -> Ints:
    """Rows numbered anew, in the order of the first item in each."""
    first = np.empty(num_rows, dtype=np.int64)
    backwards = np.arange(len(row_of) - 1, -1, -1, dtype=np.int64)
    first[row_of[backwards]] = backwards  # written last, the smallest stays
    number = np.empty(num_rows, dtype=np.int64)
    number[np.argsort(first)] = np.arange(num_rows, dtype=np.int64)
    renamed: Ints = number[row_of]
    return renamed
