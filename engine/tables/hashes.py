"""Hashes of rows: equal for equal rows, and the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from . import table_loops
from .columns import Integers, bits_of, fields_of, is_flat, is_text, plain, text_buffers, validity

__all__ = ["hash_rows"]

_MULTIPLIER = np.int64(-7046029254386353131)


def hash_rows(columns: Sequence[pa.Array | Integers]) -> Integers:
    """Return a hash of each row, equal for equal rows."""
    hashed: Integers | None = None
    for column in columns:
        values = column if isinstance(column, np.ndarray) else _hashed_values(plain(column))
        hashed = values.astype(np.int64) if hashed is None else hashed ^ values
        with np.errstate(over="ignore"):
            hashed = hashed * _MULTIPLIER
        hashed ^= (hashed.view(np.uint64) >> np.uint64(29)).view(np.int64)
    assert hashed is not None
    return hashed


def _hashed_values(array: pa.Array) -> Integers:
    hashed: npt.NDArray[Any]
    if is_flat(array.type):
        bits = bits_of(array)
        hashed = bits.astype(np.int64) if bits.ndim == 1 else hash_rows(list(np.ascontiguousarray(bits.T)))
    elif is_text(array.type):
        offsets, data = text_buffers(array)
        hashed = np.empty(len(array), np.int64)
        table_loops.hash_texts(offsets, data, hashed)
    elif pa.types.is_struct(array.type):
        hashed = hash_rows([np.zeros(len(array), np.int64), *fields_of(array)])
    else:  # lists and maps: by their texts, one by one
        hashed = _hashed_values(pa.array([repr(value) for value in array.to_pylist()], pa.string()))
    valid = validity(array)
    return hashed if valid is None else np.where(valid, hashed, np.int64(0x5EED))
