"""A quick look at shards before GPU time is spent: would training on them teach the right thing?

Comes in: an open pool (its files agree with each other by then), the tokenizer's end of text, name and size,
the model's vocabulary. Goes out: ``CheckReport``: warnings, errors, and whether every id was looked at.

- *Separators, shard by shard*: of up to 1000 documents spread over each shard, how many end with the end of
  text. Never averaged: one bad shard in a hundred good ones is named. The id they end with instead is said,
  which tells a missing separator from another model's. Shards without an index are asked less: does the end
  of text occur at all?
- *Ids*: all of them up to 50 million tokens in the pool, else pieces spread over every shard. An id beyond
  the model's vocabulary is an error with shard and token; the first of each shard is reported.
- *Width*: 2-byte ids for a vocabulary above 65,536: larger ids would have wrapped around.
- *Tokenizer*: the one named in the metadata against the one given.
- *Held-out data* that is also training data: the same files, or copies of them.

Cost and how much is looked at: ``data/shard_samples.py``. Constant memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from protolith.data.identity import shard_identity
from protolith.data.shard_samples import (
    IdsSeen,
    SeparatorRate,
    has_eos,
    ids_seen,
    rate_in_words,
    sample_size,
    separator_rate,
    spread_pieces,
)
from protolith.data.shards import TokenPool, beyond_vocabulary
from protolith.formats.shard_files import ShardInfo

_NUM_READERS = 8
_SHOWN = 5

Found = TypeVar("Found")


@dataclass(frozen=True)
class CheckReport:
    """``errors`` make training impossible or certainly wrong, ``warnings`` probably wrong; each is a sentence
    with names and numbers. ``all_ids_checked``: False when ids were only sampled."""

    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    all_ids_checked: bool


def quick_check(
    pool: TokenPool,
    *,
    eos_id: int,
    tokenizer_name: str,
    vocab_size: int,
    tokenizer_size: int | None = None,
    training: TokenPool | None = None,
) -> CheckReport:
    """Look at every shard of a pool.

    Args:
        pool: what is to be trained or evaluated on.
        eos_id: the id that ends a document.
        tokenizer_name: as shards' metadata would name it; "" compares nothing.
        vocab_size: the model's; ids must be below it.
        tokenizer_size: the tokenizer's, where it may differ from the model's.
        training: the training pool when ``pool`` is held out from it.
    """
    warnings = [
        *_separator_warnings(pool, eos_id),
        *_width_warnings(pool, vocab_size if tokenizer_size is None else tokenizer_size),
        *_tokenizer_warnings(pool, tokenizer_name),
    ]
    if training is not None:
        warnings += _overlap_warnings(pool, training)
    errors, unknown, scanned_all = _check_ids(pool, vocab_size, tokenizer_size)
    return CheckReport(tuple(warnings + unknown), tuple(errors), scanned_all)


def _separator_warnings(pool: TokenPool, eos_id: int) -> list[str]:
    max_documents = sample_size(len(pool.shards), pool.num_tokens).documents

    def look(number: int) -> SeparatorRate | None:
        """None: no index, and EOS is there somewhere."""
        if pool.shards[number].index_path is not None:
            return separator_rate(pool, number, eos_id, max_documents)
        if has_eos(pool, number, eos_id):
            return None
        return SeparatorRate(num_sampled=0, num_eos=0, num_doubled=0, other_id=-1, num_other=0)

    missing, doubled, absent = [], [], []
    for shard, rate in zip(pool.shards, _for_each_shard(pool, look), strict=True):
        if rate is None:
            continue
        if shard.index_path is None:
            absent.append(shard.name)
        if rate.num_eos < rate.num_sampled:
            missing.append(f"{shard.name}: {rate_in_words(rate, eos_id)}")
        if rate.num_doubled:
            doubled.append(f"{shard.name}: {rate.num_doubled} of {rate.num_sampled}")
    warnings = []
    if missing:
        warnings.append(
            f"documents do not end with the end of text (EOS, id {eos_id}) in {len(missing)} of"
            f" {len(pool.shards)} shards, so a model learns no end of text there: {_some(missing, '; ')}"
        )
    if doubled:
        warnings.append(f"documents end with EOS (id {eos_id}) twice: {_some(doubled, '; ')}")
    if absent:
        warnings.append(
            f"EOS (id {eos_id}) was not found in any piece looked at of {_some(absent)}; without an .index it"
            " is not known where documents end there"
        )
    return warnings


def _width_warnings(pool: TokenPool, num_ids: int) -> list[str]:
    narrow = [shard.name for shard in pool.shards if shard.token_bytes == 2]
    if num_ids <= 1 << 16 or not narrow:
        return []
    return [
        f"2-byte ids cannot hold a vocabulary of {num_ids:,}: ids above 65,535 would have wrapped around when"
        f" these shards were written: {_some(narrow)}"
    ]


def _tokenizer_warnings(pool: TokenPool, tokenizer_name: str) -> list[str]:
    others: dict[str, list[str]] = defaultdict(list)
    for shard in pool.shards:
        if is_another_tokenizer(shard.tokenizer_name, tokenizer_name):
            others[shard.tokenizer_name].append(shard.name)
    return [
        f'{len(names)} shards say they were made with the tokenizer "{name}", not "{tokenizer_name}":'
        f" {_some(names)}"
        for name, names in others.items()
    ]


def is_another_tokenizer(in_metadata: str, given: str) -> bool:
    """Whether two names cannot mean the same tokenizer; a name that is missing says nothing."""
    theirs, ours = _bare_name(in_metadata), _bare_name(given)
    return bool(ours and theirs) and theirs != ours and not theirs.startswith("unknown tokenizer")


def _bare_name(name: str) -> str:
    """ "Qwen/Qwen3-0.6B", "/models/Qwen3-0.6B/tokenizer.json" and "qwen3-0.6b" name the same tokenizer."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    return (path.parent if path.name == "tokenizer.json" else path).name.lower()


def _check_ids(
    pool: TokenPool, vocab_size: int, tokenizer_size: int | None
) -> tuple[list[str], list[str], bool]:
    """(errors, warnings, whether all ids were looked at)."""
    pieces = sample_size(len(pool.shards), pool.num_tokens).pieces

    def look(number: int) -> IdsSeen:
        return ids_seen(spread_pieces(pool, number, pieces), vocab_size)

    errors: list[str] = []
    unknown: list[str] = []
    for shard, seen in zip(pool.shards, _for_each_shard(pool, look), strict=True):
        if seen.beyond is not None:
            error = beyond_vocabulary(shard, *seen.beyond, vocab_size)
            errors.append(f"{error.where}: {error.message}")
        elif tokenizer_size is not None and seen.highest >= tokenizer_size:
            unknown.append(f"{shard.name}: up to {seen.highest}")
    warnings = (
        [f"ids that the tokenizer of {tokenizer_size} entries does not know: {_some(unknown, '; ')}"]
        if unknown
        else []
    )
    return errors, warnings, pieces is None


def _for_each_shard(pool: TokenPool, look: Callable[[int], Found]) -> list[Found]:
    """``look(number)`` of every shard, in order; by several threads when many files have to be waited for."""
    numbers = range(len(pool.shards))
    if len(pool.shards) < 2 * _NUM_READERS:
        return [look(number) for number in numbers]
    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="check") as readers:
        return list(readers.map(look, numbers))


def _overlap_warnings(pool: TokenPool, training: TokenPool) -> list[str]:
    """Held-out shards that are training shards, by file or by content."""
    files = {_file_id(shard) for shard in training.shards}
    by_size: dict[tuple[int, int, int], list[ShardInfo]] = defaultdict(list)
    for shard in training.shards:
        by_size[_size_of(shard)].append(shard)
    digests: dict[ShardInfo, str] = {}
    same, copies = [], []
    for shard in pool.shards:
        if _file_id(shard) in files:
            same.append(shard.name)
            continue
        for other in by_size.get(_size_of(shard), []):
            for one in (shard, other):
                if one not in digests:
                    digests[one] = shard_identity(one)["digest"]
            if digests[shard] == digests[other]:
                copies.append(f"{shard.name} is a copy of {other.name}")
                break
    warnings = []
    if same:
        warnings.append(f"validation data is also training data, the same files: {_some(same)}")
    if copies:
        warnings.append(f"validation data is also training data: {_some(copies, '; ')}")
    return warnings


def _file_id(shard: ShardInfo) -> tuple[int, int]:
    facts = shard.path.stat()
    return facts.st_dev, facts.st_ino


def _size_of(shard: ShardInfo) -> tuple[int, int, int]:
    return shard.num_tokens, shard.num_documents, shard.token_bytes


def _some(names: Sequence[str], between: str = ", ") -> str:
    shown = between.join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
