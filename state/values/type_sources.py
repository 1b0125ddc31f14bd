"""Where types come from: Python's hints, Arrow's types and schemas, and the descriptions that are stored with data.

A hint of a dataclass or a NamedTuple gives a record that makes instances of it. A stored description names the class
only, so its records are dicts. What is not understood is opaque, and compared by its text.

Source: Flink's ``TypeExtractor``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Union

import pyarrow as pa

from ..reading.read_limits import MAX_DEPTH
from ..reading.stored_pickles import pickle_value, unpickle_value
from .composite_types import Field, ListType, Maker, MapType, OptionalType, RecordType, TupleType
from .types import ATOMS, AtomType, OpaqueType, Schema, ValueType, declared_shape, kinds_of

__all__ = [
    "UNDECLARED",
    "atom_of_values",
    "hints_of",
    "schema_text",
    "type_of_arrow",
    "type_of_hint",
    "type_of_schema",
    "type_text",
]

_DECIMAL = re.compile(r"decimal(?:128|256)\((\d+), (-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(.+)\]")

UNDECLARED = OpaqueType(None, pickle_value, unpickle_value)
"""The type of values of which nothing is said."""


def type_text(declared: Any) -> str | None:
    """Write a declared type down, stably over processes: what checkpoints keep and restores compare.

    Args:
        declared: A Python class, an Arrow type or anything with a telling ``str``; None for nothing declared.

    Returns:
        The text, or None if nothing was declared.
    """
    if declared is None:
        return None
    # To Python 3.10 list[int] is an instance of type, too.
    if isinstance(declared, type) and typing.get_origin(declared) is None:
        return (
            declared.__qualname__
            if declared.__module__ == "builtins"
            else f"{declared.__module__}.{declared.__qualname__}"
        )
    return str(declared)


# --------------------------------------------------------------------------------------------------------------- hints
def type_of_hint(declared: Any) -> ValueType:
    """Find the type that a program declares.

    Args:
        declared: A hint, a dataclass, a NamedTuple, a TypedDict, an Arrow type or schema, one of ``Types``; None for
            nothing declared.
    """
    return UNDECLARED if declared is None else _describe(declared, ())


_NAMES = {
    python: name
    for name, (python, _) in ATOMS.items()
    if name in ("bool", "int64", "float64", "string", "binary", "decimal", "date", "time", "timestamp", "duration")
}


def _describe(declared: Any, within: tuple[type, ...]) -> ValueType:
    """``within``: the classes around, for a class that holds itself cannot be written out."""
    if hasattr(declared, "arrow_type") and hasattr(declared, "shape"):  # a TypeInformation
        if declared.arrow_type is None:
            return _opaque("Any")
        return type_of_arrow(declared.arrow_type, None if declared.shape == "value" else declared.shape)
    if isinstance(declared, pa.Schema):
        shape = declared_shape(declared)
        if shape == "value":
            return type_of_arrow(declared.field(0).type)
        return type_of_arrow(pa.struct(list(declared)), shape)
    if isinstance(declared, pa.DataType):
        return type_of_arrow(declared)
    if isinstance(declared, type) and declared in _NAMES:
        return _atom(_NAMES[declared])
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Union or origin is types.UnionType:
        rest = [argument for argument in arguments if argument is not type(None)]
        return _optional(_describe(rest[0], within)) if len(rest) == 1 < len(arguments) else _opaque(str(declared))
    if origin is list:
        return ListType(_describe(arguments[0], within))
    if origin is dict:
        return MapType(_describe(arguments[0], within), _describe(arguments[1], within))
    if origin is tuple and arguments and Ellipsis not in arguments:
        return TupleType([_describe(argument, within) for argument in arguments])
    if isinstance(declared, type) and declared not in within:
        within = (*within, declared)
        if dataclasses.is_dataclass(declared):
            return _of_dataclass(declared, within)
        if issubclass(declared, tuple) and hasattr(declared, "_fields"):
            return _of_named_tuple(declared, within)
        if typing.is_typeddict(declared):
            hints = hints_of(declared)
            return RecordType([Field(name, _describe(hint, within)) for name, hint in hints.items()])
    return _opaque(type_text(declared) or "Any")


def _opaque(text: str) -> ValueType:
    return OpaqueType({"opaque": text}, pickle_value, unpickle_value)


def _atom(name: str) -> AtomType:
    return AtomType(name, *ATOMS[name])


def _optional(inner: ValueType) -> ValueType:
    return inner if isinstance(inner, OptionalType) else OptionalType(inner)


def _of_dataclass(cls: Any, within: tuple[type, ...]) -> ValueType:
    declared = dataclasses.fields(cls)
    if _has_init_only(cls):
        return _opaque(type_text(cls) or "")  # what its constructor needs is not in its fields
    hints = hints_of(cls)
    fields = []
    for field in declared:
        default: Callable[[], Any] | None = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        elif field.default is not dataclasses.MISSING:
            default = _always(field.default)
        fields.append(Field(field.name, _describe(hints.get(field.name, field.type), within), default))
    passed = [field.name for field in declared if field.init]
    # A constructor of the class's own may set other values than it is given, or fewer.
    is_plain = len(passed) == len(declared) and not hasattr(cls, "__post_init__")

    def build(values: dict[str, Any]) -> Any:
        value = cls(**{name: values[name] for name in passed})
        if not is_plain:
            for name, item in values.items():
                object.__setattr__(value, name, item)
        return value

    return RecordType(fields, Maker(cls, "dataclass", type_text(cls) or "", build))


def _has_init_only(cls: Any) -> bool:
    kinds = (getattr(field, "_field_type", None) for field in getattr(cls, "__dataclass_fields__", {}).values())
    return any(getattr(kind, "name", "") == "_FIELD_INITVAR" for kind in kinds)


def _of_named_tuple(cls: Any, within: tuple[type, ...]) -> ValueType:
    hints = hints_of(cls)
    defaults = getattr(cls, "_field_defaults", {})
    fields = [
        Field(name, _describe(hints.get(name, Any), within), _always(defaults[name]) if name in defaults else None)
        for name in cls._fields
    ]
    return RecordType(fields, Maker(cls, "named tuple", type_text(cls) or "", lambda values: cls(**values)))


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def hints_of(thing: Any) -> dict[str, Any]:
    """Return the hints of a class or function; none if one names something out of reach: types are optional."""
    try:
        return typing.get_type_hints(thing)
    except (NameError, TypeError, AttributeError):
        return {}


# -------------------------------------------------------------------------------------------------------------- values
def atom_of_values(values: Sequence[Any]) -> AtomType | None:
    """Return the atom whose columns give all of some values back as they are; None if there is none."""
    kinds = kinds_of(values)
    name = _NAMES.get(kinds.pop()) if len(kinds) == 1 else None
    if name is None or name == "decimal":
        return None  # a decimal's column would be text
    atom = _atom(name)
    return atom if atom.holds(values) else None


# --------------------------------------------------------------------------------------------------------------- Arrow
@functools.lru_cache(maxsize=4096)
def type_of_arrow(kind: pa.DataType, shape: str | None = None) -> ValueType:
    """Return the type of what a column of an Arrow type holds, read as Python values; its ``arrow_type`` is the very
    same.

    Args:
        kind: The Arrow type.
        shape: Of structs: ``dict`` or ``tuple``; without it those of ``f0``, ``f1`` ... are tuples, others are dicts.
    """
    is_ = pa.types
    if is_.is_struct(kind):
        fields = list(kind)
        inner = [type_of_arrow(field.type) for field in fields]
        if shape is None:
            is_tuple = bool(fields) and [field.name for field in fields] == [f"f{i}" for i in range(len(fields))]
            shape = "tuple" if is_tuple else "dict"
        if shape == "tuple":
            return TupleType(inner, kind)
        named = [
            Field(field.name, _optional(part) if field.nullable else part)
            for field, part in zip(fields, inner, strict=True)
        ]
        return RecordType(named, arrow_type=kind)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return ListType(type_of_arrow(kind.value_type), kind)
    if is_.is_map(kind):
        return MapType(type_of_arrow(kind.key_type), type_of_arrow(kind.item_type), kind)
    name = _atom_name(kind.value_type if is_.is_dictionary(kind) else kind)
    return AtomType(name, _python_of(name), kind)


def _atom_name(kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_floating(kind):
        return {16: "float16", 32: "float32", 64: "float64"}[kind.bit_width]
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
    if is_.is_timestamp(kind):  # Python has one resolution
        return "timestamp" if kind.tz is None else f"timestamp[{kind.tz}]"
    return str(kind)  # integers, bool, null, decimals


def _python_of(name: str) -> type:
    if name in ATOMS:
        return ATOMS[name][0]
    if name.startswith("timestamp["):
        return ATOMS["timestamp"][0]
    return Decimal if name.startswith("decimal") else object


# ------------------------------------------------------------------------------------------------------ stored schemas
def type_of_schema(
    schema: Schema,
    dump: Callable[[Any], bytes] = pickle_value,
    load: Callable[[bytes], Any] = unpickle_value,
) -> ValueType:
    """Return the type that a stored description is of; its records are dicts.

    Args:
        schema: The description; None where nothing was declared.
        dump: Makes bytes of opaque values.
        load: The inverse.

    Raises:
        ValueError: If it is nested too deep.
        KeyError, TypeError: If it is none.
    """
    return _stored(schema, dump, load, 0)


def _stored(schema: Schema, dump: Callable[[Any], bytes], load: Callable[[bytes], Any], depth: int) -> ValueType:
    if depth > MAX_DEPTH:
        message = f"a type is nested more than {MAX_DEPTH} deep"
        raise ValueError(message)

    def part_of(part: Schema) -> ValueType:
        return _stored(part, dump, load, depth + 1)

    if isinstance(schema, str):
        return _stored_atom(schema) or OpaqueType(schema, dump, load)
    if schema is None or "opaque" in schema:
        return OpaqueType(schema, dump, load)
    if "optional" in schema:
        return OptionalType(part_of(schema["optional"]))
    if "list" in schema:
        return ListType(part_of(schema["list"]))
    if "map" in schema:
        key, item = schema["map"]
        return MapType(part_of(key), part_of(item))
    if "tuple" in schema:
        return TupleType([part_of(part) for part in schema["tuple"]])
    fields = [Field(name, part_of(part)) for name, part in schema["record"]]
    return RecordType(fields, class_name=schema.get("class"), of=schema.get("of", "dict"))


def _stored_atom(name: str) -> AtomType | None:
    if name in ATOMS:
        return _atom(name)
    if match := _DECIMAL.fullmatch(name):
        make = pa.decimal256 if name.startswith("decimal256") else pa.decimal128
        return AtomType(name, Decimal, make(int(match[1]), int(match[2])))
    if match := _ZONED.fullmatch(name):
        return AtomType(name, _python_of(name), pa.timestamp("us", match[1]))
    return None


def schema_text(schema: Schema) -> str:
    """Return a stored description for people."""
    if schema is None:
        return "nothing"
    if isinstance(schema, str):
        return schema
    if "optional" in schema:
        return f"{schema_text(schema['optional'])} or None"
    if "list" in schema:
        return f"list of {schema_text(schema['list'])}"
    if "map" in schema:
        return f"map of {schema_text(schema['map'][0])} to {schema_text(schema['map'][1])}"
    if "tuple" in schema:
        return f"tuple({', '.join(map(schema_text, schema['tuple']))})"
    if "record" in schema:
        inner = ", ".join(f"{name}: {schema_text(type_)}" for name, type_ in schema["record"])
        return f"{schema.get('class') or 'dict'}({inner})"
    return str(schema.get("opaque", schema))  # what is read for people only may be no description at all
