"""Streamed text of several sources, mixed by weights.

Comes in: streams and stages (see ``data/mixture.py``, which also says which source a row is of). Goes out:
rows one after another. Each source is streamed as if it were alone, without end; its epochs are its own. A
mixture ends where its caller says.

Position: that of each source, and the stages as they really were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protolith.data.mixture import Dealer, Stage
from protolith.data.stream_lanes import StreamRow
from protolith.data.streams import StreamRows, Submit, TextStream, Wait


class StreamMixture:
    """What is streamed, and with which shares. Streams have names of their own, and one tokenizer."""

    def __init__(self, streams: Sequence[TextStream], stages: Sequence[Stage]) -> None:
        self.streams = {stream.name: stream for stream in streams}
        if not streams or len(self.streams) != len(streams):
            raise ValueError("sources must have names of their own")
        self.stages = tuple(stages)
        self.tokenizer = streams[0].tokenizer
        self.options = streams[0].options
        self.seq_len = streams[0].seq_len

    def open(
        self,
        *,
        submit: Submit,
        wait: Wait,
        num_ahead: int = 0,
        position: Mapping[str, Any] | None = None,
        num_epochs: int | None = None,
    ) -> MixedStreamRows:
        """The rows from a position on, without end.

        Raises:
            ValueError: ``num_epochs`` is given; sources end at different times.
        """
        if num_epochs is not None:
            raise ValueError("a mixture of streams has no epochs to end after")
        ahead = -(-num_ahead // len(self.streams))
        saved = dict(position or {})
        places = saved.get("sources", {})
        rows = {
            name: stream.open(submit=submit, wait=wait, num_ahead=ahead, position=places.get(name))
            for name, stream in self.streams.items()
        }
        return MixedStreamRows(self, rows, int(saved.get("rows", 0)))

    def place_of(self, row: StreamRow) -> tuple[str, int] | None:
        """The file, with its source's name, and the byte where the part begins that a row ends in."""
        place = self.streams[row.source].place_of(row)
        return None if place is None else (f"{row.source}/{place[0]}", place[1])

    def restarts(self, position: Mapping[str, Any]) -> bool:
        """Whether a position is of other text, for any of the sources."""
        places = position.get("sources", {})
        return bool(position) and any(
            name not in places or stream.restarts(places[name]) for name, stream in self.streams.items()
        )

    def tally_notes(self, position: Mapping[str, Any]) -> list[str]:
        places = position.get("sources", {})
        return [
            f"{name}: {note}"
            for name, stream in self.streams.items()
            for note in stream.tally_notes(places.get(name, {}))
        ]


class MixedStreamRows:
    """The rows of a mixture, one after another."""

    def __init__(self, mixture: StreamMixture, rows: Mapping[str, StreamRows], num_rows: int) -> None:
        self.num_rows = num_rows
        self._mixture = mixture
        self._rows = rows
        self._dealers = [Dealer([stage.shares.get(name, 0) for name in rows]) for stage in mixture.stages]

    def next_row(self) -> StreamRow | None:
        """The next row of the mixture. Errors as of ``StreamRows.next_row``."""
        stages = self._mixture.stages
        number = max(n for n, stage in enumerate(stages) if stage.first_row <= self.num_rows)
        heap = self._dealers[number].heap_of(self.num_rows - stages[number].first_row)
        row = list(self._rows.values())[heap].next_row()
        self.num_rows += row is not None
        return row

    def position(self) -> dict[str, Any]:
        """JSON types only."""
        places = {name: rows.position() for name, rows in self._rows.items()}
        stages = [{"first_row": s.first_row, "shares": dict(s.shares)} for s in self._mixture.stages]
        return {
            "shape": {name: place["shape"] for name, place in places.items()},
            "rows": self.num_rows,
            "sources": places,
            "stages": stages,
            "skipped": {name: place["skipped"][name] for name, place in places.items()},
        }

    def epochs(self) -> float:
        """Passes over its most read source."""
        return max(rows.epochs() for rows in self._rows.values())
