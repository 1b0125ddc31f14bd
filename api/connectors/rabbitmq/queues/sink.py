"""Queues of RabbitMQ as a sink: at least once.

Messages are sent as they come, and all of them are confirmed by the server before a barrier passes. What a failure
makes the job repeat is sent again: a queue has nothing by which it would know. A field can be the correlation id, by
which readers know.

Source: Flink's ``RMQSink``; RabbitMQ's "Publisher Confirms".
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import ConfigurationError, TypeMismatchError

from ....formats.messages import MessageFormat, require_format
from ...messages.confirming import ConfirmedSender, ConfirmedWriter
from ..protocol.address import QUEUE_PORT, Address, pika

__all__ = ["RabbitQueueSink"]

PERSISTENT = 2


class RabbitQueueSink:
    """Sends messages to a queue, which must be there, or through an exchange.

    Args:
        url: ``amqp://user:password@host:port/virtual-host``.
        queue: The queue; None with ``exchange``.
        value: How records are messages, as `JsonMessages`; see `headrace.formats.messages`.
        exchange: The exchange that messages are sent to in place of a queue.
        routing_key: What they are routed by then: a text, the same for all.
        correlation_id: The field whose value is a message's correlation id, as text; None for none.

    Messages are persistent. One that reaches no queue is an error.

    Guarantees: at least once.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    def __init__(
        self,
        url: str,
        queue: str | None = None,
        *,
        value: MessageFormat,
        exchange: str | None = None,
        routing_key: str = "",
        correlation_id: str | None = None,
    ) -> None:
        if (queue is None) == (exchange is None) or queue == "" or (queue is not None and routing_key):
            message = "a sink sends to a queue, or to an exchange with a routing_key: one of the two must be said"
            raise ConfigurationError(message)
        require_format(value)
        self._address = Address.of(url, "amqp", QUEUE_PORT)
        self._target = _Target(exchange or "", queue or routing_key, value, correlation_id)

    def __repr__(self) -> str:
        return f"RabbitQueueSink({self._target.name})"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _QueueWriter(self._address, self._target)


@dataclass(frozen=True)
class _Target:
    exchange: str
    routing_key: str
    value: MessageFormat
    correlation_id: str | None

    @property
    def name(self) -> str:
        return f"exchange {self.exchange!r}" if self.exchange else f"queue {self.routing_key!r}"

    def messages(self, batch: Batch) -> list[tuple[bytes, str | None]]:
        """Bodies, with their correlation ids."""
        bodies = self.value.encode(batch)
        if self.correlation_id is None:
            return [(body, None) for body in bodies]
        columns = batch.columns
        if self.correlation_id not in columns.schema.names:
            message = f"the records have no field {self.correlation_id!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        ids = columns.column(self.correlation_id).to_pylist()
        return [(body, None if one is None else str(one)) for body, one in zip(bodies, ids, strict=True)]


class _Sender(ConfirmedSender):
    """Sends messages from a thread of its own, in which the client answers the server, and counts confirmations.

    Args:
        address: Of the server.
        target: Where they go.
        name: Of the thread.
    """

    def __init__(self, address: Address, target: _Target, name: str) -> None:
        super().__init__(f"{target.name} of RabbitMQ")
        self._target = target
        # Messages have numbers on the channel, from 1.
        self._num_sent = 0
        self._channel: Any = None
        self._connection = pika().SelectConnection(
            address.parameters(),
            on_open_callback=self._on_open,
            on_open_error_callback=lambda _connection, error: self._end(error),
            on_close_callback=lambda _connection, error: self._end(error),
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._connection.ioloop.start()
        except Exception as error:
            self._end(error)

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(lambda _channel, error: self._end(error))
        channel.add_on_return_callback(
            lambda _channel, method, _properties, _body: self._end(f"a message reaches no queue: {method.reply_text}")
        )
        channel.confirm_delivery(self._on_confirm, callback=lambda _frame: self._on_ready(channel))

    def _on_ready(self, channel: Any) -> None:
        self._channel = channel
        self.ready()

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        if method.NAME != "Basic.Ack":
            self._end("it has refused a message")
        elif method.multiple:
            self.confirmed_up_to(method.delivery_tag)
        else:
            self.confirmed(method.delivery_tag)

    def _end(self, error: Any) -> None:
        self.fail(error)
        self._connection.ioloop.stop()

    def hand_over(self, messages: Collection[tuple[bytes, str | None]]) -> None:
        self._connection.ioloop.add_callback_threadsafe(lambda: self._publish(messages))

    def _publish(self, messages: Collection[tuple[bytes, str | None]]) -> None:
        target, make = self._target, pika().BasicProperties
        try:
            for body, correlation_id in messages:
                self._num_sent += 1
                self.sent(self._num_sent)
                properties = make(delivery_mode=PERSISTENT, correlation_id=correlation_id)
                self._channel.basic_publish(target.exchange, target.routing_key, body, properties, mandatory=True)
        except Exception as error:
            self._end(error)

    def close(self) -> None:
        """Let go of the connection."""
        if self._thread.is_alive():
            self._connection.ioloop.add_callback_threadsafe(self._close)
            self._thread.join(5.0)

    def _close(self) -> None:
        if self._connection.is_open:
            self._connection.close()  # whose end stops the loop
        else:
            self._connection.ioloop.stop()


class _QueueWriter(ConfirmedWriter):
    def __init__(self, address: Address, target: _Target) -> None:
        super().__init__()
        self._address = address
        self._target = target

    def open(self, context: WriterContext) -> None:
        pika()  # said at once if it is not installed
        super().open(context)

    def messages_of(self, batch: Batch) -> list[tuple[bytes, str | None]]:
        return self._target.messages(batch)

    def connect(self, context: WriterContext) -> _Sender:
        return _Sender(self._address, self._target, f"rabbitmq {context.operator_name} {context.subtask + 1}")
