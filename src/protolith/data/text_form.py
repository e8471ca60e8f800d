"""Opening files of text, on this machine or behind a URL, and telling by their first bytes how the text lies
in them.

    LINES        plain lines of JSON                     readable from any byte on
    COMPRESSED   gzip or Zstandard over such lines       readable from the beginning only
    PARQUET      a column of strings, in row groups      readable from any row group on

Names say nothing here. A remote file is read as the version that was listed, or not at all (see
``data/storage.py``). Anything else that can be told (UTF-16, zip, ...) is an error with what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import BinaryIO

from protolith.data.files import DataFile
from protolith.data.storage import Reader, RemotePath, Stat, open_at, open_binary
from protolith.errors import BadRecordError, DataError, NotAllowedError, NotFoundError

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
PARQUET_MAGIC = b"PAR1"
_READ_BYTES = 1 << 18
_HEAD_BYTES = 8
_NOT_TEXT = {
    b"\xff\xfe": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    b"PARE": ("encrypted Parquet", "write it without encryption"),
    b"PK\x03\x04": ("a zip archive", "unpack it, or compress with gzip or zstd"),
    b"\xfd7zXZ": ("an xz archive", "unpack it, or compress with gzip or zstd"),
    b"BZh": ("a bzip2 archive", "unpack it, or compress with gzip or zstd"),
}


class TextForm(Enum):
    """How text lies in a file."""

    LINES = "lines"
    COMPRESSED = "compressed"
    PARQUET = "parquet"


@contextmanager
def open_file(file: DataFile, buffering: int = _READ_BYTES) -> Iterator[BinaryIO]:
    """The file, to be read in order; seeking works.

    Raises:
        NotFoundError, NotAllowedError: it cannot be opened. UnreachableError: its storage does not answer.
    """
    if isinstance(file.path, RemotePath):
        handle = open_binary(file.path, known(file))
    else:
        try:
            handle = open(file.path, "rb", buffering=buffering)  # noqa: SIM115
        except FileNotFoundError:
            raise NotFoundError("the file is gone", where=str(file.path)) from None
        except PermissionError as error:
            raise NotAllowedError("the file may not be read", where=str(file.path)) from error
    with handle:
        yield handle


def open_ranges(file: DataFile) -> Reader:
    """The file, for reading anywhere.

    Raises:
        NotFoundError, NotAllowedError, UnreachableError: as ``open_file``.
        DataError: it is shorter than it was (so also from the reader).
    """

    def changed(_how: str) -> DataError:
        return DataError(
            "the file became shorter while it was read, or is another one now",
            where=str(file.path),
            hint="leave the text alone while a run streams it",
        )

    try:
        reader = open_at(file.path, known(file), changed=changed)
    except NotFoundError:
        raise NotFoundError("the file is gone", where=str(file.path)) from None
    if reader.size < file.size_bytes:
        raise changed("")
    return reader


def read_range(reader: Reader, start: int, stop: int) -> bytes:
    piece = bytearray(stop - start)
    reader.read_into(memoryview(piece), start)
    return bytes(piece)


def known(file: DataFile) -> Stat | None:
    """What a listing said of a remote file, so that nobody asks again."""
    return file.stat if file.version else None


def form_of(file: DataFile) -> TextForm:
    """How the text lies in it.

    Raises:
        BadRecordError: it is no text. NotFoundError, NotAllowedError, UnreachableError: as ``open_file``.
    """
    head = read_range(open_ranges(file), 0, min(_HEAD_BYTES, file.size_bytes))
    return form_of_head(head, file.name)


def form_of_head(head: bytes, name: str) -> TextForm:
    """The same from a file's first bytes."""
    if head.startswith((GZIP, ZSTD)):
        return TextForm.COMPRESSED
    if head.startswith(PARQUET_MAGIC):
        return TextForm.PARQUET
    for magic, (form, hint) in _NOT_TEXT.items():
        if head.startswith(magic):
            raise BadRecordError(f"this is {form}, not UTF-8 text", where=name, hint=hint)
    return TextForm.LINES
