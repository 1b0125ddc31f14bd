"""What is known of a node's result without running it: how it is partitioned and sorted, how many records it may have.

Only what follows from the plan is known; functions of users may do anything to a record, so nothing survives them but
a filter. Fields that an operation keeps under their names keep what is known of them.

Source: Flink's ``GlobalProperties``, ``LocalProperties``, semantic properties of operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..plan.plan import (
    Aggregation,
    Cache,
    Distinct,
    ExtremeBy,
    FilterColumns,
    FilterRows,
    First,
    GroupKey,
    Join,
    Map,
    Node,
    Order,
    OverGroups,
    Pairs,
    Project,
    Reduce,
    Repartition,
    Select,
    SemiJoin,
    SequenceSource,
    Ship,
    ShipKind,
    Sort,
    SortPartition,
    TableSource,
    Union,
)

__all__ = ["Known", "known_of", "most_records", "num_partitions"]


@dataclass(frozen=True)
class Known:
    """What is known of a result.

    Attributes:
        ship: How its records came to their partitions: HASH, RANGE or CUSTOM; None if that is not known any more.
        orders: The order inside of each partition; empty for none.
        count: How many partitions there are; None for the executor's default.
    """

    ship: Ship | None = None
    orders: tuple[Order, ...] = ()
    count: int | None = None

    def brings_together(self, key: GroupKey) -> bool:
        """Return whether records with equal keys are in one partition."""
        if self.ship is None:
            return False
        if self.ship.kind is ShipKind.RANGE:
            names = tuple(order.column for order in self.ship.orders)
            return key.names is not None and set(names) <= set(key.names)
        own = self.ship.key
        if own is None:
            return False
        if own.names is not None and key.names is not None:
            return set(own.names) <= set(key.names)
        return own.is_same_as(key)

    def is_hashed_by(self, key: GroupKey) -> bool:
        """Return whether records are in the partition that a HASH ship by ``key`` would bring them to."""
        return self.ship is not None and self.ship.kind is ShipKind.HASH and key.is_same_as(self.ship.key)


def num_partitions(node: Node, inputs: list[Known]) -> int | None:
    """Return how many partitions a node has; None for the executor's default."""
    for ship, known in zip(node.ships, inputs, strict=False):
        if ship.kind is ShipKind.FORWARD:
            return known.count
    return 1 if any(ship.kind is ShipKind.GATHER for ship in node.ships) else node.parallelism


def known_of(node: Node, inputs: list[Known]) -> Known:
    """Return what is known of the result of a node.

    Args:
        node: The node.
        inputs: What is known of each of its inputs.
    """
    if isinstance(node, Union):
        # Partitions one after the other, or put together: that is the executor's business.
        return Known(count=-node.id)
    if not inputs or not node.ships:
        return Known(count=node.parallelism)
    count = num_partitions(node, inputs)
    if isinstance(node, Pairs):
        return Known(_kept_ship(node, inputs), (), count)
    if isinstance(node, SemiJoin):
        # The records of the first input, where it was or where the node's ship has brought them.
        placed = inputs[0].ship if node.ships[0].kind is ShipKind.FORWARD else node.ships[0]
        return Known(placed, (), count)
    if len(inputs) != 1:
        return Known(count=count)
    ship = node.ships[0]
    kept = _kept_fields(node)
    if kept is None:
        return Known(count=count)
    before = inputs[0]
    placed = before.ship if ship.kind is ShipKind.FORWARD else ship
    if placed is not None and placed.kind not in (ShipKind.HASH, ShipKind.RANGE, ShipKind.CUSTOM):
        placed = None
    if isinstance(node, (Sort, SortPartition)):
        orders: tuple[Order, ...] = node.orders
    elif ship.kind is ShipKind.FORWARD and isinstance(node, (FilterRows, FilterColumns, Project, Select, Repartition)):
        orders = before.orders
    else:
        orders = ()
    return Known(_renamed(placed, kept), _renamed_orders(orders, kept), count)


def _kept_ship(node: Pairs, inputs: list[Known]) -> Ship | None:
    """Of a join that gives fields: the key under its names, of an input that is partitioned by it."""
    if not isinstance(node, Join) or node.projection is None or node.is_tuple:
        return None
    for side, (ship, key) in enumerate(zip(node.ships, (node.left_key, node.right_key), strict=True)):
        # Records of the other side without a partner have nothing in the fields of this one.
        if node.how not in ("inner", "left" if side == 0 else "right"):
            continue
        placed = inputs[side].ship if ship.kind is ShipKind.FORWARD else ship
        if placed is None or placed.kind is not ShipKind.HASH or not key.is_same_as(placed.key):
            continue
        same = {name: name for where, field, name in node.projection if where == side and field == name}
        return _renamed(placed, same) if same else None
    return None


def _kept_fields(node: Node) -> Mapping[str, str] | None:
    """The fields that a node takes over under their own names, as a mapping of itself; None if it keeps none.

    An empty mapping means all: the records are the same.
    """
    kinds = (FilterRows, FilterColumns, Repartition, Sort, SortPartition, First, Distinct, ExtremeBy, OverGroups)
    if isinstance(node, kinds):
        return {}
    if isinstance(node, Project):
        names = [field for field in node.fields if isinstance(field, str)]
        return {name: name for name in names} or None
    if isinstance(node, Select):
        same = {name: name for name, value in node.columns.items() if value.structure == ("col", name)}
        schema = node.inputs[0].schema
        if node.keep and schema is not None:
            same.update({name: name for name in schema.names if name not in node.columns})
        return same or None
    if isinstance(node, Aggregation) and node.key is not None and node.key.names is not None and node.kind == "dict":
        return {name: name for name in node.key.names}
    return None


def _renamed(ship: Ship | None, kept: Mapping[str, str]) -> Ship | None:
    """The ship, if all that it goes by is kept."""
    if ship is None or not kept:
        return ship
    if ship.kind is ShipKind.RANGE:
        return ship if all(order.column in kept for order in ship.orders) else None
    if ship.key is None or ship.key.names is None:
        return None
    return ship if all(name in kept for name in ship.key.names) else None


def _renamed_orders(orders: tuple[Order, ...], kept: Mapping[str, str]) -> tuple[Order, ...]:
    if not kept:
        return orders
    result = []
    for order in orders:
        if order.column not in kept:
            break
        result.append(order)
    return tuple(result)


# --------------------------------------------------------------------------------------------------------------- sizes


def most_records(node: Node, inputs: list[int | None]) -> int | None:
    """Return an upper bound of the number of records; None if the plan does not say.

    Args:
        node: The node.
        inputs: The bound of each of its inputs.
    """
    if isinstance(node, TableSource):
        return node.table.num_rows
    if isinstance(node, SequenceSource):
        return max(node.end - node.start + 1, 0)
    if isinstance(node, First) and node.key is None:
        return node.count
    if isinstance(node, Aggregation) and node.key is None:
        return 1
    if isinstance(node, Union):
        return None if None in inputs else sum(bound for bound in inputs if bound is not None)
    if isinstance(
        node,
        (Map, FilterRows, FilterColumns, Project, Select, Repartition, Sort, SortPartition, Reduce, Aggregation, First,
         Distinct, ExtremeBy, Cache, OverGroups, SemiJoin),
    ):  # fmt: skip
        return inputs[0]
    return None
