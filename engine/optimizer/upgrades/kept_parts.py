"""What a node of a plan is, and what it keeps for that: ids of operators, and of the parts of their state, as data.

A node has *rows* and columns. What its rows are is said by a digest of how they come about: the table, the conditions
on the way, what was joined and grouped. What a column is is said by a digest of its value over the columns of tables.
An operator with state has

- an *id*: what its rows are grouped, ordered or matched by, over which rows;
- a *kin*: the same as if no condition stood between it and the tables or operators with state below;
- *parts*: what it keeps for that, each with a digest of its own: the columns of a join's rows, the calls of a group.

So a query with one more aggregate has the same operator with one more part, and one with another condition has a
relative of it.

Invariant: operators with one id keep the same for parts with one digest, given the same input (*trusted*: functions of
Python are known by their names, not by what they do).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.state.keyed.stored_names import StoredNames

from .digests import digest_of
from .stored_plan import OperatorKind

__all__ = ["Identity", "Keeps", "Part", "layout_of"]


@dataclass(frozen=True)
class Part:
    """Something that an operator keeps.

    Attributes:
        digest: What it is.
        text: The same for people.
        places: Where: (state, column) as the operator calls them; of a state itself the column is None.
        is_call: Whether it is an aggregate of a group, which may begin in the middle.
        is_derived: Whether it follows from how many records there are, and the parts that it reads.
        reads: Their digests.
    """

    digest: str
    text: str
    places: tuple[tuple[str, str | None], ...]
    is_call: bool = False
    is_derived: bool = False
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Keeps:
    """What an operator with state is about, and what it keeps for that.

    Attributes:
        kind: What the operator does.
        id: See above.
        kin: See above.
        title: For people.
        keys: The columns that it is keyed by, of each input, in an order that depends on what they and the inputs are
            alone: that in which rows come already by the same key, so that they need not go elsewhere.
        parts: By digest.
        places: Of the keys: (state, column) and what they are called where they are kept; of all states if none is
            named.
    """

    kind: OperatorKind
    id: str
    kin: str
    title: str
    keys: tuple[tuple[str, ...], ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)
    places: tuple[tuple[str, str, str], ...] = ()

    def stored_names(self, names: Mapping[str, str]) -> StoredNames:
        """Return how its state is called where it is kept.

        Args:
            names: Of its parts, by their digests.
        """
        states: dict[str, str] = {}
        columns: dict[str, dict[str, str]] = {}
        for state, column, name in self.places:
            columns.setdefault(state, {})[column] = name
        for digest, part in self.parts.items():
            for state, place in part.places:
                if place is None:
                    states[state] = names[digest]
                else:
                    prefix = "row." if place.startswith("row.") else ""
                    columns.setdefault(state, {})[place] = prefix + names[digest]
        return StoredNames(states, columns)


@dataclass(frozen=True)
class Identity:
    """What a node is.

    Attributes:
        base: Which rows it has, but for the conditions since the last operator with state or table.
        conditions: Those.
        columns: What each column is, by its name.
        keeps: What it keeps, if it keeps something.
        parts: Of columns that are parts of the key that its rows have come by, by what they are: which part. It does
            not depend on conditions, nor on which columns are selected.
    """

    base: str
    conditions: frozenset[str]
    columns: Mapping[str, str]
    keeps: Keeps | None = None
    parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> str:
        """Which rows it has."""
        return digest_of(self.base, sorted(self.conditions)) if self.conditions else self.base


def layout_of(identities: Iterable[Identity]) -> str:
    """Return what records between nodes are, and what their columns are called: the same for plans that could read each
    other's.
    """
    return digest_of("layout", [(one.rows, sorted(one.columns.items())) for one in identities])
