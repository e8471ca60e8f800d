"""``protolith tokenize``: text to token shards."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from protolith.cli.progress import ProgressLine
from protolith.cli.render import Form, ShortFormOption, facts, print_json, say
from protolith.errors import EXIT_INTERRUPTED, EXIT_STOPPED, UsageError
from protolith.units import format_count, format_duration, parse_count


class Executor(StrEnum):
    """Where tasks run."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


class _Stopped(BaseException):
    """SIGTERM arrived."""


def tokenize(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...", help="JSONL, Parquet or .txt files, folders or patterns; also s3://..."
        ),
    ],
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="Folder with tokenizer.json.")],
    output: Annotated[str, typer.Option("--output", help="Folder to write shards to.")],
    eos_token: Annotated[
        str | None,
        typer.Option(
            "--eos-token", help="Token that ends each document. Default: the tokenizer's end of text."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Tasks at a time. Default: one a core of this machine."),
    ] = None,
    executor: Annotated[Executor, typer.Option("--executor", help="Where tasks run.")] = Executor.local,
    shard_tokens: Annotated[
        str, typer.Option("--shard-tokens", metavar="N", help="Tokens a shard, such as 100M.")
    ] = "134217728",
    text_field: Annotated[
        str, typer.Option("--text-field", help="Field or column of a record that holds its text.")
    ] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove shards and unfinished work in that folder.")
    ] = False,
    partition: Annotated[str, typer.Option("--partition", help="Slurm: partition.")] = "",
    time_limit: Annotated[
        str, typer.Option("--time", metavar="H:MM:SS", help="Slurm: time limit of a task.")
    ] = "24:00:00",
    cpus_per_task: Annotated[
        int, typer.Option("--cpus-per-task", min=1, help="Slurm, Ray: cores a task.")
    ] = 1,
    mem_per_cpu: Annotated[
        int, typer.Option("--mem-per-cpu", metavar="GB", min=1, help="Slurm, Ray: memory a core.")
    ] = 4,
    tasks_per_job: Annotated[
        int, typer.Option("--tasks-per-job", min=1, help="Slurm: tasks one job works through.")
    ] = 1,
    qos: Annotated[str, typer.Option("--qos", help="Slurm: quality of service.")] = "",
    sbatch: Annotated[
        list[str], typer.Option("--sbatch", metavar="NAME=VALUE", help="Slurm: a further option; repeatable.")
    ] = [],  # noqa: B006 - typer reads the default, nobody changes it
    form: ShortFormOption = Form.text,
) -> None:
    """Tokenize text into shards for training. Interrupted, the same command goes on where it was."""
    from protolith.data.tokenize_eos import WARNING
    from protolith.data.tokenize_job import Progress
    from protolith.data.tokenize_job import tokenize as run
    from protolith.data.tokenize_settings import LOCAL, ExecutorSettings, usable_cores

    settings = ExecutorSettings(
        kind=executor.value,
        workers=workers or (usable_cores() if executor.value == LOCAL else -1),
        partition=partition,
        time=time_limit,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=mem_per_cpu,
        tasks_per_job=tasks_per_job,
        qos=qos,
        sbatch=_directives(sbatch),
    )
    started_s = time.monotonic()
    with ProgressLine() as line, _stoppable(line, executor):

        def on_progress(now: Progress) -> None:
            line.update(now.phase, now.done, now.total, _numbers(now, time.monotonic() - started_s))

        result = run(
            inputs,
            tokenizer,
            output,
            eos_token=eos_token,
            text_field=text_field,
            shard_tokens=parse_count(shard_tokens, where="--shard-tokens"),
            settings=settings,
            overwrite=overwrite,
            on_progress=on_progress,
            on_note=lambda note: line.note(note if note.startswith(WARNING) else f"note: {note}"),
        )
    if form is Form.json:
        print_json(asdict(result))
        return
    if result.already_done:
        say("already done: this folder holds the shards of these inputs, tokenizer and options")
    shown = ("output", "shards", "documents", "tokens", "token_bytes", "eos_token", "eos_id")
    answer: dict[str, Any] = {name: getattr(result, name) for name in shown}
    if result.skipped:
        answer["skipped"] = result.skipped
    if not result.already_done:
        answer["time"] = format_duration(result.seconds)
    facts(answer)


def _numbers(now: Any, elapsed_s: float) -> str:
    parts = [f"{now.documents:,} documents", f"{format_count(now.tokens)} tokens"]
    if now.phase == "tokenizing":
        done_bytes, tokens = now.done - now.before[0], now.tokens - now.before[1]
        parts.append(f"{format_count(tokens / max(elapsed_s, 1e-3))} tokens/s")
        if done_bytes > 0:
            left_s = math.ceil((now.total - now.done) * elapsed_s / done_bytes)
            parts.append(f"{format_duration(left_s)} left")
    return "  ".join(parts)


def _directives(options: list[str]) -> dict[str, str]:
    pairs = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{option!r} is not NAME=VALUE", where="--sbatch", hint="--sbatch account=physics"
            )
        pairs[name.lstrip("-")] = value
    return pairs


@contextmanager
def _stoppable(line: ProgressLine, executor: Executor) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the work at once; what is done stays done."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Stopped

    old = signal.signal(signal.SIGTERM, stop)
    goes_on = "jobs under Slurm go on by themselves; " if executor is Executor.slurm else ""
    try:
        yield
    except (KeyboardInterrupt, _Stopped) as ending:
        interrupted = isinstance(ending, KeyboardInterrupt)
        word = "interrupted" if interrupted else "stopped"
        line.note(f"{word}: {goes_on}the same command goes on where it was")
        raise typer.Exit(EXIT_INTERRUPTED if interrupted else EXIT_STOPPED) from None
    finally:
        signal.signal(signal.SIGTERM, old)
