"""All that the training loop knows of devices and parallelism: seven verbs.

An engine owns the module, its optimizer and the arithmetic of one step. Losses go in as *sums* over
tokens together with the number of targets of the whole global batch, so the result does not depend
on how a batch was split.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class StepOutcome:
    """What one optimizer step did. ``grad_norm`` is global and measured before clipping."""

    grad_norm: float
    applied: bool
    #: fp16 only: the loss scale was too high, the update was skipped and the scale lowered.
    scale_overflow: bool = False


@dataclass
class EngineState:
    """Everything of an engine that a checkpoint holds.

    ``weights``: name -> fp32 tensor, names as transformers gives them, tied tensors once.
    ``optimizer``: ``<moment>/<name>`` -> tensor. ``extra``: small JSON-able values. ``rng``: name -> bytes;
    of ranks above 0, ``<name>/<rank>``. ``sharded``: tensors are DTensors, every rank has its shards and
    all write them together; else rank 0 has whole tensors and writes them alone.
    """

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Tensor] = field(default_factory=dict)
    sharded: bool = False


class Engine(Protocol):
    """One process or many; the loop cannot tell."""

    #: ``full_weights`` and ``whole`` need every rank; else rank 0 may call them alone.
    together: bool

    def forward_backward(
        self,
        inputs_BT: Tensor,
        targets_BT: Tensor,
        num_targets: int,
        positions_BT: Tensor | None = None,
        *,
        last: bool = True,
    ) -> Tensor:
        """Add the gradient of ``sum of token losses / num_targets``.

        Args:
            positions_BT: from 0 in each document, where documents do not see each other.
            last: of this step: gradients of all ranks are summed with it.

        Returns the sum of this rank's token losses: an fp32 scalar on the device, not waited for.
        """

    def total(self, values: list[Tensor] | list[float]) -> float:
        """The sum of these scalars and of those of all other ranks; waits for the device."""

    def evaluate(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor | None = None) -> float:
        """Sum of token losses over the batches of all ranks, without gradients and with dropout off."""

    def step(self, learning_rate: float, *, apply: bool) -> StepOutcome:
        """Clip and update; with ``apply=False``, or a gradient that is not finite, only forget it."""

    def state(self) -> EngineState:
        """A copy on the CPU, safe to write while training goes on."""

    def load_state(self, state: EngineState) -> None:
        """Continue from a saved state, whatever engine saved it and on however many ranks."""

    def full_weights(self) -> dict[str, Tensor]:
        """All weights by transformers' names, fp32, on rank 0's CPU; every rank must come here."""

    def whole(self) -> AbstractContextManager[None]:
        """Inside, the module can be called by itself, to generate text."""
