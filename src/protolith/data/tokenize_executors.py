"""The process that runs a tokenizing job's tasks with one of datatrove's executors.

Started by ``data/tokenize_watch.py`` in a process group of its own, with the job's folder and the executor's
settings as JSON. All it and datatrove have to say goes to its log file; how tasks fare is told through the
job's folder. Its standard input is a pipe that its parent holds: when the parent ends, however it ends, the
pipe does, and the whole group is killed. Nothing is left behind, and nothing is half done.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor

from protolith.data.tokenize_plan import plan_of
from protolith.data.tokenize_report import JobDir, TaskReport
from protolith.data.tokenize_settings import LOCAL, RAY, SLURM, ExecutorSettings
from protolith.data.tokenize_steps import CorpusReader, PartTokenizer
from protolith.formats.rundir import write_text_atomic


class JobOnSlurm(SlurmPipelineExecutor):  # type: ignore[misc]
    """Without the extra job that merges statistics: the job's folder is gone by the time it would run."""

    def launch_merge_stats(self) -> None:
        return


def build(job_dir: Path, settings: ExecutorSettings) -> Any:
    """The executor over the two steps, one task a task of the plan."""
    job = JobDir(job_dir)
    report = TaskReport()
    pipeline = [CorpusReader(str(job_dir), report), PartTokenizer(str(job_dir), report)]
    tasks = len(plan_of(str(job_dir)).tasks)
    common: dict[str, Any] = {"tasks": tasks, "workers": settings.workers, "logging_dir": str(job.log)}
    if settings.kind == LOCAL:
        return LocalPipelineExecutor(pipeline, **common)
    if settings.kind == RAY:
        return RayPipelineExecutor(
            pipeline,
            cpus_per_task=settings.cpus_per_task,
            mem_per_cpu_gb=settings.mem_per_cpu_gb,
            **common,
        )
    return JobOnSlurm(
        pipeline,
        time=settings.time,
        partition=settings.partition,
        cpus_per_task=settings.cpus_per_task,
        mem_per_cpu_gb=settings.mem_per_cpu_gb,
        tasks_per_job=settings.tasks_per_job,
        qos=settings.qos,
        job_name="protolith-tokenize",
        env_command=f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        sbatch_args=dict(settings.sbatch),
        **common,
    )


def main() -> None:
    job_dir, settings = Path(sys.argv[1]), ExecutorSettings.from_json(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    executor = build(job_dir, settings)
    executor.run()
    if settings.kind == SLURM and executor.job_id not in (None, -1):
        write_text_atomic(JobDir(job_dir).slurm_job, str(executor.job_id))


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: its lock would be held in processes that fork from here
        continue
    os.killpg(os.getpgrp(), signal.SIGKILL)
