"""Calls of kernels, and whether it was types or values that one of them could not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.state.errors import HeadraceError, TypeMismatchError, UserFunctionError

from .kernels import KERNELS, Value

__all__ = ["call_kernel", "first_line", "without_values"]


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
