"""A lane of whole documents (``packing: best_fit``).

Blocks are gathered until there are documents for a good number of rows, then packed as shards are (see
``data/best_fit.py``), so that few slots stay empty. At the end of an epoch what was gathered is packed,
however little it is: no row holds documents of two epochs, and nothing is left at the end.

State: which blocks were gathered and how many rows they have given, or that they wait: all of them can be
read again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from protolith.data.best_fit import GOES_ON, best_fit, count_items, items_of
from protolith.data.packing import NO_TARGET, PADDING_INPUT, Ints, fill_positions
from protolith.data.stream_lanes import BlockName, Documents, StreamRow

#: Rows that are packed together: half of the last one is empty, in the mean.
_ROWS_TOGETHER = 64


class BestFitLane:
    """Whole documents, several to a row."""

    def __init__(
        self, seq_len: int, state: dict[str, Any] | None = None, *, document_mask: bool = False
    ) -> None:
        self._seq_len = seq_len
        self._document_mask = document_mask
        self._names: list[BlockName] = []
        self._gathered: list[Documents] = []
        self._packed: _Packed | None = None
        self._given = 0
        self._missing = 0
        self._was_packed = False
        if state is not None:
            self._names = [BlockName(*name) for name in state["blocks"]]
            self._given, self._was_packed = state["given"], state["packed"]
            self._missing = len(self._names)

    def blocks(self) -> list[BlockName]:
        return list(self._names)

    def add(self, documents: Documents) -> None:
        if self._packed is not None:
            self.close_block()
        self._names.append(documents.name)
        self._gathered.append(documents)
        if sum(len(part.ids) for part in self._gathered) >= _ROWS_TOGETHER * self._seq_len:
            self._pack()

    def reopen(self, documents: Documents) -> None:
        self._gathered.append(documents)
        self._missing -= 1
        if not self._missing and self._was_packed:
            self._pack()

    def row(self) -> StreamRow | None:
        if self._packed is None or self._given == self._packed.num_rows:
            return None
        self._given += 1
        return self._row(self._packed, self._given - 1)

    def flush(self) -> bool:
        if self._packed is not None or not self._gathered:
            return False
        return self._pack().num_rows > 0

    def close_block(self) -> None:
        self._names, self._gathered, self._packed, self._given = [], [], None, 0

    def last_row(self) -> StreamRow | None:
        return None

    def waiting_bytes(self) -> float:
        size = sum(part.size_bytes for part in self._gathered)
        if self._packed is None:
            return size
        return size * (1 - self._given / self._packed.num_rows) if self._packed.num_rows else 0.0

    def state(self) -> dict[str, Any]:
        names = [[name.epoch, name.chunk, name.part] for name in self._names]
        return {"blocks": names, "given": self._given, "packed": self._packed is not None}

    def _pack(self) -> _Packed:
        ids = np.concatenate([part.ids for part in self._gathered])
        lengths = np.concatenate([part.lengths for part in self._gathered])
        self._packed = _Packed(ids, lengths, self._seq_len)
        return self._packed

    def _row(self, packed: _Packed, number: int) -> StreamRow:
        inputs = np.full(self._seq_len, PADDING_INPUT, dtype=np.int64)
        targets = np.full(self._seq_len, NO_TARGET, dtype=np.int64)
        here = packed.items_of_row(number)
        slot, borders = 0, []
        for item in here.tolist():
            start, length = int(packed.items.starts[item]), int(packed.items.lengths[item])
            more = bool(packed.items.flags[item] & GOES_ON)
            tokens = packed.ids[start : start + length + more]
            inputs[slot : slot + length] = tokens[:length]
            targets[slot : slot + len(tokens) - 1] = tokens[1:]
            slot += length
            borders.append(slot)
        positions = None
        if self._document_mask:
            positions = np.empty(self._seq_len, dtype=np.int64)
            starts = np.array(borders, dtype=np.int64)
            fill_positions(positions, starts[starts < self._seq_len])
        counts = count_items(packed.items.lengths[here], packed.items.flags[here], 1, self._seq_len)
        last = self._names[-1]
        return StreamRow(inputs, targets, {last.epoch: counts}, last, positions)


class _Packed:
    """Documents of some blocks and the rows they make."""

    def __init__(self, ids: Any, lengths: Ints, seq_len: int) -> None:
        self.ids = ids
        starts = np.cumsum(lengths) - lengths
        kept = lengths >= 2
        self.items = items_of(starts[kept], lengths[kept], seq_len)
        row_of, self.num_rows = best_fit(self.items.lengths, seq_len)
        self._order = np.argsort(row_of, kind="stable")
        self._firsts = np.searchsorted(row_of[self._order], np.arange(self.num_rows + 1))

    def items_of_row(self, number: int) -> Ints:
        items: Ints = self._order[self._firsts[number] : self._firsts[number + 1]]
        return items
