"""Encoding one very long text in pieces, with the ids that the whole would give.

The ``tokenizers`` library needs some 200 bytes of memory for each character of a text, which makes a line
of 60 MB impossible in one go. So long texts are cut, but only at places where a cut is shown to change
nothing: the text around the place, encoded once whole and once as two, must give the same ids. Tokenizers
disagree about where a space belongs, so three ways to cut at one are tried: before it, after it, and
instead of it.

Where no such place is found (11 MB without a space), a piece is encoded to see where its tokens end, and one
of these ends is tried. Where there is none either (a vocabulary of whole words), the piece grows, at worst to
the whole text: 40 bytes a character then, since there is but one token.

Deterministic: places depend on the text alone. Cost: a few encodings of a thousand characters a cut; of text
without spaces twice the work.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice

from tokenizers import Tokenizer

#: Texts up to this many characters are encoded whole.
LONG_CHARS = 1 << 18
_AROUND_CHARS = 512
_TRIES = 24


def encode_long(backend: Tokenizer, text: str, poll: Callable[[], None] | None = None) -> array[int]:
    """Ids of ``text`` without special tokens added, in four bytes each. ``poll`` is called before each
    piece."""
    ids = array("I")
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
        if goal == start + piece_chars:
            border = _border_of_tokens(backend, text, start, goal)
            if border is not None:
                return border, border
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


def _border_of_tokens(backend: Tokenizer, text: str, start: int, goal: int) -> int | None:
    """A place before ``goal`` where one token ends and the next begins, so that a cut changes nothing.

    What is left of the place is judged from a token's beginning on: in a run of one letter, where tokens
    begin depends on where the run does.
    """
    encoding = backend.encode(text[start:goal], add_special_tokens=False)
    ids, offsets = encoding.ids, encoding.offsets
    around = min(_AROUND_CHARS, (goal - start) // 4)
    begins = [begin for begin, _end in offsets]
    tries = 0
    for at in range(len(ids) - 1, 0, -1):
        place = begins[at]
        if place > goal - start - around or offsets[at - 1][1] != place:
            continue
        tries += 1
        if tries > _TRIES or place <= 2 * around:
            return None
        first = bisect_left(begins, place - around, 0, at)
        before, cut = start + begins[first], start + place
        if first and offsets[first - 1][1] != begins[first]:  # inside a letter of several tokens
            continue
        left, right = text[before:cut], text[cut : cut + around]
        left_ids = _ids(backend, left)
        if left_ids == ids[first:at] and _ids(backend, left + right) == left_ids + _ids(backend, right):
            return cut
    return None


def _changes_nothing(backend: Tokenizer, text: str, end: int, resume: int) -> bool:
    left = text[max(0, end - _AROUND_CHARS) : end]
    right = text[resume : resume + _AROUND_CHARS]
    return _ids(backend, left + text[end:resume] + right) == _ids(backend, left) + _ids(backend, right)


def _ids(backend: Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
