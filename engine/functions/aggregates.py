"""Built-in aggregates, each in two forms that agree: columnar for whole batches, and row by row for the row path.

An aggregate is a specification: a name, an input expression and the *parts* it is made of. A part is one column of
partial results; a reduction of `Groups` makes it from the rows of a batch, another merges partial results, and
``finalise`` turns the parts into the result (an average is made of a sum and a count). Windowed operators keep parts as
state and know nothing else about aggregates. The row form is the classic accumulator; accumulators are values that are
never changed in place, so that snapshots may share them. `ColumnarAggregates` computes several aggregates of batches,
`headrace.engine.functions.row_aggregates` those of rows.

Results are SQL's: nulls are skipped, ``count`` of nothing is 0, everything else of nothing is null. Integer sums are
int64 and sums of decimals have 38 digits; both fail on overflow. Averages are double. ``min`` and ``max`` skip NaN
unless there is nothing else. ``first`` and ``last`` are by order of arrival; that order is known only in one place, so
they are not mergeable over two phases (`Aggregate.is_mergeable`).

Invariant: for any way to cut rows into batches and any order of merging (for ``first`` and ``last``: in order), both
forms give the same result, up to the rounding of floating-point sums.

Source: SQL:2016 aggregate functions; Flink's built-in aggregates and its ``AggregateFunction`` contract.
"""

from __future__ import annotations

import builtins
import decimal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError, ProgramError, TypeMismatchError, UserFunctionError

from ..columns.expressions import Expression, col, expression_of
from ..columns.grouping import Groups, fitting_sum

__all__ = [
    "Aggregate",
    "AggregateResult",
    "ColumnarAggregates",
    "Part",
    "aggregates_in",
    "as_summand",
    "avg",
    "checked_aggregates",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "min",
    "plus",
    "sum",
]


@dataclass(frozen=True, slots=True)
class Part:
    """One column of partial results.

    Attributes:
        suffix: Tells the parts of one aggregate apart.
        reduction: Makes it from the rows of a batch; a name that `Groups.reduce` knows.
        merge: Makes one partial result of several.
    """

    suffix: str
    reduction: str
    merge: str


class Aggregate(ABC):
    """What to compute over the records of a group.

    Contract: immutable and picklable; the row form's accumulators are never changed in place (*trusted*).
    """

    name: str
    parts: tuple[Part, ...]
    is_mergeable: bool = True
    """Whether partial results of several places can be merged, so that aggregation may begin before the shuffle."""

    def __init__(self, argument: Expression | str | None) -> None:
        self.argument: Expression | None = col(argument) if isinstance(argument, str) else argument

    def with_wide_parts(self) -> Aggregate:
        """The same with parts that hold whatever partial results may come to: only the result has to fit its type.

        Bounded data is aggregated so. State of windows has the parts of the plain form, which are smaller.
        """
        return self

    def __repr__(self) -> str:
        return f"{self.name}({'' if self.argument is None else repr(self.argument)})"

    # -- in expressions ------------------------------------------------------------------------------------------------

    def as_expression(self) -> Expression:
        """The result as a value to compute with: ``aggregate(share=f.sum("won").as_expression().cast(float) / 7)``.

        Arithmetic with aggregates, ``f.sum("won") / count()``, makes such expressions by itself.
        """
        return AggregateResult(self)

    def __add__(self, other: Any) -> Expression:
        return self.as_expression() + expression_of(other)

    def __radd__(self, other: Any) -> Expression:
        return expression_of(other) + self.as_expression()

    def __sub__(self, other: Any) -> Expression:
        return self.as_expression() - expression_of(other)

    def __rsub__(self, other: Any) -> Expression:
        return expression_of(other) - self.as_expression()

    def __mul__(self, other: Any) -> Expression:
        return self.as_expression() * expression_of(other)

    def __rmul__(self, other: Any) -> Expression:
        return expression_of(other) * self.as_expression()

    def __truediv__(self, other: Any) -> Expression:
        return self.as_expression() / expression_of(other)

    def __rtruediv__(self, other: Any) -> Expression:
        return expression_of(other) / self.as_expression()

    def __neg__(self) -> Expression:
        return -self.as_expression()

    # -- columnar form -------------------------------------------------------------------------------------------------

    def lift(self, batch: pa.RecordBatch, first_order: int) -> list[pa.Array | None]:
        """The columns that the parts' reductions start from, one per part.

        Args:
            batch: Records.
            first_order: Place of the first record in the order of arrival; the others follow.

        Raises:
            TypeMismatchError: If the aggregate does not exist for the argument's type.
        """
        assert self.argument is not None
        return [self.argument.evaluate(batch)]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        """The results, from merged parts."""
        return parts[0]

    def output_type(self, schema: pa.Schema) -> pa.DataType:
        """The type of the result, for records of a schema.

        Raises:
            ProgramError: If a column is not there.
            TypeMismatchError: If the aggregate does not exist for the argument's type.
        """
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        columns = ColumnarAggregates({"result": self})
        groups = Groups(np.zeros(0, dtype=np.int64), 1)
        return columns.finalise(columns.from_records(groups, batch, 0))[0].type

    # -- row form ------------------------------------------------------------------------------------------------------

    def create(self) -> Any:
        """The accumulator of no values."""
        return None

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """The accumulator with one more value; ``value`` is None for SQL's null."""

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        """The accumulator with more values, in their order; as `add` one after the other."""
        for value in values:
            accumulator = self.add(accumulator, value)
        return accumulator

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """One accumulator of two; the values of ``other`` came later."""

    def result(self, accumulator: Any) -> Any:
        """The result."""
        return accumulator


class AggregateResult(Expression):
    """The result of an aggregate in an expression: a column that has the aggregate's text for its name."""

    __slots__ = ("aggregate",)

    def __init__(self, aggregate: Aggregate) -> None:
        self.aggregate = aggregate

    @property
    def column(self) -> str:
        """The name of the column that has the result."""
        return f"{type(self.aggregate).__module__}.{self.aggregate!r}"

    @property
    def structure(self) -> tuple[Any, ...]:
        return ("col", self.column)

    def columns_used(self) -> frozenset[str]:
        return frozenset((self.column,))

    def _evaluate(self, batch: pa.RecordBatch) -> Any:
        return col(self.column)._evaluate(batch)

    def __repr__(self) -> str:
        return repr(self.aggregate)


def aggregates_in(expression: Expression) -> dict[str, Aggregate]:
    """The aggregates that an expression computes with, by the columns that have their results."""
    if isinstance(expression, AggregateResult):
        return {expression.column: expression.aggregate}
    found: dict[str, Aggregate] = {}
    for child in expression.children:
        found.update(aggregates_in(child))
    return found


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


class ColumnarAggregates:
    """Several aggregates over the same groups, columnar.

    Args:
        specifications: The aggregates by the name of their result column.

    Raises:
        ProgramError: If there is none.
    """

    def __init__(self, specifications: Mapping[str, Aggregate]) -> None:
        self.specifications = checked_aggregates(specifications)
        # One name per part, in the order of all results below; "$" keeps them apart from names of results.
        self.part_names = tuple(
            f"{name}${part.suffix}" for name, spec in self.specifications.items() for part in spec.parts
        )

    @property
    def is_mergeable(self) -> bool:
        """Whether all can be merged over two phases."""
        return all(spec.is_mergeable for spec in self.specifications.values())

    def from_records(self, groups: Groups, batch: pa.RecordBatch, first_order: int) -> list[pa.Array]:
        """Make the parts from records.

        Args:
            groups: Of the batch's rows.
            batch: Records.
            first_order: See `Aggregate.lift`.

        Returns:
            The part columns, in the order of ``part_names``, a row per group.

        Raises:
            UserError: As expressions and reductions do; naming the aggregate.
        """
        result: list[pa.Array] = []
        for name, spec in self.specifications.items():
            try:
                lifted = spec.lift(batch, first_order)
                result += [
                    groups.reduce(part.reduction, column) for part, column in zip(spec.parts, lifted, strict=True)
                ]
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {spec!r}")
                raise
        return result

    def merge(self, groups: Groups, batch: pa.RecordBatch) -> list[pa.Array]:
        """Merge parts.

        Args:
            groups: Of the batch's rows.
            batch: Has the part columns, by name.

        Returns:
            As `from_records`.

        Raises:
            UserFunctionError: If a sum no longer fits its type.
        """
        merges = [part.merge for spec in self.specifications.values() for part in spec.parts]
        return [groups.reduce(merge, batch.column(name)) for name, merge in zip(self.part_names, merges, strict=True)]

    def finalise(self, parts: list[pa.Array]) -> list[pa.Array]:
        """Make the results, one column per aggregate, from merged part columns in the order of ``part_names``."""
        remaining = iter(parts)
        results = []
        for name, spec in self.specifications.items():
            try:
                results.append(spec.finalise([next(remaining) for _part in spec.parts]))
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {spec!r}")
                raise
        return results


def checked_aggregates(specifications: Mapping[str, Any]) -> dict[str, Aggregate]:
    if not specifications:
        message = "there must be at least one aggregate"
        raise ProgramError(message)
    for name, spec in specifications.items():
        if not isinstance(spec, Aggregate):
            message = f"{name!r} must be an aggregate; got {spec!r}"
            raise ProgramError(
                message, hint="use count(), sum(), min(), max(), avg(), first(), last() or count_distinct()"
            )
    return dict(specifications)
