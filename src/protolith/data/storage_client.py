"""The clients of remote storage, which are fsspec's: what is behind a URL, and bytes of one version of it.

Comes in: a ``RemotePath``. Goes out: facts, listings, bytes; faults as ``data/storage_faults.py`` types them.
fsspec and the client of a storage are imported when a URL is first used. Credentials, endpoints and regions
are those the client finds by itself (environment, profile, role): none pass through here.

S3 proves in the request itself that the version is the right one (If-Match); other storage is asked for its
version before each read. Listings are never remembered. A forked process gets connections of its own.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from protolith.data.storage_faults import ObjectChangedError, asked, shown, status_of
from protolith.errors import DataError, MissingExtraError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PRECONDITION_FAILED = 412
_CONNECTIONS = 32
_READ_LIMIT_S = 60
#: What to install for a kind of URL, where fsspec brings no client itself.
_EXTRAS = {"s3": "pip install 'protolith[s3]'", "s3a": "pip install 'protolith[s3]'"}
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder behind a URL, with as much of ``Path`` as readers of data need."""

    url: str

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.url.rstrip("/").rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        return RemotePath(f"{self.parent.url}/{name}")

    def resolve(self) -> RemotePath:
        """Itself: there are no links behind a URL."""
        return self

    def __str__(self) -> str:
        """For people: without a password."""
        return shown(self.url)


@dataclass(frozen=True)
class Stat:
    """How large a file is and which version of it: any two versions differ ("" where nothing tells)."""

    size: int
    version: str


@dataclass(frozen=True)
class ListedFile:
    """``name``: below the folder that was listed, with ``/`` between folders."""

    path: RemotePath
    name: str
    stat: Stat


def is_remote(text: str) -> bool:
    """Whether a path as a user wrote it is a URL."""
    return _URL.match(text) is not None


def list_files(folder: RemotePath) -> list[ListedFile]:
    """All files at and below a URL, sorted by name; of a URL that is a file itself, that file under its bare
    name. Where the URL has ``*``, ``?`` or ``[`` and there is no such file, what matches it as a pattern.

    Raises:
        NotFoundError: nothing is there.
    """
    filesystem, path = _filesystem(folder)

    def below(root: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = filesystem.find(root, detail=True)
        return found

    def matching() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = filesystem.glob(path, detail=True)
        return found

    found = {path.rstrip("/"): asked(lambda: below(path), folder.url)}
    if not found[path.rstrip("/")] and re.search(r"[*?\[]", path):
        found = {}
        for place, facts in sorted(asked(matching, folder.url).items()):
            is_file = facts["type"] == "file"
            found[place] = {place: facts} if is_file else asked(functools.partial(below, place), folder.url)
    files = []
    for root, places in found.items():
        for place, facts in sorted(places.items()):
            if facts["type"] == "file" and not place.endswith("/"):
                inside = place.startswith(root + "/")
                name = place[len(root) + 1 :] if inside else place.rpartition("/")[2]
                files.append(ListedFile(RemotePath(filesystem.unstrip_protocol(place)), name, stat_of(facts)))
    if not files:
        info_of(folder)  # tells an empty folder from one that is not there
    return files


def fetch(place: RemotePath, version: str, start: int, stop: int) -> bytes:
    """Bytes of one version. S3 proves the version in the same request; of others it is asked before."""
    filesystem, path = _filesystem(place)
    if "s3" in _protocols(filesystem) and version:
        return _fetch_from_s3(filesystem, path, version, start, stop)
    now = stat_of(filesystem.info(path))
    if now.version != version:
        raise ObjectChangedError("was written again")
    data: bytes = filesystem.cat_file(path, start=start, end=stop)
    return data


def _fetch_from_s3(filesystem: Any, path: str, version: str, start: int, stop: int) -> bytes:
    bucket, key, _version_id = filesystem.split_path(path)

    async def pinned() -> bytes:
        answer = await filesystem._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", IfMatch=version
        )
        try:
            data: bytes = await answer["Body"].read()
            return data
        finally:
            answer["Body"].close()

    try:
        data: bytes = _fsspec(path).asyn.sync(filesystem.loop, pinned, timeout=_READ_LIMIT_S)
    except OSError as error:
        if status_of(error) == _PRECONDITION_FAILED:
            raise ObjectChangedError("was written again") from error
        raise
    return data


def info_of(place: RemotePath) -> dict[str, Any]:
    """What the storage says of one file or folder. Errors as ``stat``."""
    filesystem, path = _filesystem(place)

    def looked() -> dict[str, Any]:
        filesystem.invalidate_cache()
        found: dict[str, Any] = filesystem.info(path)
        return found

    return asked(looked, place.url)


def stat_of(facts: dict[str, Any]) -> Stat:
    """What tells versions apart is called differently by every storage."""
    names = (
        "ETag",
        "etag",
        "generation",
        "md5Hash",
        "content_md5",
        "mtime",
        "LastModified",
        "last_modified",
        "created",
    )
    found = next((facts[name] for name in names if facts.get(name)), "")
    version = found.timestamp() if isinstance(found, datetime) else found  # memory:// says it both ways
    return Stat(int(facts.get("size") or 0), str(version))


def _filesystem(place: RemotePath) -> tuple[Any, str]:
    """fsspec's client for a URL, and the path it has there. Clients are kept by fsspec, one a process."""
    kind = place.url.partition("://")[0].lower()
    fsspec = _fsspec(place.url)
    options: dict[str, Any] = {"use_listings_cache": False}
    if kind in _EXTRAS:  # waiting and trying again is ours, so that there is one limit
        own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        options["config_kwargs"] = {
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": _CONNECTIONS,
            **own,
        }
    try:
        filesystem, path = fsspec.core.url_to_fs(place.url, **options)
    except ImportError as error:
        package = _PACKAGES.get(kind, "the package it names")
        raise MissingExtraError(
            f"reading {kind}:// needs a package that is not installed: {error}",
            where=str(place),
            hint=_EXTRAS.get(kind, f"pip install {package}"),
        ) from error
    except ValueError as error:
        raise DataError(f"not a usable address: {error}", where=str(place)) from error
    if kind in _EXTRAS:
        filesystem.retries = 1
    return filesystem, path


def _fsspec(url: str) -> ModuleType:
    try:
        import fsspec
        import fsspec.asyn
        import fsspec.core
    except ImportError as error:
        raise MissingExtraError(
            "reading from URLs needs fsspec, which is not installed",
            where=shown(url),
            hint="pip install 'protolith[s3]'",
        ) from error
    module: ModuleType = fsspec
    return module


def _protocols(filesystem: Any) -> tuple[str, ...]:
    names = filesystem.protocol
    return (names,) if isinstance(names, str) else tuple(names)
