"""The hashes of keys that lie in Arrow columns: the same that `headrace.state.keys.hashing` gives for Python keys.

They are part of the checkpoint format, as those are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from .hashing import hash_keys
from .mixing import (
    BYTES,
    DATE,
    DURATION,
    NAIVE,
    NULL_HASH,
    TEXT,
    TIME,
    ZONED,
    Hashes,
    combine,
    hash_floats,
    hash_texts,
    mix,
)

__all__ = ["hash_columns"]


def hash_columns(columns: Sequence[pa.Array]) -> Hashes:
    """Hash keys that lie in columns. Called by the columnar path and by partitioners.

    Args:
        columns: One column: the key is its value. Several: the key is the tuple of their values. Equal lengths.

    Returns:
        One hash per row; the same as `hash_keys` gives for the keys on the row face.

    Raises:
        TypeMismatchError: If a column's values are not hashable in Python (lists, maps, structs but those of
            ``f0``, ``f1`` ..., which are tuples).
    """
    hashed = [
        _hash_array(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column) for column in columns
    ]
    return hashed[0] if len(hashed) == 1 else combine(hashed, len(hashed))


def _hash_array(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = np.append(_hash_array(array.dictionary), np.uint64(NULL_HASH))
        return values[array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_null(kind):
        return np.full(len(array), NULL_HASH, np.uint64)
    hashes = _hash_valid(array, kind)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _hash_valid(array: pa.Array, kind: pa.DataType) -> Hashes:
    """Hash an array; what stands where nulls are does not matter."""
    is_ = pa.types
    if is_.is_uint64(kind):
        return hash_keys(array.to_pylist()) if _has_large(array) else mix(_ticks(array.cast(pa.int64(), safe=False)))
    if is_.is_integer(kind) or is_.is_boolean(kind):
        return mix(_ticks(array.cast(pa.int64())))
    if is_.is_floating(kind):
        return hash_floats(array.cast(pa.float64()).fill_null(0.0).to_numpy())
    if is_.is_string(kind) or is_.is_large_string(kind):
        return hash_texts(array, TEXT)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return hash_texts(array, BYTES)
    if is_.is_fixed_size_binary(kind):
        return hash_texts(array.cast(pa.large_binary()), BYTES)
    if is_.is_date32(kind):
        return _tag(DATE, array.view(pa.int32()).cast(pa.int64()))
    if is_.is_date64(kind):
        return _tag(DATE, array.view(pa.int64()), divisor=86_400_000)
    if is_.is_timestamp(kind):
        return _tag(NAIVE if kind.tz is None else ZONED, array.view(pa.int64()), **_UNITS[kind.unit])
    if is_.is_duration(kind):  # cut to microseconds by the same cast that makes rows: it rounds towards zero
        return _tag(DURATION, array.cast(pa.duration("us"), safe=False).view(pa.int64()))
    if is_.is_time32(kind):
        return _tag(TIME, array.view(pa.int32()).cast(pa.int64()), **_UNITS[kind.unit])
    if is_.is_time64(kind):
        return _tag(TIME, array.view(pa.int64()), **_UNITS[kind.unit])
    if is_.is_struct(kind) and kind.num_fields and all(kind.field(i).name == f"f{i}" for i in range(kind.num_fields)):
        # On the row face a tuple.
        return combine([_hash_array(array.field(i)) for i in range(kind.num_fields)], kind.num_fields)
    if is_.is_nested(kind):
        message = f"a key must be hashable; a column of type {kind} is not"
        raise TypeMismatchError(message, hint="name the fields that make up the key")
    return hash_keys(array.to_pylist())


_UNITS: dict[str, dict[str, int]] = {
    "s": {"factor": 1_000_000},
    "ms": {"factor": 1_000},
    "us": {},
    "ns": {"divisor": 1_000},
}


def _has_large(array: pa.Array) -> bool:
    return bool((array.fill_null(0).to_numpy() >= 2**63).any())


def _ticks(array: pa.Array) -> Hashes:
    """An int64 array as unsigned numpy, zeros for nulls."""
    return (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False).view(np.uint64)


def _tag(seed: int, array: pa.Array, factor: int = 1, divisor: int = 1) -> Hashes:
    ticks = _ticks(array).view(np.int64)
    if factor != 1:
        ticks = ticks * factor
    if divisor != 1:
        ticks = ticks // divisor
    return mix(ticks.view(np.uint64) + np.uint64(seed))
