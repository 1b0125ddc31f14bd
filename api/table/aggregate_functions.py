"""Aggregate functions of Python in SQL: with accumulators, row by row, or of all rows of a group as columns; and those
that give rows.

Source: PyFlink's ``AggregateFunction``, ``TableAggregateFunction``, ``udaf`` and ``udtaf``.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.engine.columns.expressions import Expression as ColumnExpression
from headrace.engine.errors import ProgramError
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.aggregates.user_defined import ColumnFunction, UserAggregate, UserTableAggregate

from ..sql.functions.aggregates import AggregateCall
from ..sql.functions.aggregates import AggregateFunction as SqlAggregate
from ..sql.functions.coercion import cast_to
from ..sql.functions.contract import Typed, literal_of
from ..sql.functions.rows import as_row
from ..sql.parsing.errors import SqlError
from ..sql.parsing.sql_types import parse_type
from .expressions.expression import Expression, call

__all__ = ["AggregateFunction", "TableAggregateFunction", "UserDefinedAggregateFunction", "udaf", "udtaf"]

A = TypeVar("A")
R = TypeVar("R")


class AggregateFunction(ABC, Generic[R, A]):
    """What a group of rows comes to, row by row; made a function of SQL by `udaf`.

    Two more methods are asked for where they are needed. ``retract(accumulator, *values)`` takes a row away again:
    needed where rows of the input are updated or taken back. ``merge(accumulator, others)`` adds several accumulators
    to one: with it partial results are accumulators; without it the rows of a window, or of a group in batch mode, are
    kept until the result is asked for.

    Contract: equal rows give equal results (*trusted*); accumulators are changed in place (*asserted*), and are plain
    values or can be pickled (*asserted*). One that has taken back all it was given is thrown away.
    """

    @abstractmethod
    def create_accumulator(self) -> A:
        """Return the accumulator of no rows."""

    @abstractmethod
    def accumulate(self, accumulator: A, *values: Any) -> None:
        """Add a row to an accumulator, in place; None is NULL."""

    @abstractmethod
    def get_value(self, accumulator: A) -> R:
        """Return what an accumulator comes to; None is NULL."""


class TableAggregateFunction(ABC, Generic[R, A]):
    """The rows that a group of rows comes to; made a function by `udtaf`, for ``flat_aggregate``.

    Its methods ``retract`` and ``merge`` and its contract are those of `AggregateFunction`. Rows that have gone out are
    made again to be taken back, so equal accumulators give equal rows (*trusted*).
    """

    @abstractmethod
    def create_accumulator(self) -> A:
        """Return the accumulator of no rows."""

    @abstractmethod
    def accumulate(self, accumulator: A, *values: Any) -> None:
        """Add a row to an accumulator, in place; None is NULL."""

    @abstractmethod
    def emit_value(self, accumulator: A) -> Iterable[R] | None:
        """Give the rows that an accumulator comes to: tuples, dicts, or values if there is one column; or none."""


def udaf(
    function: Any = None,
    *,
    result_type: Any = None,
    input_types: Sequence[Any] | None = None,
    accumulator_type: Any = None,
    name: str | None = None,
    func_type: str = "general",
) -> Any:
    """Make an aggregate function of SQL of one of Python; also as a decorator.

    Args:
        function: An `AggregateFunction`, or anything that has its methods. With ``func_type="pandas"`` or ``"arrow"`` a
            function that takes the columns of a group's rows, and gives a value; it is for groups that end: batch mode
            and windows.
        result_type: The type of what it gives: as in SQL, or an Arrow type. None asks ``get_result_type()``.
        input_types: The types it takes; arguments are cast to them. None takes what comes.
        accumulator_type: How accumulators are kept: ``ROW<...>`` for lists of values (or dicts, by name), ``ARRAY``,
            ``MAP``, or a plain type. None keeps any Python value.
        name: What it is called in Python's errors; None for its own name.
        func_type: ``general``, ``pandas`` or ``arrow``.

    Raises:
        ProgramError: If it lacks a method, or a type is unknown.
    """
    if function is None:
        return lambda given: udaf(
            given, result_type=result_type, input_types=input_types, accumulator_type=accumulator_type, name=name,
            func_type=func_type,
        )  # fmt: skip
    if func_type not in ("general", "pandas", "arrow"):
        message = f"func_type is general, pandas or arrow; got {func_type!r}"
        raise ProgramError(message)
    _check(function, func_type, "get_value")
    types = _types_of(function, result_type, input_types, accumulator_type)
    return UserDefinedAggregateFunction(function, _name_of(function, name), *types, func_type)


def _types_of(
    function: Any, result_type: Any, input_types: Sequence[Any] | None, accumulator_type: Any
) -> tuple[pa.DataType, tuple[pa.DataType, ...] | None, pa.DataType | None]:
    """The types of the result, the arguments and the accumulator; None for what is not said."""
    result_type = _type_of(function, "get_result_type", result_type)
    if result_type is None:
        message = "an aggregate function has a type"
        raise ProgramError(message, hint='say what it gives: udaf(..., result_type="BIGINT")')
    kept = _type_of(function, "get_accumulator_type", accumulator_type)
    inputs = None if input_types is None else tuple(map(parse_type, input_types))
    return parse_type(result_type), inputs, None if kept is None else parse_type(kept)


def _name_of(function: Any, name: str | None) -> str:
    return name or str(getattr(function, "__name__", type(function).__name__))


def udtaf(
    function: Any = None,
    *,
    result_type: Any = None,
    input_types: Sequence[Any] | None = None,
    accumulator_type: Any = None,
    name: str | None = None,
) -> Any:
    """Make an aggregate function that gives rows of one of Python; also as a decorator.

    In SQL it gives an ARRAY of rows, of which ``UNNEST`` makes rows.

    Args:
        function: A `TableAggregateFunction`, or anything that has its methods.
        result_type: The type of its rows: ``ROW<...>`` in SQL or a struct of Arrow; another one for rows of one column,
            ``f0``. None asks ``get_result_type()``.
        input_types: The types it takes; arguments are cast to them. None takes what comes.
        accumulator_type: How accumulators are kept; see `udaf`.
        name: What it is called in Python's errors; None for its own name.

    Raises:
        ProgramError: If it lacks a method, or a type is unknown.
    """
    if function is None:
        return lambda given: udtaf(
            given, result_type=result_type, input_types=input_types, accumulator_type=accumulator_type, name=name
        )
    _check(function, "general", "emit_value")
    row, inputs, kept = _types_of(function, result_type, input_types, accumulator_type)
    rows = pa.list_(row if pa.types.is_struct(row) else pa.struct([("f0", row)]))
    return UserDefinedTableAggregateFunction(function, _name_of(function, name), rows, inputs, kept, "general")


def _check(function: Any, func_type: str, result: str) -> None:
    if isinstance(function, type):
        message = f"an aggregate function is an object, not the class {function.__name__}"
        raise ProgramError(message, hint=f"pass {function.__name__}()")
    if func_type != "general":
        if not callable(function):
            message = f"with func_type={func_type!r} a function is called with columns; got {function!r}"
            raise ProgramError(message)
        return
    missing = [one for one in ("create_accumulator", "accumulate", result) if not hasattr(function, one)]
    if missing:
        message = f"an aggregate function has a method {missing[0]}; {function!r} has none"
        raise ProgramError(message, hint="func_type='pandas' and 'arrow' are for functions of columns")
    unknown = [one for one in ("open", "close") if hasattr(function, one)]
    if unknown:
        message = f"{unknown[0]} of an aggregate function is not called"
        raise ProgramError(message, hint="prepare in __init__, or when a method is called first")


def _type_of(function: Any, method: str, given: Any) -> Any:
    return getattr(function, method)() if given is None and hasattr(function, method) else given


class UserDefinedAggregateFunction:
    """An aggregate function of Python with its types. Made by `udaf` and `udtaf`."""

    def __init__(
        self,
        function: Any,
        name: str,
        kind: pa.DataType,
        inputs: tuple[pa.DataType, ...] | None,
        accumulators: pa.DataType | None,
        func_type: str,
    ) -> None:
        self._function = function
        self.name = name
        self.kind = kind
        self._inputs = inputs
        self._accumulators = accumulators
        self._func_type = func_type

    def __call__(self, *values: Any) -> Expression:
        """Return a call as an expression of the Table API."""
        return call(self, *values)

    def named(self, name: str) -> SqlAggregate:
        """Return it as an aggregate function of SQL."""
        least, most = self._counts()
        usage = f"{name}({', '.join(['x'] * least)}{', ...' if most is None else ''})"

        def as_one(arguments: Sequence[Typed]) -> Typed:
            if len(arguments) < least or (most is not None and len(arguments) > most):
                message = f"{name} cannot be called with {len(arguments)} argument{'s' * (len(arguments) != 1)}"
                raise SqlError(message, hint=f"the call is {usage}")
            given = arguments if self._inputs is None else [
                cast_to(one, kind) for one, kind in zip(arguments, self._inputs, strict=True)
            ]  # fmt: skip
            # A row has one field at least.
            return as_row(*given) if given else as_row(literal_of(True, pa.bool_()))

        def bind(argument: Typed) -> AggregateCall:
            count = 0 if most == 0 else argument.kind.num_fields
            aggregate = self._aggregate(name, argument.expression, argument.kind, count)
            return AggregateCall((aggregate,), lambda value: value)

        return SqlAggregate(name, usage, bind, "A function of the program.", more=10**6, as_one=as_one)

    def _aggregate(self, name: str, rows: ColumnExpression, kind: pa.DataType, count: int) -> Aggregate:
        if self._func_type == "general":
            return UserAggregate(name, self._function, rows, kind, count, self.kind, self._accumulators)
        given = _as_series if self._func_type == "pandas" else _as_array
        return ColumnFunction(name, self._function, given, rows, kind, count, self.kind)

    def _counts(self) -> tuple[int, int | None]:
        """How many arguments it takes, at least and at most."""
        if self._inputs is not None:
            return len(self._inputs), len(self._inputs)
        is_general = self._func_type == "general"
        least, most = argument_counts(self._function.accumulate if is_general else self._function)
        before = int(is_general)  # the accumulator
        return max(least - before, 0 if most == before else 1), None if most is None else most - before


class UserDefinedTableAggregateFunction(UserDefinedAggregateFunction):
    """An aggregate function of Python that gives rows, as an array. Made by `udtaf`."""

    def _aggregate(self, name: str, rows: ColumnExpression, kind: pa.DataType, count: int) -> Aggregate:
        return UserTableAggregate(name, self._function, rows, kind, count, self.kind, self._accumulators)


def argument_counts(function: Callable[..., Any]) -> tuple[int, int | None]:
    """Return how many arguments a function takes, at least and at most."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, None
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    least = sum(one.default is one.empty for one in positional)
    has_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return least, None if has_any else len(positional)


def _as_series(column: pa.Array) -> Any:
    return column.to_pandas()


def _as_array(column: pa.Array) -> pa.Array:
    return column
