"""The preflight: every shard gets a line, every fault a sentence, and what was not checked is said."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from protolith.data import shard_samples
from protolith.data.check_report import ShardsReport, check_shards
from protolith.data.shard_facts import Expected, ShardFacts
from protolith.errors import DataError, NotFoundError
from protolith.formats.shard_manifest import ManifestFile, ShardManifest, write_manifest
from tests.data.shard_fixtures import EOS, random_documents, write_shard

TINY = Expected(eos_id=EOS, vocab_size=128, vocabulary="the model", tokenizer_name="tiny")


def write(folder: Path, *names: str) -> Path:
    for seed, name in enumerate(names):
        write_shard(folder / f"{name}.ds", random_documents(40, seed=seed))
    return folder


def with_manifest(folder: Path, **tokenizer: object) -> Path:
    files = {
        path.relative_to(folder).as_posix(): ManifestFile(
            path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    write_manifest(folder, ShardManifest(tokenizer, 2, 0, 0, files))
    return folder


def look(*paths: Path, expected: Expected = TINY, full: bool = False) -> ShardsReport:
    return check_shards([str(path) for path in paths], expected, full=full)


def of(report: ShardsReport, name: str) -> ShardFacts:
    (found,) = (shard for shard in report.shards if shard.name == name)
    return found


@pytest.mark.parametrize("full", [False, True])
def test_good_shards_are_ok_and_have_their_numbers(tmp_path, full):
    report = look(write(tmp_path, "a", "b"), full=full)
    assert report.is_good
    assert [shard.status for shard in report.shards] == ["ok", "ok"]
    a = of(report, "a.ds")
    documents = random_documents(40, seed=0)
    assert (a.num_tokens, a.num_documents, a.token_bytes) == (sum(map(len, documents)), 40, 2)
    assert a.ids is not None and a.ids.highest == max(map(max, documents))
    assert a.separators is not None and (a.separators.num_eos, a.separators.num_sampled) == (40, 40)
    assert report.num_tokens == sum(shard.num_tokens or 0 for shard in report.shards)
    assert (report.errors, report.warnings) == ((), ())
    assert report.not_checked == ("digests: there is no manifest.json beside these shards",)


def test_bad_shards_are_all_named_and_the_others_checked_all_the_same(tmp_path):
    """(T6)"""
    write(tmp_path, "a", "cut", "mixed", "wild", "z")
    cut = tmp_path / "cut.ds"
    cut.write_bytes(cut.read_bytes()[:-7])
    shutil.copy(tmp_path / "a.ds.index", tmp_path / "mixed.ds.index")
    index = np.fromfile(tmp_path / "wild.ds.index", dtype="<u8")
    index[[3, 9]] = index[[9, 3]]
    index.tofile(tmp_path / "wild.ds.index")
    write_shard(tmp_path / "noeos.ds", [[5, 6, 7]] * 30)
    report = look(tmp_path)
    assert not report.is_good
    status = {shard.name: shard.status for shard in report.shards}
    assert [name for name, value in status.items() if value == "bad"] == [
        "cut.ds", "mixed.ds", "noeos.ds", "wild.ds",
    ]  # fmt: skip
    assert "no whole number of 2-byte tokens" in of(report, "cut.ds").faults[0]
    assert "its index ends at token" in of(report, "mixed.ds").faults[0]
    assert "does not ascend: document 4" in of(report, "wild.ds").faults[0]
    assert "0 of 30 end with EOS" in of(report, "noeos.ds").faults[0]
    assert status["a.ds"] == status["z.ds"] == "ok"


def test_a_missing_index_is_a_doubt_and_a_missing_separator_without_one_too_until_all_is_read(tmp_path):
    write_shard(tmp_path / "a.ds", random_documents(9), index=False)
    assert look(tmp_path).shards[0].doubts == ("no .index: where documents end is not known",)
    write_shard(tmp_path / "b.ds", [[7, 8, 9]] * 9, index=False)
    sampled = of(look(tmp_path), "b.ds")
    assert sampled.status == "warning" and "not found in any piece" in sampled.doubts[0]
    assert of(look(tmp_path, full=True), "b.ds").status == "bad"


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("missing", "status"), [(0, "ok"), (1, "warning"), (19, "warning"), (21, "bad"), (40, "bad")]
)
def test_separators_are_counted_per_shard_and_half_is_too_few(tmp_path, full, missing, status):
    """Among good shards, which do not make it up (T8)."""
    write(tmp_path, "a", "b")
    documents = [[*d[:-1], 60] for d in random_documents(40, seed=8)[:missing]]
    write_shard(tmp_path / "c.ds", [*documents, *random_documents(40, seed=8)[missing:]])
    report = look(tmp_path, full=full)
    assert [shard.status for shard in report.shards] == ["ok", "ok", status]
    if missing:
        (said,) = (*report.shards[2].faults, *report.shards[2].doubts)
        assert f"{40 - missing} of 40 end with EOS" in said
        assert "60" in said


def test_chunks_may_end_in_the_middle_of_a_document(tmp_path):
    """Where chunks were shuffled, most entries of the index end a chunk and no document."""
    chunks = [[5, 6, 7]] * 9 + [[5, 6, EOS]]
    write_shard(tmp_path / "x_00000_chunk_shuffled.ds", chunks)
    assert look(tmp_path).shards[0].status == "warning"
    write_shard(tmp_path / "x_00000_chunk_shuffled.ds", chunks[:9])
    assert look(tmp_path).shards[0].status == "bad"


def test_doubled_separators_are_a_doubt(tmp_path):
    write_shard(tmp_path / "a.ds", [[5, EOS, EOS], [6, EOS]])
    assert "1 of 2 documents end with EOS (id 2) twice" in look(tmp_path).shards[0].doubts[0]


@pytest.mark.parametrize("full", [False, True])
def test_an_id_beyond_the_vocabulary_is_told_with_its_place(tmp_path, full):
    """Also once, in the last shard (T38)."""
    write(tmp_path, "a", "b")
    write_shard(tmp_path / "c.ds", [[5, EOS], [100, EOS]])
    report = look(tmp_path, expected=Expected(EOS, 100, "the model m"), full=full)
    assert [shard.status for shard in report.shards] == ["ok", "ok", "bad"]
    assert report.shards[2].faults == ("id 100 at token 2 is beyond the 100 ids of the model m",)


def test_room_for_ids_that_the_tokenizer_does_not_know(tmp_path):
    """A padded vocabulary is fine (T38 d), a tokenizer larger than the model is not (T38 a)."""
    write_shard(tmp_path / "a.ds", [[5, 89, EOS]])
    assert look(tmp_path, expected=Expected(EOS, 128, "the model", known_ids=90)).shards[0].status == "ok"
    shard = look(tmp_path, expected=Expected(EOS, 128, "the model", known_ids=89)).shards[0]
    assert shard.status == "warning" and "ids up to 89" in shard.doubts[0]
    larger = look(tmp_path, expected=Expected(EOS, 100, "the model", known_ids=120))
    assert larger.errors == ("the tokenizer knows 120 ids, the model has room for 100",)


def test_a_sample_says_so_and_full_finds_what_it_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_samples, "_FULL_SCAN_TOKENS", 10_000)
    documents = [[5] * 99 + [EOS]] * 1000
    documents[500] = [5] * 50 + [200] + [5] * 48 + [EOS]
    write_shard(tmp_path / "a.ds", documents)
    sampled, whole = look(tmp_path), look(tmp_path, full=True)
    assert sampled.is_good and not sampled.all_ids_checked
    assert any("16,384 were looked at" in line and "--full" in line for line in sampled.not_checked)
    assert whole.all_ids_checked and not whole.is_good
    assert "id 200 at token 50050" in whole.shards[0].faults[0]
    assert not any("looked at" in line for line in whole.not_checked)


def test_two_byte_ids_for_a_large_vocabulary(tmp_path):
    """(T4)"""
    write(tmp_path, "a")
    write_shard(tmp_path / "w.ds", [[70_000, EOS]], token_bytes=4)
    report = look(tmp_path, expected=Expected(EOS, 70_001, "the model"))
    assert "2-byte ids cannot hold a vocabulary of 70,001" in of(report, "a.ds").doubts[0]
    assert of(report, "w.ds").status == "ok"


def test_another_tokenizer_is_told_of_one_shard_and_of_a_mixture(tmp_path):
    write(tmp_path, "a")
    write_shard(tmp_path / "g.ds", random_documents(9, seed=5), tokenizer="gpt2")
    report = look(tmp_path)
    assert of(report, "a.ds").status == "ok"
    assert of(report, "g.ds").doubts == ('made with the tokenizer "gpt2", not "tiny"',)
    assert report.warnings == ('the shards were made with 2 tokenizers: "tiny": a.ds; "gpt2": g.ds',)
    assert report.is_good


@pytest.mark.parametrize("full", [False, True])
def test_the_same_content_under_two_names_is_told(tmp_path, full):
    write(tmp_path, "a", "b")
    for ending in ("", ".index", ".metadata"):
        shutil.copy(tmp_path / f"a.ds{ending}", tmp_path / f"c.ds{ending}")
    report = look(tmp_path, full=full)
    assert report.is_good
    assert "the same ids as a.ds" in of(report, "c.ds").doubts[0]
    assert of(report, "a.ds").status == of(report, "b.ds").status == "ok"


def test_shards_of_one_size_with_other_content_are_no_duplicates(tmp_path):
    write_shard(tmp_path / "a.ds", [[5, 6, EOS]])
    write_shard(tmp_path / "b.ds", [[5, 7, EOS]])
    for full in (False, True):
        assert [shard.status for shard in look(tmp_path, full=full).shards] == ["ok", "ok"]


def test_a_folder_named_twice_is_read_once_and_said(tmp_path):
    """(T58)"""
    write(tmp_path / "d", "a")
    write(tmp_path / "d" / "sub", "b", "c")
    report = look(tmp_path / "d", tmp_path / "d" / "sub", tmp_path / "d" / "a.ds")
    assert len(report.shards) == 3
    assert "read once" in report.notes[0]


def test_shards_of_the_same_name_in_two_folders_are_told_apart(tmp_path):
    write(tmp_path / "x", "a")
    write_shard(tmp_path / "y" / "a.ds", [[5, 6, 7]])
    report = look(tmp_path / "x", tmp_path / "y")
    assert [shard.name for shard in report.shards] == [
        str(tmp_path / "x" / "a.ds"),
        str(tmp_path / "y" / "a.ds"),
    ]
    assert [shard.status for shard in report.shards] == ["ok", "bad"]


def test_empty_shards_are_passed_over_unless_all_are(tmp_path):
    """(T7)"""
    write(tmp_path / "d", "a")
    write_shard(tmp_path / "d" / "none.ds", [])
    report = look(tmp_path / "d")
    assert of(report, "none.ds").doubts == ("empty: training passes over it",)
    assert report.is_good and report.num_tokens == of(report, "a.ds").num_tokens
    (tmp_path / "e").mkdir()
    shutil.copy(tmp_path / "d" / "none.ds", tmp_path / "e")
    assert look(tmp_path / "e").errors == ("all 1 shards are empty",)


def test_folders_without_shards_and_misspelt_ones_are_errors(tmp_path):
    """(T7)"""
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="no token shards"):
        look(tmp_path / "void")
    with pytest.raises(NotFoundError):
        look(tmp_path / "viod")


def test_the_source_of_a_shuffled_copy_is_not_counted(tmp_path):
    write_shard(tmp_path / "x_unshuffled.ds", [[5, EOS], [6, EOS]])
    write_shard(tmp_path / "x_shuffled.ds", [[6, EOS], [5, EOS]])
    report = look(tmp_path)
    assert report.num_tokens == 4
    assert "not read" in of(report, "x_unshuffled.ds").doubts[0]
    write_shard(tmp_path / "x_unshuffled.ds", [[5, EOS]])
    assert "the same text twice, one of them cut" in look(tmp_path).errors[0]


def test_a_file_that_may_not_be_read_stops_no_other(tmp_path, monkeypatch):
    write(tmp_path, "a", "b")
    real = os.open

    def refuse(path, *rest, **more):
        if str(path).endswith("a.ds"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    report = look(tmp_path)
    assert "may not be read" in of(report, "a.ds").faults[0]
    assert of(report, "b.ds").status == "ok"


def test_nothing_expected_is_said_with_what_to_give(tmp_path):
    report = look(write(tmp_path, "a"), expected=Expected())
    assert report.is_good
    assert [line.split(":")[0] for line in report.not_checked] == [
        "how documents end",
        "ids against a vocabulary",
        "the tokenizer named in the metadata against yours",
        "digests",
    ]


def test_a_manifest_names_the_end_of_text_and_the_vocabulary(tmp_path):
    write(tmp_path, "a")
    write_shard(tmp_path / "b.ds", [[5, 6], [7, 110]])
    with_manifest(tmp_path, eos_id=EOS, vocab_size=105)
    report = look(tmp_path, expected=Expected())
    assert of(report, "a.ds").status == "ok" and of(report, "a.ds").manifest == "same size"
    assert [fault.split(":")[0] for fault in of(report, "b.ds").faults] == [
        "id 110 at token 3 is beyond the 105 ids of the tokenizer in the manifest",
        "documents do not end with the end of text",
    ]
    assert look(tmp_path / "a.ds", expected=Expected()).shards[0].manifest == "same size"


def test_damage_that_leaves_the_size_alone_is_found_by_its_digest(tmp_path):
    with_manifest(write(tmp_path, "a", "b", "c"))
    ids = np.fromfile(tmp_path / "a.ds", dtype="<u2")
    ids[0] += 1
    ids.tofile(tmp_path / "a.ds")
    (tmp_path / "b.ds.metadata").write_text((tmp_path / "b.ds.metadata").read_text().replace("tiny", "tony"))
    assert look(tmp_path).is_good
    report = look(tmp_path, full=True)
    assert [shard.manifest for shard in report.shards] == ["differs", "differs", "same"]
    assert "a.ds is not what was written" in of(report, "a.ds").faults[0]
    assert "b.ds.metadata is not what was written" in of(report, "b.ds").faults[0]


def test_another_size_a_missing_companion_a_missing_shard_and_a_new_one(tmp_path):
    with_manifest(write(tmp_path, "a", "b", "c", "d"))
    write_shard(tmp_path / "a.ds", random_documents(7))
    (tmp_path / "b.ds.index").unlink()
    for ending in ("", ".index", ".metadata"):
        (tmp_path / f"c.ds{ending}").unlink()
    write_shard(tmp_path / "new.ds", random_documents(9, seed=77))
    report = look(tmp_path)
    assert "bytes, its manifest says" in of(report, "a.ds").faults[0]
    assert of(report, "b.ds").faults == ("b.ds.index is missing, its manifest has it",)
    assert of(report, "d.ds").status == "ok"
    assert of(report, "new.ds").manifest == "not listed" and of(report, "new.ds").status == "warning"
    assert report.errors == (
        f"{tmp_path}: 3 files of its manifest are missing: c.ds, c.ds.index, c.ds.metadata",
    )
    some = look(tmp_path / "d.ds")
    assert some.is_good, "nothing is missing where a single shard was named"


def test_a_manifest_counts_for_the_folders_below_it_but_not_above_what_was_named(tmp_path):
    write(tmp_path / "set" / "part", "a")
    with_manifest(tmp_path / "set")
    assert look(tmp_path / "set").shards[0].manifest == "same size"
    assert look(tmp_path / "set" / "part").shards[0].manifest == ""


def test_a_damaged_manifest_is_an_error(tmp_path):
    write(tmp_path, "a")
    (tmp_path / "manifest.json").write_text('{"version": 1, "files"')
    report = look(tmp_path)
    assert report.shards[0].status == "ok"
    assert "the manifest is no JSON" in report.errors[0]


def test_a_tokenizer_that_was_changed_since_is_told(tmp_path):
    with_manifest(write(tmp_path, "a"), digest="old")
    same = Expected(EOS, 128, tokenizer_name="tiny", tokenizer_digest="old")
    other = Expected(EOS, 128, tokenizer_name="tiny", tokenizer_digest="new")
    assert look(tmp_path, expected=same).shards[0].status == "ok"
    assert "changed since" in look(tmp_path, expected=other).shards[0].doubts[0]


def test_thousands_of_sparse_shards_are_looked_at_with_few_open_files(tmp_path):
    """A trillion tokens would be ten times as many shards; a tenth of them keeps the test fast."""
    num_tokens = 1 << 27
    index = np.asarray([num_tokens], dtype="<u8").tobytes()
    for number in range(500):
        path = tmp_path / f"{number:05}.ds"
        with open(path, "wb") as out:
            out.write(np.asarray([number + 3, EOS], dtype="<u2").tobytes())
            out.seek(2 * num_tokens - 2)
            out.write(np.asarray([EOS], dtype="<u2").tobytes())
        path.with_name(path.name + ".index").write_bytes(index)
        path.with_name(path.name + ".metadata").write_text(f"tiny|2\n{num_tokens}\n134 MT")
    seen = []
    report = check_shards(
        [str(tmp_path)], Expected(EOS, 600, "m"), progress=lambda done, total: seen.append((done, total))
    )
    assert report.is_good and report.num_tokens == 500 * num_tokens
    assert {shard.status for shard in report.shards} == {"ok"}
    assert seen[-1] == (500, 500)
