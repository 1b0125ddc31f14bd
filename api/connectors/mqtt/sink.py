"""Topics of MQTT as a sink: at least once.

Messages are sent as they come, and all of them are confirmed by the broker before a barrier passes. What a failure
makes the job repeat is sent again: a broker has nothing by which it would know, as QoS 2 is about one connection's
messages, and those of another attempt are others. A user property can be an id, by which readers know.

Source: OASIS, "MQTT Version 5.0", 4.3.
"""

from __future__ import annotations

import string
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, SinkError, TypeMismatchError

from ...formats.messages import MessageFormat, require_format
from ..messages.confirming import MOST_UNCONFIRMED, ConfirmedSender, ConfirmedWriter
from ..messages.tls import Tls
from .client import FAILURE, Asked, Broker, Connection, mqtt

__all__ = ["MqttSink"]

PUMP_S = 0.005
"""How long the thread listens to the broker until it looks whether something is to be sent."""

NOBODY_LISTENS = 16
MOST_BYTES_OF_TOPIC = 65_535
HEADER_BYTES = 16
"""More than a packet has beside topic, properties and body."""


class MqttSink:
    """Sends records as messages.

    Args:
        url: ``mqtt://user:password@host:port``, or ``mqtts://`` with TLS.
        topic: Where to: a topic, with fields of the record in braces (``sensors/{device}/alarms``), or a function of a
            record that gives the topic.
        value: How records are messages, as `JsonMessages`; see `headrace.formats.messages`.
        qos: 1 or 2: how often a reader on the same broker is given a message. Both are at least once over a failure.
        retain: Whether the broker keeps the last message of each topic for who subscribes later.
        properties: Fields that go along as user properties of MQTT, as text: by the properties' names. A source can
            know messages again by one.
        tls: Whom to trust, for ``mqtts://``.

    Messages that nobody subscribes to are dropped by brokers; those that say so are counted as
    ``num_without_subscribers``.

    Guarantees: at least once.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        topic: str | Callable[[Any], str],
        *,
        value: MessageFormat,
        qos: int = 1,
        retain: bool = False,
        properties: Mapping[str, str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        require_format(value)
        if qos not in (1, 2) or isinstance(qos, bool):
            message = f"qos must be 1 or 2, as brokers do not confirm messages of QoS 0; got {qos!r}"
            raise ConfigurationError(message)
        self._broker = Broker.of(url, tls)
        fields = () if callable(topic) else fields_of(topic)
        self._target = _Target(topic, fields, value, qos, bool(retain), dict(properties or {}))

    def __repr__(self) -> str:
        return f"MqttSink({self._target.name})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _MqttWriter(self._broker, self._target)


def fields_of(template: object) -> tuple[str, ...]:
    """Return the fields that a template of topics names.

    Raises:
        ConfigurationError: If it is none.
    """
    message = f"topic is a text with fields in braces, without + and #, or a function; got {template!r}"
    try:
        parts = list(string.Formatter().parse(template if isinstance(template, str) else ""))
    except ValueError as error:
        raise ConfigurationError(message) from error
    fields = [field for _, field, _, _ in parts if field is not None]
    is_plain = all(field.isidentifier() and not how and not kind for _, field, how, kind in parts if field is not None)
    if (
        not isinstance(template, str)
        or not template
        or not is_plain
        or not is_topic("".join(text for text, *_ in parts) or "x")
    ):
        raise ConfigurationError(message)
    return tuple(dict.fromkeys(fields))


def is_topic(text: object) -> bool:
    """Return whether a message can be sent to it."""
    is_text = isinstance(text, str) and bool(text) and not set(text) & set("+#\0")
    return is_text and len(str(text).encode(errors="surrogatepass")) <= MOST_BYTES_OF_TOPIC


@dataclass(frozen=True, slots=True)
class _Published:
    topic: str
    body: bytes
    properties: list[tuple[str, str]]

    @property
    def num_bytes(self) -> int:
        """About its size on the way; never less."""
        words = [self.topic, *(word for pair in self.properties for word in pair)]
        return HEADER_BYTES + len(self.body) + sum(5 + len(word.encode()) for word in words)


@dataclass(frozen=True)
class _Target:
    topic: str | Callable[[Any], str]
    fields: tuple[str, ...]
    value: MessageFormat
    qos: int
    retain: bool
    properties: dict[str, str]

    @property
    def name(self) -> str:
        return f"topic {self.topic!r}" if isinstance(self.topic, str) else "topics of a function"

    def messages(self, batch: Batch) -> list[_Published]:
        """The messages of records.

        Raises:
            TypeMismatchError: If a record lacks a field, or its topic is none.
        """
        bodies = self.value.encode(batch)
        topics = self._topics(batch)
        named = {name: self._column(batch, field) for name, field in self.properties.items()}
        found = []
        for place, (topic, body) in enumerate(zip(topics, bodies, strict=True)):
            if not is_topic(topic):
                message = f"a record's topic must be a text without + and #, and not empty; got {topic!r}"
                raise TypeMismatchError(message)
            pairs = [(name, str(values[place])) for name, values in named.items() if values[place] is not None]
            found.append(_Published(topic, body, pairs))
        return found

    def _topics(self, batch: Batch) -> list[Any]:
        if not isinstance(self.topic, str):
            return [self.topic(row) for row in batch.rows]
        if not self.fields:
            return [self.topic.format()] * len(batch)
        columns = [self._column(batch, field) for field in self.fields]
        topics = []
        for values in zip(*columns, strict=True):
            for field, value in zip(self.fields, values, strict=True):
                if value is None or "/" in str(value):
                    message = f"field {field!r} is a level of the topic {self.topic!r}: it cannot be {value!r}"
                    raise TypeMismatchError(message)
            topics.append(self.topic.format(**dict(zip(self.fields, values, strict=True))))
        return topics

    def _column(self, batch: Batch, field: str) -> list[Any]:
        columns = batch.columns
        if field not in columns.schema.names:
            message = f"the records have no field {field!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        return list(columns.column(field).to_pylist())


class _Sender(ConfirmedSender):
    """Sends messages from a thread of its own, in which the client answers the broker.

    Args:
        broker: Where.
        target: Where they go.
        name: Of the thread.
    """

    def __init__(self, broker: Broker, target: _Target, name: str) -> None:
        super().__init__(f"{target.name} of MQTT")
        self._broker = broker
        self._target = target
        self._handed: deque[_Published] = deque()
        self._stop = threading.Event()
        self.num_without_subscribers = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hand_over(self, messages: Collection[_Published]) -> None:
        self._handed.extend(messages)

    def _run(self) -> None:
        connection = None
        try:
            connection = Connection(self._broker, Asked(), on_published=self._on_published)
            self._check(connection)
            self.ready()
            while not self._stop.is_set():
                self._publish(connection)
                connection.pump(PUMP_S)
        except Exception as error:  # whatever it is, it is raised where the writer is
            self.fail(error)
        finally:
            if connection is not None:
                connection.close()

    def _check(self, connection: Connection) -> None:
        if connection.told("MaximumQoS", 2) < self._target.qos:
            message = f"the broker takes messages up to QoS {connection.told('MaximumQoS', 2)} only"
            raise SinkError(message)
        if self._target.retain and not connection.told("RetainAvailable", 1):
            message = "the broker retains no messages"
            raise SinkError(message)
        self._most_under_way = min(MOST_UNCONFIRMED, connection.told("ReceiveMaximum", MOST_UNCONFIRMED))
        self._most_bytes: int | None = connection.told("MaximumPacketSize", None)

    def _publish(self, connection: Connection) -> None:
        while self._handed and self.num_unconfirmed < self._most_under_way:
            one = self._handed.popleft()
            if self._most_bytes is not None and one.num_bytes > self._most_bytes:
                message = (
                    f"a message for {one.topic!r} is of {one.num_bytes} bytes, and the broker takes {self._most_bytes}"
                )
                raise SinkError(message)
            how = self._target
            self.sent(
                connection.publish(one.topic, one.body, qos=how.qos, retain=how.retain, properties=one.properties)
            )

    def _on_published(self, number: int, reason: Any) -> None:
        if reason.value >= FAILURE:
            self.fail(f"it has refused a message: {reason}")
            return
        self.num_without_subscribers += reason.value == NOBODY_LISTENS
        self.confirmed(number)

    def close(self) -> None:
        """Let go of the connection."""
        self._stop.set()
        self._thread.join(5.0)


class _MqttWriter(ConfirmedWriter):
    def __init__(self, broker: Broker, target: _Target) -> None:
        super().__init__()
        self._broker = broker
        self._target = target

    def open(self, context: WriterContext) -> None:
        mqtt()  # said at once if it is not installed
        super().open(context)
        self._num_without_subscribers = 0

    def messages_of(self, batch: Batch) -> list[_Published]:
        return self._target.messages(batch)

    def connect(self, context: WriterContext) -> _Sender:
        return _Sender(self._broker, self._target, f"mqtt {context.operator_name} {context.subtask + 1}")

    def prepare(self, checkpoint_id: int) -> list[Any]:
        prepared = super().prepare(checkpoint_id)
        if isinstance(self._sender, _Sender):
            number = self._sender.num_without_subscribers
            self._context.metrics.count("num_without_subscribers", number - self._num_without_subscribers)
            self._num_without_subscribers = number
        return prepared
