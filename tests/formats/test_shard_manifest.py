"""The manifest of a folder of shards."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from protolith.errors import ShardError
from protolith.formats.shard_manifest import (
    MANIFEST_NAME,
    ManifestFile,
    ShardManifest,
    read_manifest,
    write_manifest,
)

MANIFEST = ShardManifest(
    tokenizer={"name": "t", "digest": "d", "vocab_size": 9, "eos_token": "<e>", "eos_id": 0},
    token_bytes=2,
    num_documents=3,
    num_tokens=10,
    files={"00000.ds": ManifestFile(20, "ab" * 32), "sub/1.ds.index": ManifestFile(24, "cd" * 32)},
)


def test_what_is_written_is_read(tmp_path):
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST


def test_what_made_the_folder_is_kept_and_may_be_missing(tmp_path):
    made = replace(MANIFEST, job={"records": 3, "skipped": {"blank": 1}})
    write_manifest(tmp_path, made)
    assert read_manifest(tmp_path) == made
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "job"}))
    assert read_manifest(tmp_path) == replace(made, job={})


def test_none_and_anothers(tmp_path):
    assert read_manifest(tmp_path) is None
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({"name": "another program"}))
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"num_tokens": None}, "cannot be read"),
        ({"files": [1]}, "cannot be read"),
    ],
)
def test_a_damaged_one_is_an_error(tmp_path, change, said):
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ShardError, match=said):
        read_manifest(tmp_path)


def test_half_a_manifest_is_an_error(tmp_path):
    (tmp_path / MANIFEST_NAME).write_text('{"files": ')
    with pytest.raises(ShardError):
        read_manifest(tmp_path)
