"""The training loop.

Comes in: an engine, a loader of global batches, a plan, and the chores (monitors, validation,
checkpoints) that are done between steps. Goes out: why it ended. State: ``RunState``, saved with every
checkpoint and restored before the loop begins. All numbers of a step are those of the whole global
batch. A stop is honoured after the step in progress: validation is left, the state is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.data.ledger import Ledger
from protolith.data.loader import Batch, StepBatches
from protolith.data.row_ranges import Range
from protolith.data.rows import Origin
from protolith.distributed.engine import Engine
from protolith.errors import NonFiniteError, ProtolithError, WorkerLostError
from protolith.training.checkpoint import Checkpoints
from protolith.training.checkpoint_write import Progress
from protolith.training.metrics import Clock, step_numbers
from protolith.training.monitors.all import Monitors
from protolith.training.schedule import Schedule
from protolith.training.status import Status
from protolith.training.step import StepResult, optimizer_step
from protolith.training.stop import StopFlag, StopRequested
from protolith.training.validate import validate

_MAX_OVERFLOWS_IN_A_ROW = 50
#: Reasons in the ledger for rows that were not trained on.
SKIP_ROWS = "--skip-rows"
NOT_FINITE = "step not finite"


@dataclass
class RunState:
    """Where the run stands. ``tokens`` counts trained targets; ``next_row`` is the data position, with
    ``position`` where text is streamed or sources are mixed; ``skip_rows`` are never trained on;
    ``best``: see ``Progress``."""

    ledger: Ledger
    step: int = 0
    next_row: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    skip_rows: tuple[Range, ...] = ()
    best: dict[str, Any] = field(default_factory=dict)

    def progress(self, identity: dict[str, Any]) -> Progress:
        return Progress(
            step=self.step,
            next_row=self.next_row,
            tokens=self.tokens,
            skipped_steps=self.skipped_steps,
            ledger=self.ledger.to_dict(),
            identity=identity,
            position=self.position,
            skip_rows=[list(part) for part in self.skip_rows],
            best=self.best,
        )

    def epochs(self, plan: Plan) -> float:
        """Passes over the data so far."""
        return float(self.position.get("epochs", self.next_row / plan.rows_per_epoch))


@dataclass
class Loop:
    """The parts of one run, and the order in which they are used."""

    config: TrainConfig
    plan: Plan
    engine: Engine
    schedule: Schedule
    state: RunState
    identity: dict[str, Any]
    held_out: Callable[[], Mapping[str, Iterable[Batch]]] | None
    samples: Callable[[int], None] | None
    suspects: Callable[[int, dict[str, Any], Sequence[Origin]], str]
    checkpoints: Checkpoints
    monitors: Monitors
    status: Status
    stop: StopFlag
    device: torch.device
    flops_per_token: float | None = None
    peak_flops: float | None = None
    first_step: int = 1
    overflows: int = 0
    #: a validation that was due and gave way to a stop: the run is not over without it
    validation_left: bool = False
    #: the last validation was the best so far and is not saved yet
    best_unsaved: bool = False
    #: the data has no more rows for this run
    rows_ended: bool = False

    def run(self, batches: Iterable[StepBatches]) -> str:
        """Train from where the state stands; returns "steps", "epochs", "tokens", "signal" or "user"."""
        state, stop = self.state, self.stop
        self.first_step = state.step + 1
        self.rows_ended = bool(state.position.get("finished"))
        self._validate_before_first_step()
        self.status.update(phase="training", step=state.step, total=self.plan.total_steps)
        clock = Clock()
        for batch in self._saved_on_bad_data(batches) if not stop.requested else ():
            clock.got_data()
            rate = self.schedule(state.step + 1)
            result = optimizer_step(self.engine, batch, rate)
            self._check_finite(result, batch)
            self._advance(batch, result)
            clock.finished_step(batch.num_targets)
            if self._due(self.config.logging.log_every_n_steps) or state.step == self.first_step:
                self._log(result, rate, clock)
            if self._validation_due():
                self._validate()
            if (self._checkpoint_due() or self.best_unsaved) and not self._is_last():
                self._save()
            clock.restart()
            if stop.requested:
                break
        return self._finish()

    def _saved_on_bad_data(self, batches: Iterable[StepBatches]) -> Iterator[StepBatches]:
        """The same batches, until a stop; when a rank cannot read, all save what was trained so far."""
        steps = iter(batches)
        while True:
            batch: StepBatches | None = None
            failure: ProtolithError | None = None
            try:
                batch = next(steps, None)
            except ProtolithError as error:
                failure = error
            if self.stop.agree(failed=failure is not None):
                self._save_what_stands()
                raise failure or WorkerLostError("another process of this run could not read its data")
            if batch is None or self.stop.requested:
                return
            yield batch

    def _save_what_stands(self) -> None:
        self.checkpoints.wait()
        if self.state.step > 0 and self.checkpoints.last_saved != self.state.step:
            self._save()
        self.checkpoints.wait()

    def _advance(self, batch: StepBatches, result: StepResult) -> None:
        state = self.state
        state.step += 1
        state.next_row = batch.next_row
        state.ledger.leave_out(batch.left_out, SKIP_ROWS)
        if result.applied:
            state.tokens += batch.num_targets
            state.ledger.add(batch.counts)
        else:
            state.skipped_steps += 1
            state.ledger.leave_out(batch.counts, NOT_FINITE)
        if batch.position:
            state.position = dict(batch.position)
            for source, reasons in state.position.get("skipped", {}).items():
                state.ledger.set_skipped(reasons, source)
        self.rows_ended = batch.last
        self.status.note(step=state.step, tokens=state.tokens)
        self.monitors.console.advance(state.step, self._total_steps())

    def _check_finite(self, result: StepResult, batch: StepBatches) -> None:
        self.overflows = self.overflows + 1 if result.scale_overflow else 0
        if result.finite:
            return
        step = self.state.step + 1
        if result.scale_overflow and self.overflows < _MAX_OVERFLOWS_IN_A_ROW:
            self.monitors.warn(
                "fp16: the loss scale was too high; the update is skipped and the scale lowered"
            )
            return
        numbers = {"loss/mean": result.loss, "optim/grad_norm": result.grad_norm}
        rows = f"{self.state.next_row}:{batch.next_row}"
        what = f"loss {result.loss}, gradient norm {result.grad_norm} at step {step}, rows {rows}"
        what += f" ({self.suspects(step, numbers, batch.origins())})"
        if self.config.trainer.on_nonfinite == "skip" and not result.scale_overflow:
            self.monitors.warn(f"{what}: the update is skipped (on_nonfinite: skip)")
            return
        self.monitors.numbers(step, numbers)
        self._save_what_stands()
        raise NonFiniteError(
            f"{what}; the weights were not updated",
            where=f"step {step}",
            hint="the state before this step can be resumed: lower the learning rate, or leave these rows "
            f"out with --resume --skip-rows {rows}; monitors/suspects.jsonl names all their documents",
        )

    def _log(self, result: StepResult, rate: float, clock: Clock) -> None:
        numbers = step_numbers(
            result,
            learning_rate=rate,
            tokens=self.state.tokens,
            epoch=self.state.epochs(self.plan),
            clock=clock,
            device=self.device,
            flops_per_token=self.flops_per_token,
            peak_flops=self.peak_flops,
        )
        if self.state.skipped_steps:
            numbers["progress/skipped_steps"] = self.state.skipped_steps
        self.state.metrics.update(numbers)
        self.monitors.step(self.state.step, self._total_steps(), numbers)

    def _validate(self) -> None:
        if self.held_out is None:
            return
        self.status.update(phase="evaluating")
        try:
            self.stop.raise_if_requested()
            numbers = validate(self.engine, self.held_out(), self.stop)
        except StopRequested:
            self.validation_left = True  # the loop sees the stop; a resume validates this step first
            return
        shown = [f"val/{name}" for name in self.config.eval.metrics]
        shown += [name for name in numbers if name.count("/") == 2]  # of each source
        self.state.metrics.update(numbers)
        self.monitors.validation(self.state.step, self._total_steps(), numbers, shown)
        self._note_best(numbers["val/loss"])
        if self.samples is not None and not self.stop.requested:
            self.samples(self.state.step)
        self.status.update(phase="training")

    def _note_best(self, loss: float) -> None:
        best = self.state.best
        if self.config.trainer.save_best and self.state.step and loss < best.get("loss", math.inf):
            self.state.best = {"step": self.state.step, "loss": loss}
            self.best_unsaved = True

    def _validate_before_first_step(self) -> None:
        """At the start on request; after a resume when the stop came before the validation of this step."""
        if self.state.step == 0:
            if self.config.eval.on_start:
                self._validate()
        elif self._validation_due() and not self.monitors.has_validation(self.state.step):
            self._validate()

    def _save(self) -> None:
        self.status.update(phase="saving", step=self.state.step)
        self.best_unsaved = False
        self.checkpoints.save(self.engine.state(), self.state.progress(self.identity))
        self.monitors.ledger(self.state.ledger)
        self.status.update(phase="training")

    def _finish(self) -> str:
        """The end of the loop, however it came: what must be on disk is on disk when this returns."""
        ended = self._is_last()
        stopped = self.stop.requested and (not ended or self.validation_left)
        wanted = self.state.step > 0 and (self.config.trainer.save_last or stopped or self.best_unsaved)
        self.status.update(phase="saving", step=self.state.step)
        self.checkpoints.wait()
        if wanted and (self.best_unsaved or self.checkpoints.last_saved != self.state.step):
            self.checkpoints.save_and_wait(self.engine.state(), self.state.progress(self.identity))
        self.monitors.ledger(self.state.ledger)
        return (self.stop.by or "signal") if stopped else self.plan.ended_by(self.state.next_row)

    def _is_last(self) -> bool:
        return self.rows_ended or (not self.plan.streamed and self.state.step >= self.plan.total_steps)

    def _total_steps(self) -> int:
        """Of the run; a stream may have more than was estimated."""
        return max(self.plan.total_steps, self.state.step)

    def _due(self, every: int | None) -> bool:
        return self._is_last() or bool(every and self.state.step % every == 0)

    def _validation_due(self) -> bool:
        return self.held_out is not None and self._due(self.config.eval.every_n_steps)

    def _checkpoint_due(self) -> bool:
        every = self.config.trainer.checkpoint_every_n_steps
        return bool(every and self.state.step % every == 0)
