"""One piece of the inputs to documents, in blocks, with places for messages.

Comes in: a ``Piece`` of a plan. Goes out: ``Batch`` values: texts, what was left out, how far reading has
come. Memory is a block (1 MiB, or one line if that is longer); plain text files are read whole.

Where a line stands in its file is only known by counting the lines before the piece. That is done for the
few lines that are shown to a person (``place_name``), not for each piece.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protolith.data.json_lines import BLOCK_BYTES, BlockReader
from protolith.data.parquet_text import read_layout, read_parts
from protolith.data.text import BlockTexts, read_block, text_of
from protolith.data.tokenize_inputs import LINES, PARQUET, SourceFile
from protolith.data.tokenize_plan import Piece
from protolith.errors import BadRecordError

_READ_BYTES = 1 << 18
_BOM = "\ufeff"


@dataclass(frozen=True)
class Place:
    """Line (or row) number ``line`` of file number ``file``, counted from byte ``start`` of it."""

    file: int
    start: int
    line: int


@dataclass(frozen=True)
class Batch:
    """``first``: where line 1 of ``found`` is; ``read_share``: how much of the piece was read, 0 to 1."""

    found: BlockTexts
    first: Place
    read_share: float


def read_piece(file: SourceFile, piece: Piece, text_field: str) -> Iterator[Batch]:
    """All records of a piece.

    Raises:
        BadRecordError: damage that is not one line's. DataError: the file changed since the plan was made.
        NotFoundError, NotAllowedError: it cannot be opened.
    """
    file.check_unchanged()
    if file.form == PARQUET:
        yield from _row_groups(file, piece, text_field)
    elif file.form == LINES:
        yield from _lines(file, piece, text_field)
    else:
        yield Batch(_plain(file), Place(piece.file, 0, 1), 1.0)
    file.check_unchanged()


def _lines(file: SourceFile, piece: Piece, text_field: str) -> Iterator[Batch]:
    whole = (piece.start, piece.stop) == (0, file.size_bytes)

    def opened() -> Any:
        raw = file.open()
        return raw if whole else LineRange(raw, piece.start, piece.stop)

    size = max(1, piece.size_bytes)
    for block in BlockReader(file.as_data(), open_raw=opened):
        found = read_block(block.data, text_field)
        yield Batch(
            found, Place(piece.file, piece.start, block.first_line), min(1.0, block.read_bytes / size)
        )


def _row_groups(file: SourceFile, piece: Piece, text_field: str) -> Iterator[Batch]:
    data = file.as_data()
    layout = read_layout(data, text_field)
    first, last = int(layout.first_rows[piece.start]), int(layout.first_rows[piece.stop])
    for group in range(piece.start, piece.stop):
        for part in read_parts(data, layout, text_field, group, block_bytes=BLOCK_BYTES):
            share = (part.end - first) / max(1, last - first)
            yield Batch(read_block(part.lines, text_field), Place(piece.file, 0, part.begin + 1), share)


def _plain(file: SourceFile) -> BlockTexts:
    data = b"".join(block.data for block in BlockReader(file.as_data(), open_raw=file.open))
    try:
        whole = data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        raise BadRecordError(
            f"not UTF-8: {error.reason} at byte {error.start + 1}",
            where=file.name,
            hint="convert the file to UTF-8",
        ) from error
    text, reason = text_of({"text": whole}, "text")
    return BlockTexts([text] if text else [], 1, [(reason, 1)] if reason else [])


class LineRange(io.RawIOBase):
    """The whole lines of a file that start at ``start`` or after it and before ``stop``.

    ``first`` is where the first of them starts. Closing it closes the file.
    """

    def __init__(self, raw: Any, start: int, stop: int) -> None:
        super().__init__()
        self._raw = raw
        self._stop = stop
        self._done = start >= stop
        self._rest = b""
        self.first = self._position = start
        raw.seek(max(0, start - 1))
        if start and not self._done:
            self._skip_begun_line(start - 1)

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._next(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()

    def _skip_begun_line(self, position: int) -> None:
        while piece := self._raw.read(_READ_BYTES):
            end = piece.find(b"\n") + 1
            if end:
                self.first = self._position = position + end
                self._rest = piece[end:]
                break
            position += len(piece)
            if position >= self._stop:
                break
        else:
            end = 0
        self._done = not end or self._position >= self._stop

    def _next(self, most: int) -> bytes:
        if self._done:
            return b""
        inside = self._stop - self._position
        data = self._take(min(most, inside) if inside > 0 else most)
        if inside <= 0:  # only to finish the line that began inside
            end = data.find(b"\n") + 1
            if end:
                data, self._done = data[:end], True
        elif len(data) == inside and data.endswith(b"\n"):
            self._done = True
        self._position += len(data)
        return data

    def _take(self, count: int) -> bytes:
        if self._rest:
            data, self._rest = self._rest[:count], self._rest[count:]
            return data
        return self._raw.read(count) or b""


def place_name(place: Place, files: tuple[SourceFile, ...]) -> str:
    """``file:line`` of a place, for a message: reads the file up to there when the piece began inside it."""
    file = files[place.file]
    if file.form == LINES:
        before = lines_before(file, place.start) if place.start else 0
        return f"{file.name}:{before + place.line}"
    return f"{file.name}:row {place.line}" if file.form == PARQUET else file.name


def lines_before(file: SourceFile, start: int) -> int:
    """Lines that start before the first one of a piece that begins at ``start``."""
    raw = file.open()
    with LineRange(raw, start, file.size_bytes) as lines:  # closes the file
        raw.seek(0)
        count, left = 0, lines.first
        while left > 0 and (data := raw.read(min(left, 1 << 20))):
            count += data.count(b"\n")
            left -= len(data)
    return count
