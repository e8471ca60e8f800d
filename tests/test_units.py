"""Sizes, counts and durations, as people write and read them."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import pytest

from protolith.errors import UsageError
from protolith.units import (
    format_bytes,
    format_count,
    format_duration,
    parse_bytes,
    parse_count,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 GB", 7 * 10**9), ("7GB", 7 * 10**9), ("7gb", 7 * 10**9), (" 1.5 GiB ", 3 * 2**29), ("512MiB", 2**29),
        ("0 B", 0), ("1kB", 1000), ("1.1TB", 1_100_000_000_000), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_sizes_are_read(text, value):
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "7", "GB", "-1GB", "7 XB", "7 GB extra", "1e9B", "nan GB", "١GB x"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="not a size") as caught:
        parse_bytes(text, where="--volume-size")
    assert caught.value.where == "--volume-size"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("20000", 20_000), ("20k", 20_000), ("1.5B", 1_500_000_000), ("1.5B tokens", 1_500_000_000), ("2T", 2 * 10**12), ("1 token", 1), ("3.0", 3)],
)  # fmt: skip
def test_counts_are_read(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "-3", "1.5Q", "many"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(UsageError):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("90s", 90), ("2h", 7200), ("1h30m", 5400), ("1h 30m", 5400), ("10min", 600), ("1d", 86400), ("250ms", 0.25), ("1.5h", 5400)],
)  # fmt: skip
def test_durations_are_read(text, value):
    assert parse_duration(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "h", "2x", "1h x", "-1s", "1h-30m"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (12_345_678, "12.3 MB"), (7.2e9, "7.20 GB"), (999_600, "1.00 MB"),
        (123e9, "123 GB"), (-5000, "-5.00 kB"), (1e18, "1000 PB"), (float("inf"), "?"),
    ],
)  # fmt: skip
def test_bytes_are_written(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (1_512_000_000, "1.51B"),
        (5_770_000, "5.77M"),
        (0.5, "0.5"),
        (2e12, "2.00T"),
    ],
)
def test_counts_are_written(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.25, "0.25s"), (9.94, "9.9s"), (12.4, "12s"), (59.6, "1m 00s"), (185, "3m 05s"), (3599.7, "1h 00m"),
        (7800, "2h 10m"), (86399, "1d 00h"), (100_000, "1d 04h"), (-5, "0s"), (float("nan"), "?"), (float("inf"), "?"),
    ],
)  # fmt: skip
def test_durations_are_written(seconds, text):
    assert format_duration(seconds) == text
