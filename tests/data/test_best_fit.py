"""Whole documents in rows: the packing against a plain best fit, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data import best_fit_rows
from protolith.data.best_fit import best_fit
from protolith.data.best_fit_rows import BestFitRows
from protolith.data.packing import NO_TARGET
from protolith.errors import CorpusTooSmallError
from tests.data.shard_fixtures import pool_of
from tests.data.test_packing import all_rows, check_source


def plain_best_fit(lengths, capacity):
    """One item at a time, the longest first, into the row with the least room that takes it."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [at for at, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=lambda at: rooms[at])] -= length
        else:
            rooms.append(capacity - length)
    return sorted(rooms)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), max_size=80), st.just(c))))
def test_as_full_as_one_item_at_a_time(given_):
    lengths, capacity = given_
    row_of, num_rows = best_fit(np.array(lengths, dtype=np.int64), capacity)
    used = np.bincount(row_of, weights=lengths, minlength=num_rows) if lengths else np.zeros(0)
    assert sorted((capacity - used).tolist()) == plain_best_fit(lengths, capacity)
    firsts = [row_of.tolist().index(row) for row in range(num_rows)]
    assert firsts == sorted(firsts)


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=4),
    seq_len=st.integers(1, 12),
    group=st.sampled_from([1, 2, 5, 1 << 17]),
    on_disk=st.booleans(),
)
def test_every_token_but_a_documents_first_is_a_target_once(
    tmp_path_factory, lengths, seq_len, group, on_disk
):
    shards, last = [], 1
    for shard in lengths:
        if sum(shard):
            shards.append([list(range(last + at * 40, last + at * 40 + n)) for at, n in enumerate(shard)])
            last += 40 * len(shard)
    documents = [document for shard in shards for document in shard if len(document) >= 2]
    if not shards:
        return
    pool = pool_of(tmp_path_factory.mktemp("pool"), *shards, token_bytes=(4, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit_rows, "_GROUP_DOCUMENTS", group)
        patch.setattr(best_fit_rows, "_MOST_IN_MEMORY", -1 if on_disk else 1 << 20)
        if not documents:
            with pytest.raises(CorpusTooSmallError):
                BestFitRows(pool, seq_len)
            return
        source = BestFitRows(pool, seq_len, document_mask=True)
    rows = all_rows(source)
    assert rows.positions is not None
    check_source(source)
    real = rows.targets != NO_TARGET
    assert np.array_equal(rows.inputs[real] + 1, rows.targets[real])
    expected = sorted(token for document in documents for token in document[1:])
    assert sorted(rows.targets[real].tolist()) == expected
    held = [token for document in documents for token in document]
    padded = source.epoch_counts.padded
    assert sorted(rows.inputs.ravel().tolist()) == sorted([*held, *[0] * padded])
    whole = [document for document in documents if len(document) <= seq_len]
    flat = [" ".join(map(str, row)) for row in rows.inputs.tolist()]
    for document in whole:
        assert sum(f" {text} ".count(f" {' '.join(map(str, document))} ") for text in flat) == 1
    for number in range(source.num_rows):
        starts = {part.slot for part in source.segments(number)}
        filled = sum(part.num_tokens for part in source.segments(number))
        zeros = set(np.flatnonzero(rows.positions[number] == 0).tolist())
        assert zeros == (starts | {filled} if filled < seq_len else starts)
        for part in source.segments(number):
            document = shards[int(part.shard[:3])][part.document]
            laid = rows.inputs[number, part.slot : part.slot + part.num_tokens].tolist()
            assert laid == document[part.offset : part.offset + part.num_tokens]
    plain = all_rows(BestFitRows(pool, seq_len)) if group > 5 else None
    if plain is not None:
        assert plain.positions is None and np.array_equal(plain.targets, rows.targets)


def test_little_of_real_text_is_empty(tmp_path):
    """Lengths as web text has them: log-normal around 600 tokens, some far longer than a row."""
    draw = np.random.default_rng(5)
    lengths = np.clip(np.exp(draw.normal(6.0, 1.1, 20_000)).astype(np.int64), 2, 60_000)
    _row_of, num_rows = best_fit(np.minimum(lengths, 2048), 2048)
    remainders = lengths[lengths > 2048] % 2048
    items = np.concatenate([lengths[lengths <= 2048], remainders[remainders > 0]])
    _row_of, num_rows = best_fit(items, 2048)
    assert 1 - items.sum() / (num_rows * 2048) < 0.01


def test_opening_can_be_stopped(tmp_path):
    class Stop(Exception):
        pass

    def poll():
        raise Stop

    with pytest.raises(Stop):
        BestFitRows(pool_of(tmp_path, [[5, 6, 2]]), 4, poll=poll)
