"""Windowed aggregates on columns: batches become partial results per key and slice, windows are merged from slices.

A *slice* is the largest stretch of event time that no window border cuts: gcd(size, slide) long. Every record of a
slice belongs to the same windows, so it is enough to keep, per slice, *runs* of partial results (key columns and the
aggregates' parts), and to merge the runs of a window's slices when the window fires. Runs are state: one columnar
table, a slice its namespace.

Two phases: `LocalSliceAggregate` works before the shuffle and turns each batch into partial results; the event time of
such a record is the last millisecond of its slice, which is how the slice travels. `GlobalSliceAggregate` works after
it. Aggregates whose partial results cannot be merged, and streams that want late records in a side output, use the
second alone with ``from_records=True``.

Lateness is Flink's, decided per window: a window is past when its last millisecond plus the allowed lateness is at or
before the watermark. A record counts for its windows that are not past; it is late if all are. Since windows share
slices, both follow from the slice alone: a slice is late when the newest window over it is past. A record that comes
for a window which has fired but is not past fires it again, for the keys that came, at once. The difference to the row
path: all records of one batch are in such a result, not one result for each of them; the last result for a key and
window is the same.

A record in a gap between windows (a slide longer than the size) belongs to none; it is counted as late if it is behind
the watermark by its own time.

Invariant: the table holds exactly the slices whose newest window is not past; a window fires when the watermark reaches
its last millisecond and only for keys that have records in it. A restore goes on from the lowest watermark of those old
subtasks that had keys of the new one; they differ where barriers overtook watermarks, so that what the others had fired
is noted (`GlobalSliceAggregate._ahead`) and not fired again. If event time starts anew, slices that are held count for
windows that had not fired, and new ones beside them for all.

Source: Flink's ``SliceAssigners``, ``SlicingWindowOperator`` and ``WindowOperator`` (lateness).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import CheckpointMismatchError
from headrace.state.keyed.contract import ColumnarTable
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.key_groups import key_groups_of

from ...columns.grouping import Groups
from ...columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps, Watermark
from ...functions.keys import KeySelector
from ...functions.operator import OperatorContext
from ...operators.column_operators import naming_operator
from ...operators.event_time import EventTimeProgress, of_own_keys
from .phases import ColumnarState, GlobalPhase, LocalPhase
from .slice_grouping import SliceGrouping
from .window_grouping import event_times

__all__ = [
    "GlobalSliceAggregate",
    "LocalSliceAggregate",
]

_Mark = tuple[int, int, int]
"""How far event time had come for the keys of a range of key groups: watermark, first and last group."""

_MAX_RUNS = 64
_MIN_ROWS_TO_MERGE = 65_536


class LocalSliceAggregate(LocalPhase):
    """First phase, before the shuffle: turns each batch into partial results per slice and key.

    Of records that no window covers only those go on that may be late where they would be counted.
    """

    grouping_type = SliceGrouping
    _grouping: SliceGrouping

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of partial results, for records of a schema."""
        return self._grouping.empty_partial_results(input_schema).schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        grouping = self._grouping
        with naming_operator(self.context):
            timestamps = event_times(batch)
            columns = grouping.columns_of(batch)
            if grouping.layout.has_gaps:
                in_gap = grouping.layout.in_gap(timestamps)
                may_be_late = self.context.is_restored | (timestamps <= self._late_until_ms)
                self._tell_of_gaps(columns, timestamps, in_gap & may_be_late)
                timestamps = timestamps[~in_gap]
                columns = columns.filter(pa.array(~in_gap))
                if columns.num_rows == 0:
                    return
            partial, ends = grouping.partial_results(columns, timestamps, 0)
        self.context.output.emit(Batch.of_columns(partial, ends))

    def _tell_of_gaps(self, columns: pa.RecordBatch, timestamps: Timestamps, is_told: npt.NDArray[np.bool_]) -> None:
        if is_told.any():
            told = self._grouping.counted_in_gaps(columns.filter(pa.array(is_told)), timestamps[is_told])
            self.context.output.emit(Batch.of_columns(*told))


class GlobalSliceAggregate(GlobalPhase):
    """Second phase: keeps partial results per slice and fires windows. Or the only phase, fed with records."""

    grouping_type = SliceGrouping
    _grouping: SliceGrouping

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Place of the next record in the order of arrival, for first and last; grows over restores.
        self._next_order = 0
        # The starts of the slices in the table; and what was held when event time started anew, which has namespaces of
        # its own: (start, which time it started anew).
        self._slices: set[int] = set()
        self._earlier: set[tuple[int, int]] = set()
        # Old subtasks that were ahead of the watermark that was restored: (their watermark, first and last key group).
        # Windows up to it have fired for those keys, and need their slices only for later ones.
        self._ahead: list[_Mark] = []
        # Each time that event time started anew, how far it had come: windows that were past by then have no use for
        # what was held.
        self._past: list[list[_Mark]] = []
        # The watermark at which a window fires or a slice is past; nothing is to be done before.
        self._next_due: int = MAX_TIMESTAMP + 1

    @property
    def batch_orders(self) -> tuple[KeySelector | None, ...]:
        # Only first and last, which cannot be merged, depend on an order.
        return (self._grouping.key_selector,) if not self._grouping.aggregates.is_mergeable else ()

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of results, for records (not partial results) of a schema."""
        return self._grouping.window_results(self._grouping.empty_partial_results(input_schema), 0).columns.schema

    # -- state ---------------------------------------------------------------------------------------------------------

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = context.operator_state.union_list_state("progress")
        restored = self._state.get()
        with naming_operator(context):
            # Runs of partial results, a slice its namespace.
            self._held = ColumnarState(context.keyed_state, "slices", self._grouping.key_columns)
            if not restored:
                return
            self._restore(restored)
            if context.starts_event_time_anew:
                self._start_anew()

    def _restore(self, restored: Sequence[Mapping[str, Any]]) -> None:
        layout, keyed = self._layout_values(), self.context.keyed_state
        of_own: list[Mapping[str, Any]] = of_own_keys(
            [(*p["key_groups"], p) for p in restored], keyed.key_groups, keyed.max_parallelism
        )
        self._progress = EventTimeProgress(progress["watermark_ms"] for progress in of_own)
        reached = [(progress["watermark_ms"], *progress["key_groups"]) for progress in of_own]
        reached += [tuple(ahead) for progress in of_own for ahead in progress["ahead"]]
        self._ahead = [ahead for ahead in reached if self._progress.current_ms < ahead[0] < MAX_TIMESTAMP]
        past = zip(*(progress.get("past", ()) for progress in of_own), strict=True)
        self._past = [[tuple(mark) for marks in times for mark in marks] for times in past]
        self._next_order = max(progress["next_order"] for progress in restored)
        for progress in restored:
            if progress["layout"] != layout:
                message = (
                    f"the state holds slices of windows of {progress['layout']} ms (size, slide, offset), not {layout}"
                )
                raise CheckpointMismatchError(message)
        self._held.restore(restored, self._grouping.part_schema_names)
        self._find_slices()

    def _start_anew(self) -> None:
        """What is held is for windows that have not fired; what comes is for any window."""
        groups = self.context.keyed_state.key_groups
        self._past.append([*self._ahead, (self._progress.current_ms, *groups)])
        self._ahead, self._progress = [], EventTimeProgress()
        table = self._held.table
        if table is not None:
            for start in self._slices:
                for run in table.runs(self._namespace(start)):
                    table.append(_earlier(start, len(self._past) - 1), run)
                table.drop(self._namespace(start))
            self._find_slices()

    def snapshot_state(self, checkpoint_id: int) -> None:
        progress = {
            "watermark_ms": self._progress.kept_ms,
            "key_groups": list(self.context.keyed_state.key_groups),
            "ahead": [list(ahead) for ahead in self._ahead],
            "past": [[list(mark) for mark in marks] for marks in self._past],
            "next_order": self._next_order,
            "layout": self._layout_values(),
            **self._held.facts(),
        }
        self._state.update([progress])

    def _layout_values(self) -> list[int]:
        layout = self._grouping.layout
        return [layout.size_ms, layout.slide_ms, layout.offset_ms]

    def _find_slices(self) -> None:
        namespaces = [] if self._held.table is None else self._held.table.namespaces()
        spans = [namespace for namespace in namespaces if namespace is not None]
        self._slices = {start for start, end in spans if end > start}
        self._earlier = {(start, start - end) for start, end in spans if end <= start}
        self._find_next_due()

    def _starts(self) -> set[int]:
        return self._slices | {start for start, _ in self._earlier} if self._earlier else self._slices

    def _find_next_due(self) -> None:
        self._next_due = min(map(self._due, self._starts()), default=MAX_TIMESTAMP + 1)

    def _namespace(self, slice_start: int) -> tuple[int, int]:
        return (slice_start, slice_start + self._grouping.layout.width_ms)

    # -- records -------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            if self.from_records:
                accepted = self._without_late_records(batch)
                if accepted is None:
                    return
                columns = self._grouping.columns_of(accepted)
                partial, ends = self._grouping.partial_results(columns, event_times(accepted), self._next_order)
                self._next_order += accepted.num_rows
            else:
                partial, ends = batch.columns, event_times(batch)
                partial, ends = self._without_late_slices(partial, ends)
                if partial.num_rows == 0:
                    return
            self._take_in(partial, ends)

    def _without_late_records(self, batch: Batch) -> Batch | None:
        layout, timestamps = self._grouping.layout, event_times(batch)
        if not layout.has_gaps and int(timestamps.min()) >= self._first_open_ms:
            return batch
        is_late, is_dropped = self._judged(timestamps)
        num_late = int(is_late.sum())
        if num_late:
            self.context.reject_late(num_late, lambda: batch.filter(is_late), self.late_tag)
        return None if is_dropped.all() else batch.filter(~is_dropped)

    def _without_late_slices(self, partial: pa.RecordBatch, ends: Timestamps) -> tuple[pa.RecordBatch, Timestamps]:
        if not self._grouping.layout.has_gaps and int(ends.min()) >= self._first_open_ms:
            return partial, ends
        is_late, is_dropped = self._judged(ends)
        num_late = int(partial.column(self._grouping.records_column).to_numpy()[is_late].sum())
        if num_late:
            self.context.reject_late(
                num_late, lambda: Batch.of_columns(partial.filter(pa.array(is_late)), ends[is_late])
            )
        return partial.filter(pa.array(~is_dropped)), ends[~is_dropped]

    @property
    def _first_open_ms(self) -> int:
        return self._grouping.layout.first_open_time(self._progress.current_ms, self.allowed_lateness_ms)

    def _judged(self, times: Timestamps) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which times are late, and which have no window that would take them; late ones are among those."""
        layout, is_late = self._grouping.layout, times < self._first_open_ms
        if not layout.has_gaps:
            return is_late, is_late
        # As in Flink: a record without a window is late by its own time.
        in_gap = layout.in_gap(times)
        is_past = times <= max(self._progress.current_ms - self.allowed_lateness_ms, MIN_TIMESTAMP)
        return np.where(in_gap, is_past, is_late), is_late | in_gap

    def _take_in(self, partial: pa.RecordBatch, ends: Timestamps) -> None:
        partial = self._held.fitted(partial)
        table = self._held.table
        assert table is not None
        steps = np.diff(ends)
        if (steps < 0).any():
            order = np.argsort(ends, kind="stable")
            partial, ends = partial.take(pa.array(order)), ends[order]
            steps = np.diff(ends)
        cuts = [0, *(np.flatnonzero(steps) + 1).tolist(), len(ends)]
        runs: dict[int, pa.RecordBatch] = {}
        for low, high in pairwise(cuts):
            runs[int(ends[low]) + 1 - self._grouping.layout.width_ms] = partial.slice(low, high - low)
        refired = self._refired(table, runs)
        for start, run in runs.items():
            self._append(table, start, run)
        for window_start in sorted(refired):
            self._emit_changed(window_start, *refired[window_start])

    def _append(self, table: ColumnarTable, start: int, run: pa.RecordBatch) -> None:
        namespace = self._namespace(start)
        table.append(namespace, run)
        if start not in self._slices:
            self._slices.add(start)
            self._next_due = min(self._next_due, self._due(start))
            return
        # Like an LSM tree of two levels: the oldest run is merged with the newer ones only when together they are as
        # large, so that each row is merged a bounded number of times; many small runs are merged among themselves.
        runs = table.runs(namespace)
        newer = sum(run.num_rows for run in runs[1:])
        if newer >= max(_MIN_ROWS_TO_MERGE, runs[0].num_rows):
            table.replace(namespace, [self._grouping.merged(runs)])
        elif len(runs) > _MAX_RUNS:
            table.replace(namespace, [runs[0], self._grouping.merged(runs[1:])])

    # -- windows -------------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark) -> None:
        now, before = watermark.timestamp_ms, self._progress.current_ms
        if self._progress.advance(now) and now >= self._next_due:
            with naming_operator(self.context):
                self._fire_between(before, now)
        self.context.output.emit_watermark(watermark)

    def _fire_between(self, before: int, now: int) -> None:
        """Fire the windows whose last millisecond lies in (before, now], oldest first; forget slices that are past."""
        table, layout = self._held.table, self._grouping.layout
        assert table is not None
        starts = self._starts()
        windows = {window for start in starts for window in layout.windows_between(start, before, now)}
        for window_start in sorted(windows):
            runs = self._runs_of(table, window_start, compact=layout.slide_ms < layout.size_ms)
            if not runs:
                continue
            merged = self._grouping.merged(runs)
            if self._ahead:
                merged = self._without_fired(merged, window_start + layout.size_ms - 1)
            self.context.output.emit(self._grouping.window_results(merged, window_start))
        self._ahead = [mark for mark in self._ahead if mark[0] > now]
        self._past = [[mark for mark in marks if mark[0] > now] for marks in self._past]
        for start in [s for s in starts if layout.cleanup_time(s, self.allowed_lateness_ms) <= now]:
            if start in self._slices:
                self._slices.discard(start)
                table.drop(self._namespace(start))
            for place in [place for place in self._earlier if place[0] == start]:
                self._earlier.discard(place)
                table.drop(_earlier(*place))
        self._find_next_due()

    def next_event_time(self) -> int | None:
        return self._next_due if self._next_due <= MAX_TIMESTAMP else None

    def _without_fired(self, merged: pa.RecordBatch, last_ms: int) -> pa.RecordBatch:
        """Leave out keys for which a window has fired before a restore took event time back for others.

        With allowed lateness they stay: they may have got records since, and a window may fire more than once.
        """
        return merged if self.allowed_lateness_ms else self._without_marked(merged, self._ahead, last_ms)

    def _without_marked(self, run: pa.RecordBatch, marks: Sequence[_Mark], time_ms: int) -> pa.RecordBatch:
        """Leave out keys for which event time has reached a time by one of the marks."""
        marked = [(first, last) for reached_ms, first, last in marks if reached_ms >= time_ms]
        if not marked or run.num_rows == 0:
            return run
        columns = [run.column(index) for index in range(len(self._grouping.key_columns))]
        groups = key_groups_of(hash_columns(columns), self.context.keyed_state.max_parallelism)
        is_marked = np.zeros(len(groups), dtype=np.bool_)
        for first, last in marked:
            is_marked |= (groups >= first) & (groups <= last)
        return run.filter(pa.array(~is_marked))

    def _due(self, slice_start: int) -> int:
        """The next watermark that a slice waits for: one of its windows' last milliseconds, or its own clean-up."""
        layout = self._grouping.layout
        cleanup = layout.cleanup_time(slice_start, self.allowed_lateness_ms)
        to_fire = layout.windows_between(slice_start, self._progress.current_ms, cleanup)
        return to_fire[0] + layout.size_ms - 1 if to_fire else cleanup

    def _runs_of(self, table: ColumnarTable, window_start: int, *, compact: bool) -> list[pa.RecordBatch]:
        result: list[pa.RecordBatch] = []
        cleanup_ms = window_start + self._grouping.layout.size_ms - 1 + self.allowed_lateness_ms
        for start in self._grouping.layout.slices(window_start):
            if start in self._slices:
                result += self._runs_under(table, self._namespace(start), compact=compact)
            for number in range(len(self._past)):
                if (start, number) in self._earlier:
                    marks = [mark for later in self._past[number:] for mark in later]
                    held = self._runs_under(table, _earlier(start, number), compact=compact)
                    kept = (self._without_marked(run, marks, cleanup_ms) for run in held)
                    result += [run for run in kept if run.num_rows]
        return result

    def _runs_under(self, table: ColumnarTable, namespace: tuple[int, int], *, compact: bool) -> list[pa.RecordBatch]:
        runs = table.runs(namespace)
        if compact and len(runs) > 1:
            # Later windows read this slice too: merge its runs once for all of them.
            runs = [self._grouping.merged(runs)]
            table.replace(namespace, runs)
        return runs

    def _refired(
        self, table: ColumnarTable, runs: Mapping[int, pa.RecordBatch]
    ) -> dict[int, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]]:
        """Windows that have fired, are not past and get new runs: what they held, and what is new."""
        result: dict[int, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]] = {}
        if self.allowed_lateness_ms == 0:
            return result
        layout = self._grouping.layout
        past = self._progress.current_ms - self.allowed_lateness_ms
        for start, run in runs.items():
            for window_start in layout.windows_between(start, past, self._progress.current_ms):
                if window_start not in result:
                    result[window_start] = (self._runs_of(table, window_start, compact=True), [])
                result[window_start][1].append(run)
        return result

    def _emit_changed(self, window_start: int, held: Iterable[pa.RecordBatch], new: Sequence[pa.RecordBatch]) -> None:
        """Fire a window again, for the keys of its new runs."""
        grouping = self._grouping
        merged = grouping.merged([*new, *held])
        # Keys are numbered together, so that those of the new runs can be picked out of the merged ones.
        num_keys = len(grouping.key_columns)
        batch = pa.concat_batches([*new, merged])
        groups = Groups.of([batch.column(index) for index in range(num_keys)])
        num_new = batch.num_rows - merged.num_rows
        is_changed = np.zeros(groups.num_codes, dtype=np.bool_)
        is_changed[groups.codes[:num_new]] = True
        changed = merged.filter(pa.array(is_changed[groups.codes[num_new:]]))
        self.context.output.emit(grouping.window_results(changed, window_start))

    def __repr__(self) -> str:
        return f"GlobalSliceAggregate({self._grouping.keys_text})"


def _earlier(slice_start: int, number: int) -> tuple[int, int]:
    """The namespace of what a slice held when event time started anew for the so-and-so-many-th time, counted from 0.

    It is no span of time: that of a slice has a length.
    """
    return (slice_start, slice_start - number)
