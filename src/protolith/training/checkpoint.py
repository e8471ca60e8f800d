"""What a checkpoint holds, and saving it while training goes on.

    step_<N>/model.safetensors       fp32 weights under transformers' names, tied tensors once
             optimizer.safetensors   fp32 moments, ``exp_avg/<name>`` and ``exp_avg_sq/<name>``
             rng.safetensors         random states as bytes; of ranks above 0 as ``<name>/<rank>``
             state.json              step, data position, ledger, identity of what was trained on
             config.json, tokenizer  so that the folder alone can be exported or sampled from
             manifest.json           sizes and digests, written last

The state is copied when ``save`` is called and written by a thread; the next save and the end of the
run wait for it. Nothing is pickled. Torn folders cannot be seen: see ``formats/checkpoint_files.py``.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protolith.distributed.engine import EngineState
from protolith.errors import CheckpointError, NoSpaceError, NotFoundError, ProtolithError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import from_os_error, read_json, write_json

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
RNG = "rng.safetensors"
STATE = "state.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands, beside its tensors. ``next_row`` is the whole position in the data, except for
    streamed text and mixtures, which have ``position``. ``skip_rows``: ranges that are left out."""

    step: int
    next_row: int
    tokens: int
    skipped_steps: int
    ledger: dict[str, Any]
    identity: dict[str, Any]
    position: dict[str, Any] = field(default_factory=dict)
    skip_rows: list[list[int]] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        companions: writes Hugging Face config and tokenizer files into a folder.
        warn: told when a save failed and training goes on.
        writes: whether this process is the one that writes; the others do all but that.
        agree: what was saved last, as the process that writes knows it.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int | None,
        keep_every: int | None,
        background: bool,
        companions: Callable[[Path], None],
        warn: Callable[[str], None],
        writes: bool = True,
        agree: Callable[[int | None], int | None] = lambda saved: saved,
    ) -> None:
        self.root = root
        self.keep_last = keep_last
        self.keep_every = keep_every
        self.background = background
        self.last_saved: int | None = None
        self._companions = companions
        self._warn = warn
        self._writes = writes
        self._agree = agree
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, state: EngineState, progress: Progress) -> None:
        """Begin to save; an earlier save is finished first. Failing for lack of space is a warning."""
        self.wait()
        if not self.background:
            self._write(state, progress)
        else:
            self._thread = threading.Thread(target=self._write, args=(state, progress), name="checkpoint")
            self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written. A failure other than a full disk is raised here."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None and not isinstance(failure, NoSpaceError):
            raise failure
        if failure is not None:
            self._warn(f"checkpoint not saved: {failure}; the previous one stands, training goes on")
        self.last_saved = self._agree(self.last_saved)

    def save_and_wait(self, state: EngineState, progress: Progress) -> None:
        """The last save of a run: a full disk is an error too."""
        self.wait()
        self._write(state, progress)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write(self, state: EngineState, progress: Progress) -> None:
        if not self._writes:
            return
        aside: Path | None = None
        try:
            aside = checkpoint_files.begin(self.root, progress.step)
            save_file(state.weights, aside / WEIGHTS, metadata={"format": "pt"})
            save_file(state.optimizer, aside / OPTIMIZER)
            save_file(state.rng, aside / RNG)
            write_json(aside / STATE, {**vars(progress), "engine": state.extra})
            self._companions(aside)
            checkpoint_files.commit(aside, progress.step)
            self.last_saved = progress.step
            self._retire(progress.step)
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread by wait()
            if aside is not None:
                checkpoint_files.discard(aside)
            self._failure = _typed(error, self.root)

    def _retire(self, newest: int) -> None:
        given_up = checkpoint_files.to_remove(
            self.root,
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            pinned=frozenset({newest}),
        )
        for path in given_up:
            shutil.rmtree(path, ignore_errors=True)


def _typed(error: Exception, root: Path) -> Exception:
    if isinstance(error, ProtolithError):
        return error
    if isinstance(error, OSError):
        return from_os_error(error, root)
    if isinstance(error, SafetensorError) and "os error" in str(error).lower():
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if f"os error {number}" in str(error):
                return from_os_error(OSError(number, "no space left"), root)
    return error


def load_checkpoint(folder: Path) -> tuple[EngineState, Progress]:
    """Read a complete checkpoint, digests compared.

    Raises:
        CheckpointError: torn, damaged, or written by something else.
    """
    problem = checkpoint_files.problem_of(folder, digests=True)
    if problem:
        raise CheckpointError(f"not a valid checkpoint: {problem}", where=str(folder))
    try:
        value = read_json(folder / STATE)
        progress = Progress(**{name: value[name] for name in Progress.__dataclass_fields__ if name in value})
        state = EngineState(
            weights=load_file(folder / WEIGHTS),
            optimizer=load_file(folder / OPTIMIZER),
            rng=load_file(folder / RNG),
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
    folders = checkpoint_files.list_checkpoints(root)
    for folder in reversed(folders):
        problem = folder.problem or checkpoint_files.problem_of(folder.path, digests=True)
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


def named_checkpoint(root: Path, step: int) -> Path:
    """The checkpoint of one step, which must be there and complete."""
    folder = root / f"step_{step}"
    if not folder.is_dir():
        have = [str(f.step) for f in checkpoint_files.list_checkpoints(root) if not f.problem]
        raise NotFoundError(
            f"no checkpoint of step {step}",
            where=str(root),
            hint=f"there are: {', '.join(have)}" if have else "there are none",
        )
    problem = checkpoint_files.problem_of(folder, digests=True)
    if problem:
        raise CheckpointError(f"not a valid checkpoint: {problem}", where=str(folder))
    return folder
