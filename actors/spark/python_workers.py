"""What runs in Spark's Python processes: the plan's own functions, over the Arrow batches of one Spark partition.

A `PythonTask` is the callable given to ``mapInArrow``. It is a pipe: batches in Spark's columns become wire batches, go
through one or several nodes (`headrace.engine.partitions.drivers`), may be combined and given a target for the next
exchange, and leave as Spark's columns again. So a row of nodes costs one crossing between the JVM and Python, and every
executor runs the same code.

What it counts (accumulators, aggregators of iterations) goes to the driver as a Spark accumulator that is a dictionary
by node, subtask and superstep: a subtask that Spark runs twice reports twice, and counts once. What a user function
raises travels as an error of our own, found again by `headrace.actors.spark.failures`; when Spark tries such a task
again, the function is not called a second time.

Pickled with the program's own ``cloudpickle``, so that what was registered there for pickling by value is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.errors import HeadraceError
from headrace.engine.partitions import drivers
from headrace.engine.partitions.context import Superstep, TaskContext
from headrace.engine.partitions.shipping import targets
from headrace.engine.partitions.wire_records import comparable_keys, decode
from headrace.engine.plan.plan import IterationInput, Node, Ship, ShipKind, wire_schema
from headrace.state.reading.program_pickles import dump_program, load_program
from headrace.state.values.types import declared_shape

from .columns import Layout
from .failures import carried, known_failure, remember_failure

__all__ = ["TARGET", "JoinedSides", "PythonTask", "Reader", "Step", "Tagged", "bare", "identity_table"]

TARGET = "t"
"""The column that says where a record is to be shipped."""


def bare(node: Node) -> Node:
    """Return the node without what is behind it: only the types of its inputs and broadcast sets."""
    inputs = tuple(_stub(parent) for parent in node.inputs)
    return replace(node, inputs=inputs, broadcasts=())


def _stub(node: Node) -> Node:
    return IterationInput(id=node.id, name=node.name, schema=node.schema, role="input")


# ----------------------------------------------------------------------------------------------------- what comes to it


@dataclass(frozen=True)
class Reader:
    """One input, in the columns of a layout."""

    layout: Layout
    num_columns: int

    def inputs(self, batches: Iterator[pa.RecordBatch]) -> list[Iterator[pa.RecordBatch]]:
        """Return the wire batches of each input."""
        return [self._wire(batches)]

    def _wire(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield self.layout.to_wire(_columns(batch, 0, self.num_columns))


@dataclass(frozen=True)
class Tagged:
    """Two inputs in one partition: a column that says which, then the columns of both, null in records of the other."""

    left: Layout
    right: Layout

    def inputs(self, batches: Iterator[pa.RecordBatch]) -> list[Iterator[pa.RecordBatch]]:
        """Yield the wire batches of each input; what comes before it is asked for waits."""
        waiting: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])

        def side(number: int) -> Iterator[pa.RecordBatch]:
            while True:
                while waiting[number]:
                    yield waiting[number].pop(0)
                batch = next(batches, None)
                if batch is None:
                    return
                for which, piece in enumerate(self._cut(batch)):
                    if piece.num_rows:
                        waiting[which].append(piece)

        return [side(0), side(1)]

    def _cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        is_right = batch.column(0).to_numpy(zero_copy_only=False).astype(np.bool_)
        width = len(self.left.physical)
        left = _columns(batch, 1, width).filter(pa.array(~is_right))
        right = _columns(batch, 1 + width, len(self.right.physical)).filter(pa.array(is_right))
        return self.left.to_wire(left), self.right.to_wire(right)


@dataclass(frozen=True)
class JoinedSides:
    """Pairs that Spark has joined: the columns of both sides, and two that say whether a side is there."""

    left: Layout
    right: Layout

    def pairs(self, node: Node, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield the records of both sides, None for a side that is missing."""
        width = len(self.left.physical)
        for batch in batches:
            if not batch.num_rows:
                continue
            sides = []
            for layout, first, index in ((self.left, 0, 0), (self.right, width, 1)):
                wire = layout.to_wire(_columns(batch, first, len(layout.physical)))
                there = batch.column(width + len(self.right.physical) + index)
                rows = decode(wire, node.inputs[index].schema).rows if not there.null_count else [
                    row if is_there else None
                    for row, is_there in zip(
                        _rows_where(wire, there, node.inputs[index].schema), there.is_valid().to_pylist(), strict=True
                    )
                ]  # fmt: skip
                sides.append(rows)
            yield sides[0], sides[1]


def _rows_where(wire: pa.RecordBatch, there: pa.Array, schema: pa.Schema | None) -> list[Any]:
    """The records, with None for those that are not there: their columns are null, even where the type has no null."""
    mask = there.is_valid()
    rows = iter(decode(wire.filter(mask), schema).rows)
    return [next(rows) if is_there else None for is_there in mask.to_pylist()]


def _columns(batch: pa.RecordBatch, first: int, count: int) -> pa.RecordBatch:
    if first == 0 and count == batch.num_columns:
        return batch
    return pa.RecordBatch.from_arrays(
        batch.columns[first : first + count], names=batch.schema.names[first : first + count]
    )


# ------------------------------------------------------------------------------------------------------------- the task


@dataclass(frozen=True)
class Step:
    """One node of the pipe and what surrounds it.

    Attributes:
        node: Bare.
        iteration: Id of the iteration that it is in; 0 for none.
        superstep: Of the iteration; 0 for none.
        aggregators: Empty ones by name, of that iteration.
        previous: What they came to in the superstep before.
        broadcasts: Names of its broadcast sets, each with the schema of its records and its number in the task.
        parallelism: How many subtasks there are, as far as is known before.
    """

    node: Node
    iteration: int = 0
    superstep: int = 0
    aggregators: Mapping[str, Any] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)
    broadcasts: tuple[tuple[str, pa.Schema | None, int], ...] = ()
    parallelism: int = 1


@dataclass(frozen=True)
class _Plan:
    """What a task does; travels as one pickle."""

    source: Any
    steps: tuple[Step, ...]
    combine: Step | None
    ship: Ship | None
    num_partitions: int
    bounds: tuple[Any, ...]
    table: Any
    output: Layout
    job: str
    cached_files: Mapping[str, str]
    function: Callable[..., Iterator[pa.RecordBatch]] | None
    broadcast_input: tuple[int, int, pa.Schema | None] | None


class PythonTask:
    """The function of a ``mapInArrow``.

    Args:
        source: `Reader`, `Tagged` or `JoinedSides`.
        steps: Nodes, in order; none for records that only get a target or are read.
        output: The layout of what comes out, without the target.
        combine: A node whose combiner is run behind the steps.
        ship: An exchange whose target is computed for every record.
        num_partitions: Of the exchange.
        bounds: Of a RANGE.
        function: Makes wire batches of those of all inputs, before the steps.
        broadcast_input: An input of the first node that is broadcast: its index, its number among the task's
            broadcasts, its schema.
        broadcasts: Spark's broadcast variables: Arrow streams.
        counted: Spark's accumulator.
        job: The job's id.
        cached_files: By name, what ``SparkFiles`` calls them.
    """

    def __init__(
        self,
        source: Any,
        steps: tuple[Step, ...],
        output: Layout,
        *,
        combine: Step | None = None,
        ship: Ship | None = None,
        num_partitions: int = 1,
        bounds: tuple[Any, ...] = (),
        function: Callable[..., Iterator[pa.RecordBatch]] | None = None,
        broadcast_input: tuple[int, int, pa.Schema | None] | None = None,
        broadcasts: tuple[Any, ...] = (),
        counted: Any = None,
        job: str = "",
        cached_files: Mapping[str, str] | None = None,
    ) -> None:
        table = None if ship is None else identity_table(num_partitions)
        plan = _Plan(
            source, steps, combine, ship, num_partitions, bounds, table, output, job, dict(cached_files or {}),
            function, broadcast_input,
        )  # fmt: skip
        self._pickled: bytes = dump_program(plan)
        # These register themselves with the Spark command that they are pickled into.
        self._broadcasts = broadcasts
        self._counted = counted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext as SparkTask

        spark_task: Any = SparkTask.get()
        earlier = known_failure(spark_task)
        if earlier is not None:
            raise carried(earlier)
        try:
            plan: _Plan = load_program(self._pickled)
            yield from self._run(plan, spark_task.partitionId(), batches)
        except HeadraceError as error:
            remember_failure(spark_task, error)
            raise carried(error) from None

    def _run(self, plan: _Plan, subtask: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        contexts = [self._context(plan, step, subtask) for step in plan.steps]
        out = self._piped(plan, contexts, batches)
        if plan.combine is not None:
            contexts.append(self._context(plan, plan.combine, subtask))
            out = drivers.combine(plan.combine.node, contexts[-1], out)
        if plan.ship is None:
            for batch in out:
                yield plan.output.to_physical(batch)
        else:
            yield from self._targeted(plan, subtask, out)
        self._report([*plan.steps, *(() if plan.combine is None else (plan.combine,))], contexts)

    def _piped(
        self, plan: _Plan, contexts: list[TaskContext], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        if isinstance(plan.source, JoinedSides):
            from headrace.engine.partitions.drivers import apply_pairs

            node = plan.steps[0].node
            nodes = [step.node for step in plan.steps]
            return apply_pairs(nodes, contexts, plan.source.pairs(node, batches))
        inputs = plan.source.inputs(batches)
        if plan.function is not None:
            inputs = [plan.function(*inputs)]
        if plan.broadcast_input is not None:
            index, number, schema = plan.broadcast_input
            table = _table(self._broadcasts[number])
            inputs.insert(index, iter(table.cast(wire_schema(schema)).to_batches()))
        if not plan.steps:
            return inputs[0]
        return drivers.apply_chain([step.node for step in plan.steps], contexts, inputs)

    def _context(self, plan: _Plan, step: Step, subtask: int) -> TaskContext:
        from pyspark import SparkFiles

        superstep = None
        if step.superstep:
            own = {name: load_program(dump_program(empty)) for name, empty in step.aggregators.items()}
            superstep = Superstep(step.superstep, own, step.previous)
        return TaskContext(
            step.node.name,
            operator=f"{step.node.operator}#{step.node.id}",
            subtask=subtask,
            parallelism=max(step.parallelism, subtask + 1),
            job=plan.job,
            broadcasts={name: (_table(self._broadcasts[number]), schema) for name, schema, number in step.broadcasts},
            cached_files={name: SparkFiles.get(file) for name, file in plan.cached_files.items()},
            superstep=superstep,
        )

    def _targeted(self, plan: _Plan, subtask: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert plan.ship is not None
        schema = _records(plan.output.wire)
        if plan.ship.kind is ShipKind.RANGE and not plan.num_partitions:
            # A sample of it: how the records compare, not the records.
            for batch in batches:
                keys = comparable_keys(decode(batch, schema), plan.ship.orders)
                yield pa.RecordBatch.from_arrays([pa.array(map(dump_program, keys), pa.binary())], names=["c0"])
            return
        first = subtask
        for batch in batches:
            found = targets(plan.ship, decode(batch, schema), plan.num_partitions, plan.bounds, first)
            first = (first + batch.num_rows) % plan.num_partitions
            physical = plan.output.to_physical(batch)
            yield pa.RecordBatch.from_arrays(
                [*physical.columns, pa.array(plan.table[found], pa.int32())], names=[*physical.schema.names, TARGET]
            )

    def _report(self, steps: list[Step], contexts: list[TaskContext]) -> None:
        if self._counted is None:
            return
        counted: dict[Any, Any] = {}
        for step, context in zip(steps, contexts, strict=True):
            place = (context.operator, context.subtask, step.iteration, step.superstep)
            if len(context.accumulators):
                key: tuple[Any, ...] = ("accumulators", *place)
                counted[key] = context.accumulators.report(context.name)
            if context.superstep is not None and context.superstep.aggregators:
                key = ("aggregators", *place)
                counted[key] = dump_program(context.superstep.aggregators)
        if counted:
            self._counted.add(counted)


def _records(wire: pa.Schema) -> pa.Schema | None:
    """The schema of records, from that of their wire batches."""
    return None if declared_shape(wire) == "pickled" else wire


_tables: dict[int, pa.Table] = {}
"""Broadcast sets of this process, by Spark's number of the variable; a few of them."""


def _table(broadcast: Any) -> pa.Table:
    found = _tables.get(broadcast.id) if hasattr(broadcast, "id") else None
    if found is None:
        found = pa.ipc.open_stream(broadcast.value).read_all()
        while len(_tables) >= 8:
            _tables.pop(next(iter(_tables)))
        if hasattr(broadcast, "id"):
            _tables[broadcast.id] = found
    return found


# --------------------------------------------------------------------------------------------------- Spark's exchange


@lru_cache(maxsize=64)
def identity_table(num_partitions: int) -> np.ndarray:
    """For each partition a number that Spark's hash exchange sends there.

    Spark's DataFrames can be partitioned by a hash only: an int goes to ``murmur3(int, seed 42) mod n``.
    """
    found = np.full(num_partitions, -1, dtype=np.int32)
    start, step = 0, max(64, 4 * num_partitions)
    while (found < 0).any():
        numbers = np.arange(start, start + step, dtype=np.int32)
        wheres = _murmur3(numbers) % num_partitions  # numpy's % of ints is never negative, as Spark's pmod
        for number, where in zip(numbers, wheres, strict=True):
            if found[where] < 0:
                found[where] = number
        start += step
    return found


def _murmur3(numbers: np.ndarray) -> np.ndarray:
    """Spark's ``hash(int)``: Murmur3 (x86, 32 bits) of four bytes."""

    def rotated(values: np.ndarray, by: int) -> np.ndarray:
        return (values << np.uint32(by)) | (values >> np.uint32(32 - by))

    with np.errstate(over="ignore"):
        k = numbers.astype(np.uint32) * np.uint32(0xCC9E2D51)
        k = rotated(k, 15) * np.uint32(0x1B873593)
        h = rotated(np.uint32(42) ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return h.astype(np.int32).astype(np.int64)
