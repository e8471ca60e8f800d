"""Model vocabulary against tokenizer and data, before the first step."""

from __future__ import annotations

from protolith.errors import TokenizerError


def check_vocabulary(model_vocab: int, tokenizer_size: int | None, max_id: int | None) -> tuple[str, ...]:
    """Notes when everything that can come in has a row in the embedding.

    Args:
        model_vocab: rows of the model's embedding.
        tokenizer_size: number of ids the tokenizer knows, added tokens too; None when there is none.
        max_id: the highest id seen (in the data) or possible (in the tokenizer); None when unknown.

    A model vocabulary larger than the tokenizer (padded to a round number) is fine.

    Raises:
        TokenizerError: the tokenizer or the data hold ids that the model has no row for.
    """
    if tokenizer_size is not None and tokenizer_size > model_vocab:
        raise TokenizerError(
            f"the tokenizer knows {tokenizer_size:,} tokens, the model only {model_vocab:,}",
            where="model.overrides.vocab_size",
            hint=f"set model.overrides.vocab_size to {tokenizer_size} or more, "
            "or use the model's own tokenizer",
        )
    if max_id is not None and max_id >= model_vocab:
        raise TokenizerError(
            f"id {max_id:,} is beyond the model's vocabulary of {model_vocab:,}",
            where="model.overrides.vocab_size",
            hint=f"set model.overrides.vocab_size to {max_id + 1} or more, or use the data's own tokenizer",
        )
    if tokenizer_size is not None and tokenizer_size < model_vocab:
        return (f"{model_vocab - tokenizer_size:,} rows of the vocabulary have no token in the tokenizer",)
    return ()
