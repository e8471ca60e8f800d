"""Text files as numbered chunks of whole lines that can be read in any order, without looking through them.

Comes in: text files. Goes out: ``TextBlock``: whole lines, at most about C bytes unless one line is longer.

    plain file         chunk k holds the lines that *start* in its bytes [k*C, (k+1)*C): every line is in one
                       chunk, found by reading that chunk alone. Inside a line longer than C lie chunks
                       without any line.
    compressed file    one chunk, whose blocks (parts 0, 1, 2 ...) come one after another
    Parquet file       a chunk for each row group, whose rows come as JSON lines, in parts as above

A block's name is (chunk, part); it always holds the same bytes. Which number of the file its first line has
is known where there are parts; for plain files lines before it are counted only when a person must be told.

Cost: the table of chunks takes a number a file, and two for each row group; a plain block costs one seek;
part p of a compressed file or of a row group costs decompressing all before it, there. State: none. Files are
read up to the size they had when opened; one that has become shorter is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from protolith.data.files import DataFile
from protolith.data.json_lines import BlockReader
from protolith.data.parquet_text import ParquetLayout, read_layout, read_parts
from protolith.data.storage import RemotePath
from protolith.data.text_form import TextForm, form_of, open_ranges, read_range
from protolith.errors import DataError

CHUNK_BYTES = 1 << 18
#: Read with a chunk, for the end of its last line; and a piece of a longer one.
_TAIL_BYTES = 1 << 14
_PIECE_BYTES = 1 << 22
_NUM_OPENERS = 8
_NUM_REMOTE_OPENERS = 32


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    Attributes:
        chunk, part: its name.
        data: the lines.
        file: number of the file.
        size_bytes: bytes on disk that were passed to get it, for progress.
        start_byte: where in a plain file its first line begins; 0 for others.
        first_line: number of the first line in the file, from 1; None where it was not counted.
        share: how much of its chunk it is, for a Parquet file (by rows); else 1.
    """

    chunk: int
    part: int
    data: bytes
    file: int
    size_bytes: int
    start_byte: int
    first_line: int | None
    share: float = 1.0


class ChunkedText:
    """The chunks of ``files``, numbered from 0 in the order of the files.

    Args:
        text_field: names the column of Parquet files.

    Raises:
        NotFoundError, NotAllowedError: a file cannot be opened. BadRecordError: it is no text.
        MissingExtraError: a Parquet file, and no pyarrow.
    """

    def __init__(
        self, files: Sequence[DataFile], chunk_bytes: int = CHUNK_BYTES, text_field: str = "text"
    ) -> None:
        self.files = tuple(file for file in files if file.size_bytes)
        self.chunk_bytes = chunk_bytes
        self.total_bytes = sum(file.size_bytes for file in self.files)
        self._text_field = text_field
        #: whether reading waits for a network
        self.is_remote = any(isinstance(file.path, RemotePath) for file in self.files)
        num_openers = _NUM_REMOTE_OPENERS if self.is_remote else _NUM_OPENERS
        with ThreadPoolExecutor(num_openers, thread_name_prefix="opening") as openers:
            self._forms = list(openers.map(form_of, self.files))
            parquet = [number for number, form in enumerate(self._forms) if form is TextForm.PARQUET]
            layouts = openers.map(lambda number: read_layout(self.files[number], text_field), parquet)
            self._layouts = dict(zip(parquet, layouts, strict=True))
        counts = [self._num_chunks_of(number) for number in range(len(self.files))]
        #: int64[num_files + 1]: the first chunk of each file
        self._first_chunks = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        self.num_chunks = int(self._first_chunks[-1])
        #: whether some chunks are more than one block
        self.has_parts = any(form is not TextForm.LINES for form in self._forms)

    def form(self, file: int) -> TextForm:
        """How the text lies in file number ``file``."""
        return self._forms[file]

    def layout(self, file: int) -> ParquetLayout:
        """Of a Parquet file."""
        return self._layouts[file]

    def file_of(self, chunk: int) -> tuple[int, int]:
        """(number of the file, chunk within it)."""
        number = int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1
        return number, chunk - int(self._first_chunks[number])

    def parts(self, chunk: int, part: int = 0) -> Iterator[TextBlock]:
        """Blocks of a chunk from ``part`` on; none when it has no more."""
        number, _within = self.file_of(chunk)
        if self._forms[number] is TextForm.COMPRESSED:
            yield from self._compressed_parts(number, chunk, part)
        elif self._forms[number] is TextForm.PARQUET:
            yield from self._parquet_parts(number, chunk, part)
        elif part == 0:
            yield self._plain_block(number, chunk)

    def place_of(self, chunk: int) -> tuple[str, int]:
        """The name of the file a chunk is of, and the byte of it with which the chunk begins (0 where chunks
        do not begin at bytes)."""
        number, within = self.file_of(chunk)
        plain = self._forms[number] is TextForm.LINES
        return self.files[number].name, within * self.chunk_bytes if plain else 0

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
            first_line, reader = 1, open_ranges(self.files[file])
            for begin in range(0, start_byte, _PIECE_BYTES):
                first_line += read_range(reader, begin, min(begin + _PIECE_BYTES, start_byte)).count(b"\n")
        return first_line + line - 1

    def _num_chunks_of(self, number: int) -> int:
        if self._forms[number] is TextForm.LINES:
            return -(-self.files[number].size_bytes // self.chunk_bytes)
        return self._layouts[number].num_groups if number in self._layouts else 1

    def _plain_block(self, number: int, chunk: int) -> TextBlock:
        file = self.files[number]
        start = self.file_of(chunk)[1] * self.chunk_bytes
        stop = min(start + self.chunk_bytes, file.size_bytes)
        size = stop - start
        reader = open_ranges(file)
        # A line starts after a line's end, so the byte before the chunk is looked at too.
        begin, end = max(start - 1, 0), min(stop + _TAIL_BYTES, file.size_bytes)
        data = read_range(reader, begin, end)
        first = data.find(b"\n", 0, stop - start) + 1 if start else 0
        if start and not first:
            return TextBlock(chunk, 0, b"", number, size, stop, None)
        last = data.find(b"\n", stop - begin - 1) + 1
        pieces = [data[first : last or None]]
        while not last and end < file.size_bytes:  # its last line is longer than what was read with it
            begin, end = end, min(end + _PIECE_BYTES, file.size_bytes)
            data = read_range(reader, begin, end)
            last = data.find(b"\n") + 1
            pieces.append(data[: last or None])
        data, start = b"".join(pieces), start + first - 1 if start else 0
        return TextBlock(chunk, 0, data, number, size, start, 1 if start == 0 else None)

    def _compressed_parts(self, number: int, chunk: int, part: int) -> Iterator[TextBlock]:
        read_bytes = 0
        for place, block in enumerate(BlockReader(self.files[number], self.chunk_bytes)):
            if place >= part:
                size = block.read_bytes - read_bytes
                yield TextBlock(chunk, place, block.data, number, size, 0, block.first_line)
            read_bytes = block.read_bytes

    def _parquet_parts(self, number: int, chunk: int, part: int) -> Iterator[TextBlock]:
        file, layout = self.files[number], self._layouts[number]
        group = self.file_of(chunk)[1]
        group_rows = int(layout.first_rows[group + 1] - layout.first_rows[group])
        for block in read_parts(file, layout, self._text_field, group, part, block_bytes=self.chunk_bytes):
            begin, end = (file.size_bytes * row // layout.num_rows for row in (block.begin, block.end))
            share = (block.end - block.begin) / group_rows
            yield TextBlock(chunk, block.part, block.lines, number, end - begin, 0, block.begin + 1, share)
