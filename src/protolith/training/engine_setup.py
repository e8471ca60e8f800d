"""From a built model to an engine that can train it: device, optimizer, loss, precision, compiling."""

from __future__ import annotations

import torch

from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.distributed.ddp import DdpEngine, rank_seed
from protolith.distributed.fsdp import FsdpEngine
from protolith.distributed.single import SingleEngine, autocast
from protolith.distributed.world import World, device_name, has_fast_bf16
from protolith.model.build import BuiltModel
from protolith.model.checkpointing import enable_activation_checkpointing
from protolith.model.document_mask import prove_documents_apart
from protolith.model.loss import LossModel
from protolith.training import banner, compiling
from protolith.training.monitors.console import Console
from protolith.training.optim import build_optimizer, groups_of


def build_engine(
    config: TrainConfig, built: BuiltModel, plan: Plan, world: World, console: Console
) -> SingleEngine:
    """Says what was resolved on the way. Afterwards the random state is this rank's for ``trainer.seed``."""
    trainer = config.trainer
    module = built.module.to(world.device)
    module.train()
    enable_activation_checkpointing(module, config.model.activation_checkpointing)
    groups = groups_of(trainer.optimizer, module)

    def make_optimizer() -> torch.optim.Optimizer:
        """Over the parameters as they are then: some engines replace them."""
        return build_optimizer(
            groups_of(trainer.optimizer, module),
            learning_rate=trainer.learning_rate,
            betas=trainer.betas,
            eps=trainer.eps,
            weight_decay=trainer.weight_decay,
        )

    sharded = trainer.strategy == "fsdp" and world.size > 1
    flops = built.flops_per_token(config.data.max_seq_length) * plan.total_tokens
    wanted, why = compiling.decide(config.model.compile, planned_flops=flops, device=world.device)
    if sharded:
        wanted, why = False, "compile: off (fsdp)"
    loss_model = LossModel(module)
    for note in loss_model.notes:
        console.info(note)
    if config.data.document_mask and config.data.packing:
        prove_documents_apart(loss_model, autocast(world.device, trainer.mixed_precision))
    loss: torch.nn.Module = compiling.compiled(loss_model, console.warn) if wanted else loss_model
    if trainer.mixed_precision == "bf16" and not has_fast_bf16(world.device):
        console.warn("bf16 is emulated on this device and slower than fp32; set mixed_precision: fp32")
    for line in banner.lines(config, plan, built, groups, device_name(world.device), why):
        console.info(line)
    torch.manual_seed(rank_seed(trainer.seed, world.rank))
    if sharded:
        return FsdpEngine(
            module,
            loss_model,
            make_optimizer,
            world=world,
            precision=trainer.mixed_precision,
            max_grad_norm=trainer.max_grad_norm,
        )
    if world.size > 1:
        return DdpEngine(
            module,
            loss,
            make_optimizer(),
            world=world,
            precision=trainer.mixed_precision,
            max_grad_norm=trainer.max_grad_norm,
        )
    return SingleEngine(
        module,
        loss,
        make_optimizer(),
        device=world.device,
        precision=trainer.mixed_precision,
        max_grad_norm=trainer.max_grad_norm,
    )
