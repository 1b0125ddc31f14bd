"""Functions of Python in SQL: of values, row by row, or of Arrow arrays; and functions that give rows.

Source: PyFlink's ``udf``, ``udtf``.
"""

from __future__ import annotations

import functools
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
from ..sql.functions.contract import Function, KernelCall, RowCall, TableFunction, Typed, as_arrays
from ..sql.parsing.sql_types import parse_type, sql_name
from .aggregate_functions import argument_counts
from .expressions.expression import Expression, call

__all__ = ["UserDefinedFunction", "UserDefinedTableFunction", "udf", "udtf"]


def udf(
    function: Callable[..., Any] | None = None,
    *,
    result_type: Any,
    input_types: Sequence[Any] | None = None,
    func_type: str = "general",
    deterministic: bool = True,
) -> Any:
    """Make a function of SQL of one of Python; also as a decorator.

    Args:
        function: Takes values and gives one; None is SQL's null, on both sides. It is called for every row, though its
            arguments are the same, or there are none. With ``func_type="arrow"`` it takes Arrow arrays and gives one of
            the same length; without arguments it gives one value, which all rows of a batch have.
        result_type: The type of what it gives: as in SQL (``"BIGINT"``, ``"ARRAY<STRING>"``) or an Arrow type.
        input_types: The types it takes; arguments are cast to them. None takes what comes.
        func_type: ``general`` (row by row) or ``arrow``.
        deterministic: Whether equal values give equal results. Then what is written twice may be computed once; if not,
            each call in a text is made for itself.

    Raises:
        ProgramError: If it is no function, or a type is unknown.
    """
    if function is None:
        return functools.partial(
            udf, result_type=result_type, input_types=input_types, func_type=func_type, deterministic=deterministic
        )
    if func_type not in ("general", "arrow"):
        message = f"func_type is general or arrow; got {func_type!r}"
        raise ProgramError(message)
    inputs = None if input_types is None else tuple(map(parse_type, input_types))
    is_arrow = func_type == "arrow"
    return UserDefinedFunction(
        function, parse_type(result_type), inputs, is_arrow=is_arrow, is_deterministic=deterministic
    )


class _PythonFunction:
    """A function of Python with the types that it takes; None for what comes."""

    def __init__(self, function: Callable[..., Any], inputs: tuple[pa.DataType, ...] | None) -> None:
        self._function = function
        self._inputs = inputs

    @property
    def name(self) -> str:
        """What it is called in Python."""
        return getattr(self._function, "__name__", type(self._function).__name__)

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
        is_arrow: bool,
        is_deterministic: bool = True,
    ) -> None:
        super().__init__(function, inputs)
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
    function: Callable[..., Any] | None = None, *, result_types: Any, input_types: Sequence[Any] | None = None
) -> Any:
    """Make a function of SQL that gives rows; also as a decorator. It is called in FROM: ``LATERAL TABLE(f(a))``.

    Args:
        function: Takes values, and gives rows: a generator, a list, or None for no row. A row is a tuple, or a value
            if there is one column. Equal values must give equal rows.
        result_types: The types of its columns: one, or several in a list.
        input_types: The types it takes; arguments are cast to them. None takes what comes.

    Raises:
        ProgramError: If a type is unknown.
    """
    if function is None:
        return lambda given: udtf(given, result_types=result_types, input_types=input_types)
    types = result_types if isinstance(result_types, (list, tuple)) else [result_types]
    inputs = None if input_types is None else tuple(map(parse_type, input_types))
    return UserDefinedTableFunction(function, tuple(map(parse_type, types)), inputs)


class UserDefinedTableFunction(_PythonFunction):
    """A function of Python that gives rows, with its types. Made by `udtf`."""

    def __init__(
        self, function: Callable[..., Any], kinds: tuple[pa.DataType, ...], inputs: tuple[pa.DataType, ...] | None
    ) -> None:
        super().__init__(function, inputs)
        self._kinds = kinds

    def named(self, name: str) -> TableFunction:
        """Return it as a function of SQL."""
        usage, least, most = self._called(name)
        names = tuple(f"f{i}" for i in range(len(self._kinds)))

        def make(arguments: Sequence[Typed], columns: Sequence[str]) -> Expansion:
            fields = pa.schema(list(zip(columns, self._kinds, strict=True)))
            return _RowsOfFunction(name, self._function, self._operands(arguments), fields)

        return TableFunction(name, usage, names, make, least, most)


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
