"""Any file of text as blocks of JSON lines, in order: the one place that knows which reader reads which form.

A reader is iterated for its ``Block``s; ``digest`` is afterwards the SHA-256 of the file as it was read, or
"" where the way of reading does not pass over the whole file (Parquet: only one column is read).
``read_texts`` goes on to documents, for those who need no more than these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from protolith.data.files import DataFile
from protolith.data.json_lines import BLOCK_BYTES, Block, BlockReader
from protolith.data.parquet_text import read_layout, read_parts
from protolith.data.text import Tally, add_block, read_block
from protolith.data.text_form import TextForm, form_of


class ParquetReader:
    """The blocks of a Parquet file; a line's number is its row's, from 1."""

    digest = ""

    def __init__(self, file: DataFile, text_field: str, block_bytes: int = BLOCK_BYTES) -> None:
        self.file = file
        self._text_field = text_field
        self._block_bytes = block_bytes

    def __iter__(self) -> Iterator[Block]:
        layout = read_layout(self.file, self._text_field)
        for group in range(layout.num_groups):
            for part in read_parts(self.file, layout, self._text_field, group, block_bytes=self._block_bytes):
                done_bytes = self.file.size_bytes * part.end // layout.num_rows
                yield Block(part.lines, part.begin + 1, done_bytes)


def blocks_of(file: DataFile, text_field: str, block_bytes: int = BLOCK_BYTES) -> BlockReader | ParquetReader:
    """The reader for this file.

    Raises:
        BadRecordError: it is no text. NotFoundError, NotAllowedError: it cannot be opened.
    """
    if form_of(file) is TextForm.PARQUET:
        return ParquetReader(file, text_field, block_bytes)
    return BlockReader(file, block_bytes)


def read_texts(
    files: Sequence[DataFile],
    text_field: str = "text",
    *,
    tally: Tally | None = None,
    poll: Callable[[], None] | None = None,
) -> Iterator[str]:
    """All documents of ``files`` in order, in constant memory. ``tally`` is filled on the way; ``poll`` is
    called once a block.

    Raises:
        BadRecordError: a damaged line, or too many records without text.
    """
    tally = Tally() if tally is None else tally
    total_bytes, before_bytes = max(1, sum(file.size_bytes for file in files)), 0
    for file in files:
        for block in blocks_of(file, text_field):
            if poll is not None:
                poll()
            found = read_block(block.data, text_field)
            add_block(tally, found, file, block.first_line)
            tally.check((before_bytes + block.read_bytes) / total_bytes)
            yield from found.texts
        before_bytes += file.size_bytes
    tally.check()
