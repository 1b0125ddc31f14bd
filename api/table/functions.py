"""Functions of Python in SQL: of values, row by row, or of Arrow arrays; and functions that give rows.

Source: PyFlink's ``udf``, ``udtf``, ``ScalarFunction``, ``TableFunction``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.expressions import Expression as ColumnExpression
from headrace.engine.columns.kernels import Value
from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.functions.user_function import raise_in_function
from headrace.engine.operators.expanding import Expansion
from headrace.state.credentials import masked
from headrace.state.values.sharing import shown

from ..sql.functions.coercion import cast_to
from ..sql.functions.contract import Function, KernelCall, RowCall, Typed, as_arrays
from ..sql.functions.contract import TableFunction as SqlTableFunction
from ..sql.parsing.sql_types import parse_type, sql_name
from .aggregate_functions import argument_counts
from .expressions.expression import Expression, call

__all__ = ["ScalarFunction", "TableFunction", "UserDefinedFunction", "UserDefinedTableFunction", "udf", "udtf"]


class ScalarFunction(ABC):
    """A function of values as an object, which keeps what it needs; made a function of SQL by `udf`."""

    @abstractmethod
    def eval(self, *values: Any) -> Any:
        """Return the value of a row; None is NULL."""

    def is_deterministic(self) -> bool:
        """Whether equal values give equal results."""
        return True


class TableFunction(ABC):
    """A function that gives rows, as an object; made a function of SQL by `udtf`."""

    @abstractmethod
    def eval(self, *values: Any) -> Any:
        """Give the rows of a row, as a function of `udtf` does."""


def udf(
    function: Callable[..., Any] | ScalarFunction | None = None,
    input_types: Any = None,
    result_type: Any = None,
    deterministic: bool | None = None,
    name: str | None = None,
    func_type: str = "general",
) -> Any:
    """Make a function of SQL of one of Python; also as a decorator.

    Args:
        function: Takes values and gives one; None is SQL's null, on both sides. It is called for every row, though its
            arguments are the same, or there are none. With ``func_type="arrow"`` it takes Arrow arrays and gives one of
            the same length, with ``func_type="pandas"`` series of pandas; without arguments it gives one value, which
            all rows of a batch have. A `ScalarFunction` is one by its ``eval``.
        input_types: The types it takes, or the type, if it is one; arguments are cast to them. None takes what comes.
        result_type: The type of what it gives: as in SQL (``"BIGINT"``, ``"ARRAY<STRING>"``) or an Arrow type.
        deterministic: Whether equal values give equal results. Then what is written twice may be computed once; if not,
            each call in a text is made for itself. None asks ``is_deterministic()``, and is true without it.
        name: What it is called in errors; None for its own name.
        func_type: ``general`` (row by row), ``arrow`` or ``pandas``.

    Raises:
        ProgramError: If it is no function, or a type is unknown.
    """
    if result_type is None:
        message = "a function has a type"
        raise ProgramError(message, hint='say what it gives: udf(..., result_type="BIGINT")')
    if function is None:
        return lambda given: udf(given, input_types, result_type, deterministic, name, func_type)
    if func_type not in ("general", "arrow", "pandas"):
        message = f"func_type is general, arrow or pandas; got {func_type!r}"
        raise ProgramError(message)
    called, kind = _callable(function), parse_type(result_type)
    if deterministic is None:
        deterministic = bool(function.is_deterministic()) if hasattr(function, "is_deterministic") else True
    return UserDefinedFunction(
        _OfSeries(called, kind) if func_type == "pandas" else called,
        kind,
        _types_of(input_types),
        name=name or _name_of(function),
        is_arrow=func_type != "general",
        is_deterministic=deterministic,
    )


def _types_of(given: Any) -> tuple[pa.DataType, ...] | None:
    """The types that a function takes; one need be in no list."""
    if given is None:
        return None
    return tuple(map(parse_type, given if isinstance(given, (list, tuple)) else [given]))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _callable(function: Any) -> Callable[..., Any]:
    """What is called of a function, or of an object that is one by its ``eval``.

    Raises:
        ProgramError: If it is neither, or wants to be opened.
    """
    if isinstance(function, type):
        message = f"a function is an object, not the class {function.__name__}"
        raise ProgramError(message, hint=f"pass {function.__name__}()")
    called: Any = getattr(function, "eval", function)
    if not callable(called):
        message = f"a function can be called, or has a method eval; got {function!r}"
        raise ProgramError(message)
    unknown = [one for one in ("open", "close") if called is not function and hasattr(function, one)]
    if unknown:
        message = f"{unknown[0]} of a function of SQL is not called"
        raise ProgramError(message, hint="prepare in __init__, or when eval is called first")
    return called


class _OfSeries:
    """Calls a function with series of pandas for Arrow arrays."""

    def __init__(self, function: Callable[..., Any], kind: pa.DataType) -> None:
        functools.update_wrapper(self, function)  # it takes as many arguments
        self._function = function
        self._kind = kind

    def __call__(self, *arrays: pa.Array) -> pa.Array:
        result = self._function(*(one.to_pandas() for one in arrays))
        return pa.array(result, self._kind, from_pandas=True)


class _PythonFunction:
    """A function of Python with the types that it takes; None for what comes."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[pa.DataType, ...] | None, name: str) -> None:
        self._function = function
        self._inputs = inputs
        # What it is called in Python.
        self.name = name

    def __call__(self, *values: Any) -> Any:
        """Call the function itself; with an expression among the values, return the call as an expression."""
        if any(isinstance(value, Expression) for value in values):
            return call(self, *values)
        return self._function(*values)

    def _called(self, name: str) -> tuple[str, int, int | None]:
        """How it is called by a name, in words, with how many arguments at least, and at most."""
        least, most = argument_counts(self._function)
        if self._inputs is not None:
            least = most = len(self._inputs)
        return f"{name}({', '.join(['x'] * least)}{', ...' if most is None else ''})", least, most

    def _operands(self, arguments: Sequence[Typed]) -> tuple[ColumnExpression, ...]:
        """The arguments of a call, as the types that it takes."""
        if self._inputs is not None:
            arguments = [cast_to(one, kind) for one, kind in zip(arguments, self._inputs, strict=True)]
        return tuple(one.expression for one in arguments)


class UserDefinedFunction(_PythonFunction):
    """A function of Python with its types. Made by `udf`."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: pa.DataType,
        inputs: tuple[pa.DataType, ...] | None,
        *,
        name: str,
        is_arrow: bool,
        is_deterministic: bool = True,
    ) -> None:
        super().__init__(function, inputs, name)
        self._is_deterministic = is_deterministic
        self._kind = kind
        self._is_arrow = is_arrow

    def named(self, name: str) -> Function:
        """Return it as a function of SQL."""
        usage, least, most = self._called(name)
        return Function(name, usage, self._bind_as(name), least, most)

    def _bind_as(self, name: str) -> Callable[..., Typed]:
        def bind(*arguments: Typed) -> Typed:
            operands = self._operands(arguments)
            own = self._function if self._is_deterministic else _another(self._function)
            function = own if arguments else _Constant(own)
            if self._is_arrow:
                # Of no arguments a kernel is given a row of nothing, as it says how many rows there are.
                return Typed(KernelCall(name, _Vectorised(name, function), operands, self._kind), self._kind)
            return Typed(RowCall(name, _RowByRow(name, function, self._kind), operands, self._kind), self._kind)

        return bind


def _another(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same and is another one: what calls it is not taken for what calls the first."""

    @functools.wraps(function, updated=())
    def called(*values: Any) -> Any:
        return function(*values)

    return called


def udtf(
    function: Callable[..., Any] | TableFunction | None = None,
    input_types: Any = None,
    result_types: Any = None,
    deterministic: bool | None = None,
    name: str | None = None,
) -> Any:
    """Make a function of SQL that gives rows; also as a decorator. It is called in FROM: ``LATERAL TABLE(f(a))``.

    Args:
        function: Takes values, and gives rows: a generator, a list, or None for no row. A row is a tuple, or a value
            if there is one column. Equal values must give equal rows. A `TableFunction` is one by its ``eval``.
        input_types: The types it takes, or the type, if it is one; arguments are cast to them. None takes what comes.
        result_types: The types of its columns: one, or several in a list.
        deterministic: Not False: rows that are taken back are made again.
        name: What it is called in errors; None for its own name.

    Raises:
        ProgramError: If a type is unknown.
    """
    if deterministic is False:
        message = "a function that gives rows gives the same ones for equal values"
        raise ProgramError(message, hint="rows that are taken back are made again")
    kinds = _types_of(result_types)
    if kinds is None:
        message = "a function that gives rows has types"
        raise ProgramError(message, hint='say what it gives: udtf(..., result_types=["BIGINT"])')
    if function is None:
        return lambda given: udtf(given, input_types, result_types, deterministic, name)
    return UserDefinedTableFunction(_callable(function), kinds, _types_of(input_types), name or _name_of(function))


class UserDefinedTableFunction(_PythonFunction):
    """A function of Python that gives rows, with its types. Made by `udtf`."""

    def __init__(
        self,
        function: Callable[..., Any],
        kinds: tuple[pa.DataType, ...],
        inputs: tuple[pa.DataType, ...] | None,
        name: str,
    ) -> None:
        super().__init__(function, inputs, name)
        self._kinds = kinds

    def named(self, name: str) -> SqlTableFunction:
        """Return it as a function of SQL."""
        usage, least, most = self._called(name)
        names = tuple(f"f{i}" for i in range(len(self._kinds)))

        def make(arguments: Sequence[Typed], columns: Sequence[str]) -> Expansion:
            fields = pa.schema(list(zip(columns, self._kinds, strict=True)))
            return _RowsOfFunction(name, self._function, self._operands(arguments), fields)

        return SqlTableFunction(name, usage, names, make, least, most)


class _RowsOfFunction(Expansion):
    """Calls a function for each row; what it gives are rows of the types."""

    def __init__(
        self, name: str, function: Callable[..., Any], arguments: Sequence[ColumnExpression], fields: pa.Schema
    ) -> None:
        self._name = name
        self._function = function
        self._arguments = tuple(arguments)
        self.fields = fields

    @property
    def arguments(self) -> Sequence[ColumnExpression]:
        return self._arguments

    def expand(self, batch: pa.RecordBatch) -> tuple[Any, list[pa.Array]]:
        columns = [one.evaluate(batch).to_pylist() for one in self._arguments]
        rows: list[int] = []
        made: list[tuple[Any, ...]] = []
        given: tuple[Any, ...] = ()
        try:
            for i in range(batch.num_rows):
                given = tuple(column[i] for column in columns)
                for row in self._function(*given) or ():
                    rows.append(i)
                    made.append(self._row(row))
        except BaseException as error:
            raise_in_function(error, self._name, record=given)
        calls = [tuple(column[i] for column in columns) for i in rows]
        arrays = [
            _as_column(self._name, [row[i] for row in made], field.type, calls) for i, field in enumerate(self.fields)
        ]
        return np.asarray(rows, np.int64), arrays

    def _row(self, row: Any) -> tuple[Any, ...]:
        num_columns = len(self.fields)
        values = row if isinstance(row, tuple) else (row,)
        if len(values) != num_columns:
            message = f"it gave a row of {len(values)} values; it has {num_columns} columns"
            raise ValueError(message)
        return values

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(map(repr, self._arguments))})"


class _Constant:
    """Calls a function without arguments."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self, *_rows: Any) -> Any:
        return self._function()


class _RowByRow:
    """Calls a function for each row; a failure says for which."""

    def __init__(self, name: str, function: Callable[..., Any], kind: pa.DataType) -> None:
        self._name = name
        self._function = function
        self._kind = kind

    def __call__(self, *values: Value) -> pa.Array:
        rows = list(zip(*(array.to_pylist() for array in as_arrays(values)), strict=True))
        results = []
        row: tuple[Any, ...] = ()
        try:
            for row in rows:
                results.append(self._function(*row))
        except BaseException as error:
            about: dict[str, Any] = {} if isinstance(self._function, _Constant) else {"record": row}
            raise_in_function(error, self._name, **about)
        return _as_column(self._name, results, self._kind, rows)


def _as_column(name: str, values: list[Any], kind: pa.DataType, rows: Sequence[tuple[Any, ...]]) -> pa.Array:
    """What a function has given, as a column.

    Raises:
        UserFunctionError: If a value is not of the type, with the row that it was given for.
    """
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        record = next((row for value, row in zip(values, rows, strict=True) if not _is_of(value, kind)), None)
        message = f"{name} gave a value that is no {sql_name(kind)}: {error}"
        hint = "result_type says what the function gives"
        raise UserFunctionError(message, hint=hint, function=name, record=masked(shown(record))) from error


def _is_of(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


class _Vectorised:
    """Calls a function once for a batch."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function

    def __call__(self, *values: Value) -> Value:
        arrays = as_arrays(values)
        num_rows = len(arrays[0])
        try:
            result = self._function(*arrays)
            if len(result) != num_rows:
                message = f"it gave {len(result)} values for {num_rows} rows"
                raise ValueError(message)
        except BaseException as error:
            raise_in_function(error, self._name, rows=num_rows)
        return result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
