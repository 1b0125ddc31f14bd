"""Types of values that are made of others: with None, lists, maps, tuples, records.

A record is a dict, or an instance of a class that its `Maker` makes. Columns are built and read part by part, never
value by value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from ..reading.plain_values import MAX_FEW, check_hashes
from .sharing import shown
from .types import Change, ValueType, held_as

__all__ = ["CompositeType", "Field", "ListType", "Maker", "MapType", "OptionalType", "RecordType", "TupleType"]


class OptionalType(ValueType):
    """Values of a type, or None. Columns take None of any type; only who declares cares.

    Args:
        inner: The type.
    """

    def __init__(self, inner: ValueType) -> None:
        self.parts = (inner,)
        self.schema = {"optional": inner.schema}
        self.arrow_type = inner.arrow_type
        self.is_certain = inner.is_certain
        self.lower, self.lift = inner.lower, inner.lift

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return self.parts[0]._array(values)

    def _values(self, column: pa.Array) -> list[Any]:
        return self.parts[0]._values(column)

    def holds(self, values: Sequence[Any]) -> bool:
        return self.parts[0].holds(values)


class CompositeType(ValueType):
    """Values that are made of others, whose columns their own is made of."""

    @abstractmethod
    def assemble(self, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
        """Make the column of what its parts lie in, for those who have made these.

        Args:
            values: The values; only their sizes and which are None count.
            parts: The columns of the elements, of keys and of values, or of each field.
        """


class ListType(CompositeType):
    """A list.

    Args:
        element: Of its elements.
        arrow_type: Of the column, if it is not Arrow's plain list.
    """

    def __init__(self, element: ValueType, arrow_type: pa.DataType | None = None) -> None:
        self.parts = (element,)
        self.schema = {"list": element.schema}
        self.arrow_type = pa.list_(element.arrow_type) if arrow_type is None else arrow_type
        self.is_certain = element.is_certain
        self.lower, self.lift = (_each_item(change) for change in (element.lower, element.lift))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        kind, rows = self.arrow_type, [_checked(value, list) for value in values if value is not None]
        if pa.types.is_fixed_size_list(kind):
            if any(len(row) != kind.list_size for row in rows):
                message = f"expected a list of {kind.list_size} elements"
                raise ValueError(message)
            blank = [None] * kind.list_size
            rows = [blank if value is None else value for value in values]
        return self.assemble(values, [self.parts[0]._array(list(chain.from_iterable(rows)))])

    def assemble(self, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
        kind, (flat,) = self.arrow_type, parts
        if pa.types.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(flat, type=kind, mask=_nulls(values))
        if pa.types.is_large_list(kind):
            return pa.LargeListArray.from_arrays(_offsets(values), flat, type=kind, mask=_nulls(values))
        return pa.ListArray.from_arrays(_small(_offsets(values)), flat, type=kind, mask=_nulls(values))

    def _values(self, column: pa.Array) -> list[Any]:
        flat, bounds = _flat(column)
        elements = self.parts[0]._values(flat)
        return _with_nulls([elements[start:end] for start, end in bounds], column)

    def holds(self, values: Sequence[Any]) -> bool:
        present = held_as(list, values)
        if present is None:
            return False
        if pa.types.is_fixed_size_list(self.arrow_type) and set(map(len, present)) - {self.arrow_type.list_size}:
            return False
        return self.parts[0].holds(list(chain.from_iterable(present)))


class MapType(CompositeType):
    """A dict of any number of keys.

    Args:
        key: Of its keys.
        item: Of its values.
        arrow_type: Of the column, if it is not Arrow's plain map: a list of pairs, say.
    """

    def __init__(self, key: ValueType, item: ValueType, arrow_type: pa.DataType | None = None) -> None:
        self.parts = (key, item)
        self.schema = {"map": [key.schema, item.schema]}
        self.arrow_type = pa.map_(key.arrow_type, item.arrow_type) if arrow_type is None else arrow_type
        self.is_certain = key.is_certain and item.is_certain
        # Keys are stored as they are: a dict, which a lowered record is, cannot be one.
        self.lower, self.lift = (_each_value(change) for change in (item.lower, item.lift))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        present = [_checked(value, dict) for value in values if value is not None]
        keys = self.parts[0]._array(list(chain.from_iterable(present)))
        items = self.parts[1]._array(list(chain.from_iterable(value.values() for value in present)))
        return self.assemble(values, [keys, items])

    def assemble(self, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
        kind = self.arrow_type
        if not pa.types.is_map(kind):
            pairs = pa.StructArray.from_arrays(parts, fields=list(kind.value_type))
            return pa.LargeListArray.from_arrays(_offsets(values), pairs, type=kind, mask=_nulls(values))
        array = pa.MapArray.from_arrays(_small(_offsets(values)), *parts, type=kind)
        nulls = _nulls(values)
        return array if nulls is None else _masked(array, nulls)

    def _values(self, column: pa.Array) -> list[Any]:
        if pa.types.is_map(column.type):
            start, offsets = _bounds(column)
            pairs = [part.slice(start, offsets[-1] if offsets else 0) for part in (column.keys, column.items)]
            bounds = list(pairwise(offsets))
        else:
            flat, bounds = _flat(column)
            pairs = [flat.field(0), flat.field(1)]
        keys, items = (part._values(array) for part, array in zip(self.parts, pairs, strict=True))
        return _with_nulls([_dict_of(keys[start:end], items[start:end]) for start, end in bounds], column)

    def holds(self, values: Sequence[Any]) -> bool:
        present = held_as(dict, values)
        if present is None:
            return False
        keys = list(chain.from_iterable(present))
        is_whole = type(None) not in set(map(type, keys)) and self.parts[0].holds(keys)
        return is_whole and self.parts[1].holds(list(chain.from_iterable(value.values() for value in present)))


class TupleType(CompositeType):
    """A tuple of a type per place.

    Args:
        parts: The types.
        arrow_type: Of the column, if it is not a struct of ``f0``, ``f1`` ...
    """

    def __init__(self, parts: Sequence[ValueType], arrow_type: pa.DataType | None = None) -> None:
        self.parts = tuple(parts)
        self.schema = {"tuple": [part.schema for part in parts]}
        self.arrow_type = arrow_type
        if arrow_type is None:
            self.arrow_type = pa.struct([pa.field(f"f{i}", part.arrow_type) for i, part in enumerate(parts)])
        self.is_certain = all(part.is_certain for part in parts)
        self.lower, self.lift = (_each_place([getattr(part, way) for part in parts]) for way in ("lower", "lift"))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        width = len(self.parts)
        blank = (None,) * width
        rows = [blank if value is None else _checked(value, tuple) for value in values]
        if any(len(row) != width for row in rows):
            message = f"expected a tuple of {width} fields"
            raise ValueError(message)
        columns = zip(*rows, strict=True) if rows else [()] * width
        return self.assemble(values, [part._array(column) for part, column in zip(self.parts, columns, strict=True)])

    def assemble(self, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
        return _struct(self.arrow_type, values, parts)

    def _values(self, column: pa.Array) -> list[Any]:
        if not self.parts:
            return _with_nulls([()] * len(column), column)
        return _with_nulls(list(zip(*_children(column, self.parts), strict=True)), column)

    def holds(self, values: Sequence[Any]) -> bool:
        present = held_as(tuple, values)
        if present is None or set(map(len, present)) - {len(self.parts)}:
            return False
        columns = zip(*present, strict=True)
        return all(part.holds(column) for part, column in zip(self.parts, columns, strict=False))


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record; ``default`` makes the value of a field that was not stored, None if there is none."""

    name: str
    type: ValueType
    default: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class Maker:
    """How records that are instances of a class are made.

    Attributes:
        cls: The class.
        kind: ``dataclass`` or ``named tuple``.
        name: The class's name, as it is stored.
        build: Makes an instance of the values by field.
    """

    cls: type
    kind: str
    name: str
    build: Callable[[dict[str, Any]], Any]


class RecordType(CompositeType):
    """A record of named fields: a dict, or an instance of a class.

    Args:
        fields: Its fields, in order.
        maker: Of instances; None for dicts.
        arrow_type: Of the column, if it is not the struct of the fields' own.
        class_name: Of records that were instances and are dicts now.
        of: What they were.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        maker: Maker | None = None,
        arrow_type: pa.DataType | None = None,
        *,
        class_name: str | None = None,
        of: str = "dict",
    ) -> None:
        self.fields = tuple(fields)
        self.maker = maker
        self.parts = tuple(field.type for field in fields)
        self.schema = {
            "record": [[field.name, field.type.schema] for field in fields],
            "of": of if maker is None else maker.kind,
            "class": class_name if maker is None else maker.name,
        }
        self.arrow_type = arrow_type
        if arrow_type is None:
            self.arrow_type = pa.struct([pa.field(field.name, field.type.arrow_type) for field in fields])
        self.is_certain = all(part.is_certain for part in self.parts)
        if maker is None:
            self.lower, self.lift = (
                _each_field({field.name: getattr(field.type, way) for field in fields}) for way in ("lower", "lift")
            )
        else:
            self.lower, self.lift = self._lowered, self._lifted
        self._lowers = [(field.name, field.type.lower) for field in fields if field.type.lower is not None]
        self._lifts = [(field.name, field.type.lift) for field in fields if field.type.lift is not None]

    def _lowered(self, value: Any) -> Any:
        assert self.maker is not None
        if type(value) is not self.maker.cls:
            if value is None:
                return None
            found = type(value)
            name = found.__qualname__ if found.__module__ == "builtins" else f"{found.__module__}.{found.__qualname__}"
            message = f"state declared as {self.maker.name} holds a value of type {name}"
            raise TypeMismatchError(message, hint="declare the type that the values have, or none")
        stored = {field.name: getattr(value, field.name) for field in self.fields}
        for name, change in self._lowers:
            stored[name] = change(stored[name])
        return stored

    def _lifted(self, stored: Any) -> Any:
        assert self.maker is not None
        if stored is None:
            return None
        for name, change in self._lifts:
            stored[name] = change(stored[name])
        return self.maker.build(stored)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        if not self.fields:
            for value in values:
                if value is not None:
                    _checked(value, dict if self.maker is None else self.maker.cls)
        columns = self._columns(values)
        return self.assemble(values, [part._array(column) for part, column in zip(self.parts, columns, strict=False)])

    def assemble(self, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
        return _struct(self.arrow_type, values, parts)

    def _columns(self, values: Sequence[Any]) -> Iterable[Sequence[Any]]:
        if self.maker is not None:
            for value in values:
                if value is not None and type(value) is not self.maker.cls:
                    message = f"expected a {self.maker.name}, got a {type(value).__name__}"
                    raise TypeError(message)
            for field in self.fields:
                of = attrgetter(field.name)
                yield [None if value is None else of(value) for value in values]
            return
        names = {field.name for field in self.fields}
        blank: dict[str, Any] = {}
        dicts = [blank if value is None else _checked(value, dict) for value in values]
        for value in dicts:
            if not names.issuperset(value):
                odd = next(name for name in value if name not in names)
                message = f"field {odd!r} of a record is not among the fields {sorted(names)}"
                raise ValueError(message)
        for field in self.fields:
            yield [value.get(field.name) for value in dicts]

    def _values(self, column: pa.Array) -> list[Any]:
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            message = f"a record cannot have two fields of one name: {names}"
            raise TypeMismatchError(message)
        rows = zip(*_children(column, self.parts), strict=True) if names else [()] * len(column)
        dicts = (dict(zip(names, row, strict=True)) for row in rows)
        if self.maker is None:
            return _with_nulls(list(dicts), column)
        build, valid = self.maker.build, column.is_valid().to_pylist()
        return [build(fields) if there else None for fields, there in zip(dicts, valid, strict=True)]

    def holds(self, values: Sequence[Any]) -> bool:
        present = held_as(dict if self.maker is None else self.maker.cls, values)
        if present is None:
            return False
        if self.maker is None:
            names = [field.name for field in self.fields]
            if any(list(value) != names for value in present):
                return False
            columns: Iterable[Sequence[Any]] = ([value[name] for value in present] for name in names)
        else:
            columns = ([getattr(value, field.name) for value in present] for field in self.fields)
        return all(part.holds(column) for part, column in zip(self.parts, columns, strict=True))


# -------------------------------------------------------------------------------------------------- changes of parts
def _each_item(change: Change | None) -> Change | None:
    return None if change is None else lambda value: None if value is None else [change(item) for item in value]


def _each_value(change: Change | None) -> Change | None:
    if change is None:
        return None
    return lambda entries: None if entries is None else {key: change(item) for key, item in entries.items()}


def _each_place(changes: list[Change | None]) -> Change | None:
    if not any(changes):
        return None
    return lambda value: (
        value
        if value is None or len(value) != len(changes)
        else tuple(item if change is None else change(item) for change, item in zip(changes, value, strict=True))
    )


def _each_field(changes: dict[str, Change | None]) -> Change | None:
    changed = {name: change for name, change in changes.items() if change is not None}
    if not changed:
        return None

    def change_fields(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {name: changed[name](item) if name in changed else item for name, item in value.items()}

    return change_fields


# ------------------------------------------------------------------------------------------------------------ columns
def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        message = f"expected a {kind.__name__}, got a {type(value).__name__}"
        raise TypeError(message)
    return value


def _nulls(values: Sequence[Any]) -> pa.Array | None:
    """True where a value is None; None if there is none."""
    mask = np.fromiter((value is None for value in values), bool, len(values))
    return pa.array(mask) if mask.any() else None


def _offsets(values: Sequence[Any]) -> pa.Array:
    sizes = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.array(offsets)


def _small(offsets: pa.Array) -> pa.Array:
    if offsets[-1].as_py() >= 2**31:
        message = "a batch has more elements than one Arrow array can hold; take smaller batches"
        raise ValueError(message)
    return offsets.cast(pa.int32())


def _masked(array: pa.MapArray, nulls: pa.Array) -> pa.Array:
    """The maps, null where ``nulls`` is true; `MapArray.from_arrays` knows no mask together with a type."""
    is_valid = pa.array(~nulls.to_numpy(zero_copy_only=False)).buffers()[1]
    entries = pa.StructArray.from_arrays(
        [array.keys, array.items], fields=[array.type.key_field, array.type.item_field]
    )  # fmt: skip
    return pa.Array.from_buffers(array.type, len(array), [is_valid, array.buffers()[1]], children=[entries])


def _struct(kind: pa.DataType, values: Sequence[Any], parts: Sequence[pa.Array]) -> pa.Array:
    if not parts:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(values))


def _children(column: pa.Array, parts: Sequence[ValueType]) -> list[list[Any]]:
    # `field` and not `flatten`: what lies below a null was written as null, and must not be read as a value.
    return [part._values(column.field(i)) for i, part in enumerate(parts)]


def _flat(column: pa.Array) -> tuple[pa.Array, list[tuple[int, int]]]:
    """The elements of a list array, and each list's first and last position among them."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        flat = column.values.slice(column.offset * size, len(column) * size)
        return flat, [(start, start + size) for start in range(0, len(column) * size, size)] if size else [
            (0, 0)
        ] * len(column)
    start, offsets = _bounds(column)
    return column.values.slice(start, offsets[-1] if offsets else 0), list(pairwise(offsets))


def _bounds(column: pa.Array) -> tuple[int, list[int]]:
    """Where the elements begin, and the offsets counted from there."""
    offsets = column.offsets.to_numpy()
    start = int(offsets[0]) if len(offsets) else 0
    return start, (offsets - start).tolist()


def _dict_of(keys: list[Any], items: list[Any]) -> dict[Any, Any]:
    if len(keys) > MAX_FEW:
        check_hashes(keys)
    entries = dict(zip(keys, items, strict=True))
    if len(entries) < len(keys):
        message = f"a map has a key twice: {shown(keys)}"
        raise TypeMismatchError(message)
    return entries


def _with_nulls(values: list[Any], column: pa.Array) -> list[Any]:
    if len(values) != len(column):
        message = f"{len(column)} values came out as {len(values)}"
        raise ValueError(message)
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values
