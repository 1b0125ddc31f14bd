"""Functions of Python in SQL: of values, row by row, or of Arrow arrays.

Source: PyFlink's ``udf``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.engine.columns.kernels import Value
from headrace.engine.errors import ProgramError

from ..sql.functions.coercion import cast_to
from ..sql.functions.contract import Function, KernelCall, Typed
from ..sql.parsing.types import parse_type

__all__ = ["UserDefinedFunction", "udf"]


def udf(
    function: Callable[..., Any] | None = None,
    *,
    result_type: Any,
    input_types: Sequence[Any] | None = None,
    func_type: str = "general",
) -> Any:
    """Make a function of SQL of one of Python; also as a decorator.

    Args:
        function: Takes values and gives one; None is SQL's null, on both sides. With ``func_type="arrow"`` it takes
            Arrow arrays and gives one of the same length.
        result_type: The type of what it gives: as in SQL (``"BIGINT"``, ``"ARRAY<STRING>"``) or an Arrow type.
        input_types: The types it takes; arguments are cast to them. None takes what comes.
        func_type: ``general`` (row by row) or ``arrow``.

    Raises:
        ProgramError: If it is no function, or a type is unknown.
    """
    if function is None:
        return lambda given: udf(given, result_type=result_type, input_types=input_types, func_type=func_type)
    if func_type not in ("general", "arrow"):
        message = f"func_type is general or arrow; got {func_type!r}"
        raise ProgramError(message)
    inputs = None if input_types is None else tuple(map(parse_type, input_types))
    return UserDefinedFunction(function, parse_type(result_type), inputs, is_arrow=func_type == "arrow")


class UserDefinedFunction:
    """A function of Python with its types. Made by `udf`."""

    def __init__(
        self, function: Callable[..., Any], kind: pa.DataType, inputs: tuple[pa.DataType, ...] | None, *, is_arrow: bool
    ) -> None:
        self._function = function
        self._kind = kind
        self._inputs = inputs
        self._is_arrow = is_arrow

    def __call__(self, *values: Any) -> Any:
        """Call the function itself."""
        return self._function(*values)

    def named(self, name: str) -> Function:
        """Return it as a function of SQL."""
        least, most = _counts(self._function)
        if self._inputs is not None:
            least = most = len(self._inputs)
        usage = f"{name}({', '.join(['x'] * least)}{', ...' if most is None else ''})"
        return Function(name, usage, self._bind_as(name), least, most)

    def _bind_as(self, name: str) -> Callable[..., Typed]:
        def bind(*arguments: Typed) -> Typed:
            given = arguments if self._inputs is None else tuple(
                cast_to(one, kind) for one, kind in zip(arguments, self._inputs, strict=True)
            )  # fmt: skip
            # Of no arguments a kernel is given a row of nothing, as it says how many rows there are.
            function = self._function if arguments else _Constant(self._function)
            kernel = _Vectorised(function) if self._is_arrow else _EachRow(function, self._kind)
            return Typed(KernelCall(name, kernel, tuple(one.expression for one in given), self._kind), self._kind)

        return bind


def _counts(function: Callable[..., Any]) -> tuple[int, int | None]:
    """How many arguments a function takes, at least and at most."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, None
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    least = sum(one.default is one.empty for one in positional)
    has_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return least, None if has_any else len(positional)


class _Constant:
    """Calls a function without arguments."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __call__(self, _rows: Any) -> Any:
        return self._function()


class _EachRow:
    """Calls a function for each row; what it gives must be of the type."""

    def __init__(self, function: Callable[..., Any], kind: pa.DataType) -> None:
        self._function = function
        self._kind = kind

    def __call__(self, *values: Value) -> pa.Array:
        num_rows = max(len(value) for value in values if not isinstance(value, pa.Scalar))
        columns = [
            [value.as_py()] * num_rows if isinstance(value, pa.Scalar) else value.to_pylist() for value in values
        ]
        return pa.array([self._function(*row) for row in zip(*columns, strict=True)], self._kind)


class _Vectorised:
    """Calls a function once for a batch."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *values: Value) -> Value:
        num_rows = max(len(value) for value in values if not isinstance(value, pa.Scalar))
        arrays = [pa.repeat(value, num_rows) if isinstance(value, pa.Scalar) else value for value in values]
        result = self._function(*arrays)
        if len(result) != num_rows:
            message = f"it gave {len(result)} values for {num_rows} rows"
            raise ValueError(message)
        return result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
