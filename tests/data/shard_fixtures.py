"""Token shards written by hand, byte for byte, so that reading is not tested against our own writer."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from protolith.data.shards import TokenPool
from protolith.formats.shard_files import ShardInfo, read_shard_info

EOS = 2
Documents = Sequence[Sequence[int]]


def write_shard(
    path: Path,
    documents: Documents,
    *,
    token_bytes: int = 2,
    tokenizer: str = "tiny",
    index: bool = True,
) -> ShardInfo:
    """The three files of one shard; its documents are written as they are, without an end added."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [token for document in documents for token in document]
    path.write_bytes(struct.pack(f"<{len(ids)}{'H' if token_bytes == 2 else 'I'}", *ids))
    ends, end = [], 0
    for document in documents:
        end += len(document)
        ends.append(end)
    if index:
        path.with_name(path.name + ".index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    path.with_name(path.name + ".metadata").write_text(f"{tokenizer}|{token_bytes}\n{len(ids)}\n{len(ids)} T")
    return read_shard_info(path)


def random_documents(
    num_documents: int, *, seed: int = 0, longest: int = 30, vocab: int = 100
) -> list[list[int]]:
    """Documents of 1 to ``longest`` tokens in all, each ended by EOS, which stands nowhere else."""
    draw = random.Random(seed)
    return [
        [draw.randrange(3, vocab) for _ in range(draw.randrange(longest))] + [EOS]
        for _ in range(num_documents)
    ]


def pool_of(folder: Path, *shards: Documents, token_bytes: Sequence[int] = (2,)) -> TokenPool:
    """A pool of shards named 000.ds, 001.ds ...; widths are taken from ``token_bytes`` in turn."""
    return TokenPool.open(
        [
            write_shard(
                folder / f"{number:03}.ds", documents, token_bytes=token_bytes[number % len(token_bytes)]
            )
            for number, documents in enumerate(shards)
        ]
    )


def counting_pool(folder: Path, num_tokens: int, num_shards: int = 1, *, document: int = 10) -> TokenPool:
    """Token g of the pool is the id g: what a row holds is seen at once. 4-byte ids, EOS does not occur."""
    bounds = [num_tokens * number // num_shards for number in range(num_shards + 1)]
    shards = []
    for start, stop in pairwise(bounds):
        ids = list(range(start, stop))
        shards.append([ids[at : at + document] for at in range(0, len(ids), document)])
    return pool_of(folder, *shards, token_bytes=(4,))
