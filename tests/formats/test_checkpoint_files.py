"""A checkpoint folder is complete or it does not count; foreign entries are neither counted nor removed."""

import json
import os
import time

import pytest

from protolith.errors import CheckpointError
from protolith.formats import checkpoint_files as files


def make(root, step, names=("model.safetensors", "state.json")):
    aside = files.begin(root, step)
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        (aside / name).write_bytes(f"{name} of step {step}".encode() * 10)
    return files.commit(aside, step)


def test_commit_makes_a_complete_folder(tmp_path):
    path = make(tmp_path, 10, ("a.bin", "tokenizer/b.json"))
    assert path.name == "step_10"
    assert files.problem_of(path, digests=True) == ""
    manifest = files.read_manifest(path)
    assert set(manifest["files"]) == {"a.bin", "tokenizer/b.json"}
    assert manifest["step"] == 10
    assert [p.name for p in tmp_path.iterdir()] == ["step_10"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "manifest.json").unlink(), "no manifest"),
        (lambda p: (p / "manifest.json").write_text(""), "cannot be read"),
        (lambda p: (p / "manifest.json").write_text("[]"), "not a manifest"),
        (lambda p: (p / "manifest.json").write_text('{"files": {}, "format": 99}'), "unknown format"),
        (lambda p: os.truncate(p / "model.safetensors", 5), "has 5 bytes"),
        (lambda p: flip(p / "model.safetensors"), "does not match its digest"),
    ],
)
def test_every_damage_is_seen_and_named(tmp_path, damage, says):
    """Truncated, removed, emptied or flipped files (T40)."""
    path = make(tmp_path, 3)
    damage(path)
    assert says in files.problem_of(path, digests=True)


def flip(path):
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def test_listing_is_by_number_and_ignores_foreign_names(tmp_path):
    """step_1000 comes after step_900; links, backups and files are not ours (T42)."""
    for step in (1000, 900, 8):
        make(tmp_path, step)
    for name in ("step_final_mine", "step_7.bak", "step_07", ".saving-step_5-zzzz"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_5").symlink_to(tmp_path / "step_8")
    (tmp_path / "step_6").write_text("a file")
    (tmp_path / "step_999").mkdir()
    found = files.list_checkpoints(tmp_path)
    assert [(f.step, bool(f.problem)) for f in found] == [
        (8, False),
        (900, False),
        (999, True),
        (1000, False),
    ]


def test_retention_keeps_the_highest_whatever_the_clock_says(tmp_path):
    """Keep 2 over 8..12 and 98..102 with old folders touched into the future (T42)."""
    for step in [*range(8, 13), *range(98, 103)]:
        path = make(tmp_path, step)
        os.utime(path, (time.time() + 10_000 - step * 60,) * 2)
    (tmp_path / "step_final_mine").mkdir()
    (tmp_path / "step_103").mkdir()  # incomplete: neither counted nor removed
    gone = files.to_remove(tmp_path, keep_last=2, keep_every=None, pinned=frozenset())
    assert sorted(int(p.name[5:]) for p in gone) == [8, 9, 10, 11, 12, 98, 99, 100]
    gone = files.to_remove(tmp_path, keep_last=2, keep_every=10, pinned=frozenset({8}))
    assert sorted(int(p.name[5:]) for p in gone) == [9, 11, 12, 98, 99]
    assert files.to_remove(tmp_path, keep_last=None, keep_every=None, pinned=frozenset()) == []


def test_what_a_killed_writer_left_is_swept(tmp_path):
    aside = files.begin(tmp_path, 4)
    (aside / "half").write_text("x")
    (tmp_path / "step_final_mine").mkdir()
    assert files.sweep(tmp_path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step_final_mine"]


def test_committing_a_step_again_replaces_it(tmp_path):
    make(tmp_path, 5, ("old",))
    make(tmp_path, 5, ("new",))
    assert set(json.loads((tmp_path / "step_5" / "manifest.json").read_text())["files"]) == {"new"}
    assert [p.name for p in tmp_path.iterdir()] == ["step_5"]


def test_a_missing_manifest_is_a_typed_error(tmp_path):
    with pytest.raises(CheckpointError, match="no manifest"):
        files.read_manifest(tmp_path)
