"""Many processes, each with a part of every tensor: torch's FSDP2.

Weights, gradients and moments are cut along their first dimension, a piece to each rank. A block's weights
are gathered when it computes and let go of again; what lies outside the blocks (embeddings, the last norm,
the head) is one more unit, whole for the length of a forward and backward pass, so that the chunked loss
finds the head's weight as a plain tensor and tied tensors stay one. Names do not change.

Gradients are *summed* over ranks, as in ``ddp.py``: the loss is multiplied by the number of ranks, which
FSDP's mean takes back. The norm is that of the whole gradient. With accumulation, gradients are reduced with
the last micro-batch only; until then each rank holds its own, whole.

State: gathered tensor by tensor to rank 0's CPU, never the model at once on one device. So a checkpoint is
that of any other engine, and each rank cuts its piece out of it when it comes back, however many there are.

What it does not do yet: fp16, compiling, Muon, offloading, sharded checkpoint files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from protolith.distributed.ddp import DdpEngine
from protolith.distributed.engine import EngineState, StepOutcome
from protolith.distributed.single import SingleEngine, autocast
from protolith.distributed.world import World
from protolith.errors import InvalidValueError, ModelError

_LOW = {"bf16": torch.bfloat16}


class FsdpEngine(DdpEngine):
    """Arguments as of ``DdpEngine``, but ``make_optimizer`` in place of an optimizer: it is called when the
    parameters are cut. ``loss`` is the bare ``LossModel``.

    Raises:
        ModelError: the blocks of the architecture cannot be found.
        InvalidValueError: fp16.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: nn.Module,
        make_optimizer: Callable[[], torch.optim.Optimizer],
        *,
        world: World,
        precision: str,
        max_grad_norm: float,
    ) -> None:
        if precision == "fp16":
            raise InvalidValueError(
                "fsdp and fp16 do not go together", where="trainer.mixed_precision", hint="use bf16"
            )
        mesh = init_device_mesh(world.device.type, (world.size,))
        policy = MixedPrecisionPolicy()
        if precision in _LOW:
            policy = MixedPrecisionPolicy(param_dtype=_LOW[precision], reduce_dtype=torch.float32)
        for block in blocks_of(module):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(loss, mesh=mesh, mp_policy=policy)
        SingleEngine.__init__(
            self,
            module,
            loss,
            make_optimizer(),
            device=world.device,
            precision=precision,
            max_grad_norm=max_grad_norm,
        )
        self.world = world
        self._check_same_weights()

    def forward_backward(
        self,
        inputs_BT: Tensor,
        targets_BT: Tensor,
        num_targets: int,
        positions_BT: Tensor | None = None,
        *,
        last: bool = True,
    ) -> Tensor:
        self.loss.set_requires_gradient_sync(last)  # type: ignore[operator]
        with autocast(self.device, self.precision):
            loss_sum = self.loss(*self._move(inputs_BT, targets_BT, positions_BT))
        (loss_sum / num_targets * self.world.size).backward()
        return loss_sum.detach()  # type: ignore[no-any-return]

    def evaluate(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor | None = None) -> float:
        try:
            return super().evaluate(inputs_BT, targets_BT, positions_BT)
        finally:
            # What a backward pass would do: until then the outer unit's parameters are the gathered ones.
            self.loss.reshard()  # type: ignore[operator]

    def step(self, learning_rate: float, *, apply: bool) -> StepOutcome:
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = float(_whole(torch.nn.utils.get_total_norm(grads)))
        applied = apply and math.isfinite(norm)
        if applied:
            if 0 < self.max_grad_norm < norm:
                factor = self.max_grad_norm / (norm + 1e-6)
                for grad in grads:
                    grad.mul_(factor)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutcome(grad_norm=norm, applied=applied)

    def full_weights(self) -> dict[str, Tensor]:
        """On rank 0; every rank must come here, and the others get nothing."""
        return self._gathered([*self._named_parameters(), *self._saved_buffers()])

    def _moments(self) -> dict[str, Tensor]:
        return self._gathered(
            (f"{key}/{name}", value)
            for name, parameter in self._named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        )

    def state(self) -> EngineState:
        states = self._random_states()
        weights, moments = self.full_weights(), self._moments()
        if not self.world.is_main:
            return EngineState(weights={}, optimizer={})
        return EngineState(weights, moments, extra={"scaler": self.scaler.state_dict()}, rng=states)

    def _gathered(self, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        found = {}
        for name, value in named:
            whole = _whole(value.detach())
            if self.world.is_main:
                found[name] = whole.to("cpu", copy=True).contiguous()
        return found

    def _put(self, tensor: Tensor, value: Tensor) -> None:
        """A rank's piece of ``value`` into ``tensor``."""
        if isinstance(tensor, DTensor):
            piece = distribute_tensor(
                value.to(self.device), tensor.device_mesh, tensor.placements, src_data_rank=None
            )
            tensor.to_local().copy_(piece.to_local())
        else:
            tensor.copy_(value)

    def _moment_like(self, parameter: nn.Parameter, value: Tensor) -> Tensor:
        if value.ndim == 0 or not isinstance(parameter.data, DTensor):
            return super()._moment_like(parameter, value)
        return distribute_tensor(
            value.to(self.device), parameter.data.device_mesh, parameter.data.placements, src_data_rank=None
        )

    def _check_same_weights(self) -> None:
        """Ranks hold different pieces: their sums say nothing."""


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The blocks of an architecture: the longest list of modules of one class.

    Raises:
        ModelError: there is none.
    """
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList) and len(part)]
    alike = [part for part in lists if len({type(block) for block in part}) == 1]
    if not alike:
        raise ModelError(
            f"{type(module).__name__} has no list of like blocks to cut",
            where="trainer.strategy",
            hint="use ddp",
        )
    return list(max(alike, key=lambda part: sum(p.numel() for p in part.parameters())))


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
