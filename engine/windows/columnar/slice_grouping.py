"""From records to partial results per key and slice, and from those to the results of windows.

Both phases of windowed aggregates on columns (`headrace.engine.windows.columnar.slices`) work with this: names, checks
and kernels, no state and no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...columns.grouping import Groups
from ...columns.records import Batch, Timestamps
from ...functions.aggregates.contract import Aggregate
from ...functions.keys import KeySelector
from .slice_layout import SliceLayout
from .window_grouping import WindowGrouping

__all__ = ["SliceGrouping"]


class SliceGrouping(WindowGrouping):
    """What both phases share: names, checks, and the way from records to partial results.

    Args:
        keys: See `WindowGrouping`.
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
        super().__init__(keys, aggregates, input_schema)
        self.assigner = assigner
        self.layout = SliceLayout.of(assigner)
        self.part_schema_names = [*self.key_columns, *self.part_names]

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
        """Return the same for records that no window covers: per time and key, as they are late, or not, by their own
        time.
        """
        partial, first_rows = self._aggregated(timestamps, self.keys_of(batch), batch, 0)
        return partial, timestamps[first_rows]

    def _aggregated(
        self, places: Timestamps, keys: Sequence[pa.Array], batch: pa.RecordBatch, first_order: int
    ) -> tuple[pa.RecordBatch, Any]:
        """Partial results per place and key, and the first record of each."""
        groups = Groups.of([places, *keys])
        columns = [*(groups.take_keys(key) for key in keys), *self.parts_of(groups, batch, first_order)]
        return pa.RecordBatch.from_arrays(columns, names=self.part_schema_names), groups.first_rows

    def merged(self, runs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return one partial result per key of all runs; the runs are of one schema."""
        batch = runs[0] if len(runs) == 1 else pa.concat_batches(runs)
        keys = [batch.column(index) for index in range(len(self.key_columns))]
        groups = Groups.of(keys)
        columns = [*(groups.take_keys(key) for key in keys), *self.merged_parts(groups, batch)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def window_results(self, merged: pa.RecordBatch, window_start: int) -> Batch:
        """Return the result records of one window."""
        starts = np.full(merged.num_rows, window_start, dtype=np.int64)
        return self.results(merged, starts, starts + self.layout.size_ms)

    def empty_partial_results(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return no partial results, of the schema that records of ``schema`` give."""
        keys, parts = self.empty_columns(schema)
        return pa.RecordBatch.from_arrays([*keys, *parts], names=self.part_schema_names)
