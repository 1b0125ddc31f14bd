"""Declared types of state: how their values are stored, and whether what a checkpoint holds can become what a program
now declares.

A declared type is described by a *schema*, a JSON value that is kept with the state: an atom's name (``int64``,
``string`` ...), ``{"optional": s}``, ``{"list": s}``, ``{"map": [k, v]}``, ``{"tuple": [...]}``, ``{"record": [[name,
s], ...], "of": kind, "class": name}`` or, for everything else, ``{"opaque": text}``. Instances of dataclasses and
NamedTuples are *lowered* to dicts by field when they are stored and *lifted* when they come back, so that files need no
pickle and a class may change: what is stored are fields, nothing else that an instance may carry.

The rules, checked once when a restored state is declared, are those of Avro's schema resolution: fields are matched by
name (or by the name they had: ``renamed_fields``), one that is gone is dropped, a new one needs a default or must admit
None; integers and floats may widen; a value may become optional. Everything else is refused before the first record.
Keys never change their type: their hash decides where they live.

Source: Flink's ``TypeSerializerSnapshot`` and ``PojoSerializer``'s schema evolution; row E4.
"""

from __future__ import annotations

import dataclasses
import datetime
import types
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NoReturn, Union

import pyarrow as pa

from ..errors import CheckpointMismatchError, TypeMismatchError
from .descriptors import MapStateDescriptor, StateDescriptor, type_text

__all__ = [
    "Change",
    "Schema",
    "ValueType",
    "evolve",
    "mapped",
    "migration",
    "schema_text",
    "stored_form",
    "value_type_of",
]

Schema = Any
"""What the module's docstring says; None where nothing is declared."""
Change = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """A field of a record; ``default`` makes the value of a field that was not stored, None if there is none."""

    name: str
    type: ValueType
    default: Callable[[], Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ValueType:
    """A declared type.

    Attributes:
        schema: Its description.
        lower: Turns a value into what is stored; None if that is the value itself.
        lift: The inverse.
        parts: The types it is made of, in the order of the schema.
        fields: Of a record.
    """

    schema: Schema
    lower: Change | None = None
    lift: Change | None = None
    parts: tuple[ValueType, ...] = ()
    fields: tuple[_Field, ...] = ()


UNDECLARED = ValueType(None)

_ATOMS: dict[Any, str] = {
    int: "int64",
    float: "float64",
    bool: "bool",
    str: "string",
    bytes: "binary",
    Decimal: "decimal",
    datetime.date: "date",
    datetime.time: "time",
    datetime.datetime: "timestamp",
    datetime.timedelta: "duration",
}


# ----------------------------------------------------------------------------------------------------- declared types
def value_type_of(declared: Any) -> ValueType:
    """Describe a declared type.

    Args:
        declared: As `StateDescriptor.value_type`; None for nothing declared.

    Returns:
        The type; what is not understood is opaque, and compared by its text.
    """
    return UNDECLARED if declared is None else _describe(declared, ())


def _describe(declared: Any, within: tuple[type, ...]) -> ValueType:
    """``within``: the classes around, for a class that holds itself cannot be written out."""
    if hasattr(declared, "arrow_type") and hasattr(declared, "shape"):  # a TypeInformation
        if declared.arrow_type is None:
            return _opaque("Any")
        return _of_arrow(declared.arrow_type, declared.shape)
    if isinstance(declared, pa.Schema):
        shape = (declared.metadata or {}).get(b"headrace.row", b"dict").decode()
        return _of_arrow(declared.field(0).type if shape == "value" else pa.struct(list(declared)), shape)
    if isinstance(declared, pa.DataType):
        return _of_arrow(declared, "dict")
    if isinstance(declared, type) and declared in _ATOMS:
        return ValueType(_ATOMS[declared])
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is Union or origin is types.UnionType:
        rest = [argument for argument in arguments if argument is not type(None)]
        return _optional(_describe(rest[0], within)) if len(rest) == 1 < len(arguments) else _opaque(str(declared))
    if origin is list:
        return _list(_describe(arguments[0], within))
    if origin is dict:
        return _map(_describe(arguments[0], within), _describe(arguments[1], within))
    if origin is tuple and arguments and Ellipsis not in arguments:
        return _tuple([_describe(argument, within) for argument in arguments])
    if isinstance(declared, type) and declared not in within:
        within = (*within, declared)
        if dataclasses.is_dataclass(declared):
            return _of_dataclass(declared, within)
        if issubclass(declared, tuple) and hasattr(declared, "_fields"):
            return _of_named_tuple(declared, within)
        if typing.is_typeddict(declared):
            hints = _hints_of(declared)
            return _dict_record([_Field(name, _describe(hint, within)) for name, hint in hints.items()])
    return _opaque(type_text(declared) or "Any")


def _opaque(text: str) -> ValueType:
    return ValueType({"opaque": text})


def _optional(inner: ValueType) -> ValueType:
    if isinstance(inner.schema, dict) and "optional" in inner.schema:
        return inner
    return ValueType({"optional": inner.schema}, inner.lower, inner.lift, (inner,))


def _list(inner: ValueType) -> ValueType:
    def each(change: Change | None) -> Change | None:
        return None if change is None else lambda value: None if value is None else [change(item) for item in value]

    return ValueType({"list": inner.schema}, each(inner.lower), each(inner.lift), (inner,))


def _map(key: ValueType, value: ValueType) -> ValueType:
    def each(change: Change | None) -> Change | None:
        if change is None:
            return None
        return lambda entries: None if entries is None else {k: change(item) for k, item in entries.items()}

    # Keys are stored as they are: a dict, which a lowered record is, cannot be one.
    return ValueType({"map": [key.schema, value.schema]}, each(value.lower), each(value.lift), (key, value))


def _tuple(items: list[ValueType]) -> ValueType:
    def each(changes: list[Change | None]) -> Change | None:
        if not any(changes):
            return None
        return lambda value: (
            value
            if value is None or len(value) != len(changes)
            else tuple(item if change is None else change(item) for change, item in zip(changes, value, strict=True))
        )

    lower, lift = each([item.lower for item in items]), each([item.lift for item in items])
    return ValueType({"tuple": [item.schema for item in items]}, lower, lift, tuple(items))


def _record_schema(fields: list[_Field], kind: str, class_name: str | None) -> Schema:
    return {"record": [[field.name, field.type.schema] for field in fields], "of": kind, "class": class_name}


def _dict_record(fields: list[_Field]) -> ValueType:
    def each(changes: dict[str, Change | None]) -> Change | None:
        changed = {name: change for name, change in changes.items() if change is not None}
        if not changed:
            return None

        def change_fields(value: Any) -> Any:
            if type(value) is not dict:
                return value
            return {name: changed[name](item) if name in changed else item for name, item in value.items()}

        return change_fields

    lower = each({field.name: field.type.lower for field in fields})
    lift = each({field.name: field.type.lift for field in fields})
    return ValueType(_record_schema(fields, "dict", None), lower, lift, fields=tuple(fields))


def _of_dataclass(cls: Any, within: tuple[type, ...]) -> ValueType:
    declared = dataclasses.fields(cls)
    if _has_init_only(cls):
        return _opaque(type_text(cls) or "")  # what its constructor needs is not in its fields
    hints = _hints_of(cls)
    fields = []
    for field in declared:
        default: Callable[[], Any] | None = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        elif field.default is not dataclasses.MISSING:
            default = _always(field.default)
        fields.append(_Field(field.name, _describe(hints.get(field.name, field.type), within), default))
    passed = [field.name for field in declared if field.init]
    # A constructor of the class's own may set other values than it is given, or fewer.
    is_plain = len(passed) == len(declared) and not hasattr(cls, "__post_init__")

    def build(values: dict[str, Any]) -> Any:
        value = cls(**{name: values[name] for name in passed})
        if not is_plain:
            for name, item in values.items():
                object.__setattr__(value, name, item)
        return value

    return _class_record(cls, "dataclass", fields, build)


def _has_init_only(cls: Any) -> bool:
    kinds = (getattr(field, "_field_type", None) for field in getattr(cls, "__dataclass_fields__", {}).values())
    return any(getattr(kind, "name", "") == "_FIELD_INITVAR" for kind in kinds)


def _of_named_tuple(cls: Any, within: tuple[type, ...]) -> ValueType:
    hints = _hints_of(cls)
    defaults = getattr(cls, "_field_defaults", {})
    fields = [
        _Field(name, _describe(hints.get(name, Any), within), _always(defaults[name]) if name in defaults else None)
        for name in cls._fields
    ]
    return _class_record(cls, "named tuple", fields, lambda values: cls(**values))


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def _class_record(cls: Any, kind: str, fields: list[_Field], build: Callable[[dict[str, Any]], Any]) -> ValueType:
    name = type_text(cls)
    plain = [field.name for field in fields]
    lowers = [(field.name, field.type.lower) for field in fields if field.type.lower is not None]
    lifts = [(field.name, field.type.lift) for field in fields if field.type.lift is not None]

    def lower(value: Any) -> Any:
        if type(value) is not cls:
            if value is None:
                return None
            message = f"state declared as {name} holds a value of type {type_text(type(value))}"
            raise TypeMismatchError(message, hint="declare the type that the values have, or none")
        stored = {field: getattr(value, field) for field in plain}
        for field, change in lowers:
            stored[field] = change(stored[field])
        return stored

    def lift(stored: Any) -> Any:
        if stored is None:
            return None
        for field, change in lifts:
            stored[field] = change(stored[field])
        return build(stored)

    return ValueType(_record_schema(fields, kind, name), lower, lift, fields=tuple(fields))


def _hints_of(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}  # a hint that names something out of reach is opaque


def _of_arrow(kind: pa.DataType, shape: str) -> ValueType:
    is_ = pa.types
    if is_.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        described = [_of_arrow(field.type, "dict") for field in inner]
        if shape == "tuple":
            return _tuple(described)
        return _dict_record(
            [
                _Field(field.name, _optional(type_) if field.nullable else type_)
                for field, type_ in zip(inner, described, strict=True)
            ]
        )
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _list(_of_arrow(kind.value_type, "dict"))
    if is_.is_map(kind):
        return _map(_of_arrow(kind.key_type, "dict"), _of_arrow(kind.item_type, "dict"))
    if is_.is_dictionary(kind):
        return _of_arrow(kind.value_type, "dict")
    if is_.is_floating(kind):
        return ValueType({16: "float16", 32: "float32", 64: "float64"}[kind.bit_width])
    if is_.is_string(kind) or is_.is_large_string(kind):
        return ValueType("string")
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return ValueType("binary")
    if is_.is_date(kind):
        return ValueType("date")
    if is_.is_time(kind):
        return ValueType("time")
    if is_.is_duration(kind):
        return ValueType("duration")
    if is_.is_timestamp(kind):  # Python has one resolution
        return ValueType("timestamp" if kind.tz is None else f"timestamp[{kind.tz}]")
    return ValueType(str(kind))  # integers, bool, null, decimals


# ---------------------------------------------------------------------------------------------------------- evolution
_WIDER: dict[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64"),
    "uint16": ("uint32", "uint64", "int32", "int64"),
    "uint32": ("uint64", "int64"),
    "float16": ("float32", "float64"),
    "float32": ("float64",),
}
# Floats that hold every integer of the type exactly.
_EXACT_FLOATS: dict[str, tuple[str, ...]] = {
    "int8": ("float16", "float32", "float64"),
    "uint8": ("float16", "float32", "float64"),
    "int16": ("float32", "float64"),
    "uint16": ("float32", "float64"),
    "int32": ("float64",),
    "uint32": ("float64",),
}


def evolve(old: Schema, new: ValueType, renamed_fields: Mapping[str, str] | None = None) -> Change | None:
    """Find out how stored values of an older type become stored values of a newer one.

    Args:
        old: The schema that the values were stored with.
        new: The type that is declared now.
        renamed_fields: New name -> old name, for the outermost record.

    Returns:
        The change, for lowered values; None if there is nothing to change.

    Raises:
        CheckpointMismatchError: If there is none; with ``field``, ``old_type`` and ``new_type``.
    """
    return _evolve(old, new, (), dict(renamed_fields or {}))


def _evolve(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    schema = new.schema
    if old == schema and not renamed:
        return None
    if isinstance(schema, dict) and "optional" in schema:
        inner = old["optional"] if isinstance(old, dict) and "optional" in old else old
        return _unless_none(_evolve(inner, new.parts[0], path, renamed))
    if isinstance(old, dict) and isinstance(schema, dict):
        for form, change in (("list", _evolve_list), ("map", _evolve_map), ("tuple", _evolve_tuple)):
            if form in old and form in schema:
                return _unless_none(change(old[form], new, path, renamed))
        if "record" in old and "record" in schema:
            return _unless_none(_evolve_record(old, new, path, renamed))
    if isinstance(old, str) and isinstance(schema, str):
        if schema in _WIDER.get(old, ()):
            return None
        if schema in _EXACT_FLOATS.get(old, ()):
            return _unless_none(float)
    if old == schema:
        return None
    _refuse(path, old, schema)


def _unless_none(change: Change | None) -> Change | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _evolve_list(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    change = _evolve(old, new.parts[0], (*path, "[]"), renamed)
    return None if change is None else lambda value: [change(item) for item in value]


def _evolve_map(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    if old[0] != new.parts[0].schema:
        _refuse((*path, "key"), old[0], new.parts[0].schema, "the type of keys never changes")
    change = _evolve(old[1], new.parts[1], (*path, "value"), renamed)
    return None if change is None else lambda value: {key: change(item) for key, item in value.items()}


def _evolve_tuple(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    if len(old) != len(new.parts):
        _refuse(path, {"tuple": old}, new.schema, "the fields of a tuple have no names to match them by")
    changes = [
        _evolve(was, part, (*path, f"f{i}"), renamed) for i, (was, part) in enumerate(zip(old, new.parts, strict=True))
    ]
    if not any(changes):
        return None
    return lambda value: tuple(
        item if change is None else change(item) for change, item in zip(changes, value, strict=True)
    )


def _evolve_record(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    was = dict(old["record"])
    names = [field.name for field in new.fields]
    for name, source in renamed.items():
        if name not in names or (source not in was and name not in was):
            message = f"field {name!r} cannot have been renamed from {source!r}: there is no such field"
            raise CheckpointMismatchError(message, field=name, fields=sorted({*was, *names}))
    # Per field: its name, where it was, what becomes of it, what it is if it was not there.
    plan: list[tuple[str, str, Change | None, Callable[[], Any] | None]] = []
    is_changed = names != list(was)
    for field in new.fields:
        source = renamed.get(field.name, field.name)
        source = field.name if source not in was else source  # renamed in an earlier restore already
        default = field.default
        if source in was:
            change = _evolve(was[source], field.type, (*path, field.name), {})
        else:
            change = None
            if default is None:
                if not (isinstance(field.type.schema, dict) and "optional" in field.type.schema):
                    reason = "a new field needs a default or must admit None"
                    _refuse((*path, field.name), None, field.type.schema, reason)
                default = _nothing
            else:
                default = _lowered(default, field.type.lower)
        is_changed = is_changed or change is not None or source != field.name
        plan.append((field.name, source, change, default))
    if not is_changed:
        return None

    def convert(stored: dict[str, Any]) -> dict[str, Any]:
        converted = {}
        for name, source, change, default in plan:
            if source in stored:
                converted[name] = stored[source] if change is None else change(stored[source])
            elif default is not None:
                converted[name] = default()
        return converted

    return convert


def _nothing() -> None:
    return None


def _lowered(default: Callable[[], Any], lower: Change | None) -> Callable[[], Any]:
    return default if lower is None else lambda: lower(default())


def _refuse(path: tuple[str, ...], old: Schema, new: Schema, reason: str | None = None) -> NoReturn:
    field = ".".join(path)
    what = f"field {field!r}" if field else "it"
    message = f"{what} cannot change from {schema_text(old)} to {schema_text(new)}"
    if old is None:
        message = f"field {field!r} of type {schema_text(new)} is new"
    if reason is not None:
        message = f"{message}: {reason}"
    raise CheckpointMismatchError(message, field=field, old_type=schema_text(old), new_type=schema_text(new))


def schema_text(schema: Schema) -> str:
    """A schema for people."""
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
        return f"{schema['class'] or 'dict'}({inner})"
    return str(schema["opaque"])


def _needs_class(schema: Schema) -> bool:
    """Whether values of the type are made from a class, which only a declaration names."""
    if isinstance(schema, dict):
        return schema.get("class") is not None or any(map(_needs_class, schema.values()))
    return isinstance(schema, list) and any(map(_needs_class, schema))


# ------------------------------------------------------------------------------------------------------- whole states
def stored_form(descriptor: StateDescriptor) -> dict[str, Any]:
    """How values of a state are stored: what a backend keeps among a state's facts and gives to `migration`."""
    key_type = descriptor.key_type if isinstance(descriptor, MapStateDescriptor) else None
    return {
        "value_schema": value_type_of(descriptor.value_type).schema,
        "map_key_schema": value_type_of(key_type).schema,
        "ttl": descriptor.ttl is not None,
    }


def mapped(kind: str, has_ttl: bool, change: Change | None) -> Change | None:
    """Make a change of single values one of all that a key holds.

    Args:
        kind: The descriptor's: a list's elements and a map's values are changed one by one.
        has_ttl: Whether values stand in units with their timestamps.
        change: Of a single value; None for none.
    """
    if change is None:
        return None
    if not has_ttl:
        return _of_each(kind, change)
    return _of_each(kind, lambda unit: (change(unit[0]), unit[1]))


def _of_each(kind: str, change: Change) -> Change:
    if kind == "list":
        return lambda stored: [change(item) for item in stored]
    if kind == "map":
        return lambda stored: {key: change(item) for key, item in stored.items()}
    return change


def migration(facts: Mapping[str, Any], descriptor: StateDescriptor, now_ms: Callable[[], int]) -> Change | None:
    """Find out how what a checkpoint holds for each key becomes what a program declares.

    A state may get a time to live or lose it: its values then count from now, or for ever.

    Args:
        facts: The stored form (`stored_form`) that the values have.
        descriptor: What is declared now, of the same kind.
        now_ms: The clock.

    Returns:
        The change, of all that a key holds, lowered before and after; None if there is nothing to change.

    Raises:
        CheckpointMismatchError: If there is none; its context names field, old type and new type.
    """
    declared = stored_form(descriptor)
    old_key, new_key = facts.get("map_key_schema"), declared["map_key_schema"]
    if old_key is not None and new_key is not None and old_key != new_key:
        _refuse(("key",), old_key, new_key, "the type of keys never changes")
    old, new = facts.get("value_schema"), value_type_of(descriptor.value_type)
    change: Change | None
    if new.schema is None:
        change = None
        if _needs_class(old):
            message = f"the checkpoint holds values of type {schema_text(old)}; the program declares no type"
            raise CheckpointMismatchError(
                message, hint="declare the state's value type", old_type=schema_text(old), new_type="nothing"
            )
    elif old is None:
        change = new.lower  # stored as they were
    else:
        change = evolve(old, new, descriptor.renamed_fields)
    had_ttl, has_ttl = bool(facts.get("ttl")), descriptor.ttl is not None
    if had_ttl == has_ttl:
        return mapped(descriptor.kind, has_ttl, change)
    keep = change if change is not None else _same
    if had_ttl:
        return _of_each(descriptor.kind, lambda unit: keep(unit[0]))
    start_ms = now_ms()
    return _of_each(descriptor.kind, lambda value: (keep(value), start_ms))


def _same(value: Any) -> Any:
    return value
