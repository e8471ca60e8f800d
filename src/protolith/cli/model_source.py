"""Which folder of weights a person means by MODEL: a model folder, a run, a checkpoint, or a cached name.

    a run            its model/ when it has completed, else its newest complete checkpoint, else model/
    checkpoints/     the newest complete one
    step_<N>/        that checkpoint, which must be complete
    .../best         of a run or its checkpoints/: the one with the lowest validation loss
    other folder     a Hugging Face model
    NAME             the run output/NAME, or the model models/NAME in PROTOLITH_HOME

A checkpoint is a Hugging Face model with more files beside it (its weights may be in shards), so all of them
are read the same way.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.errors import CheckpointError, ModelError, NotFoundError
from protolith.formats.checkpoint_files import (
    best_step,
    complete_names,
    list_checkpoints,
    problem_of,
    step_folder,
)
from protolith.formats.rundir import RunDir, is_run_dir, read_json
from protolith.model.directory import models_home

#: Where runs are when nobody says otherwise.
RUNS_FOLDER = Path("output")
_CHECKPOINT_NAME = re.compile(r"step_(\d+)\Z")


@dataclass(frozen=True)
class ModelSource:
    """``folder`` holds config.json, tokenizer and weights; ``run`` is the run it came from, when known."""

    folder: Path
    kind: str
    run: Path | None = None
    step: int | None = None

    def run_config(self) -> dict[str, Any]:
        """The resolved config of that run; empty when there is none to read."""
        if self.run is None:
            return {}
        try:
            value = read_json(RunDir(self.run).config)
        except (OSError, json.JSONDecodeError):
            return {}
        return value if isinstance(value, dict) else {}


def find_model(name: str, *, verify: bool = False) -> ModelSource:
    """Find what ``name`` means.

    Args:
        verify: compare the digests of a checkpoint, not only sizes.

    Raises:
        NotFoundError: nothing of that name, or a run without anything to load.
        CheckpointError: a checkpoint that is not complete.
        ModelError: a folder that holds no model.
    """
    path = _place(name)
    if not path.exists():
        raise _nothing_there(name, path)
    if path.is_file():
        raise ModelError("this is a file", where=name, hint="give the folder that holds it")
    if is_run_dir(path):
        return _of_run(path, verify)
    if _is_checkpoint(path):
        return _checkpoint(path, verify)
    if list_checkpoints(path):
        return _newest(path, verify)
    if not (path / "config.json").is_file():
        raise ModelError(
            "this folder holds no model (there is no config.json)",
            where=name,
            hint="give a model, run or checkpoint folder",
        )
    return ModelSource(path, "model", _run_around(path))


def find_checkpoint(name: str) -> ModelSource:
    """Like ``find_model`` for a checkpoint: a run means its newest complete one. Digests are compared.

    Raises:
        NotFoundError, CheckpointError: see ``find_model``. ModelError: it is no checkpoint.
    """
    path = _place(name)
    if is_run_dir(path):
        return _newest(RunDir(path).checkpoints, verify=True)
    source = find_model(name, verify=True)
    if source.kind != "checkpoint":
        raise ModelError(
            "this is not a checkpoint",
            where=name,
            hint="give checkpoints/step_<N> of a run, or the run's folder",
        )
    return source


def _nothing_there(name: str, path: Path) -> NotFoundError:
    """With the checkpoints that there are, where it looks like one."""
    beside = (path.parent, RunDir(path.parent).checkpoints)
    there = next(filter(None, map(complete_names, beside)), "")
    if _CHECKPOINT_NAME.match(path.name):
        hint = f"there are: {there}" if there else "give a run or checkpoint folder"
        return NotFoundError(f"no checkpoint {name}", where=name, hint=hint)
    return NotFoundError(f"no model {name}", where=name, hint="give a model, run or checkpoint folder")


def _place(name: str) -> Path:
    path = Path(name).expanduser()
    if path.exists():
        return path
    if path.name == "best" and (best := _best(path.parent)) is not None:
        return best
    if is_run_dir(RUNS_FOLDER / name):
        return RUNS_FOLDER / name
    return models_home() / name if (models_home() / name).is_dir() else path


def _best(parent: Path) -> Path | None:
    root = RunDir(parent).checkpoints if is_run_dir(parent) else parent
    step = best_step(root)
    return None if step is None else step_folder(root, step)


def _of_run(path: Path, verify: bool) -> ModelSource:
    run_dir = RunDir(path)
    exported = (run_dir.model / "config.json").is_file()
    if exported and _state(run_dir) == "completed":
        return ModelSource(run_dir.model, "model", path)
    if any(not found.problem for found in list_checkpoints(run_dir.checkpoints)):
        return _newest(run_dir.checkpoints, verify)
    if exported:
        return ModelSource(run_dir.model, "model", path)
    return _newest(run_dir.checkpoints, verify)


def _newest(root: Path, verify: bool) -> ModelSource:
    found = list_checkpoints(root)
    for folder in reversed(found):
        if not folder.problem and not (verify and problem_of(folder.path, digests=True)):
            return ModelSource(folder.path, "checkpoint", _run_around(folder.path), folder.step)
    newest = (
        f": {found[-1].path.name} is not valid, {found[-1].problem}" if found and found[-1].problem else ""
    )
    raise NotFoundError(f"no complete checkpoint here{newest}", where=str(root))


def _checkpoint(path: Path, verify: bool) -> ModelSource:
    problem = problem_of(path, digests=verify)
    if problem:
        raise CheckpointError(
            f"not a complete checkpoint: {problem}",
            where=str(path),
            hint="protolith runs show RUN lists the complete ones",
        )
    step = _CHECKPOINT_NAME.match(path.resolve().name)
    return ModelSource(path, "checkpoint", _run_around(path), int(step.group(1)) if step else None)


def _is_checkpoint(path: Path) -> bool:
    """Also one that is torn: a torn one must be refused, not read as a model."""
    name = path.resolve().name
    if _CHECKPOINT_NAME.match(name) or name.startswith(".saving-"):
        return True
    return any((path / mark).exists() for mark in ("manifest.json", "optimizer.safetensors", "state.json"))


def _run_around(path: Path) -> Path | None:
    """The run that a model or checkpoint folder lies in."""
    return next((folder for folder in list(path.resolve().parents)[:2] if is_run_dir(folder)), None)


def _state(run_dir: RunDir) -> str | None:
    try:
        value = read_json(run_dir.status)
    except (OSError, json.JSONDecodeError):
        return None
    return value.get("state") if isinstance(value, dict) else None
