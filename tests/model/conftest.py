"""Tiny models, made as folders with a config.json, as users have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {**SMALL, "head_dim": 16, "layer_types": ["full_attention"] * 2},
    "llama": {**SMALL, "head_dim": 8},
    "gemma2": {
        **SMALL,
        "head_dim": 8,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": None,
        "query_pre_attn_scalar": 8,
        "tie_word_embeddings": True,
    },
    "granite": {**SMALL, "logits_scaling": 8.0},
    "cohere": {**SMALL, "logit_scale": 0.0625, "tie_word_embeddings": True},
    "phi": {**SMALL, "num_key_value_heads": 4},
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """``folder("qwen3", tie_word_embeddings=True)``: a directory that holds only config.json."""

    def make(kind: str = "qwen3", **changes: Any) -> Path:
        values = {"model_type": kind, "torch_dtype": "bfloat16", **KINDS.get(kind, SMALL), **changes}
        target = tmp_path / f"{kind}-{len(list(tmp_path.iterdir()))}"
        target.mkdir()
        (target / "config.json").write_text(json.dumps(values))
        return target

    return make


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
