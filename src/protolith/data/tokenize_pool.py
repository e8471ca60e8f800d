"""Processes that tokenize blocks, and a place where nothing is lost when one of them dies.

``submit(block) -> Future``: results come back through futures, so their order is the caller's. Each worker
is a process of its own (started anew, not forked: a parent with torch and threads must not be forked, and
not through ``multiprocessing``: that would run a user's unguarded script a second time) and has one thread
here that writes a block to it and waits for the result. With no workers, ``submit`` does the work itself.

Leaving the block kills the workers at once; a block in work is lost, as is meant.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from protolith.data.tokenize_block import BlockOptions, BlockTokens, tokenize_block, unpack
from protolith.data.tokenize_worker import read_part, write_job, write_part
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import RunFailedError

_PARTS = 5
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    "from protolith.data.tokenize_worker import main; main()"
)


class TokenizePool:
    """A context manager with ``submit``.

    Args:
        folder: where the work is described to workers; must stay until the pool is left.
        num_workers: processes; 0 works in the caller.
        poll: called now and then while the caller itself works; what it raises ends the work.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: TextTokenizer,
        options: BlockOptions,
        *,
        num_workers: int,
        poll: Callable[[], None],
    ) -> None:
        self.num_workers = num_workers if sys.executable else 0
        self._folder = folder
        self._tokenizer = tokenizer
        self._options = options
        self._poll = poll
        self._tasks: queue.SimpleQueue[tuple[bytes, Future[BlockTokens]] | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> TokenizePool:
        if self.num_workers:
            job = write_job(self._folder, self._tokenizer, self._options)
            try:
                for _ in range(self.num_workers):
                    self._workers.append(_Worker(job, self._tasks))
            except BaseException:
                self._end()
                raise
        return self

    def submit(self, data: bytes) -> Future[BlockTokens]:
        """Work on one block.

        The future's error is RunFailedError when the worker died.
        """
        future: Future[BlockTokens] = Future()
        if self._workers:
            self._tasks.put((data, future))
        else:
            future.set_result(tokenize_block(data, self._tokenizer, self._options, self._poll))
        return future

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for _ in self._workers:
            self._tasks.put(None)
        for worker in self._workers:
            worker.end()


class _Worker:
    """One process and the thread that talks to it."""

    def __init__(self, job: Path, tasks: queue.SimpleQueue[tuple[bytes, Future[BlockTokens]] | None]) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(job), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
        )
        self._thread = threading.Thread(target=self._serve, args=(tasks,), daemon=True, name="tokenizing")
        self._thread.start()

    def _serve(self, tasks: queue.SimpleQueue[tuple[bytes, Future[BlockTokens]] | None]) -> None:
        while (task := tasks.get()) is not None:
            data, future = task
            try:
                future.set_result(self._ask(data))
            except (OSError, ValueError, EOFError) as error:
                future.set_exception(self._death(error))

    def _ask(self, data: bytes) -> BlockTokens:
        to_worker, from_worker = self._pipes()
        write_part(to_worker, data)
        to_worker.flush()
        parts = []
        for _ in range(_PARTS):
            part = read_part(from_worker)
            if part is None:
                raise EOFError("the worker ended")
            parts.append(part)
        return unpack(tuple(parts))

    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        if self._process.stdin is None or self._process.stdout is None:
            raise EOFError("the worker has no pipes")
        return self._process.stdin, self._process.stdout  # type: ignore[return-value]

    def _death(self, error: Exception) -> RunFailedError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return RunFailedError(f"a tokenizing process sent nonsense: {error}")
        self._complaints.seek(0)
        last = self._complaints.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return RunFailedError(
            f"a tokenizing process {how}{f': {last[-1]}' if last else ''}",
            hint="signal 9 mostly means too little memory: use fewer workers, or look for one huge line"
            if code == -9
            else "nothing half-done was kept; start again",
        )

    def end(self) -> None:
        """Kill the process and wait for both."""
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=10)
        for pipe in (self._process.stdin, self._process.stdout, self._complaints):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # bytes meant for a worker that is gone
                    continue
