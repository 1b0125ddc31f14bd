"""The logical plan of a DataSet program: what executors run.

A plan is a graph of immutable nodes. Programs build it through ``headrace.dataset``,
`headrace.engine.optimizer.optimizer` rewrites it, and an executor (Spark, or the reference executor in process) runs it
from its sinks. A rewrite keeps a node's ``id``, and every node has the `Ship` of each of its inputs written on it, so
an executor need not decide anything: it may, where it has something better.

Nodes are described by concept: what all have in `nodes`, where records come from and go to in `source_sink_nodes`, what
is done to them one by one in `record_nodes`, by key in `group_nodes`, with two inputs in `join_nodes`, again and again
in `iteration_nodes`. Those who build, rewrite and run plans know them all, by their names here.

**Running a node** by the book, which is what the reference executor does:

1. Run each of ``node.inputs``; each gives a list of partitions, a partition being a sequence of record batches.
2. If ``node.combine`` is set, put every partition of input 0 through `partitions.drivers.combine`.
3. Bring each input where its ship says (``node.ships[i]``, see `Ship`), into ``parallelism`` partitions. A node whose
   ships are all FORWARD has as many partitions as its first input.
4. For every subtask call `partitions.drivers.apply` with that subtask's partition of every input; what
   it yields is the output partition. Sources, `Union`, `Repartition`, `Cache`, iterations and sinks have no function:
   they are executed as their docstrings say.

An executor may run a node natively (Catalyst's join, aggregate, sort) wherever the result is the one described here.

**Records.** A node's ``schema`` is the Arrow schema of its records, with ``headrace.row`` in its metadata (``dict`` by
default, ``tuple``, ``value``), or None for arbitrary Python objects. Between nodes everything is a ``pa.RecordBatch``
of ``wire_schema(node.schema)``: the schema itself, or `PICKLED` with one pickled record per row. Functions see records
as on a DataStream: dicts, tuples or plain values; never instances of a dataclass that went through columns.

**Nulls, NaN, zero.** For grouping, ``distinct`` and ``co_group`` null is a key like any other, all NaN are one key, and
-0.0 is 0.0. A join matches no record whose key, or a part of it, is null (outer joins give it unmatched); NaN matches
NaN. Aggregates are SQL's (`headrace.engine.functions.aggregates`). Ascending order is: null, numbers (or false, true;
texts by code point), NaN; descending is exactly the reverse. Sorting is stable within a partition.

**Order** is promised only by `SortPartition` (inside each partition), `Sort` (over partitions, in order of their index,
which ``collect`` keeps), group order (`ReduceGroup`, `First`, `CoGroup` with ``orders``), and by operators that work
record by record or partition by partition, which keep it as long as the ship is FORWARD. Nothing else is: which of
several records `First` without order, `Distinct` by key or `ExtremeBy` with ties keeps, and the order in which
`Reduce` meets records, may differ between executors, and between runs.

**Empty partitions** are ordinary: a function of partitions is called for each of them, with an empty iterator; one of
groups is called per group, so never. Without a key `Aggregate` gives one record of no input (count 0, else null), and
`Reduce`, `ReduceGroup`, `ExtremeBy`, `First` give none.

**Isolation.** A function may change a record it was given only if nothing else sees it: executors give each consumer
its own objects (records are made anew from wire batches). Functions of joins, co-groups with a solution set, crosses
and reductions get a record several times or keep it: they must not change any.

**Failures.** What a user function raises is raised as UserFunctionError with operator, subtask and traceback, by
``functions``; an executor passes it on as it is and does not retry it.

Source: Flink's ``flink-optimizer`` (``ShipStrategyType``, ``DriverStrategy``) and ``DataSet`` operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..functions.accumulators import AccumulatorPart
from .group_nodes import (
    Aggregation,
    CombineGroup,
    Distinct,
    ExtremeBy,
    First,
    Grouped,
    OrderedGroups,
    OverGroups,
    Reduce,
    ReduceGroup,
)
from .iteration_nodes import (
    BulkIteration,
    Convergence,
    DeltaIteration,
    Iteration,
    IterationInput,
)
from .join_nodes import (
    CoGroup,
    ConditionJoin,
    Cross,
    Join,
    JoinHint,
    KeyMatch,
    Pairs,
    SemiJoin,
)
from .nodes import (
    BROADCAST,
    FORWARD,
    GATHER,
    PICKLED,
    REBALANCE,
    GroupKey,
    Node,
    Order,
    Ship,
    ShipKind,
    record_shape,
    wire_schema,
)
from .record_nodes import (
    Cache,
    FilterColumns,
    FilterRows,
    FlatMap,
    Map,
    MapBatches,
    MapPartition,
    Project,
    Repartition,
    Select,
    Sort,
    SortPartition,
    Union,
)
from .run_watch import RunWatch
from .source_sink_nodes import (
    Collect,
    Count,
    FileSource,
    ForeignSource,
    SequenceSource,
    TableSource,
    WriteFiles,
)

__all__ = [
    "BROADCAST",
    "FORWARD",
    "GATHER",
    "PICKLED",
    "REBALANCE",
    "Aggregation",
    "BulkIteration",
    "Cache",
    "CoGroup",
    "Collect",
    "CombineGroup",
    "ConditionJoin",
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
    "Grouped",
    "Iteration",
    "IterationInput",
    "Join",
    "JoinHint",
    "KeyMatch",
    "Map",
    "MapBatches",
    "MapPartition",
    "Node",
    "Order",
    "OrderedGroups",
    "OverGroups",
    "Pairs",
    "Project",
    "Reduce",
    "ReduceGroup",
    "Repartition",
    "Select",
    "SemiJoin",
    "SequenceSource",
    "Ship",
    "ShipKind",
    "Sort",
    "SortPartition",
    "TableSource",
    "Union",
    "WriteFiles",
    "dependents_on",
    "record_shape",
    "walk",
    "wire_schema",
]


@dataclass(frozen=True)
class ExecutionResult:
    """What a job gave.

    Attributes:
        values: By the id of the sink: a ``pa.Table``, an int, or a list of paths. accumulators: What user functions
        counted, by name; `headrace.engine.functions.accumulators.accumulated_value` reads them. statistics: What the
        executor tells of the run, by name (``seconds``, ``supersteps`` ...).
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
        self,
        sinks: tuple[Node, ...],
        *,
        parallelism: int | None = None,
        cached_files: Mapping[str, str] | None = None,
        watch: RunWatch | None = None,
    ) -> ExecutionResult:
        """Run an optimised plan to its end.

        Args:
            sinks: The roots: `Collect`, `Count`, `WriteFiles`. What they share is computed once.
            parallelism: Partitions of exchanges and sources that do not say; None for the executor's default.
            cached_files: The distributed cache: local paths or URIs by name; functions in every subtask get a local
                path.
            watch: Is told what the run does, and may end it; None if nobody looks.

        Raises:
            JobCanceledError: If ``watch`` has ended it.
            UserFunctionError: If a user function raised. Further errors of the tree as they come.
        """
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


def walk(*roots: Node, into_iterations: bool = True) -> Iterator[Node]:
    """Yield all nodes that roots depend on, and the roots: parents before children, each once.

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
            inside = (*node.placeholders, *node.step_roots) if into_iterations else ()
            stack.append((node, True))
            stack += [(parent, False) for parent in reversed((*node.parents, *inside))]


def dependents_on(placeholders: tuple[Node, ...], *roots: Node) -> set[int]:
    """Return the ids of the nodes of a step plan that change from superstep to superstep: those that depend on
    placeholders.

    Inner iterations depend on what their step plans depend on.
    """
    found = {node.id for node in placeholders}
    for node in walk(*roots):
        if any(parent.id in found for parent in (*node.parents, *node.placeholders, *node.step_roots)):
            found.add(node.id)
    return found
