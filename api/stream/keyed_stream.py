"""Streams partitioned by key: keyed functions, running aggregates, joins by key, and the way to windows.

A keyed stream is where state is: all records of one key go to one subtask, and functions given to its methods see the
state and the timers of the current record's key.

Source: PyFlink's ``KeyedStream``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headrace.engine.errors import ProgramError
from headrace.engine.functions.contract import Function
from headrace.engine.functions.keys import KeySelector
from headrace.engine.graph.transformations import PartitionTransformation
from headrace.engine.operators.exchange import HashPartitioner, Partitioner
from headrace.engine.operators.field_reducer import FieldReducer
from headrace.engine.operators.process import KeyedProcessOperator, KeyedReduceOperator
from headrace.engine.windows.assigners import CountWindows, WindowAssigner
from headrace.state.keyed.descriptors import Reduces, ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.type_variables import T1

from ..arguments.checks import described, field_of, require_instance, whole
from ..arguments.data_types import infer_output_type
from ..arguments.function_shapes import ProcessOf
from ..arguments.known_columns import check_fields
from ..arguments.taken_types import check_taken
from .data_stream import DataStream
from .field_folds import FieldFolds

if TYPE_CHECKING:
    from .cached_stream import CachedDataStream
    from .joined_streams import IntervalJoin, TemporalJoin
    from .windowed_stream import WindowedStream

__all__ = ["KeyedStream"]

_New = TypeVar("_New")
_Other = TypeVar("_Other")


class KeyedStream(FieldFolds[DataStream[T1]], DataStream[T1]):
    """A stream partitioned by key. `map`, `filter` and the like keep the partitioning but give streams without key.

    A MapFunction, FlatMapFunction or FilterFunction given to them has keyed state, by its runtime context; plain
    callables have no way to it, so nothing is done for them.
    """

    def __init__(self, stream: DataStream[T1], key_selector: KeySelector) -> None:
        environment = stream.get_execution_environment()
        partition = PartitionTransformation(environment.new_id(), stream.transformation, HashPartitioner(key_selector))
        check_fields("key_by", key_selector.field_names or (), stream.known_columns)
        super().__init__(environment, partition, stream.hinted_type, stream.known_columns)
        # The stream before partitioning: where records are aggregated before they are shuffled.
        self._upstream = stream
        self.key_selector = key_selector

    def _keys_for(self, func: Any) -> KeySelector | None:
        return self.key_selector if isinstance(func, Function) else None

    def process(self, func: ProcessOf[T1, _New], output_type: Any = None) -> DataStream[_New]:
        """Run a KeyedProcessFunction, with state and timers of the current key.

        Args:
            func: A KeyedProcessFunction.
            output_type: The new records' type: checked, and columns are made of them.
        """
        check_taken("process", func, "process_element", self.known_columns)
        hinted = infer_output_type(func, "process_element", many=True)
        return self._apply("process", func, KeyedProcessOperator(self.key_selector, func), output_type, hinted)

    def reduce(self, func: Callable[[T1, T1], T1] | Reduces[T1]) -> DataStream[T1]:
        """Combine each record with the result so far of its key; every record gives one result.

        Args:
            func: A callable of two, or a ReduceFunction; what it gives is of the records' type.
        """
        check_taken("reduce", func, "reduce", self.known_columns)
        operator = KeyedReduceOperator(self.key_selector, func)
        return self._same_records("reduce", operator, described("reduce", func))

    def interval_join(self, other: KeyedStream[_Other]) -> IntervalJoin[T1, _Other]:
        """Pair this stream's records with the other's of the same key whose event time is near enough.

        ``a.interval_join(b).between("-5 s", "10 s").process(function)``.
        """
        from .joined_streams import IntervalJoin

        self._require_combinable("interval_join takes a keyed stream", other)
        require_instance("interval_join takes a keyed stream", KeyedStream, other)
        return IntervalJoin(self, other)

    @overload
    def temporal_join(
        self, versions: KeyedStream[_Other], *, how: Literal["inner"] = "inner"
    ) -> TemporalJoin[T1, _Other]: ...

    @overload
    def temporal_join(self, versions: KeyedStream[_Other], *, how: str) -> TemporalJoin[T1, _Other | None]: ...

    def temporal_join(self, versions: KeyedStream[Any], *, how: str = "inner") -> TemporalJoin[T1, Any]:
        """Join each record with the version of its key that was valid at the record's event time ("as of" join).

        ``orders.temporal_join(rates).apply(function)``: each record of ``versions`` is valid from its event time until
        the next one of its key. A record of this stream is joined with the latest version whose time is at or before
        its own; that is done, in the order of event time, when the watermark of both streams has passed the record, so
        versions that come later than the records they are for are found all the same. The result has the record's
        event time. Versions are forgotten when a later one takes over; the last one of each key stays.

        Args:
            versions: The versions, keyed by values of the same type.
            how: ``inner`` leaves out records that have no version yet, ``left`` joins them with None.
        """
        from .joined_streams import TemporalJoin

        self._require_combinable("temporal_join takes a keyed stream", versions)
        require_instance("temporal_join takes a keyed stream", KeyedStream, versions)
        return TemporalJoin(self, versions, how)

    def as_queryable_state(
        self, queryable_state_name: str, descriptor: StateDescriptor | None = None
    ) -> DataStream[Any]:
        """Keep the newest record of each key for clients to ask for (`JobClient.query_state`).

        Args:
            queryable_state_name: What they ask for.
            descriptor: The state: value (the default), reducing or list state.

        Returns:
            A stream without records, to give the operator its ``uid`` and name.

        Raises:
            ProgramError: If the descriptor is of another kind.
        """
        from ..jobs.queryable_state import KeepState

        state = ValueStateDescriptor(queryable_state_name) if descriptor is None else replace(descriptor)
        if not state.keeps_streams:
            message = f"a stream is kept in value, reducing or list state; got {descriptor!r}"
            raise ProgramError(message)
        state.set_queryable(queryable_state_name)
        function = KeepState(state)
        operator = KeyedProcessOperator(self.key_selector, function)
        return self.transform("queryable state", operator, None, f"queryable state {queryable_state_name!r}", None)

    def cache(self) -> CachedDataStream[T1]:
        """Refuse: what is kept has no partitioning.

        Raises:
            ProgramError: Always.
        """
        message = "a keyed stream cannot be cached: its partitioning would get lost"
        raise ProgramError(message, hint="write cache() before key_by(...)")

    def window(self, window_assigner: WindowAssigner) -> WindowedStream[T1]:
        """Cut the stream of each key into windows."""
        require_instance("window takes an assigner such as TumblingEventTimeWindows", WindowAssigner, window_assigner)
        from .windowed_stream import WindowedStream

        return WindowedStream(self, self.key_selector, window_assigner, self._upstream)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[T1]:
        """Cut the stream of each key into windows of ``size`` records, every ``slide`` (default ``size``)."""
        whole("size", size, 1, None)
        if slide is not None:
            whole("slide", slide, 1, None)
        from .windowed_stream import WindowedStream

        return WindowedStream(self, self.key_selector, CountWindows.of(size, slide), self._upstream)

    def _fold(self, kind: str, field: str | int) -> DataStream[T1]:
        operator = KeyedReduceOperator(self.key_selector, FieldReducer(kind, field_of(kind, field)))
        check_fields(kind, [field], self.known_columns)
        return self._same_records(kind, operator, f"{kind} of {field!r}")

    def _partitioned(self, partitioner: Partitioner) -> DataStream[T1]:
        message = f"a keyed stream cannot be partitioned by {partitioner.name.lower()}: its partitioning is by key"
        raise ProgramError(message)
