"""Text records: from lines of JSON to documents, with everything that is left out counted by reason.

Comes in: a block of whole lines (see ``data/json_lines.py``), or files.
Goes out: texts, and a ``Tally``: records seen, records left out by reason, the first line of each reason.

A line is one JSON object; its text is the field asked for, and for the field "text" also "content" where
there is no "text". What cannot be a document (no such field, null, a number, an empty or blank string) is
counted and left out: a few of those are normal. Above one in a hundred the corpus is not what its owner
thinks, and reading stops. A line that is no JSON or no UTF-8 is damage, never normal: an error at once,
with file and line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from protolith.data.files import DataFile
from protolith.data.json_lines import BlockReader
from protolith.errors import BadRecordError

#: Endings of files taken from folders. Any file may be named itself.
TEXT_SUFFIXES = (
    ".jsonl",
    ".jsonl.gz",
    ".jsonl.zst",
    ".ndjson",
    ".ndjson.gz",
    ".ndjson.zst",
    ".json.gz",
    ".json.zst",
)

#: Share of records that may be left out before a corpus is refused.
MAX_SKIPPED = 0.01

_BOM = b"\xef\xbb\xbf"
_MISSING = object()


@dataclass
class Tally:
    """What reading met so far. ``first`` has ``file:line`` of the first record of each reason."""

    records: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    @property
    def num_skipped(self) -> int:
        return sum(self.skipped.values())

    def skip(self, reason: str, where: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.first.setdefault(reason, where)

    def check(self, share_read: float = 1.0) -> None:
        """Refuse a corpus of which too much is left out.

        Args:
            share_read: how much of the corpus was read. The verdict comes early when the records left out
                so far already make more than the allowed share of the whole.

        Raises:
            BadRecordError: with counts and the first place of each reason.
        """
        expected = self.records / max(share_read, 1e-9)
        if self.num_skipped <= MAX_SKIPPED * expected:
            return
        kinds = "; ".join(
            f"{count:,} {reason} (first at {self.first[reason]})" for reason, count in self.skipped.items()
        )
        raise BadRecordError(
            f"{self.num_skipped:,} of the {self.records:,} records read have no text: {kinds}",
            where=next(iter(self.first.values())),
            hint=f"at most {MAX_SKIPPED:.0%} may be left out; is data.text_field right?",
        )

    def notes(self) -> tuple[str, ...]:
        """One sentence for each reason."""
        return tuple(
            f"skipped {count:,} of {self.records:,} records: {reason} (first at {self.first[reason]})"
            for reason, count in self.skipped.items()
        )


@dataclass
class BlockTexts:
    """The records of one block.

    Attributes:
        texts: documents in order.
        records: lines that are not blank.
        skipped: (reason, line) of each record left out; lines count from 1 inside the block.
        fault: (line, message) of a line that cannot be read; nothing after it was.
    """

    texts: list[str] = field(default_factory=list)
    records: int = 0
    skipped: list[tuple[str, int]] = field(default_factory=list)
    fault: tuple[int, str] | None = None


def read_block(data: bytes, text_field: str) -> BlockTexts:
    """Texts of a block of lines. Raises nothing: damage is told as ``fault``."""
    block = BlockTexts()
    for number, raw in enumerate(data.split(b"\n"), start=1):
        line = raw.removeprefix(_BOM)
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            block.fault = (number, f"not UTF-8: {error.reason} at byte {error.start + 1} of the line")
            return block
        except (ValueError, RecursionError) as error:
            block.fault = (number, f"not JSON: {error}")
            return block
        block.records += 1
        text, reason = text_of(record, text_field)
        if reason:
            block.skipped.append((reason, number))
        else:
            block.texts.append(text)
    return block


def fault_error(fault: tuple[int, str], file: DataFile, first_line: int) -> BadRecordError:
    """The error for a line that cannot be read."""
    line, message = fault
    return BadRecordError(
        message,
        where=f"{file.name}:{first_line + line - 1}",
        hint="each line must be one JSON object in UTF-8; mend or remove this line",
    )


def text_of(record: Any, text_field: str) -> tuple[str, str]:
    """The text of one record: (text, "") or ("", why there is none)."""
    if not isinstance(record, dict):
        return "", "not an object"
    value = record.get(text_field, _MISSING)
    if value is _MISSING and text_field == "text":
        value = record.get("content", _MISSING)
    if value is _MISSING:
        return "", f"no field {text_field!r}"
    if value is None:
        return "", "null"
    if not isinstance(value, str):
        return "", f"not a string but {type(value).__name__}"
    if not value:
        return "", "empty"
    if value.isspace():
        return "", "blank"
    if not value.isascii() and _has_lone_surrogate(value):
        return "", "half of a surrogate pair"
    return value, ""


def _has_lone_surrogate(text: str) -> bool:
    """JSON can spell what no UTF-8 text can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


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
        for block in BlockReader(file):
            if poll is not None:
                poll()
            found = read_block(block.data, text_field)
            add_block(tally, found, file, block.first_line)
            tally.check((before_bytes + block.read_bytes) / total_bytes)
            yield from found.texts
        before_bytes += file.size_bytes
    tally.check()


def add_block(tally: Tally, found: BlockTexts, file: DataFile, first_line: int) -> None:
    """Count one block, or raise for its damaged line."""
    tally.records += found.records
    for reason, line in found.skipped:
        tally.skip(reason, f"{file.name}:{first_line + line - 1}")
    if found.fault is not None:
        raise fault_error(found.fault, file, first_line)
