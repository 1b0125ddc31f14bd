"""Reads streams of Redis side by side, in a thread, from ids on.

Invariant: a stream's position is the id of the last entry that was given, or passed over.

Source: Redis' ``XREAD``, ``XINFO STREAM``; Flink's ``SplitFetcher``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import CheckpointMismatchError, SourceError
from headrace.state.credentials import masked

from ...formats.messages import BadMessage
from ..messages.client_thread import AwayError, ClientThread
from ..messages.decoding import MessageDecoder, Metadata, reject
from ..messages.fetching import POLL_MS, FetchingReader
from .client import Client, redis

__all__ = ["METADATA", "Entry", "RedisReader", "parse_id"]

MAX_WAITING = 8
"""Pieces of entries that may wait for the task, of all streams."""

ENTRIES_AT_ONCE = 1_000

_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


def parse_id(text: Any) -> tuple[int, int] | None:
    """Return an entry's id, to be compared; None if it is none."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a stream."""

    stream: str
    id: str
    fields: dict[bytes, bytes]

    @property
    def time_ms(self) -> int:
        """The milliseconds of its id."""
        return int(self.id.partition("-")[0])


METADATA: Metadata = {
    "stream": (pa.string(), lambda entry: entry.stream),
    "id": (pa.string(), lambda entry: entry.id),
}


@dataclass(slots=True)
class _Reading:
    """One stream and how far it was fetched, or given.

    Attributes:
        id: Of the last entry.
        count: How many entries the stream has had up to there; None if that is unknown.
    """

    stream: str
    id: str
    count: int | None
    end: str | None

    @property
    def is_at_end(self) -> bool:
        return self.end is not None and (parse_id(self.id) or (0, 0)) >= (parse_id(self.end) or (0, 0))

    def as_split(self) -> Split:
        return Split(self.stream, {"end": self.end}, {"id": self.id, "count": self.count})


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Entries of one stream, and how far it was fetched with them."""

    split_id: str
    entries: list[tuple[bytes, dict[bytes, bytes] | None]]
    id: str
    count: int | None

    @property
    def num_messages(self) -> int:
        return len(self.entries)


class _Fetcher(ClientThread):
    """Fetches entries of some streams in turn."""

    def __init__(self, client: Client, name: str, patience_s: float, readings: Sequence[_Reading]) -> None:
        super().__init__(name, MAX_WAITING, patience_s)
        self._client = client
        self._readings = list(readings)
        self._connection: Any = None

    def connect(self) -> None:
        self._connection = self._client.connect()

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def work(self) -> None:
        try:
            found = [self._fetch(one) for one in list(self._readings)]
        except (redis().RedisError, OSError) as error:
            message = f"streams of Redis cannot be read: {masked(str(error) or repr(error))}"
            # What Redis answers will not change by asking again, but for what its client takes for a broken connection.
            raise (SourceError if isinstance(error, redis().ResponseError) else AwayError)(message) from error
        if not any(found):
            self.pause(POLL_MS / 1_000)

    def _fetch(self, reading: _Reading) -> bool:
        """Fetch what is behind a position; whether there was something."""
        entries, count = self._entries_behind(reading)
        is_over = False
        if reading.end is not None:
            end = parse_id(reading.end) or (0, 0)
            is_over = not entries or (parse_id(entries[-1][0].decode()) or (0, 0)) >= end
            entries = [entry for entry in entries if (parse_id(entry[0].decode()) or (0, 0)) <= end]
        if entries:
            reading.id, reading.count = entries[-1][0].decode(), count
        if is_over:
            reading.id = reading.end or reading.id  # the last entry may have been deleted
        if reading.is_at_end:
            self._readings.remove(reading)
        if entries or reading.is_at_end:
            self.give(_Fetched(reading.stream, entries, reading.id, reading.count))
        return bool(entries)

    def _entries_behind(self, reading: _Reading) -> tuple[list[Any], int | None]:
        """What is behind a position, and the count behind it; as of one moment, so that nothing is trimmed between."""
        position = parse_id(reading.id) or (0, 0)
        with self._connection.pipeline(transaction=True) as step:
            step.exists(reading.stream)
            step.xinfo_stream(reading.stream)
            step.xread({reading.stream: reading.id}, count=ENTRIES_AT_ONCE)
            is_there, info, read = step.execute(raise_on_error=False)
        if not is_there:
            if max(position, parse_id(reading.end) or (0, 0)) > (0, 0):  # it was there: this is no end
                raise _lost(reading, "it is not there any more")
            return [], reading.count
        for one in (info, read):
            if isinstance(one, Exception):
                raise one
        if (parse_id(info["last-generated-id"].decode()) or (0, 0)) < position:
            raise _lost(reading, "it is another one: all of its entries are older")
        entries = read[0][1] if read else []
        first = self._first_count(info)
        if first is not None and reading.count is not None and first > reading.count:
            raise _lost(reading, f"{first - reading.count} entries were trimmed before they were read")
        if first is not None and reading.count is not None and first < reading.count:
            oldest = info["first-entry"]
            if oldest is None or (parse_id(oldest[0].decode()) or (0, 0)) > position:
                # None of what was read is there any more, and yet the stream has not had so many entries.
                raise _lost(reading, "it was deleted and made anew")
        count = None if first is None or reading.count is None else reading.count + len(entries)
        return entries, count

    @staticmethod
    def _first_count(info: dict[str, Any]) -> int | None:
        """How many entries a stream had before the first that it has; None if that cannot be told."""
        added, deleted = info.get("entries-added"), info.get("max-deleted-entry-id")
        return None if added is None or deleted != b"0-0" else int(added - info["length"])


def _lost(reading: _Reading, why: str) -> SourceError:
    message = f"stream {reading.stream!r} of Redis cannot be read on: {why}"
    hint = "a larger MAXLEN keeps entries; to go on without them, start anew without the checkpoint"
    return SourceError(message, hint=hint, split=reading.stream, position=f"entry {reading.id}")


class RedisReader(FetchingReader[_Reading, _Fetched, _Fetcher]):
    """Reads the streams of one subtask.

    Args:
        client: Of the server.
        field: Of an entry that is the message.
        decoder: Makes records of entries.
        patience_s: How long the server may be away.
    """

    def __init__(self, client: Client, field: bytes, decoder: MessageDecoder[Entry], patience_s: float) -> None:
        super().__init__()
        self._client = client
        self._field = field
        self._decoder = decoder
        self._patience_s = patience_s

    def open(self, context: ReaderContext) -> None:
        redis()  # said at once if it is not installed
        super().open(context)

    def reading_of(self, split: Split) -> _Reading:
        return _reading_of(split)

    def fetcher_of(self, readings: Sequence[_Reading]) -> _Fetcher:
        name = f"redis {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._client, name, self._patience_s, readings)

    def read(self, reading: _Reading, fetched: _Fetched) -> Batch:
        stream = reading.stream
        entries = [Entry(stream, name.decode(), fields or {}) for name, fields in fetched.entries]
        given = self._with_field(stream, entries)
        batch = self._decoder.decode(self._context, stream, given, lambda entry: entry.time_ms)
        reading.id, reading.count = fetched.id, fetched.count
        return batch

    def _with_field(self, stream: str, entries: list[Entry]) -> list[Entry]:
        lacking = [entry for entry in entries if self._field not in entry.fields]
        if not lacking:
            return entries
        cause = f"it has no field {self._field.decode()!r}"
        bad = [BadMessage(place, repr(entry.fields).encode(), cause) for place, entry in enumerate(lacking)]
        reject(self._context, self._decoder.on_error, stream, bad, lambda one: f"entry {lacking[one.index].id}")
        return [entry for entry in entries if self._field in entry.fields]


def _reading_of(split: Split) -> _Reading:
    """Where a split is.

    Raises:
        CheckpointMismatchError: If its position is none of a stream.
    """
    position, end = split.position, split.payload.get("end")
    is_right = isinstance(position, dict) and position.keys() == {"id", "count"}
    is_right = is_right and parse_id(position["id"]) is not None and (end is None or parse_id(end) is not None)
    if not is_right or not (position["count"] is None or type(position["count"]) is int):
        message = "the checkpoint's position is not one of a stream of Redis"
        raise CheckpointMismatchError(message, split=split.split_id)
    return _Reading(split.split_id, position["id"], position["count"], end)
