"""Triggers: when a window gives results, and when its content is dropped.

A trigger is asked at every record of a window and at every timer that it has registered for the window; it answers with
a `TriggerResult`. One trigger object serves all windows of an operator, so it keeps nothing in itself: what it must
remember is state per key and window (`TriggerContext.get_partitioned_state`), which belongs to snapshots and moves with
its key. When windows merge, `Trigger.on_merge` moves state and timers to the merged window.

Names, signatures and decisions are Flink's. Where Flink's own code would never come to rest, ours does: continuous
triggers do not register a time that is already past the window's end, and at the end of event time a window without end
fires once more instead of once per interval for ever. Intervals are aligned to the epoch before 1970 too.

Invariant: what a built-in trigger has registered or stored for a window is gone after ``clear``, or by the window's
end.

Source: Flink's ``Trigger`` and its subclasses; ``pyflink.datastream.window``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headrace.state.keyed.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from headrace.state.keyed.kinds import StateDescriptor

from ..columns.records import MAX_WATERMARK
from ..errors import ConfigurationError, ProgramError
from ..kernel.config import parse_duration_ms

if TYPE_CHECKING:
    from ..kernel.metrics import MetricGroup
    from .windows import Window

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "delta_of",
]

_END_OF_TIME = MAX_WATERMARK.timestamp_ms


class TriggerResult(Enum):
    """What happens to a window: results are given (fire), its content is dropped (purge), both or neither."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def is_fire(self) -> bool:
        """Return whether results are given."""
        return self.value[0]

    def is_purge(self) -> bool:
        """Return whether the content is dropped."""
        return self.value[1]


class TriggerContext(Protocol):
    """What a trigger may ask of the window operator, for the key and window at hand; valid during the call only."""

    def get_current_processing_time(self) -> int:
        """Return the clock's reading, epoch milliseconds."""
        ...

    def get_current_watermark(self) -> int:
        """Return how far event time is, epoch milliseconds; ``-2**63`` before the first watermark."""
        ...

    def get_metric_group(self) -> MetricGroup:
        """Return the operator's counters and gauges."""
        ...

    def register_event_time_timer(self, time: int) -> None:
        """Call ``on_event_time`` once the watermark has reached ``time``; with the next one if it already has.

        The same time is registered once. A time after the end of an event-time window, allowed lateness included, is
        passed over: the window will be gone.
        """
        ...

    def register_processing_time_timer(self, time: int) -> None:
        """Call ``on_processing_time`` once the millisecond ``time`` of the clock is over; else as for event time."""
        ...

    def delete_event_time_timer(self, time: int) -> None:
        """Take back a timer, if there is one."""
        ...

    def delete_processing_time_timer(self, time: int) -> None:
        """Take back a timer, if there is one."""
        ...

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """Return the handle of a state of the current key and window, by the descriptor's kind. It is forgotten with
        the window.
        """
        ...


_Context: TypeAlias = TriggerContext


class Trigger(ABC):
    """Decides when a window fires. Subclasses are picklable and keep nothing in themselves.

    PyFlink's type parameters (``Trigger[T, W]``) are accepted and mean nothing.
    """

    TriggerContext: TypeAlias = _Context

    class OnMergeContext(_Context, Protocol):
        """What a trigger may ask when windows merge."""

        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Move what the merged windows hold of a list, reducing or aggregating state to the new window."""
            ...

    def __class_getitem__(cls, _types: Any) -> type[Trigger]:
        return cls

    @abstractmethod
    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide what happens to ``window``, to which a record has been added.

        Args:
            element: The record.
            timestamp: Its event time, epoch milliseconds; ``-2**63`` if it has none.
            window: The window.
            ctx: Timers, state, clocks.
        """

    @abstractmethod
    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide what happens to ``window``, of which a processing-time timer has come due."""

    @abstractmethod
    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        """Decide what happens to ``window``, of which an event-time timer has come due."""

    def can_merge(self) -> bool:
        """Return whether ``on_merge`` is written; only then the trigger may be used with windows that merge."""
        return False

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        """Bring over the state of several windows that have become ``window``, and register timers again.

        ``clear`` is called for each of the windows that are no more, afterwards.
        """
        message = f"{type(self).__name__} has no on_merge, which windows that merge need"
        raise ProgramError(message)

    @abstractmethod
    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Delete the timers and state of a window that is about to be forgotten."""


# ---------------------------------------------------------------------------------------------------------- time's own


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the window's last millisecond, and for each record that may still come later."""

    @classmethod
    def create(cls) -> EventTimeTrigger:
        """Make the trigger."""
        return cls()

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp()
        if last <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(last)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        # Behind the watermark `on_element` fires; a timer would make the window fire twice.
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())

    def __repr__(self) -> str:
        return "EventTimeTrigger()"


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock has passed the window's last millisecond."""

    @classmethod
    def create(cls) -> ProcessingTimeTrigger:
        """Make the trigger."""
        return cls()

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())

    def __repr__(self) -> str:
        return "ProcessingTimeTrigger()"


# ----------------------------------------------------------------------------------------------------------- continuous


_NEXT_FIRE = ReducingStateDescriptor("next-fire", reduce_function=min, value_type=int)
"""When a continuous trigger fires next; of merged windows the earliest."""


_Self = TypeVar("_Self", bound="_ContinuousTrigger")


class _ContinuousTrigger(Trigger):
    """What both have in common: the interval, and the time of the next fire, which merges with the windows.

    Args:
        interval: A duration as in `parse_duration_ms`; fires at its multiples.

    Raises:
        ConfigurationError: If it is not a positive duration.
    """

    def __init__(self, interval: Any) -> None:
        self._interval_ms = parse_duration_ms(interval)
        if self._interval_ms <= 0:
            message = f"a trigger's interval must be positive; got {interval!r}"
            raise ConfigurationError(message)

    @classmethod
    def of(cls: type[_Self], interval: Any) -> _Self:
        """Make the trigger."""
        return cls(interval)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(_NEXT_FIRE)
        following = ctx.get_partitioned_state(_NEXT_FIRE).get()
        if following is not None:
            self._register(ctx, following)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        next_fire = ctx.get_partitioned_state(_NEXT_FIRE)
        following = next_fire.get()
        if following is not None:
            self._delete(ctx, following)
            next_fire.clear()

    @staticmethod
    @abstractmethod
    def _register(ctx: TriggerContext, time: int) -> None:
        """Register a timer of the trigger's time."""

    @staticmethod
    @abstractmethod
    def _delete(ctx: TriggerContext, time: int) -> None:
        """Delete a timer of the trigger's time."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._interval_ms} ms)"


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires every ``interval`` of event time after a window's first record, and at the window's end.

    Args:
        interval: A duration as in `parse_duration_ms`; fires at its multiples.
    """

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last = window.max_timestamp()
        if last <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(last)
        next_fire = ctx.get_partitioned_state(_NEXT_FIRE)
        if next_fire.get() is None:
            self._register_next(timestamp - timestamp % self._interval_ms, last, ctx, next_fire)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        next_fire = ctx.get_partitioned_state(_NEXT_FIRE)
        if next_fire.get() != time:
            return TriggerResult.CONTINUE
        next_fire.clear()
        self._register_next(time, window.max_timestamp(), ctx, next_fire)
        return TriggerResult.FIRE

    def _register_next(self, time: int, last: int, ctx: TriggerContext, next_fire: Any) -> None:
        following = min(time + self._interval_ms, last)
        if last == _END_OF_TIME == ctx.get_current_watermark():
            following = last  # not once per interval until then
        next_fire.add(following)
        ctx.register_event_time_timer(following)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        super().clear(window, ctx)
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def _register(ctx: TriggerContext, time: int) -> None:
        ctx.register_event_time_timer(time)

    @staticmethod
    def _delete(ctx: TriggerContext, time: int) -> None:
        ctx.delete_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires every ``interval`` of the clock after a window's first record, and at a processing-time window's end.

    Args:
        interval: A duration as in `parse_duration_ms`; fires at its multiples.
    """

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        next_fire = ctx.get_partitioned_state(_NEXT_FIRE)
        if next_fire.get() is None:
            now = ctx.get_current_processing_time()
            self._register_next(now - now % self._interval_ms, now, window, ctx, next_fire)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        next_fire = ctx.get_partitioned_state(_NEXT_FIRE)
        if next_fire.get() != time:
            return TriggerResult.CONTINUE
        next_fire.clear()
        self._register_next(time, time + 1, window, ctx, next_fire)
        return TriggerResult.FIRE

    def _register_next(self, time: int, now: int, window: Window, ctx: TriggerContext, next_fire: Any) -> None:
        following, last = time + self._interval_ms, window.max_timestamp()
        if now <= last < following:  # an event-time window of the past has no end by the clock
            following = last
        next_fire.add(following)
        ctx.register_processing_time_timer(following)

    @staticmethod
    def _register(ctx: TriggerContext, time: int) -> None:
        ctx.register_processing_time_timer(time)

    @staticmethod
    def _delete(ctx: TriggerContext, time: int) -> None:
        ctx.delete_processing_time_timer(time)


# ----------------------------------------------------------------------------------------------------------- by records


def _add(left: int, right: int) -> int:
    return left + right


_COUNT = ReducingStateDescriptor("count", reduce_function=_add, value_type=int)


class CountTrigger(Trigger):
    """Fires at every ``max_count``-th record of a window.

    Raises:
        ConfigurationError: If it is not a whole number of at least 1.
    """

    def __init__(self, max_count: int) -> None:
        if not isinstance(max_count, int) or isinstance(max_count, bool) or max_count < 1:
            message = f"a count trigger fires after a number of records, at least 1; got {max_count!r}"
            raise ConfigurationError(message)
        self._max_count = max_count

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Make the trigger."""
        return cls(max_count)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(_COUNT)
        count.add(1)
        if count.get() < self._max_count:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(_COUNT)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(_COUNT).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self._max_count})"


def delta_of(function: Any) -> Callable[[Any, Any], float]:
    """Return a delta function as a plain callable: of two, or an object with ``get_delta(old, new)``.

    Raises:
        ProgramError: If it is neither.
    """
    delta = getattr(function, "get_delta", function)
    if not callable(delta):
        message = f"a delta function must be a callable of two records or have get_delta; got {function!r}"
        raise ProgramError(message)
    found: Callable[[Any, Any], float] = delta
    return found


_LAST_ELEMENT = ValueStateDescriptor("last-element")


class DeltaTrigger(Trigger):
    """Fires when a record differs from the one of the last firing by more than ``threshold``.

    Args:
        threshold: How much is too much.
        delta_function: ``(old, new) -> number``, or an object with ``get_delta`` of that form.
    """

    def __init__(self, threshold: float, delta_function: Any) -> None:
        self._threshold = threshold
        self._delta = delta_of(delta_function)

    @classmethod
    def of(cls, threshold: float, delta_function: Any) -> DeltaTrigger:
        """Make the trigger."""
        return cls(threshold, delta_function)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        last_element = ctx.get_partitioned_state(_LAST_ELEMENT)
        last = last_element.value()
        if last is None:
            last_element.update(element)
            return TriggerResult.CONTINUE
        if self._delta(last, element) > self._threshold:
            last_element.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(_LAST_ELEMENT).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger({self._threshold})"


# --------------------------------------------------------------------------------------------------------- around, none


class PurgingTrigger(Trigger):
    """Fires when another trigger does, and drops the window's content each time.

    Raises:
        ProgramError: If ``nested_trigger`` is no trigger.
    """

    def __init__(self, nested_trigger: Any) -> None:
        if not isinstance(nested_trigger, Trigger):
            message = f"a purging trigger goes around another trigger; got {nested_trigger!r}"
            raise ProgramError(message)
        self.nested_trigger: Trigger = nested_trigger

    @classmethod
    def of(cls, nested_trigger: Any) -> PurgingTrigger:
        """Make the trigger."""
        return cls(nested_trigger)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested_trigger!r})"


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


class NeverTrigger(Trigger):
    """Never fires: what a global window has unless it is given another trigger."""

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """Do nothing: there is nothing to forget."""

    def __repr__(self) -> str:
        return "NeverTrigger()"


class EndOfStreamTrigger(Trigger):
    """Fires once, when event time ends, which it does with a bounded input; the content is dropped then."""

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_event_time_timer(_END_OF_TIME)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if time == _END_OF_TIME else TriggerResult.CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(_END_OF_TIME)

    def __repr__(self) -> str:
        return "EndOfStreamTrigger()"
