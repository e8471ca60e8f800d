"""What a checkpoint holds, and saving it while training goes on.

    step_<N>/model.safetensors       fp32 weights under transformers' names, tied tensors once
             optimizer.safetensors   fp32 moments, ``exp_avg/<name>`` and ``exp_avg_sq/<name>``
             shards/                 in place of these two: the same tensors, each rank's shards
             rng.safetensors         random states as bytes; of ranks above 0 as ``<name>/<rank>``
             state.json              step, data position, ledger, identity of what was trained on
             config.json, tokenizer  so that the folder alone can be exported or sampled from
             manifest.json           sizes and digests, written last

The state is copied when ``save`` is called and written by a thread; the next save and the end of the
run wait for it. Nothing is pickled. Torn folders cannot be seen: see ``formats/checkpoint_files.py``.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from protolith.distributed.agreement import Agreement
from protolith.distributed.engine import EngineState
from protolith.errors import NoSpaceError
from protolith.formats import checkpoint_files
from protolith.training.checkpoint_write import Companions, Progress, write_alone, write_together


class Checkpoints:
    """The checkpoints of one run.

    Args:
        companions: writes Hugging Face config and tokenizer files into a folder.
        warn: told when a save failed and training goes on.
        writes: whether this process is the one that writes; the others do all but that.
        agree: what was saved last, as the process that writes knows it.
        ranks: how all processes write a sharded state together; asked once, by all of them.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int | None,
        keep_every: int | None,
        background: bool,
        companions: Companions,
        warn: Callable[[str], None],
        writes: bool = True,
        agree: Callable[[int | None], int | None] = lambda saved: saved,
        ranks: Callable[[], Agreement] | None = None,
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
        self._new_ranks = ranks
        self._ranks: Agreement | None = None
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def save(self, state: EngineState, progress: Progress) -> None:
        """Begin to save; an earlier save is finished first. Failing for lack of space is a warning."""
        self.wait()
        self._prepare(state)
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
        self._prepare(state)
        self._write(state, progress)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _prepare(self, state: EngineState) -> None:
        if state.sharded and self._ranks is None and self._new_ranks is not None:
            self._ranks = self._new_ranks()

    def _write(self, state: EngineState, progress: Progress) -> None:
        try:
            if state.sharded:
                assert self._ranks is not None
                write_together(self.root, state, progress, self._companions, self._ranks)
            elif self._writes:
                write_alone(self.root, state, progress, self._companions)
            else:
                return
            self.last_saved = progress.step
            if self._writes:
                self._retire(progress)
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread by wait()
            self._failure = error

    def _retire(self, newest: Progress) -> None:
        given_up = checkpoint_files.to_remove(
            self.root,
            keep_last=self.keep_last,
            keep_every=self.keep_every,
            pinned=frozenset({newest.step, newest.best.get("step", newest.step)}),
        )
        for path in given_up:
            shutil.rmtree(path, ignore_errors=True)
