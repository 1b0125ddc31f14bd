"""Streams and what can be done with them, by PyFlink's names.

Every method records one transformation and returns at once; nothing runs before ``execute``. Wrong arguments are
refused where they are written. Methods that set something (``uid``, ``set_parallelism`` ...) change the operator that
made the stream and return the stream.

Two paths with equal answers: Python functions take records as rows; expressions, ``map_batches`` and keyword aggregates
take them as Arrow columns. Which one an operation takes is decided here, from its arguments alone, and shown by
``explain``.

What has a key is in `headrace.stream.keyed_stream`, what is made of several streams in
`headrace.stream.combined_streams`; windows, joins and connected streams have modules of their own as well.

Source: PyFlink's ``DataStream``.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa

from headrace.engine.columns.expressions import Expression
from headrace.engine.connectors.contract import Sink
from headrace.engine.errors import ProgramError
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import Operator
from headrace.engine.functions.side_outputs import OutputTag
from headrace.engine.graph.transformations import (
    ChainingStrategy,
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
)
from headrace.engine.operators.column_operators import FilterColumns, SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.operators.exchange import (
    Partitioner,
)
from headrace.engine.operators.row_operators import (
    FilterOperator,
    FlatMapOperator,
    MapBatchesOperator,
    MapOperator,
    ProcessOperator,
    TimestampsAndWatermarksOperator,
)
from headrace.engine.windows.assigners import CountWindows, WindowAssigner
from headrace.state.type_variables import T1

from ..arguments.absent_names import absence_of
from ..arguments.checks import described, key_selector_of, require_instance, tag_id_of, whole
from ..arguments.data_types import (
    TypeInformation,
    Types,
    infer_output_type,
    resolve_type,
    schema_of,
    type_of,
)
from ..arguments.function_shapes import AsksOutside, FilterOf, FlatMapOf, KeyOf, MapOf, ProcessOf
from ..arguments.known_columns import columns_behind
from ..arguments.projections import projection, selected_columns
from ..arguments.taken_types import check_taken
from .collected_rows import CollectedRows
from .combined_streams import CombinedStreams
from .data_stream_sink import DataStreamSink, parallelism_behind, sink_of, users_sink_of

if TYPE_CHECKING:
    from headrace.engine.connectors.async_sinks import AsyncSink
    from headrace.engine.functions.async_functions import AsyncRetryStrategy
    from headrace.engine.lookups.enrichment import LookupCache

    from ..jobs.notebook_output import LiveOutput
    from .cached_stream import CachedDataStream
    from .environment import StreamExecutionEnvironment
    from .iterative_stream import IterativeStream
    from .keyed_stream import KeyedStream
    from .windowed_stream import AllWindowedStream

__all__ = ["DataStream"]

_New = TypeVar("_New")

_NEEDS_KEY = frozenset(
    ("window", "count_window", "reduce", "sum", "min", "max", "min_by", "max_by", "interval_join", "temporal_join")
)
"""Methods of a keyed stream that this one does not have."""


class DataStream(CombinedStreams[T1]):
    """A stream of records. Made by an environment's sources and by other streams' methods.

    Type checkers know of what type the records are (``DataStream[int]``), from collections and generators and by the
    hints of functions from step to step; a record in columns is a ``dict``.
    """

    def __init__(
        self,
        environment: StreamExecutionEnvironment,
        transformation: Transformation,
        hinted_type: TypeInformation | None = None,
        known_columns: pa.Schema | None = None,
    ) -> None:
        self._environment = environment
        self.transformation = transformation
        # What the function's hints say of its records; not checked, used where columns are made of them.
        self.hinted_type = hinted_type
        # What the records are known to have, for checks before anything runs; None if nothing is known.
        self.known_columns = schema_of(hinted_type) if known_columns is None else known_columns

    if not TYPE_CHECKING:  # who checks types says himself that there is no such method

        def __getattr__(self, name: str) -> Any:
            message = absence_of(type(self).__name__, name)
            if name in _NEEDS_KEY:
                message = f"{name} needs a key; write key_by(...).{name}(...)"
                if name in ("window", "count_window"):
                    message += f", or {name}_all(...) for windows over the whole stream, in one subtask"
            raise AttributeError(message, name=name, obj=self)

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Return the environment that the stream belongs to."""
        return self._environment

    def get_type(self) -> TypeInformation:
        """Return the type of the records, as far as it is known before anything runs.

        Returns:
            What was declared or hinted, or what a source or a columnar operator says of its columns;
            ``Types.PICKLED_BYTE_ARRAY()``, any Python object, if nothing is known.
        """
        if self.hinted_type is not None:
            return self.hinted_type
        return Types.PICKLED_BYTE_ARRAY() if self.known_columns is None else type_of(self.known_columns)

    # ------------------------------------------------------------------------------------------------------- row by row

    def map(self, func: MapOf[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """Turn each record into another.

        Args:
            func: A callable or a MapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        check_taken("map", func, "map", self.known_columns)
        operator = MapOperator(func, self._keys_for(func))
        return self._apply("map", func, operator, output_type, infer_output_type(func, "map"))

    def flat_map(self, func: FlatMapOf[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """Turn each record into any number of others: ``func`` yields or returns an iterable.

        Args:
            func: A callable or a FlatMapFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        check_taken("flat_map", func, "flat_map", self.known_columns)
        hinted = infer_output_type(func, "flat_map", many=True)
        return self._apply("flat_map", func, FlatMapOperator(func, self._keys_for(func)), output_type, hinted)

    def filter(self, func: FilterOf[T1] | Expression) -> DataStream[T1]:
        """Keep the records for which ``func`` is true: a callable, a FilterFunction, or an expression over columns."""
        if isinstance(func, Expression):
            operator = FilterColumns(func, schema_of(self.hinted_type))
            return self.transform("filter", operator, None, repr(func), self.hinted_type)
        check_taken("filter", func, "filter", self.known_columns)
        return self._same_records("filter", FilterOperator(func, self._keys_for(func)), described("filter", func))

    def process(self, func: ProcessOf[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """Run a ProcessFunction: any number of records out, side outputs, access to timestamps.

        Args:
            func: A ProcessFunction, or a callable of value and context that yields.
            output_type: The new records' type: checked, and columns are made of them.
        """
        check_taken("process", func, "process_element", self.known_columns)
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, ProcessOperator(func), output_type, hinted)

    @overload
    def map_async(
        self,
        func: Callable[[T1], Awaitable[_New]] | AsksOutside[T1, _New],
        capacity: int = 100,
        timeout: Any = "30 s",
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        output_type: Any = None,
    ) -> DataStream[_New]: ...

    @overload
    def map_async(
        self,
        func: Callable[[T1], _New],
        capacity: int = 100,
        timeout: Any = "30 s",
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        output_type: Any = None,
    ) -> DataStream[_New]: ...

    def map_async(
        self,
        func: Any,
        capacity: int = 100,
        timeout: Any = "30 s",
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        output_type: Any = None,
    ) -> DataStream[Any]:
        """Turn each record into another with the help of an outside system, many at once.

        Args:
            func: A coroutine function, which runs on one event loop with all others; any other callable, which may
                block and runs in threads; or an AsyncFunction, which gives a list of records.
            capacity: Most records under way in each subtask; beyond that the stream waits.
            timeout: How long all attempts at a record may take: milliseconds or a text such as ``"30 s"``; 0 for ever.
            ordered: Whether results keep the order of their records; else nothing but watermarks stays in place.
            retry: When attempts are repeated, e.g. ``AsyncRetryStrategies.fixed_delay(3, "1 s")``.
            output_type: The new records' type: checked, and columns are made of them.
        """
        from .async_data_stream import map_async_on

        return map_async_on(self, func, capacity, timeout, retry, output_type, ordered=ordered)

    def lookup(
        self,
        func: Any,
        key: Any,
        how: str = "left",
        cache: LookupCache | None = None,
        fields: Sequence[str] | None = None,
        join: Callable[[Any, Any | None], Any] | None = None,
        capacity: int = 100,
        timeout: Any = "30 s",
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
        output_type: Any = None,
    ) -> DataStream[Any]:
        """Enrich each record with the rows that an outside table has for its key.

        Without ``join`` the fields of a row are added to the record's; records or rows that are no dicts give pairs.

        Args:
            func: A coroutine function or other callable of a key, a LookupFunction or an AsyncLookupFunction; gives a
                list of rows, one row, or None.
            key: As in `key_by`; records need not be partitioned by it, but a cache then serves fewer keys.
            how: ``left`` keeps records without a row, ``inner`` drops them.
            cache: What each subtask remembers; None asks for every record.
            fields: Add only these fields of a row; a record without a row gets None for each.
            join: Takes a record and a row (None without one) and gives what is emitted.
            capacity: As in `map_async`; so for those below.
            timeout: How long all attempts may take.
            ordered: Whether results keep the order of their records.
            retry: When attempts are repeated.
            output_type: The new records' type: checked, and columns are made of them.
        """
        from .async_data_stream import lookup_on

        return lookup_on(
            self, func, key, how, cache, fields, join, capacity, timeout, retry, output_type, ordered=ordered
        )

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream[T1]:
        """Find event times and generate watermarks here, per subtask, instead of in the source."""
        require_instance("watermark_strategy must be a WatermarkStrategy", WatermarkStrategy, watermark_strategy)
        operator = TimestampsAndWatermarksOperator(watermark_strategy)
        return self._same_records("timestamps and watermarks", operator, None)

    # ------------------------------------------------------------------------------------------------------- by columns

    def select(self, *columns: str | Expression, **named: Any) -> DataStream[dict[str, Any]]:
        """Make records of the given columns only: ``select("a", col("b"), c=col("b") * 2)``.

        Args:
            *columns: Names, or expressions that have one (``col``, ``.alias``).
            **named: Expressions or constants by the name of their column.
        """
        chosen = selected_columns(columns, named)
        operator = SelectColumns(chosen, input_schema=schema_of(self.hinted_type))
        return self.transform("select", operator, None, f"select {', '.join(chosen)}", None)

    def with_columns(self, **named: Any) -> DataStream[dict[str, Any]]:
        """Keep all columns and add, or replace, the given ones: ``with_columns(total=col("price") * col("n"))``."""
        if not named:
            message = "with_columns needs at least one column"
            raise ProgramError(message)
        operator = SelectColumns.with_columns(named, schema_of(self.hinted_type))
        return self.transform("with_columns", operator, None, f"with columns {', '.join(named)}", None)

    def project(self, *field_indexes: int) -> DataStream[tuple[Any, ...]]:
        """Make tuples of some fields of tuples.

        Args:
            *field_indexes: Their positions, from 0, in the order wanted.

        Raises:
            ProgramError: If there is none, or the records are known to be no tuples or to have fewer fields.
        """
        func, output_type = projection(field_indexes, self.get_type())
        return self._apply("project", func, MapOperator(func), output_type, None)

    def map_batches(self, func: Callable[[Any], Any], output_type: Any = None) -> DataStream[Any]:
        """Turn whole record batches (``pyarrow.RecordBatch``) into others.

        Args:
            func: Takes a record batch, gives one (of any number of rows).
            output_type: The new records' type: checked.
        """
        operator = MapBatchesOperator(func)
        if self.hinted_type is not None and isinstance(self.transformation, OperatorTransformation):
            # The function sees columns: the promised type is made of the rows right where it was promised.
            self.transformation.output_schema = self.transformation.output_schema or schema_of(self.hinted_type)
        return self._apply("map_batches", func, operator, output_type, None)

    # ---------------------------------------------------------------------------------------------- side outputs, loops

    @overload
    def get_side_output(self, output_tag: OutputTag[_New]) -> DataStream[_New]: ...

    @overload
    def get_side_output(self, output_tag: str) -> DataStream[Any]: ...

    def get_side_output(self, output_tag: OutputTag[Any] | str) -> DataStream[Any]:
        """Return the records that this operator emits to a side output.

        Args:
            output_tag: The tag, or its id: ``dead-letter`` of a source holds what it could not decode.
        """
        operator = self._operator("a side output")
        side_output = SideOutputTransformation(self._environment.new_id(), operator, tag_id_of(output_tag))
        return DataStream(self._environment, side_output)

    def cache(self) -> CachedDataStream[T1]:
        """Keep the records for the next jobs of the environment, so that they need not be computed again.

        The first job that computes the stream and finishes writes it down, with event times, beside its checkpoints or
        else in a temporary directory of this machine. Later jobs read that, in no order between subtasks and without
        watermarks but the end. If files are missing when a job is submitted, it computes and keeps the stream anew.

        Raises:
            ProgramError: If the stream has no end, or is the result of `broadcast`, `rebalance` or the like, which
                say for one operator how records are dealt out.
        """
        return self._environment.cached(self)

    def iterate(self, max_wait_time: Any = None) -> IterativeStream[T1]:
        """Begin a loop: records of this stream, and those that its ``close_with`` sends back, flow through its body.

        Args:
            max_wait_time: None ends a bounded loop when it is empty, which is found out exactly. A duration ends it
                when the input has ended and nothing has come back for so long (processing time); what comes later is
                dropped and counted as ``num_feedback_records_dropped``.
        """
        from .iterative_stream import IterativeStream

        return IterativeStream(self, max_wait_time)

    # ----------------------------------------------------------------------------------------------------- partitioning

    def key_by(self, *key: KeyOf[T1]) -> KeyedStream[T1]:
        """Partition by key: all records of one key go to one subtask, in which they share state.

        Args:
            *key: One callable (or KeySelector object with ``get_key``), or one or more fields: names, columns
                (``col("a")``), or positions in tuples. Only by names can windows aggregate on columns.
        """
        from .keyed_stream import KeyedStream

        return KeyedStream(self, key_selector_of("key_by", key))

    def window_all(self, window_assigner: WindowAssigner) -> AllWindowedStream[T1]:
        """Cut the whole stream into windows, without a key and in one subtask."""
        require_instance("window_all takes a window assigner", WindowAssigner, window_assigner)
        from .windowed_stream import AllWindowedStream

        return AllWindowedStream(self, window_assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream[T1]:
        """Cut the whole stream into windows of ``size`` records, every ``slide`` (default ``size``), in one subtask."""
        whole("size", size, 1, None)
        if slide is not None:
            whole("slide", slide, 1, None)
        from .windowed_stream import AllWindowedStream

        return AllWindowedStream(self, CountWindows.of(size, slide))

    # ---------------------------------------------------------------------------------------------- placement, chaining

    def start_new_chain(self) -> DataStream[T1]:
        """Do not chain this operator to what feeds it; what it feeds may be chained to it."""
        self._operator("chaining").chaining = ChainingStrategy.HEAD
        return self

    def co_locate_with(self, other: DataStream[Any]) -> DataStream[T1]:
        """Run subtask i of this operator in the slot that runs subtask i of the other's (``CoLocationGroup``)."""
        mine, theirs = self._operator("co-location"), other._operator("co-location")
        if other._environment is not self._environment:
            message = "streams of different environments cannot be combined"
            raise ProgramError(message)
        if theirs.co_location_group is None:
            theirs.co_location_group = f"co-location-{theirs.transformation_id}"
        mine.co_location_group = theirs.co_location_group
        return self

    # ------------------------------------------------------------------------------------------------------------- ends

    def sink_to(self, sink: Sink[T1] | AsyncSink[T1]) -> DataStreamSink:
        """Write the stream to a sink.

        Raises:
            ProgramError: If it is none, or one that contradicts itself.
        """
        return users_sink_of(self, sink)

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Show the records on the client's standard output, with the subtask's number if there are several.

        Args:
            sink_identifier: Put before each line, to tell several streams apart.
        """
        from ..connectors.print import PrintSink

        return sink_of(self, PrintSink(sink_identifier or ""), "print")

    @overload
    def execute_and_collect(self, job_name: str | None = None, limit: None = None) -> CollectedRows[T1]: ...

    @overload
    def execute_and_collect(self, job_name: str | None = None, limit: int = ...) -> list[T1]: ...

    def execute_and_collect(
        self, job_name: str | None = None, limit: int | None = None
    ) -> CollectedRows[T1] | list[T1]:
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
            whole("limit", limit, 1, None)
        rows: CollectedRows[T1] = CollectedRows()
        from ..connectors.collect import CollectSink

        sink = sink_of(self, CollectSink(), "collect", keep_parallelism=True)
        self._environment.add_collector(sink.transformation, rows)
        self._environment.execute_async(job_name or "collect")
        if limit is None:
            return rows
        with rows:
            return list(itertools.islice(rows, limit))

    # ---------------------------------------------------------------------------------------------------- in notebooks

    def live(self, limit: int = 20, job_name: str | None = None) -> LiveOutput:
        """Run the program, and show the newest records below the cell as they come; the kernel stays free.

        Args:
            limit: How many are shown.
            job_name: For people.

        Returns:
            What shows them, with ``stop()``, ``wait()`` and the job's ``client``.

        Raises:
            ProgramError: Outside of a notebook.
        """
        from ..jobs.notebook_output import require_notebook

        whole("limit", limit, 1, None)
        require_notebook()
        with self._environment.changed_apart():
            self._environment.set_progress_listener(lambda view: None)  # what one looks at is the records
            rows = self.execute_and_collect(job_name or "live")
        return rows.live(limit)

    def _repr_html_(self) -> str:
        from ..jobs.plan_picture import html_of_stream

        return html_of_stream(type(self).__name__, self.get_type(), self._environment.get_execution_plan)

    # --------------------------------------------------------------------------------------------------------- internal

    def _keys_for(self, func: Any) -> KeySelector | None:
        """By what a function of this stream has keyed state; None if it has none."""
        return None

    def _apply(
        self, name: str, func: Any, operator: Operator, output_type: Any, hinted: TypeInformation | None
    ) -> DataStream[Any]:
        return self.transform(name, operator, output_type, described(name, func), hinted)

    def _same_records(self, name: str, operator: Operator, description: str | None) -> DataStream[T1]:
        """Put an operator behind this stream that gives records as they come."""
        return self.transform(name, operator, None, description, self.hinted_type, known_columns=self.known_columns)

    def transform(
        self,
        name: str,
        operator: Operator,
        output_type: Any = None,
        description: str | None = None,
        hinted: TypeInformation | None = None,
        *,
        others: Sequence[DataStream[Any]] = (),
        keep_parallelism: bool = False,
        known_columns: pa.Schema | None = None,
    ) -> DataStream[Any]:
        """Put an operator behind this stream: what every method here comes down to.

        Args:
            name: Its name, for people.
            operator: The operator; this stream is its input 0.
            output_type: The new records' type: checked, and columns are made of them.
            description: Shown in plans.
            hinted: What the records are said to be; not checked.
            others: The streams of its inputs 1, 2 ...
            keep_parallelism: Whether it takes the parallelism of the operator before it, not the environment's.
            known_columns: What the new records are known to have; None asks the operator, if it works on columns.

        Raises:
            ProgramError: If the streams are of different environments, or a column that the operator reads is known
                not to be there.
            TypeMismatchError: If an expression does not fit the types of the columns that are known.
        """
        for other in others:
            self._require_combinable("an operator's inputs are streams", other)
        declared = None if output_type is None else resolve_type(output_type)
        if known_columns is None:
            known_columns = columns_behind(operator, self.known_columns, name)
        if declared is not None:
            known_columns = None  # what is declared counts
        transformation = OperatorTransformation(
            self._environment.new_id(),
            name,
            OperatorKind.OPERATOR,
            operator,
            (self.transformation, *(other.transformation for other in others)),
            parallelism_behind(self, keep=keep_parallelism),
            description=description,
            output_schema=schema_of(declared),
        )
        self._environment.add_operator(transformation)
        return DataStream(self._environment, transformation, declared or hinted, known_columns)

    def _partitioned(self, partitioner: Partitioner) -> DataStream[T1]:
        partition = PartitionTransformation(self._environment.new_id(), self.transformation, partitioner)
        return DataStream(self._environment, partition, self.hinted_type, self.known_columns)
