"""How values are spelled as texts: what CAST to STRING, PRINTF and JSON make of them.

Source: Java's ``Double.toString``; Flink's ``CastRuleUtils`` and the rules beside it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["double_text", "iso_text", "spelling_of"]


def double_text(value: float, kind: pa.DataType | None = None) -> str:
    """Return a float as Java writes it: ``1.0``, ``1.0E20``, ``NaN``, ``Infinity``."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = str(np.float32(value)) if kind == pa.float32() else repr(value)
    _sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    sign = "-" if str(value).startswith("-") else ""
    if value == 0:
        return f"{sign}0.0"
    number = "".join(map(str, digits))
    point = len(number) + int(exponent)
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{number}"
        return f"{sign}{number[:point].ljust(point, '0')}.{number[point:] or '0'}"
    return f"{sign}{number[0]}.{number[1:] or '0'}E{point - 1}"


def iso_text(value: dt.datetime, between: str = " ", digits: int = 0) -> str:
    """Return a time with the digits behind the second that it has, but not fewer than some."""
    fraction = f"{value.microsecond:06d}".rstrip("0").ljust(digits, "0")
    return f"{value:%Y-%m-%d}{between}{value:%H:%M:%S}{fraction and '.'}{fraction}"


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""How many digits behind the second a type has. Source: Flink's ``TimestampStringUtils``."""


def _span_text(span: dt.timedelta) -> str:
    milliseconds = round(span.total_seconds() * 1000)
    seconds, fraction = divmod(abs(milliseconds), 1000)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:03d}"
    return f"{'-' if milliseconds < 0 else '+'}{days} {clock}"


def spelling_of(kind: pa.DataType) -> Callable[[Any], str]:
    """Return what makes a text of a value of a type; null in an array, a map or a row is ``NULL``."""
    if pa.types.is_boolean(kind):
        return lambda value: "TRUE" if value else "FALSE"
    if pa.types.is_floating(kind):
        return lambda value: double_text(value, kind)
    if pa.types.is_timestamp(kind):
        digits = _DIGITS[kind.unit]
        return lambda value: iso_text(value, digits=digits)
    if pa.types.is_time(kind):
        return lambda value: value.isoformat().rstrip("0") if value.microsecond else value.isoformat()
    if pa.types.is_duration(kind):
        return _span_text
    if pa.types.is_binary(kind):
        return lambda value: value.decode("utf-8", "replace")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _or_null(kind.value_type)
        return lambda value: f"[{', '.join(map(element, value))}]"
    if pa.types.is_map(kind):
        key, item = spelling_of(kind.key_type), _or_null(kind.item_type)
        return lambda value: f"{{{', '.join(f'{key(k)}={item(v)}' for k, v in value)}}}"
    if pa.types.is_struct(kind):
        parts = [_or_null(field.type) for field in kind]
        return lambda value: f"({', '.join(part(v) for part, v in zip(parts, value.values(), strict=True))})"
    return str


def _or_null(kind: pa.DataType) -> Callable[[Any], str]:
    spelled = spelling_of(kind)
    return lambda value: "NULL" if value is None else spelled(value)
