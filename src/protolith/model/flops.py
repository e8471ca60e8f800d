"""FLOPs of a built model, and what its device could do at best: the two sides of MFU."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig

from protolith.formats import hf_config


def flops_per_token(config: PretrainedConfig, seq_len: int) -> float:
    """Training FLOPs per token of the model of ``config``; see ``formats.hf_config.flops_per_token``."""
    values = config.to_dict()
    for standard, own in getattr(config, "attribute_map", {}).items():
        values.setdefault(standard, values.get(own))
    return hf_config.flops_per_token(hf_config.read_dims(values), seq_len)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Peak FLOP/s of ``device`` at ``precision`` (fp32, bf16, fp16); None where no data sheet says (all
    CPUs)."""
    if device.type != "cuda":
        return None
    return hf_config.peak_flops(torch.cuda.get_device_name(device), precision=precision)
