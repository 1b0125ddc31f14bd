"""The temporal join of tables: each row with the version of its key that was valid at the row's event time.

The second input is versions: one is valid from its time until the next one of its key, or until a change says that the
key is gone. A row waits until the watermark of both inputs has passed its time; then it is known which version that
was, and it goes out once, in the order of its key's times, with its event time. What is out stays, so the result only
gains rows. A row at or behind the watermark is late: it is dropped and counted in ``num_late_records_dropped``. A
version that comes late counts for the rows that wait.

Of versions that have begun the last one of each key is kept, also where it says that the key is gone, so state grows
with keys. Of two versions of a key with the same time the one that came last counts. Null is no key: nothing is joined
by it. With a time to live all versions of a key are forgotten for which neither a row nor a version came, nor a row
went out, for so long by the clock.

Source: Flink's ``TemporalRowTimeJoinOperator``; it joins late rows with what is left of the versions. The join of
records with a function of Python is `headrace.engine.joins.temporal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.state.errors import ProgramError

from ..changelog.changes import check_names, columns_of, plain_schema
from ..columns.conditions import require_condition, where_true
from ..columns.expressions import Expression
from ..columns.records import Batch, RowKind, Watermark
from ..functions.operator import TABLE_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from ..operators.event_time import OperatorWatermark

if TYPE_CHECKING:
    from .temporal_state import TemporalState

__all__ = ["TemporalJoinOfTables"]


class TemporalJoinOfTables(Operator):
    """Joins rows (input 0) with versions (input 1), both keyed.

    Args:
        keys: Names of the keys' columns, of both inputs; their types are the same.
        times: The columns of event time, of both inputs.
        schemas: Types of the records, of both inputs.
        is_left: Whether a row without a version goes out with nulls, instead of being left out.
        projection: What goes out: pairs of the input and the column, and the name.
        condition: What must be true of a row and its version, over those names, or it has none; None for nothing.
        ttl_ms: How long the versions of a key live for which nothing is written; 0 for ever.

    Raises:
        ProgramError: If a column is not there, or times are none.
        TypeMismatchError: If the condition is none.
    """

    may_change_records = False
    face = "columns"
    keyed = True
    keeps_columns = True
    takes_changes = True
    compiled_loops = TABLE_LOOPS

    def __init__(
        self,
        keys: tuple[Sequence[str], Sequence[str]],
        times: tuple[str, str],
        *,
        schemas: tuple[pa.Schema, pa.Schema],
        is_left: bool,
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None = None,
        ttl_ms: int = 0,
    ) -> None:
        self.keys = keys
        self.ttl_ms = ttl_ms
        self.condition = condition
        self.times = times
        self.schemas = schemas
        self.is_left = is_left
        self.projection = tuple(projection)
        self._plain = (plain_schema(schemas[0]), plain_schema(schemas[1]))
        for side in (0, 1):
            check_names("keys", keys[side], schemas[side])
            check_names("projection", [column for at, column, _ in self.projection if at == side], schemas[side])
            check_names("times", [times[side]], schemas[side])
            if not pa.types.is_timestamp(self._plain[side].field(times[side]).type):
                message = f"the versions of a row go by event time; {times[side]!r} is no time"
                raise ProgramError(message)
        if condition is not None:
            require_condition(condition, condition.output_type(self.output_schema()), "join")

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return pa.schema([(name, self._plain[side].field(column).type) for side, column, name in self.projection])

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from ..tables.lifetime import lifetime_of
            from .temporal_state import TemporalState

            self._watermark = OperatorWatermark.of(context)
            self._state: TemporalState = TemporalState(
                context.keyed_state, self._plain, self.keys, self.times, lifetime_of(context, self.ttl_ms)
            )

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            kinds = batch.row_kinds
            if input_index == 0 and kinds is not None and kinds.any():
                message = "rows that are updated or taken back have no version of their time"
                raise ProgramError(message, hint="put the temporal join below GROUP BY, Top-N or outer joins")
            rows = columns_of(batch, self.schemas[input_index], self._plain[input_index])
            if input_index == 1:
                if kinds is not None:  # what is replaced need not be taken back: a later version counts
                    is_kept = kinds != RowKind.UPDATE_BEFORE
                    rows, kinds = rows.filter(pa.array(is_kept)), kinds[is_kept]
                is_gone = np.zeros(rows.num_rows, np.bool_) if kinds is None else kinds == RowKind.DELETE
                self._state.add_versions(rows, is_gone)
                return
            watermark_ms = self._watermark.current_ms
            num_late = self._state.add_rows(rows, watermark_ms)
        if num_late:
            from .times import late_among

            self.context.reject_late(num_late, lambda: late_among(rows, self.times[0], watermark_ms))

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        with naming_operator(self.context):
            pairs = self._state.pass_time(watermark.timestamp_ms, self._watermark.kept_ms, is_left=self.is_left)
            for left, right, times in pairs:
                sides = (left, right)
                arrays = [sides[side][self._plain[side].names.index(column)] for side, column, _ in self.projection]
                columns = pa.RecordBatch.from_arrays(arrays, schema=self.output_schema())
                self.context.output.emit(self._matched(Batch.of_columns(columns, times)))
        self.context.output.emit_watermark(watermark)

    def _matched(self, pairs: Batch) -> Batch:
        """Rows with their versions, as far as the condition is true of both."""
        if self.condition is None:
            return pairs
        columns = pairs.columns_as(None)
        is_true = where_true(self.condition, columns, "join")
        if is_true.all() or not self.is_left:
            return pairs.filter(is_true)
        places = pa.array(np.arange(len(is_true)), mask=~is_true)
        arrays = [
            column.take(places) if side else column
            for (side, _, _), column in zip(self.projection, columns.columns, strict=True)
        ]
        return Batch.of_columns(pa.RecordBatch.from_arrays(arrays, schema=columns.schema), pairs.timestamps)

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._watermark.snapshot()
            self._state.persist()

    def __repr__(self) -> str:
        keys = ", ".join(f"{one} = {other}" for one, other in zip(*self.keys, strict=True))
        return f"TemporalJoinOfTables({keys}; {self.times[0]}; {'left' if self.is_left else 'inner'})"
