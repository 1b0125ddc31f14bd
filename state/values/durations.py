"""Durations as people write them.

Source: Flink's ``TimeUtils.parseDuration``.
"""

from __future__ import annotations

from ..errors import ConfigurationError

__all__ = ["parse_duration_ms"]

_UNITS_MS = {"ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(value: object) -> int:
    """Turn what people write for a duration into milliseconds.

    Args:
        value: An int (milliseconds), a ``timedelta`` (or a pandas offset or a Time of PyFlink: anything with
            ``total_seconds``, ``nanos`` or ``to_milliseconds``) or a text such as ``"10 s"``, ``"500ms"``,
            ``"1.5 h"``; units ms, s, sec, m, min, h, d.

    Returns:
        Milliseconds, possibly 0 or negative (offsets of windows may be).

    Raises:
        ConfigurationError: If it is none of these.
    """
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        return value
    elif hasattr(value, "total_seconds"):
        return round(value.total_seconds() * 1_000)
    elif hasattr(value, "to_milliseconds"):
        return round(value.to_milliseconds())
    elif hasattr(value, "nanos"):
        return round(value.nanos / 1_000_000)
    elif isinstance(value, str):
        text = value.strip()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
        unit = text[len(digits) :].strip().lower() or "ms"
        unit = unit[:-1] if unit not in _UNITS_MS and unit.endswith("s") else unit
        unit = {
            "second": "s",
            "minute": "m",
            "hour": "h",
            "day": "d",
            "millisecond": "ms",
            "milli": "ms",
            "hr": "h",
        }.get(unit, unit)
        try:
            return round(float(digits) * _UNITS_MS[unit])
        except (KeyError, ValueError):
            pass
    message = f"a duration must be milliseconds, a timedelta or a text such as '10 s'; got {value!r}"
    raise ConfigurationError(message)
