"""Aggregates as state: numbers by the code of a group, to which records are added and from which they are taken away.

`accumulator_of` chooses for an aggregate how it is kept. Counts, sums and averages are numbers
(`headrace.engine.changelog.accumulators.numbers`). Distinct counts, and extremes that may be taken away, read counts of
values; lists, percentiles, first and last values that may be taken away are made of all values in order. All others are
kept as the parts that they are made of, which are merged: inputs of those take nothing back.

Invariant: results are what `headrace.engine.functions.aggregates.contract.ColumnarAggregates` gives for the records of
the group, up to the rounding of floating-point sums.

Source: Flink's ``SumWithRetractAggFunction``, ``CountDistinct`` and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...columns.grouping import Groups
from ...functions.aggregates.contract import Aggregate, ColumnarAggregates
from ...functions.aggregates.distinct import VALUE, OfDistinct
from ...functions.aggregates.user_defined import UserAggregate
from ...tables.columns import Integers
from ...tables.value_counts import ValueCounts
from .contract import Accumulator, FoldedAccumulator, Touched
from .kept_columns import KeptColumns
from .listed_values import ListedValues
from .numbers import Count, SumOfDecimals, SumOfFloats, SumOfIntegers
from .value_arguments import is_of_list

__all__ = ["accumulator_of"]


class _OfValues(FoldedAccumulator):
    """What follows from counts of values, which others may read too."""

    fields: list[pa.Field] = []

    def __init__(self, read: Callable[[Integers], pa.Array]) -> None:
        self._read = read

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        return []  # values are counted once for all who read them

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return 0  # the counts are tables of their own

    def results(self, groups: Integers) -> pa.Array:
        return self._read(groups)

    def state(self, groups: Integers) -> list[pa.Array]:
        return []

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        pass


class _OfDistinct(FoldedAccumulator):
    """What is computed of different values: of those that appear and vanish in a batch."""

    def __init__(self, aggregate: OfDistinct, inner: Accumulator, values: ValueCounts, number: int) -> None:
        self._inner = inner
        self._values = values
        self._number = number
        self._schema = pa.schema([pa.field(VALUE, aggregate.kind)])
        self.fields = inner.fields

    @property
    def parts(self) -> list[pa.Field]:
        return []  # its values are folded once for all who read them

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        return []

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        codes, values, signs = self._values.changes(self._number)
        # A null for each group, which is passed over: those without values have a result, too.
        kind, num = self._schema.field(0).type, len(touched.groups)
        column = pa.concat_arrays([values.cast(kind), pa.nulls(num, kind)])
        groups, local = np.unique(np.concatenate([codes, touched.groups]), return_inverse=True)
        signs = np.concatenate([signs, np.ones(num, np.int64)])
        own = Touched(groups, local.astype(np.int64), signs if (signs < 0).any() else None)
        self._inner.add(pa.RecordBatch.from_arrays([column], schema=self._schema), own)

    def results(self, groups: Integers) -> pa.Array:
        return self._inner.results(groups)

    def state(self, groups: Integers) -> list[pa.Array]:
        return self._inner.state(groups)

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self._inner.put(groups, state)

    def completed(self, state: Sequence[pa.Array], records: pa.Array) -> list[pa.Array]:
        return self._inner.completed(state, records)

    def reset(self, groups: Integers) -> None:
        self._inner.reset(groups)

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes


class _OfFunction(KeptColumns, FoldedAccumulator):
    """Accumulators of a function of Python: a column, whose values exist while they are used."""

    def __init__(self, aggregate: UserAggregate) -> None:
        super().__init__([pa.field("accumulator", aggregate.accumulator_kind)])
        self._aggregate = aggregate

    def _of(self, groups: Integers) -> list[Any]:
        """The accumulators of groups; None where there is none yet."""
        (column,) = self.state(groups)
        return self._aggregate.decoded(column)

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        accumulators = self._of(touched.groups)
        new = iter(self._aggregate.created(sum(one is None for one in accumulators)))
        accumulators = [next(new) if one is None else one for one in accumulators]
        rows = self._aggregate.lift(batch, 0)[0]
        assert rows is not None
        self._aggregate.fold(accumulators, touched.local, rows, touched.signs)
        self.put(touched.groups, [self._aggregate.encoded(accumulators)])

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        rows = self._aggregate.lift(batch, 0)[0]
        assert rows is not None
        accumulators = self._aggregate.created(len(touched.groups))
        self._aggregate.fold(accumulators, touched.local, rows, touched.signs)
        return [self._aggregate.encoded(accumulators)]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        (held,) = self.state(touched.groups)
        there = np.flatnonzero(np.asarray(held.is_valid()))
        both = pa.concat_arrays([held.take(pa.array(there)), parts[0].cast(held.type)])
        several = Groups(np.concatenate([there, touched.local]), len(touched.groups))
        self.put(touched.groups, [self._aggregate.merged(several, both)])

    def results(self, groups: Integers) -> pa.Array:
        return self._aggregate.results_of(self._of(groups))


class _OfParts(KeptColumns, FoldedAccumulator):
    """What is merged of parts, and nothing is taken away from."""

    def __init__(self, aggregate: Aggregate, schema: pa.Schema, next_order: Callable[[], int]) -> None:
        self._aggregates = ColumnarAggregates({"a": aggregate})
        self._next_order = next_order
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        parts = self._aggregates.from_records(Groups(np.zeros(0, np.int64), 1), empty, 0)
        names = [part.suffix for part in aggregate.parts]
        super().__init__([pa.field(name, part.type) for name, part in zip(names, parts, strict=True)])
        self._schema = pa.schema(
            [pa.field(name, part.type) for name, part in zip(self._aggregates.part_names, parts, strict=True)]
        )

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        groups = Groups(touched.local, len(touched.groups))
        made = self._aggregates.from_records(groups, batch, self._next_order())
        return [part.cast(field.type) for part, field in zip(made, self._schema, strict=True)]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        groups, made = touched.groups, list(parts)
        held = np.flatnonzero(self.holds(groups))
        if len(held) or not np.array_equal(touched.local, np.arange(len(groups))):
            both = [pa.concat_arrays(pair) for pair in zip(self.state(groups[held]), made, strict=True)]
            codes = np.concatenate([held, touched.local])
            made = self._aggregates.merge(
                Groups(codes, len(groups)), pa.RecordBatch.from_arrays(both, schema=self._schema)
            )
        self.put(groups, made)

    def results(self, groups: Integers) -> pa.Array:
        return self._aggregates.finalise(self.state(groups))[0]


def accumulator_of(
    aggregate: Aggregate,
    schema: pa.Schema,
    *,
    takes_back: bool,
    next_order: Callable[[], int],
    values_of: Callable[[Aggregate], tuple[ValueCounts, int]],
    expires: bool = False,
) -> Accumulator:
    """Return how an aggregate is kept.

    Args:
        aggregate: The aggregate.
        schema: Of the records.
        takes_back: Whether records are taken away again.
        next_order: Gives the place of the batch's first record in the order of arrival.
        values_of: Gives the counts of an aggregate's values, and the number of its filter there.
        expires: Whether groups have a time to live, so that values may be taken away that are not there.
    """
    name = aggregate.name
    if isinstance(aggregate, OfDistinct):
        values, number = values_of(aggregate)
        inner = accumulator_of(
            aggregate.inner, pa.schema([pa.field(VALUE, aggregate.kind)]),
            takes_back=takes_back, next_order=next_order, values_of=values_of,
        )  # fmt: skip
        return _OfDistinct(aggregate, inner, values, number)
    if isinstance(aggregate, UserAggregate):
        return _OfFunction(aggregate)
    if name == "count":
        return Count(aggregate)
    if name == "count_distinct":
        values, number = values_of(aggregate)
        return _OfValues(lambda groups: pa.array(values.num_distinct(number, groups)))
    if name in ("min", "max") and takes_back:
        values, number = values_of(aggregate)
        return _OfValues(lambda groups: values.extreme(name, number, groups))
    if takes_back and is_of_list(aggregate):
        return ListedValues(aggregate, schema, expires=expires)
    if name == "avg":
        return SumOfFloats(aggregate, is_average=True)
    if name == "sum":
        kind = aggregate.output_type(schema)
        if pa.types.is_decimal(kind):
            return SumOfDecimals(aggregate, kind)
        floats = pa.types.is_floating(kind)
        return SumOfFloats(aggregate, is_average=False) if floats else SumOfIntegers(aggregate)
    return _OfParts(aggregate, schema, next_order)
