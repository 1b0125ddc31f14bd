"""The general path of windows: any assigner, any trigger, any evictor, record by record.

This is Flink's window operator as it stands. Every record is put in each of its windows, then the trigger is asked; it
is asked again when a timer of the window is due; it may fire (results of all that the window holds), purge (drop the
content) or both. A window is forgotten at its *clean-up time*: its last millisecond plus the allowed lateness by event
time, its last millisecond by the clock, never for the global window. Content, trigger state, the function's state per
window, merged windows and timers are gone then.

With an evictor a window holds its records with their times, under a reduce or aggregate function too, which is run over
what the evictor leaves at each firing. If it leaves nothing, a reduce function alone gives nothing.

Results carry the window's last millisecond; those of the global window carry the time of the record or event-time timer
that made it fire, and none if that was a timer of the clock.

Invariant: all that is remembered between calls is keyed state, except for the order of timers, which is derived.

Source: Flink's ``WindowOperator`` and ``EvictingWindowOperator``. Beyond it, a timer that would come after a window's
clean-up is not registered or not delivered, so a trigger that does not tidy up leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.descriptors import ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor

from ..columns.records import MAX_WATERMARK, MIN_TIMESTAMP, Timestamps
from ..errors import ProgramError, TypeMismatchError
from ..functions.operator import OperatorContext
from ..functions.runtime_context import RuntimeContext
from ..functions.tracebacks import note_in_hand
from ..functions.window_state import WindowState
from ..kernel.metrics import MetricGroup
from ..operators.event_time import OperatorWatermark
from .assigners import MergingWindowAssigner, WindowAssigner
from .contents import MISSING, ElementContents, WindowContents, WindowResults
from .evictors import Evictor, TimestampedValue
from .merging import MergingWindows
from .triggers import Trigger, TriggerResult
from .window_timers import WindowTimers
from .windows import Bounds, GlobalWindow, Span, TimeWindow, Window, window_of

__all__ = ["GeneralWindows"]

_END_OF_TIME = MAX_WATERMARK.timestamp_ms
_CONTINUE = TriggerResult.CONTINUE


class _WindowAtHand:
    """The key and window that triggers, evictors and assigners are asked about; their context.

    Implements `TriggerContext`, ``Trigger.OnMergeContext``, ``EvictorContext`` and ``WindowAssignerContext``.
    """

    def __init__(
        self, context: OperatorContext, watermark: OperatorWatermark, is_event_time: bool, lateness_ms: int
    ) -> None:
        self._backend: KeyedStateBackend = context.keyed_state
        self._watermark = watermark
        self._is_event_time = is_event_time
        self._lateness_ms = lateness_ms
        self._runtime = RuntimeContext(context, context.keyed_state)
        self._metrics = context.metrics
        self.get_current_processing_time = context.now_ms
        self.state = WindowState(context.keyed_state, "trigger")
        self.event_timers = WindowTimers(context.keyed_state, "window-event-timers")
        self.clock_timers = WindowTimers(context.keyed_state, "window-clock-timers")
        # The window at hand, set by `turn_to`, and when it is forgotten.
        self.key: Any = None
        self.window: Window = GlobalWindow()
        self.span: Span = (MIN_TIMESTAMP, _END_OF_TIME)
        self.cleanup_ms = _END_OF_TIME
        # While windows merge: those that are no more.
        self.merged: list[Span] = []

    def turn_to(self, key: Any, window: Window) -> None:
        """Turn to another key or window."""
        self.key = key
        self.window = window
        self.span = self._backend.current_namespace = (window.start, window.end)
        self._backend.current_key = key
        self.cleanup_ms = self.cleanup_of(window)

    def cleanup_of(self, window: Window) -> int:
        """Return when a window is forgotten, by event time or the clock."""
        last = window.max_timestamp()
        return min(last + self._lateness_ms, _END_OF_TIME) if self._is_event_time else last

    def register_cleanup(self) -> None:
        """Have the window at hand forgotten in time; the end of time needs no timer."""
        if self.cleanup_ms < _END_OF_TIME:
            timers = self.event_timers if self._is_event_time else self.clock_timers
            timers.register(self.cleanup_ms, self.key, self.span)

    def delete_cleanup(self) -> None:
        """Delete the clean-up timer of the window at hand, which is forgotten now, or merged."""
        timers = self.event_timers if self._is_event_time else self.clock_timers
        timers.delete(self.cleanup_ms, self.key, self.span)

    def get_current_watermark(self) -> int:
        return self._watermark.current_ms

    def get_metric_group(self) -> MetricGroup:
        return self._metrics

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime

    def register_event_time_timer(self, time: int) -> None:
        time = _checked_time(time)
        if not self._is_event_time or time <= self.cleanup_ms:
            self.event_timers.register(time, self.key, self.span)

    def register_processing_time_timer(self, time: int) -> None:
        time = _checked_time(time)
        if self._is_event_time or time <= self.cleanup_ms:
            self.clock_timers.register(time, self.key, self.span)

    def delete_event_time_timer(self, time: int) -> None:
        self.event_timers.delete(_checked_time(time), self.key, self.span)

    def delete_processing_time_timer(self, time: int) -> None:
        self.clock_timers.delete(_checked_time(time), self.key, self.span)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return self.state.handle(state_descriptor)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        self.state.merge(state_descriptor, self.span, self.merged)


def _checked_time(time: Any) -> int:
    if type(time) is int and -(2**63) <= time < 2**63:
        return time
    if isinstance(time, np.integer):
        return int(time)
    message = f"a timer's time must be an int (epoch milliseconds, of 64 bits); got {time!r}"
    raise TypeMismatchError(message)


class GeneralWindows:
    """All windows of one operator subtask; see `headrace.engine.windows.placement.Placement`.

    Args:
        assigner: Finds windows.
        trigger: Says when they fire.
        evictor: Takes records out; None for none.
        contents: How records become what the function is given.
        results: Where fired windows go.
        context: The operator's.
        watermark: The operator's.
        lateness_ms: How long after its end an event-time window is kept.
    """

    goes_by_clock = False

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        evictor: Evictor | None,
        contents: WindowContents,
        results: WindowResults,
        context: OperatorContext,
        watermark: OperatorWatermark,
        lateness_ms: int,
    ) -> None:
        self._assign = assigner.assign_windows
        self._is_event_time = assigner.is_event_time()
        self._lateness_ms = lateness_ms
        self._trigger = trigger
        self._evictor = evictor
        self._contents = contents
        # How windows hold records: with an evictor as pairs of record and time (None for none).
        self._held: WindowContents = contents if evictor is None else ElementContents()
        self._results = results
        self._backend = context.keyed_state
        self._hand = _WindowAtHand(context, watermark, self._is_event_time, lateness_ms)
        # (state window, key) -> content. The kind differs from the fast path's: neither could go on with the other's.
        self._table = context.keyed_state.table(ValueStateDescriptor("window-contents"), windowed=True)
        self._merging = (
            MergingWindows(context.keyed_state, assigner) if isinstance(assigner, MergingWindowAssigner) else None
        )
        # How far the clock's timers have fired.
        self._clock_ms = MIN_TIMESTAMP

    # -------------------------------------------------------------------------------------------------------- records

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        """Put records in their windows and do what the trigger says; gives the indices of late ones."""
        assign, take, hand, backend = self._assign, self._take, self._hand, self._backend
        # Up to here an element has missed all windows it might have had.
        horizon = watermark_ms - self._lateness_ms if self._is_event_time else None
        late: list[int] = []
        record_times = [MIN_TIMESTAMP] * len(rows) if times is None else times.tolist()
        for i, (key, row, time) in enumerate(zip(keys, rows, record_times, strict=True)):
            backend.current_key = key
            is_taken, window = False, None
            try:
                for window in assign(row, time, hand):
                    is_taken = take(key, row, time, window) or is_taken
            except BaseException as error:
                note_in_hand(error, record=row, key=key)
                if window is not None:
                    note_in_hand(error, window=Bounds(window))
                raise
            if not is_taken and horizon is not None and time <= horizon:
                late.append(i)
        return late

    def _take(self, key: Any, row: Any, time: int, window: Any) -> bool:
        """Put a record in one window; False if the window is gone."""
        if type(window) is not TimeWindow and type(window) is not GlobalWindow:
            message = f"a window assigner must give TimeWindow or GlobalWindow objects; got {window!r}"
            raise TypeMismatchError(message)
        hand, merging = self._hand, self._merging
        if merging is None:
            if self._is_late(window):
                return False
            hand.turn_to(key, window)
            state_span = hand.span
        else:
            if type(window) is not TimeWindow:
                message = f"only windows of time can merge; got {window!r}"
                raise TypeMismatchError(message)
            window, state_span = merging.add(key, window, self._merge)
            hand.turn_to(key, window)
            if self._is_late(window):
                merging.retire(key, hand.span)
                return False
        space = self._table.namespace(state_span)
        has_time = time != MIN_TIMESTAMP
        entry = row if self._evictor is None else (row, time if has_time else None)
        space[key] = self._held.add_run(space.get(key, MISSING), (entry,))
        result = self._trigger.on_element(row, time, window, hand)
        if result is not _CONTINUE:
            self._act(result, space, time if has_time else None)
            if key not in space:
                self._drop_if_empty(state_span, space)
        hand.register_cleanup()
        return True

    def _is_late(self, window: Window) -> bool:
        hand = self._hand
        return self._is_event_time and hand.cleanup_of(window) <= hand.get_current_watermark()

    def _merge(self, result: TimeWindow, merged: list[TimeWindow], state: Span, others: list[Span]) -> None:
        """Windows of the current key have become one: bring their trigger's state and their contents together."""
        hand, trigger, key = self._hand, self._trigger, self._backend.current_key
        if self._is_late(result):
            message = f"windows have merged into one that has already been forgotten: {result}"
            raise ProgramError(message, hint="merge_windows must give a window that holds all that it merges")
        hand.turn_to(key, result)
        hand.merged = [(window.start, window.end) for window in merged]
        trigger.on_merge(result, hand)
        for window in merged:
            hand.turn_to(key, window)
            trigger.clear(window, hand)
            hand.state.forget()
            hand.delete_cleanup()
        table, held = self._table, self._held
        content = MISSING
        for span in (state, *others):
            space = table.namespace(span)
            other = space.pop(key, MISSING)
            self._drop_if_empty(span, space)
            if other is not MISSING:
                content = other if content is MISSING else held.merge(content, other)
        if content is not MISSING:
            table.namespace(state)[key] = content

    # ---------------------------------------------------------------------------------------------------------- timers

    def fire_event_time(self, watermark_ms: int) -> bool:
        with self._noting():
            return self._hand.event_timers.fire_until(watermark_ms, self._on_event_time)

    def fire_clock(self, now_ms: int) -> bool:
        last_ms = now_ms - 1  # a timer's millisecond must be over
        with self._noting():
            more = self._hand.clock_timers.fire_until(last_ms, self._on_clock)
        if not more:
            self._clock_ms = max(self._clock_ms, last_ms)
        return more

    def end_clock(self) -> None:
        self._hand.clock_timers.end()

    def next_event_time(self) -> int | None:
        return self._hand.event_timers.next_time()

    def next_clock_time(self) -> int | None:
        time = self._hand.clock_timers.next_time()
        return None if time is None else time + 1

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """What triggers, evictors and functions fail with inside is about the key and window at hand."""
        try:
            yield
        except BaseException as error:
            note_in_hand(error, key=self._hand.key, window=Bounds(self._hand.window))
            raise

    def _on_event_time(self, time: int, key: Any, span: Span) -> bool:
        hand = self._hand
        hand.turn_to(key, window_of(span))
        if self._is_event_time or hand.cleanup_ms > self._clock_ms:
            self._on_timer(time, self._trigger.on_event_time, time if self._is_event_time else None, time)
        return not self._results.is_full

    def _on_clock(self, time: int, key: Any, span: Span) -> bool:
        hand = self._hand
        hand.turn_to(key, window_of(span))
        if not self._is_event_time or hand.cleanup_ms > hand.get_current_watermark():
            self._on_timer(time, self._trigger.on_processing_time, None if self._is_event_time else time, None)
        return not self._results.is_full

    def _on_timer(
        self,
        time: int,
        on_time: Callable[[int, Any, Any], TriggerResult],
        own_time: int | None,
        event_time: int | None,
    ) -> None:
        """Ask the trigger about a timer of the window at hand, and forget the window if its time has come.

        Args:
            time: The timer's.
            on_time: The trigger's method.
            own_time: The same, if it is of the kind that windows end by.
            event_time: The same, if it is event time.
        """
        hand = self._hand
        key, window, span, cleanup_ms = hand.key, hand.window, hand.span, hand.cleanup_ms
        state_span: Span | None = span
        if self._merging is not None:
            state_span = self._merging.state_of(key, span)
            if state_span is None:  # a timer that the trigger has left behind when windows merged
                return
        assert state_span is not None
        space = self._table.namespace(state_span)
        result = on_time(time, window, hand)
        if result is not _CONTINUE:
            self._act(result, space, event_time)
        if own_time is not None:
            if own_time >= cleanup_ms and cleanup_ms < _END_OF_TIME:
                self._forget(space)
            else:
                hand.register_cleanup()  # in case the allowed lateness was another before a restore
        self._drop_if_empty(state_span, space)

    # --------------------------------------------------------------------------------------------------------- results

    def _act(self, result: TriggerResult, space: MutableMapping[Any, Any], event_time: int | None) -> None:
        """Fire and purge the window at hand.

        Args:
            result: What the trigger says.
            space: Where its content is.
            event_time: What made it fire; None for something without event time.
        """
        if type(result) is not TriggerResult:
            message = f"a trigger must return a TriggerResult; got {result!r}"
            raise TypeMismatchError(message)
        key, window = self._hand.key, self._hand.window
        if result.is_fire():
            content = space.get(key, MISSING)
            if content is not MISSING:
                timestamp = window.max_timestamp() if type(window) is TimeWindow else event_time
                if self._evictor is None:
                    self._results.fire(window, ((key, content),), timestamp)
                else:
                    self._fire_evicting(self._evictor, window, content, space, timestamp)
        if result.is_purge():
            space.pop(key, None)

    def _fire_evicting(
        self, evictor: Evictor, window: Window, content: Any, space: MutableMapping[Any, Any], timestamp: int | None
    ) -> None:
        hand, key = self._hand, self._hand.key
        elements = [TimestampedValue(*entry) for entry in self._held.elements(content)]
        evictor.evict_before(elements, len(elements), window, hand)
        _check_left(evictor, elements)
        left = self._contents.add_run(MISSING, [element.value for element in elements])
        if left is not MISSING:
            self._results.fire(window, ((key, left),), timestamp)
        evictor.evict_after(elements, len(elements), window, hand)
        _check_left(evictor, elements)
        if elements:
            space[key] = self._held.add_run(MISSING, [(value, time) for value, time in elements])
        else:
            del space[key]

    def _forget(self, space: MutableMapping[Any, Any]) -> None:
        """Forget the window at hand, which is over."""
        hand = self._hand
        key, window, span = hand.key, hand.window, hand.span
        space.pop(key, None)
        self._trigger.clear(window, hand)
        hand.state.forget()
        self._results.clear(window, (key,))
        if self._merging is not None:
            self._merging.retire(key, span)

    def _drop_if_empty(self, span: Span, space: MutableMapping[Any, Any]) -> None:
        if not space:
            self._table.drop(span)


def _check_left(evictor: Evictor, elements: list[Any]) -> None:
    """See that an evictor has left nothing but records of windows."""
    for element in elements:
        if type(element) is not TimestampedValue:
            message = f"{type(evictor).__name__} must leave TimestampedValue objects in the list; it left {element!r}"
            raise TypeMismatchError(message, hint="take records out by changing the list, and put none in")
