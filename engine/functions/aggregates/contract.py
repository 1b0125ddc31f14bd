"""What an aggregate is: one of batches and of rows, in two forms that agree.

An aggregate is a specification: a name, an input expression and the *parts* it is made of. A part is one column of
partial results; a reduction of `Groups` makes it from the rows of a batch, another merges partial results, and
``finalise`` turns the parts into the result (an average is made of a sum and a count). Windowed operators keep parts as
state and know nothing else about aggregates. The row form is the classic accumulator; accumulators are values that are
never changed in place, so that snapshots may share them. `ColumnarAggregates` computes several aggregates of batches,
`headrace.engine.functions.aggregates.by_row` those of records.

Invariant: for any way to cut rows into batches and any order of merging (for ``first`` and ``last``: in order), both
forms give the same result, up to the rounding of floating-point sums.

Source: Flink's ``AggregateFunction`` contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError, ProgramError

from ...columns.expressions import Expression, col, expression_of
from ...columns.grouping import Groups, Reduction

__all__ = [
    "Aggregate",
    "AggregateResult",
    "ColumnarAggregates",
    "Part",
    "aggregates_in",
    "checked_aggregates",
]


@dataclass(frozen=True, slots=True)
class Part:
    """One column of partial results.

    Attributes:
        suffix: Tells the parts of one aggregate apart.
        reduction: Makes it from the rows of a batch; what `Groups.reduce` takes.
        merge: Makes one partial result of several.
    """

    suffix: str
    reduction: Reduction
    merge: Reduction


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
        """Return the same with parts that hold whatever partial results may come to: only the result has to fit its
        type.

        Bounded data is aggregated so. State of windows has the parts of the plain form, which are smaller.
        """
        return self

    def __repr__(self) -> str:
        return f"{self.name}({'' if self.argument is None else repr(self.argument)})"

    # -- in expressions ------------------------------------------------------------------------------------------------

    def as_expression(self) -> Expression:
        """Return the result as a value to compute with: ``aggregate(share=f.sum("won").as_expression().cast(float) /
        7)``.

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
        """Return the columns that the parts' reductions start from, one per part.

        Args:
            batch: Records.
            first_order: Place of the first record in the order of arrival; the others follow.

        Raises:
            TypeMismatchError: If the aggregate does not exist for the argument's type.
        """
        assert self.argument is not None
        return [self.argument.evaluate(batch)]

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        """Return the results, from merged parts."""
        return parts[0]

    def output_type(self, schema: pa.Schema, name: str = "result") -> pa.DataType:
        """Return the type of the result, for records of a schema.

        Args:
            schema: The records' columns.
            name: The result's, for errors.

        Raises:
            ProgramError: If a column is not there.
            TypeMismatchError: If the aggregate does not exist for the argument's type.
        """
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        columns = ColumnarAggregates({name: self})
        groups = Groups(np.zeros(0, dtype=np.int64), 1)
        return columns.finalise(columns.from_records(groups, batch, 0))[0].type

    # -- row form ------------------------------------------------------------------------------------------------------

    def create(self) -> Any:
        """Return the accumulator of no values."""
        return None

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with one more value; ``value`` is None for SQL's null."""

    def add_all(self, accumulator: Any, values: Sequence[Any]) -> Any:
        """Return the accumulator with more values, in their order; as `add` one after the other."""
        for value in values:
            accumulator = self.add(accumulator, value)
        return accumulator

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return one accumulator of two; the values of ``other`` came later."""

    def result(self, accumulator: Any) -> Any:
        """Return the result."""
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
    """Return the aggregates that an expression computes with, by the columns that have their results."""
    if isinstance(expression, AggregateResult):
        return {expression.column: expression.aggregate}
    found: dict[str, Aggregate] = {}
    for child in expression.children:
        found.update(aggregates_in(child))
    return found


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
