"""Sizes, counts and durations, as people write and read them.

    "7 GB" -> 7_000_000_000      "7 GiB" -> 7 * 2**30      format_bytes(12_345_678)    -> "12.3 MB"
    "1.5B" -> 1_500_000_000      "20k"   -> 20_000         format_count(1_512_000_000) -> "1.51B"
    "2h"   -> 7200.0             "1h30m" -> 5400.0         format_duration(5400)       -> "1h 30m"

Decimal prefixes are powers of 1000, binary ones (KiB, MiB, GiB, TiB) powers of 1024.
Config files hold plain numbers: these readings are for command-line options such as ``--volume-size``.
"""

from __future__ import annotations

import math
import re

from protolith.errors import UsageError

_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "pib": 2**50,
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_NUMBER = r"(\d+(?:\.\d+)?)"
_BYTES_TEXT = re.compile(_NUMBER + r"\s*([a-z]+)\Z", re.IGNORECASE)
_COUNT_TEXT = re.compile(_NUMBER + r"\s*([kmbt]?)(?:\s*tokens?)?\Z", re.IGNORECASE)
_DURATION_PART = re.compile(_NUMBER + r"\s*(ms|min|[smhd])\s*", re.IGNORECASE)


def parse_bytes(text: str, *, where: str = "") -> int:
    """``"7 GB"`` or ``"512MiB"`` as a number of bytes. A bare number has no unit and is refused.

    Raises:
        UsageError: not a size.
    """
    match = _BYTES_TEXT.match(text.strip())
    scale = _BYTES.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        raise UsageError(
            f'"{text}" is not a size', where=where, hint="write a number and a unit, such as 7GB or 512MiB"
        )
    return _scaled(match.group(1), scale)


def parse_count(text: str, *, where: str = "") -> int:
    """``"1.5B"``, ``"1.5B tokens"`` or ``"20000"`` as a whole number (B is 10^9).

    Raises:
        UsageError: not a count, or not whole.
    """
    match = _COUNT_TEXT.match(text.strip())
    if match is None:
        raise UsageError(
            f'"{text}" is not a count', where=where, hint="write a number such as 20000, 20k or 1.5B"
        )
    scale = _COUNTS[match.group(2).lower()]
    value = _scaled(match.group(1), scale)
    if scale == 1 and "." in match.group(1) and float(match.group(1)) != value:
        raise UsageError(f'"{text}" is not a whole number', where=where)
    return value


def parse_duration(text: str, *, where: str = "") -> float:
    """``"90"`` or ``"90s"``, ``"2h"``, ``"1h30m"`` as seconds.

    Raises:
        UsageError: not a duration.
    """
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped):
        return float(stripped)
    total, position = 0.0, 0
    for part in _DURATION_PART.finditer(stripped):
        if part.start() != position:
            break
        total += float(part.group(1)) * _SECONDS[part.group(2).lower()]
        position = part.end()
    if not stripped or position != len(stripped):
        raise UsageError(
            f'"{text}" is not a duration',
            where=where,
            hint="write a number and a unit, such as 30s, 10m or 1h30m",
        )
    return total


def format_bytes(num_bytes: float) -> str:
    """Bytes in decimal units: three significant digits, ``"0 B"`` upward."""
    return _short(num_bytes, ("B", "kB", "MB", "GB", "TB", "PB"), space=True)


def format_count(count: float) -> str:
    """A count with k, M, B, T: three significant digits; whole below 1000."""
    return _short(count, ("", "k", "M", "B", "T"), space=False)


def format_duration(seconds: float) -> str:
    """``"0.25s"``, ``"12s"``, ``"3m 05s"``, ``"2h 10m"``, ``"1d 04h"``; ``"?"`` when not finite."""
    if not math.isfinite(seconds):
        return "?"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"


def _scaled(digits: str, scale: int) -> int:
    """``digits * scale`` without float error for what people write ("1.1", 10**12)."""
    whole, _, fraction = digits.partition(".")
    return int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)


def _short(value: float, names: tuple[str, ...], *, space: bool) -> str:
    if not math.isfinite(value):
        return "?"
    sign, value = ("-", -value) if value < 0 else ("", value)
    index = 0
    # 999.5 and above would be written as 1000, so it moves to the next unit.
    while value >= 999.5 and index < len(names) - 1:
        value /= 1000
        index += 1
    if index == 0:
        digits = f"{value:.3g}" if value != int(value) else str(int(value))
    else:
        digits = f"{value:.0f}" if value >= 99.95 else (f"{value:.1f}" if value >= 9.995 else f"{value:.2f}")
    gap = " " if space else ""
    return f"{sign}{digits}{gap}{names[index]}".rstrip()
