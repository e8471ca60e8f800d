"""Proof that the files of shards agree, wherever they lie, and how much of it is done.

Comes in: found files (``data/files.py``). Goes out: a ``ShardInfo`` for each, None for an empty one, an error
for a bad one.

- Indexes are read whole while all of them together are small (256 MiB; 64 MiB behind URLs). Of a corpus with
  more, only samples of each index are read, and the notes say so: a trillion tokens have gigabytes of
  indexes. ``whole=True`` reads all of them, however long that takes.
- Shards behind URLs are looked at by 32 threads; sizes and versions are those of the listing, so that each
  costs the requests for its metadata and its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from protolith.data.block_cache import shared_cache
from protolith.data.files import DataFile, FoundFiles
from protolith.data.storage import RemotePath, open_at, stat
from protolith.errors import DataError, NotFoundError, ShardError
from protolith.formats.shard_files import ShardInfo, index_path_of, metadata_path_of, read_shard_info
from protolith.formats.shard_store import LOCAL, ShardStore

_WHOLE_INDEX_BYTES = 256 << 20
_WHOLE_REMOTE_INDEX_BYTES = 64 << 20
_NUM_READERS = 32

Answer = TypeVar("Answer")


class ShardProver:
    """Looks at the shards of one listing.

    Args:
        found: the files.
        whole: read every index whole.
    """

    def __init__(self, found: FoundFiles, *, whole: bool = False) -> None:
        self._found = found
        self._remote = _RemoteStore(found)
        index_bytes = {True: 0, False: 0}
        for file in found.files if not whole else ():
            facts = self._store(file).facts(index_path_of(file.path))
            index_bytes[isinstance(file.path, RemotePath)] += facts[0] if facts else 0
        self._sample = {
            True: index_bytes[True] > _WHOLE_REMOTE_INDEX_BYTES,
            False: index_bytes[False] > _WHOLE_INDEX_BYTES,
        }

    def look(self, file: DataFile) -> ShardInfo | None:
        """One shard, proved; None: it is empty.

        Raises:
            ShardError: its files disagree.
            NotFoundError, NotAllowedError, UnreachableError: one of them cannot be read.
        """
        store = self._store(file)
        if file.size_bytes == 0:
            self._check_empty(file, store)
            return None
        sample = self._sample[isinstance(file.path, RemotePath)]
        return read_shard_info(file.path, file.name, store=store, sample_index=sample)

    def each(self, look: Callable[[DataFile], Answer], files: Sequence[DataFile]) -> Iterable[Answer]:
        """``look`` at all files, answers in order; at many at a time when servers have to be waited for."""
        if not any(isinstance(file.path, RemotePath) for file in files):
            return map(look, files)
        return self._each_at_once(look, files)

    def num_with(self, suffix: str, shards: Sequence[ShardInfo]) -> int:
        """How many shards have a file beside them that is called like them with ``suffix``."""
        beside = (shard.path.with_name(shard.path.name + suffix) for shard in shards)
        return sum(
            path in self._found.listed if isinstance(path, RemotePath) else path.exists() for path in beside
        )

    def _each_at_once(
        self, look: Callable[[DataFile], Answer], files: Sequence[DataFile]
    ) -> Iterator[Answer]:
        threads = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="shards")
        try:
            yield from threads.map(look, files)
        finally:
            threads.shutdown(wait=True, cancel_futures=True)

    def _store(self, file: DataFile) -> ShardStore:
        return self._remote if isinstance(file.path, RemotePath) else LOCAL

    def _check_empty(self, file: DataFile, store: ShardStore) -> None:
        """A file of 0 bytes is an empty shard, or the stump of a real one."""
        index = store.facts(index_path_of(file.path))
        if index is not None and index[0]:
            raise ShardError(f"it has 0 bytes, but an index of {index[0] // 8} documents", where=file.name)
        if store.facts(metadata_path_of(file.path)) is not None:
            read_shard_info(file.path, file.name, store=store)


class _RemoteStore:
    """Files behind URLs, in the versions that a listing gave."""

    def __init__(self, found: FoundFiles) -> None:
        self._listed = found.listed

    def facts(self, path: Any) -> tuple[int, str] | None:
        known = self._listed.get(path)
        if known is None:
            try:
                known = stat(path)
            except NotFoundError:
                return None
        return known.size, known.version

    def pieces(self, path: Any, pieces: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        def changed(how: str) -> DataError:
            return ShardError(
                f"{path.name} {how}", where=str(path), hint="something writes to the data while it is read"
            )

        reader = open_at(path, self._listed.get(path), changed=changed)
        for start, count in pieces:
            content = bytearray(count)
            reader.read_into(memoryview(content), start)
            yield bytes(content)


def proof_notes(shards: Sequence[ShardInfo]) -> list[str]:
    """What was not read in full, and what will be slow."""
    notes = []
    if any(isinstance(shard.path, RemotePath) for shard in shards) and not shared_cache().kept_on_disk:
        notes.append(
            f"blocks of remote shards cannot be kept on disk ({shared_cache().why_not}): each is fetched"
            " whenever it is needed"
        )
    sampled = [shard for shard in shards if shard.index_sampled]
    if not sampled:
        return notes
    size = sum(8 * shard.num_documents for shard in sampled) / 2**30
    return [
        *notes,
        f"that the indexes ascend was proved by samples in {len(sampled)} of {len(shards)} shards: together"
        f" they have {size:,.1f} GiB",
    ]
