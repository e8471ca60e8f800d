from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protolith.model.build import build_model
from protolith.model.chunked_loss import chunked_loss_sum
from protolith.model.head import find_head_form
from protolith.model.loss import LossModel

ROWS, POSITIONS, VOCAB = 3, 7, 97


def batch(seed: int = 0, ignored: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs_BT = torch.randint(VOCAB, (ROWS, POSITIONS), generator=generator)
    targets_BT = torch.randint(VOCAB, (ROWS, POSITIONS), generator=generator)
    targets_BT.flatten()[torch.randperm(ROWS * POSITIONS, generator=generator)[:ignored]] = -100
    return inputs_BT, targets_BT


def gradients(module: nn.Module) -> dict[str, Tensor]:
    found = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def reference(hf: nn.Module, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Transformers' own loss: labels already shifted, summed."""
    return hf(input_ids=inputs_BT, labels=inputs_BT, shift_labels=targets_BT, num_items_in_batch=1).loss


def assert_same(hf: nn.Module, loss: LossModel, inputs_BT: Tensor, targets_BT: Tensor) -> None:
    own = reference(hf, inputs_BT, targets_BT)
    own.backward()
    expected = gradients(hf)
    ours = loss(inputs_BT, targets_BT)
    ours.backward()
    found = gradients(hf)
    num_targets = int((targets_BT != -100).sum())
    assert ours.dtype == torch.float32 and ours.ndim == 0
    assert abs(ours.item() - own.item()) / num_targets < 1e-5
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(("kind", "tied"), list(itertools.product(["qwen3", "llama"], [True, False])))
@pytest.mark.parametrize("chunk_rows", [1, 4, 21, 1000])
def test_value_and_gradient_are_those_of_transformers(folder, kind, tied, chunk_rows):
    """Grouped heads, chunks of one row, chunks that do not divide the rows, more than all rows (T34)."""
    hf = build_model(folder(kind, tie_word_embeddings=tied), seed=3).module
    assert_same(hf, LossModel(hf, chunk_rows=chunk_rows), *batch())


def test_the_plain_shifted_loss_of_transformers_is_met_too(folder):
    hf = build_model(folder("llama")).module
    ids_BT = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    theirs = hf(input_ids=ids_BT, labels=ids_BT).loss
    ours = LossModel(hf)(ids_BT[:, :-1], ids_BT[:, 1:]) / 16
    assert abs(theirs.item() - ours.item()) < 1e-5


@pytest.mark.parametrize("kind", ["gemma2", "granite", "cohere", "phi", "gpt2"])
def test_models_that_change_their_logits_get_their_own_loss(folder, kind):
    hf = build_model(folder(kind), seed=3).module.eval()
    with torch.no_grad():  # large logits, so that a soft cap left out would show
        hf.get_output_embeddings().weight.mul_(60.0)
    loss = LossModel(hf, chunk_rows=4)
    assert_same(hf, loss, *batch())
    assert loss.form.linear == (kind != "gemma2")
    assert bool(loss.notes) == (kind == "gemma2")


def test_what_a_model_does_to_its_logits_is_found_out_without_disturbing_it(folder):
    for kind, scale in (("qwen3", 1.0), ("granite", 1 / 8), ("cohere", 0.0625), ("phi", 1.0)):
        hf = build_model(folder(kind)).module
        hf.model.layers[0].eval()
        modes = [m.training for m in hf.modules()]
        before, state = hf.state_dict(), torch.get_rng_state()
        weights = {n: t.clone() for n, t in before.items()}
        form = find_head_form(hf)
        assert form.linear and form.scale == pytest.approx(scale, rel=1e-4), kind
        assert modes == [m.training for m in hf.modules()]
        assert torch.equal(state, torch.get_rng_state())
        assert all(torch.equal(t, hf.state_dict()[n]) for n, t in weights.items())
        assert not hf.get_output_embeddings()._forward_hooks


def test_a_soft_cap_is_seen_on_a_fresh_model_whose_logits_are_small(folder):
    form = find_head_form(build_model(folder("gemma2")).module)
    assert not form.linear and "logits" in form.reason


@pytest.mark.parametrize("kind", ["qwen3", "gemma2"])
def test_a_batch_without_targets_gives_zero_and_zero_gradients(folder, kind):
    hf = build_model(folder(kind)).module
    inputs_BT, targets_BT = batch()
    value = LossModel(hf)(inputs_BT, torch.full_like(targets_BT, -100))
    value.backward()
    assert value.item() == 0.0
    assert all(float(g.abs().max()) == 0.0 for g in gradients(hf).values())


@pytest.mark.parametrize("tied", [True, False])
def test_the_incoming_gradient_scales_all_gradients(folder, tied):
    """The step divides by targets and multiplies by a loss scale before it goes backward."""
    hf = build_model(folder(tie_word_embeddings=tied)).module
    loss = LossModel(hf, chunk_rows=4)
    loss(*batch()).backward()
    plain = gradients(hf)
    (loss(*batch()) * (65536.0 / 16)).backward()
    for name, gradient in gradients(hf).items():
        torch.testing.assert_close(gradient, plain[name] * 4096.0, rtol=1e-6, atol=0.0)


def test_gradients_of_several_micro_batches_add_up(folder):
    hf = build_model(folder(tie_word_embeddings=True)).module
    loss = LossModel(hf, chunk_rows=4)
    inputs_BT, targets_BT = batch()
    loss(inputs_BT, targets_BT).backward()
    whole = gradients(hf)
    for b in range(ROWS):
        loss(inputs_BT[b : b + 1], targets_BT[b : b + 1]).backward()
    for name, gradient in gradients(hf).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-4, atol=1e-5)


def test_going_backward_twice_is_an_error_not_a_wrong_number(folder):
    value = LossModel(build_model(folder()).module)(*batch())
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        value.backward()


def test_evaluation_forms_no_gradient_and_gives_the_same_loss(folder):
    hf = build_model(folder()).module
    loss = LossModel(hf, chunk_rows=4)
    trained = loss(*batch())
    with torch.no_grad():
        evaluated = loss(*batch())
    assert evaluated.grad_fn is None and not evaluated.requires_grad
    assert evaluated.item() == pytest.approx(trained.item(), rel=1e-6)


def test_logits_exist_for_one_chunk_at_a_time():
    rows, width, vocab, chunk = 256, 4, 20_000, 16
    hidden_ND = torch.randn(rows, width, requires_grad=True)
    weight_VD = torch.randn(vocab, width, requires_grad=True)
    targets_N = torch.randint(vocab, (rows,))
    with torch.profiler.profile(profile_memory=True) as profile:
        chunked_loss_sum(hidden_ND, weight_VD, None, targets_N, chunk).backward()
    largest = max(event.cpu_memory_usage for event in profile.events() if event.name.startswith("aten::"))
    assert largest < 3 * 4 * chunk * vocab < 4 * rows * vocab


def test_frozen_parts_get_no_gradient(folder):
    hf = build_model(folder()).module
    hf.lm_head.weight.requires_grad_(False)
    LossModel(hf)(*batch()).backward()
    found = gradients(hf)
    assert "lm_head.weight" not in found and len(found) > 5


def test_documents_in_one_row_do_not_see_each_other_when_positions_restart(folder):
    hf = build_model(folder()).module
    loss = LossModel(hf)
    first, second = torch.arange(5).unsqueeze(0), torch.arange(20, 26).unsqueeze(0)
    alone = loss(first, first + 1).item() + loss(second, second + 1).item()
    row = torch.cat([first, second], dim=1)
    positions = torch.cat([torch.arange(5), torch.arange(6)]).unsqueeze(0)
    assert loss(row, row + 1, positions).item() == pytest.approx(alone, rel=1e-5)


def norm(found: dict[str, Tensor]) -> float:
    return torch.stack([g.norm() for g in found.values()]).norm().item()


@pytest.mark.parametrize("chunk_rows", [1, 4, 256])
@pytest.mark.parametrize("tied", [True, False])
def test_bf16_agrees_with_fp32_and_with_the_plain_bf16_way(folder, chunk_rows, tied):
    """Loss within 5e-3, norm of the gradient within 1 %, fp32 gradients of fp32 weights (T34)."""
    hf = build_model(folder(tie_word_embeddings=tied), seed=5).module
    loss = LossModel(hf, chunk_rows=chunk_rows)
    inputs_BT, targets_BT = batch(ignored=2)
    num = int((targets_BT != -100).sum())
    full = loss(inputs_BT, targets_BT) / num
    full.backward()
    full_norm = norm(gradients(hf))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = loss(inputs_BT, targets_BT) / num
        plain = reference(hf, inputs_BT, targets_BT) / num
    low.backward()
    found = gradients(hf)
    plain.backward()
    plain_norm = norm(gradients(hf))
    assert low.dtype == torch.float32 and all(g.dtype == torch.float32 for g in found.values())
    assert abs(low.item() - full.item()) < 5e-3
    assert abs(low.item() - plain.item()) < 5e-3
    assert norm(found) == pytest.approx(full_norm, rel=0.01)
    assert norm(found) == pytest.approx(plain_norm, rel=0.01)


def test_bf16_losses_are_as_many_as_the_batches(folder):
    """Softmax and sums in fp32: 200 batches give about 200 different values, not steps of 1/128 (T34)."""
    loss = LossModel(build_model(folder()).module)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        values = {loss(*batch(seed, ignored=0)).item() for seed in range(200)}
    assert len(values) > 190


def test_fp16_keeps_small_probabilities_of_a_large_vocabulary():
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(8, 16, generator=generator, requires_grad=True)
    weight_VD = (torch.randn(60_000, 16, generator=generator) * 0.02).requires_grad_()
    targets_N = torch.randint(60_000, (8,), generator=generator)
    chunked_loss_sum(hidden_ND, weight_VD, None, targets_N, 4).backward()
    expected, hidden_ND.grad = (hidden_ND.grad, weight_VD.grad), None
    weight_VD.grad = None
    with torch.autocast("cpu", dtype=torch.float16):
        value = chunked_loss_sum(hidden_ND, weight_VD, None, targets_N, 4)
    (value * 64.0).backward()
    assert hidden_ND.grad.norm().item() == pytest.approx(64 * expected[0].norm().item(), rel=0.01)
    untouched = weight_VD.grad[torch.tensor([i for i in range(2000) if i not in set(targets_N.tolist())])]
    assert float((untouched == 0).float().mean()) < 0.01


def test_chunked_loss_with_a_bias_equals_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(11, 5, generator=generator, requires_grad=True)
    weight_VD = torch.randn(13, 5, generator=generator, requires_grad=True)
    bias_V = torch.randn(13, generator=generator, requires_grad=True)
    targets_N = torch.randint(13, (11,), generator=generator)
    targets_N[::3] = -100
    F.cross_entropy(
        F.linear(hidden_ND, weight_VD, bias_V), targets_N, ignore_index=-100, reduction="sum"
    ).backward()
    expected = [t.grad for t in (hidden_ND, weight_VD, bias_V)]
    hidden_ND.grad = weight_VD.grad = bias_V.grad = None
    chunked_loss_sum(hidden_ND, weight_VD, bias_V, targets_N, 4).backward()
    for tensor, gradient in zip((hidden_ND, weight_VD, bias_V), expected, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)


def test_huge_logits_stay_finite():
    """A loss that exploded is a large number, not nan (T28)."""
    hidden_ND = torch.full((2, 4), 1e4, requires_grad=True)
    weight_VD = torch.eye(6, 4, requires_grad=True)
    value = chunked_loss_sum(hidden_ND, weight_VD, None, torch.tensor([5, 5]), 1)
    value.backward()
    assert 1e4 < value.item() < 1e5 and torch.isfinite(hidden_ND.grad).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False])
def test_compiled_it_gives_the_same(folder, tied, precision):
    """Two micro-batches, one after the other, through a traced body; names of weights stay clean (T37)."""
    hf = build_model(folder(tie_word_embeddings=tied), seed=3).module
    eager = LossModel(hf, chunk_rows=4)
    compiled = torch.compile(eager, backend="aot_eager")
    results = []
    for loss in (eager, compiled):
        for seed in (0, 1):  # two micro-batches: gradients add up
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
                value = loss(*batch(seed))
            (value * 0.25).backward()
        results.append((value.item(), gradients(hf)))
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert results[1][0] == pytest.approx(results[0][0], rel=tolerance)
    assert results[1][1].keys() == results[0][1].keys() == dict(hf.named_parameters()).keys()
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        assert compiled(*batch()).item() == pytest.approx(eager(*batch()).item(), rel=1e-5)
    assert not any("_orig_mod" in name for name in hf.state_dict())
