"""What a run says before its first step: everything that was resolved, so that nobody has to guess."""

from __future__ import annotations

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.model.build import BuiltModel
from protolith.training.muon import MuonGroups
from protolith.training.optim import ParameterGroups
from protolith.units import format_bytes


def init_line(init: str, name: str, *, loaded: bool) -> str:
    """The first line of every run's log."""
    if loaded:
        return "init: loaded (the given object, with the weights it has)"
    if init == "scratch":
        return f"init: scratch (only config and tokenizer of {name} are read, never weights)"
    return f"init: pretrained (weights of {name})"


def strategy_of(config: TrainConfig, world_size: int) -> str:
    """What ``trainer.strategy`` comes to."""
    if world_size == 1:
        return "one process"
    why = f" (auto: {world_size} processes)" if config.trainer.strategy == "auto" else ""
    if config.trainer.strategy == "fsdp":
        return f"fsdp, the model in shards over {world_size} processes"
    return f"ddp{why}, each with the whole model"


def lines(
    config: TrainConfig,
    plan: Plan,
    built: BuiltModel,
    groups: ParameterGroups | MuonGroups,
    device: str,
    compile_line: str,
    strategy_line: str | None = None,
) -> list[str]:
    trainer, batch = config.trainer, plan.batch
    about = "about " if plan.streamed and plan.ends_by == "epochs" else ""
    return [
        f"model: {type(built.module).__name__}, {plan.num_parameters:,} parameters on {device}, "
        f"{trainer.mixed_precision}, attention {built.attention}",
        f"data: {plan.targets_per_epoch:,} tokens to predict in {plan.rows_per_epoch:,} rows "
        f"of {plan.seq_len}; held out: {f'{plan.eval_rows:,} rows' if plan.eval_rows else 'none'}",
        f"batch: {batch.micro_batch_rows} rows x {batch.accumulation} micro-batches x {batch.world_size} "
        f"process(es) = {batch.global_rows} rows, {plan.tokens_per_step:,} tokens a step",
        f"strategy: {strategy_line or strategy_of(config, batch.world_size)}",
        f"run: {about}{plan.total_steps:,} steps, {plan.epochs:.2f} epochs, ends by {plan.ends_by}",
        f"rate: {trainer.scheduler}, peak {trainer.learning_rate:g}, warmup {plan.warmup_steps} steps",
        f"optimizer: {trainer.optimizer}, {groups.describe(trainer.weight_decay)}",
        compile_line,
        f"memory: about {format_bytes(plan.memory_bytes)}",
        f"disk: {plan.num_checkpoints} checkpoint(s) of about {format_bytes(plan.checkpoint_bytes)}, "
        f"at most {format_bytes(plan.disk_bytes)} at one time",
    ]
