"""Expressions over columns: trees that a program writes with operators and the engine evaluates with Arrow kernels.

``col("price") * 2 > lit(10)`` builds a tree; ``evaluate`` runs it over a whole record batch, never over single records.
The tree is plain data (names of kernels, constants), so it can be pickled, compared by `Expression.structure`, printed
and searched for the columns it reads.

Meaning: values are SQL's. Null in gives null out, ``&`` and ``|`` follow Kleene's three-valued logic, a condition that
is null counts as not fulfilled. Integer arithmetic is 64 bits wide and fails on overflow instead of wrapping; ``/`` is
true division, ``//`` and ``%`` round towards minus infinity as in Python; division of integers by zero fails, that of
floats follows IEEE 754. Decimals have the types that Spark and Flink give them
(`headrace.engine.columns.decimal_kernels`). The branches of ``when`` see only the records that reach them, so a
condition can guard a division; all other operands, those of ``&``, ``|`` and ``coalesce`` too, are computed for all
records. Times are UTC; where a time is asked of an integer column, it is read as epoch milliseconds.

Invariant: evaluating neither changes the batch nor depends on anything but the batch: the same rows give the same
values however they are cut into batches.

Source: SQL:2016 for null handling and CASE; Flink's Table API expressions for the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headrace.state.errors import ProgramError, TypeMismatchError, nearest
from headrace.state.values.types import ATOMS

from .decimal_kernels import as_literal
from .kernel_calls import COSTLY, NARROWING, call_kernel, call_text, first_line, without_values
from .kernels import TIME_UNITS, Value

__all__ = [
    "Expression",
    "coalesce",
    "col",
    "concat",
    "expression_of",
    "lit",
]


class Expression(ABC):
    """A value computed from the columns of a record.

    Contract: immutable; subclasses define ``_evaluate``, ``structure``, ``children`` and ``__repr__`` (*trusted*).
    """

    __slots__ = ()

    # -- what subclasses define ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def structure(self) -> tuple[Any, ...]:
        """The tree as nested tuples; two expressions mean the same computation if their structures are equal."""

    @property
    def children(self) -> tuple[Expression, ...]:
        """The operands."""
        return ()

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        """Return the same with other operands, as many."""
        assert not children
        return self

    @property
    def is_costly(self) -> bool:
        """Whether it costs more to compute it twice, apart from its operands, than to keep it as a column."""
        return False

    @property
    def output_name(self) -> str | None:
        """The name a result column gets by default: the column's or alias's own; None for computed values."""
        return None

    @abstractmethod
    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        """Compute the value of every record, or the one of all."""

    # -- use by operators ----------------------------------------------------------------------------------------------

    def evaluate(self, batch: pa.RecordBatch) -> pa.Array:
        """Compute the value of every record.

        Args:
            batch: The records as columns.

        Returns:
            An array with one element per record of the batch, in order.

        Raises:
            ProgramError: If a column is not there. TypeMismatchError: If an operation does not exist for the types of
            its operands. UserFunctionError: If a value is outside an operation's domain: overflow, division by zero,
            text that is no number.
        """
        value = self._evaluate(batch)
        if isinstance(value, pa.Scalar):
            if not value.is_valid:
                return pa.nulls(batch.num_rows, value.type)
            return pa.repeat(value, batch.num_rows)
        return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value

    def output_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the type of the values, for records of a schema; found by evaluating no records.

        Raises:
            ProgramError: If a column is not there.
            TypeMismatchError: If an operation does not exist for the types of its operands.
        """
        return self.evaluate(_empty_batch(schema)).type

    def columns_used(self) -> frozenset[str]:
        """Return the names of all columns the expression reads."""
        names: frozenset[str] = frozenset()
        for child in self.children:
            names |= child.columns_used()
        return names

    def is_same_as(self, other: Expression) -> bool:
        """Return whether both are the same tree (``==`` builds a comparison instead)."""
        return self.structure == other.structure

    def __hash__(self) -> int:
        return hash(self.structure)

    def __bool__(self) -> bool:
        message = f"the truth of expression {self!r} is not known before it is evaluated"
        raise ProgramError(
            message, hint="use & | ~ instead of and, or, not, and .between() instead of chained comparisons"
        )

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Expression:
        return Call("add", (self, expression_of(other)))

    def __radd__(self, other: Any) -> Expression:
        return Call("add", (expression_of(other), self))

    def __sub__(self, other: Any) -> Expression:
        return Call("subtract", (self, expression_of(other)))

    def __rsub__(self, other: Any) -> Expression:
        return Call("subtract", (expression_of(other), self))

    def __mul__(self, other: Any) -> Expression:
        return Call("multiply", (self, expression_of(other)))

    def __rmul__(self, other: Any) -> Expression:
        return Call("multiply", (expression_of(other), self))

    def __truediv__(self, other: Any) -> Expression:
        return Call("divide", (self, expression_of(other)))

    def __rtruediv__(self, other: Any) -> Expression:
        return Call("divide", (expression_of(other), self))

    def __floordiv__(self, other: Any) -> Expression:
        return Call("floor_divide", (self, expression_of(other)))

    def __rfloordiv__(self, other: Any) -> Expression:
        return Call("floor_divide", (expression_of(other), self))

    def __mod__(self, other: Any) -> Expression:
        return Call("modulo", (self, expression_of(other)))

    def __rmod__(self, other: Any) -> Expression:
        return Call("modulo", (expression_of(other), self))

    def __pow__(self, other: Any) -> Expression:
        return Call("power", (self, expression_of(other)))

    def __rpow__(self, other: Any) -> Expression:
        return Call("power", (expression_of(other), self))

    def __neg__(self) -> Expression:
        return Call("negate", (self,))

    def abs(self) -> Expression:
        """Return the absolute value."""
        return Call("abs", (self,))

    def round(self, num_digits: int = 0) -> Expression:
        """Return the nearest number with ``num_digits`` decimal places; halves go away from zero, as in SQL."""
        return Call("round", (self,), (("num_digits", num_digits),))

    def floor(self) -> Expression:
        """Return the largest whole number not above the value; the type stays."""
        return Call("floor", (self,))

    def ceil(self) -> Expression:
        """Return the smallest whole number not below the value; the type stays."""
        return Call("ceil", (self,))

    # -- comparison and logic ------------------------------------------------------------------------------------------

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return Call("equal", (self, expression_of(other)))

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return Call("not_equal", (self, expression_of(other)))

    def __lt__(self, other: Any) -> Expression:
        return Call("less", (self, expression_of(other)))

    def __le__(self, other: Any) -> Expression:
        return Call("less_equal", (self, expression_of(other)))

    def __gt__(self, other: Any) -> Expression:
        return Call("greater", (self, expression_of(other)))

    def __ge__(self, other: Any) -> Expression:
        return Call("greater_equal", (self, expression_of(other)))

    def __and__(self, other: Any) -> Expression:
        return Call("and", (self, expression_of(other)))

    def __rand__(self, other: Any) -> Expression:
        return Call("and", (expression_of(other), self))

    def __or__(self, other: Any) -> Expression:
        return Call("or", (self, expression_of(other)))

    def __ror__(self, other: Any) -> Expression:
        return Call("or", (expression_of(other), self))

    def __invert__(self) -> Expression:
        return Call("not", (self,))

    def between(self, low: Any, high: Any) -> Expression:
        """Return whether the value lies in [low, high]."""
        return (self >= low) & (self <= high)

    def isin(self, values: Iterable[Any]) -> Expression:
        """Return whether the value is one of ``values``; as in SQL null for null, and not false but null if null is
        one.
        """
        return Call("isin", (self,), (("values", tuple(values)),))

    def is_null(self) -> Expression:
        """Return whether there is no value; never null itself."""
        return Call("is_null", (self,))

    def is_not_null(self) -> Expression:
        """Return whether there is a value; never null itself."""
        return Call("is_not_null", (self,))

    def fill_null(self, value: Any) -> Expression:
        """Return the value, or ``value`` where there is none."""
        return coalesce(self, value)

    # -- structure and type --------------------------------------------------------------------------------------------

    def alias(self, name: str) -> Expression:
        """Return the same value under another name."""
        return _Alias(self, name)

    def field(self, name: str) -> Expression:
        """Return one field of a struct; null where the struct is null."""
        return Call("field", (self,), (("name", name),))

    def cast(self, to: pa.DataType | str | type) -> Expression:
        """Return the value in another type; what does not fit fails.

        As in SQL, an integer loses the digits after the point and a time what is finer than its unit; a decimal is
        rounded to its scale, halves away from zero, and a float stands there for its shortest decimal text.

        Args:
            to: An Arrow type, its name (``"int64"``, ``"string"``, ``"timestamp[ms]"``) or one of int, float, str,
            bool, bytes.
        """
        return Call("cast", (self,), (("to", _data_type(to)),))

    # -- text ----------------------------------------------------------------------------------------------------------

    def lower(self) -> Expression:
        """Return the text in lower case."""
        return Call("lower", (self,))

    def upper(self) -> Expression:
        """Return the text in upper case."""
        return Call("upper", (self,))

    def length(self) -> Expression:
        """Return the number of characters, as int64."""
        return Call("length", (self,))

    def contains(self, text: str) -> Expression:
        """Return whether ``text`` occurs in the value."""
        return Call("contains", (self,), (("text", text),))

    def starts_with(self, text: str) -> Expression:
        """Return whether the value begins with ``text``."""
        return Call("starts_with", (self,), (("text", text),))

    def ends_with(self, text: str) -> Expression:
        """Return whether the value ends with ``text``."""
        return Call("ends_with", (self,), (("text", text),))

    def like(self, pattern: str) -> Expression:
        r"""Return whether the value matches an SQL pattern: ``%`` any text, ``_`` any character, ``\`` escapes."""
        return Call("like", (self,), (("pattern", pattern),))

    def replace(self, text: str, replacement: str) -> Expression:
        """Return the value with every occurrence of ``text`` replaced."""
        return Call("replace", (self,), (("text", text), ("replacement", replacement)))

    def substr(self, start: int, length: int | None = None) -> Expression:
        """At most ``length`` characters from index ``start`` on, from 0; a negative start counts from the end."""
        return Call("substr", (self,), (("start", start), ("length", length)))

    def concat(self, *others: Any) -> Expression:
        """Return the texts one after the other; null if one of them is."""
        return concat(self, *others)

    def regexp_extract(self, pattern: str, group: int = 0) -> Expression:
        """Return the part of the text that a group of a regular expression (RE2) matched.

        Args:
            pattern: Searched for anywhere in the text.
            group: 0 for the whole match, else the number of a parenthesis from 1.

        Returns:
            The matched text; null where the pattern does not match.
        """
        return Call("regexp_extract", (self,), (("pattern", pattern), ("group", group)))

    # -- time ----------------------------------------------------------------------------------------------------------

    def year(self) -> Expression:
        """Return the year."""
        return Call("year", (self,))

    def month(self) -> Expression:
        """Return the month, 1 to 12."""
        return Call("month", (self,))

    def day(self) -> Expression:
        """Return the day of the month, 1 to 31."""
        return Call("day", (self,))

    def hour(self) -> Expression:
        """Return the hour, 0 to 23."""
        return Call("hour", (self,))

    def minute(self) -> Expression:
        """Return the minute, 0 to 59."""
        return Call("minute", (self,))

    def second(self) -> Expression:
        """Return the whole second, 0 to 59."""
        return Call("second", (self,))

    def day_of_week(self) -> Expression:
        """Return the day of the week by ISO 8601: 1 is Monday, 7 is Sunday."""
        return Call("day_of_week", (self,))

    def truncate(self, unit: str) -> Expression:
        """Return the start of the ``unit`` (year, quarter, month, week, day ... millisecond) of the time; the type
        stays.
        """
        if unit not in TIME_UNITS:
            message = f"a time can be truncated to one of {', '.join(TIME_UNITS)}; got {unit!r}"
            raise ProgramError(message)
        return Call("truncate", (self,), (("unit", unit),))

    def to_epoch_ms(self) -> Expression:
        """Return the time as int64 milliseconds since 1970 UTC, rounded towards the past."""
        return Call("to_epoch_ms", (self,))

    def to_timestamp(self) -> Expression:
        """Return an integer of epoch milliseconds as ``timestamp[ms]``; other times in that type."""
        return Call("to_timestamp", (self,))


class _Column(Expression):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def structure(self) -> tuple[Any, ...]:
        return ("col", self.name)

    @property
    def output_name(self) -> str | None:
        return self.name

    def columns_used(self) -> frozenset[str]:
        return frozenset((self.name,))

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        index = batch.schema.get_field_index(self.name)
        if index < 0:
            names = batch.schema.names
            rule = "is there more than once" if self.name in names else "does not exist"
            message = f"column {self.name!r} {rule}; the columns are {', '.join(map(repr, names)) or 'none'}"
            raise ProgramError(message, hint=None if self.name in names else nearest(self.name, names))
        return batch.column(index)

    def __repr__(self) -> str:
        return f"col({self.name!r})"


class _Literal(Expression):
    __slots__ = ("scalar",)

    def __init__(self, scalar: pa.Scalar) -> None:
        self.scalar = scalar

    @property
    def structure(self) -> tuple[Any, ...]:
        # The text of a value tells 0.0 from -0.0 and makes lists hashable; the type tells 1 from True and 1.0.
        return ("lit", str(self.scalar.type), repr(self.scalar.as_py()))

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        return self.scalar

    def __repr__(self) -> str:
        return f"lit({self.scalar.as_py()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _literal, (self.scalar.as_py(), self.scalar.type)


def _literal(value: Any, data_type: pa.DataType) -> Expression:
    return _Literal(pa.scalar(value, data_type))


class _Alias(Expression):
    __slots__ = ("name", "operand")

    def __init__(self, operand: Expression, name: str) -> None:
        self.operand = operand
        self.name = name

    @property
    def structure(self) -> tuple[Any, ...]:
        return ("alias", self.name, self.operand.structure)

    @property
    def children(self) -> tuple[Expression, ...]:
        return (self.operand,)

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        return _Alias(children[0], self.name)

    @property
    def output_name(self) -> str | None:
        return self.name

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        return self.operand._evaluate(batch)

    def __repr__(self) -> str:
        return f"{self.operand!r}.alias({self.name!r})"


class Call(Expression):
    """A kernel applied to operands.

    Args:
        function: Its name in `headrace.engine.columns.kernels`.
        arguments: Operands.
        options: Constants by name, hashable.
    """

    __slots__ = ("arguments", "function", "options")

    def __init__(
        self, function: str, arguments: tuple[Expression, ...], options: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.options = options

    @property
    def structure(self) -> tuple[Any, ...]:
        options = tuple((name, str(type(value)), repr(value)) for name, value in self.options)
        return (self.function, options, *(argument.structure for argument in self.arguments))

    @property
    def children(self) -> tuple[Expression, ...]:
        return self.arguments

    def with_children(self, children: tuple[Expression, ...]) -> Expression:
        return Call(self.function, children, self.options)

    @property
    def is_costly(self) -> bool:
        return self.function in COSTLY

    def _evaluate(self, batch: pa.RecordBatch) -> Value:
        values = [argument._evaluate(batch) for argument in self.arguments]
        if any(pa.types.is_decimal128(value.type) for value in values) and self.function in NARROWING:
            # A whole constant beside a decimal has as many digits as it has, not those of 64 bits.
            values = [
                as_literal(value) if isinstance(argument, _Literal) and pa.types.is_integer(value.type) else value
                for argument, value in zip(self.arguments, values, strict=True)
            ]
        # Constants alone would be computed, and might fail, even for no records.
        values = values if batch.num_rows else without_values(values)
        return call_kernel(self.function, values, dict(self.options), self)

    def __repr__(self) -> str:
        operands = [repr_operand(argument) for argument in self.arguments]
        return call_text(self.function, repr(self.arguments[0]), operands, [value for _name, value in self.options])


def col(name: str) -> Expression:
    """Make an expression that reads a column.

    >>> col("price") * 2
    (col('price') * 2)
    """
    return _Column(name)


def lit(value: Any, data_type: pa.DataType | None = None) -> Expression:
    """Make an expression with the same value for every record.

    Raises:
        TypeMismatchError: If Arrow has no type for the value.
    """
    try:
        return _Literal(pa.scalar(value, data_type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = f"cannot use {value!r} in an expression: {first_line(error)}"
        raise TypeMismatchError(message) from error


def expression_of(value: Any) -> Expression:
    """Return the expression itself, that of an object that has one (an aggregate), or a literal of any other value."""
    if isinstance(value, Expression):
        return value
    as_expression = getattr(value, "as_expression", None)
    return as_expression() if callable(as_expression) else lit(value)


def coalesce(*values: Any) -> Expression:
    """Return the first value that is not null."""
    if not values:
        message = "coalesce needs at least one value"
        raise ProgramError(message)
    return Call("coalesce", tuple(expression_of(value) for value in values))


def concat(*texts: Any) -> Expression:
    """Return the texts one after the other; null if one of them is."""
    if not texts:
        message = "concat needs at least one text"
        raise ProgramError(message)
    return Call("concat", tuple(expression_of(text) for text in texts))


_CASTS: dict[type, pa.DataType] = dict(ATOMS[name] for name in ("int64", "float64", "string", "bool", "binary"))
"""What a column is cast to by a type of Python."""


def _data_type(to: pa.DataType | str | type) -> pa.DataType:
    if isinstance(to, pa.DataType):
        return to
    if isinstance(to, type) and to in _CASTS:
        return _CASTS[to]
    try:
        return pa.type_for_alias(to)
    except (ValueError, TypeError) as error:
        message = f"there is no type {to!r}"
        raise ProgramError(
            message, hint="give an Arrow type, its name, or one of int, float, str, bool, bytes"
        ) from error


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def repr_operand(argument: Expression) -> str:
    return repr(argument.scalar.as_py()) if isinstance(argument, _Literal) else repr(argument)
