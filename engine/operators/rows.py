"""Operators without state over one record or one batch at a time, and the one that gives records event times.

User functions are called in tight loops over a batch's rows: the engine adds no object per record. What a batch gives
is emitted as one batch, or as several where it is much more. An exception in user code is wrapped around the whole
loop, never around emitting, so that a failure further down is not blamed on this operator.

Event times: ``map`` and ``filter`` keep a record's; ``flat_map`` and ``process`` give it to all records that come of
it. ``map_batches`` keeps event times if it gives as many rows as it got; else every row gets the batch's highest, which
is never behind the watermark that follows, so no result becomes late by being computed.

Source: Flink's ``StreamMap``, ``StreamFlatMap``, ``StreamFilter``, ``ProcessOperator``,
``TimestampsAndWatermarksOperator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from headrace.state.keyed.descriptors import NO_KEY

from ..columns.records import (
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    Batch,
    StreamStatus,
    Timestamps,
    Watermark,
    times_or_none,
)
from ..errors import ProgramError, StateAccessError, TypeMismatchError
from ..functions.contract import (
    MAX_EMITTED_ROWS,
    SCALARS,
    OutputTag,
    SideOutputs,
    UserFunction,
    keys_of,
    raise_in_function,
    records_of,
)
from ..functions.isolation import Given, copied, given_batch
from ..functions.keys import KeySelector
from ..functions.operator import Operator, OperatorContext, Output
from ..functions.steps import WithheldWatermark
from .event_time import EventTimeTracker, WatermarkStrategy

__all__ = [
    "FilterOperator",
    "FlatMapOperator",
    "FunctionOperator",
    "MapBatchesOperator",
    "MapOperator",
    "ProcessContext",
    "ProcessOperator",
    "ProducedRows",
    "TimestampsAndWatermarksOperator",
    "record_batches_of",
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
        self._call = self.function.bind()
        # What a function with keyed state gives may be in that state; nothing else is copied here.
        self._own = copied if self.keyed and not context.reuses_objects else None
        self._given: Given | None = None
        if context.watches_records and self._own is None and self.gives != "nothing":
            who = f"function {self.function.name}"
            self._call = self._given = Given(self._call, who, is_single=self.gives == "one")

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return (self._key_selector,)

    def rows_of(self, batch: Batch) -> Iterable[Any]:
        """Return the records, each under its key as long as it is the newest one taken."""
        return batch.rows if self._key_selector is None else self._under_keys(self._key_selector, batch)

    def _under_keys(self, key_selector: KeySelector, batch: Batch) -> Iterator[Any]:
        backend = self.context.keyed_state
        keys = keys_of(key_selector, batch, self.context)
        backend.expect(keys)
        for key, row in zip(keys, batch.rows, strict=True):
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
        call, own = self._call, self._own
        try:
            if own is None:
                rows = [call(row) for row in self.rows_of(batch)]
            else:
                rows = [own(call(row)) for row in self.rows_of(batch)]
            if self._given is not None:
                self._given.gone()
        except BaseException as error:
            raise_in_function(error, self.function.name, self.context)
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
        call, scalars, limit, own = self._call, SCALARS, MAX_EMITTED_ROWS, self._own
        produced = ProducedRows(batch.timestamps)
        pending = iter(self.rows_of(batch))
        more = True
        while more:
            rows = produced.rows
            extend, mark = rows.extend, produced.ends.append
            more = False
            try:
                for row in pending:
                    given = call(row)
                    if type(given) in scalars:
                        given = records_of(given)
                    extend(given if own is None else map(own, given))
                    num_rows = len(rows)
                    mark(num_rows)
                    if num_rows >= limit:
                        more = True
                        break
            except BaseException as error:
                raise_in_function(error, self.function.name, self.context)
            if self._given is not None:
                self._given.gone()
            produced.emit(self.context.output)


class ProducedRows:
    """What the records of one batch have given so far, with the event time of the record each came of.

    Args:
        timestamps: Of the batch; None if its records have none.
    """

    __slots__ = ("_next", "_timestamps", "ends", "rows")

    def __init__(self, timestamps: Timestamps | None) -> None:
        self._timestamps = timestamps
        # Index of the first record that has not been emitted for.
        self._next = 0
        # What the records since then have given, and for each of them how many rows there were after it; that may be
        # left out where there are no event times.
        self.rows: list[Any] = []
        self.ends: list[int] = []

    def emit(self, output: Output, sides: SideOutputs | None = None) -> None:
        """Emit what there is, tagged records by way of ``sides``, and start anew."""
        timestamps = None
        if self._timestamps is not None:
            timestamps = self._timestamps[self._next : self._next + len(self.ends)]
            timestamps = np.repeat(timestamps, np.diff(self.ends, prepend=0))
        rows = self.rows
        self._next += len(self.ends)
        self.rows, self.ends = [], []
        if sides is not None:
            rows, timestamps = sides.take_tagged(rows, timestamps)
        if rows:
            batch = given_batch(rows, timestamps)
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
        try:
            mask = np.fromiter(map(bool, map(self._call, self.rows_of(batch))), np.bool_, batch.num_rows)
        except BaseException as error:
            raise_in_function(error, self.function.name, self.context)
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
        """Refused.

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
        self._call = self.function.bind()
        self._sides = SideOutputs()
        self._given: Given | None = None
        if context.watches_records:
            self._call = self._given = Given(self._call, f"function {self.function.name}", is_single=False)
        self._process_context = self.make_context(context, self._sides)

    def make_context(self, context: OperatorContext, sides: SideOutputs) -> ProcessContext:
        """Make what the function is given beside each record; called once, by ``open``."""
        return ProcessContext(context, sides)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        call, context, scalars, limit = self._call, self._process_context, SCALARS, MAX_EMITTED_ROWS
        produced = ProducedRows(batch.timestamps)
        pending = zip(batch.rows, times_of(batch), strict=True)
        more = True
        while more:
            rows = produced.rows
            extend, mark = rows.extend, produced.ends.append
            more = False
            try:
                for row, time in pending:
                    context.time = time
                    given = call(row, context)
                    extend(given if type(given) not in scalars else records_of(given))
                    num_rows = len(rows)
                    mark(num_rows)
                    if num_rows >= limit:
                        more = True
                        break
            except BaseException as error:
                raise_in_function(error, self.function.name, self.context)
            if self._given is not None:
                self._given.gone()
            produced.emit(self.context.output, self._sides)


class MapBatchesOperator(FunctionOperator):
    """Whole batches in, any number of batches out.

    Args:
        function: Callable of a ``pyarrow.RecordBatch`` that gives a RecordBatch, a Table, a dict of columns, None, or
            an iterable of these; or an object with ``map_batches`` of that form.
    """

    may_change_records = False

    def __init__(self, function: Any) -> None:
        super().__init__(function, "map_batches")

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._call = self.function.bind()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        columns = batch.columns
        try:
            produced = record_batches_of(self._call(columns))
        except BaseException as error:
            raise_in_function(error, self.function.name, self.context)
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


def record_batches_of(produced: Any) -> list[pa.RecordBatch]:
    """Return what a function of batches gave back, as record batches that are not empty.

    Raises:
        TypeMismatchError: If it is nothing of the kind.
    """
    if produced is None:
        return []
    if isinstance(produced, pa.RecordBatch):
        return [produced] if produced.num_rows else []
    if isinstance(produced, pa.Table):
        return [part for part in produced.combine_chunks().to_batches() if part.num_rows]
    if isinstance(produced, Mapping):
        return record_batches_of(pa.Table.from_pydict(dict(produced)))
    if isinstance(produced, Iterable) and not isinstance(produced, (str, bytes)):
        return [part for several in produced for part in record_batches_of(several)]
    message = (
        f"a function of batches must give record batches, tables or dicts of columns; got {type(produced).__name__}"
    )
    raise TypeMismatchError(message)


class TimestampsAndWatermarksOperator(Operator):
    """Gives records event times and makes watermarks, in the middle of a stream.

    Watermarks from upstream are replaced, but for the end of event time. Idleness from upstream is passed on: no record
    will come from there either.

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
        self._state = context.operator_state.union_list_state("watermark-strategy")
        self._place = [context.subtask, context.parallelism]
        for subtask, parallelism, state in () if context.starts_event_time_anew else self._state.get():
            if [subtask, parallelism] == self._place:
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
        self._is_upstream_idle = status.idle
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

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state.update([[*self._place, self._tracker.snapshot()]])
