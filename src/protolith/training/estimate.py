"""How many tokens a text corpus will come to, from a sample of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protolith.data.files import DataFile
from protolith.data.json_lines import BlockReader
from protolith.data.text import read_block
from protolith.data.tokenizer import TextTokenizer

_FILES = 16


@dataclass(frozen=True)
class TokenEstimate:
    num_tokens: int
    sample_bytes: int


def estimate_tokens(files: Sequence[DataFile], tokenizer: TextTokenizer, *, text_field: str) -> TokenEstimate:
    """Tokens per byte of the first block (about 1 MiB) of up to 16 files spread over the corpus, times its
    bytes. Compressed files are measured in compressed bytes on both sides."""
    chosen = files[:: max(1, len(files) // _FILES)][:_FILES]
    tokens, sampled = 0, 0
    for file in chosen:
        block = next(iter(BlockReader(file)), None)
        if block is not None:
            tokens += sum(
                len(ids) for ids in tokenizer.encode_documents(read_block(block.data, text_field).texts)
            )
            sampled += block.read_bytes
    total = sum(file.size_bytes for file in files)
    return TokenEstimate(round(tokens / max(sampled, 1) * total), sampled)
