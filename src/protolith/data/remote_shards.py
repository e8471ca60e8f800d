"""Files of a shard that lie behind a URL, read like those of this machine.

Comes in: a ``RemotePath`` with the size and version that were proved. Goes out: ids and document ends,
through the block cache. Nothing is asked of a server until something is read.

Document ends are not mapped, as those of a local index are, but looked up where they lie: ``RemoteEnds``
stands for the array and does what is done with it (length, items by number or slice, ``searchsorted``), so
that an index of gigabytes costs the blocks that were looked at.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from protolith.data.block_cache import BlockCache
from protolith.data.storage import RemotePath, Stat, open_at
from protolith.errors import NotFoundError, ShardError

END_TYPE = np.dtype("<i8")
_SMALL_BLOCKS = 16


class RemoteFile:
    """One version of one file.

    Args:
        place: the file.
        facts: size and version it was proved with.
        shard_name: what messages call the shard.
        cache: where its blocks are kept.
    """

    def __init__(self, place: RemotePath, facts: Stat, shard_name: str, cache: BlockCache) -> None:
        self.size = facts.size
        self._cache = cache
        self._key = (place.url, facts.version, facts.size)
        self._shard_name = shard_name
        self._file_name = place.name
        self._reader = open_at(place, facts, changed=self._changed)

    def read_into(self, ids: npt.NDArray[Any], start_bytes: int) -> None:
        """Fill ``ids`` (contiguous) from byte ``start_bytes`` on, by way of the cache."""
        buffer = ids.view(np.uint8).data
        try:
            self._cache.read_into(self._reader, self._key, buffer, start_bytes)
        except NotFoundError:
            raise self._gone() from None

    def read_sparing(self, ids: npt.NDArray[Any], start_bytes: int) -> None:
        """The same bytes, for whoever looks here and there or goes through all of it once: of a large file
        they come straight from the storage, and no block that rows need has to go for them."""
        if self.size <= _SMALL_BLOCKS * self._cache.block_bytes:
            self.read_into(ids, start_bytes)
            return
        try:
            self._reader.read_into(ids.view(np.uint8).data, start_bytes)
        except NotFoundError:
            raise self._gone() from None

    @property
    def block_bytes(self) -> int:
        return self._cache.block_bytes

    def want(self, start_bytes: int, stop_bytes: int) -> None:
        """Begin to fetch these bytes."""
        self._cache.want(self._reader, self._key, start_bytes, stop_bytes)

    def _gone(self) -> NotFoundError:
        return NotFoundError(f"{self._file_name} is gone; it was there before", where=self._shard_name)

    def _changed(self, how: str) -> ShardError:
        return ShardError(
            f"{self._file_name} {how}",
            where=self._shard_name,
            hint="something writes to the data while it is read",
        )


class RemoteEnds:
    """Where each document of a shard ends, in tokens: stands for a read-only int64 array."""

    def __init__(self, index: RemoteFile, num_documents: int) -> None:
        self._index = index
        self._num_documents = num_documents
        self._piece = max(index.block_bytes // END_TYPE.itemsize, 1)
        self.shape = (num_documents,)
        self.dtype = END_TYPE

    def __len__(self) -> int:
        return self._num_documents

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self._num_documents)
            if step == 1:
                return self._read(start, max(start, stop))
            key = np.arange(start, stop, step)
        numbers = np.asarray(key)
        if numbers.dtype == bool:
            numbers = np.flatnonzero(numbers)
        flat = numbers.reshape(-1).astype(np.int64)
        flat = np.where(flat < 0, flat + self._num_documents, flat)
        if flat.size and (flat.min() < 0 or flat.max() >= self._num_documents):
            raise IndexError(f"documents {flat.min()} to {flat.max()} of {self._num_documents}")
        ends = np.empty(len(flat), dtype=END_TYPE)
        pieces = flat // self._piece
        for piece in np.unique(pieces).tolist():  # a block is asked for once, whatever is wanted of it
            here = np.flatnonzero(pieces == piece)
            first, last = int(flat[here].min()), int(flat[here].max())
            ends[here] = self._read(first, last + 1)[flat[here] - first]
        return ends[0] if numbers.ndim == 0 else ends.reshape(numbers.shape)

    def searchsorted(
        self, values: Any, side: Literal["left", "right"] = "left", sorter: None = None
    ) -> npt.NDArray[np.int64] | np.int64:
        """As numpy's; a search looks at the last entries of pieces, then into one piece."""
        if sorter is not None:
            raise ValueError("document ends are in order already")
        wanted = np.asarray(values)
        found = np.array([self._search(value, side) for value in wanted.reshape(-1).tolist()], dtype=np.int64)
        return found[0] if wanted.ndim == 0 else found.reshape(wanted.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All of it: for whoever really wants that."""
        whole = self._read(0, self._num_documents)
        return whole if dtype is None else whole.astype(dtype)

    def _search(self, value: int, side: Literal["left", "right"]) -> int:
        low, high = 0, -(-self._num_documents // self._piece)  # pieces below low end before the value
        while low < high:
            middle = (low + high) // 2
            last = min((middle + 1) * self._piece, self._num_documents) - 1
            end = int(self._read(last, last + 1)[0])
            if end < value or (side == "right" and end == value):
                low = middle + 1
            else:
                high = middle
        start = min(low * self._piece, self._num_documents)
        piece = self._read(start, min(start + self._piece, self._num_documents))
        return start + int(np.searchsorted(piece, value, side=side))

    def _read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        ends = np.empty(max(stop - start, 0), dtype=END_TYPE)
        if len(ends):
            self._index.read_into(ends, start * END_TYPE.itemsize)
        return ends
