"""The TOML spelling (``mode = "pretrain"``): names, defaults, and the few values that are said differently.

What differs from the recipe in meaning:

- ``data.batch_size`` is the GLOBAL batch, in sequences; ``data.micro_batch_size`` is what one device takes in
  one pass;
- there are no epochs: the data repeats until ``max_steps`` or ``max_tokens``;
- ``scheduler.min_lr`` is a rate, where the recipe has a share of the peak;
- ``seed`` seeds weights and, unless ``data.seed`` is given, the order of the data;
- ``constant`` with ``warmup_steps`` is the recipe's ``constant_with_warmup``;
- a ``[monitors.*]`` section turns that monitor on; every step is logged;
- weights are never read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protolith.config.faults import Fault
from protolith.config.fields import show
from protolith.config.names import Spelling, nearest_word


class _Same:
    """The default of the schema itself."""

    def __repr__(self) -> str:
        return "SAME"


SAME = _Same()
REQUIRED = "required"
SCHEDULES = ("linear", "constant", "cosine", "wsd")
DEFAULT_WARMUP_STEPS = 10
DEFAULT_LR = 1e-3


@dataclass(frozen=True)
class JobKey:
    """One row of the table.

    ``meaning`` replaces the schema's own sentence where it differs, ``default_words`` say a default that
    follows from other keys.
    """

    user: str
    canonical: str
    default: Any = SAME
    meaning: str = ""
    default_words: str = ""


TABLE = (
    JobKey("mode", "recipe", REQUIRED, 'must be "pretrain"'),
    JobKey("name", "name"),
    JobKey("max_steps", "trainer.max_steps", REQUIRED, "optimizer steps; -1: until max_tokens"),
    JobKey("max_tokens", "trainer.max_tokens"),
    JobKey(
        "seed",
        "trainer.seed",
        42,
        "seed of initial weights, and of the order of the data unless data.seed is given",
    ),
    JobKey(
        "output_dir",
        "output.dir",
        None,
        "the run's folder; set by the platform, leave it out there",
        default_words="output/ and the name, or output/pretrain",
    ),
    JobKey("model.name", "model.name", REQUIRED),
    JobKey("model.tokenizer", "model.tokenizer"),
    JobKey("model.overrides", "model.overrides"),
    JobKey("model.attention", "model.attention"),
    JobKey("model.compile", "model.compile"),
    JobKey("model.activation_checkpointing", "model.activation_checkpointing"),
    JobKey("model.mixed_precision", "trainer.mixed_precision"),
    JobKey(
        "data.paths",
        "data.path",
        REQUIRED,
        "folders of .ds shards; one text or a list. All of them form one pool",
    ),
    JobKey("data.seq_len", "data.max_seq_length"),
    JobKey(
        "data.batch_size",
        "trainer.global_batch_size",
        128,
        "rows of one optimizer step, on all devices together",
    ),
    JobKey("data.micro_batch_size", "trainer.batch_size", 1),
    JobKey("data.seed", "data.seed", None, "seed of the order of rows", default_words="the top-level seed"),
    JobKey("data.shuffle", "data.shuffle"),
    JobKey("data.num_workers", "data.num_workers"),
    JobKey("data.weights", "data.weights"),
    JobKey("data.stages", "data.stages"),
    JobKey("data.packing", "data.packing"),
    JobKey("data.document_mask", "data.document_mask"),
    JobKey(
        "data.eos_token",
        "data.eos_token",
        SAME,
        "end-of-text token that closes documents; default: what the tokenizer says",
    ),
    JobKey("val.interval", "eval.every_n_steps"),
    JobKey("val.eval_on_start", "eval.on_start"),
    JobKey("val.data.paths", "data.eval_path", None, "folders of held-out .ds shards"),
    JobKey("val.paths", "data.eval_path", None, "the same as paths under [val.data]; give one of them"),
    JobKey("optim.type", "trainer.optimizer"),
    JobKey("optim.lr", "trainer.learning_rate", DEFAULT_LR),
    JobKey("optim.weight_decay", "trainer.weight_decay"),
    JobKey("optim.betas1", "trainer.betas.0", 0.9, "decay of AdamW's first moment"),
    JobKey("optim.betas2", "trainer.betas.1", 0.95, "decay of AdamW's second moment"),
    JobKey("optim.max_norm", "trainer.max_grad_norm"),
    JobKey("scheduler.type", "trainer.scheduler", "linear"),
    JobKey(
        "scheduler.warmup_steps",
        "trainer.warmup_steps",
        DEFAULT_WARMUP_STEPS,
        "steps over which the rate rises to its peak; default 0 for constant",
    ),
    JobKey("scheduler.decay_steps", "trainer.decay_steps"),
    JobKey("scheduler.min_lr", "trainer.min_lr_ratio", 0.0, "lowest rate at the end; at most optim.lr"),
    JobKey("ckpt.interval", "trainer.checkpoint_every_n_steps"),
    JobKey("ckpt.keep_last", "trainer.keep_last"),
    JobKey("ckpt.keep_interval", "trainer.keep_every"),
    JobKey("deployment.num_train_gpus", "trainer.num_gpus"),
    JobKey("deployment.num_train_nodes", "trainer.num_nodes"),
    JobKey("deployment.gpus_per_node", "trainer.gpus_per_node"),
    JobKey("monitors.wandb.project", "logging.project"),
    JobKey("monitors.wandb.name", "logging.run_name"),
    JobKey("run.name", "name", None, "the same as name at the top; give one of them"),
)
JOB_KEYS = {row.user: row.canonical for row in TABLE}

_USE_VAL = "a pretraining run has no online evaluation or inference: use [val] for held-out loss"

JOB = Spelling(
    name="job",
    keys=JOB_KEYS,
    empty_sections=frozenset({"monitors.tensorboard", "monitors.wandb"}),
    refused={
        "eval": ("[eval] is not part of a pretraining config", "use [val]"),
        "inference": ("[inference] is not part of a pretraining config", _USE_VAL),
        "weight_broadcast": ("[weight_broadcast] is not part of a pretraining config", _USE_VAL),
        "recipe": (
            "recipe: this is a word of the YAML spelling",
            'a TOML config begins with  mode = "pretrain"',
        ),
        "model.init": (
            "model.init: a TOML run always starts from random weights",
            "use a YAML recipe with init: pretrained",
        ),
        "num_epochs": (
            "num_epochs: a TOML config has no epochs: the data repeats",
            "use max_steps or max_tokens",
        ),
    },
    # Names of the recipe that have a TOML name are added by the reader, which knows both.
    foreign_label="the YAML recipe",
)


def wrong_mode(values: Mapping[str, Any]) -> Fault | None:
    """A file that is no pretraining config: nothing else in it is worth a word."""
    if "mode" not in values:
        return Fault(("mode",), "mode: required, but not given", 'begin the file with  mode = "pretrain"')
    if values["mode"] == "pretrain":
        return None
    near = isinstance(values["mode"], str) and nearest_word(values["mode"], ["pretrain"])
    hint = "did you mean pretrain?" if near else "Protolith runs pretraining only"
    return Fault(("mode",), f"mode: expected pretrain, got {show(values['mode'])}", hint)


def to_canonical(values: Mapping[str, Any], sections: frozenset[str]) -> tuple[dict[str, Any], list[Fault]]:
    """Values by user key to values by canonical key, with the defaults of this spelling.

    Args:
        values: what the user wrote, by dotted user key.
        sections: sections that are there, also empty ones.

    Returns:
        canonical values, and faults of what only this spelling can judge.
    """
    faults: list[Fault] = []
    made = {JOB_KEYS[key]: value for key, value in values.items() if key not in _OWN_WAY}
    made["recipe"] = "pretrain"
    made["data.format"] = "tokens"
    made["trainer.num_epochs"] = None
    made["logging.log_every_n_steps"] = 1
    made["logging.backends"] = (
        "console",
        *(name for name in ("tensorboard", "wandb") if f"monitors.{name}" in sections),
    )
    made.setdefault("trainer.learning_rate", DEFAULT_LR)
    made.setdefault("trainer.global_batch_size", 128)
    made.setdefault("trainer.batch_size", 1)
    made["trainer.betas"] = (values.get("optim.betas1", 0.9), values.get("optim.betas2", 0.95))
    if _is_number(made.get("trainer.seed")):
        made.setdefault("data.seed", made["trainer.seed"])
    if "output.dir" not in made:
        name = made.get("name")
        made["output.dir"] = f"output/{name}" if isinstance(name, str) and name else "output/pretrain"
    if "max_steps" not in values:
        faults.append(
            Fault(
                ("max_steps",), "max_steps: required, but not given", "say how many optimizer steps to train"
            )
        )
        made["trainer.max_steps"] = 1
    _schedule(values, made, faults)
    return made, faults


_OWN_WAY = frozenset({"mode", "optim.betas1", "optim.betas2", "scheduler.type", "scheduler.min_lr"})


def _schedule(values: Mapping[str, Any], made: dict[str, Any], faults: list[Fault]) -> None:
    kind = values.get("scheduler.type", "linear")
    if kind not in SCHEDULES:
        near = nearest_word(kind, list(SCHEDULES)) if isinstance(kind, str) else ""
        faults.append(
            Fault(
                ("scheduler", "type"),
                f"scheduler.type: expected one of {', '.join(SCHEDULES)}; got {show(kind)}",
                f"did you mean {near}?" if near else "",
            )
        )
        kind = "linear"
    made.setdefault("trainer.warmup_steps", 0 if kind == "constant" else DEFAULT_WARMUP_STEPS)
    made["trainer.scheduler"] = (
        "constant_with_warmup" if kind == "constant" and made["trainer.warmup_steps"] else kind
    )
    made["trainer.min_lr_ratio"] = _min_lr_ratio(values, made["trainer.learning_rate"], faults)


def _min_lr_ratio(values: Mapping[str, Any], peak: Any, faults: list[Fault]) -> float:
    if "scheduler.min_lr" not in values:
        return 0.0
    lowest = values["scheduler.min_lr"]
    fault = ""
    if not _is_number(lowest):
        fault = f"expected a number, got {show(lowest)}"
    elif not (lowest >= 0 and math.isfinite(lowest)):
        fault = f"must be at least 0 and finite, got {show(lowest)}"
    elif _is_number(peak) and lowest > peak >= 0:
        fault = f"must be at most optim.lr = {peak:g}, got {show(lowest)}"
    if fault:
        faults.append(Fault(("scheduler", "min_lr"), f"scheduler.min_lr: {fault}"))
        return 0.0
    return lowest / peak if _is_number(peak) and 0 < peak < math.inf else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
