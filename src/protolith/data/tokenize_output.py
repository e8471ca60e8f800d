"""Who may write to the output folder of a tokenizing job, and what is removed from it.

Comes in: the folder. A folder with somebody else's shards is refused; one process works in a folder at a
time; what is removed are shards, the manifest and a job's own hidden folder, and nothing else.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protolith.data.files import name_some
from protolith.data.tokenize_join import is_joined
from protolith.data.tokenize_plan import PLAN_NAME
from protolith.data.tokenize_report import JOB_DIR, JobDir
from protolith.errors import ConflictError
from protolith.formats.shard_files import INDEX_SUFFIX, METADATA_SUFFIX
from protolith.formats.shard_manifest import MANIFEST_NAME

_SHARD_ENDINGS = (".ds", ".ds" + INDEX_SUFFIX, ".ds" + METADATA_SUFFIX)


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """Hold the folder's lock: two processes must not work on one output. The kernel frees it when we die."""
    job = JobDir(output / JOB_DIR)
    job.root.mkdir(exist_ok=True)
    with open(job.lock, "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                "another process is tokenizing into this folder",
                where=str(output),
                hint="wait for it, or give another --output",
            ) from None
        except OSError:
            pass  # a file system without locks: work is done twice at worst, never half
        try:
            yield
        finally:
            if not (job.root / PLAN_NAME).exists():
                shutil.rmtree(job.root, ignore_errors=True)  # nothing was begun


def check_free(output: Path) -> None:
    """No shards of somebody else: ours would stand among them."""
    if is_joined(JobDir(output / JOB_DIR)):
        return  # interrupted while shards were moved into place
    others = sorted(path.name for path in output.iterdir() if path.name.endswith(_SHARD_ENDINGS))
    if others or (output / MANIFEST_NAME).exists():
        raise ConflictError(
            f"this folder holds other shards: {name_some(others or [MANIFEST_NAME])}",
            where=str(output),
            hint="give another --output, or say --overwrite",
        )


def remove_results(output: Path) -> None:
    """Remove shards, the manifest first, and the work of an unfinished job."""
    (output / MANIFEST_NAME).unlink(missing_ok=True)
    for path in list(output.iterdir()):
        if path.name.endswith(_SHARD_ENDINGS) and path.is_file():
            path.unlink()
    clear(output / JOB_DIR)


def clear(job_dir: Path) -> None:
    """Empty a job's folder; the plan goes first, the lock stays."""
    (job_dir / PLAN_NAME).unlink(missing_ok=True)
    for path in list(job_dir.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
