"""The same run in one process, in two with the whole model each, and in two that share one."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from safetensors.torch import load_file

from protolith.distributed.world import joined  # noqa: F401  # loaded before ranks are forked
from protolith.tensors.stored import optimizer_of, weights_of
from protolith.training.request import Request
from tests.e2e.test_two_processes import check_ended, check_near, numbers, stopping_after, weights
from tests.support import ranks, tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 21, first=100)
    tiny.write_model(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def _put_back(monkeypatch):
    from protolith.training import loop

    monkeypatch.setattr(loop.Loop, "_advance", loop.Loop._advance)


FSDP = {"trainer__strategy": "fsdp", "trainer__mixed_precision": "fp32"}


@pytest.mark.parametrize("tied", [True, False])
def test_two_ranks_that_share_a_model_are_one_process(place, tmp_path, tied):
    """Accumulation, clipping, document masks, recomputed activations, validation, samples (T32, T35)."""
    changes = {
        "data__eval_path": str(place / "val.jsonl"),
        "data__document_mask": True,
        "model__overrides": {"tie_word_embeddings": tied},
        "model__activation_checkpointing": "full",
        "eval__every_n_steps": 4,
        "eval__sample_prompts": ["kaa"],
        "trainer__max_grad_norm": 0.1,
        "trainer__max_steps": 8,
        "trainer__batch_size": 1,
    }

    one = tiny.train(place, **changes, trainer__gradient_accumulation=4, output__dir=str(tmp_path / "one"))
    split = {"trainer__gradient_accumulation": 2}
    for name, more in (("ddp", {"trainer__strategy": "ddp"}), ("fsdp", FSDP)):
        ended = ranks.train(place, 2, **(changes | split | more), output__dir=str(tmp_path / name))
        check_ended(ended, step=8, tokens=one.tokens, stopped_by="steps")
        check_near(tmp_path / name, one.run_dir)
        assert ("lm_head.weight" in weights(tmp_path / name)) is not tied
    line = numbers(tmp_path / "fsdp")[1]
    first = next(value for name, value in line.items() if name.startswith("loss"))
    assert abs(first - math.log(452)) < 0.4
    log = (tmp_path / "fsdp/logs/latest/rank_0.log").read_text()
    assert "strategy: fsdp, the model in shards over 2 processes" in log
    assert "weight decay" in log
    decay = [text for text in log.splitlines() if "weight decay" in text]
    alone = (tmp_path / "one/logs/latest/rank_0.log").read_text()
    assert decay[0].split("weight decay")[1] in alone, "same groups, same counts (T31)"


def test_coming_back_in_one_process_and_in_two_with_the_whole_model(place, tmp_path, monkeypatch):
    """Shards, compiled, to step 4; one process to 8; DDP to 12: names and curve are the same (T37)."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    changes = {"trainer__batch_size": 1, "output__dir": str(tmp_path / "run")}
    alone = {"trainer__batch_size": 2}
    whole = tiny.train(place, **(changes | alone | {"output__dir": str(tmp_path / "whole")}))
    first = ranks.train(place, 2, request=stopping_after(4), **changes, **FSDP, model__compile=True)
    check_ended(first, step=4, stopped_by="signal")
    for stored in (weights_of, optimizer_of):
        saved, plain = (
            stored(tmp_path / "run/checkpoints/step_4"),
            stored(whole.run_dir / "checkpoints/step_10"),
        )
        assert {k: saved.shape(k) for k in saved} == {k: plain.shape(k) for k in plain}
    rng = load_file(tmp_path / "run/checkpoints/step_4/rng.safetensors")
    assert sorted(rng) == ["cpu", "cpu/1"]
    again = stopping_after(8, resume="latest")
    assert tiny.train(place, request=again, **(changes | alone)).step == 8
    third = ranks.train(place, 2, request=stopping_after(10, resume="latest"), **changes, **FSDP)
    check_ended(third, step=10, stopped_by="signal")
    check_ended(ranks.train(place, 2, request=Request(resume="latest"), **changes), step=12)
    check_near(tmp_path / "run", whole.run_dir)


def test_a_step_that_is_not_finite_on_one_rank_is_left_out_by_all(place, tmp_path):
    from protolith.distributed.fsdp import FsdpEngine

    def action(rank):
        original, calls = FsdpEngine.forward_backward, []

        def once_nan(self, *args, **kwargs):
            calls.append(1)
            value = original(self, *args, **kwargs)
            return value * float("nan") if len(calls) == 4 and rank == 1 else value

        FsdpEngine.forward_backward = once_nan
        settings = {"trainer__on_nonfinite": "skip", "trainer__max_steps": 6, "trainer__batch_size": 1}
        return tiny.train(place, **settings, **FSDP, output__dir=str(tmp_path / "run"))

    ended = ranks.together(2, action)
    check_ended(ended, step=6)
    assert [rank.value.metrics["progress/skipped_steps"] for rank in ended] == [1, 1]
