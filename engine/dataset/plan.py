"""The logical plan of a DataSet program: what executors run.

A plan is a graph of immutable nodes. Programs build it through ``headrace.dataset``,
`headrace.engine.dataset.optimizer` rewrites it, and an executor (Spark, or the reference executor in process) runs it
from its sinks. A rewrite keeps a node's ``id``, and every node has the `Ship` of each of its inputs written on it, so
an executor need not decide anything: it may, where it has something better.

**Running a node** by the book, which is what the reference executor does:

1. Run each of ``node.inputs``; each gives a list of partitions, a partition being a sequence of record batches.
2. If ``node.combine`` is set, put every partition of input 0 through ``functions.combine(node, ...)``.
3. Bring each input where its ship says (``node.ships[i]``, see `Ship`), into ``parallelism`` partitions. A node whose
   ships are all FORWARD has as many partitions as its first input.
4. For every subtask call ``functions.apply(node, context, inputs)`` with that subtask's partition of every input; what
   it yields is the output partition. Sources, `Union`, `Repartition`, iterations and sinks have no function: they are
   executed as their docstrings say.

An executor may run a node natively (Catalyst's join, aggregate, sort) wherever the result is the one described here.

**Records.** A node's ``schema`` is the Arrow schema of its records, with ``headrace.row`` in its metadata (``dict`` by
default, ``tuple``, ``value``), or None for arbitrary Python objects. Between nodes everything is a ``pa.RecordBatch``
of ``wire_schema(node.schema)``: the schema itself, or `PICKLED` with one pickled record per row. Functions see records
as on a DataStream: dicts, tuples or plain values; never instances of a dataclass that went through columns.

**Nulls, NaN, zero.** For grouping, ``distinct`` and ``co_group`` null is a key like any other, all NaN are one key, and
-0.0 is 0.0. A join matches no record whose key, or a part of it, is null (outer joins give it unmatched); NaN matches
NaN. Aggregates are SQL's (`headrace.engine.aggregates`). Ascending order is: null, numbers (or false, true; texts by
code point), NaN; descending is exactly the reverse. Sorting is stable within a partition.

**Order** is promised only by `SortPartition` (inside each partition), `Sort` (over partitions, in order of their index,
which ``collect`` keeps), group order (`ReduceGroup`, `First`, `CoGroup` with ``orders``), and by operators that work
record by record or partition by partition, which keep it as long as the ship is FORWARD. Nothing else is: which of
several records `First` without order, `Distinct` by key or `ExtremeBy` with ties keeps, and the order in which
`Reduce` meets records, may differ between executors, and between runs.

**Empty partitions** are ordinary: a function of partitions is called for each of them, with an empty iterator; one of
groups is called per group, so never. Without a key `Aggregate` gives one record of no input (count 0, else null), and
`Reduce`, `ReduceGroup`, `ExtremeBy`, `First` give none.

**Isolation.** A function may change a record it was given only if nobody else sees it: executors give each consumer its
own objects (records are made anew from wire batches). Functions of joins, co-groups with a solution set, crosses and
reductions get a record several times or keep it: they must not change any.

**Failures.** What a user function raises is raised as UserFunctionError with operator, subtask and traceback, by
``functions``; an executor passes it on as it is and does not retry it.

Source: Flink's ``flink-optimizer`` (``ShipStrategyType``, ``DriverStrategy``) and ``DataSet`` operators; rows A12, B2,
H1 to H5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa

from headrace.engine.accumulators import AccumulatorPart
from headrace.engine.aggregates import Aggregate
from headrace.engine.expressions import Expression
from headrace.engine.keys import KeySelector

__all__ = [
    "BROADCAST",
    "FORWARD",
    "GATHER",
    "PICKLED",
    "REBALANCE",
    "ROW_KIND",
    "Aggregation",
    "BulkIteration",
    "CoGroup",
    "Collect",
    "CombineGroup",
    "Convergence",
    "Count",
    "Cross",
    "DeltaIteration",
    "Distinct",
    "ExecutionResult",
    "Executor",
    "ExtremeBy",
    "FileSource",
    "FilterColumns",
    "FilterRows",
    "First",
    "FlatMap",
    "ForeignSource",
    "GroupKey",
    "IterationInput",
    "Join",
    "JoinHint",
    "Map",
    "MapBatches",
    "MapPartition",
    "Node",
    "Order",
    "Project",
    "Reduce",
    "ReduceGroup",
    "Repartition",
    "Select",
    "SequenceSource",
    "Ship",
    "ShipKind",
    "Sort",
    "SortPartition",
    "TableSource",
    "Union",
    "WriteFiles",
    "dependents_on",
    "row_kind",
    "walk",
    "wire_schema",
]

ROW_KIND = b"headrace.row"
"""In a schema's metadata: what a record is in Python (``dict``, ``tuple``, ``value``, and ``pickled`` on the wire)."""

PICKLED = pa.schema([pa.field("pickled", pa.binary(), nullable=False)], metadata={ROW_KIND: b"pickled"})
"""The wire schema of arbitrary Python objects: one pickle per record."""


def wire_schema(schema: pa.Schema | None) -> pa.Schema:
    """The schema of the record batches that carry records of a type."""
    return PICKLED if schema is None else schema


def row_kind(schema: pa.Schema | None) -> str:
    """What a record is in Python: ``dict``, ``tuple``, ``value``, or ``object`` if there is no schema."""
    return "object" if schema is None else (schema.metadata or {}).get(ROW_KIND, b"dict").decode()


# ------------------------------------------------------------------------------------------------------ keys and orders


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
        """Whether both find equal keys in equal records of one data set: the same fields, or the same function."""
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


# --------------------------------------------------------------------------------------------------------------- ships


class ShipKind(Enum):
    """How records get from the partitions of an input to those of a node."""

    FORWARD = "forward"
    """They stay where they are: partition i to partition i."""
    HASH = "hash"
    """Equal keys to one partition. Both inputs of a join or co-group agree on which: the stable hash of the key
    (`headrace.state.keygroups.hash_keys`) modulo the number of partitions, unless the executor hashes both itself.
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


# --------------------------------------------------------------------------------------------------------------- nodes


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

    @property
    def parents(self) -> tuple[Node, ...]:
        """Everything that must be there before it runs: inputs, then broadcast sets."""
        return (*self.inputs, *(node for _name, node in self.broadcasts))

    def with_parents(self, parents: tuple[Node, ...]) -> Node:
        """The node with other parents, in the order of ``parents``; itself if they are the same."""
        if all(new is old for new, old in zip(parents, self.parents, strict=True)):
            return self
        count = len(self.inputs)
        names = [name for name, _node in self.broadcasts]
        return replace(self, inputs=parents[:count], broadcasts=tuple(zip(names, parents[count:], strict=True)))

    @property
    def operator(self) -> str:
        """What kind of step it is, as the class says it."""
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{self.operator}#{self.id}({self.name})"


# Sources have no inputs. They make ``parallelism`` partitions.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TableSource(Node):
    """Records in memory, dealt out in runs of equal length. ``table`` has ``wire_schema(schema)``."""

    table: pa.Table


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SequenceSource(Node):
    """The integers ``start`` to ``end``, both included; one column ``value`` of int64."""

    start: int
    end: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FileSource(Node):
    """Records of files, read by `headrace.engine.dataset.file_io`, so that every executor decodes them alike.

    Attributes:
        format: ``text`` (a value per line), ``csv``, ``json`` (an object per line), ``parquet``.
        paths: Files; folders and patterns are resolved already.
        file_schema: The type of the records in the files. ``schema`` is that of the columns that are read.
        condition: Records for which it is not true are left out, before ``columns`` are taken; None for all.
        columns: The columns that are read, in this order; None for all.
        options: Of the format, by name (``delimiter``, ``header``, ``encoding`` ...).
    """

    format: str
    paths: tuple[str, ...]
    file_schema: pa.Schema
    condition: Expression | None = None
    columns: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ForeignSource(Node):
    """Records that another system holds.

    Attributes:
        kind: ``spark`` (``handle`` is a Spark DataFrame) or ``ray`` (a sequence of object references of Arrow tables or
            batches). Everything else has been made a `TableSource` when the plan was made.
        handle: See above.
    """

    kind: str
    handle: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class IterationInput(Node):
    """Stands in a step plan for what changes from superstep to superstep: no inputs, bound by the iteration's executor.

    Attributes:
        role: ``partial`` (bulk: the previous result), ``workset`` or ``solution`` (delta iteration).
    """

    role: str


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
class Union(Node):
    """The records of all inputs, duplicates too. No function: its partitions are those of its inputs one after the
    other, or the i-th of each put together, as the executor likes; schemas are equal or all None.
    """


# By key: HASH by ``key``; without one GATHER.


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reduce(Node):
    """One record per group, made by combining two of them until one is left.

    Attributes:
        key: The groups' key; None for one group of all.
        function: ReduceFunction or callable of two records; associative and commutative.
    """

    key: GroupKey | None
    function: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ReduceGroup(Node):
    """Any number of records per group.

    Attributes:
        key: The groups' key; None for one group of all.
        function: Takes an iterator over the group's records, gives an iterable. If it has a method ``combine`` of the
            same form (Flink's GroupCombineFunction), that may be run before the ship; what it gives has the input's
            type.
        orders: The order of the records of a group; empty for any.
    """

    key: GroupKey | None
    function: Any
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CombineGroup(Node):
    """As `ReduceGroup`, but on the groups within each partition: FORWARD, one group may be seen several times.

    Attributes:
        key: The groups' key; None for all of a partition.
        function: As of `ReduceGroup`.
        orders: As of `ReduceGroup`.
    """

    key: GroupKey | None
    function: Any
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Aggregation(Node):
    """Built-in aggregates per group; a record has the key's fields (``key`` for a function) and the aggregates.

    Attributes:
        key: The groups' key; None for one group of all.
        aggregates: By the name of the result.
        outputs: Where each field of the result comes from, in order: ``("key", index of the key's part)`` or
            ``("aggregate", name)``.
        field_names: The fields' names, in the same order (``f0``, ``f1`` ... if the result is a tuple).
        kind: What a result is: ``dict`` or ``tuple``.
    """

    key: GroupKey | None
    aggregates: Mapping[str, Aggregate]
    outputs: tuple[tuple[str, Any], ...]
    field_names: tuple[str, ...]
    kind: str = "dict"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ExtremeBy(Node):
    """The record of each group with the least (or greatest) value of ``fields``, the first field counting most.

    A null, or NaN, loses against every value. Of equal records one is taken.

    Attributes:
        key: The groups' key; None for one group of all.
        fields: Names or positions.
        is_min: Least or greatest.
    """

    key: GroupKey | None
    fields: tuple[str | int, ...]
    is_min: bool


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class First(Node):
    """At most ``count`` records of each group; the first ones in an order, if there is one.

    Attributes:
        key: The groups' key; None for one group of all.
        count: How many; at least 1.
        orders: The order of the records of a group; empty for any.
    """

    key: GroupKey | None
    count: int
    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Distinct(Node):
    """One record of each key. The whole record is the key if ``key`` is None: HASH with key None is then by the whole
    record (``functions`` knows how; unhashable dicts and lists are compared by content).
    """

    key: GroupKey | None


# Two inputs.


class JoinHint(Enum):
    """What the program knows of the sizes of a join's inputs."""

    OPTIMIZER_CHOOSES = "optimizer chooses"
    BROADCAST_HASH_FIRST = "broadcast the first, hash it"
    BROADCAST_HASH_SECOND = "broadcast the second, hash it"
    REPARTITION_HASH_FIRST = "repartition both, hash the first"
    REPARTITION_HASH_SECOND = "repartition both, hash the second"
    REPARTITION_SORT_MERGE = "repartition both, sort, merge"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Join(Node):
    """Pairs of records with equal keys.

    The output of a pair is, if ``function`` is given, what that makes of (left, right); else, if ``projection`` is
    given, a record of those fields; else the tuple (left, right), of type None. A missing side is None to a function,
    and null in every field to a projection.

    Ships: HASH both, or BROADCAST one and FORWARD the other (never broadcasting a side whose unmatched records are
    asked for).

    Attributes:
        left_key: Of the first input.
        right_key: Of the second input.
        how: ``inner``, ``left``, ``right``, ``full``.
        hint: See `JoinHint`.
        function: JoinFunction or callable of two records; a FlatJoinFunction gives any number of records.
        projection: ``(side 0 or 1, field, name in the result)`` of each field.
        is_tuple: Whether the projection makes a tuple, not a dict; names are then ``f0``, ``f1`` ...
    """

    left_key: GroupKey
    right_key: GroupKey
    how: str = "inner"
    hint: JoinHint = JoinHint.OPTIMIZER_CHOOSES
    function: Any = None
    projection: tuple[tuple[int, str | int, str], ...] | None = None
    is_tuple: bool = False


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CoGroup(Node):
    """A function of both groups of each key that one of the inputs has; null is a key. HASH both.

    Attributes:
        left_key: Of the first input.
        right_key: Of the second input.
        function: CoGroupFunction or callable of two lists of records, gives an iterable.
        left_orders: Order within the groups of the first input.
        right_orders: Order within the groups of the second input.
    """

    left_key: GroupKey
    right_key: GroupKey
    function: Any
    left_orders: tuple[Order, ...] = ()
    right_orders: tuple[Order, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Cross(Node):
    """All pairs: FORWARD one input, BROADCAST the other. Output as of `Join`.

    Attributes:
        function: Callable (or CrossFunction: a method ``cross``) of two records; None for the tuple of both.
        projection: As of `Join`.
        is_tuple: As of `Join`.
    """

    function: Any = None
    projection: tuple[tuple[int, str | int, str], ...] | None = None
    is_tuple: bool = False


# ---------------------------------------------------------------------------------------------------------- iterations


@dataclass(frozen=True, eq=False)
class Convergence:
    """Ends an iteration when ``criterion(superstep, aggregate)`` is true, after a superstep (the first is 1).

    Attributes:
        aggregator: Name of the aggregator that is looked at.
        criterion: Callable, or an object with ``is_converged``.
    """

    aggregator: str
    criterion: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BulkIteration(Node):
    """Puts its input through a step plan again and again.

    Superstep n (from 1) binds ``head`` to the result of superstep n - 1 (the input, at first) and runs ``result``. The
    iteration ends after ``max_iterations`` supersteps; or after one in which ``termination`` gave no record; or when
    ``convergence`` says so. The output is the last ``result``. With ``max_iterations`` 0 it is the input.

    Nodes of the step plan that do not depend on ``head`` are computed once. Functions know the superstep and the
    aggregators through their runtime context: what subtasks aggregate in a superstep is merged at its end and can be
    read in the next; aggregators are reset in between. An executor cuts lineage at every superstep: memory must not
    grow with their number.

    Attributes:
        head: The placeholder.
        result: Root of the step plan.
        max_iterations: At most so many supersteps.
        termination: Root of the termination criterion; None for none.
        aggregators: Accumulators (never filled, only copied) by name.
        convergence: See `Convergence`; None for none.
    """

    head: IterationInput
    result: Node
    max_iterations: int
    termination: Node | None = None
    aggregators: Mapping[str, Any] = field(default_factory=dict)
    convergence: Convergence | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class DeltaIteration(Node):
    """Keeps a solution set, one record per key, and changes it from superstep to superstep.

    Inputs: the initial solution set and the initial workset. A superstep binds ``solution`` and ``workset``, runs
    ``delta`` and ``next_workset``, then puts the records of ``delta`` into the solution set, replacing those with the
    same key (of several with one key, one). The iteration ends when the workset is empty, after ``max_iterations``
    supersteps, or by ``convergence``. The output is the solution set. If the initial solution set has several records
    with one key, one is kept. Supersteps, aggregators and lineage as in `BulkIteration`.

    A join or co-group of something with ``solution`` by the iteration's own key is a look-up in the solution set's
    index: only keys that the other side has are visited (inner join, or outer on the other side).

    Attributes:
        key: Of the solution set.
        solution: The placeholder of the solution set.
        workset: The placeholder of the workset.
        delta: Root of what changes the solution set; of the solution set's type.
        next_workset: Root of the next workset; of the workset's type.
        max_iterations: At most so many supersteps.
        aggregators: As of `BulkIteration`.
        convergence: As of `BulkIteration`.
    """

    key: GroupKey
    solution: IterationInput
    workset: IterationInput
    delta: Node
    next_workset: Node
    max_iterations: int
    aggregators: Mapping[str, Any] = field(default_factory=dict)
    convergence: Convergence | None = None


# --------------------------------------------------------------------------------------------------------------- sinks


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Collect(Node):
    """Gives all records to the program, in order of the partitions: a ``pa.Table`` of ``wire_schema(schema)``."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Count(Node):
    """Gives the number of records: an int."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WriteFiles(Node):
    """Writes files with `headrace.engine.dataset.file_io`: one per partition that has records, in the folder ``path``.

    Files get their final names when all are written, so a failed job leaves none. Gives the list of paths.

    Attributes:
        format: ``text``, ``csv``, ``json``, ``parquet``.
        path: A folder; a file system's URI or a local path.
        overwrite: Whether what lies in the folder is removed first; else a folder that is not empty is refused.
        options: Of the format.
    """

    format: str
    path: str
    overwrite: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


# ----------------------------------------------------------------------------------------------------------- execution


@dataclass(frozen=True)
class ExecutionResult:
    """What a job gave.

    Attributes:
        values: By the id of the sink: a ``pa.Table``, an int, or a list of paths.
        accumulators: What user functions counted, by name; `headrace.engine.accumulators.accumulated_value` reads them.
        statistics: What the executor tells of the run, by name (``seconds``, ``supersteps`` ...).
    """

    values: Mapping[int, Any]
    accumulators: Mapping[str, tuple[AccumulatorPart, ...]] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """Runs plans.

    Contract: ``execute`` may be called any number of times; ``close`` lets go of what it holds, more than once if need
    be; afterwards nothing may be executed (*asserted*).
    """

    def execute(
        self, sinks: tuple[Node, ...], *, parallelism: int | None = None, cached_files: Mapping[str, str] | None = None
    ) -> ExecutionResult:
        """Run an optimised plan to its end.

        Args:
            sinks: The roots: `Collect`, `Count`, `WriteFiles`. What they share is computed once.
            parallelism: Partitions of exchanges and sources that do not say; None for the executor's default.
            cached_files: The distributed cache: local paths or URIs by name; functions in every subtask get a local
                path.

        Raises:
            UserFunctionError: If a user function raised. Further errors of the tree as they come.
        """
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


# --------------------------------------------------------------------------------------------------------------- walks


def _roots_inside(node: Node) -> tuple[Node, ...]:
    """The roots of the step plan of an iteration, and its placeholders."""
    if isinstance(node, BulkIteration):
        return (node.head, node.result, *(() if node.termination is None else (node.termination,)))
    if isinstance(node, DeltaIteration):
        return (node.solution, node.workset, node.delta, node.next_workset)
    return ()


def walk(*roots: Node, into_iterations: bool = True) -> Iterator[Node]:
    """All nodes that roots depend on, and the roots: parents before children, each once.

    Args:
        *roots: Where to begin.
        into_iterations: Whether step plans count too (before the iteration itself).
    """
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            inside = _roots_inside(node) if into_iterations else ()
            stack.append((node, True))
            stack += [(parent, False) for parent in reversed((*node.parents, *inside))]


def dependents_on(placeholders: tuple[Node, ...], *roots: Node) -> set[int]:
    """The ids of the nodes of a step plan that change from superstep to superstep: those that depend on placeholders.

    Inner iterations depend on what their step plans depend on.
    """
    found = {node.id for node in placeholders}
    for node in walk(*roots):
        if any(parent.id in found for parent in (*node.parents, *_roots_inside(node))):
            found.add(node.id)
    return found
