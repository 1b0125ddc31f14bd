"""What aggregates over frames come to, on arrays.

An aggregate is made of parts (`headrace.engine.functions.aggregates.contract`): a column that is folded, row by row,
into one value. Over frames the same parts are folded, each by a way of its own: whole numbers and decimals are exact
differences of running sums, floats are never subtracted, extremes come by their rows. So what a running aggregate has
come to can stand for all rows before, as a row in front: that is what streams keep.

Nulls are skipped, and so is NaN by ``min`` and ``max`` unless there is nothing else, as by the aggregates themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError, TypeMismatchError, UserFunctionError

from ..columns.grouping import Groups, refuse_sum_of_integers
from ..functions.aggregates.built_in import as_summand
from ..functions.aggregates.contract import Aggregate
from ..tables.columns import Integers, Truths, array_of_bits, bits_of, plain, validity
from ..tables.ordering import order_of
from . import loops

__all__ = ["Folded", "finalised", "folds", "lifted", "over_frames"]


class Folded(NamedTuple):
    """One part of an aggregate, a value for each row."""

    how: str
    """How frames of it are folded: the name of its reduction."""
    values: pa.Array


_FOLDS = frozenset(("count_all", "count", "sum", "min", "max", "first", "last"))


def folds(spec: Any) -> bool:
    """Return whether it is an aggregate whose frames are folded on arrays."""
    if not isinstance(spec, Aggregate):
        return False
    # Of different values frames give the number, and not the values.
    return spec.name == "count_distinct" or all(part.reduction in _FOLDS for part in spec.parts)


def lifted(spec: Aggregate, columns: pa.RecordBatch) -> list[Folded]:
    """Return the parts of an aggregate for each row."""
    given = spec.lift(columns, 0)
    return [
        Folded(str(part.reduction), _lifted(spec, str(part.reduction), values, columns.num_rows))
        for part, values in zip(spec.parts, given, strict=True)
    ]


def _lifted(spec: Aggregate, how: str, values: pa.Array | None, num_rows: int) -> pa.Array:
    if how == "count_all":
        return pa.array(np.ones(num_rows, np.int64))
    assert values is not None
    if how == "count":
        return values.is_valid().cast(pa.int64())
    if how in ("first", "last"):
        import pyarrow.compute as pc

        values = pc.struct_field(values, [1])
    if how == "sum":
        return _wide(as_summand(spec, values))
    return plain(values)


def _wide(values: pa.Array) -> pa.Array:
    """The values in the type of their sums."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return values.cast(pa.decimal128(38, kind.scale))
    if pa.types.is_floating(kind):
        return values.cast(pa.float64())
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        message = "a value to be added up does not fit int64"
        raise UserFunctionError(message, hint="cast the values to DOUBLE or DECIMAL") from error


def over_frames(part: Folded, lows: Integers, highs: Integers) -> pa.Array:
    """Return a part of an aggregate over frames.

    Args:
        part: A value for each row.
        lows: The first row of each frame; they may be fewer than rows, and never go back.
        highs: The one behind the last; likewise.

    Raises:
        TypeMismatchError: If values that have no order are compared.
        UserFunctionError: If a sum does not fit its type.
    """
    lows, highs = np.ascontiguousarray(lows), np.ascontiguousarray(highs)
    how, values = part
    if how in ("count_all", "count"):
        return pa.array(_differences(bits_of(values), lows, highs))
    if how == "sum":
        return _sums(values, lows, highs)
    if how == "distinct":
        return pa.array(_different(values, lows, highs))
    if how in ("min", "max"):
        places = _extremes(values, lows, highs, is_min=how == "min")
    else:
        assert how in ("first", "last"), how
        places = _ends(values, lows, highs, is_first=how == "first")
    return values.take(pa.array(places, mask=places < 0))


def finalised(spec: Aggregate, parts: list[pa.Array]) -> pa.Array:
    """Return the results of an aggregate, from its folded parts."""
    how = spec.parts[0].reduction
    if spec.name == "count_distinct":
        return parts[0]
    if how in ("first", "last"):
        numbers = pa.array(np.zeros(len(parts[0]), np.int64))
        parts = [pa.StructArray.from_arrays([numbers, parts[0]], names=["order", "value"])]
    try:
        return spec.finalise(parts)
    except HeadraceError as error:
        error.context.setdefault("aggregate", repr(spec))
        raise


# ---------------------------------------------------------------------------------------------------------------- sums
def _differences(numbers: Integers, lows: Integers, highs: Integers) -> Integers:
    """The sums of whole numbers over frames."""
    running = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=running[1:])
    return running[np.maximum(highs, lows)] - running[lows]


def _sums(values: pa.Array, lows: Integers, highs: Integers) -> pa.Array:
    valid = validity(values)
    num = highs - lows if valid is None else _differences(valid.astype(np.int64), lows, highs)
    is_there = num > 0
    if pa.types.is_floating(values.type):
        sums = np.empty(len(lows), np.float64)
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        loops.sum_floats(numbers, _bytes(valid, len(values)), lows, highs, np.empty(len(values)), sums)
        return pa.array(sums, mask=~is_there)
    if pa.types.is_decimal(values.type):
        words = _decimal_sums(bits_of(values), valid, lows, highs)
        return array_of_bits(words, is_there, values.type)
    bits = bits_of(values)
    if valid is not None:
        bits = np.where(valid, bits, 0)
    return pa.array(_integer_sums(bits, lows, highs), mask=~is_there)


def _integer_sums(bits: Integers, lows: Integers, highs: Integers) -> Integers:
    """Upper and lower halves are added up apart, so that running sums cannot overflow."""
    lower = _differences(bits & 0xFFFFFFFF, lows, highs)
    upper = _differences(bits >> 32, lows, highs) + (lower >> 32)
    if ((upper < -(2**31)) | (upper >= 2**31)).any():
        refuse_sum_of_integers()
    return (upper << 32) + (lower & 0xFFFFFFFF)


_LARGEST_DECIMAL = 10**38 - 1
_UPPER, _LOWER = np.int64(_LARGEST_DECIMAL >> 64), np.uint64(_LARGEST_DECIMAL & (2**64 - 1))


def _decimal_sums(words: Integers, valid: Truths | None, lows: Integers, highs: Integers) -> Integers:
    """As `_integer_sums`, of numbers of two words, in quarters of 32 bits."""
    if valid is not None:
        words = np.where(valid[:, None], words, 0)
    one, other = words[:, 0], words[:, 1]
    quarters = [one & 0xFFFFFFFF, (one >> 32) & 0xFFFFFFFF, other & 0xFFFFFFFF, other >> 32]
    carry: Any = np.int64(0)
    digits = []
    for quarter in quarters:
        total = _differences(quarter, lows, highs) + carry
        digits.append(total & 0xFFFFFFFF)
        carry = total >> 32
    lower = digits[0].view(np.uint64) | (digits[1].view(np.uint64) << np.uint64(32))
    upper = digits[2] | (digits[3] << 32)
    # The carry repeats the sign if the sum fits 128 bits; ~n is -n - 1.
    is_negative = upper < 0
    size_upper, size_lower = np.where(is_negative, ~upper, upper), np.where(is_negative, ~lower, lower)
    too_large = (size_upper > _UPPER) | ((size_upper == _UPPER) & (size_lower > _LOWER - is_negative.view(np.uint8)))
    if (too_large | (carry != np.where(is_negative, -1, 0))).any():
        message = "a sum of decimals does not fit 38 digits"
        raise UserFunctionError(message, hint="round the values, or use float values")
    return np.stack([lower.view(np.int64), upper], axis=1)


# ------------------------------------------------------------------------------------------------- values by their rows
def _extremes(values: pa.Array, lows: Integers, highs: Integers, *, is_min: bool) -> Integers:
    if pa.types.is_null(values.type):
        return np.full(len(lows), -1, np.int64)
    try:
        keys = order_of(values)
    except TypeMismatchError as error:
        message = f"min and max are for types with an order; got {values.type}"
        raise TypeMismatchError(message) from error
    if not is_min:
        keys = ~keys
        if pa.types.is_floating(values.type):  # NaN, which is the largest, counts where there is nothing else
            is_nan = np.isnan(values.fill_null(0.0).to_numpy(zero_copy_only=False))
            keys = np.where(is_nan, np.iinfo(np.int64).max, keys)
    places = np.empty(len(lows), np.int64)
    valid = _bytes(validity(values), len(values))
    loops.best_places(np.ascontiguousarray(keys), valid, lows, highs, np.empty(len(values), np.int64), places)
    return places


def _ends(values: pa.Array, lows: Integers, highs: Integers, *, is_first: bool) -> Integers:
    """The first or last row of each frame that is not null; -1 if there is none."""
    valid = validity(values)
    num = len(values)
    here = np.arange(num + 1)
    if is_first:
        nexts = here if valid is None else np.where(np.append(valid, True), here, num)
        found = np.minimum.accumulate(nexts[::-1])[::-1][lows]
        return np.where(found < highs, found, -1)
    lasts = here[:-1] if valid is None else np.where(valid, here[:-1], -1)
    found = np.concatenate([[-1], np.maximum.accumulate(lasts)])[highs]
    return np.where(found >= lows, found, -1)


def _different(values: pa.Array, lows: Integers, highs: Integers) -> Integers:
    codes = np.full(len(values), -1, np.int64)
    if len(values) and not pa.types.is_null(values.type):
        groups = Groups.of([values])
        valid = validity(values)
        codes = groups.codes if valid is None else np.where(valid, groups.codes, -1)
    found = np.empty(len(lows), np.int64)
    counts = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    loops.count_different(np.ascontiguousarray(codes), lows, highs, counts, found)
    return found


def _bytes(valid: Truths | None, num: int) -> Any:
    return np.ones(num, np.uint8) if valid is None else np.ascontiguousarray(valid).view(np.uint8)
