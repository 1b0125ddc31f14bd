"""OVER on a stream: each row with what the rows before it come to, in the order of event time.

A row waits until the watermark has passed its time. Then all that came for its partition is known up to it; rows are
put in order, those of one time as they have come, and each goes out once, with its columns. What is out stays, so the
result only gains rows, and goes on in event time: it carries the rows' times. A row at or behind the watermark is late:
it is dropped and counted in ``num_late_records_dropped``.

What is kept of rows that are out is what later ones ask for: frames that begin so many rows before keep the last rows
of each partition, those that begin so long before keep rows until the watermark is past all frames they are in, and
those that begin with the partition keep what the aggregates have come to. With a time to live a partition is forgotten
in which nothing was written for so long, by the clock; rows that wait are given first.

A program that goes on from a checkpoint in which more was out than its watermark says (after the end of event time, or
as barriers overtook watermarks) may get rows of before them; they are computed with the rows that are kept.

Invariant: what is out are the rows whose times the watermark has passed, each once.

Source: Flink's ``RowTimeRowsBoundedPrecedingFunction``, ``RowTimeRangeBoundedPrecedingFunction`` and
``AbstractRowTimeUnboundedPrecedingOver``; frames begin before the row or with it, and end with it, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..changelog.changes import check_names, columns_of, plain_schema, require_one_subtask
from ..columns.records import Batch, Watermark
from ..frames.frame_calls import Frame, output_type
from ..functions.operator import FRAME_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from ..operators.event_time import OperatorWatermark
from .kept import kept_for

if TYPE_CHECKING:
    from .over_by_time_state import OverState

__all__ = ["OverAggregate"]


class OverAggregate(Operator):
    """Passes rows, each with columns of its place, its neighbours or its frame in its partition.

    Args:
        partition_keys: Names of the partition's columns, by which the input is keyed; none for one partition, in one
            subtask.
        time: The column that is the rows' event time: they are ordered by it.
        columns: What is computed, by the name of its column: places, neighbours before, or aggregates; all of one kind.
        input_schema: Type of the records.
        frame: Which rows aggregates see; None for all up to the row and those of its time.
        ttl_ms: How long that is kept of a partition which later rows ask for, while nothing is written; 0 for ever.
            Frames that begin so long before a row go by the watermark alone.

    Raises:
        ProgramError: If a column is not there, a name is taken, or a row would have to wait for later ones.
        TypeMismatchError: If something does not exist for the types.
    """

    may_change_records = False
    face = "columns"
    keyed = True
    keeps_columns = True
    compiled_loops = FRAME_LOOPS

    def __init__(
        self,
        partition_keys: Sequence[str],
        time: str,
        columns: Mapping[str, Any],
        *,
        input_schema: pa.Schema,
        frame: Frame | None = None,
        ttl_ms: int = 0,
    ) -> None:
        self.partition_keys = tuple(partition_keys)
        self.time = time
        self.columns = dict(columns)
        self.input_schema = input_schema
        self._schema = plain_schema(input_schema)
        check_names("partition by", self.partition_keys, input_schema)
        check_names("order by", [time], input_schema)
        kind = self._schema.field(time).type
        if not pa.types.is_timestamp(kind):
            message = f"rows are ordered by event time; {time!r} is {kind}"
            raise ProgramError(message)
        self.frame = None if frame is None else frame.in_units_of(kind)
        self.kept = kept_for(self.columns, self.frame)
        self.ttl_ms = ttl_ms
        taken = [name for name in self.columns if name in input_schema.names]
        if taken:
            message = f"column {taken[0]!r} is there already; the new one needs another name"
            raise ProgramError(message)
        self._output = pa.schema(
            [*self._schema, *(pa.field(name, output_type(one, self._schema)) for name, one in self.columns.items())]
        )

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._output

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            if not self.partition_keys:
                require_one_subtask(context)
            from ..tables.lifetime import lifetime_of
            from .over_by_time_state import OverState

            self._watermark = OperatorWatermark.of(context)
            self._state: OverState = OverState(
                context.keyed_state, self._schema, self.partition_keys, self.time, self.columns, self.frame, self.kept,
                lifetime_of(context, self.ttl_ms),
            )  # fmt: skip

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            rows, watermark_ms = columns_of(batch, self.input_schema, self._schema), self._watermark.current_ms
            num_late = self._state.add(rows, watermark_ms)
        if num_late:
            from .times import late_among

            self.context.reject_late(num_late, lambda: late_among(rows, self.time, watermark_ms))

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        with naming_operator(self.context):
            # At the end of event time only what could be forgotten before: a program may go on from there.
            for rows, new, times in self._state.pass_time(watermark.timestamp_ms, self._watermark.kept_ms):
                arrays = [*rows, *(array.cast(field.type) for array, field in zip(new, self._new_fields, strict=True))]
                self.context.output.emit(
                    Batch.of_columns(pa.RecordBatch.from_arrays(arrays, schema=self._output), times)
                )
        self.context.output.emit_watermark(watermark)

    @property
    def _new_fields(self) -> list[pa.Field]:
        return [self._output.field(name) for name in self.columns]

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._watermark.snapshot()
            self._state.persist()

    def __repr__(self) -> str:
        return f"OverAggregate({', '.join(self.partition_keys)}; {self.time}; {', '.join(self.columns)}; {self.frame})"
