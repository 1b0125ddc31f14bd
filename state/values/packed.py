"""Python values as bytes that can be read without running anybody's code.

A value is one tag byte and its body: MessagePack for plain values; pickle, tagged as such, for everything else. Plain
are None, bool, int, float, str, bytes, lists, dicts, tuples, sets, datetimes (naive, or with a fixed offset), dates,
times, durations, Decimals, Fractions, UUIDs, complex numbers and numpy's numbers, also nested. MessagePack has one type
of bytes: a ``bytearray`` *inside* a container comes back as ``bytes``. What would grow out of all proportion if parts
that it shares were written wherever they stand, or contains itself, is pickled: that keeps what is shared.

What is read is data, never code, and bounded: nesting, digits and the cost of hashing are limited, for a few bytes
could else end the process or keep it busy for years. A pickle becomes what the caller says.

The encodings are part of the checkpoint format: extensions are added, and never change.

Source: MessagePack's specification.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import struct
import threading
import uuid
from collections.abc import Callable, Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgpack
import numpy as np

from ..errors import CheckpointCorruptError
from ..reading.plain_values import (
    MAX_FEW,
    check_hashes,
    decimal_of,
    fixed_zone,
    fraction_of,
    is_fixed_zone,
    numpy_of,
    numpy_text,
)
from ..reading.stored_pickles import pickle_value, unpickle_value
from .sharing import spreads

__all__ = ["PICKLED", "decode_packed", "encode_packed"]

PACKED, FLAT_TUPLE, PICKLED = 0, 1, 2
"""Tags."""

_EXT_TUPLE, _EXT_INT, _EXT_DATETIME, _EXT_DATE, _EXT_DURATION, _EXT_DECIMAL = 1, 2, 3, 4, 5, 6
_EXT_ZONED, _EXT_TIME, _EXT_UUID, _EXT_SET, _EXT_FROZENSET, _EXT_COMPLEX, _EXT_FRACTION, _EXT_NUMPY = range(7, 15)
_ATOMS = frozenset((int, float, str, bytes, bool, type(None)))

_OFFSET = 1 << 63
_pack_uint64 = struct.Struct(">Q").pack
_unpack_uint64 = struct.Struct(">Q").unpack
_complex = struct.Struct(">dd")
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are counted from it
_EPOCH_DAY = _EPOCH.date()
_MICROSECOND = datetime.timedelta(microseconds=1)

_MAX_WRITTEN_NESTING, _MAX_READ_NESTING = 32, 96
"""Of extensions in extensions: each is read by a reader of its own, which takes 40 KB of the stack."""


_LARGE_BYTES = 4 << 10
"""What is shorter holds too few keys to take long, however they hash."""


class _NotPlainError(Exception):
    """A value has a part that MessagePack cannot hold."""


# ------------------------------------------------------------------------------------------------------------ writing
def _nested(code: int, value: Collection[Any]) -> msgpack.ExtType:
    if _packers.nesting >= _MAX_WRITTEN_NESTING:
        raise _NotPlainError
    _packers.nesting += 1
    try:
        return msgpack.ExtType(code, msgpack.packb(list(value), default=_extend, strict_types=True))
    finally:
        _packers.nesting -= 1


def _extend(value: Any) -> msgpack.ExtType:
    """What MessagePack does not know, as an extension."""
    kind = type(value)
    if kind is tuple:
        return _nested(_EXT_TUPLE, value)
    extend = _EXTENDERS.get(kind)
    if extend is not None:
        return extend(value)
    if isinstance(value, np.generic) and (text := numpy_text(value)) is not None:
        return msgpack.ExtType(_EXT_NUMPY, text.encode() + b" " + value.tobytes())
    raise _NotPlainError


def _datetime(value: datetime.datetime) -> msgpack.ExtType:
    if value.fold:
        raise _NotPlainError
    if value.tzinfo is None:
        return msgpack.ExtType(_EXT_DATETIME, _pack_uint64((value - _EPOCH) // _MICROSECOND + _OFFSET))
    local = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    return msgpack.ExtType(_EXT_ZONED, _pack_uint64(local + _OFFSET) + _zone(value.tzinfo))


def _time(value: datetime.time) -> msgpack.ExtType:
    if value.fold:
        raise _NotPlainError
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return msgpack.ExtType(_EXT_TIME, _pack_uint64(micros) + (b"" if value.tzinfo is None else _zone(value.tzinfo)))


def _zone(zone: datetime.tzinfo) -> bytes:
    if not is_fixed_zone(zone):
        raise _NotPlainError
    offset = zone.utcoffset(None)
    assert offset is not None
    return _pack_uint64(offset // _MICROSECOND + _OFFSET)


def _text_of(value: Decimal | Fraction) -> bytes:
    text = str(value)
    try:
        (decimal_of if type(value) is Decimal else fraction_of)(text)
    except ValueError:  # beyond what is read again
        raise _NotPlainError from None
    return text.encode()


_EXTENDERS: dict[type, Callable[[Any], msgpack.ExtType]] = {
    int: lambda v: msgpack.ExtType(_EXT_INT, v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)),  # past 64 bits
    datetime.datetime: _datetime,
    datetime.date: lambda v: msgpack.ExtType(_EXT_DATE, _pack_uint64((v - _EPOCH_DAY).days + _OFFSET)),
    datetime.time: _time,
    datetime.timedelta: lambda v: msgpack.ExtType(_EXT_DURATION, str(v // _MICROSECOND).encode()),
    Decimal: lambda v: msgpack.ExtType(_EXT_DECIMAL, _text_of(v)),
    Fraction: lambda v: msgpack.ExtType(_EXT_FRACTION, _text_of(v)),
    uuid.UUID: lambda v: msgpack.ExtType(_EXT_UUID, v.bytes),
    complex: lambda v: msgpack.ExtType(_EXT_COMPLEX, _complex.pack(v.real, v.imag)),
    set: lambda v: _nested(_EXT_SET, v),
    frozenset: lambda v: _nested(_EXT_FROZENSET, v),
}


class _Packers(threading.local):
    """A packer is a buffer, and calls `_extend` while it holds half a row: every thread has its own, for several jobs
    run in one process.
    """

    def __init__(self) -> None:
        self.pack = msgpack.Packer(default=_extend, strict_types=True, autoreset=True).pack
        self.pack_flat = msgpack.Packer(autoreset=True).pack
        # How many extensions are being written inside of each other.
        self.nesting = 0


_packers = _Packers()


def encode_packed(value: Any) -> bytes:
    """Return the bytes of a value: tag and body.

    Args:
        value: Any value; picklable where it is not plain.

    Raises:
        TypeMismatchError: If the value cannot be stored.
    """
    kind = type(value)
    if kind is bytearray or (kind not in _ATOMS and spreads(value)):
        return b"\x02" + pickle_value(value)
    try:
        if kind is tuple and _ATOMS.issuperset(map(type, value)):
            return b"\x01" + bytes(_packers.pack_flat(value))
        return b"\x00" + bytes(_packers.pack(value))
    except (_NotPlainError, ValueError, OverflowError, UnicodeEncodeError, TypeError, RecursionError):
        # Deep nesting, lone surrogates, integers of a flat tuple beyond 64 bits: pickle takes them all.
        return b"\x02" + pickle_value(value)


# ------------------------------------------------------------------------------------------------------------ reading
def _rebuild(nesting: int, code: int, data: bytes) -> Any:
    if code in (_EXT_TUPLE, _EXT_SET, _EXT_FROZENSET):
        if nesting >= _MAX_READ_NESTING:
            message = f"it is nested more than {nesting} deep"
            raise ValueError(message)
        parts = _read(data, nesting + 1)
        if type(parts) is not list:
            message = f"an extension {code} holds no list"
            raise ValueError(message)
        if code == _EXT_TUPLE:
            return tuple(parts)
        check_hashes(parts)
        return set(parts) if code == _EXT_SET else frozenset(parts)
    rebuild = _REBUILDERS.get(code)
    if rebuild is None:
        message = f"unknown extension {code}"
        raise ValueError(message)
    return rebuild(data)


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(pairs) > MAX_FEW:
        check_hashes([key for key, _ in pairs])
    return dict(pairs)


@functools.lru_cache(maxsize=2 * _MAX_READ_NESTING + 4)
def _reader(nesting: int, *, looks_at_keys: bool) -> Callable[[bytes], Any]:
    """Reads MessagePack inside of so many extensions."""
    options: dict[str, Any] = {"ext_hook": functools.partial(_rebuild, nesting), "strict_map_key": False}
    if looks_at_keys:
        options["object_pairs_hook"] = _map
    return functools.partial(msgpack.unpackb, **options)


def _read(data: bytes, nesting: int = 0) -> Any:
    return _reader(nesting, looks_at_keys=len(data) >= _LARGE_BYTES)(data)


_read_flat = functools.partial(msgpack.unpackb, use_list=False)


def _counted(data: bytes) -> int:
    (count,) = _unpack_uint64(data)
    return int(count) - _OFFSET


def _zoned_datetime(data: bytes) -> datetime.datetime:
    local = _EPOCH + _counted(data[:8]) * _MICROSECOND
    return local.replace(tzinfo=fixed_zone(_counted(data[8:])))


def _read_time(data: bytes) -> datetime.time:
    micros, zone = _unpack_uint64(data[:8])[0], data[8:]
    if micros >= 86_400_000_000:
        message = f"a time of {micros} microseconds"
        raise ValueError(message)
    found = (_EPOCH + micros * _MICROSECOND).time()
    return found.replace(tzinfo=fixed_zone(_counted(zone))) if zone else found


def _duration(data: bytes) -> datetime.timedelta:
    if len(data) > 30:
        message = f"a duration of {len(data)} digits"
        raise ValueError(message)
    return int(data) * _MICROSECOND


def _number(data: bytes) -> np.generic:
    text, _, body = data.partition(b" ")
    return numpy_of(text.decode("ascii"), body)


_REBUILDERS: dict[int, Callable[[bytes], Any]] = {
    _EXT_INT: lambda data: int.from_bytes(data, "big", signed=True),
    _EXT_DATETIME: lambda data: _EPOCH + _counted(data) * _MICROSECOND,
    _EXT_DATE: lambda data: _EPOCH_DAY + datetime.timedelta(_counted(data)),
    _EXT_DURATION: _duration,
    _EXT_DECIMAL: lambda data: decimal_of(data.decode("ascii")),
    _EXT_ZONED: _zoned_datetime,
    _EXT_TIME: _read_time,
    _EXT_UUID: lambda data: uuid.UUID(bytes=data),
    _EXT_COMPLEX: lambda data: complex(*_complex.unpack(data)),
    _EXT_FRACTION: lambda data: fraction_of(data.decode("ascii")),
    _EXT_NUMPY: _number,
}

_FAILURES = (
    ValueError,
    TypeError,
    struct.error,
    OverflowError,
    RecursionError,
    MemoryError,
    decimal.InvalidOperation,
    msgpack.UnpackException,
)


def _undecodable(error: BaseException) -> CheckpointCorruptError:
    # Errors of MessagePack hold what was read so far, nested however deep.
    reason = str(error) if type(error) is ValueError else type(error).__name__
    return CheckpointCorruptError(f"a stored value cannot be decoded: {reason:.300}")


def _unpacked(data: bytes) -> Any:
    """The plain value of some MessagePack.

    Raises:
        CheckpointCorruptError: If it is none.
    """
    try:
        return _read(data)
    except _FAILURES as error:
        raise _undecodable(error) from error


def decode_packed(data: bytes, unpickle: Callable[[bytes], Any] = unpickle_value) -> Any:
    """Return the value that `encode_packed` made bytes of.

    Args:
        data: The bytes.
        unpickle: What becomes of a pickled value; by default it is built.

    Raises:
        CheckpointCorruptError: If it is not what `encode_packed` gave.
        CheckpointMismatchError: If a pickled value cannot be built, e.g. because its class is gone.
    """
    tag = data[0] if data else -1
    if tag == PACKED:
        return _unpacked(data[1:])
    if tag == FLAT_TUPLE:
        try:
            return _read_flat(data[1:])
        except _FAILURES as error:
            raise _undecodable(error) from error
    if tag == PICKLED:
        return unpickle(data[1:])
    message = f"a stored value has the unknown tag {tag}"
    raise CheckpointCorruptError(message)
