"""A config file as it was written: its values, and the line on which each of them stands.

Readers make a ``Document``; everything later is about meaning. Limits guard the reader itself: 1 MiB of text,
50 levels of nesting, 50,000 values.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from protolith.errors import ConfigError, NotAllowedError, NotFoundError

MAX_BYTES = 2**20
MAX_DEPTH = 50
MAX_VALUES = 50_000

KeyPath = tuple[str, ...]


@dataclass
class Document:
    """Values of a file by the user's own names.

    Attributes:
        name: the file as the user named it, or what else the values came from.
        values: nested dicts, lists and plain values.
        lines: line number, from 1, of each key.
        problems: faults that did not keep the reader from going on, such as duplicate keys.
        changed: keys given by ``--set``, to the text of that option.
    """

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[ConfigError] = field(default_factory=list)
    changed: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """The place of a key, or of the nearest section around it.

        ``recipe.yaml:12``, ``--set a.b=v``, or just the name of the file.
        """
        for end in range(len(path), 0, -1):
            if path[:end] in self.changed:
                return f"--set {self.changed[path[:end]]}"
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return self.name


def read_text(path: str | PathLike[str]) -> str:
    """The text of a config file: UTF-8, with or without BOM, any line ends.

    Raises:
        NotFoundError, NotAllowedError: no such file, or it may not be read.
        ConfigError: a folder, too large, not UTF-8, or empty.
    """
    name = fspath(path)
    try:
        with open(Path(name).expanduser(), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError("no such config file", where=name, hint="check the path") from error
    except IsADirectoryError as error:
        raise ConfigError("this is a folder, not a config file", where=name) from error
    except PermissionError as error:
        raise NotAllowedError("the config file may not be read", where=name) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"the config file cannot be read: {error}", where=name) from error
    if len(data) > MAX_BYTES:
        raise ConfigError("a config file may have at most 1 MiB", where=name, hint="is this the right file?")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError("the file is UTF-16", where=name, hint="save it as UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"not UTF-8: byte 0x{data[error.start]:02x}",
            where=f"{name}:{line}",
            hint="save the file as UTF-8",
        ) from error
    text = text.replace("\r\n", "\n")
    if not text.strip():
        raise ConfigError("the file is empty", where=name)
    return text
