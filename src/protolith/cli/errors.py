"""How a command ends badly: one place, three lines, an exit code.

Comes in: whatever a command raised. Goes out: on stderr what is wrong, where, and what to do next; or,
when the command line asked for JSON, one document ``{"error": {...}}`` alone on stdout. A typed error is
for a person and never brings a traceback (unless PROTOLITH_DEBUG is set); anything else is our own fault:
its traceback goes into a file that the message names.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from protolith.cli.render import clean, print_json
from protolith.distributed.outcome import hand_in_error
from protolith.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    NoSpaceError,
    NotAllowedError,
    ProtolithError,
    UsageError,
)

#: Errors of the command-line parser: what it has in common with ``typer.BadParameter``, whichever parser
#: this version of typer brings.
_PARSER_ERROR: Any = typer.BadParameter.__mro__[2]

#: Commands whose ``--output`` is a folder; everywhere else it is the long form of ``-o``.
_OUTPUT_IS_A_FOLDER = ("export", "tokenize", "tokenizer")


def exit_code_of(action: Callable[[], int], arguments: Sequence[str]) -> int:
    """Do ``action`` and say how it ended: its own code, or that of the error it raised, shown."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except typer.Exit as leave:
        return _flushed(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as error:  # noqa: BLE001 - this is where every error ends
        return _flushed(_show(error, as_json=wants_json(arguments)))


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for JSON, also when it is too wrong to be parsed."""
    words = list(arguments)
    if "--" in words:
        words = words[: words.index("--")]
    command = next((word for word in words if not word.startswith("-")), "")
    names = ["-o"] if command in _OUTPUT_IS_A_FOLDER else ["-o", "--output"]
    if any(word in ("-ojson", "-o=json") or (word == "--output=json" and len(names) == 2) for word in words):
        return True
    return any(name in names and value == "json" for name, value in pairwise(words))


def _show(error: Exception, *, as_json: bool) -> int:
    typed = _typed(error)
    if os.environ.get("PROTOLITH_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if hand_in_error(typed):
        return typed.exit_code
    if as_json:
        print_json({"error": typed.to_dict()})
    else:
        for line in error_lines(typed):
            print(line, file=sys.stderr)
    return typed.exit_code


def error_lines(error: ProtolithError) -> list[str]:
    """What is wrong, where, what to do; then further faults found at the same time, one line each."""
    lines = [f"error: {_one_line(error.message)}"]
    if error.where:
        lines.append(f"where: {_one_line(error.where)}")
    if error.hint:
        lines.append(f"hint:  {_one_line(error.hint)}")
    details = error.to_dict()
    for more in (*details.get("problems", ()), *details.get("differences", ())):
        if isinstance(more, dict):
            place = f"{more['where']}: " if more.get("where") else ""
            hint = f" ({more['hint']})" if more.get("hint") else ""
            more = f"{place}{more['message']}{hint}"
        if more != error.message:
            lines.append(f"       - {_one_line(str(more))}")
    return lines


def _typed(error: Exception) -> ProtolithError:
    """The same as an error of our tree."""
    if isinstance(error, ProtolithError):
        return error
    if isinstance(error, _PARSER_ERROR):
        context = getattr(error, "ctx", None)
        path = context.command_path.rstrip() if context is not None else "protolith"
        message = error.format_message().replace("Value error, ", "")
        return UsageError(message, where=path, hint=f"{path} --help shows what it takes")
    if isinstance(error, OSError) and error.filename is not None:
        place = (
            os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
        )
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return NotAllowedError(f"the system refuses: {error.strerror}", where=place)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"no space left: {error.strerror}", where=str(error.filename or ""))
    return _unexpected(error)


class _InternalError(ProtolithError):
    """Not meant to happen."""

    code = "internal"
    exit_code = EXIT_FAILED


def _unexpected(error: Exception) -> ProtolithError:
    message = f"unexpected {type(error).__name__}: {error}".rstrip(": ")
    if os.environ.get("PROTOLITH_DEBUG"):
        return _InternalError(message, hint="this is a fault of the program; the traceback is above")
    kept = _keep_traceback(error)
    if kept is None:
        return _InternalError(message, hint="set PROTOLITH_DEBUG=1 to see the traceback")
    return _InternalError(
        message,
        where=f"traceback in {kept}",
        hint="this is a fault of the program: please report it with that file",
    )


def _keep_traceback(error: Exception) -> Path | None:
    """Write the traceback where its owner alone can read it; None when nothing can be written."""
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    text = "".join(traceback.format_exception(error))
    home = Path(os.environ.get("PROTOLITH_HOME") or "~/.protolith").expanduser()
    for folder in (home / "errors", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.write(text)
            return folder / name
        except OSError:
            continue
    return None


def _one_line(text: str) -> str:
    return clean(" ".join(part.strip() for part in text.splitlines() if part.strip()))


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left(code)
    return code


def _reader_left(code: int = EXIT_DONE) -> int:
    """Nobody reads stdout any more (``| head``): not a fault. Keeps the interpreter from flushing again."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return code


def make_streams_lenient() -> None:
    """Letters that the terminal's encoding lacks are written as escapes instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
