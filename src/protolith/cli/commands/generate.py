"""``protolith generate``: let a model go on with a text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from protolith.cli.model_source import find_model
from protolith.cli.render import Form, FormOption, print_json, say

if TYPE_CHECKING:
    from protolith.data.tokenizer import TextTokenizer


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model, run or checkpoint folder.")],
    prompt: Annotated[
        str,
        typer.Option("--prompt", help="Text to go on from; - reads it from stdin. Default: a new document."),
    ] = "",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Tokens to write at most.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0: always the likeliest token.")
    ] = 0.8,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="The same seed, the same text.")
    ] = 0,
    form: FormOption = Form.text,
) -> None:
    """Let a model go on with a text."""
    source = find_model(model)
    if prompt == "-":
        prompt = sys.stdin.read()

    from protolith.data.tokenizer import load_tokenizer
    from protolith.distributed.world import single_process
    from protolith.model.export import load_exported
    from protolith.model.generate import generate as write

    tokenizer = load_tokenizer(source.folder, (source.run_config().get("data") or {}).get("eos_token"))
    module = load_exported(source.folder).to(single_process().device)
    ids = tokenizer.encode(prompt) or [tokenizer.eos_id]
    new = list(
        write(
            module,
            ids,
            eos_id=tokenizer.eos_id,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
        )
    )
    ended = bool(new) and new[-1] == tokenizer.eos_id
    text = _continuation(tokenizer, prompt, ids, new[:-1] if ended else new)
    if form is Form.json:
        print_json(
            {
                "model": str(source.folder),
                "prompt": prompt,
                "text": text,
                "num_prompt_tokens": len(ids),
                "num_new_tokens": len(new),
                "ended": ended,
            }
        )
    else:
        say(prompt + text)


def _continuation(tokenizer: TextTokenizer, prompt: str, ids: list[int], new: list[int]) -> str:
    """Text of the new tokens as it reads after the prompt: some tokenizers put spaces between tokens."""
    whole = tokenizer.decode([*ids, *new])
    return whole[len(prompt) :] if prompt and whole.startswith(prompt) else tokenizer.decode(new)
