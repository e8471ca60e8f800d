"""Rows of one document each (``packing: false``).

Inputs are ``doc[:S]``, targets ``doc[1:S+1]``; what lies beyond is cut. A document of fewer than two tokens
has no target and makes no row.

State and cost: the indexes are read once when opened, in pieces of constant size; remembered is only which
documents make no row.
"""

from __future__ import annotations

import numpy as np

from protolith.data.document_index import lengths_in_pieces, require_indexes, segments_between
from protolith.data.packing import Ints, Row, RowCounts, Rows, Segment, check_numbers, fill_row, single_row
from protolith.data.shards import TokenPool
from protolith.errors import CorpusTooSmallError

SHORT = "documents of fewer than two tokens"


class DocumentRows:
    """One document a row.

    Raises:
        DataError: a shard without an index, where documents cannot be told apart.
        CorpusTooSmallError: no document of at least two tokens.
    """

    def __init__(self, pool: TokenPool, seq_len: int) -> None:
        self.pool = pool
        self.seq_len = seq_len
        require_indexes(pool, "packing: false")
        #: shard number -> numbers of its documents that make no row, ascending; only shards that have some
        self._without_row: dict[int, Ints] = {}
        rows_of_shard = np.zeros(len(pool.shards) + 1, dtype=np.int64)
        counts = RowCounts()
        num_cut = 0
        for number in range(len(pool.shards)):
            without_row: list[Ints] = []
            for first, lengths in lengths_in_pieces(pool, number):
                short = lengths < 2
                if short.any():
                    without_row.append(first + np.flatnonzero(short))
                kept = lengths[~short]
                counts += _counts_of(kept, seq_len)
                num_cut += int(np.count_nonzero(kept > seq_len + 1))
                rows_of_shard[number + 1] += len(kept)
            if without_row:
                self._without_row[number] = np.concatenate(without_row)
        #: int64[num_shards + 1]: the first row of each shard
        self._row_starts = np.cumsum(rows_of_shard)
        self.num_rows = int(self._row_starts[-1])
        if self.num_rows == 0:
            raise CorpusTooSmallError(
                f"{pool.num_documents} documents found, none of at least 2 tokens",
                hint="a row needs a token and the one after it",
            )
        self.num_targets = counts.trained
        self.epoch_counts = counts
        num_short = sum(len(numbers) for numbers in self._without_row.values())
        self.skipped = {SHORT: num_short} if num_short else {}
        self.notes = self._notes(num_cut, num_short)

    def row(self, number: int) -> Row:
        return single_row(self, number)

    def read(self, numbers: Ints) -> Rows:
        shape = (len(numbers), self.seq_len)
        rows = Rows(np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64))
        shards, begins, lengths = self._locate(numbers)
        starts = self.pool.starts[shards] + begins
        wanted = np.minimum(lengths, self.seq_len + 1)
        for place, (start, length) in enumerate(zip(starts.tolist(), wanted.tolist(), strict=True)):
            tokens = self.pool.read(start, start + length)
            fill_row(rows.inputs[place], rows.targets[place], tokens)
        return rows

    def counts(self, numbers: Ints) -> RowCounts:
        _shards, _begins, lengths = self._locate(numbers)
        return _counts_of(lengths, self.seq_len)

    def segments(self, number: int) -> list[Segment]:
        shards, begins, lengths = self._locate(np.array([number], dtype=np.int64))
        start = int(self.pool.starts[shards[0]] + begins[0])
        return segments_between(self.pool, start, start + min(int(lengths[0]), self.seq_len))

    def _locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """For each row: its shard, where its document begins there, and how long that is, in tokens."""
        check_numbers(numbers, self.num_rows)
        shards = np.searchsorted(self._row_starts, numbers, side="right") - 1
        begins = np.empty(len(numbers), dtype=np.int64)
        lengths = np.empty(len(numbers), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            here = np.flatnonzero(shards == shard)
            documents = self._documents(shard, numbers[here] - self._row_starts[shard])
            ends = self.pool.document_ends(shard)
            begins[here] = np.where(documents > 0, ends[documents - 1], 0)
            lengths[here] = ends[documents] - begins[here]
        return shards, begins, lengths

    def _documents(self, shard: int, rows: Ints) -> Ints:
        """The documents of a shard that make its ``rows``. Before the k-th document without a row lie as
        many rows as its own number less k; so many of them as are passed are added back."""
        without_row = self._without_row.get(shard)
        if without_row is None:
            return rows
        rows_before = without_row - np.arange(len(without_row))
        return rows + np.searchsorted(rows_before, rows, side="right")

    def _notes(self, num_cut: int, num_short: int) -> tuple[str, ...]:
        counts, notes = self.epoch_counts, []
        if num_cut:
            share = 100 * counts.cut / counts.read
            notes.append(
                f"{num_cut:,} of {self.num_rows:,} documents are longer than a row of {self.seq_len}:"
                f" {counts.cut:,} tokens ({share:.1f} %) are cut and never trained on; packing keeps them"
            )
        share = 100 * counts.padded / (self.num_rows * self.seq_len)
        if share >= 50:
            notes.append(f"{share:.0f} % of all slots are padding; packing fills them")
        if num_short:
            notes.append(f"{num_short:,} {SHORT} make no row")
        return tuple(notes)


def _counts_of(lengths: Ints, seq_len: int) -> RowCounts:
    """Counts of documents of these lengths, each at least 2."""
    trained = int(np.minimum(lengths - 1, seq_len).sum())
    return RowCounts(
        read=int(lengths.sum()),
        trained=trained,
        masked=len(lengths),
        padded=int(np.maximum(seq_len - lengths, 0).sum()),
        cut=int(np.maximum(lengths - 1 - seq_len, 0).sum()),
    )
