"""Functions that make expressions, under the names of ``pyflink.table.expressions``.

``and_(col("a") > 1, col("b").is_null)`` is the text ``((a > 1) AND (b IS NULL))``. Those of Flink's that SQL does not
have say why when the query is bound, as `docs/guide/sql-functions.md` does.

Source: PyFlink's ``pyflink.table.expressions``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError

from .expression import Expression, call, col, expr, lit
from .rendering import ChosenColumns, ColumnRange
from .sql_calls import (
    Given,
    JsonExistsOnError,
    JsonOnNull,
    JsonQueryOnEmptyOrError,
    JsonQueryWrapper,
    JsonType,
    JsonValueOnEmptyOrError,
    Scalar,
    TimeIntervalUnit,
    TimePointUnit,
    word_of,
)
from .table_windows import CURRENT_RANGE, CURRENT_ROW, UNBOUNDED_RANGE, UNBOUNDED_ROW, row_interval

__all__ = [
    "CURRENT_RANGE",
    "CURRENT_ROW",
    "UNBOUNDED_RANGE",
    "UNBOUNDED_ROW",
    "JsonExistsOnError",
    "JsonOnNull",
    "JsonQueryOnEmptyOrError",
    "JsonQueryWrapper",
    "JsonType",
    "JsonValueOnEmptyOrError",
    "TimeIntervalUnit",
    "TimePointUnit",
    "and_",
    "array",
    "atan2",
    "call",
    "call_sql",
    "coalesce",
    "col",
    "concat",
    "concat_ws",
    "convert_tz",
    "current_database",
    "current_date",
    "current_time",
    "current_timestamp",
    "current_watermark",
    "date_format",
    "e",
    "expr",
    "from_unixtime",
    "if_then_else",
    "json",
    "json_array",
    "json_array_agg",
    "json_object",
    "json_object_agg",
    "json_string",
    "lag",
    "lead",
    "lit",
    "local_time",
    "local_timestamp",
    "log",
    "map_",
    "map_from_arrays",
    "negative",
    "not_",
    "null_of",
    "or_",
    "pi",
    "rand",
    "rand_integer",
    "range_",
    "row",
    "row_interval",
    "temporal_overlaps",
    "timestamp_diff",
    "to_date",
    "to_timestamp",
    "to_timestamp_ltz",
    "unix_timestamp",
    "uuid",
    "with_all_columns",
    "with_columns",
    "without_columns",
]

call_sql = expr


def _function(name: str) -> Callable[..., Expression]:
    """What calls a function of SQL with all arguments that it is given; None at the end stands for none."""

    def called(*arguments: Scalar) -> Expression:
        given = list(arguments)
        while given and given[-1] is None:
            given.pop()
        return call(name, *given)

    called.__name__ = called.__qualname__ = name.lower()
    called.__doc__ = f"``{name}(...)`` of SQL."
    return called


atan2 = _function("ATAN2")
coalesce = _function("COALESCE")
concat = _function("CONCAT")
concat_ws = _function("CONCAT_WS")
convert_tz = _function("CONVERT_TZ")
current_database = _function("CURRENT_DATABASE")
current_date = _function("CURRENT_DATE")
current_time = _function("CURRENT_TIME")
current_timestamp = _function("CURRENT_TIMESTAMP")
current_watermark = _function("CURRENT_WATERMARK")
date_format = _function("DATE_FORMAT")
e = _function("E")
from_unixtime = _function("FROM_UNIXTIME")
json = _function("JSON")
json_string = _function("JSON_STRING")
lag = _function("LAG")
lead = _function("LEAD")
local_time = _function("LOCALTIME")
local_timestamp = _function("LOCALTIMESTAMP")
map_from_arrays = _function("MAP_FROM_ARRAYS")
pi = _function("PI")
rand = _function("RAND")
rand_integer = _function("RAND_INTEGER")
to_date = _function("TO_DATE")
to_timestamp = _function("TO_TIMESTAMP")
to_timestamp_ltz = _function("TO_TIMESTAMP_LTZ")
unix_timestamp = _function("UNIX_TIMESTAMP")
uuid = _function("UUID")


def and_(predicate0: Scalar, predicate1: Scalar, *predicates: Scalar) -> Expression:
    """Return whether all are true."""
    return _joined(" AND ", (predicate0, predicate1, *predicates))


def or_(predicate0: Scalar, predicate1: Scalar, *predicates: Scalar) -> Expression:
    """Return whether one is true."""
    return _joined(" OR ", (predicate0, predicate1, *predicates))


def not_(expression: Expression) -> Expression:
    """Return whether it is false."""
    return ~expression


def negative(v: Scalar) -> Expression:
    """Return the number with the other sign."""
    return -_of(v)


def if_then_else(condition: Expression, if_true: Scalar, if_false: Scalar) -> Expression:
    """Return one of two values, by a condition."""
    return condition.then(if_true, if_false)


def log(v: Scalar, base: Scalar | None = None) -> Expression:
    """Return the logarithm to a base; without one the natural one."""
    return _of(v).log(base)


def null_of(data_type: str | pa.DataType) -> Expression:
    """Return NULL of a type."""
    return lit(None, data_type)


def array(head: Scalar, *tail: Scalar) -> Expression:
    """Return an ARRAY of some values."""
    return _listed("ARRAY[", (head, *tail), "]")


def row(head: Scalar, *tail: Scalar) -> Expression:
    """Return a ROW of some values."""
    return _listed("ROW(", (head, *tail), ")")


def map_(key: Scalar, value: Scalar, *tail: Scalar) -> Expression:
    """Return a MAP: of a key, its value, another key, its value, and so on."""
    if len(tail) % 2:
        message = f"a map has a value for each key; got {2 + len(tail)} arguments"
        raise ProgramError(message)
    return _listed("MAP[", (key, value, *tail), "]")


def timestamp_diff(time_point_unit: Any, time_point1: Scalar, time_point2: Scalar) -> Expression:
    """Return how many whole units there are from the first time to the second."""
    unit = word_of(time_point_unit, "a unit of time")
    return _of(time_point1).written(f"TIMESTAMPDIFF({unit}, ", Given(time_point1), ", ", Given(time_point2), ")")


def temporal_overlaps(
    left_time_point: Scalar, left_temporal: Scalar, right_time_point: Scalar, right_temporal: Scalar
) -> Expression:
    """Return whether two spans of time have a moment in common; each is a time, and its end or how long it is."""
    sides = [Given(left_time_point), ", ", Given(left_temporal), ") OVERLAPS (", Given(right_time_point), ", "]
    return _of(left_time_point).written("((", *sides, Given(right_temporal), "))")


def json_object(on_null: Any = None, *args: Scalar) -> Expression:
    """Return a JSON object of keys and values, one after the other; nulls are kept, or with ABSENT left out."""
    if len(args) % 2:
        message = f"a JSON object has a value for each key; got {len(args)} arguments"
        raise ProgramError(message)
    pieces: list[Any] = []
    for name, value in zip(args[::2], args[1::2], strict=True):
        pieces += [", ", "KEY ", Given(name), " VALUE ", Given(value)]
    return lit(None).written("JSON_OBJECT(", *pieces[1:], f"{_on_null(on_null)})")


def json_array(on_null: Any = None, *args: Scalar) -> Expression:
    """Return a JSON array of values; nulls are left out, or with NULL kept."""
    return _listed("JSON_ARRAY(", args, f"{_on_null(on_null)})")


def json_object_agg(on_null: Any, key_expr: Scalar, value_expr: Scalar) -> Expression:
    """Return a JSON object of the names and values of a group; nulls are kept with NULL, left out with ABSENT."""
    entry = ["KEY ", Given(key_expr), " VALUE ", Given(value_expr)]
    return lit(None).written("JSON_OBJECTAGG(", *entry, f"{_on_null(on_null)})")


def json_array_agg(on_null: Any, item_expr: Scalar) -> Expression:
    """Return a JSON array of the values of a group; nulls are kept with NULL, left out with ABSENT."""
    return lit(None).written("JSON_ARRAYAGG(", Given(item_expr), f"{_on_null(on_null)})")


def with_all_columns() -> Expression:
    """Return all columns, in `Table.select`."""
    return expr("*")


def range_(start: str | int, end: str | int) -> Expression:
    """Return the columns from one to another, both included: by names, or by places from 1; for `with_columns`."""
    if type(start) is not type(end) or type(start) not in (str, int):
        message = f"a range of columns has two names or two places; got {start!r} and {end!r}"
        raise ProgramError(message)
    return Expression(ChosenColumns((ColumnRange(start, end),), is_without=False), is_operand=False)


def with_columns(head: Any, *tails: Any) -> Expression:
    """Return some columns, as a list: ``with_columns(range_("a", "c"), col("x"), 7)``.

    They stand where a list of expressions does: in `Table.select`, in `Table.group_by`, among the arguments of a call.

    Args:
        head: ``col(...)``, a place from 1, ``range_(...)``, or ``col("*")`` for all.
        *tails: More of them.
    """
    return _columns((head, *tails), is_without=False)


def without_columns(head: Any, *tails: Any) -> Expression:
    """Return all columns but some, as `with_columns` names them, as a list."""
    return _columns((head, *tails), is_without=True)


def _columns(given: Sequence[Any], *, is_without: bool) -> Expression:
    choices: list[Any] = []
    for one in given:
        if isinstance(one, Expression) and one.chosen is not None:
            choices.append(one.chosen)
        elif isinstance(one, Expression) and (one.column is not None or repr(one) == "*"):
            choices.append(one.column or "*")
        elif type(one) is int:
            choices.append(one)
        else:
            message = f"columns are chosen by col(...), range_(...) or places; got {one!r}"
            raise ProgramError(message)
    return Expression(ChosenColumns(tuple(choices), is_without), is_operand=False)


def _of(value: Scalar) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def _joined(word: str, values: Sequence[Scalar]) -> Expression:
    first, *others = values
    joined = _of(first)
    for one in others:
        joined = joined & one if word == " AND " else joined | one
    return joined


def _listed(begin: str, values: Sequence[Scalar], end: str) -> Expression:
    pieces: list[Any] = []
    for value in values:
        pieces += [", ", Given(value)]
    return lit(None).written(begin, *pieces[1:], end)


def _on_null(on_null: Any) -> str:
    return "" if on_null is None else f" {word_of(on_null, 'on_null', ('NULL', 'ABSENT'))} ON NULL"
