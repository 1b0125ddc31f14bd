"""Comparisons of an integer's product with constants, said of the integer itself.

``0.908 * price > 1000000`` is ``price > 1101321`` where prices are whole: no product of 128 bits is made of each record
to be compared. The bound is computed exactly, and such products of decimals never overflow, so both are true, false and
null for the same records.

Source: Spark's ``UnwrapCastInBinaryComparison``, for casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from .expressions import Call, Expression, lit

__all__ = ["of_integers"]

_MIRRORED = {
    "greater": "less",
    "greater_equal": "less_equal",
    "less": "greater",
    "less_equal": "greater_equal",
}

_BOUNDS: dict[str, Callable[[Fraction], int]] = {
    "greater": math.floor,
    "greater_equal": math.ceil,
    "less": math.ceil,
    "less_equal": math.floor,
}
"""The whole number that a whole one is to be compared with, in place of a fraction."""

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Of integers, by their bits."""

_MOST_DIGITS = 38


def of_integers(condition: Expression, schema: pa.Schema) -> Expression:
    """Return a condition that is true, false and null for the same records.

    Args:
        condition: It may be made of comparisons by AND, OR and NOT.
        schema: Of the records.
    """
    if not isinstance(condition, Call):
        return condition
    if condition.function in ("and", "or", "not"):
        children = tuple(of_integers(one, schema) for one in condition.children)
        is_same = all(one is other for one, other in zip(children, condition.children, strict=True))
        return condition if is_same else condition.with_children(children)
    if condition.function not in _MIRRORED:
        return condition
    left, right = condition.arguments
    found = _compared(condition.function, left, right, schema)
    if found is None:
        found = _compared(_MIRRORED[condition.function], right, left, schema)
    return condition if found is None else found


def _compared(function: str, product: Expression, bound: Expression, schema: pa.Schema) -> Expression | None:
    limit = _constant(bound)
    if limit is None or not isinstance(product, Call) or product.function != "multiply":
        return None
    for factor, value in (product.arguments, product.arguments[::-1]):
        constant, whole = _constant(factor), _whole(value, schema)
        if constant is None or whole is None or constant <= 0 or not _is_exact(factor, value, schema):
            continue
        least = _BOUNDS[function](Fraction(limit) / Fraction(constant))
        return Call(function, (whole, lit(least, pa.int64()))) if -(2**63) <= least < 2**63 else None
    return None


def _constant(expression: Expression) -> Decimal | int | None:
    """The number that an expression is for all records; None if it is none, or one that is not exact."""
    if expression.structure[0] != "lit":
        return None
    value = expression.evaluate(_ONE_RECORD)[0].as_py()
    return value if isinstance(value, (int, Decimal)) and not isinstance(value, bool) else None


def _whole(value: Expression, schema: pa.Schema) -> Expression | None:
    """The integer that a factor is, also where it is one as a decimal that holds all integers of its type."""
    inner = value.children[0] if isinstance(value, Call) and value.function == "cast" else value
    kind, own = inner.output_type(schema), value.output_type(schema)
    if not pa.types.is_signed_integer(kind):
        return None
    is_held = pa.types.is_decimal128(own) and own.scale == 0 and own.precision >= _DIGITS[kind.bit_width]
    return inner if inner is value or is_held else None


def _is_exact(factor: Expression, value: Expression, schema: pa.Schema) -> bool:
    """Whether products are decimals that hold all their digits."""
    kind, own = factor.output_type(schema), value.output_type(schema)
    if not pa.types.is_decimal128(kind) or kind.scale < 0:
        return False
    digits = own.precision if pa.types.is_decimal128(own) else _DIGITS[own.bit_width]
    return bool(kind.precision + digits + 1 <= _MOST_DIGITS)


_ONE_RECORD = pa.RecordBatch.from_arrays([pa.nulls(1)], ["nothing"])
