"""The YAML spelling: its names are the canonical ones. Also the names of ``protolith.pretrain(...)``'s
arguments."""

from __future__ import annotations

from functools import cache

from protolith.config.job import JOB_KEYS
from protolith.config.names import Spelling, leaf_keys
from protolith.config.sections import (
    DataConfig,
    EvalConfig,
    LoggingConfig,
    ModelConfig,
    OutputConfig,
    Section,
    TrainerConfig,
)

SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "trainer": TrainerConfig,
    "logging": LoggingConfig,
    "eval": EvalConfig,
    "output": OutputConfig,
}


@cache
def recipe_spelling() -> Spelling:
    """Names of a YAML recipe."""
    keys = ["recipe", "method", "name"]
    for section, kind in SECTIONS.items():
        keys += leaf_keys(kind, f"{section}.")
    keys += ["fsdp", "deepspeed"]
    return Spelling(
        name="recipe",
        keys={key: key for key in keys},
        refused={
            "mode": ("mode: this is a word of the TOML spelling", "a recipe begins with  recipe: pretrain"),
        },
        foreign=JOB_KEYS,
        foreign_label="the TOML spelling",
    )


#: Arguments of ``protolith.pretrain`` that are no fields of the trainer section.
CALL_ARGUMENTS = {
    "model": "model.name",
    "dataset": "data.path",
    "format": "data.format",
    "output_dir": "output.dir",
}


@cache
def call_spelling() -> Spelling:
    """Names of the Python call: a few arguments, and every field of the trainer section."""
    keys = {**CALL_ARGUMENTS, **{key: f"trainer.{key}" for key in TrainerConfig.model_fields}}
    return Spelling(
        name="call",
        keys=keys,
        foreign=dict(recipe_spelling().keys),
        foreign_label="a config",
    )
