"""``protolith data check``: what a person sees, what a program reads, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.shards import documents, write_shard
from tests.support.tiny import cli, write_model, write_tokenizer


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three good shards, a tokenizer and a model of the same name."""
    for number in range(3):
        write_shard(tmp_path / "data" / f"s{number}.ds", documents(40, first=40 * number))
    write_model(tmp_path / "model")
    return tmp_path


def statuses(answer) -> dict[str, str]:
    return {shard["name"]: shard["status"] for shard in answer.json["shards"]}


def test_good_shards_end_with_0_and_a_line_each(protolith, folder):
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert answer.code == 0, answer.out
    lines = answer.out.splitlines()
    assert lines[0].split() == [
        "shard", "tokens", "documents", "bytes", "tokenizer", "highest", "id", "EOS", "manifest", "status",
    ]  # fmt: skip
    for number in range(3):
        cells = lines[1 + number].split()
        assert cells[0] == f"s{number}.ds" and cells[-1] == "ok" and "40/40" in cells
    assert "verdict: training on these shards would be right" in answer.out
    assert "\x1b" not in answer.out + answer.err and "\r" not in answer.out + answer.err


def test_json_is_one_document_with_the_same_exit_code(protolith, folder):
    good = protolith("data", "check", folder / "data", "--model", folder / "model", "-o", "json")
    assert good.code == 0 and good.json["good"] is True and not good.json["full"]
    assert good.json["expected"]["eos_id"] == 0 and good.json["expected"]["vocabulary"] == "the model model"
    assert set(statuses(good).values()) == {"ok"}
    write_shard(folder / "data" / "t.ds", documents(40, eos=None))
    bad = protolith("data", "check", folder / "data", "--model", folder / "model", "-o", "json")
    assert bad.code == 2 and bad.json["good"] is False
    assert statuses(bad) == {"s0.ds": "ok", "s1.ds": "ok", "s2.ds": "ok", "t.ds": "bad"}
    assert bad.json["shards"][3]["separators"]["num_eos"] == 0


def test_the_real_command_prints_no_escape_and_loads_no_torch(folder):
    done = cli("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and done.stderr == ""
    program = (
        "import sys; from protolith.cli.main import main;"
        f" code = main(['data', 'check', {str(folder / 'data')!r}, '--model', {str(folder / 'model')!r}]);"
        " assert 'torch' not in sys.modules; raise SystemExit(code)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0


def test_on_a_terminal_it_is_a_table_of_rich(protolith, folder, monkeypatch):
    from protolith.cli import render

    monkeypatch.setattr(render, "is_terminal", lambda stream: stream is sys.stdout)
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert answer.code == 0 and "s2.ds" in answer.out and "40/40" in answer.out


def test_ids_of_a_larger_vocabulary(protolith, tmp_path):
    """T4: 4-byte ids of 70,000 are fine; 2-byte shards for that tokenizer are warned of."""
    write_tokenizer(tmp_path / "wide", [f"w{number}" for number in range(70_000)])
    write_shard(tmp_path / "d4" / "a.ds", [[65_540, 70_000, 0]], width=4, tokenizer="wide")
    write_shard(tmp_path / "d2" / "a.ds", [[4, 64, 0]], width=2, tokenizer="wide")
    good = protolith("data", "check", tmp_path / "d4", "--tokenizer", tmp_path / "wide", "-o", "json")
    assert good.code == 0 and statuses(good) == {"a.ds": "ok"}
    assert good.json["shards"][0]["ids"]["highest"] == 70_000
    narrow = protolith("data", "check", tmp_path / "d2", "--tokenizer", tmp_path / "wide")
    assert narrow.code == 0
    assert "warning: a.ds: 2-byte ids cannot hold a vocabulary of 70,002" in narrow.out


def cut(data: Path) -> None:
    (data / "s1.ds").write_bytes((data / "s1.ds").read_bytes()[:-7])


def mixed(data: Path) -> None:
    shutil.copy(data / "s0.ds.index", data / "s1.ds.index")


def descending(data: Path) -> None:
    ends = np.fromfile(data / "s1.ds.index", dtype="<u8")
    ends[[2, 5]] = ends[[5, 2]]
    ends.tofile(data / "s1.ds.index")


@pytest.mark.parametrize("damage", [cut, mixed, descending])
def test_a_shard_that_disagrees_with_itself_is_named(protolith, folder, damage):
    """T6: the others are checked all the same."""
    damage(folder / "data")
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model", "-o", "json")
    assert answer.code == 2
    assert statuses(answer) == {"s0.ds": "ok", "s1.ds": "bad", "s2.ds": "ok"}


def test_all_bad_shards_are_listed_at_once(protolith, folder):
    """T6"""
    cut(folder / "data")
    (folder / "data" / "s0.ds.metadata").write_text("model|3\n9")
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert answer.code == 2
    assert "bad: s0.ds: its metadata says tokens of '3' bytes" in answer.out
    assert "bad: s1.ds: " in answer.out
    assert "(1 ok, 0 with warnings, 2 bad)" in answer.out


def test_a_missing_index_is_a_stated_fallback(protolith, folder):
    """T6 c"""
    (folder / "data" / "s2.ds.index").unlink()
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert answer.code == 0
    assert "warning: s2.ds: no .index: where documents end is not known" in answer.out


def test_empty_shards_and_strangers(protolith, folder):
    """T7"""
    before = protolith("data", "check", folder / "data", "-o", "json").json["num_tokens"]
    write_shard(folder / "data" / "zero.ds", [])
    (folder / "data" / ".part.ds.tmp").write_text("x")
    (folder / "data" / ".nfs0001").write_text("x")
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model", "-o", "json")
    assert answer.code == 0 and answer.json["num_tokens"] == before
    assert statuses(answer)["zero.ds"] == "warning"
    assert "2 hidden" in answer.json["notes"][0]


def test_an_empty_folder_and_a_misspelt_one(protolith, folder):
    """T7"""
    (folder / "void").mkdir()
    empty = protolith("data", "check", folder / "void")
    assert empty.code == 2 and str(folder / "void") in empty.err
    misspelt = protolith("data", "check", folder / "dta")
    assert misspelt.code == 3 and f"did you mean {folder / 'data'}?" in misspelt.err
    as_json = protolith("data", "check", folder / "dta", "-o", "json")
    assert as_json.code == 3 and as_json.json["error"]["code"] == "not_found"


@pytest.mark.parametrize("eos", [None, 9])
def test_one_shard_without_the_end_of_text(protolith, folder, eos):
    """T8: not averaged away, with the numbers."""
    write_shard(folder / "data" / "s1.ds", documents(40, first=40, eos=eos))
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "model")
    assert answer.code == 2
    assert "bad: s1.ds: documents do not end with the end of text: 0 of 40 end with EOS" in answer.out
    assert ("documents end with id 9 (100 %), not with EOS 0" in answer.out) == (eos == 9)
    assert "s0.ds:" not in answer.out and "s2.ds:" not in answer.out


def test_another_end_of_text_can_be_named(protolith, folder):
    """T8"""
    for number in range(3):
        write_shard(folder / "data" / f"s{number}.ds", documents(40, first=40 * number, eos=1, low=2))
    asked = ["data", "check", folder / "data", "--tokenizer", folder / "model"]
    assert protolith(*asked).code == 2
    assert protolith(*asked, "--eos-token", "<unk>").code == 0


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_an_id_beyond_the_model(protolith, folder, full):
    """T38 b, c: also once, at the end of the last shard."""
    write_shard(folder / "data" / "s2.ds", [*documents(40, first=80), [452, 0]])
    asked = ["data", "check", folder / "data", "--model", folder / "model", *full]
    answer = protolith(*asked)
    assert answer.code == 2
    assert "is beyond the 452 ids of the model model" in answer.out and "bad: s2.ds: id 452" in answer.out
    assert protolith(*asked, "--vocab-size", 453).code == 0


def test_a_tokenizer_larger_or_smaller_than_the_model(protolith, tmp_path):
    """T38 a, d"""
    write_shard(tmp_path / "d" / "a.ds", documents(40, vocab=90), tokenizer="tok")
    write_tokenizer(tmp_path / "tok", [f"w{number}" for number in range(118)])
    write_model(tmp_path / "model", vocab_size=100)
    asked = ["data", "check", tmp_path / "d", "--model", tmp_path / "model", "--tokenizer", tmp_path / "tok"]
    answer = protolith(*asked)
    assert answer.code == 2
    assert "the tokenizer knows 120 ids, the model model has room for 100" in answer.out
    write_model(tmp_path / "model", vocab_size=128)
    assert protolith(*asked).code == 0


def test_paths_with_spaces_brackets_links_and_loops(protolith, folder, monkeypatch):
    """T56: the same tokens in the same order, however the folder is named."""
    odd = folder / "my data [v1] (é)"
    shutil.copytree(folder / "data", odd / "deep")
    (odd / "deep" / "loop").symlink_to(odd)
    (folder / "link").symlink_to(odd)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    spellings = [odd, f"{odd}/", odd.name, "link", "~/link", "my data *"]
    answers = [protolith("data", "check", spelling, "-o", "json") for spelling in spellings]
    assert {answer.code for answer in answers} == {0}
    assert len({answer.json["num_tokens"] for answer in answers}) == 1
    assert len({tuple(statuses(answer)) for answer in answers}) == 1
    assert "a link back to a folder above it" in answers[0].json["notes"][0]


def test_overlapping_paths_are_read_once_and_said(protolith, folder, monkeypatch):
    """T58"""
    shutil.copytree(folder / "data", folder / "data" / "sub")
    write_shard(folder / "data" / "sub" / "s0.ds", documents(9, first=700))
    (folder / "link").symlink_to(folder / "data")
    monkeypatch.chdir(folder)
    once = protolith("data", "check", "data", "-o", "json")
    for more in (["data/sub"], ["./data"], ["link"], ["data/s1.ds"]):
        twice = protolith("data", "check", "data", *more, "-o", "json")
        assert twice.json["num_tokens"] == once.json["num_tokens"]
        assert any("read once" in note for note in twice.json["notes"]), more
    copies = {shard["name"]: shard["doubts"] for shard in once.json["shards"] if shard["doubts"]}
    assert list(copies) == ["sub/s1.ds", "sub/s2.ds"]
    assert "the same ids as s1.ds" in copies["sub/s1.ds"][0]
    assert once.code == 0


def test_without_a_tokenizer_it_says_what_was_not_checked(protolith, folder):
    answer = protolith("data", "check", folder / "data")
    assert answer.code == 0
    assert "not checked: how documents end: no end of text is known; --tokenizer DIR names it" in answer.out


def test_the_same_said_of_many_shards_is_one_line(protolith, folder):
    write_tokenizer(folder / "other")
    answer = protolith("data", "check", folder / "data", "--tokenizer", folder / "other")
    assert 'warning: s0.ds, s1.ds, s2.ds: made with the tokenizer "model", not "other"' in answer.out


def test_what_is_no_tokenizer_or_no_model_is_said(protolith, folder):
    missing = protolith("data", "check", folder / "data", "--tokenizer", folder / "nothing")
    assert missing.code == 3 and "no such tokenizer" in missing.err and "hint:" in missing.err
    assert protolith("data", "check", folder / "data", "--model", folder / "data").code == 2
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    sizeless = protolith("data", "check", folder / "data", "--model", folder / "model")
    assert sizeless.code == 2 and "--vocab-size" in sizeless.err


def test_names_cannot_steer_the_terminal(protolith, tmp_path):
    write_shard(tmp_path / "a\x1b[2J.ds", documents(5), tokenizer="evil\x1b[31m")
    answer = protolith("data", "check", tmp_path)
    assert answer.code == 0 and "\x1b" not in answer.out and "\\x1b[2J" in answer.out
