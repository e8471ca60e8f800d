"""``protolith tokenize``: text to token shards through datatrove's pipeline, whole or not at all.

    inputs  -> tasks        data/tokenize_inputs.py, data/tokenize_plan.py
    tasks   -> parts        datatrove's executor over two steps: data/tokenize_executors.py, tokenize_steps.py
    parts   -> shards       data/tokenize_join.py

Comes in: paths, a tokenizer, options. Goes out: a folder of shards with a manifest that is written last.
Until then everything lies in the hidden folder ``.tokenize`` of the output (see ``data/tokenize_report.py``),
where the same command finds what is done. The result depends on inputs, tokenizer and options alone, not on
the number of workers, the executor, or how often the work was interrupted.

Cost: the disk holds the tokens once, and one shard; memory is a few MB a worker besides the tokenizer and
the longest document.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith.data.files import name_some
from protolith.data.shard_series import SHARD_TOKENS
from protolith.data.text import Tally
from protolith.data.tokenize_block import BlockOptions
from protolith.data.tokenize_eos import choose_tokenizer, in_words_of_the_command
from protolith.data.tokenize_inputs import SourceFile, find_inputs
from protolith.data.tokenize_join import is_joined, join_parts, publish
from protolith.data.tokenize_output import alone_in, check_free, clear, remove_results
from protolith.data.tokenize_plan import (
    Plan,
    differences,
    identity_of,
    make_plan,
    read_plan,
    write_plan,
)
from protolith.data.tokenize_report import JOB_DIR, JobDir, TaskReport, Totals
from protolith.data.tokenize_settings import ExecutorSettings, usable_cores
from protolith.data.tokenize_watch import watch
from protolith.data.tokenize_worker import write_job
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import (
    CorpusTooSmallError,
    ResumeMismatchError,
    RunFailedError,
    ShardError,
    UsageError,
)
from protolith.formats.rundir import from_os_error
from protolith.formats.shard_manifest import ShardManifest, read_manifest


@dataclass(frozen=True)
class Progress:
    """``phase``: "tokenizing" or "writing shards"; ``done`` and ``total`` in bytes; the others so far, those
    of earlier calls included; ``before``: bytes and tokens that this call found done."""

    phase: str
    done: int
    total: int
    documents: int
    tokens: int
    before: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TokenizeResult:
    """``already_done``: nothing was to do. ``resumed_tasks``: tasks that an earlier call had finished."""

    output: Path
    shards: int
    documents: int
    tokens: int
    token_bytes: int
    eos_token: str
    eos_id: int
    records: int
    skipped: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    resumed_tasks: int = 0
    seconds: float = 0.0
    already_done: bool = False
    notes: tuple[str, ...] = ()


OnProgress = Callable[[Progress], None]
OnNote = Callable[[str], None]


def tokenize(
    inputs: Sequence[str],
    tokenizer_dir: str | Path,
    output: str | Path,
    *,
    eos_token: str | None = None,
    text_field: str = "text",
    shard_tokens: int = SHARD_TOKENS,
    settings: ExecutorSettings | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = lambda progress: None,
    on_note: OnNote = lambda note: None,
) -> TokenizeResult:
    """Tokenize ``inputs`` into ``output``, or go on where an earlier call was interrupted.

    Args:
        settings: where tasks run; None: here, one worker a usable core.
        overwrite: remove shards or another job's work in ``output`` first.
        on_note: told what was guessed or passed over, as soon as it is known.

    Raises:
        ResumeMismatchError: ``output`` holds another job's work. ConflictError: it holds other shards, or
            another process works in it.
        BadRecordError, DataError, CorpusTooSmallError, TokenizerError, NotFoundError ...: what was given.
        RunFailedError: a task died. NoSpaceError, NotAllowedError: the output cannot be written.
    """
    settings = settings or ExecutorSettings(workers=usable_cores())
    if shard_tokens < 1:
        raise UsageError("a shard has at least one token", where="--shard-tokens")
    if "://" in str(output):
        raise UsageError("shards are written to local folders only", where="--output")
    settings.check()
    folder = Path(output).expanduser()
    with in_words_of_the_command():
        tokenizer = choose_tokenizer(tokenizer_dir, eos_token)
        files, notes = find_inputs(inputs)
        notes = (*tokenizer.notes, *notes)
        for note in notes:
            on_note(note)
        if not files:
            raise CorpusTooSmallError("no text: all files are empty", where=", ".join(inputs))
        identity = identity_of(files, tokenizer, text_field, shard_tokens)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with alone_in(folder):
                if overwrite:
                    remove_results(folder)
                done = _finished(folder, identity, notes)
                if done is not None:
                    return done
                check_free(folder)
                return _Job(folder, tokenizer, shard_tokens, settings, on_progress, on_note, notes).run(
                    files, identity, text_field
                )
        except OSError as error:
            raise from_os_error(error, Path(error.filename or folder)) from error


@dataclass
class _Job:
    """One job in an output folder that is ours."""

    output: Path
    tokenizer: TextTokenizer
    shard_tokens: int
    settings: ExecutorSettings
    on_progress: OnProgress
    on_note: OnNote
    notes: tuple[str, ...]

    def run(self, files: Sequence[SourceFile], identity: dict[str, Any], text_field: str) -> TokenizeResult:
        started_s = time.monotonic()
        job = JobDir(self.output / JOB_DIR)
        plan = self._plan(job, files, identity, text_field)
        resumed = sum(1 for _ in job.told("results"))
        if resumed and not is_joined(job):
            self._say(f"going on: {resumed} of {len(plan.tasks)} tasks are done")
        if not is_joined(job):
            self._work(job, plan)
        publish(job, self.output)
        seconds = time.monotonic() - started_s
        manifest = read_manifest(self.output)
        if manifest is None:
            raise RunFailedError("the manifest is gone", where=str(self.output))
        return _result(
            self.output, manifest, self.notes, tasks=len(plan.tasks), resumed_tasks=resumed, seconds=seconds
        )

    def _plan(
        self, job: JobDir, files: Sequence[SourceFile], identity: dict[str, Any], text_field: str
    ) -> Plan:
        """The plan of the interrupted job, or a new one."""
        known = read_plan(job.root)
        if known is not None:
            if known.identity != identity:
                raise ResumeMismatchError(
                    "the unfinished work in this folder is of another job",
                    where=str(self.output),
                    hint="give the same inputs and options, another --output, or say --overwrite",
                    differences=differences(known.identity, identity),
                )
            return known
        clear(job.root)
        job.make()
        plan = make_plan(files, identity, text_field)
        write_job(job.root, self.tokenizer, BlockOptions(text_field))
        write_plan(job.root, plan)
        return plan

    def _work(self, job: JobDir, plan: Plan) -> None:
        before: tuple[int, int] | None = None
        last = Totals()

        def on_totals(totals: Totals) -> None:
            nonlocal last, before
            last = totals
            if before is None:
                before = (totals.read_bytes, totals.tokens)
            self.on_progress(
                Progress(
                    "tokenizing",
                    totals.read_bytes,
                    plan.size_bytes,
                    totals.documents,
                    totals.tokens,
                    before,
                )
            )

        totals = watch(job.root, plan, self.settings, on_totals)
        tally = totals.tally(plan.files)
        tally.check()
        self._say_what_was_left_out(tally, totals)
        if not totals.documents:
            raise CorpusTooSmallError(
                f"no documents in {tally.records} records",
                where=name_some([file.name for file in plan.files]),
            )
        facts = {
            "identity": plan.identity,
            "tasks": len(plan.tasks),
            "records": totals.records,
            "skipped": totals.skipped,
            "first_skipped": tally.first,
            "unknown_tokens": totals.unknown_tokens,
        }
        results = [TaskReport.read(job.result(task)) for task in range(len(plan.tasks))]
        whole = [report for report in results if report is not None]
        if len(whole) < len(results):
            raise RunFailedError("results of tasks are missing", where=str(job.root))

        def on_joined(done: int, total: int) -> None:
            self.on_progress(Progress("writing shards", done, total, last.documents, last.tokens))

        join_parts(job, whole, self.tokenizer, self.shard_tokens, facts, on_joined)

    def _say_what_was_left_out(self, tally: Tally, totals: Totals) -> None:
        for note in tally.notes():
            self._say(note)
        if totals.unknown_tokens:
            self._say(
                f"{totals.unknown_tokens:,} of {totals.tokens:,} tokens stand for text that the vocabulary"
                " cannot spell"
            )

    def _say(self, note: str) -> None:
        self.notes = (*self.notes, note)
        self.on_note(note)


def _finished(output: Path, identity: dict[str, Any], notes: tuple[str, ...]) -> TokenizeResult | None:
    """What an earlier call made here of the same inputs; None when there is nothing finished.

    Raises:
        ResumeMismatchError: it was made of something else. ShardError: a file of it is gone or cut.
    """
    manifest = read_manifest(output)
    if manifest is None:
        return None
    then = manifest.job.get("identity")
    if then != identity:
        raise ResumeMismatchError(
            "this folder holds the finished shards of another job",
            where=str(output),
            hint="give another --output, or say --overwrite",
            differences=differences(then, identity) if isinstance(then, dict) else (),
        )
    for name, entry in manifest.files.items():
        path = output / name
        if not path.is_file() or path.stat().st_size != entry.bytes:
            raise ShardError(
                f"{name} is gone or not as long as the manifest says",
                where=str(output),
                hint="copy it again, or say --overwrite",
            )
    shutil.rmtree(output / JOB_DIR, ignore_errors=True)  # of a process that died while it cleaned up
    return _result(output, manifest, notes, already_done=True)


def _result(output: Path, manifest: ShardManifest, notes: tuple[str, ...], **facts: Any) -> TokenizeResult:
    return TokenizeResult(
        output=output,
        shards=sum(name.endswith(".ds") for name in manifest.files),
        documents=manifest.num_documents,
        tokens=manifest.num_tokens,
        token_bytes=manifest.token_bytes,
        eos_token=str(manifest.tokenizer["eos_token"]),
        eos_id=int(manifest.tokenizer["eos_id"]),
        records=int(manifest.job.get("records", 0)),
        skipped=dict(manifest.job.get("skipped", {})),
        notes=notes,
        **facts,
    )
