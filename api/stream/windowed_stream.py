"""Windows of a keyed stream and of one without key, and the functions that can be given to them.

Without a key all records of a window come together in one subtask: such an operator does not scale. Built-in aggregates
on columns do most of their work before that, at the parallelism of the stream. Functions are those of keyed windows
without the key.

Source: PyFlink's ``WindowedStream``, ``AllWindowedStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import pyarrow as pa

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.functions.aggregates.by_row import RowAggregates
from headrace.engine.functions.aggregates.contract import Aggregate
from headrace.engine.functions.keys import KeySelector
from headrace.engine.functions.operator import Operator
from headrace.engine.functions.side_outputs import OutputTag, Tagged
from headrace.engine.graph.transformations import OperatorTransformation, PartitionTransformation
from headrace.engine.kernel.config import parse_duration_ms
from headrace.engine.operators.exchange import GlobalPartitioner
from headrace.engine.operators.field_reducer import FieldReducer
from headrace.engine.windows.all_windows import OneKey, without_key
from headrace.engine.windows.assigners import CountWindows, EventTimeSessionWindows, SlidingWindows, WindowAssigner
from headrace.engine.windows.columnar.sessions import GlobalSessionAggregate, LocalSessionAggregate
from headrace.engine.windows.columnar.slices import GlobalSliceAggregate, LocalSliceAggregate
from headrace.engine.windows.combining import LocalCombiner
from headrace.engine.windows.evictors import Evictor
from headrace.engine.windows.placement import has_fast_path
from headrace.engine.windows.row_functions import ApplyBatchesFunction, ApplyFunction, WindowRow
from headrace.engine.windows.triggers import Trigger
from headrace.engine.windows.window_operator import WindowOperator, checked_trigger
from headrace.state.keyed.descriptors import Aggregates, Reduces
from headrace.state.type_variables import T1

from ..arguments.checks import described, field_of, require_instance, tag_id_of
from ..arguments.data_types import TypeInformation, infer_output_type, schema_of
from ..arguments.function_shapes import AppliesToAll, AppliesToWindow, ProcessesAll, ProcessesWindow
from ..arguments.known_columns import check_fields, columns_behind, columns_used
from .data_stream import DataStream
from .field_folds import FieldFolds
from .keyed_stream import KeyedStream

if TYPE_CHECKING:
    from .environment import StreamExecutionEnvironment

__all__ = ["AllWindowedStream", "WindowedStream"]

_Stream = TypeVar("_Stream", bound="WindowedStream[Any]")
_New = TypeVar("_New")

_Held = TypeVar("_Held")

_Process: TypeAlias = (
    Callable[[Any, Any, Iterable[_Held]], Iterable[_New | Tagged] | None]
    | Callable[[Any, Iterable[_Held]], Iterable[_New | Tagged] | None]
    | ProcessesWindow[_Held, _New]
    | ProcessesAll[_Held, _New]
)
"""A function of key, the window's context and what the window holds; in streams without key of the last two."""

_Apply: TypeAlias = (
    Callable[[Any, Any, Iterable[_Held]], Iterable[_New] | None]
    | Callable[[Any, Iterable[_Held]], Iterable[_New] | None]
    | AppliesToWindow[_Held, _New]
    | AppliesToAll[_Held, _New]
)
"""The same with the window itself in place of its context."""


class WindowedStream(FieldFolds[DataStream[T1]]):
    """The windows of a keyed stream, to be given a function. Made by ``window`` and ``count_window``."""

    def __init__(
        self, stream: DataStream[T1], keys: KeySelector, assigner: WindowAssigner, upstream: DataStream[T1]
    ) -> None:
        self._stream = stream
        # The stream before partitioning: where records are aggregated before they are shuffled.
        self._upstream = upstream
        self._keys = keys
        self._assigner = assigner
        # What says when windows fire; None for built-in windows that keep their default.
        self._trigger: Trigger | None = None
        if not has_fast_path(assigner):
            self._trigger = checked_trigger(None, assigner, stream.get_execution_environment())
        # What takes records out of windows.
        self._evictor: Evictor | None = None
        # How long behind its end a window takes records and fires again; 0 drops them.
        self._allowed_lateness_ms = 0
        # Where records go that are late even so; None drops them.
        self._late_tag: str | None = None
        # Whether records are combined before they are shuffled.
        self._is_combinable = False

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        """Return the environment that the stream belongs to."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """Return the type of the records before they were put into windows; see `DataStream.get_type`."""
        return self._stream.get_type()

    def trigger(self: _Stream, trigger: Trigger) -> _Stream:
        """Let a trigger say when windows fire, instead of the assigner's default.

        Raises:
            ProgramError: If it is no trigger, or one that cannot merge where windows do.
        """
        self._trigger = checked_trigger(trigger, self._assigner)
        return self

    def evictor(self: _Stream, evictor: Evictor) -> _Stream:
        """Let an evictor take records out of windows before or after their function sees them.

        Windows then keep all their records, under `reduce` and `aggregate` too.
        """
        require_instance("evictor takes an Evictor object such as CountEvictor.of(5)", Evictor, evictor)
        self._evictor = evictor
        return self

    def allowed_lateness(self: _Stream, lateness: Any) -> _Stream:
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

    def side_output_late_data(self: _Stream, output_tag: OutputTag[T1] | str) -> _Stream:
        """Send records that come too late to a side output of the window operator instead of dropping them."""
        self._refuse_for_count_windows("a side output of late records")
        self._late_tag = tag_id_of(output_tag)
        return self

    def combinable(self: _Stream) -> _Stream:
        """Let records of one key be combined before the shuffle, batch by batch, and again behind it.

        For a ReduceFunction, or an AggregateFunction with ``merge``, to which it makes no difference in which order and
        in which groups records come to it, as sums, counts and maxima are. Where batches hold several records of a key
        less is sent and worked off behind the shuffle, and a key that has most records is no longer the work of one
        subtask. Results and state are the same, so a savepoint can be restored with or without it. With an allowed
        lateness a subtask whose input was idle combines nothing from then on, and in a job that was restored some late
        records may make their window fire again together, not one by one.

        Built-in aggregates on columns are combined also without it. Others are on rows where windows are tumbling or
        sliding windows of event time with their default trigger, without evictor. Where that is not so, or there is a
        side output for late records, the function that the windows are given says so.
        """
        self._is_combinable = True
        return self

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T1, T1], T1] | Reduces[T1],
        window_function: None = None,
        output_type: Any = None,
    ) -> DataStream[T1]: ...

    @overload
    def reduce(
        self,
        reduce_function: Callable[[T1, T1], T1] | Reduces[T1],
        window_function: _Process[T1, _New] | _Apply[T1, _New],
        output_type: Any = None,
    ) -> DataStream[_New]: ...

    def reduce(self, reduce_function: Any, window_function: Any = None, output_type: Any = None) -> DataStream[Any]:
        """Combine the records of each window as they come.

        Args:
            reduce_function: A callable of two, or a ReduceFunction.
            window_function: Turns the one result into any number of records, knowing key and window: a
                ProcessWindowFunction, a WindowFunction, or a callable of key, window and results. Without it the result
                is emitted as it is.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = self._stream.hinted_type if window_function is None else None
        functions = {"reduce": reduce_function, "process": self._window_function(window_function)}
        return self._row_path("reduce", reduce_function, output_type, hinted, **functions)

    @overload
    def aggregate(
        self, aggregate_function: Aggregates[T1, _New], window_function: None = None, output_type: Any = None
    ) -> DataStream[_New]: ...

    @overload
    def aggregate(
        self,
        aggregate_function: Aggregates[T1, _Held],
        window_function: _Process[_Held, _New] | _Apply[_Held, _New],
        output_type: Any = None,
    ) -> DataStream[_New]: ...

    @overload
    def aggregate(self, *, output_type: Any = None, **aggregates: Aggregate) -> DataStream[dict[str, Any]]: ...

    def aggregate(
        self,
        aggregate_function: Any = None,
        window_function: Any = None,
        output_type: Any = None,
        **aggregates: Aggregate,
    ) -> DataStream[Any]:
        """Fold the records of each window as they come, by a function or by built-in aggregates.

        With keywords (``aggregate(n=count(), top=f.max("price"))``) each result is one record per key and window: the
        key (by its field names, or as ``key``), ``window_start``, ``window_end``, and the aggregates. For keys by field
        name, and for a stream without key, this runs on columns in tumbling, sliding and session windows of event time,
        if they keep their default trigger; in sessions without `first` and `last`.

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
            functions = {"aggregate": aggregate_function, "process": self._window_function(window_function)}
            return self._row_path("aggregate", aggregate_function, output_type, None, **functions)
        if window_function is not None:
            message = (
                "a window function goes with an AggregateFunction; results of built-in aggregates have key and window"
            )
            raise ProgramError(message)
        return self._built_in(aggregates, output_type)

    def process(self, process_window_function: _Process[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """Keep the records of each window and give them all to a function when it fires.

        Args:
            process_window_function: A ProcessWindowFunction.
            output_type: The results' type: checked, and columns are made of them.
        """
        hinted = infer_output_type(process_window_function, "process", many=True)
        function = self._window_function(process_window_function)
        return self._row_path("process", process_window_function, output_type, hinted, process=function)

    def apply(self, window_function: _Apply[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """As `process`, with a WindowFunction or a callable of key, window and records."""
        hinted = infer_output_type(window_function, "apply", many=True)
        function = self._applied(window_function)
        return self._row_path("apply", window_function, output_type, hinted, process=function)

    def apply_batches(self, window_function: Any, output_type: Any = None) -> DataStream[Any]:
        """Keep the records of each window and give them all as one ``pyarrow.RecordBatch`` when it fires.

        Args:
            window_function: A callable of key, window and record batch that gives what a `DataStream.map_batches`
                function may give: a record batch, a table, a dict of columns, None, or several of these. A data frame
                becomes one by ``pa.RecordBatch.from_pandas``.
            output_type: The results' type: checked, and columns are made of them.
        """
        function = ApplyBatchesFunction(window_function, schema_of(self._stream.hinted_type))
        return self._row_path("apply_batches", window_function, output_type, None, process=function)

    def _fold(self, kind: str, field: str | int) -> DataStream[T1]:
        description = f"{kind} of {field!r} in {self._assigner!r}"
        check_fields(kind, [field], self._stream.known_columns)
        return self._windowed(
            kind, description, None, self._stream.hinted_type, reduce=FieldReducer(kind, field_of(kind, field))
        )

    def _row_path(
        self, name: str, function: Any, output_type: Any, hinted: TypeInformation | None, **functions: Any
    ) -> DataStream[Any]:
        return self._windowed(
            name, f"{described(name, function)} in {self._assigner!r}", output_type, hinted, **functions
        )

    def _windowed(
        self, name: str, description: str, output_type: Any, hinted: TypeInformation | None, **functions: Any
    ) -> DataStream[Any]:
        keys, behind = self._combined(name, description, **functions) if self._is_combinable else (self._keys, None)
        operator = WindowOperator(
            keys,
            self._assigner,
            trigger=self._trigger,
            evictor=self._evictor,
            allowed_lateness_ms=self._allowed_lateness_ms,
            late_tag=self._late_tag,
            is_combined=behind is not None,
            **functions,
        )
        return self._transformed(name, operator, output_type, description, hinted, behind=behind)

    def _combined(
        self, name: str, description: str, *, reduce: Any = None, aggregate: Any = None, **_others: Any
    ) -> tuple[KeySelector, DataStream[Any]]:
        """Pairs of key and content, as they come to the windows' operator, and what finds their keys.

        Raises:
            ProgramError: If what these windows do cannot be done with pairs.
        """
        self._check_combinable(reduce, aggregate)
        combiner = LocalCombiner(
            self._keys,
            self._assigner,
            reduce=reduce,
            aggregate=aggregate,
            allowed_lateness_ms=self._allowed_lateness_ms,
        )
        pairs = self._upstream.transform(f"{name}: local", combiner, None, description, keep_parallelism=True)
        assert isinstance(pairs.transformation, OperatorTransformation)
        pairs.transformation.is_optional = True
        keys = self._keys_of_pairs()
        return keys, self._partitioned(pairs, keys)

    def _check_combinable(self, reduce: Any, aggregate: Any) -> None:
        """See that nothing here needs every record.

        Raises:
            ProgramError: If something does.
        """
        needs_records = {
            "a function that is given the records of a window": reduce is None and aggregate is None,
            "a trigger": self._trigger is not None and has_fast_path(self._assigner),
            "an evictor": self._evictor is not None,
            "a side output of late records": self._late_tag is not None,
            "an aggregate that depends on their order": isinstance(aggregate, RowAggregates)
            and not aggregate.is_mergeable,
        }
        if reasons := [reason for reason, is_there in needs_records.items() if is_there]:
            message = f"records cannot be combined before the shuffle, as there is {' and '.join(reasons)}"
            raise ProgramError(message, hint="leave out combinable()")

    def _transformed(
        self,
        name: str,
        operator: Operator,
        output_type: Any,
        description: str,
        hinted: TypeInformation | None,
        *,
        known_columns: pa.Schema | None = None,
        behind: DataStream[Any] | None = None,
    ) -> DataStream[Any]:
        stream = self._stream if behind is None else behind
        return stream.transform(name, operator, output_type, description, hinted, known_columns=known_columns)

    def _window_function(self, window_function: Any) -> Any:
        """A window function as the operator takes it."""
        return window_function

    def _applied(self, window_function: Any) -> Any:
        """What `apply` was given as the operator takes it."""
        return window_function if hasattr(window_function, "apply") else ApplyFunction(window_function)

    def _built_in(self, aggregates: dict[str, Aggregate], output_type: Any) -> DataStream[Any]:
        """Choose columns where keys are fields and windows are of a kind for it; in two phases where those merge."""
        keys, assigner = self._keys, self._assigner
        rows = RowAggregates(aggregates)  # checks them, whatever the path
        description = f"{', '.join(f'{name}={spec!r}' for name, spec in aggregates.items())} in {assigner!r}"
        are_mergeable = all(spec.is_mergeable for spec in aggregates.values())
        phases = self._phases_on_columns(are_mergeable)
        stream = self._stream
        if phases is None:
            arguments = [spec.argument for spec in aggregates.values()]
            check_fields("aggregate", columns_used(arguments), stream.known_columns)
            result_row = WindowRow(keys.field_names, aggregates)
            return self._windowed("aggregate", description, output_type, None, aggregate=rows, result_row=result_row)
        if self._is_combinable:
            self._check_combinable(None, rows)
        first, second = phases
        input_schema = schema_of(stream.hinted_type)
        late: dict[str, Any] = {"allowed_lateness_ms": self._allowed_lateness_ms, "late_tag": self._late_tag}
        if self._late_tag is not None or not are_mergeable:
            single = second(keys, assigner, aggregates, from_records=True, input_schema=input_schema, **late)
            return self._transformed("aggregate", single, output_type, description, None)
        local = first(keys, assigner, aggregates, input_schema=input_schema)
        partial = self._upstream.transform("aggregate: local", local, None, description, None, keep_parallelism=True)
        merged = second(keys, assigner, aggregates, **late)
        known = columns_behind(merged, stream.known_columns, "aggregate")
        return self._transformed(
            "aggregate",
            merged,
            output_type,
            description,
            None,
            known_columns=known,
            behind=self._partitioned(partial, keys),
        )

    def _phases_on_columns(self, are_mergeable: bool) -> tuple[Any, Any] | None:
        """The operators of both phases for these windows; None where they are on rows."""
        assigner = self._assigner
        if self._trigger is not None or self._evictor is not None or self._keys.field_names is None:
            return None
        if isinstance(assigner, SlidingWindows) and assigner.is_event_time():
            return LocalSliceAggregate, GlobalSliceAggregate
        # What is first or last in a session depends on the order in which parts of it have merged.
        if type(assigner) is EventTimeSessionWindows and are_mergeable:
            return LocalSessionAggregate, GlobalSessionAggregate
        return None

    def _partitioned(self, stream: DataStream[Any], keys: KeySelector) -> DataStream[Any]:
        """A stream as it comes to the windows' operator."""
        return KeyedStream(stream, keys)

    def _keys_of_pairs(self) -> KeySelector:
        """What finds the keys of pairs of key and content."""
        return KeySelector.of_field(0)

    def _refuse_for_count_windows(self, what: str) -> None:
        if isinstance(self._assigner, CountWindows):
            message = f"{what} makes no sense for count windows: they know no time"
            raise ProgramError(message)


class AllWindowedStream(WindowedStream[T1]):
    """The windows of a stream without key, to be given a function. Made by ``window_all`` and ``count_window_all``.

    Where keyed windows take a ProcessWindowFunction or WindowFunction, these take a ProcessAllWindowFunction or
    AllWindowFunction; callables of `process` take context and records, those of `apply` window and records.
    """

    def __init__(self, stream: DataStream[T1], assigner: WindowAssigner) -> None:
        super().__init__(_in_one_place(stream), OneKey(), assigner, stream)

    def _transformed(
        self,
        name: str,
        operator: Operator,
        output_type: Any,
        description: str,
        hinted: TypeInformation | None,
        *,
        known_columns: pa.Schema | None = None,
        behind: DataStream[Any] | None = None,
    ) -> DataStream[Any]:
        stream = super()._transformed(
            name, operator, output_type, description, hinted, known_columns=known_columns, behind=behind
        )
        transformation = stream.transformation
        assert isinstance(transformation, OperatorTransformation)
        transformation.parallelism = 1
        transformation.is_parallel = False
        return stream

    def _partitioned(self, stream: DataStream[Any], _keys: KeySelector) -> DataStream[Any]:
        return _in_one_place(stream)

    def _keys_of_pairs(self) -> KeySelector:
        return self._keys

    def _window_function(self, window_function: Any) -> Any:
        return None if window_function is None else without_key(window_function)

    def _applied(self, window_function: Any) -> Any:
        return without_key(window_function, is_apply=True)


def _in_one_place(stream: DataStream[T1]) -> DataStream[T1]:
    environment = stream.get_execution_environment()
    partition = PartitionTransformation(environment.new_id(), stream.transformation, GlobalPartitioner())
    return DataStream(environment, partition, stream.hinted_type, stream.known_columns)
