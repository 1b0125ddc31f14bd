"""Columns for the values of a checkpoint: which Arrow type a state's values get, and both ways between them.

A column's type comes from a *schema*, in the language of `headrace.state.keyed.evolution` with two words more: ``uuid``
and ``null``. Of a declared state it is the schema that the checkpoint keeps; where nothing was declared, or something
that only a class could tell, it is found by looking at the values (`Observed`). What has no type, because values are of
several kinds or because they are pickled objects, is the schema ``{"opaque": "pickle"}``: a binary column of pickles.

The schema travels with the column, as JSON in the field's metadata ``headrace.type``, so that a table that was read can
be written again without a loss: Decimals and UUIDs are text in Arrow, tuples are structs. A binary column of pickles
says so for whoever knows nothing of schemas, too: ``headrace.encoding`` is ``pickle``.

Integers and floats that share a column become floats, if that is exact; nothing else is ever converted at a loss.

Source: Arrow's data types; Avro's schema resolution for what is declared.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from ..keyed.evolution import Schema
from ..values.serde import pylist_from_array
from .values import Fields, open_pickle, pickled

__all__ = [
    "OPAQUE",
    "Observed",
    "array_of",
    "arrow_type_of",
    "field_of",
    "fields_of",
    "is_certain",
    "refined",
    "schema_of_arrow",
    "schema_of_field",
    "values_of",
]

OPAQUE: Schema = {"opaque": "pickle"}
TYPE_KEY = b"headrace.type"
_ENCODING_KEY = b"headrace.encoding"

_ATOM_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "decimal": pa.string(),
    "uuid": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "duration": pa.duration("us"),
}
_DECIMAL = re.compile(r"decimal(?:128|256)\((\d+), (-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(.+)\]")
_EXACT = 1 << 53
"""Integers up to this size are floats too."""
_MAX_FIELDS = 64


# ------------------------------------------------------------------------------------------------------ Arrow's types
def arrow_type_of(schema: Schema) -> pa.DataType:
    """The Arrow type of a column of values of a schema; opaque parts are binary."""
    if isinstance(schema, str):
        if schema in _ATOM_TYPES:
            return _ATOM_TYPES[schema]
        if match := _DECIMAL.fullmatch(schema):
            make = pa.decimal256 if schema.startswith("decimal256") else pa.decimal128
            return make(int(match[1]), int(match[2]))
        if match := _ZONED.fullmatch(schema):
            return pa.timestamp("us", match[1])
        return pa.binary()
    if schema is None or "opaque" in schema:
        return pa.binary()
    if "optional" in schema:
        return arrow_type_of(schema["optional"])
    if "list" in schema:
        return pa.list_(arrow_type_of(schema["list"]))
    if "map" in schema:
        return pa.map_(arrow_type_of(schema["map"][0]), arrow_type_of(schema["map"][1]))
    return pa.struct([pa.field(name, arrow_type_of(part)) for name, part in fields_of(schema)])


def fields_of(schema: Schema) -> list[tuple[str, Schema]]:
    """The fields of a tuple or record; nothing of any other schema."""
    if isinstance(schema, dict):
        if "tuple" in schema:
            return [(f"f{i}", part) for i, part in enumerate(schema["tuple"])]
        if "record" in schema:
            return [(name, part) for name, part in schema["record"]]
    return []


def _is_known(schema: str) -> bool:
    return schema in _ATOM_TYPES or bool(_DECIMAL.fullmatch(schema) or _ZONED.fullmatch(schema))


def is_certain(schema: Schema) -> bool:
    """Whether a schema says the type of every part, so that no value has to be looked at."""
    if isinstance(schema, str):
        return _is_known(schema)
    if schema is None or "opaque" in schema:
        return False
    if "optional" in schema:
        return is_certain(schema["optional"])
    if "list" in schema:
        return is_certain(schema["list"])
    if "map" in schema:
        return all(map(is_certain, schema["map"]))
    return all(is_certain(part) for _, part in fields_of(schema))


def field_of(name: str, schema: Schema) -> pa.Field:
    """The field of a column of values of a schema."""
    metadata = {TYPE_KEY: json.dumps(schema).encode()}
    if isinstance(schema, dict) and "opaque" in schema:
        metadata[_ENCODING_KEY] = b"pickle"
    return pa.field(name, arrow_type_of(schema), metadata=metadata)


def schema_of_field(field: pa.Field) -> Schema:
    """The schema of a column: what its metadata say, if they fit its type; else by its type."""
    text = (field.metadata or {}).get(TYPE_KEY)
    if text is not None:
        try:
            schema = json.loads(text)
        except ValueError:
            schema = None
        if schema is not None and arrow_type_of(schema).equals(field.type):
            return schema
    return schema_of_arrow(field.type)


def schema_of_arrow(kind: pa.DataType) -> Schema:
    """The schema of what a column of an Arrow type holds, read as plain Python values."""
    is_ = pa.types
    if is_.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if fields and [field.name for field in fields] == [f"f{i}" for i in range(len(fields))]:
            return {"tuple": [schema_of_arrow(field.type) for field in fields]}
        parts = [[field.name, {"optional": schema_of_arrow(field.type)}] for field in fields]
        return {"record": parts, "of": "dict", "class": None}
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return {"list": schema_of_arrow(kind.value_type)}
    if is_.is_map(kind):
        return {"map": [schema_of_arrow(kind.key_type), schema_of_arrow(kind.item_type)]}
    if is_.is_dictionary(kind):
        return schema_of_arrow(kind.value_type)
    if is_.is_string(kind) or is_.is_large_string(kind):
        return "string"
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return "binary"
    if is_.is_date(kind):
        return "date"
    if is_.is_time(kind):
        return "time"
    if is_.is_duration(kind):
        return "duration"
    if is_.is_timestamp(kind):
        return "timestamp" if kind.tz is None else f"timestamp[{kind.tz}]"
    if is_.is_floating(kind):
        return {16: "float16", 32: "float32", 64: "float64"}[kind.bit_width]
    return str(kind)


# --------------------------------------------------------------------------------------------------- looking at values
class Observed:
    """What has been seen of the values of a column, in one pass over them.

    Two dicts are a record of fields if all have the same fields of different types, and a map otherwise.
    """

    __slots__ = ("_atom", "_elements", "_fields", "_has_none", "_is_object", "_keys", "_kind", "_parts", "_values")

    def __init__(self) -> None:
        # ``atom``, ``list``, ``tuple``, ``dict`` or ``opaque``; empty while only None has been seen.
        self._kind = ""
        self._has_none = False
        # Dicts are fields of objects.
        self._is_object = False
        self._atom = ""
        self._elements: Observed | None = None
        self._parts: list[Observed] = []
        self._keys: Observed | None = None
        self._values: Observed | None = None
        # Of dicts that may be records: by name; None once they cannot be.
        self._fields: dict[str, Observed] | None = None

    def add(self, value: Any) -> None:
        """Look at one more value."""
        if value is None:
            self._has_none = True
            return
        if self._kind == "opaque":
            return
        kind = type(value)
        if kind is list:
            if self._becomes("list"):
                elements = self._elements = self._elements or Observed()
                for element in value:
                    elements.add(element)
        elif kind is tuple and value:
            if self._becomes("tuple"):
                self._parts = self._parts or [Observed() for _ in value]
                if len(self._parts) != len(value):
                    self._kind = "opaque"
                    return
                for part, element in zip(self._parts, value, strict=True):
                    part.add(element)
        elif kind is dict or kind is Fields:
            if self._becomes("dict"):
                self._is_object = self._is_object or kind is Fields
                self._add_dict(value)
        else:
            self._add_atom(_atom_of(value))

    def _becomes(self, kind: str) -> bool:
        if self._kind in ("", kind):
            if not self._kind and kind == "dict":
                self._fields = {}
            self._kind = kind
            return True
        self._kind = "opaque"
        return False

    def _add_dict(self, value: dict[Any, Any]) -> None:
        is_first = self._keys is None
        self._keys, self._values = self._keys or Observed(), self._values or Observed()
        for key, item in value.items():
            self._keys.add(key)
            self._values.add(item)
        if self._fields is None:
            return
        if is_first and 0 < len(value) <= _MAX_FIELDS and all(type(name) is str for name in value):
            self._fields = {name: Observed() for name in value}
        if not value or list(value) != list(self._fields):
            self._fields = None
            return
        for name, item in value.items():
            self._fields[name].add(item)

    def _add_atom(self, atom: str) -> None:
        if not atom:
            self._kind = "opaque"
        elif self._becomes("atom"):
            merged = _MERGED.get(frozenset((self._atom, atom)), "")
            known = self._atom
            self._atom = atom if known in ("", atom) else merged
            if not self._atom:
                self._kind = "opaque"

    def schema(self) -> Schema:
        """The narrowest schema that holds all that has been seen."""
        inner = self._inner()
        if not self._kind:
            return "null"
        is_opaque = isinstance(inner, dict) and "opaque" in inner
        return {"optional": inner} if self._has_none and not is_opaque else inner

    def _inner(self) -> Schema:
        if self._kind == "atom":
            return "int64" if self._atom == "small" else self._atom
        if self._kind == "list":
            assert self._elements is not None
            return {"list": self._elements.schema()}
        if self._kind == "tuple":
            parts = [part.schema() for part in self._parts]
            return {"tuple": parts}
        if self._kind == "dict":
            assert self._keys is not None
            assert self._values is not None
            values = self._values.schema()
            # Of dicts that are all empty nothing is known; keys of Arrow's maps need a type that has values.
            keys = self._keys.schema() if self._keys._kind else "string"
            if self._fields and (self._is_object or _has_opaque(values)):
                fields = [[name, field.schema()] for name, field in self._fields.items()]
                return {"record": fields, "of": "dict", "class": None}
            return OPAQUE if self._keys._has_none or keys == OPAQUE else {"map": [keys, values]}
        return OPAQUE


def _has_opaque(schema: Schema) -> bool:
    if isinstance(schema, dict):
        return "opaque" in schema or any(map(_has_opaque, schema.values()))
    return isinstance(schema, list) and any(map(_has_opaque, schema))


_MERGED = {
    frozenset(("small", "int64")): "int64",
    frozenset(("small", "float64")): "float64",
}
"""Atoms that share a column as another one. ``small`` are integers that floats hold exactly."""


_MAX_DAYS = 2**63 // 86_400_000_000


def _atom_of(value: Any) -> str:
    kind = type(value)
    if kind is bool:
        return "bool"
    if kind is int:
        return "small" if -_EXACT <= value <= _EXACT else "int64" if -(2**63) <= value < 2**63 else ""
    if kind is float:
        return "float64"
    if kind is str:
        return "string" if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else ""
    if kind is bytes:
        return "binary"
    if kind is Decimal:
        return "decimal"
    if kind is uuid.UUID:
        return "uuid"
    if kind is datetime.datetime:
        return "" if value.fold else "timestamp" if value.tzinfo is None else "timestamp[UTC]"
    if kind is datetime.date:
        return "date"
    if kind is datetime.time:
        return "time" if value.tzinfo is None and not value.fold else ""
    if kind is datetime.timedelta:  # Arrow counts microseconds in 64 bits
        return "duration" if abs(value.days) < _MAX_DAYS else ""
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        item = value.item()
        return "" if isinstance(item, np.generic) else _atom_of(item)
    return ""


def refined(declared: Schema, observed: Schema) -> Schema:
    """A declared schema with what has been observed in the places of which it says nothing."""
    if declared is None or (isinstance(declared, dict) and "opaque" in declared):
        return observed
    if isinstance(declared, str):
        return declared if _is_known(declared) else observed
    if "optional" in declared:
        inner = observed["optional"] if isinstance(observed, dict) and "optional" in observed else observed
        return {"optional": refined(declared["optional"], inner)}
    if isinstance(observed, dict) and "optional" in observed:
        return {"optional": refined(declared, observed["optional"])}
    if "list" in declared:
        inner = observed["list"] if isinstance(observed, dict) and "list" in observed else OPAQUE
        return {"list": refined(declared["list"], inner)}
    if "map" in declared:
        return {"map": _refined_map(declared["map"], observed)}
    parts = dict(fields_of(observed))
    if isinstance(observed, dict) and "map" in observed:  # the same dicts, seen as a map
        parts = {name: observed["map"][1] for name, _ in fields_of(declared)}
    inner_parts = [(name, refined(part, parts.get(name, OPAQUE))) for name, part in fields_of(declared)]
    if "tuple" in declared:
        return {"tuple": [part for _, part in inner_parts]}
    return {**declared, "record": [[name, part] for name, part in inner_parts]}


def _refined_map(declared: list[Schema], observed: Schema) -> list[Schema]:
    if isinstance(observed, dict) and "map" in observed:
        return [refined(mine, seen) for mine, seen in zip(declared, observed["map"], strict=True)]
    return [refined(mine, OPAQUE) for mine in declared]


# ------------------------------------------------------------------------------------------------------ values to Arrow
def array_of(values: Sequence[Any], schema: Schema) -> pa.Array:
    """Turn stored values into a column.

    Args:
        values: As a checkpoint holds them: records as dicts, pickled ones maybe `Opaque`.
        schema: Theirs.

    Raises:
        TypeMismatchError: If a value is not of the schema; ``row`` says which.
    """
    try:
        return _array(values, schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
        for row, value in enumerate(values):
            try:
                _array([value], schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, KeyError):
                message = f"a value is not of its type: {value!r:.120}"
                raise TypeMismatchError(message, row=row) from error
        raise


def _array(values: Sequence[Any], schema: Schema) -> pa.Array:
    if isinstance(schema, dict) and "optional" in schema:
        return _array(values, schema["optional"])
    kind = arrow_type_of(schema)
    if schema is None or (isinstance(schema, dict) and "opaque" in schema):
        return pa.array([pickled(value) for value in values], kind)
    if isinstance(schema, str):
        if schema in ("decimal", "uuid"):
            wanted = Decimal if schema == "decimal" else uuid.UUID
            return pa.array([None if value is None else str(_checked(value, wanted)) for value in values], kind)
        if not _is_known(schema):
            return pa.array([pickled(value) for value in values], kind)
        if schema == "bool" or schema.startswith(("int", "uint")):
            _refuse_others(values, bool if schema == "bool" else int)
        elif schema == "string":
            _refuse_others(values, str)
        return pa.array([value.item() if isinstance(value, np.generic) else value for value in values], kind)
    mask = np.fromiter((value is None for value in values), bool, len(values))
    if "list" in schema:
        present = [_checked(value, list) for value in values if value is not None]
        flat = _array(list(chain.from_iterable(present)), schema["list"])
        return pa.ListArray.from_arrays(_offsets(values, mask), flat)
    if "map" in schema:
        present = [_checked(value, dict) for value in values if value is not None]
        keys = _array(list(chain.from_iterable(present)), schema["map"][0])
        items = _array(list(chain.from_iterable(value.values() for value in present)), schema["map"][1])
        return pa.MapArray.from_arrays(_offsets(values, mask), keys, items)
    fields = fields_of(schema)
    columns: list[list[Any]]
    if "tuple" in schema:
        blank = (None,) * len(fields)
        rows = [blank if value is None else _checked(value, tuple) for value in values]
        if any(len(row) != len(fields) for row in rows):
            message = "a tuple has another number of fields"
            raise ValueError(message)
        columns = [[row[i] for row in rows] for i in range(len(fields))]
    else:
        dicts = [{} if value is None else _checked(value, dict) for value in values]
        columns = [[row.get(name) for row in dicts] for name, _ in fields]
    arrays = [_array(column, part) for column, (_, part) in zip(columns, fields, strict=True)]
    named = [pa.field(name, array.type) for (name, _), array in zip(fields, arrays, strict=True)]
    if not fields:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.StructArray.from_arrays(arrays, fields=named, mask=pa.array(mask))


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        message = f"expected a {kind.__name__}, got a {type(value).__name__}"
        raise TypeError(message)
    return value


def _refuse_others(values: Sequence[Any], kind: type) -> None:
    """Arrow takes floats for integers and bytes for text where nothing seems lost; here something is: their type."""
    for value in values:
        if type(value) is not kind and value is not None:
            item = value.item() if isinstance(value, np.generic) else value
            if type(item) is not kind:
                message = f"expected a {kind.__name__}, got a {type(value).__name__}"
                raise TypeError(message)


def _offsets(values: Sequence[Any], mask: Any) -> pa.Array:
    sizes = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if len(offsets) and offsets[-1] >= 2**31:
        message = "a batch has more elements than one Arrow array can hold; read smaller batches"
        raise ValueError(message)
    return pa.array(offsets.astype(np.int32), pa.int32(), mask=np.append(mask, False))


# ------------------------------------------------------------------------------------------------------ Arrow to values
def values_of(array: pa.Array, schema: Schema, name: str = "value") -> list[Any]:
    """Turn a column into stored values: the inverse of `array_of`.

    Args:
        array: The column.
        schema: Its schema.
        name: The column's name, for errors.

    Raises:
        TypeMismatchError: If a value has no Python counterpart, or text is no Decimal or UUID.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    values = pylist_from_array(array, name)
    change = _changer(schema)
    if change is None:
        return values
    converted = []
    for row, value in enumerate(values):
        try:
            converted.append(None if value is None else change(value))
        except (ValueError, ArithmeticError) as error:
            message = f"column {name!r} holds {value!r:.120}, which is not of its type: {error!r}"
            raise TypeMismatchError(message, column=name, row=row) from error
    return converted


_Change = Callable[[Any], Any]


def _changer(schema: Schema) -> _Change | None:
    """Turns what Arrow gives for a value that is not None into the stored value; None if that is the same."""
    if isinstance(schema, str):
        return {"decimal": Decimal, "uuid": uuid.UUID}.get(schema)
    if schema is None:
        return None
    if "opaque" in schema:
        return open_pickle if schema == OPAQUE else None
    if "optional" in schema:
        return _changer(schema["optional"])
    if "list" in schema:
        element = _or_none(_changer(schema["list"]))
        return None if element is None else lambda value: [element(item) for item in value]
    if "map" in schema:
        key, item = (_or_none(_changer(part)) or _same for part in schema["map"])
        return lambda value: {key(k): item(v) for k, v in value.items()}
    changes = {field: _or_none(_changer(part)) or _same for field, part in fields_of(schema)}
    if "tuple" in schema:
        return lambda value: tuple(change(part) for change, part in zip(changes.values(), value, strict=True))
    return lambda value: {field: change(value[field]) for field, change in changes.items()}


def _or_none(change: _Change | None) -> _Change | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _same(value: Any) -> Any:
    return value
