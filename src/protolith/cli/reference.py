"""The reference page of the command line, made from the table of commands and what each function takes.

``python -m protolith.cli.reference docs/reference`` writes ``cli.md``; a test compares the page with what
would be written. Names, helps and defaults come from the functions' signatures, so nothing here depends on
how one version of typer parses; the commands' modules are imported, and none of what they run.
"""

from __future__ import annotations

import enum
import inspect
import sys
import types
import typing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from protolith.cli.main import COMMANDS, PROGRAM, Entry

PAGE = "cli.md"

_HEAD = """\
# The command line

<!-- made from the commands by protolith.cli.reference; do not edit -->

`protolith COMMAND --help` says the same in a terminal. Commands with `-o json` print one JSON document alone
on stdout, errors too, and put progress on stderr. Without a terminal no colour and no carriage return is
written. How commands end is on the page of [exit codes](exit-codes.md).
"""

_TAIL = """\
## Environment

| variable | meaning |
|---|---|
| `PROTOLITH_HOME` | folder of the token cache and of models known by name; default `~/.protolith` |
| `PROTOLITH_DEBUG` | set: errors bring their traceback |
| `HF_HUB_OFFLINE` | `1`: never ask the Hugging Face hub, also for a `model.name` that is not here |

None of them changes what a model computes.
"""

_WORDS: dict[type, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class _Parameter:
    """One argument or option: how it is written, what follows it, what it means."""

    names: tuple[str, ...]
    value: str
    help: str
    default: str
    is_argument: bool
    required: bool

    @property
    def usage(self) -> str:
        if self.is_argument:
            return self.value if self.required else f"[{self.value}]"
        return f"{self.names[0]} {self.value}"

    @property
    def row(self) -> str:
        told = [f"`{self.value}`"] if self.is_argument else [", ".join(f"`{name}`" for name in self.names)]
        if self.value and not self.is_argument:
            told.append(f"`{self.value}`")
        cells = (" ".join(told), self.help, self.default)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference_page() -> str:
    """The page in Markdown: a section for each command, in the order of the help page."""
    return "\n".join([_HEAD, *(_section(name, entry) for name, entry in COMMANDS.items()), _TAIL])


def write_reference(folder: Path) -> None:
    """Write ``cli.md`` into ``folder``."""
    (folder / PAGE).write_text(reference_page(), encoding="utf-8")


def _section(name: str, entry: Entry) -> str:
    function = getattr(import_module(f"protolith.cli.commands.{entry.module}"), entry.function)
    parameters = sorted(_parameters(function), key=lambda parameter: not parameter.is_argument)
    usage = [PROGRAM, name, *(parameter.usage for parameter in parameters if parameter.is_argument)]
    usage += [p.usage for p in parameters if p.required and not p.is_argument]
    if any(not p.required and not p.is_argument for p in parameters):
        usage.append("[OPTIONS]")
    lines = [f"## {name}\n", f"{_one_line(function.__doc__)}\n", "```text", " ".join(usage), "```\n"]
    if parameters:
        lines += ["| | meaning | default |", "|---|---|---|", *(p.row for p in parameters), ""]
    return "\n".join(lines)


def _parameters(function: Any) -> list[_Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *extras = typing.get_args(hints[name])
        info = next(extra for extra in extras if isinstance(extra, OptionInfo | ArgumentInfo))
        found.append(_parameter(name, _inner(kind), info, parameter.default))
    return found


def _parameter(name: str, kind: type, info: OptionInfo | ArgumentInfo, default: Any) -> _Parameter:
    is_argument, required = isinstance(info, ArgumentInfo), default is inspect.Parameter.empty
    return _Parameter(
        names=_names(name, info),
        value=_value(name, kind, info.metavar, is_argument),
        help=_one_line(info.help),
        default="required" if required else _shown(default),
        is_argument=is_argument,
        required=required,
    )


def _names(name: str, info: OptionInfo | ArgumentInfo) -> tuple[str, ...]:
    """The spellings of an option, short ones first. typer keeps the first of them where defaults are kept."""
    given = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    return tuple(sorted(given, key=len)) or (f"--{name.strip('_').replace('_', '-')}",)


def _inner(kind: Any) -> type:
    """The one type in ``T | None`` or ``list[T]``."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (list, typing.Union):
        return _inner(next(item for item in typing.get_args(kind) if item is not type(None)))
    return typing.cast(type, kind)


def _value(name: str, kind: type, metavar: str | None, is_argument: bool) -> str:
    """What is written for the value; "" for a switch."""
    if metavar:
        return metavar.strip("[]")
    if is_argument:
        return name.strip("_").upper()
    if kind is bool:
        return ""
    if issubclass(kind, enum.Enum):
        return "|".join(str(member.value) for member in kind)
    return _WORDS[kind]


def _shown(default: Any) -> str:
    value = default.value if isinstance(default, enum.Enum) else default
    if value is None or isinstance(value, bool) or value in ("", []):
        return ""
    return f"`{value}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
