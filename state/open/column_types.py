"""Columns for the values of a checkpoint: which Arrow type a state's values get, and both ways between them.

A column's type comes from a *schema*, as `headrace.state.values.types` has it. A declared state has the one that
the checkpoint keeps; where nothing was declared, or something that only a class could tell, it is found by looking at
the values (`Observed`). What has no type, because values are of several kinds or because they are pickled objects, is
the schema ``{"opaque": "pickle"}``: a binary column of pickles.

The schema travels with the column, as JSON in the field's metadata ``headrace.type``, so that a table that was read can
be written again without a loss: Decimals and UUIDs are text in Arrow, tuples are structs. A binary column of pickles
says so to readers that know nothing of schemas, too: ``headrace.encoding`` is ``pickle``.

Integers and floats that share a column become floats, if that is exact; nothing else is ever converted at a loss.

Source: Arrow's data types; Avro's schema resolution for what is declared.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import TypeMismatchError
from ..values.type_sources import type_of_arrow, type_of_schema
from ..values.types import Schema, ValueType
from .values import Fields, open_pickle, pickled

__all__ = [
    "OPAQUE",
    "Observed",
    "array_of",
    "field_of",
    "fields_of",
    "is_certain",
    "refined",
    "schema_of_field",
    "schema_of_values",
    "values_of",
]

OPAQUE: Schema = {"opaque": "pickle"}
TYPE_KEY = b"headrace.type"
_ENCODING_KEY = b"headrace.encoding"

_EXACT = 1 << 53
"""Integers up to this size are floats too."""
_MAX_FIELDS = 64


def _column_type(schema: Schema) -> ValueType:
    return type_of_schema(schema, pickled, open_pickle)


def array_of(values: Sequence[Any], schema: Schema) -> pa.Array:
    """Turn stored values into a column; see `ValueType.array`."""
    return _column_type(schema).array(values)


def values_of(array: pa.Array, schema: Schema, name: str = "value") -> list[Any]:
    """Turn a column into stored values: the inverse of `array_of`.

    Args:
        array: The column.
        schema: Its schema.
        name: The column's name, for errors.

    Raises:
        TypeMismatchError: If a value has no Python counterpart, or text is no Decimal or UUID.
    """
    kind = _column_type(schema)
    if not kind.arrow_type.equals(array.type):
        kind = type_of_arrow(array.type)
    try:
        return kind.values(array)
    except TypeMismatchError as error:
        error.message = f"column {name!r}: {error.message}"
        error.context["column"] = name
        raise


def fields_of(schema: Schema) -> list[tuple[str, Schema]]:
    """Return the fields of a tuple or record; nothing of any other schema."""
    if isinstance(schema, dict):
        if "tuple" in schema:
            return [(f"f{i}", part) for i, part in enumerate(schema["tuple"])]
        if "record" in schema:
            return [(name, part) for name, part in schema["record"]]
    return []


def is_certain(schema: Schema) -> bool:
    """Return whether a schema says the type of every part, so that no value has to be looked at."""
    return _column_type(schema).is_certain


def field_of(name: str, schema: Schema) -> pa.Field:
    """Return the field of a column of values of a schema."""
    metadata = {TYPE_KEY: json.dumps(schema).encode()}
    if isinstance(schema, dict) and "opaque" in schema:
        metadata[_ENCODING_KEY] = b"pickle"
    return pa.field(name, _column_type(schema).arrow_type, metadata=metadata)


def schema_of_field(field: pa.Field) -> Schema:
    """Return the schema of a column: what its metadata say, if they fit its type; else by its type."""
    text = (field.metadata or {}).get(TYPE_KEY)
    if text is not None:
        try:
            schema = json.loads(text)
            if schema is not None and _column_type(schema).arrow_type.equals(field.type):
                return schema
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass  # no description of a type
    return type_of_arrow(field.type).schema


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
        """Return the narrowest schema that holds all that has been seen."""
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


def schema_of_values(values: Iterable[Any]) -> Schema:
    """Return the narrowest schema that holds all of some values."""
    observed = Observed()
    for value in values:
        observed.add(value)
    return observed.schema()


def refined(declared: Schema, observed: Schema) -> Schema:
    """Return a declared schema with what has been observed in the places of which it says nothing."""
    if declared is None or (isinstance(declared, dict) and "opaque" in declared):
        return observed
    if isinstance(declared, str):
        return declared if is_certain(declared) else observed
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
