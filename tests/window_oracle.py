"""Flink's window operator written down once more, one record at a time, in dictionaries, with nothing clever in it.

Windows with any trigger and evictor, merging or not, by event time or the clock. It follows the prose of Flink's
documentation (windows, triggers, evictors, allowed lateness), knows nothing of the engine under test, and forgets a
window with all that belongs to it. Triggers are modelled by small classes of their own over `Window`.

Order: firings of one call are compared as a multiset; the records of a firing are in order of arrival, where sessions
have merged in order of the sessions' beginnings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIN, MAX = -(2**63), 2**63 - 1

Span = tuple[int, int]
GLOBAL: Span = (MIN, MAX)


@dataclass
class Window:
    """One window of one key."""

    key: Any
    span: Span
    # What the trigger remembers.
    state: dict[str, Any] = field(default_factory=dict)
    elements: list[tuple[Any, int]] = field(default_factory=list)
    event_timers: set[int] = field(default_factory=set)
    clock_timers: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        return MAX if self.span == GLOBAL else self.span[1] - 1


@dataclass(frozen=True)
class Firing:
    """What a window gave: its records and the time of its results."""

    key: Any
    span: Span
    values: tuple[Any, ...]
    time: int | None


class TriggerModel:
    """What a trigger does: gives (fire, purge)."""

    def on_element(self, window: Window, value: Any, time: int, oracle: GeneralOracle) -> tuple[bool, bool]:
        return False, False

    def on_event(self, window: Window, time: int, oracle: GeneralOracle) -> tuple[bool, bool]:
        return False, False

    def on_clock(self, window: Window, time: int, oracle: GeneralOracle) -> tuple[bool, bool]:
        return False, False

    def on_merge(self, window: Window, gone: list[Window], oracle: GeneralOracle) -> None:
        """``window`` is new and takes the place of ``gone``."""


class ByEventTime(TriggerModel):
    def on_element(self, window, value, time, oracle):
        if window.last <= oracle.watermark:
            return True, False
        window.event_timers.add(window.last)
        return False, False

    def on_event(self, window, time, oracle):
        return time == window.last, False

    def on_merge(self, window, gone, oracle):
        if window.last > oracle.watermark:
            window.event_timers.add(window.last)


class ByClock(TriggerModel):
    def on_element(self, window, value, time, oracle):
        window.clock_timers.add(window.last)
        return False, False

    def on_clock(self, window, time, oracle):
        return True, False

    def on_merge(self, window, gone, oracle):
        if window.last > oracle.now:
            window.clock_timers.add(window.last)


@dataclass
class EveryCount(TriggerModel):
    count: int

    def on_element(self, window, value, time, oracle):
        window.state["count"] = window.state.get("count", 0) + 1
        if window.state["count"] < self.count:
            return False, False
        del window.state["count"]
        return True, False

    def on_merge(self, window, gone, oracle):
        total = sum(one.state.get("count", 0) for one in gone)
        if total:
            window.state["count"] = total


@dataclass
class EveryInterval(TriggerModel):
    """By event time."""

    interval: int

    def on_element(self, window, value, time, oracle):
        if window.last <= oracle.watermark:
            return True, False
        window.event_timers.add(window.last)
        if "next" not in window.state:
            self._next(window, time - time % self.interval, oracle)
        return False, False

    def _next(self, window, time, oracle):
        following = min(time + self.interval, window.last)
        if window.span == GLOBAL and oracle.watermark == MAX:
            following = MAX
        window.state["next"] = following
        window.event_timers.add(following)

    def on_event(self, window, time, oracle):
        if time == window.last:
            return True, False
        if window.state.get("next") != time:
            return False, False
        self._next(window, time, oracle)
        return True, False

    def on_merge(self, window, gone, oracle):
        times = [one.state["next"] for one in gone if "next" in one.state]
        if times:
            window.state["next"] = min(times)
            window.event_timers.add(min(times))


@dataclass
class EveryClockInterval(TriggerModel):
    interval: int

    def on_element(self, window, value, time, oracle):
        if "next" not in window.state:
            self._next(window, oracle.now - oracle.now % self.interval, oracle.now)
        return False, False

    def _next(self, window, time, now):
        following = time + self.interval
        if now <= window.last < following:
            following = window.last
        window.state["next"] = following
        window.clock_timers.add(following)

    def on_clock(self, window, time, oracle):
        if window.state.get("next") != time:
            return False, False
        self._next(window, time, time + 1)
        return True, False

    def on_merge(self, window, gone, oracle):
        times = [one.state["next"] for one in gone if "next" in one.state]
        if times:
            window.state["next"] = min(times)
            window.clock_timers.add(min(times))


@dataclass
class OnDelta(TriggerModel):
    threshold: float
    delta: Callable[[Any, Any], float]

    def on_element(self, window, value, time, oracle):
        if "last" not in window.state:
            window.state["last"] = value
            return False, False
        if self.delta(window.state["last"], value) > self.threshold:
            window.state["last"] = value
            return True, False
        return False, False


@dataclass
class AtEndOfStream(TriggerModel):
    def on_element(self, window, value, time, oracle):
        window.event_timers.add(MAX)
        return False, False

    def on_event(self, window, time, oracle):
        return time == MAX, time == MAX


@dataclass
class Purging(TriggerModel):
    nested: TriggerModel

    def on_element(self, window, value, time, oracle):
        fires, purges = self.nested.on_element(window, value, time, oracle)
        return fires, fires or purges

    def on_event(self, window, time, oracle):
        fires, purges = self.nested.on_event(window, time, oracle)
        return fires, fires or purges

    def on_clock(self, window, time, oracle):
        fires, purges = self.nested.on_clock(window, time, oracle)
        return fires, fires or purges

    def on_merge(self, window, gone, oracle):
        self.nested.on_merge(window, gone, oracle)


Evict = Callable[[list[tuple[Any, int]]], list[tuple[Any, int]]]


def keep_all(elements: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    return elements


@dataclass
class GeneralOracle:
    """Windows of any kind.

    Attributes:
        spans_of: The windows of (time, value): for windows of the clock the time is the clock's.
        trigger: When they fire.
        merges: Whether windows that touch become one.
        is_event_time: Whether windows end by event time.
        lateness: How long after its end an event-time window is kept.
        evict_before: Gives what is left of a window's (value, time) pairs before its function sees them.
        evict_after: The same afterwards.
        fires_empty: Whether a window gives a result of no records when the evictor has left none.
    """

    spans_of: Callable[[int, Any], list[Span]]
    trigger: TriggerModel
    merges: bool = False
    is_event_time: bool = True
    lateness: int = 0
    evict_before: Evict | None = None
    evict_after: Evict | None = None
    fires_empty: bool = True
    watermark: int = MIN
    now: int = 0
    late: list[tuple[Any, int, Any]] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------------- questions

    def _cleanup(self, window: Window) -> int:
        return min(window.last + (self.lateness if self.is_event_time else 0), MAX)

    def _is_gone(self, window: Window) -> bool:
        return self.is_event_time and self._cleanup(window) <= self.watermark

    # ---------------------------------------------------------------------------------------------------------- inputs

    def record(self, key: Any, time: int, value: Any) -> list[Firing]:
        firings: list[Firing] = []
        is_taken = False
        for span in self.spans_of(time if self.is_event_time else self.now, value):
            window = self._merged(key, span) if self.merges else self._found(key, span)
            if self._is_gone(window):
                self.windows = [one for one in self.windows if one is not window]
                continue
            is_taken = True
            window.elements.append((value, time))
            verdict = self.trigger.on_element(window, value, time, self)
            firings += self._act(window, verdict, time)
            self._add_cleanup(window)
            self._prune(window)
        if not is_taken and self.is_event_time and time + self.lateness <= self.watermark:
            self.late.append((key, time, value))
        return firings

    def advance(self, watermark: int) -> list[Firing]:
        if watermark <= self.watermark:
            return []
        self.watermark = watermark
        firings: list[Firing] = []
        while due := [
            (min(w.event_timers), w) for w in self.windows if min(w.event_timers, default=MAX + 1) <= watermark
        ]:
            time, window = min(due, key=lambda pair: pair[0])
            window.event_timers.discard(time)
            firings += self._act(window, self.trigger.on_event(window, time, self), time)
            self._prune(window)
            if self.is_event_time and time == self._cleanup(window) and time < MAX:
                self.windows = [one for one in self.windows if one is not window]
        return firings

    def clock(self, now: int) -> list[Firing]:
        """A timer's millisecond must be over before it fires."""
        firings: list[Firing] = []
        while due := [(min(w.clock_timers), w) for w in self.windows if min(w.clock_timers, default=now) < now]:
            time, window = min(due, key=lambda pair: pair[0])
            window.clock_timers.discard(time)
            firings += self._act(window, self.trigger.on_clock(window, time, self), None)
            self._prune(window)
            if not self.is_event_time and time == self._cleanup(window):
                self.windows = [one for one in self.windows if one is not window]
        self.now = max(now, self.now)
        return firings

    # --------------------------------------------------------------------------------------------------------- windows

    def _found(self, key: Any, span: Span) -> Window:
        for window in self.windows:
            if (window.key, window.span) == (key, span):
                return window
        self.windows.append(Window(key, span))
        return self.windows[-1]

    def _merged(self, key: Any, span: Span) -> Window:
        start, end = span
        own = [one for one in self.windows if one.key == key]
        touching = sorted((w for w in own if w.span[0] <= end and start <= w.span[1]), key=lambda w: w.span)
        start = min([start, *(one.span[0] for one in touching)])
        end = max([end, *(one.span[1] for one in touching)])
        if len(touching) == 1 and touching[0].span == (start, end):
            return touching[0]
        merged = Window(key, (start, end))
        merged.elements = [element for one in touching for element in one.elements]
        self.windows = [one for one in self.windows if one not in touching]
        self.windows.append(merged)
        if touching:
            self.trigger.on_merge(merged, touching, self)
        return merged

    def _add_cleanup(self, window: Window) -> None:
        if self._cleanup(window) < MAX:
            (window.event_timers if self.is_event_time else window.clock_timers).add(self._cleanup(window))

    def _prune(self, window: Window) -> None:
        """Timers behind the window's end are never heard of."""
        timers = window.event_timers if self.is_event_time else window.clock_timers
        timers.difference_update([time for time in timers if time > self._cleanup(window)])

    def _act(self, window: Window, verdict: tuple[bool, bool], time: int | None) -> list[Firing]:
        fires, purges = verdict
        firings = []
        if fires and window.elements:
            if self.evict_before is not None:
                window.elements = self.evict_before(list(window.elements))
            if window.elements or self.fires_empty:
                values = tuple(value for value, _ in window.elements)
                result_time = time if window.span == GLOBAL else window.last
                firings.append(Firing(window.key, window.span, values, result_time))
            if self.evict_after is not None:
                window.elements = self.evict_after(list(window.elements))
        if purges:
            window.elements = []
        return firings
