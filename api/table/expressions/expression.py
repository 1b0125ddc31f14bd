"""Expressions of the Table API: pieces of SQL, put together by Python.

``col("price") * 2`` is the text ``(`price` * 2)``. A verb of a table puts such texts into one query, which is parsed
and bound like any other; so names, types, functions and errors are those of SQL, and nothing is said twice.

Invariant: an operand is a name, a literal, a call, or in parentheses. What it means does not depend on its neighbours.

Source: PyFlink's ``pyflink.table.expression`` and ``pyflink.table.expressions``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ProgramError, nearest

from ...arguments.checks import require_instance
from ...sql.functions.catalogue import ABSENT
from ...sql.parsing.sql_types import parse_type, sql_name
from .literals import literal_text
from .rendering import CalledFunction, ChosenColumns, FieldAt, FieldsOf, Rendering, RowsOfTable, WindowPart, quoted
from .sql_calls import Given, Scalar, SqlCalls, word_of

__all__ = ["Expression", "as_expression", "call", "col", "expr", "lit"]


class Expression(SqlCalls):
    """A piece of a query; made by `col`, `lit`, `call`, `expr` and by operators and methods of other expressions.

    Methods and properties are called as in PyFlink. Every function of SQL that has none here is called by `call`.
    """

    __slots__ = ("_is_operand", "_pieces", "_suffix", "column", "names")

    def __init__(
        self,
        *pieces: Any,
        is_operand: bool = True,
        column: str | None = None,
        suffix: str = "",
        names: tuple[str, ...] = (),
    ) -> None:
        self._pieces = pieces
        self._is_operand = is_operand
        self._suffix = suffix
        self.column = column
        # Those that `alias` has given: several of what gives several columns.
        self.names = names

    # -- writing -------------------------------------------------------------------------------------------------------

    def sql(self, rendering: Rendering) -> str:
        """Return the text of the expression, with the name or the direction that it has been given."""
        return self.without_name(rendering) + self._suffix

    def without_name(self, rendering: Rendering) -> str:
        """Return the text of the expression alone."""
        return "".join(_text_of(piece, rendering) for piece in self._pieces)

    @property
    def is_named(self) -> bool:
        """Whether it has been given a name by `alias`."""
        return self._suffix.startswith(" AS ")

    def __repr__(self) -> str:
        return "".join(_shown(piece) for piece in self._pieces) + self._suffix

    def __bool__(self) -> bool:
        message = f"{self!r} is true or false for each row, and has no truth of its own"
        raise ProgramError(message, hint="write & for and, | for or, ~ for not, and no chained comparisons")

    __hash__ = None  # type: ignore[assignment]
    # It has elements for each row, and none of its own: Python would ask `__getitem__` for ever.
    __iter__ = None

    def _binary(self, operator: str, other: Scalar) -> Expression:
        return Expression("(", _operand(self), f" {operator} ", _operand(other), ")")

    def _reversed(self, operator: str, other: Scalar) -> Expression:
        return Expression("(", _operand(other), f" {operator} ", _operand(self), ")")

    def _behind(self, words: str) -> Expression:
        return Expression("(", _operand(self), f" {words})")

    def columns_among(self, names: Sequence[str]) -> list[Expression]:
        """Return the columns of a table that a list of columns stands for; anything else as it is."""
        chosen = self.chosen
        return [self] if chosen is None else [col(name) for name in chosen.among(names)]

    @property
    def chosen(self) -> ChosenColumns | None:
        """The columns of a table, if it is a list of them."""
        first = self._pieces[0]
        return first if isinstance(first, ChosenColumns) else None

    def _require_one(self, what: str) -> None:
        if isinstance(self._pieces[0], (ChosenColumns, FieldsOf)):
            message = f"{self!r} is a list of columns, which has no {what}"
            raise ProgramError(message)

    # -- operators -----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Scalar) -> Expression:
        return self.at(index)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._binary("=", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._binary("<>", other)

    def __lt__(self, other: Scalar) -> Expression:
        return self._binary("<", other)

    def __le__(self, other: Scalar) -> Expression:
        return self._binary("<=", other)

    def __gt__(self, other: Scalar) -> Expression:
        return self._binary(">", other)

    def __ge__(self, other: Scalar) -> Expression:
        return self._binary(">=", other)

    def __add__(self, other: Scalar) -> Expression:
        return self._binary("+", other)

    def __radd__(self, other: Scalar) -> Expression:
        return self._reversed("+", other)

    def __sub__(self, other: Scalar) -> Expression:
        return self._binary("-", other)

    def __rsub__(self, other: Scalar) -> Expression:
        return self._reversed("-", other)

    def __mul__(self, other: Scalar) -> Expression:
        return self._binary("*", other)

    def __rmul__(self, other: Scalar) -> Expression:
        return self._reversed("*", other)

    def __truediv__(self, other: Scalar) -> Expression:
        return self._binary("/", other)

    def __rtruediv__(self, other: Scalar) -> Expression:
        return self._reversed("/", other)

    def __mod__(self, other: Scalar) -> Expression:
        return self._binary("%", other)

    def __rmod__(self, other: Scalar) -> Expression:
        return self._reversed("%", other)

    def __pow__(self, other: Scalar) -> Expression:
        return call("POWER", self, other)

    def __and__(self, other: Scalar) -> Expression:
        return self._binary("AND", other)

    def __rand__(self, other: Scalar) -> Expression:
        return self._reversed("AND", other)

    def __or__(self, other: Scalar) -> Expression:
        return self._binary("OR", other)

    def __ror__(self, other: Scalar) -> Expression:
        return self._reversed("OR", other)

    def __invert__(self) -> Expression:
        return Expression("(NOT ", _operand(self), ")")

    def __neg__(self) -> Expression:
        return Expression("(- ", _operand(self), ")")

    # -- names and types -----------------------------------------------------------------------------------------------

    def alias(self, name: str, *more: str) -> Expression:
        """Return the expression under a name; under several where a function gives several columns."""
        self._require_one("name")
        suffix = f" AS {quoted(name)}"
        return Expression(
            *self._pieces, is_operand=self._is_operand, column=self.column, suffix=suffix, names=(name, *more)
        )

    @property
    def asc(self) -> Expression:
        """Smallest first, in `Table.order_by`."""
        return self._with_suffix(" ASC")

    @property
    def desc(self) -> Expression:
        """Greatest first, in `Table.order_by`."""
        return self._with_suffix(" DESC")

    @property
    def is_descending(self) -> bool:
        """Whether it is an order from the greatest on."""
        return self._suffix == " DESC"

    def _with_suffix(self, suffix: str) -> Expression:
        self._require_one("direction")
        return Expression(*self._pieces, is_operand=self._is_operand, column=self.column, suffix=suffix)

    def cast(self, kind: str | pa.DataType) -> Expression:
        """Return the value as one of another type: ``"BIGINT"``, or an Arrow type. What does not fit is an error."""
        return Expression("CAST(", self, f" AS {_type_text(kind)})")

    def try_cast(self, kind: str | pa.DataType) -> Expression:
        """Return the value as one of another type; NULL where it does not fit."""
        return Expression("TRY_CAST(", self, f" AS {_type_text(kind)})")

    def get(self, name_or_index: str | int) -> Expression:
        """Return a field of a ROW, by its name or by its place from 0."""
        if isinstance(name_or_index, int):
            return Expression(FieldAt(_operand(self), name_or_index))
        require_instance("a field has a name or a place", str, name_or_index)
        return Expression(_operand(self), f".{quoted(name_or_index)}")

    @property
    def flatten(self) -> Expression:
        """All fields of a ROW, as columns: those of ``r`` are ``r$a``, ``r$b``."""
        return Expression(FieldsOf(self), is_operand=False)

    # -- conditions ----------------------------------------------------------------------------------------------------

    @property
    def is_null(self) -> Expression:
        """Whether it is NULL."""
        return self._behind("IS NULL")

    @property
    def is_not_null(self) -> Expression:
        """Whether it is not NULL."""
        return self._behind("IS NOT NULL")

    @property
    def is_true(self) -> Expression:
        """Whether a condition is true; false where it is NULL."""
        return self._behind("IS TRUE")

    @property
    def is_false(self) -> Expression:
        """Whether a condition is false; false where it is NULL."""
        return self._behind("IS FALSE")

    @property
    def is_not_true(self) -> Expression:
        """Whether a condition is false or NULL."""
        return self._behind("IS NOT TRUE")

    @property
    def is_not_false(self) -> Expression:
        """Whether a condition is true or NULL."""
        return self._behind("IS NOT FALSE")

    def between(self, low: Scalar, high: Scalar) -> Expression:
        """Return whether it is between two values, both included."""
        return Expression("(", _operand(self), " BETWEEN ", _operand(low), " AND ", _operand(high), ")")

    def not_between(self, low: Scalar, high: Scalar) -> Expression:
        """Return whether it is not between two values, both included."""
        return ~self.between(low, high)

    def in_(self, *values: Scalar) -> Expression:
        """Return whether it is one of some values, or of those of a table of one column."""
        if not values:
            message = "in_ takes one value at least"
            raise ProgramError(message)
        if len(values) == 1 and hasattr(values[0], "relation_in"):
            return Expression("(", _operand(self), " IN (SELECT * FROM ", RowsOfTable(values[0]), "))")
        return Expression("(", _operand(self), " IN (", *_separated(values), "))")

    def like(self, pattern: Scalar, escape: str | None = None) -> Expression:
        """Return whether a text is as a pattern says: ``%`` any text, ``_`` any character; not so behind ``escape``."""
        end = [] if escape is None else [" ESCAPE ", lit(escape)]
        return Expression("(", _operand(self), " LIKE ", _operand(pattern), *end, ")")

    def similar(self, pattern: Scalar) -> Expression:
        """Return whether a text matches SQL's kind of regular expression."""
        return self._binary("SIMILAR TO", pattern)

    def then(self, if_true: Scalar, if_false: Scalar) -> Expression:
        """Return one of two values, by a condition."""
        return Expression(
            "CASE WHEN ", self, " THEN ", as_expression(if_true), " ELSE ", as_expression(if_false), " END"
        )

    def if_null(self, other: Scalar) -> Expression:
        """Return another value where it is NULL."""
        return call("COALESCE", self, other)

    # -- aggregates ----------------------------------------------------------------------------------------------------

    @property
    def sum0(self) -> Expression:
        """Their sum; 0 where there is none."""
        return _SumOrZero(self.sum)

    @property
    def distinct(self) -> Expression:
        """Each value once, in an aggregate: ``col("user").distinct.count``."""
        return Expression("DISTINCT ", self, is_operand=False)

    def filter(self, condition: Expression) -> Expression:
        """Return an aggregate of the rows for which a condition is true."""
        return Expression(self, " FILTER (WHERE ", condition, ")")

    def over(self, window: Expression) -> Expression:
        """Return an aggregate over a window of `Table.over_window`."""
        return Expression(self, " OVER (", WindowPart(_window_name(window), "OVER"), ")")

    # -- windows -------------------------------------------------------------------------------------------------------

    @property
    def start(self) -> Expression:
        """When a group window begins."""
        return Expression(WindowPart(_window_name(self), "START"))

    @property
    def end(self) -> Expression:
        """When a group window ends, exclusively."""
        return Expression(WindowPart(_window_name(self), "END"))

    @property
    def rowtime(self) -> Expression:
        """The last millisecond of a group window: the event time of its row."""
        return Expression(WindowPart(_window_name(self), "ROWTIME"))

    # -- lengths of time -----------------------------------------------------------------------------------------------

    milliseconds = property(lambda self: _interval(self, "0.001", "SECOND"), doc="A length of time.")
    seconds = property(lambda self: _interval(self, "1", "SECOND"), doc="A length of time.")
    minutes = property(lambda self: _interval(self, "1", "MINUTE"), doc="A length of time.")
    hours = property(lambda self: _interval(self, "1", "HOUR"), doc="A length of time.")
    days = property(lambda self: _interval(self, "1", "DAY"), doc="A length of time.")
    weeks = property(lambda self: _interval(self, "7", "DAY"), doc="A length of time.")
    months = property(lambda self: _interval(self, "1", "MONTH"), doc="A length of time.")
    quarters = property(lambda self: _interval(self, "3", "MONTH"), doc="A length of time.")
    years = property(lambda self: _interval(self, "12", "MONTH"), doc="A length of time.")
    milli = millis = milliseconds
    second, minute, hour, day = seconds, minutes, hours, days
    week, month, quarter, year = weeks, months, quarters, years

    # -- functions -----------------------------------------------------------------------------------------------------

    def called(self, function: str, *arguments: Scalar) -> Expression:
        """Return a call of a function of SQL with the expression in front."""
        return call(function, self, *arguments)

    def written(self, *pieces: Any) -> Expression:
        """Return an expression that is put together of texts of SQL, expressions, and what is `Given`."""
        return Expression(*(as_expression(one.value) if isinstance(one, Given) else one for one in pieces))

    def __getattr__(self, name: str) -> Any:
        if name.upper() in ABSENT:
            message = f"{name} is PyFlink's and not here: {ABSENT[name.upper()]}"
            raise AttributeError(message)
        message = f"an expression has no {name!r}"
        raise AttributeError(f"{message}: {nearest(name, dir(type(self)))}" if name[0] != "_" else message)

    to_date = property(lambda self: self.cast("DATE"), doc="A text as a date.")
    to_time = property(lambda self: self.cast("TIME"), doc="A text as a time of day.")

    def log(self, base: Scalar | None = None) -> Expression:
        """Return the logarithm to a base; without one the natural one."""
        return call("LN", self) if base is None else call("LOG", base, self)

    def floor(self, time_interval_unit: Any = None) -> Expression:
        """Return the number rounded down, or the time rounded down to a unit."""
        return self._rounded("FLOOR", time_interval_unit)

    def ceil(self, time_interval_unit: Any = None) -> Expression:
        """Return the number rounded up, or the time rounded up to a unit."""
        return self._rounded("CEIL", time_interval_unit)

    def _rounded(self, function: str, unit: Any) -> Expression:
        if unit is None:
            return call(function, self)
        return Expression(f"{function}(", self, f" TO {word_of(unit, 'a unit of time')})")

    def trim(self, character: Scalar | None = None) -> Expression:
        """Return a text without blanks at both ends, or without those characters."""
        return self._trimmed("BOTH", character)

    def trim_leading(self, character: Scalar | None = None) -> Expression:
        """Return a text without blanks in front, or without those characters."""
        return self._trimmed("LEADING", character)

    def trim_trailing(self, character: Scalar | None = None) -> Expression:
        """Return a text without blanks behind, or without those characters."""
        return self._trimmed("TRAILING", character)

    def _trimmed(self, where: str, character: Scalar | None) -> Expression:
        return Expression(f"TRIM({where} ", as_expression(" " if character is None else character), " FROM ", self, ")")

    def position(self, text: Scalar) -> Expression:
        """Return where this text is in another; the first character is 1, 0 if it is not there."""
        return Expression("POSITION(", _operand(self), " IN ", _operand(text), ")")

    def extract(self, unit: Any) -> Expression:
        """Return a part of a date or time: ``col("at").extract("HOUR")``."""
        return Expression(f"EXTRACT({word_of(unit, 'a unit of time')} FROM ", self, ")")

    def at(self, index: Scalar) -> Expression:
        """Return an element of an ARRAY, the first one is 1, or the value of a key of a MAP."""
        return Expression(_operand(self), "[", as_expression(index), "]")


class _SumOrZero(Expression):
    """A sum that is 0 where there is nothing; what is said of the aggregate is said of the sum."""

    __slots__ = ("_total",)

    def __init__(self, total: Expression) -> None:
        super().__init__("COALESCE(", total, ", 0)")
        self._total = total

    def filter(self, condition: Expression) -> Expression:
        return _SumOrZero(self._total.filter(condition))

    def over(self, window: Expression) -> Expression:
        return _SumOrZero(self._total.over(window))


def _text_of(piece: Any, rendering: Rendering) -> str:
    if isinstance(piece, str):
        return piece
    if isinstance(piece, WindowPart):
        return rendering.of_part(piece)
    if isinstance(piece, RowsOfTable):
        return rendering.of_table(piece)
    if isinstance(piece, ChosenColumns):
        return rendering.of_columns(piece)
    if isinstance(piece, FieldAt):
        return rendering.of_field(piece)
    if isinstance(piece, FieldsOf):
        return rendering.of_fields(piece)
    if isinstance(piece, CalledFunction):
        return rendering.name_of(piece)
    if piece._suffix:
        message = f"{piece!r} cannot be part of an expression: a name or an order stands outermost"
        raise ProgramError(message)
    text: str = piece.sql(rendering)
    return text


def _shown(piece: Any) -> str:
    if isinstance(piece, WindowPart):
        return f"{piece.window}.{piece.part.lower()}"
    if isinstance(piece, RowsOfTable):
        return "a table"
    if isinstance(piece, ChosenColumns):
        return f"{'all columns but' if piece.is_without else 'columns'} {', '.join(map(str, piece.choices))}"
    if isinstance(piece, (FieldAt, FieldsOf)):
        return f"{piece.row!r}.{piece.place if isinstance(piece, FieldAt) else '*'}"
    return piece.name if isinstance(piece, CalledFunction) else piece if isinstance(piece, str) else repr(piece)


def as_expression(value: Scalar) -> Expression:
    """Return an expression itself, anything else as a literal."""
    return value if isinstance(value, Expression) else lit(value)


def _operand(value: Scalar) -> Any:
    expression = as_expression(value)
    return expression if expression._is_operand else Expression("(", expression, ")")


def _separated(values: Any) -> list[Any]:
    pieces: list[Any] = []
    for value in values:
        pieces += [", ", as_expression(value)]
    return pieces[1:]


def _window_name(window: Expression) -> str:
    if window.column is None:
        message = f"a window is named by col(...); got {window!r}"
        raise ProgramError(message)
    return window.column


def _interval(number: Expression, factor: str, unit: str) -> Expression:
    text = number.without_name(Rendering())
    try:
        amount = Decimal(text.strip("()").replace(" ", "")) * Decimal(factor)
    except ArithmeticError:
        message = f"a length of time is a literal number of units, such as lit(10).{unit.lower()}s; got {number!r}"
        raise ProgramError(message) from None
    return Expression(f"INTERVAL '{amount:f}' {unit}")


_WITH_LENGTH = re.compile(r"\s*(VAR)?CHAR\s*\(\s*\d+\s*\)", re.IGNORECASE)
"""Types of texts whose length says what is cut off, which Arrow's type does not tell."""


def _type_text(kind: str | pa.DataType) -> str:
    text = sql_name(parse_type(kind))
    length = _WITH_LENGTH.match(kind) if isinstance(kind, str) else None
    return text if length is None else length.group()


def col(name: str) -> Expression:
    """Return a column by its name; also the alias of a window."""
    require_instance("a column is named by a text", str, name)
    return Expression(quoted(name), column=name)


def expr(text: str) -> Expression:
    """Return an expression of SQL: ``expr("price * 2")``."""
    return Expression(text, is_operand=False)


def call(function: Any, *arguments: Scalar) -> Expression:
    """Return a call of a function of SQL by its name, or of one of Python that `udf` has made."""
    if isinstance(function, str):
        if not function.replace("_", "").isalnum():
            message = f"a function is called by its name; got {function!r}"
            raise ProgramError(message)
        return Expression(f"{function}(", *_separated(arguments), ")")
    if not hasattr(function, "named"):
        message = f"call takes the name of a function, or one made by udf(...); got {function!r}"
        raise ProgramError(message)
    return Expression(CalledFunction(function.name, function), "(", *_separated(arguments), ")")


def lit(value: Any, kind: str | pa.DataType | None = None) -> Expression:
    """Return a literal.

    Args:
        value: None, a bool, int, float, Decimal, str, bytes, date, datetime or timedelta.
        kind: Its type, if it is not the one that SQL gives it.

    Raises:
        ProgramError: If it cannot be one.
    """
    if kind is not None:
        return lit(value).cast(kind)
    text = literal_text(value)
    return Expression(text, is_operand=not text.startswith("-"))
