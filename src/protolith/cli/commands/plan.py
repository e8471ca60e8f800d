"""``protolith plan``: what a config would cost, before anything is spent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protolith.errors import UsageError

if TYPE_CHECKING:
    from protolith.config.load import LoadedConfig


def plan(
    config: Annotated[Path, typer.Argument(help='YAML recipe, or TOML with mode = "pretrain".')],
    set_: Annotated[
        list[str], typer.Option("--set", metavar="A.B=V", help="Change one key of the config; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    nproc: Annotated[
        int | None,
        typer.Option(help="Processes on this machine; default: as the config says, or one per GPU.", min=1),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Say what a run would need: steps, epochs, memory, disk; reads a sample of the data, trains nothing."""
    from protolith.config.load import load_config

    if output not in ("text", "json"):
        raise UsageError(f"--output must be text or json, not {output!r}")
    show_plan(load_config(config, set_), output, with_config=False, num_ranks=nproc)


def show_plan(loaded: LoadedConfig, output: str, *, with_config: bool, num_ranks: int | None = None) -> None:
    """Print the plan, and the resolved config when asked (``--dry-run``)."""
    from protolith.cli.render import print_json
    from protolith.training.planning import plan_run

    report = plan_run(loaded, num_ranks)
    warnings = [*loaded.warnings, *report.warnings]
    if output == "json":
        value = {"plan": report.plan.to_dict(), "notes": report.notes, "warnings": warnings}
        if with_config:
            value = {"config": loaded.config.model_dump(mode="json"), **value}
        print_json(value)
        return
    if with_config:
        print(json.dumps(loaded.config.model_dump(mode="json"), indent=2))
    for line in [*report.notes, *report.lines]:
        print(line)
    for text in warnings:
        print(f"warning: {text}")
