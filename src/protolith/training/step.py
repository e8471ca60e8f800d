"""One optimizer step over one global batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protolith.data.loader import StepBatches
from protolith.distributed.engine import Engine


@dataclass(frozen=True)
class StepResult:
    """loss: mean over the targets of the whole global batch. grad_norm: before clipping."""

    loss: float
    grad_norm: float
    applied: bool
    scale_overflow: bool

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def optimizer_step(engine: Engine, batches: StepBatches, learning_rate: float) -> StepResult:
    """Gradients of all micro-batches, weighted by their targets, then one update.

    A loss or gradient that is not finite leaves weights and moments untouched.
    """
    num_targets = max(batches.num_targets, 1)
    end = len(batches.micro_batches) - 1
    sums = [
        engine.forward_backward(batch.inputs, batch.targets, num_targets, batch.positions, last=index == end)
        for index, batch in enumerate(batches.micro_batches)
    ]
    loss = engine.total(sums) / num_targets  # the one place that waits for the device
    outcome = engine.step(learning_rate, apply=math.isfinite(loss))
    return StepResult(loss, outcome.grad_norm, outcome.applied, outcome.scale_overflow)
