"""The fast path of windows: whole batches into windows, whole windows out, for built-in windows and triggers.

State is namespace-first: the content of every key of one window is one mapping, so a batch is assigned to windows with
numpy and added window by window, and a window fires as a whole. Which windows are open, and which have fired and only
wait for allowed late records, is told by two tables; everything else (order of ends, sessions of a key) is derived from
them, also after a restore. There are no timers: a window is due by its end.

Each class here is one kind of windows and does what the general path (`headrace.engine.windows.general`) does for the
assigner with its default trigger; the two are tested against each other.

Source: Flink's ``WindowOperator`` and ``MergingWindowSet`` with ``EventTimeTrigger``, ``ProcessingTimeTrigger`` and
``CountTrigger``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, MutableMapping
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.state.keyed.contract import KeyedStateBackend, StateTable
from headrace.state.keyed.kinds import StateDescriptor

from ..columns.records import Timestamps
from ..functions.timers import DueQueue
from ..functions.tracebacks import note_in_hand
from .assigners import (
    CountWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    SlidingWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    session_cuts,
)
from .contents import MISSING, ElementContents, WindowContents, WindowResults
from .windows import Bounds, GlobalWindow, Span, TimeWindow

__all__ = ["Placement", "has_fast_path", "make_placement"]


class Placement(Protocol):
    """Where the window operator puts records, and what it asks when time goes on."""

    goes_by_clock: bool
    """Whether the times that records are added with are the clock's."""

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        """Put records in their windows; gives the indices of late ones.

        Args:
            keys: The records' keys.
            rows: The records.
            times: Their times; None for none.
            watermark_ms: How far event time is; the least time there is for windows of the clock.
        """
        ...

    def fire_event_time(self, watermark_ms: int) -> bool:
        """Do some of what is due now that the watermark has come this far; False if nothing is left to do."""
        ...

    def fire_clock(self, now_ms: int) -> bool:
        """Do some of what is due by the clock; False if nothing is left to do."""
        ...

    def next_event_time(self) -> int | None:
        """Return the watermark at which something is due; None for nothing."""
        ...

    def next_clock_time(self) -> int | None:
        """Return when something is due by the clock; None for nothing."""
        ...

    def end_clock(self) -> None:
        """Let nothing new be due by the clock, as a batch has come to its end."""
        ...


def has_fast_path(assigner: WindowAssigner) -> bool:
    """Return whether windows of this assigner, with its default trigger and no evictor, are of a kind made here."""
    return type(assigner) in _KINDS


def make_placement(
    assigner: WindowAssigner,
    contents: WindowContents,
    results: WindowResults,
    state: KeyedStateBackend,
    lateness_ms: int,
) -> Placement:
    """Return the windows of an assigner that `has_fast_path`.

    Args:
        assigner: The assigner.
        contents: How records become contents.
        results: Where fired windows go.
        state: Where tables are kept.
        lateness_ms: How long after its end an event-time window is kept.
    """
    return _KINDS[type(assigner)](assigner, contents, results, state, lateness_ms)


# --------------------------------------------------------------------------------------------------------- window state


class _WindowStore:
    """Contents of time windows by window and key, and when each window is due.

    Args:
        state: Where tables are kept.
        lateness_ms: How long fired windows are kept.

    Invariant: a (window, key) is in at most one of the two tables; the queues hold exactly the windows of the tables.
    """

    def __init__(self, state: KeyedStateBackend, lateness_ms: int) -> None:
        self.lateness_ms = lateness_ms
        # Windows that are still to fire, due at their last millisecond.
        self.open = _Shelf(state.table(StateDescriptor("window-contents"), windowed=True), 0)
        # Windows that have fired and wait for late records, due when the allowed lateness is over.
        self.fired = _Shelf(state.table(StateDescriptor("fired-window-contents"), windowed=True), lateness_ms)

    def take(self, span: Span, key: Any) -> Any:
        """Remove the content of a key, wherever it is; `MISSING` if there is none."""
        content = self.open.take(span, key)
        return self.fired.take(span, key) if content is MISSING else content

    def retain(self, span: Span, contents: MutableMapping[Any, Any]) -> None:
        """Keep a window that has fired but may get late records."""
        self.fired.contents(span).update(contents)


class _Shelf:
    """The windows of one table, with the mapping of each and the order in which they are due."""

    __slots__ = ("_delay_ms", "_mappings", "_table", "queue")

    def __init__(self, table: StateTable, delay_ms: int) -> None:
        self._table = table
        self._delay_ms = delay_ms
        self._mappings: dict[Span, MutableMapping[Any, Any]] = {}
        self.queue = DueQueue()
        for namespace in list(table.namespaces()):
            assert namespace is not None
            self.contents(namespace)

    def contents(self, span: Span) -> MutableMapping[Any, Any]:
        """Return the mapping of a window, which is made and put in the queue if it is not there."""
        mapping = self._mappings.get(span)
        if mapping is None:
            mapping = self._mappings[span] = self._table.namespace(span)
            self.queue.add(span[1] - 1 + self._delay_ms, span)
        return mapping

    def find(self, span: Span) -> MutableMapping[Any, Any] | None:
        """Return the mapping of a window, if it is there."""
        return self._mappings.get(span)

    def take(self, span: Span, key: Any) -> Any:
        """Remove the content of a key; `MISSING` if there is none."""
        mapping = self._mappings.get(span)
        if mapping is None:
            return MISSING
        content = mapping.pop(key, MISSING)
        if not mapping:
            self.drop(span)
        return content

    def drop(self, span: Span) -> None:
        """Forget a window with all its keys."""
        if self._mappings.pop(span, None) is not None:
            self._table.drop(span)
            self.queue.remove(span)

    def spans(self) -> list[Span]:
        """Return all windows."""
        return list(self._mappings)


# ------------------------------------------------------------------------------------------------------- time windows


class _TimeWindows:
    """What windows with an end have in common."""

    def __init__(
        self,
        assigner: WindowAssigner,
        contents: WindowContents,
        results: WindowResults,
        state: KeyedStateBackend,
        lateness_ms: int,
    ) -> None:
        self.goes_by_clock = not assigner.is_event_time()
        self._contents = contents
        self._results = results
        self._store = _WindowStore(state, lateness_ms)

    def fire_event_time(self, watermark_ms: int) -> bool:
        return not self.goes_by_clock and self._fire_next(watermark_ms)

    def fire_clock(self, now_ms: int) -> bool:
        return self.goes_by_clock and self._fire_next(now_ms - 1)

    def next_event_time(self) -> int | None:
        return None if self.goes_by_clock else self._store.open.queue.next_time()

    def next_clock_time(self) -> int | None:
        last_ms = self._store.open.queue.next_time() if self.goes_by_clock else None
        return None if last_ms is None else last_ms + 1  # the last millisecond must have passed

    def end_clock(self) -> None:
        """Nothing new is ever due but by records."""

    def _fire_next(self, time_ms: int) -> bool:
        """Fire one window that is due, or forget one; False if there is none."""
        store = self._store
        span = store.open.queue.first_due(time_ms)
        if span is not None:
            self._fire(span, time_ms)
            return True
        span = store.fired.queue.first_due(time_ms)
        if span is None:
            return False
        contents = store.fired.contents(span)
        self._clear(span, contents)
        store.fired.drop(span)
        return True

    def _fire(self, span: Span, time_ms: int) -> None:
        store, window = self._store, TimeWindow(*span)
        contents = store.open.contents(span)
        self._results.fire(window, contents.items(), window.max_timestamp())
        if window.max_timestamp() + store.lateness_ms > time_ms:
            store.retain(span, contents)
        else:
            self._clear(span, contents)
        store.open.drop(span)

    def _clear(self, span: Span, contents: MutableMapping[Any, Any]) -> None:
        self._results.clear(TimeWindow(*span), contents)

    def _put(self, window: TimeWindow, key: Any, content: Any, watermark_ms: int) -> None:
        """Set the content of a key that has just got a record; behind the watermark its window fires at once."""
        if window.max_timestamp() <= watermark_ms:
            self._results.fire(window, ((key, content),), window.max_timestamp())
            self._store.fired.contents(window)[key] = content
        else:
            self._store.open.contents(window)[key] = content


class _FixedWindows(_TimeWindows):
    """Tumbling and sliding windows."""

    def __init__(self, assigner: SlidingWindows, *parts: Any) -> None:
        super().__init__(assigner, *parts)
        self._assigner = assigner

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        assert times is not None
        starts = self._assigner.last_starts(times)
        order = np.argsort(starts, kind="stable")
        sorted_starts = starts[order]
        for window in self._windows_of(sorted_starts, watermark_ms):
            # The records that may be in it are neighbours: their last windows begin while it lasts.
            first, past = np.searchsorted(sorted_starts, (window.start, window.end)).tolist()
            members = order[first:past]
            members = members[times[members] < window.end]
            if len(members) == len(keys):
                self._add_all(window, keys, rows)
            elif len(members):
                indices = np.sort(members).tolist()  # in order of arrival
                self._add_all(window, [keys[i] for i in indices], [rows[i] for i in indices])
        if int(times.min()) > watermark_ms:  # then every window that holds one of them is still to fire
            return []
        return self._add_behind(keys, rows, times, starts, watermark_ms)

    def _windows_of(self, sorted_starts: Timestamps, watermark_ms: int) -> Iterable[TimeWindow]:
        """The windows still to fire that hold records whose last windows begin at ``sorted_starts``."""
        changes = np.flatnonzero(np.diff(sorted_starts)) + 1
        last_starts = sorted_starts[[0, *changes.tolist()]].tolist()
        windows_from = self._assigner.windows_from
        windows = dict.fromkeys(window for start in last_starts for window in windows_from(start))
        return [window for window in windows if window.max_timestamp() > watermark_ms]

    def _add_all(self, window: TimeWindow, keys: list[Any], rows: list[Any]) -> None:
        try:
            self._contents.add_all(self._open(window, keys), keys, rows)
        except BaseException as error:
            note_in_hand(error, window=Bounds(window))
            raise

    def _open(self, window: TimeWindow, keys: list[Any]) -> MutableMapping[Any, Any]:
        """The contents of a window that is still to fire, which ``keys`` are about to be added to."""
        fired = self._store.fired.find(window)
        contents = self._store.open.contents(window)
        if fired is not None:  # after a restore with a lower watermark: these keys will fire once more
            for key in set(keys):
                content = self._store.fired.take(window, key)
                if content is not MISSING:
                    contents[key] = content
        return contents

    def _add_behind(
        self, keys: list[Any], rows: list[Any], times: Timestamps, starts: Timestamps, watermark_ms: int
    ) -> list[int]:
        """Add records behind the watermark to windows that have fired, one by one: each makes its window fire again."""
        lateness, late = self._store.lateness_ms, []
        behind: npt.NDArray[np.intp] = np.flatnonzero(times <= watermark_ms)
        for i in behind.tolist():
            time, is_taken = int(times[i]), False
            for window in self._assigner.windows_from(int(starts[i])):
                last = window.max_timestamp()
                if last > watermark_ms:
                    is_taken = is_taken or time <= last  # by `add`
                elif time <= last and last + lateness > watermark_ms:
                    is_taken = True
                    try:
                        content = self._contents.add_run(self._store.take(window, keys[i]), (rows[i],))
                    except BaseException as error:
                        note_in_hand(error, key=keys[i], window=Bounds(window))
                        raise
                    self._put(window, keys[i], content, watermark_ms)
            if not is_taken and time + lateness <= watermark_ms:
                late.append(i)
        return late


_START, _END = itemgetter(0), itemgetter(1)


class _Sessions(_TimeWindows):
    """Session windows: per key, merging where they touch."""

    def __init__(self, assigner: SessionWindows, *parts: Any) -> None:
        super().__init__(assigner, *parts)
        self._gap_ms = assigner.gap_ms
        # Key -> its windows that are open or kept, in order: they do not touch; derived from the tables.
        self._spans_of: dict[Any, list[Span]] = {}
        for shelf in (self._store.open, self._store.fired):
            for span in shelf.spans():
                for key in shelf.contents(span):
                    self._spans_of.setdefault(key, []).append(span)
        for spans in self._spans_of.values():
            spans.sort()

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        assert times is not None
        if int(times.min()) + self._gap_ms - 1 > watermark_ms:  # no record can be late or make a window fire now
            self._add_sessions(keys, rows, times, watermark_ms)
            return []
        late = []
        for i, time in enumerate(times.tolist()):
            is_taken = self._add_run(keys[i], (rows[i],), time, time + self._gap_ms, watermark_ms)
            if not is_taken and time + self._store.lateness_ms <= watermark_ms:
                late.append(i)
        return late

    def _add_sessions(self, keys: list[Any], rows: list[Any], times: Timestamps, watermark_ms: int) -> None:
        """Merge the batch's records among themselves first, then each session of them with those of the state."""
        number_of: dict[Any, int] = {}
        numbers = np.array([number_of.setdefault(key, len(number_of)) for key in keys], dtype=np.int64)
        order = np.lexsort((times, numbers))
        sorted_times = times[order]
        cuts = session_cuts(numbers[order], sorted_times, self._gap_ms)
        indices = order.tolist()
        for begin, end in pairwise(cuts):
            members = sorted(indices[begin:end])  # back in order of arrival
            start, last = int(sorted_times[begin]), int(sorted_times[end - 1])
            run = [rows[i] for i in members]
            self._add_run(keys[members[0]], run, start, last + self._gap_ms, watermark_ms)

    def _add_run(self, key: Any, rows: Any, start: int, end: int, watermark_ms: int) -> bool:
        """Add records of one key that are one session from ``start`` to ``end``; False if that is late."""
        store = self._store
        spans = self._spans_of.get(key, [])
        first = past = len(spans)
        if spans and start <= spans[-1][1]:  # a key may have many, but most records belong to its newest or behind it
            first = bisect_left(spans, start, key=_END)
            past = bisect_right(spans, end, key=_START)
        touched = spans[first:past]
        if touched:
            start, end = min(start, touched[0][0]), max(end, touched[-1][1])
        if end - 1 + store.lateness_ms <= watermark_ms:
            return False
        window = TimeWindow(start, end)
        try:
            if touched == [window]:
                contents = store.open.find(window)
                if contents is not None and key in contents:
                    contents[key] = self._contents.add_run(contents[key], rows)
                    return True
            if not spans:
                self._spans_of[key] = [window]
            elif touched != [window]:
                spans[first:past] = [window]
            content = MISSING
            for span in touched:
                other = store.take(span, key)
                content = other if content is MISSING else self._contents.merge(content, other)
            content = self._contents.add_run(content, rows)
        except BaseException as error:
            note_in_hand(error, key=key, window=Bounds(window))
            raise
        self._put(window, key, content, watermark_ms)
        return True

    def _clear(self, span: Span, contents: MutableMapping[Any, Any]) -> None:
        super()._clear(span, contents)
        spans_of = self._spans_of
        for key in contents:
            spans = spans_of[key]
            if len(spans) == 1:
                del spans_of[key]
            else:
                spans.remove(span)


# ------------------------------------------------------------------------------------------------------ count windows


class _CountedWindows:
    """What windows by number of records have in common: one global window, no time."""

    goes_by_clock = False

    def __init__(
        self,
        assigner: CountWindows,
        contents: WindowContents,
        results: WindowResults,
        state: KeyedStateBackend,
        lateness_ms: int,
    ) -> None:
        self._size, self._slide = assigner.size, assigner.slide
        self._contents = contents
        self._results = results
        # Key -> (records since it last fired, content).
        self._counted = state.table(StateDescriptor("window-contents")).namespace(None)

    def fire_event_time(self, watermark_ms: int) -> bool:
        return False

    def fire_clock(self, now_ms: int) -> bool:
        return False

    def next_event_time(self) -> int | None:
        return None

    def next_clock_time(self) -> int | None:
        return None

    def end_clock(self) -> None:
        """Nothing is ever due by the clock."""


class _TumblingCounts(_CountedWindows):
    """Every ``size`` records of a key, in Flink a purging count trigger."""

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        counted, size, add_run, empty = self._counted, self._size, self._contents.add_run, (0, MISSING)
        for i, key in enumerate(keys):
            count, content = counted.get(key, empty)
            try:
                content = add_run(content, (rows[i],))
            except BaseException as error:
                note_in_hand(error, key=key)
                raise
            if count + 1 < size:
                counted[key] = (count + 1, content)
                continue
            counted.pop(key, None)
            self._results.fire(GlobalWindow(), ((key, content),), None if times is None else int(times[i]))
        return []


class _SlidingCounts(_CountedWindows):
    """Every ``slide`` records of a key the last ``size``, in Flink a count trigger with a count evictor."""

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        counted, size, slide, contents = self._counted, self._size, self._slide, self._contents
        buffer = ElementContents()
        for i, key in enumerate(keys):
            count, runs = counted.get(key, (0, ()))
            runs = buffer.add_run(runs, (rows[i],))
            count += 1
            if count == slide:
                count = 0
                kept = buffer.elements(runs)[-size:]
                runs = (kept,)
                try:
                    content = contents.add_run(MISSING, kept)
                except BaseException as error:
                    note_in_hand(error, key=key)
                    raise
                self._results.fire(GlobalWindow(), ((key, content),), None if times is None else int(times[i]))
            counted[key] = (count, runs)
        return []


def _counts(assigner: CountWindows, *parts: Any) -> Placement:
    return (_TumblingCounts if assigner.size == assigner.slide else _SlidingCounts)(assigner, *parts)


_KINDS: dict[type, Callable[..., Placement]] = {
    TumblingEventTimeWindows: _FixedWindows,
    TumblingProcessingTimeWindows: _FixedWindows,
    SlidingEventTimeWindows: _FixedWindows,
    SlidingProcessingTimeWindows: _FixedWindows,
    EventTimeSessionWindows: _Sessions,
    ProcessingTimeSessionWindows: _Sessions,
    CountWindows: _counts,
}
"""Exact types: a subclass may assign otherwise."""
