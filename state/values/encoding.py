"""Python values to Arrow columns of snapshot files and back: typed where exactly that value comes back, else packed.

`encode_values` gives an Arrow array and an *encoding*, a JSON value that says how to read it: a type's name, or
``["tuple", [...]]``, ``["dict", [names], [...]]``, ``["list", e]``, ``["map", k, v]``, or ``"packed"``, which may stand
at any level: a binary column of `headrace.state.values.packed`, where only what is no plain value is pickled. Files of
earlier versions have ``"pickle"`` there, with a pickle for each value. A typed column can be read with Arrow alone.

Source: Flink's ``TypeSerializer``; the encodings are Headrace's own.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import CheckpointCorruptError, TypeMismatchError
from .packed import decode_packed, encode_packed
from .plain_values import MAX_FEW, check_hashes
from .read_limits import MAX_DEPTH
from .serde import pylist_from_array
from .stored_pickles import unpickle_value

__all__ = ["Encoding", "decode_values", "encode_values"]

Encoding = Any
"""How a column holds Python values: a type's name, or a list led by ``tuple``, ``dict``, ``list`` or ``map``."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

_ATOMS: dict[type, tuple[str, pa.DataType]] = {
    int: ("int64", pa.int64()),
    float: ("float64", pa.float64()),
    bool: ("bool", pa.bool_()),
    str: ("string", pa.large_string()),
    bytes: ("binary", pa.large_binary()),
    datetime.datetime: ("timestamp", pa.timestamp("us")),
    datetime.date: ("date", pa.date32()),
}


_NONE = type(None)


def encode_values(values: Sequence[Any]) -> tuple[pa.Array, Encoding]:
    """Turn Python values into one Arrow column. Called by state backends when they write a snapshot.

    Args:
        values: Any values; picklable where they are not of plain types.

    Shape: one element per value, in order; None is null in typed encodings.

    Returns:
        The array and how to read it.

    Raises:
        TypeMismatchError: If a value cannot even be pickled.

    Guarantees: ``decode_values`` gives equal values of equal types back. Typed are columns of one of int
    (64 bits), float, bool, str, bytes, naive datetime, date, and tuples of equal length, lists and dicts of these,
    each mixed with None at will. Pickled are only values that `headrace.state.values.packed` has no form for.
    """
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    if not kinds:
        return pa.nulls(len(values)), "null"
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind in _ATOMS:
            return _encode_atoms(values, kind)
        if kind is tuple:
            return _encode_tuples(values)
        if kind is list:
            return _encode_lists(values)
        if kind is dict:
            return _encode_dicts(values)
    return _encode_packed(values)


def _encode_atoms(values: Sequence[Any], kind: type) -> tuple[pa.Array, Encoding]:
    name, arrow = _ATOMS[kind]
    if kind is datetime.datetime and any(v is not None and (v.tzinfo is not None or v.fold) for v in values):
        return _encode_packed(values)
    try:
        return pa.array(values, arrow), name
    except (OverflowError, UnicodeEncodeError, pa.ArrowException):  # beyond 64 bits; lone surrogates
        return _encode_packed(values)


def _nulls(values: Sequence[Any]) -> pa.Array | None:
    """True where a value is None; None if there is none."""
    mask = np.fromiter((value is None for value in values), bool, len(values))
    return pa.array(mask) if mask.any() else None


def _encode_tuples(values: Sequence[Any]) -> tuple[pa.Array, Encoding]:
    widths = {len(value) for value in values if value is not None}
    width = widths.pop()
    if widths or not width:
        return _encode_packed(values)
    blank = (None,) * width
    columns = zip(*(blank if value is None else value for value in values), strict=True)
    return _struct(values, [f"f{i}" for i in range(width)], columns, lambda inner: ["tuple", inner])


def _encode_dicts(values: Sequence[Any]) -> tuple[pa.Array, Encoding]:
    present = [value for value in values if value is not None]
    shapes = set(map(tuple, present)) if len(present[0]) <= 64 else set()
    names = list(present[0])
    if len(shapes) == 1 and names and all(type(name) is str and _is_utf8(name) for name in names):
        blank = dict.fromkeys(names)
        columns = ([(blank if value is None else value)[name] for value in values] for name in names)
        return _struct(values, names, columns, lambda inner: ["dict", names, inner])
    sizes = [0 if value is None else len(value) for value in values]
    keys, key_encoding = encode_values(list(chain.from_iterable(present)))
    items, item_encoding = encode_values(list(chain.from_iterable(value.values() for value in present)))
    entries = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return _list_array(sizes, entries, _nulls(values)), ["map", key_encoding, item_encoding]


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _struct(
    values: Sequence[Any], names: list[str], columns: Any, encoding: Callable[[list[Encoding]], Encoding]
) -> tuple[pa.Array, Encoding]:
    encoded = [encode_values(list(column)) for column in columns]
    arrays = [array for array, _ in encoded]
    return pa.StructArray.from_arrays(arrays, names, mask=_nulls(values)), encoding([inner for _, inner in encoded])


def _encode_lists(values: Sequence[Any]) -> tuple[pa.Array, Encoding]:
    sizes = [0 if value is None else len(value) for value in values]
    flat, encoding = encode_values(list(chain.from_iterable(value for value in values if value is not None)))
    return _list_array(sizes, flat, _nulls(values)), ["list", encoding]


def _list_array(sizes: list[int], flat: pa.Array, nulls: pa.Array | None) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, mask=nulls)


def _encode_packed(values: Sequence[Any]) -> tuple[pa.Array, Encoding]:
    return pa.array(list(map(encode_packed, values)), pa.large_binary()), "packed"


def decode_values(array: pa.Array, encoding: Encoding, unpickle: Callable[[bytes], Any] | None = None) -> list[Any]:
    """Turn a column that `encode_values` made back into Python values.

    Args:
        array: The column, or any selection of its elements.
        encoding: What `encode_values` gave with it.
        unpickle: What becomes of pickled values; None builds them.

    Raises:
        CheckpointCorruptError: If the column is not of the encoding's type, or the encoding is unknown.
        CheckpointMismatchError: If a pickled value cannot be built, e.g. because its class is gone.
    """
    try:
        return _decode(array, encoding, unpickle_value if unpickle is None else unpickle, 0)
    except _FAILURES as error:
        message = f"a column of type {array.type!s:.200} is not encoded as {encoding!r:.200}: {error!r:.300}"
        raise CheckpointCorruptError(message) from error


_FAILURES = (
    pa.ArrowException,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    MemoryError,
    TypeMismatchError,
)
_ATOM_TYPES = dict(_ATOMS.values())


def _decode(array: pa.Array, encoding: Encoding, unpickle: Callable[[bytes], Any], depth: int) -> list[Any]:
    if depth > MAX_DEPTH:
        message = f"it is nested more than {MAX_DEPTH} deep"
        raise ValueError(message)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(encoding, str):
        return _decode_atoms(array, encoding, unpickle)
    if not isinstance(encoding, list) or not encoding or len(encoding) != _NUM_PARTS.get(encoding[0]):
        message = "unknown encoding"
        raise ValueError(message)
    kind = encoding[0]
    values: list[Any]
    if kind == "tuple":
        values = list(zip(*_children(array, encoding[1], unpickle, depth), strict=True))
    elif kind == "dict":
        names = encoding[1]
        rows = zip(*_children(array, encoding[2], unpickle, depth), strict=True)
        values = [dict(zip(names, row, strict=True)) for row in rows]
    elif kind == "list":
        flat, bounds = _flat(array)
        elements = _decode(flat, encoding[1], unpickle, depth + 1)
        values = [elements[start:end] for start, end in bounds]
    else:
        flat, bounds = _flat(array)
        entries = list(zip(*_children(flat, [encoding[1], encoding[2]], unpickle, depth), strict=True))
        values = [_dict_of(entries[start:end]) for start, end in bounds]
    if len(values) != len(array):
        message = f"{len(array)} values came out as {len(values)}"
        raise ValueError(message)
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


_NUM_PARTS = {"tuple": 2, "dict": 3, "list": 2, "map": 3}
"""How long the encodings are that are lists."""


def _decode_atoms(array: pa.Array, encoding: str, unpickle: Callable[[bytes], Any]) -> list[Any]:
    if encoding in ("packed", "pickle"):
        if not array.type.equals(pa.large_binary()):
            message = f"expected type {pa.large_binary()}"
            raise TypeError(message)
        if encoding == "pickle":
            return [None if data is None else unpickle(data) for data in pylist_from_array(array)]
        return [None if data is None else decode_packed(data, unpickle) for data in pylist_from_array(array)]
    if encoding == "null":
        return [None] * len(array)
    if not array.type.equals(_ATOM_TYPES[encoding]):
        message = f"expected type {_ATOM_TYPES[encoding]}"
        raise TypeError(message)
    return pylist_from_array(array)


def _dict_of(entries: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(entries) > MAX_FEW:
        check_hashes([key for key, _ in entries])
    return dict(entries)


def _children(
    array: pa.Array, encodings: list[Encoding], unpickle: Callable[[bytes], Any], depth: int
) -> list[list[Any]]:
    if not pa.types.is_struct(array.type) or array.type.num_fields != len(encodings):
        message = f"expected {len(encodings)} fields"
        raise ValueError(message)
    # `field` and not `flatten`: what lies below a null was written as null and must not be unpickled as such.
    children = [array.field(i) for i in range(len(encodings))]
    return [_decode(child, inner, unpickle, depth + 1) for child, inner in zip(children, encodings, strict=True)]


def _flat(array: pa.Array) -> tuple[pa.Array, list[tuple[int, int]]]:
    """The elements of a list array, and each list's first and last position among them."""
    if not pa.types.is_large_list(array.type):
        message = "expected lists"
        raise TypeError(message)
    offsets = array.offsets.to_numpy()
    start = int(offsets[0]) if len(offsets) else 0
    flat = array.values.slice(start, int(offsets[-1]) - start if len(offsets) else 0)
    bounds = (offsets - start).tolist()
    return flat, list(pairwise(bounds))
