"""What ``protolith tokenize`` reads: local paths and URLs to files, each with its form.

Comes in: paths as typed (see ``data/files.py`` for what a path may be) and URLs that fsspec knows
(``s3://bucket/folder``, a single object, or a pattern). Goes out: ``SourceFile`` values in reading order.

The form follows from the name: Parquet, plain text (one document a file), else lines of JSON. A file or an
object that was named itself is always taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import groupby
from pathlib import Path
from typing import Any

import fsspec

from protolith.data.files import DataFile, find_files, name_some
from protolith.data.text import TEXT_SUFFIXES
from protolith.errors import (
    DataError,
    MissingExtraError,
    NotAllowedError,
    NotFoundError,
    ProtolithError,
    UsageError,
)

PARQUET_SUFFIXES = (".parquet",)
PLAIN_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
SUFFIXES = (*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *PLAIN_SUFFIXES)
_WHAT = "text"
_UNFINISHED = (".tmp", ".part", ".partial", ".crc")
_EXTRAS = {"s3": "s3", "s3a": "s3"}

LINES, PLAIN, PARQUET = "lines", "plain", "parquet"


@dataclass(frozen=True)
class SourceFile:
    """A file to tokenize.

    Attributes:
        location: absolute path, or URL.
        name: how messages call it: relative to the folder that was named.
        size_bytes: as it lies there, compressed or not.
        stamp: changes when the file does: time of change, or what the store gives instead ("" if nothing).
        form: "lines", "plain" or "parquet".
    """

    location: str
    name: str
    size_bytes: int
    stamp: str
    form: str

    @property
    def is_remote(self) -> bool:
        return "://" in self.location


def find_inputs(paths: Sequence[str]) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """All files behind ``paths`` that are not empty, and notes.

    Raises:
        NotFoundError, DataError, NotAllowedError: as ``find_files``.
        MissingExtraError: a URL needs a package.
    """
    found: list[SourceFile] = []
    notes: list[str] = []
    for remote, group in groupby(paths, key=lambda path: "://" in path):
        if remote:
            for url in group:
                found.extend(_remote(url))
        else:
            local = find_files(list(group), suffixes=SUFFIXES, what=_WHAT)
            notes.extend(local.notes)
            found.extend(map(_local, local.files))
    unique: dict[str, SourceFile] = {}
    repeated = []
    for file in found:
        key = file.location if file.is_remote else os.path.realpath(file.location)
        if key in unique:
            repeated.append(file.name)
        unique.setdefault(key, file)
    if repeated:
        notes.append(f"named more than once, read once: {name_some(repeated)}")
    empty = [file.name for file in unique.values() if not file.size_bytes]
    if empty:
        notes.append(f"skipped {len(empty)} empty files: {name_some(empty)}")
    return tuple(file for file in unique.values() if file.size_bytes), tuple(notes)


def _local(file: DataFile) -> SourceFile:
    location = str(Path.cwd() / file.path)
    return SourceFile(location, file.name, file.size_bytes, local_stamp(file.path.stat()), form_of(file.name))


def form_of(name: str) -> str:
    lower = name.lower()
    if lower.endswith(PARQUET_SUFFIXES):
        return PARQUET
    return PLAIN if lower.endswith(PLAIN_SUFFIXES) else LINES


def local_stamp(facts: os.stat_result) -> str:
    return str(facts.st_mtime_ns)


def remote_stamp(info: dict[str, Any]) -> str:
    """What a store says about an object's version."""
    for key in ("ETag", "etag", "LastModified", "mtime", "created"):
        if info.get(key) is not None:
            return str(info[key])
    return ""


def remote_fs(url: str) -> tuple[Any, str]:
    """(file system, path in it) of a URL.

    Raises:
        MissingExtraError: its package is not installed. UsageError: nobody knows this kind of URL.
    """
    protocol = url.split("://", 1)[0]
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise MissingExtraError(
            f"{protocol}:// needs a package that is not installed: {error}",
            where=url,
            hint=f"pip install 'protolith[{extra}]'" if extra else "install the package it names",
        ) from error
    except ValueError as error:
        raise UsageError(f"cannot read this kind of URL: {error}", where=url) from error
    return fs, path


def store_error(error: Exception, url: str) -> ProtolithError:
    """The typed form of what a store's library raised; each has errors of its own."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError("the object is gone", where=url)
    kind = type(error).__name__
    if isinstance(error, PermissionError) or "credentials" in kind.lower():
        return NotAllowedError(
            f"the store refuses: {error}", where=url, hint="are the credentials of the store set?"
        )
    return DataError(f"the store cannot be read: {kind}: {error}", where=url)


def _remote(url: str) -> Iterable[SourceFile]:
    fs, path = remote_fs(url)
    try:
        if fs.isfile(path):
            entries = {path: fs.info(path)}
            root = os.path.dirname(path)
        elif fs.isdir(path):
            root = path.rstrip("/")
            listing = fs.find(path, detail=True)
            entries = {name: listing[name] for name in sorted(listing) if _is_input(name[len(root) :])}
            if not entries:
                raise DataError(f"no {_WHAT} ({', '.join(SUFFIXES)}) in this folder", where=url)
        elif has_magic(path):
            listing = fs.glob(path, detail=True)
            entries = {
                name: listing[name]
                for name in sorted(listing)
                if listing[name]["type"] == "file" and not os.path.basename(name).startswith(".")
            }
            root = os.path.dirname(path[: next(at for at, letter in enumerate(path) if letter in "*?[")])
            if not entries:
                raise NotFoundError("no object has this name or matches it as a pattern", where=url)
        else:
            raise NotFoundError("no such object or folder", where=url)
    except ProtolithError:
        raise
    except Exception as error:
        raise store_error(error, url) from error
    for name, info in entries.items():
        short = name[len(root) :].lstrip("/") if root else name
        location = str(fs.unstrip_protocol(name))
        yield SourceFile(location, short, int(info["size"] or 0), remote_stamp(info), form_of(name))


def _is_input(name: str) -> bool:
    parts = name.lower().strip("/").split("/")
    hidden = any(part.startswith((".", "_temporary")) for part in parts)
    return not hidden and parts[-1].endswith(SUFFIXES) and not parts[-1].endswith(_UNFINISHED)
