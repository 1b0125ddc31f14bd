"""WebSocket as a sink: at least once into a server that acknowledges each message by its number.

Messages are sent as they come, over a connection that is made again when it breaks, with all that was not confirmed.
All are confirmed before a barrier passes. What confirms them is an answer of the server's program, or, if it gives
none, the pong that the protocol has every server send behind what it has received: that says nothing about what the
program has done with it. What a failure makes the job repeat is sent again.

Source: RFC 6455, "The WebSocket Protocol", 5.5.3; the acknowledgements of Azure Web PubSub's ``json`` subprotocol.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, SinkError, TypeMismatchError
from headrace.state.credentials import masked

from ...formats.messages import MessageFormat, require_format
from ..http.addresses import duration_s
from ..http.client import Endpoint, HttpAwayError, HttpRefusedError
from ..http.json_places import Pointer
from ..messages.arguments import patience_s_of
from ..messages.client_thread import AwayError, ClientThread
from ..messages.confirming import MOST_UNCONFIRMED, ConfirmedSender, ConfirmedWriter
from ..messages.tls import Tls
from .connection import Dialing, WebSocketConnection, check_client, dialing_of, messages_of

__all__ = ["WebSocketSink"]

PUMP_S = 0.005
"""How long the thread listens to the server until it looks whether something is to be sent."""

SENT_AT_ONCE = 100
NUMBER, RECORD = "${number}", "${record}"


class WebSocketSink:
    """Sends records as messages.

    Args:
        url: ``ws://host:port/path``, or ``wss://`` with TLS. What says who asks belongs into ``headers``, or into
            ``opening``.
        value: How records are messages, as `JsonMessages`; see `headrace.formats.messages`.
        envelope: A text that a message is made of: the record stands where ``${record}`` is, and its number, of those
            that this subtask has sent, where ``${number}`` is. None: a message is the record.
        acknowledged_by: Where the server's answers, in JSON, have the number of a message that it keeps: a JSON
            pointer. None: it answers nothing, and a pong counts, by which it has received a message.
        refused_by: Where an answer says why a message is not kept: a JSON pointer to what is neither null nor false.
        binary: Whether messages are bytes; else they are texts.
        opening: What is sent first over each connection: a text or bytes, or several.
        headers: Sent along, as ``{"Authorization": "Bearer ..."}``, to this server alone, and shown nowhere.
        subprotocols: Offered to the server, the best one first; it must take one.
        ping: How long nothing may come until the server is sent a ping: milliseconds or text.
        timeout: How long it may take to answer that, or to be connected to.
        patience: How long the server may be away before the job fails.
        max_bytes: How large an answer may be.
        tls: Whom to trust, for ``wss://``.

    Guarantees: at least once with ``acknowledged_by``. Without it what the server had received and not dealt with is
        lost when it dies; nothing else is.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        *,
        value: MessageFormat,
        envelope: str | None = None,
        acknowledged_by: str | None = None,
        refused_by: str | None = None,
        binary: bool = False,
        opening: str | bytes | Sequence[str | bytes] = (),
        headers: Mapping[str, str] | None = None,
        subprotocols: str | Sequence[str] = (),
        ping: int | str = "20 s",
        timeout: int | str = "20 s",
        patience: int | str = "1 min",
        max_bytes: int = 1 << 20,
        tls: Tls | None = None,
    ) -> None:
        require_format(value)
        endpoint = Endpoint(url, dict(headers or {}), tls, duration_s("timeout", timeout), max_bytes)
        endpoint.check("ws", "wss")
        if envelope is not None and RECORD not in envelope:
            message = f"envelope has {RECORD} where the record is to stand"
            raise ConfigurationError(message)
        if (acknowledged_by is not None) != (envelope is not None and NUMBER in envelope):
            message = f"acknowledged_by belongs together with an envelope that has {NUMBER}, which is acknowledged"
            raise ConfigurationError(message)
        if refused_by is not None and acknowledged_by is None:
            message = "refused_by is about answers that acknowledge: acknowledged_by is missing"
            raise ConfigurationError(message)
        self._target = _Target(
            dialing_of(endpoint, subprotocols, duration_s("ping", ping)),
            value,
            envelope,
            None if acknowledged_by is None else Pointer(acknowledged_by),
            None if refused_by is None else Pointer(refused_by),
            binary,
            messages_of("opening", opening, str, bytes),
            patience_s_of(patience),
        )

    def __repr__(self) -> str:
        return f"WebSocketSink({self._target.place})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _WebSocketWriter(self._target)


@dataclass(frozen=True)
class _Target:
    dialing: Dialing
    value: MessageFormat
    envelope: str | None
    acknowledged_by: Pointer | None
    refused_by: Pointer | None
    binary: bool
    opening: tuple[str | bytes, ...]
    patience_s: float

    @property
    def place(self) -> str:
        return self.dialing.endpoint.url

    def texts(self, batch: Batch) -> list[str | bytes]:
        """Records as they stand in messages.

        Raises:
            TypeMismatchError: If one is no text, and is to be in one.
        """
        bodies = self.value.encode(batch)
        if self.binary and self.envelope is None:
            return list(bodies)
        try:
            return [body.decode() for body in bodies]
        except UnicodeDecodeError as error:
            message = f"a record is no text in UTF-8: {error}"
            raise TypeMismatchError(message, hint="binary=True sends bytes, without an envelope") from error

    def message(self, number: int, record: str | bytes) -> str | bytes:
        """A record as it is sent."""
        if self.envelope is None or isinstance(record, bytes):
            return record
        before, _, behind = self.envelope.partition(RECORD)
        said = before.replace(NUMBER, str(number)) + record + behind.replace(NUMBER, str(number))
        return said.encode() if self.binary else said

    def acknowledged(self, answer: bytes) -> int | None:
        """The number that an answer confirms; None if it is about something else.

        Raises:
            SinkError: If it refuses one.
        """
        assert self.acknowledged_by is not None
        try:
            text = answer.decode()
            number = self.acknowledged_by.cursor(text)
            cause = None if self.refused_by is None else self.refused_by.value(text)
        except ValueError:
            return None
        if number is None or not number.isdecimal():
            return None
        if cause is not None and cause is not False:
            message = f"the server refuses a message: {masked(str(cause))[:300]}"
            raise SinkError(message)
        return int(number)


class _Sender(ConfirmedSender):
    """Sends messages from a thread of its own.

    Args:
        target: Where they go.
        name: Of the thread.
    """

    def __init__(self, target: _Target, name: str) -> None:
        super().__init__(target.place)
        self._client = _Client(target, self, name)
        self._client.start()

    def hand_over(self, messages: Collection[str | bytes]) -> None:
        self._client.handed.extend(messages)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.stop(5.0)


class _Client(ClientThread):
    """The thread of a sender, which connects again when it has to."""

    def __init__(self, target: _Target, sender: _Sender, name: str) -> None:
        super().__init__(name, 1, target.patience_s)
        self._target = target
        self._sender = sender
        # Put in by the task.
        self.handed: deque[str | bytes] = deque()
        self._connection: WebSocketConnection | None = None
        self._number = 0
        # By number, what was sent and is not confirmed.
        self._unconfirmed: dict[int, str | bytes] = {}
        # Of these, what this connection has not sent yet.
        self._again: deque[int] = deque()
        # What a pong will say: that it is received up to this number.
        self._pong: tuple[threading.Event, int] | None = None

    def connect(self) -> None:
        try:
            self._connection = WebSocketConnection(self._target.dialing, self._target.place)
            for message in self._target.opening:
                self._connection.send(message)
        except (HttpAwayError, HttpRefusedError) as error:
            raise self._failed(error) from error
        self._again = deque(self._unconfirmed)
        self._pong = None
        self._sender.ready()

    @staticmethod
    def _failed(error: HttpAwayError | HttpRefusedError) -> AwayError | SinkError:
        if isinstance(error, HttpRefusedError):
            return SinkError(error.message, hint=error.hint, **error.context)
        found = AwayError(error.message, **error.context)
        found.wait_s = error.wait_s
        return found

    def work(self) -> None:
        assert self._connection is not None
        connection = self._connection
        try:
            for _ in range(SENT_AT_ONCE):
                if not self._send_next(connection):
                    break
            self._take_answers(connection, PUMP_S)
        except (HttpAwayError, HttpRefusedError) as error:
            with contextlib.suppress(HttpAwayError, HttpRefusedError):  # what it has said before it left
                self._take_answers(connection, 0.0)
            raise self._failed(error) from error

    def _take_answers(self, connection: WebSocketConnection, timeout_s: float) -> None:
        answers = connection.receive(timeout_s)
        if self._target.acknowledged_by is None:
            self._ask_by_ping(connection)
            return
        for answer in answers:
            number = self._target.acknowledged(answer)
            if number is not None and self._unconfirmed.pop(number, None) is not None:
                self.succeed()
                self._sender.confirmed(number)

    def _send_next(self, connection: WebSocketConnection) -> bool:
        """Send a message; whether there was one."""
        while self._again:
            number = self._again[0]
            if number in self._unconfirmed:
                connection.send(self._target.message(number, self._unconfirmed[number]))
                self._again.popleft()
                return True
            self._again.popleft()  # confirmed meanwhile
        if not self.handed or len(self._unconfirmed) >= MOST_UNCONFIRMED:
            return False
        record = self.handed.popleft()
        self._number += 1
        # Before it is sent: what breaks in the middle is sent again.
        self._unconfirmed[self._number] = record
        self._sender.sent(self._number)
        self._again.append(self._number)
        return self._send_next(connection)

    def _ask_by_ping(self, connection: WebSocketConnection) -> None:
        if self._pong is not None:
            answered, number = self._pong
            if not answered.is_set():
                return
            self._pong = None
            self._unconfirmed = {one: record for one, record in self._unconfirmed.items() if one > number}
            self.succeed()
            self._sender.confirmed_up_to(number)
        if self._unconfirmed and not self._again:
            self._pong = (connection.ping(), self._number)

    def failed(self, error: BaseException) -> None:
        self._sender.fail(error)

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def stop(self, timeout_s: float) -> None:
        connection = self._connection
        if connection is not None and self._unconfirmed:
            connection.interrupt()  # it may wait for a server that reads nothing
        super().stop(timeout_s)


class _WebSocketWriter(ConfirmedWriter):
    def __init__(self, target: _Target) -> None:
        super().__init__()
        self._target = target

    def open(self, context: WriterContext) -> None:
        check_client()  # said at once if it is not installed
        super().open(context)

    def messages_of(self, batch: Batch) -> list[str | bytes]:
        return self._target.texts(batch)

    def connect(self, context: WriterContext) -> _Sender:
        return _Sender(self._target, f"websocket {context.operator_name} {context.subtask + 1}")
