"""Encoding one very long text in pieces, with the ids that the whole would give.

The ``tokenizers`` library needs some 200 bytes of memory for each character of a text, which makes a line
of 60 MB impossible in one go. So long texts are cut, but only at places where a cut is shown to change
nothing: the text around the place, encoded once whole and once as two, must give the same ids. Tokenizers
disagree about where a space belongs, so three ways to cut at one are tried: before it, after it, and
instead of it.

Where no such place is found, the piece grows; a text without any (11 MB of one word) is encoded whole.
Deterministic: places depend on the text alone. Cost: a few encodings of a thousand characters a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from tokenizers import Tokenizer

#: Texts up to this many characters are encoded whole.
LONG_CHARS = 1 << 18
_AROUND_CHARS = 512
_TRIES = 24


def encode_long(backend: Tokenizer, text: str, poll: Callable[[], None] | None = None) -> list[int]:
    """Ids of ``text`` without special tokens added. ``poll`` is called before each piece."""
    ids: list[int] = []
    for start, stop in pieces(backend, text, poll):
        ids.extend(_ids(backend, text[start:stop]))
    return ids


def pieces(
    backend: Tokenizer, text: str, poll: Callable[[], None] | None = None, piece_chars: int = LONG_CHARS
) -> Iterator[tuple[int, int]]:
    """Ranges of ``text`` whose encodings, joined, are the encoding of the whole."""
    start = 0
    while start < len(text):
        if poll is not None:
            poll()
        cut = _find_cut(backend, text, start, piece_chars)
        if cut is None:
            yield start, len(text)
            return
        yield start, cut[0]
        start = cut[1]


def _find_cut(backend: Tokenizer, text: str, start: int, piece_chars: int) -> tuple[int, int] | None:
    """(end of this piece, start of the next) for the piece from ``start`` on; None: no more cuts."""
    goal = start + piece_chars
    while goal < len(text):
        for place in islice(_places(text, goal - piece_chars // 2, goal), _TRIES):
            for end, resume in ((place, place), (place + 1, place + 1), (place, place + 1)):
                if _changes_nothing(backend, text, end, resume):
                    return end, resume
        goal += piece_chars // 2
    return None


def _places(text: str, low: int, high: int) -> Iterator[int]:
    """Where a cut may do no harm, likeliest first, each group from ``high`` down to ``low``: single
    white-space characters; then changes between letters or digits and anything else (for text that is
    written without spaces)."""
    for place in range(high, low, -1):
        around = text[place - 1 : place + 2]
        if around[1].isspace() and not around[0].isspace() and not around[2:].isspace():
            yield place
    for place in range(high, low, -1):
        if text[place - 1].isalnum() != text[place].isalnum():
            yield place


def _changes_nothing(backend: Tokenizer, text: str, end: int, resume: int) -> bool:
    left = text[max(0, end - _AROUND_CHARS) : end]
    right = text[resume : resume + _AROUND_CHARS]
    return _ids(backend, left + text[end:resume] + right) == _ids(backend, left) + _ids(backend, right)


def _ids(backend: Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
