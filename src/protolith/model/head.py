"""What a model does between its last hidden states and its logits, found out by asking it.

The chunked loss wants ``logits = scale * (hidden @ weight.T + bias)``. Most architectures do that (scale 1);
some multiply (Cohere, Granite), some bend (Gemma's soft cap), some hide the head elsewhere. Reading source or
config names would miss the next one, so the model itself is run on a few tokens: a hook on the head makes its
output large (a soft cap does not show on the small logits of a fresh model), and what the model returns is
compared with what the head gave. No weight, mode or random state is different afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protolith.errors import ModelError

_PROBE_TOKENS = 8
_PROBE_AMPLITUDE = 20.0


@dataclass(frozen=True)
class HeadForm:
    """How logits come about.

    ``linear``: as ``scale * (hidden @ weight.T + bias)``, so the chunked loss applies. Otherwise ``reason``
    says what differs and the loss must go through the model's own forward.
    """

    linear: bool
    scale: float = 1.0
    reason: str = ""


def find_head_form(hf: nn.Module) -> HeadForm:
    """Run ``hf`` on a few tokens and see how its logits are made.

    Raises:
        ModelError: the model sees tokens to the right (it is not causal) or gives no logits.
    """
    device = next(hf.parameters()).device
    modes = [(module, module.training) for module in hf.modules()]
    devices = [device] if device.type == "cuda" else []
    hf.eval()
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            _require_causal(hf, device)
            return _compare(hf, device)
    finally:
        for module, mode in modes:
            module.training = mode


def _probe_ids(hf: nn.Module, device: torch.device) -> Tensor:
    """Distinct-looking ids inside the vocabulary, the same each time."""
    vocab = int(hf.get_input_embeddings().weight.shape[0])
    return ((torch.arange(_PROBE_TOKENS) * 7919 + 3) % vocab).unsqueeze(0).to(device)


def _logits(hf: nn.Module, ids_BT: Tensor) -> Tensor:
    output: Any = hf(input_ids=ids_BT, use_cache=False)
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape[:2] != ids_BT.shape:
        raise ModelError(
            f"{type(hf).__name__} gives no logits for each token",
            hint="a causal language model (…ForCausalLM) is needed",
        )
    return logits


def _require_causal(hf: nn.Module, device: torch.device) -> None:
    ids_BT = _probe_ids(hf, device)
    vocab = int(hf.get_input_embeddings().weight.shape[0])
    other_BT = ids_BT.clone()
    other_BT[0, -1] = (other_BT[0, -1] + 1) % vocab
    first, second = _logits(hf, ids_BT)[0, :-1], _logits(hf, other_BT)[0, :-1]
    spread = float(first.float().std()) + 1e-12
    if float((first - second).abs().max()) > 1e-3 * spread:
        raise ModelError(
            f"{type(hf).__name__} looks at tokens to the right: it cannot be trained to predict the next one",
            hint="choose a causal architecture, or set is_decoder in its config.json",
        )


def _compare(hf: nn.Module, device: torch.device) -> HeadForm:
    head, body = hf.get_output_embeddings(), getattr(hf, "base_model", None)
    if not isinstance(head, nn.Linear) or body is None or body is hf:
        return HeadForm(linear=False, reason="its head is not one linear layer after a body")
    ids_BT = _probe_ids(hf, device)
    seen: list[tuple[Tensor, Tensor]] = []

    def enlarge(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        large = output * (_PROBE_AMPLITUDE / (float(output.float().std()) + 1e-12))
        seen.append((output, large))
        return large

    handle = head.register_forward_hook(enlarge)
    try:
        own = _logits(hf, ids_BT).float()
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0][1].shape != own.shape:
        return HeadForm(linear=False, reason="its forward does not apply the head to every token just once")
    raw, large = (tensor.float() for tensor in seen[0])
    hidden = getattr(body(input_ids=ids_BT, use_cache=False), "last_hidden_state", None)
    if hidden is None:
        return HeadForm(linear=False, reason="its body does not return hidden states")
    ours = F.linear(hidden, head.weight, head.bias).float()
    if not torch.allclose(ours, raw, rtol=1e-3, atol=1e-4 * float(raw.std())):
        return HeadForm(linear=False, reason="it changes hidden states between body and head")
    scale = float((own * large).sum() / (large * large).sum())
    if abs(scale - 1.0) < 1e-5:
        scale = 1.0
    if not torch.allclose(own, large * scale, rtol=1e-4, atol=1e-4 * abs(scale) * _PROBE_AMPLITUDE):
        return HeadForm(linear=False, reason="it changes logits after the head (a soft cap, for example)")
    return HeadForm(linear=True, scale=scale)
