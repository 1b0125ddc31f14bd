"""Iterations: the driver runs superstep after superstep, and cuts the lineage behind each.

What a superstep gives is computed at once and kept by Spark's executors without its history (`_Kept`): plans do not
grow with the number of supersteps, and what the one before has kept is let go of.

If an executor is lost with what it kept, there is no history to compute it again: the whole job is replayed
(`headrace.actors.spark.executor`), as is right for bounded inputs.

The solution set of a delta iteration is a base and a smaller set of what has changed since (`_Solution`): a superstep
writes what its delta changed, not the whole set; when changes have come to a quarter of the base, both become one.

Source: Flink's ``BulkIterationBase``, ``DeltaIterationBase``; Spark's ``localCheckpoint``.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.engine.partitions.solution import SolutionSet, solution_side
from headrace.engine.partitions.supersteps import Progress, has_converged, told_of
from headrace.engine.plan.plan import (
    BulkIteration,
    CoGroup,
    DeltaIteration,
    Node,
    Ship,
    ShipKind,
    dependents_on,
)

from .counting import aggregates_in
from .failures import TWO_RECORDS
from .relations import Job, Relation, Scope, native_keys
from .small_iterations import relation_of, run_here

__all__ = ["bulk", "delta", "kept_for", "looked_up"]

COLLECTED_SUPERSTEPS = 10
"""After so many supersteps Python lets go of their plans."""


class _Kept:
    """What a superstep gave: its records, without history.

    Attributes:
        relation: The records.
        num_rows: How many.
    """

    def __init__(self, relation: Relation, job: Job) -> None:
        plain = job.flushed(relation)
        frame = _without_estimates(plain.df.localCheckpoint(eager=False), job)
        # What executors hold of it. Counting it is the one job that computes it; a query would be two stages.
        self._blocks: Any = frame._jdf.queryExecution().analyzed().rdd()
        self.num_rows: int = self._blocks.count()
        self.relation = replace(plain, df=frame, num_rows=self.num_rows)
        # Unions and joins with them add up the partitions of what they read: from superstep to superstep there would be
        # more, and tasks and what the driver knows of each with them.
        is_as_planned = plain.is_exact and plain.partitions is not None
        if not is_as_planned and self._blocks.getNumPartitions() > 2 * job.parallelism:
            fewer = frame.coalesce(job.parallelism)
            self.relation = replace(plain, df=fewer, num_rows=self.num_rows, partitions=None, is_exact=False)

    def drop_with(self, token: Any) -> None:
        """Drop the records when the token is no longer held."""
        weakref.finalize(token, self.drop).atexit = False

    def drop(self) -> None:
        """Let go of the records."""
        with contextlib.suppress(Exception):  # Spark may have gone
            self._blocks.unpersist(False)


def _without_estimates(frame: Any, job: Job) -> Any:
    """The frame of records that are computed, as a plan that knows nothing of the plan that made them.

    Spark hands on what it has estimated of that: as the size of a join the product of those of its sides, and the
    constraints that it infers. The estimates of one superstep go into those of the next, until they are numbers of so
    many digits that the driver's heap is full, after some thirty supersteps.
    """
    from pyspark.sql import DataFrame

    jvm: Any = job.spark._jvm
    session = job.spark._jsparkSession
    read = frame._jdf.queryExecution().analyzed()
    nothing = jvm.scala.Option.empty()
    plan = jvm.org.apache.spark.sql.execution.LogicalRDD(
        read.output(), read.rdd(), read.outputPartitioning(), read.outputOrdering(), False, session, nothing, nothing
    )
    return DataFrame(jvm.org.apache.spark.sql.Dataset.ofRows(session, plan), job.spark)


def kept_for(token: Any, relation: Relation, job: Job) -> Relation:
    """Return the records of a relation, computed now, without history, and kept as long as somebody has the token."""
    found = _Kept(relation, job)
    found.drop_with(token)
    return found.relation


def _step_scope(node: Any, scope: Scope, inside: set[int], superstep: int, previous: dict[str, Any]) -> Scope:
    return Scope(
        scope, node.id, superstep, inside=inside, aggregators=node.aggregators, previous=previous
    )  # fmt: skip


def _let_go_of_plans(superstep: int) -> None:
    """Free the plans of past supersteps, in the driver's heap as well; called when a superstep has ended.

    An object of py4j keeps what it stands for alive in Java. Once a method of it has been called it refers to itself,
    by the methods that it remembers: only Python's cycle collector frees it. That one goes by the number of Python's
    objects, which is small here, and would come after a hundred supersteps.
    """
    if superstep % COLLECTED_SUPERSTEPS == 0:
        gc.collect()


def _aggregated(node: Any, job: Job, superstep: int) -> dict[str, Any]:
    if not node.aggregators:
        return {}
    return aggregates_in(job.counted, node.id, superstep, node.aggregators)


def bulk(node: BulkIteration, job: Job, scope: Scope) -> Relation:
    """Return the relation of a bulk iteration: of its last superstep."""
    result_here, progress = run_here(node, job, scope)
    if result_here is not None:
        return result_here
    progress = progress or Progress(sizes={"result_sizes": []})
    if progress.partial is None:
        current = job.lowered(node.inputs[0], scope)
    else:
        current = relation_of(node.id, node.schema, progress.partial, job)
    roots = (node.result,) if node.termination is None else (node.result, node.termination)
    inside = dependents_on((node.head,), *roots)
    kept: _Kept | None = None
    has_ended = False
    for superstep in range(progress.superstep + 1, node.max_iterations + 1):
        job.check_canceled()
        job.tell(f"superstep {superstep} of {node.name!r}")
        step = _step_scope(node, scope, inside, superstep, progress.aggregates)
        step.bound[node.head.id] = current
        result = _Kept(job.lowered(_unshared(node.result, inside), step), job)
        if node.termination is not None:
            step.known[id(node.result)] = result.relation
            has_ended = not _has_records(job.lowered(node.termination, step), job)
        step.close()
        if kept is not None:
            kept.drop()
        kept, current = result, result.relation
        _let_go_of_plans(superstep)
        progress.superstep = superstep
        progress.note(result_sizes=result.num_rows)
        progress.aggregates = _aggregated(node, job, superstep)
        has_ended |= has_converged(node.convergence, superstep, progress.aggregates, node.name)
        if has_ended:
            break
    if kept is not None:
        scope.cleanup.append(kept.drop)
    job.iterations[job.iteration_names[node.id]] = told_of(node, progress, has_ended=has_ended)
    return current


def _unshared(root: Node, inside: set[int]) -> Node:
    """The root of a step plan; what it gives is kept in any case, so it need not be cached for its readers as well."""
    return replace(root, is_shared=False) if root.id in inside else root


def _has_records(relation: Relation, job: Job) -> bool:
    return bool(job.flushed(relation).df.limit(1).count())


def delta(node: DeltaIteration, job: Job, scope: Scope) -> Relation:
    """Return the relation of a delta iteration: of its solution set, in the end."""
    result_here, progress = run_here(node, job, scope)
    if result_here is not None:
        return result_here
    progress = progress or Progress(sizes={"workset_sizes": [], "delta_sizes": []})
    if progress.solution is None or progress.workset is None:
        begins = [job.lowered(parent, scope) for parent in node.inputs]
    else:
        records = [list(part.batches()) for part in progress.solution]
        begins = [
            relation_of(parent.id, parent.schema, partitions, job)
            for parent, partitions in zip(node.inputs, (records, progress.workset), strict=True)
        ]
    progress.partial = progress.solution = progress.workset = None
    solution = _Solution(node, begins[0], job)
    kept = _Kept(begins[1], job)
    inside = dependents_on((node.solution, node.workset), node.delta, node.next_workset)
    is_converged = False
    for superstep in range(progress.superstep + 1, node.max_iterations + 1):
        if not kept.num_rows:
            break
        job.check_canceled()
        job.tell(f"superstep {superstep} of {node.name!r}, workset of {kept.num_rows:,}")
        step = _step_scope(node, scope, inside, superstep, progress.aggregates)
        step.solution = node
        step.bound[node.solution.id] = solution.relation
        step.bound[node.workset.id] = kept.relation
        changed = _Kept(job.lowered(_unshared(node.delta, inside), step), job)
        step.known[id(node.delta)] = changed.relation
        is_one = node.next_workset is node.delta
        following = changed if is_one else _Kept(job.lowered(node.next_workset, step), job)
        progress.superstep = superstep
        progress.note(workset_sizes=kept.num_rows, delta_sizes=changed.num_rows)
        solution.update(changed, superstep)
        if not is_one:
            changed.drop()
        step.close()
        kept.drop()
        kept = following
        _let_go_of_plans(superstep)
        progress.aggregates = _aggregated(node, job, superstep)
        is_converged = has_converged(node.convergence, superstep, progress.aggregates, node.name)
        if is_converged:
            break
    has_ended = is_converged or not kept.num_rows
    kept.drop()
    scope.cleanup.append(solution.drop)
    job.iterations[job.iteration_names[node.id]] = told_of(node, progress, has_ended=has_ended)
    return solution.relation


# ------------------------------------------------------------------------------------------------------- solution sets


class _Solution:
    """A solution set: a base, and what has changed since.

    Where Spark knows the key, `update` writes the changes only, and `relation` is the base without what has changed,
    and the changes. Otherwise both are always one, put together by Python.
    """

    def __init__(self, node: DeltaIteration, initial: Relation, job: Job) -> None:
        self._node = node
        self._job = job
        keys = native_keys(initial, node.key)
        has_order = all(map(_has_order, initial.layout.physical.types))
        self._keys = keys if has_order else None
        if self._keys is not None:
            initial = self._one_of_each(job.flushed(initial), None)
        else:
            nothing = job.relation(job.flushed(initial).df.limit(0), initial.layout, initial.schema)
            initial = self._put_together(nothing, initial, None)
        self._base = _Kept(initial, job)
        self._changes: _Kept | None = None

    @property
    def relation(self) -> Relation:
        """All its records."""
        if self._changes is None:
            return self._base.relation
        return self._overlaid(self._base.relation, self._changes.relation)

    def update(self, changed: _Kept, superstep: int) -> None:
        """Put the records of a delta in."""
        if not changed.num_rows:
            return
        if self._keys is None:
            base = _Kept(self._put_together(self._base.relation, changed.relation, superstep), self._job)
            self._base.drop()
            self._base = base
            return
        fresh = self._one_of_each(changed.relation, superstep)
        if self._changes is not None:
            fresh = self._overlaid(self._changes.relation, fresh)
        changes = _Kept(fresh, self._job)
        if self._changes is not None:
            self._changes.drop()
        self._changes = changes
        if 4 * changes.num_rows > self._base.num_rows:
            base = _Kept(self.relation, self._job)
            self.drop()
            self._base, self._changes = base, None

    def drop(self) -> None:
        """Let go of everything."""
        self._base.drop()
        if self._changes is not None:
            self._changes.drop()

    def _overlaid(self, base: Relation, changes: Relation) -> Relation:
        """The records of ``changes``, and those of ``base`` whose keys have not changed."""
        assert self._keys is not None
        keys = changes.df.select(*(changes.df[name].alias(f"k{name}") for name in self._keys))
        if changes.num_rows is not None and changes.num_rows <= SMALL_ROWS:
            keys = keys.hint("broadcast")
        unchanged = base.df.join(keys, _same_keys(base.df, keys, self._keys, "k"), "left_anti")
        return replace(base, df=unchanged.union(changes.df), partitions=None, is_exact=False, num_rows=None)

    def _one_of_each(self, changes: Relation, superstep: int | None) -> Relation:
        """The records, one for each key; two different ones fail when they are computed."""
        from pyspark.sql import functions as sf

        assert self._keys is not None
        names = changes.df.columns
        others = [name for name in names if name not in self._keys]
        if not others:
            return replace(changes, df=changes.df.dropDuplicates(self._keys), partitions=None, is_exact=False)
        record = sf.struct(*others)
        found = changes.df.groupBy(*self._keys).agg(sf.min(record).alias("one"), sf.max(record).alias("other"))
        key = sf.concat_ws(", ", *(sf.coalesce(sf.col(name).cast("string"), sf.lit("None")) for name in self._keys))
        which = sf.concat(
            sf.lit(f"{TWO_RECORDS}{self._node.name}\1{'' if superstep is None else superstep}\1"), key,
            sf.lit(": "), sf.col("one").cast("string"), sf.lit(" and "), sf.col("other").cast("string"), sf.lit("\1"),
        )  # fmt: skip
        is_one = sf.col("one").eqNullSafe(sf.col("other"))
        checked = sf.when(is_one, sf.col("one")).otherwise(sf.raise_error(which).cast(found.schema["one"].dataType))
        df = found.select(*self._keys, checked.alias("one")).select(
            *(sf.col(name) if name in self._keys else sf.col(f"one.{name}") for name in names)
        )
        return replace(changes, df=df, partitions=None, is_exact=False)

    def _put_together(self, base: Relation, changes: Relation, superstep: int | None) -> Relation:
        ship = Ship(ShipKind.HASH, self._node.key)
        merged = self._job.merged(base, changes, (ship, ship), self._node.parallelism)
        return replace(merged, schema=base.schema, function=_Update(self._node, base.schema, superstep))


SMALL_ROWS = 100_000
"""Keys up to this number are broadcast."""


def _has_order(kind: pa.DataType) -> bool:
    """Whether Spark can tell two values apart by order."""
    if pa.types.is_map(kind):
        return False
    return all(_has_order(kind.field(i).type) for i in range(kind.num_fields)) if pa.types.is_nested(kind) else True


class _Update:
    """Puts changes into a partition of a solution set; runs in Python processes of Spark."""

    def __init__(self, node: DeltaIteration, schema: pa.Schema | None, superstep: int | None) -> None:
        self._key = node.key
        self._operator = node.name
        self._schema = schema
        self._superstep = superstep

    def __call__(self, base: Iterator[pa.RecordBatch], changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = SolutionSet(self._key, self._schema)
        records.update(base, "solution set", self._operator)
        what = "initial solution set" if self._superstep is None else "delta"
        records.update(changes, what, self._operator, self._superstep)
        return records.batches()


def _same_keys(left: Any, right: Any, names: Sequence[str], prefix: str) -> Any:
    """Whether keys are the same, null being a key like any other."""
    condition = None
    for name in names:
        same = left[name].eqNullSafe(right[f"{prefix}{name}"])
        condition = same if condition is None else condition & same
    return condition


def looked_up(node: Node, sides: list[Relation], job: Job, scope: Scope) -> list[Relation]:
    """Return the inputs of a join or co-group, if one is the solution set: of it only what the other side asks for.

    The other side is computed first; how many keys it has decides whether they are broadcast to the solution set.
    """
    side = solution_side(node, scope.solution.solution, scope.solution.key)
    if side is None:
        return sides
    other = _Kept(sides[1 - side], job)
    scope.cleanup.append(other.drop)
    found = list(sides)
    found[1 - side] = other.relation
    if not isinstance(node, CoGroup):
        return found
    # A co-group is for the keys of the other side only.
    key, own = (node.left_key, node.right_key) if side == 1 else (node.right_key, node.left_key)
    asked, have = native_keys(other.relation, key), native_keys(sides[side], own)
    if asked is None or have is None:
        found[side] = replace(sides[side], num_rows=None)
        return found
    solution = job.flushed(sides[side])
    keys = other.relation.df.select(*(other.relation.df[a].alias(f"k{h}") for a, h in zip(asked, have, strict=True)))
    if other.num_rows <= SMALL_ROWS:
        keys = keys.hint("broadcast")
    wanted = solution.df.join(keys, _same_keys(solution.df, keys, have, "k"), "left_semi")
    found[side] = replace(solution, df=wanted, partitions=None, is_exact=False)
    return found
