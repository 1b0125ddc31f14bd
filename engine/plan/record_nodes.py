"""What a plan does to records one by one, and to partitions as a whole: no keys, no groups.

Source: Flink's ``MapOperator``, ``FilterOperator``, ``ProjectOperator``, ``UnionOperator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..columns.expressions import Expression
from .nodes import Node, Order

__all__ = [
    "Cache",
    "FilterColumns",
    "FilterRows",
    "FlatMap",
    "Map",
    "MapBatches",
    "MapPartition",
    "Project",
    "Repartition",
    "Select",
    "Sort",
    "SortPartition",
    "Union",
]

# Record by record, batch by batch, partition by partition: one input, FORWARD.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Map(Node):
    """One record in, one out. ``function``: MapFunction or callable."""

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FlatMap(Node):
    """One record in, any number out. ``function``: FlatMapFunction or callable that yields or gives an iterable."""

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FilterRows(Node):
    """Keeps the records for which ``function`` is true: FilterFunction or callable."""

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FilterColumns(Node):
    """Keeps the records for which ``condition`` is true; null is not true."""

    condition: Expression


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MapPartition(Node):
    """A partition in, any number of records out. ``function``: takes an iterator of records, gives an iterable."""

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MapBatches(Node):
    """Record batches in and out. How records are cut into batches is the executor's choice.

    ``function``: takes a RecordBatch, gives what DataStream's ``map_batches`` takes.
    """

    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Project(Node):
    """Some fields of each record, in an order: a dict of names, or a tuple of positions.

    Attributes:
        fields: Names, or positions; all of one kind.
    """

    fields: tuple[str | int, ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Select(Node):
    """Computes columns; records become dicts.

    Attributes:
        columns: Expressions by the name of the new column.
        keep: Whether the other fields stay, in front; those of the same name are replaced in place.
    """

    columns: Mapping[str, Expression]
    keep: bool = False


# Partitioning and order.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Repartition(Node):
    """The same records, brought elsewhere by its ship. No function."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SortPartition(Node):
    """Sorts each partition; FORWARD."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Sort(Node):
    """Sorts all records: RANGE by ``orders``, then each partition is sorted."""

    orders: tuple[Order, ...]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Cache(Node):
    """The same records, kept by the executor for further plans that have this node. No function.

    Attributes:
        token: Unique to the node; when it is no longer held, what is kept may go.
    """

    token: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Union(Node):
    """The records of all inputs, duplicates too. No function: its partitions are those of its inputs one after the
    other, or the i-th of each put together, as the executor likes; schemas are equal or all None.
    """
