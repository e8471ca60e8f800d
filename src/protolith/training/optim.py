"""The optimizer of a run, and AdamW's parameters by role (Muon's: ``training/muon.py``).

Decayed: weights of two or more dimensions (projections, embeddings, the head). Not decayed: everything
else (norm gains, biases). The role is read from the parameter's own shape before any sharding or
compiling, never from its name, so it is the same under every engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from protolith.training.muon import MuonGroups, MuonWithAdamW, muon_groups


@dataclass(frozen=True)
class ParameterGroups:
    """Parameters by role, tied ones once."""

    decayed: list[nn.Parameter]
    plain: list[nn.Parameter]

    def describe(self, weight_decay: float) -> str:
        def count(parameters: list[nn.Parameter]) -> str:
            return f"{sum(p.numel() for p in parameters):,} parameters in {len(parameters)} tensors"

        return f"weight decay {weight_decay:g} on {count(self.decayed)}; none on {count(self.plain)}"


def parameter_groups(module: nn.Module) -> ParameterGroups:
    trainable = [p for p in module.parameters() if p.requires_grad]
    return ParameterGroups(
        decayed=[p for p in trainable if p.ndim >= 2],
        plain=[p for p in trainable if p.ndim < 2],
    )


def groups_of(name: str, module: nn.Module) -> ParameterGroups | MuonGroups:
    """The parameters of ``module`` by role, for the optimizer called "adamw" or "muon"."""
    return muon_groups(module) if name == "muon" else parameter_groups(module)


def build_optimizer(
    groups: ParameterGroups | MuonGroups,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimizer that these groups are for."""
    make = MuonWithAdamW if isinstance(groups, MuonGroups) else build_adamw
    return make(groups, learning_rate=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay)  # type: ignore[operator]


def build_adamw(
    groups: ParameterGroups,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.AdamW:
    """torch's fused AdamW. Loshchilov & Hutter, 2019: decay is applied to the weight, scaled by the rate."""
    return torch.optim.AdamW(
        [
            {"params": groups.decayed, "weight_decay": weight_decay},
            {"params": groups.plain, "weight_decay": 0.0},
        ],
        lr=learning_rate,
        betas=betas,
        eps=eps,
        fused=True,
    )
