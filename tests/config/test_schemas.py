"""JSON schemas, reference pages, and what importing the schema costs."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from protolith.config.job import JOB_KEYS
from protolith.config.json_schema import field_schemas, json_schema
from protolith.config.recipe import recipe_spelling
from protolith.config.reference import PAGES, reference_page, write_reference

ROOT = Path(__file__).parents[2]


def leaves(schema, lead=""):
    for name, value in schema["properties"].items():
        if "properties" in value:
            assert value["additionalProperties"] is False
            yield from leaves(value, f"{lead}{name}.")
        else:
            yield f"{lead}{name}", value


@pytest.mark.parametrize("spelling", ["recipe", "job"])
def test_a_schema_is_json_and_describes_every_key(spelling):
    schema = json.loads(json.dumps(json_schema(spelling)))
    assert schema["additionalProperties"] is False
    found = dict(leaves(schema))
    assert set(found) == set(recipe_spelling().keys if spelling == "recipe" else JOB_KEYS)
    for key, value in found.items():
        assert value["description"], key
        assert {"type", "anyOf", "enum", "const"} & set(value), key
    assert "$ref" not in json.dumps(schema)


def test_the_recipe_schema_knows_types_bounds_and_defaults():
    fields = field_schemas()
    assert fields["trainer.batch_size"]["minimum"] == 1
    assert fields["trainer.learning_rate"]["default"] == 3e-4
    assert fields["data.packing"]["enum"] == [True, False, "best_fit"]
    assert {"type": "null"} in fields["data.eval_path"]["anyOf"]
    assert fields["trainer.max_tokens"]["anyOf"][0]["minimum"] == 1
    assert json_schema("recipe")["required"] == ["model", "data"]


def test_the_toml_schema_has_its_own_defaults_and_no_null():
    schema = json_schema("job")
    found = dict(leaves(schema))
    assert found["optim.lr"]["default"] == 1e-3
    assert found["scheduler.type"] == {
        "type": "string",
        "enum": ["linear", "constant", "cosine", "wsd"],
        "default": "linear",
        "description": found["scheduler.type"]["description"],
    }
    assert found["optim.betas2"]["default"] == 0.95
    assert schema["required"] == ["mode", "max_steps", "model", "data"]
    assert found["mode"]["const"] == "pretrain"
    assert "null" not in json.dumps(schema)
    assert schema["properties"]["monitors"]["properties"]["tensorboard"]["properties"] == {}


@pytest.mark.parametrize("spelling", ["recipe", "job"])
def test_the_reference_page_is_what_the_schema_says(spelling):
    written = (ROOT / "docs" / "reference" / PAGES[spelling]).read_text(encoding="utf-8")
    assert written == reference_page(spelling), (
        "run protolith.config.reference.write_reference(docs/reference)"
    )


def test_pages_are_written_where_they_are_asked_for(tmp_path):
    write_reference(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config-job.md", "config-recipe.md"]


@pytest.mark.parametrize(("spelling", "load"), [("recipe", "recipe"), ("job", "job")])
def test_the_example_on_the_page_is_a_config(spelling, load, request):
    fence = "yaml" if spelling == "recipe" else "toml"
    text = reference_page(spelling).split(f"```{fence}\n")[1].split("```")[0]
    loaded = request.getfixturevalue(load)(base=text)
    assert loaded.config.model.name == "models/my-model"
    assert loaded.warnings == ()
    if spelling == "job":
        assert tomllib.loads(text)["mode"] == "pretrain"


def test_importing_the_schema_loads_nothing_heavy():
    code = (
        "import sys; from protolith.config.schema import TrainConfig; import protolith.config.load, protolith.config.plan; "
        "print([name for name in ('torch', 'numpy', 'transformers', 'yaml', 'typer', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
