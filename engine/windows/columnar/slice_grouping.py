"""How windows and slices lie on the axis of time, and the way from records to partial results per key and slice, and
from those to the results of windows.

Both phases of windowed aggregates on columns (`headrace.engine.windows.columnar.slices`) work with this: names, checks
and kernels, no state and no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.errors import ProgramError

from ...columns.grouping import Groups
from ...columns.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Batch, Timestamps
from ...functions.aggregates.contract import Aggregate
from ...functions.keys import KeySelector
from .window_grouping import WindowGrouping

__all__ = ["SliceGrouping", "SliceLayout"]


class SliceLayout:
    """How windows and slices lie on the axis of time; all arguments and results in epoch milliseconds.

    Args:
        size_ms: Length of a window.
        slide_ms: Distance between the starts of windows; equal to the size for tumbling windows.
        offset_ms: Start of one of the windows.

    Raises:
        ProgramError: If size or slide are not positive.
    """

    __slots__ = ("offset_ms", "size_ms", "slide_ms", "width_ms")

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int = 0) -> None:
        if size_ms <= 0 or slide_ms <= 0:
            message = f"size and slide of a window must be positive; got {size_ms} ms and {slide_ms} ms"
            raise ProgramError(message)
        self.size_ms = size_ms
        self.slide_ms = slide_ms
        self.offset_ms = offset_ms % slide_ms
        self.width_ms = math.gcd(size_ms, slide_ms)

    @classmethod
    def of(cls, assigner: Any) -> SliceLayout:
        """Return the layout of a tumbling or sliding event-time window assigner.

        Raises:
            ProgramError: If windows of this kind are not made of slices.
        """
        size = getattr(assigner, "size_ms", None)
        if size is None or not assigner.is_event_time():
            message = f"windows on columns must be tumbling or sliding windows of event time; got {assigner!r}"
            raise ProgramError(message)
        return cls(size, getattr(assigner, "slide_ms", size), getattr(assigner, "offset_ms", 0))

    @property
    def has_gaps(self) -> bool:
        """Whether there are times that no window covers."""
        return self.slide_ms > self.size_ms

    def slice_indices(self, timestamps: Timestamps) -> tuple[npt.NDArray[np.int64], int]:
        """For each time the index of its slice, counted from the first slice in use, and the start of that slice."""
        width = self.width_ms
        low = int(timestamps.min())
        base = low - (low - self.offset_ms) % width
        return (timestamps - base) // width, base

    def windows_between(self, slice_start: int, after_ms: int, until_ms: int) -> range:
        """Return the starts of the windows over a slice whose last millisecond lies in (after_ms, until_ms], oldest
        first.
        """
        lowest = max(slice_start, after_ms + 1) - self.size_ms + 1
        highest = min(slice_start, until_ms - self.size_ms + 1)
        return range(lowest + (self.offset_ms - lowest) % self.slide_ms, highest + 1, self.slide_ms)

    def slices(self, window_start: int) -> range:
        """Return the starts of a window's slices."""
        return range(window_start, window_start + self.size_ms, self.width_ms)

    def in_gap(self, timestamps: Timestamps) -> npt.NDArray[np.bool_]:
        """Return which times no window covers."""
        return (timestamps - self.offset_ms) % self.slide_ms >= self.size_ms

    def first_open_time(self, watermark_ms: int, allowed_lateness_ms: int) -> int:
        """Return the earliest time whose newest window is not past; all windows over earlier times are."""
        last_past_start = watermark_ms - allowed_lateness_ms + 1 - self.size_ms
        periods = (last_past_start - self.offset_ms) // self.slide_ms + 1
        return max(periods * self.slide_ms + self.offset_ms, MIN_TIMESTAMP)

    def cleanup_time(self, slice_start: int, allowed_lateness_ms: int) -> int:
        """Return the watermark at which the newest window over a slice is past, and the slice with it."""
        newest = slice_start - (slice_start - self.offset_ms) % self.slide_ms
        return min(newest + self.size_ms - 1 + allowed_lateness_ms, MAX_TIMESTAMP)


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
