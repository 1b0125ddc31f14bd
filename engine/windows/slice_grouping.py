"""From records to partial results per key and slice, and from those to the results of windows.

Both phases of windowed aggregates on columns (`headrace.engine.windows.slices`) work with this: names, checks and
kernels, no state and no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.state.errors import ProgramError, nearest

from ..columns.grouping import Groups, normalised_floats
from ..columns.records import MIN_TIMESTAMP, Batch, Timestamps
from ..functions.aggregates.contract import Aggregate, ColumnarAggregates
from ..functions.keys import KeySelector
from .slice_layout import SliceLayout

__all__ = ["SliceGrouping", "event_times"]

_NUM_RECORDS = "$records"


class SliceGrouping:
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
        """Return the key columns, such that equal keys are equal bits."""
        result = []
        for name in self.key_columns:
            index = batch.schema.get_field_index(name)
            if index < 0:
                names = batch.schema.names
                message = f"key column {name!r} does not exist; the columns are {', '.join(map(repr, names))}"
                raise ProgramError(message, hint=nearest(name, names))
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
        partial, first_rows = self._aggregated(indices, keys, batch, first_order)
        return partial, base + (indices[first_rows] + 1) * self.layout.width_ms - 1

    def counted_in_gaps(self, batch: pa.RecordBatch, timestamps: Timestamps) -> tuple[pa.RecordBatch, Timestamps]:
        """The same for records that no window covers: per time and key, as they are late, or not, by their own time."""
        partial, first_rows = self._aggregated(timestamps, self.keys_of(batch), batch, 0)
        return partial, timestamps[first_rows]

    def _aggregated(
        self, places: Timestamps, keys: Sequence[pa.Array], batch: pa.RecordBatch, first_order: int
    ) -> tuple[pa.RecordBatch, Any]:
        """Partial results per place and key, and the first record of each."""
        groups = Groups.of([places, *keys])
        columns = [groups.take_keys(key) for key in keys]
        columns += self.aggregates.from_records(groups, batch, first_order)
        if self._has_own_count:
            columns.append(groups.reduce("count_all", None))
        return pa.RecordBatch.from_arrays(columns, names=self.part_schema_names), groups.first_rows

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
        """Return the result records of one window."""
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


def event_times(batch: Batch) -> Timestamps:
    timestamps = batch.timestamps
    if timestamps is None or int(timestamps.min()) == MIN_TIMESTAMP:
        message = "records have no event time"
        raise ProgramError(message, hint="assign timestamps and watermarks before event-time windows")
    return timestamps


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
