"""The plan of a tokenizing job: which part of which file belongs to which task.

Comes in: files. Goes out: ``Plan``: tasks, each a few pieces; on disk as ``plan.json`` in the job's folder,
where every task of every machine reads it.

A piece is a file, or a range of one: bytes of plain lines (a line belongs to the piece in which it starts),
row groups of a Parquet file. Compressed files and plain text stay whole. Tasks are small enough to spread
over cores and to be done again after a kill; what they write is joined afterwards, so the cut decides
nothing about the result.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from protolith.data.parquet_text import read_layout
from protolith.data.text_form import TextForm, form_of
from protolith.data.tokenize_inputs import LINES, PARQUET, SourceFile
from protolith.data.tokenizer import TextTokenizer
from protolith.formats.rundir import read_json, write_json

PLAN_NAME = "plan.json"
VERSION = 1
_LEAST_BYTES = 2 << 20
_MOST_BYTES = 128 << 20
_GOAL_TASKS = 96
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class Piece:
    """``start`` to ``stop`` of file number ``file``: bytes, or row groups of a Parquet file. ``size_bytes``:
    its share of the file as it lies on disk, for progress."""

    file: int
    start: int
    stop: int
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """``identity`` is what decides the result: see ``identity_of``."""

    identity: dict[str, Any]
    text_field: str
    files: tuple[SourceFile, ...]
    tasks: tuple[tuple[Piece, ...], ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def make_plan(files: Sequence[SourceFile], identity: dict[str, Any], text_field: str) -> Plan:
    """Cut ``files`` into tasks of about equal size, in reading order."""
    total_bytes = sum(file.size_bytes for file in files)
    goal_bytes = min(max(total_bytes // _GOAL_TASKS, _LEAST_BYTES), _MOST_BYTES)
    tasks: list[tuple[Piece, ...]] = []
    task: list[Piece] = []
    held_bytes = 0
    for piece in _pieces(files, goal_bytes, text_field):
        if task and held_bytes + piece.size_bytes > goal_bytes * 1.25:
            tasks.append(tuple(task))
            task, held_bytes = [], 0
        last = task[-1] if task else None
        if last is not None and (last.file, last.stop) == (piece.file, piece.start):  # next row groups
            task[-1] = Piece(last.file, last.start, piece.stop, last.size_bytes + piece.size_bytes)
        else:
            task.append(piece)
        held_bytes += piece.size_bytes
    if task:
        tasks.append(tuple(task))
    return Plan(identity, text_field, tuple(files), tuple(tasks))


def _pieces(files: Sequence[SourceFile], goal_bytes: int, text_field: str) -> Iterator[Piece]:
    for number, file in enumerate(files):
        if file.form == PARQUET:
            for group, size_bytes in enumerate(_group_bytes(file, text_field)):
                yield Piece(number, group, group + 1, size_bytes)
        elif file.form == LINES and file.size_bytes > 1.5 * goal_bytes and not _compressed(file):
            count = -(-file.size_bytes // goal_bytes)
            marks = [file.size_bytes * at // count for at in range(count + 1)]
            for start, stop in itertools.pairwise(marks):
                yield Piece(number, start, stop, stop - start)
        else:
            yield Piece(number, 0, file.size_bytes, file.size_bytes)


def _group_bytes(file: SourceFile, text_field: str) -> list[int]:
    """Bytes of each row group of a Parquet file, by the share of its text: they add up to the file."""
    ends = np.concatenate([[0], np.cumsum(read_layout(file.as_data(), text_field).text_bytes)])
    marks = [file.size_bytes * int(end) // max(1, int(ends[-1])) for end in ends]
    return [stop - start for start, stop in itertools.pairwise(marks)]


def _compressed(file: SourceFile) -> bool:
    if file.is_remote:  # by name: a look inside would cost a request for each object
        return file.location.lower().endswith(_COMPRESSED)
    return form_of(file.as_data()) is TextForm.COMPRESSED


def identity_of(
    files: Sequence[SourceFile], tokenizer: TextTokenizer, text_field: str, shard_tokens: int
) -> dict[str, Any]:
    """Everything that decides the bytes of the result. Files count by name, size and time of change."""
    facts = json.dumps([[file.name, file.size_bytes, file.stamp, file.form] for file in files])
    return {
        "inputs": {
            "files": len(files),
            "bytes": sum(file.size_bytes for file in files),
            "digest": hashlib.sha256(facts.encode("utf-8")).hexdigest(),
        },
        "tokenizer": {"name": tokenizer.name, "digest": tokenizer.digest, "eos_token": tokenizer.eos_token},
        "text_field": text_field,
        "shard_tokens": shard_tokens,
    }


def differences(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """One line for each thing that changed between two identities."""
    lines = []
    for key in sorted({*then, *now}):
        old, new = then.get(key), now.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            shown = [(part, old.get(part), new.get(part)) for part in new if part != "digest"]
            changed = "; ".join(f"{part} {was} -> {now_}" for part, was, now_ in shown if was != now_)
            same = "a file has another name, time of change or place" if key == "inputs" else "its content"
            lines.append(f"{key}: {changed or same}")
        else:
            lines.append(f"{key}: {old} -> {new}")
    return tuple(lines)


def write_plan(job_dir: Path, plan: Plan) -> None:
    value = {
        "version": VERSION,
        "identity": plan.identity,
        "text_field": plan.text_field,
        "files": [list(asdict(file).values()) for file in plan.files],
        "tasks": [
            [[piece.file, piece.start, piece.stop, piece.size_bytes] for piece in task] for task in plan.tasks
        ],
    }
    write_json(job_dir / PLAN_NAME, value, durable=True)


def read_plan(job_dir: Path) -> Plan | None:
    """The plan in a job's folder; None when there is none, or one of another version."""
    try:
        value = read_json(job_dir / PLAN_NAME)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(value, dict) or value.get("version") != VERSION:
        return None
    return Plan(
        identity=value["identity"],
        text_field=value["text_field"],
        files=tuple(SourceFile(*fields) for fields in value["files"]),
        tasks=tuple(tuple(Piece(*numbers) for numbers in task) for task in value["tasks"]),
    )


@lru_cache(maxsize=2)
def plan_of(job_dir: str) -> Plan:
    """The plan for a task: read once a process."""
    plan = read_plan(Path(job_dir))
    if plan is None:
        raise FileNotFoundError(f"{job_dir}/{PLAN_NAME}")
    return plan
