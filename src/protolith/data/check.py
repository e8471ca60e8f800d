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

Cost: some 50 million tokens and 100,000 documents at most, for very many shards at least 16 thousand tokens
and 10 documents of each. Constant memory. Behind URLs each of these is a request, so fewer are looked at: 100
documents a shard, and 512 pieces (or 4 a shard) where ids are sampled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from protolith.data.identity import shard_identity
from protolith.data.shards import TokenPool, beyond_vocabulary
from protolith.data.storage import RemotePath
from protolith.formats.shard_files import ShardInfo

_SAMPLED_DOCUMENTS = 1000
_SAMPLED_DOCUMENTS_IN_ALL = 100_000
_SAMPLED_REMOTE_DOCUMENTS = 100
_REMOTE_PIECES = 512
_FEWEST_DOCUMENTS = 10
_PIECES_FOR_EOS = 64
_NUM_READERS = 8
_NUM_REMOTE_READERS = 32
_FULL_SCAN_TOKENS = 50_000_000
_SCAN_PIECE_TOKENS = 1 << 20
_SAMPLE_PIECE_TOKENS = 4096
_FEWEST_PIECES = 4
_SHOWN = 5

Found = TypeVar("Found")


@dataclass(frozen=True)
class CheckReport:
    """``errors`` make training impossible or certainly wrong, ``warnings`` probably wrong; each is a sentence
    with names and numbers. ``all_ids_checked``: False when ids were only sampled."""

    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    all_ids_checked: bool


@dataclass(frozen=True)
class SeparatorRate:
    """How documents of one shard end. ``other_id`` is the most frequent end that is not EOS (-1: none)."""

    num_sampled: int
    num_eos: int
    num_doubled: int
    other_id: int
    num_other: int


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


def separator_rate(pool: TokenPool, number: int, eos_id: int, max_documents: int) -> SeparatorRate:
    """How documents of shard ``number``, at most ``max_documents`` of them spread over it, end."""
    ends = pool.document_ends(number)
    documents = np.unique(np.linspace(0, len(ends) - 1, min(max_documents, len(ends))).astype(np.int64))
    stops = ends[documents]
    lengths = stops - np.where(documents > 0, ends[documents - 1], 0)
    tails = [
        pool.read_shard(number, stop - min(length, 2), stop).tolist()
        for stop, length in zip(stops.tolist(), lengths.tolist(), strict=True)
        if length
    ]
    others = Counter(tail[-1] for tail in tails if tail[-1] != eos_id)
    other_id, num_other = others.most_common(1)[0] if others else (-1, 0)
    return SeparatorRate(
        num_sampled=len(tails),
        num_eos=len(tails) - others.total(),
        num_doubled=tails.count([eos_id, eos_id]),
        other_id=other_id,
        num_other=num_other,
    )


def _separator_warnings(pool: TokenPool, eos_id: int) -> list[str]:
    share = _SAMPLED_DOCUMENTS_IN_ALL // len(pool.shards)
    most = _SAMPLED_REMOTE_DOCUMENTS if pool.is_remote else _SAMPLED_DOCUMENTS
    max_documents = min(most, max(share, _FEWEST_DOCUMENTS))

    def look(number: int) -> SeparatorRate | None:
        """None: no index, and EOS is there somewhere."""
        if pool.shards[number].index_path is not None:
            return separator_rate(pool, number, eos_id, max_documents)
        if any((piece == eos_id).any() for _start, piece in _spread_pieces(pool, number, _PIECES_FOR_EOS)):
            return None
        return SeparatorRate(num_sampled=0, num_eos=0, num_doubled=0, other_id=-1, num_other=0)

    missing, doubled, absent = [], [], []
    for shard, rate in zip(pool.shards, _for_each_shard(pool, look), strict=True):
        if rate is None:
            continue
        if shard.index_path is None:
            absent.append(shard.name)
        if rate.num_eos < rate.num_sampled:
            missing.append(f"{shard.name}: {_rate_in_words(rate, eos_id)}")
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


def _rate_in_words(rate: SeparatorRate, eos_id: int) -> str:
    share = 100 * rate.num_other / rate.num_sampled
    if rate.num_other >= 0.5 * rate.num_sampled:
        how = f"documents end with id {rate.other_id} ({share:.0f} %), not with EOS {eos_id}"
    else:
        how = f"most often with id {rate.other_id} ({share:.0f} %)"
    return f"{rate.num_eos} of {rate.num_sampled} end with EOS; {how}"


def _width_warnings(pool: TokenPool, num_ids: int) -> list[str]:
    narrow = [shard.name for shard in pool.shards if shard.token_bytes == 2]
    if num_ids <= 1 << 16 or not narrow:
        return []
    return [
        f"2-byte ids cannot hold a vocabulary of {num_ids:,}: ids above 65,535 would have wrapped around when"
        f" these shards were written: {_some(narrow)}"
    ]


def _tokenizer_warnings(pool: TokenPool, tokenizer_name: str) -> list[str]:
    ours = _bare_name(tokenizer_name)
    if not ours:
        return []
    others: dict[str, list[str]] = defaultdict(list)
    for shard in pool.shards:
        theirs = _bare_name(shard.tokenizer_name)
        if theirs and theirs != ours and not theirs.startswith("unknown tokenizer"):
            others[shard.tokenizer_name].append(shard.name)
    return [
        f'{len(names)} shards say they were made with the tokenizer "{name}", not "{tokenizer_name}":'
        f" {_some(names)}"
        for name, names in others.items()
    ]


def _bare_name(name: str) -> str:
    """ "Qwen/Qwen3-0.6B", "/models/Qwen3-0.6B/tokenizer.json" and "qwen3-0.6b" name the same tokenizer."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    return (path.parent if path.name == "tokenizer.json" else path).name.lower()


def _check_ids(
    pool: TokenPool, vocab_size: int, tokenizer_size: int | None
) -> tuple[list[str], list[str], bool]:
    """(errors, warnings, whether all ids were looked at)."""
    scan_all = pool.num_tokens <= _FULL_SCAN_TOKENS
    num_pieces = _REMOTE_PIECES if pool.is_remote else _FULL_SCAN_TOKENS // _SAMPLE_PIECE_TOKENS
    pieces_a_shard = num_pieces // len(pool.shards)

    def look(number: int) -> tuple[str, int]:
        pieces = (
            _all_pieces(pool, number)
            if scan_all
            else _spread_pieces(pool, number, max(_FEWEST_PIECES, pieces_a_shard))
        )
        return _first_beyond(pieces, pool.shards[number], vocab_size)

    errors: list[str] = []
    unknown: list[str] = []
    for shard, (error, highest) in zip(pool.shards, _for_each_shard(pool, look), strict=True):
        if error:
            errors.append(error)
        elif tokenizer_size is not None and highest >= tokenizer_size:
            unknown.append(f"{shard.name}: up to {highest}")
    warnings = (
        [f"ids that the tokenizer of {tokenizer_size} entries does not know: {_some(unknown, '; ')}"]
        if unknown
        else []
    )
    return errors, warnings, scan_all


def _first_beyond(
    pieces: Iterator[tuple[int, npt.NDArray[Any]]], shard: ShardInfo, vocab_size: int
) -> tuple[str, int]:
    """The error for the first id beyond the vocabulary ("" when there is none) and the highest id seen."""
    highest = -1
    for start, piece in pieces:
        highest = max(highest, int(piece.max()))
        if highest >= vocab_size:
            place = int((piece >= vocab_size).argmax())
            error = beyond_vocabulary(shard, start + place, int(piece[place]), vocab_size)
            return f"{error.where}: {error.message}", highest
    return "", highest


def _for_each_shard(pool: TokenPool, look: Callable[[int], Found]) -> list[Found]:
    """``look(number)`` of every shard, in order; by several threads when many files have to be waited for."""
    numbers = range(len(pool.shards))
    if len(pool.shards) < 2 * _NUM_READERS and not pool.is_remote:
        return [look(number) for number in numbers]
    num_readers = _NUM_REMOTE_READERS if pool.is_remote else _NUM_READERS
    with ThreadPoolExecutor(num_readers, thread_name_prefix="check") as readers:
        return list(readers.map(look, numbers))


def _all_pieces(pool: TokenPool, number: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    num_tokens = pool.shards[number].num_tokens
    for start in range(0, num_tokens, _SCAN_PIECE_TOKENS):
        yield start, pool.read_shard(number, start, min(start + _SCAN_PIECE_TOKENS, num_tokens))


def _spread_pieces(pool: TokenPool, number: int, num_pieces: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """(offset, ids) of pieces spread over a shard, its first and its last among them."""
    room = pool.shards[number].num_tokens - _SAMPLE_PIECE_TOKENS
    if room < num_pieces * _SAMPLE_PIECE_TOKENS:  # the pieces would nearly cover it
        yield from _all_pieces(pool, number)
        return
    for piece in range(num_pieces):
        start = room * piece // (num_pieces - 1)
        yield start, pool.read_shard(number, start, start + _SAMPLE_PIECE_TOKENS)


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


def _file_id(shard: ShardInfo) -> tuple[object, ...]:
    if isinstance(shard.path, RemotePath):
        return shard.path.url, shard.version
    facts = shard.path.stat()
    return facts.st_dev, facts.st_ino


def _size_of(shard: ShardInfo) -> tuple[int, int, int]:
    return shard.num_tokens, shard.num_documents, shard.token_bytes


def _some(names: Sequence[str], between: str = ", ") -> str:
    shown = between.join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
