"""Expressions and aggregates as Spark's own, so that Catalyst can push, fold and compile them.

Only what means exactly the same is translated; for everything else `column_of` and `aggregate_of` give None, and the
executor lets Python evaluate the very expression over Arrow batches. The differences that are bridged here: our integer
arithmetic is 64 bits wide and fails on overflow (the session runs in ANSI mode); comparisons with NaN follow IEEE 754
(in SQL NaN equals itself and is greater than everything); ``max`` skips NaN. Not bridged, so never translated:
division, upper and lower case, patterns, casts that may fail.

Source: `headrace.engine.columns.expressions`, `headrace.engine.functions.aggregates`; Spark's
``spark.sql.ansi.enabled``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.engine.columns.expressions import Expression
from headrace.engine.functions.aggregates.built_in import is_built_in
from headrace.engine.functions.aggregates.contract import Aggregate

from .columns import Layout

__all__ = ["aggregate_of", "column_of", "spark_type"]


def spark_type(data_type: pa.DataType) -> Any:
    """Spark's name of a type that both have."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(data_type, True)


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(data_type) or pa.types.is_floating(data_type))


def column_of(expression: Expression, layout: Layout) -> Any | None:
    """Return the expression as a Spark column of the type that it has for us; None if Spark would mean something else.

    Args:
        expression: Over the fields of the layout's wire schema.
        layout: How the records lie in Spark.
    """
    translated = _translate(expression, layout)
    return None if translated is None else translated[0]


def _translate(expression: Expression, layout: Layout) -> tuple[Any, pa.DataType] | None:
    """A Spark column and our type of it."""
    from pyspark.sql import functions as sf

    structure = expression.structure
    kind = structure[0]
    if kind == "alias":
        return _translate(expression.children[0], layout)
    if kind == "col":
        name = structure[1]
        if not layout.is_native(name):
            return None
        return sf.col(layout.column(name)), layout.wire.field(name).type
    if kind == "lit":
        return _literal(expression)
    operands = [_translate(child, layout) for child in expression.children]
    if any(operand is None for operand in operands):
        return None
    known = [operand for operand in operands if operand is not None]
    columns = [operand[0] for operand in known]
    types = [operand[1] for operand in known]
    options = dict(getattr(expression, "options", ()))
    if kind in _ARITHMETIC and len(known) == 2:
        return _arithmetic(kind, columns, types)
    if kind in _COMPARISONS and len(known) == 2:
        result = _comparison(kind, columns, types)
        return None if result is None else (result, pa.bool_())
    if kind in ("and", "or") and all(map(pa.types.is_boolean, types)):
        return (columns[0] & columns[1] if kind == "and" else columns[0] | columns[1]), pa.bool_()
    if kind == "not" and pa.types.is_boolean(types[0]):
        return ~columns[0], pa.bool_()
    if kind == "is_null":
        return columns[0].isNull(), pa.bool_()
    if kind == "is_not_null":
        return columns[0].isNotNull(), pa.bool_()
    if kind == "isin":
        return _isin(columns[0], types[0], options["values"])
    if kind in _TEXT_TESTS and pa.types.is_string(types[0]):
        return _TEXT_TESTS[kind](columns[0], options["text"]), pa.bool_()
    if kind == "length" and pa.types.is_string(types[0]):
        return sf.length(columns[0]).cast("long"), pa.int64()
    if kind == "case":
        return _case(columns, types)
    if kind == "coalesce" and all(data_type == types[0] for data_type in types):
        return sf.coalesce(*columns), types[0]
    return None


def _literal(expression: Any) -> tuple[Any, pa.DataType] | None:
    from pyspark.sql import functions as sf

    scalar = expression.scalar
    value = scalar.as_py()
    if value is None or not isinstance(value, (bool, int, float, str)):
        return None
    if not (pa.types.is_boolean(scalar.type) or _is_number(scalar.type) or pa.types.is_string(scalar.type)):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return sf.lit(value).cast(spark_type(scalar.type)), scalar.type


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
}


def _arithmetic(kind: str, columns: list[Any], types: list[pa.DataType]) -> tuple[Any, pa.DataType] | None:
    if not all(map(_is_number, types)):
        return None
    if any(map(pa.types.is_float32, types)):
        return None  # our result is single or double by Arrow's rules
    common = pa.float64() if any(map(pa.types.is_floating, types)) else pa.int64()
    left, right = (column.cast(spark_type(common)) for column in columns)
    return _ARITHMETIC[kind](left, right), common


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda left, right: left == right,
    "not_equal": lambda left, right: left != right,
    "less": lambda left, right: left < right,
    "less_equal": lambda left, right: left <= right,
    "greater": lambda left, right: left > right,
    "greater_equal": lambda left, right: left >= right,
}


def _comparison(kind: str, columns: list[Any], types: list[pa.DataType]) -> Any | None:
    from pyspark.sql import functions as sf

    left, right = columns
    if all(map(_is_number, types)):
        floating = list(map(pa.types.is_floating, types))
        if any(floating):
            left, right = left.cast("double"), right.cast("double")
        else:
            left, right = left.cast("long"), right.cast("long")
        plain = _COMPARISONS[kind](left, right)
        if not any(floating):
            return plain
        # Spark's isnan is false for null, so a null still reaches the comparison, and makes it null.
        has_nan = (sf.isnan(left) & right.isNotNull()) | (sf.isnan(right) & left.isNotNull())
        return sf.when(has_nan, sf.lit(kind == "not_equal")).otherwise(plain)
    if types[0] != types[1]:
        return None
    return _COMPARISONS[kind](left, right)


def _isin(column: Any, data_type: pa.DataType, values: tuple[Any, ...]) -> tuple[Any, pa.DataType] | None:
    wanted = str if pa.types.is_string(data_type) else int if pa.types.is_signed_integer(data_type) else None
    if wanted is None or not values or any(type(value) is not wanted for value in values):
        return None
    return column.isin(list(values)), pa.bool_()


_TEXT_TESTS: dict[str, Callable[[Any, str], Any]] = {
    "contains": lambda column, text: column.contains(text),
    "starts_with": lambda column, text: column.startswith(text),
    "ends_with": lambda column, text: column.endswith(text),
}


def _case(columns: list[Any], types: list[pa.DataType]) -> tuple[Any, pa.DataType] | None:
    from pyspark.sql import functions as sf

    values = [*types[1:-1:2], types[-1]]
    if any(data_type != values[0] for data_type in values) or not all(map(pa.types.is_boolean, types[:-1:2])):
        return None
    result = None
    for condition, value in zip(columns[0:-1:2], columns[1:-1:2], strict=True):
        result = sf.when(condition, value) if result is None else result.when(condition, value)
    assert result is not None
    return result.otherwise(columns[-1]), values[0]


# ----------------------------------------------------------------------------------------------------------- aggregates


def aggregate_of(aggregate: Aggregate, layout: Layout, output_type: pa.DataType) -> Any | None:
    """Return a built-in aggregate as Spark's, of the type that it has for us; None if there is none that means the
    same.
    """
    from pyspark.sql import functions as sf

    if not is_built_in(aggregate):
        return None  # somebody's own
    if aggregate.argument is None:
        return sf.count(sf.lit(1)).cast("long") if aggregate.name == "count" else None
    translated = _translate(aggregate.argument, layout)
    if translated is None:
        return None
    column, data_type = translated
    make = _AGGREGATES.get(aggregate.name)
    if make is None:
        return None
    result = make(column, data_type)
    return None if result is None else result.cast(spark_type(output_type))


def _halves(number: Any) -> tuple[Any, Any]:
    """The sums of the upper and of the lower 32 bits of 64-bit integers, which cannot overflow."""
    from pyspark.sql import functions as sf

    return sf.sum(sf.shiftright(number, 32)), sf.sum(number.bitwiseAND(sf.lit(0xFFFFFFFF)))


def _sum(column: Any, data_type: pa.DataType) -> Any | None:
    from pyspark.sql import functions as sf

    if pa.types.is_signed_integer(data_type):
        number = column.cast("long")
        if data_type.bit_width < 64:
            return sf.sum(number)
        # Partial sums of Spark's would overflow although the sum fits; putting halves together fails if it does not.
        upper, lower = _halves(number)
        whole = upper + sf.shiftright(lower, 32)
        return whole * sf.lit(1 << 32) + lower.bitwiseAND(sf.lit(0xFFFFFFFF))
    return sf.sum(column.cast("double")) if pa.types.is_floating(data_type) else None


MOST_DIGITS = 28
"""Of decimals that Spark may add up: 38 hold the sum of 10^10 of them."""


def _avg(column: Any, data_type: pa.DataType) -> Any | None:
    """The sum, exact where the values are, and only then a double: large values may cancel out."""
    from pyspark.sql import functions as sf

    if pa.types.is_signed_integer(data_type):
        upper, lower = (half.cast("decimal(20, 0)") for half in _halves(column.cast("long")))
        total = upper * sf.lit(1 << 32).cast("decimal(10, 0)") + lower
    elif pa.types.is_decimal(data_type) and data_type.precision <= MOST_DIGITS:
        total = sf.sum(column)
    elif pa.types.is_floating(data_type):
        return sf.avg(column.cast("double"))
    else:
        return None
    return total.cast("double") / sf.count(column)


def _min(column: Any, data_type: pa.DataType) -> Any | None:
    from pyspark.sql import functions as sf

    return None if pa.types.is_binary(data_type) else sf.min(column)  # NaN is Spark's greatest: skipped by itself


def _max(column: Any, data_type: pa.DataType) -> Any | None:
    from pyspark.sql import functions as sf

    if pa.types.is_binary(data_type):
        return None
    if pa.types.is_floating(data_type):
        return sf.coalesce(sf.max(sf.when(~sf.isnan(column), column)), sf.max(column))
    return sf.max(column)


def _count(column: Any, data_type: pa.DataType) -> Any | None:
    from pyspark.sql import functions as sf

    return sf.count(column)


_AGGREGATES: Mapping[str, Callable[[Any, pa.DataType], Any | None]] = {
    "sum": _sum,
    "avg": _avg,
    "min": _min,
    "max": _max,
    "count": _count,
}
