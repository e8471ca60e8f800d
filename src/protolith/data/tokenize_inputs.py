"""What ``protolith tokenize`` reads: local paths and URLs to files, each with its form.

Comes in: paths and URLs as typed (see ``data/files.py`` for what they may be). Goes out: ``SourceFile``
values in reading order: plain facts, so that a task in another process can open them.

The form follows from the name: Parquet, plain text (one document a file), else lines of JSON. A file or an
object that was named itself is always taken.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protolith.data.files import DataFile, find_files, name_some
from protolith.data.storage import RemotePath, Stat, is_remote, open_binary
from protolith.data.text import TEXT_SUFFIXES
from protolith.errors import DataError, NotFoundError

PARQUET_SUFFIXES = (".parquet",)
PLAIN_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
SUFFIXES = tuple(dict.fromkeys((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *PLAIN_SUFFIXES)))

LINES, PLAIN, PARQUET = "lines", "plain", "parquet"


@dataclass(frozen=True)
class SourceFile:
    """A file to tokenize.

    Attributes:
        location: absolute path, or URL.
        name: how messages call it: relative to the folder that was named.
        size_bytes: as it lies there, compressed or not.
        stamp: changes when the file does: time of change, or the version that the store tells.
        form: "lines", "plain" or "parquet".
    """

    location: str
    name: str
    size_bytes: int
    stamp: str
    form: str

    @property
    def is_remote(self) -> bool:
        return is_remote(self.location)

    def as_data(self) -> DataFile:
        """The same file, as readers of text know it."""
        if self.is_remote:
            return DataFile(RemotePath(self.location), self.name, self.size_bytes, self.stamp)
        return DataFile(Path(self.location), self.name, self.size_bytes)

    def open(self) -> BinaryIO:
        """Its bytes, to be read in order or sought; unbuffered where it is local.

        Raises:
            NotFoundError, NotAllowedError, UnreachableError: it cannot be opened.
            DataError: it is another one than was found.
        """
        if self.is_remote:
            return open_binary(RemotePath(self.location), Stat(self.size_bytes, self.stamp))
        try:
            return io.FileIO(self.location)
        except FileNotFoundError:
            raise NotFoundError("the file is gone", where=self.location) from None

    def check_unchanged(self) -> None:
        """Raises DataError when a local file is not what was found. (No other remote one is ever read.)"""
        if self.is_remote:
            return
        try:
            facts = Path(self.location).stat()
        except FileNotFoundError:
            raise NotFoundError("the file is gone", where=self.location) from None
        if (facts.st_size, str(facts.st_mtime_ns)) != (self.size_bytes, self.stamp):
            raise DataError(
                "the file changed while it was read",
                where=self.location,
                hint="start again when it is complete",
            )


def find_inputs(paths: Sequence[str]) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """All files behind ``paths`` that are not empty, and notes.

    Raises:
        NotFoundError, DataError, NotAllowedError, UnreachableError: as ``find_files``.
        MissingExtraError: a URL needs a package.
    """
    found = find_files(list(paths), suffixes=SUFFIXES, what="text")
    files = [_source(file) for file in found.files]
    notes = list(found.notes)
    empty = [file.name for file in files if not file.size_bytes]
    if empty:
        notes.append(f"skipped {len(empty)} empty files: {name_some(empty)}")
    return tuple(file for file in files if file.size_bytes), tuple(notes)


def _source(file: DataFile) -> SourceFile:
    if isinstance(file.path, RemotePath):
        return SourceFile(file.path.url, file.name, file.size_bytes, file.version, form_of(file.name))
    stamp = str(file.path.stat().st_mtime_ns)
    return SourceFile(str(Path.cwd() / file.path), file.name, file.size_bytes, stamp, form_of(file.name))


def form_of(name: str) -> str:
    lower = name.lower()
    if lower.endswith(PARQUET_SUFFIXES):
        return PARQUET
    return PLAIN if lower.endswith(PLAIN_SUFFIXES) else LINES
