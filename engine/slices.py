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

Invariant: the table holds exactly the slices whose newest window is not past; a window fires when the watermark reaches
its last millisecond and only for keys that have records in it. All subtasks restore to the same watermark, because
barriers are aligned.

Source: Flink's ``SliceAssigners``, ``SlicingWindowOperator`` and ``WindowOperator`` (lateness); rows B9, C5, C6, C10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.aggregates import Aggregate, ColumnarAggregates
from headrace.engine.columnar import naming_operator
from headrace.engine.grouping import Groups, normalised_floats
from headrace.engine.keys import KeySelector
from headrace.engine.operators import Operator, OperatorContext
from headrace.engine.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps, Watermark
from headrace.engine.slice_layout import SliceLayout
from headrace.state.backend import ColumnarTable
from headrace.state.errors import CheckpointMismatchError, ProgramError, TypeMismatchError
from headrace.state.keygroups import hash_columns, key_groups_of

__all__ = [
    "GlobalSliceAggregate",
    "LocalSliceAggregate",
]

_NUM_RECORDS = "$records"
_MAX_RUNS = 64
_MIN_ROWS_TO_MERGE = 65_536


class _SliceGrouping:
    """What both phases share: names, checks, and the way from records to partial results.

    Args:
        keys: Names of the key columns, or a selector by fields.
        assigner: Tumbling or sliding event-time windows.
        aggregates: By the name of their result column.
        input_schema: Declared type of the records; None to go by what comes.
    """

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        input_schema: pa.Schema | None,
    ) -> None:
        names = keys.field_names if isinstance(keys, KeySelector) else tuple([keys] if isinstance(keys, str) else keys)
        if not names:
            message = "windows on columns need key columns; the key selector is a function"
            raise ProgramError(message, hint="key by field names, or compute the key as a column first")
        self.key_columns = tuple(names)
        self.assigner = assigner
        self.layout = SliceLayout.of(assigner)
        self.aggregates = ColumnarAggregates(aggregates)
        self.input_schema = input_schema
        taken = [*self.key_columns, "window_start", "window_end", *aggregates]
        doubled = sorted({name for name in taken if taken.count(name) > 1})
        if doubled:
            message = f"the result would have several columns called {', '.join(map(repr, doubled))}"
            raise ProgramError(message, hint="rename the aggregate or the key column")
        # The part that counts records: the one of count(), else a column of its own.
        counting = [f"{name}${spec.parts[0].suffix}" for name, spec in aggregates.items() if spec.argument is None]
        self.records_column = counting[0] if counting else _NUM_RECORDS
        self._has_own_count = not counting
        self.part_schema_names = [*self.key_columns, *self.aggregates.part_names, *([] if counting else [_NUM_RECORDS])]

    def keys_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The key columns, such that equal keys are equal bits."""
        result = []
        for name in self.key_columns:
            index = batch.schema.get_field_index(name)
            if index < 0:
                message = (
                    f"key column {name!r} does not exist; the columns are {', '.join(map(repr, batch.schema.names))}"
                )
                raise ProgramError(message)
            column = batch.column(index)
            result.append(
                column.dictionary_decode()
                if pa.types.is_dictionary(column.type)
                else _as_tuples(normalised_floats(column))
            )
        return result

    def partial_results(
        self, batch: pa.RecordBatch, timestamps: Timestamps, first_order: int
    ) -> tuple[pa.RecordBatch, Timestamps]:
        """Aggregate records per slice and key.

        Args:
            batch: At least one record.
            timestamps: Their event times; every one is covered by a window.
            first_order: Place of the first record in the order of arrival.

        Returns:
            Partial results, and the last millisecond of each one's slice.
        """
        keys = self.keys_of(batch)
        indices, base = self.layout.slice_indices(timestamps)
        groups = Groups.of([indices, *keys])
        columns = [groups.take_keys(key) for key in keys]
        columns += self.aggregates.from_records(groups, batch, first_order)
        if self._has_own_count:
            columns.append(groups.reduce("count_all", None))
        ends = base + (indices[groups.first_rows] + 1) * self.layout.width_ms - 1
        return pa.RecordBatch.from_arrays(columns, names=self.part_schema_names), ends

    def merged(self, runs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One partial result per key of all runs; the runs are of one schema."""
        batch = runs[0] if len(runs) == 1 else pa.concat_batches(runs)
        keys = [batch.column(index) for index in range(len(self.key_columns))]
        groups = Groups.of(keys)
        columns = [groups.take_keys(key) for key in keys]
        columns += self.aggregates.merge(groups, batch)
        if self._has_own_count:
            columns.append(groups.reduce("sum", batch.column(_NUM_RECORDS)))
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def window_results(self, merged: pa.RecordBatch, window_start: int) -> Batch:
        """The result records of one window."""
        num_rows, end = merged.num_rows, window_start + self.layout.size_ms
        parts = [merged.column(name) for name in self.aggregates.part_names]
        columns = [
            *(merged.column(name) for name in self.key_columns),
            _constant_time(window_start, num_rows),
            _constant_time(end, num_rows),
            *self.aggregates.finalise(parts),
        ]
        names = [*self.key_columns, "window_start", "window_end", *self.aggregates.specifications]
        return Batch.of_columns(
            pa.RecordBatch.from_arrays(columns, names=names), np.full(num_rows, end - 1, dtype=np.int64)
        )

    def empty_partial_results(self, schema: pa.Schema) -> pa.RecordBatch:
        """No partial results, of the schema that records of ``schema`` give."""
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        groups = Groups(np.zeros(0, dtype=np.int64), 1)
        columns = [*self.keys_of(batch), *self.aggregates.from_records(groups, batch, 0)]
        if self._has_own_count:
            columns.append(pa.nulls(0, pa.int64()))
        return pa.RecordBatch.from_arrays(columns, names=self.part_schema_names)


def _constant_time(time_ms: int, num_rows: int) -> pa.Array:
    return pa.array(np.full(num_rows, time_ms, dtype=np.int64)).cast(pa.timestamp("ms"))


def _event_times(batch: Batch) -> Timestamps:
    timestamps = batch.timestamps
    if timestamps is None or int(timestamps.min()) == MIN_TIMESTAMP:
        message = "records have no event time"
        raise ProgramError(message, hint="assign timestamps and watermarks before event-time windows")
    return timestamps


class LocalSliceAggregate(Operator):
    """First phase, before the shuffle: turns each batch into partial results per slice and key.

    Holds nothing back, so barriers and watermarks need no flush. Times that no window covers are left out here; they
    are counted nowhere, as they are neither late nor part of a result.

    Args:
        keys: Names of the key columns, or a selector by fields.
        assigner: Tumbling or sliding event-time windows.
        aggregates: By the name of their result column; all mergeable.
        input_schema: Declared type of the records; None to go by what comes.

    Raises:
        ProgramError: If an aggregate is not mergeable, names collide, or the windows are not made of slices.
    """

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        *,
        input_schema: pa.Schema | None = None,
    ) -> None:
        self._grouping = _SliceGrouping(keys, assigner, aggregates, input_schema)
        if not self._grouping.aggregates.is_mergeable:
            message = "aggregates that are not mergeable need all records of a key in one place"
            raise ProgramError(message, hint="use GlobalSliceAggregate with from_records=True alone")

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """The schema of partial results, for records of a schema."""
        return self._grouping.empty_partial_results(input_schema).schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        grouping = self._grouping
        with naming_operator(self.context):
            timestamps = _event_times(batch)
            columns = batch.columns_as(grouping.input_schema)
            if grouping.layout.has_gaps:
                is_covered = ~grouping.layout.in_gap(timestamps)
                timestamps = timestamps[is_covered]
                columns = columns.filter(pa.array(is_covered))
                if columns.num_rows == 0:
                    return
            partial, ends = grouping.partial_results(columns, timestamps, 0)
        self.context.output.emit(Batch.of_columns(partial, ends))

    def __repr__(self) -> str:
        return f"LocalSliceAggregate({', '.join(self._grouping.key_columns)})"


class GlobalSliceAggregate(Operator):
    """Second phase: keeps partial results per slice and fires windows. Or the only phase, fed with records.

    Emits the key columns, ``window_start`` and ``window_end`` (``timestamp[ms]``), and the aggregates; event time is
    the window's last millisecond. Counts late records in ``num_late_records_dropped``.

    Args:
        keys: Names of the key columns, or a selector by fields.
        assigner: Tumbling or sliding event-time windows.
        aggregates: By the name of their result column.
        allowed_lateness_ms: How long after its end a window takes records and fires again.
        late_tag: Side output for late records; only with ``from_records``.
        from_records: Whether the input is records, not the output of `LocalSliceAggregate`.
        input_schema: Declared type of the records, with ``from_records``.

    Raises:
        ProgramError: If names collide, the windows are not made of slices, or ``late_tag`` is given without
        ``from_records``.
    """

    keyed = True

    def __init__(
        self,
        keys: KeySelector | Sequence[str],
        assigner: Any,
        aggregates: Mapping[str, Aggregate],
        *,
        allowed_lateness_ms: int = 0,
        late_tag: str | None = None,
        from_records: bool = False,
        input_schema: pa.Schema | None = None,
    ) -> None:
        self._grouping = _SliceGrouping(keys, assigner, aggregates, input_schema)
        if late_tag is not None and not from_records:
            message = "partial results cannot go to a side output for late records"
            raise ProgramError(message, hint="aggregate in one phase: from_records=True")
        if not from_records and not self._grouping.aggregates.is_mergeable:
            message = "aggregates that are not mergeable need all records of a key in one place"
            raise ProgramError(message, hint="aggregate in one phase: from_records=True")
        if allowed_lateness_ms < 0:
            message = f"allowed lateness must not be negative; got {allowed_lateness_ms} ms"
            raise ProgramError(message)
        self.allowed_lateness_ms = allowed_lateness_ms
        self.late_tag = late_tag
        self.from_records = from_records
        # The combined watermark as of the last call; in union state, so that what was late stays late after a restore.
        self._watermark_ms = MIN_TIMESTAMP
        # Place of the next record in the order of arrival, for first and last; grows over restores.
        self._next_order = 0
        # The table and its schema; None until the first record tells the types.
        self._table: ColumnarTable | None = None
        self._schema: pa.Schema | None = None
        # The starts of the slices in the table.
        self._slices: set[int] = set()
        # Old subtasks that were ahead of the watermark that was restored: (their watermark, first and last key group).
        # Windows up to it have fired for those keys, and need their slices only for later ones.
        self._ahead: list[tuple[int, int, int]] = []
        # The watermark at which a window fires or a slice is past; nothing is to be done before.
        self._next_due: int = MAX_TIMESTAMP + 1

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """The schema of results, for records (not partial results) of a schema."""
        return self._grouping.window_results(self._grouping.empty_partial_results(input_schema), 0).columns.schema

    # -- state ---------------------------------------------------------------------------------------------------------

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._progress = context.operator_state.union_list_state("progress")
        restored = self._progress.get()
        if not restored:
            return
        with naming_operator(context):
            self._restore(restored)

    def _restore(self, restored: Sequence[Mapping[str, Any]]) -> None:
        layout = self._layout_values()
        own = self.context.keyed_state.key_groups
        of_own = [p for p in restored if own.overlaps(*p["key_groups"])]
        self._watermark_ms = min(progress["watermark_ms"] for progress in of_own)
        reached = [(progress["watermark_ms"], *progress["key_groups"]) for progress in of_own]
        reached += [tuple(ahead) for progress in of_own for ahead in progress["ahead"]]
        self._ahead = [ahead for ahead in reached if ahead[0] > self._watermark_ms]
        self._next_order = max(progress["next_order"] for progress in restored)
        schemas: dict[str, pa.Schema] = {}
        for progress in restored:
            if progress["layout"] != layout:
                message = (
                    f"the state holds slices of windows of {progress['layout']} ms (size, slide, offset), not {layout}"
                )
                raise CheckpointMismatchError(message)
            if progress["schema"] is not None:
                schema = pa.ipc.read_schema(pa.py_buffer(progress["schema"]))
                needed = self._grouping.part_schema_names
                if schema.names != needed:
                    message = f"the state holds columns {schema.names}; the program needs {needed}"
                    raise CheckpointMismatchError(message, hint="give the changed aggregation another uid")
                schemas[progress["table"]] = schema
        if schemas:
            self._move_to(_unified(list(schemas.values())), schemas)

    def snapshot_state(self, checkpoint_id: int) -> None:
        schema = None if self._schema is None else self._schema.serialize().to_pybytes()
        progress = {
            "watermark_ms": self._watermark_ms,
            "key_groups": list(self.context.keyed_state.key_groups),
            "ahead": [list(ahead) for ahead in self._ahead],
            "next_order": self._next_order,
            "layout": self._layout_values(),
            "schema": schema,
            "table": "" if self._table is None else self._table.name,
        }
        self._progress.update([progress])

    def _layout_values(self) -> list[int]:
        layout = self._grouping.layout
        return [layout.size_ms, layout.slide_ms, layout.offset_ms]

    def _move_to(self, schema: pa.Schema, old: Mapping[str, pa.Schema]) -> ColumnarTable:
        """Bind the table of a schema, with the runs of old tables (schemas by name) moved to it."""
        keyed_state, keys = self.context.keyed_state, self._grouping.key_columns
        table = keyed_state.columnar_table(_table_name(schema), schema, keys)
        for name, old_schema in old.items():
            if name != table.name:
                source = keyed_state.columnar_table(name, old_schema, keys)
                for namespace in list(source.namespaces()):
                    for run in source.runs(namespace):
                        table.append(namespace, _cast(run, schema))
                    source.drop(namespace)
        self._table, self._schema = table, schema
        self._slices = {namespace[0] for namespace in table.namespaces() if namespace is not None}
        self._next_due = min(map(self._due, self._slices), default=MAX_TIMESTAMP + 1)
        return table

    def _fitted(self, partial: pa.RecordBatch) -> tuple[ColumnarTable, pa.RecordBatch]:
        """The table, and the partial results in its schema."""
        partial = partial.replace_schema_metadata(None)
        if self._table is None or self._schema is None:
            return self._move_to(partial.schema, {}), partial
        if partial.schema.equals(self._schema):
            return self._table, partial
        # Rows without a declared type can show a column as null, or as integers, before they show its wider type.
        schema = _unified([self._schema, partial.schema])
        if not schema.equals(self._schema):
            self._move_to(schema, {self._table.name: self._schema})
        return self._table, _cast(partial, schema)

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
                columns = accepted.columns_as(self._grouping.input_schema)
                partial, ends = self._grouping.partial_results(columns, _event_times(accepted), self._next_order)
                self._next_order += accepted.num_rows
            else:
                partial, ends = batch.columns, _event_times(batch)
                partial, ends = self._without_late_slices(partial, ends)
                if partial.num_rows == 0:
                    return
            self._take_in(partial, ends)

    def _without_late_records(self, batch: Batch) -> Batch | None:
        layout, timestamps = self._grouping.layout, _event_times(batch)
        first_open = layout.first_open_time(self._watermark_ms, self.allowed_lateness_ms)
        if not layout.has_gaps and int(timestamps.min()) >= first_open:
            return batch
        is_late = timestamps < first_open
        is_dropped = is_late
        if layout.has_gaps:
            # Flink calls a record without a window late by its own time.
            in_gap = layout.in_gap(timestamps)
            is_past = timestamps <= max(self._watermark_ms - self.allowed_lateness_ms, MIN_TIMESTAMP)
            is_late = (is_late & ~in_gap) | (in_gap & is_past)
            is_dropped = is_late | in_gap
        num_late = int(is_late.sum())
        if num_late:
            if self.late_tag is None:
                self.context.metrics.count("num_late_records_dropped", num_late)
            else:
                self.context.output.emit_side(self.late_tag, batch.filter(is_late))
        return None if is_dropped.all() else batch.filter(~is_dropped)

    def _without_late_slices(self, partial: pa.RecordBatch, ends: Timestamps) -> tuple[pa.RecordBatch, Timestamps]:
        first_open = self._grouping.layout.first_open_time(self._watermark_ms, self.allowed_lateness_ms)
        if int(ends.min()) >= first_open:
            return partial, ends
        is_open = ends >= first_open
        late = partial.column(self._grouping.records_column).to_numpy()[~is_open]
        self.context.metrics.count("num_late_records_dropped", int(late.sum()))
        return partial.filter(pa.array(is_open)), ends[is_open]

    def _take_in(self, partial: pa.RecordBatch, ends: Timestamps) -> None:
        table, partial = self._fitted(partial)
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
        # large,
        # so that each row is merged a bounded number of times; many small runs are merged among themselves.
        runs = table.runs(namespace)
        newer = sum(run.num_rows for run in runs[1:])
        if newer >= max(_MIN_ROWS_TO_MERGE, runs[0].num_rows):
            table.replace(namespace, [self._grouping.merged(runs)])
        elif len(runs) > _MAX_RUNS:
            table.replace(namespace, [runs[0], self._grouping.merged(runs[1:])])

    # -- windows -------------------------------------------------------------------------------------------------------

    def process_watermark(self, watermark: Watermark) -> None:
        now = watermark.timestamp_ms
        if now > self._watermark_ms:
            before, self._watermark_ms = self._watermark_ms, now
            if now >= self._next_due:
                with naming_operator(self.context):
                    self._fire_between(before, now)
        self.context.output.emit_watermark(watermark)

    def _fire_between(self, before: int, now: int) -> None:
        """Fire the windows whose last millisecond lies in (before, now], oldest first; forget slices that are past."""
        table, layout = self._table, self._grouping.layout
        assert table is not None
        windows = {window for start in self._slices for window in layout.windows_between(start, before, now)}
        for window_start in sorted(windows):
            runs = self._runs_of(table, window_start, compact=layout.slide_ms < layout.size_ms)
            merged = self._grouping.merged(runs)
            if self._ahead:
                merged = self._without_fired(merged, window_start + layout.size_ms - 1)
            self.context.output.emit(self._grouping.window_results(merged, window_start))
        self._ahead = [ahead for ahead in self._ahead if ahead[0] > now]
        for start in [s for s in self._slices if layout.cleanup_time(s, self.allowed_lateness_ms) <= now]:
            table.drop(self._namespace(start))
            self._slices.discard(start)
        self._next_due = min(map(self._due, self._slices), default=MAX_TIMESTAMP + 1)

    def _without_fired(self, merged: pa.RecordBatch, last_ms: int) -> pa.RecordBatch:
        """Leave out keys for which a window has fired before a restore took event time back for others.

        With allowed lateness they stay: they may have got records since, and a window may fire more than once.
        """
        fired = [(first, last) for watermark_ms, first, last in self._ahead if watermark_ms >= last_ms]
        if not fired or self.allowed_lateness_ms or merged.num_rows == 0:
            return merged
        columns = [merged.column(index) for index in range(len(self._grouping.key_columns))]
        groups = key_groups_of(hash_columns(columns), self.context.keyed_state.max_parallelism)
        has_fired = np.zeros(len(groups), dtype=np.bool_)
        for first, last in fired:
            has_fired |= (groups >= first) & (groups <= last)
        return merged.filter(pa.array(~has_fired))

    def _due(self, slice_start: int) -> int:
        """The next watermark that a slice waits for: one of its windows' last milliseconds, or its own clean-up."""
        layout = self._grouping.layout
        cleanup = layout.cleanup_time(slice_start, self.allowed_lateness_ms)
        to_fire = layout.windows_between(slice_start, self._watermark_ms, cleanup)
        return to_fire[0] + layout.size_ms - 1 if to_fire else cleanup

    def _runs_of(self, table: ColumnarTable, window_start: int, *, compact: bool) -> list[pa.RecordBatch]:
        result: list[pa.RecordBatch] = []
        for start in self._grouping.layout.slices(window_start):
            if start not in self._slices:
                continue
            namespace = self._namespace(start)
            runs = table.runs(namespace)
            if compact and len(runs) > 1:
                # Later windows read this slice too: merge its runs once for all of them.
                runs = [self._grouping.merged(runs)]
                table.replace(namespace, runs)
            result += runs
        return result

    def _refired(
        self, table: ColumnarTable, runs: Mapping[int, pa.RecordBatch]
    ) -> dict[int, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]]:
        """Windows that have fired, are not past and get new runs: what they held, and what is new."""
        result: dict[int, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]] = {}
        if self.allowed_lateness_ms == 0:
            return result
        layout = self._grouping.layout
        past = self._watermark_ms - self.allowed_lateness_ms
        for start, run in runs.items():
            for window_start in layout.windows_between(start, past, self._watermark_ms):
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
        return f"GlobalSliceAggregate({', '.join(self._grouping.key_columns)})"


def _as_tuples(column: pa.Array) -> pa.Array:
    """Lists of one length as structs of ``f0``, ``f1`` ...: what a tuple within a record is, and can be a key."""
    import pyarrow.compute as pc

    if not pa.types.is_list(column.type) or column.null_count == len(column):
        return column
    lengths = pc.unique(pc.list_value_length(column.drop_null()))
    if len(lengths) != 1 or lengths[0].as_py() == 0:
        return column
    parts = [_as_tuples(normalised_floats(pc.list_element(column, i))) for i in range(lengths[0].as_py())]
    return pa.StructArray.from_arrays(parts, names=[f"f{i}" for i in range(len(parts))], mask=column.is_null())


def _table_name(schema: pa.Schema) -> str:
    # A table has one schema for ever, so the schema is part of its name: 8 hex digits are plenty for the few types a
    # stream can show.
    text = ";".join(f"{field.name}:{field.type}" for field in schema)
    return f"slices-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _unified(schemas: list[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        message = f"the types of keys or aggregates changed from batch to batch: {error}"
        raise TypeMismatchError(message, hint="declare the stream's type") from error


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        arrays = [batch.column(name).cast(field.type) for name, field in zip(schema.names, schema, strict=True)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"the types of keys or aggregates changed from batch to batch: {error}"
        raise TypeMismatchError(message, hint="declare the stream's type") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
