"""Which subtask owns a key: key -> stable 64-bit hash -> key group -> subtask.

The hash is the same in every process, on every Python version and on both faces of a batch: a Python key and the Arrow
column it came from hash alike, and keys that are equal in Python (``1``, ``1.0``, ``True``) hash equal. Python's own
``hash`` is never used. It is part of the checkpoint format: state is found again by key group, so it must never change.

The number of key groups (max parallelism) is fixed for a job's life; subtasks own contiguous ranges of them, so that
rescaling moves whole ranges and every range of files is read in one piece.

Integers go through splitmix64's finaliser; texts fold their UTF-8 in words of eight bytes through it, all texts of a
batch at once, those above 256 bytes (where that would be slow) through BLAKE2b; tuples fold their elements' hashes.

Source: Flink's ``KeyGroupRangeAssignment`` (the two formulas) and ``KeyGroupRange``; Steele et al., "Fast splittable
pseudorandom number generators" (the finaliser).
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import operator
import types
import uuid
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import TypeMismatchError
from .plain_values import MAX_EXPONENT
from .sharing import MUCH, shown, spreads

__all__ = [
    "KeyGroupRange",
    "hash_columns",
    "hash_key",
    "hash_keys",
    "key_group_range",
    "key_groups_of",
    "one_nan",
    "subtask_of",
    "with_one_nan",
]

Hashes = npt.NDArray[np.uint64]

_MASK = 2**64 - 1
# Added before mixing, so that equal bits of different kinds (the number 5, the day 5) part ways. Arbitrary, fixed.
_FLOAT = 0x9AE16A3B2F90404F
_TEXT = 0xC949D7C7509E6557
_BYTES = 0xFF51AFD7ED558CCD
_DATE = 0x8CB92BA72F3D8DD7
_NAIVE = 0xD6E8FEB86659FD93
_ZONED = 0xA0761D6478BD642F
_TIME = 0xE7037ED1A0B428DB
_DURATION = 0x8EBC6AF09C88C6E3
_TUPLE = 0x589965CC75374CC3
_SET = 0x1D8E4E27C47D124F
_OBJECT = 0xEB44ACCAB455D165
_NULL_HASH = 0x6C62272E07BB0142
_NAN_HASH = 0x27D4EB2F165667C5
_LONG_TEXT_BYTES = 256

_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose: naive datetimes are counted from it
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


class KeyGroupRange(NamedTuple):
    """The key groups ``start`` to ``end``, both inclusive; empty when ``end`` is before ``start``."""

    start: int
    end: int

    def contains(self, key_group: int) -> bool:
        """Return whether a key group is in the range."""
        return self.start <= key_group <= self.end

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether the range shares a key group with ``start`` to ``end`` (inclusive)."""
        return self.start <= end and start <= self.end

    def __len__(self) -> int:
        return max(0, self.end - self.start + 1)


def key_groups_of(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key groups, 0 to ``max_parallelism - 1``, of hashed keys."""
    return (hashes % np.uint64(max_parallelism)).astype(np.int32)


def subtask_of(key_groups: npt.NDArray[np.int32], max_parallelism: int, parallelism: int) -> npt.NDArray[np.int32]:
    """Return the subtasks, 0 to ``parallelism - 1``, that own key groups; the inverse of `key_group_range`."""
    return (key_groups.astype(np.int64) * parallelism // max_parallelism).astype(np.int32)


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups that one of ``parallelism`` subtasks owns; the ranges of all of them partition all key groups."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


# -------------------------------------------------------------------------------------------------------- Python keys
def hash_keys(keys: Sequence[Any]) -> Hashes:
    """Hash Python keys. Called by key selectors and by state backends when they write snapshots.

    Args:
        keys: Hashable values. Fast for int, str, bytes, bool, float, None and tuples of equal length of these; slower
            for datetimes, enums, dataclasses and other objects, whose type and state are hashed.

    Returns:
        One hash per key; equal keys have equal hashes, and `hash_columns` gives the same for columns of these values.

    Raises:
        TypeMismatchError: If a key is not hashable in Python, has no state that could be hashed stably, or is nested
            too deep.
    """
    try:
        return _hashes_of(keys)
    except RecursionError as error:
        raise _too_deep() from error


def _check_parts(keys: Sequence[Any]) -> None:
    if any(spreads(key, MUCH) for key in keys):
        message = "a key shares its parts, which Python would hash again and again"
        raise TypeMismatchError(message, hint="use a key of few parts: a tuple of plain values, say")


def _too_deep() -> TypeMismatchError:
    hint = "use a key of few levels: a tuple of plain values, say"
    return TypeMismatchError("a key is nested too deep, or contains itself", hint=hint)


def _hashes_of(keys: Sequence[Any], depth: int = 0) -> Hashes:
    kinds = set(map(type, keys))
    if depth == 1 and tuple in kinds:
        _check_parts(keys)
    if len(kinds) == 1:
        return _hash_same(keys, kinds.pop(), depth)
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
        return _mix_int(key & _MASK)
    if kind is str:
        return _hash_str(key)
    if kind is bytes:
        return _hash_bytes(key)
    if kind is tuple:
        if depth == 1:
            _check_parts((key,))
        return _fold(_TUPLE, [_hash_one(element, depth + 1) for element in key])
    return int(_hashes_of((key,))[0])


def _hash_same(keys: Sequence[Any], kind: type, depth: int) -> Hashes:
    """Hash keys of exactly one type."""
    if kind is int or kind is bool:
        try:
            return _mix(np.array(keys, np.int64).view(np.uint64))
        except OverflowError:
            return _hash_each(keys)
    if kind is str:
        try:
            return _hash_text(pa.array(keys, pa.large_string()), _TEXT)
        except UnicodeEncodeError:  # lone surrogates
            return _hash_text(
                pa.array([key.encode("utf-8", "surrogatepass") for key in keys], pa.large_binary()), _TEXT
            )
    if kind is bytes:
        return _hash_text(pa.array(keys, pa.large_binary()), _BYTES)
    if kind is float:
        return _hash_floats(np.array(keys, np.float64))
    if kind is type(None):
        return np.full(len(keys), _NULL_HASH, np.uint64)
    if kind is tuple:
        widths = set(map(len, keys))
        if len(widths) == 1 and (width := widths.pop()):
            return _combine([_hashes_of(part, depth + 1) for part in zip(*keys, strict=True)], width)
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
        return _fold(_OBJECT, [_hash_name(type(value)), _hash_value(state)])
    return _hash_reduced(value)


def _hash_int(value: int) -> int:
    value = int(value)
    if -(2**63) <= value < 2**63:
        return _mix_int(value & _MASK)
    try:
        if int(float(value)) == value:
            return _hash_float(float(value))
    except OverflowError:
        pass  # beyond any float, so equal to none
    return _digest(b"int", str(value).encode())


def _hash_float(value: float) -> int:
    return int(_hash_floats(np.array([value], np.float64))[0])


def _hash_decimal(value: decimal.Decimal) -> int:
    if value.is_nan():
        return _NAN_HASH
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
    return _digest(b"rational", str(value).encode())


def _hash_complex(value: complex) -> int:
    if value.imag == 0:
        return _hash_float(value.real)
    return _fold(_FLOAT, [_hash_float(value.real), _hash_float(value.imag)])


def _hash_str(value: str) -> int:
    return _fold_text(str.encode(value, "utf-8", "surrogatepass"), _TEXT)


def _hash_bytes(value: bytes) -> int:
    return _fold_text(bytes(value), _BYTES)


def _fold_text(data: bytes, seed: int) -> int:
    """As `_hash_text`, for one text."""
    if len(data) > _LONG_TEXT_BYTES:
        return int(_hash_text(pa.array([data], pa.large_binary()), seed)[0])
    folded = _mix_int((len(data) + seed) & _MASK)
    for start in range(0, len(data), 8):
        folded = _mix_int(folded ^ int.from_bytes(data[start : start + 8], "little"))
    return folded


def _hash_datetime(value: datetime.datetime) -> int:
    if value.utcoffset() is None:
        return _tagged(_NAIVE, (value.replace(tzinfo=None, fold=0) - _EPOCH) // _MICROSECOND)
    return _tagged(_ZONED, (value - _EPOCH_UTC) // _MICROSECOND)


def _hash_date(value: datetime.date) -> int:
    return _tagged(_DATE, (value - _EPOCH.date()).days)


def _hash_time(value: datetime.time) -> int:
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    offset = value.utcoffset()
    return _tagged(_TIME, micros) if offset is None else _fold(_TIME, [_hash_int(micros - offset // _MICROSECOND)])


def _hash_timedelta(value: datetime.timedelta) -> int:
    return _tagged(_DURATION, value // _MICROSECOND)


def _hash_tuple(value: Sequence[Any]) -> int:
    return _fold(_TUPLE, [_hash_value(element) for element in value])


def _hash_set(value: frozenset[Any] | set[Any]) -> int:
    return _mix_int((_SET + sum(_mix_int(_hash_value(element)) for element in value)) & _MASK)


def _hash_dict(value: dict[Any, Any]) -> int:
    """State of objects only: a dict is no key. Equal dicts may differ in order."""
    return _mix_int((_SET + 1 + sum(_fold(_SET, [_hash_value(k), _hash_value(v)]) for k, v in value.items())) & _MASK)


def _hash_enum(value: enum.Enum) -> int:
    if isinstance(value, (int, float, str)):  # equal to their values
        return _hash_value(value.value)
    return _fold(_OBJECT, [_hash_name(type(value)), _hash_str(value.name)])


def _hash_numpy(value: np.generic) -> int:
    if isinstance(value, np.datetime64):
        return _tagged(_NAIVE, int(value.astype("datetime64[us]").astype(np.int64)))
    if isinstance(value, np.timedelta64):
        return _tagged(_DURATION, int(value.astype("timedelta64[us]").astype(np.int64)))
    item = value.item()
    if isinstance(item, np.generic):
        message = f"numpy type {value.dtype} has no Python value"
        raise TypeError(message)
    return _hash_value(item)


def _hash_name(value: Any) -> int:
    return _digest(b"name", f"{value.__module__}.{value.__qualname__}".encode())


def _hash_reduced(value: Any) -> int:
    """Hash what pickle would write, without its bytes: those depend on which equal parts are the same object."""
    reduced = value.__reduce_ex__(4)
    if spreads(reduced, MUCH):
        message = "its parts share others, which would be gone through again and again"
        raise TypeError(message)
    if isinstance(reduced, str):
        return _fold(_OBJECT, [_hash_name(type(value)), _hash_str(reduced)])
    parts = [_hash_value(part) for part in reduced[:3]]
    parts += [_hash_tuple(list(part)) for part in reduced[3:5] if part is not None]
    return _fold(_OBJECT, parts)


_HASHERS: tuple[tuple[Any, Callable[[Any], int]], ...] = (
    (type(None), lambda _: _NULL_HASH),
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
    (uuid.UUID, lambda value: _digest(b"uuid", value.bytes)),
    ((frozenset, set), _hash_set),
    (dict, _hash_dict),
    ((type, types.FunctionType, types.BuiltinFunctionType), _hash_name),
)
"""Checked in order: subclasses before their bases, and what is equal to a number or text before other objects."""


# ---------------------------------------------------------------------------------------------------------- NaN as key
_NAN = float("nan")
_MAY_BE_NAN = (float, np.floating, decimal.Decimal)


def with_one_nan(keys: list[Any]) -> list[Any]:
    """Return the keys, with one and the same object for every NaN in them.

    NaN is a key like any other, as it is in columns; yet mappings find it only by identity, as it equals nothing.

    Returns:
        The very list if there is nothing in it that could be NaN.

    Raises:
        TypeMismatchError: If a key is nested too deep, or shares its parts without end.
    """
    try:
        return list(map(one_nan, keys)) if _may_hold_nan(keys) else keys
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


def _may_hold_nan(keys: Sequence[Any], depth: int = 0) -> bool:
    kinds = set(map(type, keys))
    if any(issubclass(kind, _MAY_BE_NAN) for kind in kinds):
        return True
    if not any(issubclass(kind, tuple) for kind in kinds):
        return False
    if depth == 1:
        _check_parts(keys)
    return _may_hold_nan(list(chain.from_iterable(key for key in keys if isinstance(key, tuple))), depth + 1)


# ---------------------------------------------------------------------------------------------------- columns of keys
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
    return hashed[0] if len(hashed) == 1 else _combine(hashed, len(hashed))


def _hash_array(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = np.append(_hash_array(array.dictionary), np.uint64(_NULL_HASH))
        return values[array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy(zero_copy_only=False)]
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL_HASH, np.uint64)
    hashes = _hash_valid(array, kind)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL_HASH
    return hashes


def _hash_valid(array: pa.Array, kind: pa.DataType) -> Hashes:
    """Hash an array; what stands where nulls are does not matter."""
    is_ = pa.types
    if is_.is_uint64(kind):
        return hash_keys(array.to_pylist()) if _has_large(array) else _mix(_ticks(array.cast(pa.int64(), safe=False)))
    if is_.is_integer(kind) or is_.is_boolean(kind):
        return _mix(_ticks(array.cast(pa.int64())))
    if is_.is_floating(kind):
        return _hash_floats(array.cast(pa.float64()).fill_null(0.0).to_numpy())
    if is_.is_string(kind) or is_.is_large_string(kind):
        return _hash_text(array, _TEXT)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return _hash_text(array, _BYTES)
    if is_.is_fixed_size_binary(kind):
        return _hash_text(array.cast(pa.large_binary()), _BYTES)
    if is_.is_date32(kind):
        return _tag(_DATE, array.view(pa.int32()).cast(pa.int64()))
    if is_.is_date64(kind):
        return _tag(_DATE, array.view(pa.int64()), divisor=86_400_000)
    if is_.is_timestamp(kind):
        return _tag(_NAIVE if kind.tz is None else _ZONED, array.view(pa.int64()), **_UNITS[kind.unit])
    if is_.is_duration(kind):  # cut to microseconds by the same cast that makes rows: it rounds towards zero
        return _tag(_DURATION, array.cast(pa.duration("us"), safe=False).view(pa.int64()))
    if is_.is_time32(kind):
        return _tag(_TIME, array.view(pa.int32()).cast(pa.int64()), **_UNITS[kind.unit])
    if is_.is_time64(kind):
        return _tag(_TIME, array.view(pa.int64()), **_UNITS[kind.unit])
    if is_.is_struct(kind) and kind.num_fields and all(kind.field(i).name == f"f{i}" for i in range(kind.num_fields)):
        # On the row face a tuple.
        return _combine([_hash_array(array.field(i)) for i in range(kind.num_fields)], kind.num_fields)
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
    return _mix(ticks.view(np.uint64) + np.uint64(seed))


# ------------------------------------------------------------------------------------------------------------- mixing
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(bits: Hashes) -> Hashes:
    """Splitmix64's step; a new array."""
    mixed = bits + np.uint64(_GOLDEN)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(_M1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(_M2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mix_int(bits: int) -> int:
    """As `_mix`, for one number of 64 bits."""
    bits = (bits + _GOLDEN) & _MASK
    bits = ((bits ^ (bits >> 30)) * _M1) & _MASK
    bits = ((bits ^ (bits >> 27)) * _M2) & _MASK
    return bits ^ (bits >> 31)


def _tagged(seed: int, ticks: int) -> int:
    return _mix_int((ticks + seed) & _MASK)


def _combine(hashed: list[Hashes], width: int) -> Hashes:
    """Fold the elements' hashes of tuples, column by column."""
    folded = np.full(len(hashed[0]), (_TUPLE + width) & _MASK, np.uint64)
    for column in hashed:
        folded = _mix(folded ^ column)
    return folded


def _fold(seed: int, parts: list[int]) -> int:
    """As `_combine`, for one tuple."""
    folded = (seed + len(parts)) & _MASK
    for part in parts:
        folded = _mix_int(folded ^ part)
    return folded


def _digest(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=kind).digest(), "little")


def _hash_floats(values: npt.NDArray[np.float64]) -> Hashes:
    """Whole numbers of 64 bits hash as integers, -0.0 as 0, every NaN alike."""
    hashes = _mix(values.view(np.uint64) + np.uint64(_FLOAT))
    with np.errstate(invalid="ignore"):
        whole = (values >= -(2.0**63)) & (values < 2.0**63) & (values == np.floor(values))
    hashes[whole] = _mix(values[whole].astype(np.int64).view(np.uint64))
    hashes[np.isnan(values)] = _NAN_HASH
    return hashes


def _hash_text(array: pa.Array, seed: int) -> Hashes:
    """Hash all texts of an array at once, eight bytes of each at a time; long ones one by one."""
    count = len(array)
    if not count:
        return np.empty(0, np.uint64)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data_buffer = array.buffers()
    item = 8 if wide else 4
    bounds = np.frombuffer(offset_buffer, f"<i{item}", count + 1, array.offset * item).astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    data = np.zeros(last - first + 8, np.uint8)  # eight more, so that a word may be read at every position
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    words = np.ndarray((last - first + 1,), "<u8", data, strides=(1,))
    starts = bounds[:-1] - first
    lengths = bounds[1:] - bounds[:-1]
    hashes = _mix(lengths.view(np.uint64) + np.uint64(seed))
    if array.null_count:
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    is_long = lengths > _LONG_TEXT_BYTES
    for index in np.flatnonzero(is_long).tolist():
        text = data[starts[index] : starts[index] + lengths[index]].tobytes()
        hashes[index] = _tagged(seed, _digest(b"text", text))
    left = np.where(is_long, 0, lengths)
    active = np.flatnonzero(left)
    starts, left = starts[active], left[active]
    while len(active):
        word = words[starts]
        short = left < 8
        word[short] &= (np.uint64(1) << (left[short] * 8).view(np.uint64)) - np.uint64(1)
        hashes[active] = _mix(hashes[active] ^ word)
        more = left > 8
        active, starts, left = active[more], starts[more] + 8, left[more] - 8
    return hashes
