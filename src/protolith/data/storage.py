"""Where bytes lie: files of this machine, and files behind a URL (``s3://``, ``gs://``, ``memory://`` ...).

Comes in: a location, a ``Path`` or a ``RemotePath``. Goes out: its bytes, from a place on (``open_at``) or
in order (``open_binary``); its size and version (``stat``); what lies below a URL (``list_files``).

- *Clients* are fsspec's: see ``data/storage_client.py``.
- *Faults* of network and server are waited for, then typed: see ``data/storage_faults.py``.
- *One object all the time.* What is read belongs to the version (ETag, generation, time) that was opened: S3
  is asked for exactly that version, other storage is asked for its version with every read. An object that
  was written again in between is an error, never a mixture of two.
- *Memory*: ``open_at`` holds nothing; ``open_binary`` holds a piece and reads the next one ahead: 8 MiB.

Threads may share what ``open_at`` returns; their reads go on at the same time. A process that was forked asks
with connections of its own.

What it does not do: write, cache (``data/block_cache.py``), or know what a file holds.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from protolith.data.storage_client import (
    ListedFile,
    RemotePath,
    Stat,
    fetch,
    info_of,
    is_remote,
    list_files,
    stat_of,
)
from protolith.data.storage_faults import ObjectChangedError, asked
from protolith.errors import DataError, NotAllowedError, NotFoundError

__all__ = [
    "ListedFile", "Location", "Reader", "RemotePath", "Stat", "is_remote", "list_files", "location",
    "open_at", "open_binary", "read_bytes", "stat",
]  # fmt: skip

#: The first piece of a file read in order, and the largest; pieces grow while nobody seeks.
_FIRST_PIECE_BYTES = 1 << 18
_PIECE_BYTES = 1 << 22

Location = Path | RemotePath


class Reader(Protocol):
    """Bytes of one version of one file, from any place on."""

    size: int
    version: str

    def read_into(self, buffer: memoryview, start_bytes: int) -> None:
        """Fill ``buffer`` (bytes) from byte ``start_bytes`` of the file on.

        Raises:
            DataError: the file ends before, or is not the one that was opened.
            NotFoundError, NotAllowedError, UnreachableError: as when it was opened.
        """
        ...


def location(text: str) -> Location:
    """A path as a user wrote it."""
    return RemotePath(text) if is_remote(text) else Path(text).expanduser()


def stat(place: Location) -> Stat:
    """Size and version of a file.

    Raises:
        NotFoundError: there is none.
        NotAllowedError: it may not be looked at.
        UnreachableError: the storage does not answer.
    """
    if isinstance(place, Path):
        try:
            facts = place.stat()
        except OSError as error:
            raise _local(error, place) from error
        return Stat(facts.st_size, f"{facts.st_mtime_ns}-{facts.st_ino}")
    found = info_of(place)
    if found["type"] != "file":
        raise NotFoundError("this is a folder, not a file", where=str(place))
    return stat_of(found)


def open_at(
    place: Location,
    known: Stat | None = None,
    *,
    changed: Callable[[str], DataError] | None = None,
) -> Reader:
    """A reader of any place of a file.

    Args:
        place: the file.
        known: what a listing said of it: then nothing is asked until it is read.
        changed: makes the error for a file that is not what it was, from how it differs.

    Raises:
        NotFoundError, NotAllowedError, UnreachableError: as ``stat``.
    """

    def changed_data(how: str) -> DataError:
        return DataError(
            f"{place.name} {how}", where=str(place), hint="something writes to the data while it is read"
        )

    if isinstance(place, Path):
        return _LocalReader(place, changed or changed_data)
    return _RemoteReader(place, known or stat(place), changed or changed_data)


def open_binary(place: Location, known: Stat | None = None) -> BinaryIO:
    """The file, to be read in order; ``seek`` works. Arguments and errors as ``open_at``."""
    if isinstance(place, Path):
        try:
            return open(place, "rb")
        except OSError as error:
            raise _local(error, place) from error
    return io.BufferedReader(_InOrder(open_at(place, known)), 1 << 16)


def read_bytes(place: Location) -> bytes:
    """All of a small file. Errors as ``open_at``."""
    reader = open_at(place)
    content = bytearray(reader.size)
    reader.read_into(memoryview(content), 0)
    return bytes(content)


class _LocalReader:
    """A file of this machine; closed with its last reference."""

    def __init__(self, path: Path, changed: Callable[[str], DataError]) -> None:
        self._descriptor = -1
        self._changed = changed
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _local(error, path) from error
        facts = os.fstat(self._descriptor)
        self.size = facts.st_size
        self.version = f"{facts.st_mtime_ns}-{facts.st_ino}"

    def read_into(self, buffer: memoryview, start_bytes: int) -> None:
        filled = 0
        while filled < len(buffer):
            more = os.preadv(self._descriptor, [buffer[filled:]], start_bytes + filled)
            if more == 0:
                raise self._changed(f"ends at byte {start_bytes + filled} now")
            filled += more

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _RemoteReader:
    """One version of an object."""

    def __init__(self, place: RemotePath, facts: Stat, changed: Callable[[str], DataError]) -> None:
        self.size = facts.size
        self.version = facts.version
        self._place = place
        self._changed = changed

    def read_into(self, buffer: memoryview, start_bytes: int) -> None:
        stop = start_bytes + len(buffer)
        if stop > self.size:
            raise self._changed(f"has {self.size} bytes; bytes {start_bytes} to {stop} were asked for")
        if not buffer:
            return

        def whole() -> bytes:
            data = fetch(self._place, self.version, start_bytes, stop)
            if len(data) < len(buffer):  # cut on the way, or the object is: the next try tells
                now = stat_of(info_of(self._place))
                if now.size != self.size:
                    raise ObjectChangedError(f"has {now.size} bytes now, not {self.size} as before")
                raise OSError(errno.EIO, f"{len(data)} bytes came, not {len(buffer)}")
            return data

        try:
            buffer[:] = asked(whole, self._place.url)
        except ObjectChangedError as error:
            raise self._changed(str(error)) from error


class _InOrder(io.RawIOBase):
    """A reader as a file that is read from its beginning to its end.

    State: the piece in hand and, once two neighbouring pieces were read, the next one on its way. Pieces grow
    from 256 KiB to 4 MiB while nobody seeks, so that looking here and there costs little.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._at = 0
        self._piece = b""
        self._piece_start = 0
        self._next_bytes = _FIRST_PIECE_BYTES
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.size}[whence]
        if start + offset < 0:
            raise ValueError(f"seek to byte {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        if self._at >= self._reader.size:
            return 0
        if not self._piece_start <= self._at < self._piece_start + len(self._piece):
            self._turn_to(self._at)
        inside = self._at - self._piece_start
        count = min(len(buffer), len(self._piece) - inside)
        memoryview(buffer).cast("B")[:count] = memoryview(self._piece)[inside : inside + count]
        self._at += count
        return count

    def _turn_to(self, start: int) -> None:
        in_order = bool(self._piece) and start == self._piece_start + len(self._piece)
        self._next_bytes = min(4 * self._next_bytes, _PIECE_BYTES) if in_order else _FIRST_PIECE_BYTES
        ahead, self._ahead = self._ahead, None
        self._piece = b""  # let go before the next one comes
        if ahead is not None and ahead[0] == start:
            self._piece = ahead[1].result()
        else:
            self._piece = self._read(start, self._next_bytes)
        self._piece_start = start
        following = start + len(self._piece)
        if in_order and following < self._reader.size:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ahead")
            self._ahead = following, self._thread.submit(self._read, following, _PIECE_BYTES)

    def _read(self, start: int, count: int) -> bytes:
        piece = bytearray(min(count, self._reader.size - start))
        self._reader.read_into(memoryview(piece), start)
        return bytes(piece)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
        self._ahead, self._piece = None, b""
        super().close()


def _local(error: OSError, path: Path) -> NotFoundError | NotAllowedError | OSError:
    """A file of this machine that cannot be opened, as our own error."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError("no such file", where=str(path))
    if isinstance(error, PermissionError):
        return NotAllowedError(f"may not be read: {error.strerror}", where=str(path))
    return error
