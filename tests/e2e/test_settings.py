"""Settings do what they say: precisions, activation checkpointing, samples, what is saved when."""

from __future__ import annotations

import json
import math

import pytest

from protolith.config.load import load_config
from protolith.distributed.single import SingleEngine
from protolith.errors import NotAvailableError
from protolith.training.planning import plan_run
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 10, first=200)
    tiny.write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def plain(place, tmp_path_factory):
    return tiny.losses(tiny.train(place, output__dir=str(tmp_path_factory.mktemp("plain") / "run")).run_dir)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precisions_follow_the_full_one(place, tmp_path, plain, precision):
    state = tiny.train(place, output__dir=str(tmp_path / "run"), trainer__mixed_precision=precision)
    assert tiny.losses(state.run_dir) == pytest.approx(plain, abs=2e-2)
    assert "progress/skipped_steps" not in state.metrics


def test_fp16_overflow_lowers_the_scale_and_is_counted(place, tmp_path, monkeypatch):
    """A scale far too high skips updates, says so, and training goes on once it is low enough."""
    import torch

    original = SingleEngine.__init__

    def high_scale(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    monkeypatch.setattr(SingleEngine, "__init__", high_scale)
    state = tiny.train(
        place, output__dir=str(tmp_path / "run"), trainer__mixed_precision="fp16", trainer__max_steps=40
    )
    assert 0 < state.metrics["progress/skipped_steps"] < 40
    assert math.isfinite(state.metrics["loss"])
    assert "the loss scale was too high" in (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()


def test_activation_checkpointing_changes_no_number(place, tmp_path, plain):
    state = tiny.train(place, output__dir=str(tmp_path / "run"), model__activation_checkpointing="full")
    assert tiny.losses(state.run_dir) == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_kernels_agree(place, tmp_path, plain, attention):
    state = tiny.train(place, output__dir=str(tmp_path / "run"), model__attention=attention)
    assert tiny.losses(state.run_dir) == pytest.approx(plain, rel=1e-5)


def test_samples_are_written_at_each_validation_and_change_nothing(place, tmp_path, plain):
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        data__eval_path=str(place / "val.jsonl"),
        eval__every_n_steps=6,
        eval__sample_prompts=["kaa kab", ""],
    )
    assert tiny.losses(state.run_dir) == plain
    rows = [
        json.loads(line) for line in (state.run_dir / "monitors" / "samples.jsonl").read_text().splitlines()
    ]
    assert [(row["step"], row["prompt"]) for row in rows] == [
        (6, "kaa kab"),
        (6, ""),
        (12, "kaa kab"),
        (12, ""),
    ]
    assert all(isinstance(row["text"], str) for row in rows)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [5, 10, 12]),
        ({"trainer__save_last": False}, [5, 10]),
        ({"trainer__checkpoint_every_n_steps": None}, [12]),
        (
            {"trainer__checkpoint_every_n_steps": 2, "trainer__keep_last": 1, "trainer__keep_every": 6},
            [6, 12],
        ),
        ({"trainer__async_checkpoint": False, "trainer__keep_last": 1}, [12]),
    ],
)
def test_what_is_kept(place, tmp_path, settings, kept):
    state = tiny.train(place, output__dir=str(tmp_path / "run"), **settings)
    names = [int(p.name.removeprefix("step_")) for p in (state.run_dir / "checkpoints").iterdir()]
    assert sorted(names) == kept


def test_no_clipping_is_not_clipping_to_zero(place, tmp_path):
    free = tiny.train(place, output__dir=str(tmp_path / "a"), trainer__max_grad_norm=0)
    high = tiny.train(place, output__dir=str(tmp_path / "b"), trainer__max_grad_norm=1e9)
    assert tiny.losses(free.run_dir) == tiny.losses(high.run_dir)


def test_a_token_budget_ends_the_run(place, tmp_path):
    state = tiny.train(
        place, output__dir=str(tmp_path / "run"), trainer__max_steps=None, trainer__max_tokens=1000
    )
    assert state.stopped_by == "tokens"
    assert 1000 <= state.tokens < 1000 + 128


def test_a_plan_is_what_the_run_then_does(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), data__eval_split=0.2)
    plan = plan_run(load_config(recipe)).plan
    tiny.train(place, output__dir=str(tmp_path / "run"), data__eval_split=0.2)
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == json.loads(json.dumps(plan.to_dict()))


def test_a_large_corpus_is_estimated_and_the_plan_says_so(place, tmp_path, monkeypatch):
    from protolith.training import planning

    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"))
    exact = plan_run(load_config(recipe)).plan
    monkeypatch.setattr(planning, "_EXACT_BYTES", 10)
    report = plan_run(load_config(recipe))
    assert report.plan.rows_per_epoch == pytest.approx(exact.rows_per_epoch, rel=0.02)
    assert any("estimated" in note for note in report.notes)


@pytest.mark.parametrize(
    "change",
    [
        {"trainer__strategy": "deepspeed"},
        {"trainer__num_nodes": 2},
    ],
)
def test_what_does_not_work_yet_is_refused_and_never_ignored(place, tmp_path, change):
    with pytest.raises(NotAvailableError, match="not available yet"):
        tiny.train(place, output__dir=str(tmp_path / "run"), **change)
    assert not (tmp_path / "run").exists()
