"""Blocks of remote files, kept on the local disk while a process runs: bounded, and each fetched once.

Comes in: a reader of a remote file and the bytes wanted of it. Goes out: those bytes.

Why a file and not memory: what a corpus is read for comes back (documents' ends, rows that share a block, the
next epoch), and a disk holds a hundred times as much; what is hot lies in the system's page cache anyway. Why
one file without a name (``$PROTOLITH_HOME/cache/blocks``, unlinked when it was made): it goes with the
process, however that ends; no later process can read a block that was torn or has grown old, and ranks on
one machine have nothing to agree on. The price is that a new process starts with nothing.

State: slots of one block each, at most ``limit_bytes`` together, the least recently used given away first;
the blocks on their way. A block is known by file, version and number. Memory: a block a fetching thread.

Threads: any number read. A block that is on its way is waited for, not fetched twice; different blocks are
fetched at the same time. A reader whose slot was given away while it read notices, and reads again. When
neighbouring blocks are read in order, the next two are fetched ahead.

A disk that is full or cannot be written costs speed, not the run: blocks then pass through unkept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path

from protolith.data.storage import Reader
from protolith.errors import UnreachableError

BLOCK_BYTES = 1 << 20
_LIMIT_BYTES = 8 << 30
_SHARE_OF_FREE_SPACE = 10
_NUM_FETCHERS = 16
_BLOCKS_AHEAD = 2

_Block = tuple[Hashable, int]


class BlockCache:
    """Blocks of any number of files.

    Args:
        folder: where the file lies; made when it is not there.
        limit_bytes: of all blocks kept; default: 8 GiB, but no more than a tenth of the space that is free,
            which the processes of one launch on this machine share (LOCAL_WORLD_SIZE).
        block_bytes: what is asked of a server at once.

    Attributes:
        num_fetched: blocks that came from a server so far.
        kept_on_disk: False when nothing can be kept; ``why_not`` says why.
    """

    def __init__(
        self, folder: Path, *, limit_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.block_bytes = block_bytes
        self.num_fetched = 0
        self.kept_on_disk = True
        self.why_not = ""
        self._descriptor = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor, path = tempfile.mkstemp(dir=folder)
            os.unlink(path)
            free = shutil.disk_usage(folder).free
        except OSError as error:
            self._keep_nothing(error)
            free = 0
        if limit_bytes is None:
            limit_bytes = min(_LIMIT_BYTES, free // _SHARE_OF_FREE_SPACE) // _processes_here()
        self.num_slots = limit_bytes // block_bytes
        self._slots: OrderedDict[_Block, _Slot] = OrderedDict()
        self._num_used = 0
        self._lost: UnreachableError | None = None
        self._coming: dict[_Block, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._fetchers = ThreadPoolExecutor(_NUM_FETCHERS, thread_name_prefix="blocks")

    def read_into(self, reader: Reader, file: Hashable, buffer: memoryview, start_bytes: int) -> None:
        """Fill ``buffer`` (bytes) from byte ``start_bytes`` of the file on. ``file`` tells it, in this very
        version, from all others.

        Raises:
            DataError, NotFoundError, NotAllowedError, UnreachableError: as the reader raises them.
        """
        stop = start_bytes + len(buffer)
        self.want(reader, file, start_bytes, stop)
        for number in self._blocks_of(reader, start_bytes, stop):
            begin = number * self.block_bytes
            first, last = max(start_bytes, begin), min(stop, begin + self.block_bytes)
            part = buffer[first - start_bytes : last - start_bytes]
            while not self._read_kept((file, number), part, first - begin):
                whole = self._fetched(reader, file, number)
                part[:] = memoryview(whole)[first - begin : last - begin]
                break

    def want(self, reader: Reader, file: Hashable, start_bytes: int, stop_bytes: int) -> None:
        """Begin to fetch what is not here, and return."""
        blocks = self._blocks_of(reader, start_bytes, stop_bytes)
        with self._lock:
            missing = [number for number in blocks if not self._known((file, number))]
            if missing and self._known((file, missing[0] - 1)):  # read in order
                last = -(-reader.size // self.block_bytes)
                following = range(missing[-1] + 1, min(missing[-1] + 1 + _BLOCKS_AHEAD, last))
                missing += [number for number in following if not self._known((file, number))]
            for number in missing:
                self._begin(reader, file, number)

    def close(self) -> None:
        """Give the space back. Nothing can be read afterwards."""
        self._fetchers.shutdown(wait=True, cancel_futures=True)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _blocks_of(self, reader: Reader, start: int, stop: int) -> range:
        """Numbers of the blocks that hold these bytes; a stop beyond the end is the reader's to refuse."""
        return range(start // self.block_bytes, -(-stop // self.block_bytes)) if stop > start else range(0)

    def _known(self, block: _Block) -> bool:
        return block in self._slots or block in self._coming

    def _begin(self, reader: Reader, file: Hashable, number: int) -> Future[bytes]:
        """Put one block on its way. The lock is held."""
        coming = self._fetchers.submit(self._fetch, reader, file, number)
        self._coming[file, number] = coming
        return coming

    def _fetched(self, reader: Reader, file: Hashable, number: int) -> bytes:
        with self._lock:
            coming = self._coming.get((file, number)) or self._begin(reader, file, number)
        try:
            return coming.result()
        except CancelledError:
            if self._lost is None:
                raise
            raise self._lost from None

    def _fetch(self, reader: Reader, file: Hashable, number: int) -> bytes:
        begin = number * self.block_bytes
        content = bytearray(max(min(self.block_bytes, reader.size - begin), 1))
        slot = None
        try:
            reader.read_into(memoryview(content), begin)
            slot = self._write(content)
        except UnreachableError as error:
            self._give_up(error)
            raise
        finally:
            with self._lock:
                self._coming.pop((file, number), None)
                self.num_fetched += 1
                if slot is not None:
                    self._slots[file, number] = slot
        return bytes(content)

    def _give_up(self, error: UnreachableError) -> None:
        """A server that is away will not answer for the blocks in the queue either: no more waits."""
        with self._lock:
            self._lost = error
            for block, coming in list(self._coming.items()):
                if coming.cancel():
                    del self._coming[block]

    def _write(self, content: bytearray) -> _Slot | None:
        """The slot that holds the block now; None when nothing is kept."""
        with self._lock:
            place = self._place()
        if place is None:
            return None
        try:
            if os.pwrite(self._descriptor, content, place * self.block_bytes) == len(content):
                return _Slot(place)
            raise OSError("the disk took a part of a block only")
        except OSError as error:
            with self._lock:
                self._keep_nothing(error)
            return None

    def _place(self) -> int | None:
        """A free slot, or the one that was not used for longest. The lock is held."""
        if not self.kept_on_disk or self.num_slots < 1:
            return None
        if self._num_used < self.num_slots:
            self._num_used += 1
            return self._num_used - 1
        if not self._slots:  # every slot is being written just now
            return None
        _block, slot = self._slots.popitem(last=False)
        return slot.place

    def _keep_nothing(self, error: OSError) -> None:
        self.kept_on_disk = False
        self.why_not = error.strerror or str(error)

    def _read_kept(self, block: _Block, part: memoryview, start: int) -> bool:
        """Fill ``part`` from a block that is here; False: it is not."""
        while True:
            with self._lock:
                slot = self._slots.get(block)
                if slot is None:
                    return False
                self._slots.move_to_end(block)
            got = os.preadv(self._descriptor, [part], slot.place * self.block_bytes + start)
            with self._lock:
                if got == len(part) and self._slots.get(block) is slot:
                    return True


def _processes_here() -> int:
    """Processes that were launched together on this machine, as launchers tell each of them."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(number), 1) if number.isdecimal() else 1


class _Slot:
    """A place in the file; another object whenever the place is given to another block."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


_shared: dict[int, BlockCache] = {}
_sharing = threading.Lock()


def shared_cache() -> BlockCache:
    """The one cache of this process, made when it is first asked for. A forked process makes its own."""
    with _sharing:
        if os.getpid() not in _shared:
            home = Path(os.environ.get("PROTOLITH_HOME") or "~/.protolith").expanduser()
            _shared[os.getpid()] = BlockCache(home / "cache" / "blocks")
        return _shared[os.getpid()]
