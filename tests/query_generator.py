"""Random queries over random tables, from a seed: only the one who answers them knows what they ask.

A query is made from the inside out. What stands in FROM has columns of known types; expressions are drawn for a type,
over these columns; every query calls its columns ``x0``, ``x1`` ..., so that it can stand in another one's FROM. Rows
are cut only in an order of all columns, in which equal rows may change places.

What the engines may differ in is not drawn: division, averages of integers, and aggregates without GROUP BY, which
have no row over a stream of no rows (as values in expressions they are drawn: there they have).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["Generated", "QueryGenerator", "random_rows", "random_settings"]

NUMBER, TEXT = "number", "text"
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
TABLES = {"l": {"a": NUMBER, "b": NUMBER, "c": TEXT}, "r": {"a": NUMBER, "d": NUMBER}}


class Column(NamedTuple):
    """A column that can be named: how, and its type."""

    name: str
    kind: str


class Generated(NamedTuple):
    """A query and the types of its columns, which are called x0, x1 ..."""

    text: str
    kinds: tuple[str, ...]


def random_rows(seed: Any) -> tuple[list[Any], list[Any]]:
    """Return rows of ``l`` and ``r``; at least one each."""
    draw = random.Random(f"rows {seed}")

    def number() -> Any:
        return draw.choice([None, 0, 1, 1, 2, 3, 4])

    def text() -> Any:
        return draw.choice([None, "x", "xy", "yz", " x", ""])

    left = [(number(), number(), text()) for _ in range(draw.randint(1, 20))]
    return left, [(number(), number()) for _ in range(draw.randint(1, 12))]


def random_settings(seed: Any) -> dict[str, str]:
    """Settings that must not change what a query over streams comes to."""
    draw = random.Random(f"settings {seed}")
    settings = {"table.optimizer.agg-phase-strategy": draw.choice(("AUTO", "TWO_PHASE", "TWO_PHASE", "ONE_PHASE"))}
    if draw.random() < 0.5:
        own = "table.exec.mini-batch"
        settings |= {f"{own}.enabled": "true", f"{own}.allow-latency": draw.choice(("1 ms", "40 ms", "1 min"))}
        settings |= {f"{own}.size": draw.choice(("1", "5", "1000"))}
    if draw.random() < 0.5:
        own = "table.optimizer.distinct-agg.split"
        settings |= {f"{own}.enabled": "true", f"{own}.bucket-num": draw.choice(("1", "2", "1024"))}
    if draw.random() < 0.5:
        settings["table.optimizer.multi-join.enabled"] = "true"
    if draw.random() < 0.2:
        settings["table.exec.state.ttl"] = "10 d"  # longer than any test
    if draw.random() < 0.5:
        settings["table.optimizer.shared-join-state.enabled"] = "true"
    return settings


class QueryGenerator:
    """Draws queries.

    Args:
        seed: The same one draws the same query.
        depth: How deep queries stand in queries.
    """

    def __init__(self, seed: Any, depth: int = 2) -> None:
        self._draw = random.Random(f"query {seed}")
        self._depth = depth
        self._num_aliases = 0

    def query(self) -> str:
        """Return a query."""
        return self._query(self._depth).text

    def filtered(self) -> tuple[str, str]:
        """Return what can stand behind FROM, and a condition over its rows."""
        source, columns = self._from(1)
        return source, self._condition(columns, 2)

    # -- queries -------------------------------------------------------------------------------------------------------

    def _query(self, depth: int, kinds: Sequence[str] | None = None) -> Generated:
        kinds = tuple(kinds or self._draw.choices((NUMBER, TEXT), (3, 1), k=self._draw.randint(1, 3)))
        if depth <= 0:
            return self._selected(0, kinds)
        make = self._draw.choices(
            (self._selected, self._grouped, self._set_operation, self._first_of_groups, self._first), (6, 4, 3, 2, 1)
        )[0]
        return make(depth, kinds)

    def _selected(self, depth: int, kinds: Sequence[str]) -> Generated:
        source, columns = self._from(depth)
        values = [self._expression(kind, columns, depth) for kind in kinds]
        distinct = "DISTINCT " if self._often(0.2) else ""
        where = f" WHERE {self._condition(columns, depth)}" if self._often(0.6) else ""
        return Generated(f"SELECT {distinct}{_named(values)} FROM {source}{where}", tuple(kinds))

    def _grouped(self, depth: int, kinds: Sequence[str]) -> Generated:
        # The empty set of no rows is one of the known differences; the tables have rows.
        has_rows = self._often(0.2)
        source, columns = self._table(0) if has_rows else self._from(depth)
        keys = self._some(columns, 2)
        is_set = len(keys) == 2 and (has_rows or self._often(0.2))
        values = []
        for kind in kinds:
            of_kind = [one.name for one in keys if one.kind == kind]
            is_key = bool(of_kind) and self._often(0.4)
            values.append(self._draw.choice(of_kind) if is_key else self._aggregate(kind, columns))
        names = ", ".join(one.name for one in keys)
        by = names
        if is_set:
            one, other = (key.name for key in keys)
            by = f"GROUPING SETS (({one}), ({other}), ({names}), ({one}))"
            if has_rows:
                by = self._draw.choice(
                    (f"CUBE ({names})", f"ROLLUP ({names})", f"GROUPING SETS (({one}), ({other}), ())")
                )
        is_filtered = self._often(0.4) and not has_rows
        where = f" WHERE {self._condition(columns, 1)}" if is_filtered else ""
        having = ""
        if self._often(0.3):
            having = f" HAVING {self._aggregate(NUMBER, columns)} {self._comparison()} {self._draw.randint(0, 4)}"
        return Generated(f"SELECT {_named(values)} FROM {source}{where} GROUP BY {by}{having}", tuple(kinds))

    def _aggregate(self, kind: str, columns: list[Column]) -> str:
        own = self._some([one for one in columns if one.kind == kind], 1)
        if kind == TEXT:
            return f"{self._draw.choice(('MIN', 'MAX'))}({own[0].name if own else 'CAST(NULL AS VARCHAR)'})"
        anything = self._draw.choice(columns).name
        condition = f" FILTER (WHERE {self._condition(columns, 0)})" if self._often(0.2) else ""
        if not own or self._often(0.4):
            call = self._draw.choice(("COUNT(*)", f"COUNT({anything})", f"COUNT(DISTINCT {anything})"))
        else:
            call = f"{self._draw.choice(('SUM', 'MIN', 'MAX'))}({self._expression(NUMBER, columns, 0)})"
        return f"{call}{condition}"

    def _set_operation(self, depth: int, kinds: Sequence[str]) -> Generated:
        word = self._draw.choice(("UNION", "INTERSECT", "EXCEPT"))
        every = self._draw.choice(("", " ALL"))
        sides = [self._query(depth - 1, kinds).text for _ in range(2)]
        both = [f"SELECT * FROM ({side}) AS {self._alias()}" for side in sides]
        return Generated(f"SELECT * FROM ({f' {word}{every} '.join(both)}) AS {self._alias()}", tuple(kinds))

    def _first(self, depth: int, kinds: Sequence[str]) -> Generated:
        inner, alias = self._query(depth - 1, kinds), self._alias()
        names = [f"x{i}{self._draw.choice(('', ' DESC'))}" for i in range(len(kinds))]
        self._draw.shuffle(names)
        offset = f" OFFSET {self._draw.randint(0, 2)}" if self._often(0.3) else ""
        cut = f"ORDER BY {', '.join(names)} LIMIT {self._draw.randint(0, 5)}{offset}"
        return Generated(f"SELECT * FROM ({inner.text}) AS {alias} {cut}", tuple(kinds))

    def _first_of_groups(self, depth: int, kinds: Sequence[str]) -> Generated:
        inner, alias = self._query(depth - 1, kinds), self._alias()
        names = [f"x{i}" for i in range(len(kinds))]
        orders = ", ".join(f"{name}{self._draw.choice(('', ' DESC'))}" for name in names)
        keys = f"PARTITION BY {self._draw.choice(names)} " if self._often(0.7) else ""
        place, first = f"ROW_NUMBER() OVER ({keys}ORDER BY {orders})", self._draw.randint(1, 3)
        if self._often(0.3):
            text = f"SELECT {', '.join(names)} FROM ({inner.text}) AS {alias} QUALIFY {place} <= {first}"
            return Generated(text, tuple(kinds))
        ranked = f"SELECT *, {place} AS place FROM ({inner.text}) AS {alias}"
        return Generated(
            f"SELECT {', '.join(names)} FROM ({ranked}) AS {self._alias()} WHERE place <= {first}", tuple(kinds)
        )

    # -- FROM ----------------------------------------------------------------------------------------------------------

    def _from(self, depth: int) -> tuple[str, list[Column]]:
        text, columns = self._table(depth)
        for _ in range(self._draw.choices((0, 1, 2), (5, 4, 1))[0] if depth else 0):
            other, more = self._table(depth - 1)
            join = self._draw.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            pair = self._pair(columns, more)
            if pair is None:
                text = f"{text} CROSS JOIN {other}"
            else:
                further = f" AND {self._comparing([*columns, *more])}" if self._often(0.3) else ""
                names = [one.partition(".")[2] for one in pair]
                is_using = names[0] == names[1] and not further and self._often(0.3)
                is_using &= sum(one.name.endswith(f".{names[0]}") for one in columns) == 1
                how = f"USING ({names[0]})" if is_using else f"ON {pair[0]} = {pair[1]}{further}"
                text = f"{text} {join} {other} {how}"
            columns = [*columns, *more]
        return text, columns

    def _pair(self, columns: list[Column], more: list[Column]) -> tuple[str, str] | None:
        pairs = [(one.name, other.name) for one in columns for other in more if one.kind == other.kind]
        return self._draw.choice(pairs) if pairs else None

    def _table(self, depth: int) -> tuple[str, list[Column]]:
        alias = self._alias()
        if depth > 0 and self._often(0.5):
            inner = self._query(depth - 1)
            columns = [Column(f"{alias}.x{i}", kind) for i, kind in enumerate(inner.kinds)]
            return f"({inner.text}) AS {alias}", columns
        name = self._draw.choice(list(TABLES))
        return f"{name} AS {alias}", [Column(f"{alias}.{one}", kind) for one, kind in TABLES[name].items()]

    def _alias(self) -> str:
        self._num_aliases += 1
        return f"t{self._num_aliases}"

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _condition(self, columns: list[Column], depth: int) -> str:
        if depth > 0:
            shape = self._draw.choices(("and", "or", "not", "asked", "plain"), (3, 3, 2, 3, 3))[0]
            if shape in ("and", "or"):
                return f"({self._condition(columns, depth - 1)} {shape.upper()} {self._condition(columns, depth - 1)})"
            if shape == "not":
                return f"NOT ({self._condition(columns, depth - 1)})"
            if shape == "asked":
                return self._asked(columns)
        value = self._draw.choice(columns)
        other = self._expression(value.kind, columns, 0)
        return self._draw.choice((
            self._comparing(columns),
            f"{value.name} IS {self._draw.choice(('', 'NOT '))}NULL",
            f"{value.name} {self._draw.choice(('', 'NOT '))}IN ({other}, {self._literal(value.kind)})",
            f"{value.name} IS NOT DISTINCT FROM {other}",
            f"{value.name} BETWEEN {self._literal(value.kind)} AND {other}",
        ))  # fmt: skip

    def _comparing(self, columns: list[Column]) -> str:
        value = self._draw.choice(columns)
        return f"{value.name} {self._comparison()} {self._expression(value.kind, columns, 0)}"

    def _comparison(self) -> str:
        return self._draw.choice(COMPARISONS)

    def _asked(self, columns: list[Column]) -> str:
        """A condition that asks a subquery."""
        value = self._draw.choice(columns)
        source, own = self._table(self._draw.choice((0, 0, 1)))
        where = self._around(columns, own)
        shape = self._draw.choice(("exists", "in", "any"))
        if shape == "exists":
            return f"{self._draw.choice(('', 'NOT '))}EXISTS (SELECT 1 FROM {source}{where})"
        fitting = [one.name for one in own if one.kind == value.kind]
        given = self._draw.choice(fitting) if fitting else self._literal(value.kind)
        query = f"(SELECT {given} FROM {source}{where})"
        if shape == "in":
            return f"{value.name} {self._draw.choice(('', 'NOT '))}IN {query}"
        return f"{value.name} {self._comparison()} {self._draw.choice(('ANY', 'ALL'))} {query}"

    def _around(self, columns: list[Column], own: list[Column]) -> str:
        """WHERE of a subquery: conditions of its own, and equalities and others with columns around it."""
        parts = [self._condition(own, 0)] if self._often(0.5) else []
        pair = self._pair(own, columns)
        if pair is not None and self._often(0.6):
            parts.append(f"{pair[0]} = {pair[1]}")
        pair = self._pair(own, columns)
        if pair is not None and self._often(0.3):
            further = f"{pair[0]} {self._comparison()} {pair[1]}"
            parts.append(f"({further} OR {pair[1]} IS NULL)" if self._often(0.3) else further)
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    # -- values --------------------------------------------------------------------------------------------------------

    def _expression(self, kind: str, columns: list[Column], depth: int) -> str:
        fitting = [one.name for one in columns if one.kind == kind]
        if depth <= 0 or self._often(0.4):
            is_column = bool(fitting) and self._often(0.8)
            return self._draw.choice(fitting) if is_column else self._literal(kind)
        shape = self._draw.choice(("computed", "computed", "case", "coalesced", "asked"))
        one, other = (self._expression(kind, columns, depth - 1) for _ in range(2))
        if shape == "case":
            return f"CASE WHEN {self._condition(columns, 0)} THEN {one} ELSE {other} END"
        if shape == "coalesced":
            return f"COALESCE({one}, {other})"
        if shape == "asked":
            return self._value(kind, columns)
        if kind == TEXT:
            return self._draw.choice((f"UPPER({one})", f"({one} || {other})"))
        word = self._draw.choice(("+", "-"))
        return self._draw.choice((f"({one} {word} {other})", f"(-({one}))", f"ABS({one})", f"MOD({one}, 3)"))

    def _value(self, kind: str, columns: list[Column]) -> str:
        """A subquery that is a value."""
        source, own = self._table(0)
        where = self._around(columns, own)
        fitting = [one.name for one in own if one.kind == kind]
        if fitting and self._often(0.3):
            value = self._draw.choice(fitting)
            return f"(SELECT {value} FROM {source}{where} ORDER BY {value} LIMIT 1)"
        return f"(SELECT {self._aggregate(kind, own)} FROM {source}{where})"

    def _literal(self, kind: str) -> str:
        if kind == TEXT:
            return self._draw.choice(("'x'", "'xy'", "''", "CAST(NULL AS VARCHAR)"))
        return self._draw.choice(("0", "1", "2", "3", "CAST(NULL AS BIGINT)"))

    # -- chance --------------------------------------------------------------------------------------------------------

    def _often(self, share: float) -> bool:
        return self._draw.random() < share

    def _some(self, columns: list[Column], most: int) -> list[Column]:
        return self._draw.sample(columns, min(len(columns), self._draw.randint(1, most))) if columns else []


def _named(values: Sequence[str]) -> str:
    return ", ".join(f"{value} AS x{i}" for i, value in enumerate(values))
