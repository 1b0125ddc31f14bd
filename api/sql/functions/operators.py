"""Arithmetic, comparisons, conditions: what SQL writes with signs and words rather than as calls.

Integers stay integers: a quotient loses what is behind the point, a remainder has the sign of what was divided, and a
result that does not fit its type is an error (Flink lets it wrap around). Decimals have Flink's precision and scale.

Source: SQL:2016; Flink's ``ScalarOperatorGens``.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.conditionals import Case
from headrace.engine.columns.expressions import Call, Expression, col, lit
from headrace.engine.columns.kernels import KERNELS, Value, compute
from headrace.engine.errors import UserFunctionError

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name
from .coercion import as_decimal_type, cast_to, common_type, is_number, is_text, together
from .contract import KernelCall, Typed, require, row_by_row

__all__ = [
    "MANY", "add", "all_of", "any_of", "both", "call", "case", "coalesced", "compare", "concatenated", "divide",
    "either", "is_distinct", "is_false", "is_null", "is_true", "modulo", "multiply", "negated", "one_of", "opposite",
    "subtract",
]  # fmt: skip

MANY = 16
"""Conditions in a row, or values of IN, from which on they are put together otherwise than one by one."""


def call(function: str, *operands: Typed, **options: Any) -> Typed:
    """Return a kernel of expressions applied to operands; its type is found by computing no rows."""
    given = tuple(options.items())
    names = [f"a{i}" for i in range(len(operands))]
    schema = pa.schema([pa.field(name, one.kind) for name, one in zip(names, operands, strict=True)])
    kind = Call(function, tuple(map(col, names)), given).output_type(schema)
    return Typed(Call(function, tuple(one.expression for one in operands), given), kind)


def _numbers(sign: str, left: Typed, right: Typed) -> tuple[Typed, Typed]:
    for one in (left, right):
        if not is_number(one.kind) and not pa.types.is_null(one.kind):
            message = f"{sign} cannot be applied to {sql_name(left.kind)} and {sql_name(right.kind)}"
            is_of_texts = sign == "+" and is_text(left.kind) and is_text(right.kind)
            hint = "|| puts texts together, and CONCAT" if is_of_texts else "CAST texts and times to numbers"
            raise SqlError(message, hint=hint)
    return left, right


def _arithmetic(function: str, sign: str, left: Typed, right: Typed) -> Typed:
    left, right = _numbers(sign, left, right)
    kinds = [one.kind for one in (left, right) if not pa.types.is_null(one.kind)]
    if any(pa.types.is_decimal(kind) for kind in kinds) and not any(pa.types.is_floating(kind) for kind in kinds):
        left, right = (cast_to(one, as_decimal_type(one.kind)) for one in (left, right))
        return call(function, left, right)
    common = common_type(kinds)
    return cast_to(call(function, cast_to(left, common), cast_to(right, common)), common)


def add(left: Typed, right: Typed) -> Typed:
    """Left plus right: numbers, or a time and an interval."""
    for time, span in ((left, right), (right, left)):
        if pa.types.is_duration(span.kind) and _is_time(time.kind):
            return _moved(time, span, "add")
    return _arithmetic("add", "+", left, right)


def subtract(left: Typed, right: Typed) -> Typed:
    """Left minus right: numbers, or a time and an interval."""
    if pa.types.is_duration(right.kind) and _is_time(left.kind):
        return _moved(left, right, "subtract")
    return _arithmetic("subtract", "-", left, right)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind))


def _moved(time: Typed, span: Typed, function: str) -> Typed:
    if pa.types.is_date(time.kind):
        # A date is moved by whole days, as in Flink.
        operands = (time.expression, span.expression)
        return Typed(KernelCall(function, _move_date, operands, time.kind, function=function), time.kind)
    operands = (time.expression, span.expression)
    return Typed(KernelCall(function, _move, operands, time.kind, function=function), time.kind)


def _move_date(date: Value, span: Value, function: str) -> Value:
    pc = compute()
    days = pc.divide(pc.cast(span, pa.int64()), 86_400_000)  # cut towards zero
    moved = pc.call_function(f"{function}_checked", [pc.cast(pc.cast(date, pa.int32()), pa.int64()), days])
    return pc.cast(pc.cast(moved, pa.int32()), date.type)


def _move(time: Value, span: Value, function: str) -> Value:
    # A span is milliseconds: a coarser or finer time keeps its own unit.
    pc = compute()
    unit = time.type.unit
    fine = pa.timestamp("ms", getattr(time.type, "tz", None)) if unit == "s" else time.type
    moved = pc.call_function(f"{function}_checked", [pc.cast(time, fine), pc.cast(span, pa.duration(fine.unit))])
    return pc.cast(moved, time.type)


def multiply(left: Typed, right: Typed) -> Typed:
    """Left times right."""
    return _arithmetic("multiply", "*", left, right)


def divide(left: Typed, right: Typed) -> Typed:
    """Left by right; of integers the whole part."""
    left, right = _numbers("/", left, right)
    if all(pa.types.is_integer(one.kind) for one in (left, right)):
        return _whole("divide", left, right)
    return _arithmetic("divide", "/", left, right)


def modulo(left: Typed, right: Typed) -> Typed:
    """The remainder, with the sign of what is divided."""
    left, right = _numbers("MOD", left, right)
    if any(pa.types.is_floating(one.kind) for one in (left, right)):
        kind = pa.float64()
        return Typed(KernelCall("MOD", _float_remainder, (left.expression, right.expression), kind), kind)
    if any(pa.types.is_decimal(one.kind) for one in (left, right)):
        return _decimal_remainder(*(cast_to(one, as_decimal_type(one.kind)) for one in (left, right)))
    return _whole("modulo", left, right, right.kind)


def _decimal_remainder(left: Typed, right: Typed) -> Typed:
    """Flink's type of it: ``LogicalTypeMerging.findModuloDecimalType``."""
    known = [one.kind for one in (left, right) if not pa.types.is_null(one.kind)]
    scale = max(kind.scale for kind in known)
    whole = min(kind.precision - kind.scale for kind in known)
    kind = pa.decimal128(max(min(whole + scale, 38), 1), scale)
    return Typed(KernelCall("MOD", row_by_row(_remainder_of, kind), (left.expression, right.expression), kind), kind)


def _remainder_of(left: decimal.Decimal, right: decimal.Decimal) -> decimal.Decimal:
    if not right:
        message = "division by zero"
        raise ZeroDivisionError(message)
    return _EXACT.remainder(left, right)


_EXACT = decimal.Context(prec=100, traps=[decimal.InvalidOperation])
"""Python's own has 28 digits; a DECIMAL has 38, and a quotient on the way to a remainder twice as many."""


def _whole(function: str, left: Typed, right: Typed, kind: pa.DataType | None = None) -> Typed:
    common = common_type([left.kind, right.kind])
    if pa.types.is_null(common):
        return Typed(lit(None, pa.int32()), pa.int32())
    operands = (cast_to(left, common).expression, cast_to(right, common).expression)
    name = {"divide": "/", "modulo": "MOD"}[function]
    found = Typed(KernelCall(name, _whole_part if function == "divide" else _remainder, operands, common), common)
    return found if kind is None or pa.types.is_null(kind) else cast_to(found, kind)


def _lanes(left: Value, right: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both operands as numbers of 64 bits, and which rows have both."""
    num_rows = max(len(one) for one in (left, right) if not isinstance(one, pa.Scalar))
    arrays = [pa.repeat(one, num_rows) if isinstance(one, pa.Scalar) else one for one in (left, right)]
    is_valid = np.asarray(compute().and_(arrays[0].is_valid(), arrays[1].is_valid()))
    numerator, divisor = (np.asarray(array.fill_null(1)).astype(np.int64) for array in arrays)
    if (is_valid & (divisor == 0)).any():
        message = "division by zero"
        raise ZeroDivisionError(message)
    divisor = np.where(is_valid, divisor, 1)
    return numerator, divisor, is_valid


def _whole_part(left: Value, right: Value) -> Value:
    numerator, divisor, is_valid = _lanes(left, right)
    if ((numerator == np.iinfo(np.int64).min) & (divisor == -1) & is_valid).any():
        message = "overflow"
        raise OverflowError(message)
    quotient = numerator // divisor
    quotient += (numerator % divisor != 0) & ((numerator < 0) != (divisor < 0))
    return pa.array(quotient, mask=~is_valid)


def _remainder(left: Value, right: Value) -> Value:
    numerator, divisor, is_valid = _lanes(left, right)
    return pa.array(np.fmod(numerator, divisor), mask=~is_valid)


def _float_remainder(left: Value, right: Value) -> Value:
    pc = compute()
    one, other = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    return pc.subtract(one, pc.multiply(pc.trunc(pc.divide(one, other)), other))


def negated(value: Typed) -> Typed:
    """Return minus the value."""
    require(value, lambda kind: is_number(kind) or pa.types.is_duration(kind), "a number")
    return cast_to(call("negate", value), value.kind)


def compare(function: str, left: Typed, right: Typed) -> Typed:
    """Compare two values: a text beside a time is read as one."""
    left, right = _comparable(left, right)
    if pa.types.is_nested(left.kind):
        return _nested(function, left, right)
    return Typed(Call(function, (left.expression, right.expression)), pa.bool_())


def _nested(function: str, left: Typed, right: Typed) -> Typed:
    """Arrays, maps and rows are equal or not, by their elements, of which two nulls are equal."""
    if function not in ("equal", "not_equal"):
        message = f"values of type {sql_name(left.kind)} have no order"
        raise SqlError(message, hint="compare their parts")
    kernel = _same_maps if pa.types.is_map(left.kind) else _same_elements
    operands = (left.expression, right.expression)
    same = Typed(KernelCall("=", row_by_row(kernel, pa.bool_()), operands, pa.bool_()), pa.bool_())
    return same if function == "equal" else opposite(same)


def _same_elements(left: Any, right: Any) -> bool:
    return bool(left == right)


def _same_maps(left: Any, right: Any) -> bool:
    return dict(left) == dict(right)


def _comparable(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    if is_text(left.kind) and _is_time(right.kind):
        return cast_to(left, right.kind), right
    if is_text(right.kind) and _is_time(left.kind):
        return left, cast_to(right, left.kind)
    if is_number(left.kind) and is_number(right.kind):
        return left, right  # the kernels compare numbers of different types exactly
    left, right = together([left, right])
    if pa.types.is_null(left.kind):  # NULL beside NULL: nothing says a type, and any will do
        return cast_to(left, pa.int32()), cast_to(right, pa.int32())
    return left, right


def both(left: Typed, right: Typed) -> Typed:
    """AND."""
    return _logical("and", left, right)


def either(left: Typed, right: Typed) -> Typed:
    """OR."""
    return _logical("or", left, right)


def all_of(values: Sequence[Typed]) -> Typed:
    """Return values that AND puts together."""
    return _joined(both, values)


def any_of(values: Sequence[Typed]) -> Typed:
    """Return values that OR puts together."""
    return _joined(either, values)


def _joined(join: Callable[[Typed, Typed], Typed], values: Sequence[Typed]) -> Typed:
    """Values put together from the left; many of them by halves, so that expressions are no deeper than they need."""
    if len(values) <= MANY:
        return functools.reduce(join, values)
    middle = len(values) // 2
    return join(_joined(join, values[:middle]), _joined(join, values[middle:]))


def one_of(value: Typed, others: Sequence[Typed]) -> Typed:
    """IN (...): of many constants a table is made, in which values are looked up."""
    alike = next((test for test in (pa.types.is_integer, pa.types.is_string) if test(value.kind)), None)
    known = [one for one in others if one.constant is not None and one.constant.is_valid and alike and alike(one.kind)]
    if len(known) <= MANY:
        return any_of([compare("equal", value, one) for one in others])
    looked_up = set(map(id, known))
    rest = [one for one in others if id(one) not in looked_up]
    found = Typed(value.expression.isin([one.constant.as_py() for one in known if one.constant]), pa.bool_())
    return any_of([found, *(compare("equal", value, one) for one in rest)])


def opposite(value: Typed) -> Typed:
    """NOT."""
    require(value, pa.types.is_boolean, "a condition")
    return Typed(Call("not", (value.expression,)), pa.bool_())


def _logical(function: str, left: Typed, right: Typed) -> Typed:
    for one in (left, right):
        require(one, pa.types.is_boolean, "a condition")
    return Typed(Guarded(function, (left.expression, right.expression)), pa.bool_())


class Guarded(Call):
    """AND or OR whose right side, if it fails for some rows, is asked only of those that the left one leaves open."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Guarded, (self.function, self.arguments)

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        return Guarded(self.function, children)

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        try:
            return super()._evaluate(batch)
        except UserFunctionError:
            pc = compute()
            left = self.arguments[0].evaluate(batch)
            is_decided = pc.fill_null(pc.equal(left, self.function == "or"), False)
            open_rows = pa.array(np.flatnonzero(~np.asarray(is_decided)))
            right = self.arguments[1].evaluate(batch.take(open_rows))
            places = np.zeros(batch.num_rows, np.int64)
            places[np.asarray(open_rows)] = np.arange(len(open_rows))
            found = right.take(pa.array(places, mask=np.asarray(is_decided)))
            return KERNELS[self.function](left, found)


def is_null(value: Typed) -> Typed:
    """IS NULL."""
    return Typed(value.expression.is_null(), pa.bool_())


def is_true(value: Typed) -> Typed:
    """IS TRUE: never null."""
    require(value, pa.types.is_boolean, "a condition")
    return Typed(Call("coalesce", (value.expression, lit(False))), pa.bool_())


def is_false(value: Typed) -> Typed:
    """IS FALSE: never null."""
    return is_true(opposite(value))


def is_distinct(left: Typed, right: Typed) -> Typed:
    """IS DISTINCT FROM: as ``<>``, but null is a value like others."""
    equal = compare("equal", left, right)
    nulls = Typed(left.expression.is_null() & right.expression.is_null(), pa.bool_())
    return opposite(either(is_true(equal), nulls))


def case(conditions: list[Typed], values: list[Typed]) -> Typed:
    """CASE: the first value whose condition is true; the last one has none."""
    for condition in conditions:
        require(condition, pa.types.is_boolean, "a condition")
    values = together(values)
    operands: list[Expression] = []
    for condition, value in zip(conditions, values, strict=False):
        operands += [condition.expression, value.expression]
    kind = values[0].kind
    return Typed(Case((*operands, values[-1].expression)), kind)


def coalesced(*values: Typed) -> Typed:
    """COALESCE: the first value that is not null."""
    same = together(values)
    return Typed(Call("coalesce", tuple(one.expression for one in same)), same[0].kind)


def concatenated(*values: Typed) -> Typed:
    """``||``: texts one after the other; null if one is."""
    for one in values:
        if pa.types.is_nested(one.kind):
            message = f"|| cannot be applied to {sql_name(one.kind)}"
            raise SqlError(message, hint="ARRAY_CONCAT(a, b) is of arrays")
    texts = [cast_to(one, pa.string()) for one in values]
    return Typed(Call("concat", tuple(one.expression for one in texts)), pa.string())
