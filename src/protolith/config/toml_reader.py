"""TOML text -> ``Document``.

``tomllib`` proves the text and gives the values. It does not say where a key stands, so a small scanner walks
over the same text, which by then is known to be valid, and notes the line of each table header and key. Keys
inside an inline table share the line of that table.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from protolith.config.document import MAX_DEPTH, MAX_VALUES, Document, KeyPath
from protolith.errors import ConfigError

_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)\Z")
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+)\]\s*(#.*)?\Z")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEY_TOKEN = re.compile(r"""[\w-]+|"[^"\n]*"|'[^'\n]*'|\.|[ \t]+|.""")


def read_toml(text: str, name: str) -> Document:
    """Parse a whole TOML file.

    Raises:
        ConfigError: the first thing that is no TOML, with its line.
    """
    document = Document(name)
    # A last line without an end would make tomllib say "end of document" instead of a line.
    document.values = _parse(text if text.endswith("\n") else text + "\n", name)
    _check_size(document.values, name)
    if not document.values:
        raise ConfigError("the file is empty", where=name, hint="it holds comments only")
    document.lines = _Scanner(text + "\n").scan()
    return document


def read_toml_value(text: str) -> Any:
    """The value of ``--set key=text``. A word that is no TOML value is plain text: ``optim.type=adamw``."""
    if "\n" in text:
        raise ConfigError("a value of --set stands on one line", where="--set")
    if text.lstrip().startswith(("[", "{", '"', "'")):
        return _parse(f"value = {text}\n", "--set")["value"]
    try:
        return tomllib.loads(f"value = {text}\n")["value"]
    except ValueError:
        return text


def _parse(text: str, name: str) -> dict[str, Any]:
    _refuse_endless_keys(text, name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, name) from error
    except RecursionError as error:
        raise ConfigError(f"nested more than {MAX_DEPTH} levels deep", where=name) from error
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError("a number has too many digits", where=name) from error


def _refuse_endless_keys(text: str, name: str) -> None:
    """A key of n dotted parts costs tomllib n^2 memory, so it is refused before."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") <= MAX_DEPTH:
            continue
        parts = 0
        last = ""
        for match in _KEY_TOKEN.finditer(line):
            token = match.group()
            if token.isspace():
                continue
            # a.b.c: a part follows a dot, and a dot follows a part.
            parts = parts + 1 if token == "." and last not in ("", ".") else (parts if last == "." else 0)
            last = token
            if parts > MAX_DEPTH:
                raise ConfigError(f"nested more than {MAX_DEPTH} levels deep", where=f"{name}:{number}")


def _syntax_error(said: str, text: str, name: str) -> ConfigError:
    match = _PLACE.search(said)
    line = int(match.group(1)) if match and match.group(1) else text.count("\n")
    reason = _PLACE.sub("", said)
    lines = text.split("\n")
    here = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    key, equals, value = (part.strip() for part in here.partition("="))
    where = f"{name}:{line}"
    if "overwrite a value" in reason:
        section = _section_above(lines[: line - 1])
        return ConfigError(f"{section}{key}: given twice", where=where, hint="keep one of them")
    if "twice" in reason:
        return ConfigError(
            f"{here}: this section is given twice", where=where, hint="put its keys in one place"
        )
    hint = ""
    if "Invalid value" in reason and value[:1].isalpha():
        hint = (
            f'text needs quotes: {key} = "{value}"'
            if value.split()[0].lower() not in ("true", "false")
            else ("truth values are true and false, in small letters")
        )
    elif "Expected '='" in reason and not equals and ":" in here:
        hint = "TOML writes key = value; a YAML recipe is named .yaml"
    return ConfigError(f"not TOML: {reason[0].lower()}{reason[1:]}", where=where, hint=hint)


def _section_above(lines: list[str]) -> str:
    """``"optim."`` when the last header above is ``[optim]``."""
    for line in reversed(lines):
        if match := _HEADER.match(line):
            return f"{match.group(1).strip()}."
    return ""


def _check_size(values: dict[str, Any], name: str) -> None:
    pending: list[tuple[Any, int]] = [(values, 0)]
    seen = 0
    while pending:
        value, depth = pending.pop()
        seen += 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"nested more than {MAX_DEPTH} levels deep", where=name)
        if seen > MAX_VALUES:
            raise ConfigError(f"more than {MAX_VALUES} values", where=name)
        if isinstance(value, dict):
            pending.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            pending.extend((item, depth + 1) for item in value)


class _Scanner:
    """Notes the lines of keys in valid TOML."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[KeyPath, int] = {}
        self._counted_to = 0
        self._line = 1
        self._array_sizes: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            line = self._current_line()
            if self._text.startswith("[[", self._at):
                path = self._header(2)
                number = self._array_sizes.get(path, 0)
                self._array_sizes[path] = number + 1
                self._note(path, line)
                table = (*path, str(number))
                self._note(table, line)
            elif self._text[self._at] == "[":
                table = self._header(1)
                self._note(table, line)
            else:
                self._note((*table, *self._dotted("=")), line)
                self._skip_value()
        return self._lines

    def _note(self, path: KeyPath, line: int) -> None:
        for end in range(1, len(path) + 1):
            self._lines.setdefault(path[:end], line)

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

    def _skip_blank(self) -> bool:
        while self._at < len(self._text):
            if self._text[self._at] in " \t\r\n":
                self._at += 1
            elif self._text[self._at] == "#":
                self._skip_line()
            else:
                return True
        return False

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _header(self, brackets: int) -> KeyPath:
        self._at += brackets
        path = self._dotted("]")
        self._skip_line()
        # Keys below an array of tables belong to its newest entry.
        placed: KeyPath = ()
        for part in path[:-1]:
            placed = (*placed, part)
            if placed in self._array_sizes:
                placed = (*placed, str(self._array_sizes[placed] - 1))
        return (*placed, path[-1])

    def _dotted(self, end: str) -> KeyPath:
        """A dotted key up to ``end``, which is stepped over."""
        parts: list[str] = []
        while self._text[self._at] != end:
            mark = self._text[self._at]
            if mark in "\"'":
                start = self._at
                self._skip_string()
                parts.append(str(tomllib.loads(f"v = {self._text[start : self._at]}")["v"]))
            elif match := _BARE.match(self._text, self._at):
                parts.append(match.group())
                self._at = match.end()
            else:  # a dot or a blank
                self._at += 1
        self._at += 1
        return tuple(parts)

    def _skip_value(self) -> None:
        """To the end of the line on which the value ends."""
        depth = 0
        while self._at < len(self._text):
            mark = self._text[self._at]
            if mark in "\"'":
                self._skip_string()
                continue
            if mark == "#":
                self._skip_line()
                continue
            if mark == "\n" and depth == 0:
                return
            depth += (mark in "[{") - (mark in "]}")
            self._at += 1

    def _skip_string(self) -> None:
        mark = self._text[self._at]
        fence = mark * 3 if self._text.startswith(mark * 3, self._at) else mark
        self._at += len(fence)
        while not self._text.startswith(fence, self._at):
            self._at += 2 if mark == '"' and self._text[self._at] == "\\" else 1
        self._at += len(fence)
        # Up to two more quotes may belong to the end of a multi-line text.
        while len(fence) == 3 and self._text.startswith(mark, self._at):
            self._at += 1
