"""Dataclasses as JSON and back, checked by the types that their fields declare.

What is stored of settings and views must be read without running anything, so it is no pickle: every field goes by its
declared type, and comes back as that or not at all. The types are those that such classes are made of: numbers, texts,
truth values, enums, other dataclasses, tuples (also named ones), dicts by text, and ``| None``. A union of several
dataclasses is a pair of name and fields. Floats that JSON does not have (infinities, NaN) are texts.

A field that is missing has its default, so that what an older version stored is read by a newer one; a field that is
not known says that a newer version wrote it, and is refused.

Source: FLIP-266 and Flink's ``RestMapperUtils``, which read by declared types, too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, NamedTuple

from ..errors import TypeMismatchError
from ..values.sharing import shown
from .manifest_schema import require

__all__ = ["fields_as_facts", "fields_from_facts"]

_MAX_INT_BITS = 3_000
"""Of an int: `headrace.state.reading.stored_json` reads numbers of a thousand digits."""


class _Codec(NamedTuple):
    """Both ways of one type; ``write`` raises TypeMismatchError, ``read`` ValueError. Both are told where they are."""

    write: Callable[[Any, str], Any]
    read: Callable[[Any, str], Any]


def fields_as_facts(value: Any, *, omit: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON object.

    Args:
        value: The instance.
        omit: Fields that are left out, whatever their types.

    Raises:
        TypeMismatchError: If a field holds something else than it declares.
    """
    kind: Any = type(value)
    names = [name for name in _names(kind) if name not in omit]
    return {name: _field_codec(kind, name).write(getattr(value, name), f"{kind.__name__}.{name}") for name in names}


def fields_from_facts(kind: Any, facts: Any, *, omit: Collection[str] = ()) -> dict[str, Any]:
    """Return the arguments to make a dataclass with, of what `fields_as_facts` gave.

    Args:
        kind: The class.
        facts: The JSON object, of anybody.
        omit: As it was written.

    Raises:
        ValueError: If it is none of that class, or lacks what has no default.
    """
    require(type(facts) is dict, kind.__name__, facts)
    wanted = [name for name in _names(kind) if name not in omit]
    unknown = sorted(set(facts) - set(wanted))
    require(not unknown, f"{kind.__name__}: it has fields that are not known", unknown)
    given = [name for name in wanted if name in facts]
    found = {name: _field_codec(kind, name).read(facts[name], f"{kind.__name__}.{name}") for name in given}
    missing = [name for name in wanted if name not in found and name not in _defaults(kind)]
    require(not missing, f"{kind.__name__}: it lacks fields", missing)
    return found


def _names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def _defaults(kind: type) -> set[str]:
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is not missing or field.default_factory is not missing}


@functools.cache
def _field_codec(kind: Any, name: str) -> _Codec:
    """Of one field; others of the class may be of types that have none."""
    return _codec(typing.get_type_hints(kind)[name])


def _codec(kind: Any) -> _Codec:
    if isinstance(kind, typing.NewType):
        return _codec(kind.__supertype__)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return _union(typing.get_args(kind))
    if origin is tuple:
        return _tuple(typing.get_args(kind))
    if origin is dict:
        return _dict(typing.get_args(kind)[1])
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return _PLAIN[kind]


def _union(kinds: tuple[Any, ...]) -> _Codec:
    others = [kind for kind in kinds if kind is not types.NoneType]
    inner = _codec(others[0]) if len(others) == 1 else _named({kind.__name__: kind for kind in others})
    if len(others) == len(kinds):
        return inner
    return _Codec(
        lambda value, where: None if value is None else inner.write(value, where),
        lambda facts, where: None if facts is None else inner.read(facts, where),
    )


def _named(kinds: dict[str, type]) -> _Codec:
    def write(value: Any, where: str) -> Any:
        name = type(value).__name__
        if kinds.get(name) is not type(value):
            raise _mismatch(where, " or ".join(kinds), value)
        return [name, fields_as_facts(value)]

    def read(facts: Any, where: str) -> Any:
        require(type(facts) is list and len(facts) == 2 and type(facts[0]) is str, where, facts)
        require(facts[0] in kinds, where, facts[0])
        return _dataclass(kinds[facts[0]]).read(facts[1], where)

    return _Codec(write, read)


def _dataclass(kind: type) -> _Codec:
    def write(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _mismatch(where, kind.__name__, value)
        return fields_as_facts(value)

    return _Codec(write, lambda facts, _where: kind(**fields_from_facts(kind, facts)))


def _enum(kind: type[Enum]) -> _Codec:
    def write(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _mismatch(where, kind.__name__, value)
        return value.name

    def read(facts: Any, where: str) -> Any:
        require(type(facts) is str and facts in kind.__members__, where, facts)
        return kind[facts]

    return _Codec(write, read)


def _tuple(kinds: tuple[Any, ...]) -> _Codec:
    is_even = len(kinds) == 2 and kinds[1] is Ellipsis
    codecs = [_codec(kind) for kind in (kinds[:1] if is_even else kinds)]

    def each(values: Any) -> list[_Codec]:
        return codecs * len(values) if is_even else codecs

    def write(value: Any, where: str) -> Any:
        if not isinstance(value, (tuple, list)) or len(each(value)) != len(value):
            raise _mismatch(where, "tuple", value)
        return [codec.write(item, where) for codec, item in zip(each(value), value, strict=True)]

    def read(facts: Any, where: str) -> Any:
        require(type(facts) is list and len(each(facts)) == len(facts), where, facts)
        return tuple(codec.read(item, where) for codec, item in zip(each(facts), facts, strict=True))

    return _Codec(write, read)


def _named_tuple(kind: type) -> _Codec:
    inner = _tuple(tuple(typing.get_type_hints(kind).values()))
    return _Codec(inner.write, lambda facts, where: kind(*inner.read(facts, where)))


def _dict(kind: Any) -> _Codec:
    codec = _codec(kind)

    def write(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise _mismatch(where, "dict by text", value)
        return {str.__str__(name): codec.write(item, f"{where}[{name!r:.40}]") for name, item in value.items()}

    def read(facts: Any, where: str) -> Any:
        require(type(facts) is dict, where, facts)
        return {name: codec.read(item, where) for name, item in facts.items()}

    return _Codec(write, read)


def _write_int(value: Any, where: str) -> int:
    try:
        number = int(value if isinstance(value, float) and value.is_integer() else operator.index(value))
    except TypeError:
        raise _mismatch(where, "whole number", value) from None
    if number.bit_length() > _MAX_INT_BITS:
        raise _mismatch(where, "number of at most 900 digits", f"one of {number.bit_length()} bits")
    return number


def _write_float(value: Any, where: str) -> Any:
    if type(value) is int and value.bit_length() < 64:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _mismatch(where, "number", value) from None
    return number if math.isfinite(number) else repr(number)


def _read_float(facts: Any, where: str) -> Any:
    if type(facts) is str:
        require(facts in _NOT_FINITE, where, facts)
        return float(facts)
    require(type(facts) in (int, float), where, facts)
    return facts


def _write_str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _mismatch(where, "text", value)
    return str.__str__(value)


def _exactly(kind: type) -> Callable[[Any, str], Any]:
    def read(facts: Any, where: str) -> Any:
        require(type(facts) is kind, where, facts)
        return facts

    return read


def _mismatch(where: str, wanted: str, value: Any) -> TypeMismatchError:
    message = f"{where} must be a {wanted} to be stored; got {shown(value)}"
    return TypeMismatchError(message)


_NOT_FINITE = ("inf", "-inf", "nan")

_PLAIN: dict[Any, _Codec] = {
    bool: _Codec(lambda value, _where: bool(value), _exactly(bool)),
    int: _Codec(_write_int, _exactly(int)),
    float: _Codec(_write_float, _read_float),
    str: _Codec(_write_str, _exactly(str)),
}
