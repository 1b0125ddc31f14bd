"""Messages in Avro, with a schema that both sides know, or one that each message names in a registry.

Messages are read by the schema that they were written by; of its fields the table takes those of its columns' names.
A column that the writer did not have is null, and fields that are no columns are left out: so either side may change.

Avro's types are those of Flink's format: times without zone and with one are ``timestamp-millis`` or ``-micros``,
decimals bytes of a logical type, rows records. Every column may be null.

Source: the Avro specification; Flink's ``AvroRowDataDeserializationSchema``, ``AvroSchemaConverter``.
"""

from __future__ import annotations

import decimal
import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.values.serde import columns_from_rows, rows_from_columns

from .avro_types import avro_library, avro_schema_of, parsed_avro_schema
from .contract import columns_to_write
from .row_messages import RowMessages
from .schema_registry import SchemaRegistry
from .schemas import schema_of

__all__ = ["AvroMessages"]

_MAX_SCHEMAS = 1_000
"""So many parsed schemas are kept; more are forgotten, and parsed again."""


class AvroMessages(RowMessages):
    """An Avro datum a message.

    Args:
        schema: The columns, with their types.
        registry: Where messages' schemas are; each begins with the number of its own. None: all are of one schema.
        avro_schema: That schema, as JSON; None for that of the columns. Of what is written with a registry, too.

    Raises:
        ConfigurationError: If a column's type has none in Avro, or the schema is none.
    """

    def __init__(
        self,
        schema: pa.Schema | Mapping[str, Any],
        registry: SchemaRegistry | None = None,
        avro_schema: str | None = None,
    ) -> None:
        found = schema_of(schema)
        if found is None or not found.names:
            message = "Avro's messages have columns, which must be declared"
            raise ConfigurationError(message)
        self.schema = found
        self._registry = registry
        self._written = avro_schema if avro_schema is not None else json.dumps(avro_schema_of(found, of_messages=True))
        self._as_read = pa.schema([field.with_type(_as_read(field.type)) for field in found])
        self._days_and_hours = [field for field in found if _has_days_or_hours(field.type)]
        # Schemas as they are worked with, by their texts.
        self._parsed: dict[str, Any] = {}
        try:
            self._parse(self._written)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}

    def _row(self, message: bytes) -> dict[str, Any] | str:
        """A message's fields, or why it has none."""
        text: str | None = self._written
        library = avro_library()  # what is not installed is no fault of the message
        try:
            if self._registry is not None:
                number, text, message = self._registry.schema_of(message)
                if text is None:
                    return f"the registry has no schema {number}"
            assert text is not None
            stream = io.BytesIO(message)
            row = library.schemaless_reader(stream, self._parse(text), None)
        except (ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError) as error:
            return str(error) or f"it is cut off ({type(error).__name__})"
        if stream.tell() != len(message):
            return f"{len(message) - stream.tell()} bytes are left behind it"
        return row if isinstance(row, dict) else f"it is {type(row).__name__}, no record"

    def _cast(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        for field in self._days_and_hours:
            for row in rows:
                _refuse_fractions(row.get(field.name), field.type, field.name)
        named = [{name: row.get(name) for name in self.schema.names} for row in rows]
        return columns_from_rows(named, self._as_read).cast(self.schema)

    def encode(self, batch: Batch) -> list[bytes]:
        """Make a message of each record.

        Raises:
            TypeMismatchError: If the schema has no place for a value.
            ConfigurationError: If the registry refuses the schema.
            ExternalError: If it does not answer.
        """
        head = b"" if self._registry is None else self._registry.head_of(self._written)
        write, parsed = avro_library().schemaless_writer, self._parse(self._written)
        rows = rows_from_columns(columns_to_write(batch, self.schema).cast(self._as_read))
        made: list[bytes] = []
        for row in rows:
            stream = io.BytesIO(head)
            stream.seek(len(head))
            try:
                write(stream, parsed, row)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                message = f"a record has no form in the Avro schema: {error}"
                raise TypeMismatchError(message, row=len(made)) from error
            made.append(stream.getvalue())
        return made

    def _parse(self, text: str) -> Any:
        parsed = self._parsed.get(text)
        if parsed is None:
            parsed = parsed_avro_schema(text)
            if len(self._parsed) >= _MAX_SCHEMAS:
                self._parsed.clear()
            self._parsed[text] = parsed
        return parsed


def _as_read(kind: pa.DataType) -> pa.DataType:
    """Times are moments in Avro, whether columns have a zone or not."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_as_read(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    return kind


def _has_days_or_hours(kind: pa.DataType) -> bool:
    """Whether it is DATE or TIME, or has one in it."""
    if pa.types.is_nested(kind):
        return any(_has_days_or_hours(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_time(kind))


def _refuse_fractions(value: Any, kind: pa.DataType, name: str) -> None:
    """See that a DATE or TIME is one, or a whole number, as which Avro keeps it: others would be cut off.

    Raises:
        TypeMismatchError: If it is another number.
    """
    if value is None or not _has_days_or_hours(kind):
        return
    if pa.types.is_map(kind):
        for one in value.values():
            _refuse_fractions(one, kind.item_type, name)
    elif pa.types.is_struct(kind):
        for field in kind:
            _refuse_fractions(value.get(field.name), field.type, name)
    elif pa.types.is_list(kind):
        for one in value:
            _refuse_fractions(one, kind.value_type, name)
    elif isinstance(value, (float, decimal.Decimal, bool)):
        message = f"column {name!r} has a {'DATE' if pa.types.is_date(kind) else 'TIME'}; got {value!r}"
        raise TypeMismatchError(message)
