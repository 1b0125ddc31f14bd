"""What a function of SQL is: a name, how it is called, and what a call becomes.

A call becomes an expression over columns. Most functions are verbs that expressions have already; those that are SQL's
alone are *kernels*: functions of Arrow arrays, evaluated by `KernelCall`.

Source: Flink's documentation ("System (Built-in) Functions").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engine.columns.expressions import Expression, lit
from headrace.engine.columns.kernels import Value, compute
from headrace.engine.errors import HeadraceError, TypeMismatchError, UserFunctionError

from ..parsing.errors import SqlError
from ..parsing.types import sql_name

__all__ = ["Function", "KernelCall", "Typed", "constant", "literal_of", "require", "row_by_row"]


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
    """

    name: str
    usage: str
    bind: Callable[..., Typed]
    at_least: int
    at_most: int | None

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

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        if batch.num_rows == 0:
            return pa.nulls(0, self.kind)
        values = [argument._evaluate(batch) for argument in self.arguments]
        if not values or all(isinstance(value, pa.Scalar) for value in values):
            # A kernel is given one row at least as an array, and says by that how many there are.
            result = self._apply([pa.array([value.as_py()], value.type) for value in values] or [pa.nulls(1)])[0]
        else:
            result = self._apply(values)
        return compute().cast(result, self.kind) if result.type != self.kind else result

    def _apply(self, values: list[Value]) -> Value:
        try:
            return self.kernel(*values, **self.options)
        except HeadraceError:
            raise
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError, LookupError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            message = f"{self!r} failed: {first}"
            raise UserFunctionError(message) from error

    def __repr__(self) -> str:
        given = [*map(repr, self.arguments), *(repr(value) for value in self.options.values())]
        return f"{self.name}({', '.join(given)})"


def row_by_row(function: Callable[..., Any], kind: pa.DataType) -> Callable[..., Value]:
    """Return a kernel that calls a function of Python values for each row; null where an operand is null."""
    return _RowByRow(function, kind)


class _RowByRow:
    def __init__(self, function: Callable[..., Any], kind: pa.DataType) -> None:
        self._function = function
        self._kind = kind

    def __call__(self, *values: Value, **options: Any) -> pa.Array:
        num_rows = max(len(value) for value in values if not isinstance(value, pa.Scalar))
        columns = [
            [value.as_py()] * num_rows if isinstance(value, pa.Scalar) else value.to_pylist() for value in values
        ]
        rows = [
            None if any(one is None for one in row) else self._function(*row, **options)
            for row in zip(*columns, strict=True)
        ]
        return pa.array(rows, self._kind)


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
