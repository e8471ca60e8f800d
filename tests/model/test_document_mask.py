"""Documents in one row do not see each other: in every attention backend, or it is an error (T10)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.attention import flex_attention
from transformers.integrations import flex_attention as flex_in_transformers

from protolith.errors import ModelError
from protolith.model.build import build_model
from protolith.model.document_mask import leak, prove_documents_apart
from protolith.model.loss import LossModel


def two_documents(first: list[int], second: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = torch.tensor([first + second, second[::-1] + first])
    targets = torch.full_like(inputs, -100)
    begin = len(first)
    targets[0, begin : begin + len(second) - 1] = torch.tensor(second[1:])
    spans = [(len(first), len(second)), (len(second), len(first))]
    return inputs, targets, torch.tensor([[*range(a), *range(b)] for a, b in spans])


@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        *itertools.product(["qwen3", "llama", "phi"], ["eager", "sdpa"]),
        ("gemma2", "eager"),
        ("llama", "flex"),
        ("gpt2", "sdpa"),
    ],
)
def test_a_documents_loss_does_not_depend_on_its_neighbours(folder, kind, attention, monkeypatch):
    hf = build_model(folder(kind), attention="eager" if attention == "flex" else attention).module
    if attention == "flex":  # which trains on a GPU only; forward it can be asked here, not compiled:
        # torch's compiled kernel for CPUs reads memory that nobody wrote when rows are short
        monkeypatch.setattr(
            flex_in_transformers,
            "WrappedFlexAttention",
            lambda training: lambda: flex_attention.flex_attention,
        )
        hf.set_attn_implementation("flex_attention")
    loss = LossModel(hf)
    loss.eval()
    second = [11, 12, 13, 14, 15]
    found = {}
    with torch.no_grad():
        for first in ([1, 2, 3], [41, 42, 43]):
            inputs, targets, positions = two_documents(first, second)
            found["apart", first[0]] = loss(inputs, targets, positions)
            found["joined", first[0]] = loss(inputs, targets)
        alone = torch.tensor([second])
        following = torch.tensor([[*second[1:], -100]])
        found["alone"] = loss(alone, following)
    assert found["apart", 1] == pytest.approx(float(found["apart", 41]), abs=1e-5)
    assert found["apart", 1] == pytest.approx(float(found["alone"]), abs=1e-4)
    assert abs(found["joined", 1] - found["joined", 41]) > 1e-4


@pytest.mark.parametrize(
    ("kind", "attention"),
    [("qwen3", "eager"), ("qwen3", "sdpa"), ("gemma2", "eager"), ("gpt2", "eager")],
)
@pytest.mark.parametrize("rows_as_one", [False, True])
def test_the_proof_tells_a_mask_from_none(folder, kind, attention, rows_as_one):
    loss = LossModel(build_model(folder(kind), attention=attention).module)
    loss.one_line = rows_as_one
    before = torch.get_rng_state()
    prove_documents_apart(loss)
    assert torch.equal(torch.get_rng_state(), before)
    assert loss.training and all(parameter.grad is None for parameter in loss.parameters())
    seen, inside = leak(loss, restart=False)
    assert seen > 1e-3 * inside > 0


def test_rows_as_one_line_give_the_same_loss_and_gradients(folder):
    """What flash attention needs (a batch of one row) changes no number."""
    inputs, targets, positions = two_documents([1, 2, 3], [11, 12, 13, 14, 15])
    found = []
    for rows_as_one in (False, True):
        loss = LossModel(build_model(folder("qwen3"), attention="eager").module)
        loss.one_line = rows_as_one
        value = loss(inputs, targets, positions)
        value.backward()
        found.append((value.item(), [parameter.grad for parameter in loss.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_model_that_does_not_keep_them_apart_is_refused(folder):
    hf = build_model(folder("llama"), attention="sdpa").module
    original = hf.model.forward
    hf.model.forward = lambda position_ids=None, **rest: original(**rest)
    with pytest.raises(ModelError, match="does not keep documents in one row apart"):
        prove_documents_apart(LossModel(hf))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_compiled_the_mask_holds_too(folder, attention):
    inputs, targets, positions = two_documents([1, 2, 3], [11, 12, 13, 14, 15])
    loss = LossModel(build_model(folder("qwen3"), attention=attention).module)
    plain = loss(inputs, targets, positions).item()
    assert torch.compile(loss)(inputs, targets, positions).item() == pytest.approx(plain, abs=1e-4)
