"""Many processes that share one model: each holds its shard of weights, gradients and moments.

torch's FSDP2 does the work. Units are the transformer blocks and, around them, the root: everything else,
embeddings and head (tied or not) among it. The root is the loss model, not the transformers module, because
the loss uses the weight of the head itself: it is whole while the root's forward and backward pass run.

A unit's weights are put together before it is used, in bf16 under ``bf16`` (masters and moments stay fp32),
and its gradients are *summed* over ranks in fp32, as under DDP: see there why a sum. Between micro-batches
gradients stay whole on each rank and are summed with the last.

Names: modules are not wrapped, so the names of the weights are transformers' own. ``state`` copies each
rank's shards to its CPU memory, and all ranks write theirs; any engine reads them. ``full_weights`` puts one
tensor together at a time and rank 0 copies it to its CPU memory. No device ever holds the whole model.

What it does not do: fp16 (its loss scale would need to know the overflows of every shard).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from protolith.distributed.ddp import check_same_weights, set_rank_random_state
from protolith.distributed.engine import EngineState, StepOutcome
from protolith.distributed.single import SingleEngine
from protolith.distributed.world import World
from protolith.errors import InvalidValueError


@dataclass(frozen=True)
class Sharding:
    """``hybrid``: shards within a machine, copies of them between machines."""

    hybrid: bool = False
    cpu_offload: bool = False
    reshard_after_forward: bool = True


def blocks(module: nn.Module) -> list[nn.Module]:
    """The transformer blocks: the members of the longest list of layers."""
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def shard(loss: nn.Module, world: World, *, precision: str, sharding: Sharding) -> None:
    """Shard in place, block by block: a device holds its shards and one whole block at a time.

    Call it before the optimizer is made: parameters are replaced.

    Raises:
        InvalidValueError: fp16.
        RunFailedError: ranks have different weights.
    """
    if precision == "fp16":
        raise InvalidValueError(
            "strategy fsdp does not train in fp16",
            where="trainer.mixed_precision",
            hint="use bf16 or fp32, or strategy ddp",
        )
    check_same_weights(list(loss.parameters()), world)
    mesh = _mesh(world, hybrid=sharding.hybrid)
    half = precision == "bf16"
    mixed = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if half else {}
    offload = {"offload_policy": CPUOffloadPolicy()} if sharding.cpu_offload else {}
    units = blocks(loss)
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=sharding.reshard_after_forward, **mixed, **offload)
    fully_shard(loss, mesh=mesh, reshard_after_forward=False, **mixed, **offload)
    for unit in [*units, loss]:
        assert isinstance(unit, FSDPModule)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no other; the sum is what is wanted
    loss.to(world.device if not sharding.cpu_offload else torch.device("cpu"))


def _mesh(world: World, *, hybrid: bool) -> DeviceMesh:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    if not hybrid or world.size == local:
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    if world.size % local:
        raise InvalidValueError(
            f"{world.size} processes are not {local} on each machine",
            where="fsdp.shard",
            hint="start as many processes on each machine, or use shard: full",
        )
    return init_device_mesh(
        world.device.type, (world.size // local, local), mesh_dim_names=("copies", "shard")
    )


class FsdpEngine(SingleEngine):
    """Arguments as of ``SingleEngine``; ``loss`` went through ``shard``, the optimizer was made after."""

    together = True

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
        # Not autocast: the policy of the shards says what is computed in bf16.
        super().__init__(
            module, loss, optimizer, device=world.device, precision="fp32", max_grad_norm=max_grad_norm
        )
        self.world = world
        self.precision_of_units = precision
        assert isinstance(loss, FSDPModule)
        self._root: FSDPModule = loss
        self._cpu_mesh = _on_cpu(next(p.device_mesh for p in self._parameters if isinstance(p, DTensor)))

    def forward_backward(
        self,
        inputs_BT: Tensor,
        targets_BT: Tensor,
        num_targets: int,
        positions_BT: Tensor | None = None,
        *,
        last: bool = True,
    ) -> Tensor:
        self._root.set_requires_gradient_sync(last)
        return super().forward_backward(inputs_BT, targets_BT, num_targets, positions_BT, last=last)

    def evaluate(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor | None = None) -> float:
        try:
            return self.total([super().evaluate(inputs_BT, targets_BT, positions_BT)])
        finally:
            self._root.reshard()  # a backward pass would have done it

    def total(self, values: list[Tensor] | list[float]) -> float:
        return self.world.total([super().total(values)])[0]

    def step(self, learning_rate: float, *, apply: bool) -> StepOutcome:
        grads = [_local(p.grad) for p in self._parameters if p.grad is not None]
        norm = self._global_norm(grads)
        applied = apply and math.isfinite(norm)
        if applied:
            if 0 < self.max_grad_norm < norm + 1e-6:
                torch._foreach_mul_(grads, self.max_grad_norm / (norm + 1e-6))
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepOutcome(grad_norm=norm, applied=applied)

    def _global_norm(self, grads: list[Tensor]) -> float:
        """Over all shards; each of the copies of a shard is a part of its square."""
        own = float(torch.nn.utils.get_total_norm([grad for grad in grads if grad.numel()]))
        mesh = next(p.device_mesh for p in self._parameters if isinstance(p, DTensor))
        copies = mesh.size(0) if mesh.ndim == 2 else 1
        return math.sqrt(self.world.total([own * own])[0] / copies)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, the root's weights are whole, so that parts of the model can be called; all ranks enter."""
        self._root.unshard()
        try:
            yield
        finally:
            self._root.reshard()

    def state(self) -> EngineState:
        self._root.reshard()  # or the root's parameters are those put together, which have no moments
        own = self._random_state()
        states = {name: self.world.gather(state) for name, state in sorted(own.items())}
        rng = dict(own)
        for name, by_rank in states.items():
            rng.update({f"{name}/{rank}": by_rank[rank] for rank in range(1, len(by_rank))})
        weights = {name: self._copy(p) for name, p in self._named_parameters()}
        weights |= {name: self._copy(buffer) for name, buffer in self._saved_buffers()}
        optimizer = {
            f"{key}/{name}": self._copy(value)
            for name, parameter in self._named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return EngineState(weights, optimizer, {"scaler": self.scaler.state_dict()}, rng, sharded=True)

    def full_weights(self) -> dict[str, Tensor]:
        """On rank 0; the others help and get nothing."""
        self._root.reshard()
        gathered = [(name, self._gathered(p)) for name, p in self._named_parameters()]
        gathered += [(name, self._gathered(buffer)) for name, buffer in self._saved_buffers()]
        return {name: value for name, value in gathered if value is not None}

    def load_state(self, state: EngineState) -> None:
        self._root.reshard()
        super().load_state(state)
        if self.world.rank > 0:
            set_rank_random_state(state.rng, self.world.rank, self.device)

    def _copy(self, value: Tensor) -> Tensor:
        """Of this rank's shard, in CPU memory."""
        local = _local(value.detach()).to("cpu", copy=True).contiguous()
        if not isinstance(value, DTensor):
            return local
        return DTensor.from_local(
            local, self._cpu_mesh, value.placements, shape=value.shape, stride=value.stride()
        )

    def _gathered(self, value: Tensor) -> Tensor | None:
        """The whole tensor in rank 0's CPU memory; every rank comes here."""
        value = value.detach()
        if isinstance(value, DTensor):
            if value.device.type != value.device_mesh.device_type:  # offloaded; collectives are the device's
                value = DTensor.from_local(
                    value.to_local().to(self.device),
                    value.device_mesh,
                    value.placements,
                    shape=value.shape,
                    stride=value.stride(),
                )
            value = value.full_tensor()
        return value.to("cpu", copy=True).contiguous() if self.world.is_main else None


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _on_cpu(mesh: DeviceMesh) -> DeviceMesh:
    """The same places for tensors in CPU memory."""
    if mesh.device_type == "cpu":
        return mesh
    return init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=mesh.mesh_dim_names)
