"""Whether values that a checkpoint holds can become values of the type that a program now declares, and how.

Types and their stored descriptions are those of `headrace.state.values.types`. Instances of dataclasses and NamedTuples
are *lowered* to dicts by field when they are stored and *lifted* when they come back, so that files need no pickle and
a class may change: what is stored are fields, nothing else that an instance may carry.

The rules, checked once when a restored state is declared, are those of Avro's schema resolution: fields are matched by
name (or by the name they had: ``renamed_fields``), one that is gone is dropped, a new one needs a default or must admit
None; integers and floats may widen; a value may become optional. Everything else is refused before the first record.
Keys never change their type: their hash decides where they live.

Of columnar state the columns may change: what it has lost is left out, what it has gained is null in older rows.
Columns are matched by name. What a program no longer asks for goes with the next run that is written; that it comes
back under its old name with old values is for the program to avoid, by giving a column that begins anew a new name.

Source: Flink's ``TypeSerializerSnapshot`` and ``PojoSerializer``'s schema evolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from ..errors import CheckpointMismatchError
from ..values.composite_types import RecordType
from ..values.type_sources import schema_text, type_of_hint
from ..values.types import Change, Schema, ValueType
from .kinds import StateDescriptor
from .layouts import Layout

__all__ = ["can_become", "evolve", "fitted", "migration", "of_part", "of_whole", "stored_form"]


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
        if "tuple" in schema and "record" in old and old["class"] is None:
            old = _with_tuples(old)
        for form, change in (("list", _evolve_list), ("map", _evolve_map), ("tuple", _evolve_tuple)):
            if form in old and form in schema:
                return _unless_none(change(old[form], new, path, renamed))
        if "record" in old and isinstance(new, RecordType):
            return _unless_none(_evolve_record(old, new, path, renamed))
    if isinstance(old, str) and isinstance(schema, str):
        if schema in _WIDER.get(old, ()):
            return None
        if schema in _EXACT_FLOATS.get(old, ()):
            return _unless_none(float)
    if old == schema:
        return None
    _refuse(path, old, schema)


def _with_tuples(old: Schema) -> Schema:
    """Tuples in columns ``f0``, ``f1`` ... of a declared Arrow type were once described as dicts of these fields."""
    if isinstance(old, list):
        return [_with_tuples(part) for part in old]
    if not isinstance(old, dict) or "opaque" in old:
        return old
    if "record" not in old:
        return {form: _with_tuples(part) for form, part in old.items()}
    fields = [(name, _with_tuples(part)) for name, part in old["record"]]
    if old["class"] is not None or [name for name, _ in fields] != [f"f{i}" for i in range(len(fields))]:
        return {**old, "record": [[name, part] for name, part in fields]}
    return {
        "tuple": [part["optional"] if isinstance(part, dict) and "optional" in part else part for _, part in fields]
    }


def _unless_none(change: Change | None) -> Change | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _evolve_list(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    change = _evolve(old, new.parts[0], (*path, "[]"), renamed)
    return None if change is None else lambda value: [change(item) for item in value]


def _evolve_map(old: Schema, new: ValueType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    if new.parts[0].schema not in (old[0], _with_tuples(old[0])):
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


def _evolve_record(old: Schema, new: RecordType, path: tuple[str, ...], renamed: dict[str, str]) -> Change | None:
    was = dict(old["record"])
    names = [field.name for field in new.fields]
    for name, source in renamed.items():
        if name not in names or (source not in was and name not in was):
            message = f"field {name!r} cannot have been renamed from {source!r}: there is no such field"
            raise CheckpointMismatchError(message, field=name, fields=sorted({*was, *names}))
    # Per field: its name, where it was, what it is turned into, what it is if it was not there.
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


def _needs_class(schema: Schema) -> bool:
    """Whether values of the type are made from a class, which only a declaration names."""
    if isinstance(schema, dict):
        return schema.get("class") is not None or any(map(_needs_class, schema.values()))
    return isinstance(schema, list) and any(map(_needs_class, schema))


# ------------------------------------------------------------------------------------------------------- whole states
def stored_form(descriptor: StateDescriptor) -> dict[str, Any]:
    """Return how values of a state are stored: what a backend keeps among a state's facts and gives to `migration`."""
    return {
        "value_schema": type_of_hint(descriptor.value_type).schema,
        "map_key_schema": type_of_hint(descriptor.place_type).schema,
        "ttl": descriptor.ttl is not None,
    }


def of_part(has_ttl: bool, change: Change | None) -> Change | None:
    """Make a change of single values one of parts.

    Args:
        has_ttl: Whether parts are units: values with their timestamps.
        change: Of a single value; None for none.
    """
    if change is None or not has_ttl:
        return change
    return lambda unit: (change(unit[0]), unit[1])


def of_whole(layout: Layout, change: Change | None) -> Change | None:
    """Make a change of single parts one of all that a key holds; None for none."""
    return None if change is None else layout.of_each(change)


def migration(facts: Mapping[str, Any], descriptor: StateDescriptor, now_ms: Callable[[], int]) -> Change | None:
    """Find out how the parts that a checkpoint holds become what a program declares.

    A state may get a time to live or lose it: its values then count from now, or for ever.

    Args:
        facts: The stored form (`stored_form`) that the values have.
        descriptor: What is declared now, of the same kind.
        now_ms: The clock.

    Returns:
        The change, of one part, lowered before and after; None if there is nothing to change.

    Raises:
        CheckpointMismatchError: If there is none; its context names field, old type and new type.
    """
    declared = stored_form(descriptor)
    old_key, new_key = facts.get("map_key_schema"), declared["map_key_schema"]
    if old_key is not None and new_key is not None and new_key not in (old_key, _with_tuples(old_key)):
        _refuse(("key",), old_key, new_key, "the type of keys never changes")
    old, new = facts.get("value_schema"), type_of_hint(descriptor.value_type)
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
        return of_part(has_ttl, change)
    keep = change if change is not None else _same
    if had_ttl:
        return lambda unit: keep(unit[0])
    start_ms = now_ms()
    return lambda value: (keep(value), start_ms)


def _same(value: Any) -> Any:
    return value


# -------------------------------------------------------------------------------------------------------------- columns
def can_become(there: pa.Schema, wanted: pa.Schema, key_columns: tuple[str, ...]) -> bool:
    """Return whether rows of a schema can be read as those of another one: keys and common columns have the
    same types.
    """
    common = [name for name in wanted.names if name in there.names]
    return all(name in common for name in key_columns) and all(
        there.field(name).type == wanted.field(name).type for name in common
    )


def fitted(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of a schema that they can become."""
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
