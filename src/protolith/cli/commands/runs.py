"""``protolith runs``: what the runs under a folder are doing, read from their files alone.

A run writes a heartbeat every few seconds and holds a lock while it lives. A run that says "running" and
whose heartbeat is old is ``interrupted`` when nobody holds its lock (it was killed: resume it), and
``stalled`` when somebody does (frozen, or its disk is full).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from protolith.cli.ledger_table import show_ledger
from protolith.cli.model_source import RUNS_FOLDER
from protolith.cli.render import Form, FormOption, facts, heading, print_json, say, table
from protolith.errors import NotAllowedError, NotFoundError
from protolith.formats.checkpoint_files import CheckpointFolder, best_step, list_checkpoints
from protolith.formats.rundir import RunDir, find_runs, is_run_dir, read_json, read_metrics
from protolith.training.output_folder import is_alive
from protolith.units import format_bytes, format_count, format_duration

_OLD_HEARTBEAT_S = 20.0


@dataclass(frozen=True)
class RunSummary:
    """One run as seen from outside. ``age_s`` is the age of its last sign of life."""

    path: str
    name: str | None
    state: str
    phase: str | None = None
    step: int | None = None
    total: int | None = None
    tokens: int | None = None
    loss: float | None = None
    val_loss: float | None = None
    last_checkpoint: int | None = None
    age_s: float | None = None
    attempt: int | None = None
    stopped_by: str | None = None
    error: dict[str, Any] | None = None
    problems: tuple[str, ...] = field(default=())


def list_runs(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Folder to look under. Default: output.", show_default=False),
    ] = None,
    form: FormOption = Form.text,
) -> None:
    """List the runs under a folder: state, step, loss, last checkpoint."""
    root = (directory or RUNS_FOLDER).expanduser()
    if directory is not None and not root.exists():
        raise NotFoundError(
            f"no folder {directory}", where=str(directory), hint="give a folder that holds runs"
        )
    if root.exists() and not root.is_dir():
        raise NotFoundError(f"{root} is a file", where=str(root), hint="give a folder that holds runs")
    if root.exists() and not os.access(root, os.R_OK | os.X_OK):
        raise NotAllowedError("this folder cannot be read", where=str(root))
    summaries = [summarize(path) for path in find_runs(root)]
    if form is Form.json:
        print_json({"root": str(root), "runs": [asdict(summary) for summary in summaries]})
        return
    if not summaries:
        say(f"no runs under {root}")
        return
    table(
        ("run", "state", "step", "loss", "val loss", "tokens", "checkpoint", "last sign"),
        [_row(summary, root) for summary in summaries],
        right=("step", "loss", "val loss", "tokens", "checkpoint"),
    )
    for summary in summaries:
        for problem in summary.problems:
            say(f"{summary.path}: {problem}", error=True)


def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name under output.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare digests of all checkpoint files.")
    ] = False,
    form: FormOption = Form.text,
) -> None:
    """Show one run: config, plan, ledger, checkpoints, last numbers."""
    run_dir = RunDir(find_run(run))
    summary = summarize(run_dir.root)
    problems = list(summary.problems)
    documents = {
        name: _read(path, problems)
        for name, path in (("config", run_dir.config), ("plan", run_dir.plan), ("ledger", run_dir.ledger))
    }
    checkpoints = list_checkpoints(run_dir.checkpoints, digests=verify)
    best = best_step(run_dir.checkpoints)
    metrics = _last_values(run_dir, [])
    if form is Form.json:
        print_json(
            {
                "run": {**asdict(summary), "problems": problems},
                **documents,
                "checkpoints": [_checkpoint_facts(found, best) for found in checkpoints],
                "metrics": metrics,
                "model": str(run_dir.model) if run_dir.model.is_dir() else None,
            }
        )
        return
    _show_text(run_dir, summary, problems, documents, checkpoints, best, metrics)


def find_run(name: str) -> Path:
    """The folder of the run called ``name``: a path, or a name under ``output``.

    Raises:
        NotFoundError: neither.
    """
    for path in (Path(name).expanduser(), RUNS_FOLDER / name):
        if is_run_dir(path):
            return path
    there = Path(name).expanduser().is_dir()
    raise NotFoundError(
        f"{name} is not a run" if there else f"no run {name}",
        where=name,
        hint=f"protolith runs {name if there else ''}".rstrip() + " lists what is there",
    )


def summarize(path: Path) -> RunSummary:
    """Read one run's files; what cannot be read is a problem of that run, never an end of the listing."""
    run_dir = RunDir(path)
    problems: list[str] = []
    status = _read(run_dir.status, problems) or {}
    config = _read(run_dir.config, problems) or {}
    metrics = _last_values(run_dir, problems)
    try:
        complete = [found.step for found in list_checkpoints(run_dir.checkpoints) if not found.problem]
    except OSError as refused:
        complete = []
        problems.append(f"checkpoints cannot be read: {refused.strerror}")
    age = _age_s(status.get("heartbeat"))
    error = status.get("error")
    return RunSummary(
        path=str(path),
        name=_text(config.get("name")),
        state=_state(run_dir, status, age),
        phase=_text(status.get("phase")),
        step=_whole(status.get("step")),
        total=_whole(status.get("total")),
        tokens=_whole(status.get("tokens")),
        loss=metrics.get("loss/mean"),
        val_loss=metrics.get("val/loss"),
        last_checkpoint=max(complete, default=None),
        age_s=age,
        attempt=_whole(status.get("attempt")),
        stopped_by=_text(status.get("stopped_by")),
        error=error if isinstance(error, dict) else None,
        problems=tuple(problems),
    )


def _state(run_dir: RunDir, status: Mapping[str, Any], age_s: float | None) -> str:
    state = _text(status.get("state")) or "unknown"
    if state != "running" or (age_s is not None and age_s <= _OLD_HEARTBEAT_S):
        return state
    return "stalled" if is_alive(run_dir) else "interrupted"


def _read(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
        return None
    except ValueError:
        problems.append(f"{path.name} is damaged: not JSON")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} is damaged: not an object")
        return None
    return value


def _last_values(run_dir: RunDir, problems: list[str]) -> dict[str, float]:
    """The newest value of each number in metrics.jsonl."""
    values: dict[str, float] = {}
    try:
        for numbers in read_metrics(run_dir.metrics).values():
            for name, value in numbers.items():
                number = _number(value)
                if name != "time" and number is not None:
                    values[name] = number
    except (OSError, ValueError, TypeError) as error:
        problems.append(f"metrics.jsonl cannot be read: {error}")
    return values


def _number(value: Any) -> float | None:
    """A number as metrics.jsonl writes it; "nan", "inf" and "-inf" are numbers too."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value) if not isinstance(value, int) else value
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _age_s(heartbeat: Any) -> float | None:
    try:
        then = datetime.fromisoformat(heartbeat)
    except (TypeError, ValueError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (datetime.now(UTC) - then).total_seconds())


def _row(summary: RunSummary, root: Path) -> tuple[str, ...]:
    path = Path(summary.path)
    shown = str(path.relative_to(root)) if path != root and path.is_relative_to(root) else summary.path
    step = "-" if summary.step is None else str(summary.step)
    return (
        shown,
        summary.state,
        f"{step}/{summary.total}" if summary.total else step,
        _loss(summary.loss),
        _loss(summary.val_loss),
        "-" if summary.tokens is None else format_count(summary.tokens),
        "-" if summary.last_checkpoint is None else str(summary.last_checkpoint),
        "-" if summary.age_s is None else f"{format_duration(summary.age_s)} ago",
    )


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _checkpoint_facts(found: CheckpointFolder, best: int | None) -> dict[str, Any]:
    return {
        "step": found.step,
        "path": str(found.path),
        "valid": not found.problem,
        "problem": found.problem or None,
        "best": found.step == best,
        "size_bytes": found.size_bytes,
    }


def _show_text(
    run_dir: RunDir,
    summary: RunSummary,
    problems: list[str],
    documents: Mapping[str, dict[str, Any] | None],
    checkpoints: list[CheckpointFolder],
    best: int | None,
    metrics: Mapping[str, float],
) -> None:
    heading(f"run {run_dir.root}")
    age = "" if summary.age_s is None else f", last sign of life {format_duration(summary.age_s)} ago"
    lines: dict[str, Any] = {
        "state": f"{summary.state}{age}",
        "phase": summary.phase,
        "step": f"{summary.step if summary.step is not None else '-'} of {summary.total or '?'}",
        "tokens": summary.tokens,
        "attempt": summary.attempt,
        "stopped by": summary.stopped_by,
        "model": str(run_dir.model) if run_dir.model.is_dir() else None,
    }
    facts({name: value for name, value in lines.items() if value is not None})
    if summary.error:
        for part in ("message", "where", "hint"):
            if summary.error.get(part):
                say(f"  {'error' if part == 'message' else part}: {summary.error[part]}")
    for problem in problems:
        say(f"  problem: {problem}")
    for name, document in documents.items():
        say()
        heading(name)
        if document is None:
            say("  not written yet")
        elif name == "ledger":
            show_ledger(document)
        else:
            facts(_without_defaults(document), indent=2)
    say()
    heading("checkpoints")
    if checkpoints:
        table(
            ("step", "size", "state"),
            [(str(c.step), format_bytes(c.size_bytes), _judgement(c, best)) for c in checkpoints],
            right=("step", "size"),
        )
    else:
        say("  none")
    if metrics:
        say()
        heading("last numbers")
        facts(metrics, indent=2)


def _judgement(found: CheckpointFolder, best: int | None) -> str:
    if found.problem:
        return f"not valid: {found.problem}"
    return "valid, best by validation" if found.step == best else "valid"


def _without_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was never set, so that what was set can be seen."""
    shown = {}
    for name, value in document.items():
        inner = _without_defaults(value) if isinstance(value, Mapping) else value
        if inner is not None and inner != {} and inner != [] and inner != ():
            shown[name] = inner
    return shown
