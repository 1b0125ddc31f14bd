"""Timers: a keyed function's calls to itself at a later time.

A timer is a (time, key) pair of one kind, event time or processing time, and exists at most once. Timers are keyed
state, in a table whose namespaces are times, so they are in every snapshot and move with their keys on a rescale; the
order in which they are due is derived from the table.

Invariant: a timer fires once, in the order of time, timers of one time in the order of registration; it is gone when
it fires, and what is registered while timers fire takes part if it is due. Where one time has more timers than should
be in memory at once (`MAX_PORTION`) they fire in portions: in the order of registration within each.

Source: Flink's ``InternalTimerServiceImpl``, ``TimerService``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from headrace.state.keyed.contract import KeyedStateBackend, StateTable
from headrace.state.keyed.kinds import StateDescriptor

from ..errors import TypeMismatchError

__all__ = ["DueQueue", "TimerService"]

MAX_PORTION = 1 << 18
"""Timers of one time that are put in order at once; about 40 MB."""


class DueQueue:
    """Things and when they are due, earliest first.

    Among those of one time, lowest first. Removal is lazy and amortised O(1).
    """

    __slots__ = ("_heap", "_time_of")

    def __init__(self) -> None:
        # Holds every live entry, and dead ones until they come up or are swept.
        self._heap: list[tuple[int, Any]] = []
        self._time_of: dict[Any, int] = {}

    def add(self, time: int, item: Any) -> None:
        """Add a thing that is not in the queue."""
        self._time_of[item] = time
        heapq.heappush(self._heap, (time, item))

    def remove(self, item: Any) -> None:
        """Take a thing out, if it is in."""
        if self._time_of.pop(item, None) is not None and len(self._heap) > 2 * len(self._time_of) + 64:
            self._heap = [(time, item) for item, time in self._time_of.items()]
            heapq.heapify(self._heap)

    def next_time(self) -> int | None:
        """Return when the earliest is due; None if there is none."""
        heap, time_of = self._heap, self._time_of
        while heap and time_of.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def first_due(self, time: int) -> Any | None:
        """Return the earliest thing, if it is due at ``time``; it stays in the queue. None if there is none."""
        next_time = self.next_time()
        return None if next_time is None or next_time > time else self._heap[0][1]

    def __contains__(self, item: Any) -> bool:
        return item in self._time_of

    def __len__(self) -> int:
        return len(self._time_of)


class _Timers:
    """The timers of one kind: (time, key) pairs, each at most once.

    Kept in a table whose namespaces are times and whose values count registrations, so timers are snapshotted and
    rescaled with their keys, and those of one time fire in the order of registration, before and after a restore. Times
    are in memory, keys only as far as the table keeps them there.
    """

    __slots__ = ("_count", "_queue", "_restored", "_table")

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._queue = DueQueue()
        self._count = 0
        # Times whose timers were registered before a restore, so that the next one must be counted behind them.
        self._restored: set[int] = set()
        for namespace in table.namespaces():
            assert namespace is not None
            self._queue.add(namespace[0], namespace[0])
            self._restored.add(namespace[0])

    def register(self, time: int, key: Any) -> None:
        keys = self._table.namespace((time, time))
        if time not in self._queue:
            self._queue.add(time, time)
        if key not in keys:
            if time in self._restored:
                self._restored.discard(time)
                self._count = max(self._count, 1 + max(keys.values(), default=0))
            keys[key] = self._count
            self._count += 1

    def delete(self, time: int, key: Any) -> None:
        if time not in self._queue:
            return
        keys = self._table.namespace((time, time))
        if keys.pop(key, None) is not None and not keys:
            self._forget(time)

    def _forget(self, time: int) -> None:
        self._table.drop((time, time))
        self._queue.remove(time)
        self._restored.discard(time)

    def next_time(self) -> int | None:
        return self._queue.next_time()

    def fire_until(self, time: int, fire: Callable[[int, Any], bool]) -> bool:
        """Fire what is due at ``time``; each timer is gone when it fires and may be registered anew meanwhile."""
        queue = self._queue
        while (due := queue.first_due(time)) is not None:
            keys = self._table.namespace((due, due))
            for key, _ in sorted(islice(keys.items(), MAX_PORTION), key=itemgetter(1)):
                if keys.pop(key, None) is None:  # deleted by a timer before it
                    continue
                if not keys:
                    self._forget(due)
                if not fire(due, key):
                    return True
                if queue.first_due(time) != due:  # an earlier one was registered, or all of this time are gone
                    break
        return False


class EventTime(Protocol):
    """How far event time is in an operator."""

    @property
    def current_ms(self) -> int:
        """The operator's watermark."""
        ...


class TimerService:
    """Timers of a keyed operator, for the current key; what ``ctx.timer_service()`` gives.

    An event-time timer fires when the watermark reaches its time, a processing-time timer when the clock does.
    Registering the same time twice for one key is registering it once. Timers are keyed state: they are in every
    snapshot and move with their keys.

    Args:
        keyed_state: Where timers are kept, and whose current key they are for.
        now_ms: The clock.
        watermark: The operator's.
    """

    __slots__ = ("_backend", "_event", "_is_clock_over", "_now_ms", "_processing", "_watermark")

    def __init__(self, keyed_state: KeyedStateBackend, now_ms: Callable[[], int], watermark: EventTime) -> None:
        self._backend = keyed_state
        self._now_ms = now_ms
        self._watermark = watermark
        self._is_clock_over = False
        self._event = _Timers(keyed_state.table(StateDescriptor("event-time-timers"), windowed=True))
        self._processing = _Timers(keyed_state.table(StateDescriptor("processing-time-timers"), windowed=True))

    def current_watermark(self) -> int:
        """Return how far event time is; ``-2**63`` before the first watermark."""
        return self._watermark.current_ms

    def current_processing_time(self) -> int:
        """Return the clock's reading."""
        return self._now_ms()

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the watermark reaches ``timestamp``, epoch milliseconds.

        If it already has, the timer fires with the next watermark.

        Raises:
            TypeMismatchError: If it is not an int.
        """
        self._event.register(_timer_time(timestamp), self._backend.current_key)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` for the current key when the clock reaches ``timestamp``; soon if it already has.

        In a batch all of these fire when all input has come, and what is registered from then on never does.

        Raises:
            TypeMismatchError: If it is not an int.
        """
        time = _timer_time(timestamp)
        if not self._is_clock_over:
            self._processing.register(time, self._backend.current_key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take back a timer of the current key, if there is one."""
        self._event.delete(_timer_time(timestamp), self._backend.current_key)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take back a timer of the current key, if there is one."""
        self._processing.delete(_timer_time(timestamp), self._backend.current_key)

    def fire_event_time(self, watermark_ms: int, fire: Callable[[int, Any], bool]) -> bool:
        """Fire event-time timers; called by the operator with each new watermark.

        Args:
            watermark_ms: How far event time has come.
            fire: Called with each timer's time and key, in order; gives False to pause after it.

        Returns:
            Whether it was paused, so that more may be due.
        """
        return self._event.fire_until(watermark_ms, fire)

    def fire_processing_time(self, now_ms: int, fire: Callable[[int, Any], bool]) -> bool:
        """Fire processing-time timers; as `fire_event_time`, for when the clock has reached `next_processing_time`."""
        return self._processing.fire_until(now_ms, fire)

    def end_clock(self) -> None:
        """Take no more timers of processing time at the end of a batch, so that their firing has an end, too."""
        self._is_clock_over = True

    def next_event_time(self) -> int | None:
        """Return when the earliest event-time timer is due."""
        return self._event.next_time()

    def next_processing_time(self) -> int | None:
        """Return when the earliest processing-time timer is due."""
        return self._processing.next_time()


def _timer_time(timestamp: Any) -> int:
    if type(timestamp) is int and -(2**63) <= timestamp < 2**63:
        return timestamp
    if isinstance(timestamp, np.integer):
        return int(timestamp)
    message = f"a timer's time must be an int (epoch milliseconds, of 64 bits); got {timestamp!r}"
    raise TypeMismatchError(message)
