"""What is known of a stream's records before anything runs, so that a mistake is refused where it is written.

A stream knows its columns if its source does (a collection of like records, a table, a file with a schema), if a type
was declared or hinted, or if a columnar operator makes them of known ones. What is not known is checked when the first
records come. Columns are checked by the operators themselves: `output_schema` of each columnar operator evaluates its
expressions on no rows, with the rules that hold when it runs.

Source: Flink's ``InvalidProgramException`` of key and field expressions, and ``ResultTypeQueryable`` of sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Expression
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError, ProgramError, nearest
from headrace.engine.functions.operator import Operator

__all__ = [
    "check_fields",
    "check_union",
    "columns_behind",
    "columns_of_rows",
    "columns_of_source",
    "columns_used",
    "naming_step",
]

NUM_ROWS_LOOKED_AT = 1_000
"""So many elements of a collection tell its types; its field names are those of all."""


def columns_of_source(source: Any) -> pa.Schema | None:
    """Return what a source says of its records (``produced_columns``); None if it says nothing."""
    tell = getattr(source, "produced_columns", None)
    return None if tell is None else tell()


def columns_of_rows(rows: Sequence[Any]) -> pa.Schema | None:
    """Return the columns of records at hand; None if they differ in their fields or a type cannot be told."""
    if not rows or any(type(row) is not type(rows[0]) for row in rows):
        return None
    if isinstance(rows[0], dict) and any(row.keys() != rows[0].keys() for row in rows):
        return None
    try:
        schema = Batch.of_rows(list(rows[:NUM_ROWS_LOOKED_AT])).columns.schema
    except (HeadraceError, pa.ArrowException):
        return None  # a stream of arbitrary objects is legal: it has rows only
    return None if any(_has_null(field.type) for field in schema) else schema


def columns_behind(operator: Operator, known: pa.Schema | None, name: str) -> pa.Schema | None:
    """Return what a columnar operator makes of known columns; None where nothing can be said.

    Raises:
        ProgramError, TypeMismatchError: If an expression, a key or an aggregate of it does not fit the columns.
    """
    make = getattr(operator, "output_schema", None)
    if known is None or make is None:
        return None
    with naming_step(name):
        schema: pa.Schema = make(known)
    return schema


@contextmanager
def naming_step(name: str) -> Iterator[None]:
    """Inside, an error says that it is about this step of the program."""
    try:
        yield
    except HeadraceError as error:
        error.context.setdefault("operator", name)
        raise


def check_fields(what: str, fields: Sequence[Any], known: pa.Schema | None) -> None:
    """Refuse fields by name that the records are known not to have.

    Args:
        what: Whose fields, e.g. ``key_by``.
        fields: Names, or positions in tuples.
        known: The records' columns; None checks nothing.

    Raises:
        ProgramError: Names the field, the fields that there are, and the nearest one.
    """
    if known is None:
        return
    names = known.names
    for field in fields:
        if isinstance(field, int) and names == ["value"]:
            continue  # position 0 of a plain value is the value itself
        name = f"f{field}" if isinstance(field, int) else field
        if name not in names:
            message = f"{what}: field {field!r} is not in the records; their fields are {', '.join(map(repr, names))}"
            raise ProgramError(message, hint=nearest(name, names))


def check_union(schemas: Sequence[pa.Schema | None]) -> pa.Schema | None:
    """Return the columns of the union of streams; None if not all are known.

    Raises:
        ProgramError: If two streams are known to be of different fields, or of types that no column can hold together.
    """
    known = [schema for schema in schemas if schema is not None]
    for other in known[1:]:
        _check_alike(known[0], other)
    return known[0] if known and len(known) == len(schemas) and all(s.equals(known[0]) for s in known) else None


def _check_alike(one: pa.Schema, other: pa.Schema) -> None:
    hint = "give both streams one type first, e.g. by map or select"
    if set(one.names) != set(other.names) or one.metadata != other.metadata:
        message = f"union takes streams of one type; one has {_fields(one)}, another {_fields(other)}"
        raise ProgramError(message, hint=hint)
    for field in one:
        kinds = (field.type, other.field(field.name).type)
        try:
            pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
        except pa.ArrowException as error:
            message = f"union takes streams of one type; {field.name!r} is {kinds[0]} in one and {kinds[1]} in another"
            raise ProgramError(message, hint=hint) from error


def _fields(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _has_null(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(_has_null(kind.field(i).type) for i in range(kind.num_fields))


def columns_used(expressions: Sequence[Any]) -> list[str]:
    """Return the names of the columns that expressions read, in order."""
    used = {name: None for one in expressions if isinstance(one, Expression) for name in sorted(one.columns_used())}
    return list(used)
