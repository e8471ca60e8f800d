"""Files of lines, plain or compressed, as blocks of whole lines.

Comes in: one file (plain, gzip or Zstandard: told by its first bytes, not by its name).
Goes out: blocks of bytes that end at a line's end, each with the number of its first line and how far into
the file reading has come. A line longer than a block makes one long block: no line is ever cut.

Everything is streamed: memory is one block, however large the file. A file that is something else (UTF-16, a
damaged archive) is an error that names it; Parquet is read by ``data/parquet_text.py``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import zstandard

from protolith.data.files import DataFile
from protolith.data.text_form import GZIP, ZSTD, form_of_head, open_file
from protolith.errors import BadRecordError

BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 18
#: What a decompressor may have taken in and not yet given out.
_AHEAD_BYTES = 2 * _READ_BYTES


@dataclass(frozen=True)
class Block:
    """Whole lines of one file.

    Attributes:
        data: the lines with their ends; the last line of a file may lack one.
        first_line: number of the first of them in the file, from 1.
        read_bytes: bytes of the file (as it lies on disk) read so far.
    """

    data: bytes
    first_line: int
    read_bytes: int


class _Digested(io.RawIOBase):
    """The file as it lies on disk, digesting what passes."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self.sha256 = hashlib.sha256()
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = self._file.readinto(target) or 0
        if count:
            self.sha256.update(memoryview(target)[:count])
            self.read_bytes += count
        return count


class BlockReader:
    """One file's blocks; after the last one ``digest`` is the SHA-256 of the file as it was read.

    ``open_raw`` opens the bytes where they are not those of ``file.path``: a part of a file, or a remote one.

    Raises (while iterating):
        BadRecordError: the file is no UTF-8 text, or a compressed file is damaged or cut short.
        NotFoundError, NotAllowedError: it cannot be opened.
    """

    def __init__(
        self,
        file: DataFile,
        block_bytes: int = BLOCK_BYTES,
        *,
        open_raw: Callable[[], Any] | None = None,
    ) -> None:
        self.file = file
        self._open_raw = open_raw
        self.digest = ""
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Block]:
        with self._open_raw() if self._open_raw is not None else open_file(self.file, buffering=0) as raw:
            source = _Digested(raw)
            try:
                yield from self._blocks(source)
            except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
                raise BadRecordError(
                    f"the compressed file is damaged or cut short: {error}",
                    where=self.file.name,
                    hint="copy or compress it again",
                ) from error
            while source.read(1 << 20):  # what follows the compressed data belongs to the file's digest
                continue
            self.digest = source.sha256.hexdigest()

    def _blocks(self, source: _Digested) -> Iterator[Block]:
        disk = io.BufferedReader(source, _READ_BYTES)
        lines = _opened(cast(BinaryIO, disk), disk.peek(8), self.file.name)
        ahead = 0 if lines is disk else _AHEAD_BYTES
        line, rest = 1, b""
        while piece := lines.read(self._block_bytes):
            end = piece.rfind(b"\n") + 1
            if not end:  # inside a long line: finish it
                piece += lines.readline()
                end = len(piece)
            data, rest = rest + piece[:end], piece[end:]
            yield Block(data, line, max(0, source.read_bytes - ahead))
            line += data.count(b"\n")
        if rest:
            yield Block(rest, line, source.read_bytes)


def plain_bytes_of_head(file: DataFile, num_bytes: int) -> int:
    """What the first ``num_bytes`` of a compressed file come to when they are decompressed, nearly: up to
    64 KiB at their end may be missing where the file goes on."""
    with open_file(file) as raw:
        head = raw.read(num_bytes)
    lines = _opened(cast(BinaryIO, io.BytesIO(head)), head[:8], file.name)
    plain_bytes = 0
    try:
        while piece := lines.read(1 << 16):
            plain_bytes += len(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError):
        return plain_bytes  # cut where we cut it; a damaged file is told by whoever reads it all
    return plain_bytes


class _Zstd(io.RawIOBase):
    """Zstandard frames, one after another. (The library's own reader takes a cut frame for a whole one.)"""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._library = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._plain:
            if not self._compressed:
                self._compressed = self._file.read(1 << 14)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame is None:
                self._frame = self._library.decompressobj()
            self._plain = memoryview(self._frame.decompress(self._compressed))
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        count = min(len(target), len(self._plain))
        target[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count


def _opened(file: BinaryIO, head: bytes, name: str) -> BinaryIO:
    """The file's lines, decompressed where its first bytes (``head``) say so."""
    if head.startswith(GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if head.startswith(ZSTD):
        return cast(BinaryIO, io.BufferedReader(_Zstd(file), _READ_BYTES))
    form_of_head(head, name)  # what is no text at all is an error
    return file
