"""Files of lines, plain or compressed, as blocks of whole lines.

Comes in: one file (plain, gzip or Zstandard: told by its first bytes, not by its name).
Goes out: blocks of bytes that end at a line's end, each with the number of its first line and how far into
the file reading has come. A line longer than a block makes one long block: no line is ever cut.

Everything is streamed: memory is one block, however large the file. A file that is something else (UTF-16,
Parquet, a damaged archive) is an error that names it.
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
from protolith.errors import BadRecordError, NotAllowedError, NotFoundError

BLOCK_BYTES = 1 << 20
_READ_BYTES = 1 << 18
#: What a decompressor may have taken in and not yet given out.
_AHEAD_BYTES = 2 * _READ_BYTES
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_NOT_TEXT = {
    b"\xff\xfe": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"PAR1": ("Parquet", "write the text column to JSONL first"),
    b"PK\x03\x04": ("a zip archive", "unpack it, or compress with gzip or zstd"),
    b"\xfd7zXZ": ("an xz archive", "unpack it, or compress with gzip or zstd"),
    b"BZh": ("a bzip2 archive", "unpack it, or compress with gzip or zstd"),
}


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

    def __init__(self, file: io.RawIOBase) -> None:
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
        open_raw: Callable[[], io.RawIOBase] | None = None,
    ) -> None:
        self.file = file
        self._open_raw = open_raw or (lambda: io.FileIO(file.path))
        self.digest = ""
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Block]:
        try:
            raw = self._open_raw()
        except FileNotFoundError:
            raise NotFoundError("the file is gone", where=str(self.file.path)) from None
        except PermissionError as error:
            raise NotAllowedError("the file may not be read", where=str(self.file.path)) from error
        with raw:
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


def is_compressed(file: DataFile) -> bool:
    """Whether its first bytes say so.

    Raises:
        BadRecordError: they say that it is no text. NotFoundError, NotAllowedError: it cannot be opened.
    """
    try:
        with open(file.path, "rb", buffering=0) as raw:
            head = raw.read(8)
    except FileNotFoundError:
        raise NotFoundError("the file is gone", where=str(file.path)) from None
    except PermissionError as error:
        raise NotAllowedError("the file may not be read", where=str(file.path)) from error
    _check_is_text(head, file.name)
    return head.startswith((_GZIP, _ZSTD))


def plain_bytes_of_head(file: DataFile, num_bytes: int) -> int:
    """What the first ``num_bytes`` of a compressed file come to when they are decompressed, nearly: up to
    64 KiB at their end may be missing where the file goes on."""
    with open(file.path, "rb", buffering=0) as raw:
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
    if head.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if head.startswith(_ZSTD):
        return cast(BinaryIO, io.BufferedReader(_Zstd(file), _READ_BYTES))
    _check_is_text(head, name)
    return file


def _check_is_text(head: bytes, name: str) -> None:
    for magic, (form, hint) in _NOT_TEXT.items():
        if head.startswith(magic):
            raise BadRecordError(f"this is {form}, not UTF-8 text", where=name, hint=hint)
