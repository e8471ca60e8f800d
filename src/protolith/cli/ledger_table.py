"""A run's ledger as a table: where every token went, by source and epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protolith.cli.render import say, table

_COLUMNS = ("read", "trained", "masked", "cut", "skipped_tokens", "padded")
_HEADS = ("read", "trained", "masked", "cut", "skipped", "padded")


def show_ledger(ledger: Mapping[str, Any]) -> None:
    """Lines that add up: read = trained + masked + cut + skipped. What is damaged is shown as ``?``."""
    rows = []
    reasons: list[str] = []
    for name, source in _items(ledger.get("sources")):
        for line in source.get("epochs") or ():
            if isinstance(line, Mapping):
                rows.append((name, str(line.get("epoch", "?")), *_numbers(line)))
                reasons += [
                    f"  {name}, epoch {line.get('epoch', '?')}: {count:,} tokens skipped: {why}"
                    for why, count in _counts(line.get("left_out"))
                ]
        reasons += [f"  {name}: {count:,} left out: {why}" for why, count in _counts(source.get("skipped"))]
    if len(rows) != 1:
        rows.append(("all", "", *_numbers(ledger)))
    table(("source", "epoch", *_HEADS), rows, right=("epoch", *_HEADS))
    repeated = ledger.get("repeated")
    if isinstance(repeated, int) and repeated:
        say(f"  {repeated:,} of the trained tokens had been trained on before (epochs after the first)")
    for reason in reasons:
        say(reason)


def _items(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    found = value.items() if isinstance(value, Mapping) else ()
    return [(str(name), item) for name, item in found if isinstance(item, Mapping)]


def _counts(value: Any) -> list[tuple[str, int]]:
    found = value.items() if isinstance(value, Mapping) else ()
    return [(str(why), count) for why, count in found if isinstance(count, int)]


def _numbers(line: Mapping[str, Any]) -> list[str]:
    values = [line.get(name, 0) for name in _COLUMNS]
    return [f"{value:,}" if isinstance(value, int) else "?" for value in values]
