"""What a file holds, as a digest, without reading it again while nothing can have changed.

A file's digest is remembered by place, size, inode and times of change, content and status (the last
cannot be set back by hand). A file changed less than two seconds before it was read is not remembered:
another change could carry the same time.

Of a remote file nothing is read where its storage gives every version of an object a name of its own (ETag,
generation): URL and version are the digest. Elsewhere it is read, each time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protolith.data.files import DataFile
from protolith.data.storage import RemotePath
from protolith.data.text_form import open_file
from protolith.errors import NotFoundError, ProtolithError
from protolith.formats.rundir import read_json, write_json

_PIECE_BYTES = 1 << 22
_SETTLED_S = 2.0
_MOST_REMEMBERED = 100_000
#: Storage whose versions are made anew by every write, never by a clock alone.
_VERSIONED = ("s3://", "s3a://", "gs://", "gcs://", "az://", "abfs://", "abfss://")


def content_digests(
    files: Sequence[DataFile], memory: Path, poll: Callable[[], None]
) -> tuple[list[str], tuple[str, ...]]:
    """SHA-256 of each file, and notes. ``memory`` is the JSON file in which digests are remembered; when
    it is damaged or cannot be written, files are read again and nothing else happens.

    Raises:
        NotFoundError, NotAllowedError, UnreachableError: a file cannot be read.
    """
    known = _remembered(memory)
    fresh: dict[str, list[Any]] = {}
    digests = []
    for file in files:
        if isinstance(file.path, RemotePath):
            digests.append(_digest_of_version(file) if has_version(file) else _digest(file, poll))
            continue
        place = os.path.realpath(file.path)
        mark = _mark(file.path)
        if known.get(place, [])[:-1] == mark:
            digests.append(str(known[place][-1]))
            continue
        started = time.time()
        digest = _digest(file, poll)
        digests.append(digest)
        if _mark(file.path) == mark and started - max(mark[2], mark[3]) / 1e9 > _SETTLED_S:
            fresh[place] = [*mark, digest]
    notes: tuple[str, ...] = ()
    if fresh:
        kept = {place: entry for place, entry in _remembered(memory).items() if os.path.exists(place)}
        merged = list({**kept, **fresh}.items())[-_MOST_REMEMBERED:]
        try:
            write_json(memory, dict(merged))
        except (ProtolithError, OSError) as error:
            notes = (f"digests of the text cannot be remembered: {error}",)
    return digests, notes


def has_version(file: DataFile) -> bool:
    """Whether its digest says where it lies and which version it is, and not what it holds."""
    return isinstance(file.path, RemotePath) and file.path.url.startswith(_VERSIONED) and bool(file.version)


def _digest_of_version(file: DataFile) -> str:
    url = file.path.url if isinstance(file.path, RemotePath) else ""
    return hashlib.sha256(f"{url} {file.version} {file.size_bytes}".encode()).hexdigest()


def _mark(path: Path) -> list[int]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise NotFoundError("the file is gone", where=str(path)) from None
    return [facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]


def _digest(file: DataFile, poll: Callable[[], None]) -> str:
    sha256 = hashlib.sha256()
    with open_file(file) as data:
        while piece := data.read(_PIECE_BYTES):
            sha256.update(piece)
            poll()
    return sha256.hexdigest()


def _remembered(memory: Path) -> dict[str, list[Any]]:
    try:
        content = read_json(memory)
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {place: entry for place, entry in content.items() if isinstance(entry, list) and len(entry) == 5}
