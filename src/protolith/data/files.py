"""From the paths a person names to the files that are read: each once, in an order disks do not decide.

Comes in: paths as typed: files, folders, ``~``, patterns, links, overlapping, with spaces and brackets.
Goes out: ``FoundFiles``: files with stable names, and one note for everything passed over.

- A path that exists is meant literally, ``corpus [1].jsonl`` included; only what does not exist is tried
  as a pattern.
- Paths keep the order they were named in; inside a folder, files are sorted by name.
- Folders are entered through links too, but only once; a link to a folder above itself is a loop and is
  not followed. Real places are walked before links, so a file keeps the name of where it really lies.
- The same file reached twice (a folder and its subfolder, a link and its target) is read once, and said.
- Hidden files and half-written ones (``.tmp``, ``.part``, ``.crc`` ...) inside folders are passed over and
  counted. A path that was named itself is always taken.

URLs (``s3://bucket/folder``, see ``data/storage.py``) follow the same rules, as far as they apply: a folder,
a file or a pattern, sorted, each object once; what a listing says of sizes and versions is kept, so that
nobody has to ask again.

It opens no file.
"""

from __future__ import annotations

import difflib
import glob
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith.data.storage import ListedFile, RemotePath, Stat, is_remote, list_files
from protolith.errors import DataError, NotAllowedError, NotFoundError

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".crc", ".swp", ".lock", "~")

#: Suffixes of files that hold data, but not in this form, and what to do about it.
_OTHER_FORMS = {
    ".ds": "these are token shards: read them with data.format: tokens",
    ".jsonl": "this is text: read it with data.format: text",
    ".jsonl.gz": "this is text: read it with data.format: text",
    ".jsonl.zst": "this is text: read it with data.format: text",
    ".parquet": "Parquet is text: read it with data.format: text",
    ".arrow": "Arrow files are not read: write them as Parquet",
    ".csv": "CSV is not read: write one JSON object a line first",
    ".txt": 'plain text is not read: write one {"text": ...} object a line first',
    ".bin": "raw token files are not read: write them as .ds shards",
    ".npy": "NumPy files are not read: write them as .ds shards",
}


@dataclass(frozen=True)
class DataFile:
    """A file to read. ``name`` is relative to the folder that was named (the bare name for a file);
    ``path`` is a ``Path`` or a ``RemotePath``; ``version`` tells one content of a remote file from another
    ("": a local file)."""

    path: Any
    name: str
    size_bytes: int
    version: str = ""

    @property
    def stat(self) -> Stat:
        """What was found, for ``storage.open_at``."""
        return Stat(self.size_bytes, self.version)


@dataclass(frozen=True)
class FoundFiles:
    """Files in reading order, and what was passed over on the way (at most a few sentences). ``listed``: all
    remote files that were seen, those passed over too."""

    files: tuple[DataFile, ...]
    notes: tuple[str, ...]
    listed: Mapping[RemotePath, Stat] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass
class _Walk:
    """What one call has seen so far."""

    suffixes: tuple[str, ...]
    companions: tuple[str, ...]
    seen_files: set[str] = field(default_factory=set)
    seen_folders: set[str] = field(default_factory=set)
    passed_over: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)
    listed: dict[RemotePath, Stat] = field(default_factory=dict)


def find_files(
    paths: Sequence[str], *, suffixes: tuple[str, ...], what: str, companions: tuple[str, ...] = ()
) -> FoundFiles:
    """All files behind ``paths``.

    Args:
        paths: as the user wrote them.
        suffixes: endings taken from folders, lower case, with the dot.
        what: what is looked for, in the user's words ("JSONL text"), for messages.
        companions: endings of files that belong to those looked for and are no strangers beside them.

    Raises:
        NotFoundError: a path that does not exist; the hint has the nearest name.
        DataError: a path with nothing to read behind it; the hint says what is there instead.
        NotAllowedError: a folder that may not be listed.
        UnreachableError: a storage that does not answer.
    """
    walk = _Walk(suffixes, companions)
    files: list[DataFile] = []
    for given in map(os.fspath, paths):
        if is_remote(given):
            files.extend(_remote_files(given, walk, what))
            continue
        for root in _expand(given):
            repeated_before = len(walk.repeated)
            found = list(_files_of(root, walk, what))
            if not found and len(walk.repeated) == repeated_before:
                raise DataError(
                    f"no {what} ({', '.join(suffixes)}) in this folder",
                    where=given,
                    hint=_what_else(root, walk) or "name the folder that holds the files",
                )
            files.extend(found)
    return FoundFiles(tuple(files), _notes(walk, what), walk.listed)


def _expand(given: str) -> list[Path]:
    """The path itself when it exists, else what it matches as a pattern, sorted."""
    path = Path(given).expanduser()
    if os.path.lexists(path):
        if not path.exists():
            raise NotFoundError(f"a link to {path.readlink()}, which does not exist", where=given)
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if matches:
            return matches
        raise NotFoundError(
            "no file has this name or matches it as a pattern", where=given, hint=_nearest(path)
        )
    raise NotFoundError("no such file or folder", where=given, hint=_nearest(path))


def _nearest(path: Path) -> str:
    parent = path.parent
    if not parent.is_dir():
        return f"the folder {parent} does not exist either"
    near = difflib.get_close_matches(path.name, _listing(parent), n=1)
    return f"did you mean {parent / near[0]}?" if near else ""


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _files_of(root: Path, walk: _Walk, what: str) -> Iterator[DataFile]:
    if root.is_dir():
        found = sorted(_walk_folder(root, "", walk, above=()), key=lambda file: file.name)
        yield from found
        return
    if not root.is_file():
        raise DataError("this is neither a file nor a folder", where=str(root))
    ending = _ending(root.name, tuple(_OTHER_FORMS))
    if ending and not root.name.lower().endswith(walk.suffixes):
        raise DataError(f"this is no {what}", where=str(root), hint=_OTHER_FORMS[ending])
    file = _take(root, root.name, walk)
    if file is not None:
        yield file


def _remote_files(given: str, walk: _Walk, what: str) -> list[DataFile]:
    """The files behind a URL, by the rules of local ones."""
    listed = list_files(RemotePath(given))
    walk.listed.update((one.path, one.stat) for one in listed)
    if [one.name for one in listed] == [RemotePath(given).name]:  # named itself
        ending = _ending(listed[0].name, tuple(_OTHER_FORMS))
        if ending and not listed[0].name.lower().endswith(walk.suffixes):
            raise DataError(f"this is no {what}", where=given, hint=_OTHER_FORMS[ending])
        chosen = listed
    else:
        hidden = {hid for one in listed if (hid := _hidden(one.name))}
        walk.passed_over.update(["hidden"] * len(hidden))
        chosen = [one for one in listed if not _hidden(one.name) and _is_wanted(one.path.name, walk)]
    if not chosen:
        other = [(one.name, end) for one in listed if (end := _ending(one.name, tuple(_OTHER_FORMS)))]
        hint = f"it holds {other[0][0]}; {_OTHER_FORMS[other[0][1]]}" if other else ""
        raise DataError(
            f"no {what} ({', '.join(walk.suffixes)}) in this folder",
            where=str(RemotePath(given)),
            hint=hint or ("name the folder that holds the files" if listed else "the folder is empty"),
        )
    return [file for one in chosen if (file := _take_remote(one, walk))]


def _hidden(name: str) -> str:
    """The hidden file or folder that a name leads through; "" when there is none."""
    parts = name.split("/")
    first = next((at for at, part in enumerate(parts) if part.startswith(".")), None)
    return "" if first is None else "/".join(parts[: first + 1])


def _take_remote(one: ListedFile, walk: _Walk) -> DataFile | None:
    if one.path.url in walk.seen_files:
        walk.repeated.append(one.name)
        return None
    walk.seen_files.add(one.path.url)
    return DataFile(one.path, one.name, one.stat.size, one.stat.version)


def _is_wanted(name: str, walk: _Walk) -> bool:
    """Whether a file in a folder is looked for, by its name; what is not is counted."""
    if name.lower().endswith(_UNFINISHED):
        walk.passed_over["temporary"] += 1
    elif name.lower().endswith(walk.suffixes):
        return True
    elif not name.lower().endswith(walk.companions or ("\0",)):
        walk.passed_over[f"*{Path(name).suffix.lower()}"] += 1
    return False


def _walk_folder(folder: Path, prefix: str, walk: _Walk, above: tuple[str, ...]) -> Iterator[DataFile]:
    """Files at and below ``folder``: real entries first, then links. ``above``: real folders on the way."""
    real = os.path.realpath(folder)
    if real in walk.seen_folders:
        walk.repeated.append(prefix.rstrip("/") or str(folder))
        return
    walk.seen_folders.add(real)
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: (entry.is_symlink(), entry.name))
    except PermissionError as error:
        raise NotAllowedError("the folder may not be listed", where=str(folder)) from error
    for entry in entries:
        name = prefix + entry.name
        if entry.name.startswith("."):
            walk.passed_over["hidden"] += 1
        elif entry.is_dir():
            if entry.is_symlink() and _leads_back(Path(entry.path), (*above, real)):
                walk.passed_over["a link back to a folder above it"] += 1
            else:
                yield from _walk_folder(Path(entry.path), name + "/", walk, (*above, real))
        elif entry.is_symlink() and not os.path.exists(entry.path):
            walk.passed_over["a broken link"] += 1
        elif _is_wanted(entry.name, walk):
            file = _take(Path(entry.path), name, walk)
            if file is not None:
                yield file


def _leads_back(link: Path, above: tuple[str, ...]) -> bool:
    target = Path(os.path.realpath(link))
    return any(target == Path(folder) or target in Path(folder).parents for folder in above)


def _take(path: Path, name: str, walk: _Walk) -> DataFile | None:
    """The file, unless it was taken before or is no regular file."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        walk.passed_over["neither file nor folder"] += 1
        return None
    real = os.path.realpath(path)
    if real in walk.seen_files:
        walk.repeated.append(name)
        return None
    walk.seen_files.add(real)
    return DataFile(path, name, facts.st_size)


def _what_else(folder: Path, walk: _Walk) -> str:
    """What lies in a folder that holds nothing to read."""
    if not folder.is_dir():
        return ""
    for _here, _folders, names in os.walk(folder):
        for name in sorted(names):
            ending = _ending(name, tuple(_OTHER_FORMS))
            if ending and ending not in walk.suffixes:
                return f"it holds {name}; {_OTHER_FORMS[ending]}"
    return "" if any(folder.iterdir()) else "the folder is empty"


def _ending(name: str, endings: tuple[str, ...]) -> str:
    """The longest of ``endings`` that ``name`` has, or ""."""
    return max((end for end in endings if name.lower().endswith(end)), key=len, default="")


def _notes(walk: _Walk, what: str) -> tuple[str, ...]:
    notes = []
    if walk.repeated:
        notes.append(f"named or linked more than once, read once: {name_some(walk.repeated)}")
    if walk.passed_over:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(walk.passed_over.items()))
        notes.append(f"passed over while looking for {what}: {counts}")
    return tuple(notes)


def name_some(names: Sequence[str], limit: int = 3) -> str:
    """A few names for a message, and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
