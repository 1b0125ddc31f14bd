"""Streams of WebSocket as a source: exactly once where the server goes on behind a cursor, at most once elsewhere.

A cursor is a text or a number in each message, by which the server is told, by a parameter of the address or by a
message, behind what it is to go on. Without one nobody can say what was sent while nobody listened.

Source: RFC 6455, "The WebSocket Protocol"; RFC 6901.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.connectors.contract import SourceReader
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT

from ...formats.messages import MessageFormat
from ..http.addresses import AddressSource, duration_s
from ..http.client import HttpAwayError, HttpRefusedError, with_parameter
from ..http.json_places import Pointer
from ..http.page_reader import away_of, refused_of
from ..http.stream_reader import Place, Reading, StreamReader, StreamRecord, StreamThread
from ..http.stream_source import LINE_METADATA
from ..messages.arguments import columns_of, patience_s_of
from ..messages.decoding import MessageDecoder, OnError
from ..messages.tls import Tls
from .connection import ClosedError, Dialing, WebSocketConnection, check_client, dialing_of, messages_of

__all__ = ["WEBSOCKET_METADATA", "WebSocketSource"]

POLL_S = 0.05
CURSOR = "${cursor}"
WEBSOCKET_METADATA = LINE_METADATA


@dataclass(frozen=True)
class _Talk:
    """What is said when a connection is made, and where a message says its cursor.

    Attributes:
        cursor: Where; None if messages have none.
        needs_cursors: Whether a message without one is an error.
        parameter: Of the address, which tells the server a cursor; None if none does.
        subscribe: What is sent when there is no cursor yet, or none is sent.
        resume: What is sent in the place of that when there is one; None for the same.
        bounded: Whether a normal end is the stream's end.
    """

    cursor: Pointer | None
    needs_cursors: bool
    parameter: str | None
    subscribe: tuple[str | bytes, ...]
    resume: tuple[str, ...] | None
    bounded: bool

    def url(self, url: str, place: Place) -> str:
        """Where to connect, to go on behind a place."""
        if self.parameter is None or place.cursor is None:
            return url
        return with_parameter(url, self.parameter, place.cursor)

    def opening(self, place: Place) -> Sequence[str | bytes]:
        """What is sent first, to go on behind a place."""
        if self.resume is None or place.cursor is None:
            return self.subscribe
        inside = json.dumps(place.cursor)[1:-1]  # of a text in JSON; of a number its digits
        return [message.replace(CURSOR, inside) for message in self.resume]


class _MessageThread(StreamThread):
    """Reads the messages of one address."""

    def __init__(self, dialing: Dialing, talk: _Talk, patience_s: float, reading: Reading, name: str) -> None:
        super().__init__(reading, name, patience_s)
        self._dialing = dialing
        self._talk = talk
        # None between one and the next.
        self._connection: WebSocketConnection | None = None

    def connect(self) -> None:
        place = self._reading.place
        # Behind the message that came last over this connection.
        self._place = Place(place.cursor) if self._talk.cursor is not None else place
        # What the server is told, and how many messages that are not JSON were given behind that, which come again.
        self._asked, self._num_known = place.cursor, place.num_given
        # Servers differ in whether a cursor's own message comes again, as the first one.
        self._is_first = True
        try:
            self._connection = WebSocketConnection(self._dialing, self._talk.url(self._reading.url, place))
            for message in self._talk.opening(place):
                self._connection.send(message)
        except HttpAwayError as error:
            raise away_of(error, self.where) from error
        except HttpRefusedError as error:
            raise refused_of(error, self.where) from error

    def work(self) -> None:
        assert self._connection is not None
        try:
            bodies = self._connection.receive(POLL_S)
        except ClosedError as error:
            if not (self._talk.bounded and error.is_normal):
                raise away_of(error, self.where) from error
            self.hand_on([], is_last=True)
            return
        except HttpAwayError as error:
            raise away_of(error, self.where) from error
        except HttpRefusedError as error:
            raise refused_of(error, self.where) from error
        records: list[StreamRecord] = []
        try:
            for body in bodies:
                self._take(body, records)
        except ValueError as error:
            self.hand_on(records)
            raise self.broken(error) from error
        self.hand_on(records)

    def _take(self, body: bytes, records: list[StreamRecord]) -> None:
        """Add a message to records, if it is one.

        Raises:
            ValueError: If it cannot be gone on behind it.
        """
        before, is_first = self._place, self._is_first
        cursor = self._cursor_of(body)
        if cursor is None:
            if self._talk.cursor is not None and not self._talk.needs_cursors:
                return
            self._place = Place(before.cursor, before.num_given + 1)
            if (
                self._talk.cursor is not None
                and before.cursor == self._asked
                and self._place.num_given <= self._num_known
            ):
                return
        elif cursor != before.cursor:
            self._place = Place(cursor)
        elif not is_first:
            message = f"two messages, one behind the other, have the cursor {cursor!r}"
            raise ValueError(message)
        self._is_first = False
        if cursor is None or cursor != before.cursor:
            records.append(StreamRecord(self._reading.url, None, self._place, body))

    def _cursor_of(self, body: bytes) -> str | None:
        """Where a message says that it is; None if messages do not, or this one is not JSON, for the decoder to say.

        Raises:
            ValueError: If it is JSON, does not say it, and has to.
        """
        pointer = self._talk.cursor
        if pointer is None:
            return None
        try:
            cursor = pointer.cursor(body.decode())
        except ValueError:
            return None
        if cursor is None and self._talk.needs_cursors:
            message = f"a message has no text or number at {str(pointer)!r}, by which it could be gone on"
            message += "; needs_cursors=False passes over such messages"
            raise ValueError(message)
        return cursor

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.interrupt()


class WebSocketSource(AddressSource[OUT]):
    """Reads messages, texts or bytes, each a record; with ``metadata`` also where they are from.

    Args:
        urls: ``ws://host:port/path``, or ``wss://`` with TLS; several are several splits. What says who asks belongs
            into ``headers``, or into ``subscribe``.
        value: How messages are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        cursor: Where a message of JSON says what the server is to be told to go on behind it: a JSON pointer, as
            ``/id``. Its values must differ from one message to the next. None: at most once.
        parameter: The parameter of the address by which the server is told a cursor.
        subscribe: What is sent when a connection has been made: a text or bytes, or several.
        resume: What is sent in the place of ``subscribe`` when there is a cursor, which stands where ``${cursor}`` is:
            between quotes for a text, without them for a number.
        needs_cursors: Whether a message without a cursor is an error; else it is passed over, as answers to
            subscriptions are.
        bounded: Whether a stream ends when the server closes its connection with code 1000.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to these servers alone, and shown nowhere.
        subprotocols: Offered to the server, the best one first; it must take one.
        metadata: Columns that are added to those of the value: ``url``, ``cursor``. A mapping gives them other names.
        on_error: What becomes of a message that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        ping: How long nothing may come until the server is sent a ping: milliseconds or text.
        timeout: How long it may take to answer that, or to be connected to.
        patience: How long the server may be away before the job fails, or ask to be left alone.
        max_bytes: How large a message may be.
        tls: Whom to trust, for ``wss://``.

    Guarantees: exactly once with a ``cursor``, if the server, told one, sends all messages behind it, in one order.
        Without a cursor at most once: what the server sends while nobody is connected is lost, and what came behind the
        last checkpoint when a job fails.

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
        subscribe: str | bytes | Sequence[str | bytes] = (),
        resume: str | Sequence[str] | None = None,
        needs_cursors: bool = True,
        bounded: bool = False,
        headers: Mapping[str, str] | None = None,
        subprotocols: str | Sequence[str] = (),
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        ping: int | str = "20 s",
        timeout: int | str = "20 s",
        patience: int | str = "5 min",
        max_bytes: int = 1 << 20,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(urls, ("ws", "wss"), headers, tls, timeout, max_bytes)
        told = resume if resume is None else messages_of("resume", resume, str)
        if (cursor is None) != (parameter is None and told is None):
            message = f"cursor belongs together with parameter or resume; got {cursor!r}, {parameter!r}"
            raise ConfigurationError(message)
        if told is not None and not any(CURSOR in one for one in told):
            message = f"resume has {CURSOR} where the cursor is to stand"
            raise ConfigurationError(message)
        self.is_bounded = bounded
        self._dialing = dialing_of(self._endpoint, subprotocols, duration_s("ping", ping))
        self._talk = _Talk(
            None if cursor is None else Pointer(cursor), needs_cursors, parameter,
            messages_of("subscribe", subscribe, str, bytes), told, bounded,
        )  # fmt: skip
        self._patience_s = patience_s_of(patience)
        self._decoder = MessageDecoder[StreamRecord](
            value,
            lambda record: record.body,
            lambda record: record.place,
            WEBSOCKET_METADATA,
            columns_of(metadata),
            on_error,
        )

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_reader(self) -> SourceReader:
        """Make a reader of some of the streams."""
        return StreamReader(self._thread_of, self._decoder, check_client)

    def _thread_of(self, reading: Reading, name: str) -> StreamThread:
        return _MessageThread(self._dialing, self._talk, self._patience_s, reading, name)
