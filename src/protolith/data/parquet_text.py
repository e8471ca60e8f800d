"""Parquet files as text: one column of strings, cut into blocks that can be read from any row group on.

Comes in: one file, and the name of the field that holds the text. Goes out: blocks of JSON lines, one line a
row of the file, so that whoever reads lines reads these too and counts what is null or empty alike; line
numbers are row numbers, from 1.

    row group g  -->  part 0, part 1, ...     a part ends with the row that brings it to ``block_bytes`` of
                                              text, so (row group, part) always names the same rows

Only the text column is read. Memory: one part and one batch of about as many bytes (a row more, if that is
larger), however large the row groups are. Cost: opening reads the footer; part p of a row group decodes the
column up to there, but makes text of nothing before it. State: none.

pyarrow is needed; without it ``MissingExtraError`` says what to install. What is no string column, or no
sound file, is an error that names file, and row or columns (damage inside a page is seen where the writer put
checksums, which not all do).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from protolith.data.files import DataFile, name_some
from protolith.data.text_form import open_file
from protolith.errors import BadRecordError, DataError, MissingExtraError

_MOST_BATCH_ROWS = 1 << 12
_COLUMN_READ_BYTES = 1 << 20
_SHOWN_COLUMNS = 12
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True)
class ParquetLayout:
    """Where the text of a file lies.

    Attributes:
        column: name of the column that is read.
        first_rows: int64[G + 1]: the first row of each of its G row groups, from 0, and the number of rows.
        text_bytes: int64[G]: bytes of the column in each, before compression (less than the text where
            values repeat).
    """

    column: str
    first_rows: npt.NDArray[np.int64]
    text_bytes: npt.NDArray[np.int64]

    @property
    def num_groups(self) -> int:
        return len(self.text_bytes)

    @property
    def num_rows(self) -> int:
        return int(self.first_rows[-1])


@dataclass(frozen=True)
class ParquetPart:
    """Rows ``begin`` to ``end`` of the file, from 0. ``lines``: one JSON object a row."""

    part: int
    lines: bytes
    begin: int
    end: int


def read_layout(file: DataFile, text_field: str) -> ParquetLayout:
    """What the file's footer says.

    Raises:
        BadRecordError: damaged, no such column, or a column that holds no strings.
        MissingExtraError: pyarrow is not installed. NotFoundError, NotAllowedError: it cannot be opened.
    """
    with _opened(file) as table:
        return _layout(table, file, text_field)


def read_parts(
    file: DataFile, layout: ParquetLayout, text_field: str, group: int, part: int = 0, *, block_bytes: int
) -> Iterator[ParquetPart]:
    """The parts of a row group from ``part`` on.

    Raises:
        DataError: the file is not the one that ``layout`` was read from. BadRecordError: it is damaged.
    """
    with _opened(file) as table:
        now = _layout(table, file, text_field)
        if now.column != layout.column or now.first_rows.tolist() != layout.first_rows.tolist():
            raise changed(file)
        row = int(layout.first_rows[group])
        for number, rows in enumerate(_parts(table, layout, group, block_bytes)):
            begin, row = row, row + sum(map(len, rows))
            if number >= part:
                yield ParquetPart(number, _lines(rows, text_field, file, begin), begin, row)


def changed(file: DataFile) -> DataError:
    return DataError(
        "the file changed while it was read",
        where=str(file.path),
        hint="leave the text alone while a run reads it",
    )


def _parts(table: Any, layout: ParquetLayout, group: int, block_bytes: int) -> Iterator[list[Any]]:
    """Rows of each part, as slices of arrays of strings."""
    num_rows = int(layout.first_rows[group + 1] - layout.first_rows[group])
    mean_bytes = int(layout.text_bytes[group]) // max(num_rows, 1) + 1
    batches = table.iter_batches(
        batch_size=max(1, min(_MOST_BATCH_ROWS, block_bytes // mean_bytes)),
        row_groups=[group],
        columns=[layout.column],
        use_threads=False,
    )
    waiting: list[Any] = []
    room = block_bytes
    for batch in batches:
        texts = _strings(batch.column(layout.column))
        ends = np.cumsum(_sizes(texts))
        begin, before = 0, 0
        while begin < len(texts):
            stop = int(np.searchsorted(ends, before + room)) + 1
            if stop > len(texts):
                waiting.append(texts.slice(begin))
                room -= int(ends[-1]) - before
                break
            yield [*waiting, texts.slice(begin, stop - begin)]
            begin, before, room, waiting = stop, int(ends[stop - 1]), block_bytes, []
    if waiting:
        yield waiting


def _strings(column: Any) -> Any:
    import pyarrow

    return column if pyarrow.types.is_string(column.type) else column.cast(pyarrow.large_string())


def _sizes(texts: Any) -> npt.NDArray[np.int64]:
    """Bytes of each text and one more, so that rows without text fill blocks too."""
    import pyarrow.compute

    sizes = pyarrow.compute.fill_null(pyarrow.compute.binary_length(texts), 0)
    return np.asarray(sizes.to_numpy(zero_copy_only=False), dtype=np.int64) + 1


def _lines(rows: list[Any], text_field: str, file: DataFile, first_row: int) -> bytes:
    head = f"{{{_encode(text_field)}:"
    lines: list[str] = []
    for texts in rows:
        try:
            values = texts.to_pylist()
        except UnicodeDecodeError as error:
            raise _not_utf8(texts, error, file, first_row + len(lines)) from error
        lines += [f"{head}{'null' if value is None else _encode(value)}}}\n" for value in values]
    return "".join(lines).encode("utf-8")


def _not_utf8(texts: Any, error: UnicodeDecodeError, file: DataFile, first_row: int) -> BadRecordError:
    row = first_row + 1
    for place in range(len(texts)):
        try:
            texts.slice(place, 1).to_pylist()
        except UnicodeDecodeError as here:
            error, row = here, first_row + place + 1
            break
    return BadRecordError(
        f"not UTF-8: {error.reason} at byte {error.start + 1} of the text",
        where=f"{file.name}:{row}",
        hint="mend or remove this row",
    )


def _layout(table: Any, file: DataFile, text_field: str) -> ParquetLayout:
    column = _column(table.schema_arrow, file, text_field)
    facts = table.metadata
    groups = [facts.row_group(number) for number in range(facts.num_row_groups)]
    place = 0
    if groups:
        names = [groups[0].column(number).path_in_schema for number in range(groups[0].num_columns)]
        place = names.index(column)
    rows = np.array([group.num_rows for group in groups], dtype=np.int64)
    sizes = [group.column(place).total_uncompressed_size for group in groups]
    first_rows = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
    return ParquetLayout(column, first_rows, np.array(sizes, dtype=np.int64))


def _column(schema: Any, file: DataFile, text_field: str) -> str:
    """The name of the text column: by the same rule as the field of a JSON record."""
    import pyarrow

    names: list[str] = schema.names
    column = "content" if text_field == "text" and "text" not in names else text_field
    if column not in names:
        raise BadRecordError(
            f"no column {text_field!r}",
            where=file.name,
            hint=f"it has {name_some(names, _SHOWN_COLUMNS) or 'no column'}; name one in data.text_field",
        )
    if names.count(column) > 1:
        raise BadRecordError(f"{names.count(column)} columns are called {column!r}", where=file.name)
    kind = schema.field(column).type
    values = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    is_text = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    if not any(check(values) for check in is_text):
        raise BadRecordError(
            f"column {column!r} holds {kind}, not strings",
            where=file.name,
            hint="name the text column in data.text_field, or write it as strings",
        )
    return column


@contextmanager
def _opened(file: DataFile) -> Iterator[Any]:
    """The file as a ``pyarrow.parquet.ParquetFile``, with errors of the project's types."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "reading Parquet needs pyarrow", where=file.name, hint="pip install 'protolith[parquet]'"
        ) from error
    with open_file(file) as handle:
        try:
            with _table(handle) as table:
                yield table
        except pyarrow.ArrowMemoryError:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # the disk's complaint, not the format's
                raise
            raise BadRecordError(
                f"the Parquet file is damaged or cut short: {str(error).splitlines()[0]}",
                where=file.name,
                hint="copy or write it again",
            ) from error


def _table(handle: BinaryIO) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(
        handle, pre_buffer=False, buffer_size=_COLUMN_READ_BYTES, page_checksum_verification=True
    )
