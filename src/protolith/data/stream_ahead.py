"""Blocks of an epoch in order, with those behind a network fetched a little ahead.

Comes in: a ``ChunkedText``, the order of its chunks, and a place in it. Goes out: blocks, the same ones in
the same order as without it. Text of this machine is read when it is asked for. Of remote text, plain chunks
are independent of one another, so a few threads fetch the next ones while this one is worked on; compressed
files and row groups have a reader that reads ahead itself (``data/storage.py``).

Memory: the blocks that wait, up to ``AHEAD_CHUNKS``, and no more are asked for while they are large. Leaving
the iteration drops what is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from protolith.data.sampler import RowOrder
from protolith.data.stream_text import ChunkedText, TextBlock
from protolith.data.text_form import TextForm

AHEAD_CHUNKS = 8
_LARGE_BYTES = 1 << 24


def blocks_in_order(
    text: ChunkedText, order: RowOrder, place: int, part: int
) -> Iterator[tuple[int, TextBlock]]:
    """(place in ``order``, block) from ``part`` of the chunk at ``place`` on, to the end of the epoch."""
    if text.is_remote:
        yield from _fetched(text, order, place, part)
        return
    for at in range(place, text.num_chunks):
        for block in text.parts(order.at(at), part if at == place else 0):
            yield at, block


def _fetched(text: ChunkedText, order: RowOrder, place: int, part: int) -> Iterator[tuple[int, TextBlock]]:
    fetchers = ThreadPoolExecutor(AHEAD_CHUNKS, thread_name_prefix="fetching")
    coming: deque[tuple[int, Future[list[TextBlock]] | None]] = deque()
    following = place
    try:
        for at in range(place, text.num_chunks):
            while following < text.num_chunks and len(coming) <= AHEAD_CHUNKS and not _are_large(coming):
                chunk = order.at(following)
                plain = text.form(text.file_of(chunk)[0]) is TextForm.LINES and following > place
                coming.append((following, fetchers.submit(_all_parts, text, chunk) if plain else None))
                following += 1
            here, blocks = coming.popleft()
            if blocks is None:
                for block in text.parts(order.at(here), part if at == place else 0):
                    yield at, block
            else:
                for block in blocks.result():
                    yield at, block
    finally:
        fetchers.shutdown(wait=False, cancel_futures=True)


def _all_parts(text: ChunkedText, chunk: int) -> list[TextBlock]:
    return list(text.parts(chunk))


def _are_large(coming: deque[tuple[int, Future[list[TextBlock]] | None]]) -> bool:
    """Whether what has come already fills the memory meant for it."""
    done = [future for _place, future in coming if future is not None and future.done()]
    waiting = sum(
        len(block.data) for future in done if future.exception() is None for block in future.result()
    )
    return waiting > _LARGE_BYTES
