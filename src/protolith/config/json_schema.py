"""JSON Schemas of both spellings, so that editors complete and check a config while it is written."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, Literal

from protolith.config import job
from protolith.config.schema import TrainConfig

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
#: Keys under which pydantic puts names of its own.
_NOISE = ("title",)
_NULL_CLAUSE = re.compile(r"; null: [^;]*")


def json_schema(spelling: Literal["recipe", "job"]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a YAML recipe, or of a TOML config."""
    return _recipe_schema() if spelling == "recipe" else _job_schema()


def field_schemas() -> dict[str, dict[str, Any]]:
    """The schema of each canonical key: type, bounds, default, description."""
    found: dict[str, dict[str, Any]] = {}

    def walk(properties: dict[str, Any], lead: str) -> None:
        for name, value in properties.items():
            if "properties" in value:
                walk(value["properties"], f"{lead}{name}.")
            else:
                found[lead + name] = value

    walk(_recipe_schema()["properties"], "")
    return found


def section_descriptions() -> dict[str, str]:
    """One sentence for each section of the recipe."""
    properties = _recipe_schema()["properties"]
    return {name: value.get("description", "") for name, value in properties.items() if "properties" in value}


def _recipe_schema() -> dict[str, Any]:
    raw = TrainConfig.model_json_schema(mode="validation")
    resolved = _inline(raw, raw.get("$defs", {}))
    resolved.pop("$defs", None)
    data = resolved["properties"]["data"]["properties"]
    del data["path"]["default"]
    data["eval_path"] = {
        **data["eval_path"],
        "anyOf": [*data["eval_path"]["anyOf"], {"type": "null"}],
        "default": None,
    }
    resolved["description"] = "What to pretrain, on what, and how."
    return {"$schema": _DRAFT, "title": "Protolith recipe", **resolved}


def _inline(value: Any, definitions: dict[str, Any]) -> Any:
    """References replaced by what they mean, and pydantic's own titles left out: one readable tree."""
    if isinstance(value, list):
        return [_inline(item, definitions) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        target = definitions[value["$ref"].rpartition("/")[2]]
        own = {key: item for key, item in value.items() if key not in ("$ref", "default")}
        return {**_inline(target, definitions), **own}
    made = {}
    for key, item in value.items():
        if key in _NOISE and isinstance(item, str):
            continue
        if key == "description" and isinstance(item, str):
            item = item.split("\n", 1)[0]
        made[key] = _inline(item, definitions)
    return made


def _job_schema() -> dict[str, Any]:
    fields = field_schemas()
    top = _section("A pretraining run on token shards.")
    for row in job.TABLE:
        *sections, last = row.user.split(".")
        here = _enter(top, sections)
        here["properties"][last] = _job_field(row, fields)
        if row.default is job.REQUIRED:
            here.setdefault("required", []).append(last)
    for name in sorted(job.JOB.empty_sections):
        _enter(top, name.split("."))
    top["required"] += ["model", "data"]
    return {"$schema": _DRAFT, "title": "Protolith pretraining job", **top}


def _job_field(row: job.JobKey, fields: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if row.user in _JOB_TYPES:
        made = deepcopy(_JOB_TYPES[row.user])
    elif row.canonical in fields:
        made = deepcopy(fields[row.canonical])
    else:  # one entry of a pair, such as trainer.betas.0
        pair, _, number = row.canonical.rpartition(".")
        made = deepcopy(fields[pair]["prefixItems"][int(number)])
    own_default = made.pop("default", None)
    # TOML has no null, so what null would do is no news there.
    schemas_own = _NULL_CLAUSE.sub("", fields.get(row.canonical, {}).get("description", ""))
    made["description"] = row.meaning or schemas_own
    default = own_default if row.default is job.SAME else row.default
    made = _without_null(made)
    if default is not None and default != job.REQUIRED and default != []:
        made["default"] = list(default) if isinstance(default, tuple) else default
    return made


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    choices = [item for item in schema.get("anyOf", []) if item != {"type": "null"}]
    if not choices:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**choices[0], **rest} if len(choices) == 1 else {"anyOf": choices, **rest}


def _enter(top: dict[str, Any], sections: list[str]) -> dict[str, Any]:
    """The section at a path, made with what leads to it when it is not there."""
    here = top
    for end, name in enumerate(sections, 1):
        words = _SECTION_WORDS.get(".".join(sections[:end]), "")
        here = here["properties"].setdefault(name, _section(words))
    return here


def _section(description: str) -> dict[str, Any]:
    return {"type": "object", "description": description, "additionalProperties": False, "properties": {}}


_JOB_TYPES: dict[str, dict[str, Any]] = {
    "mode": {"type": "string", "const": "pretrain"},
    "scheduler.type": {"type": "string", "enum": list(job.SCHEDULES)},
    "scheduler.min_lr": {"type": "number", "minimum": 0},
}
_SECTION_WORDS = {
    "model": "Which architecture. Weights are never read.",
    "data": "Token shards, and the batch.",
    "val": "Held-out loss.",
    "optim": "The optimizer.",
    "scheduler": "The course of the learning rate.",
    "ckpt": "Checkpoints.",
    "deployment": "Devices.",
    "monitors": "Where numbers go, beside metrics.jsonl.",
    "val.data": "Held-out token shards.",
    "monitors.wandb": "Weights & Biases; the section turns it on.",
    "monitors.tensorboard": "TensorBoard; the section turns it on.",
    "run": "The run itself.",
}
