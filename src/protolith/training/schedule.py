"""The learning rate as a pure function of the step.

Step s counts from 1. With w warmup steps the rate rises linearly and reaches its peak *at* step w
(at step 1 without warmup), so the first step never has rate 0 by accident. Schedules that decay reach
``min_ratio * peak`` *at* the last step of their decay. Nothing here has state: resuming needs only s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A rate for each step.

    Args:
        name: cosine, linear, constant, constant_with_warmup, wsd or inverse_sqrt.
        peak: the highest rate.
        total_steps: optimizer steps of the whole run.
        warmup_steps: 0 for none; ``constant`` ignores it (the plan warns).
        decay_steps: how long the decay takes. wsd: the last steps of the run. cosine and linear:
            counted from the end of warmup; afterwards the rate stays at its minimum.
        min_ratio: lowest rate as a share of the peak.
    """

    name: str
    peak: float
    total_steps: int
    warmup_steps: int = 0
    decay_steps: int | None = None
    min_ratio: float = 0.0

    def __call__(self, step: int) -> float:
        if self.name == "constant":
            return self.peak
        top = max(self.warmup_steps, 1)
        if step < top:
            return self.peak * step / top
        return self.peak * _SHAPES[self.name](self, step, top)


def _progress(schedule: Schedule, step: int, top: int) -> float:
    span = schedule.decay_steps if schedule.decay_steps is not None else schedule.total_steps - top
    return min(1.0, (step - top) / span) if span > 0 else float(step > top)


def _cosine(schedule: Schedule, step: int, top: int) -> float:
    wave = 0.5 * (1.0 + math.cos(math.pi * _progress(schedule, step, top)))
    return schedule.min_ratio + (1.0 - schedule.min_ratio) * wave


def _linear(schedule: Schedule, step: int, top: int) -> float:
    return 1.0 - (1.0 - schedule.min_ratio) * _progress(schedule, step, top)


def _flat(schedule: Schedule, step: int, top: int) -> float:
    return 1.0


def _wsd(schedule: Schedule, step: int, top: int) -> float:
    length = schedule.decay_steps or 0
    begin = max(schedule.total_steps - length, top)
    if step <= begin or length == 0:
        return 1.0
    done = min(1.0, (step - begin) / (schedule.total_steps - begin))
    return 1.0 - (1.0 - schedule.min_ratio) * done


def _inverse_sqrt(schedule: Schedule, step: int, top: int) -> float:
    return max(math.sqrt(top / step), schedule.min_ratio)


_SHAPES: dict[str, Callable[[Schedule, int, int], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "constant_with_warmup": _flat,
    "wsd": _wsd,
    "inverse_sqrt": _inverse_sqrt,
}
