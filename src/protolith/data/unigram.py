"""The loss of the simplest language model there is, to hold a trained one against."""

from __future__ import annotations

import math

import numpy as np

from protolith.data.packing import RowSource


def unigram_loss(train: RowSource, held_out: RowSource, vocab_size: int) -> float:
    """Mean negative log likelihood, in nats per token, of the held-out targets under token frequencies of
    the training targets, each count raised by one so that no token is impossible."""
    seen = _counts(train, vocab_size)
    target = _counts(held_out, vocab_size)
    log_probability = np.log(seen + 1.0) - math.log(float(seen.sum()) + vocab_size)
    return float(-(target * log_probability).sum() / max(float(target.sum()), 1.0))


def _counts(source: RowSource, vocab_size: int) -> np.ndarray:
    total = np.zeros(vocab_size, dtype=np.int64)
    for number in range(source.num_rows):
        targets = source.row(number).targets
        total += np.bincount(targets[targets >= 0], minlength=vocab_size)
    return total
