"""Aggregates as state: numbers by the code of a group, to which records are added and from which they are taken away.

`accumulator_of` chooses for an aggregate how it is kept. Counts, sums and averages are numbers; sums of integers are
added up in 128 bits, so that only what a batch comes to has to fit int64, and NaN and infinities are counted beside
sums of floats, because they could not be taken away again. Distinct counts, and extremes that may be taken away, read
counts of values; lists, percentiles, first and last values that may be taken away are made of all values in order. All
others are kept as the parts that they are made of, which are merged: inputs of those take nothing back.

Invariant: results are what `headrace.engine.functions.aggregates.contract.ColumnarAggregates` gives for the records of
the group, up to the rounding of floating-point sums.

Source: Flink's ``SumWithRetractAggFunction``, ``CountDistinct`` and their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import UserFunctionError

from ..columns.grouping import Groups, fitting_sum, refuse_sum_of_integers
from ..functions.aggregates.contract import Aggregate, ColumnarAggregates
from ..functions.aggregates.distinct import VALUE, OfDistinct
from ..functions.aggregates.user_defined import UserAggregate
from ..tables import kernels
from ..tables.columns import Integers, StoredColumn, Truths, stored_column, validity
from ..tables.growing import grown
from ..tables.value_counts import ValueCounts
from .accumulator import Accumulator, Touched
from .listed_values import ListedValues
from .value_arguments import is_of_list

__all__ = ["accumulator_of", "counts_values"]


class _Numbers:
    """Arrays with a number for each group."""

    def __init__(self, **kinds: Any) -> None:
        self.fields = [pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in kinds.items()]
        self._arrays = [np.zeros(0, kind) for kind in kinds.values()]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def of(self, groups: Integers) -> list[npt.NDArray[Any]]:
        size = int(groups.max(initial=-1)) + 1
        self._arrays = [grown(array, size) for array in self._arrays]
        return [array[groups] for array in self._arrays]

    def put(self, groups: Integers, numbers: Sequence[npt.NDArray[Any]]) -> None:
        size = int(groups.max(initial=-1)) + 1
        self._arrays = [grown(array, size) for array in self._arrays]
        for array, new in zip(self._arrays, numbers, strict=True):
            array[groups] = new


class _OfNumbers(Accumulator):
    """What is kept as numbers."""

    def __init__(self, aggregate: Aggregate, **kinds: Any) -> None:
        self._aggregate = aggregate
        self._numbers = _Numbers(**kinds)
        self.fields = self._numbers.fields

    def state(self, groups: Integers) -> list[pa.Array]:
        return [pa.array(numbers) for numbers in self._numbers.of(groups)]

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self._numbers.put(groups, [array.fill_null(0).to_numpy(zero_copy_only=False) for array in state])

    def reset(self, groups: Integers) -> None:
        self._numbers.put(groups, [np.zeros(len(groups), array.dtype) for array in self._numbers.of(groups)])

    def counted(self, batch: pa.RecordBatch) -> Truths | None:
        values = self._lifted(batch)
        return None if values is None else validity(values)

    def counts(self, groups: Integers) -> Integers | None:
        counts: Integers = self._numbers.of(groups)[-1]
        return counts

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes

    def _lifted(self, batch: pa.RecordBatch) -> pa.Array | None:
        return self._aggregate.lift(batch, 0)[0]


class _Count(_OfNumbers):
    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate, count=np.int64)

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        values, local, signs = self._lifted(batch), touched.local, touched.signs
        valid = None if values is None else validity(values)
        if valid is not None:
            local = local[valid]
            signs = None if signs is None else signs[valid]
        return [pa.array(np.bincount(local, signs, len(touched.groups)).astype(np.int64))]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        (count,) = self._numbers.of(touched.groups)
        np.add.at(count, touched.local, parts[0].to_numpy())
        self._numbers.put(touched.groups, [count])

    def completed(self, state: Sequence[pa.Array], records: pa.Array) -> list[pa.Array]:
        return [state[0].fill_null(0) if counts_values(self._aggregate) else records]

    def results(self, groups: Integers) -> pa.Array:
        return pa.array(self._numbers.of(groups)[0])


class _SumOfIntegers(_OfNumbers):
    def __init__(self, aggregate: Aggregate) -> None:
        super().__init__(aggregate, sum=np.int64, count=np.int64)

    @property
    def parts(self) -> list[pa.Field]:
        return [*self.fields, pa.field("high", pa.int64())]

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        sums, counts = self._numbers.of(touched.groups)
        highs = sums >> 63
        self._add_to(batch, touched, sums, highs, counts)
        self._keep(touched.groups, sums, highs, counts)

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        sums, highs, counts = np.zeros((3, len(touched.groups)), np.int64)
        self._add_to(batch, touched, sums, highs, counts)
        return [pa.array(sums), pa.array(counts), pa.array(highs)]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        sums, counts = self._numbers.of(touched.groups)
        highs = sums >> 63
        lows, nets, uppers = (part.to_numpy() for part in parts)
        kernels.add_wide_integers(touched.local, lows, uppers, sums, highs)
        np.add.at(counts, touched.local, nets)
        self._keep(touched.groups, sums, highs, counts)

    def _add_to(self, batch: pa.RecordBatch, touched: Touched, *held: Integers) -> None:
        """Add records to the sums of groups, in 128 bits, and to their counts."""
        array = self._lifted(batch)
        assert array is not None
        kernels.add_integers(touched.local, _whole_numbers(array), _present(array), touched.all_signs, *held)

    def _keep(self, groups: Integers, sums: Integers, highs: Integers, counts: Integers) -> None:
        if (highs != sums >> 63).any():
            refuse_sum_of_integers()
        self._numbers.put(groups, [sums, counts])

    def results(self, groups: Integers) -> pa.Array:
        sums, counts = self._numbers.of(groups)
        return pa.array(sums, mask=counts == 0)


class _SumOfFloats(_OfNumbers):
    """Sums of floats, or averages, which are made of them."""

    def __init__(self, aggregate: Aggregate, *, is_average: bool) -> None:
        kinds = {"nan": np.int64, "infinity": np.int64, "minus_infinity": np.int64, "count": np.int64}
        super().__init__(aggregate, sum=np.float64, **kinds)
        self._is_average = is_average

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        held = self._numbers.of(touched.groups)
        self._add_to(batch, touched, held)
        self._keep(touched.groups, held)

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        own = [np.zeros(len(touched.groups), field.type.to_pandas_dtype()) for field in self.fields]
        self._add_to(batch, touched, own)
        return [pa.array(numbers) for numbers in own]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        held = self._numbers.of(touched.groups)
        for numbers, part in zip(held, parts, strict=True):
            np.add.at(numbers, touched.local, part.to_numpy())
        self._keep(touched.groups, held)

    def _add_to(self, batch: pa.RecordBatch, touched: Touched, held: Sequence[npt.NDArray[Any]]) -> None:
        array = self._lifted(batch)
        assert array is not None
        numbers = array.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        kernels.add_floats(touched.local, numbers, _present(array), touched.all_signs, *held)

    def _keep(self, groups: Integers, held: Sequence[npt.NDArray[Any]]) -> None:
        held[0][held[-1] == 0] = 0.0  # nothing is left, nor of what was rounded
        self._numbers.put(groups, held)

    def results(self, groups: Integers) -> pa.Array:
        sums, nans, positives, negatives, counts = self._numbers.of(groups)
        sums = np.where(positives > 0, np.inf, np.where(negatives > 0, -np.inf, sums))
        sums = np.where((nans > 0) | ((positives > 0) & (negatives > 0)), np.nan, sums)
        if self._is_average:
            sums = sums / np.maximum(counts, 1)
        return pa.array(sums, mask=counts == 0)


class _SumOfDecimals(Accumulator):
    """Sums of decimals have 76 digits while they are kept, and 38 when they are given."""

    def __init__(self, aggregate: Aggregate, kind: pa.DataType) -> None:
        self._aggregate = aggregate
        self._wide = pa.decimal256(76, kind.scale)
        self._sums = stored_column(self._wide)
        self._counts = _Numbers(count=np.int64)
        self.fields = [pa.field("sum", self._wide), *self._counts.fields]

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        import pyarrow.compute as pc

        lifted = self._aggregate.lift(batch, 0)[0]
        assert lifted is not None
        values, num = lifted.cast(self._wide), len(touched.groups)
        if touched.signs is not None:
            values = pc.if_else(pa.array(touched.signs > 0), values, pc.negate(values)).cast(self._wide)
        valid = _present(lifted).view(np.bool_)
        net = np.bincount(touched.local[valid], touched.all_signs[valid], num).astype(np.int64)
        return [Groups(touched.local, num).reduce("wide_sum", values).fill_null(0), pa.array(net)]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        groups = touched.groups
        summed = pa.concat_arrays([self._held(groups), parts[0]])
        codes = np.concatenate([np.arange(len(groups)), touched.local])
        self._sums.put(groups, Groups(codes, len(groups)).reduce("wide_sum", summed))
        (counts,) = self._counts.of(groups)
        np.add.at(counts, touched.local, parts[1].to_numpy())
        self._counts.put(groups, [counts])

    def reset(self, groups: Integers) -> None:
        self.put(groups, [pa.array([0] * len(groups), self._wide), pa.array(np.zeros(len(groups), np.int64))])

    def counted(self, batch: pa.RecordBatch) -> Truths | None:
        lifted = self._aggregate.lift(batch, 0)[0]
        assert lifted is not None
        return validity(lifted)

    def counts(self, groups: Integers) -> Integers | None:
        return self._counts.of(groups)[0]

    @property
    def nbytes(self) -> int:
        return self._sums.nbytes + self._counts.nbytes

    def _held(self, groups: Integers) -> pa.Array:
        return self._sums.take(np.where(groups < self._sums.size, groups, -1)).fill_null(0)

    def results(self, groups: Integers) -> pa.Array:
        (counts,) = self._counts.of(groups)
        sums = fitting_sum(self._held(groups), pa.decimal128(38, self._wide.scale))
        return sums.take(pa.array(np.arange(len(groups)), mask=counts == 0))

    def state(self, groups: Integers) -> list[pa.Array]:
        return [self._held(groups), pa.array(self._counts.of(groups)[0])]

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self._sums.put(groups, state[0].fill_null(0))
        self._counts.put(groups, [state[1].fill_null(0).to_numpy(zero_copy_only=False)])


class _OfValues(Accumulator):
    """What follows from counts of values, which others may read too."""

    fields: list[pa.Field] = []

    def __init__(self, read: Callable[[Integers], pa.Array]) -> None:
        self._read = read

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        pass  # values are counted once for all who read them

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


class _OfDistinct(Accumulator):
    """What is computed of different values: of those that appear and vanish in a batch."""

    def __init__(self, aggregate: OfDistinct, inner: Accumulator, values: ValueCounts, number: int) -> None:
        self._inner = inner
        self._values = values
        self._number = number
        self._schema = pa.schema([pa.field(VALUE, aggregate.kind)])
        self.fields = inner.fields

    @property
    def parts(self) -> list[pa.Field]:
        return []  # its values are folded, once for all who read them

    def add(self, batch: pa.RecordBatch, touched: Touched) -> None:
        self.merge([], touched)

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


class _OfFunction(Accumulator):
    """Accumulators of a function of Python: a column, whose values exist while they are used."""

    def __init__(self, aggregate: UserAggregate) -> None:
        self._aggregate = aggregate
        self.fields = [pa.field("accumulator", aggregate.accumulator_kind)]
        self._column = stored_column(aggregate.accumulator_kind)
        self._is_held = np.zeros(0, np.bool_)

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

    def state(self, groups: Integers) -> list[pa.Array]:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        return [self._column.take(np.where(self._is_held[groups], groups, -1))]

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        self._is_held[groups] = np.asarray(state[0].is_valid())
        self._column.put(groups, state[0].cast(self._column.type))

    def reset(self, groups: Integers) -> None:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        self._is_held[groups] = False

    @property
    def nbytes(self) -> int:
        return self._is_held.nbytes + self._column.nbytes


class _OfParts(Accumulator):
    """What is merged of parts, and nothing is taken away from."""

    def __init__(self, aggregate: Aggregate, schema: pa.Schema, next_order: Callable[[], int]) -> None:
        self._columns = ColumnarAggregates({"a": aggregate})
        self._next_order = next_order
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        parts = self._columns.from_records(Groups(np.zeros(0, np.int64), 1), empty, 0)
        names = [part.suffix for part in aggregate.parts]
        self.fields = [pa.field(name, part.type) for name, part in zip(names, parts, strict=True)]
        self._schema = pa.schema(
            [pa.field(name, part.type) for name, part in zip(self._columns.part_names, parts, strict=True)]
        )
        self._parts: list[StoredColumn] = [stored_column(part.type) for part in parts]
        self._is_held = np.zeros(0, np.bool_)

    def fold(self, batch: pa.RecordBatch, touched: Touched) -> list[pa.Array]:
        groups = Groups(touched.local, len(touched.groups))
        made = self._columns.from_records(groups, batch, self._next_order())
        return [part.cast(field.type) for part, field in zip(made, self._schema, strict=True)]

    def merge(self, parts: Sequence[pa.Array], touched: Touched) -> None:
        groups, made = touched.groups, list(parts)
        self._is_held = grown(self._is_held, int(groups.max()) + 1, False)
        held = np.flatnonzero(self._is_held[groups])
        if len(held) or not np.array_equal(touched.local, np.arange(len(groups))):
            both = [
                pa.concat_arrays([part.take(groups[held]), new]) for part, new in zip(self._parts, made, strict=True)
            ]
            codes = np.concatenate([held, touched.local])
            made = self._columns.merge(
                Groups(codes, len(groups)), pa.RecordBatch.from_arrays(both, schema=self._schema)
            )
        self.put(groups, made)

    @property
    def nbytes(self) -> int:
        return self._is_held.nbytes + sum(part.nbytes for part in self._parts)

    def reset(self, groups: Integers) -> None:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        self._is_held[groups] = False

    def results(self, groups: Integers) -> pa.Array:
        return self._columns.finalise(self.state(groups))[0]

    def state(self, groups: Integers) -> list[pa.Array]:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        ids = np.where(self._is_held[groups], groups, -1)
        return [part.take(ids) for part in self._parts]

    def put(self, groups: Integers, state: Sequence[pa.Array]) -> None:
        self._is_held = grown(self._is_held, int(groups.max(initial=-1)) + 1, False)
        # Of an aggregate that the query did not have when they were kept, all parts are null: it has seen nothing.
        self._is_held[groups] = np.any([np.asarray(array.is_valid()) for array in state], axis=0)
        for part, array in zip(self._parts, state, strict=True):
            part.put(groups, array.cast(part.type))


def counts_values(aggregate: Aggregate) -> bool:
    """Whether an aggregate counts values, and not records: ``COUNT(x)``, and not ``COUNT(*)``."""
    return aggregate.argument is not None


def accumulator_of(
    aggregate: Aggregate,
    schema: pa.Schema,
    *,
    takes_back: bool,
    next_order: Callable[[], int],
    values_of: Callable[[Aggregate], tuple[ValueCounts, int]],
    expires: bool = False,
) -> Accumulator:
    """How an aggregate is kept.

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
        return _Count(aggregate)
    if name == "count_distinct":
        values, number = values_of(aggregate)
        return _OfValues(lambda groups: pa.array(values.num_distinct(number, groups)))
    if name in ("min", "max") and takes_back:
        values, number = values_of(aggregate)
        return _OfValues(lambda groups: values.extreme(name, number, groups))
    if takes_back and is_of_list(aggregate):
        return ListedValues(aggregate, schema, expires=expires)
    if name == "avg":
        return _SumOfFloats(aggregate, is_average=True)
    if name == "sum":
        kind = aggregate.output_type(schema)
        if pa.types.is_decimal(kind):
            return _SumOfDecimals(aggregate, kind)
        floats = pa.types.is_floating(kind)
        return _SumOfFloats(aggregate, is_average=False) if floats else _SumOfIntegers(aggregate)
    return _OfParts(aggregate, schema, next_order)


def _present(array: pa.Array) -> npt.NDArray[np.uint8]:
    valid = validity(array)
    return np.ones(len(array), np.uint8) if valid is None else valid.view(np.uint8)


def _whole_numbers(array: pa.Array) -> Integers:
    try:
        numbers: Integers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:  # beyond 2**63
        message = "a sum of integers does not fit int64"
        raise UserFunctionError(message, hint="cast the column to float64 or decimal128") from error
    return numbers
