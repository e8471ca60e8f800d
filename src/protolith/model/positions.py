"""Rows against the positions a model knows, before the first step."""

from __future__ import annotations

from typing import Any

from protolith.errors import InvalidValueError


def check_row_length(hf_config: Any, seq_len: int) -> tuple[str, ...]:
    """Warnings about rows longer than ``max_position_embeddings``.

    With rotary positions such rows can be computed, but whoever uses the model later is told another limit.

    Raises:
        InvalidValueError: the architecture has a table of positions, and the row is longer than the table.
    """
    limit = getattr(hf_config, "max_position_embeddings", None)
    if not isinstance(limit, int) or seq_len <= limit:
        return ()
    hint = f"set model.overrides.max_position_embeddings to {seq_len}, or use shorter rows"
    rotary = any(hasattr(hf_config, name) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    if not rotary:
        raise InvalidValueError(
            f"rows of {seq_len} tokens are longer than the model's {limit} positions",
            where="data.max_seq_length",
            hint=hint,
        )
    return (
        f"rows of {seq_len} tokens are longer than the model's max_position_embeddings of {limit}; {hint}",
    )
