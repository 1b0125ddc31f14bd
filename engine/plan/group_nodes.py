"""What a plan does to the records of each group.

Source: Flink's ``ReduceOperator``, ``GroupReduceOperator``, ``AggregateOperator``, ``DistinctOperator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..frames.frame_calls import Frame
from ..functions.aggregates.contract import Aggregate
from .nodes import GroupKey, Node, Order

__all__ = [
    "Aggregation",
    "CombineGroup",
    "Distinct",
    "ExtremeBy",
    "First",
    "Grouped",
    "OrderedGroups",
    "OverGroups",
    "Reduce",
    "ReduceGroup",
]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Grouped(Node):
    """Works on groups of records: HASH by ``key``, without one GATHER, where it does not say otherwise.

    Attributes:
        key: The groups' key; None for one group of all.
    """

    key: GroupKey | None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OrderedGroups(Grouped):
    """Sees the records of a group in an order, if it asks for one.

    Attributes:
        orders: The order of the records of a group; empty for any.
    """

    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reduce(Grouped):
    """One record per group, made by combining two of them until one is left.

    Attributes:
        function: ReduceFunction or callable of two records; associative and commutative.
    """

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ReduceGroup(OrderedGroups):
    """Any number of records per group.

    Attributes:
        function: Takes an iterator over the group's records, gives an iterable. If it has a method ``combine`` of the
            same form (Flink's GroupCombineFunction), that may be run before the ship; what it gives has the input's
            type.
    """

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CombineGroup(OrderedGroups):
    """As `ReduceGroup`, but on the groups within each partition: FORWARD, one group may be seen several times.

    Attributes:
        key: The groups' key; None for all of a partition.
        function: As of `ReduceGroup`.
    """

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Aggregation(Grouped):
    """Built-in aggregates per group; a record has the key's fields (``key`` for a function) and the aggregates.

    Attributes:
        aggregates: By the name of the result.
        outputs: Where each field of the result comes from, in order: ``("key", index of the key's part)`` or
            ``("aggregate", name)``.
        field_names: The fields' names, in the same order (``f0``, ``f1`` ... if the result is a tuple).
        kind: What a result is: ``dict`` or ``tuple``.
    """

    aggregates: Mapping[str, Aggregate]
    outputs: tuple[tuple[str, Any], ...]
    field_names: tuple[str, ...]
    kind: str = "dict"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ExtremeBy(Grouped):
    """The record of each group with the least (or greatest) value of ``fields``, the first field counting most.

    A null, or NaN, loses against every value. One of several equal records is taken.

    Attributes:
        fields: Names or positions.
        is_min: Least or greatest.
    """

    fields: tuple[str | int, ...]
    is_min: bool


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class First(OrderedGroups):
    """At most ``count`` records of each group; the first ones in an order, if there is one.

    Attributes:
        count: How many; at least 1.
    """

    count: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Distinct(Grouped):
    """One record of each key. The whole record is the key if ``key`` is None: HASH with key None is then by the whole
    record (``functions`` knows how; unhashable dicts and lists are compared by content).
    """


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class OverGroups(OrderedGroups):
    """Every record with columns that tell where it is in its group, or what the group comes to up to it.

    Attributes:
        columns: What is computed, by the name of the new column: an `Aggregate`, or a place or neighbour
            (`headrace.engine.frames.frame_calls`).
        frame: Which records an aggregate sees; None for SQL's default: with an order all up to it and those that are
            equal in it, without one the whole group.
    """

    columns: Mapping[str, Any]
    frame: Frame | None = None
