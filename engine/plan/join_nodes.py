"""What a plan does with two inputs.

Source: Flink's ``JoinOperator``, ``CoGroupOperator``, ``CrossOperator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..columns.expressions import Expression
from .nodes import GroupKey, Node, Order

__all__ = [
    "CoGroup",
    "ConditionJoin",
    "Cross",
    "Join",
    "JoinHint",
    "KeyMatch",
    "Pairs",
    "SemiJoin",
]


class JoinHint(Enum):
    """What the program knows of the sizes of a join's inputs."""

    OPTIMIZER_CHOOSES = "optimizer chooses"
    BROADCAST_HASH_FIRST = "broadcast the first, hash it"
    BROADCAST_HASH_SECOND = "broadcast the second, hash it"
    REPARTITION_HASH_FIRST = "repartition both, hash the first"
    REPARTITION_HASH_SECOND = "repartition both, hash the second"
    REPARTITION_SORT_MERGE = "repartition both, sort, merge"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KeyMatch(Node):
    """Brings records of both inputs together that have equal keys.

    Attributes:
        left_key: Of the first input.
        right_key: Of the second input.
    """

    left_key: GroupKey
    right_key: GroupKey


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Pairs(Node):
    """Makes something of every pair of a record of the first and one of the second input.

    The output of a pair is, if ``function`` is given, what that makes of (left, right); else, if ``projection`` is
    given, a record of those fields; else the tuple (left, right), of type None.

    Attributes:
        function: See above; what it may be the kinds of pairs say.
        projection: ``(side 0 or 1, field, name in the result)`` of each field.
        is_tuple: Whether the projection makes a tuple, not a dict; names are then ``f0``, ``f1`` ...
    """

    function: Any = None
    projection: tuple[tuple[int, str | int, str], ...] | None = None
    is_tuple: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Join(KeyMatch, Pairs):
    """Pairs of records with equal keys.

    A missing side is None to a function, and null in every field to a projection. ``function`` is a JoinFunction or
    callable of two records; a FlatJoinFunction gives any number of records.

    Ships: HASH both, or BROADCAST one and FORWARD the other (never broadcasting a side whose unmatched records are
    asked for).

    Attributes:
        how: ``inner``, ``left``, ``right``, ``full``.
        hint: See `JoinHint`.
    """

    how: str = "inner"
    hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CoGroup(KeyMatch):
    """A function of both groups of each key that one of the inputs has; null is a key. HASH both.

    Attributes:
        function: CoGroupFunction or callable of two lists of records, gives an iterable.
        left_orders: Order within the groups of the first input.
        right_orders: Order within the groups of the second input.
    """

    function: Any
    left_orders: tuple[Order, ...] = ()
    right_orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Cross(Pairs):
    """All pairs: FORWARD one input, BROADCAST the other. ``function`` is a callable (or CrossFunction: a method
    ``cross``) of two records.
    """


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SemiJoin(KeyMatch):
    """The records of the first input that have a partner in the second, as they are and each once; or those without.

    A record whose key is null has no partner. Ships: HASH both, or FORWARD and BROADCAST.

    Attributes:
        is_anti: Whether those without a partner are given.
    """

    is_anti: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ConditionJoin(Node):
    """Pairs of records for which a condition over the fields of both is true: FORWARD and BROADCAST.

    Attributes:
        condition: Over the names of the result of ``projection``.
        projection: ``(side 0 or 1, field, name in the result)`` of each field.
        how: ``inner``; ``left`` keeps records of the first input without a partner, with null in the other fields;
            ``semi`` and ``anti`` give the records of the first input that have a partner, or none.
    """

    condition: Expression
    projection: tuple[tuple[int, str, str], ...]
    how: str = "inner"
