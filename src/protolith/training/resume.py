"""Coming back: from which checkpoint, and whether it is still the same run.

A run's *identity* is what its numbers depend on, by area: data, tokenizer, model, batch, schedule,
optimizer. It is saved with each checkpoint; a difference is shown and needs consent by the area's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from protolith.config.names import nearest_word
from protolith.data.identity import diff_identity
from protolith.errors import NotFoundError, ResumeMismatchError, UsageError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, is_run_dir
from protolith.training.checkpoint_read import best_checkpoint, named_checkpoint, newest_checkpoint

#: Names of checkpoints of the run itself.
OF_THE_RUN = ("latest", "best")
AREAS = ("data", "tokenizer", "model", "batch", "schedule", "optimizer")
_MEANING = {
    "data": "the run goes on at the same row number of the changed data (streamed text: with its epoch anew)",
    "tokenizer": "the same ids may now mean other text",
    "model": "weights are loaded where names and shapes agree exactly, otherwise the run is refused",
    "batch": "the run goes on at the same row with the new batch",
    "schedule": "the rate follows the new schedule from the next step on",
    "optimizer": "the new settings apply from the next step on",
}


def points_elsewhere(resume: str | None, run_dir: RunDir) -> bool:
    """Whether ``resume`` names a checkpoint outside this run's own folder."""
    if resume is None or resume in OF_THE_RUN or resume.isdigit():
        return False
    path = Path(resume).expanduser().resolve()
    return run_dir.root.resolve() not in [path, *path.parents]


def require_folder(run_dir: RunDir, resume: str | None) -> None:
    """A checkpoint that is named as a folder must be there before anything is touched.

    Raises:
        NotFoundError: it is not; the hint lists those beside it, or those of the run.
    """
    if resume is None or resume in OF_THE_RUN or resume.isdigit():
        return
    path = Path(resume).expanduser()
    if path.is_dir():
        return
    roots = (path.parent, run_dir.checkpoints)
    there = next(filter(None, (checkpoint_files.complete_names(root) for root in roots)), "")
    known = f"there are: {there}" if there else "there are none"
    raise NotFoundError(
        f"no such checkpoint: {resume}",
        where="--resume",
        hint=f"give latest, best, a step number or a folder; {known}",
    )


def find_checkpoint(run_dir: RunDir, resume: str, warn: Callable[[str], None]) -> Path | None:
    """The folder that ``--resume [latest|best|STEP|DIR]`` means; None when a run has no checkpoint yet.

    Raises:
        NotFoundError: a step or folder was named that does not exist.
        CheckpointError: it exists and is not complete.
    """
    if resume == "latest":
        return newest_checkpoint(run_dir.checkpoints, warn)
    if resume == "best":
        return best_checkpoint(run_dir.checkpoints)
    if resume.isdigit():
        return named_checkpoint(run_dir.checkpoints, int(resume))
    require_folder(run_dir, resume)
    path = Path(resume).expanduser()
    if is_run_dir(path):
        found = newest_checkpoint(RunDir(path).checkpoints, warn)
        if found is None:
            raise NotFoundError("this run has no complete checkpoint", where=resume)
        return found
    match = re.fullmatch(r"step_(\d+)", path.resolve().name)
    if match is None:
        raise NotFoundError("not a checkpoint folder (step_<N>)", where=resume)
    return named_checkpoint(path.resolve().parent, int(match.group(1)))


def set_aside_later(run_dir: RunDir, step: int) -> list[str]:
    """Going back to ``step`` on purpose: checkpoints above it belong to a future that is given up.
    They are renamed, not removed."""
    notes = []
    for folder in checkpoint_files.list_checkpoints(run_dir.checkpoints):
        if folder.step > step:
            target, number = folder.path.with_name(f"{folder.path.name}.superseded"), 1
            while target.exists():
                number += 1
                target = folder.path.with_name(f"{folder.path.name}.superseded{number}")
            folder.path.rename(target)
            notes.append(f"{folder.path.name} lies after step {step}: renamed to {target.name}")
    return notes


def parse_consent(areas: Iterable[str]) -> frozenset[str]:
    given = frozenset(areas)
    unknown = sorted(given - set(AREAS))
    if unknown:
        near = [word for word in (nearest_word(name, list(AREAS)) for name in unknown) if word]
        meant = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(
            f"unknown area to accept: {', '.join(unknown)}", hint=f"{meant}areas are {', '.join(AREAS)}"
        )
    return given


def check_identity(
    saved: dict[str, Any], now: dict[str, Any], *, accepted: frozenset[str], where: str
) -> list[str]:
    """Compare; returns the differences that were accepted, one line each.

    Raises:
        ResumeMismatchError: a difference in an area that nobody accepted.
    """
    lines: list[str] = []
    refused: list[str] = []
    for area in AREAS:
        found = _differences(area, saved.get(area), now.get(area))
        lines += [f"{area}: {line}" for line in found]
        if found and area not in accepted:
            refused.append(area)
    if refused:
        raise ResumeMismatchError(
            f"what is resumed differs from what was saved in {', '.join(refused)}",
            where=where,
            hint=f"put it back, or accept it with --accept-changes {','.join(refused)}: "
            + "; ".join(_MEANING[area] for area in refused),
            differences=tuple(lines),
        )
    return lines


def _differences(area: str, saved: Any, now: Any) -> list[str]:
    if saved == now:
        return []
    if area == "data" and isinstance(saved, dict) and isinstance(now, dict):
        rest = (
            {k: v for k, v in saved.items() if k != "shards"},
            {k: v for k, v in now.items() if k != "shards"},
        )
        shards = diff_identity(saved.get("shards", []), now.get("shards", []))
        return shards + _flat_differences("", *rest)
    return _flat_differences("", saved, now)


def _flat_differences(prefix: str, saved: Any, now: Any) -> list[str]:
    if isinstance(saved, dict) and isinstance(now, dict):
        lines = []
        for key in sorted(set(saved) | set(now), key=str):
            name = f"{prefix}.{key}" if prefix else str(key)
            lines += _flat_differences(name, saved.get(key), now.get(key))
        return lines
    return [] if saved == now else [f"{prefix or 'value'} was {saved!r}, is {now!r}"]
