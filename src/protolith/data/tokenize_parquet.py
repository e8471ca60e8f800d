"""Parquet files as text records: one column of one row group at a time.

The column is the field asked for, and "content" where "text" was asked for and is not there. Rows without
text are told by reason like lines of JSON; a column that is missing or holds no strings is an error at once.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from protolith.data.text import BlockTexts, text_of
from protolith.data.tokenize_inputs import SourceFile
from protolith.errors import BadRecordError, DataError, MissingExtraError

_BATCH_ROWS = 512


@contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    """The file, open for reading columns."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow, which is not installed",
            where=file.name,
            hint="pip install 'protolith[parquet]'",
        ) from error
    with file.open() as raw:
        try:
            with pyarrow.parquet.ParquetFile(raw) as table:
                yield table
        except (pyarrow.ArrowInvalid, pyarrow.ArrowIOError) as error:
            raise BadRecordError(
                f"not a whole Parquet file: {error}", where=file.name, hint="copy or write it again"
            ) from error


def group_bytes(file: SourceFile) -> list[int]:
    """Bytes of each row group on disk, nearly: they add up to the file."""
    with _opened(file) as table:
        count = table.metadata.num_row_groups
        sizes = [table.metadata.row_group(group).total_byte_size for group in range(count)]
    total = max(1, sum(sizes))
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    marks = [file.size_bytes * end // total for end in ends]
    return [stop - start for start, stop in itertools.pairwise(marks)]


def read_groups(file: SourceFile, start: int, stop: int, text_field: str) -> Iterator[tuple[int, BlockTexts]]:
    """(first row, records) of each batch of row groups ``start`` to ``stop``; rows count from 1 in the file,
    and so does the line of what was left out."""
    with _opened(file) as table:
        column = _column(table, text_field, file)
        row = 1 + sum(table.metadata.row_group(group).num_rows for group in range(start))
        for group in range(start, stop):
            for batch in table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[column]):
                found = BlockTexts()
                for at, value in enumerate(batch.column(0).to_pylist(), start=1):
                    text, reason = text_of({text_field: value}, text_field)
                    found.records += 1
                    if reason:
                        found.skipped.append((reason, at))
                    else:
                        found.texts.append(text)
                yield row, found
                row += batch.num_rows


def _column(table: Any, text_field: str, file: SourceFile) -> str:
    schema = table.schema_arrow
    name = text_field
    if name not in schema.names and text_field == "text" and "content" in schema.names:
        name = "content"
    if name not in schema.names:
        near = difflib.get_close_matches(text_field, schema.names, n=1)
        raise DataError(
            f"no column {text_field!r}; it has {', '.join(schema.names[:12])}",
            where=file.name,
            hint=f"--text-field {near[0]}?" if near else "name the column of text with --text-field",
        )
    kind = str(schema.field(name).type)
    if "string" not in kind:
        raise DataError(
            f"column {name!r} holds {kind}, not text", where=file.name, hint="name another with --text-field"
        )
    return name
