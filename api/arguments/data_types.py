"""Types of streams: PyFlink's ``Types``, their Arrow form, and how they are found from Python hints.

A stream need not have a type: any Python object may flow. Where a type is known (``output_type=``, ``type_info=``, a
dataclass, hints of a function) batches get columns of exactly that type, and a record that does not fit is an error
that names it. A type says two things: the Arrow schema of the columns, and what a record is in Python (a dict by field
name, a tuple, or the bare value).

Source: PyFlink's ``pyflink.common.typeinfo``; the Arrow side is Headrace's own (``headrace.row`` in the schema's
metadata).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError
from headrace.state.values.composite_types import ListType, MapType, OptionalType, RecordType, TupleType
from headrace.state.values.type_sources import hints_of, type_of_arrow, type_of_hint
from headrace.state.values.types import RECORD_SHAPE, AtomType, OpaqueType, ValueType, declared_shape

__all__ = [
    "TypeInformation",
    "Types",
    "infer_output_type",
    "infer_type",
    "project_type",
    "resolve_type",
    "schema_of",
    "type_of",
]


@dataclasses.dataclass(frozen=True)
class TypeInformation:
    """The type of a stream's records or of a part of them.

    Attributes:
        name: As written in PyFlink, for people.
        arrow_type: The Arrow type of a value; None for arbitrary Python objects, which stay rows.
        shape: What a record of this type is: ``dict``, ``tuple`` or ``value``.
        is_of_class: Whether it was found from a NamedTuple or a dataclass, which columns do not make again.
    """

    name: str
    arrow_type: pa.DataType | None
    shape: str = "value"
    is_of_class: bool = dataclasses.field(default=False, compare=False)

    @property
    def is_pickled(self) -> bool:
        """Whether records of this type are arbitrary Python objects, without columns."""
        return self.arrow_type is None

    def __repr__(self) -> str:
        return self.name


class Types:
    """The types, by PyFlink's names. Each call gives a `TypeInformation`."""

    @staticmethod
    def STRING() -> TypeInformation:
        """``str``."""
        return TypeInformation("STRING", pa.string())

    @staticmethod
    def BYTE() -> TypeInformation:
        """``int`` of 8 bits."""
        return TypeInformation("BYTE", pa.int8())

    @staticmethod
    def SHORT() -> TypeInformation:
        """``int`` of 16 bits."""
        return TypeInformation("SHORT", pa.int16())

    @staticmethod
    def INT() -> TypeInformation:
        """``int`` of 32 bits."""
        return TypeInformation("INT", pa.int32())

    @staticmethod
    def LONG() -> TypeInformation:
        """``int`` of 64 bits."""
        return TypeInformation("LONG", pa.int64())

    @staticmethod
    def FLOAT() -> TypeInformation:
        """``float`` of 32 bits."""
        return TypeInformation("FLOAT", pa.float32())

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """``float`` of 64 bits."""
        return TypeInformation("DOUBLE", pa.float64())

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """``bool``."""
        return TypeInformation("BOOLEAN", pa.bool_())

    @staticmethod
    def CHAR() -> TypeInformation:
        """``str`` of one character."""
        return TypeInformation("CHAR", pa.string())

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """``int`` of up to 38 digits."""
        return TypeInformation("BIG_INT", pa.decimal128(38, 0))

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """``decimal.Decimal`` of up to 38 digits, 18 of them behind the point."""
        return TypeInformation("BIG_DEC", pa.decimal128(38, 18))

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """``datetime.date``."""
        return TypeInformation("SQL_DATE", pa.date32())

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """``datetime.time``, microseconds."""
        return TypeInformation("SQL_TIME", pa.time64("us"))

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """``datetime.datetime`` without zone, microseconds."""
        return TypeInformation("SQL_TIMESTAMP", pa.timestamp("us"))

    @staticmethod
    def INSTANT() -> TypeInformation:
        """``datetime.datetime`` in UTC, microseconds."""
        return TypeInformation("INSTANT", pa.timestamp("us", "UTC"))

    @staticmethod
    def BYTES() -> TypeInformation:
        """``bytes``; PyFlink writes ``PRIMITIVE_ARRAY(BYTE())``."""
        return TypeInformation("BYTES", pa.binary())

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any Python object; the stream stays on the row path."""
        return TypeInformation("PICKLED_BYTE_ARRAY", None)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Return the type of tuples of the given types; its columns are ``f0``, ``f1`` ..."""
        return _tuple_of("ROW", field_types)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Return the type of tuples of the given types; its columns are ``f0``, ``f1`` ..."""
        return _tuple_of("TUPLE", field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Return the type of dicts of the given fields.

        Raises:
            ProgramError: If names and types differ in number, a name comes twice or a type has no columns.
        """
        if len(field_names) != len(field_types):
            message = f"ROW_NAMED needs as many names as types; got {len(field_names)} and {len(field_types)}"
            raise ProgramError(message)
        if len(set(field_names)) != len(field_names):
            message = f"field names must be unique; got {list(field_names)}"
            raise ProgramError(message)
        fields = [pa.field(n, _arrow(t, f"field {n!r}")) for n, t in zip(field_names, field_types, strict=True)]
        inner = ", ".join(f"{n}: {t.name}" for n, t in zip(field_names, field_types, strict=True))
        return TypeInformation(f"ROW({inner})", pa.struct(fields), "dict")

    @staticmethod
    def LIST(element_type: TypeInformation) -> TypeInformation:
        """``list``."""
        return TypeInformation(f"LIST({element_type.name})", pa.list_(_arrow(element_type, "the element of a list")))

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list``."""
        return Types.LIST(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list``."""
        return Types.LIST(element_type)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list``; of BYTE it is ``bytes``."""
        return Types.BYTES() if element_type.arrow_type == pa.int8() else Types.LIST(element_type)

    @staticmethod
    def MAP(key_type: TypeInformation, value_type: TypeInformation) -> TypeInformation:
        """``dict`` of any number of keys of one type."""
        name = f"MAP({key_type.name}, {value_type.name})"
        return TypeInformation(
            name, pa.map_(_arrow(key_type, "the key of a map"), _arrow(value_type, "the value of a map"))
        )


def _arrow(type_info: TypeInformation, what: str) -> pa.DataType:
    if type_info.arrow_type is None:
        message = f"{what} cannot be {type_info.name}: only whole records may be arbitrary Python objects"
        raise ProgramError(message)
    return type_info.arrow_type


def _tuple_of(name: str, field_types: Sequence[TypeInformation]) -> TypeInformation:
    fields = [pa.field(f"f{i}", _arrow(t, f"field {i}")) for i, t in enumerate(field_types)]
    return TypeInformation(f"{name}({', '.join(t.name for t in field_types)})", pa.struct(fields), "tuple")


def schema_of(type_info: TypeInformation | None) -> pa.Schema | None:
    """Return the Arrow schema of a stream of this type, with ``headrace.row`` in its metadata; None for arbitrary
    objects.
    """
    if type_info is None or type_info.arrow_type is None:
        return None
    arrow_type = type_info.arrow_type
    if type_info.shape == "value":
        return pa.schema([pa.field("value", arrow_type)], metadata={RECORD_SHAPE: b"value"})
    fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
    return pa.schema(fields, metadata={RECORD_SHAPE: type_info.shape.encode()} if type_info.shape != "dict" else None)


_SIMPLE = (
    Types.STRING, Types.BYTE, Types.SHORT, Types.INT, Types.LONG, Types.FLOAT, Types.DOUBLE, Types.BOOLEAN,
    Types.BIG_INT, Types.BIG_DEC, Types.SQL_DATE, Types.SQL_TIME, Types.SQL_TIMESTAMP, Types.INSTANT, Types.BYTES,
)  # fmt: skip


def type_of(schema: pa.Schema) -> TypeInformation:
    """Return the type of a stream whose records have these columns, by PyFlink's names; the reverse of `schema_of`."""
    shape = declared_shape(schema)
    types_ = [_type_of_column(field.type) for field in schema]
    if shape == "value":
        return types_[0]
    return Types.ROW_NAMED(schema.names, types_) if shape == "dict" else Types.TUPLE(types_)


_BY_ARROW = {make().arrow_type: make for make in _SIMPLE}


def _information_of(kind: ValueType) -> TypeInformation | None:
    """A type by PyFlink's names; None if a part of it has no columns."""
    if isinstance(kind, AtomType):
        # In streams decimals are numbers to compute with.
        arrow_type = Types.BIG_DEC().arrow_type if kind.schema == "decimal" else kind.arrow_type
        make = _BY_ARROW.get(arrow_type)
        return TypeInformation(str(arrow_type), arrow_type) if make is None else make()
    parts = [part for part in map(_information_of, kind.parts) if part is not None]
    if len(parts) < len(kind.parts) or isinstance(kind, OpaqueType):
        return None
    if isinstance(kind, ListType):
        return Types.LIST(*parts)
    if isinstance(kind, MapType):
        return Types.MAP(*parts)
    if isinstance(kind, OptionalType):
        return parts[0]
    if isinstance(kind, TupleType):
        return Types.TUPLE(parts)
    assert isinstance(kind, RecordType)
    is_tuple = kind.maker is not None and kind.maker.kind == "named tuple"
    found = Types.TUPLE(parts) if is_tuple else Types.ROW_NAMED([field.name for field in kind.fields], parts)
    return dataclasses.replace(found, is_of_class=kind.maker is not None)


def _type_of_column(kind: pa.DataType) -> TypeInformation:
    return _information_of(type_of_arrow(kind)) or TypeInformation(str(kind), kind)


def project_type(type_info: TypeInformation, positions: Sequence[int]) -> TypeInformation:
    """Return the type of tuples that are made of some fields of tuples of a type."""
    assert type_info.arrow_type is not None
    return Types.TUPLE([_type_of_column(type_info.arrow_type.field(position).type) for position in positions])


def infer_type(hint: Any) -> TypeInformation | None:
    """Find the type that a Python hint stands for.

    Args:
        hint: ``str``, ``int`` ..., ``list[T]``, ``dict[K, V]``, ``tuple[A, B]``, ``T | None``, a dataclass, a
            TypedDict, a NamedTuple.

    Returns:
        The type; None when the hint says nothing that has columns (``Any``, ``dict``, a class of one's own).
    """
    if typing.get_origin(hint) is Mapping:
        hint = dict[typing.get_args(hint)]  # type: ignore[misc]
    return _information_of(type_of_hint(hint))


def infer_output_type(function: Any, method: str | None = None, *, many: bool = False) -> TypeInformation | None:
    """Find the type of what a user function gives, from its return hint.

    Args:
        function: A callable, or a function object such as a MapFunction.
        method: The method that counts if ``function`` has it (``map``, ``flat_map`` ...).
        many: Whether the function gives an iterable of records.
    """
    target = getattr(function, method, None) if method is not None else None
    if target is None:
        is_object = callable(function) and not hasattr(function, "__code__")
        target = type(function).__call__ if is_object else function
    hint = hints_of(target).get("return")
    if hint is None:
        return None
    if many:
        if typing.get_origin(hint) not in (list, set, Iterator, Iterable, Generator, Sequence):
            return None
        arguments = typing.get_args(hint)
        return infer_type(arguments[0]) if arguments else None
    return infer_type(hint)


def resolve_type(declared: Any) -> TypeInformation:
    """Turn what a user passes as ``output_type`` or ``type_info`` into a type.

    Args:
        declared: A `TypeInformation`, an Arrow schema or data type, a dataclass, or any hint that `infer_type` knows.

    Raises:
        ProgramError: If it is none of these.
    """
    if isinstance(declared, TypeInformation):
        return declared
    if isinstance(declared, pa.Schema):
        shape = declared_shape(declared)
        if shape == "value":
            return TypeInformation(str(declared.field(0).type), declared.field(0).type)
        name = f"ROW({', '.join(f'{field.name}: {field.type}' for field in declared)})"
        return TypeInformation(name, pa.struct(list(declared)), shape)
    if isinstance(declared, pa.DataType):
        if pa.types.is_struct(declared):
            return resolve_type(pa.schema([declared.field(i) for i in range(declared.num_fields)]))
        return TypeInformation(str(declared), declared)
    found = infer_type(declared)
    if found is None:
        message = f"a type must be one of Types, an Arrow schema or type, a dataclass or a type hint; got {declared!r}"
        raise ProgramError(message)
    return found
