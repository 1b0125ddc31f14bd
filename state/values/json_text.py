"""Values as JSON text, the same for sinks of streams and data sets, columns of databases and the command line.

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
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np

from ..errors import TypeMismatchError
from .sharing import MUCH, shown, spreads

__all__ = ["json_text"]


def json_text(record: Any, other: Callable[[Any], str] | None = None) -> str:
    """Write a value as one line of JSON, without the line end.

    Args:
        record: The value.
        other: Gives a text for a value that JSON has no form for, an object, say; without it such values are refused.

    Raises:
        TypeMismatchError: If JSON has no form for a value in it, or it shares parts that JSON would write in more than
            a million places.
    """
    if spreads(record, MUCH):
        message = f"json would repeat the parts that a record shares without end; got {shown(record)}"
        raise TypeMismatchError(message)
    encoder, form = _ENCODER, _json_value
    if other is not None:
        form = partial(_json_value, other=other)
        encoder = _encoder(form)
    try:
        try:
            return encoder.encode(record)
        except ValueError:  # a number that JSON does not have
            return encoder.encode(_finite(record, form))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"json has no form for a record: {error}; got {shown(record)}"
        raise TypeMismatchError(message) from error


def _json_value(value: Any, other: Callable[[Any], str] | None = None) -> Any:
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
    if other is not None:
        return other(value)
    message = f"json has no form for a value of type {type(value).__name__}: {shown(value)}"
    raise TypeMismatchError(message)


def _encoder(form: Callable[[Any], Any]) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=form)


_ENCODER = _encoder(_json_value)


def _finite(value: Any, form: Callable[[Any], Any]) -> Any:
    """The value with null in place of ``NaN`` and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, float) and not math.isfinite(key):
                message = f"json has no form for {key} as a key of an object"
                raise TypeMismatchError(message)
        return {key: _finite(item, form) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, form) for item in value]
    if isinstance(value, (str, int, type(None))):
        return value
    return _finite(form(value), form)
