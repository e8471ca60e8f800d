"""What tells one corpus of shards from another, and how two differ, in words.

Comes in: shards in reading order. Goes out: one small JSON-able entry a shard, saved with checkpoints and
compared on resume: ``name`` (relative to the folder that was named), ``num_tokens``, ``token_bytes``,
``num_documents`` and a ``digest`` of what it holds. Neither time stamps nor the place of the folder count.
Text that is streamed has an entry a file, with ``num_bytes`` in place of the three numbers.

Shards behind URLs have the entries they would have on this machine: a run can go on with a copy of its data.

Cost: files up to 1 MiB are digested whole; of larger ones 8 pieces of 4 KiB, the first and the last among
them, so that a terabyte opens as fast as a gigabyte. An edit that leaves size and all pieces alone is
therefore not seen; copies cut short, other text, other tokenizers and reordered documents are.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protolith.data.files import DataFile
from protolith.data.storage import Location, RemotePath, Stat, open_at
from protolith.errors import DataError, NotAllowedError, NotFoundError
from protolith.formats.shard_files import ShardInfo

Entry = dict[str, Any]

_WHOLE_BYTES = 1 << 20
_PIECE_BYTES = 4096
_NUM_PIECES = 8
_NUM_READERS = 8
_NUM_REMOTE_READERS = 32
_SHOWN_NAMES = 10


def shard_identities(shards: Sequence[ShardInfo]) -> list[Entry]:
    """One entry a shard, in reading order.

    Raises:
        NotFoundError, NotAllowedError: a file that cannot be read any more.
    """
    remote = any(isinstance(shard.path, RemotePath) for shard in shards)
    if len(shards) < 2 * _NUM_READERS and not remote:
        return [shard_identity(shard) for shard in shards]
    num_readers = _NUM_REMOTE_READERS if remote else _NUM_READERS
    with ThreadPoolExecutor(num_readers, thread_name_prefix="identity") as readers:
        return list(readers.map(shard_identity, shards))


def shard_identity(shard: ShardInfo) -> Entry:
    """The entry of one shard."""
    digest = hashlib.blake2b(digest_size=16)
    ids = Stat(shard.num_tokens * shard.token_bytes, shard.version)
    _add_samples(digest, shard.path, shard.name, ids)
    _add_samples(digest, shard.index_path, shard.name, Stat(shard.num_documents * 8, shard.index_version))
    return {
        "name": shard.name,
        "num_tokens": shard.num_tokens,
        "token_bytes": shard.token_bytes,
        "num_documents": shard.num_documents,
        "digest": digest.hexdigest(),
    }


def text_identities(files: Sequence[DataFile]) -> list[Entry]:
    """One entry a text file, in reading order.

    Raises:
        NotFoundError, NotAllowedError: a file that cannot be read.
    """
    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="identity") as readers:
        return list(readers.map(_text_identity, files))


def _text_identity(file: DataFile) -> Entry:
    digest = hashlib.blake2b(digest_size=16)
    _add_samples(digest, file.path, file.name, file.stat)
    return {"name": file.name, "num_bytes": file.size_bytes, "digest": digest.hexdigest()}


def _add_samples(digest: Any, path: Location | None, name: str, remote: Stat) -> None:
    """``remote``: size and version that were found, where it lies behind a URL."""
    if path is None:
        digest.update(b"no file;")
        return
    if isinstance(path, RemotePath):
        _add_remote_samples(digest, path, name, remote)
        return
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(b"%d bytes;" % size)
            if size <= _WHOLE_BYTES:
                digest.update(file.read())
                return
            for start in _piece_starts(size):
                digest.update(os.pread(file.fileno(), _PIECE_BYTES, start))
    except FileNotFoundError:
        raise NotFoundError(f"{path.name} is gone", where=name) from None
    except PermissionError as error:
        raise NotAllowedError(f"{path.name} may not be read: {error.strerror}", where=name) from error


def _piece_starts(size: int) -> list[int]:
    return [(size - _PIECE_BYTES) * number // (_NUM_PIECES - 1) for number in range(_NUM_PIECES)]


def _add_remote_samples(digest: Any, path: RemotePath, name: str, facts: Stat) -> None:
    def changed(how: str) -> DataError:
        return DataError(f"{path.name} {how}", where=name, hint="something writes to the data")

    try:
        reader = open_at(path, facts, changed=changed)
        digest.update(b"%d bytes;" % reader.size)
        whole = reader.size <= _WHOLE_BYTES
        for start in [0] if whole else _piece_starts(reader.size):
            piece = bytearray(reader.size if whole else _PIECE_BYTES)
            reader.read_into(memoryview(piece), start)
            digest.update(piece)
    except NotFoundError:
        raise NotFoundError(f"{path.name} is gone", where=name) from None


def diff_identity(old: Sequence[Entry], new: Sequence[Entry]) -> list[str]:
    """How ``new`` differs from ``old``, one sentence a difference; empty when the tokens are the same ones.

    Told apart: shards added, removed, renamed (same content under another name), changed in content, and
    read in another order.
    """
    before, after = _by_name(old), _by_name(new)
    lines = [
        _change(before[key], after[key])
        for key in before
        if key in after and not _same_content(before[key], after[key])
    ]
    removed = [entry for key, entry in before.items() if key not in after]
    added = [entry for key, entry in after.items() if key not in before]
    renamed, removed, added = _pair_renamed(removed, added)
    what = _what(new or old)
    lines += [f"{what} renamed: {was['name']} is now {now['name']}" for was, now in renamed]
    lines += [f"{what} removed: {entry['name']} ({_size(entry)})" for entry in removed]
    lines += [f"{what} added: {entry['name']} ({_size(entry)})" for entry in added]
    if _reordered(before, after, renamed):
        lines.append(f"{what}s are read in another order: " + _names(new))
    if lines:
        lines.append(f"{_total(old)} in {len(old)} {what}s before, {_total(new)} in {len(new)} now")
    return lines


def _what(entries: Sequence[Entry]) -> str:
    return "file" if entries and "num_bytes" in entries[0] else "shard"


def _size(entry: Entry) -> str:
    return f"{entry['num_bytes']:,} bytes" if "num_bytes" in entry else f"{entry['num_tokens']:,} tokens"


def _total(entries: Sequence[Entry]) -> str:
    unit = "bytes" if _what(entries) == "file" else "tokens"
    total: int = sum(entry.get(f"num_{unit}", 0) for entry in entries)
    return f"{total:,} {unit}"


def _by_name(entries: Iterable[Entry]) -> dict[tuple[str, int], Entry]:
    """Two folders may hold shards of one name: then the first, the second ... of that name are compared."""
    seen: Counter[str] = Counter()
    keyed: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        keyed[entry["name"], seen[entry["name"]]] = entry
        seen[entry["name"]] += 1
    return keyed


def _same_content(one: Entry, other: Entry) -> bool:
    return {**one, "name": ""} == {**other, "name": ""}


def _change(was: Entry, now: Entry) -> str:
    if _size(was) != _size(now):
        how = f"{_size(was)} before, {_size(now).removesuffix(' tokens').removesuffix(' bytes')} now"
    elif was.get("token_bytes") != now.get("token_bytes"):
        how = f"{was['token_bytes']}-byte ids before, {now['token_bytes']}-byte ids now"
    elif was.get("num_documents") != now.get("num_documents"):
        how = f"{was.get('num_documents')} documents before, {now.get('num_documents')} now"
    else:
        how = f"{_size(now)} as before, but other ones"
    return f"{_what([now])} changed: {now['name']}: {how}"


def _pair_renamed(
    removed: list[Entry], added: list[Entry]
) -> tuple[list[tuple[Entry, Entry]], list[Entry], list[Entry]]:
    waiting: dict[str, list[Entry]] = defaultdict(list)
    for entry in added:
        waiting[entry["digest"]].append(entry)
    pairs, gone = [], []
    for entry in removed:
        match = next((new for new in waiting[entry["digest"]] if _same_content(entry, new)), None)
        if match is None:
            gone.append(entry)
        else:
            waiting[entry["digest"]].remove(match)
            pairs.append((entry, match))
    taken = {id(new) for _old, new in pairs}
    return pairs, gone, [entry for entry in added if id(entry) not in taken]


def _reordered(
    before: dict[tuple[str, int], Entry],
    after: dict[tuple[str, int], Entry],
    renamed: list[tuple[Entry, Entry]],
) -> bool:
    """Whether shards that are in both are read in another order than before."""
    now = {id(entry): place for place, entry in enumerate(after.values())}
    new_of = {id(old): new for old, new in renamed}
    places = [
        now[id(after.get(key) or new_of[id(entry)])]
        for key, entry in before.items()
        if key in after or id(entry) in new_of
    ]
    return places != sorted(places)


def _names(entries: Sequence[Entry]) -> str:
    shown = ", ".join(entry["name"] for entry in entries[:_SHOWN_NAMES])
    return shown if len(entries) <= _SHOWN_NAMES else f"{shown}, ... ({len(entries)} in all)"
