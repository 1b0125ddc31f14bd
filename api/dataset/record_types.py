"""Types of data sets: where they come from, and the checks of keys, fields and schemas while a program is written.

A data set has a type if its source has one, if ``output_type`` or a function's hints say so, or if an operation on
columns gives one. It is a promise: every record is held to it. Hints are taken only where records come back from
columns as they went in (numbers, texts, bytes, dates, times, flat tuples of these); a dataclass as a hint leaves its
records alone, as an explicit ``output_type`` it makes dicts of them.

Everything refused here is refused where the program says it, with the fields there are.

Source: Flink's ``Keys.ExpressionKeys``, ``TypeExtractor``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Expression
from headrace.engine.errors import ProgramError, TypeMismatchError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.plan.plan import GroupKey, Order, record_shape
from headrace.state.values.type_sources import atom_of_values
from headrace.state.values.types import RECORD_SHAPE

from ..arguments.checks import field_of
from ..arguments.data_types import infer_output_type, resolve_type, schema_of

__all__ = [
    "check_fields",
    "declared_schema",
    "field_type",
    "function_schema",
    "group_key",
    "is_same_type",
    "order_of",
    "schema_of_rows",
    "schema_with_kind",
]


def declared_schema(output_type: Any) -> pa.Schema | None:
    """Return the schema of a type that the program names; None for arbitrary objects or if it names none."""
    return None if output_type is None else schema_of(resolve_type(output_type))


def function_schema(function: Any, method: str, output_type: Any, *, many: bool = False) -> pa.Schema | None:
    """Give the schema of what a function gives: the declared one, else what its hints say if that is safe to go by."""
    if output_type is not None:
        return declared_schema(output_type)
    hinted = infer_output_type(function, method, many=many)
    if hinted is None or hinted.arrow_type is None or hinted.shape == "dict":
        return None
    schema = schema_of(hinted)
    if schema is None or any(pa.types.is_nested(field.type) or pa.types.is_decimal(field.type) for field in schema):
        return None
    return None if hinted.is_of_class else schema


def schema_of_rows(rows: Sequence[Any]) -> pa.Schema | None:
    """Return the schema of records that are at hand: one that loses nothing, or None."""
    if not rows:
        return None
    kinds = set(map(type, rows))
    if kinds == {dict}:
        names = list(rows[0])
        if not names or not all(isinstance(name, str) for name in names):
            return None
        if any(len(row) != len(names) or not all(name in row for name in names) for row in rows):
            return None
        columns: list[list[Any]] = [[row[name] for row in rows] for name in names]
        metadata = None
    elif kinds == {tuple}:
        width = len(rows[0])
        if not width or any(len(row) != width for row in rows):
            return None
        names = [f"f{i}" for i in range(width)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        metadata = {RECORD_SHAPE: b"tuple"}
    else:
        names, columns, metadata = ["value"], [list(rows)], {RECORD_SHAPE: b"value"}
    types = [atom_of_values(column) for column in columns]
    fields = [(name, kind.arrow_type) for name, kind in zip(names, types, strict=True) if kind is not None]
    return pa.schema(fields, metadata) if len(fields) == len(names) else None


# --------------------------------------------------------------------------------------------------------------- fields


def _column_name(method: str, field: str | int, schema: pa.Schema) -> str:
    kind = record_shape(schema)
    if isinstance(field, int):
        if kind != "tuple":
            message = f"{method} takes positions for tuples only; the records are {_described(schema)}"
            raise ProgramError(message, hint="name the field")
        if field >= len(schema):
            message = f"{method}: there is no position {field}; the records are {_described(schema)}"
            raise ProgramError(message)
        return schema.names[field]
    if field not in schema.names:
        message = f"{method}: there is no field {field!r}; the records are {_described(schema)}"
        raise ProgramError(message)
    return field


def _described(schema: pa.Schema) -> str:
    kind = {"dict": "dicts", "tuple": "tuples", "value": "single values"}[record_shape(schema)]
    return f"{kind} of {', '.join(f'{field.name}: {field.type}' for field in schema)}"


def check_fields(method: str, fields: Iterable[str | int], schema: pa.Schema | None) -> None:
    """Refuse fields that records of a known type do not have.

    Raises:
        ProgramError: If there is one.
    """
    for field in fields:
        field_type(method, field, schema)


def field_type(method: str, field: str | int, schema: pa.Schema | None) -> pa.DataType | None:
    """Return the type of a field; None if records have no type.

    Raises:
        ProgramError: If there is no such field.
    """
    return None if schema is None else schema.field(_column_name(method, field, schema)).type


def _require_plain(method: str, what: str, field: str | int, kind: pa.DataType | None) -> None:
    if kind is not None and pa.types.is_nested(kind):
        message = f"{method}: field {field!r} of type {kind} cannot be a {what}"
        raise TypeMismatchError(message, hint=f"a {what} is a number, a text, bytes, a boolean, a date or a time")


def group_key(method: str, key: Sequence[Any], schema: pa.Schema | None) -> GroupKey:
    """Return a key from what a program writes: names, positions, columns, or one function.

    Raises:
        ProgramError: If there is no such field.
        TypeMismatchError: If a field's type cannot be a key.
    """
    if len(key) == 1 and isinstance(key[0], (list, tuple)):
        key = key[0]
    if len(key) == 1:
        function = getattr(key[0], "get_key", key[0])
        if callable(function) and not isinstance(function, Expression):
            return GroupKey(KeySelector.of_function(function), None, None, function)
    fields: list[str | int] = []
    for one in key:
        field = one
        if isinstance(one, Expression):
            if one.structure[0] != "col":
                message = f"{method} takes columns by name; {one!r} is computed"
                raise ProgramError(message, hint="add it by with_columns(name=...) first and use the name")
            field = one.structure[1]
        fields.append(field_of(method, field))
    if not fields:
        message = f"{method} needs a key"
        raise ProgramError(message)
    for field in fields:
        _require_plain(method, "key", field, field_type(method, field, schema))
    selector = KeySelector.of_field(*fields)
    return GroupKey(selector, selector.field_names, tuple(fields))


def order_of(method: str, field: Any, ascending: Any, schema: pa.Schema | None) -> Order:
    """Return a sort key from what a program writes.

    Raises:
        ProgramError: If there is no such field, or if ``ascending`` is no bool.
        TypeMismatchError: If a field's type has no order.
    """
    if not isinstance(ascending, bool):
        message = f"{method}: ascending must be True or False; got {ascending!r}"
        raise ProgramError(message, hint="write ascending=False for the descending order")
    if isinstance(field, Expression) and field.structure[0] == "col":
        field = field.structure[1]
    if callable(field) and not isinstance(field, Expression):
        return Order(field, ascending)
    name = field_of(method, field)
    _require_plain(method, "sort key", name, field_type(method, name, schema))
    return Order(name, ascending)


def is_same_type(one: pa.Schema | None, other: pa.Schema | None) -> bool:
    """Return whether records of one type are records of the other."""
    if one is None or other is None:
        return one is other
    if record_shape(one) != record_shape(other):
        return False
    if record_shape(one) == "dict":
        return {f.name: f.type for f in one} == {f.name: f.type for f in other} and len(one) == len(other)
    return list(one.types) == list(other.types)


def schema_with_kind(fields: Sequence[pa.Field], kind: str) -> pa.Schema:
    """Return a schema of dicts, tuples or values."""
    return pa.schema(list(fields), None if kind == "dict" else {RECORD_SHAPE: kind.encode()})
