"""Which process this is among how many, and the device it computes on."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class World:
    """One process's place. ``rank`` counts from 0; ``device`` is where its tensors live."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def single_process() -> World:
    """The world of one process: the first GPU, or the CPU."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return World(rank=0, size=1, device=device)


def device_name(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 arithmetic is done by hardware here. Emulated, it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            flags = next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:
        return True
    return not flags or any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))
