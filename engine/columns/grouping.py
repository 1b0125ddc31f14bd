"""Which rows of a batch belong together, and what a column of a group comes to: the kernels of aggregation.

`Groups.of` gives every row a small integer code, equal exactly for equal keys, and the reductions fold a column into
one value per group with numpy's indexed loops. Codes are offsets into the range of a key where it is narrow (the usual
case of dense ids), else places in a dictionary; several key columns combine like digits. Where codes fit a table, no
row is hashed; that is why this is used rather than Acero's group by.

Meaning: null is a key like any other; NaN is one key and one value, -0.0 is 0.0; reductions skip nulls and give null
for a group without values, counts give 0. ``min`` and ``max`` skip NaN unless there is nothing else. Sums of integers
are int64, sums of decimals have 38 digits, and both fail on overflow; sums of floats are double.

Invariant: results come in one order, that of ``occupied``, for keys and all reductions of the same `Groups`; where
codes were not compressed, rows sorted by the first key column.

Source: the vocabulary of SQL aggregates; hash aggregation by dictionary codes as in columnar databases.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import TypeMismatchError, UserFunctionError

__all__ = ["Groups", "Reduction", "comparable", "fitting_sum", "normalised_floats", "refuse_sum_of_integers"]

Codes = npt.NDArray[np.int64]

Reduction = str | Callable[..., pa.Array]
"""A way to fold a column: the name of one, or a function of the groups and the column."""

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1


def normalised_floats(array: pa.Array) -> pa.Array:
    """Return the array with one bit pattern for NaN and one for zero; other types as they are."""
    if not pa.types.is_floating(array.type):
        return array
    is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values = array.to_numpy(zero_copy_only=False)
    values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values + values.dtype.type(0))
    return pa.array(values, array.type, mask=is_null)


def comparable(column: pa.Array) -> pa.Array:
    """Return what values can be grouped by: those with lists and maps in them by their texts."""
    if _has_elements(column.type):
        return pa.array([repr(value) for value in column.to_pylist()], pa.string())
    return column


def _has_elements(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_elements(one.type) for one in kind)
    return bool(pa.types.is_nested(kind))


class Groups:
    """The rows of one batch, grouped by keys.

    Args:
        codes: The group of each row, in [0, num_codes).
        num_codes: Size of the tables that reductions work in; at most a small multiple of the number of rows.
    """

    __slots__ = ("_first_rows", "codes", "num_codes", "occupied")

    def __init__(self, codes: Codes, num_codes: int) -> None:
        self.codes = codes
        self.num_codes = num_codes
        first = np.full(num_codes, -1, dtype=np.int64)
        # Of several assignments to one place numpy keeps the last: backwards, that is the first row of each group.
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        # The codes that occur, ascending: the order of all results.
        self.occupied = np.flatnonzero(first >= 0)
        self._first_rows = first[self.occupied]

    @classmethod
    def of(cls, columns: Sequence[pa.Array | Codes]) -> Groups:
        """Group rows by the values of all columns together.

        Args:
            columns: At least one; Arrow arrays of one length, or int64 arrays without nulls.

        Raises:
            TypeMismatchError: If a column is of a type whose values cannot be compared as keys (lists, maps).
        """
        codes, cardinality = _codes_of(columns[0])
        for column in columns[1:]:
            more_codes, more = _codes_of(column)
            if cardinality * more > _INT64_MAX // 2:
                codes, cardinality = _compressed(codes)
            codes = codes * more + more_codes
            cardinality *= more
        if cardinality > _table_limit(len(codes)):
            codes, cardinality = _compressed(codes)
        return cls(codes, cardinality)

    def __len__(self) -> int:
        return len(self.occupied)

    def take_keys(self, column: pa.Array) -> pa.Array:
        """Return the key of each group, from one of the columns that were grouped by."""
        return column.take(pa.array(self._first_rows))

    @property
    def first_rows(self) -> Codes:
        """The first row of each group."""
        return self._first_rows

    def reduce(self, reduction: Reduction, column: pa.Array | None) -> pa.Array:
        """Fold a column into one value per group.

        Args:
            reduction: ``count_all`` (needs no column), ``count``, ``sum``, ``wide_sum``, ``min``, ``max``, ``distinct``
                (a list of the different values), ``union`` (of such lists), ``collect`` (a list of the values),
                ``concatenate`` (of such lists), ``moments`` (count, mean, sum of squared deviations),
                ``merged_moments`` (of such structs), ``first`` or ``last`` (of structs of ``order`` and ``value``, by
                order). A wide sum is one that cannot overflow: of integers a decimal of 38 digits, of decimals one of
                76; `fitting_sum` makes it a plain one. Or a function of the groups and the column.
            column: One value per row.

        Raises:
            TypeMismatchError: If the reduction does not exist for the type.
            UserFunctionError: If a sum of integers does not fit int64, or one of decimals 38 digits.
        """
        return (_REDUCTIONS[reduction] if isinstance(reduction, str) else reduction)(self, column)

    # -- reductions ----------------------------------------------------------------------------------------------------

    def _table(self, dtype: Any, fill: Any) -> npt.NDArray[Any]:
        return np.full(self.num_codes, fill, dtype=dtype)

    def _valid(self, column: pa.Array) -> tuple[Codes, pa.Array, npt.NDArray[np.bool_] | None]:
        """Codes and values of the rows that have a value, and which groups have none (None if all have one)."""
        if column.null_count == 0:
            return self.codes, column, None
        codes = self.codes[column.is_valid().to_numpy(zero_copy_only=False)]
        is_empty = self._table(np.bool_, True)
        is_empty[codes] = False
        return codes, column.drop_null(), is_empty[self.occupied]

    def _count_all(self, column: pa.Array | None) -> pa.Array:
        return pa.array(np.bincount(self.codes, minlength=self.num_codes)[self.occupied].astype(np.int64, copy=False))

    def _count(self, column: pa.Array) -> pa.Array:
        codes, _values, _is_empty = self._valid(column)
        return pa.array(np.bincount(codes, minlength=self.num_codes)[self.occupied].astype(np.int64, copy=False))

    def _sum(self, column: pa.Array) -> pa.Array:
        if pa.types.is_decimal(column.type):
            return self._sum_of_decimals(column)
        codes, values, is_empty = self._valid(column)
        if pa.types.is_floating(column.type):
            totals = self._table(np.float64, 0.0)
            np.add.at(totals, codes, values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False))
        elif pa.types.is_integer(column.type):
            if pa.types.is_uint64(values.type) and len(values) and int(values.to_numpy().max()) > _INT64_MAX:
                refuse_sum_of_integers()
            numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
            totals = self._table(np.int64, 0)
            np.add.at(totals, codes, numbers)
            self._check_overflow(codes, numbers)
        else:
            message = f"sum is for numbers; got {column.type}"
            raise TypeMismatchError(message)
        return pa.array(totals[self.occupied], mask=is_empty)

    def _check_overflow(self, codes: Codes, numbers: npt.NDArray[np.int64]) -> None:
        if len(numbers) == 0 or max(abs(int(numbers.min())), abs(int(numbers.max()))) * len(numbers) <= _INT64_MAX:
            return
        # The sums of upper and lower halves cannot overflow below 2**31 rows, and show what the true sum is.
        upper, lower = self._table(np.int64, 0), self._table(np.int64, 0)
        np.add.at(upper, codes, numbers >> 32)
        np.add.at(lower, codes, numbers & 0xFFFFFFFF)
        upper += lower >> 32
        if ((upper < -(2**31)) | (upper >= 2**31)).any():
            refuse_sum_of_integers()

    def _sum_of_decimals(self, column: pa.Array) -> pa.Array:
        return fitting_sum(self._wide_sum_of_decimals(column), pa.decimal128(38, column.type.scale))

    def _wide_sum_of_decimals(self, column: pa.Array) -> pa.Array:
        # Arrow's sums wrap around: with twice the digits they cannot.
        wide = column.cast(pa.decimal256(76, column.type.scale))
        table = pa.table({"code": self.codes, "value": wide})
        sums = table.group_by("code", use_threads=False).aggregate([("value", "sum")]).sort_by("code")
        return sums.column("value_sum").combine_chunks()

    def _wide_sum(self, column: pa.Array) -> pa.Array:
        kind = column.type
        if pa.types.is_decimal(kind) and kind != _WIDE_INTEGERS:
            return self._wide_sum_of_decimals(column)
        if pa.types.is_decimal(kind):
            try:
                return self._wide_sum_of_integers(column.cast(pa.int64()))
            except pa.ArrowInvalid:
                return self._wide_sum_of_decimals(column).cast(_WIDE_INTEGERS)
        return self._wide_sum_of_integers(column) if pa.types.is_integer(kind) else self._sum(column)

    def _wide_sum_of_integers(self, column: pa.Array) -> pa.Array:
        codes, values, is_empty = self._valid(column)
        numbers = values.to_numpy(zero_copy_only=False)
        if not pa.types.is_uint64(values.type):
            numbers = numbers.astype(np.int64, copy=False)
        # The sums of upper and lower halves cannot overflow below 2**31 rows.
        upper, lower = self._table(np.int64, 0), self._table(np.int64, 0)
        np.add.at(upper, codes, (numbers >> 32).astype(np.int64))
        np.add.at(lower, codes, (numbers & 0xFFFFFFFF).astype(np.int64))
        upper, lower = (upper + (lower >> 32))[self.occupied], (lower & 0xFFFFFFFF)[self.occupied]
        if ((upper < -(2**31)) | (upper >= 2**31)).any():
            totals = [decimal.Decimal((int(high) << 32) + int(low)) for high, low in zip(upper, lower, strict=True)]
            sums = pa.array(totals, _WIDE_INTEGERS)
        else:
            sums = pa.array((upper << 32) + lower).cast(_WIDE_INTEGERS)
        if is_empty is None:
            return sums
        return sums.take(pa.array(np.arange(len(sums)), mask=is_empty))

    def _min(self, column: pa.Array) -> pa.Array:
        return self._extreme(column, is_min=True)

    def _max(self, column: pa.Array) -> pa.Array:
        return self._extreme(column, is_min=False)

    def _extreme(self, column: pa.Array, *, is_min: bool) -> pa.Array:
        if pa.types.is_null(column.type):
            return pa.nulls(len(self), column.type)
        codes, values, is_empty = self._valid(column)
        if pa.types.is_floating(column.type):
            best = self._table(np.float64, np.nan)
            numbers = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
            (np.fmin if is_min else np.fmax).at(best, codes, numbers)
            return pa.array(best[self.occupied], mask=is_empty).cast(column.type, safe=False)
        integers = _as_integers(values)
        if integers is not None:
            limits = np.iinfo(integers.dtype)
            best = self._table(integers.dtype, limits.max if is_min else limits.min)
            (np.minimum if is_min else np.maximum).at(best, codes, integers)
            return _from_integers(best[self.occupied], is_empty, column.type)
        return self._extreme_by_rank(values, codes, is_empty, is_min=is_min)

    def _extreme_by_rank(
        self, values: pa.Array, codes: Codes, is_empty: npt.NDArray[np.bool_] | None, *, is_min: bool
    ) -> pa.Array:
        import pyarrow.compute as pc

        encoded = values.dictionary_encode()
        try:
            ascending = pc.sort_indices(encoded.dictionary).to_numpy().astype(np.int64)
        except (pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            message = f"min and max are for types with an order; got {values.type}"
            raise TypeMismatchError(message) from error
        rank = np.empty(len(ascending), dtype=np.int64)
        rank[ascending] = np.arange(len(ascending))
        ranks = rank[encoded.indices.to_numpy(zero_copy_only=False)]
        best = self._table(np.int64, len(ascending) if is_min else -1)
        (np.minimum if is_min else np.maximum).at(best, codes, ranks)
        chosen = best[self.occupied]
        if is_empty is not None:
            chosen = np.where(is_empty, 0, chosen)
        places = ascending[chosen] if len(ascending) else np.zeros(len(chosen), dtype=np.int64)
        return encoded.dictionary.take(pa.array(places, mask=is_empty))

    def _first(self, column: pa.Array) -> pa.Array:
        return self._by_order(column, is_min=True)

    def _last(self, column: pa.Array) -> pa.Array:
        return self._by_order(column, is_min=False)

    def _by_order(self, column: pa.Array, *, is_min: bool) -> pa.Array:
        import pyarrow.compute as pc

        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        codes = self.codes[rows]
        order = pc.struct_field(column, [0]).fill_null(0).to_numpy(zero_copy_only=False)[rows]
        best = self._table(np.int64, _INT64_MAX if is_min else _INT64_MIN)
        (np.minimum if is_min else np.maximum).at(best, codes, order)
        place = self._table(np.int64, -1)
        wins = order == best[codes]
        place[codes[wins]] = rows[wins]
        place = place[self.occupied]
        return column.take(pa.array(place, mask=place < 0))

    def _distinct(self, column: pa.Array) -> pa.Array:
        codes, values, _is_empty = self._valid(normalised_floats(column))
        return self._distinct_lists(codes, values)

    def _union(self, column: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        return self._distinct_lists(self.codes[parents], pc.list_flatten(column))

    def _collect(self, column: pa.Array) -> pa.Array:
        codes, values, _is_empty = self._valid(column)
        return self._lists(codes, values)

    def _concatenate(self, column: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        parents = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        return self._lists(self.codes[parents], pc.list_flatten(column))

    def _lists(self, codes: Codes, values: pa.Array) -> pa.Array:
        sizes = np.bincount(codes, minlength=self.num_codes)[self.occupied]
        offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(np.argsort(codes, kind="stable"))))

    def _moments(self, column: pa.Array) -> pa.Array:
        codes, values, _is_empty = self._valid(column)
        numbers = values.to_numpy(zero_copy_only=False)
        return self._moments_of(codes, np.ones(len(numbers)), numbers, np.zeros(len(numbers)))

    def _merged_moments(self, column: pa.Array) -> pa.Array:
        parts = (column.field(name).to_numpy(zero_copy_only=False) for name in ("number", "mean", "squares"))
        return self._moments_of(self.codes, *parts)

    def _moments_of(self, codes: Codes, number: Any, mean: Any, squares: Any) -> pa.Array:
        """Counts, means and sums of squared deviations of each group, of those of its parts."""

        def summed(weights: Any) -> Any:
            return np.bincount(codes, weights, self.num_codes).astype(np.float64)

        with np.errstate(all="ignore"):
            total = summed(number)
            # Deviations from some value of the group first: sums of large values would lose digits.
            base = np.zeros(self.num_codes)
            base[codes] = mean
            means = base + summed(number * (mean - base[codes])) / np.maximum(total, 1)
            deviations = summed(squares + number * (mean - means[codes]) ** 2)
        made = (total.astype(np.int64), means, deviations)
        return pa.StructArray.from_arrays(
            [pa.array(part[self.occupied]) for part in made], names=["number", "mean", "squares"]
        )

    def _distinct_lists(self, codes: Codes, values: pa.Array) -> pa.Array:
        value_codes, cardinality = _codes_of(values)
        cardinality = max(cardinality, 1)
        if self.num_codes * cardinality > _INT64_MAX // 2:
            value_codes, cardinality = _compressed(value_codes)
        pairs, rows = np.unique(codes * cardinality + value_codes, return_index=True)
        sizes = np.bincount(pairs // cardinality, minlength=self.num_codes)[self.occupied]
        offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(rows)))


_REDUCTIONS: dict[str, Callable[[Groups, Any], pa.Array]] = {
    "count_all": Groups._count_all,
    "count": Groups._count,
    "sum": Groups._sum,
    "wide_sum": Groups._wide_sum,
    "min": Groups._min,
    "max": Groups._max,
    "distinct": Groups._distinct,
    "union": Groups._union,
    "collect": Groups._collect,
    "concatenate": Groups._concatenate,
    "moments": Groups._moments,
    "merged_moments": Groups._merged_moments,
    "first": Groups._first,
    "last": Groups._last,
}
"""By the names that aggregates give them."""

_WIDE_INTEGERS = pa.decimal128(38, 0)


def fitting_sum(sums: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return wide sums in the type of plain ones.

    Raises:
        UserFunctionError: If one does not fit it.
    """
    try:
        return sums.cast(kind)
    except pa.ArrowInvalid as error:
        if pa.types.is_integer(kind):
            refuse_sum_of_integers()
        message = f"a sum of decimals does not fit the 38 digits of {kind}"
        raise UserFunctionError(message, hint="cast the column to a type of smaller scale, or to float64") from error


def refuse_sum_of_integers() -> NoReturn:
    """Fail: a sum of integers is outside of int64.

    Raises:
        UserFunctionError: Always.
    """
    message = "a sum of integers does not fit int64"
    raise UserFunctionError(message, hint="cast the column to float64 or decimal128")


def _table_limit(num_rows: int) -> int:
    # Tables a few times larger than the batch still fit the cache and cost less than compressing the codes.
    return 8 * num_rows + 16_384


def _as_integers(array: pa.Array) -> npt.NDArray[Any] | None:
    """Values of a type that is an integer underneath, as int64 or uint64; None for others. There are no nulls."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_uint64(kind):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        return array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return array.cast(pa.int32()).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_temporal(kind) and kind.bit_width == 64:
        return array.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return None


def _from_integers(integers: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None, to: pa.DataType) -> pa.Array:
    if is_null is not None:
        integers = np.where(is_null, integers.dtype.type(0), integers)
    array = pa.array(integers, mask=is_null)
    if pa.types.is_date32(to) or pa.types.is_time32(to):
        array = array.cast(pa.int32())
    return array.cast(to)


def _codes_of(column: pa.Array | Codes) -> tuple[Codes, int]:
    """A code per row, equal for equal values, and a bound above all codes."""
    if isinstance(column, np.ndarray):
        return _codes_of_integers(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64), 1
    if pa.types.is_struct(column.type):
        return _codes_of_struct(column)
    if pa.types.is_nested(column.type):
        message = f"a key must be a plain value or a struct of such; got {column.type}"
        raise TypeMismatchError(message)
    if column.null_count == 0:
        integers = _as_integers(column)
        if integers is not None and integers.dtype == np.int64:
            return _codes_of_integers(integers, column)
    return _encoded(normalised_floats(column))


def _codes_of_integers(values: Codes, column: pa.Array | None = None) -> tuple[Codes, int]:
    if len(values) == 0:
        return values, 1
    low, high = int(values.min()), int(values.max())
    if high - low < _table_limit(len(values)):
        return values - low, high - low + 1
    return _encoded(pa.array(values) if column is None else column)


def _codes_of_struct(column: pa.Array) -> tuple[Codes, int]:
    import pyarrow.compute as pc

    is_valid = column.is_valid().to_numpy(zero_copy_only=False)
    codes, cardinality = is_valid.astype(np.int64), 2
    for index in range(column.type.num_fields):
        more_codes, more = _codes_of(pc.struct_field(column, [index]))
        if cardinality * more > _INT64_MAX // 2:
            codes, cardinality = _compressed(codes)
        codes = codes * more + more_codes
        cardinality *= more
    return codes, cardinality


def _encoded(array: pa.Array) -> tuple[Codes, int]:
    encoded = array.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(len(encoded.dictionary), 1)


def _compressed(codes: Codes) -> tuple[Codes, int]:
    return _encoded(pa.array(codes))
