"""Ranges of rows that a run leaves out, and the rows of each step around them.

Rows keep their numbers: what is left out is jumped over, and the step takes the rows that follow.

    rows of a step: 4      left out: 6:9        steps: 0 1 2 3    4 5 9 10    11 12 13 14
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from protolith.errors import UsageError

Range = tuple[int, int]


def parse_range(text: str) -> Range:
    """``A:B``: rows A to B - 1.

    Raises:
        UsageError: it is something else, or holds no row.
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.replace("_", "").replace(",", ""))
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(
            f"--skip-rows takes A:B with A below B (rows A to B - 1), not {text!r}",
            hint="the message about the bad step names its rows",
        )
    return int(match[1]), int(match[2])


def merged(ranges: Iterable[Sequence[int]]) -> tuple[Range, ...]:
    """The same rows as ranges that ascend and neither touch nor overlap."""
    found: list[Range] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


@dataclass(frozen=True)
class StepRows:
    """The rows of one step: ``taken`` and ``jumped`` over before or between them, as ranges."""

    taken: tuple[Range, ...]
    jumped: tuple[Range, ...]

    @property
    def num_rows(self) -> int:
        return sum(stop - start for start, stop in self.taken)

    @property
    def next_row(self) -> int:
        return self.taken[-1][1]

    def between(self, begin: int, end: int) -> Iterator[Range]:
        """Rows ``begin`` to ``end - 1`` of the step, as ranges."""
        for start, stop in self.taken:
            first, last = max(begin, 0), min(end, stop - start)
            if first < last:
                yield start + first, start + last
            begin, end = begin - (stop - start), end - (stop - start)


def step_rows(
    start: int, num_rows: int, left_out: Sequence[Range] = (), stop_row: int | None = None
) -> StepRows | None:
    """The next ``num_rows`` rows from ``start`` on that are not left out, or what there is of them before
    ``stop_row``; None when there is none."""
    taken: list[Range] = []
    jumped: list[Range] = []
    for begin, end in [*left_out, (None, None)]:
        if end is not None and end <= start:
            continue
        until = start + num_rows if begin is None else min(start + num_rows, max(begin, start))
        if stop_row is not None:
            until = min(until, stop_row)
        if until > start:
            taken.append((start, until))
            num_rows -= until - start
            start = until
        if not num_rows or begin is None or end is None or begin > start:
            break
        jumped.append((start, end))
        start = end
    if not taken:
        return None
    # What lies behind the last row taken is jumped over by the next step.
    jumped = [gap for gap in jumped if gap[0] < taken[-1][0]]
    return StepRows(tuple(taken), tuple(jumped))


def stop_after(num_rows: int, left_out: Sequence[Range]) -> int:
    """The row before which a run ends that takes ``num_rows`` rows in all."""
    stop = num_rows
    for begin, end in left_out:
        if begin < stop:
            stop += end - begin
    return stop
