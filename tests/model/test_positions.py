"""Rows longer than the positions a model knows."""

import pytest
from transformers import GPT2Config, Qwen3Config

from protolith.errors import InvalidValueError
from protolith.model.positions import check_row_length


def test_rotary_models_get_a_warning():
    config = Qwen3Config(max_position_embeddings=64)
    assert check_row_length(config, 64) == ()
    (warning,) = check_row_length(config, 65)
    assert "65" in warning
    assert "max_position_embeddings" in warning


def test_a_table_of_positions_is_a_limit():
    config = GPT2Config(n_positions=64)
    assert check_row_length(config, 64) == ()
    with pytest.raises(InvalidValueError, match="longer than the model's 64 positions"):
        check_row_length(config, 65)
