"""The window operator: puts records in windows, fires windows when time passes, forgets them when nobody may need them.

State is namespace-first: the content of every key of one window is one mapping, so a batch is assigned to windows with
numpy and added window by window, and a window fires as a whole. Which windows are open, and which have fired and only
wait for allowed late records, is told by two tables; everything else (order of ends, sessions of a key) is derived from
them, also after a restore.

Event time, as in Flink: a window fires when the watermark reaches its last millisecond, and its results carry that
time. It is kept for the allowed lateness; a record that comes then makes its key's window fire again at once. A record
all of whose windows are gone is late: it goes to the side output if there is one, else it is dropped and counted in
``num_late_records_dropped``. A session may still take in a record whose own window is gone, if it touches. At the end
of a bounded input the watermark closes every event-time window; processing-time windows that are open then, and count
windows that are not full, give nothing.

The operator's watermark is part of its snapshot: what was late stays late after a restore, and a window that has fired
does not fire again.

Results of count windows carry the time of the record that filled the window; Flink gives them the end of time, which no
later window could use.

Source: Flink's ``WindowOperator``, ``MergingWindowSet``, ``EvictingWindowOperator``; rows C5 to C10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.eventtime import OperatorWatermark
from headrace.engine.functions import AggregateFunction, OutputTag, UserFunction, keys_of, raise_in_function
from headrace.engine.keys import KeySelector
from headrace.engine.operators import Operator, OperatorContext
from headrace.engine.records import MIN_TIMESTAMP, Batch, Timestamps, Watermark
from headrace.engine.timers import DueQueue
from headrace.engine.window_contents import (
    MISSING,
    AggregatedContents,
    ElementContents,
    ReducedContents,
    WindowContents,
    WindowResults,
)
from headrace.engine.windows import (
    CountWindows,
    EventTimeTrigger,
    GlobalWindow,
    ProcessingTimeTrigger,
    SessionWindows,
    SlidingWindows,
    TimeWindow,
    TriggerContext,
    WindowAssigner,
    session_cuts,
)
from headrace.state.backend import KeyedStateBackend, StateTable
from headrace.state.descriptors import StateDescriptor

__all__ = ["WindowOperator"]

Span = tuple[int, int]
"""A window's start and end: its namespace."""


class WindowOperator(Operator):
    """Windows over a keyed stream.

    Exactly one of these says what a window holds: ``reduce``, ``aggregate``, or ``process`` alone (the records). With
    ``reduce`` or ``aggregate`` a ``process`` is given the one result as its only element.

    Args:
        key_selector: Finds keys.
        assigner: Finds windows.
        reduce: ReduceFunction or callable of two records; without ``process`` the reduced record is the result.
        aggregate: AggregateFunction; without ``process`` its result is the result.
        process: ProcessWindowFunction, WindowFunction or callable of (key, context, elements).
        result_row: Makes the result record of (key, window, result), for use without ``process``. Picklable.
        allowed_lateness_ms: How long after its end an event-time window is kept.
        late_tag: Side output for late records.

    Raises:
        ProgramError: If the functions do not fit together, or the aggregate cannot merge where windows do.
        ConfigurationError: If ``allowed_lateness_ms`` is negative.
    """

    keyed = True

    def __init__(
        self,
        key_selector: KeySelector,
        assigner: WindowAssigner,
        *,
        reduce: Any = None,
        aggregate: Any = None,
        process: Any = None,
        result_row: Callable[[Any, Any, Any], Any] | None = None,
        allowed_lateness_ms: int = 0,
        late_tag: OutputTag | str | None = None,
    ) -> None:
        if (reduce is not None and aggregate is not None) or (reduce is None and aggregate is None and process is None):
            message = "a window needs a reduce function, an aggregate function or a process function"
            raise ProgramError(message)
        if result_row is not None and process is not None:
            message = "a window function makes its own records; result_row has no place beside it"
            raise ProgramError(message)
        if allowed_lateness_ms < 0:
            message = f"allowed lateness must not be negative; got {allowed_lateness_ms} ms"
            raise ConfigurationError(message)
        self._key_selector = key_selector
        self._assigner = assigner
        self._reduce = None if reduce is None else UserFunction(reduce, "reduce")
        self._aggregate = None if aggregate is None else _checked_aggregate(aggregate, assigner)
        self._process = None if process is None else UserFunction(process, "process", "apply")
        self._result_row = result_row
        self._lateness_ms = allowed_lateness_ms if assigner.is_event_time else 0
        self._late_tag = late_tag.tag_id if isinstance(late_tag, OutputTag) else late_tag
        self._functions = [function for function in (self._reduce, self._aggregate, self._process) if function]
        self._name = " with ".join(function.name for function in self._functions)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        for function in self._functions:
            function.open(context, keyed=True)
        self._watermark = OperatorWatermark(context.operator_state)
        contents: WindowContents
        if self._reduce is not None:
            contents = ReducedContents(self._reduce.bind())
        elif self._aggregate is not None:
            contents = AggregatedContents(self._aggregate.function)
        else:
            contents = ElementContents()
        self._results = WindowResults(
            contents, self._process, self._result_row, context, lambda: self._watermark.current_ms
        )
        self._placement = self._make_placement(contents)

    def _make_placement(self, contents: WindowContents) -> _Placement:
        context, assigner = self.context, self._assigner
        if isinstance(assigner, CountWindows):
            make = _TumblingCounts if assigner.size == assigner.slide else _SlidingCounts
            return make(assigner, contents, self._results, context.keyed_state)
        store = _WindowStore(context.keyed_state, self._lateness_ms)
        trigger_context = _TriggerContext(self._watermark, context.now_ms, store)
        if isinstance(assigner, SessionWindows):
            return _Sessions(assigner, contents, self._results, store, trigger_context)
        if isinstance(assigner, SlidingWindows):
            return _FixedWindows(assigner, contents, self._results, store, trigger_context)
        message = f"unknown window assigner {assigner!r}"
        raise ProgramError(message)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        context = self.context
        watermark_ms = MIN_TIMESTAMP
        if self._assigner.is_event_time:
            watermark_ms = self._watermark.current_ms
            times = batch.timestamps
            if self._placement.needs_times and (times is None or int(times.min()) == MIN_TIMESTAMP):
                message = "an event-time window got a record without event time"
                raise ProgramError(
                    message, hint="Call assign_timestamps_and_watermarks, or use processing-time windows."
                )
        else:
            times = np.full(batch.num_rows, context.now_ms(), dtype=np.int64)
        keys = keys_of(self._key_selector, batch, context)
        try:
            late = self._placement.add(keys, batch.rows, times, watermark_ms)
        except Exception as error:
            raise_in_function(error, self._name, context)
        self._results.emit(context.output)
        if late:
            self._give_up(batch, late)

    def _give_up(self, batch: Batch, late: list[int]) -> None:
        if self._late_tag is None:
            self.context.metrics.count("num_late_records_dropped", len(late))
        else:
            self.context.output.emit_side(self._late_tag, batch.take(np.array(late, dtype=np.intp)))

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        if self._assigner.is_event_time:
            self._fire_until(watermark.timestamp_ms)
        self.context.output.emit_watermark(watermark)

    def next_processing_time(self) -> int | None:
        if self._assigner.is_event_time:
            return None
        last_ms = self._placement.next_time()
        return None if last_ms is None else last_ms + 1  # the last millisecond must have passed

    def on_processing_time(self, now_ms: int) -> None:
        if not self._assigner.is_event_time:
            self._fire_until(now_ms - 1)

    def _fire_until(self, time_ms: int) -> None:
        results, output = self._results, self.context.output
        more = True
        while more:
            try:
                more = self._placement.fire_next(time_ms)
            except Exception as error:
                raise_in_function(error, self._name, self.context)
            if results.is_full or not more:
                results.emit(output)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._watermark.snapshot()

    def close(self) -> None:
        for function in self._functions:
            function.close(self.context)


def _checked_aggregate(aggregate: Any, assigner: WindowAssigner) -> UserFunction:
    function = UserFunction(aggregate, "add")
    missing = [name for name in ("create_accumulator", "add", "get_result") if not hasattr(aggregate, name)]
    if isinstance(assigner, SessionWindows) and (
        getattr(type(aggregate), "merge", None) in (None, AggregateFunction.merge)
    ):
        missing.append("merge")
    if missing:
        message = f"aggregate function {function.name} lacks {', '.join(missing)}"
        raise ProgramError(message, hint="Session windows merge their accumulators." if "merge" in missing else None)
    return function


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
        """A window has fired but may get late records."""
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
        """The mapping of a window, which is made and put in the queue if it is not there."""
        mapping = self._mappings.get(span)
        if mapping is None:
            mapping = self._mappings[span] = self._table.namespace(span)
            self.queue.add(span[1] - 1 + self._delay_ms, span)
        return mapping

    def find(self, span: Span) -> MutableMapping[Any, Any] | None:
        """The mapping of a window, if it is there."""
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
        """All windows."""
        return list(self._mappings)


class _TriggerContext:
    """See `headrace.engine.windows.TriggerContext`."""

    def __init__(self, watermark: OperatorWatermark, now_ms: Callable[[], int], store: _WindowStore) -> None:
        self._watermark = watermark
        self.current_processing_time = now_ms
        self._store = store

    def current_watermark(self) -> int:
        return self._watermark.current_ms

    def register_timer(self, window: TimeWindow, time_ms: int) -> None:
        self._store.open.contents(window)  # a window on this shelf is due at its last millisecond


# ------------------------------------------------------------------------------------------------------------ placement


class _Placement(Protocol):
    """One kind of windows: where records go, and what is due."""

    needs_times: bool

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        """Put records in their windows; gives the indices of late ones."""
        ...

    def fire_next(self, time_ms: int) -> bool:
        """Fire one window that is due, or forget one; False if there is none."""
        ...

    def next_time(self) -> int | None:
        """When the next window is due."""
        ...


class _TimeWindows:
    """What windows with an end have in common."""

    needs_times = True

    def __init__(
        self,
        is_event_time: bool,
        contents: WindowContents,
        results: WindowResults,
        store: _WindowStore,
        trigger_context: TriggerContext,
    ) -> None:
        self._contents = contents
        self._results = results
        self._store = store
        trigger = EventTimeTrigger() if is_event_time else ProcessingTimeTrigger()
        self._on_element = trigger.on_element
        self._on_time = trigger.on_event_time if is_event_time else trigger.on_processing_time
        self._trigger_context = trigger_context

    def next_time(self) -> int | None:
        return self._store.open.queue.next_time()

    def fire_next(self, time_ms: int) -> bool:
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
        result = self._on_time(window.max_timestamp(), window, self._trigger_context)
        if result.is_fire:
            self._results.fire(window, contents.items(), window.max_timestamp())
        if window.max_timestamp() + store.lateness_ms > time_ms and not result.is_purge:
            store.retain(span, contents)
        else:
            self._clear(span, contents)
        store.open.drop(span)

    def _clear(self, span: Span, contents: MutableMapping[Any, Any]) -> None:
        self._results.clear(TimeWindow(*span), contents)

    def _put(self, window: TimeWindow, key: Any, content: Any) -> None:
        """Set the content of a key that has just got a record, and do what the trigger says."""
        result = self._on_element(window, self._trigger_context)
        if result.is_fire:
            self._results.fire(window, ((key, content),), window.max_timestamp())
            self._store.fired.contents(window)[key] = content
        else:
            self._store.open.contents(window)[key] = content


class _FixedWindows(_TimeWindows):
    """Tumbling and sliding windows."""

    def __init__(self, assigner: SlidingWindows, *parts: Any) -> None:
        super().__init__(assigner.is_event_time, *parts)
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
                self._contents.add_all(self._open(window, keys), keys, rows)
            elif len(members):
                indices = np.sort(members).tolist()  # in order of arrival
                some_keys = [keys[i] for i in indices]
                self._contents.add_all(self._open(window, some_keys), some_keys, [rows[i] for i in indices])
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
                    content = self._contents.add_run(self._store.take(window, keys[i]), (rows[i],))
                    self._put(window, keys[i], content)
            if not is_taken and time + lateness <= watermark_ms:
                late.append(i)
        return late


class _Sessions(_TimeWindows):
    """Session windows: per key, merging where they touch."""

    def __init__(self, assigner: SessionWindows, *parts: Any) -> None:
        super().__init__(assigner.is_event_time, *parts)
        self._gap_ms = assigner.gap_ms
        # Key -> its windows that are open or kept, in no order; derived from the tables.
        self._spans_of: dict[Any, list[Span]] = {}
        for shelf in (self._store.open, self._store.fired):
            for span in shelf.spans():
                for key in shelf.contents(span):
                    self._spans_of.setdefault(key, []).append(span)

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
        spans = self._spans_of.get(key)
        touched = []
        if spans is not None:
            touched = sorted(span for span in spans if span[0] <= end and start <= span[1])
            if touched:
                start, end = min(start, touched[0][0]), max(end, max(span[1] for span in touched))
        if end - 1 + store.lateness_ms <= watermark_ms:
            return False
        window = TimeWindow(start, end)
        if touched == [window]:
            contents = store.open.find(window)
            if contents is not None and key in contents:
                contents[key] = self._contents.add_run(contents[key], rows)
                return True
        if spans is None:
            self._spans_of[key] = [window]
        elif touched != [window]:
            self._spans_of[key] = [*(span for span in spans if span not in touched), window]
        content = MISSING
        for span in touched:
            other = store.take(span, key)
            content = other if content is MISSING else self._contents.merge(content, other)
        self._put(window, key, self._contents.add_run(content, rows))
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


class _CountedWindows:
    """What windows by number of records have in common: one global window, no time."""

    needs_times = False

    def __init__(
        self, assigner: CountWindows, contents: WindowContents, results: WindowResults, state: KeyedStateBackend
    ) -> None:
        self._size, self._slide = assigner.size, assigner.slide
        self._contents = contents
        self._results = results
        # Key -> (records since it last fired, content).
        self._counted = state.table(StateDescriptor("window-contents")).namespace(None)

    def fire_next(self, time_ms: int) -> bool:
        return False

    def next_time(self) -> int | None:
        return None


class _TumblingCounts(_CountedWindows):
    """Every ``size`` records of a key, in Flink a purging count trigger."""

    def add(self, keys: list[Any], rows: list[Any], times: Timestamps | None, watermark_ms: int) -> list[int]:
        counted, size, add_run, empty = self._counted, self._size, self._contents.add_run, (0, MISSING)
        for i, key in enumerate(keys):
            count, content = counted.get(key, empty)
            content = add_run(content, (rows[i],))
            if count + 1 < size:
                counted[key] = (count + 1, content)
                continue
            counted.pop(key, None)
            self._results.fire(GlobalWindow(), ((key, content),), None if times is None else int(times[i]))
            self._results.clear(GlobalWindow(), (key,))
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
                content = contents.add_run(MISSING, kept)
                self._results.fire(GlobalWindow(), ((key, content),), None if times is None else int(times[i]))
            counted[key] = (count, runs)
        return []
