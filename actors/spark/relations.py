"""Data sets of a plan while they are translated: a Spark DataFrame, and the Python steps that still wait for it.

A `Relation` is lazy twice: Spark computes nothing before an action, and steps of Python functions are gathered until
something needs Spark's columns, so that a chain of them is one ``mapInArrow``. `Job` holds what all relations of one
run share and ends it: broadcast variables, cached DataFrames, counters.

Whether partitions are exactly those that the plan's ships have made is known of every relation (`is_exact`). Where
Catalyst had a free hand (its joins and aggregates, whose partitions it may merge or split at run time) they are not,
and a later step that counts on them ships again; where the plan said FORWARD and they are, nothing is moved.

Source: `headrace.engine.plan.plan`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa

from headrace.engine.errors import JobCanceledError
from headrace.engine.partitions.drivers import combined_schema
from headrace.engine.partitions.shipping import range_bounds
from headrace.engine.plan.plan import GroupKey, Node, Order, Ship, ShipKind, wire_schema
from headrace.state.reading.program_pickles import load_program

from .columns import Layout, column_name
from .python_workers import TARGET, PythonTask, Reader, Step, Tagged, bare
from .session import Session

__all__ = ["Job", "Relation", "Scope", "native_keys", "native_orders"]


@dataclass(frozen=True)
class Relation:
    """A data set.

    Attributes:
        df: A Spark DataFrame, in the columns that ``source`` reads.
        schema: Of the records, behind the steps.
        steps: Python steps that wait.
        source: How the steps read ``df``; a plain `Reader` if there are none.
        broadcasts: Spark's broadcast variables that the steps use, by number.
        broadcast_input: See `PythonTask`.
        function: See `PythonTask`.
        partitions: How many there are, where that is known.
        is_exact: Whether they are what the plan's ships have made.
        num_rows: How many records there are at most, where that is known.
    """

    df: Any
    schema: pa.Schema | None
    source: Any
    steps: tuple[Step, ...] = ()
    broadcasts: tuple[Any, ...] = ()
    broadcast_input: tuple[int, int, pa.Schema | None] | None = None
    function: Callable[..., Any] | None = None
    partitions: int | None = None
    is_exact: bool = True
    num_rows: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing waits: ``df`` holds the records."""
        return not self.steps and self.function is None and isinstance(self.source, Reader)

    @property
    def layout(self) -> Layout:
        """How the records lie, or will lie, in Spark's columns."""
        return self.source.layout if self.is_plain else Layout(wire_schema(self.schema))


@dataclass
class Scope:
    """Where in a program a node is: outside of iterations, or in one superstep of one.

    Attributes:
        parent: The surrounding scope.
        iteration: Id of the iteration's node; 0 outside of iterations.
        superstep: From 1; 0 outside of iterations.
        bound: What placeholders stand for, by node id.
        inside: The ids of nodes that change from superstep to superstep; others belong to the parent.
        aggregators: Empty ones by name.
        previous: What they came to in the superstep before.
        known: Relations by node, each computed once.
        solution: The delta iteration that it is a superstep of, if it is one.
        cleanup: What to let go of at its end.
    """

    parent: Scope | None = None
    iteration: int = 0
    superstep: int = 0
    bound: dict[int, Relation] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    aggregators: Mapping[str, Any] = field(default_factory=dict)
    previous: Mapping[str, Any] = field(default_factory=dict)
    known: dict[Any, Relation] = field(default_factory=dict)
    solution: Any = None
    cleanup: list[Callable[[], Any]] = field(default_factory=list)

    def close(self) -> None:
        """Let go of what was cached."""
        while self.cleanup:
            self.cleanup.pop()()


Lowering: TypeAlias = "Callable[[Node, Job, Scope], Relation]"


class Job:
    """One run of a plan.

    Args:
        session: The running Spark.
        parallelism: Partitions of exchanges and sources that do not say.
        cached_files: The distributed cache: names for ``SparkFiles``, by the program's names.
        lower: Gives the relation of a node, with those that it reads: `headrace.actors.spark.lowering.lowered`.
    """

    def __init__(self, session: Session, parallelism: int, cached_files: Mapping[str, str], lower: Lowering) -> None:
        self.session = session
        self._lower = lower
        self.spark = session.spark
        self.context = session.spark.sparkContext
        self.parallelism = parallelism
        self.id = uuid.uuid4().hex
        self._cached_files = cached_files
        from .counting import counter

        # Dictionaries of what subtasks have counted; see `PythonTask`.
        self.counted = counter(self.context)
        self.root = Scope()
        # Inputs of an iteration up to this size are worth its running in this process; what was counted there.
        self.local_iteration_bytes = 0
        self.local_reports: list[Mapping[str, Any]] = []
        # What `Cache` nodes keep between runs, by their tokens.
        self.caches: MutableMapping[Any, Relation] = WeakKeyDictionary()
        # Whether somebody has pressed Ctrl-C: no further superstep begins.
        self.is_canceled = False
        # What is told of the run in the end.
        self.iterations: dict[str, Any] = {}
        # What iterations are called in it, by id.
        self.iteration_names: dict[int, str] = {}
        # Called with what is being done, for the progress line.
        self.tell: Callable[[str], None] = _nothing

    def lowered(self, node: Node, scope: Scope) -> Relation:
        """Return the relation of a node, in this run."""
        return self._lower(node, self, scope)

    def close(self) -> None:
        """Let go of everything that the run has left in Spark."""
        from .counting import forget

        self.root.close()
        forget(self.counted)

    def cached_files(self) -> dict[str, str]:
        """Return the distributed cache as it lies on this machine."""
        from pyspark import SparkFiles

        return {name: SparkFiles.get(file) for name, file in self._cached_files.items()}

    def check_canceled(self) -> None:
        """Go no further if the job was interrupted.

        Raises:
            JobCanceledError: If so.
        """
        if self.is_canceled:
            message = "the job was interrupted"
            raise JobCanceledError(message)

    def broadcast(self, table: pa.Table, scope: Scope) -> Any:
        """Return a table as a variable of Spark's that every Python process reads once; it goes at the end of the
        scope.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        variable = self.context.broadcast(sink.getvalue().to_pybytes())
        scope.cleanup.append(lambda: _destroy(variable))
        return variable

    # ------------------------------------------------------------------------------------------------------- relations

    def relation(self, df: Any, layout: Layout, schema: pa.Schema | None, **about: Any) -> Relation:
        """Return a relation of records that are in a DataFrame."""
        return Relation(df, schema, Reader(layout, len(layout.physical)), **about)

    def step(self, node: Node, relation: Relation, scope: Scope, tables: Sequence[tuple[str, Any, Any]] = ()) -> Step:
        """Return a Python step.

        Args:
            node: The node.
            relation: What it reads.
            scope: Where it is.
            tables: Its broadcast sets, for `with_broadcasts`: name, schema, number.
        """
        return Step(
            bare(node), scope.iteration, scope.superstep, scope.aggregators, scope.previous, tuple(tables),
            relation.partitions or self.parallelism,
        )  # fmt: skip

    def task(self, relation: Relation, output: Layout, **more: Any) -> PythonTask:
        """Return the callable that runs the steps of a relation."""
        return PythonTask(
            relation.source, relation.steps, output, function=relation.function,
            broadcast_input=relation.broadcast_input, broadcasts=relation.broadcasts, counted=self.counted,
            job=self.id, cached_files=self._cached_files, **more,
        )  # fmt: skip

    def flushed(self, relation: Relation) -> Relation:
        """Return the relation with its steps made part of the DataFrame."""
        if relation.is_plain:
            return relation
        layout = relation.layout
        df = relation.df.mapInArrow(self.task(relation, layout), layout.spark_schema())
        return self.relation(
            df, layout, relation.schema,
            partitions=relation.partitions, is_exact=relation.is_exact, num_rows=relation.num_rows,
        )  # fmt: skip

    def collected(self, relation: Relation) -> pa.Table:
        """Return all records, as a wire table; runs a Spark job."""
        plain = self.flushed(relation)
        layout = plain.layout
        batches = plain.df._collect_as_arrow()
        wire = [layout.to_wire(batch) for batch in batches if batch.num_rows]
        return pa.Table.from_batches(wire, layout.wire)

    def cached(self, relation: Relation, scope: Scope) -> Relation:
        """Return the relation, computed once, when it is first read; kept until the end of the scope."""
        from pyspark import StorageLevel

        plain = self.flushed(relation)
        df = plain.df.persist(StorageLevel.MEMORY_AND_DISK)
        scope.cleanup.append(lambda: _unpersist(df))
        return replace(plain, df=df)

    # ----------------------------------------------------------------------------------------------------------- ships

    def shipped(self, relation: Relation, ship: Ship, parallelism: int | None, combine: Step | None = None) -> Relation:
        """Return the records brought where a ship says; HASH, RANGE, CUSTOM, REBALANCE, GATHER or FORWARD.

        Args:
            relation: The records.
            ship: How.
            parallelism: Partitions to make; None for the default.
            combine: A combiner to run before.
        """
        count = parallelism or self.parallelism
        if combine is not None:
            schema = combined_schema(combine.node)
            layout = Layout(wire_schema(schema))
            df = relation.df.mapInArrow(self.task(relation, layout, combine=combine), layout.spark_schema())
            relation = self.relation(df, layout, schema, partitions=relation.partitions, is_exact=relation.is_exact)
        if ship.kind is ShipKind.FORWARD:
            return relation
        if ship.kind is ShipKind.GATHER:
            return self._gathered(relation)
        if ship.kind is ShipKind.REBALANCE:
            plain = self.flushed(relation)
            return replace(plain, df=plain.df.repartition(count), partitions=count, is_exact=True)
        if ship.kind is ShipKind.HASH:
            names = native_keys(relation, ship.key)
            if names is not None:
                plain = self.flushed(relation)
                return replace(plain, df=plain.df.repartition(count, *names), partitions=count, is_exact=True)
        if ship.kind is ShipKind.RANGE:
            columns = native_orders(relation, ship.orders)
            if columns is not None:
                plain = self.flushed(relation)
                return replace(
                    plain, df=plain.df.repartitionByRange(count, *columns), partitions=count, is_exact=True
                )  # fmt: skip
            return self._targeted(relation, ship, count, self._bounds(relation, ship, count))
        return self._targeted(relation, ship, count, ())

    def _targeted(self, relation: Relation, ship: Ship, count: int, bounds: tuple[Any, ...]) -> Relation:
        """Shipped to where Python says."""
        layout = relation.layout
        df = self.with_targets(relation, ship, count, bounds).repartition(count, TARGET).drop(TARGET)
        return self.relation(df, layout, relation.schema, partitions=count, is_exact=True)

    def with_targets(self, relation: Relation, ship: Ship, count: int, bounds: tuple[Any, ...] = ()) -> Any:
        """Return a DataFrame of the records with one more column, by which Spark's hash exchange brings them where they
        go.
        """
        from pyspark.sql.types import IntegerType, StructField, StructType

        layout = relation.layout
        schema = StructType([*layout.spark_schema().fields, StructField(TARGET, IntegerType())])
        task = self.task(relation, layout, ship=ship, num_partitions=count, bounds=bounds)
        return relation.df.mapInArrow(task, schema)

    def _bounds(self, relation: Relation, ship: Ship, count: int) -> tuple[Any, ...]:
        """Bounds of a RANGE whose order only Python knows, of all records' sort keys."""
        if count == 1:
            return ()
        task = self.task(relation, relation.layout, ship=ship, num_partitions=0)
        keys = relation.df.mapInArrow(task, "c0 binary")
        sample = [load_program(row[0]) for row in keys.collect()]
        return tuple(range_bounds(sample, count))

    def _gathered(self, relation: Relation) -> Relation:
        """All records in one partition, in order of the partitions."""
        if relation.partitions == 1:
            return relation
        from pyspark.sql import functions as sf

        plain = self.flushed(relation)
        place = "place"
        df = (
            plain.df.withColumn(place, sf.monotonically_increasing_id())  # the partition, then the place in it
            .repartition(1)
            .sortWithinPartitions(place)
            .drop(place)
        )
        return replace(plain, df=df, partitions=1, is_exact=True)

    def merged(self, left: Relation, right: Relation, ships: Sequence[Ship], parallelism: int | None) -> Relation:
        """Return two inputs shipped by the hash of their keys into one DataFrame, to be read by `Tagged`."""
        from pyspark.sql import functions as sf

        count = parallelism or self.parallelism
        frames = [self.with_targets(relation, ship, count) for relation, ship in zip((left, right), ships, strict=True)]
        df = self._tagged(frames, (left.layout, right.layout), sf).repartition(count, TARGET).drop(TARGET)
        return Relation(df, None, Tagged(left.layout, right.layout), partitions=count, is_exact=True)

    def gathered_pair(self, left: Relation, right: Relation) -> Relation:
        """Return two inputs in one partition of one DataFrame, to be read by `Tagged`."""
        from pyspark.sql import functions as sf

        frames = [self.flushed(side).df.withColumn(TARGET, sf.lit(0)) for side in (left, right)]
        df = self._tagged(frames, (left.layout, right.layout), sf).repartition(1).drop(TARGET)
        return Relation(df, None, Tagged(left.layout, right.layout), partitions=1, is_exact=True)

    def _tagged(self, frames: list[Any], layouts: tuple[Layout, Layout], sf: Any) -> Any:
        fields = [layout.spark_schema().fields for layout in layouts]
        sides = []
        for number, frame in enumerate(frames):
            columns = [sf.lit(number == 1).alias("tag")]
            for side in (0, 1):
                for i, struct in enumerate(fields[side]):
                    name = f"{'lr'[side]}{i}"
                    own = sf.col(column_name(i)) if side == number else sf.lit(None).cast(struct.dataType)
                    columns.append(own.alias(name))
            sides.append(frame.select(*columns, sf.col(TARGET)))
        return sides[0].union(sides[1])


def _nothing(_text: str) -> None:
    """Ignore progress."""


def _unpersist(df: Any) -> None:
    with contextlib.suppress(Exception):  # Spark may have gone
        df.unpersist()


def _destroy(variable: Any) -> None:
    with contextlib.suppress(Exception):  # Spark may have gone
        variable.destroy()


def native_keys(relation: Relation, key: GroupKey | None) -> list[str] | None:
    """Spark's columns of a key, if it is made of fields that Spark compares and hashes as we do; else None."""
    if key is None or key.names is None or relation.schema is None:
        return None
    layout = relation.layout
    if not all(layout.is_native(name) for name in key.names):
        return None
    return [str(layout.column(name)) for name in key.names]


def native_orders(relation: Relation, orders: Sequence[Order]) -> list[Any] | None:
    """Spark's sort columns of an order, if it is made of fields that Spark compares as we do; else None."""
    from pyspark.sql import functions as sf

    if relation.schema is None:
        return None
    layout = relation.layout
    columns = []
    for order in orders:
        if order.column is None or not layout.is_native(order.column):
            return None
        column = sf.col(str(layout.column(order.column)))
        columns.append(column.asc_nulls_first() if order.ascending else column.desc_nulls_last())
    return columns
