"""All token shards of a corpus as one number line.

Comes in: proved shards (``ShardInfo``) in reading order; they may mix 2-byte and 4-byte ids.
Goes out: tokens start .. stop of the pool, across shard borders, and where each shard's documents end.

State: where each shard starts (a number a shard), and the most recently used files. A file is opened when it
is first read, and at most ``max_open_files`` stay open, so ten thousand shards open at once without a file
being touched. Any number of threads may read: a file that the pool lets go of is closed when its last
reader is done.

Ids are read, not mapped: a row is one small ``preadv`` into the row's own memory. It costs a microsecond more
than copying from a warm map; but a cold map reads ahead by megabytes at every random row, and a file that
is cut while it is mapped kills the process, where a short read is an error with a name. Document ends are
mapped: they are looked up here and there, eight bytes at a time.

Shards behind URLs are read through a bounded block cache on the local disk (``data/block_cache.py``); the
blocks of all rows asked for in one call are fetched at the same time. See ``data/remote_shards.py``.

With ``vocab_size`` every id that is read is held against it: a beginning that was sampled and found good
does not prove the rest, and an id too large ends far from here, in the embedding of some device.

What it does not do: find shards, prove them, or notice that a file's content is changed while it trains.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from protolith.data.block_cache import BlockCache, shared_cache
from protolith.data.identity import shard_identities
from protolith.data.remote_shards import RemoteEnds, RemoteFile
from protolith.data.storage import RemotePath, Stat
from protolith.errors import DataError, NotAllowedError, NotFoundError, ShardError
from protolith.formats.shard_files import ShardInfo

Tokens = npt.NDArray[np.int64]
Held = TypeVar("Held")

_ID_TYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
# Signed: an unsigned array mixed with a signed one silently becomes floats.
_END_TYPE = np.dtype("<i8")
_MOST_OPEN_FILES = 8192


class TokenPool:
    """Shards end to end. Token g of the pool is token g - starts[k] of the shard k it falls in.

    Attributes:
        shards: in reading order.
        starts: int64[num_shards + 1], where each shard starts; the last entry is ``num_tokens``.
        num_tokens: all ids.
        num_documents: documents of all shards that have an index.
        vocab_size: ids must be below it; None when nobody said.
        is_remote: whether a shard lies behind a URL.
    """

    def __init__(
        self,
        shards: tuple[ShardInfo, ...],
        *,
        vocab_size: int | None = None,
        max_open_files: int | None = None,
        blocks: BlockCache | None = None,
    ) -> None:
        self.shards = shards
        self.starts = np.zeros(len(shards) + 1, dtype=np.int64)
        np.cumsum([shard.num_tokens for shard in shards], out=self.starts[1:])
        self.num_tokens = int(self.starts[-1])
        self.num_documents = sum(shard.num_documents for shard in shards)
        self.vocab_size = vocab_size
        self._bounds: list[int] = self.starts.tolist()  # one look-up is several times faster in a list
        self._id_type = _ID_TYPES[max((shard.token_bytes for shard in shards), default=2)]
        limit = max_open_files or _affordable_files()
        self.is_remote = any(isinstance(shard.path, RemotePath) for shard in shards)
        self._blocks = blocks
        self._files = _Recent(limit, self._open_ids)
        self._ends = _Recent(limit, self._map_ends)
        self._identity: list[dict[str, Any]] | None = None

    @classmethod
    def open(
        cls,
        shards: Sequence[ShardInfo],
        *,
        vocab_size: int | None = None,
        max_open_files: int | None = None,
        blocks: BlockCache | None = None,
    ) -> TokenPool:
        """A pool of these shards. No file is touched yet.

        Args:
            shards: in reading order.
            vocab_size: refuse ids that are not below it.
            max_open_files: of ids, and as many of document ends; default: what the process can afford.
            blocks: the cache that remote shards are read through; default: the one of this process.

        Raises:
            DataError: no shard, or no token in any.
        """
        pool = cls(tuple(shards), vocab_size=vocab_size, max_open_files=max_open_files, blocks=blocks)
        if pool.num_tokens == 0:
            raise DataError(f"no tokens in {len(pool.shards)} shards", hint="tokenize the text again")
        return pool

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens ``start`` to ``stop - 1`` of the pool: int64[stop - start].

        Raises:
            ShardError: an id beyond the vocabulary, or a file that is not what it was when it was proved.
            NotFoundError, NotAllowedError: a file that is gone, or may not be read any more.
        """
        tokens: Tokens = self.read_windows([start], stop - start)[0].astype(np.int64)
        return tokens

    def read_windows(self, starts: Sequence[int], length: int) -> npt.NDArray[Any]:
        """From each start, ``length`` tokens of the pool: [len(starts), length], in the pool's widest ids
        (unsigned: to be cast before there is arithmetic). Errors as ``read``."""
        windows = np.empty((len(starts), length), dtype=self._id_type)
        if windows.size == 0:
            return windows
        if self.is_remote:
            self._want(starts, length)
        bounds, width, num_tokens = self._bounds, windows.itemsize, self.num_tokens
        into, size = windows.data.cast("B"), length * width
        held: dict[int, _OpenFile | RemoteFile] = {}  # looked up once a shard, not once a row
        for place, start in enumerate(starts):
            if start < 0 or start + length > num_tokens:
                raise IndexError(f"tokens {start} to {start + length} of {num_tokens}")
            number = bisect_right(bounds, start) - 1
            if start + length > bounds[number + 1] or self.shards[number].token_bytes != width:
                self._fill_across(windows[place], number, start - bounds[number])
                continue
            file = held.get(number) or held.setdefault(number, self._files.get(number))
            if isinstance(file, _OpenFile):
                file.fill(into[place * size : (place + 1) * size], (start - bounds[number]) * width)
            else:
                file.read_into(windows[place], (start - bounds[number]) * width)
        if self.vocab_size is not None and int(windows.max()) >= self.vocab_size:
            raise self._beyond_vocabulary(starts, windows)
        return windows

    def shard_of(self, token: int) -> tuple[int, int]:
        """Number of the shard that token ``token`` of the pool is in, and its offset there, in tokens."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} of {self.num_tokens}")
        number = bisect_right(self._bounds, token) - 1
        return number, token - self._bounds[number]

    def read_shard(self, number: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Tokens ``start`` to ``stop - 1`` of one shard, in the width they have on disk. The vocabulary is
        not looked at; other errors as ``read``."""
        shard = self.shards[number]
        if not 0 <= start <= stop <= shard.num_tokens:
            raise IndexError(f"tokens {start} to {stop} of {shard.num_tokens}")
        ids = np.empty(stop - start, dtype=_ID_TYPES[shard.token_bytes])
        if len(ids):
            file = self._files.get(number)
            if isinstance(file, RemoteFile):
                file.read_sparing(ids, start * shard.token_bytes)
            else:
                file.read_into(ids, start * shard.token_bytes)
        return ids

    def document_ends(self, number: int) -> Tokens:
        """Where each document of one shard ends, in tokens of that shard: mapped, read-only, ascending. Of a
        remote shard a ``RemoteEnds``, which takes the array's place.

        Raises:
            ShardError: the shard has no index.
        """
        return self._ends.get(number)

    def read_document_ends(self, number: int, start: int, stop: int) -> Tokens:
        """The ends of documents ``start`` to ``stop - 1`` of one shard, read: to go through all of them."""
        shard = self.shards[number]
        if not 0 <= start <= stop <= shard.num_documents:
            raise IndexError(f"documents {start} to {stop} of {shard.num_documents}")
        ends = np.empty(stop - start, dtype=_END_TYPE)
        if len(ends):
            index = self._open_index(number)
            if isinstance(index, RemoteFile):
                index.read_sparing(ends, start * _END_TYPE.itemsize)
            else:
                index.read_into(ends, start * _END_TYPE.itemsize)
        return ends

    def identity(self) -> list[dict[str, Any]]:
        """What tells this corpus from any other, one entry a shard: see ``data/identity.py``."""
        if self._identity is None:
            self._identity = shard_identities(self.shards)
        return self._identity

    def close(self) -> None:
        """Let go of all files. A pool that is read afterwards opens them again."""
        self._files.clear()
        self._ends.clear()

    def _fill(self, row: npt.NDArray[Any], number: int, offset: int) -> None:
        """Tokens of one shard from ``offset`` on, as many as the row takes."""
        if self.shards[number].token_bytes == row.itemsize:
            self._files.get(number).read_into(row, offset * row.itemsize)
        else:
            ids = np.empty(len(row), dtype=_ID_TYPES[self.shards[number].token_bytes])
            self._files.get(number).read_into(ids, offset * ids.itemsize)
            row[:] = ids

    def _fill_across(self, row: npt.NDArray[Any], number: int, offset: int) -> None:
        """Tokens from ``offset`` of shard ``number`` on, through as many shards as it takes."""
        filled = 0
        while filled < len(row):
            count = min(len(row) - filled, self.shards[number].num_tokens - offset)
            if count:
                self._fill(row[filled : filled + count], number, offset)
            filled, number, offset = filled + count, number + 1, 0

    def _beyond_vocabulary(self, starts: Sequence[int], windows: npt.NDArray[Any]) -> ShardError:
        vocab_size = self.vocab_size or 0
        row, column = np.unravel_index(int((windows >= vocab_size).argmax()), windows.shape)
        number, offset = self.shard_of(starts[int(row)] + int(column))
        return beyond_vocabulary(self.shards[number], offset, int(windows[row, column]), vocab_size)

    def _want(self, starts: Sequence[int], length: int) -> None:
        """Let the blocks of all windows come at the same time."""
        for start in starts:
            stop = min(start + length, self.num_tokens)
            number = bisect_right(self._bounds, start) - 1
            while start < stop:
                base, end = self._bounds[number], min(stop, self._bounds[number + 1])
                file = self._files.get(number)
                if end > start and isinstance(file, RemoteFile):
                    width = self.shards[number].token_bytes
                    file.want((start - base) * width, (end - base) * width)
                start, number = end, number + 1

    def _open_ids(self, number: int) -> _OpenFile | RemoteFile:
        shard = self.shards[number]
        return self._open(shard, shard.path, shard.version, shard.num_tokens * shard.token_bytes)

    def _open_index(self, number: int) -> _OpenFile | RemoteFile:
        shard = self.shards[number]
        if shard.index_path is None:
            raise ShardError("it has no index, so where its documents end is not known", where=shard.name)
        size = shard.num_documents * _END_TYPE.itemsize
        return self._open(shard, shard.index_path, shard.index_version, size)

    def _open(self, shard: ShardInfo, path: Any, version: str, size: int) -> _OpenFile | RemoteFile:
        if isinstance(path, RemotePath):
            return RemoteFile(path, Stat(size, version), shard.name, self._blocks or shared_cache())
        return _OpenFile(shard, path, size)

    def _map_ends(self, number: int) -> Tokens:
        index = self._open_index(number)
        num_documents = self.shards[number].num_documents
        if num_documents == 0:  # nothing of 0 bytes can be mapped
            return np.empty(0, dtype=_END_TYPE)
        if isinstance(index, RemoteFile):
            return cast(Tokens, RemoteEnds(index, num_documents))
        mapped = mmap.mmap(index.descriptor, num_documents * _END_TYPE.itemsize, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(mapped, dtype=_END_TYPE)


def beyond_vocabulary(shard: ShardInfo, offset: int, token_id: int, vocab_size: int) -> ShardError:
    """The error for an id the model has no embedding for."""
    return ShardError(
        f"id {token_id} at token {offset} is beyond the model's vocabulary of {vocab_size}",
        where=shard.name,
        hint="these shards were made with another tokenizer, or the model's vocab_size is too small",
    )


def _affordable_files() -> int:
    """An eighth of the files the process may open, and no more than 8192."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else max(8, min(_MOST_OPEN_FILES, soft // 8))


class _OpenFile:
    """A file open for reading, with the size it was proved with; closed with its last reference."""

    def __init__(self, shard: ShardInfo, path: Path, size: int) -> None:
        self.descriptor = -1
        self._shard_name = shard.name
        self._file_name = path.name
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError(f"{path.name} is gone; it was there before", where=shard.name) from None
        except PermissionError as error:
            raise NotAllowedError(
                f"{path.name} may not be read: {error.strerror}", where=shard.name
            ) from error
        found = os.fstat(self.descriptor).st_size
        if found != size:
            raise self._changed(f"has {found} bytes now, not {size} as before")

    def read_into(self, ids: npt.NDArray[Any], start_bytes: int) -> None:
        """Fill ``ids`` (contiguous) from byte ``start_bytes`` on."""
        self.fill(ids.view(np.uint8).data, start_bytes)

    def fill(self, into: memoryview, start_bytes: int) -> None:
        """Fill bytes from byte ``start_bytes`` of the file on."""
        got = os.preadv(self.descriptor, [into], start_bytes)
        if got < len(into):
            self._read_rest(into, start_bytes, got)

    def _read_rest(self, into: memoryview, start_bytes: int, got: int) -> None:
        """The system may give less than was asked for; only nothing means that there is no more."""
        while got < len(into):
            more = os.preadv(self.descriptor, [into[got:]], start_bytes + got)
            if more == 0:
                raise self._changed(f"ends at byte {start_bytes + got} now")
            got += more

    def _changed(self, how: str) -> ShardError:
        return ShardError(
            f"{self._file_name} {how}",
            where=self._shard_name,
            hint="something writes to the data while it is read",
        )

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class _Recent(Generic[Held]):
    """What was made for the most recently asked numbers; at most ``limit`` are held. Safe among threads."""

    def __init__(self, limit: int, make: Callable[[int], Held]) -> None:
        self._limit = limit
        self._make = make
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> Held:
        with self._lock:
            found = self._held.get(number)
            if found is None:
                found = self._held[number] = self._make(number)
                if len(self._held) > self._limit:
                    self._held.popitem(last=False)
            else:
                self._held.move_to_end(number)
            return found

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
