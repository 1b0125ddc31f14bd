"""Which values an aggregate counts, under which condition, and what its counts and partial results are called.

A filter is known by its form: an argument that is a column where a condition is true, and else null.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from ...columns.conditionals import Case
from ...columns.expressions import Expression
from ...functions.aggregates.contract import Aggregate
from ...functions.aggregates.distinct import OfDistinct
from ...functions.aggregates.statistics import Collected

__all__ = [
    "ENDS",
    "EXTREMES",
    "RECORDS",
    "filtered_argument",
    "is_of_list",
    "is_of_values",
    "name_of_counts",
    "name_of_values",
]

EXTREMES = ("min", "max")
"""Aggregates that read counts of values where records are taken back."""

RECORDS = "$records"
"""The column of partial results with the number of a group's records; records do not have it."""

ENDS = ("first", "last")
"""Aggregates that are one of their values in order of arrival."""

_ONE_ROW = pa.record_batch({"none": pa.nulls(1)})


def is_of_values(aggregate: Aggregate, *, takes_back: bool) -> bool:
    """Return whether an aggregate reads counts of its values."""
    is_distinct = aggregate.name == "count_distinct" or isinstance(aggregate, OfDistinct)
    return is_distinct or (takes_back and aggregate.name in EXTREMES)


def is_of_list(aggregate: Aggregate) -> bool:
    """Return whether an aggregate follows from the list of its values in order of arrival."""
    return aggregate.name in ENDS or (isinstance(aggregate, Collected) and aggregate.parts == Collected.parts)


def name_of_values(argument: Expression) -> str:
    """Return the name of the state in which values are counted; different for different values, though they
    read alike.
    """
    return f"values of {_named(argument)}"


def name_of_counts(condition: Expression | None) -> str:
    """Return the name of the column that has how often a value has come where a condition was true."""
    return "count" if condition is None else f"count where {_named(condition)}"


def _named(value: Expression) -> str:
    """Its text, and what tells it from others of the same text, such as nulls of other types."""
    return f"{value!r} {hashlib.sha256(repr(value.structure).encode()).hexdigest()[:8]}"


def filtered_argument(aggregate: Aggregate, schema: pa.Schema) -> tuple[Expression, Expression | None]:
    """Return an aggregate's argument, and the condition under which it counts; None for always."""
    argument = aggregate.argument
    assert argument is not None
    if isinstance(argument, Case) and len(argument.arguments) == 3:
        condition, value, otherwise = argument.arguments
        is_null = not otherwise.columns_used() and otherwise.evaluate(_ONE_ROW).null_count == 1
        # Of other values than columns the condition may be there to guard their computation.
        if is_null and value.structure[0] == "col" and argument.output_type(schema) == value.output_type(schema):
            return value, condition
    return argument, None
