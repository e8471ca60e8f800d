"""Ranks of one machine tokenize each block of streamed text once between them.

Every rank runs the whole sequence of blocks, in the same order, to know what its rows are made of; tokenizing
is nearly all of that work. So block k is tokenized by rank k mod R and given to the others as a file, one for
each of them, which its reader removes: nothing has to be counted or cleaned up.

    folder/<rank>/<k>      block k for <rank>, whole or not there

Nobody waits in a circle: ranks hand over blocks in the same order and step together, so whoever gives block
k has handed it over before anyone can need it.

State: how many blocks were handed over. What it does not do: share reading the text, or share among machines.
"""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from protolith.data.streams import Submit
from protolith.data.tokenize_block import BlockTokens, pack, unpack
from protolith.errors import RunFailedError
from protolith.formats.rundir import from_os_error

_LOOK_S = 0.005
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Sharing:
    """Who shares: a folder that all of them see and nobody else uses, and one's place among them."""

    folder: Path
    rank: int
    size: int


class SharedWork:
    """``submit`` like that of a pool, whose work is dealt out."""

    def __init__(self, sharing: Sharing, submit: Submit) -> None:
        self._sharing = sharing
        self._submit = submit
        self._count = 0
        self._failed: OSError | None = None
        for rank in range(sharing.size):
            (sharing.folder / str(rank)).mkdir(parents=True, exist_ok=True)

    def submit(self, data: bytes) -> Future[BlockTokens]:
        """The result of the next block, from here or from another rank.

        Raises:
            NoSpaceError, NotAllowedError: an earlier result could not be given to the others.
        """
        if self._failed is not None:
            raise from_os_error(self._failed, self._sharing.folder) from self._failed
        number, self._count = self._count, self._count + 1
        if number % self._sharing.size != self._sharing.rank:
            return _FromAnother(self._sharing.folder / str(self._sharing.rank) / str(number))
        result = self._submit(data)
        result.add_done_callback(lambda done: self._give(number, done))
        return result

    def _give(self, number: int, done: Future[BlockTokens]) -> None:
        """A copy for each of the others. Who fails at it says so with the next block; a result that is an
        error ends this rank, and with it the others."""
        if done.cancelled() or done.exception() is not None:
            return
        aside = self._sharing.folder / f"{self._sharing.rank}.{number}.tmp"
        try:
            with open(aside, "xb") as out:
                for part in pack(done.result()):
                    out.write(len(part).to_bytes(_LENGTH_BYTES, "little"))
                    out.write(part)
            for rank in range(self._sharing.size):
                inbox = self._sharing.folder / str(rank)
                if rank != self._sharing.rank and inbox.exists():  # who has left takes nothing any more
                    os.link(aside, inbox / str(number))
            aside.unlink()
        except FileNotFoundError:  # left in between
            aside.unlink(missing_ok=True)
        except OSError as error:
            self._failed = error

    def close(self) -> None:
        """Leave: nothing is taken any more. Whoever leaves last takes the folder along."""
        shutil.rmtree(self._sharing.folder / str(self._sharing.rank), ignore_errors=True)
        for left in self._sharing.folder.glob(f"{self._sharing.rank}.*.tmp"):
            left.unlink(missing_ok=True)
        with suppress(OSError):
            self._sharing.folder.rmdir()


class _FromAnother(Future[BlockTokens]):
    """A result that another rank will put down."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def result(self, timeout: float | None = None) -> BlockTokens:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                data = self._path.read_bytes()
            except FileNotFoundError:
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError from None
                time.sleep(_LOOK_S)
                continue
            self._path.unlink(missing_ok=True)
            return _read(data)


def _read(data: bytes) -> BlockTokens:
    parts, at = [], 0
    while at < len(data):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "little")
        parts.append(data[begin:at])
    if at != len(data):
        raise RunFailedError("what another rank tokenized cannot be read: it was cut")
    return unpack(tuple(parts))
