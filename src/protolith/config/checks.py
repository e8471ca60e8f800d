"""Rules between keys: what contradicts itself is a fault, what has no effect is a warning.

Both are told in the user's own key names: ``say`` turns a canonical key ("data.eval_path") into the name it
has in the spelling at hand ("val.data.paths"), "" where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protolith.config.schema import TrainConfig

Say = Callable[[str], str]

#: Schedules whose rate does not fall at the end of the run.
_NEVER_FALLING = ("constant", "constant_with_warmup", "inverse_sqrt")


@dataclass(frozen=True)
class Contradiction:
    """Keys (canonical; the first is the one to change) that cannot stand together."""

    keys: tuple[str, ...]
    message: str
    hint: str = ""


def same_name(key: str) -> str:
    return key


def contradictions(config: TrainConfig, say: Say = same_name) -> list[Contradiction]:
    """Every rule between keys that ``config`` breaks."""
    found = [*_limits(config, say), *_data(config, say), *_sources(config, say)]
    trainer = config.trainer
    if trainer.global_batch_size is not None:
        if trainer.gradient_accumulation != 1:
            found.append(
                Contradiction(
                    ("trainer.global_batch_size", "trainer.gradient_accumulation"),
                    f"{say('trainer.global_batch_size')} and {say('trainer.gradient_accumulation')} are "
                    "given together",
                    "give one of them: accumulation follows from the global batch",
                )
            )
        elif trainer.global_batch_size < trainer.batch_size:
            found.append(
                Contradiction(
                    ("trainer.global_batch_size", "trainer.batch_size"),
                    f"{say('trainer.global_batch_size')} = {trainer.global_batch_size} is smaller than "
                    f"{say('trainer.batch_size')} = {trainer.batch_size}",
                    "the global batch is made of whole batches of each device",
                )
            )
    for key, values in (("logging.backends", config.logging.backends), ("eval.metrics", config.eval.metrics)):
        if len(set(values)) != len(values):
            found.append(Contradiction((key,), f"{say(key)} names one thing twice"))
    return found


def _limits(config: TrainConfig, say: Say) -> list[Contradiction]:
    trainer, found = config.trainer, []
    if trainer.num_epochs is None and trainer.max_steps == -1 and trainer.max_tokens is None:
        keys = ("trainer.num_epochs", "trainer.max_steps", "trainer.max_tokens")
        names = [name for name in map(say, keys) if name]
        found.append(
            Contradiction(keys, f"no limit is set ({_or(names)}): the run would never end", "give one")
        )
    if trainer.warmup_steps and trainer.warmup_ratio:
        found.append(
            Contradiction(
                ("trainer.warmup_ratio", "trainer.warmup_steps"),
                f"{say('trainer.warmup_steps')} and {say('trainer.warmup_ratio')} are given together",
                "give one of them",
            )
        )
    return found


def _data(config: TrainConfig, say: Say) -> list[Contradiction]:
    data, found = config.data, []
    if data.eval_path and data.eval_split > 0:
        found.append(
            Contradiction(
                ("data.eval_split", "data.eval_path"),
                f"{say('data.eval_path')} and {say('data.eval_split')} are given together",
                "held-out data comes from one of them",
            )
        )
    return found


def _sources(config: TrainConfig, say: Say) -> list[Contradiction]:
    data, found = config.data, []
    if data.sources is None and not data.path:
        found.append(
            Contradiction(("data.path",), f"{say('data.path')}: required: name at least one file or folder")
        )
    if data.sources is not None:
        if not data.sources:
            found.append(Contradiction(("data.sources",), f"{say('data.sources')}: the list is empty"))
        elif not any(source.weight > 0 for source in data.sources):
            found.append(Contradiction(("data.sources",), f"{say('data.sources')}: all weights are 0"))
        for other in ("path", "weights"):
            if getattr(data, other):
                found.append(
                    Contradiction(
                        (f"data.{other}", "data.sources"),
                        f"{say(f'data.{other}')} and {say('data.sources')} are given together",
                        "each source has its own path and weight",
                    )
                )
    elif data.weights is not None:
        if len(data.weights) != len(data.path):
            found.append(
                Contradiction(
                    ("data.weights", "data.path"),
                    f"{say('data.weights')} has {len(data.weights)} entries and {say('data.path')} "
                    f"{len(data.path)}",
                    "give one weight for each path",
                )
            )
        elif not any(weight > 0 for weight in data.weights):
            found.append(Contradiction(("data.weights",), f"{say('data.weights')}: all weights are 0"))
    if data.sources is not None:
        names = [source.name for source in data.sources if source.name is not None]
        if len(set(names)) != len(names):
            found.append(
                Contradiction(("data.sources",), f"{say('data.sources')}: two sources have one name")
            )
    return [*found, *_stages(config, say)]


def _stages(config: TrainConfig, say: Say) -> list[Contradiction]:
    data, name = config.data, say("data.stages")
    if not data.stages:
        return []
    num_sources = len(data.sources) if data.sources is not None else len(data.weights or ())
    if not num_sources:
        needed = _or([key for key in (say("data.sources"), say("data.weights")) if key])
        return [Contradiction(("data.stages",), f"{name}: there are no weights to change", f"give {needed}")]
    found, last = [], 1
    for number, stage in enumerate(data.stages):
        if len(stage.weights) != num_sources:
            found.append(f"stage {number + 1} has {len(stage.weights)} weights for {num_sources} sources")
        elif not any(weight > 0 for weight in stage.weights):
            found.append(f"all weights of stage {number + 1} are 0")
        if stage.from_step <= last:
            found.append(f"stage {number + 1} begins at step {stage.from_step}, not after step {last}")
        last = stage.from_step
    return [Contradiction(("data.stages",), f"{name}: {text}") for text in found]


def config_warnings(
    config: TrainConfig, given: Collection[str] | None = None, say: Say = same_name
) -> tuple[str, ...]:
    """What the user set and what will have no effect in this combination.

    Args:
        given: canonical keys that the user wrote; default: those that were set when ``config`` was made.
    """
    wrote = _fields_set(config) if given is None else set(given)
    told: list[str] = []
    data, trainer, logging = config.data, config.trainer, config.logging
    has_eval = bool(data.eval_path) or data.eval_split > 0
    idle = [f"eval.{key}" for key in ("every_n_steps", "metrics", "on_start", "max_batches", "batch_size")]
    idle = [key for key in idle if key in wrote]
    if idle and not has_eval:
        ways = _or([name for name in (say("data.eval_path"), say("data.eval_split")) if name])
        told.append(
            f"{_and([say(key) for key in idle])} {_have(idle)} no effect: there is no held-out data; give "
            f"{ways}"
        )
    if data.format == "tokens":
        idle = [key for key in ("data.text_field",) if key in wrote]
        told += [f"{say(key)} has no effect with format tokens" for key in idle]
        if data.streaming:
            told.append(
                f"{say('data.streaming')} has no effect with format tokens: shards are never loaded whole"
            )
    beyond = [s.from_step for s in data.stages or () if -1 < trainer.max_steps < s.from_step]
    if beyond:
        told.append(
            f"{say('data.stages')}: stages from step {beyond[0]} on have no effect: the run has "
            f"{trainer.max_steps} steps"
        )
    if data.document_mask and data.packing is False:
        told.append(f"{say('data.document_mask')} has no effect with one document a row")
    if trainer.scheduler == "constant" and (trainer.warmup_steps or trainer.warmup_ratio):
        key = "trainer.warmup_steps" if trainer.warmup_steps else "trainer.warmup_ratio"
        told.append(f"{say(key)} has no effect with scheduler constant; use constant_with_warmup")
    if trainer.scheduler == "constant_with_warmup" and not (trainer.warmup_steps or trainer.warmup_ratio):
        told.append("scheduler constant_with_warmup has no warmup: give warmup_steps or warmup_ratio")
    if trainer.scheduler in _NEVER_FALLING and trainer.decay_steps is not None:
        told.append(f"{say('trainer.decay_steps')} has no effect with scheduler {trainer.scheduler}")
    if trainer.scheduler in ("constant", "constant_with_warmup") and trainer.min_lr_ratio > 0:
        told.append(f"{say('trainer.min_lr_ratio')} has no effect with scheduler {trainer.scheduler}")
    told += _checkpoint_warnings(config, wrote, say)
    idle = [
        key for key in ("logging.project", "logging.run_name") if key in wrote and getattr(logging, key[8:])
    ]
    if idle and "wandb" not in logging.backends:
        told.append(f"{_and([say(key) for key in idle])} {_have(idle)} no effect without the wandb backend")
    return tuple(told)


def _checkpoint_warnings(config: TrainConfig, wrote: set[str], say: Say) -> list[str]:
    trainer, told = config.trainer, []
    every, keep_every = trainer.checkpoint_every_n_steps, trainer.keep_every
    if every is None and not trainer.save_last:
        told.append(
            f"no checkpoint will be saved ({say('trainer.checkpoint_every_n_steps')} is null and "
            f"{say('trainer.save_last')} is false): the run cannot be resumed unless it is stopped by hand"
        )
    if keep_every is not None and every is not None and keep_every % every != 0:
        told.append(
            f"{say('trainer.keep_every')} = {keep_every} is no multiple of "
            f"{say('trainer.checkpoint_every_n_steps')} = {every}: only checkpoints of steps that both "
            "divide are kept"
        )
    if keep_every is not None and trainer.keep_last is None and "trainer.keep_every" in wrote:
        told.append(
            f"{say('trainer.keep_every')} has no effect: all checkpoints are kept unless "
            f"{say('trainer.keep_last')} is given"
        )
    return told


def _fields_set(config: TrainConfig) -> set[str]:
    return {
        f"{name}.{key}"
        for name in ("model", "data", "trainer", "logging", "eval", "output")
        for key in getattr(config, name).model_fields_set
    }


def _have(items: list[str]) -> str:
    return "has" if len(items) == 1 else "have"


def _and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _or(items: list[str]) -> str:
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " or " + items[-1]
