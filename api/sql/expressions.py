"""From trees of the parser to expressions over columns.

Source: SQL:2016, Flink's documentation ("Operators", "Functions").
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import col, lit

from . import constructors
from .clock import CLOCK, clock_of
from .functions import casts, patterns, texts, times
from .functions import operators as sql
from .functions.catalogue import ABSENT, absent
from .functions.coercion import cast_to, is_text
from .functions.contract import Typed, literal_of
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlError, SqlText
from .parsing.sql_types import arrow_type, sql_name, text_length
from .scope import Scope

__all__ = ["STANDS_FOR", "ExpressionBinder", "conjuncts", "interval_ms", "is_aggregate_call", "whole_number"]

STANDS_FOR = "column"
"""Where a tree keeps the column that it means, whatever its name would mean: one made of ``*``, or of another query."""

_COMPARISONS = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
}

_ARITHMETIC = {exp.Add: sql.add, exp.Sub: sql.subtract, exp.Mul: sql.multiply, exp.Div: sql.divide, exp.Mod: sql.modulo}

_DIGITS = re.compile("[0-9]+")


def conjuncts(tree: exp.Expression | None) -> list[exp.Expression]:
    """Return the conditions that AND puts together."""
    found: list[exp.Expression] = []
    left = [] if tree is None else [tree]
    while left:
        one = left.pop()
        if isinstance(one, exp.Paren):
            left.append(one.this)
        elif isinstance(one, exp.And):
            left += (one.expression, one.this)
        else:
            found.append(one)
    return found


def _links(tree: exp.Expression, kind: type[exp.Expression]) -> list[exp.Expression]:
    """The conditions of a chain of ANDs, or of ORs, without those of chains on the right: they are in parentheses."""
    found: list[exp.Expression] = []
    while isinstance(tree, kind):
        found.append(tree.expression)
        tree = tree.this
    return [tree, *reversed(found)]


def whole_number(tree: Any) -> int | None:
    """Return the number that a literal of digits alone is; None for everything else."""
    is_one = isinstance(tree, exp.Literal) and not tree.is_string and _DIGITS.fullmatch(tree.name)
    return int(tree.name) if is_one else None


def is_aggregate_call(tree: Any, functions: FunctionRegistry) -> bool:
    """Return whether it is a call of an aggregate function, with a FILTER or without; not one over a window."""
    call = tree.this if isinstance(tree, exp.Filter) else tree
    return isinstance(call, exp.Anonymous) and functions.is_aggregate(str(call.name))


def interval_ms(tree: exp.Expression) -> int:
    """Return how long an interval of the text is.

    Raises:
        SqlError: If it is none.
    """
    if isinstance(tree, exp.Paren):
        return interval_ms(tree.this)
    if isinstance(tree, exp.Neg):
        return -interval_ms(tree.this)
    if not isinstance(tree, exp.Interval) or tree.this is None or tree.args.get("unit") is None:
        message = f"expected an interval; got {tree.sql()}"
        raise SqlError(message, hint="write INTERVAL '10' SECOND")
    return times.milliseconds_of(tree.this.name, tree.args["unit"].sql())


def _months(tree: exp.Expression) -> int | None:
    """How many months an interval of the text is; None if it is none of months or years."""
    if isinstance(tree, exp.Paren):
        return _months(tree.this)
    if isinstance(tree, exp.Neg):
        months = _months(tree.this)
        return None if months is None else -months
    if not isinstance(tree, exp.Interval) or tree.this is None or tree.args.get("unit") is None:
        return None
    return times.months_of(tree.this.name, tree.args["unit"].sql())


class SubqueryValues(Protocol):
    """Makes columns of subqueries: `headrace.sql.subqueries.Subqueries`, as expressions see it."""

    def value(self, tree: Any, binder: ExpressionBinder) -> Typed:
        """Return what a subquery is in an expression."""
        ...


class ExpressionBinder:
    """Makes expressions over the columns of a scope.

    Args:
        scope: What names mean.
        functions: What calls mean.
        text: Of the statement, for errors.
    """

    def __init__(self, scope: Scope, functions: FunctionRegistry, text: SqlText) -> None:
        self.scope = scope
        self.functions = functions
        self.text = text
        # What makes columns of subqueries; None where there cannot be any.
        self.subqueries: SubqueryValues | None = None

    def bind(self, tree: Any) -> Typed:
        """Return the expression of a tree.

        Raises:
            SqlError: If it means nothing here, with its place.
        """
        with self.text.at(tree):
            return self._bind(tree)

    def condition(self, tree: Any) -> Typed:
        """Return the expression of a tree that must be a condition."""
        found = self.bind(tree)
        if not (pa.types.is_boolean(found.kind) or pa.types.is_null(found.kind)):
            message = f"expected a condition; got {sql_name(found.kind)}"
            raise self.text.error(message, tree)
        return cast_to(found, pa.bool_())

    def _bind(self, tree: Any) -> Typed:
        for kind, function in _COMPARISONS.items():
            if type(tree) is kind and isinstance(tree.expression, (exp.All, exp.Any)):
                return self.subquery(tree)
            if type(tree) is kind:
                return sql.compare(function, self.bind(tree.this), self.bind(tree.expression))
        if type(tree) in (exp.Add, exp.Sub):
            months_away = self._months_away(tree)
            if months_away is not None:
                return months_away
        for kind, make in _ARITHMETIC.items():
            if type(tree) is kind:
                return make(self.bind(tree.this), self.bind(tree.expression))
        if type(tree) is exp.Column:
            return self.column(tree)
        bind = _BINDERS.get(type(tree))
        if bind is None:
            message = f"{_described(tree)} is not supported"
            raise SqlError(message)
        return bind(self, tree)

    def _months_away(self, tree: Any) -> Typed | None:
        """A time and an interval of months, which has no length of its own; None if there is no such interval."""
        for span, time in ((tree.expression, tree.this), (tree.this, tree.expression)):
            months = _months(span)
            if months is None:
                continue
            if type(tree) is exp.Sub and span is tree.this:
                message = "a time cannot be taken off an interval"
                raise SqlError(message)
            count = literal_of(-months if type(tree) is exp.Sub else months, pa.int64())
            return times.added("MONTH")(count, self.bind(time))
        return None

    def subquery(self, tree: Any) -> Typed:
        """Return the value of a subquery, or of a condition that asks one."""
        if self.subqueries is None:
            message = "a subquery here is not supported"
            raise SqlError(message, hint="subqueries stand in SELECT, WHERE and HAVING, outside of aggregates")
        return self.subqueries.value(tree, self)

    # -- names and literals --------------------------------------------------------------------------------------------

    def column(self, tree: Any) -> Typed:
        """Return what a name means."""
        chosen = tree.meta.get(STANDS_FOR)
        if chosen is not None:
            there = self.scope.there(chosen)
            return Typed(col(there.column), there.kind)
        parts = [part.name for part in tree.parts]
        if len(parts) == 1 and parts[0].upper() in ABSENT and not tree.this.quoted:
            names = {one.name for one in self.scope.columns}
            if parts[0] not in names:
                raise absent(parts[0].upper())
        found, fields = self.scope.find(parts)
        return self._fields(Typed(col(found.column), found.kind), fields)

    def _fields(self, value: Typed, fields: Any) -> Typed:
        for field in fields:
            if not pa.types.is_struct(value.kind) or value.kind.get_field_index(field) < 0:
                has = [one.name for one in value.kind] if pa.types.is_struct(value.kind) else []
                message = f"{sql_name(value.kind)} has no field {field!r}"
                raise SqlError(message, hint=f"its fields are {', '.join(has)}" if has else None)
            value = Typed(value.expression.field(field), value.kind.field(field).type)
        return value

    def dot(self, tree: exp.Dot) -> Typed:
        return self._fields(self.bind(tree.this), [tree.expression.name])

    def literal(self, tree: exp.Literal) -> Typed:
        text = tree.name
        if tree.is_string:
            return literal_of(text, pa.string())
        if "e" in text.lower():
            return literal_of(float(text), pa.float64())
        if "." in text:
            number = decimal.Decimal(text)
            _sign, digits, exponent = number.as_tuple()
            scale = -int(exponent)
            return literal_of(number, pa.decimal128(max(len(digits), scale, 1), scale))
        return _integer(int(text))

    def interval(self, tree: exp.Interval) -> Typed:
        return literal_of(interval_ms(tree), pa.duration("ms"))

    # -- conditions ----------------------------------------------------------------------------------------------------

    def is_(self, tree: exp.Is) -> Typed:
        value, what = self.bind(tree.this), tree.expression
        if isinstance(what, exp.Null):
            return sql.is_null(value)
        if isinstance(what, exp.Boolean):
            return sql.is_true(value) if what.this else sql.is_false(value)
        if isinstance(what, exp.JSON):
            return constructors.is_json(self.bind, tree)
        message = "IS is for NULL, TRUE, FALSE, UNKNOWN and JSON"
        raise SqlError(message)

    def chain(self, tree: Any, both: Callable[..., Typed], all_of: Callable[..., Typed]) -> Typed:
        """Return conditions with AND, or with OR, between them."""
        links = _links(tree, type(tree))
        if len(links) > sql.MANY:
            return all_of([self.bind(one) for one in links])
        return both(self.bind(tree.this), self.bind(tree.expression))

    def in_(self, tree: exp.In) -> Typed:
        if tree.args.get("query") is not None:
            return self.subquery(tree)
        if tree.args.get("field") is not None:
            message = f"IN takes values in parentheses, or a query; got the name {tree.args['field'].sql()}"
            raise SqlError(message, hint=f"write IN (SELECT ... FROM {tree.args['field'].sql()})")
        value = self.bind(tree.this)
        if not tree.expressions:
            message = "IN () has no values"
            raise SqlError(message, hint="write FALSE for what is never true, and TRUE for NOT IN ()")
        return sql.one_of(value, [self.bind(one) for one in tree.expressions])

    def like(self, tree: Any, escape: Any = None) -> Typed:
        """Return LIKE; the parser writes NOT LIKE as a part of it."""
        given = None if escape is None else self.bind(escape)
        found = patterns.like(self.bind(tree.this), self.bind(tree.expression), given)
        return sql.opposite(found) if tree.args.get("negate") else found

    def similar(self, tree: exp.SimilarTo) -> Typed:
        """Return SIMILAR TO."""
        found = patterns.similar(self.bind(tree.this), self.bind(tree.expression))
        return sql.opposite(found) if tree.args.get("negate") else found

    def escape(self, tree: exp.Escape) -> Typed:
        if not isinstance(tree.this, exp.Like):
            message = "ESCAPE stands behind LIKE"
            raise SqlError(message)
        return self.like(tree.this, tree.expression)

    def case(self, tree: exp.Case) -> Typed:
        subject = None if tree.this is None else self.bind(tree.this)
        conditions, values = [], []
        for branch in tree.args["ifs"]:
            given = self.bind(branch.this)
            conditions.append(given if subject is None else sql.compare("equal", subject, given))
            values.append(self.bind(branch.args["true"]))
        other = tree.args.get("default")
        values.append(Typed(lit(None), pa.null()) if other is None else self.bind(other))
        return sql.case(conditions, values)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def cast(self, tree: Any) -> Typed:
        value, kind = self.bind(tree.this), arrow_type(tree.args["to"])
        if value.constant is not None and is_text(value.kind) and pa.types.is_timestamp(kind):
            # TIMESTAMP '2020-01-01 00:00:00.5' has the digits that it is written with.
            kind = pa.timestamp("ms" if len(value.constant.as_py()) <= 23 else kind.unit, kind.tz)
        found = (casts.try_cast if isinstance(tree, exp.TryCast) else casts.cast)(value, kind)
        length = text_length(tree.args["to"])
        return found if length is None else casts.resized(found, length, fills=tree.args["to"].this.value == "CHAR")

    def anonymous(self, tree: exp.Anonymous) -> Typed:
        name = str(tree.name)
        if self.functions.is_aggregate(name):
            message = f"{name.upper()} is an aggregate, and stands in SELECT, HAVING or ORDER BY"
            raise SqlError(message)
        if name.upper() == CLOCK and not tree.expressions:
            return clock_of(self.scope)
        construct = constructors.CONSTRUCTORS.get(name.upper())
        if construct is not None:
            return construct(self.bind, tree)
        arguments = [*tree.expressions]
        if name.upper() in ("TIMESTAMPDIFF", "TIMESTAMPADD") and len(arguments) == 3:
            return self._of_unit(name.upper(), arguments)
        return self.functions.call(name, [self.bind(one) for one in arguments])

    def _of_unit(self, name: str, arguments: list[Any]) -> Typed:
        unit = arguments[0].name
        if name == "TIMESTAMPDIFF":
            return times.difference(unit)(self.bind(arguments[1]), self.bind(arguments[2]))
        return times.added(unit)(self.bind(arguments[1]), self.bind(arguments[2]))

    def extract(self, tree: exp.Extract) -> Typed:
        return times.extracted(tree.this.name, self.bind(tree.expression))

    def border(self, tree: Any) -> Typed:
        value, unit = self.bind(tree.this), tree.args.get("to")
        is_up = isinstance(tree, exp.Ceil)
        if unit is None:
            return self.functions.call("CEIL" if is_up else "FLOOR", [value])
        return times.rounded_to(unit.name, value, up=is_up)

    def substring(self, tree: exp.Substring) -> Typed:
        length = tree.args.get("length")
        given = None if length is None else self.bind(length)
        return texts.substring(self.bind(tree.this), self.bind(tree.args["start"]), given)

    def trim(self, tree: exp.Trim) -> Typed:
        characters = tree.args.get("expression")
        side = (tree.args.get("position") or "BOTH").upper()
        return texts.trimmed(self.bind(tree.this), side, None if characters is None else self.bind(characters))

    def position(self, tree: exp.StrPosition) -> Typed:
        return self.functions.call("POSITION", [self.bind(tree.args["substr"]), self.bind(tree.this)])

    def overlay(self, tree: exp.Overlay) -> Typed:
        parts = [tree.this, tree.expression, tree.args["from_"], tree.args.get("for_")]
        return self.functions.call("OVERLAY", [self.bind(part) for part in parts if part is not None])


def _integer(number: int) -> Typed:
    if -(2**31) <= number < 2**31:
        return literal_of(number, pa.int32())
    if -(2**63) <= number < 2**63:
        return literal_of(number, pa.int64())
    digits = len(str(abs(number)))
    if digits > 38:
        message = f"a number has at most 38 digits; got {digits}"
        raise SqlError(message)
    return literal_of(decimal.Decimal(number), pa.decimal128(digits, 0))


def _negative(self: ExpressionBinder, tree: exp.Neg) -> Typed:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string and whole_number(tree.this) is not None:
        return _integer(-int(tree.this.name))
    return sql.negated(self.bind(tree.this))


def _described(tree: Any) -> str:
    if isinstance(tree, (exp.All, exp.Any)):
        return f"{type(tree).__name__.upper()} that does not stand behind a comparison"
    return f"{type(tree).__name__.upper()} ({tree.sql()})" if isinstance(tree, exp.Expression) else repr(tree)


_BINDERS: dict[type, Callable[[ExpressionBinder, Any], Typed]] = {
    exp.Dot: ExpressionBinder.dot,
    exp.Literal: ExpressionBinder.literal,
    exp.Boolean: lambda self, tree: literal_of(bool(tree.this), pa.bool_()),
    exp.Null: lambda self, tree: Typed(lit(None), pa.null()),
    exp.HexString: lambda self, tree: literal_of(bytes.fromhex(tree.name), pa.binary()),
    exp.Interval: ExpressionBinder.interval,
    exp.Paren: lambda self, tree: self.bind(tree.this),
    exp.Neg: _negative,
    exp.And: lambda self, tree: self.chain(tree, sql.both, sql.all_of),
    exp.Or: lambda self, tree: self.chain(tree, sql.either, sql.any_of),
    exp.Not: lambda self, tree: sql.opposite(self.bind(tree.this)),
    exp.Is: ExpressionBinder.is_,
    exp.Subquery: ExpressionBinder.subquery,
    exp.Exists: ExpressionBinder.subquery,
    exp.Array: lambda self, tree: constructors.array(self.bind, tree),
    exp.Bracket: lambda self, tree: constructors.bracket(self.bind, tree),
    exp.Tuple: lambda self, tree: constructors.row(self.bind, tree),
    exp.Overlaps: lambda self, tree: constructors.overlaps(self.bind, tree),
    exp.Between: lambda self, tree: constructors.between(self.bind, tree),
    exp.In: ExpressionBinder.in_,
    exp.Like: ExpressionBinder.like,
    exp.Escape: ExpressionBinder.escape,
    exp.SimilarTo: ExpressionBinder.similar,
    exp.NullSafeEQ: lambda self, tree: sql.opposite(sql.is_distinct(self.bind(tree.this), self.bind(tree.expression))),
    exp.NullSafeNEQ: lambda self, tree: sql.is_distinct(self.bind(tree.this), self.bind(tree.expression)),
    exp.DPipe: lambda self, tree: sql.concatenated(self.bind(tree.this), self.bind(tree.expression)),
    exp.Case: ExpressionBinder.case,
    exp.Cast: ExpressionBinder.cast,
    exp.TryCast: ExpressionBinder.cast,
    exp.Anonymous: ExpressionBinder.anonymous,
    exp.Extract: ExpressionBinder.extract,
    exp.Ceil: ExpressionBinder.border,
    exp.Floor: ExpressionBinder.border,
    exp.Substring: ExpressionBinder.substring,
    exp.Trim: ExpressionBinder.trim,
    exp.StrPosition: ExpressionBinder.position,
    exp.Overlay: ExpressionBinder.overlay,
}
