"""One process, one device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from protolith.distributed.engine import EngineState, StepOutcome
from protolith.distributed.loading import check_fit, fill, room_for
from protolith.errors import CheckpointError

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The arithmetic of the model at "fp32", "bf16" or "fp16"."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_AUTOCAST[precision])


class SingleEngine:
    """The plain engine: the reference that all others are compared with.

    Args:
        module: the bare transformers model, fp32 weights; its names are the names in checkpoints.
        loss: callable module (perhaps compiled) around ``module``: ``loss(inputs, targets)`` is the
            sum of token losses, fp32 scalar.
        optimizer: over the parameters of ``module``.
        precision: "fp32", "bf16" or "fp16" (autocast; weights and moments stay fp32).
        max_grad_norm: 0 turns clipping off.
    """

    #: of ``full_weights`` and ``whole``: every rank must come, whoever needs the result
    together = False

    def __init__(
        self,
        module: nn.Module,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        precision: str,
        max_grad_norm: float,
    ) -> None:
        self.module = module
        self.loss = loss
        self.optimizer = optimizer
        self.device = device
        self.precision = precision
        self.max_grad_norm = max_grad_norm
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self._parameters = [p for p in module.parameters() if p.requires_grad]

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
        with autocast(self.device, self.precision):
            loss_sum = self.loss(*batch)
        self.scaler.scale(loss_sum / num_targets).backward()
        return loss_sum.detach()  # type: ignore[no-any-return]

    def total(self, values: list[Tensor] | list[float]) -> float:
        return sum(float(value) for value in values)

    @torch.no_grad()
    def evaluate(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor | None = None) -> float:
        was_training = self.module.training
        self.module.eval()
        self.loss.eval()
        try:
            with autocast(self.device, self.precision):
                return float(self.loss(*self._move(inputs_BT, targets_BT, positions_BT)))
        finally:
            self.module.train(was_training)
            self.loss.train(was_training)

    def step(self, learning_rate: float, *, apply: bool) -> StepOutcome:
        self.scaler.unscale_(self.optimizer)
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm_tensor = torch.nn.utils.get_total_norm(grads)
        norm = float(norm_tensor)
        finite = math.isfinite(norm)
        applied = apply and finite
        if applied:
            if self.max_grad_norm > 0:
                torch.nn.utils.clip_grads_with_norm_(self._parameters, self.max_grad_norm, norm_tensor)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.scaler.step(self.optimizer)
        if self.scaler.is_enabled():
            if not applied:
                self.scaler.step(self.optimizer)  # records the overflow; does not update
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        overflow = self.scaler.is_enabled() and apply and not finite
        return StepOutcome(grad_norm=norm, applied=applied, scale_overflow=overflow)

    def loss_scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler.is_enabled() else 1.0

    def state(self) -> EngineState:
        optimizer = {}
        for name, parameter in self._named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                optimizer[f"{key}/{name}"] = _copy(value)
        return EngineState(
            weights=self.full_weights(),
            optimizer=optimizer,
            extra={"scaler": self.scaler.state_dict()},
            rng=self._random_state(),
        )

    def _random_state(self) -> dict[str, Tensor]:
        rng = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return rng

    def load_state(self, state: EngineState) -> None:
        self._load_weights(state.weights)
        self._load_optimizer(state.optimizer)
        if self.scaler.is_enabled() and state.extra.get("scaler"):
            self.scaler.load_state_dict(state.extra["scaler"])
        torch.set_rng_state(state.rng["cpu"])
        if self.device.type == "cuda" and "cuda" in state.rng:
            torch.cuda.set_rng_state(state.rng["cuda"], self.device)

    def whole(self) -> AbstractContextManager[None]:
        """Inside, parts of the module can be called by themselves, as they are here always."""
        return nullcontext()

    def full_weights(self) -> dict[str, Tensor]:
        weights = {name: _copy(p.data) for name, p in self._named_parameters()}
        for name, buffer in self._saved_buffers():
            weights[name] = _copy(buffer)
        return weights

    def _named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        return self.module.named_parameters()  # a tied tensor comes once, under its first name

    def _saved_buffers(self) -> Iterable[tuple[str, Tensor]]:
        kept = self.module.state_dict()
        return ((name, buffer) for name, buffer in self.module.named_buffers() if name in kept)

    def _load_weights(self, weights: Mapping[str, Tensor]) -> None:
        own = dict(self._named_parameters()) | dict(self._saved_buffers())
        check_fit(own, weights)
        fill(own, weights)

    def _load_optimizer(self, saved: Mapping[str, Tensor]) -> None:
        self.optimizer.state.clear()
        on_device = {
            parameter: bool(group.get("fused") or group.get("capturable"))
            for group in self.optimizer.param_groups
            for parameter in group["params"]
        }
        known = dict(self._named_parameters())
        room: dict[str, Tensor] = {}
        for full_name in saved:
            key, name = full_name.split("/", 1)
            if name not in known:
                raise CheckpointError(f"the optimizer state names a parameter this model lacks: {name}")
            parameter = known[name]
            value = room_for(saved, full_name, parameter, counts_on_device=on_device.get(parameter, False))
            self.optimizer.state[parameter][key] = room[full_name] = value
        fill(room, saved)

    def _move(self, *tensors: Tensor | None) -> list[Tensor]:
        """To the device; what is None is left out."""
        return [tensor.to(self.device, non_blocking=True) for tensor in tensors if tensor is not None]


def _copy(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()
