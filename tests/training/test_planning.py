"""A plan says what would stop a run, in the user's own names, before anything is spent."""

from __future__ import annotations

import pytest
import torch

from protolith.config.load import load_config
from protolith.distributed.world import World
from protolith.errors import ConflictError, InvalidValueError
from protolith.training import planning, space
from protolith.training.planning import plan_run
from protolith.training.pretrain import run
from protolith.training.request import Request
from tests.support import tiny
from tests.support.shards import documents, write_shard

JOB = """
mode = "pretrain"
max_steps = 4
output_dir = "{folder}/run"
model.name = "{folder}/model"
model.mixed_precision = "fp32"
model.compile = false
data.paths = ["{folder}/data"]
data.seq_len = 64
data.batch_size = 10
data.micro_batch_size = 4
"""


@pytest.mark.parametrize("do", [plan_run, lambda loaded: run(loaded, Request())], ids=["plan", "run"])
def test_a_batch_that_does_not_divide_is_told_in_the_names_of_the_file(tmp_path, do):
    tiny.write_model(tmp_path / "model")
    write_shard(tmp_path / "data" / "0.ds", documents(40))
    (tmp_path / "job.toml").write_text(JOB.format(folder=tmp_path))
    with pytest.raises(InvalidValueError) as caught:
        do(load_config(tmp_path / "job.toml"))
    error = caught.value
    assert error.message == "data.batch_size = 10 is no multiple of data.micro_batch_size = 4"
    assert error.where == "data.batch_size"
    assert "data.micro_batch_size" in error.hint


def test_an_output_path_that_is_a_file_is_refused_as_the_run_refuses_it(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 30)
    tiny.write_model(tmp_path / "model")
    (tmp_path / "run").write_text("a file")
    for place in (tmp_path / "run", tmp_path / "run" / "deeper"):
        loaded = load_config(tiny.write_recipe(tmp_path, output__dir=str(place)))
        refusals = []
        for do in (plan_run, lambda loaded: run(loaded, Request())):
            with pytest.raises(ConflictError) as caught:
                do(loaded)
            refusals.append((caught.value.message, caught.value.where))
        assert refusals[0] == refusals[1]
    assert (tmp_path / "run").read_text() == "a file"


def test_an_output_folder_that_holds_a_run_is_said(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 30)
    tiny.write_model(tmp_path / "model")
    loaded = load_config(tiny.write_recipe(tmp_path, trainer__max_steps=2))
    assert plan_run(loaded).warnings == []
    run(loaded, Request())
    before = sorted(tmp_path.rglob("*"))
    (said,) = plan_run(loaded).warnings
    assert "already holds a run (step 2, last checkpoint at step 2)" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("free", "warned"), [(1_000, True), (10**12, False), (None, False)])
def test_more_memory_than_is_free_is_a_warning(tmp_path, monkeypatch, free, warned):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 30)
    tiny.write_model(tmp_path / "model")
    monkeypatch.setattr(space, "free_memory", lambda: free)
    monkeypatch.setattr(planning, "single_process", lambda: World(0, 1, torch.device("cpu")))
    warnings = plan_run(load_config(tiny.write_recipe(tmp_path))).warnings
    assert any("of memory and 1.00 kB are free" in text for text in warnings) == warned
    assert warned or not any("of memory" in text for text in warnings)
