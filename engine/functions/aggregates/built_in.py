"""Built-in aggregates: ``count``, ``sum``, ``min``, ``max``, ``avg``, ``first``, ``last`` and ``count_distinct``.

Results are SQL's: nulls are skipped, ``count`` of nothing is 0, everything else of nothing is null. Integer sums are
int64 and sums of decimals have 38 digits; both fail on overflow. Averages are double. ``min`` and ``max`` skip NaN
unless there is nothing else. ``first`` and ``last`` are by order of arrival; that order is known only in one place, so
they are not mergeable over two phases (`Aggregate.is_mergeable`).

Source: SQL:2016 aggregate functions; Flink's built-in aggregates.
"""

from __future__ import annotations

import builtins
import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError, TypeMismatchError, UserFunctionError

from ...columns.expressions import Expression
from ...columns.grouping import fitting_sum
from .contract import Aggregate, Part

__all__ = [
    "as_summand",
    "avg",
    "count",
    "count_distinct",
    "first",
    "is_built_in",
    "last",
    "max",
    "min",
    "plus",
    "sum",
]


class _CountAll(Aggregate):
    name = "count"
    parts = (Part("count", "count_all", "sum"),)

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        return [None]

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        return accumulator + 1

    def add_all(self, accumulator: int, values: Sequence[Any]) -> int:
        return accumulator + len(values)

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other


class _Count(_CountAll):
    parts = (Part("count", "count", "sum"),)

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        return Aggregate.lift(self, batch, first_order)

    def add(self, accumulator: int, value: Any) -> int:
        return accumulator if value is None else accumulator + 1

    def add_all(self, accumulator: int, values: Sequence[Any]) -> int:
        return accumulator + builtins.sum(value is not None for value in values)


# As columns of decimals: what needs more than 38 digits fails and is not rounded.
_DECIMAL = decimal.Context(prec=38, traps=[decimal.InvalidOperation, decimal.Rounded])
# On the way to a sum there may be more.
_WIDE_DECIMAL = decimal.Context(prec=76, traps=[decimal.InvalidOperation, decimal.Rounded])


def plus(left: Any, right: Any) -> Any:
    """The sum of two values in the arithmetic of the sums of columns; a bool counts as 0 or 1.

    Raises:
        TypeMismatchError: If they cannot be added up.
        UserFunctionError: If a sum of decimals needs more than 38 digits.
    """
    return _added(left, right, _DECIMAL)


def _added(left: Any, right: Any, decimals: decimal.Context) -> Any:
    try:
        if isinstance(left, decimal.Decimal) or isinstance(right, decimal.Decimal):
            return decimals.add(left, right)
        return left + right
    except decimal.DecimalException as error:
        message = f"a sum of decimals does not fit 38 digits: {left} + {right}"
        raise UserFunctionError(message, hint="round the values, or use float values") from error
    except TypeError as error:
        message = f"sum is for numbers; got {type(left).__name__} and {type(right).__name__}"
        raise TypeMismatchError(message) from error


_COMPARABLE = ({int}, {str})
"""Types of values that Python's own functions compare as aggregates do, where all are of one."""


class _Sum(Aggregate):
    name = "sum"
    parts = (Part("sum", "sum", "sum"),)

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        return [as_summand(self, self.argument.evaluate(batch))]

    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        try:
            # NumPy's integers would wrap. + 0 makes an int of a bool, and refuses what is no number.
            one = int(value) if isinstance(value, np.integer) else value
            return _added(0 if accumulator is None else accumulator, one, _WIDE_DECIMAL)
        except HeadraceError as error:
            error.context.setdefault("aggregate", repr(self))
            raise

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        # Integers only: a sum of floats depends on the order in which they are added.
        if type(accumulator) in (int, type(None)) and set(map(type, values)) == {int}:
            return self.add(accumulator, builtins.sum(values))
        return super().add_all(accumulator, values)

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return accumulator if other is None else other
        return _added(accumulator, other, _WIDE_DECIMAL)

    def with_wide_parts(self) -> Aggregate:
        assert self.argument is not None
        return _WideSum(self.argument)

    def result(self, accumulator: Any) -> Any:
        if isinstance(accumulator, decimal.Decimal):
            try:
                return plus(decimal.Decimal(0), accumulator)
            except HeadraceError as error:
                error.context.setdefault("aggregate", repr(self))
                raise
        if isinstance(accumulator, int) and not -(2**63) <= accumulator < 2**63:
            message = "a sum of integers does not fit int64"
            raise UserFunctionError(message, hint="use float or Decimal values", aggregate=repr(self))
        return accumulator


class _WideSum(_Sum):
    """A sum of integers has parts of 38 digits, one of decimals parts of 76."""

    parts = (Part("sum", "wide_sum", "wide_sum"),)

    def with_wide_parts(self) -> Aggregate:
        return self

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        return [_wide(as_summand(self, self.argument.evaluate(batch)))]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        kind = parts[0].type
        if pa.types.is_decimal128(kind):
            return fitting_sum(parts[0], pa.int64())
        return fitting_sum(parts[0], pa.decimal128(38, kind.scale)) if pa.types.is_decimal256(kind) else parts[0]


class _Avg(Aggregate):
    name = "avg"
    parts = (Part("sum", "sum", "sum"), Part("count", "count", "sum"))

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        # As doubles at once: the sum of large integers (epoch nanoseconds, say) need not fit int64 for the average to
        # exist.
        values = as_summand(self, self.argument.evaluate(batch)).cast(pa.float64(), safe=False)
        return [values, values]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        import pyarrow.compute as pc

        # The sum is null where nothing was counted.
        return pc.divide(parts[0], parts[1].cast(pa.float64()))

    def create(self) -> tuple[float, int]:
        return (0.0, 0)

    def add(self, accumulator: tuple[float, int], value: Any) -> tuple[float, int]:
        return accumulator if value is None else (accumulator[0] + float(value), accumulator[1] + 1)

    def merge(self, accumulator: tuple[float, int], other: tuple[float, int]) -> tuple[float, int]:
        return (accumulator[0] + other[0], accumulator[1] + other[1])

    def result(self, accumulator: tuple[float, int]) -> float | None:
        return accumulator[0] / accumulator[1] if accumulator[1] else None

    def with_wide_parts(self) -> Aggregate:
        assert self.argument is not None
        return _WideAvg(self.argument)


class _WideAvg(_Avg):
    """The sum is exact for integers and decimals, and a double only when it is divided: large values may cancel out."""

    parts = (Part("sum", "wide_sum", "wide_sum"), Part("count", "count", "sum"))

    def with_wide_parts(self) -> Aggregate:
        return self

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        values = _wide(as_summand(self, self.argument.evaluate(batch)))
        return [values, values]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        return super().finalise([parts[0].cast(pa.float64()), parts[1]])

    def create(self) -> tuple[Any, int]:
        return (0, 0)

    def add(self, accumulator: tuple[Any, int], value: Any) -> tuple[Any, int]:
        return accumulator if value is None else (_exactly(accumulator[0], value), accumulator[1] + 1)

    def merge(self, accumulator: tuple[Any, int], other: tuple[Any, int]) -> tuple[Any, int]:
        return (_exactly(accumulator[0], other[0]), accumulator[1] + other[1])

    def result(self, accumulator: tuple[Any, int]) -> float | None:
        return float(accumulator[0]) / accumulator[1] if accumulator[1] else None


def _exactly(one: Any, other: Any) -> Any:
    """The sum; a double if one of them is."""
    is_double = isinstance(one, float) or isinstance(other, float)
    return float(one) + float(other) if is_double else _added(one, other, _WIDE_DECIMAL)


def _wide(values: pa.Array) -> pa.Array:
    """Decimals of 76 digits, so that no partial sum overflows; others as they are."""
    return values.cast(pa.decimal256(76, values.type.scale)) if pa.types.is_decimal(values.type) else values


class _Min(Aggregate):
    name = "min"
    parts = (Part("min", "min", "min"),)

    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        # A value that differs from itself is NaN, which any other value replaces.
        return value if accumulator is None or accumulator != accumulator or value < accumulator else accumulator

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        if set(map(type, values)) in _COMPARABLE:
            return self.add(accumulator, builtins.min(values))
        return super().add_all(accumulator, values)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return self.add(accumulator, other)


class _Max(Aggregate):
    name = "max"
    parts = (Part("max", "max", "max"),)

    def add(self, accumulator: Any, value: Any) -> Any:
        if value is None:
            return accumulator
        return value if accumulator is None or accumulator != accumulator or value > accumulator else accumulator

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        if set(map(type, values)) in _COMPARABLE:
            return self.add(accumulator, builtins.max(values))
        return super().add_all(accumulator, values)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return self.add(accumulator, other)


class _First(Aggregate):
    name = "first"
    parts = (Part("first", "first", "first"),)
    is_mergeable = False

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        assert self.argument is not None
        values = self.argument.evaluate(batch)
        order = pa.array(np.arange(first_order, first_order + batch.num_rows, dtype=np.int64))
        return [pa.StructArray.from_arrays([order, values], names=["order", "value"], mask=values.is_null())]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        import pyarrow.compute as pc

        return pc.struct_field(parts[0], [1])

    def add(self, accumulator: Any, value: Any) -> Any:
        return value if accumulator is None else accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        return other if accumulator is None else accumulator


class _Last(_First):
    name = "last"
    parts = (Part("last", "last", "last"),)

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator if value is None else value

    def merge(self, accumulator: Any, other: Any) -> Any:
        return accumulator if other is None else other


class _CountDistinct(Aggregate):
    """Row form: frozen sets, each at least twice as large as the next, so adding costs little, changes nothing."""

    name = "count_distinct"
    parts = (Part("values", "distinct", "union"),)

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        import pyarrow.compute as pc

        return pc.list_value_length(parts[0]).cast(pa.int64())

    def create(self) -> tuple[frozenset[Any], ...]:
        return ()

    def add(self, accumulator: tuple[frozenset[Any], ...], value: Any) -> tuple[frozenset[Any], ...]:
        if value is None:
            return accumulator
        if value != value:
            value = ("NaN",)
        for level in accumulator:
            if value in level:
                return accumulator
        return _with_level(accumulator, frozenset((value,)))

    def merge(
        self, accumulator: tuple[frozenset[Any], ...], other: tuple[frozenset[Any], ...]
    ) -> tuple[frozenset[Any], ...]:
        values = frozenset().union(*accumulator, *other)
        return (values,) if values else ()

    def result(self, accumulator: tuple[frozenset[Any], ...]) -> int:
        return builtins.sum(map(len, accumulator))


def _with_level(levels: tuple[frozenset[Any], ...], level: frozenset[Any]) -> tuple[frozenset[Any], ...]:
    kept = len(levels)
    while kept and len(levels[kept - 1]) < 2 * len(level):
        kept -= 1
        level |= levels[kept]
    return (*levels[:kept], level)


def as_summand(aggregate: Aggregate, values: pa.Array) -> pa.Array:
    """The values as numbers; a boolean counts as 0 or 1.

    Raises:
        TypeMismatchError: If they are none.
    """
    kind = values.type
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return values
    message = f"{aggregate!r} is for numbers; got {kind}"
    raise TypeMismatchError(message)


def is_built_in(aggregate: Aggregate) -> bool:
    """Whether an aggregate is one of this module's: its name says what it means."""
    return type(aggregate).__module__ == __name__


def count(argument: Expression | str | None = None) -> Aggregate:
    """Count the records, or those whose ``argument`` (a column's name or an expression) is not null; int64.

    >>> count(), count("user")
    (count(), count(col('user')))
    """
    return _CountAll(None) if argument is None else _Count(argument)


def sum(argument: Expression | str) -> Aggregate:  # noqa: A001 - SQL's name, always used as a member of this module
    """Add up numbers: int64 for integers and booleans (or a failure), double for floats, decimal(38) for decimals."""
    return _Sum(argument)


def min(argument: Expression | str) -> Aggregate:  # noqa: A001
    """The smallest value of any ordered type."""
    return _Min(argument)


def max(argument: Expression | str) -> Aggregate:  # noqa: A001
    """The largest value of any ordered type."""
    return _Max(argument)


def avg(argument: Expression | str) -> Aggregate:
    """The arithmetic mean of numbers, as double."""
    return _Avg(argument)


def first(argument: Expression | str) -> Aggregate:
    """The value that came first, nulls skipped. Needs all records of a key in one place: one phase only."""
    return _First(argument)


def last(argument: Expression | str) -> Aggregate:
    """The value that came last, nulls skipped. Needs all records of a key in one place: one phase only."""
    return _Last(argument)


def count_distinct(argument: Expression | str) -> Aggregate:
    """Count the different values, exactly; int64. All of them are kept as state."""
    return _CountDistinct(argument)
