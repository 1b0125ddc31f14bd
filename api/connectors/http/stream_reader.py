"""Reads what servers send without being asked again, each from a position on, in a thread of its own.

A position is a cursor, and how many records behind it were given: what a server is told when it is connected to again.

Invariant: a split's position is behind the last record that was given, or passed over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.checkpoints.manifest_schema import is_count, is_text

from ..messages.client_thread import ClientThread
from ..messages.decoding import MessageDecoder
from ..messages.fetching import FetchingReader

__all__ = ["Piece", "Place", "StreamReader", "StreamRecord", "StreamThread"]

PIECES_AHEAD = 16
"""So many pieces may wait to be taken; a server may send 64 KiB in one, or a record."""

RECORDS_AT_ONCE = 1_000
"""A piece that has so many is not joined with the next one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a stream something is.

    Attributes:
        cursor: By which the server finds it again; None for the beginning.
        num_given: How many records behind that.
    """

    cursor: str | None = None
    num_given: int = 0

    def __str__(self) -> str:
        behind = "the beginning" if self.cursor is None else f"{self.cursor!r}"
        return f"record {self.num_given} behind {behind}" if self.num_given else behind


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record, as the server has sent it, and what comes behind it."""

    url: str
    kind: str | None
    behind: Place
    body: bytes

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self.behind)


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that a stream has brought since the last look."""

    split_id: str
    records: list[StreamRecord]
    is_last: bool = False

    @property
    def num_messages(self) -> int:
        """How many records it has."""
        return len(self.records)


class Reading:
    """A stream, and how far it was fetched, or given."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.split_id = split.split_id
        self.url: str = split.payload["url"]
        self.place = Place()
        self.is_at_end = False
        position = split.position
        if position is not None:
            is_right = isinstance(position, dict) and position.keys() == {"cursor", "given"}
            is_right = is_right and is_count(position["given"])
            if not is_right or not (position["cursor"] is None or is_text(position["cursor"])):
                message = "the checkpoint's position is not one of a stream, which is a cursor and a number"
                raise CheckpointMismatchError(message, split=split.split_id)
            self.place = Place(position["cursor"], position["given"])

    def move(self, piece: Piece) -> None:
        """Go behind a piece."""
        if piece.records:
            self.place = piece.records[-1].behind
        self.is_at_end |= piece.is_last

    def as_split(self) -> Split:
        """Return the split, with its position."""
        place = self.place
        position = None if place == Place() else {"cursor": place.cursor, "given": place.num_given}
        return Split(self.split_id, self._split.payload, position)


class StreamThread(ClientThread):
    """Takes what one server sends. Subclasses connect, and call `hand_on`.

    Args:
        reading: Where to begin.
        name: Of the thread.
        patience_s: How long the server may be away.
    """

    def __init__(self, reading: Reading, name: str, patience_s: float) -> None:
        super().__init__(name, PIECES_AHEAD, patience_s)
        self._reading = reading

    def hand_on(self, records: list[StreamRecord], *, is_last: bool = False) -> None:
        """Give what has come."""
        piece = Piece(self._reading.split_id, records, is_last)
        self._reading.move(piece)
        if records or is_last:
            self.give(piece)
        if is_last:
            self.end()

    def take(self) -> Piece | None:
        """Return what has come since, as one piece: to decode each record by itself costs many times as much."""
        piece: Piece | None = super().take()
        if piece is None or not self.has_more:
            return piece
        records, is_last = list(piece.records), piece.is_last
        while self.has_more and not is_last and len(records) < RECORDS_AT_ONCE:
            more = super().take()
            records += more.records
            is_last = more.is_last
        return Piece(piece.split_id, records, is_last)

    @property
    def where(self) -> dict[str, Any]:
        """The place that was reached, for errors."""
        return {"split": self._reading.split_id, "position": str(self._reading.place)}

    def broken(self, error: ValueError) -> SourceError:
        """Return the error of what came and is not what it should be."""
        message = f"what the server sends cannot be read: {error}"
        return SourceError(message, **self.where)

    @abstractmethod
    def interrupt(self) -> None:
        """Have it notice at once that it is to end; called by the task."""

    def stop(self, timeout_s: float) -> None:
        self._stop.set()
        self.interrupt()
        super().stop(timeout_s)


class StreamReader(FetchingReader[Reading, Piece, StreamThread]):
    """Reads the streams of one subtask.

    Args:
        thread_of: Makes the thread of a stream, with a name.
        decoder: Makes records of messages.
        check: Sees that what it needs is there.
    """

    def __init__(
        self,
        thread_of: Callable[[Reading, str], StreamThread],
        decoder: MessageDecoder[StreamRecord],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self._thread_of = thread_of
        self._decoder = decoder
        self._check = check

    def open(self, context: ReaderContext) -> None:
        self._check()
        super().open(context)

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:  # each has a thread, as each blocks
            super().add_splits([split])

    def reading_of(self, split: Split) -> Reading:
        return Reading(split)

    def fetcher_of(self, readings: Sequence[Reading]) -> StreamThread:
        (reading,) = readings
        return self._thread_of(reading, f"stream {self._context.operator_name} {self._context.subtask + 1}")

    def read(self, reading: Reading, fetched: Piece) -> Batch:
        batch = self._decoder.decode(self._context, reading.split_id, fetched.records)
        reading.move(fetched)
        return batch
