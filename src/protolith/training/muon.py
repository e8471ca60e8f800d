"""Muon for the matrices inside the blocks, AdamW for everything else, as one optimizer.

Muon (Jordan et al., 2024) moves a matrix along its momentum made orthogonal. It is meant for hidden layers:
embeddings, the head, norm gains and biases are AdamW's. Both are torch's own. With the rate adjustment of Liu
et al., 2025 (0.2 * sqrt(max(rows, columns))) an update has the size that AdamW's has, so one learning rate,
one schedule and one weight decay serve both.

    momentum 0.95, Nesterov, 5 Newton-Schulz steps      Jordan et al.; torch's defaults
    rate adjustment match_rms_adamw                     Liu et al.

State: one momentum for a matrix, two moments for the rest. The orthogonalization computes in bf16 everywhere,
as its authors do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True)
class MuonGroups:
    """Parameters by role, tied ones once."""

    hidden: list[nn.Parameter]
    decayed: list[nn.Parameter]
    plain: list[nn.Parameter]

    def describe(self, weight_decay: float) -> str:
        def count(parameters: list[nn.Parameter]) -> str:
            return f"{sum(p.numel() for p in parameters):,} parameters in {len(parameters)} tensors"

        return (
            f"Muon on {count(self.hidden)}, AdamW on embeddings and head ({count(self.decayed)}), both with "
            f"weight decay {weight_decay:g}; AdamW without on {count(self.plain)}"
        )


def muon_groups(module: nn.Module) -> MuonGroups:
    """Hidden: two-dimensional weights that are neither an embedding nor the head."""
    outer = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    if head is not None:
        outer.add(id(head.weight))
    trainable = [p for p in module.parameters() if p.requires_grad]
    hidden = [p for p in trainable if p.ndim == 2 and id(p) not in outer]
    return MuonGroups(
        hidden=hidden,
        decayed=[p for p in trainable if p.ndim >= 2 and (p.ndim > 2 or id(p) in outer)],
        plain=[p for p in trainable if p.ndim < 2],
    )


class MuonWithAdamW(torch.optim.Optimizer):
    """One ``step``, one ``state`` and one list of ``param_groups`` over both."""

    def __init__(
        self,
        groups: MuonGroups,
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self._muon = torch.optim.Muon(
            groups.hidden,
            lr=learning_rate,
            weight_decay=weight_decay,
            momentum=MOMENTUM,
            nesterov=True,
            ns_steps=NEWTON_SCHULZ_STEPS,
            adjust_lr_fn="match_rms_adamw",
        )
        self._adamw = torch.optim.AdamW(
            [
                {"params": groups.decayed, "weight_decay": weight_decay},
                {"params": groups.plain, "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=betas,
            eps=eps,
            fused=True,
        )
        super().__init__([*groups.hidden, *groups.decayed, *groups.plain], {"lr": learning_rate})
        self.param_groups = [*self._muon.param_groups, *self._adamw.param_groups]
        # One dictionary for both: what is put there or taken away is so for whoever the parameter belongs to.
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        self._muon.state = self._adamw.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = closure() if closure is not None else None
        self._muon.step()
        self._adamw.step()
        return loss
