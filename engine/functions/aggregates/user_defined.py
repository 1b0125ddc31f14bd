"""Aggregates whose accumulators a function of Python keeps.

The function has the methods of PyFlink's ``AggregateFunction``: ``create_accumulator()``, ``accumulate(accumulator,
*values)``, ``get_value(accumulator)``, and ``retract`` and ``merge`` where they are needed. Accumulators are changed in
place. Between two calls they are a column (`UserAggregate.encoded`): what is kept, written and counted as memory is
data, and no two places ever share an object.

With ``merge`` partial results are accumulators. Without it they are the rows themselves, as lists, and the function is
called when the result is asked for; so is a function of columns (`ColumnFunction`), which takes all rows of a group at
once. Rows are structs of the arguments; one that is null was left out by a FILTER.

A `UserTableAggregate` gives rows, as a list: its function has ``emit_value(accumulator)`` in place of ``get_value``.

Source: PyFlink's ``AggregateFunction``, ``TableAggregateFunction``, ``pyflink.table.udf.udaf``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import UserFunctionError
from headrace.state.values.packed import decode_packed, encode_packed

from ...columns.expressions import Expression
from ...columns.grouping import Groups
from ..user_function import raise_in_function
from .contract import Part
from .statistics import Collected

__all__ = ["ColumnFunction", "UserAggregate", "UserTableAggregate"]

Integers = npt.NDArray[np.int64]


class _OfRows(Collected):
    """What is computed of lists of rows.

    Args:
        label: The function's name, for people.
        argument: The rows: a struct of the arguments.
        rows: Its type.
        num_arguments: How many of its fields the function takes.
        kind: The type of the result.
    """

    name = "user_defined"

    def __init__(
        self, label: str, argument: Expression, rows: pa.DataType, num_arguments: int, kind: pa.DataType
    ) -> None:
        super().__init__(argument)
        self.label = label
        self.kind = kind
        self._rows = rows
        self._num_arguments = num_arguments

    def __repr__(self) -> str:
        return f"{self.label}({self.argument!r})"

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        lists = parts[0]
        offsets = lists.offsets.to_numpy()
        values = self._of_lists(lists.values.slice(0, int(offsets[-1])), offsets)
        return self._results(values)

    def result(self, accumulator: tuple[tuple[Any, ...], ...]) -> Any:
        values = pa.array(super().result(accumulator), self._rows)
        return self._of_lists(values, np.array([0, len(values)], np.int64))[0]

    def _of_lists(self, values: pa.StructArray, offsets: Integers) -> list[Any]:
        """The values of lists of rows, which lie one behind the other."""
        raise NotImplementedError

    def _results(self, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, self.kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            message = f"{self.label} gave a value that is no {self.kind}: {error}"
            raise UserFunctionError(message, hint="result_type says what the function gives") from error

    def _arguments(self, values: pa.StructArray) -> list[pa.Array]:
        return values.flatten()[: self._num_arguments]

    def _fail(self, error: BaseException, method: str | None = None, **about: Any) -> NoReturn:
        """Raise what the function has raised, with what it was called with."""
        raise_in_function(error, self.label if method is None else f"{self.label}.{method}", **about)


class ColumnFunction(_OfRows):
    """A function that takes the columns of a group's rows, and gives a value.

    Args:
        label: The function's name, for people.
        function: Called with what ``given`` makes of the arguments' columns.
        given: Makes of an Arrow array what the function takes.
        argument: The rows: a struct of the arguments.
        rows: Its type.
        num_arguments: How many of its fields the function takes.
        kind: The type of the result.
    """

    def __init__(
        self,
        label: str,
        function: Callable[..., Any],
        given: Callable[[pa.Array], Any],
        argument: Expression,
        rows: pa.DataType,
        num_arguments: int,
        kind: pa.DataType,
    ) -> None:
        super().__init__(label, argument, rows, num_arguments, kind)
        self._function = function
        self._given = given

    def _of_lists(self, values: pa.StructArray, offsets: Integers) -> list[Any]:
        columns = self._arguments(values)
        made: list[Any] = []
        low = high = 0
        try:
            for low, high in pairwise(offsets.tolist()):
                made.append(_value(self._function(*(self._given(column.slice(low, high - low)) for column in columns))))
        except BaseException as error:
            self._fail(error, rows=high - low)
        return made


class UserAggregate(_OfRows):
    """A function that keeps an accumulator.

    Args:
        label: Its name, for people.
        function: Has PyFlink's methods.
        argument: The rows: a struct of the arguments.
        rows: Its type.
        num_arguments: How many of its fields the function takes.
        kind: The type of the result.
        accumulator_kind: How accumulators are kept; None for any Python value, as bytes.
    """

    def __init__(
        self,
        label: str,
        function: Any,
        argument: Expression,
        rows: pa.DataType,
        num_arguments: int,
        kind: pa.DataType,
        accumulator_kind: pa.DataType | None,
    ) -> None:
        super().__init__(label, argument, rows, num_arguments, kind)
        self._function = function
        self._declared = accumulator_kind
        self.accumulator_kind = accumulator_kind or pa.binary()
        if self.can_merge:
            self.parts = (Part("accumulator", self._reduced, self.merged),)

    @property
    def can_take_back(self) -> bool:
        """Whether the function takes rows away again."""
        return callable(getattr(self._function, "retract", None))

    @property
    def can_merge(self) -> bool:
        """Whether the function makes one accumulator of several."""
        return callable(getattr(self._function, "merge", None))

    # -- accumulators --------------------------------------------------------------------------------------------------

    def created(self, count: int) -> list[Any]:
        """Return accumulators of no rows."""
        try:
            return [self._function.create_accumulator() for _ in range(count)]
        except BaseException as error:
            self._fail(error, "create_accumulator")

    def fold(self, accumulators: list[Any], codes: Integers, values: pa.StructArray, signs: Integers | None) -> None:
        """Add rows to accumulators, and take others away.

        Args:
            accumulators: Changed in place.
            codes: For each row, the place of its accumulator.
            values: The rows; those that are null are passed over.
            signs: -1 for rows that are taken away; None if all are added.

        Raises:
            UserFunctionError: If the function fails, or gives an accumulator in place of changing it.
        """
        if values.null_count:
            is_there = np.asarray(values.is_valid())
            codes, values = codes[is_there], values.filter(pa.array(is_there))
            signs = None if signs is None else signs[is_there]
        columns = [column.to_pylist() for column in self._arguments(values)] or [[]]
        rows = zip(*columns, strict=True) if columns[0] else iter([()] * len(values))
        accumulate: Any = self._function.accumulate
        retract: Any = getattr(self._function, "retract", None)
        method, row = "accumulate", None
        try:
            if signs is None:
                for code, row in zip(codes.tolist(), rows, strict=True):
                    _require_in_place(accumulate(accumulators[code], *row), accumulators[code])
                return
            for code, sign, row in zip(codes.tolist(), signs.tolist(), rows, strict=True):
                method, call = ("accumulate", accumulate) if sign > 0 else ("retract", retract)
                _require_in_place(call(accumulators[code], *row), accumulators[code])
        except BaseException as error:
            self._fail(error, method, record=row)

    def values_of(self, accumulators: Sequence[Any]) -> list[Any]:
        """Return what accumulators come to."""
        try:
            return [self._function.get_value(one) for one in accumulators]
        except BaseException as error:
            self._fail(error, "get_value")

    def results_of(self, accumulators: Sequence[Any]) -> pa.Array:
        """Return what accumulators come to, as a column; null where there is None in place of an accumulator."""
        there = [one for one in accumulators if one is not None]
        values = iter(self.values_of(there))
        return self._results([None if one is None else next(values) for one in accumulators])

    def encoded(self, accumulators: Sequence[Any]) -> pa.Array:
        """Return accumulators as a column."""
        if self._declared is None:
            return pa.array([encode_packed(one) for one in accumulators], pa.binary())
        kind = self._declared
        is_map = pa.types.is_map(kind)
        try:
            plain = [list(one.items()) if is_map else _plain(one, kind) for one in accumulators]
            return pa.array(plain, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            message = f"{self.label}: an accumulator is no {kind}: {error}"
            raise UserFunctionError(
                message, hint="accumulator_type says what is kept; without it anything is"
            ) from error

    def decoded(self, column: pa.Array) -> list[Any]:
        """Return the accumulators of a column; None for null."""
        if self._declared is None:
            return [None if data is None else decode_packed(data) for data in column.to_pylist()]
        values = column.to_pylist()
        if pa.types.is_map(self._declared):
            return [None if one is None else dict(one) for one in values]
        if pa.types.is_struct(self._declared) and not isinstance(self.created(1)[0], dict):
            return [None if one is None else list(one.values()) for one in values]
        return values

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _reduced(self, groups: Groups, column: pa.Array) -> pa.Array:
        accumulators = self.created(len(groups))
        self.fold(accumulators, np.searchsorted(groups.occupied, groups.codes), column, None)
        return self.encoded(accumulators)

    def merged(self, groups: Groups, column: pa.Array) -> pa.Array:
        """Return one accumulator for each group, of a column of several."""
        several: list[list[Any]] = [[] for _ in range(len(groups))]
        places = np.searchsorted(groups.occupied, groups.codes).tolist()
        for place, accumulator in zip(places, self.decoded(column), strict=True):
            several[place].append(accumulator)
        made = self.created(len(several))
        try:
            for one, others in zip(made, several, strict=True):
                _require_in_place(self._function.merge(one, others), one)
        except BaseException as error:
            self._fail(error, "merge")
        return self.encoded(made)

    def finalise(self, parts: list[pa.Array]) -> pa.Array:
        if self.parts[0].suffix != "accumulator":
            return super().finalise(parts)
        return self.results_of(self.decoded(parts[0]))

    def _of_lists(self, values: pa.StructArray, offsets: Integers) -> list[Any]:
        accumulators = self.created(len(offsets) - 1)
        self.fold(accumulators, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), values, None)
        return self.values_of(accumulators)


class UserTableAggregate(UserAggregate):
    """A function that keeps an accumulator, and gives rows of it: a list of structs, whose fields are their columns."""

    def values_of(self, accumulators: Sequence[Any]) -> list[Any]:
        """Return the rows that accumulators come to."""
        try:
            return [[self._row(row) for row in self._function.emit_value(one) or ()] for one in accumulators]
        except BaseException as error:
            self._fail(error, "emit_value")

    def _row(self, row: Any) -> tuple[Any, ...]:
        fields = self.kind.value_type
        if isinstance(row, dict) and row.keys() == {one.name for one in fields}:
            return tuple(row[one.name] for one in fields)
        num_columns = fields.num_fields
        values = row if isinstance(row, tuple) else (row,)
        if len(values) != num_columns:
            message = f"it gave a row of {len(values)} values; it has {num_columns} columns"
            raise ValueError(message)
        return values


def _plain(accumulator: Any, kind: pa.DataType) -> Any:
    return tuple(accumulator) if pa.types.is_struct(kind) and not isinstance(accumulator, dict) else accumulator


def _require_in_place(given: Any, accumulator: Any) -> None:
    if given is not None and given is not accumulator:
        message = f"it gave {given!r}; it has to change the accumulator in place, and give nothing"
        raise TypeError(message)


def _value(given: Any) -> Any:
    """A value of Arrow or numpy as one of Python."""
    if isinstance(given, pa.Scalar):
        return given.as_py()
    return given.item() if isinstance(given, np.generic) else given
