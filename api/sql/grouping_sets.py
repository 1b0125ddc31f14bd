"""GROUPING SETS, CUBE and ROLLUP: which sets of keys the rows are grouped by.

A row comes once for every set, with the number of the set and the keys that are in it, and is grouped by these; so a
key that is null because its set leaves it out is apart from a key that is null in the data.

Source: SQL:2016, "<group by clause>"; Flink's ``LogicalExpand``, ``ExpandUtil``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.engine.columns.conditionals import if_else
from headrace.engine.columns.expressions import Expression, col, lit
from headrace.engine.operators.expanding import GroupingSets
from headrace.engine.plan.plan import Node

from .functions.contract import Typed
from .parsing.errors import SqlError
from .relations import Builder, unique_names

__all__ = ["KeySets", "expanded_keys", "key_sets"]

_MOST_SETS = 1_024

TreeSet = tuple[Any, ...]


@dataclass(frozen=True)
class KeySets:
    """The keys of a GROUP BY, and the sets of them that rows are grouped by.

    Attributes:
        values: The keys.
        sets: For each set the places of its keys; one set of all without GROUPING SETS and its like.
    """

    values: list[Typed]
    sets: list[frozenset[int]]

    @property
    def is_plain(self) -> bool:
        """Whether rows are grouped by all keys, once."""
        return self.sets == [frozenset(range(len(self.values)))]

    def grouping(self, places: Sequence[int] | None, number: str) -> Typed:
        """Return GROUPING(...) of keys: a bit for each, 1 where it is not in the row's set, the first one highest.

        Args:
            places: Of the keys; None for GROUP_ID(): how many sets of the same keys stand before the row's set.
            number: The column of the set's number.
        """
        if places is None:
            return _by_set(number, [self.sets[:i].count(one) for i, one in enumerate(self.sets)])
        shifts = range(len(places) - 1, -1, -1)
        pairs = list(zip(places, shifts, strict=True))
        return _by_set(number, [sum((place not in one) << shift for place, shift in pairs) for one in self.sets])


def _by_set(number: str, values: Sequence[int]) -> Typed:
    """The value that each set has, by the column of the set's number."""
    found: Expression = lit(0, pa.int64())
    for i, value in enumerate(values):
        if value:
            found = if_else(col(number) == i, lit(value, pa.int64()), found)
    return Typed(found, pa.int64())


def key_sets(clause: Any, named: Callable[[Any], Any], bind: Callable[[Any], Typed]) -> KeySets:
    """Return what a GROUP BY says.

    Args:
        clause: The clause.
        named: What an expression of it stands for: a number counts the columns of SELECT.
        bind: Makes expressions over the rows.

    Raises:
        SqlError: If there are too many sets.
    """
    values: list[Typed] = []
    places: dict[tuple[Any, ...], int] = {}

    def place(tree: Any) -> int:
        value = bind(named(tree))
        structure = value.expression.structure
        if structure not in places:
            places[structure] = len(values)
            values.append(value)
        return places[structure]

    sets = [frozenset(place(tree) for tree in one) for one in _product([_sets(one) for one in clause])]
    return KeySets(values, sets)


def _sets(tree: Any) -> list[TreeSet]:
    """The sets that a part of GROUP BY stands for."""
    if isinstance(tree, exp.GroupingSets):
        return [one for part in tree.expressions for one in _sets(part)]
    if isinstance(tree, exp.Cube):
        parts = [_together(one) for one in tree.expressions]
        _require_few(2 ** len(parts))
        return [
            tuple(itertools.chain.from_iterable(chosen))
            for count in range(len(parts), -1, -1)
            for chosen in itertools.combinations(parts, count)
        ]
    if isinstance(tree, exp.Rollup):
        parts = [_together(one) for one in tree.expressions]
        return [tuple(itertools.chain.from_iterable(parts[:count])) for count in range(len(parts), -1, -1)]
    return [_together(tree)]


def _together(tree: Any) -> TreeSet:
    """The expressions that are in a set together: those in parentheses."""
    if isinstance(tree, exp.Paren):
        return _together(tree.this)
    return tuple(tree.expressions) if isinstance(tree, exp.Tuple) else (tree,)


def _product(parts: list[list[TreeSet]]) -> list[TreeSet]:
    """The sets of several parts together: each of one with each of the others."""
    count = 1
    for one in parts:
        count *= len(one)
    _require_few(count)
    return [tuple(itertools.chain.from_iterable(chosen)) for chosen in itertools.product(*parts)]


def _require_few(count: int) -> None:
    if count > _MOST_SETS:
        message = f"GROUP BY has {count} sets of keys; at most {_MOST_SETS} are supported"
        raise SqlError(message, hint="write those that are needed: GROUPING SETS ((a, b), (a))")


def expanded_keys(builder: Builder, node: Node, names: Sequence[str], keys: KeySets) -> tuple[Node, list[str], str]:
    """Return the rows once for every set, the columns of the keys, and that of the set's number.

    A key that is in every set stays the column that it is: windows, for one.
    """
    assert node.schema is not None
    kept = frozenset.intersection(*keys.sets)
    columns = unique_names([f"$in_set{i}" for i in range(len(names))], node.schema.names)
    number = unique_names(["$set"], [*node.schema.names, *columns])[0]
    moved = [i for i in range(len(names)) if i not in kept]
    expansion = GroupingSets(
        {columns[i]: col(names[i]) for i in moved},
        [keys.values[i].kind for i in moved],
        [frozenset(moved.index(i) for i in one if i in moved) for one in keys.sets],
        number,
    )
    new = [columns[i] if i in moved else name for i, name in enumerate(names)]
    return builder.expanded(node, expansion), new, number
