"""Shards against the ``manifest.json`` of their folder: sizes, digests, what is missing, what is new.

Comes in: the paths that were named and the shards behind them. Goes out: for each shard what differs, for
each manifest the files it has that the folder has not. The manifest that counts for a shard is the nearest
one from its own folder up to the folder that was named.

Sizes cost a look at the directory; digests are compared where somebody has read the file anyway, and then
the index and metadata beside it are read too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from protolith.data.files import DataFile
from protolith.errors import ProtolithError
from protolith.formats.shard_files import INDEX_SUFFIX, METADATA_SUFFIX
from protolith.formats.shard_manifest import MANIFEST_NAME, ManifestFile, ShardManifest, read_manifest

_COMPANIONS = (INDEX_SUFFIX, METADATA_SUFFIX)


@dataclass(frozen=True)
class FolderManifest:
    """A manifest, or why it cannot be read (``problem``)."""

    folder: Path
    manifest: ShardManifest | None
    problem: str = ""


@dataclass(frozen=True)
class Compared:
    """``state``: "same size", "same" (digest), "differs" or "not listed"; ``differences``: in words."""

    state: str
    differences: tuple[str, ...] = ()


class Manifests:
    """The manifests above some shards; each is read once."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._named = [Path(path).expanduser() for path in paths]
        self._read: dict[Path, FolderManifest | None] = {}

    def of(self, file: DataFile) -> FolderManifest | None:
        """The one that counts for this shard; None when there is none."""
        depth = len(Path(file.name).parts)  # names are relative to the folder that was named
        return next(filter(None, map(self._in, list(file.path.parents)[:depth])), None)

    def all(self) -> list[FolderManifest]:
        """Every manifest met so far, and those of the folders that were named."""
        for folder in self._named:
            self._in(folder)
        return [found for found in self._read.values() if found is not None]

    def missing(self, found: FolderManifest) -> list[str]:
        """Files in the manifest that are not there. What belongs to a shard that is there is not repeated:
        ``compare`` says it. Nothing is missing from a folder of which only some files were named."""
        whole = any(folder == found.folder or folder in found.folder.parents for folder in self._named)
        if found.manifest is None or not whole:
            return []
        gone = {name for name in found.manifest.files if not (found.folder / name).exists()}
        return sorted(name for name in gone if _shard_of(name) == name or _shard_of(name) in gone)

    def _in(self, folder: Path) -> FolderManifest | None:
        if folder not in self._read:
            try:
                manifest = read_manifest(folder)
                self._read[folder] = FolderManifest(folder, manifest) if manifest is not None else None
            except (ProtolithError, OSError) as error:
                self._read[folder] = FolderManifest(folder, None, f"{folder / MANIFEST_NAME}: {error}")
        return self._read[folder]


def compare(found: FolderManifest, path: Path, *, digests: bool, sha256: str = "") -> Compared:
    """One shard with its index and metadata against the manifest.

    Args:
        digests: compare them too, not only sizes.
        sha256: of the ids, where somebody has read them already.
    """
    files = found.manifest.files if found.manifest is not None else {}
    name = path.relative_to(found.folder).as_posix()
    if name not in files:
        return Compared("not listed")
    differences = []
    for ending in ("", *_COMPANIONS):
        listed = files.get(name + ending)
        if listed is not None:
            known = "" if ending else sha256
            differences.append(_difference(path.with_name(path.name + ending), listed, digests, known))
    told = tuple(filter(None, differences))
    return Compared("differs" if told else "same" if digests else "same size", told)


def _difference(path: Path, listed: ManifestFile, digests: bool, sha256: str) -> str:
    """How a file differs from its entry; "" when it does not."""
    try:
        size = path.stat().st_size
        if size != listed.bytes:
            return f"{path.name} has {size} bytes, its manifest says {listed.bytes}"
        if digests and (sha256 or _digest(path)) != listed.sha256:
            return f"{path.name} is not what was written: its SHA-256 differs from the manifest's"
    except FileNotFoundError:
        return f"{path.name} is missing, its manifest has it"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return ""


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shard_of(name: str) -> str:
    """The shard that a file in a manifest belongs to; its own name for any other file."""
    for ending in _COMPANIONS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name
