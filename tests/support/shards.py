"""Hand-written token shards, independent of the product's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write_shard(
    path: Path,
    documents: Sequence[Sequence[int]],
    *,
    width: int = 2,
    tokenizer: str = "model",
    index: bool = True,
) -> Path:
    """One ``.ds`` with its index and metadata. Documents are written as given, EOS and all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.concatenate([np.asarray(d) for d in documents]) if documents else np.zeros(0)
    ids.astype(f"<u{width}").tofile(path)
    if index:
        ends = np.cumsum([len(d) for d in documents])
        ends.astype("<u8").tofile(path.with_name(path.name + ".index"))
    path.with_name(path.name + ".metadata").write_text(f"{tokenizer}|{width}\n{len(ids)}\n{len(ids)} T")
    return path


def documents(
    count: int, *, first: int = 0, eos: int | None = 0, low: int = 2, vocab: int = 452
) -> list[list[int]]:
    """``count`` documents of 5 to 60 ids, each closed by ``eos``."""
    made = []
    for number in range(first, first + count):
        draw = np.random.default_rng(number)
        ids = draw.integers(low, vocab, size=int(draw.integers(5, 60))).tolist()
        made.append(ids if eos is None else [*ids, eos])
    return made
