"""Operators without state over one record or one batch at a time, and the one that gives records event times.

The loops over a batch's rows are in `headrace.engine.functions.row_calls`. What a batch gives is emitted as one batch,
or as several where it is much more.

Event times: ``map`` and ``filter`` keep a record's; ``flat_map`` and ``process`` give it to all records that come of
it. ``map_batches`` keeps event times if it gives as many rows as it got; else every row gets the batch's highest, which
is never behind the watermark that follows, so no result becomes late by being computed.

Source: Flink's ``StreamMap``, ``StreamFlatMap``, ``StreamFilter``, ``ProcessOperator``,
``TimestampsAndWatermarksOperator``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np

from headrace.state.keyed.kinds import NO_KEY

from ..columns.records import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    Batch,
    StreamStatus,
    Timestamps,
    Watermark,
    times_or_none,
)
from ..errors import ProgramError, StateAccessError
from ..functions.event_time_parts import WatermarkPart
from ..functions.isolation import copied, given_batch
from ..functions.keys import KeySelector
from ..functions.operator import Operator, OperatorContext, Output
from ..functions.row_calls import EachRecord, RowCalls, Runs
from ..functions.side_outputs import OutputTag, SideOutputs
from ..functions.steps import WithheldWatermark
from ..functions.user_function import UserFunction, keys_of
from .event_time import EventTimeTracker, WatermarkStrategy

__all__ = [
    "FilterOperator",
    "FlatMapOperator",
    "FunctionOperator",
    "MapBatchesOperator",
    "MapOperator",
    "ProcessContext",
    "ProcessOperator",
    "TimestampsAndWatermarksOperator",
    "emit_runs",
    "times_of",
]


class FunctionOperator(Operator):
    """What operators around one user function share: opening and closing it.

    Args:
        function: A function object that has one of ``methods``, or a callable.
        *methods: The methods to look for.

    Raises:
        ProgramError: If it is neither.
    """

    def __init__(self, function: Any, *methods: str) -> None:
        self.function = UserFunction(function, *methods)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.function.open(context, keyed=self.keyed)

    def close(self) -> None:
        self.function.close(self.context)


class RowOperator(FunctionOperator):
    """What operators have in common that call a function with one record after another.

    Args:
        function: The function.
        method: Its method, if it is an object.
        key_selector: Of a keyed stream: the function has keyed state then, of the key of the record it is called with.
    """

    gives = "nothing"

    def __init__(self, function: Any, method: str, key_selector: KeySelector | None = None) -> None:
        super().__init__(function, method)
        self.keyed = key_selector is not None
        self._key_selector = key_selector

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # What a function with keyed state gives may be in that state; nothing else is copied here.
        own = copied if self.keyed and not context.reuses_objects else None
        self.calls = RowCalls(
            self.function.bind(),
            self.function.name,
            context,
            own=own,
            is_single=self.gives == "one",
            is_watched=context.watches_records and own is None and self.gives != "nothing",
        )

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return (self._key_selector,)

    def each_of(self, batch: Batch) -> EachRecord:
        """Return what puts each record under its key as long as it is the newest one taken."""
        if self._key_selector is None:
            return iter
        keys = keys_of(self._key_selector, batch, self.context)
        self.context.keyed_state.expect(keys)
        return partial(self._under_keys, keys)

    def _under_keys(self, keys: list[Any], pending: Iterator[Any]) -> Iterator[Any]:
        backend = self.context.keyed_state
        for key, row in zip(keys, pending, strict=True):
            backend.current_key = key
            yield row
        backend.current_key = NO_KEY


class MapOperator(RowOperator):
    """One record in, one out.

    Args:
        function: MapFunction or callable of a record.
        key_selector: See `RowOperator`.
    """

    gives = "one"

    def __init__(self, function: Any, key_selector: KeySelector | None = None) -> None:
        super().__init__(function, "map", key_selector)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        rows = self.calls.map(batch.rows, self.each_of(batch), batch.timestamps)
        self.context.output.emit(given_batch(rows, batch.timestamps))


class FlatMapOperator(RowOperator):
    """One record in, any number out.

    Args:
        function: FlatMapFunction or callable of a record that yields records or returns an iterable of them, or None.
        key_selector: See `RowOperator`.
    """

    gives = "many"

    def __init__(self, function: Any, key_selector: KeySelector | None = None) -> None:
        super().__init__(function, "flat_map", key_selector)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        runs = self.calls.flat_map(batch.rows, self.each_of(batch), batch.timestamps)
        emit_runs(runs, batch.timestamps, self.context.output)


def emit_runs(runs: Runs, timestamps: Timestamps | None, output: Output, sides: SideOutputs | None = None) -> None:
    """Emit what the records of a batch have given, each with the event time of the record it came of.

    Args:
        runs: What they have given.
        timestamps: Of the batch; None if its records have none.
        output: Where to.
        sides: Where tagged records go; None if a tag means nothing.
    """
    first = 0  # of the records that have not been emitted for
    for rows, ends in runs:
        times = None
        if timestamps is not None:
            counts = np.diff(ends, prepend=0).astype(np.int64)  # of no ends they are floats
            times = np.repeat(timestamps[first : first + len(ends)], counts)
            first += len(ends)
        if sides is not None:
            rows, times = sides.take_tagged(rows, times)
        if rows:
            batch = given_batch(rows, times)
            if sides:  # a record may have gone both ways
                batch.tangled()
            output.emit(batch)
        if sides is not None:
            sides.emit(output)


def times_of(batch: Batch) -> list[int | None]:
    """Return the event times of a batch as Python values, None for each record if there are none."""
    return times_or_none(batch.timestamps, batch.num_rows)


class FilterOperator(RowOperator):
    """Keeps the records for which the function is true, on every face the batch has.

    Args:
        function: FilterFunction or callable of a record.
        key_selector: See `RowOperator`.
    """

    may_change_records = False
    takes_changes = True

    def __init__(self, function: Any, key_selector: KeySelector | None = None) -> None:
        super().__init__(function, "filter", key_selector)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        mask = self.calls.filter(batch.rows, self.each_of(batch), batch.timestamps)
        if mask.all():
            self.context.output.emit(batch)
        elif mask.any():
            self.context.output.emit(batch.filter(mask))


class ProcessContext:
    """What ``ProcessFunction.process_element`` may know of the record; valid during the call only."""

    __slots__ = ("_context", "_sides", "time")

    def __init__(self, context: OperatorContext, sides: SideOutputs) -> None:
        self._context = context
        self._sides = sides
        # The record's event time, set by the operator before each call.
        self.time: int | None = None

    def timestamp(self) -> int | None:
        """Return the record's event time, epoch milliseconds; None if it has none."""
        return self.time

    def current_processing_time(self) -> int:
        """Return the clock's reading."""
        return self._context.now_ms()

    def timer_service(self) -> NoReturn:
        """Refuse: functions have a timer service on keyed streams alone.

        Raises:
            StateAccessError: Always.
        """
        message = "timers exist only after key_by"
        raise StateAccessError(message, hint="the clock is current_processing_time()")

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit to a side output, with the record's event time."""
        self._sides.add(tag, value, self.time)


class ProcessOperator(FunctionOperator):
    """One record in, any number out, to the main output and to side outputs.

    Args:
        function: ProcessFunction or callable of (record, context).
    """

    def __init__(self, function: Any) -> None:
        super().__init__(function, "process_element")

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._calls = RowCalls(self.function.bind(), self.function.name, context, is_watched=context.watches_records)
        self._sides = SideOutputs()
        self._process_context = self.make_context(context, self._sides)

    def make_context(self, context: OperatorContext, sides: SideOutputs) -> ProcessContext:
        """Make what the function is given beside each record; called once, by ``open``."""
        return ProcessContext(context, sides)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        keys, keyed_state = [NO_KEY] * batch.num_rows, self.context.keyed_state
        runs = self._calls.process(batch.rows, times_of(batch), self._process_context, keys, keyed_state)
        emit_runs(runs, batch.timestamps, self.context.output, self._sides)


class MapBatchesOperator(FunctionOperator):
    """Whole batches in, any number of batches out.

    Args:
        function: Callable of a ``pyarrow.RecordBatch`` that gives a RecordBatch, a Table, a dict of columns, None, or
            an iterable of these; or an object with ``map_batches`` of that form.
    """

    may_change_records = False
    face = "columns"

    def __init__(self, function: Any) -> None:
        super().__init__(function, "map_batches")

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._calls = RowCalls(self.function.bind(), self.function.name, context)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        produced = self._calls.map_batch(batch.columns)
        timestamps = batch.timestamps
        if timestamps is not None and sum(part.num_rows for part in produced) != batch.num_rows:
            timestamps = None
        offset = 0
        for part in produced:
            times = None
            if timestamps is not None:
                times = timestamps[offset : offset + part.num_rows]
            elif batch.timestamps is not None:
                times = np.full(part.num_rows, batch.timestamps.max(), dtype=np.int64)
            offset += part.num_rows
            self.context.output.emit(Batch.of_columns(part, times))


class TimestampsAndWatermarksOperator(Operator):
    """Gives records event times and makes watermarks, in the middle of a stream.

    Watermarks from upstream are replaced, but for the end of event time. Idleness from upstream is passed on: no record
    will come from there either. Ingestion time goes on with the clock all the same, and is never idle for that.

    Args:
        strategy: What to do.
    """

    may_change_records = False
    takes_changes = True

    def __init__(self, strategy: WatermarkStrategy) -> None:
        if strategy.alignment is not None:
            message = "watermark alignment holds back sources; in the middle of a stream there is nothing to hold back"
            raise ProgramError(message, hint="Give the strategy to from_source(...).")
        self._strategy = strategy

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        strategy = self._strategy.in_batch() if context.is_batch else self._strategy
        self._tracker = EventTimeTracker(strategy, context.now_ms(), context.warn)
        # Each subtask finds its own state again; after a rescale trackers start anew: operators behind keep theirs.
        # Time of arrival goes on from the latest of all, so that nothing is late where it goes then.
        self._state = context.operator_state.union_list_state("watermark-strategy")
        self._place = [context.subtask, context.parallelism]
        for subtask, parallelism, state in () if context.starts_event_time_anew else self._state.get():
            if [subtask, parallelism] == self._place or self._strategy.is_ingestion_time:
                self._tracker.restore(state)
        self._emitted_ms = MIN_TIMESTAMP
        self._withheld = WithheldWatermark(context.step)
        self._is_upstream_idle = False
        self._is_idle = False

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        self._is_upstream_idle = False
        timed = self._tracker.take(batch, self.context.now_ms())
        self._emit_status()
        self.context.output.emit(timed)
        self._withheld.add(timed.num_rows)
        self._emit_watermark()

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark == MAX_WATERMARK:
            self._emitted_ms = watermark.timestamp_ms
            self.context.output.emit_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        self._is_upstream_idle = status.idle and not self._strategy.is_ingestion_time
        self._emit_status()

    def next_processing_time(self) -> int | None:
        tracker_ms, withheld_ms = self._tracker.next_time(), self._withheld.due_ms
        return tracker_ms if withheld_ms is None or (tracker_ms or withheld_ms) < withheld_ms else withheld_ms

    def holds_records(self) -> bool:
        return False  # its times are those of watermarks

    def on_processing_time(self, now_ms: int) -> None:
        self._tracker.on_time(now_ms)
        self._emit_watermark()
        self._emit_status()

    def _emit_watermark(self) -> None:
        watermark_ms = self._tracker.watermark_ms
        if watermark_ms > self._emitted_ms and not self._withheld.waits(self.context.now_ms()):
            self._emitted_ms = watermark_ms
            self.context.output.emit_watermark(Watermark(watermark_ms))

    def _emit_status(self) -> None:
        is_idle = self._is_upstream_idle or self._tracker.is_idle
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            self.context.output.emit_status(StreamStatus(is_idle))

    def watermark_parts(self) -> list[WatermarkPart]:
        return [self._tracker.as_part("")]

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state.update([[*self._place, self._tracker.snapshot()]])
