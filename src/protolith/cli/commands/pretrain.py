"""``protolith pretrain``: run a config here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from protolith.errors import EXIT_STOPPED, UsageError

if TYPE_CHECKING:
    from protolith.config.load import LoadedConfig
    from protolith.training.stop import StopFlag

CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class OptionalResume(TyperCommand):
    """Lets ``--resume`` stand alone: without a value it means the latest checkpoint."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_resume(args))


def fill_resume(args: list[str]) -> list[str]:
    """Put ``latest`` behind a ``--resume`` that has no value of its own: what follows is an option, or the
    config. A folder that does not exist is a value all the same, so that the refusal can name it."""
    filled: list[str] = []
    for place, word in enumerate(args):
        filled.append(word)
        if word == "--resume":
            following = args[place + 1] if place + 1 < len(args) else "-"
            if (
                following.startswith("-")
                or following.lower().endswith(CONFIG_SUFFIXES)
                or Path(following).is_file()
            ):
                filled.append("latest")
    return filled


def pretrain(
    config: Annotated[Path, typer.Argument(help='YAML recipe, or TOML with mode = "pretrain".')],
    set_: Annotated[
        list[str], typer.Option("--set", metavar="A.B=V", help="Change one key of the config; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    resume: Annotated[
        str | None,
        typer.Option(metavar="[latest|best|STEP|DIR]", help="Continue from a checkpoint; alone: the latest."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the run in the output folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved config and the plan.")
    ] = False,
    nproc: Annotated[
        int | None,
        typer.Option(help="Processes on this machine; default: as the config says, or one per GPU.", min=1),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(help="How often processes are started again when one of several was killed.", min=0),
    ] = 3,
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
    from protolith.config.load import load_config

    loaded = load_config(config, set_)
    if dry_run:
        from protolith.cli.commands.plan import show_plan

        show_plan(loaded, output, with_config=True, num_ranks=nproc)
        return
    from protolith.distributed.guard import guard
    from protolith.distributed.outcome import is_a_rank, is_main_rank, meeting, restart_reason

    guard()
    place = meeting()
    from protolith.training.stop import StopFlag

    with StopFlag(place.stop if place else None) as stop:  # torch takes seconds to load
        from protolith.cli.render import print_json
        from protolith.data.row_ranges import parse_range
        from protolith.distributed.world import ranks_wanted

        if not is_a_rank() and (num_ranks := ranks_wanted(loaded.config, nproc)) > 1:
            words = [str(config), *(word for change in set_ for word in ("--set", change))]
            words += [word for rows in skip_rows for word in ("--skip-rows", rows)]
            words += ["--accept-changes", accept_changes, "--output", output]
            how = ["--resume", resume] if resume is not None else []
            how += ["--overwrite"] if overwrite else []
            raise typer.Exit(_launched(loaded, words, how, num_ranks, max_restarts, stop))
        from protolith.training.pretrain import run
        from protolith.training.request import Request

        request = Request(
            resume=resume,
            overwrite=overwrite,
            accept_changes=tuple(area for area in accept_changes.split(",") if area),
            skip_rows=tuple(map(parse_range, skip_rows)),
            stream=sys.stderr if output == "json" else None,
            stop=stop,
            num_ranks=int(os.environ["WORLD_SIZE"]) if place else nproc if is_a_rank() else 1,
            spoken=restart_reason(),
        )
        state = run(loaded, request)
    if output == "json" and is_main_rank():
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


def _launched(
    loaded: LoadedConfig, words: list[str], how: list[str], num_ranks: int, max_restarts: int, stop: StopFlag
) -> int:
    """The same command in several processes; what can be refused without them is refused first."""
    from protolith.config.availability import check_available
    from protolith.config.plan import batch_plan
    from protolith.distributed.launch import launch

    check_available(loaded)
    batch_plan(loaded.config, num_ranks)
    output = Path(loaded.config.output.dir).expanduser()
    return launch(words, how, output, num_ranks=num_ranks, max_restarts=max_restarts, stop=stop)
