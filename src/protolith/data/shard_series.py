"""Documents in, numbered shards out: ``00000.ds``, ``00001.ds`` ... each of about the same size."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from protolith.data.tokenize_block import Documents
from protolith.formats.shard_files import ShardWriter

#: A shard is closed at the end of the block of documents that reaches this.
SHARD_TOKENS = 1 << 27


class ShardSeries:
    """Writes ``folder/00000.ds`` and on. Without documents there is no folder. Memory does not grow."""

    def __init__(
        self, folder: Path, token_bytes: int, tokenizer_name: str, *, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self.num_tokens = 0
        self.num_documents = 0
        self._folder = folder
        self._token_bytes = token_bytes
        self._tokenizer_name = tokenizer_name
        self._shard_tokens = shard_tokens
        self._count = 0
        self._shard: ShardWriter | None = None

    def __enter__(self) -> ShardSeries:
        return self

    def write(self, documents: Documents) -> None:
        """Append documents; all of one call go to the same shard."""
        if not documents.lengths:
            return
        if self._shard is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{self._count:05d}.ds"
            self._shard = ShardWriter(path, self._token_bytes, self._tokenizer_name, durable=True).__enter__()
            self._count += 1
        self._shard.write_bytes(documents.data, documents.lengths)
        self.num_tokens += sum(documents.lengths)
        self.num_documents += len(documents.lengths)
        if self._shard.num_tokens >= self._shard_tokens:
            self._close(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(kind, error, trace)

    def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.__exit__(kind, error, trace)
