"""``protolith.pretrain``: the call for people who write Python instead of a config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protolith.config.checks import config_warnings
from protolith.config.load import DEFAULT_EPOCHS, LoadedConfig, config_from_kwargs
from protolith.config.schema import TrainConfig
from protolith.errors import UsageError
from protolith.training.pretrain import run
from protolith.training.request import Request, TrainState


def pretrain(
    *,
    config: TrainConfig | LoadedConfig | None = None,
    model: str | tuple[Any, Any] | None = None,
    dataset: str | None = None,
    format: str = "text",
    num_epochs: int = DEFAULT_EPOCHS,
    learning_rate: float = 3e-4,
    batch_size: int = 4,
    resume_from: str | int | bool | None = None,
    output_dir: str | None = None,
    overwrite: bool = False,
    accept_changes: Iterable[str] = (),
    **kwargs: Any,
) -> TrainState:
    """Pretrain a language model from scratch, or go on with one.

    Args:
        config: a full config; other arguments that describe the run are then ignored, with a warning.
        model: a directory with ``config.json`` and tokenizer, a cached name, or a
            ``(model, tokenizer)`` pair of loaded objects.
        dataset: path to the training data.
        format: "text" (JSONL) or "tokens" (folders of ``.ds`` shards).
        num_epochs: passes over the data.
        learning_rate: the peak rate.
        batch_size: rows per device and micro-batch.
        resume_from: "latest" (or True), "best", a step, or a checkpoint folder.
        output_dir: the run directory; default ``output/pretrain``.
        overwrite: remove the run that is in ``output_dir``.
        accept_changes: areas that may differ from what is resumed (data, tokenizer, model, batch,
            schedule, optimizer).
        **kwargs: more fields of the trainer section.

    Raises:
        ProtolithError: typed, with a hint; see ``protolith.errors``.
    """
    loaded = model if isinstance(model, tuple) else None
    spoken: list[str] = []
    if config is not None:
        given = _given(
            model=(model, None),
            dataset=(dataset, None),
            format=(format, "text"),
            num_epochs=(num_epochs, 1),
            learning_rate=(learning_rate, 3e-4),
            batch_size=(batch_size, 4),
            output_dir=(output_dir, None),
        ) + sorted(kwargs)
        if given:
            spoken.append(f"config is given, so these arguments are ignored: {', '.join(given)}")
        if not isinstance(config, TrainConfig | LoadedConfig):
            raise UsageError(
                f"config must be a TrainConfig, not {type(config).__name__}",
                hint="use protolith.TrainConfig.from_file(path)",
            )
        resolved, loaded = config, None
        if isinstance(config, TrainConfig):
            spoken.extend(config_warnings(config))
    else:
        resolved = config_from_kwargs(
            model="(loaded)" if loaded else model,
            dataset=dataset,
            format=format,
            num_epochs=num_epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            output_dir=output_dir,
            **kwargs,
        )
    resume = (
        "latest" if resume_from is True else (str(resume_from) if resume_from not in (None, False) else None)
    )
    request = Request(
        resume=resume,
        overwrite=overwrite,
        accept_changes=tuple(accept_changes),
        loaded=loaded,
        spoken=tuple(spoken),
    )
    return run(resolved, request)


def _given(**values: tuple[Any, Any]) -> list[str]:
    return [name for name, (value, default) in values.items() if value != default]
