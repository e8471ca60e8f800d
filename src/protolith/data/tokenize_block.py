"""One block of JSON lines to ids: the unit of work that is dealt to processes.

Comes in: bytes of whole lines. Goes out: ``BlockTokens``: ids as they stand in a shard, documents' lengths,
split in trained and held out, and what was left out. A pure function of block, tokenizer and options, so
where and in which order blocks are worked on changes nothing.

The held-out side is decided by the text alone (a keyed hash against the share asked for): the same document
falls on the same side in whatever file, order or process, and its duplicates fall with it.

``BlockTokens`` crosses a pipe as a line of JSON and raw bytes. This module loads no torch.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from protolith.data.text import BlockTexts, read_block
from protolith.data.tokenizer import TextTokenizer
from protolith.formats.shard_files import id_bytes

_BATCH_CHARS = 1 << 18


@dataclass(frozen=True)
class BlockOptions:
    """What decides ids besides text and tokenizer. ``seed`` keys the held-out side."""

    text_field: str = "text"
    eval_split: float = 0.0
    seed: int = 0


@dataclass
class Documents:
    """Documents end to end. ``data``: their ids as in a shard; ``lengths``: tokens of each."""

    data: bytearray = field(default_factory=bytearray)
    lengths: array[int] = field(default_factory=lambda: array("Q"))


@dataclass
class BlockTokens:
    """Result of one block; ``found`` is what reading it gave, without the texts. ``unknown_tokens``: how
    many of the ids stand for text the vocabulary cannot spell."""

    train: Documents
    held_out: Documents
    found: BlockTexts
    unknown_tokens: int = 0


def tokenize_block(
    data: bytes, tokenizer: TextTokenizer, options: BlockOptions, poll: Callable[[], None] | None = None
) -> BlockTokens:
    """``poll`` is called between batches of about 256 thousand characters; what it raises ends the work."""
    found = read_block(data, options.text_field)
    texts, found.texts = found.texts, []
    block = BlockTokens(Documents(), Documents(), found)
    if found.fault is not None:  # the whole corpus will be refused
        return block
    unknown = tokenizer.unk_id
    for batch in _batches(texts):
        if poll is not None:
            poll()
        for text, ids in zip(batch, tokenizer.encode_compactly(batch, poll), strict=True):
            side = block.held_out if is_held_out(text, options) else block.train
            side.data += id_bytes(ids, tokenizer.token_bytes)
            side.lengths.append(len(ids))
            block.unknown_tokens += ids.count(unknown) if unknown is not None else 0
    return block


def is_held_out(text: str, options: BlockOptions) -> bool:
    """Whether a document belongs to the validation side."""
    if options.eval_split <= 0:
        return False
    key = str(options.seed).encode("ascii")
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, key=key[:64]).digest()
    return int.from_bytes(digest, "big") < options.eval_split * 2**64


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > _BATCH_CHARS:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def pack(block: BlockTokens) -> tuple[bytes, ...]:
    """The parts of a result for a pipe; ``unpack`` is the inverse."""
    head = {
        "records": block.found.records,
        "skipped": block.found.skipped,
        "fault": block.found.fault,
        "unknown_tokens": block.unknown_tokens,
    }
    return (
        json.dumps(head).encode("utf-8"),
        bytes(block.train.data),
        block.train.lengths.tobytes(),
        bytes(block.held_out.data),
        block.held_out.lengths.tobytes(),
    )


def unpack(parts: tuple[bytes, ...]) -> BlockTokens:
    head: dict[str, Any] = json.loads(parts[0])
    found = BlockTexts(
        records=head["records"],
        skipped=[(reason, line) for reason, line in head["skipped"]],
        fault=tuple(head["fault"]) if head["fault"] else None,
    )
    train, held_out = (
        Documents(bytearray(data), array("Q", lengths)) for data, lengths in (parts[1:3], parts[3:5])
    )
    return BlockTokens(train, held_out, found, head["unknown_tokens"])
