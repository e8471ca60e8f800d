"""From the data section of a config to rows: text is tokenized into a cache first or streamed, shards are
opened.

Goes out: rows to train on, rows held out, and what the run must say about them. Everything that could
make training wrong is found here, before the model is built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith.config.schema import TrainConfig
from protolith.data.cache import TokenizedCorpus, TokenizingStopped, tokenize_corpus
from protolith.data.check import quick_check
from protolith.data.files import DataFile, find_files
from protolith.data.packing import DocumentRows, RowSource, WindowRows
from protolith.data.shard_folders import find_shards
from protolith.data.shards import TokenPool
from protolith.data.storage import Location
from protolith.data.stream_estimate import StreamEstimate, estimate_rows
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import DataError

Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True)
class StreamedText:
    """Text to train on that is read while training; how much it is, is an estimate."""

    stream: TextStream
    estimate: StreamEstimate

    @property
    def num_rows(self) -> int:
        return self.estimate.num_rows

    @property
    def num_targets(self) -> int:
        return self.estimate.num_targets


@dataclass
class Datasets:
    """``identity`` tells this data from any other, wherever its folder lies."""

    train: RowSource | StreamedText
    held_out: RowSource | None
    identity: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> RowSource:
        """Numbered rows to train on.

        Raises:
            DataError: the text is streamed.
        """
        if isinstance(self.train, StreamedText):
            raise DataError("streamed text has no numbered rows", where="data.streaming")
        return self.train


def open_datasets(
    config: TrainConfig,
    tokenizer: TextTokenizer,
    *,
    vocab_size: int,
    working: Progress,
    should_stop: Callable[[], bool],
) -> Datasets:
    """Open training and validation data.

    Raises:
        NotFoundError, DataError, ShardError, BadRecordError, CorpusTooSmallError: with the place at fault.
    """
    data = config.data
    if data.streaming and data.format == "text":
        return _open_streamed(config, tokenizer, vocab_size, working, should_stop)
    notes: list[str] = []
    warnings: list[str] = []
    skipped: dict[str, int] = {}
    held_out_dirs: Sequence[str] = data.eval_path or ()
    if data.format == "text":
        corpus = _tokenized(
            data.path, config, tokenizer, data.eval_split, working, should_stop, notes, skipped
        )
        train_dirs: Sequence[str] = [str(corpus.train_dir)]
        if corpus.eval_dir is not None:
            held_out_dirs = [str(corpus.eval_dir)]
        elif held_out_dirs:
            held_out_dirs = _held_out_text(config, tokenizer, working, should_stop, notes, warnings)
    else:
        train_dirs = data.path
    train_pool = _pool(train_dirs, vocab_size, notes)
    _check(train_pool, tokenizer, vocab_size, warnings)
    train = _rows(train_pool, config)
    notes.extend(train.notes)
    for reason, count in train.skipped.items():
        skipped[reason] = skipped.get(reason, 0) + count
    return Datasets(
        train=train,
        held_out=_held_out_rows(
            held_out_dirs, config, tokenizer, vocab_size, notes, warnings, train_pool=train_pool
        ),
        identity={
            "shards": train_pool.identity(),
            "seq_len": data.max_seq_length,
            "packing": data.packing,
            "shuffle": data.shuffle,
            "seed": data.seed,
        },
        notes=notes,
        warnings=warnings,
        skipped=skipped,
    )


def _open_streamed(
    config: TrainConfig,
    tokenizer: TextTokenizer,
    vocab_size: int,
    working: Progress,
    should_stop: Callable[[], bool],
) -> Datasets:
    """Text that is read while training; held-out text is tokenized into the cache, as always."""
    data = config.data
    found = find_files(data.path, suffixes=TEXT_SUFFIXES, what="text")
    notes, warnings = list(found.notes), []
    stream = TextStream(
        found.files,
        tokenizer,
        seq_len=data.max_seq_length,
        packing=data.packing is True,
        seed=data.seed,
        shuffle=data.shuffle,
        text_field=data.text_field,
    )

    def poll() -> None:
        if should_stop():
            raise TokenizingStopped

    estimate = estimate_rows(stream, poll)
    notes.extend((*stream.notes, *estimate.notes))
    held_out_dirs: Sequence[str] = ()
    if data.eval_path:
        held_out_dirs = _held_out_text(config, tokenizer, working, should_stop, notes, warnings)
    return Datasets(
        train=StreamedText(stream, estimate),
        held_out=_held_out_rows(held_out_dirs, config, tokenizer, vocab_size, notes, warnings),
        identity={
            "shards": stream.identity(),
            "streaming": True,
            "text_field": data.text_field,
            "seq_len": data.max_seq_length,
            "packing": data.packing,
            "shuffle": data.shuffle,
            "seed": data.seed,
        },
        notes=notes,
        warnings=warnings,
    )


def _held_out_text(
    config: TrainConfig,
    tokenizer: TextTokenizer,
    working: Progress,
    should_stop: Callable[[], bool],
    notes: list[str],
    warnings: list[str],
) -> list[str]:
    """The folder of shards that the text of ``data.eval_path`` becomes."""
    data = config.data
    overlap = _same_files(data.path, data.eval_path)
    if overlap:
        warnings.append(f"validation data is also training data: {', '.join(overlap[:3])}")
    held = _tokenized(data.eval_path, config, tokenizer, 0.0, working, should_stop, notes, {})
    return [str(held.train_dir)]


def _held_out_rows(
    folders: Sequence[str],
    config: TrainConfig,
    tokenizer: TextTokenizer,
    vocab_size: int,
    notes: list[str],
    warnings: list[str],
    train_pool: TokenPool | None = None,
) -> RowSource | None:
    if not folders:
        return None
    pool = _pool(folders, vocab_size, notes)
    _check(pool, tokenizer, vocab_size, warnings, train_pool)
    rows = _rows(pool, config, what="validation data")
    notes.extend(f"validation data: {note}" for note in rows.notes)
    return rows


def cache_root() -> Path:
    """Where tokenized text is kept: ``$PROTOLITH_HOME/cache/tokens``, by default under ``~/.protolith``."""
    home = os.environ.get("PROTOLITH_HOME") or "~/.protolith"
    return Path(home).expanduser() / "cache" / "tokens"


def _tokenized(
    paths: Sequence[str],
    config: TrainConfig,
    tokenizer: TextTokenizer,
    eval_split: float,
    working: Progress,
    should_stop: Callable[[], bool],
    notes: list[str],
    skipped: dict[str, int],
) -> TokenizedCorpus:
    found = find_files(paths, suffixes=TEXT_SUFFIXES, what="text")
    notes.extend(found.notes)

    def on_progress(done_bytes: int, total_bytes: int, documents: int, tokens: int) -> None:
        working("tokenizing", done_bytes, total_bytes, f"{documents:,} documents, {tokens:,} tokens")

    corpus = tokenize_corpus(
        found.files,
        tokenizer,
        text_field=config.data.text_field,
        eval_split=eval_split,
        cache_root=cache_root(),
        num_workers=None,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    notes.extend(corpus.notes)
    for reason, count in corpus.summary.skipped.items():
        skipped[reason] = skipped.get(reason, 0) + count
    return corpus


def _pool(folders: Sequence[str], vocab_size: int, notes: list[str]) -> TokenPool:
    shards, found_notes = find_shards(folders)
    notes.extend(found_notes)
    return TokenPool.open(shards, vocab_size=vocab_size)


def _rows(pool: TokenPool, config: TrainConfig, what: str = "training data") -> RowSource:
    seq_len = config.data.max_seq_length
    try:
        return WindowRows(pool, seq_len) if config.data.packing is True else DocumentRows(pool, seq_len)
    except DataError as error:
        error.message = f"{what}: {error.message}"
        raise


def _check(
    pool: TokenPool,
    tokenizer: TextTokenizer,
    vocab_size: int,
    warnings: list[str],
    train_pool: TokenPool | None = None,
) -> None:
    report = quick_check(
        pool,
        eos_id=tokenizer.eos_id,
        tokenizer_name=tokenizer.name,
        vocab_size=vocab_size,
        tokenizer_size=tokenizer.vocab_size,
        training=train_pool,
    )
    warnings.extend(report.warnings)
    if report.errors:
        raise DataError(
            "; ".join(report.errors[:5]),
            hint="were these shards made with this model's tokenizer?",
        )


def _same_files(train: Sequence[str], held_out: Sequence[str]) -> list[str]:
    """Names of text files that are in both sets."""
    ours = {_place(file) for file in find_files(train, suffixes=TEXT_SUFFIXES, what="text").files}
    theirs = find_files(held_out, suffixes=TEXT_SUFFIXES, what="text").files
    return [file.name for file in theirs if _place(file) in ours]


def _place(file: DataFile) -> Location:
    return file.path.resolve() if isinstance(file.path, Path) else file.path
