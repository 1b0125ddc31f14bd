"""Session windows with built-in aggregates, on columns.

A batch becomes the sessions that its records are among themselves, a row each
(`headrace.engine.windows.columnar.session_grouping`), and these are merged with those that are held
(`headrace.engine.windows.columnar.session_runs`). Two phases, as with windows made of slices: `LocalSessionAggregate`
works before the shuffle and holds nothing, `GlobalSessionAggregate` behind it. A stream that wants late records in a
side output uses the second alone, with ``from_records=True``.

Lateness is Flink's: a record is late if the session that it would be merged into is past, which is when the session's
last millisecond plus the allowed lateness is at or before the watermark. Where a record's own window is past, it
depends on the records before it whether it is late. So a batch with such records does not merge them before it is known
which are late, neither here nor in the first phase, which does not know the watermark behind it: it passes each record
of such a batch on as a row of its own, in order of arrival.

A session that has ended and gets a record before it is past fires again, at once. The difference to the row path: all
records of one batch are in such a result, not one result for each of them.

Invariant: that of `SessionRuns`. A restore goes on from the lowest watermark of those old subtasks that had keys of the
new one; what had fired further on is not held any more, or marked as fired, so it does not fire again.

Source: Flink's ``WindowOperator`` with ``MergingWindowSet`` and ``EventTimeTrigger``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...columns.grouping import Groups
from ...columns.records import MAX_BATCH_ROWS, MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps, Watermark
from ...functions.operator import OperatorContext
from ...operators.column_operators import naming_operator
from ...operators.event_time import EventTimeProgress, of_own_keys
from .phases import ColumnarState, GlobalPhase, LocalPhase
from .session_grouping import END, START, SessionGrouping, late_among, times_in
from .session_runs import SessionRuns
from .window_grouping import event_times

__all__ = ["GlobalSessionAggregate", "LocalSessionAggregate"]


class LocalSessionAggregate(LocalPhase):
    """First phase, before the shuffle: turns each batch into the sessions that its records are among themselves.

    Records whose own window ends at or before the watermark, or may do so, may be late.
    """

    grouping_type = SessionGrouping
    _grouping: SessionGrouping

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of sessions as they travel, for records of a schema."""
        return self._grouping.empty_sessions(input_schema).schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            times = event_times(batch)
            may_be_late = int(self._grouping.ends_of(times).min()) - 1 <= self._late_until_ms
            sessions = self._grouping.sessions_of(self._grouping.columns_of(batch), times, apart=may_be_late)
        self.context.output.emit(Batch.of_columns(sessions, times_in(sessions, START)))


class GlobalSessionAggregate(GlobalPhase):
    """Second phase: keeps sessions and fires them. Or the only phase, fed with records.

    Results of one watermark come in the order of their event times.
    """

    grouping_type = SessionGrouping
    _grouping: SessionGrouping

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of results, for records (not partial results) of a schema."""
        no_times = np.zeros(0, dtype=np.int64)
        empty = self._grouping.empty_sessions(input_schema)
        return self._grouping.results(empty, no_times, no_times).columns.schema

    # -- state ---------------------------------------------------------------------------------------------------------

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = context.operator_state.union_list_state("progress")
        with naming_operator(context):
            self._held = ColumnarState(context.keyed_state, "sessions", self._grouping.key_columns)
            self._runs = SessionRuns(self._grouping, self._held, self.allowed_lateness_ms)
            restored = self._state.get()
            if restored:
                self._restore(restored)

    def _restore(self, restored: Sequence[Mapping[str, Any]]) -> None:
        keyed = self.context.keyed_state
        if not self.context.starts_event_time_anew:
            of_own: list[int] = of_own_keys(
                [(*p["key_groups"], p["watermark_ms"]) for p in restored], keyed.key_groups, keyed.max_parallelism
            )
            self._progress = EventTimeProgress(of_own)
        self._held.restore(restored, self._grouping.column_names)
        self._runs.load(self._progress.current_ms)

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._runs.purge()
        progress = {
            "watermark_ms": self._progress.kept_ms,
            "key_groups": list(self.context.keyed_state.key_groups),
            **self._held.facts(),
        }
        self._state.update([progress])

    # -- records -------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            sessions = self._sessions_of(batch) if self.from_records else self._partial_sessions(batch)
            if sessions is not None:
                self._runs.add(sessions, self._progress.current_ms)
                self._settle()

    def _sessions_of(self, batch: Batch) -> pa.RecordBatch | None:
        grouping = self._grouping
        times, columns = event_times(batch), grouping.columns_of(batch)
        is_late = self._late(columns, grouping.keys_of, times, grouping.ends_of(times))
        if is_late is not None:
            self.context.reject_late(int(is_late.sum()), lambda: batch.filter(is_late), self.late_tag)
            if is_late.all():
                return None
            columns, times = columns.filter(pa.array(~is_late)), times[~is_late]
        return grouping.sessions_of(columns, times)

    def _partial_sessions(self, batch: Batch) -> pa.RecordBatch | None:
        grouping, rows = self._grouping, batch.columns
        is_late = self._late(rows, grouping.keys_in, times_in(rows, START), times_in(rows, END))
        if is_late is None:
            return rows
        num_late = int(rows.column(grouping.records_column).to_numpy()[is_late].sum())
        self.context.reject_late(num_late, lambda: Batch.of_columns(rows.filter(pa.array(is_late))))
        return None if is_late.all() else rows.filter(pa.array(~is_late))

    def _late(
        self, columns: pa.RecordBatch, keys_of: Any, starts: Timestamps, ends: Timestamps
    ) -> npt.NDArray[np.bool_] | None:
        """Which windows come too late, in order of arrival; None for none."""
        past_end_ms = min(max(self._progress.current_ms - self.allowed_lateness_ms + 1, MIN_TIMESTAMP), MAX_TIMESTAMP)
        is_past = ends <= past_end_ms
        if not is_past.any():
            return None
        # All windows of the keys that have one that is past.
        keys = keys_of(columns)
        groups = Groups.of(keys)
        is_asked = np.zeros(groups.num_codes, dtype=np.bool_)
        is_asked[groups.codes[is_past]] = True
        rows = np.flatnonzero(is_asked[groups.codes])
        asked = is_asked[groups.occupied]
        numbers = np.zeros(groups.num_codes, dtype=np.int64)
        numbers[groups.occupied[asked]] = np.arange(int(asked.sum()))
        first_rows = pa.array(groups.first_rows[asked])
        earliest = self._runs.earliest_starts([key.take(first_rows) for key in keys])
        is_late = np.zeros(len(ends), dtype=np.bool_)
        is_late[rows] = late_among(numbers[groups.codes[rows]], starts[rows], ends[rows], past_end_ms, earliest)
        return is_late if is_late.any() else None

    # -- windows -------------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark) -> None:
        if self._progress.advance(watermark.timestamp_ms):
            with naming_operator(self.context):
                self._settle()
        self.context.output.emit_watermark(watermark)

    def next_event_time(self) -> int | None:
        return self._runs.next_due if self._runs.next_due <= MAX_TIMESTAMP else None

    def _settle(self) -> None:
        fired = self._runs.settle(self._progress.current_ms)
        if fired is None:
            return
        results = self._grouping.results(*fired)
        for offset in range(0, results.num_rows, MAX_BATCH_ROWS):
            self.context.output.emit(results.slice(offset, MAX_BATCH_ROWS))

    def __repr__(self) -> str:
        return f"GlobalSessionAggregate({self._grouping.keys_text})"
