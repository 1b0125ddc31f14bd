"""Keyed operators over single records: process functions with state and timers, and running reductions.

State handles that a function holds are bound to the backend's current key; the operator sets it before every call, for
records and for timers, and unsets it afterwards, so that state is never touched outside of a key. Timers fire in
`process_watermark`, before the watermark is passed on, and in `on_processing_time`; what they give carries the timer's
time, or none for processing time. `KeyedFunctionOperator` does all of that once, for functions of one input and of two.

Source: Flink's ``KeyedProcessOperator``, ``StreamGroupedReduceOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.kinds import NO_KEY, StateDescriptor

from ..columns.records import MAX_BATCH_ROWS, MAX_TIMESTAMP, MAX_WATERMARK, Batch, Watermark
from ..errors import ProgramError
from ..functions.contract import Function
from ..functions.isolation import copied
from ..functions.keys import KeySelector
from ..functions.operator import OperatorContext
from ..functions.row_calls import RowCalls
from ..functions.side_outputs import OutputTag, SideOutputs, timed_batch
from ..functions.timers import TimerService
from ..functions.tracebacks import EventTime
from ..functions.user_function import UserFunction, keys_of, raise_in_function
from .event_time import OperatorWatermark
from .field_reducer import FieldReducer
from .row_operators import FunctionOperator, emit_runs, times_of

__all__ = [
    "KeyedFunctionOperator",
    "KeyedProcessContext",
    "KeyedProcessOperator",
    "KeyedReduceOperator",
]

EVENT_TIME, PROCESSING_TIME = "event-time", "processing-time"


class KeyedProcessContext:
    """What a keyed process function may know of the record or timer at hand; valid during the call only."""

    __slots__ = ("_backend", "_sides", "_timers", "domain", "time")

    def __init__(self, backend: KeyedStateBackend, timers: TimerService, sides: SideOutputs) -> None:
        self._backend = backend
        self._timers = timers
        self._sides = sides
        # The event time of the record or timer, and the timer's kind; set by the operator before each call.
        self.time: int | None = None
        self.domain: str | None = None

    def timestamp(self) -> int | None:
        """Return the event time of the record, or the time of the timer; None if the record has none."""
        return self.time

    def get_current_key(self) -> Any:
        """Return the key."""
        return self._backend.current_key

    def timer_service(self) -> TimerService:
        """Return the key's timers and the two clocks."""
        return self._timers

    def time_domain(self) -> str | None:
        """In ``on_timer`` the timer's kind: ``event-time`` or ``processing-time``; else None."""
        return self.domain

    def output(self, tag: OutputTag, value: Any) -> None:
        """Emit to a side output."""
        self._sides.add(tag, value, None if self.domain == PROCESSING_TIME else self.time)


class KeyedFunctionOperator(FunctionOperator):
    """What operators have in common whose function has state and timers of one key at a time.

    Args:
        function: The function; whether its object has an ``on_timer`` decides whether timers may fire.
    """

    keyed = True
    fires_by_clock = True

    def __init__(self, function: UserFunction) -> None:
        self.function = function

    def open(self, context: OperatorContext) -> None:
        backend = context.keyed_state
        self.watermark = OperatorWatermark.of(context)
        self.timers = TimerService(backend, context.now_ms, self.watermark)
        # What the function gives may be in its state.
        self.own = None if context.reuses_objects else copied
        self.sides = SideOutputs(self.own)
        # What timers are called with, and records unless the operator has another context for them.
        self.timer_context = self.make_context(context)
        self._on_timer = getattr(self.function.function, "on_timer", self._refuse_timer)
        super().open(context)

    def make_context(self, context: OperatorContext) -> KeyedProcessContext:
        """Make what the function's methods are given; called once, when timers and side outputs are there."""
        return KeyedProcessContext(context.keyed_state, self.timers, self.sides)

    def calls_of(self, call: Callable[[Any, Any], Any], name: str) -> RowCalls:
        """Return the calls of one method of the function, with a record and a context; when it is open."""
        return RowCalls(call, name, self.context, own=self.own)

    def process_rows(self, keys: Sequence[Any], batch: Batch, calls: RowCalls, context: KeyedProcessContext) -> None:
        """Call the function for each record of a batch, under its key, and emit what it gives.

        Args:
            keys: The records' keys.
            batch: The records.
            calls: Of the function.
            context: What it is given beside the record.
        """
        backend = self.context.keyed_state
        context.domain = None
        if keys and keys[0] is not NO_KEY:
            backend.expect(keys)

        runs = calls.process(batch.rows, times_of(batch), context, keys, backend)
        emit_runs(runs, batch.timestamps, self.context.output, self.sides)

    def process_watermark(self, watermark: Watermark) -> None:
        if self.watermark.advance(watermark.timestamp_ms):
            self._fire_timers(EVENT_TIME, self.timers.fire_event_time, watermark.timestamp_ms)
            if self.context.is_batch and watermark == MAX_WATERMARK:
                self.timers.end_clock()
                self._fire_timers(PROCESSING_TIME, self.timers.fire_processing_time, MAX_TIMESTAMP)
                self._fire_timers(EVENT_TIME, self.timers.fire_event_time, MAX_TIMESTAMP)
            self.context.output.emit_watermark(watermark)

    def next_event_time(self) -> int | None:
        return self.timers.next_event_time()

    def next_processing_time(self) -> int | None:
        return self.timers.next_processing_time()

    def on_processing_time(self, now_ms: int) -> None:
        self._fire_timers(PROCESSING_TIME, self.timers.fire_processing_time, now_ms)

    def _fire_timers(
        self, domain: str, fire_until: Callable[[int, Callable[[int, Any], bool]], bool], until: int
    ) -> None:
        context, backend, on_timer, take = (
            self.timer_context,
            self.context.keyed_state,
            self._on_timer,
            self.sides.take,
        )
        context.domain = domain
        rows: list[Any] = []
        times: list[int | None] = []

        def fire(time: int, key: Any) -> bool:
            backend.current_key = key
            context.time = time
            event_time = time if domain == EVENT_TIME else None
            given = on_timer(time, context)
            if given is not None:
                take(given, rows, event_time)
                times.extend([event_time] * (len(rows) - len(times)))
            return len(rows) < MAX_BATCH_ROWS

        more = True
        while more:
            try:
                more = fire_until(until, fire)
            except BaseException as error:
                about: dict[str, Any] = {} if backend.current_key is NO_KEY else {"key": backend.current_key}
                if about and domain == EVENT_TIME and context.time is not None:
                    about["event_time"] = EventTime(context.time)
                raise_in_function(error, f"{self.function.name}.on_timer", self.context, **about)
            finally:
                backend.current_key = NO_KEY
            if rows:
                self.context.output.emit(timed_batch(list(rows), times))
                rows.clear()
                times.clear()
            self.sides.emit(self.context.output)

    def _refuse_timer(self, timestamp: int, context: KeyedProcessContext) -> None:
        message = f"{self.function.name} has registered a timer but has no on_timer"
        raise ProgramError(message, hint="Use a KeyedProcessFunction.")

    def snapshot_state(self, checkpoint_id: int) -> None:
        self.watermark.snapshot()


class KeyedProcessOperator(KeyedFunctionOperator):
    """A process function over a keyed stream.

    Args:
        key_selector: Finds keys.
        function: KeyedProcessFunction, or callable of (record, context), which then has no timers to fire.
    """

    def __init__(self, key_selector: KeySelector, function: Any) -> None:
        super().__init__(UserFunction(function, "process_element"))
        self._key_selector = key_selector

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return (self._key_selector,)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._calls = self.calls_of(self.function.bind(), self.function.name)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        keys = keys_of(self._key_selector, batch, self.context)
        self.process_rows(keys, batch, self._calls, self.timer_context)


class KeyedReduceOperator(FunctionOperator):
    """A running reduction per key: every record gives the key's new value, with the record's event time. In a batch
    only the last value of each key is given.

    Args:
        key_selector: Finds keys.
        function: ReduceFunction (also `FieldReducer`) or callable of (value so far, record).
    """

    keyed = True

    def __init__(self, key_selector: KeySelector, function: Any) -> None:
        super().__init__(function, "reduce")
        self._key_selector = key_selector

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        return (self._key_selector,)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._table = context.keyed_state.table(StateDescriptor("reduced"))
        # Key -> value.
        self._values = self._table.namespace(None)
        if context.is_batch:  # only last values are given: key -> event time of its newest record
            self._table_of_times = context.keyed_state.table(StateDescriptor("reduced-times"))
            self._times = self._table_of_times.namespace(None)
        function = self.function.function
        # Takes plain records of a batch together; None for other functions.
        self._fields = function if isinstance(function, FieldReducer) else None
        self._may_use_state = isinstance(function, Function) and self._fields is None
        # A function that gives its first argument back may have changed it, and will again.
        is_safe = context.reuses_objects or context.is_batch or self._fields is not None
        self._own = None if is_safe else copied
        self._calls = RowCalls(self.function.bind(), self.function.name, context, own=self._own)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        found = keys_of(self._key_selector, batch, self.context)
        self.context.keyed_state.expect(found)
        keys: Iterable[Any] = found
        if self._may_use_state:
            keys = self._each_current(keys)
        try:
            rows = None if self._fields is None else self._fields.fold_each(self._values, found, batch.rows)
            if rows is None:
                rows = self._calls.reduce(self._values, keys, batch.rows, batch.timestamps)
        finally:
            self.context.keyed_state.current_key = NO_KEY
        if self.context.is_batch:  # only the last value of each key counts
            self._times.update(zip(found, times_of(batch), strict=True))
            return
        reduced = Batch.of_rows(rows, batch.timestamps)
        # Field reducers leave records alone, but state holds what they give.
        self.context.output.emit(reduced.tangled() if self._own is None else reduced)

    def process_watermark(self, watermark: Watermark) -> None:
        if self.context.is_batch and watermark == MAX_WATERMARK:
            self._give_last_values()
        super().process_watermark(watermark)

    def _give_last_values(self) -> None:
        found, times = iter(self._values.items()), self._times
        while entries := list(islice(found, MAX_BATCH_ROWS)):
            self.context.output.emit(timed_batch([value for _, value in entries], [times[key] for key, _ in entries]))
        self._table.drop(None)
        self._table_of_times.drop(None)
        self._values, self._times = self._table.namespace(None), self._table_of_times.namespace(None)

    def _each_current(self, keys: Iterable[Any]) -> Iterator[Any]:
        """The keys, each of them the current one while its record is worked off."""
        backend = self.context.keyed_state
        for key in keys:
            backend.current_key = key
            yield key
