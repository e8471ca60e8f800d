from __future__ import annotations

import pytest
import torch

from protolith.errors import InvalidValueError
from protolith.model.build import build_model
from protolith.model.generate import generate


@pytest.fixture(params=["qwen3", "gpt2"])
def module(request, folder):
    built = build_model(folder(request.param), seed=3).module
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return built


def without_memory(module: torch.nn.Module, ids: list[int], num: int) -> list[int]:
    new: list[int] = []
    with torch.no_grad():
        for _ in range(num):
            new.append(
                int(module(input_ids=torch.tensor([ids + new]), use_cache=False).logits[0, -1].argmax())
            )
    return new


def test_greedy_is_the_likeliest_token_each_time(module):
    new = generate(module, [1, 2, 3], eos_id=None, max_new_tokens=12)
    assert new == without_memory(module.eval(), [1, 2, 3], 12) and len(new) == 12


def test_it_ends_at_the_end_of_text(module):
    new = generate(module, [1, 2, 3], eos_id=None, max_new_tokens=12)
    ended = generate(module, [1, 2, 3], eos_id=new[4], max_new_tokens=12)
    assert ended == new[: new.index(new[4]) + 1]
    assert generate(module, [1, 2, 3], eos_id=[new[4], 96], max_new_tokens=12) == ended
    assert generate(module, [1], eos_id=None, max_new_tokens=0) == []


def test_sampling_repeats_with_its_seed_and_training_does_not_notice(module):
    module.train()
    module.get_input_embeddings().eval()
    modes = [part.training for part in module.modules()]
    state = torch.get_rng_state()
    options = {"eos_id": None, "max_new_tokens": 20, "temperature": 1.0}
    first = generate(module, [1], seed=1, **options)
    assert first == generate(module, [1], seed=1, **options) != generate(module, [1], seed=2, **options)
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [part.training for part in module.modules()]
    assert torch.is_grad_enabled()


def test_a_small_share_leaves_only_the_likeliest(module):
    greedy = generate(module, [1, 2], eos_id=None, max_new_tokens=8)
    assert generate(module, [1, 2], eos_id=None, max_new_tokens=8, temperature=1.0, top_p=1e-6) == greedy


def test_text_may_grow_beyond_what_the_model_can_look_back_on(module):
    new = generate(module, list(range(60)), eos_id=None, max_new_tokens=10)  # 64 positions
    assert len(new) == 10 and all(0 <= token < 97 for token in new)
    assert generate(module, list(range(90)), eos_id=None, max_new_tokens=1) == without_memory(
        module.eval(), list(range(26, 90)), 1
    )


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([97], {}),
        ([-1], {}),
        ([1], {"temperature": -1.0}),
        ([1], {"temperature": float("inf")}),
        ([1], {"top_p": 0.0}),
        ([1], {"max_new_tokens": -1}),
    ],
)
def test_impossible_requests_are_refused(module, prompt, options):
    with pytest.raises(InvalidValueError):
        generate(module, prompt, eos_id=None, **options)
