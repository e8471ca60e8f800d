"""The preflight of token shards: everything that can be known of each shard, good or bad, in one report.

Comes in: paths, what is expected (``Expected``: the end of text, the vocabulary, the tokenizer's name) and
whether to read everything. Goes out: ``ShardsReport``: one ``ShardFacts`` a shard in reading order, what is
wrong between shards and folders, and what was *not* checked and how to check it.

What makes a shard good, doubtful or bad is the matter of ``data/shard_facts.py``. Here shards are compared
with each other: content that is there twice is a warning, because somebody may want a text to weigh more.
Files that a manifest has and its folder has not are an error: a copy that was not finished.

Cost: as ``data/shard_samples.py`` says, in eight threads; ``full`` reads each shard once. Memory: the facts,
and a piece of a shard a thread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from protolith.data.files import name_some
from protolith.data.identity import shard_identity
from protolith.data.manifest_check import Manifests
from protolith.data.shard_facts import Expected, ShardFacts, completed, facts_of
from protolith.data.shard_folders import Surveyed, survey_shards
from protolith.data.shard_samples import sample_size
from protolith.errors import ProtolithError
from protolith.formats.shard_files import ShardInfo

_NUM_READERS = 8


@dataclass(frozen=True)
class ShardsReport:
    """``errors`` and ``warnings`` concern more than one shard. ``num_tokens``: what training would read."""

    shards: tuple[ShardFacts, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    not_checked: tuple[str, ...]
    num_tokens: int
    all_ids_checked: bool

    @property
    def is_good(self) -> bool:
        """Whether training on these shards would do what is meant."""
        return not self.errors and all(shard.status != "bad" for shard in self.shards)


def check_shards(
    paths: Sequence[str],
    expected: Expected | None = None,
    *,
    full: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ShardsReport:
    """Look at every shard behind ``paths``.

    Args:
        full: read all ids, and all digests of the manifest, instead of samples and sizes.
        progress: called with how many shards were looked at, and how many there are.

    Raises:
        NotFoundError: a path does not exist.
        DataError: a folder without shards.
        NotAllowedError: a folder that may not be listed.
    """
    survey = survey_shards(paths)
    manifests = Manifests(paths)
    ours = [manifests.of(one.file) for one in survey.found]
    found = _with_names_of_their_own(survey.found)
    proved = [one.shard for one in found if one.shard is not None]
    num_tokens = sum(one.shard.num_tokens for one in found if one.shard is not None and not one.replaced)
    size = sample_size(max(1, len(proved)), sum(shard.num_tokens for shard in proved))
    known = [completed(expected or Expected(), manifest) for manifest in ours]
    look = partial(facts_of, full=full, size=size)
    facts: list[ShardFacts] = []
    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="check") as readers:
        for one in readers.map(look, found, known, ours):
            facts.append(one)
            if progress is not None:
                progress(len(facts), len(found))
    shards = tuple(_with_duplicates(facts, proved))
    errors, warnings = _about_folders(manifests, shards)
    errors = [*_about_vocabulary(expected or Expected()), *survey.conflicts, *errors]
    if not num_tokens and all(shard.status != "bad" for shard in shards):
        errors.append(f"all {len(shards)} shards are empty")
    all_ids = full or size.pieces is None
    return ShardsReport(
        shards=shards,
        errors=tuple(errors),
        warnings=tuple(warnings),
        notes=survey.notes,
        not_checked=tuple(_not_checked(known, shards, all_ids=all_ids, full=full)),
        num_tokens=num_tokens,
        all_ids_checked=all_ids,
    )


def _with_names_of_their_own(found: Sequence[Surveyed]) -> list[Surveyed]:
    """Shards of two folders may have the same name: those are called by their paths."""
    times = Counter(one.file.name for one in found)

    def named(one: Surveyed) -> Surveyed:
        name = str(one.file.path)
        shard = None if one.shard is None else replace(one.shard, name=name)
        return replace(one, file=replace(one.file, name=name), shard=shard)

    return [one if times[one.file.name] == 1 else named(one) for one in found]


def _with_duplicates(facts: Sequence[ShardFacts], proved: Iterable[ShardInfo]) -> Iterable[ShardFacts]:
    """A shard that holds what an earlier one holds says so. Only shards of one size are compared."""
    of_path = {shard.path: shard for shard in proved}
    sizes = Counter((one.num_tokens, one.token_bytes, one.num_documents) for one in facts)
    first: dict[str, str] = {}
    for one in facts:
        shard = of_path.get(one.path)
        if shard is None or sizes[one.num_tokens, one.token_bytes, one.num_documents] == 1:
            yield one
            continue
        try:
            content = one.sha256 or shard_identity(shard)["digest"]
        except (ProtolithError, OSError):  # said already
            yield one
            continue
        same = first.setdefault(content, one.name)
        if same == one.name:
            yield one
            continue
        how = "the same ids" if one.sha256 else "by size and samples the same ids"
        doubt = f"{how} as {same}: they would be trained on twice"
        status = "bad" if one.faults else "warning"
        yield replace(one, status=status, doubts=(*one.doubts, doubt))


def _about_vocabulary(expected: Expected) -> Iterable[str]:
    known_ids, vocab_size = expected.known_ids or 0, expected.vocab_size or 0
    if known_ids > vocab_size > 0:
        yield f"the tokenizer knows {known_ids:,} ids, {expected.vocabulary} has room for {vocab_size:,}"


def _about_folders(manifests: Manifests, shards: Sequence[ShardFacts]) -> tuple[list[str], list[str]]:
    """(errors, warnings) about whole folders."""
    errors = []
    for found in manifests.all():
        if found.problem:
            errors.append(found.problem)
        missing = manifests.missing(found)
        if missing:
            errors.append(
                f"{found.folder}: {len(missing)} files of its manifest are missing: {name_some(missing, 10)}"
            )
    names = defaultdict(list)
    for shard in shards:
        if shard.tokenizer_name:
            names[shard.tokenizer_name].append(shard.name)
    warnings = []
    if len(names) > 1:
        told = "; ".join(f'"{name}": {name_some(made)}' for name, made in names.items())
        warnings.append(f"the shards were made with {len(names)} tokenizers: {told}")
    return errors, warnings


def _not_checked(
    known: Sequence[Expected], shards: Sequence[ShardFacts], *, all_ids: bool, full: bool
) -> Iterable[str]:
    if any(one.eos_id is None for one in known):
        yield "how documents end: no end of text is known; --tokenizer DIR names it"
    if any(one.vocab_size is None for one in known):
        yield "ids against a vocabulary: give --tokenizer, --model or --vocab-size"
    if not any(one.tokenizer_name for one in known):
        yield "the tokenizer named in the metadata against yours: give --tokenizer"
    if not all_ids:
        seen = sum(shard.ids.num_seen for shard in shards if shard.ids is not None)
        yield f"all ids: {seen:,} were looked at, spread over every shard; --full reads all of them"
    if not any(shard.manifest for shard in shards):
        yield "digests: there is no manifest.json beside these shards"
    elif not full:
        yield "digests: sizes were compared with the manifest; --full compares digests"
