"""Orders of values as integers: what a sort or a comparison of many columns works with.

A value of an ordered type becomes an int64 such that smaller values have smaller ones. For integers, times and floats
it is the same in every call, so it can be kept; other types (texts, decimals) are ranked among the values at hand. NaN
comes behind all other numbers. Where null comes is Flink's: first if ascending, last if descending, unless it is said.

Source: Flink's ``NullCollation.LOW`` of its SQL; normalised keys of its sorters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.errors import TypeMismatchError

from . import table_loops
from .columns import Integers, Truths, bits_of, is_flat, plain, validity

__all__ = ["SortKey", "first_of_groups", "is_lasting", "order_of", "sort_key", "sorted_rows"]

_LARGEST = np.iinfo(np.int64).max


class SortKey(NamedTuple):
    """A column to sort by: smaller comes first. Compared by both, the first one first."""

    nulls: Integers | None
    """-1 or 1 for null, 0 for others; None if nothing is null."""
    values: Integers


def is_lasting(kind: pa.DataType) -> bool:
    """Return whether the integers of a type's values are the same in every call."""
    return is_flat(kind) and not pa.types.is_decimal(kind)


def order_of(array: pa.Array) -> Integers:
    """Return the integers of values; those of nulls mean nothing.

    Raises:
        TypeMismatchError: If the type has no order.
    """
    array = plain(array)
    kind = array.type
    if pa.types.is_floating(kind):
        # Both zeros are one, and so are all NaN: what hardware makes of inf - inf has a sign.
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
        # Negative floats are ordered by their bits the other way round; NaN's are above infinity's.
        return np.where(bits < 0, bits ^ _LARGEST, bits)
    if pa.types.is_uint64(kind):
        return bits_of(array) ^ np.int64(-(2**63))
    if pa.types.is_unsigned_integer(kind):
        return array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    if is_lasting(kind):
        return bits_of(array).astype(np.int64, copy=False)
    return _ranks(array)


def _ranks(array: pa.Array) -> Integers:
    import pyarrow.compute as pc

    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.int64)
    try:
        encoded = array.dictionary_encode()
        ascending = pc.sort_indices(encoded.dictionary).to_numpy().astype(np.int64)
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        message = f"only types with an order can be sorted by; got {array.type}"
        raise TypeMismatchError(message) from error
    ranks = np.zeros(len(ascending) + 1, np.int64)
    ranks[ascending] = np.arange(len(ascending))
    places: Integers = encoded.indices.fill_null(len(ascending)).to_numpy(zero_copy_only=False)
    return ranks[places]


def sort_key(array: pa.Array, *, ascending: bool, nulls_first: bool | None) -> SortKey:
    """Return what to sort by so that a column is in order.

    Args:
        array: The column.
        ascending: Whether the smallest comes first.
        nulls_first: Whether null comes first; None for Flink's default.

    Raises:
        TypeMismatchError: If the type has no order.
    """
    values = order_of(array)
    if not ascending:
        values = ~values
    valid: Truths | None = validity(array)
    if valid is None:
        return SortKey(None, values)
    is_first = ascending if nulls_first is None else nulls_first
    return SortKey(np.where(valid, 0, -1 if is_first else 1), np.where(valid, values, 0))


def sorted_rows(keys: Sequence[Integers]) -> Integers:
    """Return the places of rows in order; of rows that are equal by all keys the earlier one comes first.

    Where the ranges of all keys fit one integer together, they are sorted as one: that is quick where long stretches
    are in order already.

    Args:
        keys: The first one counts most.
    """
    packed = _packed(keys)
    order: Integers = np.lexsort(tuple(reversed(keys))) if packed is None else np.argsort(packed, kind="stable")
    return order


def first_of_groups(keys: Sequence[Integers]) -> Integers:
    """Return the places of the rows that come first of their groups, in the order of these.

    Args:
        keys: First the group, a small number; then what rows are ordered by, which differs for any two of a group.
    """
    groups, *others = keys
    firsts = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    table_loops.first_rows(groups, np.stack(others, axis=1), firsts)
    return firsts[firsts >= 0]


def _packed(keys: Sequence[Integers]) -> Integers | None:
    """One integer of the same order; None if it would not fit."""
    if not len(keys[0]):
        return keys[0]
    lows = [int(key.min()) for key in keys]
    sizes = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(sizes) > _LARGEST:
        return None
    packed = np.zeros(len(keys[0]), np.int64)
    for key, low, size in zip(keys, lows, sizes, strict=True):
        packed = packed * size + (key - low)
    return packed
