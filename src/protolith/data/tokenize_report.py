"""The folder of a tokenizing job, and what its tasks tell through it.

    OUTPUT/.tokenize/
      plan.json               what belongs to which task (``data/tokenize_plan.py``)
      job.json, job_tokenizer.json    the tokenizer, for tasks (``data/tokenize_worker.py``)
      work/<task>-<random>/   parts being written; swept when their writer is gone
      parts/<task>/           ids of a finished task: 00000.ds ... with index and metadata
      progress/<task>.json    how far a running task has come
      results/<task>.json     what a finished task came to; written after its parts
      errors/<task>.json      why a task ended badly
      log/                    datatrove's own: logs, stats, and completion markers
      shards/                 joined shards, until all are whole (``data/tokenize_join.py``)

Files are the only channel, so it makes no difference whether tasks run in processes here, under Slurm or
under Ray. Every file is written aside and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protolith import errors
from protolith.data.text import Tally
from protolith.data.tokenize_inputs import SourceFile
from protolith.data.tokenize_reader import Place, place_name
from protolith.errors import ProtolithError
from protolith.formats.rundir import read_json, write_text_atomic

JOB_DIR = ".tokenize"


@dataclass(frozen=True)
class JobDir:
    """Paths. Creating the value touches nothing."""

    root: Path

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def slurm_job(self) -> Path:
        """The id of the job that was submitted."""
        return self.root / "slurm_job"

    def parts(self, task: int) -> Path:
        return self.root / "parts" / f"{task:05d}"

    def progress(self, task: int) -> Path:
        return self.root / "progress" / f"{task:05d}.json"

    def result(self, task: int) -> Path:
        return self.root / "results" / f"{task:05d}.json"

    def error(self, task: int) -> Path:
        return self.root / "errors" / f"{task:05d}.json"

    def make(self) -> None:
        for name in ("work", "parts", "progress", "results", "errors", "log"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def told(self, kind: str) -> Iterator[int]:
        """Tasks with a file of one kind: "progress", "results" or "errors", in order."""
        names = sorted(name for name in os.listdir(self.root / kind) if name.endswith(".json"))
        yield from (int(name[:-5]) for name in names if not name.startswith("."))


@dataclass
class TaskReport:
    """What a task has come to so far.

    Attributes:
        read_bytes: of the inputs, as they lie on disk.
        skipped, first: records left out by reason; the first place of each.
        parts: (tokens, documents) of each finished part, in order.
        pid: the process that works on it.
    """

    read_bytes: int = 0
    records: int = 0
    documents: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first: dict[str, Place] = field(default_factory=dict)
    parts: list[tuple[int, int]] = field(default_factory=list)
    pid: int = 0

    def write(self, path: Path) -> None:
        value = {
            **vars(self),
            "first": {reason: list(vars(at).values()) for reason, at in self.first.items()},
        }
        write_text_atomic(path, json.dumps(value))

    @staticmethod
    def read(path: Path) -> TaskReport | None:
        """None when it is not there (a task may have ended meanwhile)."""
        try:
            value: dict[str, Any] = read_json(path)
        except (FileNotFoundError, ValueError):
            return None
        value["first"] = {reason: Place(*numbers) for reason, numbers in value["first"].items()}
        value["parts"] = [(tokens, documents) for tokens, documents in value["parts"]]
        return TaskReport(**value)


@dataclass
class Totals:
    """Reports of tasks added up. ``done``: finished tasks."""

    read_bytes: int = 0
    records: int = 0
    documents: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    done: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    first: dict[str, Place] = field(default_factory=dict)

    def add(self, report: TaskReport) -> None:
        self.read_bytes += report.read_bytes
        self.records += report.records
        self.documents += report.documents
        self.tokens += report.tokens
        self.unknown_tokens += report.unknown_tokens
        for reason, count in report.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        for reason, at in report.first.items():
            known = self.first.get(reason)
            if known is None or (at.file, at.start, at.line) < (known.file, known.start, known.line):
                self.first[reason] = at

    def copy(self) -> Totals:
        return replace(self, skipped=dict(self.skipped), first=dict(self.first))

    def tally(self, files: tuple[SourceFile, ...]) -> Tally:
        """The same as a tally, with places in words."""
        first = {reason: place_name(at, files) for reason, at in self.first.items()}
        return Tally(self.records, dict(self.skipped), first)


def write_error(path: Path, error: BaseException) -> None:
    """Leave word of why a task ended."""
    if isinstance(error, ProtolithError):
        value = {"kind": type(error).__name__, **error.to_dict()}
    else:
        value = {"kind": "", "message": f"{type(error).__name__}: {error}", "hint": "", "where": ""}
    write_text_atomic(path, json.dumps(value))


def read_error(path: Path) -> ProtolithError | None:
    """The error a task left, as it was raised."""
    try:
        value = read_json(path)
    except (FileNotFoundError, ValueError):
        return None
    kind = getattr(errors, value["kind"], None) if value["kind"] else None
    if kind is None:
        return errors.RunFailedError(f"a tokenizing task failed: {value['message']}", where=value["where"])
    error: ProtolithError = kind(value["message"], hint=value["hint"], where=value["where"])
    return error
