"""Reads shards of a stream side by side, in a thread, from sequence numbers on.

A reader that begins anew, after a restore or as its iterator has expired, asks for the record that it has given last,
and passes it over. Where that is gone, what came behind it may be, too, if it is longer ago than the stream keeps
records that the shard was read up to its end. Kinesis itself says nothing then: it goes on with what is left.

A shard that has ended stays here until the enumerator lets it go; see `headrace.connectors.kinesis.shards`.

Source: Kinesis' ``GetShardIterator``, ``GetRecords``; Flink's ``PollingKinesisShardSplitReader``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import SourceError

from ..messages.client_thread import AwayError, ClientThread
from ..messages.decoding import MessageDecoder, Metadata
from ..messages.fetching import FetchingReader
from .aggregation import users_of
from .client import Stream, StreamError, service_ms
from .positions import Position, ShardReading, place_text, reading_of
from .shards import CAUGHT_UP, CHILDREN, ENDED, RELEASED, Shard, failed

__all__ = ["METADATA", "KinesisReader", "Message", "Pace"]

MAX_WAITING = 8
"""Pieces of records that may wait for the task, of all shards."""

MESSAGES_AT_ONCE = 1_000

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 0.5, 10.0
"""How long a shard is left alone when too much was asked for."""

MARK_MS = 60_000
"""So often the position of a shard without records says how far that was seen."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a stream is asked.

    Attributes:
        interval_s: How long after one request for records of a shard the next one is made.
        most_records: In one answer.
        patience_s: How long Kinesis may be away.
        on_expired: What to do where records were deleted before they were read: ``fail``, or go on with the
            ``earliest`` there is.
    """

    interval_s: float
    most_records: int
    patience_s: float
    on_expired: Literal["fail", "earliest"]


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a shard, or one of those in an aggregated one.

    Attributes:
        sub: Its number in the aggregated one; None for a record that is alone.
    """

    shard: str
    sequence: str
    sub: int | None
    key: str
    data: bytes
    time_ms: int

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        return place_text(self.sequence, self.sub)


METADATA: Metadata = {
    "timestamp": (pa.timestamp("ms", "UTC"), lambda message: message.time_ms),
    "shard_id": (pa.string(), lambda message: message.shard),
    "sequence_number": (pa.string(), lambda message: message.sequence),
    "sub_sequence_number": (pa.int64(), lambda message: message.sub),
    "partition_key": (pa.string(), lambda message: message.key),
}


@dataclass(frozen=True, slots=True)
class _Fetched:
    """Records of one shard, and where it is behind them."""

    split_id: str
    messages: list[Message]
    position: Position
    has_caught_up: bool

    @property
    def num_messages(self) -> int:
        return len(self.messages)


@dataclass(slots=True)
class _Tail:
    """How the thread reads one shard on.

    Attributes:
        iterator: Where the next records are, as Kinesis has it; None to ask anew.
        is_sure: Whether the last record has been met since, or nothing was read before.
        due_s: When to ask again, by the monotonic clock.
        back_off_s: How long to wait when too much was asked for.
        began_s: When Kinesis first answered, by the monotonic clock; None if it has not.
        began_ms: When that was by its own clock, which tells whole seconds.
        has_caught_up: Whether all has been fetched that was there then.
        behind_ms: How far Kinesis said it is behind the newest record.
        marked_ms: What of `Position.until_ms` was given last.
    """

    reading: ShardReading
    low: int
    high: int
    iterator: str | None = None
    is_sure: bool = False
    due_s: float = 0.0
    back_off_s: float = FIRST_BACK_OFF_S
    began_s: float | None = None
    began_ms: int = 0
    has_caught_up: bool = False
    behind_ms: int = 0
    marked_ms: int = 0


class _Fetcher(ClientThread):
    """Fetches records of some shards in turn."""

    def __init__(self, stream: Stream, name: str, pace: Pace, readings: Sequence[ShardReading]) -> None:
        super().__init__(name, MAX_WAITING, pace.patience_s)
        self._stream = stream
        self._pace = pace
        self._tails = [_tail_of(reading) for reading in readings if not reading.has_ended]
        self._client: Any = None
        # For the task to count, and to tell people: put in by the thread.
        self.counted: deque[tuple[str, int]] = deque()
        self.warnings: deque[str] = deque()

    @property
    def behind_ms(self) -> int:
        """How far the slowest shard is behind."""
        return max((tail.behind_ms for tail in self._tails), default=0)

    def connect(self) -> None:
        try:
            self._client = self._stream.connect()
        except StreamError as error:
            raise failed(self._stream, error, "a stream of Kinesis cannot be read") from error

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def work(self) -> None:
        if not self._tails:
            self.end()
            return
        for tail in list(self._tails):
            if time.monotonic() >= tail.due_s and not self.is_stopping:
                self._fetch(tail)
        next_s = min((tail.due_s for tail in self._tails), default=0.0)
        self.pause(max(0.0, next_s - time.monotonic()))

    def _fetch(self, tail: _Tail) -> None:
        """Fetch what is behind a position."""
        try:
            if tail.iterator is None:
                tail.iterator = self._iterator(tail)
            if tail.iterator is None:
                self._end(tail)
                return
            iterator, most = tail.iterator, self._pace.most_records
            self._take(tail, self._ask("get_records", names_stream=False, ShardIterator=iterator, Limit=most))
        except StreamError as error:
            self._refused(tail, error)
            return
        tail.back_off_s = FIRST_BACK_OFF_S
        tail.due_s = time.monotonic() + self._pace.interval_s

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._stream.ask(self._client, operation, **arguments)

    def _refused(self, tail: _Tail, error: StreamError) -> None:
        """Go on behind an answer that was none.

        Raises:
            AwayError: If Kinesis does not answer.
            SourceError: If asking again is no use.
        """
        if error.kind == "throttled":
            self.counted.append(("num_throttled", 1))
            tail.due_s = time.monotonic() + tail.back_off_s
            tail.back_off_s = min(2 * tail.back_off_s, LONGEST_BACK_OFF_S)
        elif error.kind == "expired":
            tail.iterator = None
            tail.due_s = time.monotonic() + self._pace.interval_s
        elif error.kind == "away":
            message = f"a stream of Kinesis cannot be read: {error}"
            raise AwayError(message, stream=self._stream.name, split=tail.reading.shard) from error
        else:
            raise failed(
                self._stream, error, "a stream of Kinesis cannot be read", split=tail.reading.shard,
                position=tail.reading.position.text,
            ) from error  # fmt: skip

    # -------------------------------------------------------------------------------------------------------- iterators
    def _iterator(self, tail: _Tail) -> str | None:
        """Where a position is, as Kinesis has it; None if the shard is gone and that is passed over."""
        position = tail.reading.position
        tail.is_sure = position.sequence is None and not position.until_ms
        try:
            if position.sequence is not None:
                return self._iterator_at(tail, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=position.sequence)
            if position.since_ms:
                # The client sends seconds; what came before, within this one, is passed over.
                since = datetime.fromtimestamp(position.since_ms // 1_000, timezone.utc)
                return self._iterator_at(tail, "AT_TIMESTAMP", Timestamp=since)
        except StreamError as error:
            if position.sequence is None or error.kind not in ("gone", "invalid"):
                raise
        # Of what is there the first will show whether some are missing.
        try:
            return self._iterator_at(tail, "TRIM_HORIZON")
        except StreamError as error:
            if error.kind != "gone":
                raise
        self._stream.retention_ms(self._client)  # an error if it is the stream that is not there
        self._lose(tail, "the stream does not have it any more")
        return None

    def _iterator_at(self, tail: _Tail, kind: str, **arguments: Any) -> str | None:
        answer = self._ask("get_shard_iterator", ShardId=tail.reading.shard, ShardIteratorType=kind, **arguments)
        iterator: str | None = answer["ShardIterator"]
        return iterator

    # ---------------------------------------------------------------------------------------------------------- records
    def _take(self, tail: _Tail, answer: dict[str, Any]) -> None:
        """Give what Kinesis has answered, in pieces, and move the position behind it."""
        records = answer["Records"]
        tail.behind_ms = behind_ms = answer.get("MillisBehindLatest") or 0
        now_ms = service_ms(answer)
        is_closed = answer.get("NextShardIterator") is None
        if not tail.is_sure and (records or is_closed or behind_ms == 0):
            self._make_sure(tail, records[0]["SequenceNumber"] if records else None, now_ms)
        records, is_over = self._up_to_end(tail, records, behind_ms, now_ms)
        tail.has_caught_up = tail.has_caught_up or self._catches_up(tail, answer["Records"], behind_ms, now_ms)
        children = None
        if is_closed or is_over:
            children = [Shard.of_child(child).as_dict() for child in answer.get("ChildShards") or ()]
        since_ms = tail.reading.position.since_ms
        for piece in self._pieces(tail, records, Position(None, None, since_ms, now_ms - behind_ms, children)):
            tail.reading.position = piece.position
            self.give(piece)
        tail.iterator = answer.get("NextShardIterator")
        if tail.reading.has_ended:
            self._tails.remove(tail)

    def _catches_up(self, tail: _Tail, records: list[dict[str, Any]], behind_ms: int, now_ms: int) -> bool:
        """Whether all has been fetched that was there when Kinesis first answered.

        It may say that nothing is behind records that came together with others, of which it gives only so many.
        """
        now_s = time.monotonic()
        if tail.began_s is None:
            tail.began_s, tail.began_ms = now_s, now_ms
        is_full = len(records) >= self._pace.most_records
        if is_full and _arrival_ms(records[-1]) < tail.began_ms + 1_000:  # a clock of seconds
            return False
        return behind_ms <= (now_s - tail.began_s) * 1_000

    def _end(self, tail: _Tail) -> None:
        """Give the end of a shard that is gone."""
        self._tails.remove(tail)
        self.give(_Fetched(tail.reading.shard, [], replace(tail.reading.position, children=[]), True))

    def _up_to_end(
        self, tail: _Tail, records: list[dict[str, Any]], behind_ms: int, now_ms: int
    ) -> tuple[list[dict[str, Any]], bool]:
        """The records that are read, and whether no more will be."""
        end_ms = tail.reading.end_ms
        if end_ms is None:
            return records, False
        for place, record in enumerate(records):
            if _arrival_ms(record) > end_ms:
                return records[:place], True
        # Kinesis may answer with nothing, or say that nothing more is there, in front of more.
        return records, not records and not behind_ms and now_ms > end_ms

    def _pieces(self, tail: _Tail, records: list[dict[str, Any]], last: Position) -> Iterator[_Fetched]:
        """Records in pieces, each with the position behind it; the last one has what is known behind all of them."""
        reading = tail.reading
        sequence, sub = reading.position.sequence, reading.position.sub
        messages: list[Message] = []
        for record in self._since(reading.position, records):
            users, after = self._messages(tail, record)
            for message, is_last in users:
                messages.append(message)
                if len(messages) >= MESSAGES_AT_ONCE:
                    within = None if is_last else message.sub
                    place = Position(message.sequence, within, last.since_ms, message.time_ms, None)
                    yield _Fetched(reading.shard, messages, place, False)
                    messages = []
            if after is not None:
                sequence, sub = after, None
        last.sequence, last.sub = sequence, sub
        is_news = bool(messages) or last.children is not None or last.until_ms - tail.marked_ms >= MARK_MS
        if is_news or (tail.has_caught_up and not reading.has_caught_up):
            tail.marked_ms = last.until_ms
            reading.has_caught_up = tail.has_caught_up
            yield _Fetched(reading.shard, messages, last, tail.has_caught_up)

    @staticmethod
    def _since(position: Position, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Records from the first on that came late enough, or from the last one on that was given."""
        if position.sequence is not None:
            last = int(position.sequence)
            late = (place for place, record in enumerate(records) if int(record["SequenceNumber"]) >= last)
        else:
            late = (place for place, record in enumerate(records) if _arrival_ms(record) >= position.since_ms)
        return records[next(late, len(records)) :]

    def _messages(self, tail: _Tail, record: dict[str, Any]) -> tuple[list[tuple[Message, bool]], str | None]:
        """What of a record is to be given, each with whether it is the last of it; and its sequence number, None if it
        is passed over.
        """
        position = tail.reading.position
        sequence, time_ms, data = record["SequenceNumber"], _arrival_ms(record), record["Data"]
        is_met = sequence == position.sequence
        if is_met and position.sub is None:
            return [], None
        users = users_of(data)
        if users is None:
            return [
                (Message(tail.reading.shard, sequence, None, record["PartitionKey"], data, time_ms), True)
            ], sequence
        first = position.sub + 1 if is_met and position.sub is not None else 0
        found = [
            (Message(tail.reading.shard, sequence, number, user.key, user.data, time_ms), number == len(users) - 1)
            for number, user in enumerate(users)
            if number >= first and tail.low <= user.hash <= tail.high
        ]
        # The library packs by a view of the shards that may be old, sees where a record went, and sends again what is
        # in the wrong one.
        if num_strays := sum(not tail.low <= user.hash <= tail.high for user in users[first:]):
            self.counted.append(("num_records_of_other_shards", num_strays))
        return found, sequence

    # ------------------------------------------------------------------------------------------------------------- loss
    def _make_sure(self, tail: _Tail, first: str | None, now_ms: int) -> None:
        """See that nothing was deleted between the last record that was given and the first that there is.

        Raises:
            SourceError: If something may have been, and that is an error.
        """
        position = tail.reading.position
        if position.sequence is None or first != position.sequence:
            kept_ms = now_ms - self._stream.retention_ms(self._client)
            # Was the shard read up to its end when all that came later is still there?
            if position.sub is not None or position.until_ms <= kept_ms:
                deleted = "that record was deleted, and those that came next may be gone with it"
                unmet = "it has given no record yet, and the first ones that came may be deleted"
                self._lose(tail, unmet if position.sequence is None else deleted)
        tail.is_sure = True

    def _lose(self, tail: _Tail, why: str) -> None:
        """Records were deleted before they were read.

        Raises:
            SourceError: Unless that is to be passed over.
        """
        reading = tail.reading
        message = f"shard {reading.shard} of Kinesis cannot be read on: {why}"
        if self._pace.on_expired == "fail":
            hint = (
                "a longer retention of the stream keeps them; on_expired='earliest' goes on with what is there, without"
                " them"
            )
            raise SourceError(message, hint=hint, split=reading.shard, position=reading.position.text)
        self.warnings.append(f"{message}; it goes on with what is there, as on_expired says")


def _tail_of(reading: ShardReading) -> _Tail:
    low, high = reading.payload["hashes"]
    return _Tail(reading, int(low), int(high), marked_ms=reading.position.until_ms)


def _arrival_ms(record: dict[str, Any]) -> int:
    """When a record has come, epoch milliseconds."""
    return round(record["ApproximateArrivalTimestamp"].timestamp() * 1_000)


class KinesisReader(FetchingReader[ShardReading, _Fetched, _Fetcher]):
    """Reads the shards of one subtask.

    Args:
        stream: Which.
        decoder: Makes records of messages.
        pace: How they are asked for.
    """

    def __init__(self, stream: Stream, decoder: MessageDecoder[Message], pace: Pace) -> None:
        super().__init__()
        self._stream = stream
        self._decoder = decoder
        self._pace = pace
        # Shards that were given back before their parents have ended again: a part of the job was restarted alone.
        self._early: list[Split] = []

    def open(self, context: ReaderContext) -> None:
        super().open(context)
        context.metrics.gauge("millis_behind_latest", self._behind_ms)

    def _behind_ms(self) -> int:
        return max((fetcher.behind_ms for fetcher in self._all_fetchers()), default=0)

    def reading_of(self, split: Split) -> ShardReading:
        return reading_of(split)

    def fetcher_of(self, readings: Sequence[ShardReading]) -> _Fetcher:
        name = f"kinesis {self._context.operator_name} {self._context.subtask + 1}"
        return _Fetcher(self._stream, name, self._pace, readings)

    @property
    def num_kept(self) -> int:
        """Shards that have ended: what comes of them is dealt out as if they were gone, so none has nothing to read."""
        return sum(reading.has_ended for reading in self._readings.values())

    def add_splits(self, splits: list[Split]) -> None:
        self._readings.update({split.split_id: self.reading_of(split) for split in splits})
        self._begin(splits)

    def _begin(self, splits: list[Split]) -> None:
        """Read those whose parents have ended, as far as these are here; the others later."""
        unread = {name for name, reading in self._readings.items() if not reading.has_ended}
        ready: list[Split] = []
        waiting, self._early = [*self._early, *splits], []
        for split in waiting:
            (self._early if unread & set(split.payload["parents"]) else ready).append(split)
        if ready:
            super().add_splits(ready)

    def poll(self, max_records: int) -> Any:
        polled = super().poll(max_records)
        for fetcher in self._all_fetchers():
            while fetcher.counted:
                self._context.metrics.count(*fetcher.counted.popleft())
            while fetcher.warnings:
                self._context.warn(fetcher.warnings.popleft())
        for reading in self._readings.values():
            if reading.has_ended and not reading.has_told_of_end:
                reading.has_told_of_end = True
                self._context.send_source_event({ENDED: reading.shard, CHILDREN: reading.position.children})
                self._begin([])
        for shard in [name for name in self._fetchers if name not in self._readings]:
            del self._fetchers[shard]
        return polled

    def read(self, reading: ShardReading, fetched: _Fetched) -> Batch:
        batch = self._decoder.decode(self._context, reading.shard, fetched.messages, lambda message: message.time_ms)
        reading.position = fetched.position
        if fetched.has_caught_up and not reading.has_caught_up:
            reading.has_caught_up = True
            self._context.send_source_event({CAUGHT_UP: reading.shard})
        return batch

    def handle_source_event(self, event: Any) -> None:
        """Let shards go, as the enumerator says."""
        for shard in event[RELEASED]:
            if shard in self._readings:
                self._readings[shard].is_released = True
