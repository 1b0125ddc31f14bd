"""Python values to Arrow columns of snapshot files and back: typed where exactly that value comes back, else packed.

`encode_values` gives an Arrow array and an *encoding*, a JSON value that says how to read it: a type's name, or
``["tuple", [...]]``, ``["dict", [names], [...]]``, ``["list", e]``, ``["map", k, v]``, or ``"packed"``, which may stand
at any level: a binary column of `headrace.state.values.packed`, where only what is no plain value is pickled. Files of
earlier versions have ``"pickle"`` there, with a pickle for each value. A typed column can be read with Arrow alone.

An encoding is the stored name of a `headrace.state.values.types` type in the columns of snapshot files, whose texts,
bytes and lists have offsets of 64 bits. The names are part of the checkpoint format.

Source: Flink's ``TypeSerializer``; the encodings are Headrace's own.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from ..errors import CheckpointCorruptError, TypeMismatchError
from ..reading.read_limits import MAX_DEPTH
from ..reading.stored_pickles import pickle_value, unpickle_value
from .composite_types import Field, ListType, MapType, RecordType, TupleType
from .packed import decode_packed, encode_packed
from .sharing import spreads
from .types import ATOMS, AtomType, OpaqueType, ValueType, kinds_of

__all__ = ["Encoding", "decode_values", "encode_values"]

Encoding = Any
"""How a column holds Python values: a type's name, or a list led by ``tuple``, ``dict``, ``list`` or ``map``."""

_WIDE = {"string": pa.large_string(), "binary": pa.large_binary()}
_TYPED = {
    ATOMS[name][0]: AtomType(name, ATOMS[name][0], _WIDE.get(name, ATOMS[name][1]))
    for name in ("null", "int64", "float64", "bool", "string", "binary", "timestamp", "date")
}
_ATOMS = {str(kind.schema): kind for kind in _TYPED.values()}
_PACKED = "packed"
_MAX_FIELDS = 64

_MAX_TYPED_DEPTH = 24
"""Typed columns are no deeper: Arrow writes 64 levels, of which a map takes two."""

_FREE_PARTS, _FREE_PARTS_PER_VALUE = 1 << 16, 64
"""A column of more parts is looked at: values may share theirs, so that few objects make very many parts."""


def _opaque(name: str, unpickle: Callable[[bytes], Any]) -> OpaqueType:
    if name == _PACKED:
        return OpaqueType(name, encode_packed, partial(decode_packed, unpickle=unpickle), pa.large_binary())
    return OpaqueType(name, pickle_value, unpickle, pa.large_binary())


def _list(element: ValueType) -> ListType:
    return ListType(element, pa.large_list(element.arrow_type))


def _map(key: ValueType, item: ValueType) -> MapType:
    return MapType(key, item, pa.large_list(pa.struct([("key", key.arrow_type), ("value", item.arrow_type)])))


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
    each mixed with None at will. Pickled are only values that `headrace.state.values.packed` has no form for. What is
    nested deep, contains itself, or has few parts that stand in very many places, is packed.
    """
    try:
        kind, array = _Column(values).encoded(values, 0)
    except _UntypedError:
        kind, array = _packed(values)
    return array, _encoding_of(kind)


_UNTYPED = _opaque(_PACKED, unpickle_value)


class _UntypedError(Exception):
    """Values are nested too deep for a typed column, maybe without end, or spread."""


class _Column:
    """Finds the typed form of a column.

    Args:
        values: The values.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._num_parts = 0
        self._max_parts: float = _FREE_PARTS + _FREE_PARTS_PER_VALUE * len(values)

    def encoded(self, values: Sequence[Any], depth: int) -> tuple[ValueType, pa.Array]:
        """The column from which all values come back as they are, and its type."""
        kinds = kinds_of(values)
        if not kinds:
            return _ATOMS["null"], pa.nulls(len(values))
        kind = kinds.pop()
        if kinds:
            return self._packed(values, depth)
        if kind in _TYPED:
            return _encoded_atoms(values, _TYPED[kind])
        encode = _CONTAINERS.get(kind)
        if encode is None:
            return self._packed(values, depth)
        if depth == _MAX_TYPED_DEPTH:
            raise _UntypedError
        present = [value for value in values if value is not None]
        self._count(sum(map(len, present)))
        return encode(self, values, present, depth + 1)

    def _count(self, num_parts: int) -> None:
        self._num_parts += num_parts
        if self._num_parts > self._max_parts:
            self._check()

    def _check(self) -> None:
        if self._max_parts < math.inf and any(map(spreads, self._values)):
            raise _UntypedError
        self._max_parts = math.inf

    def _packed(self, values: Sequence[Any], depth: int) -> tuple[ValueType, pa.Array]:
        if depth:  # parts are packed one by one, however many of them are the same
            self._check()
        return _packed(values)

    def lists(self, values: Sequence[Any], present: Sequence[Any], depth: int) -> tuple[ValueType, pa.Array]:
        inner, flat = self.encoded(list(chain.from_iterable(present)), depth)
        lists = _list(inner)
        return lists, lists.assemble(values, [flat])

    def tuples(self, values: Sequence[Any], present: Sequence[Any], depth: int) -> tuple[ValueType, pa.Array]:
        widths = set(map(len, present))
        width = widths.pop()
        if widths or not width:
            return self._packed(values, depth)
        blank = (None,) * width
        columns = zip(*(blank if value is None else value for value in values), strict=True)
        inner = [self.encoded(column, depth) for column in columns]
        tuples = TupleType([part for part, _ in inner])
        return tuples, tuples.assemble(values, [array for _, array in inner])

    def dicts(self, values: Sequence[Any], present: Sequence[Any], depth: int) -> tuple[ValueType, pa.Array]:
        names = list(present[0])
        are_names = 0 < len(names) <= _MAX_FIELDS and set(map(type, names)) == {str} and _ATOMS["string"].holds(names)
        if are_names and len(set(map(tuple, present))) == 1:
            blank = dict.fromkeys(names)
            rows = [blank if value is None else value for value in values]
            inner = [self.encoded([row[name] for row in rows], depth) for name in names]
            records = RecordType([Field(name, part) for name, (part, _) in zip(names, inner, strict=True)])
            return records, records.assemble(values, [array for _, array in inner])
        keys, key_array = self.encoded(list(chain.from_iterable(present)), depth)
        items, item_array = self.encoded(list(chain.from_iterable(value.values() for value in present)), depth)
        maps = _map(keys, items)
        return maps, maps.assemble(values, [key_array, item_array])


_CONTAINERS: dict[type, Callable[..., tuple[ValueType, pa.Array]]] = {
    tuple: _Column.tuples,
    list: _Column.lists,
    dict: _Column.dicts,
}


def _packed(values: Sequence[Any]) -> tuple[ValueType, pa.Array]:
    return _UNTYPED, _UNTYPED.array(values)


def _encoded_atoms(values: Sequence[Any], kind: AtomType) -> tuple[ValueType, pa.Array]:
    if kind.python is datetime.datetime and not kind.holds(values):  # with a zone
        return _packed(values)
    try:
        return kind, pa.array(values, kind.arrow_type)
    except (OverflowError, UnicodeEncodeError, pa.ArrowException):  # beyond 64 bits; lone surrogates
        return _packed(values)


def _encoding_of(kind: ValueType) -> Encoding:
    parts = list(map(_encoding_of, kind.parts))
    if isinstance(kind, TupleType):
        return ["tuple", parts]
    if isinstance(kind, RecordType):
        return ["dict", [field.name for field in kind.fields], parts]
    if isinstance(kind, ListType):
        return ["list", *parts]
    return ["map", *parts] if isinstance(kind, MapType) else kind.schema


def _type_of(encoding: Encoding, unpickle: Callable[[bytes], Any], depth: int = 0) -> ValueType:
    if depth > MAX_DEPTH:
        message = f"it is nested more than {MAX_DEPTH} deep"
        raise ValueError(message)
    if isinstance(encoding, str):
        return (
            _ATOMS[encoding]
            if encoding in _ATOMS
            else _opaque({_PACKED: _PACKED, "pickle": "pickle"}[encoding], unpickle)
        )

    def parts_of(encodings: Any) -> list[ValueType]:
        return [_type_of(part, unpickle, depth + 1) for part in encodings]

    form, *rest = encoding
    if form == "tuple":
        (parts,) = rest
        return TupleType(parts_of(parts))
    if form == "dict":
        names, parts = rest
        return RecordType([Field(name, part) for name, part in zip(names, parts_of(parts), strict=True)])
    kinds: dict[str, Callable[..., ValueType]] = {"list": _list, "map": _map}
    return kinds[form](*parts_of(rest))


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
        kind = _type_of(encoding, unpickle_value if unpickle is None else unpickle)
        if not array.type.equals(kind.arrow_type):
            message = f"expected type {kind.arrow_type}"
            raise TypeError(message)
        return kind.values(array)
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
