"""Streams of RabbitMQ as a sink: exactly once.

A stream drops what a publisher sends under a number that is not above its last one. Records between two barriers are
part of the checkpoint, with their numbers, and are sent when it is complete
(`headrace.connectors.messages.numbered_output`).

Source: RabbitMQ's "Message Deduplication on Streams".
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import Committer, CommitterContext, SinkWriter
from headrace.engine.errors import ConfigurationError, SinkError, TypeMismatchError

from ....formats.messages import MessageFormat, require_format
from ...messages.numbered_output import NumberedCommitter, NumberedWriter
from ..protocol.address import STREAM_PORT, Address
from ..protocol.amqp10 import message_of
from ..protocol.stream_client import INTERNAL_ERROR, UNAVAILABLE, StreamConnection, StreamRefusedError, StreamsAwayError

__all__ = ["RabbitStreamSink"]

SCHEMA = pa.schema([("message", pa.binary())])

MOST_PUBLISHERS = 255
"""Whose last numbers a stream remembers: what others have written would be written again."""

MOST_BYTES = (1 << 20) - 1_024
"""Of a message: what does not go into one frame could never be sent."""


class RabbitStreamSink:
    """Writes records as messages into a stream, which must be there.

    Args:
        url: ``rabbitmq-stream://user:password@host:port/virtual-host``.
        stream: The stream.
        value: How records are messages, as `JsonMessages`; see `headrace.formats.messages`. They are the messages'
            section of data.

    Guarantees: exactly once with checkpoints; without them, the records appear when the job ends.

    Raises:
        ConfigurationError: If an argument has an illegal value.
    """

    # Numbers are of one subtask in one attempt.
    subtasks_are_independent = True

    def __init__(self, url: str, stream: str, *, value: MessageFormat) -> None:
        if not stream:
            message = "stream must not be empty"
            raise ConfigurationError(message)
        require_format(value)
        self._address = Address.of(url, "rabbitmq-stream", STREAM_PORT)
        self._stream = stream
        self._value = value

    def __repr__(self) -> str:
        return f"RabbitStreamSink({self._stream!r})"

    @property
    def _place(self) -> str:
        return f"stream {self._stream!r} of RabbitMQ"

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return NumberedWriter(self._place, self._encode)

    def _encode(self, batch: Batch) -> pa.RecordBatch:
        messages = [message_of(body) for body in self._value.encode(batch)]
        largest = max(map(len, messages), default=0)
        if largest > MOST_BYTES:
            message = f"a record of {largest} bytes is more than a stream of RabbitMQ takes"
            raise TypeMismatchError(message, at_most=MOST_BYTES)
        return pa.RecordBatch.from_arrays([pa.array(messages, pa.binary())], schema=SCHEMA)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _StreamCommitter(self._place, self._address, self._stream)


class _StreamCommitter(NumberedCommitter):
    def __init__(self, place: str, address: Address, stream: str) -> None:
        super().__init__(place, SCHEMA)
        self._address = address
        self._stream = stream
        # None while there is none.
        self._connection: StreamConnection | None = None

    def connect(self, context: CommitterContext) -> None:
        if context.parallelism > MOST_PUBLISHERS:
            message = f"a stream of RabbitMQ remembers {MOST_PUBLISHERS} publishers, and the sink has more subtasks"
            raise ConfigurationError(message, parallelism=context.parallelism, hint="give the sink less parallelism")
        self.last_number("headrace")  # whether the stream is there

    def last_number(self, publisher: str) -> int:
        return int(self._asked("last_number", publisher, self._stream))

    def send(self, publisher: str, first: int, rows: pa.RecordBatch) -> None:
        self._asked("publish", publisher, self._stream, first, rows.column(0).to_pylist())

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            if self._connection is None:
                self._connection = StreamConnection(self._address)
            return getattr(self._connection, method)(*arguments)
        except StreamsAwayError as error:
            message = f"stream {self._stream!r} cannot be written: {error}"
            raise SinkError(message) from error
        except StreamRefusedError as error:
            message = f"RabbitMQ does not let the sink write: {error}"
            # A stream whose leader is being chosen will be there in a moment.
            passes = error.code in (UNAVAILABLE, INTERNAL_ERROR)
            raise (SinkError if passes else ConfigurationError)(message) from error

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
