"""All arithmetic of a run: batches, steps, epochs, schedule lengths, disk, memory. Pure functions of numbers.

    rows per epoch n (from the data), global batch G (from the config and the world)

    a run is one endless sequence of rows: epoch 1's n rows, then epoch 2's n rows, ...
    step s takes rows (s-1)*G .. s*G-1 of it, across the border of an epoch where that falls inside a step

    limits       rows of the run
    num_epochs   num_epochs * n        the last step has what is left: nothing is dropped or repeated
    max_steps    max_steps * G
    max_tokens   whole steps, as many as the mean number of targets in a row asks for

The limit with the fewest rows ends the run; total_steps = ceil(rows / G). Nothing here touches a file or a
device.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from protolith.config.checks import Say, same_name
from protolith.config.schema import TrainConfig
from protolith.errors import CorpusTooSmallError, InvalidValueError
from protolith.units import format_count

#: fp32 weights and two fp32 moments.
CHECKPOINT_BYTES_PER_PARAMETER = 12
#: Optimizer scalars, random states, data position, ledger, manifest.
CHECKPOINT_EXTRA_BYTES = 64 * 1024
EXPORT_BYTES_PER_PARAMETER = 4
#: Weights, gradient and two moments, all fp32.
TRAINING_BYTES_PER_PARAMETER = 16
#: Rows of hidden states whose logits exist at one time.
LOSS_CHUNK_TOKENS = 512
#: wsd falls over this share of the run unless decay_steps says otherwise.
WSD_DECAY_SHARE = 5


@dataclass(frozen=True)
class BatchPlan:
    """One optimizer step: rows of a forward pass, passes, processes, and rows of all together."""

    micro_batch_rows: int
    accumulation: int
    world_size: int
    global_rows: int


@dataclass(frozen=True)
class ModelShape:
    """What the memory estimate needs to know of a model; zeros mean unknown."""

    hidden_size: int = 0
    num_layers: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0


@dataclass(frozen=True)
class Plan:
    """A run, counted out before it starts.

    Attributes:
        rows_per_epoch, targets_per_epoch: rows of ``seq_len`` tokens, and real targets in them.
        tokens_per_step: row positions of a full step (``global_rows * seq_len``).
        total_rows: rows of the whole run; the last step has ``last_step_rows`` of them.
        epochs: passes over the data, as a fraction.
        ends_by: "steps", "epochs" or "tokens", whichever limit comes first.
        warmup_steps: as asked, even where that is longer than the run.
        decay_steps: steps over which the rate falls; None where the schedule does not.
        checkpoint_bytes: of one checkpoint.
        num_checkpoints: that the run saves; with rotation not all are kept.
        disk_bytes: most that the run holds on disk at one time: checkpoints, one being written, the export.
        memory_bytes: of one device, roughly.
        eval_batches: of one evaluation.
        streamed: rows of the text are estimated, and with them steps and epochs: the run ends when the text
            does, or at ``row_limit`` rows, the limit of ``row_limit_by`` ("steps" or "tokens").
    """

    batch: BatchPlan
    seq_len: int
    rows_per_epoch: int
    targets_per_epoch: int
    tokens_per_step: int
    total_rows: int
    total_steps: int
    total_tokens: int
    last_step_rows: int
    epochs: float
    ends_by: str
    warmup_steps: int
    decay_steps: int | None
    num_parameters: int
    checkpoint_bytes: int
    num_checkpoints: int
    disk_bytes: int
    memory_bytes: int
    eval_rows: int
    eval_batches: int
    warnings: tuple[str, ...] = ()
    streamed: bool = False
    row_limit: int | None = None
    row_limit_by: str | None = None

    def ended_by(self, next_row: int) -> str:
        """What ended a run that gave all rows before ``next_row``: ``ends_by``, unless text was streamed."""
        if not self.streamed:
            return self.ends_by
        reached = self.row_limit is not None and next_row >= self.row_limit
        return self.row_limit_by if reached and self.row_limit_by else "epochs"

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {**asdict(self), "warnings": list(self.warnings)}


def batch_plan(config: TrainConfig, world_size: int, say: Say = same_name) -> BatchPlan:
    """The batch of a run on ``world_size`` processes.

    Raises:
        InvalidValueError: a global batch that these processes cannot share evenly.
    """
    trainer = config.trainer
    if world_size < 1:
        raise InvalidValueError(f"a run needs at least one process, got {world_size}", where="world_size")
    per_pass = trainer.batch_size * world_size
    if trainer.global_batch_size is None:
        return BatchPlan(
            trainer.batch_size,
            trainer.gradient_accumulation,
            world_size,
            per_pass * trainer.gradient_accumulation,
        )
    wanted = trainer.global_batch_size
    if wanted % per_pass:
        below, above = wanted // per_pass * per_pass, (wanted // per_pass + 1) * per_pass
        near = f"{below} or {above}" if below else str(above)
        devices = f" x {world_size} processes" if world_size > 1 else ""
        raise InvalidValueError(
            f"{say('trainer.global_batch_size')} = {wanted} is no multiple of "
            f"{say('trainer.batch_size')} = {trainer.batch_size}{devices}",
            where=say("trainer.global_batch_size"),
            hint=f"use {near}, or change {say('trainer.batch_size')}",
        )
    return BatchPlan(trainer.batch_size, wanted // per_pass, world_size, wanted)


def make_plan(
    config: TrainConfig,
    *,
    world_size: int,
    num_rows: int,
    num_targets: int,
    num_parameters: int,
    num_eval_rows: int = 0,
    shape: ModelShape | None = None,
    streamed: bool = False,
    say: Say = same_name,
) -> Plan:
    """Count a run out.

    Args:
        world_size: processes that share a step.
        num_rows: rows of one epoch.
        num_targets: tokens of one epoch that are predicted.
        num_eval_rows: held-out rows, 0 for none.
        streamed: ``num_rows`` and ``num_targets`` are estimates.
        shape: for the memory of activations; without it only weights, gradients and moments are counted.
        say: canonical key to the user's name, for messages.

    Raises:
        CorpusTooSmallError: no rows, or none with a target.
        InvalidValueError: a global batch that does not divide.
    """
    if num_rows < 1 or num_targets < 1:
        raise CorpusTooSmallError(
            f"the data gives {num_rows} rows with {num_targets} tokens to predict: there is nothing to "
            "train on",
            hint="give more text, or shorter rows",
        )
    seq_len = config.data.max_seq_length
    batch = batch_plan(config, world_size, say)
    limits = _limits(config, batch.global_rows, num_rows, num_targets)
    total_rows, ends_by = min(limits, key=lambda limit: limit[0])
    row_limit = min((limit for limit in limits if limit[1] != "epochs"), default=None)
    total_steps = _ceil(total_rows, batch.global_rows)
    warmup_steps = _warmup_steps(config, total_steps)
    decay_steps = _decay_steps(config, total_steps, warmup_steps)
    num_saved, num_kept, most_at_once = checkpoints_on_disk(config, total_steps)
    checkpoint_bytes = CHECKPOINT_BYTES_PER_PARAMETER * num_parameters + CHECKPOINT_EXTRA_BYTES
    export_bytes = EXPORT_BYTES_PER_PARAMETER * num_parameters
    eval_batch = config.eval.batch_size or batch.micro_batch_rows
    eval_batches = _ceil(num_eval_rows, eval_batch * world_size)
    return Plan(
        batch=batch,
        seq_len=seq_len,
        rows_per_epoch=num_rows,
        targets_per_epoch=num_targets,
        tokens_per_step=batch.global_rows * seq_len,
        total_rows=total_rows,
        total_steps=total_steps,
        total_tokens=total_rows * num_targets // num_rows,
        last_step_rows=total_rows - (total_steps - 1) * batch.global_rows,
        epochs=total_rows / num_rows,
        ends_by=ends_by,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
        num_parameters=num_parameters,
        checkpoint_bytes=checkpoint_bytes,
        num_checkpoints=num_saved,
        disk_bytes=max(most_at_once * checkpoint_bytes, num_kept * checkpoint_bytes + export_bytes),
        memory_bytes=memory_bytes(config, num_parameters, shape or ModelShape()),
        eval_rows=num_eval_rows,
        eval_batches=min(eval_batches, config.eval.max_batches) if config.eval.max_batches else eval_batches,
        warnings=_warnings(config, batch, num_rows, total_rows, total_steps, warmup_steps, say),
        streamed=streamed,
        row_limit=row_limit[0] if row_limit and streamed else None,
        row_limit_by=row_limit[1] if row_limit and streamed else None,
    )


def _limits(config: TrainConfig, global_rows: int, num_rows: int, num_targets: int) -> list[tuple[int, str]]:
    """Rows of the run by each limit. The one with the fewest ends it; of equals, steps first."""
    trainer = config.trainer
    limits: list[tuple[int, str]] = []
    if trainer.max_steps > 0:
        limits.append((trainer.max_steps * global_rows, "steps"))
    if trainer.num_epochs is not None:
        limits.append((trainer.num_epochs * num_rows, "epochs"))
    if trainer.max_tokens is not None:
        steps = _ceil(trainer.max_tokens * num_rows, num_targets * global_rows)
        limits.append((steps * global_rows, "tokens"))
    return limits


def _warmup_steps(config: TrainConfig, total_steps: int) -> int:
    trainer = config.trainer
    if trainer.warmup_ratio:
        # The small subtraction keeps 0.07 * 100 at 7 steps.
        return max(1, math.ceil(trainer.warmup_ratio * total_steps - 1e-9))
    return trainer.warmup_steps


def _decay_steps(config: TrainConfig, total_steps: int, warmup_steps: int) -> int | None:
    """Steps after the peak. The peak is reached at step ``warmup_steps``, or at step 1 without warmup."""
    trainer = config.trainer
    after_peak = max(0, total_steps - max(warmup_steps, 1))
    if trainer.scheduler in ("cosine", "linear"):
        return min(trainer.decay_steps, after_peak) if trainer.decay_steps else after_peak
    if trainer.scheduler == "wsd":
        return min(trainer.decay_steps or _ceil(total_steps, WSD_DECAY_SHARE), after_peak)
    return None


def checkpoints_on_disk(config: TrainConfig, total_steps: int) -> tuple[int, int, int]:
    """(saved in all, kept at the end, most at one time) for a run of ``total_steps``.

    A new checkpoint is complete before an old one goes, so with rotation there is one more for a moment.
    """
    trainer = config.trainer
    every, keep_every, keep_last = trainer.checkpoint_every_n_steps, trainer.keep_every, trainer.keep_last
    saved = total_steps // every if every else 0
    at_the_end = trainer.save_last and not (every and total_steps % every == 0)
    saved += bool(at_the_end)
    best = trainer.save_best and _has_held_out(config)
    if best:
        saved += _most_best(total_steps, config.eval.every_n_steps, every, trainer.save_last)
    if keep_last is None:
        return saved, saved, saved
    pinned = int(best)
    if keep_every:
        pinned += total_steps // math.lcm(every, keep_every) if every else 0
        pinned += bool(at_the_end and total_steps % keep_every == 0)
    return saved, min(saved, keep_last + pinned), min(saved, keep_last + pinned + 1)


def _has_held_out(config: TrainConfig) -> bool:
    return config.data.eval_split > 0 or bool(config.data.eval_path)


def _most_best(total_steps: int, evaluated: int | None, every: int | None, save_last: bool) -> int:
    """Checkpoints beside those that are due anyway, when each validation is better than the one before."""
    before_the_end = (total_steps - 1) // evaluated if evaluated else 0
    due_anyway = (total_steps - 1) // math.lcm(evaluated, every) if evaluated and every else 0
    last_is_due = save_last or bool(every and total_steps % every == 0)
    return before_the_end - due_anyway + (not last_is_due)


def memory_bytes(config: TrainConfig, num_parameters: int, shape: ModelShape) -> int:
    """A rough estimate for one device: weights, gradients and moments, activations, one chunk of logits.

    Activations of a layer are counted as ten hidden-wide and four intermediate-wide values a token, which is
    what a pre-norm block with a gated feed-forward keeps for its backward pass (attention without its T x T
    matrix).
    """
    tokens = config.trainer.batch_size * config.data.max_seq_length
    width = 4 if config.trainer.mixed_precision == "fp32" else 2
    layer = (10 * shape.hidden_size + 4 * shape.intermediate_size) * width
    if config.model.activation_checkpointing == "full":
        per_token = shape.num_layers * shape.hidden_size * width + layer
    else:
        per_token = shape.num_layers * layer
    logits = 2 * 4 * min(tokens, LOSS_CHUNK_TOKENS) * shape.vocab_size
    return TRAINING_BYTES_PER_PARAMETER * num_parameters + tokens * per_token + logits


def _warnings(
    config: TrainConfig,
    batch: BatchPlan,
    num_rows: int,
    total_rows: int,
    total_steps: int,
    warmup_steps: int,
    say: Say,
) -> tuple[str, ...]:
    trainer, told = config.trainer, []
    if trainer.save_best and not _has_held_out(config):
        told.append(f"{say('trainer.save_best')} has no effect: there is no held-out data to judge by")
    if trainer.strategy != "auto" and batch.world_size == 1:
        told.append(f"{say('trainer.strategy')} {trainer.strategy} has no effect with one process")
    if warmup_steps >= total_steps and warmup_steps > 1 and trainer.scheduler != "constant":
        name = say("trainer.warmup_ratio" if trainer.warmup_ratio else "trainer.warmup_steps")
        if warmup_steps > total_steps:
            share = 100 * total_steps / warmup_steps
            told.append(
                f"{name}: a warmup of {warmup_steps:,} steps is longer than the run of {total_steps:,}: "
                f"the rate will only reach {share:.3g} % of {say('trainer.learning_rate')}"
            )
        else:
            told.append(f"{name}: the whole run of {total_steps:,} steps is warmup")
    after_peak = max(0, total_steps - max(warmup_steps, 1))
    falls = trainer.scheduler in ("cosine", "linear", "wsd")
    if falls and trainer.decay_steps is not None and trainer.decay_steps > after_peak:
        told.append(
            f"{say('trainer.decay_steps')} = {trainer.decay_steps:,} is more than the {after_peak:,} steps "
            "after the "
            "warmup: the rate falls over those"
        )
    if trainer.num_epochs is None and total_rows > num_rows:
        told.append(
            f"the data has {num_rows:,} rows and the run takes {total_rows:,}: each is read "
            f"{total_rows / num_rows:.3g} times"
        )
    if batch.global_rows > total_rows:
        told.append(
            f"a step takes {batch.global_rows:,} rows and the whole run has {total_rows:,}: it is one "
            "smaller step"
        )
    if trainer.max_tokens is not None and trainer.max_tokens < batch.global_rows * config.data.max_seq_length:
        told.append(
            f"{say('trainer.max_tokens')} = {format_count(trainer.max_tokens)} is less than one step: it "
            "is rounded up"
        )
    return tuple(told)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)
