"""Text from a model, one token at a time, without disturbing a run that trains it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from protolith.errors import InvalidValueError


@torch.no_grad()
def generate(
    module: nn.Module,
    prompt_ids: Sequence[int],
    *,
    eos_id: int | Collection[int] | None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    max_context: int | None = None,
) -> list[int]:
    """Continue ``prompt_ids`` (at least one id); returns the new ids only, an end-of-text id included.

    Args:
        module: a transformers causal language model on any device.
        eos_id: one id or several that end the text; None = only ``max_new_tokens`` does.
        temperature: 0 = always the likeliest token; else logits are divided by it and one is drawn.
        top_p: draw among the likeliest tokens that together hold this share (Holtzman et al., 2020).
        seed: of this call's own generator: the same call gives the same ids, training's random state is not
            used.
        max_context: most positions the model can look back on (default: what its config says); older ids are
            then left out.

    Modes (training or not) of all parts are put back as they were.

    Raises:
        InvalidValueError: an empty prompt, ids beyond the vocabulary, or a setting out of range.
    """
    _check(module, prompt_ids, max_new_tokens, temperature, top_p)
    device = next(module.parameters()).device
    limit = max_context or getattr(module.config, "max_position_embeddings", None)
    ends = frozenset() if eos_id is None else frozenset({eos_id} if isinstance(eos_id, int) else eos_id)
    generator = torch.Generator(device=device).manual_seed(seed)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        ids, new = list(prompt_ids), []
        step = _Step(module, device)
        for _ in range(max_new_tokens):
            logits_V = step.next_logits(ids, limit)
            token = _choose(logits_V, temperature, top_p, generator)
            ids.append(token)
            new.append(token)
            if token in ends:
                break
        return new
    finally:
        for part, mode in modes:
            part.training = mode


class _Step:
    """Logits after the last id; keys and values of earlier positions are kept while the window only grows."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module
        self.device = device
        # The keyword was renamed within transformers 5.
        names = inspect.signature(module.forward).parameters
        self.keyword = next((name for name in ("cache", "past_key_values") if name in names), None)
        self.memory: Any = None
        self.num_done = 0

    def next_logits(self, ids: list[int], limit: int | None) -> Tensor:
        if limit is not None and len(ids) > limit:  # the window slides: positions change, nothing kept fits
            return self._run(ids[-limit:], use_cache=False).logits[0, -1].float()
        if self.keyword is None:
            return self._run(ids, use_cache=False).logits[0, -1].float()
        known = {} if self.memory is None else {self.keyword: self.memory}
        output = self._run(ids[self.num_done :], use_cache=True, **known)
        self.memory = getattr(output, self.keyword, None)
        self.num_done = len(ids) if self.memory is not None else 0
        return output.logits[0, -1].float()

    def _run(self, ids: list[int], **arguments: Any) -> Any:
        return self.module(input_ids=torch.tensor([ids], device=self.device), **arguments)


def _choose(logits_V: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    probabilities_V = torch.softmax((logits_V - logits_V.max()) / temperature, dim=-1)
    if top_p < 1.0:
        ordered_V, order_V = probabilities_V.sort(descending=True)
        beyond_V = ordered_V.cumsum(0) - ordered_V >= top_p  # the first token always stays
        probabilities_V = probabilities_V.scatter(0, order_V, ordered_V.masked_fill(beyond_V, 0.0))
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def _check(
    module: nn.Module, prompt_ids: Sequence[int], max_new_tokens: int, temperature: float, top_p: float
) -> None:
    vocab = int(module.get_input_embeddings().weight.shape[0])
    if not prompt_ids:
        raise InvalidValueError(
            "the prompt has no tokens", hint="start from the end-of-text id for free text"
        )
    wrong = next((token for token in prompt_ids if not 0 <= token < vocab), None)
    if wrong is not None:
        raise InvalidValueError(f"prompt id {wrong} is beyond the model's vocabulary of {vocab}")
    if max_new_tokens < 0:
        raise InvalidValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    if not 0 <= temperature < float("inf"):
        raise InvalidValueError(f"temperature must be 0 or more, not {temperature}")
    if not 0 < top_p <= 1:
        raise InvalidValueError(f"top_p must be above 0 and at most 1, not {top_p}")
