"""Timers of windows: calls that a trigger, or the end of a window, has asked for at a later time.

A timer is a (time, key, window) triple of one time domain and exists at most once. Timers are keyed state, in a table
whose namespaces are times and whose values are, per key, the windows with the order of their registration; so they are
in every snapshot and move with their keys. Only the queue of distinct times is derived from the table.

Invariant: a timer fires once, in the order of time, timers of one time in the order of registration; it is gone when it
fires, and what is registered while timers fire takes part if it is due.

Source: Flink's ``InternalTimerServiceImpl`` with windows as namespaces.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.kinds import StateDescriptor

from ..functions.timers import DueQueue
from .windows import Span

__all__ = ["WindowTimers"]

_BY_NUMBER = itemgetter(0)


class WindowTimers:
    """The timers of one time domain.

    Args:
        keyed_state: Where they are kept.
        name: The state's name.
    """

    __slots__ = ("_count", "_is_over", "_queue", "_table")

    def __init__(self, keyed_state: KeyedStateBackend, name: str) -> None:
        # (time, time) -> key -> [(number, window start, window end)], numbers in the order of registration.
        self._table = keyed_state.table(StateDescriptor(name), windowed=True)
        self._queue = DueQueue()
        self._count = 0
        self._is_over = False
        for namespace in list(self._table.namespaces()):
            assert namespace is not None
            self._queue.add(namespace[0], namespace[0])
            numbers = (entry[0] for entries in self._table.namespace(namespace).values() for entry in entries)
            self._count = max(self._count, 1 + max(numbers))

    def register(self, time: int, key: Any, span: Span) -> None:
        """Add a timer, if it is not there, and its time domain has not ended."""
        if self._is_over:
            return
        if time not in self._queue:
            self._queue.add(time, time)
        keys = self._table.namespace((time, time))
        entries = keys.get(key, ())
        start, end = span
        for entry in entries:
            if entry[1] == start and entry[2] == end:
                return
        keys[key] = [*entries, (self._count, start, end)]
        self._count += 1

    def delete(self, time: int, key: Any, span: Span) -> bool:
        """Take a timer back; False if there is none."""
        if time not in self._queue:
            return False
        keys = self._table.namespace((time, time))
        entries = keys.get(key, ())
        start, end = span
        others = [entry for entry in entries if entry[1] != start or entry[2] != end]
        if len(others) == len(entries):
            return False
        if others:
            keys[key] = others
            return True
        del keys[key]
        if not keys:
            self._table.drop((time, time))
            self._queue.remove(time)
        return True

    def end(self) -> None:
        """Take no more timers, so that the firing of those that there are has an end."""
        self._is_over = True

    def next_time(self) -> int | None:
        """Return when the earliest is due; None if there is none."""
        return self._queue.next_time()

    def fire_until(self, time: int, fire: Callable[[int, Any, Span], bool]) -> bool:
        """Fire what is due at ``time``; each timer is gone when it fires and may be registered anew meanwhile.

        Args:
            time: How far time is.
            fire: Called with each timer's time, key and window; gives False to pause after it.

        Returns:
            Whether it was paused, so that more may be due.
        """
        queue = self._queue
        while (due := queue.first_due(time)) is not None:
            entries = self._table.namespace((due, due)).items()
            pending = sorted(
                ((number, key, start, end) for key, some in entries for number, start, end in some), key=_BY_NUMBER
            )
            for _, key, start, end in pending:
                if not self.delete(due, key, (start, end)):  # a timer before it has done so
                    continue
                if not fire(due, key, (start, end)):
                    return True
                if queue.next_time() != due:  # an earlier one was registered, or all of this time are gone
                    break
        return False
