r"""Ids of words that were seen before, remembered: byte-level BPE several times faster, with the same ids.

A tokenizer of this kind cuts text into words by a regular expression and works on each by itself. The
expressions known here (GPT-2's, and those of Llama 3, Qwen 2 and GPT-4o) begin a new word at a single space
between two characters that are not white space, whatever lies further left or right: no alternative of it has
white space after its first character unless it begins with white space, and none looks back. So text may be
cut at spaces between two printable ASCII characters, and the ids of " word" be remembered. Spaces beside
anything else are not cut at.

``memo_for`` gives None for tokenizers of another kind, for which nothing is known. Texts are left alone where
an added token occurs, and where a normalizer could change them.

Memory: some 200 bytes a word, ``MOST_WORDS`` and one batch; then it begins anew. What it returns depends on
nothing that was asked before. Threads may share it.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

MOST_WORDS = 1 << 17
_MOST_CHARS = 1 << 21
_CUT = re.compile(r"(?<=[!-~]) (?=[!-~])")
_ODD_SPACES = ("  ", " \n", "\n ")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


class WordMemo:
    """Made by ``memo_for``."""

    def __init__(
        self, backend: Tokenizer, added: Sequence[str], *, ascii_only: bool, typecode: str = "I"
    ) -> None:
        self._backend = backend
        self._typecode = typecode
        self._added = tuple(added)
        self._added_begin = tuple({content[0] for content in added if content})
        self._ascii_only = ascii_only
        #: a word -> ids of it with a space before, as in an array of ``typecode``
        self._words: dict[str, bytes] = {}
        self._num_chars = 0

    def encode(self, texts: Sequence[str]) -> list[array[int] | None]:
        """Ids of each text; None for one that must be encoded as ever."""
        words = self._words  # another thread may begin anew meanwhile: this one stays whole
        cut = [_words(text) if self._is_plain(text) else [] for text in texts]
        missing = list({word for parts in cut for word in islice(parts, 1, None)} - words.keys())
        heads = [parts[0] for parts in cut if parts]
        encoded = self._backend.encode_batch_fast(
            [*heads, *[" " + word for word in missing]], add_special_tokens=False
        )
        packed = [array(self._typecode, encoding.ids).tobytes() for encoding in encoded]
        words.update(zip(missing, packed[len(heads) :], strict=True))
        found: list[array[int] | None] = []
        head = iter(packed)
        for parts in cut:
            if not parts:
                found.append(None)
                continue
            ids = array(self._typecode)
            ids.frombytes(b"".join([next(head), *map(words.__getitem__, islice(parts, 1, None))]))
            found.append(ids)
        self._num_chars += sum(map(len, missing))
        if len(words) > MOST_WORDS or self._num_chars > _MOST_CHARS:
            self._words, self._num_chars = {}, 0
        return found

    def _is_plain(self, text: str) -> bool:
        """Whether the words of this text may be taken one by one."""
        if self._ascii_only and not text.isascii():
            return False
        if any(letter in text for letter in self._added_begin):
            return not any(content in text for content in self._added)
        return True


def _words(text: str) -> list[str]:
    """The text, cut at every space between two printable ASCII characters."""
    if (
        text.isascii()
        and text.replace("\n", "").isprintable()
        and not any(odd in text for odd in _ODD_SPACES)
        and not text.startswith(" ")
        and not text.endswith(" ")
    ):
        return text.split(" ")  # here all spaces are of this kind, and this is faster
    return _CUT.split(text)


def memo_for(backend: Tokenizer, typecode: str = "I") -> WordMemo | None:
    """A memo for this tokenizer; None when it is of no kind for which one is right. ``typecode``: of the
    arrays it gives; every id must fit."""
    facts: dict[str, Any] = json.loads(backend.to_str())
    model, normalizer = facts["model"], facts.get("normalizer")
    of_words = (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and not facts.get("truncation")
        and not facts.get("padding")
    )
    if not of_words or not _cuts_at_spaces(facts.get("pre_tokenizer")):
        return None
    if normalizer is not None and normalizer.get("type") != "NFC":  # which leaves ASCII as it is
        return None
    added = [token["content"] for token in facts.get("added_tokens", [])]
    return WordMemo(backend, added, ascii_only=normalizer is not None, typecode=typecode)


def _cuts_at_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether words are those of one of the known expressions."""
    steps = [pre_tokenizer] if pre_tokenizer else []
    if steps and steps[0].get("type") == "Sequence":
        steps = list(steps[0]["pretokenizers"])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return False
    if len(steps) == 1:
        return bool(steps[0].get("use_regex", True))
    first = steps[0]
    return (
        len(steps) == 2
        and not steps[1].get("use_regex", True)
        and first.get("type") == "Split"
        and first.get("behavior") == "Isolated"
        and not first.get("invert")
        and first.get("pattern", {}).get("Regex") in _PATTERNS
    )
