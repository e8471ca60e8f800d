"""Rows of several sources, mixed by weights.

Comes in: for each source a ``RowStream`` (its own endless sequence, with its own order and epochs) and,
for each stage of the run, shares in rows. Goes out: a ``RowSequence``: which source row number g of the
mixture is of, and which of that source's rows, follows from g alone by counting:

    the sources stand at the leaves of a balanced tree; at each node, of the first n rows that pass it,
    floor(n * share of the left side + 1/2) go to the left

so after any number of rows each source has had its share to within a few rows, and nothing is drawn by
chance. A stage begins at a row: its counting starts anew, each source goes on where it stood.

State: none for a run that goes on as it was planned. When weights are changed on resume, by consent, the
stages as they really were have to be kept: ``record`` has them in JSON, ``continued`` goes on from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protolith.data.packing import Rows
from protolith.data.rows import Origin, RowStream, StepCounts, join_rows

#: Shares are whole numbers of this, so that counting is exact.
_WHOLE = 1 << 40


@dataclass(frozen=True)
class Stage:
    """From row ``first_row`` of the mixture on, rows are shared out like ``shares`` (source name -> share,
    whole numbers; a source that is not named gets none)."""

    first_row: int
    shares: Mapping[str, int]


def row_shares(weights: Mapping[str, float], targets_per_row: Mapping[str, float]) -> dict[str, int]:
    """Shares of rows that give shares of tokens like ``weights``.

    Args:
        targets_per_row: tokens that a row of each source trains on, in the mean.
    """
    per_row = {name: weight / targets_per_row[name] for name, weight in weights.items() if weight > 0}
    total = sum(per_row.values())
    return {name: max(1, round(_WHOLE * share / total)) for name, share in per_row.items()}


class Dealer:
    """Which of several heaps the n-th thing goes to, n = 0, 1, 2 ..., by whole-number shares."""

    def __init__(self, shares: Sequence[int]) -> None:
        if not shares or min(shares) < 0 or not sum(shares):
            raise ValueError(f"shares {list(shares)}")
        self._shares = tuple(shares)
        self._sums = [0]
        for share in shares:
            self._sums.append(self._sums[-1] + share)

    def counts(self, n: int) -> list[int]:
        """How many of the first ``n`` things each heap gets."""
        counts = [0] * len(self._shares)
        waiting = [(0, len(self._shares), n)]
        while waiting:
            begin, end, here = waiting.pop()
            if end - begin == 1:
                counts[begin] = here
                continue
            middle = (begin + end) // 2
            left = self._left(begin, middle, end, here)
            waiting += [(begin, middle, left), (middle, end, here - left)]
        return counts

    def heap_of(self, n: int) -> int:
        """The heap of thing ``n``."""
        begin, end = 0, len(self._shares)
        while end - begin > 1:
            middle = (begin + end) // 2
            left = self._left(begin, middle, end, n)
            if self._left(begin, middle, end, n + 1) > left:
                end, n = middle, left
            else:
                begin, n = middle, n - left
        return begin

    def _left(self, begin: int, middle: int, end: int, n: int) -> int:
        share, whole = self._sums[middle] - self._sums[begin], self._sums[end] - self._sums[begin]
        return (2 * n * share + whole) // (2 * whole) if whole else 0


class MixedRows:
    """A ``RowSequence`` over several.

    Args:
        streams: one a source; names differ.
        stages: ascending by ``first_row``; the first begins at row 0.
    """

    def __init__(self, streams: Sequence[RowStream], stages: Sequence[Stage]) -> None:
        if not streams or len({stream.name for stream in streams}) != len(streams):
            raise ValueError("sources must have names of their own")
        firsts = [stage.first_row for stage in stages]
        if not stages or firsts[0] != 0 or firsts != sorted(set(firsts)):
            raise ValueError(f"stages from rows {firsts}")
        self.streams = tuple(streams)
        self.stages = tuple(stages)
        self.seq_len = streams[0].seq_len
        self.num_rows = sum(stream.source.num_rows for stream in streams)
        self._names = [stream.name for stream in streams]
        self._dealers = [Dealer([stage.shares.get(name, 0) for name in self._names]) for stage in stages]
        #: rows that each source has given before each stage
        self._before = [[0] * len(streams)]
        for number, first in enumerate(firsts[1:]):
            self._before.append(self._counts_in(number, first))

    def counts_of(self, row: int) -> dict[str, int]:
        """How many of the first ``row`` rows are of each source."""
        return dict(zip(self._names, self._counts_in(self._stage_of(row), row), strict=True))

    def read(self, start: int, stop: int) -> Rows:
        sources = self._sources(start, stop)
        begins = self._counts_in(self._stage_of(start), start)
        parts, places = [], []
        for number, count in sorted(Counter(sources).items()):
            parts.append(self.streams[number].read(begins[number], begins[number] + count))
            places += [place for place, source in enumerate(sources) if source == number]
        if not parts:
            return self.streams[0].read(0, 0)
        joined = join_rows(parts)
        order = np.argsort(np.array(places), kind="stable")
        positions = None if joined.positions is None else joined.positions[order]
        return Rows(joined.inputs[order], joined.targets[order], positions)

    def counts(self, start: int, stop: int) -> StepCounts:
        counts: StepCounts = {}
        for stream, (first, last) in zip(self.streams, self._ranges(start, stop), strict=True):
            if last > first:
                counts.update(stream.counts(first, last))
        return counts

    def origins(self, start: int, stop: int) -> list[Origin]:
        begins = self._counts_in(self._stage_of(start), start)
        found = []
        for row, number in enumerate(self._sources(start, stop), start):
            (origin,) = self.streams[number].origins(begins[number], begins[number] + 1)
            begins[number] += 1
            found.append(Origin(row, origin.source, origin.epoch, origin.number, origin.segments))
        return found

    def epoch_of(self, row: int) -> int:
        return row // self.num_rows

    def _stage_of(self, row: int) -> int:
        return max(number for number, stage in enumerate(self.stages) if stage.first_row <= row)

    def _counts_in(self, stage: int, row: int) -> list[int]:
        """Rows of each source among the first ``row``, which lies in ``stage`` or at its end."""
        here = self._dealers[stage].counts(row - self.stages[stage].first_row)
        return [before + count for before, count in zip(self._before[stage], here, strict=True)]

    def _ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        begins = self._counts_in(self._stage_of(start), start)
        ends = self._counts_in(self._stage_of(stop), stop)
        return list(zip(begins, ends, strict=True))

    def _sources(self, start: int, stop: int) -> list[int]:
        """The number of the source of each row."""
        found = []
        for row in range(start, stop):
            stage = self._stage_of(row)
            found.append(self._dealers[stage].heap_of(row - self.stages[stage].first_row))
        return found

    def record(self) -> list[dict[str, Any]]:
        """The stages in JSON types, for ``continued``."""
        return [{"first_row": stage.first_row, "shares": dict(stage.shares)} for stage in self.stages]


def continued(planned: Sequence[Stage], record: Sequence[Mapping[str, Any]], row: int) -> tuple[Stage, ...]:
    """The stages of a run that was at ``row`` with the stages of ``record`` and goes on with ``planned``: as
    they were up to there, as planned from there on."""
    was = [Stage(int(item["first_row"]), dict(item["shares"])) for item in record]
    if [(s.first_row, dict(s.shares)) for s in planned] == [(s.first_row, dict(s.shares)) for s in was]:
        return tuple(planned)
    now = [stage for stage in planned if stage.first_row <= row][-1]
    later = [stage for stage in planned if stage.first_row > row]
    past = [stage for stage in was if stage.first_row < row]
    if past and dict(past[-1].shares) == dict(now.shares):
        return (*past, *later)
    return (*past, Stage(row, now.shares), *later)
