"""Where and how a tokenizing job runs: nothing here decides its result."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import asdict, dataclass, field

from protolith.errors import MissingExtraError, NotFoundError, UsageError

LOCAL, SLURM, RAY = "local", "slurm", "ray"


@dataclass(frozen=True)
class ExecutorSettings:
    """For one of datatrove's executors.

    Attributes:
        kind: "local", "slurm" or "ray".
        workers: tasks at a time; -1: no limit (Slurm and Ray).
        partition, time, qos, sbatch, tasks_per_job: of Slurm only. ``sbatch``: further directives.
    """

    kind: str = LOCAL
    workers: int = 1
    partition: str = ""
    time: str = "24:00:00"
    cpus_per_task: int = 1
    mem_per_cpu_gb: int = 4
    tasks_per_job: int = 1
    qos: str = ""
    sbatch: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ExecutorSettings:
        return ExecutorSettings(**json.loads(text))

    def check(self) -> None:
        """Refuse what cannot work, before anything is written.

        Raises:
            UsageError: an option that is needed or does not belong. MissingExtraError: ray is not installed.
            NotFoundError: this machine has no ``sbatch``.
        """
        if self.kind == SLURM:
            if not self.partition:
                raise UsageError("--executor slurm needs --partition", where="--partition")
            if shutil.which("sbatch") is None:
                raise NotFoundError(
                    "this machine has no sbatch command",
                    where="--executor slurm",
                    hint="run it on a login node of the cluster",
                )
            if "SLURM_ARRAY_TASK_ID" in os.environ:
                raise UsageError(
                    "this runs inside a Slurm array, and jobs cannot be submitted from there",
                    where="--executor slurm",
                    hint="run it on a login node, or use --executor local",
                )
        elif self.partition or self.qos or self.sbatch:
            raise UsageError("--partition, --qos and --sbatch belong to --executor slurm", where="--executor")
        if self.kind == RAY and importlib.util.find_spec("ray") is None:
            raise MissingExtraError(
                "--executor ray needs ray, which is not installed",
                where="--executor",
                hint="pip install 'protolith[ray]'",
            )


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
