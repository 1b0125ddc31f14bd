"""MATCH_RECOGNIZE: from its parts to a node of the plan.

A variable's column, ``A.price``, is the value of the last row that is an A. Calls look elsewhere: ``FIRST``, ``LAST``,
``PREV`` and ``NEXT``, aggregates over the rows of a variable, and ``MATCH_ROWTIME()``. What runs a query refuses the
node; the plan has it so that it can be shown, and run some day.

Source: SQL:2016, row pattern recognition; Flink's documentation ("Pattern Recognition"), whose limits these are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.expressions import Expression, col
from headrace.engine.errors import nearest
from headrace.engine.plan.match_nodes import (
    AfterMatch,
    Choice,
    Look,
    OneAfterOther,
    Pattern,
    Repeated,
    Variable,
    variables_of,
)
from headrace.engine.plan.plan import Order

from .contract import Queries
from .expressions import ExpressionBinder, interval_ms, is_aggregate_call, whole_number
from .functions.aggregates import aggregate_call
from .functions.contract import Typed
from .functions.registry import FunctionRegistry
from .parsing.errors import SqlError, SqlText
from .relations import Relation
from .scope import Scope, ScopeColumn

__all__ = ["matched"]

_NAVIGATION = ("FIRST", "LAST", "PREV", "NEXT")
_ROWTIME = "MATCH_ROWTIME"
_WAY_ROUND = (
    "LAG(...) OVER (PARTITION BY ... ORDER BY ...) compares a row with those before it; longer patterns are for a "
    "KeyedProcessFunction behind to_data_stream()"
)
_QUANTIFIER = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_TOKEN = re.compile(r"\s*(?:(`[^`]+`|[^\W\d]\w*)|(\{-|-\}|\{[^}]*\}|[()|*+?^$,])|(\S))")


def matched(queries: Queries, relation: Relation, tree: Any) -> Relation:
    """Return a row for each match of a pattern in some rows.

    Args:
        queries: Makes nodes.
        relation: The rows.
        tree: The clause.

    Raises:
        SqlError: If it does not say what is needed, or something that is not understood, with the place.
    """
    text = queries.text
    with text.at(tree):
        for part, word in (("order", "ORDER BY"), ("pattern", "PATTERN"), ("define", "DEFINE")):
            if not tree.args.get(part):
                message = f"MATCH_RECOGNIZE needs {word}"
                raise SqlError(message)
        if tree.args.get("rows"):
            message = "ALL ROWS PER MATCH is not supported"
            raise text.error(message, tree.args["rows"], hint="ONE ROW PER MATCH gives the measures of each match")
        with text.at(tree.args["pattern"]):
            pattern = _PatternText(tree.args["pattern"].name).pattern()
        variables = list(dict.fromkeys(variables_of(pattern)))
        keys = [_column(queries, relation, one, "PARTITION BY") for one in tree.args.get("partition_by") or ()]
        binder = _MatchBinder(relation.scope, queries.functions, text, variables)
        definitions: dict[str, Expression] = {}
        for one in tree.args["define"]:
            with text.at(one):
                definitions[_known(one.alias, variables)] = binder.condition(one.this).expression
        measures: dict[str, Typed] = {}
        for one in tree.args.get("measures") or ():
            with text.at(one):
                if not isinstance(one.this, exp.Alias):
                    message = "a measure has a name: MEASURES LAST(A.price) AS price"
                    raise SqlError(message)
                measures[one.this.alias] = binder.bind(one.this.this)
        within = tree.args.get("within")
        fields = [*((one.column, one.kind) for one in keys), *((name, one.kind) for name, one in measures.items())]
        after, orders = _after(text, tree, variables), _orders(queries, relation, tree.args["order"])
        within_ms = None if within is None else interval_ms(within)
        by = "".join(f"{one.column}, " for one in keys)
        node = queries.builder.matched(
            relation.node, [one.column for one in keys], pa.schema(fields),
            name=f"match {pattern}: {by}{', '.join(map(repr, orders))}, {after}"
                 f"{'' if within_ms is None else f', within {within_ms} ms'}",
            notes=_notes(definitions, measures), orders=orders, pattern=pattern, definitions=definitions,
            looks=binder.looks, after=after, within_ms=within_ms,
            measures={name: one.expression for name, one in measures.items()},
            refused=text.error("MATCH_RECOGNIZE is not supported: it is planned, but cannot be run yet", tree,
                               hint=_WAY_ROUND),
        )  # fmt: skip
        times = {name for name, one in measures.items() if one.expression.structure == ("col", _ROWTIME)}
        columns = [replace(one, is_event_time=False) for one in keys]
        columns += [ScopeColumn(None, name, name, one.kind, is_event_time=name in times)
                    for name, one in measures.items()]  # fmt: skip
        alias = tree.args.get("alias")
        scope = Scope(columns)
        return Relation(node, scope if alias is None else scope.under(alias.name, [one.name for one in alias.columns]))


def _notes(definitions: dict[str, Expression], measures: dict[str, Typed]) -> tuple[str, ...]:
    defined = [f"{name} where {condition!r}" for name, condition in definitions.items()]
    return (*defined, *([f"measures {', '.join(measures)}"] if measures else []))


def _column(queries: Queries, relation: Relation, tree: Any, what: str) -> ScopeColumn:
    with queries.text.at(tree):
        structure = queries.binder(relation.scope).bind(tree).expression.structure
        found = next((one for one in relation.scope.columns if structure == ("col", one.column)), None)
        if found is None:
            message = f"{what} of MATCH_RECOGNIZE takes columns"
            raise SqlError(message, hint="compute them in a view, or in WITH")
        return found


def _orders(queries: Queries, relation: Relation, tree: Any) -> tuple[Order, ...]:
    columns = [(_column(queries, relation, one.this, "ORDER BY"), not one.args.get("desc")) for one in tree.expressions]
    first, is_ascending = columns[0]
    if not (first.is_event_time or first.is_processing_time) or not is_ascending:
        message = "MATCH_RECOGNIZE goes by event time or processing time first, ascending"
        raise queries.text.error(message, tree, hint="ORDER BY the column of WATERMARK FOR")
    return tuple(Order(one.column, is_up) for one, is_up in columns)


def _after(text: SqlText, tree: Any, variables: list[str]) -> AfterMatch:
    clause = tree.args.get("after")
    if clause is None:
        return AfterMatch()
    with text.at(clause):
        to, *named = (one.name for one in clause.expressions)
        return AfterMatch(to, *(_known(one, variables) for one in named))


def _known(name: str, variables: Iterable[str]) -> str:
    there = list(variables)
    if name not in there:
        message = f"there is no variable {name!r} in the pattern"
        raise SqlError(message, hint=nearest(name, there) or f"there are {', '.join(there)}")
    return name


class _MatchBinder(ExpressionBinder):
    """Makes expressions over what is looked up in a match.

    Args:
        rows: The columns of the rows.
        functions: What calls mean.
        text: Of the statement, for errors.
        variables: Of the pattern.

    Attributes:
        looks: What has been asked for, by the name of its column.
    """

    def __init__(self, rows: Scope, functions: FunctionRegistry, text: SqlText, variables: list[str]) -> None:
        super().__init__(Scope(()), functions, text)
        self._rows = rows
        self._variables = variables
        self.looks: dict[str, Look] = {}

    def bind(self, tree: Any) -> Typed:
        with self.text.at(tree):
            if is_aggregate_call(tree, self.functions):
                return self._aggregate(tree)
            name = str(tree.name).upper() if isinstance(tree, exp.Anonymous) else ""
            if name == _ROWTIME:
                return self._rowtime()
            return self._navigation(name, tree.expressions) if name in _NAVIGATION else self._bind(tree)

    def column(self, tree: Any) -> Typed:
        """A column of a variable: its value in the last row."""
        variable, value = self._of_rows([tree])
        return self._look(f"LAST({tree.sql()})", value[0], Look("last", variable, value[0].expression))

    def _navigation(self, name: str, arguments: list[Any]) -> Typed:
        offset = whole_number(arguments[1]) if len(arguments) == 2 else int(name in ("PREV", "NEXT"))
        if not 1 <= len(arguments) <= 2 or offset is None:
            message = f"{name} takes a value of a variable, and a number of rows"
            raise SqlError(message, hint=f"{name}(A.price, 1)")
        variable, (value,) = self._of_rows(arguments[:1])
        look = Look(name.lower(), variable, value.expression, offset)
        return self._look(f"{name}({arguments[0].sql()}, {offset})", value, look)

    def _aggregate(self, tree: Any) -> Typed:
        call = tree.this if isinstance(tree, exp.Filter) else tree
        arguments = list(call.expressions)
        if not arguments:
            message = f"{str(call.name).upper()} needs an argument"
            raise SqlError(message)
        distinct = bool(arguments) and isinstance(arguments[0], exp.Distinct)
        if distinct or isinstance(tree, exp.Filter):
            message = "aggregates of a match have neither DISTINCT nor FILTER"
            raise SqlError(message, hint="FILTER is a variable of its own; DISTINCT is not supported in Flink either")
        if len(arguments) == 1 and arguments[0].find(exp.Star):
            variable, values = self._all_rows(arguments[0])
        else:
            variable, values = self._of_rows(arguments)
        made = aggregate_call(self.functions.aggregate(str(call.name)), values, None, distinct=False)
        parts = []
        for part in made.parts:
            kind = part.output_type(self._rows.schema)
            look = Look("aggregate", variable, None, 0, part)
            parts.append(self._look(f"{variable or '*'}: {part!r}", Typed(col("$"), kind), look))
        return made.result(*parts)

    def _all_rows(self, tree: Any) -> tuple[str | None, list[Typed]]:
        """The variable of ``A.*``, or None for all rows; no values."""
        is_named = isinstance(tree, exp.Column) and bool(tree.table)
        return (_known(tree.table, self._variables) if is_named else None), []

    def _rowtime(self) -> Typed:
        time = next((one for one in self._rows.columns if one.is_event_time), None)
        if time is None:
            message = f"{_ROWTIME}() is of rows with an event time"
            raise SqlError(message, hint="WATERMARK FOR gives a table one")
        return self._look(_ROWTIME, Typed(col(time.column), time.kind), Look("rowtime"))

    def _of_rows(self, trees: list[Any]) -> tuple[str | None, list[Typed]]:
        """Values over the rows of one variable, or of all."""
        named = {column.table for tree in trees for column in tree.find_all(exp.Column) if column.table}
        known = [_known(one, self._variables) for one in sorted(named)]
        if len(known) > 1:
            message = f"a value in a call is of one variable; got {' and '.join(known)}"
            raise SqlError(message, hint="call it once for each, and compute with the results")
        variable = known[0] if known else None
        scope = Scope(replace(one, table=variable) for one in self._rows.columns)
        inner = ExpressionBinder(scope, self.functions, self.text)
        return variable, [inner.bind(tree) for tree in trees]

    def _look(self, name: str, value: Typed, look: Look) -> Typed:
        self.looks[name] = look
        return Typed(col(name), value.kind)


class _PatternText:
    """Reads a pattern: variables, one after the other or with ``|`` between, and how often each may come."""

    def __init__(self, text: str) -> None:
        self._tokens = [one.groups() for one in _TOKEN.finditer(text)]
        self._at = 0

    def pattern(self) -> Pattern:
        """Return the pattern.

        Raises:
            SqlError: If it is none.
        """
        found = self._choice()
        if self._at < len(self._tokens):
            message = f"{self._next()!r} was not expected in a pattern"
            raise SqlError(message, hint="a pattern is names, each with *, +, ? or {1,3} behind it if need be")
        return found

    def _next(self) -> str:
        return next(filter(None, self._tokens[self._at])) if self._at < len(self._tokens) else ""

    def _choice(self) -> Pattern:
        parts = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._repeated())
        if not parts:
            message = "a pattern has a variable at least"
            raise SqlError(message)
        return parts[0] if len(parts) == 1 else OneAfterOther(tuple(parts))

    def _repeated(self) -> Pattern:
        part = self._one()
        times = self._times(self._next())
        if times is None:
            return part
        self._at += 1
        is_greedy = self._next() != "?"
        self._at += not is_greedy
        return Repeated(part, *times, is_greedy)

    def _times(self, text: str) -> tuple[int, int | None] | None:
        known: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = _QUANTIFIER.fullmatch(text)
        if found is None or not (found[1] or found[3]):
            return known.get(text)
        least, most = int(found[1] or 0), int(found[3]) if found[3] else None if found[2] else int(found[1])
        if most is not None and most < max(least, 1):
            message = f"{text} is no number of times"
            raise SqlError(message)
        return least, most

    def _one(self) -> Pattern:
        name, sign, other = self._tokens[self._at]
        self._at += 1
        if name is not None and name.upper() == "PERMUTE" and self._next() == "(":
            message = "PERMUTE is not supported in a pattern"
            raise SqlError(message, hint="write the orders out, with | between")
        if name is not None:
            return Variable(name.strip("`"))
        if sign != "(":
            message = f"{sign or other!r} was not expected in a pattern"
            raise SqlError(message, hint="anchors and exclusions are not supported")
        found = self._choice()
        if self._next() != ")":
            message = "a parenthesis of the pattern is not closed"
            raise SqlError(message)
        self._at += 1
        return found
