"""Everything that can be known of one token shard before it is trained on, and a judgement.

Comes in: a shard as it was found, good or bad; what is expected of it (``Expected``); the manifest of its
folder, if any. Goes out: ``ShardFacts``. It is ``bad`` when training on it would be wrong or impossible:

- its files disagree, cannot be read, or differ from the manifest;
- an id is not below the vocabulary;
- fewer than half of its documents end with EOS: a model would learn the end of text as an exception, or
  never. A chunk-shuffled copy also ends where chunks cut documents, so there only none at all is bad;
- nothing marks the end of a document: no index, and no EOS in the whole shard.

Whatever may be meant is a ``warning``: some documents without EOS, or with two; a tokenizer of another name;
2-byte ids for a large vocabulary; an empty shard; a missing index. A shard is opened by itself and closed
again, so thousands of them need no more files or memory than one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from protolith.data.check import is_another_tokenizer
from protolith.data.manifest_check import FolderManifest, compare
from protolith.data.shard_folders import Surveyed
from protolith.data.shard_samples import (
    IdsSeen,
    SampleSize,
    SeparatorRate,
    has_eos,
    ids_seen,
    rate_in_words,
    read_whole,
    separator_rate,
    spread_pieces,
)
from protolith.data.shards import TokenPool
from protolith.errors import ProtolithError
from protolith.formats.shard_files import ShardInfo

_ENOUGH_EOS = 0.5
_CHUNKS = "chunk_shuffled.ds"


@dataclass(frozen=True)
class Expected:
    """What the shards are to be trained with; None and "" where nobody said.

    Attributes:
        vocabulary: in words, whose ``vocab_size`` it is.
        known_ids: how many ids the tokenizer knows, where the model has room for more.
        tokenizer_name: as shards' metadata would name it.
    """

    eos_id: int | None = None
    vocab_size: int | None = None
    vocabulary: str = ""
    known_ids: int | None = None
    tokenizer_name: str = ""
    tokenizer_digest: str = ""


@dataclass(frozen=True)
class ShardFacts:
    """What is known of one shard; None: not known. ``status``: "ok", "warning" (there are
    ``doubts``) or "bad" (there are ``faults``). ``manifest``: see ``Compared.state``; "" without one."""

    name: str
    path: Path
    status: str = "ok"
    faults: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    num_tokens: int | None = None
    num_documents: int | None = None
    token_bytes: int | None = None
    tokenizer_name: str = ""
    ids: IdsSeen | None = None
    separators: SeparatorRate | None = None
    manifest: str = ""
    sha256: str = ""


@dataclass
class _Findings:
    """What one shard is blamed for."""

    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def completed(expected: Expected, found: FolderManifest | None) -> Expected:
    """``expected`` with what nobody said taken from the manifest."""
    if found is None or found.manifest is None:
        return expected
    eos_id, vocab_size = (found.manifest.tokenizer.get(key) for key in ("eos_id", "vocab_size"))
    if expected.eos_id is None and isinstance(eos_id, int):
        expected = replace(expected, eos_id=eos_id)
    if expected.vocab_size is None and isinstance(vocab_size, int):
        expected = replace(expected, vocab_size=vocab_size, vocabulary="the tokenizer in the manifest")
    return expected


def facts_of(
    one: Surveyed, expected: Expected, found: FolderManifest | None, *, full: bool, size: SampleSize
) -> ShardFacts:
    """Look at one shard.

    Args:
        full: read all of it, and digest it, instead of samples of ``size``.
    """
    if one.shard is None:
        return _of_no_shard(one, found, full)
    shard = one.shard
    findings = _Findings()
    facts = ShardFacts(
        shard.name,
        shard.path,
        num_tokens=shard.num_tokens,
        num_documents=shard.num_documents if shard.index_path is not None else None,
        token_bytes=shard.token_bytes,
        tokenizer_name=shard.tokenizer_name,
    )
    try:
        facts = _read(facts, shard, expected, findings, size, full=full)
    except ProtolithError as error:
        findings.faults.append(error.message)
    except OSError as error:
        findings.faults.append(f"cannot be read: {error.strerror or error}")
    _judge_metadata(shard, expected, found, findings)
    if one.replaced:
        findings.doubts.append("not read: a shuffled copy of it lies beside it")
    compared = _compare(found, shard.path, findings, full, facts.sha256)
    return _judged(replace(facts, manifest=compared), findings)


def _of_no_shard(one: Surveyed, found: FolderManifest | None, full: bool) -> ShardFacts:
    """An empty file, or one that is bad in itself."""
    findings = _Findings()
    facts = ShardFacts(one.file.name, one.file.path)
    if one.error is None:
        findings.doubts.append("empty: training passes over it")
        facts = replace(facts, num_tokens=0)
    else:
        findings.faults.append(one.error.message)
    return _judged(replace(facts, manifest=_compare(found, one.file.path, findings, full)), findings)


def _judged(facts: ShardFacts, findings: _Findings) -> ShardFacts:
    status = "bad" if findings.faults else "warning" if findings.doubts else "ok"
    return replace(facts, status=status, faults=tuple(findings.faults), doubts=tuple(findings.doubts))


def _read(
    facts: ShardFacts,
    shard: ShardInfo,
    expected: Expected,
    findings: _Findings,
    size: SampleSize,
    *,
    full: bool,
) -> ShardFacts:
    """Ids and separators, from samples or from all of the shard."""
    pool = TokenPool.open([shard])
    rate, eos_found = None, True
    if full:
        whole = read_whole(pool, 0, eos_id=expected.eos_id, vocab_size=expected.vocab_size)
        seen, rate, eos_found = whole.ids, whole.separators, whole.has_eos
        facts = replace(facts, sha256=whole.sha256)
    else:
        seen = ids_seen(spread_pieces(pool, 0, size.pieces), expected.vocab_size)
        if expected.eos_id is not None and shard.index_path is not None:
            rate = separator_rate(pool, 0, expected.eos_id, size.documents)
        elif expected.eos_id is not None:
            eos_found = has_eos(pool, 0, expected.eos_id)
    _judge_ids(seen, expected, findings)
    if expected.eos_id is not None:
        _judge_separators(shard, rate, eos_found, expected.eos_id, findings, certain=full)
    return replace(facts, ids=seen, separators=rate)


def _judge_ids(seen: IdsSeen, expected: Expected, findings: _Findings) -> None:
    if seen.beyond is not None:
        offset, token_id = seen.beyond
        findings.faults.append(
            f"id {token_id} at token {offset} is beyond the {expected.vocab_size} ids of"
            f" {expected.vocabulary or 'the vocabulary'}"
        )
    elif expected.known_ids is not None and seen.highest >= expected.known_ids:
        findings.doubts.append(
            f"ids up to {seen.highest}: the model has room for them, the tokenizer knows {expected.known_ids}"
        )


def _judge_separators(
    shard: ShardInfo,
    rate: SeparatorRate | None,
    eos_found: bool,
    eos_id: int,
    findings: _Findings,
    *,
    certain: bool,
) -> None:
    if rate is None:
        if not eos_found:
            blamed = findings.faults if certain else findings.doubts
            blamed.append(
                f"EOS (id {eos_id}) was not found{'' if certain else ' in any piece looked at'}, and without"
                " an .index it is not known where documents end"
            )
        return
    if rate.num_eos < rate.num_sampled:
        least = 1 if shard.path.name.lower().endswith(_CHUNKS) else _ENOUGH_EOS * rate.num_sampled
        (findings.faults if rate.num_eos < least else findings.doubts).append(
            f"documents do not end with the end of text: {rate_in_words(rate, eos_id)}"
        )
    if rate.num_doubled:
        findings.doubts.append(
            f"{rate.num_doubled} of {rate.num_sampled} documents end with EOS (id {eos_id}) twice"
        )


def _judge_metadata(
    shard: ShardInfo, expected: Expected, found: FolderManifest | None, findings: _Findings
) -> None:
    num_ids = expected.known_ids or expected.vocab_size or 0
    if shard.token_bytes == 2 and num_ids > 1 << 16:
        findings.doubts.append(
            f"2-byte ids cannot hold a vocabulary of {num_ids:,}: ids above 65,535 would have wrapped around"
            " when it was written"
        )
    if is_another_tokenizer(shard.tokenizer_name, expected.tokenizer_name):
        findings.doubts.append(
            f'made with the tokenizer "{shard.tokenizer_name}", not "{expected.tokenizer_name}"'
        )
    elif found is not None and found.manifest is not None and expected.tokenizer_digest:
        theirs = found.manifest.tokenizer.get("digest")
        if theirs and theirs != expected.tokenizer_digest:
            findings.doubts.append(
                "the manifest has another digest of the tokenizer: its files or end of text changed since"
            )
    if shard.index_path is None:
        findings.doubts.append("no .index: where documents end is not known")
    if shard.metadata_path is None:
        findings.doubts.append("no .metadata: the width is what size and index allow")


def _compare(
    found: FolderManifest | None, path: Path, findings: _Findings, full: bool, sha256: str = ""
) -> str:
    if found is None or found.manifest is None:
        return ""
    compared = compare(found, path, digests=full, sha256=sha256)
    findings.faults.extend(compared.differences)
    if compared.state == "not listed":
        findings.doubts.append(f"not in the manifest of {found.folder}: added after it was written")
    return compared.state
