"""Checks of what a program hands to the methods of streams, so that a mistake is refused where it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.engine.columns.expressions import Expression
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.life import refuse_life
from headrace.engine.kernel.config import parse_duration_ms

__all__ = [
    "described",
    "duration_ms",
    "field_of",
    "key_selector_of",
    "require_instance",
    "tag_id_of",
    "text",
    "whole",
    "whole_number",
]


def key_selector_of(method: str, key: Sequence[Any]) -> KeySelector:
    """Return a selector from what a user writes as a key."""
    if len(key) == 1 and isinstance(key[0], (list, tuple)):
        key = key[0]
    if len(key) == 1:
        (only,) = key
        if isinstance(only, KeySelector):
            return only
        refuse_life(only, "a key selector")
        if callable(getattr(only, "get_key", None)):
            return KeySelector.of_function(only.get_key)
        if callable(only) and not isinstance(only, Expression):
            return KeySelector.of_function(only)
    fields: list[str | int] = []
    for one in key:
        field = one
        if isinstance(one, Expression):
            structure = one.structure
            if structure[0] != "col":
                message = f"{method} takes columns by name; {one!r} is computed"
                raise ProgramError(message, hint="add it by with_columns(name=...) first and use the name")
            field = structure[1]
        fields.append(field_of(method, field))
    if not fields:
        message = f"{method} needs a key"
        raise ProgramError(message)
    return KeySelector.of_field(*fields)


def field_of(method: str, field: Any) -> str | int:
    is_position = isinstance(field, int) and not isinstance(field, bool) and field >= 0
    if not is_position and not (isinstance(field, str) and field):
        message = f"{method} takes a field's name, or its position in tuples, as key or value; got {field!r}"
        raise ProgramError(message)
    return field


def require_instance(rule: str, kind: type, value: Any) -> None:
    if not isinstance(value, kind):
        message = f"{rule}; got {value!r}"
        raise ProgramError(message)


def tag_id_of(output_tag: Any) -> str:
    tag_id = output_tag if isinstance(output_tag, str) else getattr(output_tag, "tag_id", None)
    if not isinstance(tag_id, str) or not tag_id:
        message = f"an output tag must be an OutputTag or its id; got {output_tag!r}"
        raise ProgramError(message)
    return tag_id


def described(name: str, function: Any) -> str:
    own = getattr(function, "__qualname__", None) or type(function).__name__
    return f"{name} by {own}"


def text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        message = f"{what} must be a text that is not empty; got {value!r}"
        raise ConfigurationError(message)
    return value


def whole(what: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        message = f"{what} must be a whole number, {bounds}; got {value!r}"
        raise ConfigurationError(message)


def duration_ms(name: str, value: Any, at_least: int) -> int:
    """Return a duration in milliseconds, of at least so many."""
    duration = parse_duration_ms(value)
    if duration < at_least:
        message = f"{name} must be at least {at_least} ms; got {value!r}"
        raise ConfigurationError(message)
    return duration


def whole_number(name: str, value: Any) -> int:
    """Return a whole number as it is."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{name} must be a whole number; got {value!r}"
        raise ConfigurationError(message)
    return value
