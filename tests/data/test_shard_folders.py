"""Folders of shards: all faults at once, empty ones and copies told, strangers passed over."""

from __future__ import annotations

import os
import shutil
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from protolith.data.shard_folders import find_shards
from protolith.data.shards import TokenPool
from protolith.errors import DataError, NotFoundError, ShardError
from protolith.formats.shard_files import ShardWriter


def put_shard(path: Path, documents: list[list[int]], width: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with ShardWriter(path, width, "tok") as shard:
        for document in documents:
            shard.write(document)
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    root = tmp_path / "shards"
    for number in (1, 2, 3):
        put_shard(root / f"s{number}.ds", [[number] * 5 + [0], [number] * (3 * number) + [0]])
    return root


def test_good_shards_give_no_notes(shards: Path) -> None:
    found, notes = find_shards([str(shards)])
    assert [shard.name for shard in found] == ["s1.ds", "s2.ds", "s3.ds"]
    assert [shard.num_tokens for shard in found] == [10, 13, 16]
    assert notes == ()


def test_all_bad_shards_are_listed_at_once(shards: Path) -> None:
    """(T6)"""
    (shards / "s2.ds").write_bytes((shards / "s2.ds").read_bytes()[:-7])
    shutil.copy(shards / "s1.ds.index", shards / "s3.ds.index")
    with pytest.raises(ShardError) as caught:
        find_shards([str(shards)])
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("s2.ds: ")
    assert caught.value.problems[1].startswith("s3.ds: its index ends at token 10")
    assert "2 bad shards: s2.ds" in caught.value.message
    assert len(caught.value.to_dict()["problems"]) == 2


def test_a_missing_index_is_a_stated_fallback(shards: Path) -> None:
    """(T6 c)"""
    (shards / "s2.ds.index").unlink()
    found, notes = find_shards([str(shards)])
    assert sum(shard.num_tokens for shard in found) == 39
    assert len(notes) == 1
    assert "no .index beside s2.ds" in notes[0]


def test_missing_metadata_is_a_stated_fallback(shards: Path) -> None:
    (shards / "s2.ds.metadata").unlink()
    _, notes = find_shards([str(shards)])
    assert "no .metadata beside s2.ds" in notes[0]


@pytest.mark.parametrize("with_index", [True, False])
def test_an_empty_shard_is_skipped_with_one_note(shards: Path, with_index: bool) -> None:
    """Strangers beside it add no second note (T7)."""
    (shards / "s0.ds").touch()
    if with_index:
        (shards / "s0.ds.index").touch()
    for stranger in (".part.ds.tmp", ".nfs0001", "s1.ds.crc"):
        (shards / stranger).write_text("x")
    found, notes = find_shards([str(shards)])
    assert sum(shard.num_tokens for shard in found) == 39
    assert len(notes) == 1
    assert notes[0].startswith("skipped 1 empty shard (s0.ds); passed over")


def test_an_empty_file_whose_index_has_documents_is_a_stump(shards: Path) -> None:
    (shards / "s1.ds").write_bytes(b"")
    with pytest.raises(ShardError, match="0 bytes, but an index of 2 documents"):
        find_shards([str(shards)])
    (shards / "s1.ds.index").unlink()
    with pytest.raises(ShardError, match="metadata counts 10 tokens"):
        find_shards([str(shards)])


def test_nothing_but_empty_shards_is_an_error(tmp_path: Path) -> None:
    put_shard(tmp_path / "d" / "a.ds", [])
    with pytest.raises(DataError, match="all 1 shards are empty"):
        find_shards([str(tmp_path / "d")])


def test_empty_missing_and_text_folders_are_errors_with_the_path(tmp_path: Path) -> None:
    """(T7)"""
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError) as caught:
        find_shards([str(tmp_path / "void")])
    assert caught.value.where.endswith("void")
    with pytest.raises(NotFoundError) as missing:
        find_shards([str(tmp_path / "viod")])
    assert "void" in missing.value.hint
    (tmp_path / "void" / "c.jsonl").write_text("{}")
    with pytest.raises(DataError) as caught:
        find_shards([str(tmp_path / "void")])
    assert "data.format: text" in caught.value.hint


def test_folders_and_subfolders_count_once(shards: Path) -> None:
    """(T58)"""
    put_shard(shards / "sub" / "t.ds", [[7, 0]])
    found, notes = find_shards([str(shards), str(shards / "sub"), str(shards / "s1.ds")])
    assert [shard.name for shard in found] == ["s1.ds", "s2.ds", "s3.ds", "sub/t.ds"]
    assert "read once" in notes[0]


@pytest.mark.parametrize(
    ("source", "copies"),
    [
        ("00000_unshuffled.ds", ["00000_00000_doc_shuffled.ds", "00000_00001_doc_shuffled.ds"]),
        ("x_00000_unshuffled.ds", ["x_00000_00000_chunk_shuffled.ds"]),
        ("x_unshuffled.ds", ["x_shuffled.ds"]),
        ("x.ds", ["x_shuffled.ds"]),
    ],
)
def test_a_shuffled_copy_replaces_its_source(tmp_path: Path, source: str, copies: list[str]) -> None:
    documents = [[n, n, 0] for n in range(1, 9)]
    put_shard(tmp_path / source, documents)
    half = len(documents) // len(copies)
    for number, name in enumerate(copies):
        put_shard(tmp_path / name, documents[::-1][number * half : (number + 1) * half])
    found, notes = find_shards([str(tmp_path)])
    assert [shard.name for shard in found] == copies
    assert "same tokens as its shuffled copy" in notes[0]


def test_a_source_and_a_partial_copy_are_refused(tmp_path: Path) -> None:
    put_shard(tmp_path / "00000_unshuffled.ds", [[1, 0], [2, 0]])
    put_shard(tmp_path / "00000_00000_doc_shuffled.ds", [[2, 0]])
    with pytest.raises(ShardError, match="same text twice, one of them cut"):
        find_shards([str(tmp_path)])


def test_ranks_that_are_all_shuffled_are_no_copies(tmp_path: Path) -> None:
    for rank in range(3):
        put_shard(tmp_path / f"{rank:05d}_00000_doc_shuffled.ds", [[rank + 1, 0]])
    found, notes = find_shards([str(tmp_path)])
    assert len(found) == 3
    assert notes == ()


def test_an_unrelated_plain_name_is_kept(tmp_path: Path) -> None:
    put_shard(tmp_path / "x.ds", [[1, 0], [2, 0]])
    put_shard(tmp_path / "x_shuffled.ds", [[3, 0]])
    found, notes = find_shards([str(tmp_path)])
    assert len(found) == 2
    assert notes == ()


def test_a_trillion_tokens_in_ten_thousand_shards_are_found_and_open_soon(tmp_path):
    """Real files, sparse: 10,000 shards of 10^8 tokens and 10^5 documents, with 7.5 GiB of indexes."""
    num_tokens, num_documents = 10**8, 10**5
    index, metadata = tmp_path / "index", tmp_path / "metadata"
    ends = np.arange(1, num_documents + 1, dtype="<u8") * (num_tokens // num_documents)
    ends.tofile(index)
    metadata.write_text(f"tiny|4\n{num_tokens}\n100 MT")
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(10_000):
        path = f"{folder}/{number:05}.ds"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.truncate(descriptor, 4 * num_tokens)
        os.close(descriptor)
        os.link(index, path + ".index")
        os.link(metadata, path + ".metadata")
    began = time.process_time()
    shards, notes = find_shards([str(folder)])
    TokenPool.open(shards)
    assert time.process_time() - began < 5  # 1.5 s of processor time where this was written
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    pool = TokenPool.open(shards)
    assert tracemalloc.get_traced_memory()[0] - before < 2 << 20, "one number a shard"
    tracemalloc.stop()
    assert pool.num_tokens == 10**12 and pool.num_documents == 10**9
    assert notes == (
        "that the indexes ascend was proved by samples in 10000 of 10000 shards: together they have 7.5 GiB",
    )
    shutil.rmtree(folder)  # 30,000 files that nobody will look at
