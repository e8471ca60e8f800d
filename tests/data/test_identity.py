"""Same corpus or another: content decides, in words that name what changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from protolith.data.identity import diff_identity, shard_identities
from protolith.data.shard_folders import find_shards
from protolith.formats.shard_files import ShardInfo, read_shard_info
from tests.data.shard_fixtures import random_documents, write_shard


def identity(folder: Path):
    return shard_identities(find_shards([str(folder)])[0])


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        write_shard(tmp_path / "data" / f"{number}.ds", random_documents(20, seed=number))
    return tmp_path / "data"


def test_nothing_changed_is_no_difference_also_through_json(folder):
    saved = json.loads(json.dumps(identity(folder)))
    assert diff_identity(saved, identity(folder)) == []


def test_touching_files_and_moving_the_folder_change_nothing(folder, tmp_path):
    """(T17 d, e)"""
    before = identity(folder)
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert diff_identity(before, identity(folder)) == []
    moved = tmp_path / "else where" / "deeper"
    moved.parent.mkdir()
    shutil.move(folder, moved)
    assert diff_identity(before, identity(moved)) == []
    monkey = Path(os.path.relpath(moved))
    assert diff_identity(before, identity(monkey)) == []


def test_an_added_shard_is_said(folder):
    """(T17 a)"""
    before = identity(folder)
    write_shard(folder / "3.ds", [[5, 6, 2]])
    lines = diff_identity(before, identity(folder))
    assert lines[0] == "shard added: 3.ds (3 tokens)"
    assert len(lines) == 2
    assert "3 shards before" in lines[1]
    assert "4 now" not in lines[0]


def test_a_removed_shard_is_said(folder):
    """(T17 b)"""
    before = identity(folder)
    for file in folder.glob("1.ds*"):
        file.unlink()
    lines = diff_identity(before, identity(folder))
    assert lines[0].startswith("shard removed: 1.ds (")
    assert len(lines) == 2


def test_a_renamed_shard_is_said_and_so_is_the_order_when_that_changes(folder):
    """(T17 c)"""
    before = identity(folder)
    for file in folder.glob("2.ds*"):
        file.rename(folder / file.name.replace("2.ds", "2b.ds"))
    lines = diff_identity(before, identity(folder))
    assert lines[0] == "shard renamed: 2.ds is now 2b.ds"
    assert not any("order" in line or "added" in line or "removed" in line for line in lines)
    for file in folder.glob("2b.ds*"):
        file.rename(folder / file.name.replace("2b.ds", "0a.ds"))
    lines = diff_identity(before, identity(folder))
    assert lines[0] == "shard renamed: 2.ds is now 0a.ds"
    assert "another order: 0.ds, 0a.ds, 1.ds" in lines[1]


def test_swapped_names_are_changed_content(folder):
    before = identity(folder)
    for old, new in (("0.ds", "x.ds"), ("1.ds", "0.ds"), ("x.ds", "1.ds")):
        for file in folder.glob(f"{old}*"):
            file.rename(folder / file.name.replace(old, new))
    lines = diff_identity(before, identity(folder))
    assert [line.split(":")[0:2] for line in lines[:2]] == [
        ["shard changed", " 0.ds"],
        ["shard changed", " 1.ds"],
    ]


def test_one_other_token_is_seen(folder):
    before = identity(folder)
    ids = np.fromfile(folder / "1.ds", dtype="<u2")
    ids[len(ids) // 2] ^= 1
    ids.tofile(folder / "1.ds")
    (line, _totals) = diff_identity(before, identity(folder))
    assert line.startswith("shard changed: 1.ds")
    assert "but other ones" in line


def test_other_document_borders_with_the_same_tokens_are_seen(tmp_path):
    documents = [[1, 2], [3, 2]]
    before = shard_identities([write_shard(tmp_path / "a.ds", documents)])
    (line, _totals) = diff_identity(
        before, shard_identities([write_shard(tmp_path / "a.ds", [[1], [2, 3, 2]])])
    )
    assert "shard changed" in line
    (line, _totals) = diff_identity(
        before, shard_identities([write_shard(tmp_path / "a.ds", [[1, 2, 3, 2]])])
    )
    assert "2 documents before, 1 now" in line


def test_another_length_or_width_is_said_with_numbers(tmp_path):
    before = shard_identities([write_shard(tmp_path / "a.ds", [[1, 2]])])
    (line, _totals) = diff_identity(before, shard_identities([write_shard(tmp_path / "a.ds", [[1, 2, 2]])]))
    assert "2 tokens before, 3 now" in line
    wide = shard_identities([write_shard(tmp_path / "a.ds", [[1, 2]], token_bytes=4)])
    assert "2-byte ids before, 4-byte ids now" in diff_identity(before, wide)[0]


def test_shards_of_one_name_in_two_folders_are_told_apart(tmp_path):
    one = write_shard(tmp_path / "a" / "0.ds", [[1, 2]])
    other = write_shard(tmp_path / "b" / "0.ds", [[3, 4, 2]])
    both = shard_identities([one, other])
    assert diff_identity(both, shard_identities([one, other])) == []
    assert diff_identity(both, shard_identities([one]))[0] == "shard removed: 0.ds (3 tokens)"
    assert len(diff_identity(both, shard_identities([other, one]))) >= 2


def test_large_files_are_sampled_from_first_to_last_token(tmp_path):
    path = tmp_path / "big.ds"
    num_tokens = 3 * 10**6

    def digest(changed: int | None) -> str:
        ids = np.arange(num_tokens, dtype="<u2")
        if changed is not None:
            ids[changed] ^= 1
        ids.tofile(path)
        (entry,) = shard_identities([ShardInfo(path, "big.ds", num_tokens, 0, 2, "tiny", None)])
        return entry["digest"]

    assert digest(None) == digest(None)
    assert digest(0) != digest(None)
    assert digest(num_tokens - 1) != digest(None)


def test_many_shards_are_read_in_order_by_threads(tmp_path):
    shards = [write_shard(tmp_path / f"{n:02}.ds", random_documents(3, seed=n)) for n in range(40)]
    entries = shard_identities(shards)
    assert [entry["name"] for entry in entries] == [f"{n:02}.ds" for n in range(40)]
    assert entries[17] == shard_identities([read_shard_info(tmp_path / "17.ds")])[0]
