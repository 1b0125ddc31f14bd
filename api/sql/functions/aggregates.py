"""Aggregate functions: what SQL's are made of, with Flink's types of results.

``AVG`` of integers is an integer, ``SUM`` keeps its argument's type, sums and averages of decimals have 38 digits. An
aggregate becomes built-in ones and an expression over them; a ``FILTER`` becomes an argument that is null where its
condition is not true, and aggregates skip nulls.

Source: Flink's documentation ("Aggregate Functions"), ``LogicalTypeMerging.findAvgAggType``, ``findSumAggType``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.columns.conditionals import Case
from headrace.engine.columns.expressions import lit
from headrace.engine.functions.aggregates import built_in
from headrace.engine.functions.aggregates.contract import Aggregate

from ..parsing.errors import SqlError
from .coercion import cast_to, is_number
from .contract import Typed, require
from .operators import divide

__all__ = ["AGGREGATES", "AggregateCall", "aggregate_call"]


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function.

    Attributes:
        parts: The built-in aggregates that it is made of.
        result: Makes its value of theirs, in order.
    """

    parts: tuple[Aggregate, ...]
    result: Callable[..., Typed]


def aggregate_call(name: str, argument: Typed | None, condition: Typed | None, *, distinct: bool) -> AggregateCall:
    """Return what a call becomes.

    Args:
        name: In capitals.
        argument: None for ``COUNT(*)``.
        condition: That of FILTER.
        distinct: Whether equal values count once.

    Raises:
        SqlError: If it does not fit.
    """
    if argument is None and name != "COUNT":
        message = f"{name} needs an argument"
        raise SqlError(message)
    if distinct and name not in ("COUNT", "MIN", "MAX"):
        message = f"{name}(DISTINCT ...) is not supported"
        raise SqlError(message, hint="SELECT DISTINCT in a subquery gives the values once")
    if condition is not None:
        require(condition, pa.types.is_boolean, "a condition")
        given = argument or Typed(lit(1, pa.int32()), pa.int32())
        nothing = lit(None, given.kind if not pa.types.is_null(given.kind) else pa.int32())
        argument = Typed(Case((condition.expression, given.expression, nothing)), given.kind)
    if name == "COUNT" and distinct:
        assert argument is not None
        return _plain(built_in.count_distinct(argument.expression), pa.int64())
    return AGGREGATES[name](argument)


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


AGGREGATES: dict[str, Callable[[Typed | None], AggregateCall]] = {
    "COUNT": _count,
    "SUM": _sum,
    "AVG": _avg,
    "MIN": _of_type(built_in.min),
    "MAX": _of_type(built_in.max),
    "FIRST_VALUE": _of_type(built_in.first),
    "LAST_VALUE": _of_type(built_in.last),
}
