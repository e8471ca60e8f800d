"""Tables and facts for people, one JSON document for programs.

On a terminal tables are drawn by rich. Anywhere else (a pipe, a file, TERM=dumb, NO_COLOR) they are
aligned text without a colour, a carriage return or an escape byte. Whatever came from outside (names,
errors, generated text) passes through ``clean``, so it cannot steer the terminal it is shown on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer

from protolith.formats.rundir import jsonable

_MOST_DRAWN_ROWS = 1000


class Form(StrEnum):
    """How an answer is written."""

    text = "text"
    json = "json"


#: The option of every command that reads.
FormOption = Annotated[Form, typer.Option("-o", "--output", help="Form of the answer.")]
#: The same where ``--output`` is a folder.
ShortFormOption = Annotated[Form, typer.Option("-o", help="Form of the answer.")]

# C0 and C1 controls, lone surrogates (undecodable file names), line and paragraph separators, and marks
# that reverse or hide the text around them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def clean(text: str, *, lines: bool = False) -> str:
    """``text`` with everything that could steer a terminal written as an escape such as ``\\x1b``.

    ``lines`` lets line ends and tabs through.
    """

    def escape(match: re.Match[str]) -> str:
        character = match.group()
        if lines and character in "\n\t":
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _UNSAFE.sub(escape, text)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person with colours looks at ``stream``."""
    try:
        terminal = stream.isatty()
    except ValueError:  # closed
        return False
    return terminal and os.environ.get("TERM", "") not in ("", "dumb") and not os.environ.get("NO_COLOR")


def print_json(value: Any) -> None:
    """One JSON document on stdout: numbers that JSON lacks as strings, plain ASCII."""
    print(json.dumps(jsonable(value), indent=2, allow_nan=False))


def say(text: str = "", *, error: bool = False) -> None:
    """A line for a person, on stdout or (progress, warnings) on stderr."""
    print(clean(text, lines=True), file=sys.stderr if error else sys.stdout, flush=error)


def heading(text: str) -> None:
    """A title over what follows."""
    if is_terminal(sys.stdout):
        from rich.console import Console
        from rich.text import Text

        Console().print(Text(clean(text), style="bold"))
    else:
        print(clean(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print a table. ``right`` names the columns of numbers. Cells are cleaned here. Thousands of rows are
    aligned text on a terminal too: to draw them takes many seconds."""
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    numbers = set(right)
    if is_terminal(sys.stdout) and len(cells) <= _MOST_DRAWN_ROWS:
        _rich_table(columns, cells, numbers)
        return
    everything = [list(columns), *cells]
    widths = [max(_width(row[at]) for row in everything) for at in range(len(columns))]
    for row in everything:
        padded = [
            " " * (width - _width(cell)) + cell if name in numbers else cell + " " * (width - _width(cell))
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(padded).rstrip())


def facts(pairs: Mapping[str, Any] | Iterable[tuple[str, Any]], *, indent: int = 0) -> None:
    """Names and values, one a line, values aligned; nested mappings one level deeper."""
    items = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    space = " " * indent
    width = max(
        (_width(clean(str(name))) for name, value in items if not isinstance(value, Mapping)), default=0
    )
    for name, value in items:
        shown = clean(str(name))
        if isinstance(value, Mapping):
            print(f"{space}{shown}:" + ("" if value else " none"))
            facts(value, indent=indent + 2)
        else:
            print(f"{space}{shown}:{' ' * (width - _width(shown))} {_value(value)}".rstrip())


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(str(name))} {_value(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        between = "; " if any(isinstance(item, Mapping) for item in value) else ", "
        return between.join(_value(item) for item in value) or "none"
    return clean(str(value))


def _width(text: str) -> int:
    """Columns that ``text`` takes: wide letters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _rich_table(columns: Sequence[str], cells: list[list[str]], numbers: set[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        drawn.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)
