"""Starting the ranks of a run on this machine, by torchrun's own library, and telling how it ended.

Comes in: the words of a ``protolith pretrain`` command. Goes out: its exit code, or the error of the rank
that had it. Each rank is the same command in a process of its own, which learns its place from torchrun's
environment. Rank 0 prints; what others print goes into their logs.

    one attempt = one ``elastic_launch`` without restarts of its own. When a process fails, torchrun ends the
    others; then what the ranks left (``distributed/outcome.py``) says what it was:
      an error of the run (config, data, memory, not finite ...)   shown, never tried again
      done, or stopped on request                                  that is the exit code
      killed, or contact lost                                      another attempt, within the budget

Another attempt goes on from the last checkpoint once training had begun, and else repeats the first words.
A signal to this process becomes a file that all ranks look for, so all of them save the same step. Ranks do
not outlive this process (``distributed/guard.py``).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from protolith.distributed.outcome import FOLDER, LAUNCHER, ORDERLY, Meeting, ReportedError
from protolith.distributed.world import num_devices
from protolith.errors import EXIT_INTERRUPTED, RunFailedError, UsageError, WorkerLostError
from protolith.formats.rundir import RunDir, read_json, write_json

#: Phases of a run in which nothing was trained yet.
_BEFORE_TRAINING = ("starting", "tokenizing")
_PACKAGE_ROOT = Path(__file__).parents[2]


class Stop(Protocol):
    """A request to stop, which can be passed on."""

    @property
    def requested(self) -> bool: ...

    def pass_on(self, shared: Path) -> None: ...


def launch(
    words: Sequence[str],
    how: Sequence[str],
    output: Path,
    *,
    num_ranks: int,
    max_restarts: int,
    stop: Stop,
) -> int:
    """Run ``protolith pretrain WORDS HOW`` in ``num_ranks`` processes; returns its exit code.

    Args:
        how: what is said of a run that is there already (``--resume ...``, ``--overwrite``).
        output: the run's folder.
        max_restarts: attempts after the first.

    Raises:
        UsageError: there are fewer GPUs.
        ReportedError: what a rank failed with, looking as it did there.
        WorkerLostError: processes were killed more often than that. RunFailedError: one ended unheard.
    """
    if 0 < num_devices() < num_ranks:
        raise UsageError(
            f"{num_ranks} processes are asked for, and there are {num_devices()} GPUs",
            hint="one process needs one GPU; CUDA_VISIBLE_DEVICES= hides them, to train on the CPU",
        )
    run_dir = RunDir(output)
    attempt_before = _status(run_dir).get("attempt", 0)
    reason = ""
    with tempfile.TemporaryDirectory(prefix="protolith-launch-") as folder:
        for restart in range(max_restarts + 1):
            place = Meeting(Path(folder) / str(restart))
            place.folder.mkdir()
            if restart:
                place.restart.write_text(f"{reason}: started again ({restart} of {max_restarts} times)")
            stop.pass_on(place.stop)
            failures = _attempt(place, [*words, *how], num_ranks)
            verdict = _verdict(place, failures, num_ranks)
            if isinstance(verdict, int):
                return verdict
            reason = verdict
            if stop.requested:
                break
            status = _status(run_dir)
            if status.get("attempt", 0) > attempt_before and status.get("phase") not in _BEFORE_TRAINING:
                how = ["--resume", "latest"]
    used_up = f", and {max_restarts} restarts were used up" if max_restarts and not stop.requested else ""
    error = WorkerLostError(
        reason + used_up,
        where=str(run_dir.logs / "latest"),
        hint="the kernel kills a process when memory is full; --resume goes on from the last checkpoint",
    )
    _note_failure(run_dir, error)
    raise error


def _attempt(place: Meeting, words: list[str], num_ranks: int) -> dict[int, ProcessFailure]:
    """Start all ranks and wait for them; returns those that did not end with 0."""
    _quiet_torchrun()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGUSR2",  # those that end a run are ours to answer
        logs_specs=DefaultLogsSpecs(
            log_dir=str(place.folder), redirects=dict.fromkeys(range(1, num_ranks), Std.ALL)
        ),
    )
    # Without the folder we are in on the path, as in the command itself; unless that is where we came from.
    python = ["-m"] if Path.cwd() == _PACKAGE_ROOT else ["-P", "-m"]
    command = [*python, "protolith", "pretrain", *words]
    with _environment(place, num_ranks):
        try:
            elastic_launch(config, sys.executable)(*(word.replace("$", "$$") for word in command))
        except ChildFailedError as error:
            return dict(error.failures)
    return {}


@contextmanager
def _environment(place: Meeting, num_ranks: int) -> Iterator[None]:
    """What ranks inherit: where to meet, their share of the cores, and the way to one another."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = {FOLDER: str(place.folder), LAUNCHER: str(os.getpid())}
    wanted["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, usable // num_ranks)))
    if sys.platform == "linux":
        wanted["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _verdict(place: Meeting, failures: dict[int, ProcessFailure], num_ranks: int) -> int | str:
    """The exit code of the run, or why it should be tried again.

    Raises:
        ReportedError, RunFailedError: why it should not.
    """
    outcomes = place.outcomes(num_ranks)
    errors = [outcome for outcome in outcomes.values() if "error" in outcome]
    errors.sort(key=lambda outcome: outcome["time"])
    for outcome in errors:
        if outcome["error"]["code"] != WorkerLostError.code:
            raise ReportedError(outcome)
    if outcomes.get(0, {}).get("exit_code") in ORDERLY:
        return int(outcomes[0]["exit_code"])
    unheard = {rank: failure for rank, failure in failures.items() if rank not in outcomes}
    if any(failure.exitcode == EXIT_INTERRUPTED for failure in unheard.values()):
        return EXIT_INTERRUPTED
    killed = [rank for rank, failure in unheard.items() if failure.exitcode < 0]
    killed.sort(key=lambda rank: (unheard[rank].exitcode == -signal.SIGTERM, unheard[rank].timestamp))
    if killed:
        return f"rank {killed[0]} was killed by {signal.Signals(-unheard[killed[0]].exitcode).name}"
    if errors:
        return str(errors[0]["error"]["message"])
    rank, failure = next(iter(unheard.items()))
    raise RunFailedError(
        f"rank {rank} ended with code {failure.exitcode} before it could say why" + _last_words(place, rank),
        hint="run the same command with --nproc 1 to see what it says",
    )


def _last_words(place: Meeting, rank: int) -> str:
    for path in sorted(place.folder.rglob(f"{rank}/stderr.log")):
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            return f": {lines[-1][:200]}"
    return ""


def _status(run_dir: RunDir) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        value = read_json(run_dir.status)
        if isinstance(value, dict):
            return value
    return {}


def _note_failure(run_dir: RunDir, error: WorkerLostError) -> None:
    """Rank 0 may have been killed before it could."""
    status = _status(run_dir)
    if status.get("state") in ("running", "failed"):
        with suppress(OSError):
            write_json(run_dir.status, {**status, "state": "failed", "error": error.to_dict()})


def _quiet_torchrun() -> None:
    """It warns of each process that it ends; what there is to say, we say once."""
    logger = logging.getLogger("torch.distributed.elastic")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
