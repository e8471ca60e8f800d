"""From a built model to an engine that can train it: device, optimizer, loss, precision, compiling."""

from __future__ import annotations

import torch

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.distributed import fsdp
from protolith.distributed.ddp import DdpEngine, rank_seed
from protolith.distributed.single import SingleEngine, autocast
from protolith.distributed.world import World, device_name, has_fast_bf16
from protolith.model.build import BuiltModel
from protolith.model.checkpointing import enable_activation_checkpointing
from protolith.model.document_mask import prove_documents_apart
from protolith.model.loss import LossModel
from protolith.training import banner, compiling
from protolith.training.monitors.console import Console
from protolith.training.optim import build_optimizer, groups_of
from protolith.training.strategy import choose, sharding_of


def build_engine(
    config: TrainConfig, built: BuiltModel, plan: Plan, world: World, console: Console
) -> SingleEngine:
    """Says what was resolved on the way. Afterwards the random state is this rank's for ``trainer.seed``."""
    trainer = config.trainer
    strategy, strategy_line = choose(config, plan, world)
    # Under FSDP it stays on the CPU until it is in shards, unless its kernels know the GPU only.
    anywhere = built.attention in ("sdpa", "eager")
    device = torch.device("cpu") if strategy == "fsdp" and anywhere else world.device
    module = built.module.to(device)
    module.train()
    enable_activation_checkpointing(module, config.model.activation_checkpointing)
    flops = built.flops_per_token(config.data.max_seq_length) * plan.total_tokens
    wanted, why = compiling.decide(config.model.compile, planned_flops=flops, device=world.device)
    loss_model = LossModel(module)
    for note in loss_model.notes:
        console.info(note)
    if config.data.document_mask and config.data.packing:
        prove_documents_apart(loss_model, autocast(device, trainer.mixed_precision))
    loss: torch.nn.Module = loss_model
    if strategy == "fsdp":
        if wanted:
            for block in fsdp.blocks(loss_model):
                block.compile()
        fsdp.shard(loss_model, world, precision=trainer.mixed_precision, sharding=sharding_of(config))
    elif wanted:
        loss = compiling.compiled(loss_model, console.warn)
    groups = groups_of(trainer.optimizer, module)
    optimizer = build_optimizer(
        groups,
        learning_rate=trainer.learning_rate,
        betas=trainer.betas,
        eps=trainer.eps,
        weight_decay=trainer.weight_decay,
    )
    if trainer.mixed_precision == "bf16" and not has_fast_bf16(world.device):
        console.warn("bf16 is emulated on this device and slower than fp32; set mixed_precision: fp32")
    for line in banner.lines(config, plan, built, groups, device_name(world.device), why, strategy_line):
        console.info(line)
    torch.manual_seed(rank_seed(trainer.seed, world.rank))
    if world.size > 1:
        engine = fsdp.FsdpEngine if strategy == "fsdp" else DdpEngine
        return engine(
            module,
            loss,
            optimizer,
            world=world,
            precision=trainer.mixed_precision,
            max_grad_norm=trainer.max_grad_norm,
        )
    return SingleEngine(
        module,
        loss,
        optimizer,
        device=world.device,
        precision=trainer.mixed_precision,
        max_grad_norm=trainer.max_grad_norm,
    )
