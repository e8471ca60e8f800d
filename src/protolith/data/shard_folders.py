"""From folders of token shards to proved shards in reading order.

Comes in: paths as the user wrote them (see ``data/files.py`` for what a path may be).
Goes out: one ``ShardInfo`` a shard and the notes to say once; all bad shards of all paths in one error.
``survey_shards`` gives good and bad ones side by side, for those who want to see them all.

- Empty shards (empty tasks of a tokenizing job leave them) are skipped and said.
- A shuffled copy beside its source (``X_unshuffled.ds`` and ``X_..._shuffled.ds``, which an interrupted
  tokenizing job leaves) holds the same tokens twice: when both are complete only the shuffled one is
  read; when they are not, that is an error, because nobody can know which one is meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protolith.data.files import DataFile, find_files, name_some
from protolith.errors import DataError, ProtolithError, ShardError
from protolith.formats.shard_files import ShardInfo, index_path_of, metadata_path_of, read_shard_info
from protolith.formats.shard_manifest import MANIFEST_NAME

SHARD_SUFFIXES = (".ds",)
_COMPANIONS = (".ds.index", ".ds.metadata", MANIFEST_NAME)

_STAGE = re.compile(r"(?P<base>.*?)_?(?P<stage>unshuffled|(?:doc_|chunk_)?shuffled)\.ds\Z", re.IGNORECASE)
_STAGES = ("unshuffled", "shuffled", "doc_shuffled", "chunk_shuffled")
_PART = re.compile(r"_?\d{5}\Z")


@dataclass(frozen=True)
class Surveyed:
    """One shard as it was found: proved (``shard``), bad (``error`` says how) or, with neither, empty.
    ``replaced``: the source of a shuffled copy, which is read in its place."""

    file: DataFile
    shard: ShardInfo | None = None
    error: ProtolithError | None = None
    replaced: bool = False


@dataclass(frozen=True)
class ShardSurvey:
    """Every shard behind some paths, good or bad, in reading order; what is wrong between shards that are
    good by themselves; and notes."""

    found: tuple[Surveyed, ...]
    conflicts: tuple[str, ...]
    notes: tuple[str, ...]


def survey_shards(paths: Sequence[str]) -> ShardSurvey:
    """Look at every shard behind ``paths``; bad ones are told, not raised.

    Raises:
        NotFoundError: a path does not exist.
        DataError: a folder without shards.
        NotAllowedError: a folder that may not be listed.
    """
    files = find_files(paths, suffixes=SHARD_SUFFIXES, what="token shards", companions=_COMPANIONS)
    found = [_look(file) for file in files.files]
    replaced, copy_notes, conflicts = _copies_of([one.shard for one in found if one.shard is not None])
    return ShardSurvey(
        found=tuple(
            replace(one, replaced=one.shard is not None and one.file.path in replaced) for one in found
        ),
        conflicts=tuple(conflicts),
        notes=(*files.notes, *copy_notes),
    )


def _look(file: DataFile) -> Surveyed:
    try:
        if file.size_bytes == 0 and _is_empty(file):
            return Surveyed(file)
        return Surveyed(file, read_shard_info(file.path, file.name))
    except ProtolithError as error:
        return Surveyed(file, error=error)


def find_shards(paths: Sequence[str]) -> tuple[tuple[ShardInfo, ...], tuple[str, ...]]:
    """All shards behind ``paths``, proved, in reading order, and notes.

    Raises:
        NotFoundError: a path does not exist.
        NotAllowedError: a file may not be read.
        ShardError: ``problems`` lists every bad shard, one line each.
        DataError: a folder without shards, or with empty ones only.
    """
    survey = survey_shards(paths)
    bad = [one.error for one in survey.found if one.error is not None]
    for error in bad:
        if not isinstance(error, ShardError):
            raise error
    problems = [*(f"{error.where}: {error.message}" for error in bad), *survey.conflicts]
    if problems:
        raise _bad_shards(paths, problems)
    kept = [one.shard for one in survey.found if one.shard is not None and not one.replaced]
    empty = [one.file.name for one in survey.found if one.shard is None]
    if not kept:
        raise DataError(
            f"all {len(empty)} shards are empty", where=", ".join(paths), hint="tokenize the text again"
        )
    notes = list(survey.notes)
    if empty:  # one sentence for all that was left out
        skipped = f"skipped {len(empty)} empty shard{'s' * (len(empty) > 1)} ({name_some(empty)})"
        notes = ["; ".join([skipped, *notes])]
    return tuple(kept), (*notes, *_notes_about(kept))


def _is_empty(file: DataFile) -> bool:
    """Whether a file of 0 bytes is an empty shard, not the stump of a real one.

    Raises:
        ShardError: its index or metadata say it should hold tokens.
    """
    index = index_path_of(file.path)
    index_bytes = index.stat().st_size if index.exists() else 0
    if index_bytes:
        raise ShardError(f"it has 0 bytes, but an index of {index_bytes // 8} documents", where=file.name)
    if metadata_path_of(file.path).exists():
        read_shard_info(file.path, file.name)
    return True


def _bad_shards(paths: Sequence[str], problems: list[str]) -> ShardError:
    first, *others = problems
    more = f" (and {len(others)} more)" if others else ""
    return ShardError(
        f"{len(problems)} bad shard{'s' * bool(others)}: {first}{more}",
        where=", ".join(paths),
        hint="copy or write the named shards again with their .index and .metadata",
        problems=tuple(problems),
    )


def _notes_about(shards: list[ShardInfo]) -> list[str]:
    notes = []
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
    losses = sum(shard.path.with_name(shard.path.name + ".loss").exists() for shard in shards)
    if losses:
        notes.append(f"{losses} loss masks (.ds.loss) are not used: every token is trained on")
    return notes


def _copies_of(shards: list[ShardInfo]) -> tuple[set[Path], list[str], list[str]]:
    """Sources of shuffled copies, which are not to be read; notes; problems."""
    by_folder: dict[Path, dict[str, ShardInfo]] = defaultdict(dict)
    for shard in shards:
        by_folder[shard.path.parent][shard.path.name] = shard
    dropped: set[Path] = set()
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
    return dropped, notes, problems


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
