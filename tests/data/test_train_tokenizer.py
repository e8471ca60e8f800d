"""A tokenizer from a corpus: loads in transformers, writes any text back, comes out the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.data.train_tokenizer import train_tokenizer
from protolith.errors import (
    BadRecordError,
    ConflictError,
    CorpusTooSmallError,
    DataError,
    NotFoundError,
    UsageError,
)
from tests.data.corpora import bpe_dir, document, write_jsonl


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in" / "c.jsonl", [document(n) for n in range(50)])


def test_transformers_loads_it_and_agrees(corpus: Path, tmp_path: Path) -> None:
    ours = train_tokenizer([str(corpus.parent)], 400, tmp_path / "tok")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "tok")
    assert ours.vocab_size == len(theirs) == 400
    assert theirs.eos_token == ours.eos_token == "<|endoftext|>"
    assert theirs.eos_token_id == ours.eos_id == 0
    assert theirs.pad_token == "<|pad|>"
    assert theirs.pad_token_id == 1
    assert ours.notes == ()
    text = document(7) + "  Ünïcode\n\t日本 <b> don't!"
    assert theirs(text)["input_ids"] == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == text


def test_the_same_text_gives_the_same_files_in_any_process(corpus: Path, tmp_path: Path) -> None:
    train_tokenizer([str(corpus)], 350, tmp_path / "a")
    source = str(Path(__file__).parents[2] / "src")
    code = (
        f"import sys; sys.path[:0] = [{source!r}];"
        "from protolith.data.train_tokenizer import train_tokenizer;"
        f"train_tokenizer([{str(corpus)!r}], 350, {str(tmp_path / 'b')!r})"
    )
    for seed, threads in (("1", "1"), ("2", "4")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "PYTHONPATH": source}
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        (tmp_path / "b" / "tokenizer.json").unlink()


@cache
def _shared() -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(bpe_dir(Path(folder)))


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_any_text_comes_back(text: str) -> None:
    tokenizer = _shared()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_texts_can_be_given_as_an_iterator(corpus: Path, tmp_path: Path) -> None:
    by_path = train_tokenizer([str(corpus)], 350, tmp_path / "a")
    by_text = train_tokenizer((document(n) for n in range(50)), 350, tmp_path / "b")
    assert by_path.digest == by_text.digest


def test_a_small_corpus_gives_fewer_entries_and_says_so(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(["one two"]), 4096, tmp_path / "t")
    assert tokenizer.vocab_size < 300
    assert "only" in tokenizer.notes[0]
    assert "4,096" in tokenizer.notes[0]


def test_a_limit_is_kept_and_said(tmp_path: Path) -> None:
    seen = []

    def texts():  # type: ignore[no-untyped-def]
        for number in range(100):
            seen.append(number)
            yield document(number)

    tokenizer = train_tokenizer(texts(), 300, tmp_path / "t", max_chars=1000)
    assert len(seen) < 20
    assert any("first 1,000 characters" in note for note in tokenizer.notes)


def test_skipped_records_are_said(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [*(document(n) for n in range(150)), {"text": None}])
    tokenizer = train_tokenizer([str(path)], 300, tmp_path / "t")
    assert "skipped 1 of 151 records: null (first at c.jsonl:151)" in tokenizer.notes


def test_an_existing_tokenizer_is_not_overwritten_unasked(corpus: Path, tmp_path: Path) -> None:
    train_tokenizer([str(corpus)], 300, tmp_path / "t")
    before = (tmp_path / "t" / "tokenizer.json").read_bytes()
    with pytest.raises(ConflictError):
        train_tokenizer([str(corpus)], 350, tmp_path / "t")
    assert (tmp_path / "t" / "tokenizer.json").read_bytes() == before
    assert train_tokenizer([str(corpus)], 350, tmp_path / "t", overwrite=True).vocab_size == 350


def test_impossible_requests_are_errors(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="256 bytes"):
        train_tokenizer([str(corpus)], 257, tmp_path / "t")
    with pytest.raises(NotFoundError):
        train_tokenizer([str(tmp_path / "none.jsonl")], 300, tmp_path / "t")
    with pytest.raises(CorpusTooSmallError):
        train_tokenizer(iter([]), 300, tmp_path / "t")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\nnonsense\n')
    with pytest.raises(BadRecordError) as damaged:
        train_tokenizer([str(tmp_path / "bad.jsonl")], 300, tmp_path / "t")
    assert damaged.value.where == "bad.jsonl:2"
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError):
        train_tokenizer([str(tmp_path / "void")], 300, tmp_path / "t")
    assert not (tmp_path / "t").exists()
