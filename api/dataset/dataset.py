"""DataSet: bounded data and what can be done with it, by Flink's names in snake_case.

Every method records one node of the plan and returns at once; ``collect``, ``count``, ``print`` and the like run what
they depend on, writes wait for ``ExecutionEnvironment.execute``. Wrong arguments are refused where they are written.
``name``, ``set_parallelism`` and ``with_broadcast_set`` change the operator that made the data set and return it; they
come before it is used.

Records are what they are on a DataStream: dicts, tuples or single values, with a type (then they are columns) or
without (then they are any Python objects). Keys are field names, positions in tuples, or a function.

Here are the verbs of single records, of partitions and their order, of iterations, and results; all others are in the
classes that this one is made of (`headrace.dataset.recorded` says which).

Source: Flink's ``DataSet``, ``DataSetUtils``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import pyarrow as pa

from headrace.engine.columns.conditions import require_condition
from headrace.engine.columns.expressions import Expression
from headrace.engine.errors import ProgramError
from headrace.engine.partitions.function_life import checked_function
from headrace.engine.partitions.wire_records import rows_of_table
from headrace.engine.plan.plan import (
    FORWARD,
    REBALANCE,
    Cache,
    Collect,
    Count,
    Distinct,
    FilterColumns,
    FilterRows,
    FlatMap,
    Map,
    MapBatches,
    MapPartition,
    Node,
    Order,
    Repartition,
    Ship,
    ShipKind,
    Sort,
    SortPartition,
    record_shape,
)
from headrace.state.type_variables import T1
from headrace.state.values.serde import columns_from_rows

from ..arguments.checks import described, text, whole
from ..arguments.data_types import resolve_type
from ..arguments.function_shapes import FilterOf, FlatMapOf, KeyOf, MapOf, MapPartitionOf
from ..arguments.known_columns import naming_step
from ..arguments.taken_types import check_taken
from .columns import ColumnVerbs
from .grouped import GroupedDataSet, GroupVerbs
from .record_types import declared_schema, function_schema, group_key, order_of
from .two_inputs import TwoInputVerbs
from .writes import WriteVerbs

if TYPE_CHECKING:
    from headrace.engine.plan.run_watch import RunWatch

    from ..jobs.notebook_output import LiveOutput
    from ..stream.data_stream import DataStream
    from ..stream.environment import StreamExecutionEnvironment
    from .iterations import DeltaIterationBuilder, IterativeDataSet

__all__ = ["DataSet"]

Self = TypeVar("Self", bound="DataSet[Any]")
_New = TypeVar("_New")

_Aggregators: TypeAlias = dict[str, Any] | None
_Criterion: TypeAlias = tuple[str, Any] | None


class DataSet(ColumnVerbs[T1], TwoInputVerbs[T1], WriteVerbs[T1], GroupVerbs[T1]):
    """A bounded set of records. Made by an environment's sources and by other data sets' methods.

    Type checkers know of what type the records are (``DataSet[int]``), as those of a stream; with an ``output_type``
    they are of any type, as columns make dicts and tuples of them.
    """

    # ------------------------------------------------------------------------------------------------------ information

    def explain(self, *, optimized: bool = True, as_json: bool = False) -> str:
        """Return the plan that makes this data set.

        Args:
            optimized: Whether as it will run, else as it was written.
            as_json: Whether for tools.
        """
        from headrace.engine.optimizer.optimizer import optimize
        from headrace.engine.optimizer.plan_text import explain_json, explain_text

        sink = Collect(id=self._environment.new_id(), name="collect", inputs=(self._node,), schema=self.schema,
                       ships=(FORWARD,))  # fmt: skip
        roots = optimize((sink,), self._environment.get_parallelism()) if optimized else (sink,)
        return explain_json(roots) if as_json else explain_text(roots)

    # ---------------------------------------------------------------------------------------- settings of the operator

    def name(self: Self, name: str) -> Self:
        """Name the operator, for errors and plans."""
        self._change(name=text("an operator's name", name))
        return self

    def set_parallelism(self: Self, parallelism: int) -> Self:
        """Set the number of partitions of the operator's result."""
        whole("parallelism", parallelism, 1, None)
        node = self._node
        is_moved = all(ship.kind is ShipKind.FORWARD for ship in node.ships) and bool(node.ships)
        if is_moved and len(node.inputs) == 1:
            moved = Repartition(
                id=self._environment.new_id(), name="rebalance", inputs=node.inputs, schema=node.inputs[0].schema,
                ships=(REBALANCE,), parallelism=parallelism,
            )  # fmt: skip
            self._change(inputs=(moved,), parallelism=parallelism)
        else:
            self._change(parallelism=parallelism)
        return self

    def with_broadcast_set(self: Self, data: DataSet, name: str) -> Self:
        """Give the operator's function all of another data set.

        Functions with ``open(runtime_context)`` get it by ``runtime_context.get_broadcast_variable(name)``.
        """
        text("a broadcast variable's name", name)
        if not hasattr(self._node, "function"):
            message = f"operator {self._node.name!r} has no function that could ask for broadcast variable {name!r}"
            raise ProgramError(message)
        if any(known == name for known, _node in self._node.broadcasts):
            message = f"operator {self._node.name!r} has a broadcast variable {name!r} already"
            raise ProgramError(message)
        self._environment.require_same(self, data)
        self._change(broadcasts=(*self._node.broadcasts, (name, data.take_node())))
        return self

    # ------------------------------------------------------------------------------------------------ record by record

    @overload
    def map(self, func: MapOf[T1, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def map(self, func: MapOf[T1, Any], output_type: Any) -> DataSet[Any]: ...

    def map(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Turn each record into another.

        Args:
            func: A callable or a MapFunction.
            output_type: The new records' type; without it the function's hints are asked.
        """
        checked_function(func, "map")
        check_taken("map", func, "map", self.schema)
        return self.then(Map, described("map", func), function_schema(func, "map", output_type), function=func)

    @overload
    def flat_map(self, func: FlatMapOf[T1, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def flat_map(self, func: FlatMapOf[T1, Any], output_type: Any) -> DataSet[Any]: ...

    def flat_map(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Turn each record into any number of others: ``func`` yields or returns an iterable."""
        checked_function(func, "flat_map")
        check_taken("flat_map", func, "flat_map", self.schema)
        schema = function_schema(func, "flat_map", output_type, many=True)
        return self.then(FlatMap, described("flat_map", func), schema, function=func)

    def filter(self, func: FilterOf[T1] | Expression) -> DataSet[T1]:
        """Keep the records for which ``func`` is true: a callable, a FilterFunction, or an expression over columns."""
        if isinstance(func, Expression):
            if self.schema is not None:
                with naming_step("filter"):
                    require_condition(func, func.output_type(self.schema))
            return self.then(FilterColumns, f"filter {func!r}", self.schema, condition=func)
        checked_function(func, "filter")
        check_taken("filter", func, "filter", self.schema)
        return self.then(FilterRows, described("filter", func), self.schema, function=func)

    @overload
    def map_partition(self, func: MapPartitionOf[T1, _New], output_type: None = None) -> DataSet[_New]: ...

    @overload
    def map_partition(self, func: MapPartitionOf[T1, Any], output_type: Any) -> DataSet[Any]: ...

    def map_partition(self, func: Any, output_type: Any = None) -> DataSet[Any]:
        """Turn each partition into any number of records: ``func`` takes an iterator, yields or gives an iterable."""
        checked_function(func, "map_partition")
        schema = function_schema(func, "map_partition", output_type, many=True)
        return self.then(MapPartition, described("map_partition", func), schema, function=func)

    def map_batches(self, func: Callable[[Any], Any], output_type: Any = None) -> DataSet[Any]:
        """Turn record batches into record batches, tables or dicts of columns.

        Args:
            func: Takes a ``pyarrow.RecordBatch``; how records are cut into batches is open.
            output_type: The new records' type; without it they become Python objects again.
        """
        checked_function(func, "map_batches")
        return self.then(MapBatches, described("map_batches", func), declared_schema(output_type), function=func)

    # ----------------------------------------------------------------------------------------------------------- groups

    def group_by(self, *key: KeyOf[T1]) -> GroupedDataSet[T1]:
        """Group records by fields (names, or positions in tuples) or by a function.

        Null is a key like any other, and so is NaN.
        """
        found = group_key("group_by", key, self.schema)
        for name in found.names or ():
            if (found.names or ()).count(name) > 1:
                message = f"group_by: field {name!r} is named twice"
                raise ProgramError(message)
        return GroupedDataSet(self, found)

    def distinct(self, *key: KeyOf[T1]) -> DataSet[T1]:
        """Return one record of each key; without a key, of equal records one."""
        if not key:
            return self.then(Distinct, "distinct", self.schema, Ship(ShipKind.HASH), key=None)
        found = group_key("distinct", key, self.schema)
        return self.then(Distinct, f"distinct by {found!r}", self.schema, Ship(ShipKind.HASH, found), key=found)

    # ------------------------------------------------------------------------------------------- partitions and order

    def rebalance(self) -> DataSet[T1]:
        """Deal the records out evenly."""
        return self.then(Repartition, "rebalance", self.schema, REBALANCE)

    def partition_by_hash(self, *key: KeyOf[T1]) -> DataSet[T1]:
        """Bring equal keys to one partition."""
        found = group_key("partition_by_hash", key, self.schema)
        return self.then(Repartition, f"partition by hash of {found!r}", self.schema, Ship(ShipKind.HASH, found))

    def partition_by_range(self, *fields: KeyOf[T1], ascending: bool = True) -> DataSet[T1]:
        """Bring records to partitions in order of fields: nothing in a partition is greater than in the next."""
        orders = tuple(order_of("partition_by_range", field, ascending, self.schema) for field in fields)
        if not orders:
            message = "partition_by_range needs a field"
            raise ProgramError(message)
        ship = Ship(ShipKind.RANGE, orders=orders)
        return self.then(Repartition, f"partition by range of {', '.join(map(repr, orders))}", self.schema, ship)

    def partition_custom(self, partitioner: Any, *key: KeyOf[T1]) -> DataSet[T1]:
        """Bring each record to the partition that ``partitioner(key, num_partitions)`` names."""
        function = getattr(partitioner, "partition", partitioner)
        if not callable(function):
            message = f"a partitioner is a Partitioner or a callable of key and number; got {partitioner!r}"
            raise ProgramError(message)
        found = group_key("partition_custom", key, self.schema)
        ship = Ship(ShipKind.CUSTOM, found, function=function)
        return self.then(Repartition, f"partition by {found!r}", self.schema, ship)

    def sort_partition(self, field: KeyOf[T1], ascending: bool = True) -> DataSet[T1]:
        """Sort each partition; called again behind itself, by further fields."""
        order = order_of("sort_partition", field, ascending, self.schema)
        node = self._node
        if isinstance(node, SortPartition) and not self._is_used:
            orders = (*node.orders, order)
            name = _sort_name("sort_partition", orders)
            return DataSet(self._environment, replace(node, id=self._environment.new_id(), orders=orders, name=name))
        return self.then(SortPartition, _sort_name("sort_partition", (order,)), self.schema, orders=(order,))

    def sort(self, *fields: KeyOf[T1], ascending: bool | Sequence[bool] = True) -> DataSet[T1]:
        """Sort all records: ``collect`` gives them in this order.

        Nulls come first and NaN last; descending is exactly the reverse.

        Args:
            *fields: Names, positions or functions, the first counting most.
            ascending: For all, or for each.
        """
        is_each = isinstance(ascending, Sequence) and not isinstance(ascending, str)
        directions = list(ascending) if is_each else [ascending] * len(fields)  # type: ignore[arg-type]
        if not fields or len(directions) != len(fields):
            message = f"sort needs fields, and one direction for all or each; got {len(fields)} and {len(directions)}"
            raise ProgramError(message)
        orders = tuple(order_of("sort", f, up, self.schema) for f, up in zip(fields, directions, strict=True))
        ship = Ship(ShipKind.RANGE, orders=orders)
        return self.then(Sort, _sort_name("sort", orders), self.schema, ship, orders=orders)

    # ------------------------------------------------------------------------------------------------------- iterations

    @overload
    def iterate(
        self,
        max_iterations: int,
        step: None = None,
        *,
        aggregators: _Aggregators = None,
        convergence: _Criterion = None,
    ) -> IterativeDataSet[T1]: ...

    @overload
    def iterate(
        self,
        max_iterations: int,
        step: Callable[[DataSet[T1]], DataSet[T1] | tuple[DataSet[T1], DataSet]],
        *,
        aggregators: _Aggregators = None,
        convergence: _Criterion = None,
    ) -> DataSet[T1]: ...

    def iterate(
        self,
        max_iterations: int,
        step: Callable[..., Any] | None = None,
        *,
        aggregators: _Aggregators = None,
        convergence: _Criterion = None,
    ) -> DataSet[T1]:
        """Put the data set through a step again and again.

        Args:
            max_iterations: How often, at most.
            step: Takes a data set (the last result) and gives the next; or a pair of that and a data set that ends the
                iteration when it is empty. None gives an `IterativeDataSet`, which is closed by ``close_with``.
            aggregators: Accumulators by name, merged at the end of each superstep.
            convergence: Name of an aggregator and a function of superstep and its value that is true to stop.
        """
        from .iterations import IterativeDataSet, bulk_iteration

        if step is not None:
            return bulk_iteration(self, max_iterations, step, aggregators or {}, convergence)
        return IterativeDataSet.begin(self, max_iterations, aggregators or {}, convergence)

    def iterate_delta(
        self,
        workset: DataSet,
        max_iterations: int,
        *key: KeyOf[T1],
        step: Callable[[DataSet, DataSet], tuple[DataSet, DataSet]] | None = None,
        aggregators: _Aggregators = None,
        convergence: _Criterion = None,
    ) -> Any:
        """Change this data set, the solution set, by way of a workset until that is empty.

        Args:
            workset: The first workset.
            max_iterations: Most supersteps.
            *key: The key of the solution set, which holds one record of each.
            step: Takes solution set and workset, gives the changes of the solution set and the next workset. None gives
                a builder, which is closed by ``close_with``.
            aggregators: As of `iterate`.
            convergence: As of `iterate`.
        """
        from .iterations import DeltaIterationBuilder, delta_iteration

        found = group_key("iterate_delta", key, self.schema)
        if step is not None:
            return delta_iteration(self, workset, max_iterations, found, step, aggregators or {}, convergence)
        loop: DeltaIterationBuilder = DeltaIterationBuilder.begin(
            self, workset, max_iterations, found, aggregators or {}, convergence
        )
        return loop

    # ---------------------------------------------------------------------------------------------------------- results

    def collect(self) -> list[T1]:
        """Run the plan and give all records, in order of the partitions."""
        return rows_of_table(self._collected(), self.schema)

    def to_arrow(self, *, watch: RunWatch | None = None) -> pa.Table:
        """Run the plan and give all records as an Arrow table.

        Args:
            watch: Is told what the run does, and may end it.

        Raises:
            TypeMismatchError: If records without a type are not of one form.
            JobCanceledError: If ``watch`` has ended it.
        """
        table = self._collected(watch)
        if self.schema is not None:
            return table
        return pa.Table.from_batches([columns_from_rows(rows_of_table(table, None))])

    def to_pandas(self) -> Any:
        """Run the plan and give all records as a pandas data frame."""
        return self.to_arrow().replace_schema_metadata(None).to_pandas()

    def count(self) -> int:
        """Run the plan and give the number of records."""
        node = self._sink(Count, "count", None)
        number: int = self._environment.run((node,)).values[node.id]
        return number

    def print(self, limit: int | None = None) -> None:
        """Run the plan and write the records to standard output, one per line.

        Args:
            limit: How many at most; None for all.
        """
        shown = self if limit is None else self.first(limit)
        sys.stdout.write("".join(f"{row}\n" for row in shown.collect()))
        sys.stdout.flush()

    def cache(self) -> DataSet[T1]:
        """Return the same records, computed once and kept for further jobs of this environment.

        What is kept goes when the program holds nothing that reads it, and with the environment's ``close``. If it is
        lost with a machine, it is computed again.
        """
        return self.then(Cache, "cache", self.schema, token=CacheToken())

    def to_stream(self, env: StreamExecutionEnvironment) -> DataStream[T1]:
        """Run the plan and make a bounded stream of the result."""
        if self.schema is None:
            return env.from_collection(self.collect())
        return env.from_collection(self.to_arrow(), type_info=resolve_type(self.schema))

    def live(self, limit: int = 20) -> LiveOutput:
        """Run the plan, show its progress and then its first records below the cell; the kernel stays free.

        Args:
            limit: How many records are shown. All of them are computed: ``client.result()`` of what comes back gives
                them.

        Raises:
            ProgramError: Outside of a notebook.
        """
        from ..jobs.notebook_output import require_notebook
        from .live_run import live_output

        whole("limit", limit, 1, None)
        require_notebook()
        return live_output(lambda watch: self.to_arrow(watch=watch), limit)

    def _collected(self, watch: RunWatch | None = None) -> pa.Table:
        node = self._sink(Collect, "collect", self.schema)
        table: pa.Table = self._environment.run((node,), watch=watch).values[node.id]
        return table

    def _sink(self, kind: type[Node], name: str, schema: pa.Schema | None, /, **more: Any) -> Node:
        return self.then(kind, name, schema, FORWARD, **more).take_node()

    def __repr__(self) -> str:
        kind = record_shape(self.schema)
        return f"DataSet({self._node.name}, {'objects' if kind == 'object' else self.get_type()!r})"


class CacheToken:
    """Stands for a data set that is kept; executors hold it weakly."""


def _sort_name(method: str, orders: Sequence[Order]) -> str:
    return f"{method} {', '.join(map(repr, orders))}"
