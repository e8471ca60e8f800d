"""What one shard holds, looked at in samples or read from start to end.

Comes in: a pool and the number of a shard in it. Goes out: numbers, never a judgement: how its documents end
(``SeparatorRate``), which ids it holds (``IdsSeen``), and, of a shard that is read whole, its SHA-256.

``sample_size`` shares a budget of some 50 million tokens and 100,000 documents among all shards: small
collections are read whole, of very many shards at least 16 thousand tokens and 10 documents of each are seen.
Memory is a piece of a million tokens, whatever the shard's size.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protolith.data.shards import TokenPool

_SAMPLED_DOCUMENTS = 1000
_SAMPLED_DOCUMENTS_IN_ALL = 100_000
_FEWEST_DOCUMENTS = 10
_FULL_SCAN_TOKENS = 50_000_000
_SCAN_PIECE_TOKENS = 1 << 20
_SAMPLE_PIECE_TOKENS = 4096
_FEWEST_PIECES = 4
_PIECES_FOR_EOS = 64

#: Offset in the shard, and the ids from there on.
Pieces = Iterator[tuple[int, npt.NDArray[Any]]]


@dataclass(frozen=True)
class SampleSize:
    """How much of each shard is looked at. ``pieces``: None reads all ids."""

    documents: int
    pieces: int | None


@dataclass(frozen=True)
class SeparatorRate:
    """How documents of one shard end. ``other_id`` is the most frequent end that is not EOS (-1: none)."""

    num_sampled: int
    num_eos: int
    num_doubled: int
    other_id: int
    num_other: int


@dataclass(frozen=True)
class IdsSeen:
    """``highest`` is -1 when nothing was looked at; ``beyond``: (offset, id) of the first one that is not
    below the vocabulary."""

    num_seen: int
    highest: int
    beyond: tuple[int, int] | None


@dataclass(frozen=True)
class WholeShard:
    """``separators`` is None without an index or an EOS to look for; ``has_eos``: it occurs somewhere."""

    ids: IdsSeen
    separators: SeparatorRate | None
    has_eos: bool
    sha256: str


def sample_size(num_shards: int, num_tokens: int) -> SampleSize:
    """What the budget allows for each of ``num_shards``."""
    share = _SAMPLED_DOCUMENTS_IN_ALL // num_shards
    pieces = _FULL_SCAN_TOKENS // _SAMPLE_PIECE_TOKENS // num_shards
    return SampleSize(
        documents=min(_SAMPLED_DOCUMENTS, max(share, _FEWEST_DOCUMENTS)),
        pieces=None if num_tokens <= _FULL_SCAN_TOKENS else max(_FEWEST_PIECES, pieces),
    )


def separator_rate(pool: TokenPool, number: int, eos_id: int, max_documents: int) -> SeparatorRate:
    """How documents of shard ``number``, at most ``max_documents`` of them spread over it, end."""
    ends = pool.document_ends(number)
    documents = np.unique(np.linspace(0, len(ends) - 1, min(max_documents, len(ends))).astype(np.int64))
    stops = ends[documents]
    lengths = stops - np.where(documents > 0, ends[documents - 1], 0)
    tails = [
        pool.read_shard(number, stop - min(length, 2), stop).tolist()
        for stop, length in zip(stops.tolist(), lengths.tolist(), strict=True)
        if length
    ]
    others = Counter(tail[-1] for tail in tails if tail[-1] != eos_id)
    return _rate(len(tails), tails.count([eos_id, eos_id]), others)


def has_eos(pool: TokenPool, number: int, eos_id: int) -> bool:
    """Whether EOS occurs in any of 64 pieces spread over the shard."""
    return any((piece == eos_id).any() for _start, piece in spread_pieces(pool, number, _PIECES_FOR_EOS))


def ids_seen(pieces: Pieces, vocab_size: int | None) -> IdsSeen:
    """The highest id of ``pieces`` and the first that is beyond a vocabulary."""
    num_seen, highest = 0, -1
    beyond: tuple[int, int] | None = None
    for start, piece in pieces:
        num_seen += len(piece)
        top = int(piece.max())
        highest = max(highest, top)
        if vocab_size is not None and beyond is None and top >= vocab_size:
            place = int((piece >= vocab_size).argmax())
            beyond = start + place, int(piece[place])
    return IdsSeen(num_seen, highest, beyond)


def read_whole(pool: TokenPool, number: int, *, eos_id: int | None, vocab_size: int | None) -> WholeShard:
    """Everything about one shard, in a single pass over it."""
    sha256 = hashlib.sha256()
    indexed = pool.shards[number].index_path is not None
    tally = None if eos_id is None or not indexed else _EndTally(pool.document_ends(number), eos_id)
    found = False

    def pieces() -> Pieces:
        nonlocal found
        for start, piece in all_pieces(pool, number):
            sha256.update(piece.data)
            found = found or (eos_id is not None and bool((piece == eos_id).any()))
            if tally is not None:
                tally.add(start, piece)
            yield start, piece

    seen = ids_seen(pieces(), vocab_size)
    return WholeShard(seen, None if tally is None else tally.rate(), found, sha256.hexdigest())


class _EndTally:
    """Counts how documents end while the ids of a shard pass by in order."""

    def __init__(self, ends: npt.NDArray[Any], eos_id: int) -> None:
        self._ends = ends
        self._eos_id = eos_id
        self._next = 0
        self._end_before = 0
        self._last_two: list[int] = []
        self._num_seen = 0
        self._num_doubled = 0
        self._others: Counter[int] = Counter()

    def add(self, start: int, piece: npt.NDArray[Any]) -> None:
        """Documents that end in ``piece``, which begins at token ``start``. Their ends are taken from the
        index in blocks, so that a piece full of empty documents costs no memory."""
        stop = start + len(piece)
        while self._next < len(self._ends):
            block = self._ends[self._next : self._next + _SCAN_PIECE_TOKENS]
            block = block[: int(np.searchsorted(block, stop, side="right"))]
            if not len(block):
                break
            lengths = np.diff(block, prepend=self._end_before)
            self._count(block[lengths > 0] - start, lengths[lengths > 0], piece)
            self._next += len(block)
            self._end_before = int(block[-1])
        self._last_two = [*self._last_two, *piece[-2:].tolist()][-2:]

    def _count(self, ends: npt.NDArray[Any], lengths: npt.NDArray[Any], piece: npt.NDArray[Any]) -> None:
        """``ends``: relative to the piece, above 0: earlier ones were counted with the piece before."""
        if not len(ends):
            return
        last = piece[ends - 1]
        before = piece[np.maximum(ends - 2, 0)]
        if ends[0] == 1 and self._last_two:  # the token before is the last one of the piece before
            before[0] = self._last_two[-1]
        closed = last == self._eos_id
        self._num_seen += len(ends)
        self._num_doubled += int((closed & (before == self._eos_id) & (lengths > 1)).sum())
        ids, counts = np.unique(last[~closed], return_counts=True)
        self._others.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))

    def rate(self) -> SeparatorRate:
        return _rate(self._num_seen, self._num_doubled, self._others)


def _rate(num_sampled: int, num_doubled: int, others: Counter[int]) -> SeparatorRate:
    other_id, num_other = others.most_common(1)[0] if others else (-1, 0)
    return SeparatorRate(num_sampled, num_sampled - others.total(), num_doubled, other_id, num_other)


def rate_in_words(rate: SeparatorRate, eos_id: int) -> str:
    """Of a rate that is not perfect: how many end with EOS, and with what else they end."""
    share = 100 * rate.num_other / rate.num_sampled
    if rate.num_other >= 0.5 * rate.num_sampled:
        how = f"documents end with id {rate.other_id} ({share:.0f} %), not with EOS {eos_id}"
    else:
        how = f"most often with id {rate.other_id} ({share:.0f} %)"
    return f"{rate.num_eos} of {rate.num_sampled} end with EOS; {how}"


def all_pieces(pool: TokenPool, number: int) -> Pieces:
    """A shard from start to end."""
    num_tokens = pool.shards[number].num_tokens
    for start in range(0, num_tokens, _SCAN_PIECE_TOKENS):
        yield start, pool.read_shard(number, start, min(start + _SCAN_PIECE_TOKENS, num_tokens))


def spread_pieces(pool: TokenPool, number: int, num_pieces: int | None) -> Pieces:
    """Pieces spread over a shard, its first and its last among them; None: all of it."""
    room = pool.shards[number].num_tokens - _SAMPLE_PIECE_TOKENS
    if num_pieces is None or room < num_pieces * _SAMPLE_PIECE_TOKENS:  # they would nearly cover it
        yield from all_pieces(pool, number)
        return
    for piece in range(num_pieces):
        start = room * piece // (num_pieces - 1)
        yield start, pool.read_shard(number, start, start + _SAMPLE_PIECE_TOKENS)
