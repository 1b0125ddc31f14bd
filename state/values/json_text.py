"""Records as JSON text, the same for the sinks of streams and of data sets.

What JSON has no form for is written as what readers expect: times in ISO 8601, decimals and UUIDs as text, bytes in
base64, durations in seconds, sets as sorted lists, enums as their values, and ``NaN`` and infinities as null. A key of
an object is never null, so a ``NaN`` there is an error.

Source: RFC 8259; Python's ``json``.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np

from ..errors import TypeMismatchError

__all__ = ["json_text"]


def json_text(record: Any) -> str:
    """A record as one line of JSON, without the line end.

    Raises:
        TypeMismatchError: If JSON has no form for a value in it.
    """
    try:
        try:
            return _ENCODER.encode(record)
        except ValueError:  # a number that JSON does not have
            return _ENCODER.encode(_finite(record))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"json has no form for a record: {error}; got {record!r:.200}"
        raise TypeMismatchError(message) from error


def _json_value(value: Any) -> Any:
    """What Python's encoder does not know by itself."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    message = f"json has no form for a value of type {type(value).__name__}: {value!r}"
    raise TypeMismatchError(message)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_json_value)


def _finite(value: Any) -> Any:
    """The value with null in place of ``NaN`` and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, float) and not math.isfinite(key):
                message = f"json has no form for {key} as a key of an object"
                raise TypeMismatchError(message)
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, (str, int, type(None))):
        return value
    return _finite(_json_value(value))
