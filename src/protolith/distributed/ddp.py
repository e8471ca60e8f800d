"""Many processes, each with the whole model: every one takes its share of a step's rows.

Gradients are *summed* over ranks, not averaged: each rank divides its loss by the number of targets of the
whole global batch, which all know beforehand, so the sum is the gradient of the batch and a token weighs the
same on whichever rank it lies. torch's DistributedDataParallel does the work, bucket by bucket while the
backward pass still runs; a communication hook of ours replaces its mean.

What is the same on all ranks, and why: weights (rank 0's are sent out at the start, and checked by a sum of
their bits, again after a checkpoint was read), gradients (one sum, sent to all), and with them the norm, what
is clipped, whether a step is finite, the loss scale and the moments. What differs: random states; rank 0's is
that of a run in one process.

Against one process: the order of adding differs. With one micro-batch a rank, two ranks add the same two
gradients as one process with accumulation 2, and every bit agrees (where the arithmetic of one process does
not depend on its threads); otherwise numbers agree to about 1e-6.

Cost: a step sends each gradient once around. Memory: that of one process; gradients live in the buckets.
"""

from __future__ import annotations

import hashlib
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from protolith.distributed.engine import EngineState
from protolith.distributed.single import SingleEngine, autocast
from protolith.distributed.world import World
from protolith.errors import RunFailedError

#: Configs of mixtures of experts say how many there are under one of these names.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


class DdpEngine(SingleEngine):
    """Arguments as of ``SingleEngine``; ``world`` has an open process group."""

    def __init__(
        self,
        module: nn.Module,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        world: World,
        precision: str,
        max_grad_norm: float,
    ) -> None:
        super().__init__(
            module, loss, optimizer, device=world.device, precision=precision, max_grad_norm=max_grad_norm
        )
        self.world = world
        config = getattr(module, "config", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the name that torch 2.6 knows is an old one now
            self._shared = DistributedDataParallel(
                loss,
                broadcast_buffers=False,  # constants of the architecture, made alike everywhere
                gradient_as_bucket_view=True,
                find_unused_parameters=any(getattr(config, name, None) for name in _EXPERTS),
            )
        self._shared.register_comm_hook(None, _summed)
        check_same_weights(self._parameters, self.world)

    def forward_backward(
        self,
        inputs_BT: Tensor,
        targets_BT: Tensor,
        num_targets: int,
        positions_BT: Tensor | None = None,
        *,
        last: bool = True,
    ) -> Tensor:
        batch = self._move(inputs_BT, targets_BT, positions_BT)
        with nullcontext() if last else self._shared.no_sync():
            with autocast(self.device, self.precision):
                loss_sum = self._shared(*batch)
            self.scaler.scale(loss_sum / num_targets).backward()
        return loss_sum.detach()

    def evaluate(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor | None = None) -> float:
        return self.total([super().evaluate(inputs_BT, targets_BT, positions_BT)])

    def total(self, values: list[Tensor] | list[float]) -> float:
        return self.world.total([super().total(values)])[0]

    def state(self) -> EngineState:
        """Weights and moments on rank 0 alone, random states of all; every rank must come here."""
        own = self._random_state()
        states = {name: self.world.gather(state) for name, state in sorted(own.items())}
        if not self.world.is_main:
            return EngineState(weights={}, optimizer={})
        state = super().state()
        for name, by_rank in states.items():
            state.rng.update({f"{name}/{rank}": by_rank[rank] for rank in range(1, len(by_rank))})
        return state

    def load_state(self, state: EngineState) -> None:
        super().load_state(state)
        if self.world.rank > 0:
            set_rank_random_state(state.rng, self.world.rank, self.device)
        check_same_weights(self._parameters, self.world)


def set_rank_random_state(rng: dict[str, Tensor], rank: int, device: torch.device) -> None:
    """Its own state; a rank that was not there when it was saved draws one from rank 0's."""
    if f"cpu/{rank}" not in rng:
        torch.manual_seed(_seed_from(rng["cpu"].numpy().tobytes(), rank))
        return
    torch.set_rng_state(rng[f"cpu/{rank}"])
    if device.type == "cuda":
        if f"cuda/{rank}" in rng:
            torch.cuda.set_rng_state(rng[f"cuda/{rank}"], device)
        else:
            torch.cuda.manual_seed(_seed_from(rng[f"cpu/{rank}"].numpy().tobytes(), rank))


def check_same_weights(parameters: list[nn.Parameter], world: World) -> None:
    """A sum over the bits of each parameter must be the same everywhere."""
    sums = torch.stack(
        [p.detach().contiguous().view(torch.uint8).sum(dtype=torch.int64) for p in parameters]
    ).cpu()
    by_rank = world.gather(sums)
    for rank, theirs in enumerate(by_rank):
        if not torch.equal(theirs, by_rank[0]):
            raise RunFailedError(
                f"the weights of rank {rank} are not those of rank 0",
                hint="do all machines read the same model folder and the same checkpoint?",
            )


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's dropout: rank 0 has that of a run in one process."""
    return seed if rank == 0 else _seed_from(str(seed).encode(), rank)


def _seed_from(what: bytes, rank: int) -> int:
    digest = hashlib.blake2b(what + f"/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _summed(_, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with types: none here
    """DDP's communication hook: the sum of the ranks' gradients."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
