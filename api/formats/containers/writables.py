"""Hadoop's Writables: what keys and values of a SequenceFile are, as bytes and as columns.

A class of Writables says nothing of its length; what frames it does. So a value is taken only if all of its bytes have
a meaning: one byte too many, or a text that is no UTF-8, makes the record a bad one.

Source: Hadoop's ``org.apache.hadoop.io`` (``Text``, ``IntWritable``, ...) and ``WritableUtils``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.engine.errors import ConfigurationError, TypeMismatchError, nearest

__all__ = ["VINT_BYTES", "Writable", "read_vint", "vint_bytes", "vint_size", "writable_for", "writable_named"]

_PACKAGE = "org.apache.hadoop.io."

VINT_BYTES = 9
"""The longest number of variable length."""

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True)
class Writable:
    """A class of values.

    Attributes:
        name: Of the class, without its package.
        kind: What the values are in a column.
        decode: Makes a column of the bytes of values; ValueError if one has no meaning.
        encode: Makes bytes of each value of a column of that type, none of which is null.
    """

    name: str
    kind: pa.DataType
    decode: Callable[[Sequence[bytes]], pa.Array]
    encode: Callable[[pa.Array], list[bytes]]

    @property
    def class_name(self) -> str:
        """As files name it."""
        return _PACKAGE + self.name

    def values_of(self, column: pa.Array) -> list[bytes]:
        """Return the bytes of each value.

        Raises:
            TypeMismatchError: If one is of another type, or is null and the class has none.
        """
        if not column.type.equals(self.kind):
            try:
                column = column.cast(self.kind)
            except pa.ArrowException as error:
                message = f"a value has no form as {self.name}: {error}"
                raise TypeMismatchError(message) from error
        if column.null_count and not pa.types.is_null(self.kind):
            row = column.is_null().index(True).as_py()
            message = f"null has no form as {self.name}"
            raise TypeMismatchError(message, hint="leave such records out, or put something in its place", row=row)
        return self.encode(column)


# ------------------------------------------------------------------------------------------- numbers of variable length
def vint_size(first: int) -> int:
    """Return how many bytes a number has, by its first one."""
    if first < 128 or first >= 144:
        return 1
    return 137 - first if first < 136 else 145 - first


def read_vint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends.

    Raises:
        ValueError: If it is cut off, or has more than 64 bits.
    """
    if start >= len(data):
        message = "a number of variable length is cut off"
        raise ValueError(message)
    first = data[start]
    size = vint_size(first)
    if size == 1:
        return (first if first < 128 else first - 256), start + 1
    end = start + size
    if end > len(data):
        message = "a number of variable length is cut off"
        raise ValueError(message)
    value = int.from_bytes(data[start + 1 : end], "big")
    if value >= 1 << 63:
        message = "a number of variable length has more than 64 bits"
        raise ValueError(message)
    return (~value if first < 136 else value), end


def vint_bytes(value: int) -> bytes:
    """Return a number of at most 64 bits, as Hadoop writes it."""
    if -112 <= value < 128:
        return bytes((value & 255,))
    base, value = (136, ~value) if value < 0 else (144, value)
    size = (value.bit_length() + 7) // 8
    return bytes((base - size,)) + value.to_bytes(size, "big")


# -------------------------------------------------------------------------------------------------------------- classes
def _fixed(name: str, kind: pa.DataType, code: str) -> Writable:
    """Numbers that all have the same number of bytes, the highest first."""
    stored = np.dtype(code)
    width = stored.itemsize

    def decode(values: Sequence[bytes]) -> pa.Array:
        for length in set(map(len, values)) - {width}:
            message = f"{name} has {width} bytes, and a value {length}"
            raise ValueError(message)
        return pa.array(np.frombuffer(b"".join(values), stored).astype(stored.newbyteorder("=")), kind)

    def encode(column: pa.Array) -> list[bytes]:
        data = column.to_numpy(zero_copy_only=False).astype(stored).tobytes()
        return [data[i : i + width] for i in range(0, len(data), width)]

    return Writable(name, kind, decode, encode)


def _variable(name: str, kind: pa.DataType) -> Writable:
    def number(value: bytes) -> int:
        found, end = read_vint(value, 0)
        if end != len(value):
            message = f"{name} has {end} bytes, and a value {len(value)}"
            raise ValueError(message)
        return found

    def decode(values: Sequence[bytes]) -> pa.Array:
        try:
            return pa.array(list(map(number, values)), kind)
        except OverflowError as error:
            message = f"a value of {name} is no {kind}: {error}"
            raise ValueError(message) from error

    return Writable(name, kind, decode, lambda column: list(map(vint_bytes, column.to_pylist())))


def _framed(
    name: str,
    kind: pa.DataType,
    read_length: Callable[[bytes, int], tuple[int, int]],
    length_bytes: Callable[[int], bytes],
) -> Writable:
    """A length, and as many bytes."""

    def content(value: bytes) -> bytes:
        length, start = read_length(value, 0)
        if start + length != len(value):
            message = f"{name} says that {length} bytes follow, and {len(value) - start} do"
            raise ValueError(message)
        return value[start:]

    def decode(values: Sequence[bytes]) -> pa.Array:
        found = pa.array(list(map(content, values)), pa.binary())
        if isinstance(found, pa.ChunkedArray):
            message = f"values of {name} that are read together have more than 2 GiB"
            raise ValueError(message)
        return found.cast(kind)

    def encode(column: pa.Array) -> list[bytes]:
        return [length_bytes(len(value)) + value for value in column.cast(pa.binary()).to_pylist()]

    return Writable(name, kind, decode, encode)


def _read_int(data: bytes, start: int) -> tuple[int, int]:
    if start + 4 > len(data):
        message = "a length is cut off"
        raise ValueError(message)
    return _LENGTH.unpack_from(data, start)[0], start + 4


def _booleans(values: Sequence[bytes]) -> pa.Array:
    for length in set(map(len, values)) - {1}:
        message = f"BooleanWritable has 1 byte, and a value {length}"
        raise ValueError(message)
    return pa.array([value != b"\0" for value in values], pa.bool_())


def _nulls(values: Sequence[bytes]) -> pa.Array:
    if any(values):
        message = "NullWritable has no bytes, and a value has some"
        raise ValueError(message)
    return pa.nulls(len(values))


_BOOLEAN = Writable(
    "BooleanWritable",
    pa.bool_(),
    _booleans,
    lambda column: [b"\1" if value else b"\0" for value in column.to_pylist()],
)
_NULL = Writable("NullWritable", pa.null(), _nulls, lambda column: [b""] * len(column))

# Of several classes of one type the first one is written where none is named.
_CLASSES = (
    _framed("Text", pa.string(), read_vint, vint_bytes),
    _framed("BytesWritable", pa.binary(), _read_int, _LENGTH.pack),
    _fixed("IntWritable", pa.int32(), ">i4"),
    _fixed("LongWritable", pa.int64(), ">i8"),
    _fixed("FloatWritable", pa.float32(), ">f4"),
    _fixed("DoubleWritable", pa.float64(), ">f8"),
    _fixed("ShortWritable", pa.int16(), ">i2"),
    _fixed("ByteWritable", pa.int8(), ">i1"),
    _BOOLEAN,
    _NULL,
    _variable("VIntWritable", pa.int32()),
    _variable("VLongWritable", pa.int64()),
)
_BY_NAME = {one.name: one for one in _CLASSES}


def writable_named(name: str) -> Writable:
    """Return the class of a name, with or without its package.

    Raises:
        ConfigurationError: If it is none of those that are known here.
    """
    found = _BY_NAME.get(name.removeprefix(_PACKAGE))
    if found is None:
        message = f"{name:.200} is no class of Writables that is known here: {', '.join(_BY_NAME)}"
        raise ConfigurationError(message, hint=nearest(name, list(_BY_NAME)))
    return found


def writable_for(kind: pa.DataType) -> Writable:
    """Return the class that values of a type are written as.

    Raises:
        TypeMismatchError: If there is none.
    """
    if pa.types.is_large_string(kind):
        kind = pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        kind = pa.binary()
    for one in _CLASSES:
        if one.kind.equals(kind):
            return one
    message = f"a SequenceFile has no class for values of type {kind}"
    raise TypeMismatchError(message, hint="make them text or bytes, as by json.dumps")
