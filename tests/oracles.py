"""Slow oracles: the semantics written down once more, one record at a time, from lists, with nothing clever in them.

Every engine that computes windows must agree with these on any input. They follow the prose of Flink's documentation,
not the code of the operators under test, and keep every record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MIN = -(2**63)

Span = tuple[int, int]


@dataclass(frozen=True)
class Firing:
    """One result of one window: the records of ``key`` in ``span``, in order of arrival."""

    key: Any
    span: Span
    values: tuple[Any, ...]


def sliding_spans(time: int, size: int, slide: int, offset: int = 0) -> list[Span]:
    """Every window ``[offset + n * slide, ... + size)`` that holds ``time``, by trying them all."""
    spans = []
    for n in range((time - offset) // slide - size // slide - 2, (time - offset) // slide + 3):
        start = offset + n * slide
        if start <= time < start + size:
            spans.append((start, start + size))
    return spans


@dataclass
class WindowOracle:
    """Event-time windows; tumbling, sliding (``spans_of``) or, with ``gap``, sessions.

    Feed it records and watermarks in the order in which the operator sees them; each call gives what fires.
    """

    spans_of: Callable[[int], list[Span]] | None = None
    gap: int | None = None
    lateness: int = 0
    watermark: int = MIN
    late: list[tuple[Any, int, Any]] = field(default_factory=list)
    # [key, start, end, values] of every window that is not gone.
    _windows: list[list[Any]] = field(default_factory=list)

    def record(self, key: Any, time: int, value: Any) -> list[Firing]:
        if self.gap is not None:
            taken = self._session(key, time, value)
        else:
            assert self.spans_of is not None
            taken = [window for span in self.spans_of(time) if (window := self._fixed(key, span, value)) is not None]
        if not taken and time + self.lateness <= self.watermark:
            self.late.append((key, time, value))
        return [self._fire(window) for window in taken if window[2] - 1 <= self.watermark]

    def _is_gone(self, end: int) -> bool:
        return end - 1 + self.lateness <= self.watermark

    def _fixed(self, key: Any, span: Span, value: Any) -> list[Any] | None:
        if self._is_gone(span[1]):
            return None
        for window in self._windows:
            if window[0] == key and (window[1], window[2]) == span:
                window[3].append(value)
                return window
        self._windows.append([key, *span, [value]])
        return self._windows[-1]

    def _session(self, key: Any, time: int, value: Any) -> list[list[Any]]:
        assert self.gap is not None
        start, end = time, time + self.gap
        touching = [window for window in self._windows if window[0] == key and window[1] <= end and start <= window[2]]
        start = min([start, *(window[1] for window in touching)])
        end = max([end, *(window[2] for window in touching)])
        if self._is_gone(end):
            return []
        values = [v for window in sorted(touching, key=lambda window: window[1]) for v in window[3]]
        self._windows = [window for window in self._windows if window not in touching]
        self._windows.append([key, start, end, [*values, value]])
        return [self._windows[-1]]

    def advance(self, watermark: int) -> list[Firing]:
        if watermark <= self.watermark:
            return []
        due = [window for window in self._windows if self.watermark < window[2] - 1 <= watermark]
        self.watermark = watermark
        fired = [self._fire(window) for window in sorted(due, key=lambda window: window[2])]
        self._windows = [window for window in self._windows if not self._is_gone(window[2])]
        return fired

    def _fire(self, window: list[Any]) -> Firing:
        key, start, end, values = window
        return Firing(key, (start, end), tuple(values))


def count_windows(records: Iterable[tuple[Any, Any]], size: int, slide: int) -> list[tuple[Any, tuple[Any, ...]]]:
    """After every ``slide`` records of a key its last ``size``, as (key, values) in order of arrival."""
    seen: dict[Any, list[Any]] = {}
    fired = []
    for key, value in records:
        values = seen.setdefault(key, [])
        values.append(value)
        if len(values) % slide == 0:
            fired.append((key, tuple(values[-size:])))
    return fired


def session_spans(times: Iterable[int], gap: int) -> Counter[Span]:
    """The sessions of one key's times, found by sorting: a new one begins after more than ``gap`` without a record."""
    spans: Counter[Span] = Counter()
    start = last = None
    for time in sorted(times):
        if last is None or start is None:
            start = time
        elif time - last > gap:
            spans[(start, last + gap)] += 1
            start = time
        last = time
    if start is not None and last is not None:
        spans[(start, last + gap)] += 1
    return spans
