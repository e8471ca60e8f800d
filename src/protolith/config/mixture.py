"""Which sources a run reads, and with which weights from which step on.

Comes in: the data section. Goes out: ``sources_of``: names, paths, and a weight for each stage. A run without
``sources`` and ``weights`` has one source, called "data", of all its paths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from protolith.config.sections import DataConfig

ONLY_SOURCE = "data"
_ENDINGS = re.compile(r"(\.(jsonl|ndjson|json|parquet|txt|gz|zst|ds))+\Z", re.IGNORECASE)


@dataclass(frozen=True)
class SourceSpec:
    """One source: what is read, and its weight in each stage."""

    name: str
    paths: tuple[str, ...]
    weights: tuple[float, ...]

    @property
    def is_used(self) -> bool:
        """Whether any stage reads it."""
        return any(weight > 0 for weight in self.weights)


def is_mixture(data: DataConfig) -> bool:
    """Whether sources are mixed by weights, rather than all paths being one pool."""
    return data.sources is not None or data.weights is not None


def sources_of(data: DataConfig) -> tuple[SourceSpec, ...]:
    """All sources, used or not, in the order they were written."""
    if not is_mixture(data):
        return (SourceSpec(ONLY_SOURCE, data.path, (1.0,)),)
    if data.sources is not None:
        paths = [source.path for source in data.sources]
        given = [source.name for source in data.sources]
        first = tuple(source.weight for source in data.sources)
    else:
        paths = [(path,) for path in data.path]
        given = [None] * len(paths)
        first = tuple(data.weights or ())
    stages = [first, *(tuple(stage.weights) for stage in data.stages or ())]
    return tuple(
        SourceSpec(name, path, tuple(stage[number] for stage in stages))
        for number, (name, path) in enumerate(zip(source_names(paths, given), paths, strict=True))
    )


def first_steps(data: DataConfig) -> tuple[int, ...]:
    """The step with which each stage begins, from 1."""
    return (1, *(stage.from_step for stage in data.stages or ()))


def source_names(paths: Sequence[tuple[str, ...]], given: Sequence[str | None] | None = None) -> list[str]:
    """The names given, else made of the path's last part; all different."""
    names: list[str] = []
    for number, path in enumerate(paths):
        name = given[number] if given is not None else None
        if name is None:
            last = [part for part in re.split(r"[/\\]", path[0]) if part not in ("", ".", "..", "~")]
            name = _ENDINGS.sub("", last[-1]) if last else ""
            name = "".join(mark if mark.isprintable() else "_" for mark in name).strip(".") or ONLY_SOURCE
        base, count = name, 1
        while name in names:
            count += 1
            name = f"{base}-{count}"
        names.append(name)
    return names
