"""What a row is, and what is counted of it.

A ``RowSource`` gives, for a row's number, S (``seq_len``) inputs and S targets (-100 where there is none),
and says what became of the tokens, also without reading them. Rows are pure functions of their number; in
which order they are read is not decided here. There are three kinds:

    packing: true       ``data/window_rows.py``      windows over all tokens
    packing: false      ``data/document_rows.py``    one document a row, cut or padded
    packing: best_fit   ``data/best_fit_rows.py``    whole documents, several to a row

With ``document_mask`` rows come with positions, which restart at 0 with each document: attention stays inside
runs of positions. No target crosses a border then.

What is counted (``RowCounts``, in tokens except ``padded``):

    read      tokens the pool gave for this row that no other row counts
    trained   those that are a target
    masked    those that are only an input, such as a document's first token where nothing predicts it
    cut       those beyond the row: in neither
    padded    slots (positions of the inputs) that hold no token

    so  read = trained + masked + cut  for every row, and one epoch reads each token once
    (those of documents that make no row excepted: ``skipped`` counts these).

Where the inputs end before the row does, targets are -100 by *position*; no id is ever taken for padding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

NO_TARGET = -100
PADDING_INPUT = 0


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
    """One row. inputs: int64[S]; targets: int64[S], ``NO_TARGET`` where there is none; positions: int64[S],
    or None where documents see each other."""

    inputs: Ints
    targets: Ints
    counts: RowCounts
    positions: Ints | None = None


@dataclass(frozen=True)
class Rows:
    """Rows read together. inputs, targets and positions: int64[B, S], contiguous and writable; positions are
    None where documents see each other."""

    inputs: Ints
    targets: Ints
    positions: Ints | None = None


@dataclass(frozen=True)
class Segment:
    """A part of a document that lies in a row.

    Attributes:
        shard: name of the shard.
        document: its number in the shard, from 0; None where no index says.
        slot: where in the row it begins.
        num_tokens: how many of the row's inputs it fills.
        offset: which token of the document (of the shard, without a document) the first one is.
    """

    shard: str
    document: int | None
    slot: int
    num_tokens: int
    offset: int


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

    def segments(self, number: int) -> list[Segment]:
        """Which documents lie in a row, in its order."""


def single_row(source: RowSource, number: int) -> Row:
    """``source.row`` by way of ``source.read``."""
    numbers = np.array([number], dtype=np.int64)
    rows = source.read(numbers)
    positions = None if rows.positions is None else rows.positions[0]
    return Row(rows.inputs[0], rows.targets[0], source.counts(numbers), positions)


def fill_row(inputs: Ints, targets: Ints, tokens: Ints) -> None:
    """Lay at most S + 1 tokens into one row, in place."""
    num_inputs, num_targets = min(len(tokens), len(inputs)), len(tokens) - 1
    inputs[:num_inputs] = tokens[:num_inputs]
    inputs[num_inputs:] = PADDING_INPUT
    targets[:num_targets] = tokens[1:]
    targets[num_targets:] = NO_TARGET


def fill_positions(positions: Ints, starts: Ints) -> None:
    """0, 1, 2 ... in one row (int64[S]), from 0 again at each of ``starts`` (slots)."""
    slots = np.arange(len(positions), dtype=np.int64)
    begin = np.zeros(len(positions), dtype=np.int64)
    begin[starts] = starts
    np.subtract(slots, np.maximum.accumulate(begin), out=positions)


def check_numbers(numbers: Ints, num_rows: int) -> None:
    """Raises IndexError for a row that is not there."""
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= num_rows):
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {num_rows}")
