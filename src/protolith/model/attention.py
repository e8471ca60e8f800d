"""Which attention kernel a model uses here: ``auto | eager | sdpa | flash | flex``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from protolith.errors import InvalidValueError, MissingExtraError

ATTENTIONS = ("auto", "eager", "sdpa", "flash", "flex")
_NAMES = {"eager": "eager", "sdpa": "sdpa", "flash": "flash_attention_2", "flex": "flex_attention"}


@dataclass(frozen=True)
class Attention:
    """``implementation`` is transformers' name for it; ``note`` says what was chosen and why, or is empty."""

    implementation: str
    note: str = ""


def supported_kernels(model_class: type) -> frozenset[str]:
    """Which of our names a transformers model class can be run with. The plain way always works."""
    flags = {"sdpa": "_supports_sdpa", "flash": "_supports_flash_attn", "flex": "_supports_flex_attn"}
    return frozenset({"eager"} | {name for name, flag in flags.items() if getattr(model_class, flag, False)})


def resolve_attention(
    setting: str,
    device: torch.device,
    *,
    precision: str = "fp32",
    supported: frozenset[str] = frozenset(_NAMES),
) -> Attention:
    """The kernel for ``setting`` on ``device``.

    ``auto`` is flash attention where it is installed and works (a GPU, 16-bit training), else torch's own
    scaled dot product attention, else, for architectures that have neither, the plain way. A kernel asked for
    by name is used or refused, never replaced.

    Args:
        supported: what the architecture can be run with, see ``supported_kernels``.

    Raises:
        InvalidValueError: unknown name, one that this architecture lacks, flash attention without a GPU or
            with fp32, or flex attention without a GPU.
        MissingExtraError: flash attention is not installed.
    """
    where = "model.attention"
    if setting not in ATTENTIONS:
        raise InvalidValueError(
            f"unknown attention {setting!r}", where=where, hint=f"one of {', '.join(ATTENTIONS)}"
        )
    can_flash = device.type == "cuda" and precision in ("bf16", "fp16")
    installed = importlib.util.find_spec("flash_attn") is not None
    if setting == "auto":
        order = ("flash", "sdpa", "eager") if can_flash and installed else ("sdpa", "eager")
        chosen = next(name for name in order if name in supported)
        return Attention(_NAMES[chosen], f"attention auto: {chosen} on {device.type}")
    if setting not in supported:
        raise InvalidValueError(
            f"this architecture has no {setting} attention",
            where=where,
            hint=f"it has {', '.join(sorted(supported))}",
        )
    if setting == "flash" and not can_flash:
        raise InvalidValueError(
            f"flash attention needs a GPU and 16-bit training; this is {device.type} with {precision}",
            where=where,
            hint="use attention: auto",
        )
    if setting == "flex" and device.type == "cpu":
        raise InvalidValueError(
            "flex attention has no backward pass on a CPU", where=where, hint="use attention: auto"
        )
    if setting == "flash" and not installed:
        raise MissingExtraError(
            "flash attention is not installed", where=where, hint="pip install flash-attn"
        )
    return Attention(_NAMES[setting])
