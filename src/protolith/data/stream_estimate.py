"""How many rows an epoch of streamed text will have, from a sample that depends on the text alone.

Comes in: a ``TextStream``. Goes out: ``StreamEstimate``, which is exact when the sample was everything.

Sampled are up to 16 chunks spread evenly over the text, of a compressed file its beginning (about 1 MiB of
compressed bytes, of which 256 KiB of text are tokenized); each stands for the bytes around it. The same text
gives the same numbers, so a resumed run plans what the first one planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protolith.data.json_lines import plain_bytes_of_head
from protolith.data.stream_tally import StreamTally, raise_fault
from protolith.data.stream_text import TextBlock
from protolith.data.streams import TextStream
from protolith.data.tokenize_block import tokenize_block
from protolith.errors import CorpusTooSmallError

_SAMPLED_CHUNKS = 16
_HEAD_BYTES = 1 << 20
_LONG_BYTES = 1 << 22


@dataclass(frozen=True)
class StreamEstimate:
    """Of one epoch: rows, and targets in them. exact: the whole text was looked at; sample_bytes: how much
    of it was tokenized. notes: to be said once."""

    num_rows: int
    num_targets: int
    exact: bool
    sample_bytes: int
    notes: tuple[str, ...] = ()


@dataclass
class _Sum:
    text_bytes: float = 0.0
    tokens: int = 0
    documents: int = 0
    trained: int = 0
    cut: int = 0
    num_cut: int = 0


def estimate_rows(stream: TextStream, poll: Callable[[], None] | None = None) -> StreamEstimate:
    """Count a sample out.

    Raises:
        BadRecordError: a damaged line in the sample, or too many records without text.
        CorpusTooSmallError: nothing to train on, as far as can be seen.
    """
    text, seen = stream.text, _Sum()
    sampled_chunks = _spread(text.num_chunks)
    tally = StreamTally(text)
    total_bytes, whole = _plain_bytes(stream)
    for block in _sample(stream, sampled_chunks):
        result = tokenize_block(block.data, stream.tokenizer, stream.options, poll)
        if result.found.fault is not None:
            raise_fault(text, block, result.found.fault)
        tally.add(block, result)
        seen.text_bytes += len(block.data)
        for length in result.train.lengths:
            seen.tokens += length
            if length >= 2:
                seen.documents += 1
                seen.trained += min(length - 1, stream.seq_len)
                seen.num_cut += length > stream.seq_len + 1
                seen.cut += max(0, length - 1 - stream.seq_len)
    exact = whole and len(sampled_chunks) == text.num_chunks and seen.text_bytes >= total_bytes
    if exact:
        tally.check()
    scale = 1.0 if exact else total_bytes / max(seen.text_bytes, 1.0)
    if exact and not seen.documents:
        raise CorpusTooSmallError(f"no documents in {tally.records} records", where=text.files[0].name)
    if stream.packing:
        tokens = round(seen.tokens * scale)
        if exact and stream.packing is True and tokens < stream.seq_len + 1:
            raise CorpusTooSmallError(
                f"{tokens} tokens found, {stream.seq_len + 1} needed for one row of {stream.seq_len}",
                hint="use more data, or a smaller sequence length",
            )
        masked = stream.num_lanes
        if stream.document_mask or stream.packing == "best_fit":
            masked = max(masked, round(seen.documents * scale))
        num_targets = max(1, tokens - masked)
        num_rows = max(1, math.ceil((tokens - stream.num_lanes) / stream.seq_len))
    else:
        num_rows, num_targets = max(1, round(seen.documents * scale)), max(1, round(seen.trained * scale))
    notes = _notes(stream, seen, exact, round(seen.text_bytes))
    return StreamEstimate(num_rows, num_targets, exact, round(seen.text_bytes), notes)


def _spread(num_chunks: int) -> list[int]:
    count = min(num_chunks, _SAMPLED_CHUNKS)
    return sorted({number * num_chunks // count for number in range(count)})


def _sample(stream: TextStream, chunks: list[int]) -> Iterator[TextBlock]:
    """First blocks of these chunks. One with a very long line would take longer than all others together, so
    it is passed over, unless there is nothing else."""
    long, found = None, False
    for chunk in chunks:
        block = next(stream.text.parts(chunk), None)
        if block is None:
            continue
        if len(block.data) > _LONG_BYTES:
            long = block if long is None else long
            continue
        found = found or bool(block.data)
        yield block
    if long is not None and not found:
        yield long


def _plain_bytes(stream: TextStream) -> tuple[float, bool]:
    """Bytes of the text when it is not compressed, and whether they are counted exactly: the beginnings of up
    to 16 compressed files say by how much they grow."""
    text = stream.text
    compressed = [file for number, file in enumerate(text.files) if text.is_compressed(number)]
    plain = float(text.total_bytes - sum(file.size_bytes for file in compressed))
    if not compressed:
        return plain, True
    chosen = [compressed[number] for number in _spread(len(compressed))]
    heads = [plain_bytes_of_head(file, _HEAD_BYTES) for file in chosen]
    taken = sum(min(file.size_bytes, _HEAD_BYTES) for file in chosen)
    whole = len(chosen) == len(compressed) and all(file.size_bytes <= _HEAD_BYTES for file in chosen)
    growth = sum(heads) / taken
    return plain + (sum(heads) if whole else growth * sum(file.size_bytes for file in compressed)), whole


def _notes(stream: TextStream, seen: _Sum, exact: bool, sample_bytes: int) -> tuple[str, ...]:
    notes = []
    if not exact:
        notes.append(
            f"the text is streamed: rows and steps are estimated from a sample of {sample_bytes:,} bytes; "
            "epochs end when the text does, be that earlier or later"
        )
    if seen.num_cut and not stream.packing:
        about = "" if exact else "about "
        notes.append(
            f"{about}{100 * seen.num_cut / seen.documents:.1f} % of the documents are longer than a row of "
            f"{stream.seq_len}: {about}{100 * seen.cut / seen.tokens:.1f} % of all tokens are cut and never "
            "trained on; packing keeps them"
        )
    return tuple(notes)
