"""What a stream has met so far: records, what was left out by reason, tokens; counted in its first epoch.

Later epochs meet the same again, which would say nothing new. The counts are part of the stream's position,
so a resumed run goes on counting. Places are kept as (file, byte) and made into line numbers when a person
is told, because that means reading the file up to there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protolith.data.stream_text import ChunkedText, TextBlock
from protolith.data.text import Tally, fault_error
from protolith.data.tokenize_block import BlockTokens
from protolith.errors import BadRecordError

SHORT = "documents of fewer than two tokens"


class StreamTally:
    """Counts of one pass over the text."""

    def __init__(self, text: ChunkedText, state: Mapping[str, Any] | None = None) -> None:
        saved = state or {}
        self._text = text
        self.records: int = saved.get("records", 0)
        self.documents: int = saved.get("documents", 0)
        self.tokens: int = saved.get("tokens", 0)
        self.unknown_tokens: int = saved.get("unknown_tokens", 0)
        self.read_bytes: int = saved.get("read_bytes", 0)
        #: documents without a row, where documents are rows
        self.short: int = saved.get("short", 0)
        self.skipped: dict[str, int] = dict(saved.get("skipped", {}))
        #: reason -> [file, byte, number of the first line there or None, line from there]
        self.first: dict[str, list[int | None]] = dict(saved.get("first", {}))

    def state(self) -> dict[str, Any]:
        """JSON types only."""
        names = ("records", "documents", "tokens", "unknown_tokens", "read_bytes", "short")
        return {
            **{name: getattr(self, name) for name in names},
            "skipped": dict(self.skipped),
            "first": dict(self.first),
        }

    def add(self, block: TextBlock, result: BlockTokens) -> None:
        """Count one block.

        Raises:
            BadRecordError: too many records without text so far.
        """
        self.records += result.found.records
        self.documents += len(result.train.lengths)
        self.tokens += sum(result.train.lengths)
        self.unknown_tokens += result.unknown_tokens
        self.read_bytes += block.size_bytes
        for reason, line in result.found.skipped:
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
            self.first.setdefault(reason, [block.file, block.start_byte, block.first_line, line])
        if result.found.skipped:
            self.check(min(1.0, self.read_bytes / self._text.total_bytes))

    def check(self, share_read: float = 1.0) -> None:
        """The verdict of ``Tally.check``, with places looked up only when it is a refusal."""
        try:
            Tally(self.records, self.skipped, dict.fromkeys(self.skipped, "")).check(share_read)
        except BadRecordError:
            self._told().check(share_read)

    def notes(self) -> tuple[str, ...]:
        """What was left out or lost, in sentences."""
        notes = list(self._told().notes())
        if self.short:
            notes.append(f"{self.short:,} {SHORT} make no row")
        if self.unknown_tokens:
            notes.append(
                f"{self.unknown_tokens:,} of {self.tokens:,} tokens ({self.unknown_tokens / self.tokens:.2%})"
                " stand for text that the tokenizer's vocabulary cannot spell"
            )
        return tuple(notes)

    def _told(self) -> Tally:
        first = {}
        for reason, (file, byte, first_line, line) in self.first.items():
            number = self._text.line_number(file or 0, byte or 0, first_line, line or 1)
            first[reason] = f"{self._text.files[file or 0].name}:{number}"
        return Tally(self.records, dict(self.skipped), first)


def skips_of(tally: Mapping[str, Any]) -> dict[str, int]:
    """Reason -> how many, from a tally's state, as the ledger wants them."""
    short = {SHORT: tally["short"]} if tally["short"] else {}
    return {**tally["skipped"], **short}


def raise_fault(text: ChunkedText, block: TextBlock, fault: tuple[int, str]) -> None:
    """The error of a damaged line, with its number in the file."""
    first_line = text.line_number(block.file, block.start_byte, block.first_line, 1)
    raise fault_error(fault, text.files[block.file], first_line)
