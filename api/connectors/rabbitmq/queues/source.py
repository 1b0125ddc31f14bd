"""Queues of RabbitMQ as a source: exactly once with ids of messages, at least once without.

A queue has no positions: it gives a message until that is acknowledged. Messages are acknowledged when a complete
checkpoint covers them, and what comes again is known by its id (`headrace.engine.connectors.acknowledging`). So a queue
is one split, which one subtask reads; without ids several may.

Source: Flink's ``RMQSource``, ``RMQConnectionConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headrace.engine.connectors.contract import (
    Discovery,
    EnumeratorContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from headrace.engine.errors import ConfigurationError
from headrace.state.type_variables import OUT

from ....formats.messages import MessageFormat
from ...messages.arguments import columns_of, names_of, patience_s_of, remember_ms_of
from ...messages.decoding import MessageDecoder, OnError
from ..protocol.address import HEARTBEAT_S, QUEUE_PORT, Address
from .reader import METADATA, Message, QueueReader, QueueSettings

__all__ = ["RabbitQueueSource"]

MOST_PREFETCH = 65_535
LEAST_MEMORY_MS = 4 * HEARTBEAT_S * 1_000
"""A server takes twice the heartbeat to notice that a connection is gone."""


class RabbitQueueSource(Source[OUT]):
    """Reads messages of queues, which must be there; with ``metadata`` also what RabbitMQ says of them.

    Event times are the messages' timestamps (in whole seconds), if all have one, unless the watermark strategy has an
    assigner.

    Args:
        url: ``amqp://user:password@host:port/virtual-host``.
        queues: A name, or several.
        value: How bodies are decoded, as `JsonMessages`; see `headrace.formats.messages`.
        deduplicate_by: The property that tells messages apart, each of which must have one of its own:
            ``correlation_id`` or ``message_id``. None: what comes again is given again.
        consumers: How many subtasks may read one queue; more than one only without ``deduplicate_by``.
        prefetch: How many messages of a queue are delivered ahead of the checkpoint that covers them: more than arrive
            in a checkpoint interval, or the queue waits for each checkpoint, which the job's history says.
        remember: How long ids of messages are known behind their checkpoint, as what was acknowledged may come again
            when a connection or the server breaks: milliseconds or text, of time in which the queue delivers. They are
            part of checkpoints.
        metadata: Columns that are added to those of the value: ``correlation_id``, ``message_id``, ``routing_key``,
            ``timestamp``. A mapping gives them other names.
        on_error: What becomes of a message that cannot be decoded: ``fail``; ``skip``, counted as
            ``num_records_skipped``; or ``dead-letter``, the side output of that name.
        patience: How long RabbitMQ may be away before the job fails: milliseconds or text.

    Guarantees: exactly once with ``deduplicate_by``, as long as no message comes again later than ``remember``; at
        least once without it. Without checkpoints a message is acknowledged when its record has been handed on.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    is_bounded = False

    def __init__(
        self,
        url: str,
        queues: str | Sequence[str],
        *,
        value: MessageFormat[OUT],
        deduplicate_by: Literal["correlation_id", "message_id"] | None = "correlation_id",
        consumers: int = 1,
        prefetch: int = 10_000,
        remember: int | str = "10 min",
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_error: OnError = "fail",
        patience: int | str = "1 min",
    ) -> None:
        names = names_of("queues", queues)
        if deduplicate_by not in (None, "correlation_id", "message_id"):
            message = f"deduplicate_by must be correlation_id, message_id or None; got {deduplicate_by!r}"
            raise ConfigurationError(message)
        if consumers < 1 or (consumers > 1 and deduplicate_by is not None):
            message = f"consumers must be 1, or more without deduplicate_by; got {consumers}"
            hint = "a message that comes again to another consumer is not known there"
            raise ConfigurationError(message, hint=hint)
        if not 1 <= prefetch <= MOST_PREFETCH:
            message = f"prefetch must be from 1 to {MOST_PREFETCH}; got {prefetch}"
            raise ConfigurationError(message)
        hint = "RabbitMQ takes a while to notice that a connection is gone, and gives its messages again then"
        remember_ms = remember_ms_of(remember, LEAST_MEMORY_MS, hint)
        self._scan = _Scan(names, consumers)
        self._address = Address.of(url, "amqp", QUEUE_PORT)
        self._settings = QueueSettings(deduplicate_by, prefetch, remember_ms, patience_s_of(patience))
        self._decoder = MessageDecoder[Message](
            value, lambda message: message.body, lambda message: message.place, METADATA, columns_of(metadata), on_error
        )

    def __repr__(self) -> str:
        return f"RabbitQueueSource({', '.join(self._scan.queues)})"

    def produced_columns(self) -> pa.Schema | None:
        """Return the columns of the records; None for rows of Python objects."""
        return self._decoder.schema

    def create_enumerator(self, context: EnumeratorContext) -> SplitEnumerator:
        """Return what says which queues there are."""
        return _Queues(self._scan)

    def create_reader(self) -> SourceReader:
        """Make a reader of some of them."""
        return QueueReader(self._address, self._settings, self._decoder)


@dataclass(frozen=True, slots=True)
class _Scan:
    queues: tuple[str, ...]
    consumers: int


class _Queues:
    discovery_interval_ms: int | None = None

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan

    def discover(self) -> Discovery:
        """One split for each consumer of a queue."""
        splits = [Split(name, {"queue": name}) for name in self._scan.queues]
        for number in range(2, self._scan.consumers + 1):
            splits += [Split(f"{name}#{number}", {"queue": name}) for name in self._scan.queues]
        return Discovery(splits, is_final=True)
