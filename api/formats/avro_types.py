"""Avro's types and those of columns, both ways.

What a file or message of Avro says of its values, and what its columns are. Files keep all of a type, or refuse it:
times with a zone are ``timestamp-*`` and those without one ``local-timestamp-*``, and a column without nulls is no
union. Messages say it as Flink does: each column may be null, and times are moments, with and without a zone.

The library reads and writes numbers and bytes, and none of its own dates, times and decimals: these end at the year
9999, or at microseconds, and round. Arrow makes columns of the numbers, which loses nothing.

Source: the Avro specification, "Logical Types"; Flink's ``AvroSchemaConverter``.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.extras import needs
from headrace.state.values.serde import columns_from_rows

__all__ = ["AvroRows", "avro_library", "avro_schema_of", "parsed_avro_schema"]

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MAX_PRECISION = 76
_OWN_DECIMAL, _OWN_UUID = "headrace-decimal", "headrace-uuid"
"""Names of logical types, known to the library here alone, of values that are no numbers, text or bytes."""

_Is = Callable[[pa.DataType], bool]


# ------------------------------------------------------------------------------------------------------ columns to Avro
def _logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def _is_time_in(*units: str) -> _Is:
    return lambda kind: pa.types.is_timestamp(kind) and kind.unit in units


def _is_local(*units: str) -> _Is:
    return lambda kind: pa.types.is_timestamp(kind) and kind.unit in units and kind.tz is None


_ATOMS: tuple[tuple[_Is, Any], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_signed_integer(kind) and kind.bit_width <= 32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "string"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
    (pa.types.is_date32, _logical("int", "date")),
)
_OF_MESSAGES: tuple[tuple[_Is, Any], ...] = (
    *_ATOMS,
    (_is_time_in("s", "ms"), _logical("long", "timestamp-millis")),
    (_is_time_in("us"), _logical("long", "timestamp-micros")),
)
_OF_FILES: tuple[tuple[_Is, Any], ...] = (
    *_ATOMS,
    (pa.types.is_null, "null"),
    (lambda kind: kind in (pa.uint8(), pa.uint16()), "int"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_float16, "float"),
    (pa.types.is_time32, _logical("int", "time-millis")),
    (lambda kind: kind == pa.time64("us"), _logical("long", "time-micros")),
    (_is_local("s", "ms"), _logical("long", "local-timestamp-millis")),
    (_is_local("us"), _logical("long", "local-timestamp-micros")),
    (_is_local("ns"), _logical("long", "local-timestamp-nanos")),
    (_is_time_in("s", "ms"), _logical("long", "timestamp-millis")),
    (_is_time_in("us"), _logical("long", "timestamp-micros")),
    (_is_time_in("ns"), _logical("long", "timestamp-nanos")),
)


def avro_schema_of(schema: pa.Schema, name: str = "record", *, of_messages: bool = False) -> dict[str, Any]:
    """Return the Avro schema of columns.

    Args:
        schema: The columns.
        name: Of the record.
        of_messages: Whether it is that of messages, in which each column may be null, and times are moments.

    Raises:
        ConfigurationError: If a column's type or its name has none in Avro.
    """
    fields = []
    for field in schema:
        place = f"{name}.{field.name}"
        if not _NAME.fullmatch(field.name):
            message = f"a name in Avro has letters, digits and underscores; got {field.name!r}"
            raise ConfigurationError(message, hint="give the column another name", column=place)
        kind = _avro_of(field, place, of_messages)
        fields.append({"name": field.name, "type": kind, **({"default": None} if isinstance(kind, list) else {})})
    return {"type": "record", "name": name, "fields": fields}


def _avro_of(field: pa.Field, place: str, of_messages: bool) -> Any:
    kind = _avro_type(field.type, place, of_messages)
    return ["null", kind] if (field.nullable or of_messages) and kind != "null" else kind


def _avro_type(kind: pa.DataType, place: str, of_messages: bool) -> Any:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    for is_it, avro in _OF_MESSAGES if of_messages else _OF_FILES:
        if is_it(kind):
            return avro
    if pa.types.is_decimal(kind) and (of_messages or 0 <= kind.scale <= kind.precision):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind) or (_is_other_list(kind) and not of_messages):
        return {"type": "array", "items": _avro_of(kind.value_field, place, of_messages)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _avro_of(kind.item_field, place, of_messages)}
    if pa.types.is_struct(kind):
        return avro_schema_of(pa.schema(list(kind)), place, of_messages=of_messages)
    if pa.types.is_fixed_size_binary(kind) and not of_messages:
        return {"type": "fixed", "name": place, "size": kind.byte_width}
    message = f"Avro has no type for {kind}"
    raise ConfigurationError(message, column=place)


def _is_other_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


# ------------------------------------------------------------------------------------------------------ Avro to columns
class _Found(NamedTuple):
    """A type of Avro.

    Attributes:
        column: Of the column.
        stored: Of a column of what the library gives, which is cast to the other one.
        library: The schema by which the library reads and writes.
        is_nullable: Whether it is a union with null.
    """

    column: pa.DataType
    stored: pa.DataType
    library: Any
    is_nullable: bool = False

    @property
    def may_be_null(self) -> bool:
        """Whether a column has to allow it."""
        return self.is_nullable or pa.types.is_null(self.column)


_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
"""Others, and those on other types, mean nothing: Avro has readers pass over what they do not know."""


class _Types:
    """Finds the types of a schema, whose named types are known once they have been met."""

    def __init__(self) -> None:
        # None while it is being found: one that holds itself has no column.
        self._named: dict[str, _Found | None] = {}

    def of(self, avro: Any, place: str) -> _Found:
        if isinstance(avro, list):
            return self._of_union(avro, place)
        if isinstance(avro, str):
            return self._of_name(avro, place)
        kind = avro.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            self._named[avro["name"]] = None
            found = self._of_named(avro, place)
            self._named[avro["name"]] = found
            return found
        if kind == "array":
            item = self.of(avro["items"], place)
            column, stored = (pa.list_(pa.field("item", one, item.may_be_null)) for one in item[:2])
            return _Found(column, stored, {"type": "array", "items": item.library})
        if kind == "map":
            value = self.of(avro["values"], place)
            column, stored = (pa.map_(pa.string(), pa.field("value", one, value.may_be_null)) for one in value[:2])
            return _Found(column, stored, {"type": "map", "values": value.library})
        if not isinstance(kind, str) or kind not in _PRIMITIVES:
            return self.of(kind, place)  # a type in braces
        if kind == "bytes" and (decimal := _decimal_of(avro)) is not None:
            return _Found(decimal, decimal, _own_decimal("bytes", avro))
        stored = _PRIMITIVES[kind]
        return _Found(_LOGICAL.get((kind, avro.get("logicalType")), stored), stored, kind)

    def _of_union(self, avro: list[Any], place: str) -> _Found:
        others = [one for one in avro if one not in ("null", {"type": "null"})]
        if len(others) != 1:
            if not others:
                return _Found(pa.null(), pa.null(), avro, is_nullable=True)
            message = f"a column has one type, and may be null; this is a union of {len(others)} types"
            raise ConfigurationError(message, column=place)
        found = self.of(others[0], place)
        library = [found.library if one is others[0] else "null" for one in avro]
        return found._replace(library=library, is_nullable=len(avro) > 1)

    def _of_name(self, name: str, place: str) -> _Found:
        if name in _PRIMITIVES:
            return _Found(_PRIMITIVES[name], _PRIMITIVES[name], name)
        found = self._named.get(name)
        if found is None:
            message = f"a record that holds records of its own kind has no column: {name}"
            raise ConfigurationError(message, column=place)
        return found._replace(library=name)

    def _of_named(self, avro: dict[str, Any], place: str) -> _Found:
        if avro["type"] == "enum":
            library: dict[str, Any] = {name: avro[name] for name in ("type", "name", "symbols")}
            return _Found(pa.string(), pa.string(), library)
        if avro["type"] == "fixed":
            library = {name: avro[name] for name in ("type", "name", "size")}
            if (decimal := _decimal_of(avro)) is not None:
                return _Found(decimal, decimal, {**library, **_own_decimal("fixed", avro)})
            if avro.get("logicalType") == "uuid" and avro["size"] == 16:
                return _Found(pa.string(), pa.string(), {**library, "logicalType": _OWN_UUID})
            bytes_ = pa.binary(avro["size"])
            return _Found(bytes_, bytes_, library)
        fields, columns, stored = [], [], []
        for field in avro["fields"]:
            name = field["name"]
            found = self.of(field["type"], f"{place}.{name}")
            fields.append({"name": name, "type": found.library})
            columns.append(pa.field(name, found.column, found.may_be_null))
            stored.append(columns[-1].with_type(found.stored))
        library = {"type": "record", "name": avro["name"], "fields": fields}
        return _Found(pa.struct(columns), pa.struct(stored), library)


def _decimal_of(avro: dict[str, Any]) -> pa.DataType | None:
    """The type of a decimal; None if it is none, or says what no decimal is."""
    precision, scale = avro.get("precision"), avro.get("scale", 0)
    if avro.get("logicalType") != "decimal" or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision or precision < 1:
        return None
    if precision > _MAX_PRECISION:
        message = f"a decimal has at most {_MAX_PRECISION} digits; this has {precision}"
        raise ConfigurationError(message)
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _own_decimal(kind: str, avro: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "logicalType": _OWN_DECIMAL, "scale": avro.get("scale", 0)}


# --------------------------------------------------------------------------------------------------------- rows of both
class AvroRows:
    """Records of a schema, as the library has them and as columns.

    Args:
        avro: The schema, as JSON's values.

    Attributes:
        schema: Of the columns.
        library: What the library reads and writes records by.

    Raises:
        ConfigurationError: If it is none, or has a type that no column has.
    """

    def __init__(self, avro: Any) -> None:
        try:
            found = _Types().of(parsed_avro_schema(avro), "record")
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        if not pa.types.is_struct(found.column):
            message = f"the records of Avro's files are of the type record; these are {avro!r:.200}"
            raise ConfigurationError(message)
        self.schema = pa.schema(list(found.column))
        self.library = found.library
        self._stored = pa.schema(list(found.stored))
        self._with_dicts = _maps_as_dicts(found.stored)

    def columns_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return columns of what the library has read.

        Raises:
            ValueError: (``ArrowInvalid`` is one) or TypeMismatchError, if a value is none of its type.
        """
        if not len(self._stored):  # of which only the number tells
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        return columns_from_rows(rows, self._stored).cast(self.schema)

    def rows_of(self, columns: pa.RecordBatch) -> list[Any]:
        """Return what the library writes for columns, whose types are those of `schema` or narrower.

        Raises:
            TypeMismatchError: If a value has no place in its type.
        """
        try:
            rows = columns.cast(self.schema).cast(self._stored).to_pylist()
        except (pa.ArrowException, ValueError) as error:
            message = f"a record has no form in the Avro schema: {error}"
            raise TypeMismatchError(message) from error
        return rows if self._with_dicts is None else list(map(self._with_dicts, rows))


def _maps_as_dicts(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes dicts of the pairs of maps, which Arrow gives; None where there are none."""
    if pa.types.is_map(kind):
        inner = _maps_as_dicts(kind.item_type)
        return lambda value: None if value is None else _dict_of(value, inner)
    if pa.types.is_list(kind):
        item = _maps_as_dicts(kind.value_type)
        return None if item is None else functools.partial(_each, item)
    changes: dict[str, Callable[[Any], Any]] = {}
    for field in kind if pa.types.is_struct(kind) else ():
        change = _maps_as_dicts(field.type)
        if change is not None:
            changes[field.name] = change
    return functools.partial(_changed, changes) if changes else None


def _changed(changes: Mapping[str, Callable[[Any], Any]], value: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else {**value, **{name: change(value[name]) for name, change in changes.items()}}


def _each(change: Callable[[Any], Any], values: list[Any] | None) -> list[Any] | None:
    return None if values is None else list(map(change, values))


def _dict_of(pairs: Sequence[tuple[str, Any]], change: Callable[[Any], Any] | None) -> dict[str, Any]:
    found = {key: value if change is None else change(value) for key, value in pairs}
    if len(found) < len(pairs):
        message = f"a map has a key twice: {[key for key, _ in pairs]!r:.200}"
        raise TypeMismatchError(message)
    return found


# -------------------------------------------------------------------------------------------------------------- library
_EXACT = Context(prec=_MAX_PRECISION + 2)


def _decimal_from(data: bytes, schema: Any, *_: Any) -> Decimal:
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema["scale"], _EXACT)


def _decimal_bytes(value: Any, schema: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    number = int(value.scaleb(schema["scale"], _EXACT))
    size = schema["size"] if schema["type"] == "fixed" else (number + (number < 0)).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _uuid_from(data: bytes, *_: Any) -> str:
    return str(uuid.UUID(bytes=data))


def _uuid_bytes(value: Any, _: Any) -> Any:
    return uuid.UUID(value).bytes if isinstance(value, str) else value


@functools.cache
def avro_library() -> Any:
    """Return the library, which knows the logical types of this module.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("Avro needs fastavro", "avro"):
        import fastavro
        import fastavro.read
        import fastavro.write
    for kind in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{kind}-{_OWN_DECIMAL}"] = _decimal_from
        fastavro.write.LOGICAL_WRITERS[f"{kind}-{_OWN_DECIMAL}"] = _decimal_bytes
    fastavro.read.LOGICAL_READERS[f"fixed-{_OWN_UUID}"] = _uuid_from
    fastavro.write.LOGICAL_WRITERS[f"fixed-{_OWN_UUID}"] = _uuid_bytes
    return fastavro


def parsed_avro_schema(avro: Any) -> Any:
    """Return a schema as the library works with it, with all names in full.

    Args:
        avro: As text, or as JSON's values.

    Raises:
        ValueError: If it is none.
    """
    library = avro_library()
    try:
        return library.parse_schema(json.loads(avro) if isinstance(avro, str) else avro)
    except (ValueError, KeyError, TypeError, AttributeError, library.schema.SchemaParseException) as error:
        message = f"it is no schema of Avro: {error!r:.300}"
        raise ValueError(message) from error
