"""``protolith data check``: prove token shards good before GPU time is spent on them.

All shards are looked at, whatever is wrong with some; the answer is a line for each, then reasons, then what
was not checked. It ends with 0 when training on them would do what is meant (warnings included), with 2 when
it would not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protolith.cli.render import Form, FormOption, facts, is_terminal, print_json, say, table
from protolith.data.files import name_some
from protolith.errors import EXIT_DONE, EXIT_USAGE, ModelError, NotFoundError

if TYPE_CHECKING:
    from protolith.data.check_report import ShardsReport
    from protolith.data.shard_facts import Expected, ShardFacts
    from protolith.data.tokenizer import TextTokenizer

_COLUMNS = ("shard", "tokens", "documents", "bytes", "tokenizer", "highest id", "EOS", "manifest", "status")
_NUMBERS = ("tokens", "documents", "bytes", "highest id", "EOS")
_PROGRESS_EVERY_S = 0.5
_MOST_NAMED = 10


def check(
    paths: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Shards, folders of shards or patterns.")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="DIR", help="Tokenizer they are to be trained with."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="Model to be trained: its vocabulary, and its tokenizer if none is given.",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option("--vocab-size", min=1, help="Ids must be below this, whatever the model says."),
    ] = None,
    eos_token: Annotated[
        str | None,
        typer.Option(
            "--eos-token", metavar="TOKEN", help="End of text, where it is not the tokenizer's own."
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read every id and digest, not a sample of each shard.")
    ] = False,
    form: FormOption = Form.text,
) -> int:
    """Prove token shards good: files, ids, ends of documents, digests, duplicates. Ends with 2 when training
    on them would be wrong."""
    from protolith.data.check_report import check_shards

    expected, notes = _expected(tokenizer, model, vocab_size, eos_token)
    report = check_shards(paths, expected, full=full, progress=_progress())
    if form is Form.json:
        print_json(_json(report, expected, notes, full))
    else:
        _show(report, notes)
    return EXIT_DONE if report.is_good else EXIT_USAGE


def _expected(
    tokenizer: str | None, model: str | None, vocab_size: int | None, eos_token: str | None
) -> tuple[Expected, list[str]]:
    """What the shards are held against, and notes on it."""
    from protolith.data.shard_facts import Expected
    from protolith.formats.rundir import read_json
    from protolith.model.directory import resolve_model_dir

    notes, source, known = [], tokenizer, Expected()
    if model is not None:
        folder = resolve_model_dir(model)
        size = read_json(folder / "config.json").get("vocab_size")
        if vocab_size is None and not isinstance(size, int):
            raise ModelError("no vocab_size in config.json", where=str(folder), hint="give --vocab-size")
        known = Expected(vocab_size=size, vocabulary=f"the model {folder.name}")
        if source is None and (folder / "tokenizer.json").is_file():
            source = str(folder)
            notes.append(f"tokenizer: the one of the model {folder.name}")
    if vocab_size is not None:
        known = Expected(vocab_size=vocab_size, vocabulary="the vocabulary given")
    if source is None:
        return known, notes
    loaded = _load(source, eos_token)
    num_ids = max(loaded.vocab_size, loaded.max_id + 1)
    return (
        Expected(
            eos_id=loaded.eos_id,
            vocab_size=known.vocab_size or num_ids,
            vocabulary=known.vocabulary or f"the tokenizer {loaded.name}",
            known_ids=num_ids if known.vocab_size else None,
            tokenizer_name=loaded.name,
            tokenizer_digest=loaded.digest,
        ),
        [*notes, *loaded.notes],
    )


def _load(name: str, eos_token: str | None) -> TextTokenizer:
    """A tokenizer's folder, or one in the cache of models."""
    from protolith.data.tokenizer import load_tokenizer
    from protolith.model.directory import models_home

    if not Path(name).expanduser().exists() and (models_home() / name).is_dir():
        return load_tokenizer(models_home() / name, eos_token)
    try:
        return load_tokenizer(name, eos_token)
    except NotFoundError as error:
        error.hint = f"give a folder with tokenizer.json, or a name in {models_home()}"
        raise


def _progress() -> Callable[[int, int], None] | None:
    """A line on stderr that counts shards; nothing when nobody looks."""
    if not is_terminal(sys.stderr):
        return None
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if done == total:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - last > _PROGRESS_EVERY_S:
            last = time.monotonic()
            print(f"\r{done:,} of {total:,} shards", end="", file=sys.stderr, flush=True)

    return tell


def _json(report: ShardsReport, expected: Expected, notes: list[str], full: bool) -> dict[str, Any]:
    from dataclasses import asdict

    value = asdict(report)
    return {
        "good": report.is_good,
        "full": full,
        "expected": asdict(expected),
        **value,
        "notes": [*notes, *report.notes],
    }


def _show(report: ShardsReport, notes: list[str]) -> None:
    table(_COLUMNS, [_row(shard) for shard in report.shards], right=_NUMBERS)
    say()
    for kind, lines in (
        ("bad", _grouped((shard.name, shard.faults) for shard in report.shards)),
        ("warning", _grouped((shard.name, shard.doubts) for shard in report.shards)),
        ("bad", report.errors),
        ("warning", report.warnings),
        ("note", (*notes, *report.notes)),
        ("not checked", report.not_checked),
    ):
        for line in lines:
            say(f"{kind}: {line}")
    facts(_summary(report))


def _grouped(told: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """One line for all shards of which the same is said."""
    names: dict[str, list[str]] = {}
    for name, reasons in told:
        for reason in reasons:
            names.setdefault(reason, []).append(name)
    return [f"{name_some(shards, _MOST_NAMED)}: {reason}" for reason, shards in names.items()]


def _summary(report: ShardsReport) -> dict[str, Any]:
    count = {
        status: sum(shard.status == status for shard in report.shards) for status in ("ok", "warning", "bad")
    }
    return {
        "shards": f"{len(report.shards):,} ({count['ok']:,} ok, {count['warning']:,} with warnings,"
        f" {count['bad']:,} bad)",
        "tokens": report.num_tokens,
        "verdict": "training on these shards would be right, as far as was checked"
        if report.is_good
        else "training on these shards would be wrong",
    }


def _row(shard: ShardFacts) -> tuple[str, ...]:
    rate = shard.separators
    return (
        shard.name,
        _number(shard.num_tokens),
        _number(shard.num_documents),
        _number(shard.token_bytes),
        shard.tokenizer_name or "-",
        str(shard.ids.highest) if shard.ids is not None else "-",
        f"{rate.num_eos:,}/{rate.num_sampled:,}" if rate is not None else "-",
        shard.manifest or "-",
        shard.status,
    )


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
