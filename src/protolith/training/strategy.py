"""Which engine a run has: what ``trainer.strategy`` says, or what fits for ``auto``."""

from __future__ import annotations

import os

import torch

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.distributed.fsdp import Sharding
from protolith.distributed.machine import free_memory
from protolith.distributed.world import World
from protolith.units import format_bytes

#: Of the free memory that the plan's rough estimate may fill before ``auto`` shards.
_ROOM = 0.8
#: What fsdp cannot do.
_NOT_CUT = ("muon", "fp16")


def choose(config: TrainConfig, plan: Plan, world: World) -> tuple[str, str]:
    """(one, ddp or fsdp; the sentence that says why). Rank 0's free memory decides for all."""
    wanted = config.trainer.strategy
    if world.size == 1:
        return "one", "one process"
    if wanted == "ddp":
        return "ddp", "ddp, each with the whole model"
    if wanted == "fsdp":
        return "fsdp", f"fsdp, the model in shards over {world.size} processes"
    unable = [name for name in (config.trainer.optimizer, config.trainer.mixed_precision) if name in _NOT_CUT]
    if unable:
        return "ddp", f"ddp (auto: fsdp knows no {unable[0]}), each with the whole model"
    free = world.tell("free memory", _free(world))
    if free is None:
        return "ddp", f"ddp (auto: {world.size} processes, free memory unknown), each with the whole model"
    need = f"about {format_bytes(plan.memory_bytes)} of {format_bytes(free)} free memory"
    if plan.memory_bytes <= _ROOM * free:
        return "ddp", f"ddp (auto: {world.size} processes, {need}), each with the whole model"
    return "fsdp", f"fsdp (auto: the whole model would need {need}), in shards over {world.size} processes"


def _free(world: World) -> int | None:
    """Of this rank's device; the ranks of a machine without GPUs share its memory."""
    if world.device.type == "cuda":
        return int(torch.cuda.mem_get_info(world.device)[0])
    free = free_memory()
    return None if free is None else free // int(os.environ.get("LOCAL_WORLD_SIZE", world.size))


def sharding_of(config: TrainConfig) -> Sharding:
    """The ``fsdp`` section."""
    section = config.fsdp
    return Sharding(
        hybrid=section.get("shard", "full") == "hybrid",
        cpu_offload=bool(section.get("cpu_offload", False)),
        reshard_after_forward=bool(section.get("reshard_after_forward", True)),
    )
