"""Arrow types in Spark: every wire schema has a physical form that Spark's columns hold without loss.

Spark has fewer types than Arrow, and its names have rules (dots, case). So columns are called ``c0``, ``c1`` ... and
each field has a *physical type*: its own where Spark has it, else one that keeps value, equality and order (``uint32``
as a 64-bit integer, nanoseconds as integers), else pickled values, which only Python looks into. A `Layout` is the
conversion both ways, on whole batches; where both types are the same it costs nothing.

Whether Spark may compute with a column itself is another question: only where its meaning of the type is ours
(`Layout.is_native`).

This module is loaded by Spark's Python processes: it imports no Spark before it is asked for Spark's types.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from headrace.state.reading.program_pickles import load_program

__all__ = ["Layout", "column_name"]

_SAME = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
)


def column_name(index: int) -> str:
    """Return what the column of a field is called in Spark."""
    return f"c{index}"


def _is_same(data_type: pa.DataType) -> bool:
    if any(is_kind(data_type) for is_kind in _SAME):
        return True
    if pa.types.is_decimal128(data_type):
        return bool(0 <= data_type.scale <= data_type.precision)
    return bool(pa.types.is_timestamp(data_type) and data_type.unit == "us" and data_type.tz is None)


def _physical(data_type: pa.DataType) -> pa.DataType | None:
    """The type that stands for another one in Spark, reached and left by Arrow's casts; None if there is none."""
    types = pa.types
    if _is_same(data_type):
        return data_type
    if types.is_timestamp(data_type) and data_type.unit != "ns":
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    simple = {
        pa.large_string(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.int64(),
        pa.time32("s"): pa.int32(),
        pa.time32("ms"): pa.int32(),
        pa.time64("us"): pa.int64(),
        pa.time64("ns"): pa.int64(),
    }.get(data_type)
    if simple is not None:
        return simple
    if types.is_timestamp(data_type) or types.is_duration(data_type):
        return pa.int64()
    if types.is_dictionary(data_type):
        return _physical(data_type.value_type)
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        return pa.list_(data_type.value_type) if _is_nestable(data_type.value_type) else None
    if types.is_struct(data_type):
        names = [data_type.field(i).name for i in range(data_type.num_fields)]
        if not names or len(set(names)) < len(names):
            return None
        return data_type if all(_is_nestable(data_type.field(i).type) for i in range(data_type.num_fields)) else None
    if types.is_map(data_type):
        parts = (data_type.key_type, data_type.item_type)
        return pa.map_(*parts) if all(map(_is_nestable, parts)) else None
    return None


def _is_nestable(data_type: pa.DataType) -> bool:
    """Whether a type may stand inside another: only what is the same in Spark, through and through."""
    if _is_same(data_type):
        return True
    if pa.types.is_list(data_type) or pa.types.is_struct(data_type) or pa.types.is_map(data_type):
        return _physical(data_type) is not None
    return False


class Layout:
    """How the records of a wire schema lie in Spark's columns. Picklable.

    Args:
        wire: The schema of the batches on the wire, as `headrace.engine.plan.plan.wire_schema` says.
    """

    def __init__(self, wire: pa.Schema) -> None:
        self.wire = wire
        self._types = [_physical(field.type) for field in wire]
        # What Spark sees. A record without fields still needs a column, to be counted by.
        fields = [pa.field(column_name(i), pa.binary() if t is None else t) for i, t in enumerate(self._types)]
        self.physical = pa.schema(fields or [pa.field(column_name(0), pa.bool_())])

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.wire,)

    @property
    def names(self) -> list[str]:
        """The names of Spark's columns."""
        return list(self.physical.names)

    def column(self, field: str) -> str | None:
        """Return the column of a field; None if there is no such field, or more than one."""
        index = self.wire.get_field_index(field)
        return None if index < 0 else column_name(index)

    def is_native(self, field: str) -> bool:
        """Return whether Spark's meaning of a field's values is ours: equality, order (nulls first, NaN last) and
        hashing.
        """
        index = self.wire.get_field_index(field)
        return index >= 0 and _is_same(self.wire.field(index).type)

    def to_physical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a wire batch as Spark's columns."""
        if not len(self.wire):
            return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.bool_())], schema=self.physical)
        arrays = [
            _encoded(column, physical) for column, physical in zip(batch.columns, self._types, strict=True)
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(arrays, schema=self.physical)

    def to_wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Spark's columns as a wire batch."""
        if not len(self.wire):
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, pa.struct([])))
        arrays = [
            _decoded(column, field.type, physical)
            for column, field, physical in zip(batch.columns, self.wire, self._types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.wire)

    def spark_schema(self) -> Any:
        """Return the `pyspark.sql.types.StructType` of the columns."""
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import StructField, StructType

        return StructType(
            [StructField(field.name, from_arrow_type(field.type, True), nullable=True) for field in self.physical]
        )


def _encoded(column: pa.Array, physical: pa.DataType | None) -> pa.Array:
    if physical is None:
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), pa.binary())
        return pa.array([None if value is None else pickle.dumps(value) for value in column.to_pylist()], pa.binary())
    if column.type == physical:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(physical)


def _decoded(column: pa.Array, wire: pa.DataType, physical: pa.DataType | None) -> pa.Array:
    if physical is None:
        if pa.types.is_null(wire):
            return pa.nulls(len(column))
        return pa.array([None if value is None else load_program(value) for value in column.to_pylist()], wire)
    if column.type == wire:
        return column
    if pa.types.is_dictionary(wire):
        return column.cast(wire.value_type).dictionary_encode().cast(wire)
    return column.cast(wire)
