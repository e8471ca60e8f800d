"""Finding the checkpoint that is meant, and reading it: tensors only when and where they are needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from protolith.distributed.engine import EngineState
from protolith.errors import CheckpointError, NotFoundError
from protolith.formats import checkpoint_files as files
from protolith.formats.rundir import read_json
from protolith.tensors.stored import optimizer_of, weights_of
from protolith.training.checkpoint_write import Progress


def load_checkpoint(folder: Path) -> tuple[EngineState, Progress]:
    """Open a complete checkpoint, of whatever engine; sizes are compared, digests when it was found.

    Raises:
        CheckpointError: torn, damaged, or written by something else.
    """
    problem = files.problem_of(folder, digests=False)
    if problem:
        raise CheckpointError(f"not a valid checkpoint: {problem}", where=str(folder))
    try:
        value = read_json(folder / files.STATE)
        progress = Progress(**{name: value[name] for name in Progress.__dataclass_fields__ if name in value})
        state = EngineState(
            weights=weights_of(folder),
            optimizer=optimizer_of(folder),
            rng=load_file(folder / files.RNG),
            extra=value["engine"],
        )
    except (OSError, KeyError, ValueError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(folder)) from error
    return state, progress


def newest_checkpoint(root: Path, warn: Callable[[str], None]) -> Path | None:
    """The complete checkpoint with the highest step; says which newer ones it passed over and why.

    Raises:
        CheckpointError: there are checkpoints and none of them is complete.
    """
    folders = files.list_checkpoints(root)
    for folder in reversed(folders):
        problem = folder.problem or files.problem_of(folder.path, digests=True)
        if not problem:
            return folder.path
        warn(f"checkpoint {folder.path.name} is passed over: {problem}")
    if folders:
        raise CheckpointError(
            f"none of the {len(folders)} checkpoints is complete",
            where=str(root),
            hint="name a checkpoint of another run, or begin anew with --overwrite",
        )
    return None


def best_checkpoint(root: Path) -> Path:
    """The checkpoint with the lowest validation loss.

    Raises:
        NotFoundError: the run does not save it. CheckpointError: it is not complete.
    """
    step = files.best_step(root)
    if step is None:
        raise NotFoundError(
            "no checkpoint is known as the best by validation",
            where=str(root),
            hint="set trainer.save_best and give held-out data; --resume latest goes on from the newest",
        )
    return named_checkpoint(root, step)


def named_checkpoint(root: Path, step: int) -> Path:
    """The checkpoint of one step, which must be there and complete."""
    folder = files.step_folder(root, step)
    if not folder.is_dir():
        have = [str(f.step) for f in files.list_checkpoints(root) if not f.problem]
        raise NotFoundError(
            f"no checkpoint of step {step}",
            where=str(root),
            hint=f"there are: {', '.join(have)}" if have else "there are none",
        )
    problem = files.problem_of(folder, digests=True)
    if problem:
        raise CheckpointError(f"not a valid checkpoint: {problem}", where=str(folder))
    return folder
