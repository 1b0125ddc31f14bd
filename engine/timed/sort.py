"""ORDER BY event time on a stream: rows go out in the order of their times.

A row waits until the watermark has passed its time. Then no earlier one can come that is not late, and it goes out:
by its time, among rows of one time by the other columns of the order, and where these are equal as they have come.
What is out stays, so the result only gains rows; it carries the rows' times. A row at or behind the watermark is late:
it would come behind later ones. It is dropped and counted in ``num_late_records_dropped``.

There is one order of all rows, so there is one subtask. Nothing is kept of rows that are out.

Invariant: what is out are the rows whose times the watermark has passed, each once, in order.

Source: Flink's ``StreamExecTemporalSort`` and ``RowTimeSortOperator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..changelog.changes import check_names, columns_of, plain_schema, require_one_subtask
from ..columns.records import Batch, Watermark
from ..functions.operator import TABLE_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from ..operators.event_time import OperatorWatermark

if TYPE_CHECKING:
    from .sort_state import SortState

__all__ = ["TemporalSort"]


class TemporalSort(Operator):
    """Passes rows in the order of event time.

    Args:
        orders: What rows go by: column, whether the smallest comes first, and whether null comes first (None for
            Flink's default: first if ascending, else last). The first one is their event time, ascending.
        input_schema: Type of the records.

    Raises:
        ProgramError: If a column is not there, or the first is no time or descends.
    """

    may_change_records = False
    face = "columns"
    keyed = True
    keeps_columns = True
    compiled_loops = TABLE_LOOPS

    def __init__(self, orders: Sequence[tuple[str, bool, bool | None]], *, input_schema: pa.Schema) -> None:
        self.orders = tuple(orders)
        self.input_schema = input_schema
        self._schema = plain_schema(input_schema)
        check_names("order by", [column for column, _, _ in self.orders], input_schema)
        time, is_ascending, _ = self.orders[0]
        if not is_ascending or not pa.types.is_timestamp(self._schema.field(time).type):
            message = f"rows of a stream are ordered by event time first, ascending; got {self.orders[0]!r}"
            raise ProgramError(message)

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output: that of the input."""
        return self._schema

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            require_one_subtask(context)
            from .sort_state import SortState

            self._watermark = OperatorWatermark.of(context)
            self._state: SortState = SortState(context.keyed_state, self._schema, self.orders)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            rows, watermark_ms = columns_of(batch, self.input_schema, self._schema), self._watermark.current_ms
            num_late = self._state.add(rows, watermark_ms)
        if num_late:
            from .times import late_among

            self.context.reject_late(num_late, lambda: late_among(rows, self.orders[0][0], watermark_ms))

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        with naming_operator(self.context):
            for rows, times in self._state.pass_time(watermark.timestamp_ms):
                columns = pa.RecordBatch.from_arrays(rows, schema=self._schema)
                self.context.output.emit(Batch.of_columns(columns, times))
        self.context.output.emit_watermark(watermark)

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._watermark.snapshot()
            self._state.persist()

    def __repr__(self) -> str:
        orders = ", ".join(f"{column} {'asc' if ascending else 'desc'}" for column, ascending, _ in self.orders)
        return f"TemporalSort({orders})"
