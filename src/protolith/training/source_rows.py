"""From paths to proved rows: text is tokenized into the cache first, shards are opened, checked, and cut into
rows as the config says.

What must be said is gathered in ``Said``, by the source it is about.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protolith.config.schema import TrainConfig
from protolith.data.best_fit_rows import BestFitRows
from protolith.data.cache import TokenizedCorpus, TokenizingStopped, tokenize_corpus
from protolith.data.check import quick_check
from protolith.data.document_rows import DocumentRows
from protolith.data.files import find_files
from protolith.data.packing import RowSource
from protolith.data.shard_folders import find_shards
from protolith.data.shards import TokenPool
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import TextTokenizer
from protolith.data.window_rows import WindowRows
from protolith.errors import DataError

Progress = Callable[[str, int, int, str], None]


@dataclass
class Said:
    """Notes and warnings to be said once, and records or documents left out: source -> reason -> how many."""

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)

    def skip(self, source: str, reasons: dict[str, int]) -> None:
        ours = self.skipped.setdefault(source, {})
        for reason, count in reasons.items():
            ours[reason] = ours.get(reason, 0) + count


@dataclass(frozen=True)
class Opening:
    """What opening any source needs to know."""

    config: TrainConfig
    tokenizer: TextTokenizer
    vocab_size: int
    working: Progress
    should_stop: Callable[[], bool]

    def poll(self) -> None:
        if self.should_stop():
            raise TokenizingStopped

    def tokenize(
        self,
        paths: Sequence[str],
        said: Said,
        source: str | None,
        *,
        eval_split: float = 0.0,
        about: str = "",
    ) -> TokenizedCorpus:
        """The shards of text. ``source``: whose left-out records are counted; None: nobody's."""
        found = find_files(paths, suffixes=TEXT_SUFFIXES, what="text")
        said.notes.extend(about + note for note in found.notes)

        def on_progress(done_bytes: int, total_bytes: int, documents: int, tokens: int) -> None:
            self.working("tokenizing", done_bytes, total_bytes, f"{documents:,} documents, {tokens:,} tokens")

        corpus = tokenize_corpus(
            found.files,
            self.tokenizer,
            text_field=self.config.data.text_field,
            eval_split=eval_split,
            cache_root=cache_root(),
            num_workers=None,
            on_progress=on_progress,
            should_stop=self.should_stop,
        )
        said.notes.extend(about + note for note in corpus.notes)
        if source is not None:
            said.skip(source, corpus.summary.skipped)
        return corpus

    def pool(self, folders: Sequence[str], said: Said, about: str = "") -> TokenPool:
        shards, notes = find_shards(folders)
        said.notes.extend(about + note for note in notes)
        return TokenPool.open(shards, vocab_size=self.vocab_size)

    def check(self, pool: TokenPool, said: Said, training: TokenPool | None = None, about: str = "") -> None:
        """Raises DataError when training on it would be wrong."""
        report = quick_check(
            pool,
            eos_id=self.tokenizer.eos_id,
            tokenizer_name=self.tokenizer.name,
            vocab_size=self.vocab_size,
            tokenizer_size=self.tokenizer.vocab_size,
            training=training,
        )
        said.warnings.extend(about + warning for warning in report.warnings)
        if report.errors:
            raise DataError(
                about + "; ".join(report.errors[:5]),
                hint="were these shards made with this model's tokenizer?",
            )

    def rows(self, pool: TokenPool, what: str) -> RowSource:
        """The rows of a pool; ``what`` it is, for messages."""
        data = self.config.data
        try:
            if data.packing == "best_fit":
                return BestFitRows(
                    pool, data.max_seq_length, document_mask=data.document_mask, poll=self.poll
                )
            if data.packing:
                return WindowRows(pool, data.max_seq_length, document_mask=data.document_mask)
            return DocumentRows(pool, data.max_seq_length)
        except DataError as error:
            error.message = f"{what}: {error.message}"
            raise


def cache_root() -> Path:
    """Where tokenized text is kept: ``$PROTOLITH_HOME/cache/tokens``, by default under ``~/.protolith``."""
    home = os.environ.get("PROTOLITH_HOME") or "~/.protolith"
    return Path(home).expanduser() / "cache" / "tokens"
