"""PRINTF: a text by a format of Java's ``Formatter``, in its English form.

Conversions are s, d, x, o, c, b, f, e, n and %, with flags, widths, precisions and places (``%2$s``). A format that is
broken, or does not fit its values, gives null, as in Flink.

Source: ``java.util.Formatter``; Flink's documentation ("String Functions").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from .coercion import cast_to, is_text
from .contract import Function, KernelCall, Typed, require, row_by_row
from .spelling import spelling_of

__all__ = ["FUNCTIONS"]

_SPEC = re.compile(r"%(\d+\$)?([-#+ 0,(]*)(\d+)?(?:\.(\d+))?(.)", re.DOTALL)
_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class _Unfit(Exception):
    """A value that a conversion cannot take."""


def _bind(form: Typed, *values: Typed) -> Typed:
    text = cast_to(require(form, is_text, "a text"), pa.string())
    kernel = row_by_row(_Formatter([one.kind for one in values]), pa.string(), sees_nulls=True)
    operands = (text.expression, *(one.expression for one in values))
    return Typed(KernelCall("PRINTF", kernel, operands, pa.string()), pa.string())


class _Formatter:
    def __init__(self, kinds: list[pa.DataType]) -> None:
        self._kinds = kinds
        # Java says true, not TRUE.
        self._spelled: list[Callable[[Any], str]] = [
            (lambda value: str(value).lower()) if pa.types.is_boolean(kind) else spelling_of(kind) for kind in kinds
        ]

    def __call__(self, form: str | None, *values: Any) -> str | None:
        if form is None:
            return None
        result, place, ordinary = [], 0, 0
        try:
            for found in _SPEC.finditer(form):
                between = form[place : found.start()]
                _require_no_percent(between)
                place = found.end()
                index, flags, width, precision, conversion = found.groups()
                result.append(between)
                if conversion in "%n":
                    result.append(_filled("%" if conversion == "%" else "\n", flags, width))
                    continue
                number = int(index[:-1]) - 1 if index else ordinary
                ordinary += not index
                if not 0 <= number < len(values):
                    return None
                one = self._converted(values[number], number, flags, width, precision, conversion)
                result.append(one)
            _require_no_percent(form[place:])
        except _Unfit:
            return None
        return "".join([*result, form[place:]])

    def _converted(
        self, value: Any, number: int, flags: str, width: str | None, precision: str | None, conversion: str
    ) -> str:
        kind = conversion.lower()
        if kind not in ("b", "s") and value is None:
            text = "null"
        elif kind in _CONVERSIONS:
            text = _CONVERSIONS[kind](value, flags, int(width or 0), precision, self._kinds[number])
        elif kind == "s":
            text = "null" if value is None else self._spelled[number](value)
            text = text if precision is None else text[: int(precision)]
        else:
            raise _Unfit
        text = _filled(text, flags, width)
        if not conversion.isupper():
            return text
        if kind in "dfnocp" and kind != "c":
            raise _Unfit
        return text.upper()


def _require_no_percent(text: str) -> None:
    if "%" in text:
        raise _Unfit


def _filled(text: str, flags: str, width: str | None) -> str:
    size = int(width or 0)
    return text.ljust(size) if "-" in flags else text.rjust(size)


def _signed(sign: bool, digits: str, flags: str, width: int) -> str:
    """Digits with what stands for their sign, and zeros in front if they are wanted."""
    before, behind = ("(", ")") if sign and "(" in flags else ("-", "") if sign else ("", "")
    if not sign:
        before = "+" if "+" in flags else " " if " " in flags else ""
    if "0" in flags:
        digits = digits.rjust(width - len(before) - len(behind), "0")
    return f"{before}{digits}{behind}"


def _whole(value: Any, flags: str, width: int, precision: str | None, kind: pa.DataType) -> str:
    if kind not in _INTEGERS or precision is not None:
        raise _Unfit
    return _signed(value < 0, f"{abs(value):,}" if "," in flags else str(abs(value)), flags, width)


def _bits(spec: str, prefix: str) -> Callable[..., str]:
    def convert(value: Any, flags: str, width: int, precision: str | None, kind: pa.DataType) -> str:
        if kind not in _INTEGERS or precision is not None:
            raise _Unfit
        digits = f"{prefix if '#' in flags else ''}{format(value % (1 << _INTEGERS[kind]), spec)}"
        return digits.rjust(width, "0") if "0" in flags else digits

    return convert


def _fraction(spec: str) -> Callable[..., str]:
    def convert(value: Any, flags: str, width: int, precision: str | None, kind: pa.DataType) -> str:
        if not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise _Unfit
        if value != value:
            return "NaN"
        number = abs(Decimal(repr(value)) if isinstance(value, float) else value)
        if number.is_infinite():
            return _signed(value < 0, "Infinity", flags.replace("0", ""), width)
        digits = 6 if precision is None else int(precision)
        if spec == "e":
            return _signed(value < 0, f"{float(number):.{digits}e}", flags, width)
        rounded = number.quantize(Decimal(1).scaleb(-digits), rounding="ROUND_HALF_UP")
        return _signed(value < 0, f"{rounded:,f}" if "," in flags else f"{rounded:f}", flags, width)

    return convert


def _character(value: Any, flags: str, width: int, precision: str | None, kind: pa.DataType) -> str:
    if kind not in _INTEGERS or precision is not None:
        raise _Unfit
    return chr(value)


def _truth(value: Any, flags: str, width: int, precision: str | None, kind: pa.DataType) -> str:
    text = str(value is not None if not isinstance(value, bool) else value).lower()
    return text if precision is None else text[: int(precision)]


_CONVERSIONS: dict[str, Callable[..., str]] = {
    "d": _whole,
    "x": _bits("x", "0x"),
    "o": _bits("o", "0"),
    "f": _fraction("f"),
    "e": _fraction("e"),
    "c": _character,
    "b": _truth,
}

FUNCTIONS = (
    Function("PRINTF", "PRINTF(format, value, ...)", _bind, 1, None,
             "A text by a format such as '%s has %d'; null if it does not fit the values.",
             "%f and %e take decimals, %s writes times as texts; %g and %a give NULL"),
)  # fmt: skip
