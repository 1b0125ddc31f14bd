"""Counts, sums and averages of groups: numbers, to which records are added and from which they are taken away.

Sums of integers are added up in 128 bits, so that only what a batch comes to has to fit int64. NaN and infinities are
counted beside sums of floats, because they could not be taken away again. Sums of decimals have 76 digits while they
are kept.

Source: Flink's ``SumWithRetractAggFunction``, ``CountAggFunction`` and their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import UserFunctionError

from ...columns.grouping import Groups, fitting_sum, refuse_sum_of_integers
from ...functions.aggregates.contract import Aggregate
from ...tables import table_loops
from ...tables.columns import Integers, Truths, stored_column, validity
from ...tables.growing import grown
from .contract import FoldedAccumulator, Touched

__all__ = ["Count", "SumOfDecimals", "SumOfFloats", "SumOfIntegers", "counts_values"]


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


class _OfNumbers(FoldedAccumulator):
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


class Count(_OfNumbers):
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


class SumOfIntegers(_OfNumbers):
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
        table_loops.add_wide_integers(touched.local, lows, uppers, sums, highs)
        np.add.at(counts, touched.local, nets)
        self._keep(touched.groups, sums, highs, counts)

    def _add_to(self, batch: pa.RecordBatch, touched: Touched, *held: Integers) -> None:
        """Add records to the sums of groups, in 128 bits, and to their counts."""
        array = self._lifted(batch)
        assert array is not None
        table_loops.add_integers(touched.local, _whole_numbers(array), _present(array), touched.all_signs, *held)

    def _keep(self, groups: Integers, sums: Integers, highs: Integers, counts: Integers) -> None:
        if (highs != sums >> 63).any():
            refuse_sum_of_integers()
        self._numbers.put(groups, [sums, counts])

    def results(self, groups: Integers) -> pa.Array:
        sums, counts = self._numbers.of(groups)
        return pa.array(sums, mask=counts == 0)


class SumOfFloats(_OfNumbers):
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
        table_loops.add_floats(touched.local, numbers, _present(array), touched.all_signs, *held)

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


class SumOfDecimals(FoldedAccumulator):
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


def counts_values(aggregate: Aggregate) -> bool:
    """Return whether an aggregate counts values, and not records: ``COUNT(x)``, and not ``COUNT(*)``."""
    return aggregate.argument is not None


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
