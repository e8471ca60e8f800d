"""What a config.json says of a model's size: dimensions, parameters, FLOPs per token. No torch.

Estimates for plans and for MFU. The exact number of parameters is the built module's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protolith.errors import ModelError

#: Names that older architectures (GPT-2, GPT-J, OPT, Falcon ...) use for the same dimension.
_NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "head_width": ("head_dim",),
    "intermediate": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
#: Architectures whose feed-forward part is two matrices; all others are counted with a gate (three).
_UNGATED = frozenset(
    {
        "gpt2",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "phi",
        "starcoder2",
        "codegen",
        "gpt_bigcode",
    }
)
#: What transformers takes when config.json does not say whether embedding and head are one tensor.
_TIED_BY_DEFAULT = frozenset(
    {
        "gpt2",
        "gpt_neo",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "gemma",
        "gemma2",
        "gemma3_text",
        "cohere",
        "cohere2",
        "gpt_bigcode",
    }
)


@dataclass(frozen=True)
class ModelDims:
    """Sizes of a dense decoder. ``head_width`` is that of one head; ``context`` 0 = not said."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocab: int
    tied: bool
    gated: bool
    context: int


def read_dims(config: Mapping[str, Any]) -> ModelDims:
    """Dimensions from the values of a config.json (after overrides).

    Raises:
        ModelError: width, layers, heads or vocabulary are missing or not whole numbers above 0.
    """
    kind = str(config.get("model_type", ""))
    found = {name: _whole(config, keys) for name, keys in _NAMES.items()}
    for name in ("hidden", "layers", "heads", "vocab"):
        if found[name] is None:
            raise ModelError(
                f"{_NAMES[name][0]} is missing or is not a whole number above 0", where="config.json"
            )
    hidden, layers, heads, vocab = (found[name] or 0 for name in ("hidden", "layers", "heads", "vocab"))
    gated = kind not in _UNGATED
    kv_heads = found["kv_heads"] or (1 if config.get("multi_query") is True else heads)
    return ModelDims(
        model_type=kind,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_width=found["head_width"] or hidden // heads,
        intermediate=found["intermediate"] or 4 * hidden,
        vocab=vocab,
        tied=bool(config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)),
        gated=gated,
        context=found["context"] or 0,
    )


def _whole(config: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def num_matrix_parameters(dims: ModelDims) -> int:
    """Parameters that take part in a matrix product for each token: everything but norms and the look-up of
    the embedding. The head counts, tied or not."""
    attention = dims.hidden * dims.head_width * (2 * dims.heads + 2 * dims.kv_heads)
    feed_forward = (3 if dims.gated else 2) * dims.hidden * dims.intermediate
    return dims.layers * (attention + feed_forward) + dims.hidden * dims.vocab


def num_parameters(dims: ModelDims) -> int:
    """Estimated number of parameters (tied tensors once): the matrices, the embedding, two norms a layer and
    one at the end. Biases, position tables and norms inside attention are left out: well under a per cent."""
    embedding = 0 if dims.tied else dims.hidden * dims.vocab
    return num_matrix_parameters(dims) + embedding + (2 * dims.layers + 1) * dims.hidden


def flops_per_token(dims: ModelDims, seq_len: int) -> float:
    """Floating-point operations of one training step (forward and backward) per token.

    ``6 * M + 12 * layers * heads * head_width * seq_len``, with M from ``num_matrix_parameters``: two
    operations per weight forward and four backward, and for attention the two products of a [T, H] with a [H,
    T] matrix.
    Source: Chowdhery et al., "PaLM", 2022, appendix B. As there, the causal half of attention is not
    subtracted and recomputation (activation checkpointing) is not counted, so that MFU compares across runs.

    Args:
        seq_len: positions a token can attend over (row length).
    """
    return 6.0 * num_matrix_parameters(dims) + 12.0 * dims.layers * dims.heads * dims.head_width * seq_len


#: Peak dense matrix throughput by the maker's data sheets, in TFLOP/s: (16-bit, fp32 as torch runs it).
#: Longer names first: the first one contained in the device's name counts.
_PEAK_TFLOPS: tuple[tuple[str, float, float], ...] = (
    ("GB200", 2500.0, 80.0),
    ("B200", 2250.0, 75.0),
    ("GH200", 989.4, 67.0),
    ("H200", 989.4, 67.0),
    ("H100 PCIE", 756.0, 51.0),
    ("H100 NVL", 835.0, 60.0),
    ("H100", 989.4, 67.0),
    ("H800", 989.4, 67.0),
    ("H20", 148.0, 44.0),
    ("A100", 312.0, 19.5),
    ("A800", 312.0, 19.5),
    ("A40", 149.7, 37.4),
    ("A30", 165.0, 10.3),
    ("A10G", 70.0, 31.5),
    ("A10", 125.0, 31.2),
    ("L40S", 362.0, 91.6),
    ("L40", 181.0, 90.5),
    ("L4", 121.0, 30.3),
    ("V100", 125.0, 15.7),
    ("T4", 65.0, 8.1),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 3090", 71.0, 35.6),
    ("MI300X", 1307.4, 163.4),
    ("MI250X", 383.0, 47.9),
)


def peak_flops(device_name: str, *, precision: str = "bf16") -> float | None:
    """Peak dense operations per second of a GPU by its name, or None when it is not in the table (then there
    is no MFU to report). ``precision``: "bf16" or "fp16" (matrix cores), "fp32"."""
    words = device_name.upper().replace("-", " ").split()
    text = f" {' '.join(words)} "
    for name, half, single in _PEAK_TFLOPS:
        if f" {name} " in text:
            return 1e12 * (single if precision == "fp32" else half)
    return None
