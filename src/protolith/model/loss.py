"""The training loss of a transformers model: hidden states in, sum of token losses out.

In:   inputs_BT, targets_BT (int64; target -100 = none; already shifted: targets_BT[b, t] follows inputs_BT[b,
      t]); position_ids_BT where documents do not see each other: from 0 in each document, and in each row.
Out:  fp32 scalar, the SUM of the token losses. Whoever steps divides by the number of targets of the whole
      global batch, so the result does not depend on how that batch was split.

Two ways to the same number, chosen by what the model is:

    chunked   the head is linear (almost every architecture): see ``chunked_loss.py``. At small vocabularies
              it is no slower than one pass over all logits (measured at 4,096, eager and compiled), so there
              is no third way for them
    own       the model changes its logits in a way of its own: its own forward, one row of the batch at a
              time, recomputed in the backward pass so that logits are never kept

Under autocast products run in the lower precision, softmax and sums in fp32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protolith.model.chunked_loss import IGNORED, chunked_loss_sum
from protolith.model.head import HeadForm, find_head_form

#: Device -> (bytes of one chunk's fp32 logits, most rows of it). Larger chunks gain a few per cent at most
#: on a CPU; on a GPU the head's gradient is read and written once a chunk, which wants fewer of them.
_CHUNKS = {"cpu": (80_000_000, 512), "cuda": (1_000_000_000, 4096)}


def chunk_rows_for(vocab: int, device_type: str) -> int:
    """Rows of a chunk: a multiple of 64 (64 at least) whose logits stay within the device's budget."""
    budget_bytes, most = _CHUNKS.get(device_type, _CHUNKS["cpu"])
    return max(64, min(most, budget_bytes // (4 * vocab) // 64 * 64))


class LossModel(nn.Module):
    """``loss(inputs_BT, targets_BT) -> fp32 scalar``, around a transformers causal language model.

    Args:
        hf: the transformers module; reachable as ``.hf`` and not changed.
        chunk_rows: rows of the flattened [B*T, D] whose logits exist at one time; default by vocabulary and
            device, see ``chunk_rows_for``.
        form: how logits come about; asked of the model itself when not given.

    Attributes:
        notes: what a person should be told once about how the loss is computed.
    """

    def __init__(
        self,
        hf: nn.Module,
        *,
        chunk_rows: int | None = None,
        form: HeadForm | None = None,
    ) -> None:
        super().__init__()
        self.hf = hf
        self.chunk_rows = chunk_rows
        self.form = find_head_form(hf) if form is None else form
        # Flash attention sees restarting positions only in a batch of one row: all rows become one, which
        # their positions keep apart as they keep documents apart.
        self.one_line = "flash" in str(getattr(hf.config, "_attn_implementation", ""))
        self.notes: tuple[str, ...] = ()
        if not self.form.linear:
            self.notes = (
                f"{type(hf).__name__} goes through its own forward for the loss, row by row and computed "
                f"twice, because {self.form.reason}",
            )

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor, position_ids_BT: Tensor | None = None) -> Tensor:
        if not self.form.linear:
            return self._own_loss(inputs_BT, targets_BT, position_ids_BT)
        positions = {}
        if position_ids_BT is not None:
            if self.one_line:
                inputs_BT, position_ids_BT = inputs_BT.view(1, -1), position_ids_BT.view(1, -1)
            positions = {"position_ids": position_ids_BT}
        body = self.hf.base_model(input_ids=inputs_BT, use_cache=False, **positions)
        hidden_ND = body.last_hidden_state.flatten(0, 1)
        if self.form.scale != 1.0:
            hidden_ND = hidden_ND * self.form.scale
        head = self.hf.get_output_embeddings()
        targets_N = targets_BT.flatten()
        bias_V = head.bias if head.bias is None or self.form.scale == 1.0 else head.bias * self.form.scale
        rows = self.chunk_rows or chunk_rows_for(head.weight.shape[0], hidden_ND.device.type)
        return chunked_loss_sum(hidden_ND, head.weight, bias_V, targets_N, rows)

    def _own_loss(self, inputs_BT: Tensor, targets_BT: Tensor, position_ids_BT: Tensor | None) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=inputs_BT.device)
        for b in range(inputs_BT.shape[0]):
            row = slice(b, b + 1)
            positions_1T = None if position_ids_BT is None else position_ids_BT[row]
            arguments = (inputs_BT[row], targets_BT[row], positions_1T)
            if torch.is_grad_enabled():
                total = total + checkpoint(self._own_row, *arguments, use_reentrant=False)
            else:
                total = total + self._own_row(*arguments)
        return total

    def _own_row(self, inputs_1T: Tensor, targets_1T: Tensor, positions_1T: Tensor | None) -> Tensor:
        positions = {} if positions_1T is None else {"position_ids": positions_1T}
        logits_NV = self.hf(input_ids=inputs_1T, use_cache=False, **positions).logits.flatten(0, 1).float()
        return F.cross_entropy(logits_NV, targets_1T.flatten(), ignore_index=IGNORED, reduction="sum")
