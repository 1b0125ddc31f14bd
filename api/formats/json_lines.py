"""JSON lines: a value per line.

Source: Flink's ``JsonRowDataDeserializationSchema``; jsonlines.org.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from headrace.engine.columns.records import Batch
from headrace.state.values.json_text import json_text

from .contract import Lines, encoded_lines, one_batch

__all__ = ["JsonColumns", "JsonEncoder", "JsonRows"]


class JsonRows(Lines):
    """JSON lines without a schema: every line is one value, a row as Python's own parser makes it.

    ``NaN`` and ``Infinity`` are not JSON and are refused. Empty lines are not records.
    """

    def __init__(self) -> None:
        def refuse(name: str) -> None:
            message = f"{name} is not a json value"
            raise ValueError(message)

        self._decode = json.JSONDecoder(parse_constant=refuse).decode

    def decode(self, block: bytes) -> Batch:
        decode = self._decode
        return Batch.of_rows(
            [decode(line) for line in block.decode("utf-8").split("\n") if line and not line.isspace()]
        )


def _as_read(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_type_as_read(field.type)) for field in schema])


def _type_as_read(kind: pa.DataType) -> pa.DataType:
    """Times are read with six digits behind the second, as they are written; Arrow refuses more than a type has.

    Dates, times of day and bytes are texts, as they are written: Arrow's parser would have numbers, and take the text
    of bytes for these.
    """
    if pa.types.is_date(kind) or _is_converted(kind):
        return pa.string()
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_as_read(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_as_read(field.type)) for field in kind])
    return kind


def _is_converted(kind: pa.DataType) -> bool:
    """Whether values are made of their texts here, as Arrow casts none to such a type."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return is_bytes or pa.types.is_time(kind)


def _has_converted(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_converted(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_converted(field.type) for field in kind)
    return _is_converted(kind)


def _converted(value: Any, kind: pa.DataType) -> Any:
    """What Python has for a value of a type that `_has_converted`.

    Raises:
        ValueError: If a text is none of it.
    """
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [_converted(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _converted(value[field.name], field.type) for field in kind}
    if pa.types.is_time(kind):
        time = dt.time.fromisoformat(value)
        if time.tzinfo is not None:
            message = f"{value!r} is a time of day in a zone"
            raise ValueError(message)
        return time
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    return base64.b64decode(value, validate=True) if _is_converted(kind) else value


class JsonColumns(Lines):
    """JSON lines with a schema: a line is an object; fields the schema lacks are dropped, missing ones are null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._parse = pajson.ParseOptions(explicit_schema=_as_read(schema), unexpected_field_behavior="ignore")

    def decode(self, block: bytes) -> Batch:
        block.decode("utf-8")  # the parser takes bytes for text unseen
        if not block or block.isspace():
            return Batch.of_columns(pa.RecordBatch.from_pylist([], schema=self._schema))
        options = pajson.ReadOptions(use_threads=False, block_size=len(block) + 1)
        table = pajson.read_json(io.BytesIO(block), options, self._parse)
        # The parser reads value after value and does not mind where lines end: a broken line could lend its rest to the
        # next.
        if table.num_rows != block.count(b"\n"):
            num_lines = sum(1 for line in block.split(b"\n") if line and not line.isspace())
            if table.num_rows != num_lines:
                message = f"a line must hold one json object; {num_lines} lines hold {table.num_rows}"
                raise ValueError(message)
        if not self._schema.names:
            nothing = pa.array([{}] * table.num_rows, pa.struct([]))
            return Batch.of_columns(pa.RecordBatch.from_struct_array(nothing))
        table = table.select(self._schema.names)
        for place, field in enumerate(self._schema):
            if _has_converted(field.type):
                values = [_converted(value, field.type) for value in table.column(place).to_pylist()]
                table = table.set_column(place, field, pa.array(values, field.type))
        return Batch.of_columns(one_batch(table.cast(self._schema)))


class JsonEncoder:
    """A line per record; see `headrace.state.values.json_text` for what each value becomes."""

    def encode(self, batch: Batch) -> bytes:
        return encoded_lines([f"{json_text(row)}\n" for row in batch.rows], "utf-8")

    def finish(self) -> bytes:
        return b""
