"""Held-out loss: the same rows in the same order every time, with no effect on training."""

from __future__ import annotations

import math
from collections.abc import Iterable

from protolith.data.loader import Batch
from protolith.distributed.engine import Engine
from protolith.training.stop import StopFlag


def perplexity(loss: float) -> float:
    """exp(loss); ``inf`` when that is beyond a float, ``nan`` for nan."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def validate(engine: Engine, batches: Iterable[Batch], stop: StopFlag) -> float:
    """Mean loss over every target of the held-out rows, each token weighing the same.

    Raises:
        StopRequested: a stop came in the middle; a part of the set is no validation loss.
    """
    loss_sum, num_targets = 0.0, 0
    for batch in batches:
        stop.agree()
        stop.raise_if_requested()
        loss_sum += engine.evaluate(batch.inputs, batch.targets)
        num_targets += batch.num_targets
    return loss_sum / max(engine.total([num_targets]), 1)
