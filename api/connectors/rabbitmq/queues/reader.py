"""Reads queues of RabbitMQ: what the server delivers ahead is taken by a thread, and acknowledged behind checkpoints.

Source: Flink's ``RMQSource``; RabbitMQ's "Consumer Acknowledgements and Publisher Confirms".
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import SourceError
from headrace.state.credentials import masked

from ...messages.client_thread import AwayError
from ...messages.consuming import Consumer, ConsumingReader, Delivery
from ...messages.decoding import MessageDecoder, Metadata
from ..protocol.address import Address, pika

__all__ = ["METADATA", "Message", "QueueReader", "QueueSettings"]

LISTEN_S = 0.02
"""How long the thread listens to the server until it looks whether something is to be acknowledged."""

NOT_FOUND = 404

Tag = tuple[int, int]
"""The number of the connection, and of the delivery on its channel."""


@dataclass(frozen=True, slots=True)
class Message(Delivery[Tag]):
    """A message that was delivered."""

    split_id: str
    tag: Tag
    properties: Any
    routing_key: str
    body: bytes

    @property
    def time_ms(self) -> int | None:
        """Its timestamp, which RabbitMQ has in seconds; None if it has none."""
        seconds = self.properties.timestamp
        return None if seconds is None else int(seconds) * 1_000

    @property
    def place(self) -> str:
        """What tells it from others."""
        return f"delivery {self.tag[1]}, correlation id {self.properties.correlation_id!r}"


METADATA: Metadata = {
    "correlation_id": (pa.string(), lambda message: message.properties.correlation_id),
    "message_id": (pa.string(), lambda message: message.properties.message_id),
    "routing_key": (pa.string(), lambda message: message.routing_key),
    "timestamp": (pa.timestamp("ms", "UTC"), lambda message: message.time_ms),
}


@dataclass(frozen=True)
class QueueSettings:
    """How queues are read.

    Attributes:
        id_of: The property that tells messages apart; None for at least once.
        prefetch: How many messages are delivered ahead of their acknowledgement, by queue.
        remember_ms: How long ids are known.
        patience_s: How long the server may be away.
    """

    id_of: str | None
    prefetch: int
    remember_ms: int
    patience_s: float


class _Consumer(Consumer[Tag]):
    """Takes what queues deliver, and acknowledges what it is told to."""

    def __init__(self, address: Address, settings: QueueSettings, name: str, splits: Sequence[Split]) -> None:
        super().__init__(name, 0, settings.patience_s)  # no more comes than is delivered ahead
        self._address = address
        self._prefetch = settings.prefetch
        self._queues = {split.split_id: split.payload["queue"] for split in splits}
        self._number = 0
        self._connection: Any = None
        self._channels: dict[str, Any] = {}
        # Deliveries that are not acknowledged, by split, in order.
        self._open: dict[str, dict[int, None]] = {}
        self._cancelled: str | None = None

    def connect(self) -> None:
        library = pika()
        self._number += 1
        try:
            self._connection = library.BlockingConnection(self._address.parameters())
            for split_id, queue in self._queues.items():
                channel = self._channels[split_id] = self._connection.channel()
                channel.basic_qos(prefetch_count=self._prefetch)
                channel.queue_declare(queue, passive=True)
                channel.add_on_cancel_callback(lambda _frame, queue=queue: self._note_cancelled(queue))
                self._open[split_id] = {}
                self.tell_connected(split_id)
                channel.basic_consume(queue, self._taker(split_id))
        except library.exceptions.ChannelClosedByBroker as error:
            if error.reply_code == NOT_FOUND:  # so says a server, too, that has just begun and looks for its queues
                raise self._away(error) from error
            message = f"a queue of RabbitMQ cannot be read: {masked(str(error))}"
            raise SourceError(message) from error
        except (library.exceptions.AMQPError, OSError) as error:
            raise self._away(error) from error

    def _note_cancelled(self, queue: str) -> None:
        self._cancelled = queue

    def _taker(self, split_id: str) -> Any:
        number = self._number

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self._open[split_id][method.delivery_tag] = None
            self.give(Message(split_id, (number, method.delivery_tag), properties, method.routing_key, body))

        return take

    def work(self) -> None:
        try:
            self.settle_due()
            self._connection.process_data_events(time_limit=LISTEN_S)
        except pika().exceptions.ChannelClosedByBroker as error:
            # A message was not acknowledged for too long (consumer_timeout), or the queue's node is gone.
            raise self._away(error) from error
        except (pika().exceptions.AMQPError, OSError) as error:
            raise self._away(error) from error
        if self._cancelled is not None:
            queue, self._cancelled = self._cancelled, None
            message = f"queue {queue!r} of RabbitMQ delivers no more: it was deleted, or its node is gone"
            raise AwayError(message)

    def acknowledge_now(self, split_id: str, tags: list[Tag]) -> None:
        due = {tag for number, tag in tags if number == self._number}
        if not due:
            return
        open_tags, channel = self._open[split_id], self._channels[split_id]
        # All up to the last one before which nothing is open that is not due, in one go; the rest one by one.
        last = None
        for tag in list(open_tags):
            if tag not in due:
                break
            last = tag
            due.discard(tag)
            del open_tags[tag]
        if last is not None:
            channel.basic_ack(last, multiple=True)
        for tag in sorted(due & open_tags.keys()):
            del open_tags[tag]
            channel.basic_ack(tag)

    def _away(self, error: Exception) -> AwayError:
        message = f"queues of RabbitMQ at {self._address} cannot be read: {masked(str(error) or repr(error))}"
        return AwayError(message)

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        channels, self._channels = self._channels, {}
        if connection is not None:
            if self.is_stopping:
                with contextlib.suppress(pika().exceptions.AMQPError, OSError):
                    self._channels = channels
                    self.settle_due()
            self._channels = {}
            with contextlib.suppress(pika().exceptions.AMQPError, OSError):
                connection.close()
        for split_id in channels:
            self.tell_lost(split_id)


class QueueReader(ConsumingReader[Tag]):
    """Reads the queues of one subtask.

    Args:
        address: Of the server.
        settings: How.
        decoder: Makes records of messages.
    """

    def __init__(self, address: Address, settings: QueueSettings, decoder: MessageDecoder[Message]) -> None:
        super().__init__(settings.remember_ms, settings.prefetch, decoder)
        self._address = address
        self._settings = settings

    def open(self, context: ReaderContext) -> None:
        pika()  # said at once if it is not installed
        super().open(context)

    def consumers_of(self, splits: Sequence[Split]) -> Mapping[str, _Consumer]:
        name = f"rabbitmq {self._context.operator_name} {self._context.subtask + 1}"
        consumer = _Consumer(self._address, self._settings, name, splits)
        return {split.split_id: consumer for split in splits}

    def id_of(self, message: Message) -> str | None:
        if self._settings.id_of is None:
            return None
        found = getattr(message.properties, self._settings.id_of)
        if found is None:
            text = f"a message has no {self._settings.id_of}, by which it would be known if it came again"
            hint = "have the sender set it, or read at least once with deduplicate_by=None"
            raise SourceError(text, hint=hint, split=message.split_id, position=f"delivery {message.tag[1]}")
        return str(found)
