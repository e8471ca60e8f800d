"""Is there room for the plan: on the disk for what it will write, in memory for what it will hold?"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from protolith.config.plan import Plan
from protolith.distributed.machine import free_memory
from protolith.errors import NoSpaceError
from protolith.units import format_bytes


def check_space(folder: Path, plan: Plan) -> str:
    """A warning when the run will need more than is free, "" when all is well.

    Raises:
        NoSpaceError: not even one checkpoint fits, so nothing of the run could be kept.
    """
    free = shutil.disk_usage(folder).free
    if free < plan.checkpoint_bytes:
        raise NoSpaceError(
            f"one checkpoint takes {format_bytes(plan.checkpoint_bytes)}, {format_bytes(free)} are free",
            where=str(folder),
            hint="free space, choose another output folder, or a smaller model",
        )
    if free < plan.disk_bytes:
        return (
            f"the run needs up to {format_bytes(plan.disk_bytes)} on disk and {format_bytes(free)} are free; "
            "set trainer.keep_last, or free space"
        )
    return ""


def check_memory(device: torch.device, plan: Plan) -> str:
    """A warning when the estimate is more than is free on ``device`` now, "" when all is well or unknown."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    if free is None or plan.memory_bytes <= free:
        return ""
    return (
        f"the run needs about {format_bytes(plan.memory_bytes)} of memory and {format_bytes(free)} are free; "
        "take fewer rows in a forward pass and accumulate more, shorten the rows, or checkpoint activations"
    )
