"""What a file holds, as a digest, without reading it again while nothing can have changed.

A file's digest is remembered by place, size, inode and times of change, content and status (the last
cannot be set back by hand). A file changed less than two seconds before it was read is not remembered:
another change could carry the same time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protolith.data.files import DataFile
from protolith.errors import NotAllowedError, NotFoundError, ProtolithError
from protolith.formats.rundir import read_json, write_json

_PIECE_BYTES = 1 << 22
_SETTLED_S = 2.0
_MOST_REMEMBERED = 100_000


def content_digests(
    files: Sequence[DataFile], memory: Path, poll: Callable[[], None]
) -> tuple[list[str], tuple[str, ...]]:
    """SHA-256 of each file, and notes. ``memory`` is the JSON file in which digests are remembered; when
    it is damaged or cannot be written, files are read again and nothing else happens.

    Raises:
        NotFoundError, NotAllowedError: a file cannot be read.
    """
    known = _remembered(memory)
    fresh: dict[str, list[Any]] = {}
    digests = []
    for file in files:
        place = os.path.realpath(file.path)
        mark = _mark(file)
        if known.get(place, [])[:-1] == mark:
            digests.append(str(known[place][-1]))
            continue
        started = time.time()
        digest = _digest(file, poll)
        digests.append(digest)
        if _mark(file) == mark and started - max(mark[2], mark[3]) / 1e9 > _SETTLED_S:
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


def _mark(file: DataFile) -> list[int]:
    try:
        facts = file.path.stat()
    except FileNotFoundError:
        raise NotFoundError("the file is gone", where=str(file.path)) from None
    return [facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns]


def _digest(file: DataFile, poll: Callable[[], None]) -> str:
    sha256 = hashlib.sha256()
    try:
        with open(file.path, "rb") as data:
            while piece := data.read(_PIECE_BYTES):
                sha256.update(piece)
                poll()
    except FileNotFoundError:
        raise NotFoundError("the file is gone", where=str(file.path)) from None
    except PermissionError as error:
        raise NotAllowedError("the file may not be read", where=str(file.path)) from error
    return sha256.hexdigest()


def _remembered(memory: Path) -> dict[str, list[Any]]:
    try:
        content = read_json(memory)
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {place: entry for place, entry in content.items() if isinstance(entry, list) and len(entry) == 5}
