"""What every node of a plan has: a type of its records, inputs, and how each of them is brought to it.

Invariant: all of this is immutable, and told apart by identity; a rewrite makes another node with the same ``id``. The
kinds of nodes are in the modules ``..._nodes``; `headrace.engine.plan.plan` is the contract that they are run by.

Source: Flink's ``PlanNode``, ``Channel``, ``ShipStrategyType``, ``Ordering``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from headrace.state.values.types import RECORD_SHAPE, declared_shape

from ..functions.keys import KeySelector

__all__ = [
    "BROADCAST",
    "FORWARD",
    "GATHER",
    "PICKLED",
    "REBALANCE",
    "GroupKey",
    "Node",
    "Order",
    "Ship",
    "ShipKind",
    "record_shape",
    "wire_schema",
]

PICKLED = pa.schema([pa.field("pickled", pa.binary(), nullable=False)], metadata={RECORD_SHAPE: b"pickled"})
"""The wire schema of arbitrary Python objects: one pickle per record."""


def wire_schema(schema: pa.Schema | None) -> pa.Schema:
    """Return the schema of the record batches that carry records of a type."""
    return PICKLED if schema is None else schema


def record_shape(schema: pa.Schema | None) -> str:
    """Return what a record is in Python: ``dict``, ``tuple``, ``value``, or ``object`` if there is no schema."""
    return "object" if schema is None else declared_shape(schema)


@dataclass(frozen=True, eq=False)
class GroupKey:
    """How the key of a record is found, and how it is called in results.

    Attributes:
        selector: Finds keys, on rows or on columns.
        names: The columns of the key, if it is made of fields (position n of a tuple is ``fn``); None for a function.
        fields: The fields as the user gave them, names or positions; None for a function.
        function: The function, if it goes by one.
    """

    selector: KeySelector
    names: tuple[str, ...] | None
    fields: tuple[str | int, ...] | None = None
    function: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return repr(self.selector).replace("KeySelector", "key", 1)

    def is_same_as(self, other: GroupKey | None) -> bool:
        """Tell whether both find equal keys in equal records of one data set: the same fields, or the same function."""
        if other is None:
            return False
        if self.names is None or other.names is None:
            return self.function is not None and self.function is other.function
        return self.names == other.names


@dataclass(frozen=True, eq=False)
class Order:
    """One sort key.

    Attributes:
        field: Name of a field, position in a tuple, or a function of the record.
        ascending: Else exactly the reverse, nulls last.
    """

    field: str | int | Callable[[Any], Any]
    ascending: bool = True

    @property
    def column(self) -> str | None:
        """The name of the column, if it goes by a field."""
        if isinstance(self.field, str):
            return self.field
        return f"f{self.field}" if isinstance(self.field, int) else None

    def __repr__(self) -> str:
        what = self.field if isinstance(self.field, (str, int)) else getattr(self.field, "__name__", "function")
        return f"{what} {'asc' if self.ascending else 'desc'}"


class ShipKind(Enum):
    """How records get from the partitions of an input to those of a node."""

    FORWARD = "forward"
    """They stay where they are: partition i to partition i."""
    HASH = "hash"
    """Equal keys to one partition. Both inputs of a join or co-group agree on which: the stable hash of the key
    (`headrace.state.keys.hashing.hash_keys`) modulo the number of partitions, unless the executor hashes both
    itself.
    """
    RANGE = "range"
    """By the order of ``orders``: partition i holds nothing greater than what partition i + 1 holds. Equal records in
    that order may be in one partition only. Bounds come of a sample; partitions may be empty.
    """
    CUSTOM = "custom"
    """To the partition that ``function(key, num_partitions)`` names."""
    REBALANCE = "rebalance"
    """Evenly, in turn."""
    GATHER = "gather"
    """All to partition 0, in order of the partitions; the node has that one partition only."""
    BROADCAST = "broadcast"
    """Every partition gets all records, in order of the partitions."""


@dataclass(frozen=True, eq=False)
class Ship:
    """How one input is brought to a node.

    Attributes:
        kind: See `ShipKind`.
        key: Of HASH and CUSTOM.
        orders: Of RANGE.
        function: Of CUSTOM: ``(key, num_partitions) -> partition``.
    """

    kind: ShipKind
    key: GroupKey | None = None
    orders: tuple[Order, ...] = ()
    function: Callable[[Any, int], int] | None = None

    def __repr__(self) -> str:
        if self.kind is ShipKind.RANGE:
            return f"range({', '.join(map(repr, self.orders))})"
        return self.kind.value if self.key is None else f"{self.kind.value} {self.key!r}"


FORWARD = Ship(ShipKind.FORWARD)
REBALANCE = Ship(ShipKind.REBALANCE)
GATHER = Ship(ShipKind.GATHER)
BROADCAST = Ship(ShipKind.BROADCAST)


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """A step of a program.

    Contract: never changed after it was made; ``replace`` makes another. Two nodes are the same step iff they are the
    same object; ``id`` stays through rewrites (*trusted*).

    Attributes:
        id: Number of the node, in the order in which the program made them.
        name: For people: what ``name()`` gave it, else the operator's.
        inputs: What it reads.
        schema: Type of its records; None for arbitrary Python objects.
        ships: How each input is brought here.
        parallelism: How many partitions its exchanges make; None for the executor's default. GATHER makes one.
        broadcasts: Data sets that its function may ask for by name, whole, in every subtask.
        combine: Whether groups are combined in every partition before they are shipped (``functions.combine``); what is
            shipped then has ``functions.combined_schema(node)``.
        is_sorted: Whether input 0 comes with each group's records next to each other and in the order asked for, so
            that no sort is needed.
        is_shared: Whether several nodes (or every superstep of an iteration) read it, so that it is computed once.
        notes: What the optimiser decided about it, for ``explain``.
        ttls_ms: By input, how long that lives on a stream which it keeps of it and is not written; 0 for ever, None for
            what the settings say, as an empty one.
    """

    id: int
    name: str
    inputs: tuple[Node, ...] = ()
    schema: pa.Schema | None = None
    ships: tuple[Ship, ...] = ()
    parallelism: int | None = None
    broadcasts: tuple[tuple[str, Node], ...] = ()
    combine: bool = False
    is_sorted: bool = False
    is_shared: bool = False
    notes: tuple[str, ...] = ()
    ttls_ms: tuple[int | None, ...] = ()

    @property
    def parents(self) -> tuple[Node, ...]:
        """Everything that must be there before it runs: inputs, then broadcast sets."""
        return (*self.inputs, *(node for _name, node in self.broadcasts))

    def with_parents(self, parents: tuple[Node, ...]) -> Node:
        """Return the node with other parents, in the order of ``parents``; itself if they are the same."""
        if all(new is old for new, old in zip(parents, self.parents, strict=True)):
            return self
        count = len(self.inputs)
        names = [name for name, _node in self.broadcasts]
        return replace(self, inputs=parents[:count], broadcasts=tuple(zip(names, parents[count:], strict=True)))

    @property
    def placeholders(self) -> tuple[Node, ...]:
        """Of an iteration: what stands in its step plan for what changes from superstep to superstep."""
        return ()

    @property
    def step_roots(self) -> tuple[Node, ...]:
        """Of an iteration: the roots of its step plan."""
        return ()

    @property
    def operator(self) -> str:
        """What kind of step it is, as the class says it."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self.operator}#{self.id}({self.name})"
