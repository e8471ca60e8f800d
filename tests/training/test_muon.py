"""Muon with AdamW: torch's own two optimizers on the same gradients, as one that can be saved and resumed."""

from __future__ import annotations

import copy

import pytest
import torch

from protolith.model.build import build_model
from protolith.training.muon import MuonWithAdamW, muon_groups
from protolith.training.request import Request
from tests.support import tiny

SETTINGS = {"learning_rate": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("muon")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_model(folder / "model")
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_roles(place, tied):
    module = build_model(place / "model", overrides={"tie_word_embeddings": tied}).module
    groups = muon_groups(module)
    names = {id(p): name for name, p in module.named_parameters()}
    hidden = {names[id(p)] for p in groups.hidden}
    assert all(".layers." in name and name.endswith("proj.weight") for name in hidden) and len(hidden) == 14
    assert {names[id(p)] for p in groups.decayed} == (
        {"model.embed_tokens.weight"} if tied else {"model.embed_tokens.weight", "lm_head.weight"}
    )
    assert all(p.ndim == 1 for p in groups.plain)
    every = [*groups.hidden, *groups.decayed, *groups.plain]
    assert len(every) == len({id(p) for p in every}) == len(list(module.parameters()))
    assert "Muon on" in groups.describe(0.1)


def test_against_torchs_own_optimizers(place):
    ours = build_model(place / "model").module
    theirs = copy.deepcopy(ours)
    optimizer = MuonWithAdamW(muon_groups(ours), **SETTINGS)
    groups = muon_groups(theirs)
    muon = torch.optim.Muon(groups.hidden, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(
        [{"params": groups.decayed, "weight_decay": 0.1}, {"params": groups.plain, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
        fused=True,
    )
    generator = torch.Generator().manual_seed(0)
    for rate in (1e-2, 5e-3, 0.0):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for group in [*optimizer.param_groups, *muon.param_groups, *adamw.param_groups]:
            group["lr"] = rate
        optimizer.step()
        muon.step()
        adamw.step()
        optimizer.zero_grad(set_to_none=True)
        assert all(p.grad is None for p in ours.parameters())
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)


def test_one_rate_gives_updates_of_one_size(place):
    """What the adjustment is for: the root mean square of a matrix's update is about that of AdamW's."""
    module = build_model(place / "model").module
    groups = muon_groups(module)
    before = [p.detach().clone() for p in groups.hidden]
    optimizer = MuonWithAdamW(groups, **{**SETTINGS, "weight_decay": 0.0})
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    for old, new in zip(before, groups.hidden, strict=True):
        size = float((new.detach() - old).square().mean().sqrt())
        assert 0.1 * 1e-2 < size < 0.4 * 1e-2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_learns_and_resumes_exactly(place, tmp_path, precision, capfd):
    changes = {
        "trainer__optimizer": "muon",
        "trainer__max_steps": 12,
        "trainer__learning_rate": 3e-3,
        "trainer__mixed_precision": precision,
    }
    whole = tiny.train(place, output__dir=str(tmp_path / "whole"), **changes)
    assert "Muon on" in capfd.readouterr().out
    losses = tiny.losses(whole.run_dir)
    assert losses[12] < losses[1] - 0.3
    checkpoint = whole.run_dir / "checkpoints" / "step_5"
    again = tiny.train(
        place, output__dir=str(tmp_path / "again"), request=Request(resume=str(checkpoint)), **changes
    )
    assert tiny.losses(again.run_dir) == {step: loss for step, loss in losses.items() if step > 5}
