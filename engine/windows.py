"""Windows: how records are assigned to them, and when they fire.

An assigner is a picklable value that says for a time which windows it is in; it works on whole arrays of times, so the
window operator loops over windows, not over records, to assign. Start times are aligned to the epoch plus ``offset``,
with floor division, hence right for times before 1970 too. Sessions start as windows of one gap and merge where they
meet or overlap.

A trigger says when a window gives results. `EventTimeTrigger` and `ProcessingTimeTrigger` are the defaults of the time
assigners; count windows have their condition in the assigner. The trigger contract is complete enough for others to
follow.

Source: Flink's ``TumblingEventTimeWindows``, ``SlidingEventTimeWindows``, ``EventTimeSessionWindows``, their
processing-time twins, ``TimeWindow``, ``Trigger``; rows C5 to C9.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine.config import parse_duration_ms
from headrace.engine.errors import ConfigurationError
from headrace.engine.records import MAX_WATERMARK, Timestamps

__all__ = [
    "CountWindows",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "GlobalWindow",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "SessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SlidingWindows",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
    "session_cuts",
]


class TimeWindow(NamedTuple):
    """The times from ``start`` up to but not including ``end``, epoch milliseconds."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond that is in the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch, which is when sessions merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow:
    """The one window of count windows: all of a key's records, without end."""

    __slots__ = ()

    def max_timestamp(self) -> int:
        """The end of time."""
        return MAX_WATERMARK.timestamp_ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow()"


# ------------------------------------------------------------------------------------------------------------- triggers


class TriggerResult(Enum):
    """What happens to a window: results are given (fire), its content is dropped (purge), both or neither."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    @property
    def is_fire(self) -> bool:
        """Whether results are given."""
        return self.value[0]

    @property
    def is_purge(self) -> bool:
        """Whether the content is dropped."""
        return self.value[1]


class TriggerContext(Protocol):
    """What a trigger may ask of the window operator."""

    def current_watermark(self) -> int:
        """How far event time is."""
        ...

    def current_processing_time(self) -> int:
        """The clock's reading."""
        ...

    def register_timer(self, window: TimeWindow, time_ms: int) -> None:
        """Call the trigger again once time, in the assigner's time domain, has reached ``time_ms``."""
        ...


class Trigger:
    """Decides when a window fires.

    Picklable and without state of its own: one trigger serves all windows of an operator.
    """

    def on_element(self, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """A record has been added to ``window``."""
        raise NotImplementedError

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """An event-time timer of ``window`` has come due."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        """A processing-time timer of ``window`` has come due."""
        return TriggerResult.CONTINUE


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the window's last millisecond, and for each record that may still come later."""

    def on_element(self, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= context.current_watermark():
            return TriggerResult.FIRE
        context.register_timer(window, window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == window.max_timestamp() else TriggerResult.CONTINUE


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock has passed the window's last millisecond."""

    def on_element(self, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        context.register_timer(window, window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time_ms: int, window: TimeWindow, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time_ms == window.max_timestamp() else TriggerResult.CONTINUE


# ------------------------------------------------------------------------------------------------------------ assigners


class WindowAssigner:
    """How records find their windows. Use one of the subclasses."""

    is_event_time: ClassVar[bool] = True
    """Whether windows go by event time; else by the clock at the moment a record is processed."""


@dataclass(frozen=True, slots=True)
class SlidingWindows(WindowAssigner):
    """Windows of ``size_ms`` that begin every ``slide_ms``; tumbling if the two are equal.

    With a slide larger than the size some times are in no window, and their records are not counted anywhere.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        if self.size_ms <= 0 or self.slide_ms <= 0:
            message = f"a window's size and slide must be positive; got {self.size_ms} ms and {self.slide_ms} ms"
            raise ConfigurationError(message)
        if abs(self.offset_ms) >= self.slide_ms:
            what = "size" if self.size_ms == self.slide_ms else "slide"
            message = f"a window's offset must be smaller than its {what} ({self.slide_ms} ms); got {self.offset_ms} ms"
            raise ConfigurationError(message)

    def last_starts(self, times: Timestamps) -> Timestamps:
        """For each time the start of the last window that begins at or before it; slides with gaps may leave it out."""
        starts: Timestamps = times - (times - self.offset_ms) % self.slide_ms  # numpy's % is that of floor division
        return starts

    def windows_from(self, last_start: int) -> Iterator[TimeWindow]:
        """The windows that may hold a time whose last window begins at ``last_start``, latest first.

        Each holds all such times that are before its end; only the last one may end before some of them.
        """
        for start in range(last_start, last_start - self.size_ms, -self.slide_ms):
            yield TimeWindow(start, start + self.size_ms)


class TumblingEventTimeWindows(SlidingWindows):
    """Windows of one size, end to end, by event time."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any, offset: Any = 0) -> TumblingEventTimeWindows:
        """Make the assigner.

        Args:
            size: A duration as in `parse_duration_ms`.
            offset: Windows begin at multiples of ``size`` after the epoch, shifted by this; may be negative.

        Raises:
            ConfigurationError: If a value is not a duration or makes no sense.
        """
        size_ms = parse_duration_ms(size)
        return cls(size_ms, size_ms, parse_duration_ms(offset))


class TumblingProcessingTimeWindows(SlidingWindows):
    """Windows of one size, end to end, by the clock."""

    __slots__ = ()
    is_event_time: ClassVar[bool] = False

    @classmethod
    def of(cls, size: Any, offset: Any = 0) -> TumblingProcessingTimeWindows:
        """Make the assigner; as `TumblingEventTimeWindows.of`."""
        size_ms = parse_duration_ms(size)
        return cls(size_ms, size_ms, parse_duration_ms(offset))


class SlidingEventTimeWindows(SlidingWindows):
    """Windows of one size that begin every ``slide``, by event time."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any, slide: Any, offset: Any = 0) -> SlidingEventTimeWindows:
        """Make the assigner; as `TumblingEventTimeWindows.of`, ``offset`` smaller than ``slide``."""
        return cls(parse_duration_ms(size), parse_duration_ms(slide), parse_duration_ms(offset))


class SlidingProcessingTimeWindows(SlidingWindows):
    """Windows of one size that begin every ``slide``, by the clock."""

    __slots__ = ()
    is_event_time: ClassVar[bool] = False

    @classmethod
    def of(cls, size: Any, slide: Any, offset: Any = 0) -> SlidingProcessingTimeWindows:
        """Make the assigner; as `SlidingEventTimeWindows.of`."""
        return cls(parse_duration_ms(size), parse_duration_ms(slide), parse_duration_ms(offset))


@dataclass(frozen=True, slots=True)
class SessionWindows(WindowAssigner):
    """Windows that end when a key has had no record for ``gap_ms``."""

    gap_ms: int

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            message = f"a session's gap must be positive; got {self.gap_ms} ms"
            raise ConfigurationError(message)


class EventTimeSessionWindows(SessionWindows):
    """Sessions by event time."""

    __slots__ = ()

    @classmethod
    def with_gap(cls, gap: Any) -> EventTimeSessionWindows:
        """Make the assigner.

        Args:
            gap: A duration as in `parse_duration_ms`.
        """
        return cls(parse_duration_ms(gap))


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions by the clock."""

    __slots__ = ()
    is_event_time: ClassVar[bool] = False

    @classmethod
    def with_gap(cls, gap: Any) -> ProcessingTimeSessionWindows:
        """Make the assigner; as `EventTimeSessionWindows.with_gap`."""
        return cls(parse_duration_ms(gap))


@dataclass(frozen=True, slots=True)
class CountWindows(WindowAssigner):
    """Windows by number of records of a key (row C8): every ``slide`` records, over the last ``size``.

    With ``slide == size`` they tumble: results are given and content dropped at every ``size``-th record. Else the
    first results cover fewer than ``size`` records, as in Flink. A window that is not full when its input ends gives
    nothing.
    """

    size: int
    slide: int

    @classmethod
    def of(cls, size: int, slide: int | None = None) -> CountWindows:
        """Make the assigner; without ``slide`` the windows tumble.

        Raises:
            ConfigurationError: If a number is not an int of at least 1.
        """
        return cls(size, size if slide is None else slide)

    def __post_init__(self) -> None:
        for name, value in (("size", self.size), ("slide", self.slide)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                message = f"a count window's {name} must be a number of records, at least 1; got {value!r}"
                raise ConfigurationError(message)


def session_cuts(keys: npt.NDArray[np.int64], times: Timestamps, gap_ms: int) -> list[int]:
    """Where sessions begin and end in records sorted by key and time: two neighbours are in one if at most a gap apart.

    Args:
        keys: Numbers that stand for keys, sorted.
        times: Event times, sorted within each key.
        gap_ms: The gap.

    Returns:
        Indices: session ``i`` is the records from ``cuts[i]`` up to ``cuts[i + 1]``.
    """
    begins = (np.diff(keys) != 0) | (np.diff(times) > gap_ms)
    return [0, *(np.flatnonzero(begins) + 1).tolist(), len(times)]
