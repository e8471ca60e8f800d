"""The quick look before training: wrong shards are named with numbers, good ones pass in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from protolith.data import shard_samples
from protolith.data.check import CheckReport, quick_check
from protolith.data.shard_folders import find_shards
from protolith.data.shards import TokenPool
from protolith.formats.shard_files import ShardInfo
from tests.data.shard_fixtures import EOS, random_documents, write_shard


def look(pool: TokenPool, **changes) -> CheckReport:
    wanted = {"eos_id": EOS, "tokenizer_name": "tiny", "vocab_size": 128, **changes}
    return quick_check(pool, **wanted)


def shards_of(folder: Path, **of_name) -> TokenPool:
    return TokenPool.open([write_shard(folder / f"{name}.ds", docs) for name, docs in of_name.items()])


def documents(last: int | None, seed: int = 0, num: int = 50) -> list[list[int]]:
    """Documents that end with ``last``; None: with any word."""
    return [
        [*d[:-1], 5 + at % 60] if last is None else [*d[:-1], last]
        for at, d in enumerate(random_documents(num, seed=seed))
    ]


def test_a_correct_folder_gives_no_warning(tmp_path):
    """(T8)"""
    report = look(shards_of(tmp_path, a=documents(EOS), b=documents(EOS, 1), c=[[EOS], [5, EOS], []]))
    assert report == CheckReport((), (), True)


def test_no_separator_at_all_is_warned_of_for_each_shard(tmp_path):
    """(T8)"""
    (warning,) = look(shards_of(tmp_path, a=documents(None), b=documents(None, 1))).warnings
    assert "2 of 2 shards" in warning
    assert "a.ds: 0 of 50 end with EOS" in warning
    assert "b.ds: 0 of 50 end with EOS" in warning


def test_another_models_separator_is_recognized(tmp_path):
    """(T8)"""
    (warning,) = look(shards_of(tmp_path, a=documents(7), b=[*documents(7)[:-1], [5, 9]])).warnings
    assert "a.ds: 0 of 50 end with EOS; documents end with id 7 (100 %), not with EOS 2" in warning
    assert "documents end with id 7 (98 %), not with EOS 2" in warning


def test_one_bad_shard_among_good_ones_is_not_averaged_away(tmp_path):
    """(T8)"""
    good = {f"good{n}": documents(EOS, n) for n in range(12)}
    (warning,) = look(shards_of(tmp_path, **good, bad=documents(None))).warnings
    assert "1 of 13 shards" in warning
    assert "bad.ds: 0 of 50" in warning
    assert "good" not in warning


def test_a_few_missing_separators_are_counted(tmp_path):
    mixed = documents(EOS)[:45] + documents(None)[:5]
    (warning,) = look(shards_of(tmp_path, a=mixed)).warnings
    assert "a.ds: 45 of 50 end with EOS; most often with id" in warning


def test_a_separator_written_twice_is_warned_of(tmp_path):
    (warning,) = look(shards_of(tmp_path, a=[[5, EOS, EOS], [6, EOS], [EOS]])).warnings
    assert "twice: a.ds: 1 of 3" in warning


def test_without_an_index_only_the_absence_of_the_separator_is_told(tmp_path):
    def bare(name, docs):
        return TokenPool.open([write_shard(tmp_path / name, docs, index=False)])

    assert look(bare("with.ds", documents(EOS))).warnings == ()
    (warning,) = look(bare("without.ds", documents(9))).warnings
    assert "without.ds" in warning
    assert "not found" in warning


def test_documents_are_sampled_over_the_whole_shard(tmp_path, monkeypatch):
    """A fault in the last tenth is seen though not every document is looked at."""
    monkeypatch.setattr(shard_samples, "_SAMPLED_DOCUMENTS", 60)
    docs = documents(EOS, num=1800) + documents(None, num=200)
    (warning,) = look(shards_of(tmp_path, a=docs)).warnings
    assert "of 60 end with EOS" in warning


@pytest.mark.parametrize("where", ["first", "last"])
def test_an_id_beyond_the_vocabulary_is_an_error_with_shard_and_token(tmp_path, where):
    """Also when it stands once, at the end of the last shard (T38 b, c)."""
    shards = {f"s{n}": [[5, 6, EOS]] for n in range(3)}
    shards["s0" if where == "first" else "s2"] = [[5, 100, EOS]]
    report = look(shards_of(tmp_path, **shards), vocab_size=100)
    (error,) = report.errors
    assert error.startswith("s0.ds: " if where == "first" else "s2.ds: ")
    assert "id 100 at token 1 is beyond the model's vocabulary of 100" in error
    assert report.all_ids_checked


def test_a_model_vocabulary_larger_than_the_tokenizer_is_fine(tmp_path):
    """Vocabularies are padded (T38 d); ids the tokenizer does not know are said."""
    pool = shards_of(tmp_path, a=[[5, 89, EOS]])
    assert look(pool, vocab_size=128, tokenizer_size=90) == CheckReport((), (), True)
    (warning,) = look(pool, vocab_size=128, tokenizer_size=89).warnings
    assert "tokenizer of 89 entries" in warning
    assert "a.ds: up to 89" in warning


def test_large_pools_are_sampled_from_start_to_end_and_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shard_samples, "_FULL_SCAN_TOKENS", 10_000)
    ids = np.full(200_000, 5, dtype="<u2")
    ids[-1] = 127
    ids.tofile(tmp_path / "a.ds")
    pool = TokenPool.open([ShardInfo(tmp_path / "a.ds", "a.ds", len(ids), 0, 2, "tiny", None)])
    report = look(pool, vocab_size=127)
    assert not report.all_ids_checked
    assert "token 199999" in report.errors[0]
    assert not look(pool).errors


def test_two_byte_shards_for_a_larger_vocabulary_are_warned_of(tmp_path):
    """(T4)"""
    pool = shards_of(tmp_path, a=documents(EOS))
    (warning,) = look(pool, vocab_size=70_000).warnings
    assert "2-byte ids cannot hold a vocabulary of 70,000" in warning
    assert look(pool, vocab_size=70_000, tokenizer_size=4096).warnings == ()
    wide = TokenPool.open([write_shard(tmp_path / "w.ds", [[70_000, EOS]], token_bytes=4)])
    assert look(wide, vocab_size=70_001) == CheckReport((), (), True)


@pytest.mark.parametrize(
    ("in_metadata", "given", "same"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen3-0.6B", True),
        ("/models/Qwen3-0.6B/tokenizer.json", "qwen3-0.6b", True),
        ("C:\\models\\tiny", "tiny", True),
        ("Unknown Tokenizer", "tiny", True),
        ("", "tiny", True),
        ("gpt2", "", True),
        ("gpt2", "Qwen3-0.6B", False),
    ],
)
def test_the_tokenizer_of_the_metadata_is_compared_by_name(tmp_path, in_metadata, given, same):
    pool = TokenPool.open([write_shard(tmp_path / "a.ds", documents(EOS), tokenizer=in_metadata)])
    warnings = look(pool, tokenizer_name=given).warnings
    assert bool(warnings) != same
    if not same:
        assert '"gpt2", not "Qwen3-0.6B": a.ds' in warnings[0]


def test_held_out_files_that_are_trained_on_are_warned_of(tmp_path):
    """A validation folder inside the training folder, linked or copied from it (T58)."""
    for number in range(3):
        write_shard(tmp_path / "data" / f"{number}.ds", documents(EOS, number))
    write_shard(tmp_path / "data" / "val" / "v.ds", documents(EOS, 9))
    training = TokenPool.open(find_shards([str(tmp_path / "data")])[0])
    inside = TokenPool.open(find_shards([str(tmp_path / "data" / "val")])[0])
    (warning,) = look(inside, training=training).warnings
    assert "also training data, the same files: v.ds" in warning
    (tmp_path / "link").symlink_to(tmp_path / "data" / "val")
    linked = TokenPool.open(find_shards([str(tmp_path / "link")])[0])
    assert "same files: v.ds" in look(linked, training=training).warnings[0]
    shutil.copytree(tmp_path / "data" / "val", tmp_path / "copy")
    copied = TokenPool.open(find_shards([str(tmp_path / "copy")])[0])
    assert "v.ds is a copy of val/v.ds" in look(copied, training=training).warnings[0]
    other = shards_of(tmp_path / "other", a=documents(EOS, 77))
    assert look(other, training=training).warnings == ()


def test_many_bad_shards_make_one_warning_that_names_some(tmp_path):
    (warning,) = look(shards_of(tmp_path, **{f"s{n}": documents(9, n) for n in range(9)})).warnings
    assert "in 9 of 9 shards" in warning
    assert "and 4 more" in warning
