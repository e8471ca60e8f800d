"""Cross entropy of a language-model head without the logits of the whole batch.

In:   hidden_ND (the body's output, N = B*T rows), weight_VD and bias_V of the head, targets_N (-100: no
target).
Out:  the SUM of token losses, an fp32 scalar.

Rows are walked in chunks. For each chunk the logits exist once, in fp32, and everything that needs them
is taken before they go: the losses, and (when training) ``softmax - onehot`` with its two products, the
gradient of the hidden rows and of the head. So the backward pass only multiplies what is already there
by the incoming scalar; there is no second product with the head and nothing of size N x V is kept.

Cost: one [chunk, V] fp32 buffer (two while a chunk is computed in lower precision) and, when training,
one gradient of the head and one of the hidden rows: the same that backward would have made.

Precision: the three products run in ``compute_dtype`` (what autocast asks for); softmax, the losses and
their sum, and the sum of the head's gradient over chunks are fp32.

What it does not do: anything to the logits between head and softmax. See ``head.py`` for models that do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100

#: fp16 cannot hold probabilities far below 6e-5; they are kept times this power of two until they are summed.
_FP16_LIFT = 256.0


# Traced, the walk would be unrolled: compile time would grow with the batch, for no gain in speed.
@torch.compiler.disable
def chunked_loss_sum(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, chunk_rows: int
) -> Tensor:
    """Sum of token losses (fp32 scalar); differentiable once in hidden, weight and bias."""
    device = hidden_ND.device.type
    compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VD.dtype
    training = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_VD.requires_grad)
    with torch.autocast(device, enabled=False):
        if not training:
            return _loss_only(hidden_ND, weight_VD, bias_V, targets_N, chunk_rows, compute)
        return _ChunkedLoss.apply(hidden_ND, weight_VD, bias_V, targets_N, chunk_rows, compute)


def _loss_only(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    chunk_rows: int,
    compute: torch.dtype,
) -> Tensor:
    weight_DV = weight_VD.to(compute).t()
    total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
    for start in range(0, hidden_ND.shape[0], chunk_rows):
        targets_C = targets_N[start : start + chunk_rows]
        logits_CV = torch.mm(hidden_ND[start : start + chunk_rows].to(compute), weight_DV).float()
        if bias_V is not None:
            logits_CV += bias_V
        total = total + F.cross_entropy(logits_CV, targets_C, ignore_index=IGNORED, reduction="sum")
    return total


class _ChunkedLoss(torch.autograd.Function):
    """Forward makes the gradients too; backward scales them. May be run backward once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        chunk_rows: int,
        compute: torch.dtype,
    ) -> Tensor:
        wants_weight = ctx.needs_input_grad[1]
        num_rows, device = hidden_ND.shape[0], hidden_ND.device
        weight = weight_VD.to(compute)
        weight_DV = weight.t()
        lift = _FP16_LIFT if compute == torch.float16 else 1.0
        total = torch.zeros((), dtype=torch.float32, device=device)
        grad_hidden_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if wants_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if bias_V is not None else None

        for start in range(0, num_rows, chunk_rows):
            rows = slice(start, min(start + chunk_rows, num_rows))
            targets_C = targets_N[rows]
            real_C1 = (targets_C != IGNORED).unsqueeze(1)
            picks_C1 = targets_C.clamp_min(0).unsqueeze(1)
            hidden_CD = hidden_ND[rows].to(compute)

            logits_CV = torch.mm(hidden_CD, weight_DV).float()
            if bias_V is not None:
                logits_CV += bias_V
            # One buffer all the way: logits, then their exponentials, then probabilities, then the gradient.
            logits_CV -= logits_CV.amax(dim=1, keepdim=True)
            picked_C1 = logits_CV.gather(1, picks_C1)
            grad_CV = logits_CV.exp_()
            sums_C1 = grad_CV.sum(dim=1, keepdim=True)
            total = total + ((sums_C1.log() - picked_C1) * real_C1).sum()
            grad_CV *= lift / sums_C1
            grad_CV.scatter_add_(1, picks_C1, torch.full_like(sums_C1, -lift))
            if grad_bias_V is not None:
                grad_bias_V += torch.mv(grad_CV.t(), real_C1.squeeze(1).float()) / lift
            grad_CV = grad_CV.to(compute)
            # Rows without a target are silenced on the narrow side (width D), not over the vocabulary.
            grad_hidden_ND[rows] = _product(grad_CV, weight) * (real_C1 / lift)
            if grad_weight_VD is not None:
                silenced_CD = hidden_CD * real_C1
                if compute == torch.float32:
                    grad_weight_VD.addmm_(grad_CV.t(), silenced_CD)
                else:
                    grad_weight_VD.add_(_product(grad_CV.t(), silenced_CD), alpha=1.0 / lift)
            del grad_CV, logits_CV

        ctx.weight_dtype = weight_VD.dtype
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD, grad_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        grad_hidden_ND, grad_weight_VD, grad_bias_V = ctx.saved_tensors
        # In place: a second gradient of the head would be the largest tensor of the step. Going backward
        # twice is noticed by autograd, which counts the writes to what was saved.
        grad_hidden_ND = grad_hidden_ND.mul_(grad_output)
        if grad_weight_VD is not None:
            grad_weight_VD = grad_weight_VD.mul_(grad_output).to(ctx.weight_dtype)
        if grad_bias_V is not None:
            grad_bias_V = grad_bias_V.mul_(grad_output).to(ctx.weight_dtype)
        return grad_hidden_ND, grad_weight_VD, grad_bias_V, None, None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A product whose result is fp32 where the factors are fp16 (whose range ends at 65,504)."""
    if left.dtype == torch.float16:
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left.float(), right.float())
    return torch.mm(left, right)
