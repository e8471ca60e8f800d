"""``manifest.json`` beside a folder of token shards: what the folder holds, with digests, written last.

    {"version": 1, "tokenizer": {"name", "digest", "vocab_size", "eos_token", "eos_id"}, "token_bytes": 2,
     "num_documents": ..., "num_tokens": ...,
     "files": {"00000.ds": {"bytes": ..., "sha256": "..."}, "00000.ds.index": ..., ...},
     "job": {...}}

``job`` says what made the folder (inputs, options, what was left out); whoever only reads shards needs none
of it.

Names are relative to the folder, with ``/``. A folder without one is a folder of shards all the same: other
tools write none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from protolith.errors import ShardError
from protolith.formats.rundir import read_json, write_json

MANIFEST_NAME = "manifest.json"
_VERSION = 1


@dataclass(frozen=True)
class ManifestFile:
    """Size and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardManifest:
    """``tokenizer``: name, digest, vocab_size, eos_token, eos_id of the one that made the ids; ``files``: by
    name, companions included."""

    tokenizer: Mapping[str, Any]
    token_bytes: int
    num_documents: int
    num_tokens: int
    files: Mapping[str, ManifestFile] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)


def write_manifest(folder: Path, manifest: ShardManifest) -> None:
    """Write it whole, by rename."""
    write_json(folder / MANIFEST_NAME, {"version": _VERSION, **asdict(manifest)})


def read_manifest(folder: Path) -> ShardManifest | None:
    """The manifest of a folder; None when there is none, or when the file of that name is another program's.

    Raises:
        ShardError: it is one of ours and damaged, or of another version.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        data = read_json(path)
    except ValueError as error:
        raise ShardError(f"the manifest is no JSON: {error}", where=str(path)) from error
    if not isinstance(data, dict) or "files" not in data or "token_bytes" not in data:
        return None
    try:
        if data["version"] != _VERSION:
            raise ShardError(f"a manifest of version {data['version']}, not {_VERSION}", where=str(path))
        return ShardManifest(
            tokenizer=dict(data["tokenizer"]),
            token_bytes=int(data["token_bytes"]),
            num_documents=int(data["num_documents"]),
            num_tokens=int(data["num_tokens"]),
            files={
                str(name): ManifestFile(int(entry["bytes"]), str(entry["sha256"]))
                for name, entry in data["files"].items()
            },
            job=dict(data.get("job") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ShardError(
            f"the manifest cannot be read: {error!r}", where=str(path), hint="remove it, or tokenize again"
        ) from error
