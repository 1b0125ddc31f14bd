"""What a function of SQL is: a name, how it is called, and what a call becomes.

A call becomes an expression over columns. Most functions are verbs that expressions have already; those that are SQL's
alone are *kernels*: functions of Arrow arrays, evaluated by `KernelCall`.

Source: Flink's documentation ("System (Built-in) Functions").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.engine.columns.expressions import Expression, lit
from headrace.engine.columns.kernels import Value, compute
from headrace.engine.errors import HeadraceError, TypeMismatchError, UserFunctionError

from ..parsing.errors import SqlError
from ..parsing.sql_types import sql_name

__all__ = [
    "Function",
    "KernelCall",
    "RowCall",
    "TableFunction",
    "Typed",
    "as_arrays",
    "constant",
    "literal_of",
    "made",
    "num_rows_of",
    "require",
    "row_by_row",
]


class Typed(NamedTuple):
    """An expression and the type of its values.

    Attributes:
        expression: The expression.
        kind: Its type; ``pa.null()`` for a NULL that has none yet.
        constant: The value, if it is a literal of the text: a scalar; None for everything else.
    """

    expression: Expression
    kind: pa.DataType
    constant: pa.Scalar | None = None


def literal_of(value: Any, kind: pa.DataType) -> Typed:
    """Return a constant."""
    scalar = pa.scalar(value, kind)
    return Typed(lit(value, kind), kind, scalar)


@dataclass(frozen=True)
class Function:
    """A function of SQL.

    Attributes:
        name: In capitals.
        usage: How it is called, for people: ``SPLIT_INDEX(text, separator, index)``.
        bind: What a call becomes.
        at_least: The fewest arguments.
        at_most: The most; None for any number.
        meaning: What it gives, in a line.
        differs: What Flink's function of the name does otherwise; empty if nothing is known.
    """

    name: str
    usage: str
    bind: Callable[..., Typed]
    at_least: int
    at_most: int | None
    meaning: str = ""
    differs: str = ""

    def call(self, arguments: Sequence[Typed]) -> Typed:
        """Return what a call becomes.

        Raises:
            SqlError: If the arguments do not fit, in number or by their types.
        """
        count = len(arguments)
        if count < self.at_least or (self.at_most is not None and count > self.at_most):
            message = f"{self.name} cannot be called with {count} argument{'' if count == 1 else 's'}"
            raise SqlError(message, hint=f"the call is {self.usage}")
        try:
            return self.bind(*arguments)
        except TypeMismatchError as error:
            types = ", ".join(sql_name(one.kind) for one in arguments)
            message = f"{self.name} cannot be called with {types}"
            raise SqlError(message, hint=f"the call is {self.usage}") from error


@dataclass(frozen=True)
class TableFunction:
    """A function of SQL that gives rows.

    Attributes:
        name: As the program calls it.
        usage: How it is called, for people.
        names: What its columns are called if nobody names them.
        make: Makes what expands rows of the arguments and the names of its columns.
        at_least: The fewest arguments.
        at_most: The most; None for any number.
    """

    name: str
    usage: str
    names: tuple[str, ...]
    make: Callable[[Sequence[Typed], Sequence[str]], Any]
    at_least: int
    at_most: int | None

    def require(self, count: int) -> None:
        """Check the number of arguments.

        Raises:
            SqlError: If it does not fit.
        """
        if count < self.at_least or (self.at_most is not None and count > self.at_most):
            message = f"{self.name} cannot be called with {count} argument{'' if count == 1 else 's'}"
            raise SqlError(message, hint=f"the call is {self.usage}")


class KernelCall(Expression):
    """A kernel of SQL applied to operands.

    Args:
        name: For people.
        kernel: A function of a module: takes arrays or scalars, gives an array or a scalar.
        arguments: The operands.
        kind: The type of the result.
        options: Constants by name, hashable.
    """

    __slots__ = ("arguments", "kernel", "kind", "name", "options")

    def __init__(
        self,
        name: str,
        kernel: Callable[..., Value],
        arguments: tuple[Expression, ...],
        kind: pa.DataType,
        **options: Any,
    ) -> None:
        self.name = name
        self.kernel = kernel
        self.arguments = arguments
        self.kind = kind
        self.options = options

    @property
    def structure(self) -> tuple[Any, ...]:
        options = tuple((name, str(type(value)), repr(value)) for name, value in self.options.items())
        return (f"sql.{self.name}", str(self.kind), options, *(argument.structure for argument in self.arguments))

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.arguments

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        return type(self)(self.name, self.kernel, children, self.kind, **self.options)

    @property
    def is_costly(self) -> bool:
        return True

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        if batch.num_rows == 0:
            return pa.nulls(0, self.kind)
        values = [argument._evaluate(batch) for argument in self.arguments]
        if all(isinstance(value, pa.Scalar) for value in values):
            result = self._of_scalars(values, batch.num_rows)
        else:
            result = self._apply(values)
        if result.type == self.kind:
            return result
        if pa.types.is_null(result.type):  # not every type can be had from nulls by a cast
            return pa.nulls(batch.num_rows, self.kind)
        return compute().cast(result, self.kind)

    def _of_scalars(self, values: list[Value], num_rows: int) -> Value:
        # A kernel is given one row at least as an array, and says by that how many there are.
        return self._apply([pa.repeat(value, 1) for value in values] or [pa.nulls(1)])[0]

    def _apply(self, values: list[Value]) -> Value:
        try:
            return self.kernel(*values, **self.options)
        except HeadraceError:
            raise
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError, LookupError) as error:
            message = f"{self!r} failed: {_first_line(error)}"
            raise UserFunctionError(message) from error

    def __repr__(self) -> str:
        given = [*map(repr, self.arguments), *(repr(value) for value in self.options.values())]
        return f"{self.name}({', '.join(given)})"


class RowCall(KernelCall):
    """A call that may give another value for each row, though its arguments are the same."""

    __slots__ = ()

    def _of_scalars(self, values: list[Value], num_rows: int) -> Value:
        return self._apply([pa.repeat(value, num_rows) for value in values] or [pa.nulls(num_rows)])


def num_rows_of(values: Sequence[Value]) -> int:
    """Return how many rows operands have, of which one at least is an array."""
    return max(len(value) for value in values if not isinstance(value, pa.Scalar))


def as_arrays(values: Sequence[Value]) -> list[pa.Array]:
    """Return operands as arrays of one length."""
    num_rows = num_rows_of(values)
    return [pa.repeat(value, num_rows) if isinstance(value, pa.Scalar) else value for value in values]


def row_by_row(function: Callable[..., Any], kind: pa.DataType, *, sees_nulls: bool = False) -> Callable[..., Value]:
    """Return a kernel that calls a function of Python values for each row.

    Args:
        function: Takes the operands' values, and the options by name.
        kind: The type of what it gives.
        sees_nulls: Whether it is asked of rows with a null, as None; else their result is null.
    """
    return _RowByRow(function, kind, sees_nulls)


class _RowByRow:
    def __init__(self, function: Callable[..., Any], kind: pa.DataType, sees_nulls: bool) -> None:
        self._function = function
        self._kind = kind
        self._sees_nulls = sees_nulls

    def __call__(self, *values: Value, **options: Any) -> pa.Array:
        columns = [array.to_pylist() for array in as_arrays(values)]
        rows = [
            self._function(*row, **options) if self._sees_nulls or all(one is not None for one in row) else None
            for row in zip(*columns, strict=True)
        ]
        return pa.array(rows, self._kind)


def made(name: str, kernel: Callable[..., Value], kind: pa.DataType, *operands: Typed, **options: Typed) -> Typed:
    """Return the call of a kernel.

    Args:
        name: For people.
        kernel: Takes the operands as columns, and the options as plain values.
        kind: The type of the result.
        operands: The columns.
        options: What the kernel knows for all rows alike: literals as a rule. Where one is no literal, the kernel is
            called for each of its values; where it is null, so is the result.

    Raises:
        SqlError: If the kernel refuses the literals.
    """
    literals = {key: one.constant.as_py() for key, one in options.items() if one.constant is not None}
    varying = {key: one for key, one in options.items() if key not in literals}
    expressions = tuple(one.expression for one in (*operands, *varying.values()))
    if varying:
        by_value = _ForEachValue(kernel, tuple(varying))
        return Typed(KernelCall(name, by_value, expressions, kind, **literals), kind)
    try:
        kernel(*(pa.nulls(0, one.kind) for one in operands), **literals)
    except (pa.ArrowException, HeadraceError, ValueError, TypeError) as error:
        if isinstance(error, SqlError):
            raise
        message = f"{name}: {_first_line(error)}"
        raise SqlError(message) from error
    return Typed(KernelCall(name, kernel, expressions, kind, **literals), kind)


class _ForEachValue:
    """A kernel whose options are columns: it is called for each of their values, with the rows that have it."""

    def __init__(self, kernel: Callable[..., Value], names: tuple[str, ...]) -> None:
        self._kernel = kernel
        self._names = names

    def __call__(self, *values: Value, **options: Any) -> pa.Array:
        arrays = as_arrays(values)
        operands, given = arrays[: -len(self._names)], arrays[-len(self._names) :]
        places: dict[tuple[Any, ...], list[int]] = {}
        for i, key in enumerate(zip(*(one.to_pylist() for one in given), strict=True)):
            places.setdefault(key, []).append(i)
        parts = [self._of(key, [one.take(rows) for one in operands], options)
                 for key, rows in ((key, pa.array(rows)) for key, rows in places.items())]  # fmt: skip
        kind = next((part.type for part in parts if not pa.types.is_null(part.type)), pa.null())
        order = np.argsort(np.concatenate([np.array(rows) for rows in places.values()]))
        # Not every type can be had from nulls by a cast.
        typed = [pa.nulls(len(part), kind) if pa.types.is_null(part.type) else part.cast(kind) for part in parts]
        return pa.concat_arrays(typed).take(pa.array(order))

    def _of(self, key: tuple[Any, ...], operands: list[pa.Array], options: dict[str, Any]) -> pa.Array:
        if any(one is None for one in key):
            return pa.nulls(len(operands[0]))
        return self._kernel(*operands, **options, **dict(zip(self._names, key, strict=True)))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def constant(argument: Typed, what: str) -> Any:
    """Return the Python value of an argument that must be a literal.

    Raises:
        SqlError: If it is none.
    """
    if argument.constant is None:
        message = f"{what} must be a literal"
        raise SqlError(message)
    return argument.constant.as_py()


def require(argument: Typed, is_fitting: Callable[[pa.DataType], bool], what: str) -> Typed:
    """Refuse an argument of another kind; NULL always fits.

    Raises:
        SqlError: If it does not fit.
    """
    if not pa.types.is_null(argument.kind) and not is_fitting(argument.kind):
        message = f"expected {what}; got {sql_name(argument.kind)}"
        raise SqlError(message)
    return argument
