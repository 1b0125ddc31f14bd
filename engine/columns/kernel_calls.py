"""Calls of kernels: which are special, how they are written, and whether one could not take types or values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.state.errors import HeadraceError, TypeMismatchError, UserFunctionError

from .kernels import KERNELS, Value

__all__ = ["COSTLY", "NARROWING", "call_kernel", "call_text", "first_line", "without_values"]

NARROWING = frozenset(
    ("add", "subtract", "multiply", "divide", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
)
"""Functions in which a whole constant beside a decimal is as wide as its digits."""

COSTLY = frozenset(("lower", "upper", "contains", "like", "replace", "substr", "concat", "regexp_extract", "truncate"))
"""What makes or searches texts, or needs a calendar."""

_SYMBOLS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "modulo": "%",
    "power": "**",
    "negate": "-",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "&",
    "or": "|",
    "not": "~",
}

_FREE_FUNCTIONS = frozenset({"coalesce", "concat"})


def call_kernel(function: str, values: Sequence[Value], options: Mapping[str, Any], shown: object) -> Value:
    """Call a kernel.

    Args:
        function: Its name.
        values: Of its operands.
        options: Its constants.
        shown: What is called, for errors, by its ``repr``.

    Raises:
        TypeMismatchError: If it does not exist for the types of the operands.
        UserFunctionError: If a value is outside its domain.
    """
    kernel = KERNELS[function]
    try:
        return kernel(*values, **options)
    except HeadraceError:
        raise
    except (TypeError, NotImplementedError) as error:
        raise _type_mismatch(values, shown, error) from error
    except (pa.ArrowInvalid, pa.ArrowException, ArithmeticError, ValueError) as error:
        # Arrow reports bad types and bad values alike. If no values at all fail too, it was the types.
        try:
            kernel(*without_values(values), **options)
        except (pa.ArrowInvalid, pa.ArrowException, TypeError, NotImplementedError, ValueError):
            raise _type_mismatch(values, shown, error) from error
        message = f"expression {shown!r} failed: {first_line(error)}"
        raise UserFunctionError(message) from error


def _type_mismatch(values: Sequence[Value], shown: object, error: Exception) -> TypeMismatchError:
    types = ", ".join(str(value.type) for value in values)
    message = f"expression {shown!r} cannot be applied to {types}: {first_line(error)}"
    return TypeMismatchError(message)


def without_values(values: Sequence[Value]) -> list[Value]:
    """Return operands of the same types, of no records; constants stay, but for the first operand."""
    return [
        pa.nulls(0, value.type) if isinstance(value, pa.Array) or i == 0 else value for i, value in enumerate(values)
    ]


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or what it is."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def call_text(function: str, first: str, operands: Sequence[str], constants: Sequence[Any]) -> str:
    """Return a call as a program writes it.

    Args:
        function: Its name.
        first: The first operand, where a method of it is called.
        operands: All of them, where they stand in a call.
        constants: What else it is called with.
    """
    symbol = _SYMBOLS.get(function)
    if symbol is not None:
        return f"({symbol}{operands[0]})" if len(operands) == 1 else f"({operands[0]} {symbol} {operands[1]})"
    if function in _FREE_FUNCTIONS:
        return f"{function}({', '.join(operands)})"
    written = [str(value) if isinstance(value, pa.DataType) else repr(value) for value in constants]
    return f"{first}.{function}({', '.join([*operands[1:], *written])})"
