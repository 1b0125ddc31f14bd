"""Bytes of RocksDB rows: keys, namespaces and values.

A row's key is ``state id | key group | namespace | key [| map key or list index]``. A text or bytes end with 0x00, and
a NUL in them is 0x00ff. So the encoding of a key may be the beginning of another one, but only before 0xff, which no
part begins with: parts can be put one after the other and told apart again, and the rows of a key are those from its
encoding up to `past_key`. `next_prefix` is for the parts of fixed length before the key. Integers, floats, texts and
bytes sort like their values. Two keys that are equal in Python (``1``, ``1.0``, ``True``, ``numpy.int64(1)``) have the
same encoding, as they have the same hash in `headrace.state.keys.hashing`; the encoding is therefore that of the
number, and a key that would come back in another form travels in its original form with the row's value. Plain keys
(int, fractional float, str, bytes, None, naive datetimes, dates, durations, UUIDs and tuples of these) can be read back
from the encoding alone.

Values are those of `headrace.state.values.packed`, so that a state database can be read without running anybody's code.

The encodings are part of the checkpoint format and must never change.

Source: FoundationDB's tuple layer; MessagePack; Flink's ``CompositeKeySerializationUtils``.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import struct
import types
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ...errors import CheckpointCorruptError, TypeMismatchError
from ...keyed.contract import Namespace
from ...keys.hashing import one_nan
from ...reading.plain_values import MAX_EXPONENT
from ...reading.read_limits import MAX_DEPTH
from ...reading.stored_pickles import unpickle_value
from ...values.packed import decode_packed, encode_packed
from ...values.sharing import types_of

__all__ = [
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_key_with_classes",
    "encode_keys",
    "encode_namespace",
    "encode_value",
    "is_plain",
    "next_prefix",
    "original_key",
    "past_key",
    "skip_key",
    "split_namespace",
    "split_row",
]

# Tags of keys, in their sort order. Zero ends a text or a tuple and 0xff escapes a NUL: no tag is one of them.
_END = b"\x00"
_NONE, _BYTES, _TEXT, _TUPLE = 0x01, 0x02, 0x03, 0x05
_BIG_NEGATIVE, _INT64, _BIG_POSITIVE, _FLOAT = 0x14, 0x15, 0x16, 0x21
_RATIONAL, _COMPLEX = 0x22, 0x23
_NAIVE, _ZONED, _DATE, _TIME, _ZONED_TIME, _DURATION = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45
_UUID, _SET, _ENUM, _NAME, _RECORD, _REDUCED, _LIST, _DICT = 0x46, 0x47, 0x48, 0x49, 0x4A, 0x4B, 0x4C, 0x4D

_TUPLE_START = bytes([_TUPLE])
_OFFSET = 1 << 63
_pack_int64 = struct.Struct(">BQ").pack
_pack_uint64 = struct.Struct(">Q").pack
_unpack_uint64 = struct.Struct(">Q").unpack_from
_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are counted from it
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_EPOCH_DAY = _EPOCH.date()
_MICROSECOND = datetime.timedelta(microseconds=1)


# --------------------------------------------------------------------------------------------------------------- keys
_SHALLOW_BYTES = 2 * MAX_DEPTH
"""Of each level there are two bytes at least."""

_DIRECT = (int, str, bytes)


def encode_key(key: Any) -> bytes:
    """Return the encoding of a key or of a map's key; equal keys have equal encodings.

    Raises:
        TypeMismatchError: If the key has no state from which equal keys could be told, or is nested too deep.
    """
    encoder = _ENCODERS.get(type(key))
    if encoder is None:
        encoder = _ENCODERS[type(key)] = _encoder_of(type(key))
    try:
        data = encoder(key)
        if len(data) > _SHALLOW_BYTES and type(key) not in _DIRECT:
            _skip(data, 0, 0)  # what cannot be read again is not written
        return data
    except (RecursionError, TypeError, ValueError, AttributeError) as error:
        message = f"a key of type {type(key).__qualname__} has no stable encoding: {error!r}"
        hint = "use a tuple, an enum or a frozen dataclass of plain values"
        raise TypeMismatchError(message, hint=hint) from error


_NAMED: ContextVar[list[type] | None] = ContextVar("classes that an encoding names", default=None)


def encode_key_with_classes(key: Any) -> tuple[bytes, tuple[type, ...]]:
    """As `encode_key`; gives also the classes that the encoding names, in their order.

    Raises:
        TypeMismatchError: As `encode_key`.
    """
    named: list[type] = []
    before = _NAMED.set(named)
    try:
        return encode_key(key), tuple(named)
    finally:
        _NAMED.reset(before)


def encode_keys(keys: Sequence[Any]) -> list[bytes]:
    """As `encode_key`, for many keys at once; fast for integers of 64 bits.

    Raises:
        TypeMismatchError: As `encode_key`.
    """
    if types_of(keys) == {int}:
        try:
            numbers = np.array(keys, np.int64)
        except OverflowError:
            return list(map(encode_key, keys))
        encoded = np.empty(len(keys), np.dtype([("tag", "u1"), ("number", ">u8")]))
        encoded["tag"] = _INT64
        encoded["number"] = numbers.view(np.uint64) ^ np.uint64(_OFFSET)
        whole: list[bytes] = encoded.view("V9").tolist()
        return whole
    return list(map(encode_key, keys))


def _int(key: int) -> bytes:
    if -_OFFSET <= key < _OFFSET:
        return _pack_int64(_INT64, key + _OFFSET)
    key = int(key)
    size = (key.bit_length() + 7) // 8
    if key > 0:
        return bytes([_BIG_POSITIVE]) + size.to_bytes(4, "big") + key.to_bytes(size, "big")
    magnitude = (1 << (8 * size)) + key  # the complement sorts the right way round
    return bytes([_BIG_NEGATIVE]) + (0xFFFFFFFF - size).to_bytes(4, "big") + magnitude.to_bytes(size + 1, "big")


def _float(key: float) -> bytes:
    if key.is_integer():
        return _int(int(key))
    (bits,) = _unpack_uint64(_pack_double(key if key == key else float("nan")))
    return _pack_int64(_FLOAT, bits ^ 0xFFFFFFFFFFFFFFFF if bits >= _OFFSET else bits | _OFFSET)


def _decimal(key: Decimal) -> bytes:
    if key.is_nan() or key.is_infinite():
        return _float(float(key))
    if abs(key.adjusted()) > MAX_EXPONENT:
        message = f"a Decimal of exponent {key.adjusted()} is beyond those that are keys"
        raise ValueError(message)
    return _rational(Fraction(key))


def _rational(key: Fraction) -> bytes:
    if key.denominator == 1:
        return _int(key.numerator)
    try:
        nearest = float(key)
        if Fraction(nearest) == key:
            return _float(nearest)
    except OverflowError:
        pass  # beyond any float, so equal to none
    return bytes([_RATIONAL]) + _terminated(str(key).encode())


def _complex(key: complex) -> bytes:
    if key.imag == 0:
        return _float(key.real)
    return bytes([_COMPLEX]) + _float(key.real) + _float(key.imag)


def _terminated(data: bytes) -> bytes:
    return (data.replace(_END, b"\x00\xff") if _END in data else data) + _END


def _text(key: str) -> bytes:
    try:
        data = str.encode(key)
    except UnicodeEncodeError:  # lone surrogates
        data = str.encode(key, "utf-8", "surrogatepass")
    return b"\x03" + (data.replace(_END, b"\x00\xff") if _END in data else data) + _END


def _bytes(key: bytes) -> bytes:
    return b"\x02" + _terminated(bytes(key))


def _parts(tag: int, values: Iterable[Any]) -> bytes:
    return bytes([tag]) + b"".join(map(encode_key, values)) + _END


def _tuple(key: tuple[Any, ...]) -> bytes:
    return _TUPLE_START + b"".join(map(encode_key, key)) + _END


def _counted(tag: int, count: int) -> bytes:
    return bytes([tag]) + _int(count)


def _datetime(key: datetime.datetime) -> bytes:
    if key.utcoffset() is None:
        return _counted(_NAIVE, (key.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND)
    return _counted(_ZONED, (key - _EPOCH_UTC) // _MICROSECOND)


def _time(key: datetime.time) -> bytes:
    micros = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    offset = key.utcoffset()
    return _counted(_TIME, micros) if offset is None else _counted(_ZONED_TIME, micros - offset // _MICROSECOND)


def _enum(key: enum.Enum) -> bytes:
    if isinstance(key, (int, float, str)):  # equal to their values
        return encode_key(key.value)
    return bytes([_ENUM]) + _name(type(key)) + _text(key.name)


def _numpy(key: np.generic) -> bytes:
    if isinstance(key, np.datetime64):
        return _counted(_NAIVE, int(key.astype("datetime64[us]").astype(np.int64)))
    if isinstance(key, np.timedelta64):
        return _counted(_DURATION, int(key.astype("timedelta64[us]").astype(np.int64)))
    item = key.item()
    if isinstance(item, np.generic):
        message = f"numpy type {key.dtype} has no Python value"
        raise TypeError(message)
    return encode_key(item)


def _set(key: Iterable[Any]) -> bytes:
    return bytes([_SET]) + b"".join(sorted(map(encode_key, key))) + _END


def _dict(key: dict[Any, Any]) -> bytes:
    """State of objects only: a dict is no key. Equal dicts may differ in order."""
    return bytes([_DICT]) + b"".join(sorted(encode_key(k) + encode_key(v) for k, v in key.items())) + _END


def _name(key: Any) -> bytes:
    named = _NAMED.get()
    if named is not None and isinstance(key, type):
        named.append(key)
    return bytes([_NAME]) + _terminated(f"{key.__module__}.{key.__qualname__}".encode())


def _record(key: Any) -> bytes:
    fields = [getattr(key, field.name) for field in dataclasses.fields(key) if field.compare]
    return bytes([_RECORD]) + _name(type(key)) + _tuple(tuple(fields))


def _reduced(key: Any) -> bytes:
    """What pickle would write, without its bytes: those depend on which equal parts are the same object."""
    reduced = key.__reduce_ex__(4)
    if isinstance(reduced, str):
        return bytes([_REDUCED]) + _name(type(key)) + _text(reduced) + _END
    parts = [*reduced[:3], *(list(part) for part in reduced[3:5] if part is not None)]
    return _parts(_REDUCED, parts)


_BY_BASE: tuple[tuple[Any, Callable[[Any], bytes]], ...] = (
    (type(None), lambda _: b"\x01"),
    (enum.Enum, _enum),
    (np.generic, _numpy),
    (int, _int),
    (float, _float),
    (str, _text),
    (bytes, _bytes),
    (tuple, _tuple),
    (list, functools.partial(_parts, _LIST)),
    (datetime.datetime, _datetime),
    (datetime.date, lambda key: _counted(_DATE, (key - _EPOCH_DAY).days)),
    (datetime.time, _time),
    (datetime.timedelta, lambda key: _counted(_DURATION, key // _MICROSECOND)),
    (decimal.Decimal, _decimal),
    (Fraction, _rational),
    (complex, _complex),
    (uuid.UUID, lambda key: bytes([_UUID]) + key.bytes),
    ((frozenset, set), _set),
    (dict, _dict),
    ((type, types.FunctionType, types.BuiltinFunctionType), _name),
)
"""Checked in order, the same as in `headrace.state.keys.hashing`: subclasses before their bases."""

_ENCODERS: dict[type, Callable[[Any], bytes]] = {int: _int, str: _text, bytes: _bytes, tuple: _tuple}


def _encoder_of(kind: type) -> Callable[[Any], bytes]:
    for base, encoder in _BY_BASE:
        if issubclass(kind, base):
            return encoder
    return _record if dataclasses.is_dataclass(kind) else _reduced


_ALWAYS_PLAIN = frozenset((int, str, bytes, type(None), datetime.date, datetime.timedelta, uuid.UUID))


def is_plain(key: Any) -> bool:
    """Return whether `decode_key` gives the key back in the very type it has."""
    kind = type(key)
    if kind in _ALWAYS_PLAIN:
        return True
    if kind is tuple:
        return all(map(is_plain, key))
    if kind is float:
        return not key.is_integer() and key == key
    if kind is datetime.datetime:
        return key.tzinfo is None and not key.fold
    return False


def decode_key(data: bytes, start: int = 0) -> tuple[Any, int]:
    """Read a key that `is_plain`.

    Args:
        data: A row's key or a part of it.
        start: Where the key's encoding begins.

    Returns:
        The key, and where its encoding ends.

    Raises:
        CheckpointCorruptError: If there is no such key.
    """
    try:
        key, end = _decode(data, start, 0)
    except (IndexError, ValueError, struct.error, OverflowError) as error:
        raise _undecodable(data, start, error) from error
    if end > len(data):
        raise _undecodable(data, start, "it ends too early")
    return key, end


def _undecodable(data: bytes, start: int, reason: object) -> CheckpointCorruptError:
    shown = data.hex() if len(data) <= 64 else f"{data[:64].hex()}... of {len(data)} bytes"
    message = f"a row of the state database has an undecodable key at byte {start} of {shown}: {reason!s:.200}"
    return CheckpointCorruptError(message)


def _decode(data: bytes, start: int, depth: int) -> tuple[Any, int]:
    tag = data[start]
    start += 1
    if tag == _INT64:
        return _unpack_uint64(data, start)[0] - _OFFSET, start + 8
    if tag == _TEXT:
        body, end = _unterminated(data, start)
        return body.decode("utf-8", "surrogatepass"), end
    if tag == _BYTES:
        return _unterminated(data, start)
    if tag == _NONE:
        return None, start
    if tag == _TUPLE:
        _check_depth(depth)
        parts = []
        while data[start]:
            part, start = _decode(data, start, depth + 1)
            parts.append(part)
        return tuple(parts), start + 1
    if tag == _FLOAT:
        (bits,) = _unpack_uint64(data, start)
        bits = bits ^ _OFFSET if bits >= _OFFSET else bits ^ 0xFFFFFFFFFFFFFFFF
        return _unpack_double(_pack_uint64(bits))[0], start + 8
    if tag in (_BIG_POSITIVE, _BIG_NEGATIVE):
        size, end = _big_size(data, start, tag)
        number = int.from_bytes(data[start + 4 : end], "big")
        return number if tag == _BIG_POSITIVE else number - (1 << (8 * size)), end
    if tag == _UUID:
        return uuid.UUID(bytes=data[start : start + 16]), start + 16
    if tag in (_NAIVE, _DATE, _DURATION):
        count, end = _decode(data, start, depth)
        if type(count) is not int:
            message = f"a time of {count!r:.40}"
            raise ValueError(message)
        if tag == _NAIVE:
            return _EPOCH + count * _MICROSECOND, end
        return (_EPOCH_DAY + datetime.timedelta(count) if tag == _DATE else count * _MICROSECOND), end
    message = f"unknown tag {tag}"
    raise ValueError(message)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        message = f"it is nested more than {MAX_DEPTH} deep"
        raise ValueError(message)


def _big_size(data: bytes, start: int, tag: int) -> tuple[int, int]:
    """How many bytes a large integer has, and where it ends: within what there is."""
    size = int.from_bytes(data[start : start + 4], "big")
    size = size if tag == _BIG_POSITIVE else 0xFFFFFFFF - size
    end = start + 4 + size + (tag == _BIG_NEGATIVE)
    if end > len(data):
        message = f"an integer of {size} bytes, {len(data) - start} are left"
        raise ValueError(message)
    return size, end


def skip_key(data: bytes, start: int) -> int:
    """Return where the encoding of any key ends that begins at ``start``.

    Raises:
        CheckpointCorruptError: If there is no key.
    """
    try:
        end = _skip(data, start, 0)
    except (IndexError, ValueError) as error:
        raise _undecodable(data, start, error) from error
    if end > len(data):
        raise _undecodable(data, start, "it ends too early")
    return end


def _skip(data: bytes, start: int, depth: int) -> int:
    _check_depth(depth)
    tag = data[start]
    start += 1
    if tag == _NONE:
        return start
    if tag in (_INT64, _FLOAT):
        return start + 8
    if tag in (_TEXT, _BYTES, _RATIONAL, _NAME):
        return _unterminated(data, start)[1]
    if tag in (_TUPLE, _SET, _LIST, _DICT, _REDUCED):
        while data[start]:
            start = _skip(data, start, depth + 1)
        return start + 1
    if tag in (_RECORD, _ENUM, _COMPLEX):
        return _skip(data, _skip(data, start, depth + 1), depth + 1)
    if tag == _UUID:
        return start + 16
    if tag in (_NAIVE, _ZONED, _DATE, _TIME, _ZONED_TIME, _DURATION):
        return _skip(data, start, depth + 1)
    if tag in (_BIG_POSITIVE, _BIG_NEGATIVE):
        return _big_size(data, start, tag)[1]
    message = f"unknown tag {tag}"
    raise ValueError(message)


def _unterminated(data: bytes, start: int) -> tuple[bytes, int]:
    end = data.index(0, start)
    if data[end + 1 : end + 2] != b"\xff":
        return data[start:end], end + 1
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(0, end + 2)
    return data[start:end].replace(b"\x00\xff", _END), end + 1


# --------------------------------------------------------------------------------------------------------- namespaces
def encode_namespace(namespace: Namespace) -> bytes:
    """Return the encoding of a namespace in a windowed state; states that are not windowed have none in their rows."""
    if namespace is None:
        return b"\x00"
    return b"\x01" + _pack_uint64(namespace[0] + _OFFSET) + _pack_uint64(namespace[1] + _OFFSET)


def split_namespace(data: bytes, start: int) -> tuple[Namespace, int]:
    """Read the namespace at ``start``; gives also where it ends.

    Raises:
        CheckpointCorruptError: If there is none.
    """
    tag = data[start : start + 1]
    if tag == b"\x00":
        return None, start + 1
    if tag != b"\x01" or len(data) < start + 17:
        raise _undecodable(data, start, "it lacks its namespace")
    return (_unpack_uint64(data, start + 1)[0] - _OFFSET, _unpack_uint64(data, start + 9)[0] - _OFFSET), start + 17


def past_key(prefix: bytes) -> bytes:
    """Return the lowest bytes above all rows of the key that ``prefix`` ends with, and not above those of any later
    key.
    """
    return prefix + b"\xff"


def next_prefix(prefix: bytes) -> bytes:
    """Return the lowest bytes above all that begin with ``prefix``, which is not all 0xff."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


# ------------------------------------------------------------------------------------------------------------- values
_WITH_PICKLED_KEY, _WITH_KEY = 0x10, 0x20
"""Added to the tag of a value whose row keeps the key in its original form: then a length (4 bytes) and the key follow
the tag. Earlier versions have pickled the key."""


def encode_value(value: Any, original_key: Any = None, *, keeps_key: bool = False) -> bytes:
    """Return the bytes of a row.

    Args:
        value: Any value; picklable where it is not plain.
        original_key: The key, if it is not plain, for `decode_value` to give back.
        keeps_key: Whether ``original_key`` is meant.

    Raises:
        TypeMismatchError: If the value cannot be stored.
    """
    if not keeps_key:
        return encode_packed(value)
    data, key = encode_packed(value), encode_packed(original_key)
    return bytes([data[0] + _WITH_KEY]) + len(key).to_bytes(4, "big") + key + data[1:]


def _split(data: bytes) -> tuple[int, int]:
    """Where the key that a row keeps ends, and which form it has; 0 for none."""
    form = data[0] & 0xF0 if data else 0
    if form == 0:
        return 0, 0
    end = 5 + int.from_bytes(data[1:5], "big")
    if form not in (_WITH_PICKLED_KEY, _WITH_KEY) or end > len(data):
        message = f"a row of the state database keeps an undecodable key: it is {len(data)} bytes from {data[:8].hex()}"
        raise CheckpointCorruptError(message)
    return end, form


def decode_value(data: bytes, unpickle: Callable[[bytes], Any] = unpickle_value) -> Any:
    """Return the value of a row.

    Args:
        data: The row.
        unpickle: What becomes of a pickled value; by default it is built.

    Raises:
        CheckpointCorruptError: If it is not what `encode_value` gave.
        CheckpointMismatchError: If a pickled value cannot be built, e.g. because its class is gone.
    """
    end, form = _split(data)
    return decode_packed(bytes([data[0] - form]) + data[end:] if form else data, unpickle)


def split_row(data: bytes) -> tuple[bytes, Any, bool]:
    """Return a row's value without the key it keeps, that key, and whether it keeps one."""
    end, form = _split(data)
    if not form:
        return data, None, False
    return bytes([data[0] - form]) + data[end:], _kept_key(data, end, form, unpickle_value), True


def original_key(data: bytes, unpickle: Callable[[bytes], Any] = unpickle_value) -> tuple[Any, bool]:
    """Return the key that a row's value keeps in its original form, and whether it keeps one."""
    end, form = _split(data)
    return (one_nan(_kept_key(data, end, form, unpickle)), True) if form else (None, False)


def _kept_key(data: bytes, end: int, form: int, unpickle: Callable[[bytes], Any]) -> Any:
    key = data[5:end]
    return unpickle(key) if form == _WITH_PICKLED_KEY else decode_packed(key, unpickle)
