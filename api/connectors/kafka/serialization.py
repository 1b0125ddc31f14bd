"""Records of a stream as records of Kafka: key, value, timestamp.

Source: Flink's ``KafkaRecordSerializationSchema``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import MIN_TIMESTAMP, Batch
from headrace.engine.errors import TypeMismatchError
from headrace.state.values.json_text import json_text

from ...formats.messages import MessageFormat

__all__ = ["NO_TIME", "SCHEMA", "KafkaRecords"]

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64())])
"""Records of Kafka as columns; a null value is a tombstone."""

NO_TIME = -1
"""In place of a timestamp: the moment of writing."""


@dataclass(frozen=True)
class KafkaRecords:
    """Makes records of Kafka.

    Attributes:
        value: Encodes values.
        key: The fields that are the key; none for records without one.
        delete_column: The field that says what is a tombstone; None if nothing is.
        key_format: Encodes the fields of the key; None: one as its text or bytes, several as a JSON object.
    """

    value: MessageFormat
    key: tuple[str, ...] = ()
    delete_column: str | None = None
    key_format: MessageFormat | None = None

    def encode(self, batch: Batch) -> pa.RecordBatch:
        """Return the records of a batch, as `SCHEMA` has them.

        Raises:
            TypeMismatchError: If they lack a field, or the format has no form for one.
        """
        keys: list[bytes | None] = self._keys(batch) if self.key else [None] * len(batch)
        values = self.value.encode(batch) if self.delete_column is None else self._values_or_tombstones(batch)
        times = [NO_TIME] * len(batch)
        if batch.timestamps is not None:
            times = [NO_TIME if time < 0 or time == MIN_TIMESTAMP else time for time in batch.timestamps.tolist()]
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(times, pa.int64())], schema=SCHEMA
        )

    def _keys(self, batch: Batch) -> list[bytes | None]:
        columns = batch.columns
        for name in self.key:
            if name not in columns.schema.names:
                message = f"the records have no field {name!r} for the key; they have {columns.schema.names}"
                raise TypeMismatchError(message)
        if self.key_format is not None:
            return list(self.key_format.encode(Batch.of_columns(columns.select(list(self.key)))))
        if len(self.key) == 1:
            return [_as_bytes(value) for value in columns.column(self.key[0]).to_pylist()]
        return [json_text(row).encode() for row in columns.select(list(self.key)).to_pylist()]

    def _values_or_tombstones(self, batch: Batch) -> Sequence[bytes | None]:
        columns = batch.columns
        if self.delete_column not in columns.schema.names:
            message = f"the records have no field {self.delete_column!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        is_deleted = columns.column(self.delete_column).to_pylist()
        kept = Batch.of_columns(columns.drop_columns([self.delete_column]))
        values = self.value.encode(kept)
        return [None if gone else value for gone, value in zip(is_deleted, values, strict=True)]


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_text(value)).encode()
