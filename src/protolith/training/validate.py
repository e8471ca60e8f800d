"""Held-out loss, by set and over all: the same rows in the same order each time, no effect on training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from protolith.data.loader import Batch
from protolith.distributed.engine import Engine
from protolith.training.stop import StopFlag


def perplexity(loss: float) -> float:
    """exp(loss); ``inf`` when that is beyond a float, ``nan`` for nan."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def validate(engine: Engine, sets: Mapping[str, Iterable[Batch]], stop: StopFlag) -> dict[str, float]:
    """Mean loss over every target of all held-out rows, each token weighing the same, as ``val/loss``; where
    there are several sets also that of each, as ``val/<name>/loss``.

    Raises:
        StopRequested: a stop came in the middle; a part of a set is no validation loss.
    """
    numbers: dict[str, float] = {}
    loss_sum, num_targets = 0.0, 0.0
    for name, batches in sets.items():
        set_sum, set_targets = 0.0, 0
        for batch in batches:
            stop.agree()
            stop.raise_if_requested()
            set_sum += engine.evaluate(batch.inputs, batch.targets, batch.positions)
            set_targets += batch.num_targets
        all_targets = engine.total([set_targets])
        if len(sets) > 1:
            numbers[f"val/{name}/loss"] = set_sum / max(all_targets, 1)
        loss_sum, num_targets = loss_sum + set_sum, num_targets + all_targets
    loss = loss_sum / max(num_targets, 1)
    return {"val/loss": loss, "val/perplexity": perplexity(loss), **numbers}
