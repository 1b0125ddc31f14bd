"""The clock's time as a column of rows: processing time.

Source: Flink's ``PROCTIME_MATERIALIZE``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..columns.records import Batch
from ..functions.operator import Operator

__all__ = ["PROCESSING_TIME", "StampRows"]

PROCESSING_TIME = pa.timestamp("ms", "UTC")
"""The type of processing time: TIMESTAMP_LTZ(3)."""


class StampRows(Operator):
    """Adds a column with the clock's time to rows as they come.

    Args:
        column: What it is called.
        of_event_time: Whether it is the rows' event time, which the clock has given them before, and not the clock's
            time now.
    """

    may_change_records = False
    face = "columns"

    def __init__(self, column: str, *, of_event_time: bool = False) -> None:
        self._column = column
        self._of_event_time = of_event_time

    def output_schema(self, input_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the output."""
        return input_schema.append(pa.field(self._column, PROCESSING_TIME))

    def process_batch(self, batch: Batch, input_index: int) -> None:
        times = batch.timestamps if self._of_event_time else None
        if times is None:
            times = np.full(batch.num_rows, self.context.now_ms(), np.int64)
        rows = batch.columns_as(None)
        stamps = pa.array(times).cast(PROCESSING_TIME)
        self.context.output.emit(Batch.of_columns(rows.append_column(self._column, stamps), batch.timestamps))

    def __repr__(self) -> str:
        return f"StampRows({self._column})"
