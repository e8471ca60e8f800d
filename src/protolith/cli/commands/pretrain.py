"""``protolith pretrain``: run a config here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from protolith.errors import EXIT_STOPPED, NotAvailableError, UsageError


class OptionalResume(TyperCommand):
    """Lets ``--resume`` stand alone: without a value it means the latest checkpoint."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_resume(args))


def fill_resume(args: list[str]) -> list[str]:
    """Put ``latest`` behind a ``--resume`` that has no value of its own."""
    filled: list[str] = []
    for place, word in enumerate(args):
        filled.append(word)
        if word == "--resume":
            following = args[place + 1] if place + 1 < len(args) else "-"
            is_value = following == "latest" or following.isdigit() or Path(following).is_dir()
            if not is_value:
                filled.append("latest")
    return filled


def pretrain(
    config: Annotated[Path, typer.Argument(help='YAML recipe, or TOML with mode = "pretrain".')],
    set_: Annotated[
        list[str], typer.Option("--set", metavar="A.B=V", help="Change one key of the config; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    resume: Annotated[
        str | None,
        typer.Option(metavar="[latest|STEP|DIR]", help="Continue from a checkpoint; alone: the latest."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the run in the output folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and the plan.")
    ] = False,
    nproc: Annotated[int, typer.Option(help="Processes on this machine.", min=1)] = 1,
    accept_changes: Annotated[
        str,
        typer.Option(
            metavar="AREA,...",
            help="On resume, accept that these differ: data, tokenizer, model, batch, schedule, optimizer.",
        ),
    ] = "",
    skip_rows: Annotated[
        list[str],
        typer.Option(
            "--skip-rows",
            metavar="A:B",
            help="Never train on rows A to B - 1 (recorded, and kept on resume); repeatable.",
        ),
    ] = [],  # noqa: B006
    output: Annotated[str, typer.Option("--output", "-o", help="text or json.")] = "text",
) -> None:
    """Pretrain a language model as a config says."""
    if output not in ("text", "json"):
        raise UsageError(f"--output must be text or json, not {output!r}")
    if resume is not None and overwrite and not Path(resume).is_dir():
        raise UsageError("--resume and --overwrite exclude each other", hint="say one of them")
    if nproc > 1:
        raise NotAvailableError("more than one process is not available yet", where="--nproc")
    from protolith.config.load import load_config

    loaded = load_config(config, set_)
    if dry_run:
        from protolith.cli.commands.plan import show_plan

        show_plan(loaded, output, with_config=True)
        return
    from protolith.training.stop import StopFlag

    with StopFlag() as stop:  # before torch is loaded, which takes seconds
        from protolith.cli.render import print_json
        from protolith.data.row_ranges import parse_range
        from protolith.training.pretrain import run
        from protolith.training.request import Request

        request = Request(
            resume=resume,
            overwrite=overwrite,
            accept_changes=tuple(area for area in accept_changes.split(",") if area),
            skip_rows=tuple(map(parse_range, skip_rows)),
            stream=sys.stderr if output == "json" else None,
            stop=stop,
        )
        state = run(loaded, request)
    if output == "json":
        print_json(
            {
                "run_dir": str(state.run_dir),
                "step": state.step,
                "epoch": state.epoch,
                "tokens": state.tokens,
                "stopped_by": state.stopped_by,
                "metrics": state.metrics,
            }
        )
    if state.resumable:
        raise typer.Exit(EXIT_STOPPED)
