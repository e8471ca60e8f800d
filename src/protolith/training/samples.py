"""Texts that the model writes during training, for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import nn

from protolith.data.tokenizer import TextTokenizer
from protolith.model.generate import generate
from protolith.training.status import utc_now

_NEW_TOKENS = 64


class Sampler:
    """Greedy continuations of fixed prompts after each validation; has its own randomness.

    Written to the console and, one JSON object a line, to ``monitors/samples.jsonl``.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: TextTokenizer,
        prompts: tuple[str, ...],
        folder: Path,
        say: Callable[[str], None],
        *,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        writes: bool = True,
    ) -> None:
        self._module = module
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._path = folder / "samples.jsonl"
        self._say = say
        self._around = around
        self._writes = writes

    def __call__(self, step: int) -> None:
        lines = []
        for prompt in self._prompts:
            ids = self._tokenizer.encode(prompt) or [self._tokenizer.eos_id]
            with self._around():
                new = generate(
                    self._module,
                    ids,
                    eos_id=self._tokenizer.eos_id,
                    max_new_tokens=_NEW_TOKENS,
                    temperature=0.0,
                )
            text = self._tokenizer.decode(new)
            self._say(f"step {step}  sample {prompt!r} -> {text!r}")
            lines.append(json.dumps({"step": step, "time": utc_now(), "prompt": prompt, "text": text}))
        if not self._writes:
            return
        try:
            with open(self._path, "a", encoding="utf-8") as out:
                out.write("".join(line + "\n" for line in lines))
        except OSError as error:
            self._say(f"warning: samples not written: {error.strerror}")
