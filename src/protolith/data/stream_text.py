"""Text files as numbered chunks of whole lines that can be read in any order, without looking through them.

Comes in: text files. Goes out: ``TextBlock``: whole lines, at most about C bytes unless one line is longer.

    plain file         chunk k holds the lines that *start* in its bytes [k*C, (k+1)*C): every line is in one
                       chunk, found by reading that chunk alone. Inside a line longer than C lie chunks
                       without any line.
    compressed file    one chunk, whose blocks (parts 0, 1, 2 ...) come one after another

A block's name is (chunk, part); it always holds the same bytes. Which number of the file its first line has
is known for compressed files; for plain ones lines before it are counted only when a person must be told.

Cost: the table of chunks takes a number a file; a plain block costs one seek; part p of a compressed file
costs decompressing all before it. State: none. Files are read up to the size they had when opened; one that
has become shorter is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from protolith.data.files import DataFile
from protolith.data.json_lines import BlockReader, is_compressed
from protolith.errors import DataError, NotAllowedError, NotFoundError

CHUNK_BYTES = 1 << 18
_READ_BYTES = 1 << 18


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
        chunk, part: its name.
        data: the lines.
        file: number of the file.
        size_bytes: bytes on disk that were passed to get it, for progress.
        start_byte: where in a plain file its first line begins; 0 for a compressed one.
        first_line: number of the first line in the file, from 1; None where it was not counted.
    """

    chunk: int
    part: int
    data: bytes
    file: int
    size_bytes: int
    start_byte: int
    first_line: int | None


class ChunkedText:
    """The chunks of ``files``, numbered from 0 in the order of the files.

    Raises:
        NotFoundError, NotAllowedError: a file cannot be opened. BadRecordError: it is no text.
    """

    def __init__(self, files: Sequence[DataFile], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.files = tuple(file for file in files if file.size_bytes)
        self.chunk_bytes = chunk_bytes
        self.total_bytes = sum(file.size_bytes for file in self.files)
        self._compressed = [is_compressed(file) for file in self.files]
        counts = [
            1 if compressed else -(-file.size_bytes // chunk_bytes)
            for file, compressed in zip(self.files, self._compressed, strict=True)
        ]
        #: int64[num_files + 1]: the first chunk of each file
        self._first_chunks = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self.num_chunks = int(self._first_chunks[-1])
        self.num_compressed = sum(self._compressed)

    def parts(self, chunk: int, part: int = 0) -> Iterator[TextBlock]:
        """Blocks of a chunk from ``part`` on; none when it has no more."""
        number = int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1
        if self._compressed[number]:
            yield from self._compressed_parts(number, chunk, part)
        elif part == 0:
            yield self._plain_block(number, chunk)

    def place_of(self, chunk: int) -> tuple[str, int]:
        """The name of the file a chunk is of, and the byte of it with which the chunk begins."""
        number = int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1
        within = (chunk - int(self._first_chunks[number])) * self.chunk_bytes
        return self.files[number].name, 0 if self._compressed[number] else within

    def is_compressed(self, file: int) -> bool:
        """Whether file number ``file`` is one chunk whose parts follow one another."""
        return self._compressed[file]

    def blocks(self, names: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], TextBlock]:
        """The blocks of these names (chunk, part); a compressed file is read once for all of them.

        Raises:
            DataError: there is no such block.
        """
        found: dict[tuple[int, int], TextBlock] = {}
        for chunk in sorted({chunk for chunk, _part in names}):
            wanted = {part for other, part in names if other == chunk}
            for block in self.parts(chunk, min(wanted)) if 0 <= chunk < self.num_chunks else ():
                if block.part in wanted:
                    found[chunk, block.part] = block
                if block.part >= max(wanted):
                    break
        for name in names:
            if name not in found:
                raise DataError(f"the text has no block {name[1]} in chunk {name[0]}", hint="did it change?")
        return found

    def line_number(self, file: int, start_byte: int, first_line: int | None, line: int) -> int:
        """The number in its file of a block's ``line`` (from 1); reads the file up to there if need be."""
        if first_line is None:
            first_line = 1
            with _open(self.files[file]) as handle:
                while start_byte > 0 and (piece := handle.read(min(start_byte, 1 << 22))):
                    first_line += piece.count(b"\n")
                    start_byte -= len(piece)
        return first_line + line - 1

    def _plain_block(self, number: int, chunk: int) -> TextBlock:
        file = self.files[number]
        start = (chunk - int(self._first_chunks[number])) * self.chunk_bytes
        stop = min(start + self.chunk_bytes, file.size_bytes)
        size = stop - start
        with _open(file) as handle:
            # A line starts after a line's end, so the byte before the chunk is looked at too.
            begin = max(start - 1, 0)
            handle.seek(begin)
            data = handle.read(stop - begin)
            if len(data) < stop - begin:
                raise _changed(file)
            if start:
                end = data.find(b"\n", 0, stop - start)
                start, data = (begin + end + 1, data[end + 1 :]) if end >= 0 else (stop, b"")
            if data and not data.endswith(b"\n") and stop < file.size_bytes:
                data += handle.readline(file.size_bytes - stop)
        return TextBlock(chunk, 0, data, number, size, start, 1 if start == 0 else None)

    def _compressed_parts(self, number: int, chunk: int, part: int) -> Iterator[TextBlock]:
        read_bytes = 0
        for place, block in enumerate(BlockReader(self.files[number], self.chunk_bytes)):
            if place >= part:
                size = block.read_bytes - read_bytes
                yield TextBlock(chunk, place, block.data, number, size, 0, block.first_line)
            read_bytes = block.read_bytes


@contextmanager
def _open(file: DataFile) -> Iterator[BinaryIO]:
    """The file, with errors of the project's types."""
    try:
        handle = open(file.path, "rb", buffering=_READ_BYTES)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise NotFoundError("the file is gone", where=str(file.path)) from None
    except PermissionError as error:
        raise NotAllowedError("the file may not be read", where=str(file.path)) from error
    with handle:
        if os.fstat(handle.fileno()).st_size < file.size_bytes:
            raise _changed(file)
        yield handle


def _changed(file: DataFile) -> DataError:
    return DataError(
        "the file became shorter while it was read",
        where=str(file.path),
        hint="leave the text alone while a run streams it",
    )
