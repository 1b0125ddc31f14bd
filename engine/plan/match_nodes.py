"""Rows in a pattern: what MATCH_RECOGNIZE says, as a node of a plan. Nothing runs it yet.

It has all that is needed to run it: how rows are grouped and ordered, the pattern of variables, when a row may be one
of them, what is computed of a match, and where the next one is looked for. Conditions and measures are expressions over
columns that stand for what is *looked up* in a match: a value of its rows, or an aggregate over them.

Source: SQL:2016, row pattern recognition; Flink's ``FlinkLogicalMatch``, ``MatchSpec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..columns.expressions import Expression
from ..functions.aggregates.contract import Aggregate
from .group_nodes import OrderedGroups

__all__ = ["AfterMatch", "Choice", "Look", "MatchRecognize", "OneAfterOther", "Pattern", "Repeated", "Variable"]


@dataclass(frozen=True)
class Variable:
    """One row that is called so."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class OneAfterOther:
    """What follows each other without a row between."""

    parts: tuple[Pattern, ...]

    def __str__(self) -> str:
        return " ".join(f"({one})" if isinstance(one, Choice) else str(one) for one in self.parts)


@dataclass(frozen=True)
class Choice:
    """One of several; the first that leads to a match counts."""

    parts: tuple[Pattern, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.parts))


@dataclass(frozen=True)
class Repeated:
    """The same several times.

    Attributes:
        part: What.
        least: How often at least.
        most: How often at most; None for any number of times.
        is_greedy: Whether more of it is tried before less.
    """

    part: Pattern
    least: int
    most: int | None
    is_greedy: bool = True

    def __str__(self) -> str:
        inner = str(self.part) if isinstance(self.part, Variable) else f"({self.part})"
        most = "" if self.most is None else self.most
        known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        times = (
            known.get((self.least, self.most)) or f"{{{self.least if most == self.least else f'{self.least},{most}'}}}"
        )
        return f"{inner}{times}{'' if self.is_greedy else '?'}"


Pattern = Variable | OneAfterOther | Choice | Repeated


def variables_of(pattern: Pattern) -> Iterator[str]:
    """Yield the names of a pattern's variables, in order; one may come several times."""
    if isinstance(pattern, Variable):
        yield pattern.name
    elif isinstance(pattern, Repeated):
        yield from variables_of(pattern.part)
    else:
        for part in pattern.parts:
            yield from variables_of(part)


@dataclass(frozen=True)
class Look:
    """What a column of conditions and measures stands for.

    Attributes:
        how: ``first``, ``last`` (of the rows of a variable, or of all), ``prev``, ``next`` (beside the row in
            question), ``aggregate``, or ``rowtime``: the event time of the last row.
        variable: Whose rows; None for all of the match.
        value: Over the columns of the input; None for an aggregate, or for the time.
        offset: How many rows from there, into the match.
        aggregate: What rows are folded into.
    """

    how: str
    variable: str | None = None
    value: Expression | None = None
    offset: int = 0
    aggregate: Aggregate | None = None


@dataclass(frozen=True)
class AfterMatch:
    """Where the next match may begin: at the ``first`` or ``last`` row of a variable, or ``past`` the last row of the
    match, or at the ``next`` row to its first one.
    """

    to: str = "past"
    variable: str | None = None

    def __str__(self) -> str:
        named = {"past": "past last row", "next": "to next row"}
        return f"skip {named.get(self.to) or f'to {self.to} {self.variable}'}"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MatchRecognize(OrderedGroups):
    """A row for each match of a pattern in the rows of a group, in an order: the key and the measures.

    Attributes:
        pattern: Which variables follow each other.
        definitions: When a row may be a variable, over ``looks``; always, where nothing is said.
        measures: What is computed of a match, over ``looks``.
        looks: What columns of both stand for.
        after: Where the next match may begin.
        within_ms: How long a match may last; None for any time.
        refused: What is raised where it would be run.
    """

    pattern: Pattern
    definitions: Mapping[str, Expression]
    measures: Mapping[str, Expression]
    looks: Mapping[str, Look]
    after: AfterMatch
    within_ms: int | None
    refused: Any
