"""Rows to columns and back.

Nothing changes silently: a record that does not fit is named by field and row. The schema's metadata ``headrace.row``
tells what a record is: ``dict`` (the default), ``tuple`` (fields ``f0``, ``f1`` ...) or ``value`` (one field
``value``). Timestamps without a zone are naive UTC datetimes; Python has microseconds, so nanoseconds are cut off
(rounded down) when rows are made, and pandas never comes in.

Source: Flink's ``ArrowUtils``.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Sequence
from decimal import Decimal
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from .composite_types import TupleType
from .sharing import LEAVES, MUCH, shown, spreads
from .type_sources import type_of_arrow
from .types import RECORD_SHAPE, ValueType, declared_shape

__all__ = [
    "are_as_they_come_back",
    "columns_as",
    "columns_from_rows",
    "fields_from_rows",
    "pylist_from_array",
    "rows_from_columns",
]


# ---------------------------------------------------------------------------------------------------- rows to columns
def columns_from_rows(rows: Sequence[Any], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Turn records into columns. Called when somebody asks a batch of rows for its columns.

    Args:
        rows: Records of one kind: dicts of the same fields, tuples of the same length, instances of one dataclass, or
            single values.
        schema: The declared type. Without one the fields are those of the first record and their types are inferred.

    Shape: one row per record, in order; with ``schema`` exactly that schema.

    Returns:
        The record batch; its metadata ``headrace.row`` says what a record is.

    Raises:
        TypeMismatchError: If a record is of another kind, lacks a field, has one too many or a value of another type;
            names the field and the first such row.

    Only the record itself is held to one shape. Inside of a field Arrow's rules hold: times are cut to the declared
    unit, tuples become lists, dicts become structs of all the keys that occur (or are declared), null where missing.
    """
    kind = _declared_kind(schema) if schema is not None else _kind_of(rows)
    values: list[Sequence[Any]]
    if kind == "value":
        names = schema.names if schema is not None else ["value"]
        values = [rows]
    elif kind == "tuple":
        width = len(schema) if schema is not None else len(rows[0])
        names = schema.names if schema is not None else [f"f{i}" for i in range(width)]
        values = _tuple_columns(rows, width)
    else:
        first = rows[0] if rows else {}
        if isinstance(first, dict):
            names = schema.names if schema is not None else list(first)
            values = _dict_columns(rows, names)
        else:
            names = (
                schema.names if schema is not None else [field.name for field in dataclasses.fields(_dataclass(first))]
            )
            values = _attribute_columns(rows, names)
    if schema is not None:
        arrays = [_array(column, field.name, field) for column, field in zip(values, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema) if names else _fieldless(len(rows), schema)
    arrays = [_array(column, name, None) for column, name in zip(values, names, strict=True)]
    metadata = None if kind == "dict" else {RECORD_SHAPE: kind.encode()}
    fields = [pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)]
    inferred = pa.schema(fields, metadata)
    return pa.RecordBatch.from_arrays(arrays, schema=inferred) if names else _fieldless(len(rows), inferred)


def fields_from_rows(rows: Sequence[Any], names: Sequence[str]) -> pa.RecordBatch:
    """Turn some fields of records without a declared type into columns. Called by operators that read no others.

    Where the records are not dicts that have these fields, all is as in `columns_from_rows`; so what is wrong with them
    is told there.

    Shape: one row per record, in order; of no fields one column of nulls.

    Raises:
        TypeMismatchError: If a field has values that Arrow has no common type for, and as `columns_from_rows`.
    """
    if set(map(type, rows)) == {dict}:
        try:
            values = [list(map(itemgetter(name), rows)) for name in names]
        except KeyError:
            return columns_from_rows(rows)
        arrays = [_array(column, name, None) for column, name in zip(values, names, strict=True)]
        return pa.RecordBatch.from_arrays(arrays or [pa.nulls(len(rows))], names=list(names) or [""])
    return columns_from_rows(rows)


def _fieldless(num_rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of records without fields keeps its length only through a struct array."""
    empty = pa.StructArray.from_buffers(pa.struct([]), num_rows, [None])
    return pa.RecordBatch.from_struct_array(empty).replace_schema_metadata(schema.metadata)


def _declared_kind(schema: pa.Schema) -> str:
    kind = declared_shape(schema)
    if kind not in ("dict", "tuple", "value") or (kind == "value" and len(schema) != 1):
        message = f"a schema's metadata headrace.row must be dict, tuple or (with one field) value; got {kind!r}"
        raise TypeMismatchError(message)
    return kind


def _kind_of(rows: Sequence[Any]) -> str:
    if not rows:
        return "dict"
    first = rows[0]
    if isinstance(first, dict):
        return "dict"
    if isinstance(first, tuple):
        return "tuple"
    return "dict" if dataclasses.is_dataclass(first) and not isinstance(first, type) else "value"


def _dict_columns(rows: Sequence[Any], names: list[str]) -> list[Sequence[Any]]:
    try:
        if set(map(len, rows)) <= {len(names)}:
            return [[row[name] for row in rows] for name in names]
    except (KeyError, TypeError, IndexError):
        pass  # found and named below
    known = set(names)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            message = f"a record must be a dict as the declared type and the records before are; got {_shown(row)}"
            raise TypeMismatchError(message, row=index)
        for name in names:
            if name not in row:
                message = f"field {name!r} is missing in a record that has {_shown(list(row))}"
                raise TypeMismatchError(message, field=name, row=index)
        for name in row:
            if name not in known:
                message = f"field {name!r} of a record is not among the fields {names}"
                raise TypeMismatchError(message, field=str(name), row=index)
    return [[row[name] for row in rows] for name in names]  # a mapping that only looked odd


def _tuple_columns(rows: Sequence[Any], width: int) -> list[Sequence[Any]]:
    for index, row in enumerate(rows):
        if not isinstance(row, tuple) or len(row) != width:
            message = f"a record must be a tuple of {width} fields; got {_shown(row)}"
            raise TypeMismatchError(message, row=index)
    return list(zip(*rows, strict=True)) if rows else [[] for _ in range(width)]


def _dataclass(row: Any) -> type:
    kind = type(row)
    if not dataclasses.is_dataclass(kind):
        message = f"a record must be a dict or a dataclass instance; got {_shown(row)}"
        raise TypeMismatchError(message, row=0)
    return kind


def _attribute_columns(rows: Sequence[Any], names: list[str]) -> list[Sequence[Any]]:
    kind = _dataclass(rows[0])
    own = {field.name for field in dataclasses.fields(kind)}
    if own != set(names):
        odd = sorted(own.symmetric_difference(names))[0]
        message = (
            f"field {odd!r} is {'not declared' if odd in own else 'missing'}; {kind.__qualname__} has {sorted(own)}"
        )
        raise TypeMismatchError(message, field=odd, row=0)
    for index, row in enumerate(rows):
        if type(row) is not kind:
            message = f"a record must be a {kind.__qualname__} as the first one is; got {_shown(row)}"
            raise TypeMismatchError(message, row=index)
    return [list(map(attrgetter(name), rows)) for name in names]


_ARROW_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _array(values: Sequence[Any], name: str, field: pa.Field | None) -> pa.Array:
    kind = None if field is None else field.type
    if not LEAVES.issuperset(map(type, values)):
        for index, value in enumerate(values):
            if spreads(value, MUCH):
                message = f"field {name!r} has a value that shares its parts, which columns would repeat without end"
                raise TypeMismatchError(message, field=name, row=index)
    try:
        array = pa.array(values, kind)
    except _ARROW_FAILURES as error:
        index = _first_misfit(values, kind)
        wanted = "" if kind is None else f", declared as {kind}"
        message = f"field {name!r}{wanted} cannot hold {_shown(values[index])}: {error}"
        raise TypeMismatchError(message, field=name, row=index) from error
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB of text in one batch
        message = f"field {name!r} holds more than one Arrow array can"
        raise TypeMismatchError(message, field=name)
    if kind is not None:
        _check_kept(values, name, kind)
    elif pa.types.is_timestamp(array.type):
        _check_one_zone(values, name)
    if field is not None and not field.nullable and array.null_count:
        index = array.is_null().index(pa.scalar(True)).as_py()
        message = f"field {name!r} is declared without nulls, but a record has one"
        raise TypeMismatchError(message, field=name, row=index)
    return array


def _check_kept(values: Sequence[Any], name: str, kind: pa.DataType) -> None:
    """Refuse what Arrow would convert at a loss or with another meaning: 1.5 to 1, bytes to text, a zone to none."""
    is_ = pa.types
    if is_.is_integer(kind):
        suspects: tuple[type, ...] = (float, np.floating, Decimal)
    elif is_.is_string(kind) or is_.is_large_string(kind):
        suspects = (bytes, bytearray)
    elif is_.is_binary(kind) or is_.is_large_binary(kind):
        suspects = (str,)
    elif is_.is_date(kind):
        suspects = (datetime.datetime,)
    elif is_.is_timestamp(kind):
        _check_zone_kept(values, name, kind)
        return
    else:
        return
    if not any(issubclass(found, suspects) for found in set(map(type, values))):
        return
    for index, value in enumerate(values):
        if isinstance(value, suspects) and not (is_.is_integer(kind) and _is_whole(value)):
            message = f"field {name!r}, declared as {kind}, cannot hold {_shown(value)} without a loss"
            raise TypeMismatchError(message, field=name, row=index)


def _check_zone_kept(values: Sequence[Any], name: str, kind: pa.DataType) -> None:
    """Arrow would make a zoned datetime a naive one in UTC, and take a naive one for UTC where a zone is declared."""
    is_naive = kind.tz is None
    for index, value in enumerate(values):
        if isinstance(value, datetime.datetime) and (value.tzinfo is None) != is_naive:
            message = (
                f"field {name!r}, declared as {kind} {'without' if is_naive else 'with'} a time zone, cannot hold "
                f"{_shown(value)}"
            )
            hint = "value.astimezone(timezone.utc).replace(tzinfo=None) is the same time in UTC without a zone"
            if not is_naive:
                hint = "say which zone is meant: value.replace(tzinfo=timezone.utc), say"
            raise TypeMismatchError(message, hint=hint, field=name, row=index)


def _is_whole(value: Any) -> bool:
    return bool(value == int(value))


def _check_one_zone(values: Sequence[Any], name: str) -> None:
    """Arrow would read a naive datetime among zoned ones as UTC, silently."""
    naive: bool | None = None
    for index, value in enumerate(values):
        if isinstance(value, datetime.datetime):
            if naive is None:
                naive = value.tzinfo is None
            elif naive != (value.tzinfo is None):
                message = f"field {name!r} mixes datetimes with and without a time zone"
                raise TypeMismatchError(message, field=name, row=index)


def _first_misfit(values: Sequence[Any], kind: pa.DataType | None) -> int:
    """Index of the first value that cannot share a column with those before it: longer prefixes fail too."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pa.array(values[:middle], kind)
            low = middle
        except _ARROW_FAILURES:
            high = middle
    return low


_shown = functools.partial(shown, length=120)


def are_as_they_come_back(rows: Sequence[Any], schema: pa.Schema) -> bool:
    """Return whether records would come back from columns of a type as the very same values, and nobody can change
    them.

    Then they need not make the way to find that out. Dicts and lists always do: what comes back is the reader's own.

    Args:
        rows: The records.
        schema: The declared type.
    """
    kind = _row_type(schema, _declared_kind(schema))
    return kind is not None and None not in rows and kind.holds(rows)


@functools.lru_cache(maxsize=256)
def _row_type(schema: pa.Schema, kind: str) -> ValueType | None:
    """The type of records that cannot be changed in place; None of others. Schemas of two kinds may be equal."""
    if kind == "dict" or not all(field.nullable and _is_frozen(field.type) for field in schema):
        return None
    return type_of_arrow(schema.field(0).type) if kind == "value" else type_of_arrow(pa.struct(list(schema)), "tuple")


def _is_frozen(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return isinstance(type_of_arrow(kind), TupleType) and all(_is_frozen(field.type) for field in kind)
    return not pa.types.is_nested(kind)


# ------------------------------------------------------------------------------------------------- columns to columns
def columns_as(columns: pa.RecordBatch, schema: pa.Schema, *, drop_others: bool = False) -> pa.RecordBatch:
    """Turn columns into those of a declared type, field by field, by their names.

    Args:
        columns: Any record batch.
        schema: The declared type.
        drop_others: Whether the columns may have more fields than the type.

    Raises:
        TypeMismatchError: If a field is missing, or there is one too many; if a value has no place in the declared
            type; if times have a zone and should have none, or the other way round.
    """
    if columns.schema.equals(schema, check_metadata=True):
        return columns
    if columns.schema.equals(schema):
        return columns.replace_schema_metadata(schema.metadata)
    found = set(columns.schema.names)
    missing = [name for name in schema.names if name not in found]
    if missing and drop_others:
        message = f"the records have no field {missing[0]!r}; they have {columns.schema.names}"
        raise TypeMismatchError(message, field=missing[0])
    if missing or not (drop_others or len(columns.schema) == len(schema) == len(found)):
        message = f"the records' fields are {columns.schema.names}, declared are {schema.names}"
        raise TypeMismatchError(message)
    arrays = []
    for field in schema:
        column = columns.column(field.name)
        _check_same_zone(field, column.type)
        try:
            arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
        except (pa.ArrowException, ValueError) as error:
            message = f"records do not fit the declared type: field {field.name!r}: {error}"
            raise TypeMismatchError(message, field=field.name) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_same_zone(field: pa.Field, kind: pa.DataType) -> None:
    """A cast would drop a zone silently, or take times without one for UTC."""
    are_times = pa.types.is_timestamp(kind) and pa.types.is_timestamp(field.type)
    if are_times and (kind.tz is None) != (field.type.tz is None):
        message = f"field {field.name!r} is of type {kind}, declared is {field.type}"
        raise TypeMismatchError(message, hint="say in the program which zone is meant", field=field.name)


# ---------------------------------------------------------------------------------------------------- columns to rows
def rows_from_columns(columns: pa.RecordBatch) -> list[Any]:
    """Turn columns into records. Called when somebody asks a batch of columns for its rows.

    Args:
        columns: Any record batch; its metadata ``headrace.row`` says what a record is.

    Returns:
        Dicts by field name, tuples, or single values; in order. Within them a map is a dict, and a struct with the
        fields ``f0``, ``f1`` ... a tuple.

    Raises:
        TypeMismatchError: If a value has no Python counterpart (a timestamp outside the years 1 to 9999), or two
            fields of a dict have one name.
    """
    schema = columns.schema
    kind = _declared_kind(schema)
    if not len(schema):
        return [() if kind == "tuple" else {} for _ in range(columns.num_rows)]
    lists = [pylist_from_array(column, name) for name, column in zip(schema.names, columns.columns, strict=True)]
    if kind == "value":
        return lists[0]
    if kind == "tuple":
        return list(zip(*lists, strict=True))
    names = schema.names
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        message = f"a record cannot have two fields of one name: {name!r} in {names}"
        raise TypeMismatchError(message, field=name)
    if len(names) == 1:
        name = names[0]
        return [{name: value} for value in lists[0]]
    # The same as a comprehension of dict(zip(names, values)), without a frame's bytecode per record.
    return list(map(dict, map(zip, repeat(names), zip(*lists, strict=True))))


def pylist_from_array(array: pa.Array, name: str = "value") -> list[Any]:
    """Turn a column of any type into Python values: maps are dicts, structs of ``f0``, ``f1`` ... are tuples.

    Args:
        array: Any Arrow array.
        name: The field's name, for errors.

    Raises:
        TypeMismatchError: If a value has no Python counterpart.
    """
    try:
        return type_of_arrow(array.type).values(array)
    except TypeMismatchError as error:
        error.message = f"field {name!r}: {error.message}"
        error.context["field"] = name
        raise
