"""What each node does to a partition: record batches in, record batches out. Every executor calls this code.

`apply` and `combine` are generators over wire batches (`headrace.engine.plan.plan`), so that they fit Spark's
``mapInArrow`` as they are. `apply_chain` runs several nodes as one, without making wire batches in between; an executor
may chain a node to its only, unshared, FORWARD input (`can_follow`). What user functions see and give does not depend
on it: records of a declared type go through columns behind every node, others stay the objects they are.

Memory: nodes that need a whole partition (sorting, groups with an order, joins) hold it; all others hold a batch, or
one entry per group.

Source: Flink's ``Driver`` classes (``MapDriver``, ``GroupReduceDriver``, ``JoinDriver`` ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..columns.conditions import where_true
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..errors import InternalError, TypeMismatchError
from ..operators.column_operators import SelectColumns
from ..plan.plan import (
    Aggregation,
    CoGroup,
    CombineGroup,
    ConditionJoin,
    Cross,
    Distinct,
    ExtremeBy,
    FilterColumns,
    FilterRows,
    First,
    FlatMap,
    Join,
    Map,
    MapBatches,
    MapPartition,
    Node,
    OverGroups,
    Pairs,
    Project,
    Reduce,
    ReduceGroup,
    Select,
    SemiJoin,
    ShipKind,
    Sort,
    SortPartition,
)
from .context import TaskContext
from .function_life import Tracked, opened, placed
from .groups import (
    aggregate,
    aggregate_combined,
    aggregate_partially,
    combine_groups,
    combined_key,
    combined_schema,
    distinct,
    extreme_by,
    first,
    reduce,
    reduce_groups,
)
from .over_groups import over_groups
from .two_inputs import co_group, condition_join, cross, join, paired, semi_join
from .wire_records import conform, decode, encoded, gathered, ordered

__all__ = [
    "apply",
    "apply_chain",
    "can_combine",
    "can_follow",
    "combine",
    "combined_schema",
    "input_schema",
    "is_runnable",
    "with_combiner",
]

Batches = Iterator[Batch]
Runner = Callable[[Any, TaskContext, Sequence[Batches]], Batches]
"""Takes a node, its subtask's context and the subtask's partition of every input."""


def input_schema(node: Node, index: int) -> pa.Schema | None:
    """Return the schema of what is shipped to a node: the input's, or that of what was combined."""
    return combined_schema(node) if node.combine and index == 0 else node.inputs[index].schema


def apply(node: Node, context: TaskContext, inputs: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Run one subtask of a node.

    Args:
        node: Any node with a function (see the plan).
        context: Of the subtask.
        inputs: The subtask's partition of each input, shipped: wire batches.

    Returns:
        Wire batches of ``node.schema``; none empty.

    Raises:
        UserFunctionError: If a user function raises.
        TypeMismatchError: If a record is not what was declared.
    """
    return apply_chain((node,), (context,), inputs)


def apply_chain(
    nodes: Sequence[Node], contexts: Sequence[TaskContext], inputs: Sequence[Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Run one subtask of several nodes, each but the first of which `can_follow` the one before.

    Args:
        nodes: At least one.
        contexts: Of each.
        inputs: As of `apply`, of the first node.
    """
    sources = [_decoded(batches, input_schema(nodes[0], index)) for index, batches in enumerate(inputs)]
    return encoded(_chained(nodes, contexts, sources), nodes[-1].schema)


def apply_pairs(
    nodes: Sequence[Node], contexts: Sequence[TaskContext], pairs: Iterator[tuple[list[Any], list[Any]]]
) -> Iterator[pa.RecordBatch]:
    """As `apply_chain`, for an executor that has joined by itself.

    Args:
        nodes: The first gives `Pairs`.
        contexts: Of each.
        pairs: Records of both inputs that go together, in pieces; None for a side that is missing.
    """
    node, context = nodes[0], contexts[0]
    assert isinstance(node, Pairs)
    joined = placed(_conformed(paired(node, context, pairs), node.schema), context)
    return encoded(_followed(nodes[1:], contexts[1:], joined), nodes[-1].schema)


def _followed(nodes: Sequence[Node], contexts: Sequence[TaskContext], batches: Batches) -> Batches:
    return _chained(nodes, contexts, [batches]) if nodes else batches


def combine(node: Node, context: TaskContext, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine a partition of input 0 before it is shipped to a node whose ``combine`` is set.

    Args:
        node: The node.
        context: Of the subtask of the partition.
        batches: Wire batches of ``node.inputs[0].schema``.

    Returns:
        Wire batches of ``combined_schema(node)``.
    """
    source = _decoded(batches, node.inputs[0].schema)
    combiner = _COMBINERS[type(node)]
    return encoded(placed(combiner(node, context, [source]), context), combined_schema(node))


def can_follow(node: Node) -> bool:
    """Return whether a node may run chained behind its input, if that is read by nothing else."""
    return len(node.inputs) == 1 and type(node) in _RUNNERS and node.ships[0].kind is ShipKind.FORWARD


def may_be_cut(chain: Sequence[Node]) -> bool:
    """Return whether a chain begins with calls for each record, and no function of its user sees batches."""
    return isinstance(chain[0], (Map, FlatMap, FilterRows)) and not any(isinstance(node, MapBatches) for node in chain)


def is_runnable(node: Node) -> bool:
    """Return whether a node has a function of partitions, so that `apply` takes it."""
    return type(node) in _RUNNERS


def _decoded(batches: Iterator[pa.RecordBatch], schema: pa.Schema | None) -> Batches:
    for batch in batches:
        if batch.num_rows:
            yield decode(batch, schema)


def _chained(nodes: Sequence[Node], contexts: Sequence[TaskContext], sources: list[Batches]) -> Batches:
    for node, context in zip(nodes, contexts, strict=True):
        runner = _RUNNERS.get(type(node))
        if runner is None:
            message = f"{node!r} has no function of partitions"
            raise InternalError(message)
        sources = [placed(_conformed(runner(node, context, sources), node.schema), context)]
    return sources[0]


def _conformed(batches: Batches, schema: pa.Schema | None) -> Batches:
    for batch in batches:
        if batch.num_rows:
            yield conform(batch, schema)


# -------------------------------------------------------------------------------------------------------- by the record


def _map(node: Map, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    with opened(node.function, context, "map") as function:
        for batch in inputs[0]:
            yield Batch.of_rows(function.map(batch.rows))


def _flat_map(node: FlatMap, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    with opened(node.function, context, "flat_map") as function:
        for batch in inputs[0]:
            for rows, _ends in function.flat_map(batch.rows):
                yield Batch.of_rows(rows)


def _filter_rows(node: FilterRows, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    with opened(node.function, context, "filter") as function:
        for batch in inputs[0]:
            mask = function.filter(batch.rows)
            yield batch if mask.all() else batch.filter(mask)


def _filter_columns(node: FilterColumns, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    for batch in inputs[0]:
        chosen = where_true(node.condition, batch.columns)
        if chosen.all():
            yield batch
        elif batch.has_rows:
            # Records that were objects stay those objects.
            yield Batch.of_rows([row for row, keep in zip(batch.rows, chosen.tolist(), strict=True) if keep])
        else:
            yield batch.filter(chosen)


def _map_partition(node: MapPartition, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    with opened(node.function, context, "map_partition") as function:
        records = Tracked(inputs[0])
        try:
            given = function.call(records)
        except BaseException as error:
            function.fail(error, record=records.last)
        yield from function.produced(given)


def _map_batches(node: MapBatches, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    with opened(node.function, context, "map_batches") as function:
        for batch in inputs[0]:
            yield from map(Batch.of_columns, function.map_batch(batch.columns))


def _project(node: Project, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    fields: tuple[Any, ...] = node.fields
    for batch in inputs[0]:
        if node.schema is not None:
            columns = batch.columns
            names = [field if isinstance(field, str) else f"f{field}" for field in fields]
            yield Batch.of_columns(
                pa.RecordBatch.from_arrays([columns.column(name) for name in names], schema=node.schema)
            )
            continue
        try:
            if isinstance(fields[0], str):
                yield Batch.of_rows([{field: row[field] for field in fields} for row in batch.rows])
            else:
                yield Batch.of_rows([tuple([row[field] for field in fields]) for row in batch.rows])
        except (KeyError, IndexError, TypeError) as error:
            message = f"fields {list(fields)} are not all in the record: {error!r}"
            raise TypeMismatchError(message) from error


def _select(node: Select, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    select = SelectColumns(node.columns, keep=node.keep).select
    for batch in inputs[0]:
        yield Batch.of_columns(select(batch.columns))


def _sort(node: Sort | SortPartition, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    batch = gathered(inputs[0], node.schema)
    if not batch.num_rows:
        return
    in_order = batch if node.is_sorted else batch.take(ordered(batch, node.orders))
    for offset in range(0, in_order.num_rows, MAX_BATCH_ROWS):
        yield in_order.slice(offset, min(MAX_BATCH_ROWS, in_order.num_rows - offset))


def _aggregate(node: Aggregation, context: TaskContext, inputs: Sequence[Batches]) -> Batches:
    return aggregate_combined(node, context, inputs) if node.combine else aggregate(node, context, inputs)


_RUNNERS: dict[type[Node], Runner] = {
    Aggregation: _aggregate,
    CoGroup: co_group,
    CombineGroup: reduce_groups,
    ConditionJoin: condition_join,
    Cross: cross,
    Distinct: distinct,
    ExtremeBy: extreme_by,
    FilterColumns: _filter_columns,
    FilterRows: _filter_rows,
    First: first,
    FlatMap: _flat_map,
    Join: join,
    Map: _map,
    MapBatches: _map_batches,
    MapPartition: _map_partition,
    OverGroups: over_groups,
    Project: _project,
    Reduce: reduce,
    ReduceGroup: reduce_groups,
    Select: _select,
    SemiJoin: semi_join,
    Sort: _sort,
    SortPartition: _sort,
}

_COMBINERS: dict[type[Node], Runner] = {
    Aggregation: aggregate_partially,
    Distinct: distinct,
    ExtremeBy: extreme_by,
    First: first,
    Reduce: reduce,
    ReduceGroup: combine_groups,
}


def can_combine(node: Node) -> bool:
    """Return whether groups of a node may be combined before they are shipped."""
    if isinstance(node, Aggregation):
        return all(spec.is_mergeable for spec in node.aggregates.values())
    if isinstance(node, ReduceGroup):
        return callable(getattr(node.function, "combine", None))
    return type(node) in _COMBINERS


def with_combiner(node: Node) -> Node:
    """Return the node with groups combined before they are shipped, the ship going by what is combined then."""
    ship = node.ships[0]
    if ship.kind is ShipKind.HASH and isinstance(node, Aggregation):
        ship = replace(ship, key=combined_key(node))
    return replace(node, combine=True, ships=(ship, *node.ships[1:]))
