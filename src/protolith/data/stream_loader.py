"""From streamed text to the tensors of one optimizer step.

Comes in: a ``TextStream``, a position, and how a global batch is split (as in ``data/loader.py``). Goes
out: ``StepBatches``, one a step, each with the position *after* it; ``last`` is true on the step with which
the text, the epochs or ``stop_row`` end, which is known by looking one step ahead.

With workers, ``num_workers`` processes tokenize and one thread here makes steps ahead, a few of them;
without, all is done when asked. Errors surface where the step would have come. Processes and thread end
with the iteration: exhausted, closed, or left by an exception; ``with StreamLoader(...)`` makes sure.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protolith.data.iteration import OneIteration
from protolith.data.loader import StepBatches, deal
from protolith.data.packing import NO_TARGET, Rows, Segment
from protolith.data.row_ranges import Range, merged, step_rows
from protolith.data.rows import CountKey, Origin, StepCounts, add_counts
from protolith.data.stream_lanes import StreamRow
from protolith.data.stream_mixture import MixedStreamRows, StreamMixture
from protolith.data.stream_sharing import SharedWork, Sharing
from protolith.data.streams import StreamRows, TextStream
from protolith.data.tokenize_block import BlockTokens
from protolith.data.tokenize_pool import TokenizePool

_STEPS_AHEAD = 4
_LOOK_S = 0.1


class _Closed(Exception):  # noqa: N818 - ends the thread, nobody else sees it
    """The iteration is being closed."""


class StreamLoader(OneIteration[StepBatches]):
    """Steps of a stream from ``position`` on. Each iteration begins there.

    Args:
        stream: the text, of one source or several.
        micro_batch_rows, accumulation, rank, world_size: see ``data/loader.py``.
        position: that of an earlier ``StepBatches``; None or empty: the beginning.
        num_epochs: the text ends after so many passes; None: never.
        stop_row: rows of the whole run, those before ``position`` included; None: no such limit.
        num_workers: processes that tokenize; 0: none but this.
        left_out: ranges of rows that are read and not trained on.
        sharing: ranks of this machine that tokenize each block once between them; None: alone.
    """

    def __init__(
        self,
        stream: TextStream | StreamMixture,
        *,
        micro_batch_rows: int,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
        position: Mapping[str, Any] | None = None,
        num_epochs: int | None = None,
        stop_row: int | None = None,
        num_workers: int = 0,
        left_out: Sequence[Range] = (),
        sharing: Sharing | None = None,
    ) -> None:
        if min(micro_batch_rows, accumulation, world_size) < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank} of {world_size}, {accumulation} micro-batches of {micro_batch_rows} rows"
            )
        if num_workers < 0:
            raise ValueError(f"num_workers {num_workers}")
        self.stream = stream
        self.global_rows = world_size * accumulation * micro_batch_rows
        self._micro_batch_rows = micro_batch_rows
        self._rank = rank
        self._world_size = world_size
        self._position = dict(position or {})
        self._num_epochs = num_epochs
        self._stop_row = stop_row
        self._num_workers = num_workers
        self._left_out = merged(left_out)
        self._sharing = sharing
        super().__init__(ahead=num_workers > 0)
        #: the position is of other text: its epoch begins anew
        self.restarts = stream.restarts(self._position)

    def _read_when_asked(self) -> Generator[StepBatches, None, None]:
        with self._rows(threading.Event()) as rows:
            yield from self._steps(rows)

    def _prefetched(self) -> Generator[StepBatches, None, None]:
        closing = threading.Event()
        ready: queue.Queue[StepBatches | BaseException | None] = queue.Queue(_STEPS_AHEAD)
        maker = threading.Thread(target=self._make, args=(ready, closing), name="stream", daemon=True)
        maker.start()
        try:
            while (step := ready.get()) is not None:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            closing.set()
            maker.join()

    def _make(self, ready: queue.Queue[StepBatches | BaseException | None], closing: threading.Event) -> None:
        """The thread: steps into ``ready``, then None, or the error that ended them."""
        last: BaseException | None = None
        try:
            with self._rows(closing) as rows:
                for step in self._steps(rows):
                    _put(ready, step, closing)
        except _Closed:
            return
        except BaseException as error:  # noqa: BLE001 - carried to the thread that iterates
            last = error
        try:
            _put(ready, last, closing)
        except _Closed:
            return

    @contextmanager
    def _rows(self, closing: threading.Event) -> Iterator[StreamRows | MixedStreamRows]:
        """The rows, with the processes behind them."""

        def poll() -> None:
            if closing.is_set():
                raise _Closed

        def wait(future: Future[BlockTokens]) -> BlockTokens:
            while True:
                poll()
                try:
                    return future.result(timeout=_LOOK_S)
                except TimeoutError:
                    continue

        with tempfile.TemporaryDirectory(prefix="protolith-") as folder:
            with TokenizePool(
                Path(folder),
                self.stream.tokenizer,
                self.stream.options,
                num_workers=self._num_workers,
                poll=poll,
            ) as pool:
                shared = SharedWork(self._sharing, pool.submit) if self._sharing is not None else None
                try:
                    yield self.stream.open(
                        submit=pool.submit if shared is None else shared.submit,
                        wait=wait,
                        num_ahead=2 * pool.num_workers * (1 if self._sharing is None else self._sharing.size),
                        position=self._position,
                        num_epochs=self._num_epochs,
                    )
                finally:
                    if shared is not None:
                        shared.close()

    def _steps(self, rows: StreamRows | MixedStreamRows) -> Iterator[StepBatches]:
        """Steps, each held back until it is known whether another follows."""
        held: StepBatches | None = None
        while (step := self._step(rows)) is not None:
            if held is not None:
                yield held
            held = step
        if held is not None:
            end = {**held.position, "finished": True}
            if "epochs" in end:
                end["epochs"] = rows.epochs()
            yield replace(held, last=True, position=end)

    def _step(self, rows: StreamRows | MixedStreamRows) -> StepBatches | None:
        here = step_rows(rows.num_rows, self.global_rows, self._left_out, self._stop_row)
        if here is None:
            return None
        taken: list[StreamRow] = []
        numbers: list[int] = []
        jumped: list[StreamRow] = []
        while rows.num_rows < here.next_row:
            number = rows.num_rows
            row = rows.next_row()
            if row is None:
                break
            if any(start <= number < stop for start, stop in here.taken):
                taken.append(row)
                numbers.append(number)
            else:
                jumped.append(row)
        if not taken:
            return None
        counts = self._counts(taken)
        return StepBatches(
            micro_batches=deal(
                lambda begin, end: _stacked(taken[begin:end]),
                len(taken),
                micro_batch_rows=self._micro_batch_rows,
                rank=self._rank,
                world_size=self._world_size,
                seq_len=self.stream.seq_len,
            ),
            next_row=rows.num_rows,
            num_targets=sum(count.trained for count in counts.values()),
            counts=counts,
            epoch=min(taken[0].counts),
            position=rows.position(),
            left_out=self._counts(jumped),
            origins=lambda: [self._origin(*pair) for pair in zip(numbers, taken, strict=True)],
        )

    def _counts(self, rows: Sequence[StreamRow]) -> StepCounts:
        return add_counts(
            {CountKey(row.source, epoch): more for epoch, more in row.counts.items()} for row in rows
        )

    def _origin(self, number: int, row: StreamRow) -> Origin:
        """Of streamed text it is known which part of which file a row ends in, and no document's number."""
        place = self.stream.place_of(row)
        if place is None:
            return Origin(number, row.source, min(row.counts), number, ())
        num_tokens = int(np.count_nonzero(row.targets != NO_TARGET))
        return Origin(
            number, row.source, max(row.counts), number, (Segment(place[0], None, 0, num_tokens, place[1]),)
        )


def _stacked(rows: list[StreamRow]) -> Rows:
    positions = [row.positions for row in rows if row.positions is not None]
    return Rows(
        np.stack([row.inputs for row in rows]),
        np.stack([row.targets for row in rows]),
        np.stack(positions) if positions else None,
    )


def _put(
    ready: queue.Queue[StepBatches | BaseException | None],
    item: StepBatches | BaseException | None,
    closing: threading.Event,
) -> None:
    while True:
        if closing.is_set():
            raise _Closed
        try:
            ready.put(item, timeout=_LOOK_S)
            return
        except queue.Full:
            continue
