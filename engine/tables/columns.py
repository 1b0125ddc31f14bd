"""Values by number: columns that grow, can be changed in place, and are read as Arrow arrays.

Arrow's arrays never change; state does. A `StoredColumn` holds one value for each number from 0 on: values of a fixed
width as their bits in a NumPy array, texts as places in a block of bytes, structs as columns of their fields. What
remains (lists, maps) stays in Arrow's arrays, in chunks that are merged as they double. Taking many values at once is
what they are made for; nothing here looks at a single one.

Floats are held with one NaN and one zero. Where a number is -1, what is taken is null.

Source: Arrow's columnar format, whose buffers are read and made here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..columns.grouping import normalised_floats
from . import table_loops
from .growing import grown

__all__ = [
    "Integers",
    "StoredColumn",
    "Truths",
    "array_of_bits",
    "bits_of",
    "fields_of",
    "is_flat",
    "is_text",
    "plain",
    "same_rows",
    "same_values",
    "stored_column",
    "stored_type",
    "text_array",
    "text_buffers",
    "validity",
]

Integers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
_Numbers = Integers | slice

_WIDTHS: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a type are held: that of a dictionary's values, else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_flat(kind: pa.DataType) -> bool:
    """Return whether values of a type are a fixed number of bits."""
    kinds = pa.types
    if kinds.is_boolean(kind):
        return True
    return bool(
        kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind) or kinds.is_decimal(kind)
    ) and not kinds.is_interval(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts or bytes."""
    kinds = pa.types
    return bool(
        kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)
    )


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the array in one piece, without a dictionary, with one NaN and one zero."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return normalised_floats(array)


def validity(array: pa.Array) -> Truths | None:
    """Return which values are not null; None if all are."""
    if array.null_count == 0:
        return None
    valid: Truths = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def bits_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of a plain array of a flat type, as integers of their width; those of decimals as rows of
    int64.
    """
    kind = array.type
    if pa.types.is_boolean(kind):
        array, kind = array.cast(pa.int8()), pa.int8()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        array = array.cast(pa.decimal128(kind.precision, kind.scale))
        kind = array.type
    data = array.buffers()[1]
    width = kind.bit_width // 8
    if data is None:
        data = b""
    if width <= 8:
        return np.frombuffer(data, _WIDTHS[8 * width], len(array), array.offset * width)
    return np.frombuffer(data, np.int64, len(array) * width // 8, array.offset * width).reshape(-1, width // 8)


def array_of_bits(bits: npt.NDArray[Any], valid: Truths | None, kind: pa.DataType) -> pa.Array:
    """Return the inverse of `bits_of`."""
    if pa.types.is_boolean(kind):
        return array_of_bits(bits, valid, pa.int8()).cast(kind)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return array_of_bits(bits, valid, pa.decimal128(kind.precision, kind.scale)).cast(kind)
    return pa.Array.from_buffers(kind, len(bits), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(bits))])


def _bitmap(valid: Truths | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def text_buffers(array: pa.Array) -> tuple[Integers, npt.NDArray[np.uint8]]:
    """Return where the texts of an array begin and the last one ends, and the bytes that these are places in."""
    kind = array.type
    is_wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    _, offsets, data = array.buffers()
    item: Any = np.int64 if is_wide else np.int32
    width = 8 if is_wide else 4
    bounds = np.zeros(1, np.int64)
    if len(array):
        bounds = np.frombuffer(offsets, item, len(array) + 1, array.offset * width).astype(np.int64, copy=False)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return bounds, held


class StoredColumn(ABC):
    """One value for each number from 0 on."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self.size = 0
        # Which values are not null; None while all are.
        self._valid: Truths | None = None

    def append(self, array: pa.Array) -> None:
        """Add values behind the last one."""
        first = self.size
        self.size += len(array)
        self._set(slice(first, self.size), array)

    def put(self, ids: Integers, array: pa.Array) -> None:
        """Set the values of numbers, of which no two are the same; those beyond the last one are added."""
        if len(ids):
            self.size = max(self.size, int(ids.max()) + 1)
            self._set(ids, array)

    def take(self, ids: Integers) -> pa.Array:
        """Return the values of numbers."""
        return self._get(ids, self._valid_of(ids))

    def kept(self, ids: Integers) -> StoredColumn:
        """Return a column of some of the values, numbered anew."""
        column = stored_column(self.type)
        column.append(self.take(ids))
        return column

    def is_same(self, ids: Integers, array: pa.Array) -> Truths:
        """Return whether the values of numbers are those of an array; null is null."""
        return same_values(self.take(ids), plain(array))

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes it holds."""

    @abstractmethod
    def _set(self, ids: _Numbers, array: pa.Array) -> None:
        """Set the values of numbers, for which there is room; those of a slice are new."""

    @abstractmethod
    def _get(self, ids: Integers, valid: Truths | None) -> pa.Array: ...

    def _set_valid(self, ids: _Numbers, valid: Truths | None) -> None:
        if valid is None and self._valid is None:
            return
        if self._valid is None:
            self._valid = np.ones(self.size, np.bool_)
        self._valid = grown(self._valid, self.size, True)
        self._valid[ids] = True if valid is None else valid

    def _valid_of(self, ids: Integers) -> Truths | None:
        is_none = ids < 0
        if not is_none.any():
            return None if self._valid is None else self._valid[ids]
        if self._valid is None or not self.size:
            return ~is_none
        return self._valid[ids] & ~is_none


class _FlatColumn(StoredColumn):
    """Values of a fixed width."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._bits = bits_of(pa.array([], kind)).copy()

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    def _set(self, ids: _Numbers, array: pa.Array) -> None:
        array = plain(array)
        self._bits = grown(self._bits, self.size)
        self._bits[ids] = bits_of(array)
        self._set_valid(ids, validity(array))

    def _get(self, ids: Integers, valid: Truths | None) -> pa.Array:
        if not self.size:
            return pa.nulls(len(ids), self.type)
        return array_of_bits(self._bits[ids], valid, self.type)


class _TextColumn(StoredColumn):
    """Texts or bytes, one behind the other in a block; what has been replaced leaves a hole until half are holes."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._starts = np.zeros(0, np.int64)
        self._lengths = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.uint8)
        self._used = 0
        self._num_holes = 0

    @property
    def nbytes(self) -> int:
        return self._starts.nbytes + self._lengths.nbytes + self._held.nbytes

    def _set(self, ids: _Numbers, array: pa.Array) -> None:
        array = plain(array)
        bounds, data = text_buffers(array)
        first, last = int(bounds[0]), int(bounds[-1])
        self._starts, self._lengths = grown(self._starts, self.size), grown(self._lengths, self.size)
        if not isinstance(ids, slice):
            self._num_holes += int(self._lengths[ids].sum())
        self._held = grown(self._held, self._used + last - first)
        self._held[self._used : self._used + last - first] = data[first:last]
        self._starts[ids] = bounds[:-1] - first + self._used
        self._lengths[ids] = np.diff(bounds)
        self._used += last - first
        self._set_valid(ids, validity(array))
        if self._num_holes > max(self._used // 2, 1 << 16):
            self._close_holes()

    def _close_holes(self) -> None:
        ids = np.arange(self.size)
        bounds, data = self._texts(ids)
        self._starts, self._lengths, self._held = bounds[:-1].copy(), np.diff(bounds), data
        self._used, self._num_holes = len(data), 0

    def _texts(self, ids: Integers) -> tuple[Integers, npt.NDArray[np.uint8]]:
        bounds = np.zeros(len(ids) + 1, np.int64)
        if self.size:
            np.cumsum(np.where(ids < 0, 0, self._lengths[ids]), out=bounds[1:])
        data = np.empty(int(bounds[-1]), np.uint8)
        table_loops.copy_texts(ids, self._starts, self._lengths, self._held, bounds, data)
        return bounds, data

    def _get(self, ids: Integers, valid: Truths | None) -> pa.Array:
        return text_array(*self._texts(ids), valid, self.type)


def text_array(bounds: Integers, data: npt.NDArray[np.uint8], valid: Truths | None, kind: pa.DataType) -> pa.Array:
    """Return the texts that lie between bounds, as an array of a type."""
    is_wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = bounds if is_wide else bounds.astype(np.int32)
    return pa.Array.from_buffers(kind, len(bounds) - 1, [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


class _StructColumn(StoredColumn):
    """A column for each field."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._fields = [stored_column(kind.field(index).type) for index in range(kind.num_fields)]

    @property
    def nbytes(self) -> int:
        return sum(field.nbytes for field in self._fields)

    def _set(self, ids: _Numbers, array: pa.Array) -> None:
        for field, values in zip(self._fields, fields_of(array), strict=True):
            if isinstance(ids, slice):
                field.append(values)
            else:
                field.put(ids, values)
        self._set_valid(ids, validity(array))

    def _get(self, ids: Integers, valid: Truths | None) -> pa.Array:
        mask = None if valid is None else pa.array(~valid)
        arrays = [field.take(ids) for field in self._fields]
        kinds = [self.type.field(index) for index in range(self.type.num_fields)]
        arrays = [array.cast(kind.type) for array, kind in zip(arrays, kinds, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=kinds, mask=mask)


def fields_of(array: pa.Array) -> list[pa.Array]:
    """Return the fields of structs; null where the struct is."""
    return array.flatten()


class _OtherColumn(StoredColumn):
    """Values as Arrow holds them: each number has a place in chunks that are merged as they double."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._places = np.zeros(0, np.int64)
        self._chunks: list[pa.Array] = []
        self._num_values = 0

    @property
    def nbytes(self) -> int:
        return self._places.nbytes + sum(chunk.nbytes for chunk in self._chunks)

    def _set(self, ids: _Numbers, array: pa.Array) -> None:
        self._places = grown(self._places, self.size, -1)
        self._places[ids] = np.arange(self._num_values, self._num_values + len(array))
        self._num_values += len(array)
        self._chunks.append(array)
        while len(self._chunks) > 1 and len(self._chunks[-2]) < 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [pa.concat_arrays(self._chunks[-2:])]
        if self._num_values > 2 * self.size + 1_024:
            self._chunks = [self._get(np.arange(self.size), None)]
            self._places, self._num_values = np.arange(self.size), self.size

    def _get(self, ids: Integers, valid: Truths | None) -> pa.Array:
        if not self.size:
            return pa.nulls(len(ids), self.type)
        places = pa.array(np.where(ids < 0, 0, self._places[ids]), mask=ids < 0)
        return pa.chunked_array(self._chunks, self.type).take(places).combine_chunks()


def stored_column(kind: pa.DataType) -> StoredColumn:
    """Return an empty column for values of a type."""
    kind = stored_type(kind)
    if is_flat(kind):
        return _FlatColumn(kind)
    if is_text(kind):
        return _TextColumn(kind)
    return _StructColumn(kind) if pa.types.is_struct(kind) else _OtherColumn(kind)


def same_values(left: pa.Array, right: pa.Array) -> Truths:
    """Return which values of two plain arrays of one type are the same; null is null, NaN is NaN."""
    is_null = _is_null(left), _is_null(right)
    neither = ~is_null[0] & ~is_null[1]
    same: Truths
    if is_flat(left.type):
        one, other = bits_of(left), bits_of(right)
        same = np.asarray(one == other if one.ndim == 1 else (one == other).all(axis=1), np.bool_)
    elif is_text(left.type):
        import pyarrow.compute as pc

        same = pc.equal(left, right).fill_null(False).to_numpy(zero_copy_only=False)
    elif pa.types.is_struct(left.type):
        same = np.ones(len(left), np.bool_)
        for field, other_field in zip(fields_of(left), fields_of(right), strict=True):
            same &= same_values(plain(field), plain(other_field))
    else:
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        same = np.fromiter((repr(value) == repr(other_value) for value, other_value in pairs), np.bool_, len(left))
    return (same & neither) | (is_null[0] & is_null[1])


def same_rows(left: Sequence[pa.Array], right: Sequence[pa.Array], num_rows: int) -> Truths:
    """Return which rows of two lists of columns are the same."""
    same = np.ones(num_rows, np.bool_)
    for one, other in zip(left, right, strict=True):
        same &= same_values(plain(one), plain(other))
    return same


def _is_null(array: pa.Array) -> Truths:
    valid = validity(array)
    return np.zeros(len(array), np.bool_) if valid is None else ~valid
