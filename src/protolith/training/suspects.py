"""Which rows and documents a step was made of, for when something is wrong with it.

Comes in: where the rows come from. Goes out: a few words for a message, and ``monitors/suspects.jsonl``:
every row of the step with its documents and how they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protolith.data.rows import Origin, RowSequence
from protolith.data.tokenizer import TextTokenizer
from protolith.training.monitors.builtin import MetricsFile

FILE_NAME = "suspects.jsonl"
_SHOWN_ROWS = 3
_SHOWN_DOCUMENTS = 4
_SHOWN_TOKENS = 24


class Suspects:
    """Names the rows of a step.

    Args:
        folder: the run's ``monitors``.
        sequence: reads rows again, to say how their documents begin; None where rows have no numbers.
        warn: told once when the disk refuses.
        writes: whether this process is the one that writes.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: TextTokenizer,
        sequence: RowSequence | None,
        warn: Callable[[str], None],
        writes: bool = True,
    ) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._sequence = sequence
        self._warn = warn
        self._writes = writes

    def __call__(self, step: int, numbers: dict[str, Any], origins: Sequence[Origin]) -> str:
        """Write all of them down; returns the first few in words."""
        if not self._writes:
            return in_words(origins)
        rows = [
            {
                "row": origin.row,
                "source": origin.source,
                "epoch": origin.epoch + 1,
                "number": origin.number,
                "documents": self._documents(origin),
            }
            for origin in origins
        ]
        MetricsFile(self._folder / FILE_NAME, self._warn).log(step, {**numbers, "rows": rows})
        return in_words(origins)

    def _documents(self, origin: Origin) -> list[dict[str, Any]]:
        inputs = np.empty(0, dtype=np.int64)
        if self._sequence is not None:
            inputs = self._sequence.read(origin.row, origin.row + 1).inputs[0]
        return [
            {
                "shard": part.shard,
                "document": part.document,
                "offset": part.offset,
                "tokens": part.num_tokens,
                "begins": self._tokenizer.decode(
                    inputs[part.slot : part.slot + min(part.num_tokens, _SHOWN_TOKENS)].tolist()
                ),
            }
            for part in origin.segments
        ]


def in_words(origins: Sequence[Origin]) -> str:
    """The first few rows with their documents, and how many more there are."""
    shown = [f"row {origin.row}: {_in_words(origin)}" for origin in origins[:_SHOWN_ROWS]]
    more = len(origins) - len(shown)
    return "; ".join([*shown, *([f"and {more} more rows"] if more else [])])


def _in_words(origin: Origin) -> str:
    by_shard: dict[str, list[str]] = {}
    for part in origin.segments:
        by_shard.setdefault(part.shard, []).append("?" if part.document is None else str(part.document))
    parts = []
    for shard, numbers in by_shard.items():
        some = ", ".join(numbers[:_SHOWN_DOCUMENTS]) + (" ..." if len(numbers) > _SHOWN_DOCUMENTS else "")
        parts.append(f"document{'s' * (len(numbers) > 1)} {some} of {shard}")
    return f"{origin.source}, {' and '.join(parts)}" if parts else origin.source
