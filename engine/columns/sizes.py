"""How large records are in memory, about: enough to bound buffers, too cheap to be noticed.

Where there are many records, a few of them are looked at. Values within a record count down to a few levels, and of a
long list or dict the first ones stand for all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from ..errors import raise_from_outside

__all__ = ["rows_nbytes"]

MIN_ROW_BYTES = 64
"""No record counts less: its place in lists and its time beside it take room as well."""

SAMPLED_ROWS = 8
"""Of more records than twice this only so many are looked at, evenly spread."""

SAMPLED_VALUES = 16
MAX_DEPTH = 4

_PLAIN = frozenset((int, float, bool, str, bytes, bytearray, complex, type(None)))
_are_plain = _PLAIN.issuperset


def rows_nbytes(rows: Sequence[Any]) -> int:
    """Return the size of records, in bytes; an estimate."""
    count = len(rows)
    if count <= 2 * SAMPLED_ROWS:
        return sum(max(_size_of(row), MIN_ROW_BYTES) for row in rows)
    places = (i * (count - 1) // (SAMPLED_ROWS - 1) for i in range(SAMPLED_ROWS))
    sampled = sum(max(_size_of(rows[place]), MIN_ROW_BYTES) for place in places)
    return sampled * count // SAMPLED_ROWS


def _size_of(value: Any, depth: int = MAX_DEPTH) -> int:
    kind = type(value)
    if kind in _PLAIN:
        return sys.getsizeof(value)
    if kind is tuple and len(value) <= SAMPLED_VALUES and _are_plain(map(type, value)):  # as most records are
        return sys.getsizeof(value) + sum(map(sys.getsizeof, value))
    try:
        return _size_of_object(value, kind, depth)
    except BaseException as error:  # it is a user's object, whose attributes may do anything
        raise_from_outside(error)
        return MIN_ROW_BYTES


def _size_of_object(value: Any, kind: type, depth: int) -> int:
    if kind.__module__.startswith(("numpy", "pyarrow")):
        return MIN_ROW_BYTES + int(getattr(value, "nbytes", 0))
    size = sys.getsizeof(value)
    if depth == 0:
        return size
    if isinstance(value, dict):
        return size + _all_of([*_first(value.keys()), *_first(value.values())], 2 * len(value), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return size + _all_of(_first(value), len(value), depth)
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        return size + _size_of(attributes, depth)
    slots = getattr(kind, "__slots__", ())
    return size + _all_of([getattr(value, name, None) for name in slots], len(slots), depth) if slots else size


def _first(values: Any) -> list[Any]:
    return list(islice(values, SAMPLED_VALUES))


def _all_of(sampled: list[Any], count: int, depth: int) -> int:
    if not sampled:
        return 0
    if _are_plain(map(type, sampled)):
        return sum(map(sys.getsizeof, sampled)) * count // len(sampled)
    return sum(_size_of(value, depth - 1) for value in sampled) * count // len(sampled)
