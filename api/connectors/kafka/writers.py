"""The writers of a sink of Kafka: one keeps records for the checkpoint, one writes them as they come.

Source: Flink's ``KafkaWriter``, ``ExactlyOnceKafkaWriter``.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.errors import SinkError, TypeMismatchError
from headrace.state.credentials import masked

from ...formats.prepared_rows import GatheredRows
from .client import Client, ClientErrors, cause_of, client_failures
from .serialization import NO_TIME, SCHEMA, KafkaRecords
from .transactions import CommitSettings

__all__ = ["ProducingWriter", "StagingWriter"]

FLUSH_TIMEOUT_S = 120.0
"""A broker that takes nothing for so long fails the task; the client tries again meanwhile."""


class StagingWriter(SinkWriter):
    """Gathers the records between two barriers; they travel in the checkpoint.

    Args:
        settings: Where they are to go.
        records: How they are made.
        max_bytes: Of a record's key and value. What the client will not write must not get into a checkpoint: the job
            could never commit it, nor go on without it.
    """

    def __init__(self, settings: CommitSettings, records: KafkaRecords, max_bytes: int) -> None:
        self._settings = settings
        self._records = records
        self._max_bytes = max_bytes
        self._rows = GatheredRows()
        # Of what was prepared under this attempt's id.
        self._number = 0

    def open(self, context: WriterContext) -> None:
        self._context = context
        self._transaction = self._settings.transactional_id(context)

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        records = self._records.encode(batch)
        self._require_sizes(records)
        self._rows.add(records)

    def _require_sizes(self, records: pa.RecordBatch) -> None:
        sizes = [pc.fill_null(pc.binary_length(records.column(name)), 0) for name in ("key", "value")]
        largest = pc.max(pc.add(*sizes)).as_py()
        if largest > self._max_bytes:
            message = f"a record of {largest} bytes is more than Kafka's client sends (message.max.bytes)"
            hint = "properties={'message.max.bytes': ...}, and max.message.bytes of the topic"
            raise TypeMismatchError(message, at_most=self._max_bytes, **self._context.place, hint=hint)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        pieces, num_rows = self._rows.take()
        if not num_rows:
            return []
        committable = {
            "topic": self._settings.topic,
            "transaction": self._transaction,
            "number": self._number,
            "checkpoint_id": checkpoint_id,
            "rows": num_rows,
            "data": pieces,
        }
        self._number += 1
        return [committable]


class ProducingWriter(SinkWriter):
    """Writes records as they come, and waits at a barrier until the broker has all of them.

    Args:
        client: Of the cluster.
        topic: Where they go.
        records: How they are made.
    """

    def __init__(self, client: Client, topic: str, records: KafkaRecords) -> None:
        self._client = client
        self._topic = topic
        self._records = records
        # Made in `open`; None before.
        self._producer: Any = None
        # The first record that the broker has refused, or not taken in time.
        self._refused: Any = None

    def open(self, context: WriterContext) -> None:
        self._begin_to_report(context)
        self._producer = self._client.producer(self._errors)

    def _begin_to_report(self, context: WriterContext) -> None:
        self._context = context
        self._errors = ClientErrors(f"writer of {context.operator_name}, subtask {context.subtask + 1}")

    def write(self, batch: Batch) -> None:
        if not len(batch):
            return
        self._check()
        columns = self._records.encode(batch)
        keys, values, times = (columns.column(name).to_pylist() for name in SCHEMA.names)
        for key, value, time_ms in zip(keys, values, times, strict=True):
            options = {} if time_ms == NO_TIME else {"timestamp": time_ms}
            self._produce(key, value, options)
        try:
            self._producer.poll(0)
        except client_failures() as error:
            raise self._failed(cause_of(error)) from error

    def _produce(self, key: bytes | None, value: bytes | None, options: dict[str, int]) -> None:
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while True:
            try:
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered, **options)
                return
            except BufferError:  # its queue is full: the broker is slower than we are
                if time.monotonic() > deadline:
                    what = "the broker takes no records"
                    raise self._failed(what) from None
                self._producer.poll(0.1)
                self._check()
            except client_failures() as error:
                raise self._failed(cause_of(error)) from error

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None and self._refused is None:
            self._refused = error

    def _check(self) -> None:
        self._errors.check(self._failed)
        if self._refused is not None:
            raise self._failed(masked(str(self._refused)))

    def _failed(self, cause: str) -> SinkError:
        message = f"Kafka does not take records: {cause}"
        return SinkError(message, topic=self._topic, **self._context.place)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        try:
            left = self._producer.flush(FLUSH_TIMEOUT_S)
        except client_failures() as error:
            raise self._failed(cause_of(error)) from error
        self._check()
        if left:
            message = f"{left} records were not taken within {FLUSH_TIMEOUT_S:.0f} s; {self._errors.last}"
            raise self._failed(message)
        return []

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with contextlib.suppress(*client_failures()):  # one that is broken says so once more
                producer.close(0)
