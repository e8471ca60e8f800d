"""``protolith config schema``: the JSON Schema of both config spellings."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from protolith.cli.render import print_json


class Spelling(StrEnum):
    """How a config is written: a YAML recipe, or a TOML job."""

    recipe = "recipe"
    job = "job"


class OnlyJson(StrEnum):
    """A schema has one form."""

    json = "json"


def schema(
    spelling: Annotated[Spelling, typer.Argument(help="YAML recipe or TOML job.")] = Spelling.recipe,
    form: Annotated[
        OnlyJson, typer.Option("-o", "--output", help="A schema is always JSON.")
    ] = OnlyJson.json,
) -> None:
    """Print the JSON Schema of a config, so that an editor completes and checks it."""
    from protolith.config.json_schema import json_schema

    print_json(json_schema(spelling.value))
