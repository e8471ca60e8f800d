"""From a pool of tokens to numbered rows.

Comes in: a ``TokenPool`` and the row length S (``seq_len``). Goes out: a ``RowSource``: for a row's number
its S inputs and S targets (-100 where there is none), and what became of the tokens, also without reading
them. Rows are pure functions of their number; in which order they are read is not decided here.

Windows (``WindowRows``, packing: true): row r has inputs ``tokens[r*S : r*S+S]`` and targets
``tokens[r*S+1 : r*S+S+1]``. N tokens make ceil((N-1)/S) rows and N-1 targets; only the last row is padded.

    tokens   a b c d e f g       S = 3        row 0: a b c -> b c d      row 1: d e f -> e f g

Documents (``DocumentRows``, packing: false): one document a row, inputs ``doc[:S]``, targets
``doc[1:S+1]``; what lies beyond is cut. A document of fewer than two tokens has no target and makes no row.

What is counted (``RowCounts``, in tokens except ``padded``):

    read      tokens the pool gave for this row that no other row counts
    trained   those that are a target
    masked    those that are only an input: the pool's first token; with documents, each one's first
    cut       those beyond the row: in neither
    padded    slots (positions of the inputs) that hold no token

    so  read = trained + masked + cut  for every row, and one epoch reads each token once
    (with documents: each token of the documents that make a row; the others are in ``skipped``).

Where the inputs end before the row does, targets are -100 by *position*; no id is ever taken for padding.

State and cost: windows need none. Documents read the indexes once when opened, in pieces of constant size,
and remember only which documents make no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

from protolith.data.shards import TokenPool
from protolith.errors import CorpusTooSmallError, DataError

Ints = npt.NDArray[np.int64]

NO_TARGET = -100
PADDING_INPUT = 0
_INDEX_PIECE = 1 << 20


@dataclass(frozen=True)
class RowCounts:
    """What became of tokens and slots; see the top of this file. ``a + b`` adds field by field."""

    read: int = 0
    trained: int = 0
    masked: int = 0
    padded: int = 0
    cut: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(RowCounts)))


@dataclass(frozen=True)
class Row:
    """One row. inputs: int64[S]; targets: int64[S], ``NO_TARGET`` where there is none."""

    inputs: Ints
    targets: Ints
    counts: RowCounts


@dataclass(frozen=True)
class Rows:
    """Rows read together. inputs: int64[B, S]; targets: int64[B, S]; both contiguous and writable."""

    inputs: Ints
    targets: Ints


class RowSource(Protocol):
    """Rows by number. ``num_rows`` and ``num_targets`` are those of one epoch, ``epoch_counts`` all of it;
    ``skipped`` counts documents that make no row, by reason; ``notes`` are to be said once."""

    seq_len: int
    num_rows: int
    num_targets: int
    epoch_counts: RowCounts
    skipped: dict[str, int]
    notes: tuple[str, ...]

    def row(self, number: int) -> Row:
        """Row ``number`` of 0 .. num_rows - 1."""

    def read(self, numbers: Ints) -> Rows:
        """Many rows at once, in the order asked for."""

    def counts(self, numbers: Ints) -> RowCounts:
        """The sum of the counts of these rows; reads no tokens."""


class WindowRows:
    """Windows over the pool.

    Raises:
        CorpusTooSmallError: fewer tokens than one row and its last target.
    """

    def __init__(self, pool: TokenPool, seq_len: int) -> None:
        if pool.num_tokens < seq_len + 1:
            raise CorpusTooSmallError(
                f"{pool.num_tokens} tokens found, {seq_len + 1} needed for one row of {seq_len}",
                hint="use more data, or a smaller sequence length",
            )
        self.pool = pool
        self.seq_len = seq_len
        self.num_targets = pool.num_tokens - 1
        self.num_rows = -(-self.num_targets // seq_len)
        #: targets of the last row, 1 to seq_len
        self._last_targets = self.num_targets - (self.num_rows - 1) * seq_len
        #: slots of the last row that hold no token; the pool's last token fills one where there is room
        self._last_padded = max(seq_len - self._last_targets - 1, 0)
        self.epoch_counts = RowCounts(
            read=pool.num_tokens, trained=self.num_targets, masked=1, padded=self._last_padded
        )
        self.skipped: dict[str, int] = {}
        self.notes: tuple[str, ...] = ()

    def row(self, number: int) -> Row:
        return _single(self, number)

    def read(self, numbers: Ints) -> Rows:
        _check_numbers(numbers, self.num_rows)
        partial = self._last_targets < self.seq_len
        # The last row would run beyond the pool: the row before it takes its place, then it is mended.
        whole = np.minimum(numbers, self.num_rows - 2) if partial else numbers
        windows = self.pool.read_windows((whole * self.seq_len).tolist(), self.seq_len + 1)
        rows = Rows(windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64))
        if partial:
            for place in np.flatnonzero(numbers == self.num_rows - 1):
                self._fill_last(rows.inputs[place], rows.targets[place])
        return rows

    def counts(self, numbers: Ints) -> RowCounts:
        num_last = int(np.count_nonzero(numbers == self.num_rows - 1))
        trained = len(numbers) * self.seq_len - num_last * (self.seq_len - self._last_targets)
        masked = int(np.count_nonzero(numbers == 0))
        return RowCounts(
            read=trained + masked, trained=trained, masked=masked, padded=num_last * self._last_padded
        )

    def _fill_last(self, inputs: Ints, targets: Ints) -> None:
        tokens = self.pool.read((self.num_rows - 1) * self.seq_len, self.pool.num_tokens)
        _fill(inputs, targets, tokens)


class DocumentRows:
    """One document a row.

    Raises:
        DataError: a shard without an index, where documents cannot be told apart.
        CorpusTooSmallError: no document of at least two tokens.
    """

    def __init__(self, pool: TokenPool, seq_len: int) -> None:
        self.pool = pool
        self.seq_len = seq_len
        _require_indexes(pool)
        #: shard number -> numbers of its documents that make no row, ascending; only shards that have some
        self._without_row: dict[int, Ints] = {}
        rows_of_shard = np.zeros(len(pool.shards) + 1, dtype=np.int64)
        counts = RowCounts()
        num_cut = 0
        for number in range(len(pool.shards)):
            without_row: list[Ints] = []
            for first, lengths in _lengths_in_pieces(pool, number):
                short = lengths < 2
                if short.any():
                    without_row.append(first + np.flatnonzero(short))
                kept = lengths[~short]
                counts += _document_counts(kept, seq_len)
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
        self.skipped = {"documents of fewer than two tokens": num_short} if num_short else {}
        self.notes = self._notes(num_cut, num_short)

    def row(self, number: int) -> Row:
        return _single(self, number)

    def read(self, numbers: Ints) -> Rows:
        shape = (len(numbers), self.seq_len)
        rows = Rows(np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64))
        shards, begins, lengths = self._locate(numbers)
        starts = self.pool.starts[shards] + begins
        wanted = np.minimum(lengths, self.seq_len + 1)
        for place, (start, length) in enumerate(zip(starts.tolist(), wanted.tolist(), strict=True)):
            tokens = self.pool.read(start, start + length)
            _fill(rows.inputs[place], rows.targets[place], tokens)
        return rows

    def counts(self, numbers: Ints) -> RowCounts:
        _shards, _begins, lengths = self._locate(numbers)
        return _document_counts(lengths, self.seq_len)

    def _locate(self, numbers: Ints) -> tuple[Ints, Ints, Ints]:
        """For each row: its shard, where its document begins there, and how long that is, in tokens."""
        _check_numbers(numbers, self.num_rows)
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
            notes.append(f"{num_short:,} documents of fewer than two tokens make no row")
        return tuple(notes)


def _single(source: RowSource, number: int) -> Row:
    numbers = np.array([number], dtype=np.int64)
    rows = source.read(numbers)
    return Row(rows.inputs[0], rows.targets[0], source.counts(numbers))


def _fill(inputs: Ints, targets: Ints, tokens: Ints) -> None:
    """Lay at most S + 1 tokens into one row, in place."""
    num_inputs, num_targets = min(len(tokens), len(inputs)), len(tokens) - 1
    inputs[:num_inputs] = tokens[:num_inputs]
    inputs[num_inputs:] = PADDING_INPUT
    targets[:num_targets] = tokens[1:]
    targets[num_targets:] = NO_TARGET


def _document_counts(lengths: Ints, seq_len: int) -> RowCounts:
    """Counts of documents of these lengths, each at least 2."""
    trained = int(np.minimum(lengths - 1, seq_len).sum())
    return RowCounts(
        read=int(lengths.sum()),
        trained=trained,
        masked=len(lengths),
        padded=int(np.maximum(seq_len - lengths, 0).sum()),
        cut=int(np.maximum(lengths - 1 - seq_len, 0).sum()),
    )


def _lengths_in_pieces(pool: TokenPool, shard: int) -> Iterator[tuple[int, Ints]]:
    """(number of the first document, lengths of it and those after it) until the shard's end."""
    num_documents, last = pool.shards[shard].num_documents, 0
    for first in range(0, num_documents, _INDEX_PIECE):
        ends = pool.read_document_ends(shard, first, min(first + _INDEX_PIECE, num_documents))
        yield first, np.diff(ends, prepend=last)
        last = int(ends[-1])


def _require_indexes(pool: TokenPool) -> None:
    missing = [shard.name for shard in pool.shards if shard.index_path is None]
    if missing:
        raise DataError(
            f"packing: false needs to know where documents end, but {len(missing)} shards have no .index",
            where=", ".join(missing[:5]),
            hint="copy the .index files too, or set packing: true",
        )


def _check_numbers(numbers: Ints, num_rows: int) -> None:
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= num_rows):
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {num_rows}")
