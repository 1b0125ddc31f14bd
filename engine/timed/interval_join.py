"""The interval join of tables: pairs of rows with equal keys whose event times are near enough to each other.

A left row at ``l`` and a right one at ``r`` make a pair if ``l + low <= r <= l + high``. Pairs go out as soon as both
rows are there; a row that finds none goes out with nulls, or as it is, when the watermark says that none will come. So
what is out stays: the result only gains rows, for outer joins, too. A row is kept as long as one that is not late can
make a pair with it. A row at or behind the watermark is late: it is dropped and counted in
``num_late_records_dropped``.

The result has the times of its left rows. As these may be behind the watermark, by no more than the bounds, that is
held back so far. Null is no key: nothing is joined by it.

Joins of rows in windows are interval joins of no width, by the time at which their windows end.

Source: Flink's ``TimeIntervalJoin``, ``WindowJoinOperator``. The join of records with a function of Python is
`headrace.engine.joins.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..changelog.changes import check_names, columns_of, plain_schema, signs_of
from ..changelog.join_type import JoinType
from ..columns.expressions import Expression
from ..columns.records import MAX_TIMESTAMP, MAX_WATERMARK, MIN_TIMESTAMP, Batch, Watermark
from ..functions.operator import TABLE_LOOPS, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from ..operators.event_time import OperatorWatermark

if TYPE_CHECKING:
    from .interval_state import IntervalState

__all__ = ["IntervalJoinOfTables"]


class IntervalJoinOfTables(Operator):
    """Joins two keyed inputs by nearness in event time.

    Args:
        how: As of `JoinType`.
        keys: Names of the keys' columns, of both inputs; their types are the same.
        times: The columns of event time, of both inputs.
        bounds_ms: How far a right row's time is from the left one's at least, and at most.
        schemas: Types of the records, of both inputs.
        projection: What pairs are made of: the input, the column, and its name; of semi and anti joins only left
            columns go out.
        condition: What else is true of a pair, over its names; None for nothing.

    Raises:
        ProgramError: If a column is not there, times are none, or the bounds are the wrong way round.
    """

    may_change_records = False
    face = "columns"
    keyed = True
    keeps_columns = True
    compiled_loops = TABLE_LOOPS

    def __init__(
        self,
        how: str,
        keys: tuple[Sequence[str], Sequence[str]],
        times: tuple[str, str],
        bounds_ms: tuple[int, int],
        *,
        schemas: tuple[pa.Schema, pa.Schema],
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None = None,
    ) -> None:
        self.join_type = JoinType(how)
        self.keys = keys
        self.times = times
        self.bounds_ms = bounds_ms
        self.schemas = schemas
        self.projection = tuple(projection)
        self.condition = condition
        self._plain = (plain_schema(schemas[0]), plain_schema(schemas[1]))
        if bounds_ms[0] > bounds_ms[1]:
            message = f"an interval's lower bound must not be above its upper bound; got {bounds_ms} ms"
            raise ProgramError(message)
        for side in (0, 1):
            check_names("keys", keys[side], schemas[side])
            check_names("projection", [column for at, column, _ in self.projection if at == side], schemas[side])
            check_names("times", [times[side]], schemas[side])
            if not pa.types.is_timestamp(self._plain[side].field(times[side]).type):
                message = f"rows are near in event time; {times[side]!r} is no time"
                raise ProgramError(message)

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        sides = {0} if self.join_type.gives_left_rows else {0, 1}
        return pa.schema(
            [(name, self._plain[side].field(column).type) for side, column, name in self.projection if side in sides]
        )

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            from .interval_state import IntervalState

            self._watermark = OperatorWatermark.of(context)
            # How far the times of what goes out may be behind the watermark.
            self._held_back_ms = max(0, -self.bounds_ms[0], self.bounds_ms[1])
            self._state: IntervalState = IntervalState(
                context.keyed_state, self.join_type, self._plain, self.keys, self.times, self.bounds_ms,
                self.projection, self.condition, self.output_schema(),
            )  # fmt: skip

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        with naming_operator(self.context):
            signs_of(batch, takes_back=False)
            rows = columns_of(batch, self.schemas[input_index], self._plain[input_index])
            watermark_ms = self._watermark.current_ms
            num_late, made = self._state.add(rows, input_index, watermark_ms)
            for one in made:
                self.context.output.emit(one)
        if num_late:
            from .times import late_among

            self.context.reject_late(num_late, lambda: late_among(rows, self.times[input_index], watermark_ms))

    def process_watermark(self, watermark: Watermark) -> None:
        if not self._watermark.advance(watermark.timestamp_ms):
            return
        is_end = watermark.timestamp_ms == MAX_TIMESTAMP
        with naming_operator(self.context):
            made = self._state.end_time() if is_end else self._state.pass_time(watermark.timestamp_ms)
            for one in made:
                self.context.output.emit(one)
        out = max(watermark.timestamp_ms - self._held_back_ms, MIN_TIMESTAMP)
        self.context.output.emit_watermark(MAX_WATERMARK if is_end else Watermark(out))

    def snapshot_state(self, checkpoint_id: int) -> None:
        with naming_operator(self.context):
            self._watermark.snapshot()
            self._state.persist()

    def __repr__(self) -> str:
        keys = ", ".join(f"{one} = {other}" for one, other in zip(*self.keys, strict=True))
        return f"IntervalJoinOfTables({self.join_type.value}: {keys}; {self.bounds_ms[0]} to {self.bounds_ms[1]} ms)"
