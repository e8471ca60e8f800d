"""How a checkpoint folder becomes true: written aside, digested, manifest last, renamed.

    checkpoints/.saving-step_<N>-<random>/   being written; never looked at by a reader
    checkpoints/step_<N>/                    complete: ``manifest.json`` names all files with size and SHA-256

``model.safetensors`` and ``optimizer.safetensors`` hold whole tensors; where ranks wrote their shards, these
lie in ``shards/`` instead. A folder is a checkpoint only with a manifest that matches. Foreign entries
(``step_7.bak``, ``step_final_mine``, links, files) are never counted and never removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.errors import CheckpointError
from protolith.formats.rundir import fsync_dir, read_json, write_json

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
SHARDS = "shards"
RNG = "rng.safetensors"
STATE = "state.json"
FORMAT_VERSION = 1
_STEP = re.compile(r"step_(0|[1-9]\d*)\Z")
_SHOWN = 10
#: Files that are read at the same time, to compare digests.
_READERS = 8
_ASIDE = re.compile(r"\.saving-step_\d+-[0-9a-f]{8}\Z")


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder named ``step_<N>``. ``problem`` is empty when it is complete."""

    step: int
    path: Path
    problem: str
    size_bytes: int


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step is, when there is one."""
    return root / f"step_{step}"


def file_digest(path: Path) -> str:
    """SHA-256 of a file, read in constant memory."""
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def begin(root: Path, step: int) -> Path:
    """Make the folder aside in which the files of ``step`` are written."""
    root.mkdir(parents=True, exist_ok=True)
    aside = root / f".saving-step_{step}-{secrets.token_hex(4)}"
    aside.mkdir()
    return aside


def facts_of(path: Path) -> dict[str, Any]:
    """Size and digest of a file, which is brought to the disk first."""
    with open(path, "rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
        os.fsync(data.fileno())
    return {"size_bytes": path.stat().st_size, "sha256": digest}


def commit(aside: Path, step: int, known: Mapping[str, dict[str, Any]] | None = None) -> Path:
    """Turn a folder aside into ``step_<N>``: sync its files, write the manifest last, rename.

    An older folder of the same step (from a run that went back) is replaced.

    Args:
        known: facts of files by their names in the folder, from those who wrote them.

    Raises:
        CheckpointError: a file that is known is not there, or has another size.
    """
    root = aside.parent
    files = dict(known or {})
    for name, facts in files.items():
        if not (aside / name).is_file() or (aside / name).stat().st_size != facts["size_bytes"]:
            raise CheckpointError(
                f"{name} was written by another process and is not seen whole here",
                where=str(root),
                hint="the output folder must be on a file system that all machines share",
            )
    for path in sorted(p for p in aside.rglob("*") if p.is_file()):
        name = path.relative_to(aside).as_posix()
        if name not in files:
            files[name] = facts_of(path)
    manifest = {"format": FORMAT_VERSION, "step": step, "files": dict(sorted(files.items()))}
    write_json(aside / MANIFEST, manifest, durable=True)
    for folder in (p for p in aside.rglob("*") if p.is_dir()):
        fsync_dir(folder)
    target = step_folder(root, step)
    if target.exists():
        old = root / f".saving-step_{step}-{secrets.token_hex(4)}"
        os.replace(target, old)
        os.replace(aside, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(aside, target)
    fsync_dir(root)
    return target


def discard(aside: Path) -> None:
    """Drop a folder aside after a failed save."""
    shutil.rmtree(aside, ignore_errors=True)


def sweep(root: Path) -> int:
    """Remove what a killed writer left aside; returns how many. Only under the run's own lock."""
    if not root.is_dir():
        return 0
    left = [path for path in root.iterdir() if _ASIDE.match(path.name) and not path.is_symlink()]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return len(left)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder.

    Raises:
        CheckpointError: missing, unreadable or of an unknown format.
    """
    source = path / MANIFEST
    try:
        manifest = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("it has no manifest.json", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"its manifest.json cannot be read: {error}", where=str(path)) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CheckpointError("its manifest.json is not a manifest", where=str(path))
    if manifest.get("format") != FORMAT_VERSION:
        raise CheckpointError(f"unknown format {manifest.get('format')!r}", where=str(path))
    return manifest


def problem_of(path: Path, *, digests: bool) -> str:
    """Why ``path`` is not a complete checkpoint, or "". ``digests=False`` compares sizes only."""
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return error.message
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name, facts in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        size = file.stat().st_size
        if size != facts["size_bytes"]:
            return f"{name} has {size} bytes, the manifest says {facts['size_bytes']}"
    if not digests:
        return ""
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(file_digest, [path / name for name in files])
        wrong = [name for name, digest in zip(files, found, strict=True) if digest != files[name]["sha256"]]
    return f"{wrong[0]} does not match its digest" if wrong else ""


def list_checkpoints(root: Path, *, digests: bool = False) -> list[CheckpointFolder]:
    """Folders named ``step_<N>``, by number, each with what is wrong with it."""
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        match = _STEP.match(path.name)
        if match and path.is_dir() and not path.is_symlink():
            problem = problem_of(path, digests=digests)
            size = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
            found.append(CheckpointFolder(int(match.group(1)), path, problem, size))
    return sorted(found, key=lambda folder: folder.step)


def best_step(root: Path) -> int | None:
    """Step of the lowest validation loss that was saved, as the newest complete checkpoint knows it."""
    for folder in reversed(list_checkpoints(root)):
        if not folder.problem:
            try:
                best = read_json(folder.path / STATE).get("best") or {}
            except (OSError, ValueError, AttributeError):
                return None
            return best.get("step")
    return None


def complete_names(root: Path) -> str:
    """The complete checkpoints of a folder for a message: "step_5, step_10 in PATH", "" when it has none."""
    names = [folder.path.name for folder in list_checkpoints(root) if not folder.problem]
    more = f"{len(names) - _SHOWN} more and " if len(names) > _SHOWN else ""
    return f"{more}{', '.join(names[-_SHOWN:])} in {root}" if names else ""


def to_remove(
    root: Path, *, keep_last: int | None, keep_every: int | None, pinned: frozenset[int]
) -> list[Path]:
    """Complete checkpoints that retention gives up: not among the ``keep_last`` highest steps, not a
    multiple of ``keep_every``, not pinned. Incomplete or foreign folders are left alone."""
    if keep_last is None:
        return []
    complete = [folder for folder in list_checkpoints(root) if not folder.problem]
    kept = {folder.step for folder in complete[-keep_last:]} | pinned
    if keep_every:
        kept |= {folder.step for folder in complete if folder.step % keep_every == 0}
    return [folder.path for folder in complete if folder.step not in kept]
