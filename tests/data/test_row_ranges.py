"""Rows that are left out: everything else comes once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolith.data.row_ranges import merged, parse_range, step_rows, stop_after
from protolith.errors import UsageError

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=5).map(
    lambda found: merged((start, start + length) for start, length in found)
)


def rows_of(ranges):
    return [row for start, stop in ranges for row in range(start, stop)]


@given(ranges=RANGES, num_rows=st.integers(1, 9), stop=st.integers(0, 80))
def test_steps_take_every_row_that_is_not_left_out(ranges, num_rows, stop):
    out = set(rows_of(ranges))
    expected = [row for row in range(stop) if row not in out]
    at, taken, jumped = 0, [], []
    while (step := step_rows(at, num_rows, ranges, stop)) is not None:
        here = rows_of(step.taken)
        assert step.num_rows == len(here) <= num_rows
        for begin in range(len(here) + 1):
            assert rows_of(step.between(begin, len(here))) == here[begin:]
        taken += here
        jumped += rows_of(step.jumped)
        at = step.next_row
        if len(taken) < len(expected):
            assert len(here) == num_rows
    assert taken == expected
    assert jumped == [row for row in sorted(out) if taken and row < taken[-1]]


@given(ranges=RANGES, num_rows=st.integers(0, 60))
def test_a_run_that_counts_rows_ends_later_by_what_is_left_out(ranges, num_rows):
    stop, out = stop_after(num_rows, ranges), set(rows_of(ranges))
    assert len([row for row in range(stop) if row not in out]) == num_rows


def test_merging_and_reading():
    assert merged([(5, 7), (1, 2), (6, 9), (9, 10)]) == ((1, 2), (5, 10))
    assert parse_range("4096:4104") == (4096, 4104)
    assert parse_range("4_096:4_104") == (4096, 4104)
    for text in ("", "5", "7:7", "8:7", "-1:4", "a:b", "1:2:3"):
        with pytest.raises(UsageError, match="--skip-rows takes A:B"):
            parse_range(text)
