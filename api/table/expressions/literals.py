"""Values of Python as literals of SQL."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.engine.errors import ProgramError

from ...sql.functions.spelling import double_text

__all__ = ["literal_text"]


def literal_text(value: Any) -> str:
    """Return the text of a literal.

    Args:
        value: None, a bool, int, float, Decimal, str, bytes, date, datetime or timedelta.

    Raises:
        ProgramError: If it cannot be one.
    """
    for types, write in _LITERALS:
        if isinstance(value, types):
            return write(value)
    message = f"{value!r} is no literal of SQL"
    if hasattr(value, "structure"):
        raise ProgramError(message, hint="expressions of tables are made by col and lit of headrace.table")
    raise ProgramError(message, hint="None, bool, int, float, Decimal, str, bytes, date, datetime, timedelta are")


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f"CAST('{double_text(value)}' AS DOUBLE)"
    text = repr(value)
    return text if "e" in text else f"{text}e0"


def _plain(value: dt.datetime) -> str:
    return value.replace(tzinfo=None).isoformat(" ", "microseconds")


def _datetime(value: dt.datetime) -> str:
    if value.tzinfo is not None:
        value = value.astimezone(dt.timezone.utc)
        return f"CAST(TIMESTAMP '{_plain(value)}' AS TIMESTAMP_LTZ(6))"
    return f"TIMESTAMP '{_plain(value)}'"


def _span(value: dt.timedelta) -> str:
    micros = value // dt.timedelta(microseconds=1)
    if micros % 1000:
        message = f"a length of time has whole milliseconds; got {value!r}"
        raise ProgramError(message)
    return f"INTERVAL '{Decimal(micros) / 1_000_000:f}' SECOND"


_LITERALS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (type(None), lambda _: "NULL"),
    (bool, lambda value: "TRUE" if value else "FALSE"),
    (int, str),
    (float, _float),
    (Decimal, lambda value: f"{value:f}"),
    (str, lambda value: "'" + value.replace("'", "''") + "'"),
    (bytes, lambda value: f"x'{value.hex()}'"),
    (dt.datetime, _datetime),
    (dt.date, lambda value: f"DATE '{value.isoformat()}'"),
    (dt.timedelta, _span),
)
