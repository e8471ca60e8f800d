"""``protolith data show``: a training row, as text, with its documents and what is masked in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protolith.cli.render import Form, FormOption, print_json, say
from protolith.errors import UsageError

if TYPE_CHECKING:
    from protolith.data.packing import Segment
    from protolith.data.tokenizer import TextTokenizer

_CONFIGS = (".yaml", ".yml", ".toml")


def show(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR...",
            help="Folders of token shards, whose rows are numbered as they lie; or the config of a run, "
            "whose rows are numbered in the order of training.",
        ),
    ],
    row: Annotated[int, typer.Option("--row", min=0, help="Number of the row, from 0.")],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="T", help="Folder with tokenizer.json, to see text.")
    ] = None,
    seq_len: Annotated[int, typer.Option("--seq-len", min=1, help="Row length in tokens.")] = 2048,
    packing: Annotated[str, typer.Option("--packing", help="true, false or best_fit.")] = "true",
    document_mask: Annotated[
        bool, typer.Option("--document-mask", help="Documents do not see each other.")
    ] = False,
    form: FormOption = Form.text,
) -> None:
    """Show one training row: its text, its documents, and what is masked."""
    if len(data) == 1 and data[0].lower().endswith(_CONFIGS):
        shown = _row_of_config(Path(data[0]), row)
    else:
        shown = _row_of_shards(data, row, tokenizer, seq_len, packing, document_mask)
    if form is Form.json:
        print_json(_as_json(shown))
    else:
        _print(shown)


@dataclass(frozen=True)
class _Shown:
    """A row, where it comes from, and who can read it."""

    row: int
    num_rows: int
    source: str
    epoch: int
    number: int
    inputs: list[int]
    targets: list[int]
    positions: list[int] | None
    segments: Sequence[Segment]
    tokenizer: TextTokenizer | None
    notes: Sequence[str]


def _row_of_shards(
    folders: list[str], row: int, tokenizer: str | None, seq_len: int, packing: str, document_mask: bool
) -> _Shown:
    from protolith.data.best_fit_rows import BestFitRows
    from protolith.data.document_rows import DocumentRows
    from protolith.data.packing import RowSource
    from protolith.data.shard_folders import find_shards
    from protolith.data.shards import TokenPool
    from protolith.data.tokenizer import load_tokenizer
    from protolith.data.window_rows import WindowRows

    shards, notes = find_shards(folders)
    pool = TokenPool.open(shards)
    source: RowSource
    if packing == "true":
        source = WindowRows(pool, seq_len, document_mask=document_mask)
    elif packing == "best_fit":
        source = BestFitRows(pool, seq_len, document_mask=document_mask)
    elif packing == "false":
        source = DocumentRows(pool, seq_len)
    else:
        raise UsageError(f"--packing must be true, false or best_fit, not {packing!r}")
    if row >= source.num_rows:
        raise UsageError(f"there are {source.num_rows:,} rows, numbered from 0", where=f"--row {row}")
    found = source.row(row)
    return _Shown(
        row,
        source.num_rows,
        "data",
        0,
        row,
        found.inputs.tolist(),
        found.targets.tolist(),
        None if found.positions is None else found.positions.tolist(),
        source.segments(row),
        load_tokenizer(tokenizer) if tokenizer is not None else None,
        notes,
    )


def _row_of_config(path: Path, row: int) -> _Shown:
    from protolith.config.availability import check_available
    from protolith.config.load import load_config
    from protolith.config.plan import batch_plan
    from protolith.data.tokenizer import load_tokenizer
    from protolith.model.config import read_config_dict
    from protolith.model.directory import resolve_model_dir
    from protolith.training.datasets import open_datasets
    from protolith.training.loaders import row_sequence

    loaded = load_config(path)
    check_available(loaded)
    config = loaded.config
    folder = resolve_model_dir(config.model.name)
    tokenizer = load_tokenizer(config.model.tokenizer or folder, eos_token=config.data.eos_token)
    settings = {**read_config_dict(folder), **config.model.overrides}
    datasets = open_datasets(
        config,
        tokenizer,
        vocab_size=int(settings.get("vocab_size") or tokenizer.vocab_size),
        working=lambda *_: None,
        should_stop=lambda: False,
    )
    if datasets.streams:
        raise UsageError(
            "the rows of streamed text cannot be read by number",
            where="data.streaming",
            hint="set data.streaming: false to look at rows",
        )
    sequence = row_sequence(config, datasets, batch_plan(config, 1).global_rows)
    rows = sequence.read(row, row + 1)
    (origin,) = sequence.origins(row, row + 1)
    return _Shown(
        row,
        datasets.num_rows,
        origin.source,
        origin.epoch,
        origin.number,
        rows.inputs[0].tolist(),
        rows.targets[0].tolist(),
        None if rows.positions is None else rows.positions[0].tolist(),
        origin.segments,
        tokenizer,
        datasets.notes,
    )


def _masked(shown: _Shown, part: Segment) -> list[int]:
    """Slots of a part that have no target."""
    return [slot for slot in range(part.slot, part.slot + part.num_tokens) if shown.targets[slot] < 0]


def _as_json(shown: _Shown) -> dict[str, Any]:
    documents = []
    for part in shown.segments:
        ids = shown.inputs[part.slot : part.slot + part.num_tokens]
        documents.append(
            {
                "shard": part.shard,
                "document": part.document,
                "offset": part.offset,
                "slot": part.slot,
                "tokens": part.num_tokens,
                "slots_without_target": _masked(shown, part),
                "text": shown.tokenizer.decode(ids) if shown.tokenizer is not None else None,
            }
        )
    return {
        "row": shown.row,
        "num_rows": shown.num_rows,
        "source": shown.source,
        "epoch": shown.epoch + 1,
        "number": shown.number,
        "documents": documents,
        "inputs": shown.inputs,
        "targets": [None if target < 0 else target for target in shown.targets],
        "positions": shown.positions,
        "notes": list(shown.notes),
    }


def _print(shown: _Shown) -> None:
    for note in shown.notes:
        say(f"note: {note}", error=True)
    held = sum(part.num_tokens for part in shown.segments)
    trained = sum(target >= 0 for target in shown.targets)
    place = f"row {shown.number} of {shown.source}, epoch {shown.epoch + 1}"
    slots, empty = len(shown.inputs), len(shown.inputs) - held
    print(f"row {shown.row} ({place}; an epoch has {shown.num_rows:,} rows)")
    print(f"{slots:,} slots: {held:,} tokens, {empty:,} empty; {trained:,} targets")
    if shown.positions is not None:
        print("documents do not see each other: positions begin anew with each")
    for part in shown.segments:
        name = "no index" if part.document is None else f"document {part.document}"
        last = part.offset + part.num_tokens - 1
        print(
            f"\n--- {name} of {part.shard}, its tokens {part.offset} to {last}, from slot {part.slot} on ---"
        )
        ids = shown.inputs[part.slot : part.slot + part.num_tokens]
        print(shown.tokenizer.decode(ids) if shown.tokenizer is not None else " ".join(map(str, ids)))
        without = _masked(shown, part)
        if without:
            few = ", ".join(map(str, without[:8])) + (" ..." if len(without) > 8 else "")
            print(f"[no target at slot{'s' * (len(without) > 1)} {few}]")
    if shown.tokenizer is None:
        say("\ngive --tokenizer to see text instead of ids", error=True)
