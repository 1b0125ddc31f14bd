"""Windows: how records are assigned to them.

An assigner is a picklable value. Those of this module that are made of a size or a gap say for whole arrays of times
which windows they are in, which is what the operator's fast path works with; every assigner, also one that a program
brings, says it for one record (`WindowAssigner.assign_windows`). Start times are aligned to the epoch plus an offset,
with floor division, hence right for times before 1970 too. Sessions start as windows of one gap and merge where they
meet or overlap.

Source: Flink's ``WindowAssigner``, ``MergingWindowAssigner`` and their subclasses; cumulating windows are those of
Flink SQL's ``CUMULATE``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ..columns.records import Timestamps
from ..errors import ConfigurationError, ProgramError
from ..kernel.config import parse_duration_ms
from .triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from .windows import GlobalWindow, TimeWindow

if TYPE_CHECKING:
    from ..functions.runtime_context import RuntimeContext

__all__ = [
    "CountWindows",
    "CumulativeEventTimeWindows",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "MergeCallback",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
    "SessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SlidingWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
    "WindowAssignerContext",
    "merge_touching",
    "session_cuts",
]


# ------------------------------------------------------------------------------------------------------------ assigners


class WindowAssignerContext(Protocol):
    """What an assigner may know besides the record; valid during the call only."""

    def get_current_processing_time(self) -> int:
        """Return the clock's reading, epoch milliseconds."""
        ...

    def get_runtime_context(self) -> RuntimeContext:
        """Return where the operator runs."""
        ...


_Context: TypeAlias = WindowAssignerContext


class WindowAssigner(ABC):
    """How records find their windows. A program may bring its own subclass.

    Contract: picklable; the windows of a record depend on the record, its time and the clock alone (*trusted*).
    """

    WindowAssignerContext: TypeAlias = _Context

    def __class_getitem__(cls, _types: Any) -> type[WindowAssigner]:
        return cls

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> Collection[Any]:
        """Return the windows of a record: each a `TimeWindow` or `GlobalWindow`.

        Args:
            element: The record.
            timestamp: Its event time, epoch milliseconds; ``-2**63`` if it has none, which windows of event time are
                spared.
            context: The clock.
        """

    @abstractmethod
    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return the trigger of windows that are given no other."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Return whether windows end by event time; else by the clock."""


class MergeCallback(Protocol):
    """Told by an assigner which windows have become one."""

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        """Make all of ``to_be_merged`` one window, ``merge_result``, which may be one of them."""
        ...


_Callback: TypeAlias = MergeCallback


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows may merge."""

    MergeCallback: TypeAlias = _Callback

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: MergeCallback) -> None:
        """Tell the callback of every group of windows that are to become one.

        Args:
            windows: All windows of one key, in no order; the newest may equal another one.
            callback: Call it for groups of at least two different windows only.
        """


class _ByTime(WindowAssigner):
    """Windows of a time: the record's or the clock's."""

    __slots__ = ()

    @abstractmethod
    def time_of(self, timestamp: int, context: WindowAssignerContext) -> int:
        """Return the time that decides on a record's windows."""


class _ByEventTime(_ByTime):
    """Windows that end by event time."""

    __slots__ = ()

    def time_of(self, timestamp: int, context: WindowAssignerContext) -> int:
        """Return the time that decides: the record's."""
        return timestamp

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return an `EventTimeTrigger`."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """True."""
        return True


class _ByClock(_ByTime):
    """Windows that end by the clock."""

    __slots__ = ()

    def time_of(self, timestamp: int, context: WindowAssignerContext) -> int:
        """Return the time that decides: the clock's."""
        return context.get_current_processing_time()

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return a `ProcessingTimeTrigger`."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """False."""
        return False


@dataclass(frozen=True, slots=True)
class SlidingWindows(_ByTime):
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

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        time, size = self.time_of(timestamp, context), self.size_ms
        last = time - (time - self.offset_ms) % self.slide_ms
        return [TimeWindow(start, start + size) for start in range(last, time - size, -self.slide_ms)]

    def last_starts(self, times: Timestamps) -> Timestamps:
        """For each time the start of the last window that begins at or before it; slides with gaps may leave it out."""
        starts: Timestamps = times - (times - self.offset_ms) % self.slide_ms  # numpy's % is that of floor division
        return starts

    def windows_from(self, last_start: int) -> Iterator[TimeWindow]:
        """Yield the windows that may hold a time whose last window begins at ``last_start``, latest first.

        Each holds all such times that are before its end; only the last one may end before some of them.
        """
        for start in range(last_start, last_start - self.size_ms, -self.slide_ms):
            yield TimeWindow(start, start + self.size_ms)


class TumblingEventTimeWindows(_ByEventTime, SlidingWindows):
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


class TumblingProcessingTimeWindows(_ByClock, SlidingWindows):
    """Windows of one size, end to end, by the clock."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any, offset: Any = 0) -> TumblingProcessingTimeWindows:
        """Make the assigner; as `TumblingEventTimeWindows.of`."""
        size_ms = parse_duration_ms(size)
        return cls(size_ms, size_ms, parse_duration_ms(offset))


class SlidingEventTimeWindows(_ByEventTime, SlidingWindows):
    """Windows of one size that begin every ``slide``, by event time."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any, slide: Any, offset: Any = 0) -> SlidingEventTimeWindows:
        """Make the assigner; as `TumblingEventTimeWindows.of`, ``offset`` smaller than ``slide``."""
        return cls(parse_duration_ms(size), parse_duration_ms(slide), parse_duration_ms(offset))


class SlidingProcessingTimeWindows(_ByClock, SlidingWindows):
    """Windows of one size that begin every ``slide``, by the clock."""

    __slots__ = ()

    @classmethod
    def of(cls, size: Any, slide: Any, offset: Any = 0) -> SlidingProcessingTimeWindows:
        """Make the assigner; as `SlidingEventTimeWindows.of`."""
        return cls(parse_duration_ms(size), parse_duration_ms(slide), parse_duration_ms(offset))


@dataclass(frozen=True, slots=True)
class SessionWindows(_ByTime, MergingWindowAssigner):
    """Windows that end when a key has had no record for ``gap_ms``."""

    gap_ms: int

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            message = f"a session's gap must be positive; got {self.gap_ms} ms"
            raise ConfigurationError(message)

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        time = self.time_of(timestamp, context)
        return [TimeWindow(time, time + self.gap_ms)]

    def merge_windows(self, windows: Iterable[TimeWindow], callback: MergeCallback) -> None:
        merge_touching(windows, callback)


class EventTimeSessionWindows(_ByEventTime, SessionWindows):
    """Sessions by event time."""

    __slots__ = ()

    @staticmethod
    def with_dynamic_gap(session_gap_extractor: Any) -> DynamicEventTimeSessionWindows:
        """Make an assigner of sessions whose gap depends on the record.

        Args:
            session_gap_extractor: A callable of a record, or a `SessionWindowTimeGapExtractor`; gives milliseconds.

        Raises:
            ProgramError: If it is neither.
        """
        return DynamicEventTimeSessionWindows(session_gap_extractor)

    @classmethod
    def with_gap(cls, gap: Any) -> EventTimeSessionWindows:
        """Make the assigner.

        Args:
            gap: A duration as in `parse_duration_ms`.
        """
        return cls(parse_duration_ms(gap))


class ProcessingTimeSessionWindows(_ByClock, SessionWindows):
    """Sessions by the clock."""

    __slots__ = ()

    @staticmethod
    def with_dynamic_gap(session_gap_extractor: Any) -> DynamicProcessingTimeSessionWindows:
        """Make an assigner of sessions whose gap depends on the record; as `EventTimeSessionWindows`."""
        return DynamicProcessingTimeSessionWindows(session_gap_extractor)

    @classmethod
    def with_gap(cls, gap: Any) -> ProcessingTimeSessionWindows:
        """Make the assigner; as `EventTimeSessionWindows.with_gap`."""
        return cls(parse_duration_ms(gap))


class SessionWindowTimeGapExtractor(ABC):
    """Says for each record how long its session waits for the next one."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Return the gap behind ``element``, milliseconds, more than 0."""


class _DynamicSessionWindows(_ByTime, MergingWindowAssigner):
    """Windows that end when a key has had no record for the gap of its records."""

    def __init__(self, session_gap_extractor: Any) -> None:
        self.session_gap_extractor = session_gap_extractor
        extract = getattr(session_gap_extractor, "extract", session_gap_extractor)
        if not callable(extract) or isinstance(session_gap_extractor, type):
            message = f"a session's gap must be a callable of a record or have extract(); got {session_gap_extractor!r}"
            raise ProgramError(message)
        self._extract: Callable[[Any], int] = extract

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        gap, time = self._extract(element), self.time_of(timestamp, context)
        if not isinstance(gap, (int, np.integer)) or isinstance(gap, bool) or gap <= 0:
            message = f"a session's gap must be a positive number of milliseconds; got {gap!r}"
            raise ProgramError(message)
        return [TimeWindow(time, time + int(gap))]

    def merge_windows(self, windows: Iterable[TimeWindow], callback: MergeCallback) -> None:
        merge_touching(windows, callback)

    def __repr__(self) -> str:
        extractor = self.session_gap_extractor
        name = getattr(extractor, "__qualname__", None) or type(extractor).__name__
        return f"{type(self).__name__}({name})"


class DynamicEventTimeSessionWindows(_ByEventTime, _DynamicSessionWindows):
    """Sessions by event time, each record with a gap of its own."""


class DynamicProcessingTimeSessionWindows(_ByClock, _DynamicSessionWindows):
    """Sessions by the clock, each record with a gap of its own."""


def merge_touching(windows: Iterable[TimeWindow], callback: MergeCallback) -> None:
    """Merge the windows that overlap or touch; what ``merge_windows`` of sessions is."""
    merged: TimeWindow | None = None
    group: list[TimeWindow] = []
    for window in sorted(set(windows)):
        if merged is not None and window.start <= merged.end:
            merged = merged.cover(window)
            group.append(window)
            continue
        if merged is not None and len(group) > 1:
            callback.merge(group, merged)
        merged, group = window, [window]
    if merged is not None and len(group) > 1:
        callback.merge(group, merged)


@dataclass(frozen=True, slots=True)
class CumulativeEventTimeWindows(_ByEventTime):
    """Windows that begin together every ``size_ms`` and end ``step_ms`` after one another, the last after ``size_ms``.

    A day's totals so far, every hour, are windows of size "1 d" and step "1 h".
    """

    size_ms: int
    step_ms: int
    offset_ms: int = 0

    @classmethod
    def of(cls, size: Any, step: Any, offset: Any = 0) -> CumulativeEventTimeWindows:
        """Make the assigner; durations as in `parse_duration_ms`, ``size`` a multiple of ``step``.

        Raises:
            ConfigurationError: If a value is not a duration or makes no sense.
        """
        return cls(parse_duration_ms(size), parse_duration_ms(step), parse_duration_ms(offset))

    def __post_init__(self) -> None:
        if self.size_ms <= 0 or self.step_ms <= 0 or self.size_ms % self.step_ms:
            message = (
                f"a cumulating window's size must be a multiple of its step; got {self.size_ms}, {self.step_ms} ms"
            )
            raise ConfigurationError(message)
        if abs(self.offset_ms) >= self.size_ms:
            message = f"a window's offset must be smaller than its size ({self.size_ms} ms); got {self.offset_ms} ms"
            raise ConfigurationError(message)

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        first_end = timestamp - (timestamp - start) % self.step_ms + self.step_ms
        return [TimeWindow(start, end) for end in range(first_end, start + self.size_ms + 1, self.step_ms)]


@dataclass(frozen=True, slots=True)
class GlobalWindows(WindowAssigner):
    """All records of a key in one window without end; it gives nothing unless it is given a trigger."""

    fires_at_end_of_stream: bool = False

    @classmethod
    def create(cls) -> GlobalWindows:
        """Make the assigner."""
        return cls()

    @classmethod
    def create_with_end_of_stream_trigger(cls) -> GlobalWindows:
        """Make an assigner whose window fires once, when its bounded input has ended."""
        return cls(fires_at_end_of_stream=True)

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return a `NeverTrigger`, or an `EndOfStreamTrigger`."""
        return EndOfStreamTrigger() if self.fires_at_end_of_stream else NeverTrigger()

    def is_event_time(self) -> bool:
        """False: the window has no end."""
        return False


@dataclass(frozen=True, slots=True)
class CountWindows(WindowAssigner):
    """Windows by number of records of a key: every ``slide`` records, over the last ``size``.

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

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[GlobalWindow]:
        return [GlobalWindow()]

    def get_default_trigger(self, env: Any = None) -> Trigger:
        """Return a `CountTrigger`, purging where windows tumble; where they slide a `CountEvictor` goes with it."""
        return PurgingTrigger(CountTrigger(self.size)) if self.size == self.slide else CountTrigger(self.slide)

    def is_event_time(self) -> bool:
        """False: the window has no end."""
        return False


def session_cuts(keys: npt.NDArray[np.int64], times: Timestamps, gap_ms: int) -> list[int]:
    """Return where sessions begin and end in records sorted by key and time: two neighbours are in one if at most a gap
    apart.

    Args:
        keys: Numbers that stand for keys, sorted.
        times: Event times, sorted within each key.
        gap_ms: The gap.

    Returns:
        Indices: session ``i`` is the records from ``cuts[i]`` up to ``cuts[i + 1]``.
    """
    begins = (np.diff(keys) != 0) | (np.diff(times) > gap_ms)
    return [0, *(np.flatnonzero(begins) + 1).tolist(), len(times)]
