"""The ``protolith`` command: a table of commands, each imported only when it is called.

Comes in: the words after ``protolith``. Goes out: an exit code (see ``protolith.errors``). Help of the
whole program is printed from the table alone, so it loads none of the commands. How errors are shown is
the matter of ``cli/errors.py``, and of nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.main
from typer.core import TyperGroup

from protolith.cli import errors
from protolith.distributed.outcome import hand_in
from protolith.version import __version__

PROGRAM = "protolith"
_COMPLETION = "_PROTOLITH_COMPLETE"
_HELP = ("-h", "--help")


class Entry(NamedTuple):
    """Where a command is. ``module`` lies in ``protolith.cli.commands``; ``parser`` names a class in it
    for a command line that typer alone cannot read."""

    module: str
    function: str
    help: str
    parser: str = ""


#: Two words are a command in a group. Order is the order of the help page.
COMMANDS: dict[str, Entry] = {
    "demo": Entry("demo", "demo", "Learn a small language model from this machine's own text, in minutes."),
    "pretrain": Entry(
        "pretrain", "pretrain", "Run a config here: train, or go on with a run.", parser="OptionalResume"
    ),
    "plan": Entry("plan", "plan", "Say what a config would cost, before anything is spent."),
    "data check": Entry("data_check", "check", "Prove token shards good before training on them."),
    "data show": Entry("data_show", "show", "Show a training row: its text, documents and what is masked."),
    "tokenize": Entry("tokenize", "tokenize", "Turn text into token shards for training."),
    "tokenizer train": Entry("tokenizer", "train", "Train a byte-level BPE tokenizer on text."),
    "generate": Entry("generate", "generate", "Let a model go on with a text."),
    "eval": Entry("evaluate", "evaluate", "Held-out loss and perplexity of a model."),
    "export": Entry("export", "export", "Turn a checkpoint into a Hugging Face model folder."),
    "runs": Entry("runs", "list_runs", "List the runs under a folder."),
    "runs show": Entry("runs", "show_run", "Show one run: config, plan, ledger, checkpoints."),
    "config schema": Entry("config", "schema", "Print the JSON Schema of a config, for editors."),
    "doctor": Entry("doctor", "doctor", "Say what this machine has and what is missing."),
}

_GROUPS = {
    "data": "Token shards: are they what training needs?",
    "tokenizer": "Tokenizers of your own.",
    "config": "Configs and their schema.",
    "runs": "Runs and what they came to. Without a command: list those under DIR (default: output).",
}


class LazyGroup(TyperGroup):
    """Commands below ``prefix`` of the table. A command's module is imported when it is asked for.

    A group whose own name is in the table (``runs``) is a command too: what follows is handed to it
    unless it is the name of a subcommand.
    """

    prefix: str = ""

    def list_commands(self, ctx: Any) -> list[str]:
        own = f"{self.prefix} " if self.prefix else ""
        names = [name.removeprefix(own).split()[0] for name in COMMANDS if name.startswith(own)]
        return list(dict.fromkeys(names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        full = f"{self.prefix} {cmd_name}".strip()
        if not self.prefix and full in _GROUPS:
            return _group(full)
        if self.prefix and cmd_name == self.prefix and full not in COMMANDS:
            return _command(self.prefix)
        return _command(full) if full in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.prefix in COMMANDS and (not args or args[0] not in (*self.list_commands(ctx), *_HELP)):
            args = [self.prefix, *args]
        elif not args:  # a group alone shows what is in it, as the program itself does
            args = ["--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names: dict[str, Any] = dict.fromkeys(self.list_commands(ctx))
        self.commands = names  # the parser suggests the nearest of these
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == self.prefix else name), command, rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[DIR] [OPTIONS] | COMMAND ..."] if self.prefix in COMMANDS else ["COMMAND ..."]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if self.prefix in COMMANDS:
            _command(self.prefix).format_options(ctx, formatter)
            self.format_commands(ctx, formatter)
        else:
            super().format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        own = f"{self.prefix} " if self.prefix else ""
        rows = [
            (name.removeprefix(own), entry.help) for name, entry in COMMANDS.items() if name.startswith(own)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _command(name: str) -> Any:
    entry = COMMANDS[name]
    module = import_module(f"protolith.cli.commands.{entry.module}")
    app = _typer()
    parser = getattr(module, entry.parser) if entry.parser else None
    app.command(name.split()[-1], cls=parser)(getattr(module, entry.function))
    return typer.main.get_command(app)


def _group(name: str) -> Any:
    app = _typer(cls=type("Group", (LazyGroup,), {"prefix": name}), help=_GROUPS[name])
    app.callback()(lambda: None)
    return typer.main.get_command(app)


def _typer(**settings: Any) -> typer.Typer:
    # Plain help everywhere: it reads the same in a pipe, and rich takes as long to load as all the rest.
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
    )


def _program() -> Any:
    app = typer.Typer(
        cls=LazyGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Pretrain language models from scratch.",
        epilog="Help on a command: protolith COMMAND --help",
        context_settings={"help_option_names": list(_HELP)},  # commands below have it from here
    )

    @app.callback()
    def program(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
        ] = False,
    ) -> None:
        """Nothing to do: options that are commands end the program by themselves."""

    return typer.main.get_command(app)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code. Never raises what a user could meet."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    errors.make_streams_lenient()
    return hand_in(errors.exit_code_of(lambda: _run(arguments), arguments))


def _run(arguments: list[str]) -> int:
    command = _program()
    if _COMPLETION in os.environ:  # a shell asks for words; this way ends the process
        command.main(args=arguments, prog_name=PROGRAM)
    with command.make_context(PROGRAM, arguments) as context:
        result = command.invoke(context)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0
