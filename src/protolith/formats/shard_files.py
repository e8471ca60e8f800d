"""One token shard on disk: three files that must agree, read and written.

    NAME.ds            token ids, little-endian unsigned integers of 2 or 4 bytes, documents end to end
    NAME.ds.index      uint64, little-endian: where each document ends, in tokens, ascending
    NAME.ds.metadata   "tokenizer name|bytes per token", the token count, the count for people ("1.23 MT")

The format is datatrove's (as its ``DocumentTokenizer`` 0.10.1 writes it), and what ``ShardWriter`` writes
is the same to the byte. Nothing in these files repeats how wide an id is except the metadata, and readers
have gone wrong by assuming two bytes; so the width is *proved* here: size / width must equal the index's
last entry and the metadata's count. One of index and metadata may be missing, and then the other one has
to carry the proof alone.

Cost: the index is read once, in pieces of constant size; the ids are never read here. An index of gigabytes
may be proved by samples instead: its two ends and pieces between them, each ascending, and in order among
each other; ``ShardInfo.index_sampled`` says so.

Where the files lie is not known here: ``ShardStore`` answers for their sizes and bytes.
"""

from __future__ import annotations

import os
import secrets
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from protolith.errors import NotAllowedError, NotFoundError, ShardError
from protolith.formats.shard_store import LOCAL, Named, Place, ShardStore

INDEX_SUFFIX = ".index"
METADATA_SUFFIX = ".metadata"

_WIDTHS = (2, 4)
_TYPECODES = {2: "H", 4: "I"}
_INDEX_PIECE_BYTES = 1 << 20
_SAMPLED_PIECES = 8
_SAMPLED_PIECE_BYTES = 1024
_SMALL_INDEX_BYTES = 1 << 14


@dataclass(frozen=True)
class ShardInfo:
    """What is known of one shard after its files were found to agree.

    Attributes:
        path: the ``.ds`` file.
        name: how messages and the identity of a corpus call it: relative to the folder that was named.
        num_tokens: ids in the file.
        num_documents: entries of the index; 0 when there is no index and documents cannot be told apart.
        token_bytes: 2 or 4.
        tokenizer_name: from the metadata; "" when unknown.
        index_path, metadata_path: None when that file is missing.
        version, index_version: of ids and index, where the storage tells versions apart; else "".
        index_sampled: that the index ascends was proved by samples only.
    """

    path: Any
    name: str
    num_tokens: int
    num_documents: int
    token_bytes: int
    tokenizer_name: str
    index_path: Any
    metadata_path: Any = None
    version: str = ""
    index_version: str = ""
    index_sampled: bool = False


@dataclass(frozen=True)
class _Metadata:
    tokenizer_name: str
    token_bytes: int | None
    num_tokens: int | None


@dataclass(frozen=True)
class _Index:
    num_documents: int
    last_end: int
    version: str
    sampled: bool


def index_path_of(path: Named) -> Named:
    return path.with_name(path.name + INDEX_SUFFIX)


def metadata_path_of(path: Named) -> Named:
    return path.with_name(path.name + METADATA_SUFFIX)


def read_shard_info(
    path: Place, name: str | None = None, *, store: ShardStore = LOCAL, sample_index: bool = False
) -> ShardInfo:
    """Read one shard's sizes, index and metadata and prove that they agree.

    Args:
        path: its ``.ds`` file.
        name: see ``ShardInfo``.
        store: where it lies.
        sample_index: do not read all of a large index; see the top of this file.

    Raises:
        NotFoundError: there is no such file.
        NotAllowedError: one of the three may not be read.
        ShardError: they disagree, or width or count cannot be proved. The message has the numbers.
    """
    name = path.name if name is None else name
    index_path, metadata_path = index_path_of(path), metadata_path_of(path)
    try:
        ids = store.facts(path)
        if ids is None:
            raise NotFoundError("there is no such shard", where=str(path))
        metadata = _read_metadata(store, metadata_path, name)
        index = _read_index(store, index_path, name, sample_index)
    except FileNotFoundError:
        raise NotFoundError("there is no such shard", where=str(path)) from None
    except PermissionError as error:
        raise NotAllowedError(f"may not be read: {error.strerror}", where=str(error.filename)) from error
    size, version = ids
    last_end = index.last_end if index is not None else None
    width = _width(name, size, metadata, last_end)
    return ShardInfo(
        path=path,
        name=name,
        num_tokens=_prove(name, size, metadata, last_end, width),
        num_documents=index.num_documents if index is not None else 0,
        token_bytes=width,
        tokenizer_name=metadata.tokenizer_name if metadata else "",
        index_path=index_path if index is not None else None,
        metadata_path=metadata_path if metadata else None,
        version=version,
        index_version=index.version if index is not None else "",
        index_sampled=index.sampled if index is not None else False,
    )


def _width(name: str, size: int, metadata: _Metadata | None, last_end: int | None) -> int:
    """Bytes per token: what the metadata says, else what size and index allow."""
    if metadata is not None and metadata.token_bytes is not None:
        return metadata.token_bytes
    num_tokens = last_end if last_end is not None else (metadata.num_tokens if metadata else None)
    if num_tokens is None:
        raise ShardError(
            f"the width of its ids cannot be proved: {name}{METADATA_SUFFIX} and {name}{INDEX_SUFFIX}"
            " are missing or say nothing of it",
            where=name,
            hint="copy the shard again together with its .index and .metadata",
        )
    for width in _WIDTHS:
        if num_tokens * width == size:
            return width
    raise ShardError(
        f"{size} bytes are neither 2 nor 4 for each of the {num_tokens} tokens its "
        f"{'index' if last_end is not None else 'metadata'} ends at",
        where=name,
        hint="the shard or its index was cut, or they belong to different shards: copy them again",
    )


def _prove(name: str, size: int, metadata: _Metadata | None, last_end: int | None, width: int) -> int:
    """Token count on which all files agree."""
    num_tokens, rest = divmod(size, width)
    faults = []
    if rest:
        faults.append(f"{size} bytes are no whole number of {width}-byte tokens")
    if last_end is not None and last_end != num_tokens:
        faults.append(f"its index ends at token {last_end}, its size makes {num_tokens}")
    count = metadata.num_tokens if metadata else None
    if count is not None and count != num_tokens:
        faults.append(f"its metadata counts {count} tokens, its size makes {num_tokens}")
    if last_end is None and count is None:
        faults.append("its index is missing and its metadata has no token count, so nothing proves its size")
    if faults:
        known = last_end if last_end is not None else count
        other = 6 - width
        if known and known * other == size:
            faults.append(f"the numbers fit {other}-byte tokens, but its metadata says {width}")
        raise ShardError(
            "; ".join(faults),
            where=name,
            hint="a copy that was cut short, or files of two runs mixed: copy the three files again",
        )
    return num_tokens


def _read_metadata(store: ShardStore, path: Place, name: str) -> _Metadata | None:
    """None when the file is missing. The name may hold "|" itself: the width stands after the last one."""
    facts = store.facts(path)
    if facts is None:
        return None
    try:
        lines = b"".join(store.pieces(path, [(0, facts[0])])).decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ShardError(f"its metadata is not text: {error}", where=name) from error
    first = lines[0] if lines else ""
    tokenizer_name, bar, width_text = first.rpartition("|")
    if not bar:  # datatrove before widths: the name alone
        tokenizer_name, token_bytes = first, None
    elif width_text.strip() in ("2", "4"):
        token_bytes = int(width_text)
    else:
        raise ShardError(f"its metadata says tokens of {width_text!r} bytes, only 2 and 4 exist", where=name)
    if len(lines) < 2 or not lines[1].strip():
        return _Metadata(tokenizer_name, token_bytes, None)
    count = lines[1].strip()
    if not (count.isascii() and count.isdigit()):
        raise ShardError(f"its metadata gives {count!r} as the number of tokens", where=name)
    return _Metadata(tokenizer_name, token_bytes, int(count))


def _read_index(store: ShardStore, path: Place, name: str, sample: bool) -> _Index | None:
    """What is known of an index that ascends; None when the file is missing."""
    facts = store.facts(path)
    if facts is None:
        return None
    size, version = facts
    if size % 8:
        raise ShardError(
            f"its index has {size} bytes, not a whole number of 8-byte entries",
            where=name,
            hint="the index was cut: copy it again",
        )
    sampled = sample and size > _SMALL_INDEX_BYTES
    last = 0
    places = list(_sampled_pieces(size) if sampled else _all_pieces(size))
    for (start, count), piece in zip(places, store.pieces(path, places), strict=True):
        if len(piece) < count:
            raise ShardError(
                f"its index ends at byte {start + len(piece)}, it had {size} bytes just now",
                where=name,
                hint="something writes to the data while it is read",
            )
        ends = _little_endian(array("Q", piece))
        if last > ends[0] or sorted(ends) != ends.tolist():  # sorting what is in order: a look at each
            at = _first_descent(last, ends)
            before = "the one before it" if at or not sampled else "one before it"
            raise ShardError(
                f"its index does not ascend: document {start // 8 + at} ends at token {ends[at]},"
                f" {before} at {ends[at - 1] if at else last}",
                where=name,
                hint="the index is damaged: write it again or copy it again",
            )
        last = ends[-1]
    return _Index(size // 8, last, version, sampled)


def _all_pieces(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _INDEX_PIECE_BYTES):
        yield start, min(_INDEX_PIECE_BYTES, size - start)


def _sampled_pieces(size: int) -> Iterator[tuple[int, int]]:
    """Pieces spread over an index, its first and its last among them."""
    entries, piece = size // 8, _SAMPLED_PIECE_BYTES // 8
    for number in range(_SAMPLED_PIECES):
        yield (entries - piece) * number // (_SAMPLED_PIECES - 1) * 8, _SAMPLED_PIECE_BYTES


def _first_descent(last: int, ends: array[int]) -> int:
    for at, end in enumerate(ends):
        if end < last:
            return at
        last = end
    return 0


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def id_bytes(ids: Iterable[int], token_bytes: int) -> bytes:
    """Ids as they stand in a shard.

    Raises:
        ShardError: an id that the width cannot hold (it would wrap around).
    """
    if isinstance(ids, array) and ids.typecode == _TYPECODES[token_bytes]:
        return _little_endian(ids[:]).tobytes()
    ids = ids if isinstance(ids, array) else list(ids)
    try:
        return _little_endian(array(_TYPECODES[token_bytes], ids)).tobytes()
    except OverflowError:
        raise ShardError(
            f"ids from {min(ids)} to {max(ids)} do not fit {token_bytes} bytes a token",
            hint="write 4-byte shards for vocabularies above 65,536",
        ) from None


def token_bytes_for(vocab_size: int, max_id: int = 0) -> int:
    """2 where every id fits 16 bits, else 4."""
    return 4 if max(vocab_size - 1, max_id) > 0xFFFF else 2


class ShardWriter:
    """Writes one shard; the three files appear together, whole, when the block ends without an error.

    ``with ShardWriter(path, token_bytes, tokenizer_name) as shard: shard.write(ids)``

    The ids go last, so that a ``.ds`` never stands without its companions. State: three open files and
    two counters; memory does not grow with documents.

    Raises:
        ShardError: an id does not fit. OSErrors (disk full) pass through after the parts were removed.
    """

    def __init__(self, path: Path, token_bytes: int, tokenizer_name: str, *, durable: bool = False) -> None:
        if token_bytes not in _WIDTHS:
            raise ShardError(f"tokens of {token_bytes} bytes, only 2 and 4 exist", where=str(path))
        self.path = path
        self.token_bytes = token_bytes
        self.tokenizer_name = " ".join(tokenizer_name.splitlines()) or f"Unknown Tokenizer|{token_bytes}"
        self.num_tokens = 0
        self.num_documents = 0
        self._durable = durable
        mark = secrets.token_hex(4)
        self._aside = {
            target: target.with_name(f".{target.name}.{mark}.tmp")
            for target in (metadata_path_of(path), index_path_of(path), path)
        }
        self._ids: BinaryIO | None = None
        self._index: BinaryIO | None = None

    def __enter__(self) -> ShardWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._ids = open(self._aside[self.path], "xb")
            self._index = open(self._aside[index_path_of(self.path)], "xb")
        except OSError:
            self._discard()
            raise
        return self

    def write(self, ids: Iterable[int]) -> None:
        """Append one document."""
        data = id_bytes(ids, self.token_bytes)
        self.write_bytes(data, array("Q", [len(data) // self.token_bytes]))

    def write_bytes(self, data: bytes | bytearray, lengths: array[int]) -> None:
        """Append documents already in the shard's own form.

        Args:
            data: ids of all of them, ``token_bytes`` each, little-endian.
            lengths: tokens of each document; they add up to ``data``.
        """
        if self._ids is None or self._index is None:
            raise ShardError("the writer is not open", where=str(self.path))
        if sum(lengths) * self.token_bytes != len(data):
            raise ShardError(f"documents of {sum(lengths)} tokens in {len(data)} bytes", where=str(self.path))
        self._ids.write(data)
        ends, end = array("Q"), self.num_tokens
        for length in lengths:
            end += length
            ends.append(end)
        self._index.write(_little_endian(ends).tobytes())
        self.num_tokens = end
        self.num_documents += len(lengths)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self._commit()
        except BaseException:
            self._discard()
            raise

    def _commit(self) -> None:
        metadata = self._aside[metadata_path_of(self.path)]
        lines = (
            f"{self.tokenizer_name}|{self.token_bytes}",
            str(self.num_tokens),
            for_people(self.num_tokens),
        )
        with open(metadata, "xb") as out:
            out.write("\n".join(lines).encode("utf-8"))
            self._sync(out)
        for file in (self._index, self._ids):
            if file is not None:
                self._sync(file)
                file.close()
        for target, aside in self._aside.items():
            os.replace(aside, target)

    def _sync(self, file: BinaryIO) -> None:
        if self._durable:
            file.flush()
            os.fsync(file.fileno())

    def _discard(self) -> None:
        """Remove what was written. A full disk may refuse even the last flush: the file goes all the same."""
        for file in (self._ids, self._index):
            if file is not None:
                try:
                    file.close()
                except OSError:
                    continue
        for aside in self._aside.values():
            aside.unlink(missing_ok=True)


def for_people(num_tokens: int) -> str:
    """The metadata's third line: three digits and a metric prefix, such as ``1.23 MT`` or ``999 T``."""
    power = len(str(num_tokens)) - 1
    text = _three_digits(num_tokens, power)
    if len(text.replace(".", "")) > 3:  # rounding carried: 9.999 became 10.00, 999.9 became 1000
        power += 1
        text = _three_digits(num_tokens, power)
    return f"{text} {('', *'kMGTPE')[power // 3]}T"


def _three_digits(num_tokens: int, power: int) -> str:
    return f"{num_tokens / 1000 ** (power // 3):.{2 - power % 3}f}"
