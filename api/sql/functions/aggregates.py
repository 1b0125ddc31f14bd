"""Aggregate functions: what SQL's are made of, with Flink's types of results.

``AVG`` of integers is an integer, ``SUM`` keeps its argument's type, sums and averages of decimals have 38 digits. An
aggregate becomes built-in ones and an expression over them; a ``FILTER`` becomes an argument that is null where its
condition is not true, and aggregates skip nulls.

Source: Flink's documentation ("Aggregate Functions"), ``LogicalTypeMerging.findAvgAggType``, ``findSumAggType``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.conditionals import Case
from headrace.engine.columns.expressions import col, lit
from headrace.engine.columns.kernels import Value, compute
from headrace.engine.functions.aggregates import built_in, statistics
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.aggregates.distinct import VALUE, OfDistinct

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .arrays import distinct_key
from .coercion import as_decimal_type, cast_to, is_number, is_text, list_like
from .contract import KernelCall, Typed, constant, require, row_by_row
from .json_functions import array_of_rows, object_of_rows
from .operators import divide, multiply
from .rows import as_row

__all__ = ["AGGREGATES", "AggregateCall", "AggregateFunction", "aggregate_call"]


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function.

    Attributes:
        parts: The built-in aggregates that it is made of.
        result: Makes its value of theirs, in order.
    """

    parts: tuple[Aggregate, ...]
    result: Callable[..., Typed]


@dataclass(frozen=True)
class AggregateFunction:
    """An aggregate function of SQL.

    Attributes:
        name: In capitals.
        usage: How it is called, for people.
        bind: What a call becomes; its argument is None for ``COUNT(*)``.
        meaning: What it gives, in a line.
        differs: What Flink's function of the name does otherwise; empty if nothing is known.
        takes_distinct: Whether equal values may count once.
        more: How many arguments may follow the first.
        as_one: Makes one argument of all, before FILTER; None for an aggregate of its first argument.
    """

    name: str
    usage: str
    bind: Callable[..., AggregateCall]
    meaning: str
    differs: str = ""
    takes_distinct: bool = True
    more: int = 0
    as_one: Callable[[Sequence[Typed]], Typed] | None = None


def aggregate_call(
    function: AggregateFunction, arguments: Sequence[Typed], condition: Typed | None, *, distinct: bool
) -> AggregateCall:
    """Return what a call becomes.

    Args:
        function: What is called.
        arguments: None for ``COUNT(*)``.
        condition: That of FILTER.
        distinct: Whether equal values count once.

    Raises:
        SqlError: If it does not fit.
    """
    name = function.name
    if distinct and not function.takes_distinct:
        message = f"{name}(DISTINCT ...) is not supported"
        raise SqlError(message, hint="SELECT DISTINCT in a subquery gives the values once")
    argument, more = _one_argument(function, arguments)
    if condition is not None:
        require(condition, pa.types.is_boolean, "a condition")
        given = argument or Typed(lit(1, pa.int32()), pa.int32())
        nothing = lit(None, given.kind if not pa.types.is_null(given.kind) else pa.int32())
        argument = Typed(Case((condition.expression, given.expression, nothing)), given.kind)
    if not distinct or argument is None or name in ("MIN", "MAX"):
        return function.bind(argument, *more)
    if name == "COUNT":
        return _plain(built_in.count_distinct(argument.expression), pa.int64())
    return _of_distinct(function, argument, more)


def _one_argument(function: AggregateFunction, arguments: Sequence[Typed]) -> tuple[Typed | None, Sequence[Typed]]:
    """The values that are aggregated, and what else is given."""
    if function.as_one is not None:
        if len(arguments) > function.more + 1:
            message = f"{function.name} takes one argument"
            raise SqlError(message, hint=f"the call is {function.usage}")
        return function.as_one(arguments), ()
    if not arguments:
        if function.name != "COUNT":
            message = f"{function.name} needs an argument"
            raise SqlError(message)
        return None, ()
    if len(arguments) > function.more + 1:
        message = f"{function.name} takes {'one argument' if not function.more else 'no more than two arguments'}"
        raise SqlError(message, hint=f"the call is {function.usage}")
    return arguments[0], arguments[1:]


def _of_distinct(function: AggregateFunction, argument: Typed, more: Sequence[Typed]) -> AggregateCall:
    """The call over a column of different values, and each part of it of those that the argument has."""
    inner = function.bind(Typed(col(VALUE), argument.kind), *more)
    parts = tuple(OfDistinct(part, argument.expression, argument.kind) for part in inner.parts)
    return AggregateCall(parts, inner.result)


def _as_row(arguments: Sequence[Typed]) -> Typed:
    """A row is never null itself, so that an array keeps its nulls."""
    if not arguments:
        message = "an array is made of an argument"
        raise SqlError(message)
    return as_row(*arguments)


def _plain(aggregate: Aggregate, kind: pa.DataType) -> AggregateCall:
    return AggregateCall((aggregate,), lambda value: cast_to(value, kind))


def _count(argument: Typed | None) -> AggregateCall:
    return _plain(built_in.count(None if argument is None else argument.expression), pa.int64())


def _number(argument: Typed | None, name: str) -> Typed:
    assert argument is not None
    if pa.types.is_null(argument.kind):
        message = f"{name} of NULL has no type"
        raise SqlError(message, hint="CAST it")
    return require(argument, is_number, "a number")


def _sum(argument: Typed | None) -> AggregateCall:
    value = _number(argument, "SUM")
    kind = pa.decimal128(38, value.kind.scale) if pa.types.is_decimal(value.kind) else value.kind
    return _plain(built_in.sum(value.expression), kind)


def _avg(argument: Typed | None) -> AggregateCall:
    value = _number(argument, "AVG")
    if pa.types.is_floating(value.kind):
        return _plain(built_in.avg(value.expression), value.kind)
    kind = pa.decimal128(38, max(value.kind.scale, 6)) if pa.types.is_decimal(value.kind) else value.kind
    parts = (built_in.sum(value.expression), built_in.count(value.expression))
    return AggregateCall(parts, lambda total, count: cast_to(divide(total, _or_one(count)), kind))


def _or_one(count: Typed) -> Typed:
    """A count to divide by: the sum of no values is null already."""
    return Typed(Case((count.expression == 0, lit(1, pa.int64()), count.expression)), pa.int64())


def _of_type(make: Callable[..., Aggregate]) -> Callable[[Typed | None], AggregateCall]:
    def bind(argument: Typed | None) -> AggregateCall:
        assert argument is not None
        return _plain(make(argument.expression), argument.kind)

    return bind


def _of_order(name: str, make: Callable[..., Aggregate]) -> Callable[[Typed | None], AggregateCall]:
    def bind(argument: Typed | None) -> AggregateCall:
        assert argument is not None
        if pa.types.is_nested(argument.kind):
            message = f"{name} of {sql_name(argument.kind)} is not supported: it has no order"
            raise SqlError(message, hint="aggregate its parts")
        return _of_type(make)(argument)

    return bind


# -- statistics --------------------------------------------------------------------------------------------------------


def _statistic(name: str, *, is_sample: bool, is_root: bool) -> Callable[[Typed | None], AggregateCall]:
    """A variance or a deviation: made of sums and a count, so that rows may be taken back."""

    def bind(argument: Typed | None) -> AggregateCall:
        value = _number(argument, name)
        if pa.types.is_floating(value.kind):
            base, kind = cast_to(value, pa.float64()), value.kind
        else:
            base = cast_to(value, as_decimal_type(value.kind))
            kind = value.kind
            if pa.types.is_decimal(kind):
                kind = pa.decimal128(38, max(kind.scale, 6))
        square = multiply(base, base)
        parts = tuple(built_in.sum(one.expression) for one in (square, base))
        kernel = row_by_row(_Spread(is_sample, is_root, kind), kind)

        def result(squares: Typed, total: Typed, count: Typed) -> Typed:
            operands = tuple(one.expression for one in (squares, total, count))
            return Typed(KernelCall(name, kernel, operands, kind), kind)

        return AggregateCall((*parts, built_in.count(value.expression)), result)

    return bind


class _Spread:
    """The variance of values whose squares, sum and number are known, computed exactly where they are exact."""

    def __init__(self, is_sample: bool, is_root: bool, kind: pa.DataType) -> None:
        self._is_sample = is_sample
        self._is_root = is_root
        self._kind = kind

    def __call__(self, squares: Any, total: Any, count: int) -> Any:
        divisor = count - 1 if self._is_sample else count
        if divisor < 1:
            return None
        if isinstance(squares, float):
            spread = max((squares - total * total / count) / divisor, 0.0)
            return math.sqrt(spread) if self._is_root else spread
        exact = (Fraction(squares) * count - Fraction(total) ** 2) / (count * divisor)
        found = Decimal(exact.numerator) / Decimal(exact.denominator)
        found = found.sqrt() if self._is_root else found
        if pa.types.is_integer(self._kind):
            return int(found)
        return found.quantize(Decimal(1).scaleb(-self._kind.scale), rounding=ROUND_HALF_UP)


def _percentile(argument: Typed | None, *more: Typed) -> AggregateCall:
    value = _number(argument, "PERCENTILE")
    if not more:
        message = "PERCENTILE takes a number and a share of 0 to 1"
        raise SqlError(message)
    share = constant(more[0], "the share")
    if isinstance(share, bool) or not isinstance(share, (int, float, Decimal)) or not 0 <= share <= 1:
        message = f"a share is between 0 and 1; got {share}"
        raise SqlError(message)
    return _plain(statistics.percentile(value.expression, float(share)), pa.float64())


# -- collections -------------------------------------------------------------------------------------------------------


def _listagg(argument: Typed | None, separator: Typed | None = None) -> AggregateCall:
    assert argument is not None
    text = cast_to(require(argument, is_text, "a text"), pa.string())
    between = "," if separator is None else constant(separator, "the separator")
    return AggregateCall(
        (statistics.collect_list(text.expression),),
        lambda values: Typed(
            KernelCall("LISTAGG", _joined, (values.expression,), pa.string(), between=between), pa.string()
        ),
    )


def _joined(values: Value, between: str) -> Value:
    pc = compute()
    return pc.if_else(pc.greater(pc.list_value_length(values), 0), pc.binary_join(values, between), None)


def _array_agg(argument: Typed | None) -> AggregateCall:
    assert argument is not None
    kind = pa.list_(argument.kind.field(0).type)
    return AggregateCall(
        (statistics.collect_list(argument.expression),),
        lambda rows: Typed(KernelCall("ARRAY_AGG", _unpacked, (rows.expression,), kind), kind),
    )


def _unpacked(rows: pa.Array) -> pa.Array:
    lists = list_like(rows, rows.values.field(0))
    is_empty = np.asarray(compute().fill_null(compute().equal(compute().list_value_length(lists), 0), True))
    return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=pa.array(is_empty))


def _collect(argument: Typed | None) -> AggregateCall:
    assert argument is not None
    kind = pa.map_(argument.kind, pa.int32())
    return AggregateCall(
        (statistics.collect_list(argument.expression),),
        lambda values: Typed(KernelCall("COLLECT", row_by_row(_counted, kind), (values.expression,), kind), kind),
    )


def _counted(values: list[Any]) -> list[tuple[Any, int]]:
    found: dict[Any, tuple[Any, int]] = {}
    for value in values:
        key = distinct_key(value)
        found[key] = (value, found[key][1] + 1 if key in found else 1)
    return list(found.values())


def _json(make: Callable[..., Typed], is_null_skipped: bool) -> Callable[..., AggregateCall]:
    """JSON of the rows of arguments; what SQL says with words comes by name (`headrace.sql.constructors`)."""

    def bind(rows: Typed | None, *, skips_nulls: bool = is_null_skipped, is_json: bool = False) -> AggregateCall:
        assert rows is not None
        kind = pa.list_(rows.kind)
        return AggregateCall(
            (statistics.collect_list(rows.expression),),
            lambda found: make(Typed(found.expression, kind), skips_nulls=skips_nulls, is_json=is_json),
        )

    return bind


_OF_INTEGERS = "sums are exact, where Flink's wrap around"

AGGREGATES: dict[str, AggregateFunction] = {
    one.name: one
    for one in (
        AggregateFunction("COUNT", "COUNT(*) or COUNT([DISTINCT] x)", _count,
                          "How many rows there are, or values that are not null."),
        AggregateFunction("SUM", "SUM([DISTINCT] x)", _sum, "The sum, in the type of the numbers.",
                          "an overflow is an error"),
        AggregateFunction("AVG", "AVG([DISTINCT] x)", _avg, "The average, in the type of the numbers."),
        AggregateFunction("MIN", "MIN(x)", _of_order("MIN", built_in.min), "The smallest value."),
        AggregateFunction("MAX", "MAX(x)", _of_order("MAX", built_in.max), "The greatest value."),
        AggregateFunction("FIRST_VALUE", "FIRST_VALUE(x)", _of_type(built_in.first), "The first value that came.",
                          "no DISTINCT", takes_distinct=False),
        AggregateFunction("LAST_VALUE", "LAST_VALUE(x)", _of_type(built_in.last), "The last value that came.",
                          "no DISTINCT", takes_distinct=False),
        AggregateFunction("VAR_POP", "VAR_POP(x)", _statistic("VAR_POP", is_sample=False, is_root=False),
                          "The variance of all, in the type of the numbers.", _OF_INTEGERS),
        AggregateFunction("VAR_SAMP", "VAR_SAMP(x)", _statistic("VAR_SAMP", is_sample=True, is_root=False),
                          "The variance of a sample, in the type of the numbers.", _OF_INTEGERS),
        AggregateFunction("VARIANCE", "VARIANCE(x)", _statistic("VARIANCE", is_sample=True, is_root=False),
                          "The variance of a sample, in the type of the numbers.", _OF_INTEGERS),
        AggregateFunction("STDDEV_POP", "STDDEV_POP(x)", _statistic("STDDEV_POP", is_sample=False, is_root=True),
                          "The standard deviation of all, in the type of the numbers.", _OF_INTEGERS),
        AggregateFunction("STDDEV_SAMP", "STDDEV_SAMP(x)", _statistic("STDDEV_SAMP", is_sample=True, is_root=True),
                          "The standard deviation of a sample, in the type of the numbers.", _OF_INTEGERS),
        AggregateFunction("PERCENTILE", "PERCENTILE(x, share)", _percentile,
                          "The value below which a share of the values lie, interpolated, as DOUBLE.",
                          "one share, a literal, without frequencies", more=1),
        AggregateFunction("LISTAGG", "LISTAGG([DISTINCT] text[, separator])", _listagg,
                          "The texts one after the other; nulls are skipped.",
                          "DISTINCT keeps no order", more=1),
        AggregateFunction("ARRAY_AGG", "ARRAY_AGG([DISTINCT] x)", _array_agg, "The values as an array, with nulls.",
                          "DISTINCT keeps no order; no IGNORE NULLS", as_one=_as_row),
        AggregateFunction("COLLECT", "COLLECT([DISTINCT] x)", _collect,
                          "The values and how often each came; nulls are skipped.",
                          "the type is MAP<x, INT> and not MULTISET<x>"),
        AggregateFunction("JSON_OBJECTAGG", "JSON_OBJECTAGG([KEY] name VALUE x [{NULL | ABSENT} ON NULL])",
                          _json(object_of_rows, is_null_skipped=False), "A JSON object of names and values.",
                          "no OVER", takes_distinct=False, more=1, as_one=_as_row),
        AggregateFunction("JSON_ARRAYAGG", "JSON_ARRAYAGG(x [{NULL | ABSENT} ON NULL])",
                          _json(array_of_rows, is_null_skipped=True), "A JSON array of the values.",
                          "no OVER", takes_distinct=False, as_one=_as_row),
    )
}  # fmt: skip
