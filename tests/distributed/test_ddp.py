"""The engine and the world of several ranks, without a run around them."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

from protolith.distributed.ddp import DdpEngine, rank_seed
from protolith.distributed.single import SingleEngine
from protolith.distributed.world import joined
from tests.support import ranks


class Net(nn.Module):
    """One embedding, used at both ends, and a layer between; ``idle`` is used on no path."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Embedding(11, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.inner.weight

    def forward(self, inputs_BT, targets_BT):
        logits = self.head(torch.tanh(self.layer(self.inner(inputs_BT))))
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), targets_BT.flatten(), ignore_index=-100, reduction="sum"
        )


def engine(world, net, **settings):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    arguments = {"precision": "fp32", "max_grad_norm": 0.5, **settings}
    if world is None:
        return SingleEngine(net, net, optimizer, device=torch.device("cpu"), **arguments)
    return DdpEngine(net, net, optimizer, world=world, **arguments)


def batches(count, seed=5):
    draw = torch.Generator().manual_seed(seed)
    made = []
    for number in range(count):
        inputs, targets = torch.randint(11, (2, 2, 7), generator=draw)
        targets[:, : number % 5] = -100  # micro-batches with different numbers of targets
        made.append((inputs, targets))
    return made


def steps(own_engine, per_step, mine):
    """Three steps over the micro-batches; returns losses and norms."""
    found = []
    for step in range(3):
        taken = batches(per_step, seed=step)
        num_targets = sum(int((targets != -100).sum()) for _, targets in taken)
        share = [taken[index] for index in mine]
        sums = [
            own_engine.forward_backward(*batch, num_targets, last=index == len(share) - 1)
            for index, batch in enumerate(share)
        ]
        loss = own_engine.total(sums) / num_targets
        found.append((loss, own_engine.step(0.01, apply=True).grad_norm))
    return found, own_engine.evaluate(*batches(4)[mine[0]])


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.0}])
def test_sums_over_ranks_and_micro_batches_are_those_of_one_process(settings):
    alone = engine(None, Net(), **settings)
    expected, _ = steps(alone, 4, [0, 1, 2, 3])

    def action(rank):
        with joined() as world:
            own = engine(world, Net(), **settings)
            found, evaluated = steps(own, 4, [0, 1] if rank == 0 else [2, 3])
            weights = {name: tensor.tolist() for name, tensor in own.full_weights().items()}
            return found, evaluated, weights

    first, second = (ended.value for ended in ranks.together(2, action))
    assert first == second
    for ours, theirs in zip(first[0], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    weights = alone.full_weights()
    assert first[2].keys() == weights.keys() == {"inner.weight", "layer.weight", "layer.bias"}
    for name, tensor in weights.items():
        torch.testing.assert_close(torch.tensor(first[2][name]), tensor, rtol=1e-5, atol=1e-6)


def test_fp16_scales_are_lowered_by_all_when_one_rank_overflows():
    def action(rank):
        with joined() as world:
            own = engine(world, Net(), precision="fp16")
            own.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            inputs, targets = batches(1)[0]
            for parameter in own.module.parameters():
                assert parameter.grad is None
            loss = own.forward_backward(inputs, targets, 1 if rank == 0 else 1e-39)
            assert torch.isfinite(loss)
            outcome = own.step(0.01, apply=True)
            return outcome.applied, outcome.scale_overflow, own.loss_scale()

    ended = ranks.together(2, action)
    assert [rank.value for rank in ended] == [(False, True, 2.0)] * 2


def test_ranks_begin_with_the_weights_of_rank_0_and_notice_others_later():
    def action(rank):
        with joined() as world:
            own = engine(world, Net(seed=rank))  # other weights on each
            first = own.full_weights()["layer.weight"].sum().item()
            state = SingleEngine.state(own)
            if rank == 1:
                state.weights["layer.bias"][3] += 1e-3
            try:
                own.load_state(state)
            except Exception as error:
                return first, str(error)
        return None

    ended = ranks.together(2, action)
    torch.manual_seed(0)
    expected = Net().layer.weight.sum().item()
    assert [rank.value[0] for rank in ended] == [expected] * 2
    assert all("weights of rank 1 are not those of rank 0" in rank.value[1] for rank in ended)


def test_the_seed_of_rank_0_is_that_of_one_process():
    assert rank_seed(7, 0) == 7
    assert len({rank_seed(seed, rank) for seed in (7, 8) for rank in range(64)}) == 128 - 0
    assert all(0 <= rank_seed(7, rank) < 2**63 for rank in range(8))


def test_the_world_sums_and_tells():
    def action(rank):
        with joined() as world:
            assert (world.rank, world.size, world.is_main, world.backend) == (rank, 3, rank == 0, "gloo")
            told = [
                world.tell("a", {"x": [1, None]} if rank == 0 else "not looked at"),
                world.tell("a", rank),
            ]
            began = time.monotonic()
            with world.main_first("slow", lambda: None):
                if rank == 0:
                    time.sleep(0.5)
                waited = time.monotonic() - began
            return told, world.total([rank, 0.5, 2.0**40]), waited > 0.4

    for ended in ranks.together(3, action):
        assert ended.value == ([{"x": [1, None]}, 0], [3.0, 1.5, 3 * 2.0**40], True)


def test_waiting_for_rank_0_can_be_left():
    def action(rank):
        class Left(Exception):
            pass

        def poll():
            raise Left

        with joined() as world:
            if rank == 0:
                time.sleep(0.3)
                return
            world.tell("never", poll=poll)
        return

    assert [ended.error for ended in ranks.together(2, action)] == ["", "Left"]


@pytest.mark.parametrize("missing", ["RANK", "MASTER_PORT"])
def test_half_a_place_is_an_error(monkeypatch, missing):
    from protolith.errors import UsageError

    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(UsageError, match=missing), joined():
        pass


def test_alone_there_is_no_group():
    assert "RANK" not in os.environ
    with joined() as world:
        assert (world.size, world.total([1.5]), world.tell("x", 3)) == (1, [1.5], 3)
