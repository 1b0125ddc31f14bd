"""From nodes of a plan to relations: which step becomes Spark's own, which stays Python's, and how inputs get there.

Spark's own become, where Spark means the same (`headrace.actors.spark.catalyst`): filters, projections, computed
columns, built-in aggregates, ``distinct``, sorting, the first records of groups in an order, joins and cross products
of records that have types. A chain of Python functions stays together: a filter in the middle of it is evaluated by
Arrow rather than sent to the JVM and back. All else runs the shared functions of
`headrace.engine.partitions.drivers` over whole partitions.

Groups of records that only Python functions may reduce are sorted by Spark, which does that in bounded memory, so that
one group is held at a time.

Invariant: the relation of a node holds the records that the plan's docstring says, whatever the way they took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.engine.errors import InternalError
from headrace.engine.plan.plan import (
    Aggregation,
    BulkIteration,
    Cache,
    CoGroup,
    Collect,
    CombineGroup,
    ConditionJoin,
    Count,
    Cross,
    DeltaIteration,
    Distinct,
    ExtremeBy,
    FileSource,
    FilterColumns,
    FilterRows,
    First,
    FlatMap,
    ForeignSource,
    IterationInput,
    Join,
    Map,
    MapBatches,
    MapPartition,
    Node,
    OverGroups,
    Project,
    Reduce,
    ReduceGroup,
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
    WriteFiles,
    wire_schema,
)

from .catalyst import aggregate_of, column_of, spark_type
from .columns import Layout, column_name
from .joining import co_group, condition_join, cross, join, semi_join
from .relations import Job, Relation, Scope, native_keys, native_orders
from .sources import source_relation
from .supersteps import bulk, delta, kept_for, looked_up

__all__ = ["lowered"]


def lowered(node: Node, job: Job, scope: Scope) -> Relation:
    """Return the relation of a node; made once per scope.

    Args:
        node: Any node but a sink.
        job: The run.
        scope: Where the node is read.
    """
    if node.id in scope.bound:
        return scope.bound[node.id]
    if scope.parent is not None and node.id not in scope.inside:
        # The same in every superstep: computed once, outside.
        outer = scope.parent
        known = outer.known.get(("cached", id(node)))
        if known is None:
            known = outer.known["cached", id(node)] = job.cached(lowered(node, job, outer), outer)
        return known
    found = scope.known.get(id(node))
    if found is None:
        lower = _LOWERINGS.get(type(node))
        if lower is None:
            message = f"Spark cannot run {node!r}"
            raise InternalError(message)
        found = lower(node, job, scope)
        if node.is_shared:
            found = job.cached(found, scope)
        scope.known[id(node)] = found
    return found


# ------------------------------------------------------------------------------------------------------------- in place


def _input(node: Node, job: Job, scope: Scope) -> Relation:
    """The only input, shipped as the node wants it, groups combined before."""
    relation = lowered(node.inputs[0], job, scope)
    ship = node.ships[0]
    if ship.kind is ShipKind.FORWARD and isinstance(node, _KEYED) and not node.combine:
        ship = _trusted(node, relation)
    combine = None
    if node.combine:
        combine = job.step(node, relation, scope)
        if node.broadcasts:
            relation, combine = _with_broadcasts(node, relation, combine, job, scope)
    return job.shipped(relation, ship, node.parallelism, combine)


def _trusted(node: Any, relation: Relation) -> Ship:
    """The ship of a node by key whose input is said to be where it should be: FORWARD only if it really is."""
    if relation.is_exact:
        return Ship(ShipKind.FORWARD)
    if node.key is None and not isinstance(node, Distinct):
        return Ship(ShipKind.GATHER)
    return Ship(ShipKind.HASH, node.key)


def _with_broadcasts(node: Node, relation: Relation, step: Any, job: Job, scope: Scope) -> tuple[Relation, Any]:
    """The relation with the node's broadcast sets among its variables, and the step that knows their numbers."""
    variables = list(relation.broadcasts)
    named = []
    for name, parent in node.broadcasts:
        table = job.collected(lowered(parent, job, scope))
        named.append((name, parent.schema, len(variables)))
        variables.append(job.broadcast(table, scope))
    return replace(relation, broadcasts=tuple(variables)), replace(step, broadcasts=tuple(named))


def _stepped(node: Node, relation: Relation, job: Job, scope: Scope) -> Relation:
    """The relation with the node's function as one more Python step."""
    step = job.step(node, relation, scope)
    relation, step = _with_broadcasts(node, relation, step, job, scope)
    num_rows = relation.num_rows if isinstance(node, _NOT_MORE) else None
    return replace(relation, steps=(*relation.steps, step), schema=node.schema, num_rows=num_rows)


def _python(node: Node, job: Job, scope: Scope) -> Relation:
    return _stepped(node, _input(node, job, scope), job, scope)


def _filter_columns(node: FilterColumns, job: Job, scope: Scope) -> Relation:
    relation = _input(node, job, scope)
    if relation.is_plain and relation.schema is not None:
        condition = column_of(node.condition, relation.layout)
        if condition is not None:
            return replace(relation, df=relation.df.filter(condition))
    return _stepped(node, relation, job, scope)


def _project(node: Project, job: Job, scope: Scope) -> Relation:
    from pyspark.sql import functions as sf

    relation = _input(node, job, scope)
    if not relation.is_plain or relation.schema is None or node.schema is None:
        return _stepped(node, relation, job, scope)
    names = [field if isinstance(field, str) else f"f{field}" for field in node.fields]
    columns = [
        sf.col(str(relation.layout.column(name))).alias(column_name(i)) for i, name in enumerate(names)
    ]  # fmt: skip
    return job.relation(
        relation.df.select(*columns), Layout(node.schema), node.schema,
        partitions=relation.partitions, is_exact=relation.is_exact, num_rows=relation.num_rows,
    )  # fmt: skip


def _select(node: Select, job: Job, scope: Scope) -> Relation:
    from pyspark.sql import functions as sf

    relation = _input(node, job, scope)
    if not relation.is_plain or relation.schema is None or node.schema is None:
        return _stepped(node, relation, job, scope)
    layout = relation.layout
    columns = []
    for i, field in enumerate(node.schema):
        expression = node.columns.get(field.name)
        if expression is None:
            column = sf.col(str(layout.column(field.name)))
        else:
            column = column_of(expression, layout)
            if column is None or Layout(wire_schema(node.schema)).physical.field(i).type != field.type:
                return _stepped(node, relation, job, scope)
            column = column.cast(spark_type(field.type))
        columns.append(column.alias(column_name(i)))
    return job.relation(
        relation.df.select(*columns), Layout(node.schema), node.schema,
        partitions=relation.partitions, is_exact=relation.is_exact, num_rows=relation.num_rows,
    )  # fmt: skip


def _repartition(node: Repartition, job: Job, scope: Scope) -> Relation:
    return _input(node, job, scope)


def _cache(node: Cache, job: Job, scope: Scope) -> Relation:
    """What the executor has kept of it; else the records, kept from now on."""
    known: Relation | None = job.caches.get(node.token)
    if known is None or known.df.sparkSession is not job.spark:
        known = kept_for(node.token, lowered(node.inputs[0], job, scope), job)
        job.caches[node.token] = known
    return known


def _union(node: Union, job: Job, scope: Scope) -> Relation:
    relations = [job.flushed(lowered(parent, job, scope)) for parent in node.inputs]
    df = relations[0].df
    for relation in relations[1:]:
        df = df.union(relation.df)
    counts = [relation.partitions for relation in relations]
    total = sum(count for count in counts if count is not None) if None not in counts else None
    return job.relation(df, Layout(wire_schema(node.schema)), node.schema, partitions=total, is_exact=False)


# -------------------------------------------------------------------------------------------------------------- sorting


def _sort_partition(node: SortPartition, job: Job, scope: Scope) -> Relation:
    from pyspark.sql import functions as sf

    relation = _input(node, job, scope)
    columns = native_orders(relation, node.orders)
    if columns is None:
        return _stepped(replace(node, is_sorted=False), relation, job, scope)
    plain = job.flushed(relation)
    # Spark's own sort is not stable once it spills: the place decides among equals.
    df = plain.df.withColumn("place", sf.monotonically_increasing_id())
    return replace(plain, df=df.sortWithinPartitions(*columns, "place").drop("place"))


def _sort(node: Sort, job: Job, scope: Scope) -> Relation:
    relation = lowered(node.inputs[0], job, scope)
    columns = native_orders(relation, node.orders)
    ship = Ship(ShipKind.RANGE, orders=node.orders)
    if columns is None:
        return _stepped(replace(node, is_sorted=False), job.shipped(relation, ship, node.parallelism), job, scope)
    ranged = job.shipped(relation, ship, node.parallelism)
    return replace(ranged, df=ranged.df.sortWithinPartitions(*columns))


# --------------------------------------------------------------------------------------------------------------- by key


def _aggregation(node: Aggregation, job: Job, scope: Scope) -> Relation:
    return _native_aggregation(node, job, scope) or _python(node, job, scope)


def _native_aggregation(node: Aggregation, job: Job, scope: Scope) -> Relation | None:
    relation = lowered(node.inputs[0], job, scope)
    keys = [] if node.key is None else native_keys(relation, node.key)
    if keys is None or relation.schema is None or node.schema is None:
        return None
    layout = relation.layout
    output = Layout(node.schema)
    columns = []
    for i, (kind, which) in enumerate(node.outputs):
        if output.physical.field(i).type != node.schema.field(i).type:
            return None
        if kind == "aggregate":
            column = aggregate_of(node.aggregates[which], layout, node.schema.field(i).type)
            if column is None:
                return None
            columns.append((i, column))
    plain = job.flushed(relation)
    grouped = plain.df.groupBy(*keys)
    df = grouped.agg(*(column.alias(f"a{i}") for i, column in columns))
    from pyspark.sql import functions as sf

    out = [
        sf.col(f"a{i}" if kind == "aggregate" else keys[which]).alias(column_name(i))
        for i, (kind, which) in enumerate(node.outputs)
    ]
    count = 1 if node.key is None else None
    return job.relation(
        df.select(*out), output, node.schema,
        partitions=count, is_exact=count == 1, num_rows=1 if count == 1 else relation.num_rows,
    )  # fmt: skip


def _distinct(node: Distinct, job: Job, scope: Scope) -> Relation:
    relation = lowered(node.inputs[0], job, scope)
    if relation.schema is not None:
        layout = relation.layout
        names = node.key.names if node.key is not None else tuple(relation.schema.names)
        if names is not None and all(map(layout.is_native, names)):
            plain = job.flushed(relation)
            df = plain.df.dropDuplicates([str(layout.column(name)) for name in names])
            return replace(plain, df=df, partitions=None, is_exact=False)
    return _python(node, job, scope)


def _first(node: First, job: Job, scope: Scope) -> Relation:
    """The first of each group in an order as a window of Spark's; else, and without an order, in Python."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    relation = lowered(node.inputs[0], job, scope)
    orders = native_orders(relation, node.orders)
    keys = native_keys(relation, node.key)
    if not node.orders or orders is None or keys is None:
        return _python(node, job, scope)
    plain = job.flushed(relation)
    window = Window.partitionBy(*keys).orderBy(*orders)
    df = plain.df.withColumn("place", sf.row_number().over(window)).filter(sf.col("place") <= node.count).drop("place")
    return replace(plain, df=df, partitions=None, is_exact=False)


def _reduce_group(node: ReduceGroup, job: Job, scope: Scope) -> Relation:
    """Groups one after the other, sorted by Spark where it can."""
    relation = _input(node, job, scope)
    is_sorted = node.is_sorted and relation.is_exact and node.ships[0].kind is ShipKind.FORWARD and not node.combine
    keys = [] if node.key is None else native_keys(relation, node.key)
    orders = native_orders(relation, node.orders)
    if is_sorted or keys is None or orders is None or not (keys or orders):
        return _stepped(replace(node, is_sorted=is_sorted), relation, job, scope)
    plain = job.flushed(relation)
    return _stepped(
        replace(node, is_sorted=True), replace(plain, df=plain.df.sortWithinPartitions(*keys, *orders)), job, scope
    )  # fmt: skip


def _ordered_python(node: Any, job: Job, scope: Scope) -> Relation:
    relation = _input(node, job, scope)
    is_sorted = node.is_sorted and relation.is_exact and node.ships[0].kind is ShipKind.FORWARD and not node.combine
    return _stepped(replace(node, is_sorted=is_sorted), relation, job, scope)


_NOT_MORE = (
    Distinct, ExtremeBy, FilterColumns, FilterRows, First, Map, OverGroups, Project, Reduce, Select, SortPartition,
)  # fmt: skip
"""Give at most as many records as they get."""

_KEYED = (Aggregation, Distinct, ExtremeBy, First, OverGroups, Reduce, ReduceGroup)


def _iteration(node: Any, job: Job, scope: Scope) -> Relation:
    return bulk(node, job, scope) if isinstance(node, BulkIteration) else delta(node, job, scope)


def _source(node: Any, job: Job, scope: Scope) -> Relation:
    return source_relation(node, job)


def _two(run: Callable[..., Relation]) -> Callable[..., Relation]:
    def lower(node: Any, job: Job, scope: Scope) -> Relation:
        sides = [lowered(parent, job, scope) for parent in node.inputs]
        if scope.solution is not None:
            sides = looked_up(node, sides, job, scope)
        return run(node, job, scope, sides, _with_broadcasts)

    return lower


_LOWERINGS: dict[type[Node], Callable[..., Relation]] = {
    Aggregation: _aggregation,
    BulkIteration: _iteration,
    Cache: _cache,
    CoGroup: _two(co_group),
    CombineGroup: _ordered_python,
    ConditionJoin: _two(condition_join),
    Cross: _two(cross),
    DeltaIteration: _iteration,
    Distinct: _distinct,
    ExtremeBy: _python,
    FileSource: _source,
    FilterColumns: _filter_columns,
    FilterRows: _python,
    First: _first,
    FlatMap: _python,
    ForeignSource: _source,
    Join: _two(join),
    Map: _python,
    MapBatches: _python,
    MapPartition: _python,
    OverGroups: _python,
    Project: _project,
    Reduce: _python,
    ReduceGroup: _reduce_group,
    Repartition: _repartition,
    Select: _select,
    SemiJoin: _two(semi_join),
    SequenceSource: _source,
    Sort: _sort,
    SortPartition: _sort_partition,
    TableSource: _source,
    Union: _union,
}
"""Sinks are the executor's business, placeholders the scope's."""

_ELSEWHERE = (Collect, Count, WriteFiles, IterationInput)
