"""Remembered words: the ids that the library gives, whatever the text and whatever was asked before."""

from __future__ import annotations

import random
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from protolith.data import word_memo
from protolith.data.tokenizer import load_tokenizer
from protolith.data.word_memo import WordMemo, memo_for
from tests.data.corpora import bpe_dir, document, metaspace_dir, word_level_dir, words

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA.replace("{1,3}", "")
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def backend_json() -> str:
    with TemporaryDirectory() as folder:
        return (bpe_dir(Path(folder)) / "tokenizer.json").read_text()


def backend(kind: str) -> Tokenizer:
    made = Tokenizer.from_str(backend_json())
    patterns = {"llama": LLAMA, "qwen": QWEN, "gpt-4o": GPT_4O}
    if kind in patterns:
        split = pre_tokenizers.Split(Regex(patterns[kind]), behavior="isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    if kind == "qwen":
        made.normalizer = normalizers.NFC()
    if kind == "added":
        made.add_tokens([AddedToken("  "), AddedToken("a b"), AddedToken("é", lstrip=True, rstrip=True)])
    return made


KINDS = ["gpt-2", "llama", "qwen", "gpt-4o", "added"]
PIECES = [
    *"ab'sT1.,!<>|é日\u0301 \n\t\r\u00a0\u2003\x1c\x85\u200b",
    *["'s", "'re", "  ", " \n", "\r\n", "<|endoftext|>", "123", "don't", " /", "//\n", "e\u0301", " \u0301"],
    *words()[:6],
]


@cache
def memo(kind: str) -> tuple[Tokenizer, WordMemo]:
    made = backend(kind)
    remembered = memo_for(made)
    assert remembered is not None
    return made, remembered


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=400, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), max_size=40), spaced=st.booleans())
def test_any_text_has_the_ids_of_the_library(kind: str, parts: list[str], spaced: bool) -> None:
    made, remembered = memo(kind)  # of all examples before this one
    text = (" " if spaced else "").join(parts)
    (ids,) = remembered.encode([text])
    if ids is not None:
        assert ids.tolist() == made.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_text_is_remembered(kind: str) -> None:
    made, remembered = memo(kind)
    texts = [document(number) for number in range(30)]
    found = remembered.encode(texts)
    expected = [encoding.ids for encoding in made.encode_batch(texts, add_special_tokens=False)]
    assert [ids.tolist() if ids is not None else None for ids in found] == expected


def test_texts_it_cannot_know_are_left_alone() -> None:
    assert memo("qwen")[1].encode(["plain", "caf\u00e9"])[1] is None
    assert memo("gpt-2")[1].encode(["the <|endoftext|> end", "caf\u00e9"])[0] is None
    assert memo("gpt-2")[1].encode(["the <|endoftext|> end", "caf\u00e9"])[1] is not None
    assert memo("added")[1].encode(["x a b y"]) == [None]


def other(change: Any) -> Tokenizer:
    made = backend("gpt-2")
    change(made)
    return made


def _set(name: str, value: Any) -> Any:
    return lambda made: setattr(made, name, value)


@pytest.mark.parametrize(
    "change",
    [
        _set("normalizer", normalizers.Lowercase()),
        _set("normalizer", normalizers.NFKC()),
        _set("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        _set("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        _set("pre_tokenizer", pre_tokenizers.Whitespace()),
        _set(
            "pre_tokenizer",
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"\w+ \w+"), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
        ),
        lambda made: setattr(made.model, "dropout", 0.1),
        lambda made: made.enable_truncation(8),
    ],
)
def test_of_other_kinds_nothing_is_remembered(change: Any) -> None:
    assert memo_for(other(change)) is None


def test_whole_words_and_sentence_pieces_are_other_kinds(tmp_path: Path) -> None:
    assert memo_for(load_tokenizer(word_level_dir(tmp_path / "a", 50)).backend) is None
    assert memo_for(load_tokenizer(metaspace_dir(tmp_path / "b")).backend) is None


def test_memory_is_bounded_and_beginning_anew_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, "MOST_WORDS", 20)
    made = backend("gpt-2")
    remembered = memo_for(made)
    assert remembered is not None
    texts = [document(number) for number in range(20)]

    def ask() -> None:
        chance = random.Random()
        for _ in range(50):
            text = chance.choice(texts)
            (ids,) = remembered.encode([text])
            if ids is None or ids.tolist() != made.encode(text, add_special_tokens=False).ids:
                wrong.append(text)

    wrong: list[str] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    remembered.encode(texts)
    assert len(remembered._words) == 0
