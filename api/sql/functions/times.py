"""Functions of dates, times and intervals. Times without a zone are taken as they are; those with one are in UTC.

Source: Flink's documentation ("Temporal Functions"); patterns are those of Java's ``DateTimeFormatter``.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
import zoneinfo
from collections.abc import Callable

import pyarrow as pa

from headrace.engine.columns.expressions import lit
from headrace.engine.columns.kernels import Value, compute

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import cast_to, is_number, is_text
from .contract import Function, KernelCall, Typed, constant, literal_of, made, require, row_by_row
from .operators import call, case, coalesced, is_null

__all__ = ["FUNCTIONS", "added", "difference", "extracted", "milliseconds_of", "months_of", "rounded_to"]

_TEXT = pa.string()
_MS = pa.timestamp("ms")

_UNITS_MS = {
    "MILLISECOND": 1,
    "SECOND": 1_000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 604_800_000,
}

_PATTERN = (
    ("yyyy", "%Y"), ("yy", "%y"), ("MMMM", "%B"), ("MMM", "%b"), ("MM", "%m"), ("dd", "%d"), ("DDD", "%j"),
    ("HH", "%H"), ("hh", "%I"), ("mm", "%M"), ("ss", "%S"), ("SSS", "\0"), ("EEEE", "%A"), ("EEE", "%a"), ("a", "%p"),
)  # fmt: skip


def milliseconds_of(amount: str, unit: str) -> int:
    """Return how long an interval is: ``'10' SECOND``, ``'1:30' MINUTE TO SECOND``.

    Raises:
        SqlError: If it is none, or one of months or years, which are of no fixed length.
    """
    units = unit.upper().split(" TO ")
    first = units[0].rstrip("S")
    if first not in _UNITS_MS:
        message = f"an interval of {unit} has no fixed length"
        raise SqlError(
            message, hint="use DAY, HOUR, MINUTE, SECOND; months and years are added to a time, or taken off"
        )
    try:
        if len(units) == 1:
            return round(float(amount) * _UNITS_MS[first])
        names = ["DAY", "HOUR", "MINUTE", "SECOND"]
        parts = amount.strip().lstrip("-").replace(" ", ":").split(":")
        wanted = names[names.index(first) : names.index(units[1].rstrip("S")) + 1]
        total = sum(round(float(part) * _UNITS_MS[name]) for part, name in zip(parts, wanted, strict=True))
        return -total if amount.strip().startswith("-") else total
    except ValueError:
        message = f"{amount!r} is no interval of {unit}"
        raise SqlError(message) from None


def months_of(amount: str, unit: str) -> int | None:
    """Return how many months an interval is: ``'3' MONTH``, ``'1-3' YEAR TO MONTH``; None of an interval of days.

    Raises:
        SqlError: If it is none.
    """
    first, *rest = (name.rstrip("S") for name in unit.upper().split(" TO "))
    if first not in _MONTHS:
        return None
    found = re.fullmatch(r"\s*([+-]?)([0-9]+)(?:-([0-9]+))?\s*", amount)
    if found is None or (found[3] is None) != (not rest) or rest not in ([], ["MONTH"]) or (rest and first != "YEAR"):
        message = f"{amount!r} is no interval of {unit}"
        raise SqlError(message)
    months = int(found[2]) * _MONTHS[first] + int(found[3] or 0)
    return -months if found[1] == "-" else months


def _time(value: Typed) -> Typed:
    return require(value, lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date(kind), "a date or time")


# -- formats -----------------------------------------------------------------------------------------------------------


def strftime_of(pattern: str) -> str:
    """Return a pattern of Java as one of strftime; milliseconds are a zero byte.

    Raises:
        SqlError: If it has letters that mean something else.
    """
    result, rest = [], pattern
    while rest:
        if rest.startswith("'"):
            quoted, _, rest = rest[1:].partition("'")
            result.append(quoted.replace("%", "%%") or "'")
            continue
        found = next(((java, ours) for java, ours in _PATTERN if rest.startswith(java)), None)
        if found is not None:
            result.append(found[1])
            rest = rest[len(found[0]) :]
        elif rest[0].isalpha():
            message = f"the pattern {pattern!r} has a letter {rest[0]!r} that is not supported"
            raise SqlError(message, hint="yyyy, MM, dd, HH, mm, ss, SSS and quoted texts are")
        else:
            result.append(rest[0].replace("%", "%%"))
            rest = rest[1:]
    return "".join(result)


def _formatted(value: Value, pattern: str) -> Value:
    pc = compute()
    times = pc.cast(value, pa.timestamp("ms", getattr(value.type, "tz", None)))
    if "\0" not in pattern:
        return _in_whole_units(times, pattern)
    pieces = [_in_whole_units(times, piece) if piece else "" for piece in pattern.split("\0")]
    fraction = pc.utf8_lpad(pc.cast(pc.millisecond(times), _TEXT), 3, "0")
    result = pieces[0]
    for piece in pieces[1:]:
        result = pc.binary_join_element_wise(result, fraction, piece, "")
    return result


def _in_whole_units(times: Value, pattern: str) -> Value:
    """Times as texts by a pattern of strftime. Times near each other are one day, or minute: each text is made once."""
    pc = compute()
    unit = next((unit for letters, unit in _FINEST if any(f"%{one}" in pattern for one in letters)), "day")
    seconds = pc.cast(pc.floor_temporal(times, 1, unit=unit), pa.timestamp("s", times.type.tz))
    if isinstance(seconds, pa.Scalar):
        return pc.strftime(seconds, pattern)
    encoded = seconds.dictionary_encode()
    return pc.strftime(encoded.dictionary, pattern).take(encoded.indices)


_FINEST = (("S",), "second"), (("M",), "minute"), (("H", "I", "p"), "hour")
"""The letters of strftime that tell of a unit, the finest first."""


def _date_format(value: Typed, pattern: Typed) -> Typed:
    given = strftime_of(constant(pattern, "the pattern"))
    time = cast_to(value, _MS) if is_text(value.kind) else _time(value)
    return Typed(KernelCall("DATE_FORMAT", _formatted, (time.expression,), _TEXT, pattern=given), _TEXT)


def _parsed(text: str, pattern: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(text, pattern)  # noqa: DTZ007 - times without a zone are meant
    except ValueError:
        return None


_USUAL = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,9}))?)?", re.ASCII)


def _usual(text: str) -> dt.datetime | None:
    """A date, with a clock or without; what follows the milliseconds is left out."""
    found = _USUAL.fullmatch(text.strip())
    if found is None:
        return None
    *parts, fraction = found.groups()
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        microseconds = int((fraction or "0")[:3].ljust(3, "0")) * 1000
        return dt.datetime(year, month, day, hour, minute, second, microseconds)  # noqa: DTZ001
    except ValueError:
        return None


def _time_of(name: str, value: Typed, pattern: Typed | None) -> Typed:
    """The time that a text says; null if it is none."""
    text = cast_to(require(value, is_text, "a text"), _TEXT)
    if pattern is None:
        return Typed(KernelCall(name, row_by_row(_usual, _MS), (text.expression,), _MS), _MS)
    given = strftime_of(constant(pattern, "the pattern")).replace("\0", "%f")
    return Typed(KernelCall(name, row_by_row(_parsed, _MS), (text.expression,), _MS, pattern=given), _MS)


_PATTERNS = "patterns are literals of yyyy, yy, MM, MMM, MMMM, dd, DDD, HH, hh, mm, ss, SSS, EEE, EEEE and a"


def _read(name: str, kind: pa.DataType, meaning: str) -> Function:
    def bind(value: Typed, pattern: Typed | None = None) -> Typed:
        return cast_to(_time_of(name, value, pattern), kind)

    return Function(name, f"{name}(text[, pattern])", bind, 1, 2, meaning, _PATTERNS)


# -- zones -------------------------------------------------------------------------------------------------------------

_SHORT_ZONES = {
    "PST": "America/Los_Angeles", "MST": "America/Denver", "CST": "America/Chicago", "EST": "America/New_York",
    "JST": "Asia/Tokyo", "CTT": "Asia/Shanghai", "IST": "Asia/Kolkata", "ECT": "Europe/Paris", "Z": "UTC",
}  # fmt: skip


def _zone(name: str) -> dt.tzinfo:
    """The zone of a name; one that is not known is GMT, as in Java."""
    found = re.fullmatch(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d{2}))?", name, re.ASCII)
    if found is not None:
        span = dt.timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        return dt.timezone(-span if found[1] == "-" else span)
    try:
        return zoneinfo.ZoneInfo(_SHORT_ZONES.get(name, name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        return dt.timezone.utc


def _converted(text: str, source: str, target: str) -> str | None:
    time = _usual(text)
    if time is None:
        return None
    return f"{time.replace(tzinfo=_zone(source)).astimezone(_zone(target)):%Y-%m-%d %H:%M:%S}"


def _convert_tz(*texts: Typed) -> Typed:
    given = [cast_to(require(one, is_text, "a text"), _TEXT) for one in texts]
    return made("CONVERT_TZ", row_by_row(_converted, _TEXT), _TEXT, *given)


# -- parts and borders -------------------------------------------------------------------------------------------------

_PARTS = {
    "YEAR": "year", "MONTH": "month", "DAY": "day", "DAYOFMONTH": "day", "HOUR": "hour", "MINUTE": "minute",
    "SECOND": "second",
}  # fmt: skip
_ARROW_PARTS = {
    "QUARTER": "quarter", "WEEK": "iso_week", "DOY": "day_of_year", "DAYOFYEAR": "day_of_year", "ISOYEAR": "iso_year",
}  # fmt: skip
_OWN_PARTS: dict[str, Callable[[Value], Value]] = {
    "DOW": lambda value: compute().day_of_week(value, count_from_zero=False, week_start=7),
    "DAYOFWEEK": lambda value: compute().day_of_week(value, count_from_zero=False, week_start=7),
    "ISODOW": lambda value: compute().day_of_week(value, count_from_zero=False, week_start=1),
    "EPOCH": lambda value: _epoch(value),
    "MILLISECOND": lambda value: compute().millisecond(value),
    "MICROSECOND": lambda value: _behind_second(value, 1_000_000),
    "NANOSECOND": lambda value: _behind_second(value, 1_000_000_000),
    "DECADE": lambda value: compute().divide(compute().year(value), 10),
    "CENTURY": lambda value: compute().divide(compute().add(compute().year(value), 99), 100),
    "MILLENNIUM": lambda value: compute().divide(compute().add(compute().year(value), 999), 1000),
}


def _behind_second(value: Value, per_second: int) -> Value:
    pc = compute()
    return pc.cast(pc.round(pc.multiply(pc.subsecond(value), float(per_second))), pa.int64())


def extracted(unit: str, value: Typed) -> Typed:
    """Return a part of a time: EXTRACT(HOUR FROM t), HOUR(t).

    Raises:
        SqlError: If there is no such part.
    """
    unit = unit.upper()
    if pa.types.is_time(value.kind) and unit in _CLOCK:
        return _arrow_call(unit, value)
    time = cast_to(value, _MS) if is_text(value.kind) else _time(value)
    if unit in _PARTS:
        return cast_to(call(_PARTS[unit], time), pa.int64())
    if unit in _OWN_PARTS:
        return Typed(KernelCall(unit, _OWN_PARTS[unit], (time.expression,), pa.int64()), pa.int64())
    if unit not in _ARROW_PARTS:
        message = f"a time has no {unit}"
        raise SqlError(message, hint=f"it has {', '.join([*_PARTS, *_ARROW_PARTS, *_OWN_PARTS])}")
    return _arrow_call(unit, time)


_CLOCK = {"HOUR": "hour", "MINUTE": "minute", "SECOND": "second", "MILLISECOND": "millisecond"}


def _arrow_call(unit: str, time: Typed) -> Typed:
    function = _ARROW_PARTS.get(unit) or _CLOCK[unit]
    return Typed(KernelCall(unit, _arrow_part, (time.expression,), pa.int64(), function=function), pa.int64())


def _arrow_part(value: Value, function: str) -> Value:
    return compute().call_function(function, [value])


def _epoch(value: Value) -> Value:
    pc = compute()
    zone = getattr(value.type, "tz", None)
    return pc.cast(pc.floor_temporal(pc.cast(value, pa.timestamp("ms", zone)), 1, unit="second"),
                   pa.timestamp("s", zone)).cast(pa.int64())  # fmt: skip


_BORDERS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND")


def rounded_to(unit: str, value: Typed, *, up: bool) -> Typed:
    """FLOOR(t TO unit), CEIL(t TO unit)."""
    is_clock = pa.types.is_time(value.kind)
    if unit.upper() not in (_CLOCK if is_clock else _BORDERS):
        message = f"a time cannot be rounded to {unit.upper()}"
        raise SqlError(message, hint=f"{', '.join(_CLOCK if is_clock else _BORDERS)} are known")
    time = value if is_clock else _time(value)
    kernel = KernelCall("CEIL" if up else "FLOOR", _border, (time.expression,), value.kind, unit=unit.lower(), up=up)
    return Typed(kernel, value.kind)


def _border(value: Value, unit: str, *, up: bool) -> Value:
    pc = compute()
    time = pc.cast(value, _MS) if pa.types.is_date(value.type) else value
    floor = pc.floor_temporal(time, 1, unit=unit, week_starts_monday=False)
    if not up:
        return floor
    # Arrow takes the first of a month for one that is over.
    above = pc.ceil_temporal(time, 1, unit=unit, week_starts_monday=False)
    return pc.if_else(pc.equal(floor, time), time, above)


def _part_function(name: str, meaning: str) -> Function:
    return Function(name, f"{name}(time)", lambda value: extracted(name, value), 1, 1, meaning)


# -- epochs ------------------------------------------------------------------------------------------------------------


_LTZ = pa.timestamp("ms", "UTC")


def _to_timestamp_ltz(value: Typed, *more: Typed) -> Typed:
    if is_text(value.kind):
        return _text_with_zone(value, *more)
    digits = constant(more[0], "the precision") if more else 3
    if digits not in (0, 3) or len(more) > 1:
        message = f"TO_TIMESTAMP_LTZ takes seconds (0) or milliseconds (3); got {digits}"
        raise SqlError(message)
    number = cast_to(require(value, is_number, "a number"), pa.int64())
    kernel = KernelCall("TO_TIMESTAMP_LTZ", _from_epoch, (number.expression,), _LTZ, factor=1 if digits else 1000)
    return Typed(kernel, _LTZ)


def _text_with_zone(value: Typed, pattern: Typed | None = None, zone: Typed | None = None) -> Typed:
    name = "UTC" if zone is None else constant(zone, "the zone")
    time = _time_of("TO_TIMESTAMP_LTZ", value, pattern)
    return Typed(KernelCall("TO_TIMESTAMP_LTZ", _in_zone, (time.expression,), _LTZ, zone=name), _LTZ)


def _in_zone(value: Value, zone: str) -> Value:
    return compute().cast(compute().assume_timezone(value, zone), _LTZ)


def _from_epoch(value: Value, factor: int) -> Value:
    pc = compute()
    return pc.cast(pc.multiply_checked(value, factor), pa.timestamp("ms", "UTC"))


def _from_unixtime(value: Typed, pattern: Typed | None = None) -> Typed:
    given = strftime_of("yyyy-MM-dd HH:mm:ss" if pattern is None else constant(pattern, "the pattern"))
    number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
    time = KernelCall("FROM_UNIXTIME", _from_epoch, (number.expression,), pa.timestamp("ms", "UTC"), factor=1000)
    return Typed(KernelCall("FROM_UNIXTIME", _formatted, (time,), _TEXT, pattern=given), _TEXT)


def _unix_timestamp(value: Typed, pattern: Typed | None = None) -> Typed:
    seconds = extracted("EPOCH", _time_of("UNIX_TIMESTAMP", value, pattern))
    least = literal_of(-(2**63), pa.int64())
    return case([is_null(value)], [Typed(lit(None, pa.int64()), pa.int64()), coalesced(seconds, least)])


_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def added(unit: str) -> Callable[[Typed, Typed], Typed]:
    """TIMESTAMPADD(unit, count, time): a date stays one if days, weeks or months are added.

    Raises:
        SqlError: If there is no such unit.
    """
    name = unit.upper().rstrip("S")
    if name not in _UNITS_MS and name not in _MONTHS:
        message = f"there is no unit of time {unit!r}"
        raise SqlError(message, hint=f"{', '.join([*_UNITS_MS, *_MONTHS])} are")

    def bind(count: Typed, time: Typed) -> Typed:
        number = cast_to(require(count, pa.types.is_integer, "an integer"), pa.int64())
        given = _time(time)
        is_day = pa.types.is_date(given.kind)
        kind = given.kind if not is_day or name in ("DAY", "WEEK", *_MONTHS) else _MS
        operands = (number.expression, given.expression)
        return Typed(KernelCall("TIMESTAMPADD", _later, operands, kind, unit=name), kind)

    return bind


def _later(count: Value, time: Value, unit: str) -> Value:
    pc = compute()
    if unit in _MONTHS:
        return row_by_row(_months_later, time.type)(pc.multiply_checked(count, _MONTHS[unit]), time)
    zone = getattr(time.type, "tz", None)
    fine = time if getattr(time.type, "unit", "") in ("us", "ns") else pc.cast(time, pa.timestamp("ms", zone))
    span = pc.cast(pc.cast(pc.multiply_checked(count, _UNITS_MS[unit]), pa.duration("ms")), pa.duration(fine.type.unit))
    return pc.add_checked(fine, span)


def _months_later(count: int, time: dt.date) -> dt.date:
    year, month = divmod(time.year * 12 + time.month - 1 + count, 12)
    return time.replace(year=year, month=month + 1, day=min(time.day, calendar.monthrange(year, month + 1)[1]))


def _difference(unit: str, start: Typed, end: Typed) -> Typed:
    kind = pa.int32()
    expressions = (cast_to(_time(start), _MS).expression, cast_to(_time(end), _MS).expression)
    return Typed(KernelCall("TIMESTAMPDIFF", _difference_of, expressions, kind, unit=unit), kind)


def _difference_of(start: Value, end: Value, unit: str) -> Value:
    pc = compute()
    if unit in _UNITS_MS:
        milliseconds = pc.subtract(pc.cast(end, pa.int64()), pc.cast(start, pa.int64()))
        return pc.divide(milliseconds, _UNITS_MS[unit])
    months = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}[unit]
    return row_by_row(lambda one, other: _whole_months(one, other) // months if other >= one else
                      -(_whole_months(other, one) // months), pa.int64())(start, end)  # fmt: skip


def _whole_months(start: dt.datetime, end: dt.datetime) -> int:
    months = (end.year - start.year) * 12 + end.month - start.month
    rest_end, rest_start = (one - one.replace(day=1, hour=0, minute=0, second=0, microsecond=0) for one in (end, start))
    return months - (rest_end < rest_start)


def difference(unit: str) -> Callable[[Typed, Typed], Typed]:
    """TIMESTAMPDIFF(unit, start, end)."""
    name = unit.upper().rstrip("S")
    if name not in _UNITS_MS and name not in ("MONTH", "QUARTER", "YEAR"):
        message = f"there is no unit of time {unit!r}"
        raise SqlError(message, hint=f"{', '.join([*_UNITS_MS, 'MONTH', 'QUARTER', 'YEAR'])} are")
    return lambda start, end: _difference(name, start, end)


def _to_date_of(value: Typed) -> Typed:
    if is_text(value.kind) or pa.types.is_timestamp(value.kind):
        return cast_to(value, pa.date32())
    message = f"expected a text or a time; got {sql_name(value.kind)}"
    raise SqlError(message)


_FUNCTIONS_OF_PARTS = {
    "YEAR": "The year.", "QUARTER": "The quarter of the year, from 1.", "MONTH": "The month of the year, from 1.",
    "WEEK": "The week of the year (ISO 8601).", "DAYOFYEAR": "The day of the year, from 1.",
    "DAYOFMONTH": "The day of the month, from 1.", "DAYOFWEEK": "The day of the week; Sunday is 1.",
    "HOUR": "The hour.", "MINUTE": "The minute.", "SECOND": "The second.",
}  # fmt: skip

FUNCTIONS = (
    Function("DATE_FORMAT", "DATE_FORMAT(time, pattern)", _date_format, 2, 2, "A time as a text by a pattern.",
             _PATTERNS),
    _read("TO_TIMESTAMP", _MS, "The time that a text says, 'yyyy-MM-dd HH:mm:ss[.SSS]' or by a pattern; else null."),
    _read("TO_DATE", pa.date32(), "The date that a text says, 'yyyy-MM-dd' or by a pattern; else null."),
    Function("DATE", "DATE(time)", _to_date_of, 1, 1, "The date of a time or a text."),
    Function("TO_TIMESTAMP_LTZ", "TO_TIMESTAMP_LTZ(number[, precision]) or (text[, pattern[, zone]])",
             _to_timestamp_ltz, 1, 3, "The instant of seconds (0) or milliseconds (3) since 1970, or of a text.",
             _PATTERNS),
    Function("FROM_UNIXTIME", "FROM_UNIXTIME(seconds[, pattern])", _from_unixtime, 1, 2,
             "Seconds since 1970 as a text.", f"in UTC; {_PATTERNS}"),
    Function("UNIX_TIMESTAMP", "UNIX_TIMESTAMP(text[, pattern])", _unix_timestamp, 1, 2,
             "The seconds since 1970 of a text; the least BIGINT if it is no time.",
             f"in UTC; not without arguments, as it would depend on the clock; {_PATTERNS}"),
    Function("CONVERT_TZ", "CONVERT_TZ(text, zone, zone)", _convert_tz, 3, 3,
             "The time that a text says in one zone, in another one."),
    *(_part_function(name, meaning) for name, meaning in _FUNCTIONS_OF_PARTS.items()),
)  # fmt: skip
