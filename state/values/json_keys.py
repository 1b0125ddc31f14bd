"""Keys of state out of text that people type: what `json_text` writes of a key is read back by its type.

Source: RFC 8259 and `json_text`, whose inverse this is for what may be a key.
"""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

from ..errors import TypeMismatchError
from ..reading.stored_json import parse_json
from .sharing import shown
from .type_sources import schema_text
from .types import Schema

__all__ = ["MAX_KEY_CHARACTERS", "example_of_key", "key_of_text"]

MAX_KEY_CHARACTERS = 4_096
_MAX_DEPTH = 8

_EXAMPLES: dict[str, Any] = {
    "bool": True,
    "int64": 7,
    "float64": 2.5,
    "string": "ann",
    "binary": "AAE=",
    "decimal": "12.50",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "date": "2026-05-31",
    "time": "12:30:00",
    "timestamp": "2026-05-31T12:30:00",
    "timestamp[UTC]": "2026-05-31T12:30:00+00:00",
    "duration": 90.0,
}


class _NoKey(Exception):
    """The text is no key of the type."""


def key_of_text(text: str, schema: Schema) -> Any:
    """Read a key.

    Args:
        text: JSON, as `json_text` writes the key: a list for a tuple, text for times, decimals and the like. A text
            may stand without quotes where the keys are texts.
        schema: The type of the state's keys; None if it is not known, then JSON's own types are taken.

    Raises:
        TypeMismatchError: If it is no key of that type; the message has the type and an example.
    """
    if len(text) > MAX_KEY_CHARACTERS:
        message = f"a key may have {MAX_KEY_CHARACTERS:,} characters here; this one has {len(text):,}"
        raise TypeMismatchError(message)
    try:
        value, is_json = parse_json(text, max_bytes=4 * MAX_KEY_CHARACTERS, max_depth=_MAX_DEPTH), True
    except ValueError:
        value, is_json = text, False
    if schema == "string":
        return value if isinstance(value, str) else text
    is_bare = isinstance(schema, str) and isinstance(_EXAMPLES.get(schema), str)  # a text in JSON
    if not is_json and schema is not None and schema != "null" and not is_bare:
        raise _refused(text, schema)
    try:
        return _of(value, schema)
    except (_NoKey, ValueError, TypeError, OverflowError, InvalidOperation):
        raise _refused(text, schema) from None


def example_of_key(schema: Schema) -> str | None:
    """Return a key of a type, as it may be typed; None if keys of that type cannot be."""
    try:
        return json.dumps(_example(schema))
    except _NoKey:
        return None


def _refused(text: str, schema: Schema) -> TypeMismatchError:
    example = example_of_key(schema)
    if example is None:
        message = f"the state's keys are of type {schema_text(schema)}, which has no form in JSON"
        return TypeMismatchError(message, hint="ask for them from Python, with JobClient.query_state")
    message = f"the state's keys are of type {schema_text(schema)}, as {example}; got {shown(text, 120)}"
    return TypeMismatchError(message)


def _of(value: Any, schema: Schema) -> Any:
    if schema is None or schema == "null":
        return _untyped(value)
    if isinstance(schema, dict):
        if "optional" in schema:
            return None if value is None else _of(value, schema["optional"])
        parts = schema.get("tuple")
        if parts is None or not isinstance(value, list) or len(value) != len(parts):
            raise _NoKey
        return tuple(_of(one, part) for one, part in zip(value, parts, strict=True))
    if schema in ("bool", "int64", "float64"):  # numbers of all kinds are the same keys
        if not isinstance(value, (bool, int, float)):
            raise _NoKey
        return value
    if schema == "duration":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _NoKey
        return datetime.timedelta(seconds=value)
    if schema == "decimal" and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise _NoKey
    return _of_string(value, schema)


def _of_string(text: str, schema: str) -> Any:
    if schema == "string":
        return text
    if schema == "binary":
        return base64.b64decode(text, validate=True)
    if schema == "decimal":
        number = Decimal(text)
        if number.is_snan():
            raise _NoKey
        return number
    if schema == "uuid":
        return uuid.UUID(text)
    if schema == "date":
        return datetime.date.fromisoformat(text)
    if schema == "time":
        return datetime.time.fromisoformat(text)
    if schema in ("timestamp", "timestamp[UTC]"):
        # Python 3.10 knows no Z.
        moment = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        if (moment.tzinfo is None) == (schema == "timestamp[UTC]"):
            raise _NoKey
        return moment
    raise _NoKey


def _untyped(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_untyped, value))
    if isinstance(value, dict):
        raise _NoKey
    return value


def _example(schema: Schema) -> Any:
    if schema is None or schema == "null":
        return "ann"
    if isinstance(schema, dict):
        if "optional" in schema:
            return _example(schema["optional"])
        if "tuple" in schema:
            return [_example(part) for part in schema["tuple"]]
        raise _NoKey
    if schema not in _EXAMPLES:
        raise _NoKey
    return _EXAMPLES[schema]
