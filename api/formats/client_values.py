"""Values that a client of a service gives, as columns: each as the declared type has it, exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import TypeMismatchError

__all__ = ["Convert", "column_of", "columns_of", "optional"]

Convert = Callable[[Any], Any]
"""Makes one value of another; raises a ValueError, a TypeError or an ArithmeticError if there is none."""


def optional(convert: Convert | None) -> Convert:
    """Return the same for values that may be None; None is a conversion that changes nothing."""
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def column_of(values: Sequence[Any], field: pa.Field, convert: Convert | None) -> pa.Array:
    """Return values of a column as those of a field.

    Raises:
        TypeMismatchError: If one is none of the field's type; ``record`` says which.
    """
    made = optional(convert)
    try:
        return pa.array([made(value) for value in values], field.type)
    except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
        for value in values:
            try:
                pa.array([made(value)], field.type)
            except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as cause:
                message = f"column {field.name!r} has a value that is no {field.type}: {value!r:.80} ({cause!s:.200})"
                raise TypeMismatchError(message) from error
        raise


def columns_of(
    columns: Sequence[Sequence[Any]], schema: pa.Schema, converters: Sequence[Convert | None], **place: Any
) -> pa.RecordBatch:
    """Return values, column by column, as records of a schema.

    Raises:
        TypeMismatchError: As of `column_of`; with the place where they are from.
    """
    try:
        arrays = [
            column_of(values, field, convert)
            for values, field, convert in zip(columns, schema, converters, strict=True)
        ]
    except TypeMismatchError as error:
        raise TypeMismatchError(error.message, **place) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
