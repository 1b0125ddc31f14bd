"""Arrays that grow: what is kept for a key or a row is a place in one of them.

Small ones are made twice as large when they are full. A large one is laid out in *reserved* memory: addresses for many
times as much, of which the system gives pages as they are touched. So it grows without being copied, and no memory is
taken for what is not there yet; touching memory anew is what growing tables spend most of their time on.

Invariant: the array that `grown` gives is as it was, and behind it ``fill``. An array that somebody still holds from
before is a part of the grown one, or of what it was copied from.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["grown"]

_LARGE_BYTES = 1 << 20
_RESERVED_TIMES = 16
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)

_Array = npt.NDArray[Any]


class _Reserved(mmap.mmap):
    """Memory of which no page is there before it is touched, for one array.

    Attributes:
        num_used: How many rows of the array have been given out; what is behind them is zero.
    """

    num_used = 0


def grown(array: _Array, size: int, fill: Any = 0) -> _Array:
    """Return the array, with room for at least ``size`` rows; made larger by a share of itself where it is too
    small.
    """
    if len(array) >= size:
        return array
    larger = _extended(array, max(size, len(array) * 5 // 4), size)
    if larger is None:
        larger = _copied(array, max(size, 2 * len(array), 16))
    if fill:
        larger[len(array) :] = fill
    return larger


def _extended(array: _Array, size: int, least: int) -> _Array | None:
    """More of the reserved array that an array is the beginning of; None if it is not, or there is no more."""
    whole: Any = array.base
    memory: Any = getattr(whole, "base", None)
    if not isinstance(memory, _Reserved) or least > len(whole) or len(array) != memory.num_used:
        return None
    return _given_out(whole, memory, size)


def _given_out(whole: _Array, memory: _Reserved, size: int) -> _Array:
    """The beginning of a reserved array."""
    memory.num_used = min(size, len(whole))
    return whole[: memory.num_used]


def _copied(array: _Array, size: int) -> _Array:
    """The array in memory of its own, with zeros behind it."""
    shape = (size, *array.shape[1:])
    larger = _reserved(shape, array.dtype)
    if larger is None:
        larger = np.zeros(shape, array.dtype)
    larger[: len(array)] = array
    return larger


def _reserved(shape: tuple[int, ...], kind: np.dtype[Any]) -> _Array | None:
    """An array of zeros in reserved memory; None if it is small, or the system gives no addresses for it."""
    num_bytes = math.prod(shape) * kind.itemsize
    if num_bytes < _LARGE_BYTES:
        return None
    try:
        memory = _Reserved(-1, num_bytes * _RESERVED_TIMES, flags=_FLAGS)
    except (OSError, ValueError):
        return None
    return _given_out(np.ndarray((shape[0] * _RESERVED_TIMES, *shape[1:]), kind, memory), memory, shape[0])
