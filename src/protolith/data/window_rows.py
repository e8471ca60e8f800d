"""Rows that are windows over all tokens (``packing: true``).

Row r has inputs ``tokens[r*S : r*S+S]`` and targets ``tokens[r*S+1 : r*S+S+1]``. N tokens make ceil((N-1)/S)
rows and N-1 targets; only the last row is padded.

    tokens   a b c d e f g       S = 3        row 0: a b c -> b c d      row 1: d e f -> e f g

With ``document_mask`` the first token of a document is nobody's target (so N less the number of documents are
trained), and positions restart there and at the row's beginning.

State: none. Cost: with the mask the indexes are read through once when opened, and searched twice a row.
"""

from __future__ import annotations

import numpy as np

from protolith.data.document_index import count_documents, document_starts, require_indexes, segments_between
from protolith.data.packing import (
    NO_TARGET,
    Ints,
    Row,
    RowCounts,
    Rows,
    Segment,
    check_numbers,
    fill_positions,
    fill_row,
    single_row,
)
from protolith.data.shards import TokenPool
from protolith.errors import CorpusTooSmallError


class WindowRows:
    """Windows over the pool.

    Raises:
        CorpusTooSmallError: fewer tokens than one row and its last target.
        DataError: ``document_mask``, and a shard without an index.
    """

    def __init__(self, pool: TokenPool, seq_len: int, *, document_mask: bool = False) -> None:
        if pool.num_tokens < seq_len + 1:
            raise CorpusTooSmallError(
                f"{pool.num_tokens} tokens found, {seq_len + 1} needed for one row of {seq_len}",
                hint="use more data, or a smaller sequence length",
            )
        self.pool = pool
        self.seq_len = seq_len
        self.document_mask = document_mask
        pairs = pool.num_tokens - 1
        self.num_rows = -(-pairs // seq_len)
        #: pairs (input, token after it) of the last row, 1 to seq_len
        self._last_pairs = pairs - (self.num_rows - 1) * seq_len
        #: slots of the last row that hold no token; the pool's last token fills one where there is room
        self._last_padded = max(seq_len - self._last_pairs - 1, 0)
        masked = 1
        if document_mask:
            require_indexes(pool, "document_mask")
            masked = count_documents(pool)
        self.num_targets = pool.num_tokens - masked
        if not self.num_targets:
            raise CorpusTooSmallError(f"{pool.num_tokens} documents of one token: nothing to predict")
        self.epoch_counts = RowCounts(
            read=pool.num_tokens, trained=self.num_targets, masked=masked, padded=self._last_padded
        )
        self.skipped: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()

    def row(self, number: int) -> Row:
        return single_row(self, number)

    def read(self, numbers: Ints) -> Rows:
        check_numbers(numbers, self.num_rows)
        partial = self._last_pairs < self.seq_len
        # The last row would run beyond the pool: the row before it takes its place, then it is mended.
        whole = np.minimum(numbers, self.num_rows - 2) if partial else numbers
        windows = self.pool.read_windows((whole * self.seq_len).tolist(), self.seq_len + 1)
        inputs, targets = windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64)
        if partial:
            for last in np.flatnonzero(numbers == self.num_rows - 1):
                tokens = self.pool.read((self.num_rows - 1) * self.seq_len, self.pool.num_tokens)
                fill_row(inputs[last], targets[last], tokens)
        if not self.document_mask:
            return Rows(inputs, targets)
        positions = np.empty_like(inputs)
        for place, row in enumerate(numbers.tolist()):
            self._mask(row, targets[place], positions[place])
        return Rows(inputs, targets, positions)

    def counts(self, numbers: Ints) -> RowCounts:
        num_last = int(np.count_nonzero(numbers == self.num_rows - 1))
        pairs = len(numbers) * self.seq_len - num_last * (self.seq_len - self._last_pairs)
        first = int(np.count_nonzero(numbers == 0))
        masked = first
        if self.document_mask:
            masked += sum(len(self._borders(row)) for row in numbers.tolist())
        return RowCounts(
            read=pairs + first,
            trained=pairs + first - masked,
            masked=masked,
            padded=num_last * self._last_padded,
        )

    def segments(self, number: int) -> list[Segment]:
        start = number * self.seq_len
        return segments_between(self.pool, start, min(start + self.seq_len, self.pool.num_tokens))

    def _borders(self, number: int) -> Ints:
        """The slots of a row whose next token begins another document."""
        start = number * self.seq_len
        pairs = self._last_pairs if number == self.num_rows - 1 else self.seq_len
        return document_starts(self.pool, start + 1, start + pairs + 1) - (start + 1)

    def _mask(self, number: int, targets: Ints, positions: Ints) -> None:
        borders = self._borders(number)
        targets[borders] = NO_TARGET
        starts = borders + 1
        if number == self.num_rows - 1 and self._last_padded:
            starts = np.append(starts, self.seq_len - self._last_padded)
        fill_positions(positions, starts[starts < self.seq_len])
