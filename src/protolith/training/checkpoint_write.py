"""Writing one checkpoint: whole tensors by rank 0 alone, or shards by all ranks together.

The folder is made, completed and named by rank 0 either way. Whatever goes wrong on one rank fails the save
on all, and nothing of it stays.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from protolith.distributed.agreement import Agreement
from protolith.distributed.engine import EngineState
from protolith.errors import ProtolithError
from protolith.formats import checkpoint_files as files
from protolith.formats.rundir import from_os_error, write_json
from protolith.tensors.shards import shard_files, write_shards


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside its tensors. ``next_row`` is the whole position in the data, except for
    streamed text and mixtures, which have ``position``. ``skip_rows``: ranges that are left out. ``best``:
    {"step", "loss"} of the lowest validation loss so far that was saved, with ``save_best``."""

    step: int
    next_row: int
    tokens: int
    skipped_steps: int
    ledger: dict[str, Any]
    identity: dict[str, Any]
    position: dict[str, Any] = field(default_factory=dict)
    skip_rows: list[list[int]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)


Companions = Callable[[Path], None]


def write_alone(root: Path, state: EngineState, progress: Progress, companions: Companions) -> None:
    """Write ``step_<N>`` under ``root``; raises whatever went wrong, as ``typed`` gives it."""
    aside: Path | None = None
    try:
        aside = files.begin(root, progress.step)
        save_file(dict(state.weights), aside / files.WEIGHTS, metadata={"format": "pt"})
        save_file(dict(state.optimizer), aside / files.OPTIMIZER)
        _write_rest(aside, state, progress, companions)
        files.commit(aside, progress.step)
    except Exception as error:
        if aside is not None:
            files.discard(aside)
        raise typed(error, root) from error


def write_together(
    root: Path, state: EngineState, progress: Progress, companions: Companions, ranks: Agreement
) -> None:
    """As ``write_alone``, of a sharded state; every rank comes here."""
    aside: Path | None = None

    def begin() -> str:
        nonlocal aside
        aside = files.begin(root, progress.step)
        (aside / files.SHARDS).mkdir()
        return aside.name

    def finish() -> None:
        assert aside is not None
        _write_rest(aside, state, progress, companions)
        files.commit(aside, progress.step, known)

    try:
        place = root / ranks.of_main(begin)
        write_shards({**state.weights, **state.optimizer}, place / files.SHARDS, ranks.group)
        own = shard_files(place / files.SHARDS, ranks.rank)
        facts = ranks.of_all(lambda: {f"{files.SHARDS}/{file.name}": files.facts_of(file) for file in own})
        known = {name: fact for of_rank in facts for name, fact in of_rank.items()}
        ranks.of_main(finish)
    except Exception as error:
        if aside is not None:
            files.discard(aside)
        raise typed(error, root) from error


def _write_rest(aside: Path, state: EngineState, progress: Progress, companions: Companions) -> None:
    save_file(state.rng, aside / files.RNG)
    write_json(aside / files.STATE, {**vars(progress), "engine": state.extra})
    companions(aside)


def typed(error: Exception, root: Path) -> Exception:
    """The typed form of what went wrong while writing below ``root``; other errors as they are."""
    if isinstance(error, ProtolithError):
        return error
    if isinstance(error, OSError):
        return from_os_error(error, root)
    if isinstance(error, SafetensorError) and "os error" in str(error).lower():
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if f"os error {number}" in str(error):
                return from_os_error(OSError(number, "no space left"), root)
    return error
