"""Streams and what can be done with them, by PyFlink's names.

Every method records one transformation and returns at once; nothing runs before ``execute``. Wrong arguments are refused where they are
written. Methods that set something (``uid``, ``set_parallelism`` ...) change the operator that made the stream and return the stream.

Two paths with equal answers: Python functions take records as rows; expressions, ``map_batches`` and keyword aggregates take them as Arrow
columns. Which one an operation takes is decided here, from its arguments alone, and shown by ``explain``.

Source: PyFlink's ``DataStream``, ``KeyedStream``, ``WindowedStream``, ``DataStreamSink``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client import CollectedRows
from headrace.datatypes import TypeInformation, infer_output_type, resolve_type, schema_of
from headrace.engine.aggregates import Aggregate, RowAggregates
from headrace.engine.columnar import FilterColumns, SelectColumns
from headrace.engine.config import parse_duration_ms
from headrace.engine.connector import Sink
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.eventtime import WatermarkStrategy
from headrace.engine.exchange import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    HashPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from headrace.engine.expressions import Expression
from headrace.engine.functions import AggregateFunction, OutputTag, ProcessWindowFunction
from headrace.engine.keys import KeySelector
from headrace.engine.operators import Operator
from headrace.engine.process import KeyedProcessOperator, KeyedReduceOperator
from headrace.engine.sinks import SinkOperator
from headrace.engine.slices import GlobalSliceAggregate, LocalSliceAggregate
from headrace.engine.streamgraph import (
    MAX_MAX_PARALLELISM,
    ChainingStrategy,
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
)
from headrace.engine.transforms import (
    FilterOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessOperator,
    TimestampsAndWatermarksOperator,
)
from headrace.engine.window_operator import WindowOperator
from headrace.engine.windows import CountWindows, SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner

if TYPE_CHECKING:
    from headrace.environment import StreamExecutionEnvironment

__all__ = ["DataStream", "DataStreamSink", "KeyedStream", "WindowedStream"]

_Settable = TypeVar("_Settable", bound="_OperatorSettings")


class _OperatorSettings:
    """What can be set on the operator that made a stream, or on a sink."""

    _transformation: Transformation

    def _operator(self, what: str) -> OperatorTransformation:
        if not isinstance(self._transformation, OperatorTransformation):
            message = f"{what} belongs to operators; this stream is a union, a partitioning or a side output"
            raise ProgramError(message, hint="set it on the operator before or after it")
        return self._transformation

    def name(self: _Settable, name: str) -> _Settable:
        """Name the operator, for people."""
        self._operator("name").name = _text("name", name)
        return self

    def uid(self: _Settable, uid: str) -> _Settable:
        """Give the operator the id by which its state is found again after a restart or a change of the program."""
        self._operator("uid").uid = _text("uid", uid)
        return self

    def set_description(self: _Settable, description: str) -> _Settable:
        """Describe the operator in plans."""
        self._operator("description").description = _text("description", description)
        return self

    def set_parallelism(self: _Settable, parallelism: int) -> _Settable:
        """Set the number of the operator's subtasks.

        Raises:
            ConfigurationError: If it is below 1, above the largest possible, or not 1 where it must be.
        """
        operator = self._operator("parallelism")
        _whole("parallelism", parallelism, 1, operator.max_parallelism or MAX_MAX_PARALLELISM)
        if not operator.is_parallel and parallelism != 1:
            message = f"parallelism must be 1, this operator cannot be split; got {parallelism}"
            raise ConfigurationError(message, operator=operator.name)
        operator.parallelism = parallelism
        return self

    def set_max_parallelism(self: _Settable, max_parallelism: int) -> _Settable:
        """Set the number of the operator's key groups; cannot be changed with its state kept."""
        _whole("max_parallelism", max_parallelism, 1, MAX_MAX_PARALLELISM)
        self._operator("max_parallelism").max_parallelism = max_parallelism
        return self

    def slot_sharing_group(self: _Settable, group: str) -> _Settable:
        """Put the operator, and all behind it that say nothing else, in a slot sharing group (row D15)."""
        self._operator("slot sharing group").slot_sharing_group = _text("slot sharing group", group)
        return self

    def disable_chaining(self: _Settable) -> _Settable:
        """Run the operator as a task of its own."""
        self._operator("chaining").chaining = ChainingStrategy.NEVER
        return self

    def set_buffer_timeout(self: _Settable, timeout: Any) -> _Settable:
        """Send the operator's half-full output buffers after this long at the latest; lowers the whole job's buffer timeout to it."""
        timeout_ms = parse_duration_ms(timeout)
        if timeout_ms < 0:
            message = f"buffer timeout must be at least 0 ms; got {timeout!r}"
            raise ConfigurationError(message)
        self._operator("buffer timeout").buffer_timeout_ms = timeout_ms
        return self


class DataStream(_OperatorSettings):
    """A stream of records. Made by an environment's sources and by other streams' methods."""

    def __init__(
        self,
        environment: StreamExecutionEnvironment,
        transformation: Transformation,
        hinted_type: TypeInformation | None = None,
    ) -> None:
        self._environment = environment
        self._transformation = transformation
        # What the function's hints say of its records; not checked, used where columns are made of them.
        self._hinted_type = hinted_type

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """The environment that the stream belongs to."""
        return self._environment

    # ---------------------------------------------------------------------------------------------------------- row by row

    def map(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each record into another.

        Args:
            func: A callable or a MapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        _function("map", func, "map")
        return self._apply("map", func, MapOperator(func), output_type, infer_output_type(func, "map"))

    def flat_map(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each record into any number of others: ``func`` yields or returns an iterable.

        Args:
            func: A callable or a FlatMapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        _function("flat_map", func, "flat_map")
        hinted = infer_output_type(func, "flat_map", many=True)
        return self._apply("flat_map", func, FlatMapOperator(func), output_type, hinted)

    def filter(self, func: Callable[[Any], bool] | Expression) -> DataStream:
        """Keep the records for which ``func`` gives true: a callable, a FilterFunction, or an expression over columns."""
        if isinstance(func, Expression):
            return self._columnar("filter", FilterColumns(func), repr(func))
        _function("filter", func, "filter")
        return self._apply("filter", func, FilterOperator(func), None, self._hinted_type)

    def process(self, func: Any, output_type: Any = None) -> DataStream:
        """Run a ProcessFunction: any number of records out, side outputs, access to timestamps.

        Args:
            func: A ProcessFunction, or a callable of value and context that yields.
            output_type: The new records' type: checked, and columns are made of them.
        """
        _function("process", func, "process_element")
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, ProcessOperator(func), output_type, hinted)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Find event times and generate watermarks here, per subtask, instead of in the source."""
        if not isinstance(watermark_strategy, WatermarkStrategy):
            message = f"watermark_strategy must be a WatermarkStrategy; got {watermark_strategy!r}"
            raise ProgramError(message)
        operator = TimestampsAndWatermarksOperator(watermark_strategy)
        return self._add("timestamps and watermarks", operator, None, None, self._hinted_type)

    # ---------------------------------------------------------------------------------------------------------- by columns

    def select(self, *columns: str | Expression, **named: Any) -> DataStream:
        """Make records of the given columns only: ``select("a", col("b"), c=col("b") * 2)``.

        Args:
            *columns: Names, or expressions that have one (``col``, ``.alias``).
            **named: Expressions or constants by the name of their column.
        """
        chosen: dict[str, Any] = {}
        for column in columns:
            name = column if isinstance(column, str) else getattr(column, "output_name", None)
            if not isinstance(name, str):
                message = f"a selected column needs a name; {column!r} has none"
                raise ProgramError(message, hint="write name=expression, or expression.alias('name')")
            _new_column(chosen, name, column)
        for name, value in named.items():
            _new_column(chosen, name, value)
        if not chosen:
            message = "select needs at least one column"
            raise ProgramError(message)
        return self._columnar("select", SelectColumns(chosen), f"select {', '.join(chosen)}")

    def with_columns(self, **named: Any) -> DataStream:
        """Keep all columns and add, or replace, the given ones: ``with_columns(total=col("price") * col("n"))``."""
        if not named:
            message = "with_columns needs at least one column"
            raise ProgramError(message)
        return self._columnar("with_columns", SelectColumns(named, keep_others=True), f"with columns {', '.join(named)}")

    def map_batches(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn whole ``pyarrow.RecordBatch``es into others.

        Args:
            func: Takes a record batch, gives one (of any number of rows).
            output_type: The new records' type: checked.
        """
        _function("map_batches", func, None)
        stream = self._with_hinted_columns()
        return stream._apply("map_batches", func, MapBatchesOperator(func), output_type, None)

    # ---------------------------------------------------------------------------------------------------- several streams

    def union(self, *streams: DataStream) -> DataStream:
        """All records of this stream and the others, in no order between them."""
        for stream in streams:
            if not isinstance(stream, DataStream):
                message = f"union takes streams; got {stream!r}"
                raise ProgramError(message)
            if stream._environment is not self._environment:
                message = "streams of different environments cannot be combined"
                raise ProgramError(message)
        if not streams:
            message = "union needs at least one other stream"
            raise ProgramError(message)
        inputs = (self._transformation, *(stream._transformation for stream in streams))
        hinted = {stream._hinted_type for stream in (self, *streams)}
        union = UnionTransformation(self._environment.new_id(), inputs)
        return DataStream(self._environment, union, hinted.pop() if len(hinted) == 1 else None)

    def get_side_output(self, output_tag: OutputTag | str) -> DataStream:
        """The records that this operator emits to a side output.

        Args:
            output_tag: The tag, or its id: ``dead-letter`` of a source holds what it could not decode.
        """
        operator = self._operator("a side output")
        tag = output_tag if isinstance(output_tag, str) else output_tag.tag_id
        side_output = SideOutputTransformation(self._environment.new_id(), operator, tag)
        return DataStream(self._environment, side_output)

    # -------------------------------------------------------------------------------------------------------- partitioning

    def key_by(self, *key: Any) -> KeyedStream:
        """Partition by key: all records of one key go to one subtask, in which they share state (row A10).

        Args:
            *key: One callable (or KeySelector object with ``get_key``), or one or more fields: names, columns (``col("a")``), or
                positions in tuples. Only by names can windows aggregate on columns.
        """
        return KeyedStream(self, _key_selector("key_by", key))

    def rebalance(self) -> DataStream:
        """Deal records out evenly over all subtasks of the next operator, in turn."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream:
        """Deal records out in turn over a share of the next operator's subtasks."""
        return self._partitioned(RescalePartitioner())

    def shuffle(self) -> DataStream:
        """Deal records out evenly at random."""
        return self._partitioned(ShufflePartitioner())

    def broadcast(self) -> DataStream:
        """Send each record to all subtasks of the next operator."""
        return self._partitioned(BroadcastPartitioner())

    def global_(self) -> DataStream:
        """Send all records to the first subtask of the next operator."""
        return self._partitioned(GlobalPartitioner())

    def forward(self) -> DataStream:
        """Send the records of each subtask to the next operator's subtask of the same number (row A9)."""
        return self._partitioned(ForwardPartitioner())

    def partition_custom(self, partitioner: Any, key_selector: Any) -> DataStream:
        """Let a function choose the subtask.

        Args:
            partitioner: A callable of key and number of subtasks (or an object with ``partition``) that gives a number from 0.
            key_selector: As in `key_by`.
        """
        function = partitioner if callable(partitioner) else getattr(partitioner, "partition", None)
        if function is None:
            message = f"partitioner must be a callable of key and number of subtasks; got {partitioner!r}"
            raise ProgramError(message)
        keys = key_selector if isinstance(key_selector, (tuple, list)) else (key_selector,)
        return self._partitioned(CustomPartitioner(function, _key_selector("partition_custom", tuple(keys))))

    # -------------------------------------------------------------------------------------------------- placement, chaining

    def start_new_chain(self) -> DataStream:
        """Do not chain this operator to what feeds it; what it feeds may be chained to it."""
        self._operator("chaining").chaining = ChainingStrategy.HEAD
        return self

    def co_locate_with(self, other: DataStream) -> DataStream:
        """Run subtask i of this operator in the slot that runs subtask i of the other's (row D15)."""
        mine, theirs = self._operator("co-location"), other._operator("co-location")
        if other._environment is not self._environment:
            message = "streams of different environments cannot be combined"
            raise ProgramError(message)
        if theirs.co_location_group is None:
            theirs.co_location_group = f"co-location-{theirs.transformation_id}"
        mine.co_location_group = theirs.co_location_group
        return self

    # ---------------------------------------------------------------------------------------------------------------- ends

    def sink_to(self, sink: Sink) -> DataStreamSink:
        """Write the stream to a sink."""
        if not hasattr(sink, "create_writer"):
            message = f"sink must be a Sink; got {sink!r}"
            raise ProgramError(message)
        return self._add_sink(sink, type(sink).__name__.removesuffix("Sink").lower() or "sink")

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Show the records on the client's standard output, with the subtask's number if there are several.

        Args:
            sink_identifier: Put before each line, to tell several streams apart.
        """
        from headrace.connectors.print import PrintSink

        return self._add_sink(PrintSink(sink_identifier or ""), "print")

    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> Any:
        """Run the program and give back this stream's records.

        Args:
            job_name: For people.
            limit: Take at most so many, then cancel the job.

        Returns:
            Without ``limit`` an iterator with ``close()``, to be used in a ``with`` block unless it is read to its end; with it a list.
            With checkpoints each record comes once, when the checkpoint it belongs to is complete.

        Raises:
            JobFailedError: If the job fails, while the records are read.
        """
        if limit is not None:
            _whole("limit", limit, 1, None)
        rows = CollectedRows()
        from headrace.connectors.collect import CollectSink

        sink = self._add_sink(CollectSink(), "collect")
        self._environment.add_collector(sink._transformation, rows)
        self._environment.execute_async(job_name or "collect")
        if limit is None:
            return rows
        with rows:
            return [row for _, row in zip(range(limit), rows)]

    # ------------------------------------------------------------------------------------------------------------ internal

    def _apply(
        self, name: str, func: Any, operator: Operator, output_type: Any, hinted: TypeInformation | None
    ) -> DataStream:
        return self._add(name, operator, output_type, _described(name, func), hinted)

    def _columnar(self, name: str, operator: Operator, description: str) -> DataStream:
        return self._with_hinted_columns()._add(name, operator, None, description, None)

    def _with_hinted_columns(self) -> DataStream:
        """Have the hinted type checked and columns of it made by the operator that promised it, now that columns are wanted."""
        if self._hinted_type is not None and isinstance(self._transformation, OperatorTransformation):
            self._transformation.output_schema = self._transformation.output_schema or schema_of(self._hinted_type)
        return self

    def _add(
        self, name: str, operator: Operator, output_type: Any, description: str | None, hinted: TypeInformation | None
    ) -> DataStream:
        declared = None if output_type is None else resolve_type(output_type)
        transformation = OperatorTransformation(
            self._environment.new_id(),
            name,
            OperatorKind.OPERATOR,
            operator,
            (self._transformation,),
            self._environment.get_parallelism(),
            description=description,
            output_schema=schema_of(declared),
        )
        self._environment.add_operator(transformation)
        return DataStream(self._environment, transformation, declared or hinted)

    def _add_sink(self, sink: Sink, name: str) -> DataStreamSink:
        transformation = OperatorTransformation(
            self._environment.new_id(),
            name,
            OperatorKind.SINK,
            SinkOperator(sink),
            (self._transformation,),
            self._environment.get_parallelism(),
        )
        self._environment.add_operator(transformation)
        return DataStreamSink(transformation)

    def _partitioned(self, partitioner: Partitioner) -> DataStream:
        partition = PartitionTransformation(self._environment.new_id(), self._transformation, partitioner)
        return DataStream(self._environment, partition, self._hinted_type)


class DataStreamSink(_OperatorSettings):
    """The end of a stream; only for settings."""

    def __init__(self, transformation: OperatorTransformation) -> None:
        self._transformation = transformation


class KeyedStream(DataStream):
    """A stream partitioned by key. `map`, `filter` and the like keep the partitioning but give streams without a key."""

    def __init__(self, stream: DataStream, key_selector: KeySelector) -> None:
        environment = stream.get_execution_environment()
        partition = PartitionTransformation(
            environment.new_id(), stream._transformation, HashPartitioner(key_selector)
        )
        super().__init__(environment, partition, stream._hinted_type)
        # The stream before partitioning: where records are aggregated before they are shuffled.
        self._upstream = stream
        self._key_selector = key_selector

    def process(self, func: Any, output_type: Any = None) -> DataStream:
        """Run a KeyedProcessFunction, with state and timers of the current key.

        Args:
            func: A KeyedProcessFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        _function("process", func, "process_element")
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, KeyedProcessOperator(self._key_selector, func), output_type, hinted)

    def reduce(self, func: Callable[[Any, Any], Any]) -> DataStream:
        """Combine each record with the result so far of its key; every record gives one result (row A3).

        Args:
            func: A callable of two, or a ReduceFunction; what it gives is of the records' type.
        """
        _function("reduce", func, "reduce")
        return self._apply("reduce", func, KeyedReduceOperator(self._key_selector, func), None, self._hinted_type)

    def sum(self, field: str | int = 0) -> DataStream:
        """Add up a field (name, or position in tuples) per key; the other fields stay those of the key's first record."""
        return self._fold("sum", field)

    def min(self, field: str | int = 0) -> DataStream:
        """The least value of a field per key; the other fields stay those of the key's first record."""
        return self._fold("min", field)

    def max(self, field: str | int = 0) -> DataStream:
        """The greatest value of a field per key; the other fields stay those of the key's first record."""
        return self._fold("max", field)

    def min_by(self, field: str | int = 0) -> DataStream:
        """The record with the least value of a field per key; of equal ones the first."""
        return self._fold("min_by", field)

    def max_by(self, field: str | int = 0) -> DataStream:
        """The record with the greatest value of a field per key; of equal ones the first."""
        return self._fold("max_by", field)

    def window(self, window_assigner: WindowAssigner) -> WindowedStream:
        """Cut the stream of each key into windows."""
        if not isinstance(window_assigner, WindowAssigner):
            message = f"window takes an assigner such as TumblingEventTimeWindows.of('10 s'); got {window_assigner!r}"
            raise ProgramError(message)
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Cut the stream of each key into windows of ``size`` records, a new one every ``slide`` (default: every ``size``) (row C8)."""
        _whole("size", size, 1, None)
        if slide is not None:
            _whole("slide", slide, 1, None)
        return WindowedStream(self, CountWindows(size, slide))

    def _fold(self, kind: str, field: str | int) -> DataStream:
        fold = FieldReduce(kind, field)
        operator = KeyedReduceOperator(self._key_selector, fold)
        return self._add(kind, operator, None, f"{kind} of {field!r}", self._hinted_type)

    def _partitioned(self, partitioner: Partitioner) -> DataStream:
        message = f"a keyed stream cannot be partitioned by {partitioner.name.lower()}: its partitioning is by key"
        raise ProgramError(message)
