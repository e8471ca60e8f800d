"""Activation checkpointing: less memory for one more forward pass."""

from __future__ import annotations

from typing import Any

from torch import nn

from protolith.errors import InvalidValueError, ModelError

ACTIVATION_CHECKPOINTING = ("none", "full")


def enable_activation_checkpointing(module: nn.Module, setting: str) -> None:
    """``full``: keep only each layer's input and compute the layer again in the backward pass. Loss and
    gradients stay the same, dropout included (random states are restored). ``none`` turns it off.

    Raises:
        InvalidValueError: unknown setting.
        ModelError: the architecture cannot do it.
    """
    if setting not in ACTIVATION_CHECKPOINTING:
        raise InvalidValueError(
            f"unknown activation_checkpointing {setting!r}",
            where="model.activation_checkpointing",
            hint=f"one of {', '.join(ACTIVATION_CHECKPOINTING)}",
        )
    if setting == "none":
        if _is_on(module):
            _call(module, "disable")
        return
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{type(module).__name__} does not support activation checkpointing",
            where="model.activation_checkpointing",
            hint="set it to none",
        )
    _call(module, "enable", {"use_reentrant": False})


def _is_on(module: nn.Module) -> bool:
    return any(getattr(part, "gradient_checkpointing", False) for part in module.modules())


def _call(module: nn.Module, verb: str, *arguments: Any) -> None:
    """Transformers renamed ``gradient_checkpointing_*`` to ``activation_checkpointing_*`` in version 5."""
    method = getattr(module, f"activation_checkpointing_{verb}", None)
    (method or getattr(module, f"gradient_checkpointing_{verb}"))(*arguments)
