"""From the data section of a config to rows: to train on, of one source or several, and held out.

Everything that could make training wrong is found here, before the model is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from protolith.config.mixture import (
    ONLY_SOURCE,
    SourceSpec,
    first_steps,
    is_mixture,
    source_names,
    sources_of,
)
from protolith.config.schema import TrainConfig
from protolith.data.files import find_files, name_some
from protolith.data.mixture import Stage, row_shares
from protolith.data.packing import RowSource
from protolith.data.shards import TokenPool
from protolith.data.stream_estimate import StreamEstimate, estimate_rows
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import DataError
from protolith.training.source_rows import Opening, Progress, Said, cache_root

__all__ = ["Datasets", "SourceRows", "StreamedText", "cache_root", "open_datasets"]

#: Of all tokens: a larger share that is cut is worth a warning.
_MUCH_CUT = 0.01


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


@dataclass(frozen=True)
class SourceRows:
    """Rows of one source, numbered or streamed, and its weight in each stage."""

    name: str
    rows: RowSource | StreamedText
    weights: tuple[float, ...] = (1.0,)

    @property
    def targets_per_row(self) -> float:
        return self.rows.num_targets / self.rows.num_rows


@dataclass
class Datasets:
    """What a run reads.

    Attributes:
        sources: rows to train on.
        mixed: sources are mixed by weights. first_steps: of the stages.
        held_out: name -> held-out rows.
        identity: tells this data from any other, wherever its folder lies.
        skipped: source -> reason -> how many records or documents never become rows.
    """

    sources: tuple[SourceRows, ...]
    held_out: dict[str, RowSource]
    identity: dict[str, Any]
    mixed: bool = False
    first_steps: tuple[int, ...] = (1,)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows of an epoch: of all sources together. Of streamed text, an estimate."""
        return sum(source.rows.num_rows for source in self.sources)

    @property
    def num_targets(self) -> int:
        """Tokens to predict in as many rows, mixed as in the first stage."""
        if not self.mixed:
            return sum(source.rows.num_targets for source in self.sources)
        shares = self.shares(0)
        mean = sum(shares.get(source.name, 0) * source.targets_per_row for source in self.sources)
        return max(1, round(self.num_rows * mean / sum(shares.values())))

    @property
    def num_held_out_rows(self) -> int:
        return sum(rows.num_rows for rows in self.held_out.values())

    @property
    def rows(self) -> RowSource:
        """The rows of the only source.

        Raises:
            DataError: the text is streamed, or there are several sources.
        """
        rows = self.sources[0].rows
        if len(self.sources) != 1 or isinstance(rows, StreamedText):
            raise DataError("there are no numbered rows of one source", where="data")
        return rows

    @property
    def numbered(self) -> list[tuple[str, RowSource]]:
        """(name, rows) of each source, none where text is streamed."""
        return [(s.name, s.rows) for s in self.sources if not isinstance(s.rows, StreamedText)]

    @property
    def streams(self) -> list[TextStream]:
        """Streamed text, none where rows are numbered."""
        return [s.rows.stream for s in self.sources if isinstance(s.rows, StreamedText)]

    def shares(self, stage: int) -> dict[str, int]:
        """Shares of rows in a stage, by source; see ``data/mixture.py``."""
        weights = {source.name: source.weights[stage] for source in self.sources}
        return row_shares(weights, {source.name: source.targets_per_row for source in self.sources})

    def stages(self, global_rows: int) -> tuple[Stage, ...]:
        """The stages of a mixture, for steps of ``global_rows`` rows."""
        return tuple(
            Stage((first - 1) * global_rows, self.shares(number))
            for number, first in enumerate(self.first_steps)
        )


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
    opening = Opening(config, tokenizer, vocab_size, working, should_stop)
    if config.data.streaming and config.data.format == "text":
        return _open_streamed(opening)
    data, said = config.data, Said()
    mixed = is_mixture(data)
    sources: list[SourceRows] = []
    held_out: dict[str, RowSource] = {}
    pools: list[TokenPool] = []
    identities: list[dict[str, Any]] = []
    for spec in sources_of(data):
        if not spec.is_used:
            said.notes.append(f"source {spec.name} has weight 0 and is never read")
            continue
        opened = _open_source(opening, spec, said, f"{spec.name}: " if mixed else "")
        sources.append(opened.rows)
        pools.append(opened.pool)
        if opened.held_out is not None:
            held_out[spec.name] = opened.held_out
        prefix = f"{spec.name}/" if mixed else ""
        identities += [{**entry, "name": prefix + entry["name"]} for entry in opened.pool.identity()]
    if mixed:
        _warn_of_shared_files(sources, pools, said)
    if data.eval_path:
        held_out = _held_out(opening, said, TokenPool.open([s for pool in pools for s in pool.shards]))
    return Datasets(
        sources=tuple(sources),
        held_out=held_out,
        identity={"shards": identities, **_order_identity(config), **_mixture_identity(config)},
        mixed=mixed,
        first_steps=first_steps(data),
        notes=said.notes,
        warnings=said.warnings,
        skipped=said.skipped,
    )


@dataclass(frozen=True)
class _Opened:
    rows: SourceRows
    pool: TokenPool
    held_out: RowSource | None


def _open_source(opening: Opening, spec: SourceSpec, said: Said, about: str) -> _Opened:
    data = opening.config.data
    folders: Sequence[str] = spec.paths
    eval_folder = None
    if data.format == "text":
        corpus = opening.tokenize(spec.paths, said, spec.name, eval_split=data.eval_split, about=about)
        folders = [str(corpus.train_dir)]
        eval_folder = corpus.eval_dir
    pool = opening.pool(folders, said, about)
    opening.check(pool, said, about=about)
    rows = opening.rows(pool, f"source {spec.name}" if about else "training data")
    said.notes.extend(about + note for note in rows.notes)
    said.warnings.extend(about + warning for warning in _much_cut(rows))
    said.skip(spec.name, rows.skipped)
    held_out = None
    if eval_folder is not None:
        held_out = _held_out_rows(opening, [str(eval_folder)], said, pool, f"{about}validation data")
    return _Opened(SourceRows(spec.name, rows, spec.weights), pool, held_out)


def _much_cut(rows: RowSource) -> list[str]:
    """A note has the numbers; that a good part of the text is never trained on is more than a note."""
    counts = rows.epoch_counts
    if counts.cut <= _MUCH_CUT * counts.read:
        return []
    return [
        f"{100 * counts.cut / counts.read:.1f} % of the tokens are never trained on: documents are cut at"
        f" rows of {rows.seq_len}; longer rows or packing keep them"
    ]


def _held_out(opening: Opening, said: Said, training: TokenPool | None) -> dict[str, RowSource]:
    """The rows of ``data.eval_path``: each entry by itself where sources are mixed, else all as one."""
    data = opening.config.data
    if is_mixture(data):
        groups = [(path,) for path in data.eval_path]
        names = source_names(groups)
    else:
        groups, names = [data.eval_path], [ONLY_SOURCE]
    found = {}
    for name, paths in zip(names, groups, strict=True):
        what = f"validation data {name}" if len(groups) > 1 else "validation data"
        folders: Sequence[str] = paths
        if data.format == "text":
            _warn_of_training_text(opening, paths, said)
            folders = [str(opening.tokenize(paths, said, None).train_dir)]
        found[name] = _held_out_rows(opening, folders, said, training, what)
    return found


def _held_out_rows(
    opening: Opening, folders: Sequence[str], said: Said, training: TokenPool | None, what: str
) -> RowSource:
    pool = opening.pool(folders, said)
    opening.check(pool, said, training)
    rows = opening.rows(pool, what)
    said.notes.extend(f"{what}: {note}" for note in rows.notes)
    return rows


def _open_streamed(opening: Opening) -> Datasets:
    """Text that is read while training; held-out text is tokenized into the cache, as always."""
    data, said = opening.config.data, Said()
    mixed = is_mixture(data)
    sources: list[SourceRows] = []
    identities: list[dict[str, Any]] = []
    for spec in sources_of(data):
        if not spec.is_used:
            said.notes.append(f"source {spec.name} has weight 0 and is never read")
            continue
        about = f"{spec.name}: " if mixed else ""
        found = find_files(spec.paths, suffixes=TEXT_SUFFIXES, what="text")
        stream = TextStream(
            found.files,
            opening.tokenizer,
            seq_len=data.max_seq_length,
            packing=data.packing,
            document_mask=data.document_mask,
            seed=data.seed,
            shuffle=bool(data.shuffle),
            text_field=data.text_field,
            name=spec.name,
        )
        estimate = estimate_rows(stream, opening.poll)
        said.notes.extend(about + note for note in (*found.notes, *stream.notes, *estimate.notes))
        sources.append(SourceRows(spec.name, StreamedText(stream, estimate), spec.weights))
        prefix = f"{spec.name}/" if mixed else ""
        identities += [{**entry, "name": prefix + entry["name"]} for entry in stream.identity()]
    return Datasets(
        sources=tuple(sources),
        held_out=_held_out(opening, said, None) if data.eval_path else {},
        identity={
            "shards": identities,
            "streaming": True,
            "text_field": data.text_field,
            **_order_identity(opening.config),
            **_mixture_identity(opening.config),
        },
        mixed=mixed,
        first_steps=first_steps(data),
        notes=said.notes,
        warnings=said.warnings,
        skipped=said.skipped,
    )


def _mixture_identity(config: TrainConfig) -> dict[str, Any]:
    if not is_mixture(config.data):
        return {}
    weights = {spec.name: list(spec.weights) for spec in sources_of(config.data)}
    return {"weights": weights, "stages": list(first_steps(config.data))}


def _order_identity(config: TrainConfig) -> dict[str, Any]:
    """What besides the data decides which rows there are and in which order."""
    data = config.data
    mask = {"document_mask": True} if data.document_mask else {}
    return {
        "seq_len": data.max_seq_length,
        "packing": data.packing,
        "shuffle": data.shuffle,
        "seed": data.seed,
        **mask,
    }


def _warn_of_training_text(opening: Opening, held_out: Sequence[str], said: Said) -> None:
    """Text files that are in both sets."""
    paths = [path for spec in sources_of(opening.config.data) for path in spec.paths]
    ours = {file.path.resolve() for file in find_files(paths, suffixes=TEXT_SUFFIXES, what="text").files}
    theirs = find_files(held_out, suffixes=TEXT_SUFFIXES, what="text").files
    both = [file.name for file in theirs if file.path.resolve() in ours]
    if both:
        said.warnings.append(f"validation data is also training data: {', '.join(both[:3])}")


def _warn_of_shared_files(sources: Sequence[SourceRows], pools: Sequence[TokenPool], said: Said) -> None:
    """Shards that two sources read: their weights do not mean what they say then."""
    owner: dict[Any, str] = {}
    for source, pool in zip(sources, pools, strict=True):
        shared: dict[str, list[str]] = {}
        for shard in pool.shards:
            place = shard.path.resolve()
            if owner.setdefault(place, source.name) != source.name:
                shared.setdefault(owner[place], []).append(shard.name)
        for other, names in shared.items():
            said.warnings.append(f"sources {other} and {source.name} read the same files: {name_some(names)}")
