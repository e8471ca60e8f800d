from __future__ import annotations

import pytest

from protolith.errors import ModelError
from protolith.formats.hf_config import (
    flops_per_token,
    num_matrix_parameters,
    num_parameters,
    peak_flops,
    read_dims,
)

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


def test_known_models_have_the_parameters_they_are_known_for():
    assert num_parameters(read_dims(LLAMA_8B)) == 8_030_261_248
    assert num_parameters(read_dims(GPT2)) == pytest.approx(124_439_808, rel=0.01)


def test_names_of_older_architectures_and_defaults():
    dims = read_dims(GPT2)
    assert (dims.hidden, dims.layers, dims.heads, dims.kv_heads, dims.head_width) == (768, 12, 12, 12, 64)
    assert (dims.intermediate, dims.context, dims.tied, dims.gated) == (3072, 1024, True, False)
    assert read_dims({**LLAMA_8B, "head_dim": 256}).head_width == 256


def test_flops_are_six_per_weight_and_twelve_per_attended_width():
    dims = read_dims(LLAMA_8B)
    assert flops_per_token(dims, 2048) == 6 * num_matrix_parameters(dims) + 12 * 32 * 4096 * 2048
    assert flops_per_token(dims, 4096) > flops_per_token(dims, 2048)


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": None}, {"vocab_size": 0}, {"num_hidden_layers": "12"}, {"num_attention_heads": True}],
)
def test_missing_or_impossible_dimensions(change):
    with pytest.raises(ModelError, match="whole number"):
        read_dims({**LLAMA_8B, **change})


def test_peaks_of_known_devices():
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_flops("NVIDIA A100-SXM4-40GB", precision="fp32") == 19.5e12
    assert peak_flops("NVIDIA L4") == 121e12 and peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("Tesla T4") == 65e12
    assert peak_flops("CPU (2 threads)") is None
