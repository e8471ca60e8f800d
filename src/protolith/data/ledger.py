"""Where every token went, by source and epoch.

Comes in: the counts of each step's rows (see ``data/packing.py`` for what is counted), rows that were left
out on purpose, and how many records or documents never became rows, with reasons. Goes out: ``ledger.json``,
which adds up:

    read = trained + masked + cut + skipped_tokens      in every line, and
    trained, over all sources and epochs, is the number of tokens the step counter knows of.

``skipped_tokens`` are those of rows that were read, or passed over, and not trained on: ``left_out`` says
why (``--skip-rows``, a step that was not finite). ``skipped`` counts records and documents. ``repeated`` are
tokens trained on in epochs after the first: it counts nothing twice, it says how much of ``trained`` had been
seen before. ``padded`` counts slots, not tokens. Epochs are counted from 1 in the file and from 0 in code.
State: one line a source and epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from protolith.data.packing import RowCounts
from protolith.data.rows import DEFAULT_SOURCE, CountKey
from protolith.errors import CheckpointError, RunFailedError

_VERSION = 1
_NAMES = tuple(field.name for field in fields(RowCounts))


class Ledger:
    """Sums of ``RowCounts`` and of tokens left out, by source and epoch; and counts of what was skipped, by
    source and reason."""

    def __init__(self) -> None:
        self.entries: dict[CountKey, RowCounts] = {}
        self.left_out: dict[CountKey, Counter[str]] = {}
        self.skipped: dict[str, dict[str, int]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        mine, theirs = ((ledger.entries, ledger.left_out, ledger.skipped) for ledger in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    @property
    def totals(self) -> RowCounts:
        """Of the rows that were trained on."""
        return sum(self.entries.values(), RowCounts())

    @property
    def repeated(self) -> int:
        """Tokens trained on in epochs after the first."""
        return sum(counts.trained for key, counts in self.entries.items() if key.epoch > 0)

    def add(self, counts: Mapping[CountKey, RowCounts]) -> None:
        """Add what one step did."""
        for key, more in counts.items():
            self.entries[key] = self.entries.get(key, RowCounts()) + more

    def leave_out(self, counts: Mapping[CountKey, RowCounts], reason: str) -> None:
        """Add rows that were not trained on, and why."""
        for key, more in counts.items():
            self.left_out.setdefault(key, Counter())[reason] += more.read

    def set_skipped(self, reasons: Mapping[str, int], source: str = DEFAULT_SOURCE) -> None:
        """What of ``source`` never became rows: reason -> how many. Known when the data is opened, so it is
        set, not added: a resumed run says the same again."""
        self.skipped.pop(source, None)
        found = {reason: int(count) for reason, count in reasons.items() if count}
        if found:
            self.skipped[source] = found

    def check(self, total_trained: int) -> None:
        """Prove the sums.

        Args:
            total_trained: targets the run has trained on, counted elsewhere.

        Raises:
            RunFailedError: a line, or the whole, does not add up.
        """
        for key, counts in self.entries.items():
            accounted = counts.trained + counts.masked + counts.cut
            if counts.read != accounted or min(asdict(counts).values()) < 0:
                raise RunFailedError(
                    f"the ledger does not add up: {counts.read} tokens read, {accounted} accounted for",
                    where=f"ledger: {key.source}, epoch {key.epoch + 1}",
                )
        if self.totals.trained != total_trained:
            raise RunFailedError(
                f"the ledger has {self.totals.trained} trained tokens, the run counted {total_trained}",
                where="ledger",
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: totals, then each source with its epochs."""
        keys = sorted({*self.entries, *self.left_out})
        names = sorted({key.source for key in keys} | set(self.skipped))
        return {
            "version": _VERSION,
            **self._sums(keys),
            "skipped": sum(sum(reasons.values()) for reasons in self.skipped.values()),
            "sources": {name: self._source(name, keys) for name in names},
        }

    def _source(self, name: str, keys: list[CountKey]) -> dict[str, Any]:
        ours = [key for key in keys if key.source == name]
        epochs = []
        for key in ours:
            sums = self._sums([key])
            sums.pop("repeated")
            epochs.append({"epoch": key.epoch + 1, **sums, "left_out": dict(self.left_out.get(key, {}))})
        return {**self._sums(ours), "skipped": dict(self.skipped.get(name, {})), "epochs": epochs}

    def _sums(self, keys: Iterable[CountKey]) -> dict[str, int]:
        """All counts of these lines, by name."""
        keys = list(keys)
        sums = asdict(sum((self.entries.get(key, RowCounts()) for key in keys), RowCounts()))
        skipped_tokens = sum(self.left_out[key].total() for key in keys if key in self.left_out)
        repeated = sum(self.entries[key].trained for key in keys if key.epoch > 0 and key in self.entries)
        sums["read"] += skipped_tokens
        return {**sums, "skipped_tokens": skipped_tokens, "repeated": repeated}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        """Read ``to_dict``'s form; an empty mapping is an empty ledger.

        Raises:
            CheckpointError: it has another form, or its totals are not the sums of its lines.
        """
        ledger = cls()
        if not data:
            return ledger
        try:
            if data["version"] != _VERSION:
                raise CheckpointError(f"a ledger of version {data['version']}, not {_VERSION}")
            for name, source in data["sources"].items():
                for line in source["epochs"]:
                    key = CountKey(name, int(line["epoch"]) - 1)
                    reasons = {str(why): int(count) for why, count in line.get("left_out", {}).items()}
                    counts = {field: int(line[field]) for field in _NAMES}
                    counts["read"] -= sum(reasons.values())
                    if any(counts.values()) or not reasons:
                        ledger.add({key: RowCounts(**counts)})
                    if reasons:
                        ledger.left_out[key] = Counter(reasons)
                if source["skipped"]:
                    ledger.set_skipped(source["skipped"], name)
            stated = {field: int(data[field]) for field in _NAMES}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the saved ledger cannot be read: {error!r}") from error
        summed = ledger._sums([*{*ledger.entries, *ledger.left_out}])
        summed = {field: summed[field] for field in _NAMES}
        if stated != summed:
            raise CheckpointError(f"the saved ledger says {stated}, its lines add up to {summed}")
        return ledger
