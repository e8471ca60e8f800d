"""Shards made here and shards made by datatrove's own DocumentTokenizer are the same to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer

from protolith.data.cache import tokenize_corpus
from protolith.data.shard_folders import find_shards
from protolith.data.tokenizer import load_tokenizer
from protolith.formats.shard_files import ShardWriter
from tests.data.corpora import bpe_dir, document, text_files, word_level_dir, write_jsonl

TEXTS = [document(n) for n in range(150)] + ["", "x", "Ünïcode 日本\n\ttabs", "a" * 5000]


def by_datatrove(texts: list[str], tokenizer: Path, eos: str | None, folder: Path, **options: bool) -> Path:
    step = DocumentTokenizer(str(folder), str(tokenizer / "tokenizer.json"), eos_token=eos, seed=1, **options)
    step.run((Document(text, str(n)) for n, text in enumerate(texts)), 0, 1)
    return folder


@pytest.mark.parametrize("kind", ["2 bytes", "4 bytes"])
def test_a_writer_fed_with_the_same_ids_writes_the_same_three_files(tmp_path: Path, kind: str) -> None:
    if kind == "2 bytes":
        folder, texts = bpe_dir(tmp_path / "tok"), TEXTS
    else:
        folder = word_level_dir(tmp_path / "tok", 70_000)
        texts = [f"w{n} w{69_999 - n} nothing" for n in range(2000)]
    tokenizer = load_tokenizer(folder)
    theirs = by_datatrove(texts, folder, tokenizer.eos_token, tmp_path / "dt", shuffle_documents=False)
    ours = tmp_path / "ours" / "00000_unshuffled.ds"
    ours.parent.mkdir()
    with ShardWriter(ours, tokenizer.token_bytes, str(folder / "tokenizer.json")) as shard:
        for ids in tokenizer.encode_documents(texts):
            shard.write(ids)
    assert sorted(p.name for p in theirs.iterdir()) == sorted(p.name for p in ours.parent.iterdir())
    for path in theirs.iterdir():
        assert path.read_bytes() == (ours.parent / path.name).read_bytes(), path.name


def test_the_cache_holds_the_bytes_datatrove_writes(tmp_path: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    texts = [text for text in TEXTS if text]
    theirs = by_datatrove(texts, folder, "<|endoftext|>", tmp_path / "dt", shuffle_documents=False)
    path = write_jsonl(tmp_path / "c.jsonl", texts)
    made = tokenize_corpus(text_files(path), load_tokenizer(folder), cache_root=tmp_path / "cache")
    for suffix in ("", ".index"):
        ours = made.train_dir / f"00000.ds{suffix}"
        assert ours.read_bytes() == (theirs / f"00000_unshuffled.ds{suffix}").read_bytes()


def test_a_shuffled_job_of_datatrove_is_read(tmp_path: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    by_datatrove(TEXTS, folder, "<|endoftext|>", tmp_path / "dt")
    (shard,), notes = find_shards([str(tmp_path / "dt")])
    assert shard.name == "00000_00000_doc_shuffled.ds"
    assert shard.num_documents == len(TEXTS)
    assert notes == ()


def test_a_source_that_an_interrupted_job_left_is_not_read_twice(tmp_path: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    by_datatrove(TEXTS, folder, "<|endoftext|>", tmp_path / "dt")
    by_datatrove(TEXTS, folder, "<|endoftext|>", tmp_path / "dt", shuffle_documents=False)
    (shard,), notes = find_shards([str(tmp_path / "dt")])
    assert shard.name == "00000_00000_doc_shuffled.ds"
    assert "only the copy is read" in notes[0]


def test_a_task_without_documents_leaves_an_empty_shard_that_is_skipped(tmp_path: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    by_datatrove([], folder, "<|endoftext|>", tmp_path / "dt")
    with ShardWriter(tmp_path / "dt" / "a.ds", 2, "tok") as shard:
        shard.write([1, 2, 0])
    found, notes = find_shards([str(tmp_path / "dt")])
    assert [shard.name for shard in found] == ["a.ds"]
    assert notes == ("skipped 1 empty shard (00000_unshuffled.ds)",)
