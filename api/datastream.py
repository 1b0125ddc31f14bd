"""Streams and what can be done with them, by PyFlink's names.

Every method records one transformation and returns at once; nothing runs before ``execute``. Wrong arguments are
refused where they are written. Methods that set something (``uid``, ``set_parallelism`` ...) change the operator that
made the stream and return the stream.

Two paths with equal answers: Python functions take records as rows; expressions, ``map_batches`` and keyword aggregates
take them as Arrow columns. Which one an operation takes is decided here, from its arguments alone, and shown by
``explain``.

Source: PyFlink's ``DataStream``, ``KeyedStream``, ``WindowedStream``, ``DataStreamSink``.
"""

from __future__ import annotations

import itertools
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
from headrace.engine.expressions import Expression, col
from headrace.engine.functions import OutputTag
from headrace.engine.keys import KeySelector
from headrace.engine.operators import Operator
from headrace.engine.process import FieldReducer, KeyedProcessOperator, KeyedReduceOperator
from headrace.engine.rowfunctions import ApplyFunction, WindowRow
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
from headrace.engine.windows import CountWindows, SlidingWindows, WindowAssigner

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
        """Send the operator's half-full output buffers after this long at the latest.

        The whole job's buffer timeout is lowered to it.
        """
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

    # ------------------------------------------------------------------------------------------------------- row by row

    def map(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each record into another.

        Args:
            func: A callable or a MapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        return self._apply("map", func, MapOperator(func), output_type, infer_output_type(func, "map"))

    def flat_map(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn each record into any number of others: ``func`` yields or returns an iterable.

        Args:
            func: A callable or a FlatMapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(func, "flat_map", many=True)
        return self._apply("flat_map", func, FlatMapOperator(func), output_type, hinted)

    def filter(self, func: Callable[[Any], bool] | Expression) -> DataStream:
        """Keep the records for which ``func`` is true: a callable, a FilterFunction, or an expression over columns."""
        if isinstance(func, Expression):
            operator = FilterColumns(func, schema_of(self._hinted_type))
            return self._add("filter", operator, None, repr(func), self._hinted_type)
        return self._apply("filter", func, FilterOperator(func), None, self._hinted_type)

    def process(self, func: Any, output_type: Any = None) -> DataStream:
        """Run a ProcessFunction: any number of records out, side outputs, access to timestamps.

        Args:
            func: A ProcessFunction, or a callable of value and context that yields.
            output_type: The new records' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, ProcessOperator(func), output_type, hinted)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        """Find event times and generate watermarks here, per subtask, instead of in the source."""
        _instance("watermark_strategy must be a WatermarkStrategy", WatermarkStrategy, watermark_strategy)
        operator = TimestampsAndWatermarksOperator(watermark_strategy)
        return self._add("timestamps and watermarks", operator, None, None, self._hinted_type)

    # ------------------------------------------------------------------------------------------------------- by columns

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
            _new_column(chosen, name, col(column) if isinstance(column, str) else column)
        for name, value in named.items():
            _new_column(chosen, name, value)
        if not chosen:
            message = "select needs at least one column"
            raise ProgramError(message)
        operator = SelectColumns(chosen, input_schema=schema_of(self._hinted_type))
        return self._add("select", operator, None, f"select {', '.join(chosen)}", None)

    def with_columns(self, **named: Any) -> DataStream:
        """Keep all columns and add, or replace, the given ones: ``with_columns(total=col("price") * col("n"))``."""
        if not named:
            message = "with_columns needs at least one column"
            raise ProgramError(message)
        operator = SelectColumns.with_columns(named, schema_of(self._hinted_type))
        return self._add("with_columns", operator, None, f"with columns {', '.join(named)}", None)

    def map_batches(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream:
        """Turn whole ``pyarrow.RecordBatch``es into others.

        Args:
            func: Takes a record batch, gives one (of any number of rows).
            output_type: The new records' type: checked.
        """
        operator = MapBatchesOperator(func)
        if self._hinted_type is not None and isinstance(self._transformation, OperatorTransformation):
            # The function sees columns: the promised type is made of the rows right where it was promised.
            self._transformation.output_schema = self._transformation.output_schema or schema_of(self._hinted_type)
        return self._apply("map_batches", func, operator, output_type, None)

    # -------------------------------------------------------------------------------------------------- several streams

    def union(self, *streams: DataStream) -> DataStream:
        """All records of this stream and the others, in no order between them."""
        for stream in streams:
            _instance("union takes streams", DataStream, stream)
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
        side_output = SideOutputTransformation(self._environment.new_id(), operator, _tag_id(output_tag))
        return DataStream(self._environment, side_output)

    # ----------------------------------------------------------------------------------------------------- partitioning

    def key_by(self, *key: Any) -> KeyedStream:
        """Partition by key: all records of one key go to one subtask, in which they share state (row A10).

        Args:
            *key: One callable (or KeySelector object with ``get_key``), or one or more fields: names, columns
                (``col("a")``), or positions in tuples. Only by names can windows aggregate on columns.
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
            partitioner: A callable of key and number of subtasks (or an object with ``partition``) that gives a number
                from 0.
            key_selector: As in `key_by`.
        """
        function = partitioner if callable(partitioner) else getattr(partitioner, "partition", None)
        if function is None:
            message = f"partitioner must be a callable of key and number of subtasks; got {partitioner!r}"
            raise ProgramError(message)
        keys = key_selector if isinstance(key_selector, (tuple, list)) else (key_selector,)
        return self._partitioned(CustomPartitioner(function, _key_selector("partition_custom", tuple(keys))))

    # ---------------------------------------------------------------------------------------------- placement, chaining

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

    # ------------------------------------------------------------------------------------------------------------- ends

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
            Without ``limit`` an iterator with ``close()``, to be used in a ``with`` block unless it is read to its end;
            with it a list. With checkpoints each record comes once, when the checkpoint it belongs to is complete.

        Raises:
            JobFailedError: If the job fails, while the records are read.
        """
        if limit is not None:
            _whole("limit", limit, 1, None)
        rows = CollectedRows()
        from headrace.connectors.collect import CollectSink

        sink = self._add_sink(CollectSink(), "collect", keep_parallelism=True)
        self._environment.add_collector(sink._transformation, rows)
        self._environment.execute_async(job_name or "collect")
        if limit is None:
            return rows
        with rows:
            return list(itertools.islice(rows, limit))

    # --------------------------------------------------------------------------------------------------------- internal

    def _apply(
        self, name: str, func: Any, operator: Operator, output_type: Any, hinted: TypeInformation | None
    ) -> DataStream:
        return self._add(name, operator, output_type, _described(name, func), hinted)

    def _add(
        self,
        name: str,
        operator: Operator,
        output_type: Any,
        description: str | None,
        hinted: TypeInformation | None,
        *,
        keep_parallelism: bool = False,
    ) -> DataStream:
        declared = None if output_type is None else resolve_type(output_type)
        transformation = OperatorTransformation(
            self._environment.new_id(),
            name,
            OperatorKind.OPERATOR,
            operator,
            (self._transformation,),
            self._parallelism_behind(keep=keep_parallelism),
            description=description,
            output_schema=schema_of(declared),
        )
        self._environment.add_operator(transformation)
        return DataStream(self._environment, transformation, declared or hinted)

    def _parallelism_behind(self, *, keep: bool) -> int:
        """The parallelism of a new operator: the environment's, or that of the operator in front of it."""
        before = self._transformation
        if keep and isinstance(before, OperatorTransformation):
            return before.parallelism
        return self._environment.get_parallelism()

    def _add_sink(self, sink: Sink, name: str, *, keep_parallelism: bool = False) -> DataStreamSink:
        transformation = OperatorTransformation(
            self._environment.new_id(),
            name,
            OperatorKind.SINK,
            SinkOperator(sink),
            (self._transformation,),
            self._parallelism_behind(keep=keep_parallelism),
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
    """A stream partitioned by key. `map`, `filter` and the like keep the partitioning but give streams without key."""

    def __init__(self, stream: DataStream, key_selector: KeySelector) -> None:
        environment = stream.get_execution_environment()
        partition = PartitionTransformation(environment.new_id(), stream._transformation, HashPartitioner(key_selector))
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
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, KeyedProcessOperator(self._key_selector, func), output_type, hinted)

    def reduce(self, func: Callable[[Any, Any], Any]) -> DataStream:
        """Combine each record with the result so far of its key; every record gives one result (row A3).

        Args:
            func: A callable of two, or a ReduceFunction; what it gives is of the records' type.
        """
        return self._apply("reduce", func, KeyedReduceOperator(self._key_selector, func), None, self._hinted_type)

    def sum(self, field: str | int = 0) -> DataStream:
        """Add up a field (name, or position in tuples) per key; other fields stay those of the key's first record."""
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
        _instance("window takes an assigner such as TumblingEventTimeWindows", WindowAssigner, window_assigner)
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream:
        """Cut the stream of each key into windows of ``size`` records, every ``slide`` (default ``size``) (row C8)."""
        _whole("size", size, 1, None)
        if slide is not None:
            _whole("slide", slide, 1, None)
        return WindowedStream(self, CountWindows.of(size, slide))

    def _fold(self, kind: str, field: str | int) -> DataStream:
        operator = KeyedReduceOperator(self._key_selector, FieldReducer(kind, _field(kind, field)))
        return self._add(kind, operator, None, f"{kind} of {field!r}", self._hinted_type)

    def _partitioned(self, partitioner: Partitioner) -> DataStream:
        message = f"a keyed stream cannot be partitioned by {partitioner.name.lower()}: its partitioning is by key"
        raise ProgramError(message)


class WindowedStream:
    """The windows of a keyed stream, to be given a function. Made by ``window`` and ``count_window``."""

    def __init__(self, stream: KeyedStream, assigner: WindowAssigner) -> None:
        self._stream = stream
        self._assigner = assigner
        # How long behind its end a window takes records and fires again; 0 drops them.
        self._allowed_lateness_ms = 0
        # Where records go that are late even so; None drops them.
        self._late_tag: str | None = None

    def allowed_lateness(self, lateness: Any) -> WindowedStream:
        """Take records up to this long behind the end of their window, which then fires again.

        Args:
            lateness: Milliseconds, or a text such as "5 s".
        """
        lateness_ms = parse_duration_ms(lateness)
        if lateness_ms < 0:
            message = f"allowed lateness must be at least 0 ms; got {lateness!r}"
            raise ConfigurationError(message)
        self._refuse_for_count_windows("allowed lateness")
        self._allowed_lateness_ms = lateness_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> WindowedStream:
        """Send records that come too late to a side output of the window operator instead of dropping them."""
        self._refuse_for_count_windows("a side output of late records")
        self._late_tag = _tag_id(output_tag)
        return self

    def reduce(self, reduce_function: Any, window_function: Any = None, output_type: Any = None) -> DataStream:
        """Combine the records of each window as they come.

        Args:
            reduce_function: A callable of two, or a ReduceFunction.
            window_function: Turns the one result into any number of records, knowing key and window: a
                ProcessWindowFunction, a WindowFunction, or a callable of key, window and results. Without it the result
                is emitted as it is.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = self._stream._hinted_type if window_function is None else None
        return self._row_path(
            "reduce", reduce_function, output_type, hinted, reduce=reduce_function, process=window_function
        )

    def aggregate(
        self,
        aggregate_function: Any = None,
        window_function: Any = None,
        output_type: Any = None,
        **aggregates: Aggregate,
    ) -> DataStream:
        """Fold the records of each window as they come, by a function or by built-in aggregates.

        With keywords (``aggregate(n=count(), top=f.max("price"))``) each result is one record per key and window: the
        key (by its field names, or as ``key``), ``window_start``, ``window_end``, and the aggregates. For keys by field
        name in tumbling or sliding event-time windows this runs on columns.

        Args:
            aggregate_function: An AggregateFunction.
            window_function: As in `reduce`.
            output_type: The results' type: checked, and columns are made of them.
            **aggregates: Built-in aggregates by the name of their result, instead of a function.
        """
        if (aggregate_function is None) == (not aggregates):
            message = "aggregate takes either an AggregateFunction or built-in aggregates by keyword, such as n=count()"
            raise ProgramError(message)
        if aggregate_function is not None:
            functions = {"aggregate": aggregate_function, "process": window_function}
            return self._row_path("aggregate", aggregate_function, output_type, None, **functions)
        if window_function is not None:
            message = (
                "a window function goes with an AggregateFunction; results of built-in aggregates have key and window"
            )
            raise ProgramError(message)
        return self._built_in(aggregates, output_type)

    def process(self, process_window_function: Any, output_type: Any = None) -> DataStream:
        """Keep the records of each window and give them all to a function when it fires.

        Args:
            process_window_function: A ProcessWindowFunction.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(process_window_function, "process", many=True)
        return self._row_path("process", process_window_function, output_type, hinted, process=process_window_function)

    def apply(self, window_function: Any, output_type: Any = None) -> DataStream:
        """As `process`, with a WindowFunction or a callable of key, window and records."""
        hinted = infer_output_type(window_function, "apply", many=True)
        function = window_function if hasattr(window_function, "apply") else ApplyFunction(window_function)
        return self._row_path("apply", window_function, output_type, hinted, process=function)

    def sum(self, field: str | int = 0) -> DataStream:
        """Add up a field per window; the other fields are those of the window's first record."""
        return self._fold("sum", field)

    def min(self, field: str | int = 0) -> DataStream:
        """The least value of a field per window; the other fields are those of the window's first record."""
        return self._fold("min", field)

    def max(self, field: str | int = 0) -> DataStream:
        """The greatest value of a field per window; the other fields are those of the window's first record."""
        return self._fold("max", field)

    def min_by(self, field: str | int = 0) -> DataStream:
        """The record with the least value of a field per window; of equal ones the first."""
        return self._fold("min_by", field)

    def max_by(self, field: str | int = 0) -> DataStream:
        """The record with the greatest value of a field per window; of equal ones the first."""
        return self._fold("max_by", field)

    def _fold(self, kind: str, field: str | int) -> DataStream:
        description = f"{kind} of {field!r} in {self._assigner!r}"
        return self._windowed(
            kind, description, None, self._stream._hinted_type, reduce=FieldReducer(kind, _field(kind, field))
        )

    def _row_path(
        self, name: str, function: Any, output_type: Any, hinted: TypeInformation | None, **functions: Any
    ) -> DataStream:
        return self._windowed(
            name, f"{_described(name, function)} in {self._assigner!r}", output_type, hinted, **functions
        )

    def _windowed(
        self, name: str, description: str, output_type: Any, hinted: TypeInformation | None, **functions: Any
    ) -> DataStream:
        operator = WindowOperator(
            self._stream._key_selector,
            self._assigner,
            allowed_lateness_ms=self._allowed_lateness_ms,
            late_tag=self._late_tag,
            **functions,
        )
        return self._stream._add(name, operator, output_type, description, hinted)

    def _built_in(self, aggregates: dict[str, Aggregate], output_type: Any) -> DataStream:
        """Choose columns where keys are fields and windows are made of slices; in two phases where those merge."""
        keys, assigner = self._stream._key_selector, self._assigner
        rows = RowAggregates(aggregates)  # checks them, whatever the path
        description = f"{', '.join(f'{name}={spec!r}' for name, spec in aggregates.items())} in {assigner!r}"
        if keys.field_names is None or not isinstance(assigner, SlidingWindows) or not assigner.is_event_time:
            result_row = WindowRow(keys.field_names, aggregates)
            return self._windowed("aggregate", description, output_type, None, aggregate=rows, result_row=result_row)
        input_schema = schema_of(self._stream._hinted_type)
        late: dict[str, Any] = {"allowed_lateness_ms": self._allowed_lateness_ms, "late_tag": self._late_tag}
        if self._late_tag is not None or not all(spec.is_mergeable for spec in aggregates.values()):
            single = GlobalSliceAggregate(
                keys, assigner, aggregates, from_records=True, input_schema=input_schema, **late
            )
            return self._stream._add("aggregate", single, output_type, description, None)
        local = LocalSliceAggregate(keys, assigner, aggregates, input_schema=input_schema)
        partial = self._stream._upstream._add("aggregate: local", local, None, description, None, keep_parallelism=True)
        merged = GlobalSliceAggregate(keys, assigner, aggregates, **late)
        return KeyedStream(partial, keys)._add("aggregate", merged, output_type, description, None)

    def _refuse_for_count_windows(self, what: str) -> None:
        if isinstance(self._assigner, CountWindows):
            message = f"{what} makes no sense for count windows: they know no time"
            raise ProgramError(message)


def _key_selector(method: str, key: Sequence[Any]) -> KeySelector:
    """A selector from what a user writes as a key."""
    if len(key) == 1 and isinstance(key[0], (list, tuple)):
        key = key[0]
    if len(key) == 1:
        (only,) = key
        if isinstance(only, KeySelector):
            return only
        if callable(getattr(only, "get_key", None)):
            return KeySelector.of_function(only.get_key)
        if callable(only) and not isinstance(only, Expression):
            return KeySelector.of_function(only)
    fields: list[str | int] = []
    for one in key:
        field = one
        if isinstance(one, Expression):
            structure = one.structure
            if structure[0] != "col":
                message = f"{method} takes columns by name; {one!r} is computed"
                raise ProgramError(message, hint="add it by with_columns(name=...) first and use the name")
            field = structure[1]
        fields.append(_field(method, field))
    if not fields:
        message = f"{method} needs a key"
        raise ProgramError(message)
    return KeySelector.of_field(*fields)


def _field(method: str, field: Any) -> str | int:
    is_position = isinstance(field, int) and not isinstance(field, bool) and field >= 0
    if not is_position and not (isinstance(field, str) and field):
        message = f"{method} takes a field's name, or its position in tuples, as key or value; got {field!r}"
        raise ProgramError(message)
    return field


def _instance(rule: str, kind: type, value: Any) -> None:
    if not isinstance(value, kind):
        message = f"{rule}; got {value!r}"
        raise ProgramError(message)


def _tag_id(output_tag: Any) -> str:
    tag_id = output_tag if isinstance(output_tag, str) else getattr(output_tag, "tag_id", None)
    if not isinstance(tag_id, str) or not tag_id:
        message = f"an output tag must be an OutputTag or its id; got {output_tag!r}"
        raise ProgramError(message)
    return tag_id


def _described(name: str, function: Any) -> str:
    own = getattr(function, "__qualname__", None) or type(function).__name__
    return f"{name} by {own}"


def _new_column(chosen: dict[str, Any], name: str, value: Any) -> None:
    if name in chosen:
        message = f"column {name!r} is selected twice"
        raise ProgramError(message)
    chosen[name] = value


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        message = f"{what} must be a text that is not empty; got {value!r}"
        raise ConfigurationError(message)
    return value


def _whole(what: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        message = f"{what} must be a whole number, {bounds}; got {value!r}"
        raise ConfigurationError(message)
