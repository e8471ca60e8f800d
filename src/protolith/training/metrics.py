"""From clock and counters to the numbers of one logged step, under their public names."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from protolith.training.step import StepResult
from protolith.training.validate import perplexity


@dataclass
class Clock:
    """Durations of the steps since the last log line, in monotonic seconds.

    ``time/step`` is their mean with waiting for data, ``time/data`` the mean wait alone. Evaluation and
    saving stand outside.
    """

    steps: int = 0
    tokens: int = 0
    step_s: float = 0.0
    data_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        self._since = time.perf_counter()

    def got_data(self) -> None:
        self.data_s += time.perf_counter() - self._since

    def finished_step(self, num_tokens: int) -> None:
        now = time.perf_counter()
        self.step_s += now - self._since
        self._since = now
        self.steps += 1
        self.tokens += num_tokens

    def take(self) -> dict[str, float]:
        steps, seconds = max(self.steps, 1), max(self.step_s, 1e-9)
        numbers = {
            "perf/throughput": self.tokens / seconds,
            "time/step": self.step_s / steps,
            "time/data": self.data_s / steps,
        }
        self.steps, self.tokens, self.step_s, self.data_s = 0, 0, 0.0, 0.0
        return numbers


def peak_memory_gib(device: torch.device) -> float:
    """Highest memory so far: of the GPU's allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30


def step_numbers(
    result: StepResult,
    *,
    learning_rate: float,
    tokens: int,
    epoch: float,
    clock: Clock,
    device: torch.device,
    flops_per_token: float | None,
    peak_flops: float | None,
) -> dict[str, Any]:
    """The training line of ``metrics.jsonl``. MFU only where the device's peak is known."""
    numbers: dict[str, Any] = {
        "loss/mean": result.loss,
        "perplexity": perplexity(result.loss),
        "optim/lr": learning_rate,
        "optim/grad_norm": result.grad_norm,
        "progress/num_tokens": tokens,
        "progress/epoch": epoch,
        **clock.take(),
        "perf/peak_memory": peak_memory_gib(device),
    }
    if flops_per_token and peak_flops:
        numbers["perf/mfu"] = numbers["perf/throughput"] * flops_per_token / peak_flops
    return numbers
