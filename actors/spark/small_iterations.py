"""Iterations that are small enough for this process: run by the reference executor, between Spark's jobs.

A superstep on Spark is several jobs, each of which costs some tenths of a second however little there is to do. Where
the inputs of an iteration come to at most ``local_iteration_bytes``, they are brought here once and the supersteps run
without Spark. One that makes several times as much as that is given up, with all that it has done: Spark goes on from
the end of the superstep before, so no result depends on where a superstep has run.

What is brought here are the inputs of the step plan; where the plan says how those are partitioned or sorted, the steps
that did it run here, too, since partitions that Spark has made mean nothing to the reference executor.

Source: Spark's own limit for broadcasting a side of a join, which weighs the same two costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.engine.optimizer.properties import Known, known_of
from headrace.engine.optimizer.rewriting import rewritten
from headrace.engine.partitions.in_process import DEFAULT_PARALLELISM, Run
from headrace.engine.partitions.scopes import Partitions
from headrace.engine.partitions.scopes import Scope as InProcessScope
from headrace.engine.partitions.supersteps import Progress
from headrace.engine.plan.plan import (
    Cache,
    Iteration,
    IterationInput,
    Node,
    SequenceSource,
    TableSource,
    dependents_on,
    walk,
    wire_schema,
)

from .columns import Layout, column_name
from .relations import Job, Relation, Scope
from .sources import source_relation

__all__ = ["relation_of", "run_here"]

GROWTH = 4
"""Times the limit that a superstep may make, all its steps together, before it is too large for this process."""


class _OutgrownError(Exception):
    """A superstep makes more than this process should hold."""


class _Watch:
    """Adds up what a superstep makes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._made = 0

    def __call__(self, batch: pa.RecordBatch) -> None:
        self._made += batch.nbytes
        if self._made > self._limit:
            raise _OutgrownError

    def forget(self) -> None:
        """Begin a superstep."""
        self._made = 0


def run_here(node: Iteration, job: Job, scope: Scope) -> tuple[Relation | None, Progress | None]:
    """Run an iteration in this process, as far as it is small.

    Returns:
        Its result, if it has come to its end; else how far it came, for Spark to go on from; both None if nothing of it
        was run.
    """
    limit = job.local_iteration_bytes
    if not limit:
        return None, None
    inputs = _brought_here(node, job, scope, limit)
    if inputs is None:
        return None, None

    def visit(changed: Node) -> Node:
        table = inputs.get(changed.id)
        if table is None:
            return changed
        return TableSource(id=changed.id, name=changed.name, schema=changed.schema, table=table)

    (own,) = rewritten((node,), visit)
    watch = _Watch(GROWTH * limit)
    run = Run((own,), min(job.parallelism, DEFAULT_PARALLELISM), job.cached_files(), watch=watch)
    run.iteration_names.update({id_: name for id_, name in job.iteration_names.items() if id_ in run.iteration_names})
    top = InProcessScope()
    for id_, table in inputs.items():
        if id_ in scope.bound:
            top.results[id_] = [table.to_batches()]

    def begins(superstep: int, size: int) -> None:
        watch.forget()
        job.check_canceled()
        job.tell(f"superstep {superstep} of {node.name!r}, {size:,} records")

    progress = run.followed[node.id] = Progress(begins=begins)
    try:
        result = run.get(own, top)
    except _OutgrownError:
        if not progress.superstep:
            return None, None
        job.local_reports += run.reports[: progress.num_reports]
        return None, progress
    job.local_reports += run.reports
    job.iterations.update(run.iterations)
    return relation_of(node.id, node.schema, result, job), None


def relation_of(id_: int, schema: pa.Schema | None, partitions: Partitions, job: Job) -> Relation:
    """Return records of this process as a relation."""
    batches = [batch for partition in partitions for batch in partition]
    table = pa.Table.from_batches(batches, wire_schema(schema))
    return source_relation(TableSource(id=id_, name="superstep", schema=schema, table=table), job)


# ------------------------------------------------------------------------------------------------------------- inputs


def _brought_here(node: Iteration, job: Job, scope: Scope, limit: int) -> dict[int, pa.Table] | None:
    """The tables that the iteration begins with here, by the ids of the nodes that give them; None if too large."""
    frontier = _frontier(node, limit)
    tables: dict[int, pa.Table] = {}
    total = 0
    for leaf in frontier:
        if isinstance(leaf, TableSource):
            tables[leaf.id] = leaf.table
            total += leaf.table.nbytes
        elif isinstance(leaf, SequenceSource):
            total += 8 * max(leaf.end - leaf.start + 1, 0)
        if total > limit:
            return None
    for leaf in frontier:
        if isinstance(leaf, (TableSource, SequenceSource)):
            continue
        relation = _kept_for_spark(leaf, job.lowered(leaf, scope), job, scope)
        total += _num_bytes(relation, job)
        if total > limit:
            return None
        tables[leaf.id] = job.collected(relation)
    return tables


def _kept_for_spark(leaf: Node, relation: Relation, job: Job, scope: Scope) -> Relation:
    """The relation, computed once, also if Spark is to go on with it."""
    if isinstance(leaf, IterationInput):
        return relation  # kept by its iteration
    known = scope.known.get(("cached", id(leaf)))
    if known is None:
        known = scope.known["cached", id(leaf)] = job.cached(relation, scope)
    scope.known[id(leaf)] = known
    return known


def _frontier(node: Iteration, limit: int) -> list[Node]:
    """The nodes whose results have to be brought here.

    These are the inputs of the iteration and what its step plan reads from outside; instead of a node whose partitions
    or order the plan counts on, and of one that is made of small tables alone, those that it is made of.
    """
    inside = dependents_on(node.placeholders, *node.step_roots)
    outside = [inner for inner in walk(*node.inputs, *node.step_roots) if inner.id not in inside]
    known: dict[int, Known] = {}
    weight: dict[int, int | None] = {}
    for inner in outside:
        known[inner.id] = known_of(inner, [known.get(parent.id, Known()) for parent in inner.inputs])
        weight[inner.id] = _weight(inner, weight)
    read = [*node.inputs, *(root for root in node.step_roots if root.id not in inside)]
    for inner in walk(*node.step_roots):
        if inner.id in inside:
            read += [parent for parent in inner.parents if parent.id not in inside]
    found: dict[int, Node] = {}
    seen: set[int] = set()
    while read:
        leaf = read.pop()
        if leaf.id in seen:
            continue
        seen.add(leaf.id)
        own = known[leaf.id]
        small = weight[leaf.id]
        is_opened = own.ship is not None or bool(own.orders) or (small is not None and small <= limit)
        if leaf.parents and is_opened and not isinstance(leaf, Iteration):
            read += leaf.parents
        else:
            found[leaf.id] = leaf
    return list(found.values())


def _weight(node: Node, known: dict[int, int | None]) -> int | None:
    """Bytes of the tables that a node is made of; None if of anything else."""
    if isinstance(node, TableSource):
        return int(node.table.nbytes)
    if isinstance(node, SequenceSource):
        return 8 * max(node.end - node.start + 1, 0)
    if isinstance(node, (Cache, Iteration)) or not node.parents:
        return None  # what is kept is kept by Spark
    parts = [known.get(parent.id) for parent in node.parents]
    return None if None in parts else sum(part for part in parts if part is not None)


_BYTES = Layout(pa.schema([pa.field("bytes", pa.int64())]))


def _measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = sum(batch.nbytes for batch in batches)
    yield pa.RecordBatch.from_arrays([pa.array([total], pa.int64())], names=[column_name(0)])


def _num_bytes(relation: Relation, job: Job) -> int:
    """The size of a relation; runs a Spark job."""
    measured: Any = job.flushed(relation).df.mapInArrow(_measured, _BYTES.spark_schema())
    return sum(row[0] for row in measured.collect())
