"""From folders of token shards to proved shards in reading order.

Comes in: paths as the user wrote them (see ``data/files.py`` for what a path may be).
Goes out: one ``ShardInfo`` a shard and the notes to say once; all bad shards of all paths in one error.

- Empty shards (empty tasks of a tokenizing job leave them) are skipped and said.
- A shuffled copy beside its source (``X_unshuffled.ds`` and ``X_..._shuffled.ds``, which an interrupted
  tokenizing job leaves) holds the same tokens twice: when both are complete only the shuffled one is
  read; when they are not, that is an error, because nobody can know which one is meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from protolith.data.files import DataFile, find_files, name_some
from protolith.data.shard_proof import ShardProver, proof_notes
from protolith.errors import DataError, ShardError
from protolith.formats.shard_files import ShardInfo
from protolith.formats.shard_manifest import MANIFEST_NAME

SHARD_SUFFIXES = (".ds",)
_COMPANIONS = (".ds.index", ".ds.metadata", MANIFEST_NAME)

_STAGE = re.compile(r"(?P<base>.*?)_?(?P<stage>unshuffled|(?:doc_|chunk_)?shuffled)\.ds\Z", re.IGNORECASE)
_STAGES = ("unshuffled", "shuffled", "doc_shuffled", "chunk_shuffled")
_PART = re.compile(r"_?\d{5}\Z")


def find_shards(
    paths: Sequence[str], *, whole: bool = False
) -> tuple[tuple[ShardInfo, ...], tuple[str, ...]]:
    """All shards behind ``paths``, proved, in reading order, and notes. ``whole``: read all of every index,
    however large they are together (see ``data/shard_proof.py``).

    Raises:
        NotFoundError: a path does not exist.
        ShardError: ``problems`` lists every bad shard, one line each.
        DataError: a folder without shards, or with empty ones only.
        NotAllowedError, UnreachableError: a storage that refuses or does not answer.
    """
    found = find_files(paths, suffixes=SHARD_SUFFIXES, what="token shards", companions=_COMPANIONS)
    shards: list[ShardInfo] = []
    empty: list[str] = []
    problems: list[str] = []
    prover = ShardProver(found, whole=whole)

    def look(file: DataFile) -> ShardInfo | ShardError | None:
        try:
            return prover.look(file)
        except ShardError as error:
            return error

    for file, shard in zip(found.files, prover.each(look, found.files), strict=True):
        if isinstance(shard, ShardError):
            problems.append(f"{shard.where}: {shard.message}")
        elif shard is None:
            empty.append(file.name)
        else:
            shards.append(shard)
    kept, copy_notes, copy_problems = _without_copies(shards)
    problems.extend(copy_problems)
    if problems:
        raise _bad_shards(paths, problems)
    if not kept:
        raise DataError(
            f"all {len(empty)} shards are empty", where=", ".join(paths), hint="tokenize the text again"
        )
    notes = list(found.notes)
    if empty:  # one sentence for all that was left out
        skipped = f"skipped {len(empty)} empty shard{'s' * (len(empty) > 1)} ({name_some(empty)})"
        notes = ["; ".join([skipped, *notes])]
    return tuple(kept), (*notes, *copy_notes, *_notes_about(kept, prover))


def _bad_shards(paths: Sequence[str], problems: list[str]) -> ShardError:
    first, *others = problems
    more = f" (and {len(others)} more)" if others else ""
    return ShardError(
        f"{len(problems)} bad shard{'s' * bool(others)}: {first}{more}",
        where=", ".join(paths),
        hint="copy or write the named shards again with their .index and .metadata",
        problems=tuple(problems),
    )


def _notes_about(shards: list[ShardInfo], prover: ShardProver) -> list[str]:
    notes = proof_notes(shards)
    no_index = [shard.name for shard in shards if shard.index_path is None]
    if no_index:
        notes.append(
            f"no .index beside {name_some(no_index)}: the width comes from the metadata, and where documents"
            " end is not known there"
        )
    no_metadata = [shard.name for shard in shards if shard.metadata_path is None]
    if no_metadata:
        notes.append(
            f"no .metadata beside {name_some(no_metadata)}: the width is what size and index allow, and the"
            " tokenizer is not known there"
        )
    losses = prover.num_with(".loss", shards)
    if losses:
        notes.append(f"{losses} loss masks (.ds.loss) are not used: every token is trained on")
    return notes


def _without_copies(shards: list[ShardInfo]) -> tuple[list[ShardInfo], list[str], list[str]]:
    """Shards without the sources of shuffled copies; notes; problems."""
    by_folder: dict[Any, dict[str, ShardInfo]] = defaultdict(dict)
    for shard in shards:
        by_folder[shard.path.parent][shard.path.name] = shard
    dropped: set[Any] = set()
    notes: list[str] = []
    problems: list[str] = []
    for names in by_folder.values():
        for sources, copies in _copies(names):
            held, copied = (sum(shard.num_tokens for shard in group) for group in (sources, copies))
            source, copy = (name_some([shard.name for shard in group]) for group in (sources, copies))
            if held == copied:
                dropped.update(shard.path for shard in sources)
                notes.append(
                    f"{source} holds the same tokens as its shuffled copy {copy}: only the copy is read"
                )
            elif _STAGE.fullmatch(sources[0].path.name):
                problems.append(
                    f"{source}: seems the source of {copy}, but has {held}, not {copied} tokens:"
                    " the same text twice, one of them cut; keep only the good one"
                )
    return [shard for shard in shards if shard.path not in dropped], notes, problems


def _copies(names: dict[str, ShardInfo]) -> list[tuple[list[ShardInfo], list[ShardInfo]]]:
    """Sources and the shuffled files made of them, in one folder.

    A job writes ``X_unshuffled.ds``, copies it to ``X_<part>_doc_shuffled.ds`` (and those perhaps to
    ``X_<part>_chunk_shuffled.ds``) and then removes what it copied from.
    """
    groups: dict[str, dict[str, list[ShardInfo]]] = defaultdict(lambda: defaultdict(list))
    for name, shard in names.items():
        match = _STAGE.fullmatch(name)
        if match:
            base, stage = match["base"], match["stage"].lower()
            whole = _PART.sub("", base)
            if stage != "unshuffled" and f"{whole}_unshuffled.ds" in names:
                base = whole
            groups[base][stage].append(shard)
    pairs = []
    for base, stages in groups.items():
        present = [stages[stage] for stage in _STAGES if stage in stages]
        plain = names.get(f"{base}.ds")
        if plain is not None and list(stages) != ["unshuffled"]:
            present.insert(0, [plain])
        pairs += [(sources, present[-1]) for sources in present[:-1]]
    return pairs
