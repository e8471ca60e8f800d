"""The keyed permutation: one-to-one, the same one by one and in blocks, and as good as chance to the eye."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.sampler import AsTheyLie, Permutation, permutation_key, row_order


def permutation(n: int, seed: int = 1, epoch: int = 0) -> Permutation:
    return Permutation(n, permutation_key(seed, epoch, "test"))


def test_every_index_comes_once_for_all_small_sizes():
    for n in range(1, 400):
        taken = permutation(n, seed=n).take(np.arange(n))
        assert sorted(taken.tolist()) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 5000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
def test_every_index_comes_once_for_any_seed_and_epoch(n, seed, epoch):
    taken = permutation(n, seed, epoch).take(np.arange(n))
    assert np.array_equal(np.sort(taken), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 2**48), seed=st.integers(0, 2**32), data=st.data())
def test_one_by_one_and_in_blocks_agree_and_different_positions_differ(n, seed, data):
    order = permutation(n, seed)
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50, unique=True))
    taken = order.take(np.array(positions)).tolist()
    assert taken == [order.at(position) for position in positions]
    assert all(0 <= index < n for index in taken)
    assert len(set(taken)) == len(positions)


@pytest.mark.parametrize("n", [2**48, 2**48 - 1, 2**48 + 1, 10**12 + 39, 2**60])
def test_large_sizes_are_one_to_one_on_a_sample(n):
    positions = np.unique(np.concatenate([np.arange(20000), n - 1 - np.arange(20000)]))
    taken = permutation(n).take(positions)
    assert taken.dtype == np.int64
    assert len(np.unique(taken)) == len(positions)
    assert taken.min() >= 0
    assert taken.max() < n
    assert taken[0] == permutation(n).at(0)


def test_memory_does_not_depend_on_the_size():
    assert len(vars(permutation(2**60))) == len(vars(permutation(3)))
    assert not any(isinstance(value, np.ndarray) for value in vars(permutation(2**60)).values())


def test_each_epoch_seed_and_purpose_has_its_own_order():
    """(T11)"""
    orders = [
        Permutation(50, permutation_key(seed, epoch, purpose)).take(np.arange(50)).tolist()
        for seed in (0, 1, -1)
        for epoch in (0, 1, 2)
        for purpose in ("rows", "documents")
    ]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert orders[0] == Permutation(50, permutation_key(0, 0, "rows")).take(np.arange(50)).tolist()


def test_the_order_is_the_same_in_every_release():
    """A checkpoint's row number means something only as long as these numbers stand."""
    assert row_order(42, 0, 1000, True).take(np.arange(8)).tolist() == [
        974,
        213,
        994,
        586,
        795,
        382,
        885,
        242,
    ]
    assert row_order(42, 1, 10**12, True).at(123_456_789) == 268_322_120_941


def test_no_stride_is_seen_between_neighbours():
    """Differences of neighbours are all over the place: none comes often."""
    n = 100_003
    taken = permutation(n).take(np.arange(n))
    differences = np.diff(taken) % n
    _values, counts = np.unique(differences, return_counts=True)
    assert counts.max() <= 12  # of 100,002 draws from 100,003 values, one with 13 or more would be odd


def test_neighbours_are_not_correlated():
    n = 65_537
    taken = permutation(n, seed=5).take(np.arange(n)).astype(float)
    for lag in (1, 2, 3, 255, 256, 257, 1024):
        assert abs(np.corrcoef(taken[:-lag], taken[lag:])[0, 1]) < 5 / n**0.5


def test_a_part_of_an_epoch_covers_the_data_evenly():
    n, cells = 10**9, 100
    taken = permutation(n, seed=9).take(np.arange(50_000))
    counts = np.histogram(taken, bins=cells, range=(0, n))[0]
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, deviation 14


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 10, 13])
def test_over_many_epochs_each_row_is_as_often_at_each_place(n):
    num_epochs = 3000
    seen = np.zeros((n, n))
    for epoch in range(num_epochs):
        seen[np.arange(n), permutation(n, epoch=epoch).take(np.arange(n))] += 1
    expected = num_epochs / n
    chi_square = ((seen - expected) ** 2 / expected).sum() / (n - 1)
    assert chi_square < n + 6 * (2 * n / (n - 1)) ** 0.5 * n**0.5


def test_two_epochs_agree_at_as_few_places_as_chance():
    n = 10_000
    same = permutation(n, epoch=0).take(np.arange(n)) == permutation(n, epoch=1).take(np.arange(n))
    assert same.sum() <= 8  # one is expected


def test_without_shuffling_rows_come_as_they_lie():
    order = row_order(1, 5, 10, shuffle=False)
    assert isinstance(order, AsTheyLie)
    assert order.take(np.arange(10)).tolist() == list(range(10)) == [order.at(i) for i in range(10)]


@pytest.mark.parametrize("order", [permutation(10), AsTheyLie(10)])
@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_positions_outside_are_refused(order, position):
    with pytest.raises(IndexError):
        order.at(position)
    with pytest.raises(IndexError):
        order.take(np.array([0, position]))


def test_sizes_and_keys_that_make_no_sense_are_refused():
    with pytest.raises(ValueError):
        permutation(0)
    with pytest.raises(ValueError):
        permutation(2**60 + 1)
    with pytest.raises(ValueError):
        Permutation(5, b"short")
    assert permutation(5).take(np.array([], dtype=np.int64)).tolist() == []


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 3000), block_rows=st.integers(1, 200), epoch=st.integers(0, 3))
def test_rows_in_blocks_come_once_each(n, block_rows, epoch):
    order = row_order(5, epoch, n, "blocks", block_rows=block_rows)
    taken = order.take(np.arange(n))
    assert np.array_equal(np.sort(taken), np.arange(n))
    some = np.arange(0, n, 7)
    assert order.take(some).tolist() == [order.at(int(position)) for position in some]


def test_blocks_are_read_nearly_in_sequence_and_shuffled_all_the_same():
    n, block = 100_000, 100
    order = row_order(3, 0, n, "blocks", block_rows=block).take(np.arange(n))
    touched = [len(np.unique(order[at : at + 16 * block] // block)) for at in range(0, n, 16 * block)]
    assert max(touched) <= 34, "16 blocks at a time, each perhaps cut in two by the turn"
    anywhere = row_order(3, 0, n, True).take(np.arange(n))
    assert len(np.unique(anywhere[: 16 * block] // block)) > 700
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.01
    again = row_order(3, 1, n, "blocks", block_rows=block).take(np.arange(n))
    assert np.mean(again == order) < 0.001
    first, second = (set((o[: 16 * block] // block).tolist()) for o in (order, again))
    assert len(first & second) < 8
