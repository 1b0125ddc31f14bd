"""Functions of dates, times and intervals. Times without a zone are taken as they are; those with one are in UTC.

Source: Flink's documentation ("Temporal Functions"); patterns are those of Java's ``DateTimeFormatter``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pyarrow as pa

from headrace.engine.columns.kernels import Value, compute

from ..parsing.errors import SqlError
from ..parsing.types import sql_name
from .coercion import cast_to, is_text
from .contract import Function, KernelCall, Typed, constant, require, row_by_row
from .operators import call

__all__ = ["FUNCTIONS", "extracted", "milliseconds_of", "rounded_to"]

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
        raise SqlError(message, hint="use DAY, HOUR, MINUTE, SECOND")
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
    zone = getattr(value.type, "tz", None)
    seconds = pc.cast(
        pc.floor_temporal(pc.cast(value, pa.timestamp("ms", zone)), 1, unit="second"), pa.timestamp("s", zone)
    )
    if "\0" not in pattern:
        return pc.strftime(seconds, pattern)
    pieces = [pc.strftime(seconds, piece) if piece else "" for piece in pattern.split("\0")]
    fraction = pc.utf8_lpad(pc.cast(pc.millisecond(pc.cast(value, pa.timestamp("ms", zone))), _TEXT), 3, "0")
    result = pieces[0]
    for piece in pieces[1:]:
        result = pc.binary_join_element_wise(result, fraction, piece, "")
    return result


def _date_format(value: Typed, pattern: Typed) -> Typed:
    given = strftime_of(constant(pattern, "the pattern"))
    time = cast_to(value, _MS) if is_text(value.kind) else _time(value)
    return Typed(KernelCall("DATE_FORMAT", _formatted, (time.expression,), _TEXT, pattern=given), _TEXT)


def _parsed(text: str, pattern: str) -> dt.datetime | None:
    try:
        return dt.datetime.strptime(text, pattern)  # noqa: DTZ007 - times without a zone are meant
    except ValueError:
        return None


def _read(name: str, default: str, kind: pa.DataType) -> Function:
    def bind(value: Typed, pattern: Typed | None = None) -> Typed:
        text = cast_to(require(value, is_text, "a text"), _TEXT)
        given = strftime_of(default if pattern is None else constant(pattern, "the pattern")).replace("\0", "%f")
        kernel = row_by_row(_parsed, _MS)
        made = Typed(KernelCall(name, kernel, (text.expression,), _MS, pattern=given), _MS)
        return cast_to(made, kind)

    return Function(name, f"{name}(text[, pattern])", bind, 1, 2)


# -- parts and borders -------------------------------------------------------------------------------------------------

_PARTS = {
    "YEAR": "year", "MONTH": "month", "DAY": "day", "DAYOFMONTH": "day", "HOUR": "hour", "MINUTE": "minute",
    "SECOND": "second",
}  # fmt: skip
_ARROW_PARTS = {"QUARTER": "quarter", "WEEK": "iso_week", "DOY": "day_of_year", "DAYOFYEAR": "day_of_year"}


def extracted(unit: str, value: Typed) -> Typed:
    """Return a part of a time: EXTRACT(HOUR FROM t), HOUR(t).

    Raises:
        SqlError: If there is no such part.
    """
    unit = unit.upper()
    time = cast_to(value, _MS) if is_text(value.kind) else _time(value)
    if unit in _PARTS:
        return cast_to(call(_PARTS[unit], time), pa.int64())
    if unit in ("DOW", "DAYOFWEEK"):
        kind = pa.int64()
        return Typed(KernelCall(unit, _sunday_is_one, (time.expression,), kind), kind)
    if unit in ("EPOCH", "MILLISECOND"):
        kind = pa.int64()
        return Typed(KernelCall(unit, _epoch if unit == "EPOCH" else _millisecond, (time.expression,), kind), kind)
    if unit not in _ARROW_PARTS:
        message = f"a time has no {unit}"
        raise SqlError(message, hint=f"it has {', '.join([*_PARTS, *_ARROW_PARTS, 'DOW', 'EPOCH'])}")
    kernel = KernelCall(unit, _arrow_part, (time.expression,), pa.int64(), function=_ARROW_PARTS[unit])
    return Typed(kernel, pa.int64())


def _arrow_part(value: Value, function: str) -> Value:
    return compute().call_function(function, [value])


def _sunday_is_one(value: Value) -> Value:
    return compute().day_of_week(value, count_from_zero=False, week_start=7)


def _millisecond(value: Value) -> Value:
    return compute().millisecond(value)


def _epoch(value: Value) -> Value:
    pc = compute()
    zone = getattr(value.type, "tz", None)
    return pc.cast(pc.floor_temporal(pc.cast(value, pa.timestamp("ms", zone)), 1, unit="second"),
                   pa.timestamp("s", zone)).cast(pa.int64())  # fmt: skip


def rounded_to(unit: str, value: Typed, *, up: bool) -> Typed:
    """FLOOR(t TO unit), CEIL(t TO unit)."""
    kernel = KernelCall("CEIL" if up else "FLOOR", _border, (_time(value).expression,), value.kind,
                        unit=unit.lower(), up=up)  # fmt: skip
    if unit.lower() not in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond"):
        message = f"a time cannot be rounded to {unit.upper()}"
        raise SqlError(message)
    return Typed(kernel, value.kind)


def _border(value: Value, unit: str, *, up: bool) -> Value:
    pc = compute()
    time = pc.cast(value, _MS) if pa.types.is_date(value.type) else value
    round_ = pc.ceil_temporal if up else pc.floor_temporal
    return round_(time, 1, unit=unit, week_starts_monday=False)


def _part_function(name: str) -> Function:
    return Function(name, f"{name}(time)", lambda value: extracted(name, value), 1, 1)


# -- epochs ------------------------------------------------------------------------------------------------------------


def _to_timestamp_ltz(value: Typed, precision: Typed) -> Typed:
    digits = constant(precision, "the precision")
    if digits not in (0, 3):
        message = f"TO_TIMESTAMP_LTZ takes seconds (0) or milliseconds (3); got {digits}"
        raise SqlError(message)
    kind = pa.timestamp("ms", "UTC")
    number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
    kernel = KernelCall("TO_TIMESTAMP_LTZ", _from_epoch, (number.expression,), kind, factor=1 if digits else 1000)
    return Typed(kernel, kind)


def _from_epoch(value: Value, factor: int) -> Value:
    pc = compute()
    return pc.cast(pc.multiply_checked(value, factor), pa.timestamp("ms", "UTC"))


def _from_unixtime(value: Typed, pattern: Typed | None = None) -> Typed:
    given = strftime_of("yyyy-MM-dd HH:mm:ss" if pattern is None else constant(pattern, "the pattern"))
    number = cast_to(require(value, pa.types.is_integer, "an integer"), pa.int64())
    time = KernelCall("FROM_UNIXTIME", _from_epoch, (number.expression,), pa.timestamp("ms", "UTC"), factor=1000)
    return Typed(KernelCall("FROM_UNIXTIME", _formatted, (time,), _TEXT, pattern=given), _TEXT)


def _unix_timestamp(value: Typed, pattern: Typed | None = None) -> Typed:
    read = _read("UNIX_TIMESTAMP", "yyyy-MM-dd HH:mm:ss", _MS)
    return extracted("EPOCH", read.bind(value, pattern))


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


FUNCTIONS = (
    Function("DATE_FORMAT", "DATE_FORMAT(time, pattern)", _date_format, 2, 2),
    _read("TO_TIMESTAMP", "yyyy-MM-dd HH:mm:ss", _MS),
    _read("TO_DATE", "yyyy-MM-dd", pa.date32()),
    Function("DATE", "DATE(time)", _to_date_of, 1, 1),
    Function("TO_TIMESTAMP_LTZ", "TO_TIMESTAMP_LTZ(number, precision)", _to_timestamp_ltz, 2, 2),
    Function("FROM_UNIXTIME", "FROM_UNIXTIME(seconds[, pattern])", _from_unixtime, 1, 2),
    Function("UNIX_TIMESTAMP", "UNIX_TIMESTAMP(text[, pattern])", _unix_timestamp, 1, 2),
    *map(_part_function, ("YEAR", "QUARTER", "MONTH", "WEEK", "DAYOFYEAR", "DAYOFMONTH", "DAYOFWEEK")),
    *map(_part_function, ("HOUR", "MINUTE", "SECOND")),
)  # fmt: skip
