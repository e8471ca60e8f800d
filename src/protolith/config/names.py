"""A spelling of the schema: which names a user writes, and which canonical key each one is.

Canonical keys are dotted ("trainer.batch_size") and equal to those of the YAML recipe. A spelling also knows
its sections, words that deserve a sentence of their own, and how to find what was meant by a name that does
not exist.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pydantic import BaseModel

SpellingName = Literal["recipe", "job", "call"]

#: Names of other trainers, and short forms, for keys of ours. Used for hints only: none of them is accepted.
_OTHER_NAMES = {
    "model.activation_checkpointing": "gradient_checkpointing activation_checkpoint ac",
    "model.attention": "attn attn_implementation flash_attention",
    "model.compile": "torch_compile",
    "model.name": "model_name model_name_or_path model_path architecture",
    "data.eval_path": "val_path val_paths validation_path eval_paths eval_dataset test_path",
    "data.eval_split": "val_split validation_split test_size",
    "data.max_seq_length": (
        "seq_len seq_length sequence_length max_length max_len block_size context_length n_ctx"
    ),
    "data.num_workers": "workers dataloader_num_workers",
    "data.packing": "pack packed sequence_packing",
    "data.path": "paths dataset data_path train_path train_file files input dir",
    "data.seed": "shuffle_seed data_seed",
    "eval.every_n_steps": "eval_steps eval_every eval_interval interval",
    "eval.sample_prompts": "prompts prompt samples",
    "logging.backends": "report_to loggers logger trackers",
    "logging.log_every_n_steps": "logging_steps log_every log_interval log_steps",
    "logging.project": "wandb_project",
    "output.dir": "output_dir out_dir save_dir run_dir",
    "trainer.batch_size": "micro_batch_size per_device_batch_size per_device_train_batch_size mbs bs",
    "trainer.betas": "beta beta1 beta2 betas1 betas2",
    "trainer.checkpoint_every_n_steps": (
        "save_steps save_every save_interval checkpoint_every checkpoint_interval"
    ),
    "trainer.eps": "epsilon adam_epsilon",
    "trainer.global_batch_size": "gbs train_batch_size",
    "trainer.gradient_accumulation": (
        "grad_accum gradient_accumulation_steps accumulation accumulate grad_acc"
    ),
    "trainer.keep_every": "keep_interval",
    "trainer.keep_last": "save_total_limit keep max_to_keep",
    "trainer.learning_rate": "lr peak_lr max_lr rate",
    "trainer.max_grad_norm": "clip max_norm grad_clip clip_grad gradient_clip_val gradient_clipping",
    "trainer.max_steps": "steps num_steps total_steps max_iters iterations train_steps",
    "trainer.max_tokens": "tokens total_tokens train_tokens num_tokens",
    "trainer.min_lr_ratio": "min_lr min_learning_rate",
    "trainer.mixed_precision": "precision dtype bf16 fp16 amp torch_dtype",
    "trainer.num_epochs": "epochs epoch n_epochs num_train_epochs max_epochs",
    "trainer.num_gpus": "gpus devices num_devices",
    "trainer.num_nodes": "nodes nnodes",
    "trainer.optimizer": "optim optimizer_type",
    "trainer.scheduler": "schedule lr_scheduler lr_scheduler_type lr_schedule",
    "trainer.seed": "random_seed",
    "trainer.warmup_ratio": "warmup_fraction warmup_proportion",
    "trainer.warmup_steps": "warmup num_warmup_steps warmup_iters",
    "trainer.weight_decay": "wd decay",
}
_MEANT = {name: key for key, names in _OTHER_NAMES.items() for name in names.split()}


@dataclass(frozen=True)
class Spelling:
    """One table of names.

    Args:
        keys: name as the user writes it, dotted, to canonical key. Several names may lead to one key.
        empty_sections: sections that may stand there without any key.
        refused: names with a sentence of their own, to (message, hint).
        foreign: names of the other spellings, for hints, to canonical keys.
        foreign_label: what to call them.
    """

    name: SpellingName
    keys: Mapping[str, str]
    empty_sections: frozenset[str] = frozenset()
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    foreign_label: str = ""

    @cached_property
    def sections(self) -> frozenset[str]:
        """Every name that has names below it."""
        parts = (key.split(".") for key in self.keys)
        made = {".".join(names[:end]) for names in parts for end in range(1, len(names))}
        return frozenset(made | self.empty_sections)

    @cached_property
    def _first_names(self) -> dict[str, str]:
        return {canonical: key for key, canonical in reversed(tuple(self.keys.items()))}

    def say(self, canonical: str, used: Mapping[str, str] | None = None) -> str:
        """The user's name of a canonical key, "" when this spelling has none.

        ``used``: the names that the user chose where there are several, by canonical key.
        """
        return (used or {}).get(canonical) or self._first_names.get(canonical, "")

    def children(self, section: str) -> list[str]:
        """Names directly below a section ("" for the top), in table order."""
        lead = f"{section}." if section else ""
        names = [
            key[len(lead) :].split(".")[0]
            for key in (*self.keys, *sorted(self.empty_sections))
            if key.startswith(lead)
        ]
        return list(dict.fromkeys(names))

    def hint_for(self, path: tuple[str, ...], *, is_section: bool = False) -> str:
        """What was probably meant by a name that does not exist."""
        dotted = ".".join(path)
        if is_section and (hint := self._section_hint(path)):
            return hint
        if len(path) == 1 and dotted in self.keys:  # a dot where it should be nested
            section, _, last = dotted.rpartition(".")
            return f"write {last} below {section}"
        meant = [] if is_section else self._meant(path, dotted)
        if meant:
            return f"did you mean {' or '.join(meant)}?"
        section = ".".join(path[:-1])
        return f"known here: {', '.join(self.children(section))}"

    def knows_foreign_section(self, section: str) -> bool:
        """Whether this is a section of the other spelling."""
        return any(name.startswith(section + ".") for name in self.foreign)

    def _section_hint(self, path: tuple[str, ...]) -> str:
        dotted = ".".join(path)
        inside = [canonical for name, canonical in self.foreign.items() if name.startswith(dotted + ".")]
        here = dict.fromkeys(
            self.say(canonical).rpartition(".")[0] for canonical in inside if self.say(canonical)
        )
        here.pop("", None)
        if here:
            return f"{dotted} belongs to {self.foreign_label}; here its keys are in {', '.join(here)}"
        around = dotted.rpartition(".")[0]
        lead = f"{around}." if around else ""  # a key may hold values of its own, as model.overrides does
        beside = {name: lead + name for name in self.children(around)}
        near = difflib.get_close_matches(_plain(path[-1]), sorted(beside), n=1, cutoff=0.6)
        return f"did you mean {beside[near[0]]}?" if near else ""

    def _meant(self, path: tuple[str, ...], dotted: str) -> list[str]:
        section, last = ".".join(path[:-1]), _plain(path[-1])
        lead = f"{section}." if section else ""
        siblings = {_plain(name): lead + name for name in self.children(section)}
        if last in siblings:
            return [siblings[last]]
        if dotted in self.foreign and self.say(self.foreign[dotted]):
            return [self.say(self.foreign[dotted])]
        by_last: dict[str, list[str]] = {}
        for key in self.keys:
            by_last.setdefault(_plain(key.rpartition(".")[2]), []).append(key)
        if last in by_last:
            return by_last[last][:3]
        if last in _MEANT and self.say(_MEANT[last]):
            return [self.say(_MEANT[last])]
        foreign_last = {
            _plain(name.rpartition(".")[2]): canonical for name, canonical in self.foreign.items()
        }
        if last in foreign_last and self.say(foreign_last[last]):
            return [self.say(foreign_last[last])]
        near = difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
        if near:
            return [siblings[near[0]]]
        near = difflib.get_close_matches(last, by_last, n=1, cutoff=0.6)
        if near:
            return by_last[near[0]][:3]
        near = difflib.get_close_matches(
            last, [name for name in _MEANT if self.say(_MEANT[name])], n=1, cutoff=0.75
        )
        return [self.say(_MEANT[near[0]])] if near else []


def leaf_keys(model: type[BaseModel], lead: str = "") -> list[str]:
    """Dotted canonical keys of a schema class, in order; a section's keys stand under its name."""
    found: list[str] = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += leaf_keys(kind, f"{lead}{name}.")
        else:
            found.append(lead + name)
    return found


def nearest_word(value: str, allowed: list[str]) -> str:
    """The allowed word that ``value`` is probably meant to be, or ""."""
    near = difflib.get_close_matches(_plain(value), allowed, n=1, cutoff=0.6)
    return near[0] if near else ""


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_").strip("_")
