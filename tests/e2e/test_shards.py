"""Training on folders of token shards through the TOML spelling, and all that can be wrong with them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from protolith.config.load import load_config
from protolith.errors import DataError, NotFoundError, ProtolithError, ResumeMismatchError, ShardError
from protolith.formats.rundir import read_json
from protolith.training.pretrain import run
from protolith.training.request import Request
from tests.support import tiny
from tests.support.shards import documents, write_shard

JOB = """
mode = "pretrain"
name = "shards"
max_steps = {steps}
seed = 7
output_dir = "{run}"

[model]
name = "{model}"
compile = false
mixed_precision = "fp32"

[data]
paths = [{paths}]
seq_len = 64
batch_size = 2
micro_batch_size = 1
num_workers = 0

[optim]
lr = {lr}
weight_decay = 0.0

[scheduler]
warmup_steps = 2

[ckpt]
interval = 5
{more}
"""


@pytest.fixture
def place(tmp_path):
    tiny.write_model(tmp_path / "model")
    for number in range(3):
        write_shard(tmp_path / "data" / f"{number:05d}.ds", documents(40, first=100 * number))
    return tmp_path


def train(place, *, paths=("data",), steps=10, lr=0.0, more="", run_dir="run", request=None):
    config = place / "job.toml"
    config.write_text(
        JOB.format(
            steps=steps,
            run=place / run_dir,
            model=place / "model",
            paths=", ".join(f'"{place / p}"' for p in paths),
            lr=lr,
            more=more,
        )
    )
    return run(load_config(config), request or Request())


def log(state_or_dir):
    folder = state_or_dir if isinstance(state_or_dir, Path) else state_or_dir.run_dir
    return (folder / "logs" / "latest" / "rank_0.log").read_text()


def test_a_job_trains_and_a_correct_folder_gives_no_warning(place):
    state = train(place)
    assert state.step == 10
    plan = read_json(state.run_dir / "plan.json")
    total = sum(len(d) for n in range(3) for d in documents(40, first=100 * n))
    assert plan["targets_per_epoch"] == total - 1
    assert plan["batch"] == {"micro_batch_rows": 1, "accumulation": 2, "world_size": 1, "global_rows": 2}
    assert "WARNING" not in log(state)


@pytest.mark.parametrize("width", [2, 4])
def test_both_widths_are_the_same_tokens(place, width):
    for number in range(3):
        write_shard(place / "wide" / f"{number:05d}.ds", documents(40, first=100 * number), width=width)
    state = train(place, paths=["wide"])
    assert tiny.losses(state.run_dir) == tiny.losses(train(place, run_dir="again").run_dir)


def damage_tail(folder):
    shard = folder / "00001.ds"
    shard.write_bytes(shard.read_bytes()[:-7])


def damage_swap(folder):
    shutil.copy(folder / "00000.ds.index", folder / "00002.ds.index")


def damage_order(folder):
    index = folder / "00001.ds.index"
    data = index.read_bytes()
    index.write_bytes(data[8:16] + data[:8] + data[16:])


@pytest.mark.parametrize(
    ("damage", "name"),
    [(damage_tail, "00001.ds"), (damage_swap, "00002.ds"), (damage_order, "00001.ds")],
)
def test_a_shard_that_disagrees_with_itself_is_named(place, damage, name):
    """(T6)"""
    damage(place / "data")
    with pytest.raises(ShardError) as caught:
        train(place)
    assert name in caught.value.where + caught.value.message
    assert caught.value.exit_code == 2


def test_all_bad_shards_are_listed_at_once(place):
    damage_tail(place / "data")
    damage_swap(place / "data")
    with pytest.raises(ShardError) as caught:
        train(place)
    assert len(caught.value.problems) == 2


def test_a_missing_index_is_a_stated_fallback(place):
    """(T6 c)"""
    (place / "data" / "00001.ds.index").unlink()
    state = train(place)
    assert "00001.ds" in log(state)
    assert "index" in log(state)


def test_empty_shards_and_strays_change_nothing(place):
    """(T7)"""
    expected = tiny.losses(train(place, run_dir="clean").run_dir)
    (place / "data" / "00009.ds").write_bytes(b"")
    (place / "data" / "00009.ds.index").write_bytes(b"")
    (place / "data" / "x.part.ds.tmp").write_bytes(b"abc")
    (place / "data" / ".nfs0001").write_bytes(b"abc")
    state = train(place)
    assert tiny.losses(state.run_dir) == expected
    assert "00009.ds" in log(state)


@pytest.mark.parametrize("name", ["empty", "dataa"])
def test_an_empty_or_misspelt_folder_is_named(place, name):
    (place / "empty").mkdir()
    with pytest.raises((NotFoundError, DataError)) as caught:
        train(place, paths=[name])
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("eos", "shards", "named"),
    [
        (None, (0, 1, 2), ("00000.ds", "00001.ds", "00002.ds")),
        (1, (0, 1, 2), ("00000.ds", "00001.ds", "00002.ds")),
        (None, (1,), ("00001.ds",)),
    ],
)
def test_missing_or_wrong_separators_are_told_for_each_shard(place, eos, shards, named):
    """(T8)"""
    for number in shards:
        write_shard(place / "data" / f"{number:05d}.ds", documents(40, first=100 * number, eos=eos))
    state = train(place)
    warnings = "\n".join(line for line in log(state).splitlines() if "WARNING" in line)
    for name in named:
        assert name in warnings
    if len(named) == 1:
        assert "00000.ds" not in warnings


def test_an_id_beyond_the_vocabulary_is_loud_wherever_it_is(place):
    """(T38 b, c)"""
    bad = documents(40, first=200)
    bad[-1][-2] = 452
    write_shard(place / "data" / "00002.ds", bad)
    with pytest.raises(ProtolithError) as caught:
        train(place)
    assert "00002.ds" in str(caught.value)
    assert "452" in str(caught.value)


def test_a_vocabulary_larger_than_the_tokenizer_is_fine(place):
    """(T38 d)"""
    config = read_json(place / "model" / "config.json")
    (place / "model" / "config.json").write_text(json.dumps({**config, "vocab_size": 512}))
    assert train(place).step == 10


def test_shards_named_twice_are_read_once(place):
    """(T58)"""
    (place / "link").symlink_to(place / "data")
    expected = tiny.losses(train(place, run_dir="once").run_dir)
    for number, paths in enumerate(
        (["data", "data"], ["data", "./data"], ["data", "link"], ["data", "data/00001.ds"])
    ):
        state = train(place, paths=paths, run_dir=f"run{number}")
        assert tiny.losses(state.run_dir) == expected
        assert "more than once" in log(state) or "twice" in log(state)


def test_validation_on_training_data_is_a_warning(place):
    """(T58)"""
    more = f'[val]\ninterval = 5\npaths = ["{place / "data" / "00001.ds"}"]\n'
    state = train(place, more=more)
    assert "validation data is also training data" in log(state)
    assert "val/loss" in state.metrics


def test_a_changed_corpus_is_told_and_refused(place):
    """(T17)"""

    def resume(**options):
        return train(place, steps=10, request=Request(resume="5", **options))

    def refuse(*words):
        with pytest.raises(ResumeMismatchError) as caught:
            resume()
        assert "data" in caught.value.hint
        for word in words:
            assert word in "\n".join(caught.value.differences)

    expected = tiny.losses(train(place).run_dir)
    data = place / "data"
    write_shard(data / "00003.ds", documents(5, first=900))
    refuse("00003.ds")
    for name in ("00003.ds", "00003.ds.index", "00003.ds.metadata"):
        (data / name).unlink()
    for suffix in ("", ".index", ".metadata"):
        (data / f"00002.ds{suffix}").rename(place / f"away.ds{suffix}")
    refuse("00002.ds")
    for suffix in ("", ".index", ".metadata"):
        (place / f"away.ds{suffix}").rename(data / f"00009.ds{suffix}")
    refuse("00002.ds", "00009.ds")
    for suffix in ("", ".index", ".metadata"):
        (data / f"00009.ds{suffix}").rename(data / f"00002.ds{suffix}")
        os.utime(data / f"00002.ds{suffix}", (1, 1))
    resume()
    assert tiny.losses(place / "run") == expected
    data.rename(place / "elsewhere")
    train(place, paths=["elsewhere"], request=Request(resume="5"))
    assert tiny.losses(place / "run") == expected
    write_shard(place / "elsewhere" / "00003.ds", documents(5, first=900))
    state = train(place, paths=["elsewhere"], request=Request(resume="5", accept_changes=("data",)))
    assert state.step == 10
    assert "accepted change: data" in log(state)


@pytest.mark.parametrize("name", ["eval", "inference", "weight_broadcast"])
def test_sections_of_other_trainers_are_refused(place, name):
    with pytest.raises(ProtolithError, match=r"\[val\]"):
        train(place, more=f"[{name}]\nx = 1\n")
