"""Streams of HTTP as sources: server-sent events from the last event's id on, and lines from a cursor on.

Source: WHATWG, "HTML", 9.2 "Server-sent events"; "Newline Delimited JSON".
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from headrace.engine.connectors.contract import SourceReader
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT

from ...formats.messages import MessageFormat
from ..messages.arguments import columns_of, patience_s_of
from ..messages.decoding import MessageDecoder, Metadata, OnError
from ..messages.tls import Tls
from .addresses import AddressSource, duration_s
from .client import Answer, Endpoint, HttpAwayError, HttpClient, HttpRefusedError, with_parameter
from .json_places import Pointer
from .page_reader import away_of, refused_of, replace_url
from .server_sent import EventParser, LineSplitter
from .stream_reader import Place, Reading, StreamReader, StreamRecord, StreamThread

__all__ = ["EVENT_METADATA", "LINE_METADATA", "HttpEventSource", "HttpLineSource"]

PAUSE_S = 0.05
NO_CONTENT = 204

EVENT_METADATA: Metadata = {
    "url": (pa.string(), lambda record: record.url),
    "id": (pa.string(), lambda record: record.behind.cursor),
    "event": (pa.string(), lambda record: record.kind),
}
LINE_METADATA: Metadata = {
    "url": (pa.string(), lambda record: record.url),
    "cursor": (pa.string(), lambda record: record.behind.cursor),
}


class _AnswerThread(StreamThread, ABC):
    """Reads an answer that has no end, or ends now and then."""

    def __init__(self, endpoint: Endpoint, pause_s: float, patience_s: float, reading: Reading, name: str) -> None:
        super().__init__(reading, name, patience_s)
        self._client = HttpClient(replace_url(endpoint, reading.url))
        self._max_bytes = endpoint.max_bytes
        self._pause_s = pause_s
        # None between one and the next, which is due then, by the monotonic clock.
        self._answer: Answer | None = None
        self._due_s = 0.0

    @abstractmethod
    def ask(self, client: HttpClient) -> Answer:
        """Have the server send what comes behind the place that was reached."""

    @abstractmethod
    def records(self, piece: bytes) -> list[StreamRecord]:
        """The records that end in a piece.

        Raises:
            ValueError: If it is not what it should be.
        """

    @abstractmethod
    def ended(self, answer: Answer) -> None:
        """The answer is over."""

    def connect(self) -> None:
        try:
            self._answer = self.ask(self._client)
        except HttpAwayError as error:
            raise away_of(error, self.where) from error
        except HttpRefusedError as error:
            raise refused_of(error, self.where) from error

    def work(self) -> None:
        if self._answer is None:
            if time.monotonic() < self._due_s:
                self.pause(PAUSE_S)
            else:
                self.connect()
            return
        try:
            piece = self._answer.piece()
            if piece:
                self.hand_on(self.records(piece))
                return
            self.ended(self._answer)
        except HttpAwayError as error:
            if not error.is_quiet:
                raise away_of(error, self.where) from error
        except HttpRefusedError as error:
            raise refused_of(error, self.where) from error
        except ValueError as error:
            raise self.broken(error) from error
        self._leave()

    def _leave(self) -> None:
        self.disconnect()
        self._due_s = time.monotonic() + self._pause_s

    def disconnect(self) -> None:
        self._answer = None
        self._client.close()

    def interrupt(self) -> None:
        self._client.interrupt()


class _EventThread(_AnswerThread):
    def __init__(
        self, kinds: frozenset[str], needs_ids: bool, endpoint: Endpoint, pause_s: float, patience_s: float,
        reading: Reading, name: str,
    ) -> None:  # fmt: skip
        super().__init__(endpoint, pause_s, patience_s, reading, name)
        self._kinds = kinds
        self._needs_ids = needs_ids

    def ask(self, client: HttpClient) -> Answer:
        last_id = self._reading.place.cursor
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id.encode().decode("latin-1")  # so that UTF-8 is what is sent
        answer = client.ask("GET", self._reading.url, None, headers)
        if answer.status == NO_CONTENT:
            self.hand_on([], is_last=True)
        elif not (answer.header("content-type") or "").lower().startswith("text/event-stream"):
            message = f"the answer is no stream of events; its Content-Type is {answer.header('content-type')!r}"
            raise HttpRefusedError(message, url=self._reading.url)
        self._parser = EventParser(self._max_bytes, last_id)
        return answer

    def records(self, piece: bytes) -> list[StreamRecord]:
        found = []
        for event in self._parser.events(piece):
            if self._needs_ids and not (event.has_id and event.last_id):
                message = "an event has no id, behind which it could be gone on; needs_ids=False reads such streams"
                raise ValueError(message)
            if not self._kinds or event.kind in self._kinds:
                found.append(StreamRecord(self._reading.url, event.kind, Place(event.last_id), event.data))
        if self._parser.retry_ms is not None:
            self._pause_s = self._parser.retry_ms / 1_000
        return found

    def ended(self, answer: Answer) -> None:
        return  # what has no end yet comes again


class _LineThread(_AnswerThread):
    def __init__(
        self, pointer: Pointer | None, parameter: str | None, bounded: bool, endpoint: Endpoint, pause_s: float,
        patience_s: float, reading: Reading, name: str,
    ) -> None:  # fmt: skip
        super().__init__(endpoint, pause_s, patience_s, reading, name)
        self._pointer = pointer
        self._parameter = parameter
        self._bounded = bounded

    def ask(self, client: HttpClient) -> Answer:
        url, place = self._reading.url, self._reading.place
        if self._parameter is not None and place.cursor is not None:
            url = with_parameter(url, self._parameter, place.cursor)
        self._lines = LineSplitter(self._max_bytes, knows_returns=False)
        self._place = Place(place.cursor)
        # Behind which cursor the answer is, and how many lines without one were given of it, which come again.
        self._asked, self._num_known = place.cursor, place.num_given
        self._is_first = True
        return client.get(url, Accept="application/x-ndjson")

    def records(self, piece: bytes) -> list[StreamRecord]:
        return self._records(self._lines.lines(piece))

    def _records(self, lines: Sequence[bytes]) -> list[StreamRecord]:
        found = []
        for line in lines:
            if not line.strip():
                continue
            before, is_first, self._is_first = self._place, self._is_first, False
            cursor = self._cursor_of(line)
            if cursor is None:
                self._place = Place(before.cursor, before.num_given + 1)
                if before.cursor == self._asked and self._place.num_given <= self._num_known:
                    continue
            elif cursor != before.cursor:
                self._place = Place(cursor)
            elif is_first:  # servers differ in whether a cursor's own record comes again
                continue
            else:
                message = f"two lines, one behind the other, have the cursor {cursor!r}"
                raise ValueError(message)
            found.append(StreamRecord(self._reading.url, None, self._place, line))
        return found

    def _cursor_of(self, line: bytes) -> str | None:
        """Where a line says that it is; None if lines do not say that, or this one is not JSON, for the decoder to say.

        Raises:
            ValueError: If it is JSON, and does not say it.
        """
        if self._pointer is None:
            return None
        try:
            cursor = self._pointer.cursor(line.decode())
        except ValueError:
            return None
        if cursor is None:
            message = f"a line has no text or number at {str(self._pointer)!r}, by which it could be gone on"
            raise ValueError(message)
        return cursor

    def ended(self, answer: Answer) -> None:
        rest = self._lines.partial
        if rest.strip():
            if not answer.says_its_end:
                error = HttpAwayError("the connection has ended within a line", url=answer.url)
                raise error
            self.hand_on(self._records([rest]))
        if self._bounded:
            answer.require_end()
        if self._place.cursor == self._asked and self._place.num_given < self._num_known:
            message = f"there are {self._place.num_given} lines, and {self._num_known} were read before"
            if not answer.says_its_end:
                raise HttpAwayError(message, url=answer.url)
            raise ValueError(message)
        if self._bounded:
            self.hand_on([], is_last=True)


class HttpEventSource(AddressSource[OUT]):
    """Reads server-sent events; with ``metadata`` also what the server says of them.

    Args:
        urls: Of the streams; several are several splits. What says who asks belongs into ``headers``.
        value: How the events' data are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        events: The kinds of events that are read; all if none is named.
        needs_ids: Whether an event without an id is an error. Otherwise what came behind the last one that had an id
            comes again after a failure, or never.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to these servers alone, and shown nowhere.
        metadata: Columns that are added to those of the value: ``url``, ``id``, ``event``. A mapping gives them other
            names.
        on_error: What becomes of an event that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        retry: How long to wait before a stream that has ended is asked for again, unless the server says how long.
        patience: How long the server may be away before the job fails, or ask to be left alone: milliseconds or text.
        timeout: How long the server may say nothing until it is asked again from the last event on.
        max_bytes: How large an event may be.
        tls: Whom to trust, for ``https://``.

    Guarantees: exactly once, if the server, told a ``Last-Event-ID``, sends all events behind that one. A server that
        does not know the header loses what it sends while nobody listens, and nothing tells. An answer 204 ends a
        stream.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        events: Sequence[str] = (),
        needs_ids: bool = True,
        headers: Mapping[str, str] | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        retry: int | str = "3 s",
        patience: int | str = "5 min",
        timeout: int | str = "60 s",
        max_bytes: int = 16 << 20,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(urls, ("http", "https"), headers, tls, timeout, max_bytes)
        kinds = frozenset((events,) if isinstance(events, str) else events)
        self._thread_of = partial(
            _EventThread, kinds, needs_ids, self._endpoint, duration_s("retry", retry), patience_s_of(patience)
        )
        self._decoder = MessageDecoder[StreamRecord](
            value,
            lambda record: record.body,
            lambda record: record.place,
            EVENT_METADATA,
            columns_of(metadata),
            on_error,
        )

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_reader(self) -> SourceReader:
        """Make a reader of some of the streams."""
        return StreamReader(self._thread_of, self._decoder)


class HttpLineSource(AddressSource[OUT]):
    """Reads answers of which each line is a record, as they come; with ``metadata`` also where records are from.

    Args:
        urls: Of the streams; several are several splits. What says who asks belongs into ``headers``.
        value: How lines are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        cursor: Where a line of JSON says what the server is to be told to go on behind it: a JSON pointer, as ``/id``.
            None: the server is asked for all again, and what was read is passed over.
        parameter: The parameter of the query by which the server is told a cursor.
        bounded: Whether the source ends with an answer. Otherwise it is asked for again, and what is new is given.
        interval: How long to wait before that: milliseconds or text.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to these servers alone, and shown nowhere.
        metadata: Columns that are added to those of the value: ``url``, ``cursor``. A mapping gives them other names.
        on_error: What becomes of a line that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long the server may be away before the job fails, or ask to be left alone: milliseconds or text.
        timeout: How long the server may say nothing until it is asked again.
        max_bytes: How long a line may be.
        tls: Whom to trust, for ``https://``.

    Guarantees: exactly once, if the server gives the same lines again, in their order, from the beginning or behind a
        cursor.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        cursor: str | None = None,
        parameter: str | None = None,
        bounded: bool = False,
        interval: int | str = "10 s",
        headers: Mapping[str, str] | None = None,
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "5 min",
        timeout: int | str = "60 s",
        max_bytes: int = 16 << 20,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(urls, ("http", "https"), headers, tls, timeout, max_bytes)
        if (cursor is None) != (parameter is None):
            message = f"cursor and parameter belong together; got {cursor!r} and {parameter!r}"
            raise ConfigurationError(message)
        self.is_bounded = bounded
        self._thread_of = partial(
            _LineThread,
            None if cursor is None else Pointer(cursor),
            parameter,
            bounded,
            self._endpoint,
            duration_s("interval", interval),
            patience_s_of(patience),
        )
        self._decoder = MessageDecoder[StreamRecord](
            value,
            lambda record: record.body,
            lambda record: record.place,
            LINE_METADATA,
            columns_of(metadata),
            on_error,
        )

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_reader(self) -> SourceReader:
        """Make a reader of some of the streams."""
        return StreamReader(self._thread_of, self._decoder)
