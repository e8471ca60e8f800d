"""Text as an endless sequence of rows, read and tokenized while training: no cache, no pass beforehand.

    files --> chunks --> blocks of documents --> lanes --> rows 0, 1, 2, ... of the run

1. The text is cut into chunks (``data/stream_text.py``) by sizes alone. Each epoch they are read in the
   order of a keyed permutation of (seed, epoch); a compressed file is one chunk, a row group of a Parquet
   file is one, and their blocks follow one another.
2. A block becomes ids in whatever process (``data/tokenize_pool.py``); which one changes nothing. Its
   documents are put in a keyed order of their own.
3. L lanes (``data/stream_lanes.py``) each hold one block and give one row in turn; a lane that needs
   another block takes the next of the epoch. So rows of L blocks are mixed: the shuffle buffer is the open
   blocks, and since a block can be read again, it never has to be saved.
4. When the epoch has no more blocks, lanes run dry one by one; when all are, the next epoch begins: no lane
   is ever an epoch ahead, and each document is met once an epoch. What a lane carries over stays in it. After
   the last epoch each lane gives what is left as one padded row.

With shuffle off there is one lane and nothing is permuted: rows are those of the windows over the tokens.

Position (``StreamRows.position``, JSON): rows given, epoch, next block, whose turn it is, the lanes (block
and how much of it is used), counts. To resume, each lane's block is read and tokenized again: at most L
blocks, and for compressed files the bytes before them. Nothing is replayed, and a chain of interruptions
adds nothing.

The sequence is a pure function of text, tokenizer, options and seed: not of workers, batches or ranks. Every
rank runs the whole sequence and keeps its share of each step. As blocks are taken in one order, the ranks of
a machine deal out the tokenizing (``data/stream_sharing.py``); reading the text is done by each.

Memory: L open blocks as ids; up to ``2 * num_workers`` blocks in work, fewer when lines are long (a block
is as long as its longest line; see ``_AHEAD_BYTES``). Number of lanes: from the text's size and S alone.

What it does not do: compressed files and row groups are not mixed with one another beyond L neighbouring
blocks, and an edit of a file that leaves its size and the samples of its identity alone is not seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from protolith.data.files import DataFile, name_some
from protolith.data.identity import Entry, text_identities
from protolith.data.rows import DEFAULT_SOURCE
from protolith.data.sampler import AsTheyLie, Permutation, RowOrder, permutation_key
from protolith.data.stream_ahead import blocks_in_order
from protolith.data.stream_best_fit import BestFitLane
from protolith.data.stream_lanes import (
    BlockName,
    DocumentLane,
    Documents,
    Lane,
    StreamRow,
    WindowLane,
    states_of,
)
from protolith.data.stream_tally import StreamTally, raise_fault, skips_of
from protolith.data.stream_text import CHUNK_BYTES, ChunkedText, TextBlock
from protolith.data.text import BlockTexts
from protolith.data.tokenize_block import BlockOptions, BlockTokens
from protolith.data.tokenize_block import Documents as BlockDocuments
from protolith.data.tokenizer import TextTokenizer
from protolith.errors import CorpusTooSmallError

MAX_LANES = 16
#: A lane is worth opening for so many rows: each may end in a padded one.
_ROWS_A_LANE = 32
_BYTES_A_TOKEN = 4
#: Text that may wait in workers' queues, beside what they work on.
_AHEAD_BYTES = 1 << 26

Submit = Callable[[bytes], "Future[BlockTokens]"]
Wait = Callable[["Future[BlockTokens]"], BlockTokens]


class TextStream:
    """What is streamed, and how; it holds no position and reads nothing but the files' first bytes.

    Args:
        files: text, in reading order.
        seq_len: S, tokens of a row.
        packing: True: windows over the tokens; False: one document a row; "best_fit": whole documents.
        document_mask: documents in one row do not see each other.
        seed, shuffle: the order; see the top of this file.
        name: how the ledger calls this text.

    Raises:
        CorpusTooSmallError: no text. NotFoundError, NotAllowedError, BadRecordError: a file cannot be read.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        tokenizer: TextTokenizer,
        *,
        seq_len: int,
        packing: bool | str = True,
        document_mask: bool = False,
        seed: int = 0,
        shuffle: bool = True,
        text_field: str = "text",
        name: str = DEFAULT_SOURCE,
        chunk_bytes: int = CHUNK_BYTES,
        max_lanes: int = MAX_LANES,
    ) -> None:
        self.text = ChunkedText(files, chunk_bytes, text_field)
        if not self.text.num_chunks:
            raise CorpusTooSmallError(
                f"no text: {'all files are empty' if files else 'no files'}",
                where=name_some([file.name for file in files]),
            )
        empty = [file.name for file in files if not file.size_bytes]
        self.notes = (f"skipped {len(empty)} empty files: {name_some(empty)}",) if empty else ()
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.packing = packing
        self.document_mask = document_mask
        self.seed = seed
        self.shuffle = shuffle
        self.options = BlockOptions(text_field)
        self.name = name
        self.num_lanes = 1
        if shuffle:
            worth = self.text.total_bytes // (_BYTES_A_TOKEN * _ROWS_A_LANE * seq_len)
            blocks = max_lanes if self.text.has_parts else self.text.num_chunks
            self.num_lanes = max(1, min(max_lanes, worth, blocks))

    def open(
        self,
        *,
        submit: Submit,
        wait: Wait,
        num_ahead: int = 0,
        position: Mapping[str, Any] | None = None,
        num_epochs: int | None = None,
    ) -> StreamRows:
        """Its rows from a position on; see ``StreamRows``."""
        return StreamRows(
            self, submit=submit, wait=wait, num_ahead=num_ahead, position=position, num_epochs=num_epochs
        )

    def place_of(self, row: StreamRow) -> tuple[str, int] | None:
        """The file and the byte of it where the part begins that a row ends in; None when it is not known."""
        return None if row.block is None else self.text.place_of(row.block.chunk)

    def restarts(self, position: Mapping[str, Any]) -> bool:
        """Whether a position is of other text, so that its epoch begins anew."""
        return bool(position) and position["shape"] != self.shape()

    def tally_notes(self, position: Mapping[str, Any]) -> list[str]:
        """What was left out or lost up to a position, in sentences."""
        return list(StreamTally(self.text, position["tally"]).notes()) if "tally" in position else []

    def identity(self) -> list[Entry]:
        """What tells this text from any other, in the form of ``data/identity.py``."""
        return text_identities(self.text.files)

    def shape(self) -> dict[str, Any]:
        """What a position is only good for."""
        return {
            "chunks": self.text.num_chunks,
            "chunk_bytes": self.text.chunk_bytes,
            "bytes": self.text.total_bytes,
            "lanes": self.num_lanes,
            "seq_len": self.seq_len,
            "packing": self.packing,
            **({"document_mask": True} if self.document_mask else {}),
        }

    def open_lane(self, state: dict[str, Any] | None) -> Lane:
        """A new lane, or one with the state of another."""
        if self.packing == "best_fit":
            return BestFitLane(self.seq_len, state, document_mask=self.document_mask)
        if self.packing:
            return WindowLane(self.seq_len, self.ids_type, state, document_mask=self.document_mask)
        return DocumentLane(self.seq_len, state)

    def chunk_order(self, epoch: int) -> RowOrder:
        if not self.shuffle:
            return AsTheyLie(self.text.num_chunks)
        return Permutation(self.text.num_chunks, permutation_key(self.seed, epoch, "chunks"))

    def documents(self, name: BlockName, block: TextBlock, result: BlockTokens) -> Documents:
        """A block's documents in the order in which they are trained on."""
        ids = np.frombuffer(bytes(result.train.data), dtype=self.ids_type)
        lengths = np.array(result.train.lengths, dtype=np.int64)
        if self.shuffle and len(lengths) > 1:
            key = permutation_key(self.seed, name.epoch, f"documents {name.chunk} {name.part}")
            order = Permutation(len(lengths), key).take(np.arange(len(lengths), dtype=np.int64))
            ends = np.cumsum(lengths)
            pieces = [ids[ends[at] - lengths[at] : ends[at]] for at in order.tolist()]
            ids, lengths = np.concatenate(pieces), lengths[order]
        return Documents(name, ids, lengths, block.size_bytes)

    @property
    def ids_type(self) -> np.dtype[Any]:
        return np.dtype("<u2") if self.tokenizer.token_bytes == 2 else np.dtype("<u4")


@dataclass(frozen=True)
class _Coming:
    """A block on its way."""

    place: int
    name: BlockName
    block: TextBlock
    result: Future[BlockTokens]


class StreamRows:
    """The rows of a stream from a position on, one after another.

    Args:
        submit, wait: hand a block to be tokenized, and get the result (``TokenizePool.submit``).
        num_ahead: blocks handed over before they are needed.
        position: of an earlier ``position()``; None or empty: the beginning.
        num_epochs: where it ends; None: never.

    ``restarted``: the position was saved for other text (or another S): the epoch begins anew.
    """

    def __init__(
        self,
        stream: TextStream,
        *,
        submit: Submit,
        wait: Wait,
        num_ahead: int = 0,
        position: Mapping[str, Any] | None = None,
        num_epochs: int | None = None,
    ) -> None:
        self.stream = stream
        self.num_epochs = num_epochs
        saved = dict(position or {})
        self.restarted = stream.restarts(saved)
        if self.restarted:
            saved = {"rows": saved["rows"], "epoch": saved["epoch"]}
        self.num_rows: int = saved.get("rows", 0)
        self.epoch: int = saved.get("epoch", 0)
        self._turn: int = saved.get("turn", 0)
        self._epoch_documents: int = saved.get("epoch_documents", 0)
        self._epoch_bytes: int = saved.get("epoch_bytes", 0)
        self.tally = StreamTally(stream.text, saved.get("tally"))
        states = saved.get("lanes") or [None] * stream.num_lanes
        self._lanes = [stream.open_lane(state) for state in states]
        self._dry: set[int] = set()
        self._submit = submit
        self._wait = wait
        self._num_ahead = num_ahead
        place, part = saved.get("next", (0, 0))
        self._next: tuple[int, int] = (place, part)
        self._coming: deque[_Coming] = deque()
        self._feed = self._blocks_from(self.epoch, *self._next)
        self._reopen_lanes()

    def next_row(self) -> StreamRow | None:
        """The next row of the run; None after the last.

        Raises:
            BadRecordError: a damaged line, or too many records without text.
            CorpusTooSmallError: a whole epoch without anything to train on.
        """
        lanes = self._lanes
        while True:
            if len(self._dry) == len(lanes):
                if self._is_over():
                    return self._last_row()
                self._begin_next_epoch()
                continue
            number, self._turn = self._turn, (self._turn + 1) % len(lanes)
            if number in self._dry:
                continue
            row = self._row_of(number)
            if row is not None:
                return self._given(row)

    def position(self) -> dict[str, Any]:
        """Where to go on after the rows given so far. JSON types only; independent of what is on its way."""
        return {
            "shape": self.stream.shape(),
            "rows": self.num_rows,
            "epoch": self.epoch,
            "epochs": self.epochs(),
            "next": list(self._next),
            "turn": self._turn,
            "lanes": states_of(self._lanes),
            "epoch_documents": self._epoch_documents,
            "epoch_bytes": self._epoch_bytes,
            "tally": self.tally.state(),
            "skipped": {self.stream.name: skips_of(self.tally.state())},
        }

    def epochs(self) -> float:
        """Passes over the text so far, by its bytes."""
        waiting = sum(lane.waiting_bytes() for lane in self._lanes)
        share = (self._epoch_bytes - waiting) / self.stream.text.total_bytes
        return self.epoch + min(1.0, max(0.0, share))

    def _is_over(self) -> bool:
        return self.num_epochs is not None and self.epoch >= self.num_epochs

    def _row_of(self, number: int) -> StreamRow | None:
        """A lane's next row; None when the epoch has no block left for it."""
        lane = self._lanes[number]
        while (row := lane.row()) is None:
            documents = self._take() if not self._is_over() else None
            if documents is None and lane.flush():
                continue
            if documents is None:
                lane.close_block()
                self._dry.add(number)
                return None
            lane.add(documents)
        return row

    def _last_row(self) -> StreamRow | None:
        for lane in self._lanes:
            row = lane.last_row()
            if row is not None:
                return self._given(row)
        return None

    def _given(self, row: StreamRow) -> StreamRow:
        row.source = self.stream.name
        self.num_rows += 1
        return row

    def _begin_next_epoch(self) -> None:
        if self.epoch == 0:
            self.tally.check()
        if not self._epoch_documents:
            raise CorpusTooSmallError(
                f"no documents to train on in {self.tally.records} records",
                where=name_some([file.name for file in self.stream.text.files]),
            )
        self.epoch += 1
        self._next = (0, 0)
        self._epoch_documents = self._epoch_bytes = 0
        if not self._is_over():
            self._dry.clear()

    def _take(self) -> Documents | None:
        """The next block of this epoch, counted; None when there is none left."""
        self._look_ahead()
        if not self._coming or self._coming[0].name.epoch != self.epoch:
            return None
        coming = self._coming.popleft()
        if self._num_ahead:
            self._look_ahead()
        result = self._wait(coming.result)
        if result.found.fault is not None:
            raise_fault(self.stream.text, coming.block, result.found.fault)
        self._next = (coming.place, coming.name.part + 1)
        num_short = sum(1 for length in result.train.lengths if length < 2)
        if self.epoch == 0:
            self.tally.add(coming.block, result)
            self.tally.short += 0 if self.stream.packing is True else num_short
        self._epoch_bytes += coming.block.size_bytes
        self._epoch_documents += len(result.train.lengths) - (0 if self.stream.packing is True else num_short)
        return self.stream.documents(coming.name, coming.block, result)

    def _look_ahead(self) -> None:
        """Hand over blocks until enough are on their way."""
        waiting = sum(len(coming.block.data) for coming in self._coming)
        while len(self._coming) < max(1, self._num_ahead):
            if self._coming and waiting > _AHEAD_BYTES:
                return
            following = next(self._feed, None)
            if following is None:
                return
            place, name, block = following
            waiting += len(block.data)
            self._coming.append(_Coming(place, name, block, self._hand_over(block)))

    def _hand_over(self, block: TextBlock) -> Future[BlockTokens]:
        if block.data:
            return self._submit(block.data)
        nothing: Future[BlockTokens] = Future()
        nothing.set_result(BlockTokens(BlockDocuments(), BlockDocuments(), BlockTexts()))
        return nothing

    def _blocks_from(self, epoch: int, place: int, part: int) -> Iterator[tuple[int, BlockName, TextBlock]]:
        """All blocks from one on, with their chunk's place in the epoch's order."""
        while self.num_epochs is None or epoch < self.num_epochs:
            order = self.stream.chunk_order(epoch)
            for at, block in blocks_in_order(self.stream.text, order, place, part):
                yield at, BlockName(epoch, block.chunk, block.part), block
            epoch, place, part = epoch + 1, 0, 0

    def _reopen_lanes(self) -> None:
        """Read and tokenize again what the lanes hold."""
        held = [(lane, name) for lane in self._lanes for name in lane.blocks()]
        names = [name for _lane, name in held]
        blocks = self.stream.text.blocks([(name.chunk, name.part) for name in names])
        waiting = deque(held)
        working: deque[Future[BlockTokens]] = deque()
        ahead = deque(waiting)
        while waiting:
            while ahead and len(working) < max(1, self._num_ahead):
                _lane, name = ahead.popleft()
                working.append(self._hand_over(blocks[name.chunk, name.part]))
            lane, name = waiting.popleft()
            result = self._wait(working.popleft())
            lane.reopen(self.stream.documents(name, blocks[name.chunk, name.part], result))
