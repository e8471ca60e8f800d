"""The run's sequence of rows: a function of the seed and the row's number, and of nothing else."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.document_rows import DocumentRows
from protolith.data.packing import RowCounts
from protolith.data.rows import CountKey, RowStream
from protolith.data.window_rows import WindowRows
from tests.data.shard_fixtures import counting_pool, pool_of, random_documents


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """23 rows of 4; the first input of row r is 4 r."""
    return WindowRows(counting_pool(tmp_path_factory.mktemp("pool"), 90, num_shards=3), 4)


def numbers(stream: RowStream, start: int, stop: int) -> list[int]:
    return [int(n) for span in stream.spans(start, stop) for n in span.numbers]


def test_every_row_comes_once_an_epoch_and_in_another_order_each(source):
    """(T11)"""
    stream = RowStream(source, seed=7)
    n = source.num_rows
    epochs = [numbers(stream, e * n, (e + 1) * n) for e in range(4)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert numbers(RowStream(source, seed=7), 0, 4 * n) == [row for epoch in epochs for row in epoch]
    assert numbers(RowStream(source, seed=8), 0, n) != epochs[0]


def test_without_shuffling_every_epoch_is_as_it_lies(source):
    n = source.num_rows
    assert numbers(RowStream(source, seed=7, shuffle=False), 0, 2 * n) == [*range(n), *range(n)]


@settings(max_examples=80, deadline=None)
@given(start=st.integers(0, 200), lengths=st.lists(st.integers(0, 60), max_size=6), seed=st.integers(0, 3))
def test_a_range_read_in_any_pieces_is_the_same(source, start, lengths, seed):
    whole = RowStream(source, seed=seed).read(start, start + sum(lengths))
    stream, at, pieces = RowStream(source, seed=seed), start, []
    for length in lengths:
        pieces.append(stream.read(at, at + length).inputs)
        at += length
    assert whole.inputs.shape == whole.targets.shape == (sum(lengths), 4)
    assert np.array_equal(np.concatenate([whole.inputs[:0], *pieces]), whole.inputs)
    assert (whole.inputs[:, 0] // 4).tolist() == numbers(stream, start, at)


def test_any_row_of_the_run_is_found_at_once(source):
    far = 10**15
    stream = RowStream(source, seed=1)
    assert stream.epoch_of(far) == far // source.num_rows
    row = stream.read(far, far + 1)
    again = RowStream(source, seed=1).read(far - 5, far + 5)
    assert np.array_equal(row.inputs[0], again.inputs[5])


def test_counts_are_told_apart_by_epoch(source):
    """A range may run across the border of an epoch, or several."""
    n = source.num_rows
    stream = RowStream(source, seed=1, name="web")
    assert list(stream.counts(3, 5)) == [CountKey("web", 0)]
    across = stream.counts(n - 2, 2 * n + 1)
    assert list(across) == [CountKey("web", e) for e in (0, 1, 2)]
    assert across[CountKey("web", 1)] == source.epoch_counts
    total = sum(across.values(), RowCounts())
    assert total.trained == np.count_nonzero(stream.read(n - 2, 2 * n + 1).targets != -100)
    assert stream.counts(5, 5) == {}


def test_rows_are_iterated_with_the_number_of_the_next_one(source):
    stream = RowStream(source, seed=3)
    got = list(itertools.islice(stream.rows(20), 6))
    assert [next_row for _row, next_row in got] == [21, 22, 23, 24, 25, 26]
    assert [int(row.inputs[0]) // 4 for row, _ in got] == numbers(stream, 20, 26)


def test_blocks_of_the_order_join_without_a_seam(tmp_path):
    source = WindowRows(counting_pool(tmp_path, 5001), 1)
    stream = RowStream(source, seed=5)
    whole = numbers(stream, 0, 5000)
    assert sorted(whole) == list(range(5000))
    pieces = [n for start in range(0, 5000, 700) for n in numbers(stream, start, min(start + 700, 5000))]
    assert pieces == whole
    assert numbers(stream, 1020, 1030) == whole[1020:1030]
    assert numbers(stream, 4999, 5001) == [
        whole[4999],
        RowStream(source, seed=5).spans(5000, 5001)[0].numbers[0],
    ]


def test_documents_are_streamed_the_same_way(tmp_path):
    source = DocumentRows(pool_of(tmp_path, random_documents(40), random_documents(7, seed=1)), 8)
    stream = RowStream(source, seed=2)
    assert sorted(numbers(stream, 0, source.num_rows)) == list(range(source.num_rows))
    assert stream.counts(0, source.num_rows) == {CountKey("data", 0): source.epoch_counts}


def test_threads_may_share_a_stream(tmp_path):
    source = WindowRows(counting_pool(tmp_path, 4097), 1)
    stream, expected, wrong = RowStream(source, seed=5), numbers(RowStream(source, seed=5), 0, 8000), []

    def read(seed: int) -> None:
        for start in np.random.default_rng(seed).integers(0, 7900, 400).tolist():
            if numbers(stream, start, start + 100) != expected[start : start + 100]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_backward_and_negative_ranges_are_refused(source):
    for start, stop in ((-1, 3), (5, 4)):
        with pytest.raises(IndexError):
            RowStream(source, seed=1).spans(start, stop)
