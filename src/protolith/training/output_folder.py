"""Taking the output folder: nobody's work is overwritten or continued without a word.

A folder in which a step was trained needs ``--resume`` or ``--overwrite``. A run that ended before its
first step left nothing worth a question, so its folder is simply taken over. Only names that a run
makes are ever removed. A kernel lock keeps two living runs apart and dies with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protolith.data.files import name_some
from protolith.errors import ConflictError, OutputInUseError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import OWN_NAMES, RunDir, from_os_error, read_metrics
from protolith.training.status import read_status

_IS_A_FILE = "the output folder is a file"
_PART_IS_A_FILE = "a part of the output path is a file"


@contextmanager
def claim(run_dir: RunDir, *, resume: bool, overwrite: bool) -> Iterator[list[str]]:
    """Hold the folder for one living run; yields what was done to it, one sentence each.

    Raises:
        OutputInUseError: it holds a run and neither word was said, or another process is running in it.
        NotAllowedError, NoSpaceError: it cannot be made or written.
    """
    _refuse_foreign(run_dir)
    handle = _lock(run_dir)
    try:
        notes: list[str] = []
        if _holds_work(run_dir):
            if not resume and not overwrite:
                raise OutputInUseError(
                    "the output folder already holds a run" + _describe(run_dir),
                    where=str(run_dir.root),
                    hint="say --resume to continue it, --overwrite to remove it, or choose another folder",
                )
            if overwrite and not resume:
                notes.append(f"--overwrite removed the run in {run_dir.root}{_describe(run_dir)}")
        if not resume:
            _remove_own(run_dir)
        run_dir.control_stop.unlink(missing_ok=True)
        swept = checkpoint_files.sweep(run_dir.checkpoints)
        if swept:
            notes.append(f"removed {swept} half-written checkpoint folder(s) of an earlier attempt")
        yield notes
    finally:
        os.close(handle)


def is_alive(run_dir: RunDir) -> bool:
    """Whether a trainer holds this folder now."""
    try:
        handle = os.open(run_dir.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def foresee(run_dir: RunDir) -> list[str]:
    """What ``claim`` would say of this folder, for a plan: nothing is made or locked.

    Raises:
        ConflictError: it could not be taken whatever was said.
    """
    root = run_dir.root
    there = next(path for path in (root, *root.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ConflictError(_IS_A_FILE if there == root else _PART_IS_A_FILE, where=str(root))
    _refuse_foreign(run_dir)
    if is_alive(run_dir):
        return [f"another run is working in {root} right now"]
    if _holds_work(run_dir):
        return [
            f"{root} already holds a run{_describe(run_dir)}: to train there takes --resume or --overwrite"
        ]
    return strangers(run_dir)


def strangers(run_dir: RunDir) -> list[str]:
    """A sentence about a folder that is no run and not empty, which the user may not have meant."""
    if not run_dir.root.is_dir() or read_status(run_dir.status):
        return []
    names = sorted(path.name for path in run_dir.root.iterdir() if not path.name.startswith("."))
    if not names:
        return []
    return [
        f"the output folder {run_dir.root} is not empty and no run: it holds {name_some(names)};"
        " the run writes beside that and leaves it alone"
    ]


def _refuse_foreign(run_dir: RunDir) -> None:
    """A folder that is no run but holds names that a run would write (a model's folder, say)."""
    taken = [name for name in OWN_NAMES if (run_dir.root / name).exists()]
    if taken and not read_status(run_dir.status):
        raise ConflictError(
            f"the output folder is not a run, and holds {', '.join(taken)}, which a run would write",
            where=str(run_dir.root),
            hint="choose another output folder",
        )


def _lock(run_dir: RunDir) -> int:
    root = run_dir.root
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise ConflictError(_IS_A_FILE, where=str(root)) from None
    except NotADirectoryError:
        raise ConflictError(_PART_IS_A_FILE, where=str(root)) from None
    except OSError as error:
        raise from_os_error(error, root) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OutputInUseError(
            "another run is working in this output folder right now",
            where=str(root),
            hint="wait for it, stop it, or choose another folder",
        ) from None
    return handle


def _holds_work(run_dir: RunDir) -> bool:
    if any(not folder.problem for folder in checkpoint_files.list_checkpoints(run_dir.checkpoints)):
        return True
    return run_dir.model.exists() or bool(read_metrics(run_dir.metrics)) or _last_step(run_dir) > 0


def _last_step(run_dir: RunDir) -> int:
    return int(read_status(run_dir.status).get("step", 0))


def _describe(run_dir: RunDir) -> str:
    complete = [f.step for f in checkpoint_files.list_checkpoints(run_dir.checkpoints) if not f.problem]
    step = max([_last_step(run_dir), *complete])
    saved = f", last checkpoint at step {max(complete)}" if complete else ", no checkpoint"
    return f" (step {step}{saved})"


def _remove_own(run_dir: RunDir) -> None:
    for name in OWN_NAMES:
        path: Path = run_dir.root / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif name == "checkpoints" and path.is_dir():
            _remove_checkpoints(path)
        elif path.is_dir():
            shutil.rmtree(path)


def _remove_checkpoints(root: Path) -> None:
    """Our own checkpoints go, whatever else somebody put beside them stays."""
    checkpoint_files.sweep(root)
    for folder in checkpoint_files.list_checkpoints(root):
        if (folder.path / checkpoint_files.MANIFEST).exists():
            shutil.rmtree(folder.path)
    if not any(root.iterdir()):
        root.rmdir()
