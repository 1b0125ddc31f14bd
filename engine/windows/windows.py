"""Windows: `TimeWindow` or `GlobalWindow`, nothing else. Their bounds are the namespaces of window state.

Source: Flink's ``TimeWindow``, ``GlobalWindow``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ..columns.records import MAX_WATERMARK, MIN_TIMESTAMP
from ..functions.tracebacks import EventTime

__all__ = ["Bounds", "GlobalWindow", "Span", "TimeWindow", "Window", "window_of"]

Span = tuple[int, int]
"""A window's start and end: its namespace."""


class TimeWindow(NamedTuple):
    """The times from ``start`` up to but not including ``end``, epoch milliseconds."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the last millisecond that is in the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether the windows overlap or touch, which is when sessions merge."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


class GlobalWindow:
    """The one window that holds all of a key's records and has no end."""

    __slots__ = ()

    @classmethod
    def get(cls) -> GlobalWindow:
        """Return the window; every one equals every other."""
        return cls()

    @property
    def start(self) -> int:
        """The least time there is."""
        return MIN_TIMESTAMP

    @property
    def end(self) -> int:
        """The end of time."""
        return MAX_WATERMARK.timestamp_ms

    def max_timestamp(self) -> int:
        """Return the end of time."""
        return MAX_WATERMARK.timestamp_ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "GlobalWindow()"


Window: TypeAlias = TimeWindow | GlobalWindow


class Bounds:
    """A window as an error shows it: its times as a calendar has them, the end in round brackets."""

    __slots__ = ("_window",)

    def __init__(self, window: Window) -> None:
        self._window = window

    def __repr__(self) -> str:
        window = self._window
        if isinstance(window, TimeWindow):
            return f"[{EventTime(window.start)!r}, {EventTime(window.end)!r})"
        return repr(window)


_GLOBAL_SPAN: Span = (MIN_TIMESTAMP, MAX_WATERMARK.timestamp_ms)


def window_of(span: Span) -> Window:
    """Return the window of a namespace."""
    return GlobalWindow() if span == _GLOBAL_SPAN else TimeWindow(*span)


TimeWindow.__module__ = GlobalWindow.__module__ = "headrace.engine.windows.assigners"
"""By which checkpoints name them, as keys and values of state; that module has both."""
