"""From the parts of finished tasks to the shards of the result: joined, proved, published together.

Comes in: parts in reading order (``.tokenize/parts``). Goes out: ``00000.ds`` and on in the output folder,
each closed by the document that reaches the size asked for, and ``manifest.json`` with a digest of every
file. How the work was cut into tasks leaves no trace.

- Shards grow in ``.tokenize/shards``, one after another, and become whole by rename; a killed join goes on
  after the last whole one. Parts that are wholly in whole shards are removed on the way, so that the disk
  holds the tokens once and not twice.
- When all are whole and proved, the manifest is written beside them; its being there means: publish. The
  shards are moved up, then the manifest, then the job's folder goes. Each step may be killed and repeated.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.data.tokenize_report import JobDir, TaskReport
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import RunFailedError
from protolith.formats.rundir import fsync_dir
from protolith.formats.shard_files import (
    ShardWriter,
    index_path_of,
    metadata_path_of,
    read_shard_info,
)
from protolith.formats.shard_manifest import MANIFEST_NAME, ManifestFile, ShardManifest, write_manifest

_COPY_BYTES = 4 << 20

#: Called with (bytes joined and digested, bytes in all); what it raises ends the work.
OnJoined = Callable[[int, int], None]


@dataclass(frozen=True)
class _Part:
    path: Path
    first_token: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.first_token + self.num_tokens


def join_parts(
    job: JobDir,
    results: Sequence[TaskReport],
    tokenizer: TextTokenizer,
    shard_tokens: int,
    facts: dict[str, Any],
    on_joined: OnJoined,
) -> None:
    """Make shards of all parts and write the manifest that lets them be published. ``facts``: the job, for
    the manifest.

    Raises:
        ShardError: a part or a shard disagrees with itself. RunFailedError: counts do not add up.
    """
    parts = list(_parts(job, results))
    token_bytes = tokenizer.token_bytes
    num_tokens = parts[-1].end if parts else 0
    num_documents = sum(report.documents for report in results)
    job.shards.mkdir(exist_ok=True)
    shards = _whole_shards(job)
    position = sum(read_shard_info(path).num_tokens for path in shards)
    removed = 0

    def tell(tokens: int, digested: int) -> None:
        on_joined(tokens * token_bytes + digested, 2 * num_tokens * token_bytes)

    while position < num_tokens:
        path = job.shards / f"{len(shards):05d}.ds"
        with ShardWriter(path, token_bytes, tokenizer.name, durable=True) as shard:
            for data, lengths in _documents(parts, position, shard_tokens, token_bytes):
                shard.write_bytes(data, lengths)
                tell(position + shard.num_tokens, 0)
        fsync_dir(job.shards)
        position += shard.num_tokens
        shards.append(path)
        removed = _remove_parts(parts, removed, position)
    manifest = _manifest(shards, tokenizer, facts, lambda digested: tell(num_tokens, digested))
    if (manifest.num_tokens, manifest.num_documents) != (num_tokens, num_documents):
        raise RunFailedError(
            f"shards hold {manifest.num_documents} documents and {manifest.num_tokens} tokens, tasks made"
            f" {num_documents} and {num_tokens}",
            where=str(job.shards),
            hint="say --overwrite to start again",
        )
    write_manifest(job.root, manifest)


def publish(job: JobDir, output: Path) -> None:
    """Move whole shards up, then their manifest, then remove the job's folder."""
    if job.shards.is_dir():
        for path in _whole_shards(job):
            for file in (metadata_path_of(path), index_path_of(path), path):
                if file.exists():
                    os.replace(file, output / file.name)
    fsync_dir(output)
    os.replace(job.root / MANIFEST_NAME, output / MANIFEST_NAME)
    fsync_dir(output)
    shutil.rmtree(job.root, ignore_errors=True)


def is_joined(job: JobDir) -> bool:
    return (job.root / MANIFEST_NAME).exists()


def _parts(job: JobDir, results: Sequence[TaskReport]) -> Iterator[_Part]:
    first = 0
    for task, report in enumerate(results):
        for number, (num_tokens, _documents_in_it) in enumerate(report.parts):
            if num_tokens:
                yield _Part(job.parts(task) / f"{number:05d}.ds", first, num_tokens)
            first += num_tokens


def _whole_shards(job: JobDir) -> list[Path]:
    return sorted(path for path in job.shards.glob("*.ds") if not path.name.startswith("."))


def _documents(
    parts: Sequence[_Part], position: int, shard_tokens: int, token_bytes: int
) -> Iterator[tuple[bytes, array[int]]]:
    """Documents from ``position`` up to the one that reaches ``shard_tokens``, some at a time."""
    goal = position + shard_tokens
    at = bisect_left(parts, position + 1, key=lambda part: part.end)
    for part in parts[at:]:
        read_shard_info(part.path)
        ends = _ends(part)
        first = bisect_left(ends, position - part.first_token + 1) if position > part.first_token else 0
        last = min(bisect_left(ends, goal - part.first_token) + 1, len(ends))
        with open(part.path, "rb") as file:
            start = ends[first - 1] if first else 0
            file.seek(start * token_bytes)
            while first < last:
                stop = max(bisect_left(ends, start + _COPY_BYTES // token_bytes, first, last), first + 1)
                lengths = array("Q", (ends[n] - (ends[n - 1] if n else 0) for n in range(first, stop)))
                data = file.read((ends[stop - 1] - start) * token_bytes)
                yield data, lengths
                first, start = stop, ends[stop - 1]
        if last and part.first_token + ends[last - 1] >= goal:
            return


def _ends(part: _Part) -> array[int]:
    ends = array("Q")
    with open(index_path_of(part.path), "rb") as file:
        ends.frombytes(file.read())
    if sys.byteorder == "big":
        ends.byteswap()
    return ends


def _remove_parts(parts: Sequence[_Part], start: int, position: int) -> int:
    """Remove parts from number ``start`` on that end before ``position``; returns the number of the next."""
    while start < len(parts) and parts[start].end <= position:
        path = parts[start].path
        for file in (path, index_path_of(path), metadata_path_of(path)):
            file.unlink(missing_ok=True)
        start += 1
    return start


def _manifest(
    shards: Sequence[Path], tokenizer: TextTokenizer, facts: dict[str, Any], on_bytes: Callable[[int], None]
) -> ShardManifest:
    """Prove each shard and digest its files."""
    files: dict[str, ManifestFile] = {}
    num_documents = num_tokens = digested = 0
    for path in shards:
        info = read_shard_info(path)
        num_documents += info.num_documents
        num_tokens += info.num_tokens
        for file in (path, index_path_of(path), metadata_path_of(path)):
            sha256 = hashlib.sha256()
            with open(file, "rb") as data:
                while piece := data.read(_COPY_BYTES):
                    sha256.update(piece)
                    digested += len(piece) if file == path else 0
                    on_bytes(digested)
            files[file.name] = ManifestFile(file.stat().st_size, sha256.hexdigest())
    return ShardManifest(
        tokenizer={
            "name": tokenizer.name,
            "digest": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "eos_token": tokenizer.eos_token,
            "eos_id": tokenizer.eos_id,
        },
        token_bytes=tokenizer.token_bytes,
        num_documents=num_documents,
        num_tokens=num_tokens,
        files=files,
        job=facts,
    )
