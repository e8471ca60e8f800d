"""Text tokenized once: a cache of token shards that is never stale, never half, and the same for any
number of workers.

Comes in: text files, a tokenizer, options. Goes out: folders of ``.ds`` shards, trained and held out.

    CACHE/<key>/train/00000.ds ...      the key is made of what decides the ids, and of nothing else:
    CACHE/<key>/eval/00000.ds ...       the files' content in order, the tokenizer, the options
    CACHE/<key>/manifest.json           sizes, counts, what was skipped
    CACHE/.aside-<key>-<random>/        being written; renamed to <key> when whole, swept when its writer died
    CACHE/.lock-<key>                   held while writing (flock: the kernel frees it when the holder dies)
    CACHE/digests.json                  content digests of unchanged files (see ``data/content.py``)

How: the parent reads files in blocks of lines and deals them to processes (``data/tokenize_pool.py``);
results are appended in the order of the text, so shards do not depend on who worked. While reading, the
files are digested once more: a file that changed under our hands is an error, not a wrong cache.

Cost: memory is two blocks (1 MiB, or one line if that is longer) a worker; the text is read twice, once
when its digest is remembered. State: none besides the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from protolith.data.cache_entry import (
    CorpusSummary,
    DamagedEntry,
    TokenizedCorpus,
    open_entry,
    write_manifest,
)
from protolith.data.cache_lock import held, sweep
from protolith.data.content import content_digests, has_version
from protolith.data.files import DataFile, name_some
from protolith.data.json_lines import BLOCK_BYTES, Block
from protolith.data.shard_series import ShardSeries
from protolith.data.text import Tally, add_block
from protolith.data.text_blocks import blocks_of
from protolith.data.tokenize_block import BlockOptions, BlockTokens
from protolith.data.tokenize_pool import TokenizePool
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import CorpusTooSmallError, DataError, RunFailedError
from protolith.formats.rundir import from_os_error, fsync_dir

__all__ = ["CorpusSummary", "TokenizedCorpus", "TokenizingStopped", "tokenize_corpus"]

FORMAT_VERSION = 1
DIGESTS = "digests.json"
_IN_PROCESS_BYTES = 2 * BLOCK_BYTES
_POLL_S = 0.1

OnProgress = Callable[[int, int, int, int], None]


class TokenizingStopped(Exception):  # noqa: N818 - a stop that was asked for is no error
    """``should_stop`` said so. Nothing half-done was kept."""


def tokenize_corpus(
    files: Sequence[DataFile],
    tokenizer: TextTokenizer,
    *,
    text_field: str = "text",
    eval_split: float = 0.0,
    seed: int = 0,
    cache_root: Path,
    num_workers: int | None = None,
    on_progress: OnProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TokenizedCorpus:
    """Shards of ``files``, from the cache or made now.

    Args:
        files: text in reading order (see ``find_files``).
        eval_split: share of documents held out, 0 <= share < 1, chosen by each document's own text.
        seed: keys that choice; other seeds hold out other documents.
        cache_root: folder of the cache; made when missing.
        num_workers: processes; None for one a usable core, 0 for none but this.
        on_progress: called with (bytes of text done, bytes in all, documents, tokens) some times a second.
        should_stop: polled; once true, TokenizingStopped comes within a second or two.

    Raises:
        BadRecordError: a line that cannot be read, or too many records without text, with file:line.
        CorpusTooSmallError: no document at all, or none on one side of ``eval_split``.
        DataError: a file changed while it was read.
        NoSpaceError, NotAllowedError: the cache cannot be written. RunFailedError: a worker died.
        TokenizingStopped: as asked.
    """
    if not 0.0 <= eval_split < 1.0:
        raise DataError(f"data.eval_split {eval_split} is no share from 0 up to 1", where="data.eval_split")

    def poll() -> None:
        if should_stop is not None and should_stop():
            raise TokenizingStopped

    poll()
    root = cache_root.expanduser()
    full = [file for file in files if file.size_bytes]
    if not full:
        raise CorpusTooSmallError(
            f"no text: {'all files are empty' if files else 'no files'}",
            where=name_some([file.name for file in files]),
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        digests, notes = content_digests(full, root / DIGESTS, poll)
        options = BlockOptions(text_field, eval_split, seed if eval_split else 0)
        job = _Job(
            root, full, tuple(digests), tokenizer, options, _workers(num_workers, full), poll, on_progress
        )
        corpus = job.run()
    except OSError as error:
        raise from_os_error(error, Path(error.filename or root)) from error
    if len(full) < len(files):
        empty = [file.name for file in files if not file.size_bytes]
        notes = (*notes, f"skipped {len(empty)} empty files: {name_some(empty)}")
    return replace(corpus, notes=(*notes, *corpus.notes))


def _workers(asked: int | None, files: Sequence[DataFile]) -> int:
    """Processes worth starting. A small corpus is done before they would be up."""
    size = sum(file.size_bytes for file in files)
    if asked == 0 or size <= _IN_PROCESS_BYTES:
        return 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable if asked is None else asked, math.ceil(size / BLOCK_BYTES))


@dataclass
class _Job:
    """One corpus on its way into the cache."""

    root: Path
    files: Sequence[DataFile]
    digests: tuple[str, ...]
    tokenizer: TextTokenizer
    options: BlockOptions
    num_workers: int
    poll: Callable[[], None]
    on_progress: OnProgress | None

    def run(self) -> TokenizedCorpus:
        target = self.root / self.key()
        damaged: list[str] = []
        found = self._open(target, damaged)
        if found is None:
            with held(self.root, target.name, self.poll) as alone:
                sweep(self.root, target.name if alone else None)
                found = self._open(target, damaged)  # another process may have made it meanwhile
                if found is None:
                    self._make(target)
        notes = (f"the cached tokens were damaged ({damaged[0]}) and are made again",) if damaged else ()
        corpus = found or self._open(target, damaged)
        if corpus is None:
            raise RunFailedError(f"the cache lost what was just written: {damaged[-1:]}", where=str(target))
        return replace(corpus, reused=found is not None, notes=(*notes, *corpus.notes))

    def key(self) -> str:
        """The cache entry's name: everything that decides its bytes."""
        facts = {
            "format": FORMAT_VERSION,
            "files": self.digests,
            "tokenizer": self.tokenizer.digest,
            "name": self.tokenizer.name,
            "token_bytes": self.tokenizer.token_bytes,
            "options": asdict(self.options),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()[:32]

    def _open(self, target: Path, damaged: list[str]) -> TokenizedCorpus | None:
        """The finished entry; None when there is none, or a damaged one (``damaged`` then says why)."""
        names = [file.name for file in self.files]
        try:
            return open_entry(target, names, held_out=bool(self.options.eval_split))
        except DamagedEntry as error:
            damaged.append(str(error))
            return None

    def _make(self, target: Path) -> None:
        """Write the entry aside and rename it."""
        aside = self.root / f".aside-{target.name}-{secrets.token_hex(4)}"
        aside.mkdir()
        try:
            summary = self._tokenize(aside)
            write_manifest(aside, summary)
            if target.exists():  # damaged, or another process was faster where locks do not work
                old = self.root / f".aside-{target.name}-{secrets.token_hex(4)}"
                os.replace(target, old)
                shutil.rmtree(old, ignore_errors=True)
            os.replace(aside, target)
            fsync_dir(self.root)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _tokenize(self, aside: Path) -> CorpusSummary:
        tally = Tally()
        unknown_tokens = 0
        total_bytes = sum(file.size_bytes for file in self.files)
        scratch = aside / "job"
        scratch.mkdir()
        with ExitStack() as stack:
            token_bytes, name = self.tokenizer.token_bytes, self.tokenizer.name
            train = stack.enter_context(ShardSeries(aside / "train", token_bytes, name))
            held_out = stack.enter_context(ShardSeries(aside / "eval", token_bytes, name))
            pool = stack.enter_context(
                TokenizePool(
                    scratch, self.tokenizer, self.options, num_workers=self.num_workers, poll=self.poll
                )
            )
            waiting: deque[tuple[DataFile, int, Block, Future[BlockTokens]]] = deque()

            def take_first() -> None:
                nonlocal unknown_tokens
                file, before_bytes, block, future = waiting.popleft()
                result = self._wait(future)
                add_block(tally, result.found, file, block.first_line)
                train.write(result.train)
                held_out.write(result.held_out)
                unknown_tokens += result.unknown_tokens
                done_bytes = before_bytes + block.read_bytes
                tally.check(done_bytes / total_bytes)
                say(min(done_bytes, total_bytes))

            def say(done_bytes: int) -> None:
                if self.on_progress is not None:
                    documents = train.num_documents + held_out.num_documents
                    tokens = train.num_tokens + held_out.num_tokens
                    self.on_progress(done_bytes, total_bytes, documents, tokens)

            before_bytes = 0
            for file, digest in zip(self.files, self.digests, strict=True):
                reader = blocks_of(file, self.options.text_field)
                for block in reader:
                    self.poll()
                    waiting.append((file, before_bytes, block, pool.submit(block.data)))
                    if len(waiting) > 2 * pool.num_workers:
                        take_first()
                if self._digest_read(file, reader.digest) != digest:
                    raise DataError(
                        "the file changed while it was read",
                        where=str(file.path),
                        hint="start again when it is complete",
                    )
                before_bytes += file.size_bytes
            while waiting:
                take_first()
            say(total_bytes)
            tally.check()
            self._check_sides(tally, train, held_out)
        shutil.rmtree(scratch)
        return CorpusSummary(
            files=tuple(file.name for file in self.files),
            records=tally.records,
            documents=train.num_documents + held_out.num_documents,
            tokens=train.num_tokens + held_out.num_tokens,
            eval_documents=held_out.num_documents,
            eval_tokens=held_out.num_tokens,
            unknown_tokens=unknown_tokens,
            token_bytes=token_bytes,
            skipped=tally.skipped,
            first_skipped=tally.first,
        )

    def _digest_read(self, file: DataFile, passed: str) -> str:
        """The digest of what was read. ``passed``: of the bytes that came by; "" where not all did."""
        if passed and not has_version(file):
            return passed
        digests, _notes = content_digests([file], self.root / DIGESTS, self.poll)  # reads only what is new
        return digests[0]

    def _wait(self, future: Future[BlockTokens]) -> BlockTokens:
        while True:
            self.poll()
            try:
                return future.result(timeout=_POLL_S)
            except TimeoutError:
                continue
            except RunFailedError:
                time.sleep(0.5)  # a signal to the whole group may reach a worker before it reaches us
                self.poll()
                raise

    def _check_sides(self, tally: Tally, train: ShardSeries, held_out: ShardSeries) -> None:
        documents = train.num_documents + held_out.num_documents
        where = name_some([file.name for file in self.files])
        if not documents:
            raise CorpusTooSmallError(f"no documents in {tally.records} records", where=where)
        if self.options.eval_split and not (train.num_documents and held_out.num_documents):
            side = "training" if held_out.num_documents else "validation"
            raise CorpusTooSmallError(
                f"data.eval_split {self.options.eval_split} of {documents} documents leaves none for {side}",
                where=where,
                hint="give validation text of its own (data.eval_path) or another share",
            )
