"""The two steps of the datatrove pipeline: a reader of our inputs, and datatrove's ``DocumentTokenizer``.

``CorpusReader`` yields datatrove's documents from one task's pieces. datatrove's own JSONL reader passes
over lines it cannot read with a warning; this one leaves nothing out that is not counted.

``PartTokenizer`` is ``DocumentTokenizer`` in all that decides bytes; what differs is what makes it bounded
and repeatable: batches are cut by characters instead of a number of documents, very long documents are
encoded in pieces, and files are rolled at a fixed size and appear under their name when the task is whole.
The end token comes from ``TextTokenizer``: once, also where a text spells it itself.

A task whose parts exist is done again without harm: the same bytes replace the same bytes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.io import get_datafolder
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.tokens.tokenizer import DocumentTokenizer, TokenizedFile

from protolith.data.text import fault_error
from protolith.data.tokenize_plan import plan_of
from protolith.data.tokenize_reader import Place, lines_before, read_piece
from protolith.data.tokenize_report import JobDir, TaskReport, write_error
from protolith.data.tokenize_worker import read_job
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import RunFailedError
from protolith.formats.rundir import from_os_error, fsync_dir
from protolith.formats.shard_files import id_bytes

PART_TOKENS = 1 << 24
_BATCH_CHARS = 1 << 18
_TELL_EVERY_S = 0.5


@lru_cache(maxsize=2)
def _tokenizer_of(job_dir: str) -> TextTokenizer:
    """Read once a process, however many tasks it works on."""
    return read_job(JobDir(Path(job_dir)).job)[0]


class CorpusReader(PipelineStep):  # type: ignore[misc]
    """Documents of one task, in order. ``report`` is shared with the step that tokenizes."""

    type = "📖 - READER"
    name = "Protolith"

    def __init__(self, job_dir: str, report: TaskReport) -> None:
        super().__init__()
        self.job_dir = job_dir
        self.report = report

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        plan = plan_of(self.job_dir)
        done_bytes = 0
        for piece in plan.tasks[rank]:
            file = plan.files[piece.file]
            for batch in read_piece(file, piece, plan.text_field):
                found = batch.found
                self.report.records += found.records
                for reason, line in found.skipped:
                    self.report.skipped[reason] = self.report.skipped.get(reason, 0) + 1
                    place = Place(batch.first.file, batch.first.start, batch.first.line + line - 1)
                    self.report.first.setdefault(reason, place)
                if found.fault is not None:
                    before = lines_before(file, piece.start) if piece.start else 0
                    named = file.as_data()
                    raise fault_error(found.fault, named, before + batch.first.line)
                self.stat_update("documents", value=len(found.texts), unit="batch")
                self.report.read_bytes = done_bytes + int(batch.read_share * piece.size_bytes)
                texts, found.texts = found.texts, []
                for number, text in enumerate(texts):
                    yield Document(text, str(number))
            done_bytes += piece.size_bytes
            self.report.read_bytes = done_bytes


class PartTokenizer(DocumentTokenizer):  # type: ignore[misc]
    """See the head of the file."""

    def __init__(self, job_dir: str, report: TaskReport, *, part_tokens: int = PART_TOKENS) -> None:
        super().__init__(
            output_folder=str(JobDir(Path(job_dir)).work),
            tokenizer_name_or_path=str(JobDir(Path(job_dir)).root / "job_tokenizer.json"),
            shuffle_documents=False,
        )
        self.job_dir = job_dir
        self.report = report
        self.part_tokens = part_tokens

    @property
    def text_tokenizer(self) -> TextTokenizer:
        return _tokenizer_of(self.job_dir)

    @cached_property
    def token_size(self) -> int:
        return self.text_tokenizer.token_bytes

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> None:
        job = JobDir(Path(self.job_dir))
        vars(self.report).update(vars(TaskReport(pid=os.getpid())))  # the steps may serve several tasks
        self._next_tell = 0.0
        work = job.work / f"{rank:05d}-{secrets.token_hex(4)}"
        try:
            self._tell(job, rank)
            work.mkdir(parents=True)
            self.output_folder = get_datafolder(str(work))
            self._on_batch: Callable[[], None] = lambda: self._tell(job, rank)
            super().run(data, rank, world_size)
            self._keep(job, rank, work)
        except BaseException as error:
            typed = (
                from_os_error(error, Path(error.filename or work)) if isinstance(error, OSError) else error
            )
            if isinstance(error, MemoryError):
                typed = RunFailedError("not enough memory", hint="use fewer --workers")
            write_error(job.error(rank), typed)
            shutil.rmtree(work, ignore_errors=True)
            if typed is error:
                raise
            raise typed from error
        finally:
            job.progress(rank).unlink(missing_ok=True)

    def write_unshuffled(self, data: Iterable[Document], filename: str) -> TokenizedFile:
        """Parts ``00000.ds`` and on, instead of one file; returns the last."""
        part = self._open_part()
        for texts in _batched_by_size(data):
            with self.track_time(unit="batch"):
                self._write_batch(part, texts)
            self._on_batch()
            if part.write_idx >= self.part_tokens:
                self._close_part(part)
                part = self._open_part()
        self._close_part(part)
        return part

    def _write_batch(self, part: TokenizedFile, texts: list[str]) -> None:
        tokenizer = self.text_tokenizer
        documents = tokenizer.encode_documents(texts)
        ends = list(accumulate(map(len, documents)))
        part.write_bytes(id_bytes(chain.from_iterable(documents), self.token_size), ends)
        unknown = tokenizer.unk_id
        if unknown is not None:
            self.report.unknown_tokens += sum(ids.count(unknown) for ids in documents)
        self.report.documents += len(documents)
        self.report.tokens += ends[-1]
        self.stat_update("tokens", value=ends[-1], unit="batch")

    def _open_part(self) -> TokenizedFile:
        return TokenizedFile(
            self.output_folder,
            f"{len(self.report.parts):05d}.ds",
            tokenizer_name_or_path=self.tokenizer_name_or_path,
            save_final_metadata=True,
            token_size=self.token_size,
        )

    def _close_part(self, part: TokenizedFile) -> None:
        part.close()
        self.report.parts.append((part.write_idx, len(part.doc_ends)))

    def _tell(self, job: JobDir, rank: int) -> None:
        now = time.monotonic()
        if now >= self._next_tell:
            self._next_tell = now + _TELL_EVERY_S
            self.report.write(job.progress(rank))

    def _keep(self, job: JobDir, rank: int, work: Path) -> None:
        """Parts under their name, then the result: from here on the task need not be done again."""
        for path in work.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        fsync_dir(work)
        target = job.parts(rank)
        if target.exists():  # of an attempt that died before it could say so
            shutil.rmtree(target)
        os.replace(work, target)
        fsync_dir(target.parent)
        self.report.write(job.result(rank))


def _batched_by_size(data: Iterable[Document]) -> Iterator[list[str]]:
    texts: list[str] = []
    size = 0
    for document in data:
        if texts and size + len(document.text) > _BATCH_CHARS:
            yield texts
            texts, size = [], 0
        texts.append(document.text)
        size += len(document.text)
    if texts:
        yield texts
