"""The ways into a config: a file, or the arguments of ``protolith.pretrain``.

>>> loaded = load_config("recipe.yaml", ["trainer.batch_size=8"])       # doctest: +SKIP
>>> loaded.config.trainer.batch_size, loaded.origins["trainer.batch_size"]   # doctest: +SKIP
(8, '--set trainer.batch_size=8')
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from typing import Any

from protolith.config.document import Document
from protolith.config.names import Spelling
from protolith.config.reading import LoadedConfig, read_config, resolve
from protolith.config.recipe import call_spelling, recipe_spelling
from protolith.config.schema import TrainConfig
from protolith.errors import ConfigError, UnknownKeyError

__all__ = ["DEFAULT_EPOCHS", "LoadedConfig", "config_from_kwargs", "load_config"]


class _DefaultEpochs(int):
    """1, and recognisable as the default: with ``max_steps`` it means "as often as it takes"."""


#: Default of ``num_epochs``. It is equal to 1, but gives way to ``max_steps`` and ``max_tokens``.
DEFAULT_EPOCHS: int = _DefaultEpochs(1)


def load_config(path: str | PathLike[str], sets: Sequence[str] = ()) -> LoadedConfig:
    """Read a YAML recipe (``.yaml``, ``.yml``, or a run's ``config.json``) or a TOML config (``.toml``).

    Args:
        path: the file. Relative paths inside it are left as they are: relative to the current folder.
        sets: changes such as ``"trainer.batch_size=8"``, in the spelling of the file.

    Raises:
        NotFoundError, NotAllowedError: the file is not there or may not be read.
        UsageError: a change that is no ``key=value``.
        ConfigError: everything else; every fault found stands in ``problems``.
    """
    return read_config(TrainConfig, path, sets)


def config_from_kwargs(
    *,
    model: str | PathLike[str] | None = None,
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    format: str = "text",
    num_epochs: int | None = DEFAULT_EPOCHS,
    learning_rate: float = 3e-4,
    batch_size: int = 4,
    output_dir: str | PathLike[str] | None = None,
    **trainer_fields: Any,
) -> LoadedConfig:
    """The config of a Python call.

    Args:
        trainer_fields: more fields of the trainer section.

    Raises:
        ConfigError: with the names of the arguments; every fault found stands in ``problems``.
    """
    values: dict[str, Any] = {
        "model": os.fspath(model) if isinstance(model, PathLike) else model,
        "dataset": dataset,
        "format": format,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "output_dir": os.fspath(output_dir) if isinstance(output_dir, PathLike) else output_dir,
        **trainer_fields,
    }
    for optional in ("model", "dataset", "output_dir"):
        if values[optional] is None:
            del values[optional]
    if not isinstance(num_epochs, _DefaultEpochs):
        values["num_epochs"] = num_epochs
    document, spelling = Document("pretrain()", values), call_spelling()
    try:
        return resolve(TrainConfig, document, spelling)
    except ConfigError as error:
        _point_to_config(error, spelling, trainer_fields)
        raise


def _point_to_config(error: ConfigError, spelling: Spelling, given: dict[str, Any]) -> None:
    """An argument that is a key of another section gets told how to set it."""
    elsewhere: dict[str, list[str]] = {}
    for key in recipe_spelling().keys:
        if key.partition(".")[0] not in ("trainer", "recipe", "method", "name") and "." in key:
            elsewhere.setdefault(key.rpartition(".")[2], []).append(key)
    for problem in (error, *error.problems):
        name = problem.message.partition(":")[0]
        if isinstance(problem, UnknownKeyError) and name in given and name in elsewhere:
            keys = " or ".join(elsewhere[name])
            problem.hint = f"it is {keys}: write a config and call pretrain(config=...)"
