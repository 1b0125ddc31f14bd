"""CAST: which types become which, and what their values become.

A cast that no value could pass is refused while the statement is planned. One that some values cannot pass fails for
those, and is null for them with TRY_CAST. Rows are cast field by field, by their order.

Source: Flink's ``LogicalTypeCasts`` and its table of casts ("Data Types").
"""

from __future__ import annotations

import pyarrow as pa

from headrace.engine.columns.expressions import lit
from headrace.engine.columns.kernels import KERNELS, Value, compute
from headrace.engine.errors import HeadraceError

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import is_number, is_text, with_parts
from .contract import KernelCall, Typed, row_by_row
from .spelling import spelling_of

__all__ = ["cast", "resized", "try_cast"]

_WHOLE = r"^\s*\+?(-?[0-9]+)(\.[0-9]*)?\s*$"
_TRUE, _FALSE = pa.array(["t", "true", "y", "yes", "1"]), pa.array(["f", "false", "n", "no", "0"])

_PLAIN = {
    "text": "text boolean number binary date time timestamp",
    "boolean": "text boolean number",
    "number": "text boolean number",
    "binary": "text binary",
    "date": "text date timestamp",
    "time": "text time",
    "timestamp": "text date time timestamp",
    "interval": "text interval",
    "array": "text",
    "map": "text",
    "row": "text",
}
"""What each family of types becomes."""


def _family(kind: pa.DataType) -> str:
    tests = {
        "text": is_text(kind),
        "boolean": pa.types.is_boolean(kind),
        "number": is_number(kind),
        "binary": pa.types.is_binary(kind),
        "date": pa.types.is_date(kind),
        "time": pa.types.is_time(kind),
        "timestamp": pa.types.is_timestamp(kind),
        "interval": pa.types.is_duration(kind),
        "array": pa.types.is_list(kind) or pa.types.is_large_list(kind),
        "map": pa.types.is_map(kind),
        "row": pa.types.is_struct(kind),
    }
    return next((name for name, is_one in tests.items() if is_one), str(kind))


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target or pa.types.is_null(source):
        return True
    one, other = _family(source), _family(target)
    if one != other:
        return other in _PLAIN.get(one, "").split()
    if one == "array":
        return _can_cast(source.value_type, target.value_type)
    if one == "map":
        return _can_cast(source.key_type, target.key_type) and _can_cast(source.item_type, target.item_type)
    if one == "row":
        return source.num_fields == target.num_fields and all(
            _can_cast(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    return True


def _checked(value: Typed, kind: pa.DataType) -> None:
    if not _can_cast(value.kind, kind):
        message = f"{sql_name(value.kind)} cannot be cast to {sql_name(kind)}"
        known = _PLAIN.get(_family(value.kind), "").split()
        raise SqlError(message, hint=f"it can be cast to {', '.join(known)}" if known else None)


def cast(value: Typed, kind: pa.DataType) -> Typed:
    """CAST(value AS kind).

    Raises:
        SqlError: If no value of the one type becomes one of the other.
    """
    _checked(value, kind)
    if value.kind == kind:
        return value
    if pa.types.is_null(value.kind):
        return Typed(lit(None, kind), kind)
    if _is_engines(value.kind, kind):
        return Typed(value.expression.cast(kind), kind)
    return Typed(KernelCall("CAST", _converted, (value.expression,), kind, to=kind), kind)


def try_cast(value: Typed, kind: pa.DataType) -> Typed:
    """TRY_CAST(value AS kind): null where the value has no such value.

    Raises:
        SqlError: As `cast`.
    """
    _checked(value, kind)
    return Typed(KernelCall("TRY_CAST", _tried, (value.expression,), kind, to=kind), kind)


def _tried(value: Value, to: pa.DataType) -> pa.Array:
    rows: list[pa.Array] = []
    for i in range(len(value)):
        try:
            rows.append(_converted(value.slice(i, 1), to))
        except (pa.ArrowException, HeadraceError, ArithmeticError, ValueError):  # that is what TRY_CAST is for
            rows.append(pa.nulls(1, to))
    return pa.concat_arrays(rows)


def resized(value: Typed, length: int, *, fills: bool) -> Typed:
    """A text as VARCHAR(n), which cuts what is longer, or CHAR(n), which fills up what is shorter, too."""
    kernel = _filled if fills else _cut
    return Typed(KernelCall("CAST", kernel, (value.expression,), pa.string(), length=length), pa.string())


def _cut(value: Value, length: int) -> Value:
    return compute().utf8_slice_codeunits(value, 0, length)


def _filled(value: Value, length: int) -> Value:
    return compute().utf8_rpad(_cut(value, length), length, " ")


# -- values ------------------------------------------------------------------------------------------------------------


def _is_engines(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether expressions' own cast does it."""
    one, other = _family(source), _family(target)
    if one in ("array", "map", "row"):
        return False
    if other == "text":
        is_plain_time = one == "timestamp" and source.tz is None
        return is_plain_time or (one == "number" and not pa.types.is_floating(source))
    if one == "text":
        return other not in ("boolean", "number", "time")
    if pa.types.is_decimal(source):
        return other != "boolean"
    return True


def _converted(value: Value, to: pa.DataType) -> Value:
    """The values of an array in another type, which they can be cast to."""
    source = value.type
    if source == to:
        return value
    if _is_engines(source, to):
        return KERNELS["cast"](value, to=to)
    if is_text(to):
        return row_by_row(spelling_of(source), pa.string())(value)
    if pa.types.is_decimal(source):
        return compute().not_equal(value, pa.scalar(0, source))
    if is_text(source):
        return (_as_truths if pa.types.is_boolean(to) else _as_clock if pa.types.is_time(to) else _as_numbers)(
            value, to
        )
    return with_parts(value, to, _converted)


def _as_numbers(text: Value, to: pa.DataType) -> Value:
    pc = compute()
    if pa.types.is_decimal(to):
        return KERNELS["cast"](pc.utf8_trim_whitespace(text), to=to)
    if pa.types.is_floating(to):
        trimmed = pc.utf8_trim_whitespace(text)
        is_word = pc.match_substring_regex(trimmed, r"(?i)^[+-]?(nan|inf)")
        if pc.any(pc.and_not(is_word, pc.match_substring_regex(trimmed, r"^[+-]?(NaN|Infinity)$"))).as_py():
            message = "a text is no number: NaN and Infinity are written so"
            raise ValueError(message)
        return pc.cast(trimmed, to)
    return pc.cast(pc.replace_substring_regex(text, _WHOLE, r"\1"), to)


def _as_clock(text: Value, to: pa.DataType) -> Value:
    pc = compute()
    two_digits = pc.replace_substring_regex(text, r"^(\d):", r"0\1:")
    moment = pc.cast(pc.binary_join_element_wise("1970-01-01", two_digits, " "), pa.timestamp("ms"))
    return pc.cast(pc.cast(pc.cast(moment, pa.int64()), pa.int32()), to)


def _as_truths(text: Value, to: pa.DataType) -> Value:
    pc = compute()
    word = pc.utf8_lower(pc.utf8_trim_whitespace(text))
    is_true, is_false = pc.is_in(word, value_set=_TRUE), pc.is_in(word, value_set=_FALSE)
    if not pc.all(pc.or_(pc.or_(is_true, is_false), pc.is_null(word))).as_py():
        message = "a text is no BOOLEAN"
        raise ValueError(message)
    return pc.if_else(pc.is_valid(word), is_true, pa.scalar(None, pa.bool_()))
