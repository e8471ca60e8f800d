"""One finished entry of the token cache: its manifest, written last and believed only when all fits.

train/00000.ds ...  eval/00000.ds ...   the shards (``eval`` only where documents were held out)
manifest.json                           the size of every file, and the counts of the corpus
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from protolith.data.text import Tally
from protolith.formats.rundir import read_json, write_json

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class CorpusSummary:
    """Counts of a tokenized corpus.

    Attributes:
        files: names the text had when it was tokenized.
        records: lines that are not blank.
        documents, tokens: of both sides together; eval_documents, eval_tokens: held out.
        unknown_tokens: tokens that stand for text the vocabulary cannot spell.
        token_bytes: width of an id in the shards.
        skipped, first_skipped: records left out by reason, and ``file:line`` of the first of each.
    """

    files: tuple[str, ...]
    records: int
    documents: int
    tokens: int
    eval_documents: int
    eval_tokens: int
    unknown_tokens: int
    token_bytes: int
    skipped: dict[str, int]
    first_skipped: dict[str, str]

    def notes(self) -> tuple[str, ...]:
        """What was left out or lost, to be said each time the corpus is used."""
        notes = Tally(self.records, self.skipped, self.first_skipped).notes()
        if not self.unknown_tokens:
            return notes
        share = self.unknown_tokens / self.tokens
        return (
            *notes,
            f"{self.unknown_tokens:,} of {self.tokens:,} tokens ({share:.2%}) stand for text that the"
            " tokenizer's vocabulary cannot spell",
        )


@dataclass(frozen=True)
class TokenizedCorpus:
    """Where the shards are. ``reused``: they were there before. ``eval_dir``: None without ``eval_split``."""

    train_dir: Path
    eval_dir: Path | None
    summary: CorpusSummary
    reused: bool
    notes: tuple[str, ...]


class DamagedEntry(Exception):  # noqa: N818 - not for users: the entry is made again
    """An entry that is not what its manifest says."""


def write_manifest(folder: Path, summary: CorpusSummary) -> None:
    """Declare the shards in ``folder`` finished."""
    shards = sorted(folder.rglob("*.ds*"))
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in shards}
    write_json(folder / MANIFEST, {"sizes": sizes, "summary": asdict(summary)}, durable=True)


def open_entry(folder: Path, names: Sequence[str], *, held_out: bool) -> TokenizedCorpus | None:
    """The entry in ``folder``; None when there is none.

    Args:
        names: what the text files, in the same order, are called now; places in notes use these.

    Raises:
        DamagedEntry: a file is missing or has another size than it was written with.
    """
    if not folder.is_dir():
        return None
    try:
        manifest: dict[str, Any] = read_json(folder / MANIFEST)
        for name, size in manifest["sizes"].items():
            if (folder / name).stat().st_size != size:
                raise DamagedEntry(f"{name} has another size than it was written with")
        facts = manifest["summary"]
        summary = CorpusSummary(**{**facts, "files": tuple(facts["files"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedEntry(str(error)) from error
    renamed = dict(zip(summary.files, names, strict=False))
    first = {reason: _renamed(where, renamed) for reason, where in summary.first_skipped.items()}
    summary = replace(summary, first_skipped=first)
    eval_dir = folder / "eval" if held_out else None
    return TokenizedCorpus(folder / "train", eval_dir, summary, True, summary.notes())


def _renamed(where: str, renamed: dict[str, str]) -> str:
    name, _, line = where.rpartition(":")
    return f"{renamed.get(name, name)}:{line}"
