"""Messages of Protocol Buffers, of one kind, whose class a program has or whose description a file holds.

Fields are columns: numbers, texts, bytes and bools as they are, unsigned numbers wider by one step (``uint64`` is a
decimal of 20 digits), an enum the name of its value (its number where that has no name), ``repeated`` a list, ``map`` a
map, a message a row. A field that knows whether it is set (``optional``, ``oneof``, a message, all of proto2) is null
where it is not; other fields then have the default of their type, which is what proto3 means by leaving them out.

Source: the encoding of Protocol Buffers; Flink's ``PbFormatFactory``; Confluent's documentation ("Wire Format") for
messages with a schema registry.
"""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.state.extras import needs
from headrace.state.values.serde import columns_from_rows, rows_from_columns

from .contract import columns_to_write
from .row_messages import RowMessages
from .schema_registry import SchemaRegistry
from .schemas import schema_of

__all__ = ["ProtobufMessages"]

MAX_DEPTH = 16
"""Messages that hold messages of their own kind have no columns; nesting ends here."""

_NUMBER = re.compile(r"-?[0-9]{1,10}")


class ProtobufMessages(RowMessages):
    """A Protocol Buffers message a message.

    Args:
        message: Its class, as ``protoc`` makes it, or where that is imported from: ``"events_pb2.Event"``.
        schema: The columns, which are some of its fields; None takes all.
        registry: If messages begin with the number of a schema in a registry, and the place of their kind in it. They
            are read by ``message`` whatever number it is, as kinds may only grow in compatible ways.
        reads_defaults: Whether fields that know that they are not set are read as their defaults instead of nulls.

    Raises:
        ConfigurationError: If there is no such class, it has no such field, or a field has another type; or protobuf is
            not installed.
    """

    def __init__(
        self,
        message: Any,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        registry: SchemaRegistry | None = None,
        *,
        reads_defaults: bool = False,
    ) -> None:
        with needs("messages of Protocol Buffers need protobuf", "protobuf"):
            import google.protobuf  # noqa: F401 - seen here that it is there
        kind = _class_named(message) if isinstance(message, str) else message
        if not hasattr(kind, "DESCRIPTOR"):
            text = f"messages of Protocol Buffers have a class that protoc has made; got {kind!r}"
            raise ConfigurationError(text)
        self._name = kind.DESCRIPTOR.full_name
        # The class itself may be of a module that other processes have not; its description goes along instead.
        self._files = _files_of(kind.DESCRIPTOR.file)
        self._registry = registry
        self._reads_defaults = reads_defaults
        fields = {field.name: field for field in kind.DESCRIPTOR.fields}
        declared = schema_of(schema)
        names = list(fields) if declared is None else declared.names
        for name in names:
            if name not in fields:
                text = f"{self._name} has no field {name!r}"
                raise ConfigurationError(text, hint=f"its fields are {', '.join(fields)}")
        self._as_read = pa.schema([(name, _type_of(fields[name], self._name, 0)) for name in names])
        self.schema = self._as_read if declared is None else declared
        _require_castable(self._as_read, self.schema, self._name)
        # Made where messages are read and written.
        self._kind: Any = None
        self._readers: list[tuple[str, Callable[[Any], Any]]] = []
        self._set_fields: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kind": None, "_readers": [], "_set_fields": None}

    def _made(self) -> Any:
        """The class of messages, made of their description."""
        if self._kind is None:
            self._kind = _class_of(self._files, self._name)
            fields = self._kind.DESCRIPTOR.fields_by_name
            self._readers = [(name, _reader(fields[name], self._reads_defaults)) for name in self.schema.names]
            self._set_fields = _fields_setter(self._kind.DESCRIPTOR, self.schema.names)
        return self._kind

    def _row(self, message: bytes) -> dict[str, Any] | str:
        from google.protobuf.message import DecodeError

        made = self._made()
        try:
            if self._registry is not None:
                message = _without_place(self._registry.number_of(message)[1], _place_of(made.DESCRIPTOR))
            found = made.FromString(message)
        except (DecodeError, ValueError) as error:
            return str(error) or "it is no message"
        return {name: read(found) for name, read in self._readers}

    def _cast(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return columns_from_rows(rows, self._as_read).cast(self.schema)

    def encode(self, batch: Batch) -> list[bytes]:
        """Make a message of each record; what is null is not set.

        Raises:
            TypeMismatchError: If a value has no place in its field.
            ConfigurationError: If the registry refuses the schema.
            ExternalError: If it does not answer.
        """
        from google.protobuf.message import EncodeError

        made = self._made()
        head = b"" if self._registry is None else self._head(self._registry, made.DESCRIPTOR)
        messages: list[bytes] = []
        for row in rows_from_columns(self._to_write(columns_to_write(batch, self.schema))):
            try:
                messages.append(head + made(**self._set_fields(row)).SerializeToString(deterministic=True))
            except (ValueError, TypeError, KeyError, EncodeError) as error:
                raise self._formless(error, len(messages)) from error
        return messages

    def _to_write(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Columns with the types of the fields."""
        try:
            return columns.cast(self._as_read)
        except pa.ArrowInvalid:
            for row in range(len(columns)):
                try:
                    columns.slice(row, 1).cast(self._as_read)
                except pa.ArrowInvalid as error:
                    raise self._formless(error, row) from error
            raise

    def _formless(self, error: Exception, row: int) -> TypeMismatchError:
        text = f"a record has no form as {self._name}: {error}"
        return TypeMismatchError(text, row=row)

    def _head(self, registry: SchemaRegistry, descriptor: Any) -> bytes:
        *needed, own = ((name, base64.b64encode(file).decode()) for name, file in self._files.items())
        head = registry.head_of(own[1], "PROTOBUF", {name: text for name, text in needed if not _is_known(name)})
        place = _place_of(descriptor)
        return head + (b"\0" if place == [0] else _numbers([len(place), *place]))


def _is_known(file: str) -> bool:
    """Whether every registry knows a file: those that come with Protocol Buffers."""
    return file.startswith("google/protobuf/")


def _place_of(descriptor: Any) -> list[int]:
    """Where a message's kind stands in its file: its number, within the message around it and so on."""
    outer = descriptor.containing_type
    if outer is None:
        return [list(descriptor.file.message_types_by_name).index(descriptor.name)]
    return [*_place_of(outer), list(outer.nested_types_by_name).index(descriptor.name)]


def _numbers(numbers: Sequence[int]) -> bytes:
    """Small numbers as the registry's messages have them: variable in length, and signed by zigzag."""
    made = bytearray()
    for number in numbers:
        rest = number << 1
        while rest > 0x7F:
            made.append(rest & 0x7F | 0x80)
            rest >>= 7
        made.append(rest)
    return bytes(made)


def _without_place(message: bytes, expected: list[int]) -> bytes:
    """A message behind the place of its kind.

    Raises:
        ValueError: If it is of another kind.
    """
    numbers, position = [], 0
    count, position = _number(message, position)
    if count < 0:
        text = "it does not say of which kind it is"
        raise ValueError(text)
    for _ in range(min(count, MAX_DEPTH)):
        number, position = _number(message, position)
        numbers.append(number)
    if (numbers or [0]) != expected:
        text = f"it is of the kind at place {numbers or [0]} of its schema, and not {expected}"
        raise ValueError(text)
    return message[position:]


def _number(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 28:
            text = "it does not say of which kind it is"
            raise ValueError(text)
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _class_named(path: str) -> Any:
    """The class at an import path; a class within a class is named with dots, too."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            found = getattr(found, name, None)
        if found is not None:
            return found
    message = f"there is no class {path!r} of messages"
    raise ConfigurationError(message, hint="name it as it is imported: 'package.events_pb2.Event'")


def _files_of(file: Any) -> dict[str, bytes]:
    """Descriptions of a file and of those that it needs, by name, each behind what it needs."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found: dict[str, bytes] = {}

    def add(one: Any) -> None:
        if one.name not in found:
            for needed in one.dependencies:
                add(needed)
            description = FileDescriptorProto()
            one.CopyToProto(description)
            found[one.name] = description.SerializeToString()

    add(file)
    return found


def _class_of(files: Mapping[str, bytes], name: str) -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in files.values():
        pool.AddSerializedFile(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _type_of(field: Any, owner: str, depth: int) -> pa.DataType:
    """The column's type of a field."""
    name = f"{owner}.{field.name}"
    if depth > MAX_DEPTH:
        message = f"messages within messages go deeper than {MAX_DEPTH}"
        raise ConfigurationError(message, field=name, hint="declare the columns that are wanted")
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_type_of(entry["key"], name, depth + 1), _type_of(entry["value"], name, depth + 1))
    kind = _type_of_one(field, name, depth)
    return pa.list_(kind) if field.is_repeated else kind


def _type_of_one(field: Any, name: str, depth: int) -> pa.DataType:
    if field.message_type is not None:
        inner = field.message_type.fields
        if not inner:
            message = "a message without fields has no columns"
            raise ConfigurationError(message, field=name)
        return pa.struct([(one.name, _type_of(one, name, depth + 1)) for one in inner])
    atoms = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }
    kind: pa.DataType = atoms[field.cpp_type]
    return kind


def _reader(field: Any, reads_defaults: bool) -> Callable[[Any], Any]:
    """What reads a field of a message."""
    name = field.name
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _value_reader(entry["key"], reads_defaults), _value_reader(entry["value"], reads_defaults)
        return lambda message: [(key(one), value(other)) for one, other in sorted(getattr(message, name).items())]
    read = _value_reader(field, reads_defaults)
    if field.is_repeated:
        return lambda message: [read(one) for one in getattr(message, name)]
    if field.has_presence and (not reads_defaults or field.message_type is not None):
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value_reader(field: Any, reads_defaults: bool) -> Callable[[Any], Any]:
    """What makes a column's value of a field's."""
    if field.message_type is not None:
        readers = [(one.name, _reader(one, reads_defaults)) for one in field.message_type.fields]
        return lambda message: {name: read(message) for name, read in readers}
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    return lambda value: value


def _fields_setter(descriptor: Any, names: Sequence[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What makes the arguments of a message of a row: without nulls.

    It raises ValueError if two fields are set of which a message has one at most.
    """
    fields = descriptor.fields_by_name
    setters = {name: _setter(fields[name]) for name in names}
    choices = [(one.name, [field.name for field in one.fields]) for one in descriptor.oneofs if len(one.fields) > 1]

    def set_fields(row: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: setters[name](value) for name, value in row.items() if value is not None}
        for choice, of_it in choices:
            given_of_it = [name for name in of_it if name in given]
            if len(given_of_it) > 1:
                text = f"of oneof {choice!r} one field is set at most, and the others null; set are {given_of_it}"
                raise ValueError(text)
        return given

    return set_fields


def _setter(field: Any) -> Callable[[Any], Any]:
    """What makes a field's value of a column's, which is not null."""
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _one_setter(entry["key"], field.name), _one_setter(entry["value"], field.name)
        return lambda pairs: {
            key(one): value(other) for one, other in (pairs.items() if isinstance(pairs, Mapping) else pairs)
        }
    one_setter = _one_setter(field, field.name)
    return (lambda values: [one_setter(one) for one in values]) if field.is_repeated else one_setter


def _one_setter(field: Any, name: str) -> Callable[[Any], Any]:
    """What makes one value of a field; for a null, which a list or map may have, it raises ValueError."""
    if field.message_type is not None:
        # Made with the first value: a message may hold messages of its own kind.
        made: list[Callable[[Mapping[str, Any]], dict[str, Any]]] = []

        def set_message(row: Mapping[str, Any]) -> dict[str, Any]:
            if not made:
                made.append(_fields_setter(field.message_type, [one.name for one in field.message_type.fields]))
            return made[0](row)

        convert: Callable[[Any], Any] = set_message
    elif field.enum_type is not None:
        convert = _enum_setter(field.enum_type)
    else:
        convert = int if field.cpp_type == field.CPPTYPE_UINT64 else (lambda value: value)

    def set_one(value: Any) -> Any:
        if value is None:
            text = f"field {name!r} is a list or map, which holds no nulls in Protocol Buffers"
            raise ValueError(text)
        return convert(value)

    return set_one


def _enum_setter(kind: Any) -> Callable[[str], str | int]:
    """What makes an enum's value of its name, or of the number as which one without a name is read."""
    names, is_open = kind.values_by_name, not kind.is_closed
    return lambda text: int(text) if is_open and text not in names and _NUMBER.fullmatch(text) else text


def _require_castable(as_read: pa.Schema, declared: pa.Schema, name: str) -> None:
    """See that columns can have the types that are declared."""
    for field in declared:
        kind = as_read.field(field.name).type
        try:
            pa.nulls(0, kind).cast(field.type)
            pa.nulls(0, field.type).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            message = f"field {field.name!r} of {name} is {kind}, and its column {field.type}"
            raise ConfigurationError(message) from error
