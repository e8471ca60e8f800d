"""Proof that documents in one row do not see each other, on the very model that is trained.

Where positions restart, transformers keeps attention inside each run of positions, in most architectures and
backends. Where one does not, nothing would tell: the mask would be a setting without effect. So the built
model is asked: in a row of documents, the gradient of one's loss with respect to what the others' tokens are
embedded as must be zero. Costs one forward and backward pass over a few tokens.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from protolith.errors import ModelError
from protolith.model.loss import LossModel

_LENGTHS = (5, 7, 4)
#: Leaks are compared with the gradient inside a document; a leak is not 1e-6 of it, it is of its size.
_NOTHING = 1e-6


def prove_documents_apart(loss: LossModel, autocast: AbstractContextManager[Any] | None = None) -> None:
    """Ask the model. Neither weights, gradients nor random state are changed.

    Raises:
        ModelError: documents in one row see each other.
    """
    seen, inside = leak(loss, autocast)
    if seen > _NOTHING * inside:
        raise ModelError(
            f"{type(loss.hf).__name__} does not keep documents in one row apart: a document's loss depends "
            f"on the one before it (gradient {seen:.2g}, {inside:.2g} inside the document)",
            where="data.document_mask",
            hint="use document_mask: false, another model.attention, or packing: false",
        )


def leak(
    loss: LossModel, autocast: AbstractContextManager[Any] | None = None, *, restart: bool = True
) -> tuple[float, float]:
    """(largest gradient that reaches other documents, largest inside the document), of the middle one of
    three documents in each of two rows. ``restart=False``: positions run on, as without a mask."""
    table = loss.hf.get_input_embeddings()
    device, vocab = table.weight.device, table.weight.shape[0]
    length = sum(_LENGTHS)
    inputs_BT = (torch.arange(2 * length, device=device) * 7 % vocab).view(2, length)
    targets_BT = torch.full_like(inputs_BT, -100)
    begin, end = _LENGTHS[0], _LENGTHS[0] + _LENGTHS[1]
    targets_BT[:, begin : end - 1] = inputs_BT[:, begin + 1 : end]
    runs = _LENGTHS if restart else (length,)
    positions_T = torch.cat([torch.arange(run, device=device) for run in runs])
    held: list[Tensor] = []
    hook = table.register_forward_hook(lambda _module, _args, output: held.append(output))
    was_training = loss.training
    loss.eval()
    try:
        with torch.enable_grad(), autocast if autocast is not None else torch.autocast("cpu", enabled=False):
            total = loss(inputs_BT, targets_BT, positions_T.expand(2, -1).contiguous())
            (gradient,) = torch.autograd.grad(total, held[:1]) if len(held) == 1 else (_joined(total, held),)
    finally:
        hook.remove()
        loss.train(was_training)
    size_BT = gradient.float().abs().amax(dim=-1).view(2, length)
    inside = size_BT[:, begin:end].max()
    size_BT[:, begin:end] = 0
    return float(size_BT.max()), float(inside)


def _joined(total: Tensor, held: list[Tensor]) -> Tensor:
    """Gradients of models that go row by row."""
    return torch.cat(torch.autograd.grad(total, held, allow_unused=False))
