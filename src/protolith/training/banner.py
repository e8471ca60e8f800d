"""What a run says before its first step: everything that was resolved, so that nobody has to guess."""

from __future__ import annotations

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.model.build import BuiltModel
from protolith.training.optim import ParameterGroups
from protolith.units import format_bytes


def init_line(built: BuiltModel, name: str) -> str:
    """The first line of every run's log."""
    kind = type(built.module).__name__
    if built.init == "scratch":
        return f"init: scratch ({kind} from the config of {name}; no weights are read)"
    if built.init == "loaded":
        return f"init: loaded ({kind}, the loaded object with the weights it has)"
    return f"init: pretrained ({kind}, weights of {name})"


def lines(
    config: TrainConfig,
    plan: Plan,
    built: BuiltModel,
    groups: ParameterGroups,
    device: str,
    compile_line: str,
) -> list[str]:
    trainer, batch = config.trainer, plan.batch
    return [
        f"model: {plan.num_parameters:,} parameters on {device}, {trainer.mixed_precision}, "
        f"attention {built.attention}",
        f"data: {plan.targets_per_epoch:,} tokens to predict in {plan.rows_per_epoch:,} rows "
        f"of {plan.seq_len}",
        f"batch: {batch.micro_batch_rows} rows x {batch.accumulation} micro-batches x {batch.world_size} "
        f"process(es) = {batch.global_rows} rows, {plan.tokens_per_step:,} tokens a step",
        f"run: {plan.total_steps:,} steps, {plan.epochs:.2f} epochs, ends by {plan.ends_by}",
        f"rate: {trainer.scheduler}, peak {trainer.learning_rate:g}, warmup {plan.warmup_steps} steps",
        f"optimizer: {trainer.optimizer}, {groups.describe(trainer.weight_decay)}",
        compile_line,
        f"memory: about {format_bytes(plan.memory_bytes)}; a checkpoint takes about "
        f"{format_bytes(plan.checkpoint_bytes)}",
    ]
