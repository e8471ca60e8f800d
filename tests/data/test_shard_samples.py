"""One shard looked at: what is read in one pass is what a plain loop over its documents says."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from protolith.data import shard_samples
from protolith.data.shard_samples import (
    IdsSeen,
    all_pieces,
    ids_seen,
    read_whole,
    sample_size,
    separator_rate,
    spread_pieces,
)
from protolith.data.shards import TokenPool
from protolith.formats.shard_files import ShardInfo
from tests.data.shard_fixtures import EOS, write_shard


def odd_documents(seed: int) -> list[list[int]]:
    """Empty ones, ones of EOS alone, doubled ends, missing ends, and a few longer than a piece."""
    draw = random.Random(seed)
    made = []
    for _ in range(draw.randrange(1, 60)):
        body = [draw.randrange(3, 90) for _ in range(draw.choice([0, 0, 1, 2, 5, 30]))]
        made.append(body + [EOS] * draw.choice([0, 1, 1, 1, 2]))
    return [*made, [5, EOS]]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("width", [2, 4])
def test_one_pass_says_what_a_loop_over_the_documents_says(tmp_path, monkeypatch, seed, width):
    monkeypatch.setattr(shard_samples, "_SCAN_PIECE_TOKENS", 7)
    documents = odd_documents(seed)
    pool = TokenPool.open([write_shard(tmp_path / "a.ds", documents, token_bytes=width)])
    whole = read_whole(pool, 0, eos_id=EOS, vocab_size=80)
    ids = [token for document in documents for token in document]
    full = [document for document in documents if document]
    rate = whole.separators
    assert rate is not None
    assert rate.num_sampled == len(full)
    assert rate.num_eos == sum(document[-1] == EOS for document in full)
    assert rate.num_doubled == sum(document[-2:] == [EOS, EOS] for document in full)
    assert rate.num_other == max(
        (sum(d[-1] == token for d in full) for token in {d[-1] for d in full} - {EOS}), default=0
    )
    assert whole.ids.num_seen == len(ids)
    assert whole.ids.highest == max(ids)
    first = next(((at, token) for at, token in enumerate(ids) if token >= 80), None)
    assert whole.ids.beyond == first
    assert whole.has_eos
    assert whole.sha256 == hashlib.sha256((tmp_path / "a.ds").read_bytes()).hexdigest()
    sampled = separator_rate(pool, 0, EOS, 10**6)
    assert (sampled.num_eos, sampled.num_doubled) == (rate.num_eos, rate.num_doubled)


def test_a_pass_without_anything_to_look_for_reads_all_the_same(tmp_path):
    pool = TokenPool.open([write_shard(tmp_path / "a.ds", [[5, 9], [7]], index=False)])
    whole = read_whole(pool, 0, eos_id=None, vocab_size=None)
    assert (whole.ids, whole.separators, whole.has_eos) == (IdsSeen(3, 9, None), None, False)
    assert not read_whole(pool, 0, eos_id=4, vocab_size=None).has_eos
    assert read_whole(pool, 0, eos_id=7, vocab_size=None).has_eos


def test_nothing_looked_at_has_no_highest_id():
    assert ids_seen(iter(()), 10) == IdsSeen(0, -1, None)


def test_pieces_are_spread_from_the_first_token_to_the_last(tmp_path):
    np.arange(60_000, dtype="<u2").tofile(tmp_path / "a.ds")
    pool = TokenPool.open([ShardInfo(tmp_path / "a.ds", "a.ds", 60_000, 0, 2, "", None)])
    pieces = list(spread_pieces(pool, 0, 4))
    assert len(pieces) == 4
    assert pieces[0][1][0] == 0 and pieces[-1][1][-1] == 59_999
    assert all(piece[0] == start for start, piece in pieces)
    for everything in (spread_pieces(pool, 0, None), spread_pieces(pool, 0, 40), all_pieces(pool, 0)):
        assert sum(len(piece) for _start, piece in everything) == 60_000


def test_the_budget_is_shared_among_the_shards():
    assert sample_size(1, 1000).pieces is None
    few, many = sample_size(10, 10**12), sample_size(10_000, 10**12)
    assert few.pieces is not None and many.pieces is not None
    assert few.pieces > many.pieces >= 4
    assert few.documents == 1000 and many.documents == 10
    assert sample_size(10**6, 10**15).documents == 10
