"""The kernels behind expressions: what each operation does to whole columns, by name.

A kernel takes arrays (one value per record) or scalars (the same for all) and gives an array or a scalar. Most are
Arrow's; here are the places where Arrow's meaning is not ours: common types of operands, 64-bit integer arithmetic that
fails on overflow, true and floor division, SQL's ``IN`` and ``CASE``, rounding of times towards the past. Trees, names
of columns and errors that name an expression are the business of `headrace.engine.columns.expressions`.

Records without a declared type have the types that their batch shows, and a batch that happens to hold only nulls in a
field shows none: every kernel takes operands of the type ``null`` and gives what it gives for nulls of its own type.

A kernel fails with one of Arrow's or Python's own errors; ProgramError only for constants that no record could make
right.

Source: SQL:2016; Python for ``//`` and ``%``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import ProgramError

from . import decimal_kernels

__all__ = ["KERNELS", "TIME_UNITS", "Value", "compute"]

Value = Any
"""A ``pa.Array`` with one element per record, or a ``pa.Scalar`` that stands for all records."""

TIME_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
"""What a time can be truncated to."""


@cache
def compute() -> Any:
    """Return the module ``pyarrow.compute``, loaded when first used: programs that only build plans should not pay for
    it.
    """
    import pyarrow.compute

    return pyarrow.compute


def _is_whole(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type))


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def _to_double(value: Value) -> Value:
    # Not a safe cast: as in every language, a large integer becomes the nearest double.
    return compute().cast(value, pa.float64(), safe=False) if _is_whole(value.type) else value


def _promoted(left: Value, right: Value) -> tuple[Value, Value]:
    """Both operands in a common numeric type: integers as int64, mixed with floats as doubles."""
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        return _to_double(left), _to_double(right)
    return _widened(left), _widened(right)


def _widened(value: Value) -> Value:
    return compute().cast(value, pa.int64()) if _is_whole(value.type) and value.type.bit_width < 64 else value


def _arithmetic(function: str) -> Callable[[Value, Value], Value]:
    name = function.removesuffix("_checked")
    of_decimals = decimal_kernels.arithmetic(name) if name in ("add", "subtract", "multiply") else None

    def apply(left: Value, right: Value) -> Value:
        if of_decimals is not None and decimal_kernels.is_for_decimals(left.type, right.type):
            return of_decimals(left, right)
        left, right = _promoted(left, right)
        return compute().call_function(function, [left, right])

    return apply


def _typed(value: Value, kind: pa.DataType) -> Value:
    """The operand; nulls of no type as nulls of the one given."""
    return compute().cast(value, kind) if pa.types.is_null(value.type) else value


def _of_one_type(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The operands, those that are nulls of no type as nulls of the first type there is."""
    kind = next((value.type for value in values if not pa.types.is_null(value.type)), None)
    return values if kind is None else tuple(_typed(value, kind) for value in values)


def _add(left: Value, right: Value) -> Value:
    if _is_text(left.type) or _is_text(right.type):
        left, right = _of_one_type((left, right))
    if _is_text(left.type) and _is_text(right.type):
        return _concat(left, right)
    return _arithmetic("add_checked")(left, right)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _divide(left: Value, right: Value) -> Value:
    if decimal_kernels.is_for_decimals(left.type, right.type):
        return decimal_kernels.divided(left, right)
    if _is_number(left.type) or _is_number(right.type):
        both = (_to_double(left), _to_double(right))
        if all(_is_number(value.type) or pa.types.is_null(value.type) for value in both):
            return compute().divide(*(compute().cast(value, pa.float64()) for value in both))
    return compute().divide_checked(left, right)


def _integral(numpy_function: str) -> Callable[[Value, Value], Value]:
    """Floor division and modulo as in Python, which Arrow does not have."""

    def apply(left: Value, right: Value) -> Value:
        pc = compute()
        left, right = _promoted(left, right)
        if pa.types.is_null(left.type) or pa.types.is_null(right.type):
            return pc.add(left, right)
        if not (_is_number(left.type) and _is_number(right.type)):
            message = "only integers and floats can be divided with a remainder"
            raise TypeError(message)
        is_scalar = isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar)
        num_rows = 1 if is_scalar else max(len(v) for v in (left, right) if isinstance(v, pa.Array))
        arrays = [pa.repeat(v, num_rows) if isinstance(v, pa.Scalar) else v for v in (left, right)]
        is_valid = pc.and_(arrays[0].is_valid(), arrays[1].is_valid()).to_numpy(zero_copy_only=False)
        # Null lanes get 1 so that they cannot fail.
        numerator, divisor = (array.fill_null(1).to_numpy(zero_copy_only=False) for array in arrays)
        if numerator.dtype.kind != "f":
            zero = is_valid & (divisor == 0)
            if zero.any():
                message = "division of an integer by zero"
                raise ZeroDivisionError(message)
            divisor = np.where(is_valid, divisor, 1)
            if numpy_function == "floor_divide" and ((numerator == -(2**63)) & (divisor == -1)).any():
                message = "overflow"
                raise OverflowError(message)
        with np.errstate(all="ignore"):
            result = pa.array(getattr(np, numpy_function)(numerator, divisor), mask=~is_valid)
        return result[0] if is_scalar else result

    return apply


def _power(left: Value, right: Value) -> Value:
    return _arithmetic("power_checked")(left, right)


def _negate(value: Value) -> Value:
    return compute().negate_checked(_widened(value))


def _abs(value: Value) -> Value:
    return compute().abs_checked(_widened(value))


def _round(value: Value, num_digits: int) -> Value:
    if _is_whole(value.type) and num_digits >= 0:
        return value
    return decimal_kernels.with_room(
        value, lambda wide: compute().round(wide, ndigits=num_digits, round_mode="half_towards_infinity")
    )


def _unless_whole(function: str) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        if _is_whole(value.type):
            return value
        return decimal_kernels.with_room(value, lambda wide: compute().call_function(function, [wide]))

    return apply


def _comparison(function: str) -> Callable[[Value, Value], Value]:
    def apply(left: Value, right: Value) -> Value:
        left_type, right_type = left.type, right.type
        if left_type != right_type and decimal_kernels.is_for_decimals(left_type, right_type):
            left, right = decimal_kernels.comparable(left, right)
        elif pa.types.is_floating(left_type) != pa.types.is_floating(right_type):
            left, right = _promoted(left, right)
        return compute().call_function(function, [left, right])

    return apply


def _logical(function: str) -> Callable[..., Value]:
    def apply(*values: Value) -> Value:
        return compute().call_function(function, [_typed(value, pa.bool_()) for value in values])

    return apply


def _as_text(value: Value) -> Value:
    return _typed(value, pa.string())


def _isin(value: Value, values: tuple[Any, ...]) -> Value:
    pc = compute()
    known = [item for item in values if item is not None]
    if not known:
        found = pc.and_(
            value.is_valid() if isinstance(value, pa.Array) else pa.scalar(value.is_valid), pa.scalar(False)
        )
    else:
        value_set = pa.array(known)
        value = _typed(value, value_set.type)
        found = pc.is_in(value, value_set=value_set.cast(value.type))
    if len(known) < len(values):
        found = pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    return pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_()))


def _case(*values: Value) -> Value:
    pc = compute()
    result = values[-1]
    texts = _of_one_type((*values[1:-1:2], result))
    if len(texts) > 2 and all(pa.types.is_string(text.type) for text in texts):
        conditions = [_typed(condition, pa.bool_()) for condition in values[:-1:2]]
        if all(isinstance(condition, pa.Array) for condition in conditions):
            # At once: each branch of its own would copy all texts behind it.
            return pc.case_when(pc.make_struct(*conditions, field_names=list(map(str, range(len(conditions))))), *texts)
    for condition, value in zip(values[-3::-2], values[-2::-2], strict=True):
        left, right = _of_one_type((value, result))
        if pa.types.is_floating(left.type) != pa.types.is_floating(right.type):
            left, right = _promoted(left, right)
        result = pc.if_else(pc.coalesce(_typed(condition, pa.bool_()), pa.scalar(False)), left, right)
    return result


def _coalesce(*values: Value) -> Value:
    if any(pa.types.is_floating(value.type) for value in values):
        values = tuple(_to_double(value) for value in values)
    return compute().coalesce(*_of_one_type(values))


def _field(value: Value, name: str) -> Value:
    if pa.types.is_null(value.type):
        return value
    if not pa.types.is_struct(value.type):
        message = f"only a struct has fields, there is no {name!r}"
        raise TypeError(message)
    if value.type.get_field_index(name) < 0:
        names = ", ".join(repr(value.type.field(i).name) for i in range(value.type.num_fields))
        message = f"field {name!r} does not exist; the fields are {names or 'none'}"
        raise ProgramError(message)
    return compute().struct_field(value, [name])


def _cast(value: Value, to: pa.DataType) -> Value:
    pc = compute()
    if pa.types.is_decimal(to):
        return decimal_kernels.to_decimal(value, to)
    if pa.types.is_decimal(value.type) and pa.types.is_string(to):
        return decimal_kernels.as_texts(value)
    if pa.types.is_floating(value.type) and _is_whole(to):
        value = pc.trunc(value)
    options = pc.CastOptions(to, allow_time_truncate=True, allow_decimal_truncate=True)
    if _is_whole(value.type) and pa.types.is_floating(to):
        options = pc.CastOptions.unsafe(to)
    return pc.cast(value, options=options)


def _length(value: Value) -> Value:
    return compute().cast(compute().utf8_length(_as_text(value)), pa.int64())


def _substr(value: Value, start: int, length: int | None) -> Value:
    value = _as_text(value)
    if length is None:
        return compute().utf8_slice_codeunits(value, start=start)
    stop: int | None = start + length
    if start < 0 and stop is not None and stop >= 0:
        stop = None
    return compute().utf8_slice_codeunits(value, start=start, stop=stop)


def _concat(*values: Value) -> Value:
    return compute().binary_join_element_wise(*(_as_text(value) for value in values), "", null_handling="emit_null")


def _named_groups(pattern: str) -> tuple[str, list[str]]:
    """The pattern with every group named, and the names in order; Arrow's kernel gives named groups only."""
    names = ["group_0"]
    result = ["(?P<group_0>"]
    in_class = False
    i = 0
    while i < len(pattern):
        char = pattern[i]
        named = re.match(r"\(\?P?<([A-Za-z_]\w*)>", pattern[i:])
        if char == "\\":
            result.append(pattern[i : i + 2])
            i += 2
            continue
        if in_class:
            # A bracket right after the opening one (or after ^) is an ordinary character.
            in_class = char != "]"
        elif char == "[":
            in_class = True
            opening = re.match(r"\[\^?\]?", pattern[i:])
            if opening is not None:
                result.append(opening.group())
                i += opening.end()
                continue
        elif named is not None:
            names.append(named.group(1))
        elif char == "(" and not pattern.startswith("(?", i):
            names.append(f"group_{len(names)}")
            result.append(f"(?P<{names[-1]}>")
            i += 1
            continue
        result.append(char)
        i += 1
    return "".join([*result, ")"]), names


def _regexp_extract(value: Value, pattern: str, group: int) -> Value:
    named, names = _named_groups(pattern)
    if not 0 <= group < len(names):
        message = (
            f"group must be between 0 and the number of groups ({len(names) - 1}) of pattern {pattern!r}; got {group}"
        )
        raise ProgramError(message)

    def extracted(texts: Value) -> Value:
        return compute().struct_field(compute().extract_regex(texts, pattern=named), [names[group]])

    return _once_for_each(extracted, _as_text(value))


def _different_texts(texts: pa.Array) -> pa.DictionaryArray | None:
    """Texts as a dictionary of those that differ; None if of the first hardly any comes again.

    To find out which are different costs a sixth of a search for a pattern.
    """
    sample = texts[: len(texts) // 8]
    if len(sample) < 128 or len(sample.unique()) > len(sample) * 7 // 8:
        return None
    return texts.dictionary_encode()


def _once_for_each(kernel: Callable[[Value], Value], texts: Value) -> Value:
    """What a costly kernel gives for texts; asked once for each different one where some come again."""
    codes = _different_texts(texts) if isinstance(texts, pa.Array) else None
    return kernel(texts) if codes is None else kernel(codes.dictionary).take(codes.indices)


def _as_time(value: Value) -> Value:
    pc = compute()
    value = _typed(value, pa.timestamp("us"))
    if _is_whole(value.type):
        return pc.cast(pc.cast(value, pa.int64()), pa.timestamp("ms"))
    return pc.cast(value, pa.timestamp("s")) if pa.types.is_date32(value.type) else value


def _time_part(function: str) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        return compute().call_function(function, [_as_time(value)])

    return apply


def _day_of_week(value: Value) -> Value:
    return compute().day_of_week(_as_time(value), count_from_zero=False, week_start=1)


def _truncate(value: Value, unit: str) -> Value:
    pc = compute()
    result = pc.floor_temporal(_as_time(value), 1, unit=unit, week_starts_monday=True)
    if pa.types.is_null(value.type):
        return result
    return pc.cast(pc.cast(result, pa.int64()), value.type) if _is_whole(value.type) else pc.cast(result, value.type)


def _to_timestamp(value: Value) -> Value:
    pc = compute()
    time = _as_time(value)
    if pa.types.is_string(time.type):
        time = pc.cast(time, pa.timestamp("us"))
    zone = getattr(time.type, "tz", None)
    if getattr(time.type, "unit", "s") in ("us", "ns"):
        time = pc.floor_temporal(time, 1, unit="millisecond")
    return pc.cast(time, pa.timestamp("ms", zone))


def _to_epoch_ms(value: Value) -> Value:
    return compute().cast(_to_timestamp(value), pa.int64())


KERNELS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "subtract": _arithmetic("subtract_checked"),
    "multiply": _arithmetic("multiply_checked"),
    "divide": _divide,
    "floor_divide": _integral("floor_divide"),
    "modulo": _integral("mod"),
    "power": _power,
    "negate": _negate,
    "abs": _abs,
    "round": _round,
    "floor": _unless_whole("floor"),
    "ceil": _unless_whole("ceil"),
    "equal": _comparison("equal"),
    "not_equal": _comparison("not_equal"),
    "less": _comparison("less"),
    "less_equal": _comparison("less_equal"),
    "greater": _comparison("greater"),
    "greater_equal": _comparison("greater_equal"),
    "and": _logical("and_kleene"),
    "or": _logical("or_kleene"),
    "not": _logical("invert"),
    "isin": _isin,
    "is_null": lambda value: compute().is_null(value),
    "is_not_null": lambda value: compute().is_valid(value),
    "case": _case,
    "coalesce": _coalesce,
    "field": _field,
    "cast": _cast,
    "lower": lambda value: compute().utf8_lower(_as_text(value)),
    "upper": lambda value: compute().utf8_upper(_as_text(value)),
    "length": _length,
    "contains": lambda value, text: compute().match_substring(_as_text(value), text),
    "starts_with": lambda value, text: compute().starts_with(_as_text(value), text),
    "ends_with": lambda value, text: compute().ends_with(_as_text(value), text),
    "like": lambda value, pattern: compute().match_like(_as_text(value), pattern),
    "replace": lambda value, text, replacement: compute().replace_substring(_as_text(value), text, replacement),
    "substr": _substr,
    "concat": _concat,
    "regexp_extract": _regexp_extract,
    "year": _time_part("year"),
    "month": _time_part("month"),
    "day": _time_part("day"),
    "hour": _time_part("hour"),
    "minute": _time_part("minute"),
    "second": _time_part("second"),
    "day_of_week": _day_of_week,
    "truncate": _truncate,
    "to_timestamp": _to_timestamp,
    "to_epoch_ms": _to_epoch_ms,
}
"""Every operation by the name that trees refer to it with; names are part of pickled programs."""
