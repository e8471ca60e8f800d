"""Where the files of token shards lie, as far as reading a shard's sizes needs to know.

A store answers for sizes and bytes; ``LOCAL`` is that of this machine. Formats know of no network: whoever
reads shards from elsewhere brings a store of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar


class Place(Protocol):
    """The name of a file: a ``Path``, or what takes its place for files that lie elsewhere."""

    @property
    def name(self) -> str: ...

    def with_name(self, name: str) -> Self: ...


class ShardStore(Protocol):
    """Where the files of shards lie."""

    def facts(self, path: Any) -> tuple[int, str] | None:
        """Size in bytes and version ("" where there is none) of a file; None: there is none."""
        ...

    def pieces(self, path: Any, pieces: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """For each (start, count) the bytes of a file there; fewer when it ends before."""
        ...


class LocalStore:
    """Files of this machine. OSErrors pass through."""

    def facts(self, path: Path) -> tuple[int, str] | None:
        try:
            return path.stat().st_size, ""
        except FileNotFoundError:
            return None

    def pieces(self, path: Path, pieces: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as file:
            for start, count in pieces:
                piece = os.pread(file.fileno(), count, start)
                while len(piece) < count and (
                    more := os.pread(file.fileno(), count - len(piece), start + len(piece))
                ):
                    piece += more
                yield piece


LOCAL = LocalStore()

Named = TypeVar("Named", bound=Place)
