"""The reference pages of both spellings, made from the schema: no sentence about a key is written twice.

``write_reference(Path("docs/reference"))`` writes the two pages; a test compares them with what would be
written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from protolith.config import job
from protolith.config.fields import MAX_COUNT
from protolith.config.json_schema import json_schema

PAGES: dict[Literal["recipe", "job"], str] = {"recipe": "config-recipe.md", "job": "config-job.md"}

_RECIPE_HEAD = """\
# The YAML recipe

<!-- made from the schema by protolith.config.reference; do not edit -->

A recipe says what is pretrained, on what, and how. `model.name` and `data.path` are required; everything else
has a default. Run it with `protolith pretrain recipe.yaml`; see what it would cost with `protolith plan
recipe.yaml`.

```yaml
recipe: pretrain
model:
  name: models/my-model
data:
  path: data/corpus.jsonl
trainer:
  learning_rate: 3e-4
```

A key that does not exist, a value that is not possible, or a key given twice is an error that names the line.
All faults of a file are told at once. `--set trainer.batch_size=8` changes a key for one run. Relative paths
are relative to the folder in which the command runs. `true` and `false` are the only truth values; `3e-4` is
a number, `"3e-4"` is text. A file may have 1 MiB.

Settings that do not work yet are refused with "not available yet".

How long a run is: `num_epochs`, `max_steps` and `max_tokens` are limits, and the one reached first ends the
run. Where `num_epochs` is not given and another limit is, the data repeats until that one is reached.
"""

_JOB_HEAD = """\
# The TOML config

<!-- made from the schema by protolith.config.reference; do not edit -->

A TOML file with `mode = "pretrain"` at the top describes a run on token shards (`.ds` files written by
datatrove). It has the same settings as the [YAML recipe](config-recipe.md) under other names, with its own
defaults.

```toml
mode = "pretrain"
max_steps = 1000

[model]
name = "models/my-model"

[data]
paths = ["datasets/tinystories/train"]
seq_len = 512
batch_size = 64
micro_batch_size = 8

[val]
interval = 100
data.paths = ["datasets/tinystories/val"]
```

Where it differs from the recipe:

- `data.batch_size` is the global batch, in rows of all devices together. It must be a multiple of
  `data.micro_batch_size` times the number of devices; how often gradients are accumulated follows from that.
- There are no epochs: the data repeats until `max_steps`, or `max_tokens` if that comes first.
- The rate rises for 10 steps and then falls linearly. `min_lr` is a rate, not a share.
- Every step is logged. A `[monitors.wandb]` or `[monitors.tensorboard]` section turns that monitor on.
- Weights always start at random: only config and tokenizer of `model.name` are read.
- `[eval]`, `[inference]` and `[weight_broadcast]` are refused: use `[val]`.

The rules about unknown keys, `--set` and relative paths are those of the recipe.
"""


def reference_page(spelling: Literal["recipe", "job"]) -> str:
    """One page in Markdown: an introduction, then a table for each section."""
    schema = json_schema(spelling)
    parts = [_RECIPE_HEAD if spelling == "recipe" else _JOB_HEAD]
    for name, section in _sections(schema, ""):
        rows = _rows(section, name, spelling)
        if not name:
            title = "Top level"
        else:
            title = f"`{name}`" if spelling == "recipe" else f"`[{name}]`"
        parts.append(f"## {title}\n")
        if name and section.get("description"):
            parts.append(section["description"].replace("``", "`") + "\n")
        if rows:
            parts.append("| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n")
        else:
            parts.append("No keys.\n")
    return "\n".join(parts)


def write_reference(folder: Path) -> None:
    """Write both pages."""
    for spelling, name in PAGES.items():
        (folder / name).write_text(reference_page(spelling), encoding="utf-8")


def _sections(schema: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
    """A section and all below it, depth first; one that only holds sections is left out."""
    inner = {key: value for key, value in schema["properties"].items() if "properties" in value}
    found = [(name, schema)] if len(inner) < len(schema["properties"]) or not inner else []
    for key, value in inner.items():
        found += _sections(value, f"{name}.{key}" if name else key)
    return found


def _rows(section: dict[str, Any], name: str, spelling: str) -> list[str]:
    required = section.get("required", [])
    rows = []
    for key, value in section["properties"].items():
        if "properties" in value:
            continue
        default = _default(f"{name}.{key}" if name else key, value, key in required, spelling)
        cells = (f"`{key}`", _type(value), default, value.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _default(key: str, schema: dict[str, Any], required: bool, spelling: str) -> str:
    if required or key == "data.path":
        return "required"
    words = next((row.default_words for row in job.TABLE if row.user == key), "") if spelling == "job" else ""
    if words:
        return words
    value = schema.get("default")
    if value in (None, []):
        return "none"
    return f"`{json.dumps(value)}`"


def _type(schema: dict[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "anyOf" in schema:
        return " or ".join(_type(item) for item in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(
            f"`{json.dumps(word) if isinstance(word, bool) else word}`" for word in schema["enum"]
        )
    kind = schema.get("type", "")
    if kind == "array":
        if "prefixItems" in schema:
            return f"{len(schema['prefixItems'])} × {_type(schema['prefixItems'][0])}"
        return f"list of {_type(schema['items'])}"
    words = {"string": "text", "boolean": "true or false", "null": "null", "object": "section"}
    if kind in words:
        return words[kind]
    return ("whole number" if kind == "integer" else "number") + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    told = []
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        bound = schema.get(key)
        # Bounds that only guard against absurd numbers say nothing to a reader.
        if bound is not None and abs(bound) < MAX_COUNT:
            told.append(f"{sign} {bound}")
    if schema.get("not") == {"const": 0}:
        told.append("not 0")
    return f" {', '.join(told)}" if told else ""


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
