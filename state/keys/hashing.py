"""The hash of a Python key: the same in every process and on every Python version.

Keys that are equal in Python (``1``, ``1.0``, ``True``) hash equal, and as the Arrow columns they came from
(`headrace.state.keys.column_hashing`). Python's own ``hash`` is never used. The hash is part of the checkpoint format:
state is found again by key group, so it must never change.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import operator
import types
import uuid
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import TypeMismatchError
from ..reading.plain_values import MAX_EXPONENT
from ..values.sharing import MUCH, shown, spreads, types_of
from .mixing import (
    BYTES,
    DATE,
    DURATION,
    FLOAT,
    MASK,
    NAIVE,
    NAN_HASH,
    NULL_HASH,
    OBJECT,
    SET,
    TEXT,
    TIME,
    TUPLE,
    ZONED,
    Hashes,
    combine,
    digest,
    fold,
    fold_text,
    hash_floats,
    hash_texts,
    mix,
    mix_int,
    tagged,
)

__all__ = ["hash_integers", "hash_key", "hash_keys", "integers_of", "one_nan", "with_one_nan"]

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose: naive datetimes are counted from it
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


def hash_keys(keys: Sequence[Any], kinds: set[type] | None = None) -> Hashes:
    """Hash Python keys. Called by key selectors and by state backends when they write snapshots.

    Args:
        keys: Hashable values. Fast for int, str, bytes, bool, float, None and tuples of equal length of these; slower
            for datetimes, enums, dataclasses and other objects, whose type and state are hashed.
        kinds: Their types, from a caller who has looked already.

    Returns:
        One hash per key; equal keys have equal hashes, and `hash_columns` gives the same for columns of these values.

    Raises:
        TypeMismatchError: If a key is not hashable in Python, has no state that could be hashed stably, or is nested
            too deep.
    """
    try:
        return _hashes_of(keys, kinds)
    except RecursionError as error:
        raise _too_deep() from error


def integers_of(keys: Sequence[Any], kinds: set[type]) -> npt.NDArray[np.int64] | None:
    """Return keys that are all ints of 64 bits as an array; None for others. It stands for the very same keys."""
    if kinds != {int}:
        return None
    try:
        return np.array(keys, np.int64)
    except OverflowError:
        return None


def hash_integers(keys: npt.NDArray[np.int64]) -> Hashes:
    """Return what `hash_keys` gives for the same keys as ints."""
    return mix(keys.view(np.uint64))


def _check_parts(keys: Sequence[Any]) -> None:
    if any(spreads(key, MUCH) for key in keys):
        message = "a key shares its parts, which Python would hash again and again"
        raise TypeMismatchError(message, hint="use a key of few parts: a tuple of plain values, say")


def _too_deep() -> TypeMismatchError:
    hint = "use a key of few levels: a tuple of plain values, say"
    return TypeMismatchError("a key is nested too deep, or contains itself", hint=hint)


def _hashes_of(keys: Sequence[Any], kinds: set[type] | None = None, depth: int = 0) -> Hashes:
    if kinds is None:
        kinds = types_of(keys)
    if depth == 1 and tuple in kinds:
        _check_parts(keys)
    if len(kinds) == 1:
        return _hash_same(keys, next(iter(kinds)), depth)
    hashes = np.empty(len(keys), np.uint64)
    for kind in kinds:
        where = [index for index, key in enumerate(keys) if type(key) is kind]
        hashes[where] = _hash_same([keys[index] for index in where], kind, depth)
    return hashes


def hash_key(key: Any) -> int:
    """Return the hash of one key, as `hash_keys` gives it; for those who meet keys one at a time.

    Raises:
        TypeMismatchError: As `hash_keys` does.
    """
    try:
        return _hash_one(key)
    except RecursionError as error:
        raise _too_deep() from error


def _hash_one(key: Any, depth: int = 0) -> int:
    kind = type(key)
    if kind is int and -(2**63) <= key < 2**63:
        return mix_int(key & MASK)
    if kind is str:
        return _hash_str(key)
    if kind is bytes:
        return _hash_bytes(key)
    if kind is tuple:
        if depth == 1:
            _check_parts((key,))
        return fold(TUPLE, [_hash_one(element, depth + 1) for element in key])
    return int(_hashes_of((key,))[0])


def _hash_same(keys: Sequence[Any], kind: type, depth: int) -> Hashes:
    """Hash keys of exactly one type."""
    if kind is int or kind is bool:
        try:
            return hash_integers(np.array(keys, np.int64))
        except OverflowError:
            return _hash_each(keys)
    if kind is str:
        try:
            return hash_texts(pa.array(keys, pa.large_string()), TEXT)
        except UnicodeEncodeError:  # lone surrogates
            return hash_texts(pa.array([key.encode("utf-8", "surrogatepass") for key in keys], pa.large_binary()), TEXT)
    if kind is bytes:
        return hash_texts(pa.array(keys, pa.large_binary()), BYTES)
    if kind is float:
        return hash_floats(np.array(keys, np.float64))
    if kind is type(None):
        return np.full(len(keys), NULL_HASH, np.uint64)
    if kind is tuple:
        widths = set(map(len, keys))
        if len(widths) == 1 and (width := widths.pop()):
            return combine([_hashes_of(part, depth=depth + 1) for part in zip(*keys, strict=True)], width)
    return _hash_each(keys)


def _hash_each(keys: Sequence[Any]) -> Hashes:
    hashes = np.empty(len(keys), np.uint64)
    for index, key in enumerate(keys):
        try:
            hash(key)
        except TypeError as error:
            message = f"a key must be hashable; got a {type(key).__qualname__}: {shown(key)}"
            raise TypeMismatchError(
                message, row=index, hint="use a tuple instead of a list, or a field of the record"
            ) from error
        try:
            hashes[index] = _hash_value(key)
        except (RecursionError, TypeError, ValueError, AttributeError) as error:
            message = f"a key of type {type(key).__qualname__} has no stable hash: {error!r}"
            raise TypeMismatchError(
                message, row=index, hint="use a tuple, an enum or a frozen dataclass of plain values"
            ) from error
    return hashes


def _hash_value(value: Any) -> int:
    """The hash of any value, one at a time; agrees with the vectorised ways."""
    for kind, hasher in _HASHERS:
        if isinstance(value, kind):
            return hasher(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        state = tuple(getattr(value, field.name) for field in dataclasses.fields(value) if field.compare)
        return fold(OBJECT, [_hash_name(type(value)), _hash_value(state)])
    return _hash_reduced(value)


def _hash_int(value: int) -> int:
    value = int(value)
    if -(2**63) <= value < 2**63:
        return mix_int(value & MASK)
    try:
        if int(float(value)) == value:
            return _hash_float(float(value))
    except OverflowError:
        pass  # beyond any float, so equal to none
    return digest(b"int", str(value).encode())


def _hash_float(value: float) -> int:
    return int(hash_floats(np.array([value], np.float64))[0])


def _hash_decimal(value: decimal.Decimal) -> int:
    if value.is_nan():
        return NAN_HASH
    if value.is_infinite():
        return _hash_float(float(value))
    if abs(value.adjusted()) > MAX_EXPONENT:
        message = f"a Decimal of exponent {value.adjusted()} is beyond those that are keys"
        raise TypeMismatchError(message, hint="use its text as the key")
    return _hash_rational(Fraction(value))


def _hash_rational(value: Fraction) -> int:
    if value.denominator == 1:
        return _hash_int(value.numerator)
    try:
        nearest = float(value)
        if Fraction(nearest) == value:
            return _hash_float(nearest)
    except OverflowError:
        pass  # beyond any float, so equal to none
    return digest(b"rational", str(value).encode())


def _hash_complex(value: complex) -> int:
    if value.imag == 0:
        return _hash_float(value.real)
    return fold(FLOAT, [_hash_float(value.real), _hash_float(value.imag)])


def _hash_str(value: str) -> int:
    return fold_text(str.encode(value, "utf-8", "surrogatepass"), TEXT)


def _hash_bytes(value: bytes) -> int:
    return fold_text(bytes(value), BYTES)


def _hash_datetime(value: datetime.datetime) -> int:
    if value.utcoffset() is None:
        return tagged(NAIVE, (value.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND)
    return tagged(ZONED, (value - _EPOCH_UTC) // _MICROSECOND)


def _hash_date(value: datetime.date) -> int:
    return tagged(DATE, (value - _EPOCH.date()).days)


def _hash_time(value: datetime.time) -> int:
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    return tagged(TIME, micros) if offset is None else fold(TIME, [_hash_int(micros - offset // _MICROSECOND)])


def _hash_timedelta(value: datetime.timedelta) -> int:
    return tagged(DURATION, value // _MICROSECOND)


def _hash_tuple(value: Sequence[Any]) -> int:
    return fold(TUPLE, [_hash_value(element) for element in value])


def _hash_set(value: frozenset[Any] | set[Any]) -> int:
    return mix_int((SET + sum(mix_int(_hash_value(element)) for element in value)) & MASK)


def _hash_dict(value: dict[Any, Any]) -> int:
    """State of objects only: a dict is no key. Equal dicts may differ in order."""
    return mix_int((SET + 1 + sum(fold(SET, [_hash_value(k), _hash_value(v)]) for k, v in value.items())) & MASK)


def _hash_enum(value: enum.Enum) -> int:
    if isinstance(value, (int, float, str)):  # equal to their values
        return _hash_value(value.value)
    return fold(OBJECT, [_hash_name(type(value)), _hash_str(value.name)])


def _hash_numpy(value: np.generic) -> int:
    if isinstance(value, np.datetime64):
        return tagged(NAIVE, int(value.astype("datetime64[us]").astype(np.int64)))
    if isinstance(value, np.timedelta64):
        return tagged(DURATION, int(value.astype("timedelta64[us]").astype(np.int64)))
    item = value.item()
    if isinstance(item, np.generic):
        message = f"numpy type {value.dtype} has no Python value"
        raise TypeError(message)
    return _hash_value(item)


def _hash_name(value: Any) -> int:
    return digest(b"name", f"{value.__module__}.{value.__qualname__}".encode())


def _hash_reduced(value: Any) -> int:
    """Hash what pickle would write, without its bytes: those depend on which equal parts are the same object."""
    reduced = value.__reduce_ex__(4)
    if spreads(reduced, MUCH):
        message = "its parts share others, which would be gone through again and again"
        raise TypeError(message)
    if isinstance(reduced, str):
        return fold(OBJECT, [_hash_name(type(value)), _hash_str(reduced)])
    parts = [_hash_value(part) for part in reduced[:3]]
    parts += [_hash_tuple(list(part)) for part in reduced[3:5] if part is not None]
    return fold(OBJECT, parts)


_HASHERS: tuple[tuple[Any, Callable[[Any], int]], ...] = (
    (type(None), lambda _: NULL_HASH),
    (enum.Enum, _hash_enum),
    (np.generic, _hash_numpy),
    (int, _hash_int),
    (float, _hash_float),
    (str, _hash_str),
    (bytes, _hash_bytes),
    (tuple, _hash_tuple),
    (list, _hash_tuple),
    (datetime.datetime, _hash_datetime),
    (datetime.date, _hash_date),
    (datetime.time, _hash_time),
    (datetime.timedelta, _hash_timedelta),
    (decimal.Decimal, _hash_decimal),
    (Fraction, _hash_rational),
    (complex, _hash_complex),
    (uuid.UUID, lambda value: digest(b"uuid", value.bytes)),
    ((frozenset, set), _hash_set),
    (dict, _hash_dict),
    ((type, types.FunctionType, types.BuiltinFunctionType), _hash_name),
)
"""Checked in order: subclasses before their bases, and what is equal to a number or text before other objects."""


# ---------------------------------------------------------------------------------------------------------- NaN as key
_NAN = float("nan")
_MAY_BE_NAN = (float, np.floating, decimal.Decimal)


def with_one_nan(keys: list[Any], kinds: set[type] | None = None) -> list[Any]:
    """Return the keys, with one and the same object for every NaN in them.

    NaN is a key like any other, as it is in columns; yet mappings find it only by identity, as it equals nothing.

    Args:
        keys: The keys.
        kinds: Their types, from a caller who has looked already.

    Returns:
        The very list if there is nothing in it that could be NaN.

    Raises:
        TypeMismatchError: If a key is nested too deep, or shares its parts without end.
    """
    try:
        return list(map(one_nan, keys)) if _may_hold_nan(keys, kinds) else keys
    except RecursionError as error:
        raise _too_deep() from error


def one_nan(key: Any) -> Any:
    """As `with_one_nan`, for one key; looks into tuples."""
    if isinstance(key, tuple):
        parts = list(map(one_nan, key))
        if all(map(operator.is_, parts, key)):
            return key
        return type(key)._make(parts) if hasattr(key, "_make") else tuple(parts)
    if isinstance(key, decimal.Decimal):
        return _NAN if key.is_nan() else key
    return _NAN if isinstance(key, _MAY_BE_NAN) and key != key else key


def _may_hold_nan(keys: Sequence[Any], kinds: set[type] | None = None, depth: int = 0) -> bool:
    if kinds is None:
        kinds = types_of(keys)
    if any(issubclass(kind, _MAY_BE_NAN) for kind in kinds):
        return True
    if not any(issubclass(kind, tuple) for kind in kinds):
        return False
    if depth == 1:
        _check_parts(keys)
    return _may_hold_nan(list(chain.from_iterable(key for key in keys if isinstance(key, tuple))), depth=depth + 1)
