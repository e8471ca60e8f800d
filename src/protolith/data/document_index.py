"""Where documents begin and end in a pool, by the shards' indexes.

Nothing is kept: single look-ups are binary searches in a mapped index, whole passes read it in pieces of
constant size. Documents without a token are in the index of some tools; they begin nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protolith.data.packing import Ints, Segment
from protolith.data.shards import TokenPool
from protolith.errors import DataError

_PIECE = 1 << 20


def require_indexes(pool: TokenPool, setting: str) -> None:
    """Refuse shards without an index; ``setting`` is what needs to know where documents end.

    Raises:
        DataError: with the names of such shards.
    """
    missing = [shard.name for shard in pool.shards if shard.index_path is None]
    if missing:
        raise DataError(
            f"{setting} needs to know where documents end, but {len(missing)} shards have no .index",
            where=", ".join(missing[:5]),
            hint="copy the .index files too, or set packing: true without document_mask",
        )


def lengths_in_pieces(pool: TokenPool, shard: int) -> Iterator[tuple[int, Ints]]:
    """(number of the first document, lengths in tokens of it and those after it) until the shard's end."""
    num_documents, last = pool.shards[shard].num_documents, 0
    for first in range(0, num_documents, _PIECE):
        ends = pool.read_document_ends(shard, first, min(first + _PIECE, num_documents))
        yield first, np.diff(ends, prepend=last)
        last = int(ends[-1])


def count_documents(pool: TokenPool) -> int:
    """Documents that hold a token."""
    return sum(
        int(np.count_nonzero(lengths))
        for shard in range(len(pool.shards))
        for _first, lengths in lengths_in_pieces(pool, shard)
    )


def document_starts(pool: TokenPool, start: int, stop: int) -> Ints:
    """The tokens from ``start`` to ``stop - 1`` of the pool with which a document begins, ascending."""
    found = []
    while start < stop:
        number, begin = pool.shard_of(start)
        num_tokens = pool.shards[number].num_tokens
        end = min(begin + stop - start, num_tokens)
        ends = pool.document_ends(number)
        first, last = np.searchsorted(ends, [max(begin, 1), end])
        inside = np.unique(ends[first:last])
        base = start - begin
        if begin == 0:
            found.append(np.array([base], dtype=np.int64))
        found.append(inside + base)
        start = base + end
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def segments_between(pool: TokenPool, start: int, stop: int, slot: int = 0) -> list[Segment]:
    """The parts of documents that tokens ``start`` to ``stop - 1`` of the pool are, laid from ``slot`` on.
    A shard without an index is one part."""
    parts = []
    while start < stop:
        number, begin = pool.shard_of(start)
        shard = pool.shards[number]
        document, offset, end = None, begin, shard.num_tokens
        if shard.index_path is not None:
            ends = pool.document_ends(number)
            document = int(np.searchsorted(ends, begin, side="right"))
            offset = begin - (int(ends[document - 1]) if document else 0)
            end = int(ends[document])
        count = min(end - begin, stop - start)
        parts.append(Segment(shard.name, document, slot, count, offset))
        start, slot = start + count, slot + count
    return parts
