"""Watching a tokenizing job: starts the process that runs its tasks, adds up what they tell, ends it.

Comes in: a job's folder and settings. Goes out: ``Totals``, or the error of the first task that has one.
The verdict on records without text is spoken here, over all tasks: early when it is sure already.

Leaving ``watch`` by an exception (Ctrl-C is one) kills the process group of a local or Ray job at once. A
job under Slurm goes on by itself; the same command comes back to it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from protolith.data.text import MAX_SKIPPED
from protolith.data.tokenize_plan import Plan
from protolith.data.tokenize_report import JobDir, TaskReport, Totals, read_error
from protolith.data.tokenize_settings import LOCAL, SLURM, ExecutorSettings
from protolith.errors import RunFailedError

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    "from protolith.data.tokenize_executors import main; main()"
)
_POLL_S = 0.2
_SLURM_POLL_S = 2.0
_ASK_SLURM_EVERY_S = 15.0

OnTotals = Callable[[Totals], None]


def watch(job_dir: Path, plan: Plan, settings: ExecutorSettings, on_totals: OnTotals) -> Totals:
    """Run what is left of a job and wait for its end.

    Raises:
        ProtolithError: a task's own error. BadRecordError: too many records without text.
        RunFailedError: a task or the process that runs them died.
    """
    watched = _Watch(JobDir(job_dir), plan, on_totals)
    waits_for = _running_slurm_job(watched.job) if settings.kind == SLURM else None
    if waits_for is None:
        _prepare(watched)
        totals = watched.look()
        if totals.done == len(plan.tasks):
            return totals
        waits_for = _run(watched, settings)
    if waits_for is not None:
        _await_slurm(watched, waits_for)
    return watched.look()


class _Watch:
    """What is known of the tasks. Results are read once."""

    def __init__(self, job: JobDir, plan: Plan, on_totals: OnTotals) -> None:
        self.job = job
        self.plan = plan
        self.results: dict[int, TaskReport] = {}
        self._on_totals = on_totals
        self._running: dict[int, TaskReport] = {}
        self._finished = Totals()
        self._listed_at = 0

    def look(self) -> Totals:
        """Add up; raises what tasks or their sums call for."""
        self.take_results()
        reports = {task: TaskReport.read(self.job.progress(task)) for task in self.job.told("progress")}
        self._running = {
            task: report for task, report in reports.items() if report and task not in self.results
        }
        totals = self._finished.copy()
        totals.done = len(self.results)
        for report in self._running.values():
            totals.add(report)
        self.raise_task_error()
        share = totals.read_bytes / max(1, self.plan.size_bytes)
        if sum(totals.skipped.values()) > MAX_SKIPPED * totals.records / max(share, 1e-9):
            totals.tally(self.plan.files).check(share)
        self._on_totals(totals)
        return totals

    def take_results(self) -> None:
        """Read new results; the listing is looked at when it changed."""
        changed = (self.job.root / "results").stat().st_mtime_ns
        if changed == self._listed_at:
            return
        for task in self.job.told("results"):
            if task not in self.results:
                report = TaskReport.read(self.job.result(task))
                if report is not None:
                    self.results[task] = report
                    self._finished.add(report)
        # A result that arrived within the clock's grain of this listing must not be missed.
        self._listed_at = changed if time.time_ns() - changed > 2 * 10**9 else 0

    def raise_task_error(self) -> None:
        for task in self.job.told("errors"):
            error = read_error(self.job.error(task))
            if error is not None:
                raise error

    def raise_for_dead_worker(self) -> None:
        """A pool whose worker was killed would wait for its task for ever."""
        for task, report in self._running.items():
            if _lives(report.pid):
                continue
            time.sleep(_POLL_S)
            self.raise_task_error()
            if self.job.progress(task).exists() and not self.job.result(task).exists():
                raise RunFailedError(
                    f"the process that worked on task {task} was killed",
                    hint="mostly too little memory: use fewer --workers, or look for one huge document;"
                    " the same command goes on where it was",
                )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _prepare(watched: _Watch) -> None:
    """Sweep what dead tasks left, and let datatrove's completion markers say what the results say."""
    for name in ("progress", "errors", "work"):
        shutil.rmtree(watched.job.root / name)
    watched.job.make()
    watched.take_results()
    marks = watched.job.log / "completions"
    if marks.is_dir():
        for mark in marks.iterdir():
            if not mark.name.isdigit() or int(mark.name) not in watched.results:
                mark.unlink()
    marks.mkdir(parents=True, exist_ok=True)
    for task in watched.results:
        (marks / f"{task:05d}").touch()


def _run(watched: _Watch, settings: ExecutorSettings) -> str | None:
    """Run the executor in a process group of its own; returns the id of a Slurm job that it submitted."""
    log = watched.job.log / "executor.log"
    with open(log, "ab") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                _START,
                str(watched.job.root),
                settings.to_json(),
                json.dumps(sys.path),
            ],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={
                **os.environ,
                "TOKENIZERS_PARALLELISM": "false",
                "RAYON_NUM_THREADS": "1",
                "DATATROVE_COLORIZE_LOGS": "0",
            },
        )
    try:
        while process.poll() is None:
            watched.look()
            if settings.kind == LOCAL:
                watched.raise_for_dead_worker()
            time.sleep(_POLL_S)
    finally:
        _end(process)
    totals = watched.look()
    if settings.kind == SLURM and process.returncode == 0:
        return watched.job.slurm_job.read_text().strip() if watched.job.slurm_job.exists() else None
    if process.returncode or totals.done < len(watched.plan.tasks):
        raise RunFailedError(_last_words(log, process.returncode), where=str(log))
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group: the executor, its workers, its helpers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # all of them have ended
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _last_words(log: Path, code: int) -> str:
    lines = log.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
    last = f": {lines[-1].strip()}" if lines else ""
    if code == 0:
        return f"some tasks were not done{last}"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"the process that runs the tasks {how}{last}"


def _running_slurm_job(job: JobDir) -> str | None:
    """The job submitted before, while Slurm still has it."""
    if not job.slurm_job.exists():
        return None
    number = job.slurm_job.read_text().strip()
    return number if _slurm_has(number) else None


def _slurm_has(number: str) -> bool:
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", number],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # a scheduler that does not answer has not lost the job
    if answer.returncode:
        return "invalid job id" not in answer.stderr.lower()
    return bool(answer.stdout.strip())


def _await_slurm(watched: _Watch, number: str) -> None:
    next_question = time.monotonic() + _SLURM_POLL_S
    while watched.look().done < len(watched.plan.tasks):
        time.sleep(_SLURM_POLL_S)
        if time.monotonic() >= next_question:
            next_question = time.monotonic() + _ASK_SLURM_EVERY_S
            if not _slurm_has(number):
                done, tasks = watched.look().done, len(watched.plan.tasks)
                if done < tasks:
                    raise RunFailedError(
                        f"Slurm job {number} ended with {done} of {tasks} tasks done",
                        where=str(watched.job.log / "slurm_logs"),
                        hint="the same command submits what is left",
                    )
