"""Rows: what stands in them, and that every token is accounted for."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data import document_index
from protolith.data.document_rows import DocumentRows
from protolith.data.packing import NO_TARGET, RowCounts, RowSource
from protolith.data.shards import TokenPool
from protolith.data.window_rows import WindowRows
from protolith.errors import CorpusTooSmallError, DataError, ShardError
from tests.data.shard_fixtures import EOS, counting_pool, pool_of, random_documents, write_shard


def all_rows(source: RowSource):
    return source.read(np.arange(source.num_rows))


def adds_up(counts: RowCounts) -> bool:
    return counts.read == counts.trained + counts.masked + counts.cut


def check_source(source: RowSource) -> None:
    """What holds for every kind of rows."""
    rows = all_rows(source)
    assert rows.inputs.shape == rows.targets.shape == (source.num_rows, source.seq_len)
    assert rows.inputs.dtype == rows.targets.dtype == np.int64
    assert rows.inputs.flags.c_contiguous and rows.targets.flags.c_contiguous and rows.inputs.flags.writeable
    total = RowCounts()
    for number in range(source.num_rows):
        row = source.row(number)
        assert np.array_equal(row.inputs, rows.inputs[number])
        assert np.array_equal(row.targets, rows.targets[number])
        assert row.counts.trained == np.count_nonzero(row.targets != NO_TARGET)
        assert adds_up(row.counts)
        total += row.counts
    assert total == source.epoch_counts == source.counts(np.arange(source.num_rows))
    assert total.trained == source.num_targets
    order = np.random.default_rng(0).permutation(source.num_rows)
    shuffled = source.read(order)
    assert np.array_equal(shuffled.inputs, rows.inputs[order])
    assert np.array_equal(shuffled.targets, rows.targets[order])
    some = order[: len(order) // 2]
    assert source.counts(some) == sum((source.row(int(n)).counts for n in some), RowCounts())


def test_windows_advance_by_the_row_length_with_one_token_of_look_ahead(tmp_path):
    source = WindowRows(counting_pool(tmp_path, 7), 3)
    rows = all_rows(source)
    assert rows.inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert rows.targets.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert source.epoch_counts == RowCounts(read=7, trained=6, masked=1)


def test_the_last_window_is_padded_and_masked_by_position(tmp_path):
    source = WindowRows(counting_pool(tmp_path, 9), 4)
    assert source.num_rows == 2
    assert source.row(1).inputs.tolist() == [4, 5, 6, 7]
    assert source.row(1).targets.tolist() == [5, 6, 7, 8]
    source = WindowRows(counting_pool(tmp_path / "b", 7), 4)
    assert source.row(1).inputs.tolist() == [4, 5, 6, 0]
    assert source.row(1).targets.tolist() == [5, 6, NO_TARGET, NO_TARGET]
    assert source.row(1).counts == RowCounts(read=2, trained=2, padded=1)
    assert source.row(0).counts == RowCounts(read=5, trained=4, masked=1)


@settings(max_examples=60, deadline=None)
@given(num_tokens=st.integers(2, 90), seq_len=st.integers(1, 20), num_shards=st.integers(1, 5))
def test_every_token_after_the_first_is_a_target_exactly_once(
    tmp_path_factory, num_tokens, seq_len, num_shards
):
    pool = counting_pool(tmp_path_factory.mktemp("pool"), num_tokens, num_shards)
    if num_tokens < seq_len + 1:
        with pytest.raises(CorpusTooSmallError):
            WindowRows(pool, seq_len)
        return
    source = WindowRows(pool, seq_len)
    assert source.num_rows == -(-(num_tokens - 1) // seq_len)
    assert source.num_targets == num_tokens - 1
    rows = all_rows(source)
    real = rows.targets != NO_TARGET
    assert sorted(rows.targets[real].tolist()) == list(range(1, num_tokens))
    assert np.array_equal(rows.inputs[real] + 1, rows.targets[real])
    filled = source.num_rows * seq_len - source.epoch_counts.padded
    assert filled == len(
        {*rows.inputs[real].tolist(), *rows.inputs.ravel()[rows.inputs.ravel() > 0].tolist()}
    )
    check_source(source)


def test_fewer_tokens_than_one_window_are_refused_with_both_numbers(tmp_path):
    """(T3)"""
    with pytest.raises(CorpusTooSmallError, match="64 tokens found, 65 needed"):
        WindowRows(counting_pool(tmp_path, 64), 64)
    assert WindowRows(counting_pool(tmp_path / "enough", 65), 64).num_rows == 1


def test_a_document_a_row(tmp_path):
    pool = pool_of(
        tmp_path, [[5, 6, EOS], [7, 8, 9, 10, EOS]], [[11, 12, 13, EOS], [14, 15, 16, 17, 18, 19, EOS]]
    )
    source = DocumentRows(pool, 4)
    rows = all_rows(source)
    assert rows.inputs.tolist() == [[5, 6, EOS, 0], [7, 8, 9, 10], [11, 12, 13, EOS], [14, 15, 16, 17]]
    assert rows.targets.tolist() == [
        [6, EOS, NO_TARGET, NO_TARGET],
        [8, 9, 10, EOS],
        [12, 13, EOS, NO_TARGET],
        [15, 16, 17, 18],
    ]
    assert [source.row(n).counts for n in range(4)] == [
        RowCounts(read=3, trained=2, masked=1, padded=1),
        RowCounts(read=5, trained=4, masked=1),
        RowCounts(read=4, trained=3, masked=1),
        RowCounts(read=7, trained=4, masked=1, cut=2),
    ]


def test_the_end_of_text_is_a_target_also_where_it_is_the_padding_id(tmp_path):
    """Padding is told by position: every real token but the first is trained on, EOS included (T39)."""
    text = [7, 0, 9, 0]  # 0 is EOS, padding, and a word in the middle
    source = DocumentRows(pool_of(tmp_path, [text] * 5), 8)
    row = source.row(3)
    assert row.targets.tolist() == [0, 9, 0] + [NO_TARGET] * 5
    assert row.counts.trained == 3
    assert source.num_targets == 15


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4),
    seq_len=st.integers(1, 7),
    piece=st.sampled_from([1, 2, 5, 1 << 20]),
)
def test_documents_map_to_rows_whatever_makes_none(tmp_path_factory, lengths, seq_len, piece):
    """Documents of no or one token, anywhere, shift the rows after them and are counted."""
    shards, last = [], 0
    for shard in lengths:
        shards.append([list(range(last + at * 10, last + at * 10 + n)) for at, n in enumerate(shard)])
        last += 10 * len(shard)
    documents = [document for shard in shards for document in shard if len(document) >= 2]
    num_short = sum(map(len, shards)) - len(documents)
    folder = tmp_path_factory.mktemp("pool")
    if not any(document for shard in shards for document in shard):
        return
    pool = pool_of(folder, *shards, token_bytes=(4, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_index, "_PIECE", piece)
        if not documents:
            with pytest.raises(CorpusTooSmallError, match="none of at least 2 tokens"):
                DocumentRows(pool, seq_len)
            return
        source = DocumentRows(pool, seq_len)
    assert source.num_rows == len(documents)
    assert sum(source.skipped.values()) == num_short
    for number, document in enumerate(documents):
        row = source.row(number)
        kept = document[: seq_len + 1]
        assert row.targets[row.targets != NO_TARGET].tolist() == kept[1:]
        assert row.inputs[: len(kept[:seq_len])].tolist() == kept[:seq_len]
        assert row.counts.cut == len(document) - len(kept)
        assert row.counts.padded == max(seq_len - len(document), 0)
    assert source.epoch_counts.read == sum(map(len, documents))
    check_source(source)


def test_what_is_cut_short_or_padded_is_said_with_numbers(tmp_path):
    source = DocumentRows(pool_of(tmp_path, [[1] * 30 + [EOS], [EOS], [1, EOS], [1, EOS], [1, EOS]]), 10)
    cut, padded, short = source.notes
    assert "1 of 4 documents are longer than a row of 10: 20 tokens (54.1 %) are cut" in cut
    assert "60 % of all slots are padding" in padded
    assert short.startswith("1 documents of fewer than two tokens")
    assert source.skipped == {"documents of fewer than two tokens": 1}
    assert WindowRows(source.pool, 10).notes == ()


def test_documents_need_an_index_windows_do_not(tmp_path):
    pool = TokenPool.open(
        [
            write_shard(tmp_path / "a.ds", [[1, EOS]]),
            write_shard(tmp_path / "b.ds", [[1, 5, EOS]], index=False),
        ]
    )
    with pytest.raises(DataError) as caught:
        DocumentRows(pool, 4)
    assert caught.value.where == "b.ds"
    assert WindowRows(pool, 4).num_rows == 1


def test_rows_outside_are_refused(tmp_path):
    pool = pool_of(tmp_path, random_documents(20))
    for source in (WindowRows(pool, 4), DocumentRows(pool, 4)):
        for number in (-1, source.num_rows):
            with pytest.raises(IndexError):
                source.row(number)


@pytest.mark.parametrize("kind", [WindowRows, DocumentRows])
def test_an_id_beyond_the_vocabulary_met_in_a_row_names_shard_and_token(tmp_path, kind):
    """(T38)"""
    shards = [
        write_shard(tmp_path / f"{n}.ds", docs) for n, docs in enumerate([[[5, EOS]], [[7, 8, 100, EOS]]])
    ]
    source = kind(TokenPool.open(shards, vocab_size=100), 3)
    with pytest.raises(ShardError, match="id 100 at token 2") as caught:
        for number in range(source.num_rows):
            source.row(number)
    assert caught.value.where == "1.ds"


def test_counts_add_field_by_field():
    assert astuple(RowCounts(1, 2, 3, 4, 5) + RowCounts(10, 20, 30, 40, 50)) == (11, 22, 33, 44, 55)
