"""Windows whose documents do not see each other: positions, targets and counts against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.packing import NO_TARGET, RowCounts
from protolith.data.window_rows import WindowRows
from protolith.errors import DataError
from tests.data.shard_fixtures import pool_of, write_shard
from tests.data.test_packing import all_rows, check_source


def by_hand(shards, seq_len):
    """(inputs, targets, positions) of every row, token by token."""
    tokens, place = [], []
    for shard in shards:
        for document in shard:
            tokens += document
            place += range(len(document))
    rows = []
    for start in range(0, len(tokens) - 1, seq_len):
        inputs, targets, positions = [], [], []
        for slot in range(seq_len):
            at = start + slot
            begins = at < len(tokens) and place[at] == 0
            positions.append(0 if slot == 0 or begins or at == len(tokens) else positions[-1] + 1)
            inputs.append(tokens[at] if at < len(tokens) else 0)
            follows = at + 1 < len(tokens) and place[at + 1] != 0
            targets.append(tokens[at + 1] if follows else NO_TARGET)
        rows.append((inputs, targets, positions))
    return rows


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4),
    seq_len=st.integers(1, 12),
)
def test_against_a_plain_loop(tmp_path_factory, lengths, seq_len):
    shards, last = [], 1
    for shard in lengths:
        if not sum(shard):
            continue
        shards.append([list(range(last + at * 10, last + at * 10 + n)) for at, n in enumerate(shard)])
        last += 10 * len(shard)
    documents = [document for shard in shards for document in shard if document]
    num_tokens = sum(map(len, documents))
    if num_tokens < seq_len + 1 or num_tokens == len(documents):
        return
    pool = pool_of(tmp_path_factory.mktemp("pool"), *shards, token_bytes=(4, 2))
    source = WindowRows(pool, seq_len, document_mask=True)
    rows = all_rows(source)
    expected = by_hand(shards, seq_len)
    assert rows.positions is not None
    assert rows.inputs.tolist() == [row[0] for row in expected]
    assert rows.targets.tolist() == [row[1] for row in expected]
    assert rows.positions.tolist() == [row[2] for row in expected]
    assert source.epoch_counts.masked == len(documents)
    assert source.epoch_counts.read == num_tokens
    check_source(source)
    for number in range(source.num_rows):
        where = {
            (part.shard, part.document, part.slot + i): part.offset + i
            for part in source.segments(number)
            for i in range(part.num_tokens)
        }
        assert len(where) == min(seq_len, num_tokens - number * seq_len)
        for (shard, document, slot), offset in where.items():
            assert rows.inputs[number, slot] == shards[int(shard[:3])][document][offset]


def test_without_the_mask_nothing_changes(tmp_path):
    pool = pool_of(tmp_path, [[5, 6, 2], [7, 2]])
    assert all_rows(WindowRows(pool, 2)).positions is None
    assert WindowRows(pool, 2).epoch_counts == RowCounts(read=5, trained=4, masked=1)
    assert WindowRows(pool, 2, document_mask=True).epoch_counts == RowCounts(read=5, trained=3, masked=2)


def test_a_shard_without_an_index_is_refused(tmp_path):
    from protolith.data.shards import TokenPool

    shard = write_shard(tmp_path / "a.ds", [[5, 6, 2], [7, 2]], index=False)
    with pytest.raises(DataError, match="document_mask needs to know where documents end"):
        WindowRows(TokenPool.open([shard]), 2, document_mask=True)


def test_positions_of_the_last_row_begin_anew_where_it_is_padded(tmp_path):
    source = WindowRows(pool_of(tmp_path, [[5, 6, 7, 2]]), 3, document_mask=True)
    assert source.num_rows == 1
    source = WindowRows(pool_of(tmp_path / "b", [[5, 6, 7, 8, 9, 2]]), 4, document_mask=True)
    row = source.row(1)
    assert row.inputs.tolist() == [9, 2, 0, 0]
    assert row.positions is not None
    assert row.positions.tolist() == [0, 1, 0, 1]
    assert np.array_equal(row.targets, [2, NO_TARGET, NO_TARGET, NO_TARGET])
