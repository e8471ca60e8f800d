"""``TrainConfig``: one validated, immutable description of a run.

The two spellings (YAML recipe, TOML) and Python arguments all end here, see ``load.py``. Its JSON form,
``config.to_dict()``, is saved with every run and read back by ``TrainConfig.model_validate``. Importing this
module loads pydantic and nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails

from protolith.config.checks import contradictions, same_name
from protolith.config.fields import Name, Table, fault, show
from protolith.config.reading import read_config
from protolith.config.sections import (
    DataConfig,
    EvalConfig,
    LoggingConfig,
    ModelConfig,
    OutputConfig,
    Section,
    Source,
    Stage,
    TrainerConfig,
)

__all__ = [
    "DataConfig",
    "EvalConfig",
    "LoggingConfig",
    "ModelConfig",
    "OutputConfig",
    "Section",
    "Source",
    "Stage",
    "TrainConfig",
    "TrainerConfig",
]


def _only_pretrain(value: Any) -> Any:
    if value != "pretrain":
        raise fault(f"expected pretrain, got {show(value)}", "Protolith pretrains and has no other recipe")
    return value


def _only_full(value: Any) -> Any:
    if value != "full":
        raise fault(
            f"expected full, got {show(value)}",
            "LoRA/QLoRA are not applicable to pre-training: there are no pre-trained weights to adapt",
        )
    return value


class TrainConfig(Section):
    """A whole run. Sections may be given as dicts.

    >>> TrainConfig(model={"name": "models/tiny"}, data={"path": "corpus.jsonl"}).trainer.num_epochs
    1

    Raises:
        pydantic.ValidationError: with every fault found, each under its key.
    """

    recipe: Annotated[
        Literal["pretrain"], BeforeValidator(_only_pretrain), Field(description="always pretrain")
    ] = "pretrain"
    method: Annotated[
        Literal["full"],
        BeforeValidator(_only_full),
        Field(description="always full: every weight is trained"),
    ] = "full"
    name: Annotated[Name | None, Field(description="name of the run")] = None
    model: ModelConfig
    data: DataConfig
    trainer: TrainerConfig = TrainerConfig()
    logging: LoggingConfig = LoggingConfig()
    eval: EvalConfig = EvalConfig()
    output: OutputConfig = OutputConfig()
    fsdp: Annotated[Table, Field(description="settings of the FSDP engine")] = {}  # noqa: RUF012
    deepspeed: Annotated[Table, Field(description="settings of the DeepSpeed engine")] = {}  # noqa: RUF012

    @model_validator(mode="after")
    def _no_contradictions(self, info: ValidationInfo) -> TrainConfig:
        say = (info.context or {}).get("say", same_name)
        found = contradictions(self, say)
        if found:
            lines = [
                InitErrorDetails(
                    type=fault(item.message, item.hint, also=item.keys[1:]),
                    loc=tuple(item.keys[0].split(".")),
                    input=None,
                )
                for item in found
            ]
            raise ValidationError.from_exception_data(type(self).__name__, lines)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The resolved config as JSON types; ``TrainConfig.model_validate`` gives an equal config back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_file(cls, path: str | PathLike[str], sets: Sequence[str] = ()) -> TrainConfig:
        """Read a YAML recipe, or TOML with ``mode = "pretrain"``.

        Args:
            sets: changes such as ``"trainer.batch_size=8"``, in the spelling of the file.

        Raises:
            NotFoundError: no such file.
            ConfigError: with file and line of every fault in ``problems``.
        """
        return read_config(cls, path, sets).config
