"""The rows of a record batch that a condition lets pass.

Rows of several kinds often lie in one batch, each with columns that are null for all others, and a condition on the
kind takes those of one. If they are most of the batch, three quarters or more, two things are worth finding out about
each of their columns:

* No null is left. Then nothing need be asked about them any more: numbers are copied in runs, several times as fast.
* No byte is left out. Then texts are all where they are, one behind the other. So only their offsets are made anew; the
  bytes, by far the most of the batch, stay those of the input.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .kernels import compute

__all__ = ["rows_where"]

_OFFSETS: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.int32(),
    pa.binary(): pa.int32(),
    pa.large_string(): pa.int64(),
    pa.large_binary(): pa.int64(),
}
"""What the offsets of texts and bytes are."""

LEAST_ROWS = 4_096
"""Of a smaller batch all is copied: to look would take as long."""


def rows_where(columns: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows whose ``mask`` is true, in their order. They may lie over bytes of the input."""
    chosen = pa.array(mask)
    if len(mask) < LEAST_ROWS or 4 * chosen.true_count < 3 * len(mask):
        return columns.filter(chosen)
    left_out = np.flatnonzero(~mask)
    given = columns.columns
    arrays = [_without_lost_nulls(array, chosen, len(left_out)) for array in given]
    texts = [i for i, array in enumerate(arrays) if _has_no_bytes(array, left_out)]
    if not texts and all(map(is_, arrays, given)):
        return columns.filter(chosen)
    # Of these the offsets, and whether there is a text if some are null.
    to_copy = dict(enumerate(arrays))
    for i in texts:
        to_copy[i] = _starts_of(arrays[i])
        if arrays[i].null_count:
            to_copy[len(arrays) + i] = arrays[i].is_valid()
    copied = pa.RecordBatch.from_arrays(list(to_copy.values()), names=[str(i) for i in to_copy]).filter(chosen)
    found = dict(zip(to_copy, copied.columns, strict=True))
    for i in texts:
        found[i] = _texts_from(found[i], found.get(len(arrays) + i), arrays[i])
    return pa.RecordBatch.from_arrays([found[i] for i in range(len(arrays))], schema=columns.schema)


def _without_lost_nulls(array: pa.Array, chosen: pa.BooleanArray, num_left_out: int) -> pa.Array:
    """The same values without nulls, if all that are null are left out."""
    kind = array.type
    if not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or kind in _OFFSETS):
        return array
    validity, *others = array.buffers()
    if validity is None or array.null_count > num_left_out:
        return array
    if array.null_count and compute().and_not(chosen, array.is_valid()).true_count:
        return array
    return pa.Array.from_buffers(kind, len(array), [None, *others], 0, array.offset)


def _has_no_bytes(array: pa.Array, places: npt.NDArray[np.intp]) -> bool:
    """Whether it holds texts or bytes, and those at some places are empty."""
    if array.type not in _OFFSETS or array.buffers()[2] is None:
        return False
    offsets = _offsets_of(array)
    first = places[:16]
    return all((offsets[some] == offsets[some + 1]).all() for some in (first, places))


def _offsets_of(texts: pa.Array) -> npt.NDArray[Any]:
    """Where each text begins, and where the last one ends."""
    kind = _OFFSETS[texts.type].to_pandas_dtype()
    return np.frombuffer(texts.buffers()[1], kind)[texts.offset : texts.offset + len(texts) + 1]


def _starts_of(texts: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(_OFFSETS[texts.type], len(texts), [None, texts.buffers()[1]], 0, texts.offset)


def _texts_from(starts: pa.Array, is_valid: pa.BooleanArray | None, texts: pa.Array) -> pa.Array:
    """Those of the texts that begin at some places, of which what is left out has no bytes.

    The first one begins at 0, as those of a slice need not: Arrow's ``ascii_lower`` takes that for granted.
    """
    offsets = np.append(starts.to_numpy(), _offsets_of(texts)[-1])
    first, last = int(offsets[0]), int(offsets[-1])
    validity = None if is_valid is None else is_valid.buffers()[1]
    num_nulls = 0 if is_valid is None else is_valid.false_count
    buffers = [validity, pa.py_buffer(offsets - offsets[0]), texts.buffers()[2].slice(first, last - first)]
    return pa.Array.from_buffers(texts.type, len(starts), buffers, num_nulls)
