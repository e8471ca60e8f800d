"""Lanes: from the documents of blocks to rows, one block after another.

A lane holds one block of documents (already in the order in which they are trained on) and gives rows of
S = ``seq_len`` tokens until it needs another block.

``WindowLane`` (packing: true): the blocks' tokens make one line; a row is the next S of them as inputs, each
followed by the one after it as target. What does not fill a row is carried over to the next block, and across
epochs; only at the end of the run is a last, padded row made of it. The lane's very first token is the only
one that is never a target.

    block 1: a b c d e     block 2: f g h ...       S = 3:   a b c -> b c d    d e f -> e f g    ...

``BestFitLane`` (packing: best_fit): see ``data/stream_best_fit.py``.

``DocumentLane`` (packing: false): one document a row; what is beyond S + 1 tokens is cut. Documents of fewer
than two tokens make no row.

Counts are those of ``data/packing.py``, by the epoch in which each token was read: read = trained + masked +
cut for every row.

With ``document_mask`` windows have no target across documents, and rows come with positions.

State: which block, and how many of its tokens (or documents) are used up: two small numbers, since a block
can be read again. Tokens themselves are in the state only where what is carried over waits for a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from protolith.data.packing import NO_TARGET, PADDING_INPUT, Ints, RowCounts, fill_positions

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
EpochCounts = dict[int, RowCounts]


@dataclass(frozen=True)
class BlockName:
    """Which block, in which epoch (from 0)."""

    epoch: int
    chunk: int
    part: int


@dataclass
class Documents:
    """The documents of one block. ids: all of them, end to end; lengths: tokens of each, in order."""

    name: BlockName
    ids: Ids
    lengths: Ints
    size_bytes: int


@dataclass
class StreamRow:
    """inputs: int64[S]; targets: int64[S], -100 where there is none; counts: of its tokens, by epoch; block:
    the last one that its tokens are of; positions: int64[S] where documents do not see each other; source:
    whose row it is."""

    inputs: Ints
    targets: Ints
    counts: EpochCounts
    block: BlockName | None = None
    positions: Ints | None = None
    source: str = ""


class Lane(Protocol):
    """A row maker."""

    def blocks(self) -> list[BlockName]:
        """Those that a restored lane must be given again by ``reopen``, in order."""

    def add(self, documents: Documents) -> None:
        """The next block; only when ``row`` gave None."""

    def reopen(self, documents: Documents) -> None:
        """The next of the blocks that the restored state names."""

    def row(self) -> StreamRow | None:
        """The next row; None: another block is needed first."""

    def flush(self) -> bool:
        """There is no block for now: whether rows can be made of what was waiting for one."""

    def close_block(self) -> None:
        """There is no block for now: forget the used-up one."""

    def last_row(self) -> StreamRow | None:
        """At the end of the run: what is left, padded; then None."""

    def waiting_bytes(self) -> float:
        """How much of the open block's ``size_bytes`` is still to come."""

    def state(self) -> dict[str, Any]:
        """JSON types only."""


class WindowLane:
    """Windows over the line of tokens. ``_start``: the first input of the next row, in ``_line``."""

    def __init__(
        self,
        seq_len: int,
        ids_type: npt.DTypeLike,
        state: dict[str, Any] | None = None,
        *,
        document_mask: bool = False,
    ) -> None:
        self.document_mask = document_mask
        #: where documents begin in the line, ascending; kept only with document_mask
        self._document_starts: Ints = np.empty(0, dtype=np.int64)
        self.block: BlockName | None = None
        self._seq_len = seq_len
        self._line: Any = np.empty(0, dtype=ids_type)
        self._start = 0
        #: (epoch, where its tokens end in the line), in order
        self._borders: list[tuple[int, int]] = []
        self._fresh = True
        #: tokens in the line that were there before the open block
        self._carried = 0
        self._size_bytes = 0
        if state is not None:
            self._fresh = state["fresh"]
            self._start = state["used"]
            if state["block"] is not None:
                self.block = BlockName(*state["block"])
            for epoch, ids in state["carried"]:
                self._append(epoch, np.array(ids, dtype=ids_type))
            self._document_starts = np.array(state.get("document_starts", ()), dtype=np.int64)

    def blocks(self) -> list[BlockName]:
        return [self.block] if self.block is not None else []

    def add(self, documents: Documents) -> None:
        self._drop_used()
        self._carried = len(self._line)
        self.reopen(documents)
        self.block = documents.name

    def reopen(self, documents: Documents) -> None:
        if self.document_mask:
            begin = np.cumsum(documents.lengths) - documents.lengths + len(self._line)
            begin = begin[documents.lengths > 0]
            self._document_starts = np.concatenate([self._document_starts, begin])
        self._append(documents.name.epoch, documents.ids)
        self._size_bytes = documents.size_bytes

    def flush(self) -> bool:
        return False

    def row(self) -> StreamRow | None:
        return self._take(self._seq_len) if self._left() > self._seq_len else None

    def close_block(self) -> None:
        self._drop_used()
        self.block, self._carried, self._size_bytes = None, 0, 0

    def last_row(self) -> StreamRow | None:
        if self._left() < 2:
            return None
        row = self._take(self._left() - 1)
        # The line is over: its last token is nobody's input, and what may come later is a line of its own.
        self._start, self._fresh = len(self._line), True
        self.close_block()
        return row

    def waiting_bytes(self) -> float:
        size = len(self._line) - self._carried
        return self._size_bytes * min(self._left(), size) / size if size else 0.0

    def state(self) -> dict[str, Any]:
        if self.block is not None and self._start >= self._carried:
            name = [self.block.epoch, self.block.chunk, self.block.part]
            return {"block": name, "used": self._start - self._carried, "carried": [], "fresh": self._fresh}
        carried, begin = [], self._start
        for epoch, end in self._borders:
            if end > begin:
                carried.append([epoch, self._line[begin:end].tolist()])
                begin = end
        state = {"block": None, "used": 0, "carried": carried, "fresh": self._fresh}
        if self.document_mask:
            starts = self._document_starts - self._start
            state["document_starts"] = starts[starts >= 0].tolist()
        return state

    def _left(self) -> int:
        return len(self._line) - self._start

    def _append(self, epoch: int, ids: Any) -> None:
        self._line = np.concatenate([self._line, ids]) if len(self._line) else ids
        if self._borders and self._borders[-1][0] == epoch:
            self._borders.pop()
        self._borders.append((epoch, len(self._line)))

    def _drop_used(self) -> None:
        self._line = self._line[self._start :].copy()
        self._borders = [(epoch, end - self._start) for epoch, end in self._borders if end > self._start]
        self._document_starts = self._document_starts[self._document_starts >= self._start] - self._start
        self._start = 0

    def _take(self, num_targets: int) -> StreamRow:
        """A row of the next ``num_targets`` inputs and their targets, padded where that is less than S."""
        start, stop, seq_len = self._start, self._start + num_targets + 1, self._seq_len
        inputs, targets = row_of(self._line[start:stop].astype(np.int64), seq_len)
        positions, unseen = None, np.empty(0, dtype=np.int64)
        if self.document_mask:
            first, last = np.searchsorted(self._document_starts, [start + 1, stop])
            unseen = self._document_starts[first:last]
            inputs, targets = inputs.copy(), targets.copy()
            targets[unseen - start - 1] = NO_TARGET
            positions = np.empty(seq_len, dtype=np.int64)
            begins = np.append(unseen - start, num_targets + 1)
            fill_positions(positions, begins[begins < seq_len])
        counts: EpochCounts = {}
        if self._fresh:
            counts[self._epoch_at(start)] = RowCounts(read=1, masked=1)
            self._fresh = False
        begin = start + 1
        for epoch, end in self._borders:
            here = min(end, stop) - begin
            if here > 0:
                masked = int(np.count_nonzero((unseen >= begin) & (unseen < begin + here)))
                more = RowCounts(read=here, trained=here - masked, masked=masked)
                counts[epoch] = counts.get(epoch, RowCounts()) + more
                begin += here
        padded = max(seq_len - num_targets - 1, 0)
        if padded:
            last = max(counts)
            counts[last] += RowCounts(padded=padded)
        self._start += num_targets
        return StreamRow(inputs, targets, counts, self.block, positions)

    def _epoch_at(self, place: int) -> int:
        return next(epoch for epoch, end in self._borders if place < end)


class DocumentLane:
    """One document a row."""

    def __init__(self, seq_len: int, state: dict[str, Any] | None = None) -> None:
        self.block: BlockName | None = None
        self._seq_len = seq_len
        self._open: Documents | None = None
        self._ends: Ints = np.empty(0, dtype=np.int64)
        self._next = 0
        if state is not None and state["block"] is not None:
            self.block, self._next = BlockName(*state["block"]), state["used"]

    def blocks(self) -> list[BlockName]:
        return [self.block] if self.block is not None else []

    def flush(self) -> bool:
        return False

    def add(self, documents: Documents) -> None:
        self._next = 0
        self.block = documents.name
        self.reopen(documents)

    def reopen(self, documents: Documents) -> None:
        self._open = documents
        self._ends = np.cumsum(documents.lengths)

    def row(self) -> StreamRow | None:
        while self._open is not None and self._next < len(self._ends):
            number, self._next = self._next, self._next + 1
            length = int(self._open.lengths[number])
            if length >= 2:
                begin = int(self._ends[number]) - length
                return self._row(self._open.ids[begin : begin + min(length, self._seq_len + 1)], length)
        return None

    def close_block(self) -> None:
        self.block, self._open, self._next = None, None, 0
        self._ends = np.empty(0, dtype=np.int64)

    def last_row(self) -> StreamRow | None:
        return None

    def waiting_bytes(self) -> float:
        if self._open is None or not len(self._ends):
            return 0.0
        return self._open.size_bytes * (len(self._ends) - self._next) / len(self._ends)

    def state(self) -> dict[str, Any]:
        name = None if self.block is None else [self.block.epoch, self.block.chunk, self.block.part]
        return {"block": name, "used": self._next}

    def _row(self, ids: Any, length: int) -> StreamRow:
        trained = len(ids) - 1
        counts = RowCounts(
            read=length,
            trained=trained,
            masked=1,
            padded=max(self._seq_len - length, 0),
            cut=length - 1 - trained,
        )
        epoch = self.block.epoch if self.block is not None else 0
        return StreamRow(*row_of(ids.astype(np.int64), self._seq_len), {epoch: counts}, self.block)


def row_of(tokens: Ints, seq_len: int) -> tuple[Ints, Ints]:
    """Inputs and targets of at most S + 1 tokens."""
    if len(tokens) == seq_len + 1:
        return tokens[:-1], tokens[1:]
    inputs = np.full(seq_len, PADDING_INPUT, dtype=np.int64)
    targets = np.full(seq_len, NO_TARGET, dtype=np.int64)
    inputs[: min(len(tokens), seq_len)] = tokens[:seq_len]
    targets[: len(tokens) - 1] = tokens[1:]
    return inputs, targets


def states_of(lanes: Sequence[Lane]) -> list[dict[str, Any]]:
    return [lane.state() for lane in lanes]
