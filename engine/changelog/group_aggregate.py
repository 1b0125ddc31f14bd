"""GROUP BY over changes: one row for each key that has records, kept up to date.

For each batch and key one net change goes out: +I when the key's first record comes, -U and +U when a result has
changed, -D when the last record is taken back, nothing when all results are as they were. Without keys there is one
group, which has a row from its first record on, for good: count is 0 and everything else null when no record is left.

Counts, sums and averages can be taken back as they are; distinct counts, and the smallest and largest values of inputs
that take rows back, are made of counts of values; lists, percentiles, first and last values of such inputs are made of
all values in order.

Invariant: the rows that are out are those of the records that have come and were not taken back.

Source: Flink's ``GroupAggFunction`` and ``MiniBatchGroupAggFunction``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..columns.records import Batch
from ..functions.aggregates.contract import Aggregate, checked_aggregates
from ..functions.aggregates.distinct import OfDistinct
from ..functions.aggregates.user_defined import ColumnFunction, UserAggregate
from ..functions.operator import Operator, OperatorContext
from ..operators.columnar import naming_operator
from .changes import check_names, columns_of, emit_changes, parts_of, plain_schema, require_one_subtask, signs_of
from .replay import Replay
from .value_arguments import RECORDS, is_of_list

if TYPE_CHECKING:
    from .grouped_state import GroupedState

__all__ = ["GroupAggregate"]

_CAN_TAKE_BACK = frozenset(["count", "sum", "avg", "min", "max", "count_distinct"])


class GroupAggregate(Operator):
    """Aggregates by key, over changes, or over partial results of a phase in front of it.

    Emits the key columns, then the aggregates, without event times.

    Args:
        keys: Names of the key's columns, by which the input is keyed; none for one group, in one subtask.
        aggregates: By the name of their result column; may be empty if there are keys.
        input_schema: Type of the records.
        takes_back: Whether changes may take records back; if not, no counts are kept that only this needs.
        ttl_ms: How long a group is kept that has no change, by the clock; 0 for ever.

    Raises:
        ProgramError: If a column is not there, names collide, or an aggregate cannot be taken back.
        TypeMismatchError: If an aggregate does not exist for a type.
    """

    may_change_records = False
    keyed = True
    keeps_columns = True
    takes_changes = True
    replays: str | None = None
    """A token, if it is to give all its rows once more when it goes on from what was kept."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        input_schema: pa.Schema,
        takes_back: bool,
        ttl_ms: int = 0,
    ) -> None:
        self.keys = tuple(keys)
        self.aggregates = checked_aggregates(aggregates) if aggregates or not keys else {}
        self.input_schema = input_schema
        self._schema = plain_schema(input_schema)
        self.takes_back = takes_back
        self.ttl_ms = ttl_ms
        check_names("group by", self.keys, input_schema)
        twice = [name for name in self.aggregates if name in self.keys]
        if twice:
            message = f"column {twice[0]!r} is a key; no aggregate can have its name"
            raise ProgramError(message)
        for name, aggregate in self.aggregates.items():
            inner = aggregate.inner if isinstance(aggregate, OfDistinct) else aggregate
            if isinstance(inner, ColumnFunction):
                message = f"{name} = {aggregate!r} takes all rows of a group at once; groups of a stream never end"
                raise ProgramError(message, hint="group by a window, or use batch mode or a function of accumulators")
            if takes_back and not _can_take_back(aggregate):
                message = f"{name} = {aggregate!r} is for inputs that take no rows back"
                raise ProgramError(message, hint=_hint(aggregate))
        self._output_schema = self._find_output_schema()

    def _find_output_schema(self) -> pa.Schema:
        results = [pa.field(name, one.output_type(self._schema)) for name, one in self.aggregates.items()]
        return pa.schema([*(self._schema.field(key) for key in self.keys), *results])

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return self._output_schema

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        with naming_operator(context):
            if not self.keys:
                require_one_subtask(context)
            from .grouped_state import GroupedState

            self._state: GroupedState = GroupedState(
                context, self.keys, self.aggregates, self._schema,
                takes_back=self.takes_back, ttl_ms=self.ttl_ms,
            )  # fmt: skip
            self._replay = Replay(context, self.replays, self._give_all)

    def _give_all(self) -> None:
        with naming_operator(self.context):
            for arrays in self._state.all_rows():
                rows = pa.RecordBatch.from_arrays(arrays, schema=self._output_schema)
                self.context.output.emit(Batch.of_columns(rows))

    def next_processing_time(self) -> int | None:
        return self._replay.due_ms

    def on_processing_time(self, now_ms: int) -> None:
        self._replay.run()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self._replay.run()

    def finish(self) -> None:
        self._replay.run()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        self._replay.run()
        with naming_operator(self.context):
            is_partial = self._is_partial(batch)
            signs = signs_of(batch, takes_back=self.takes_back)
            records = batch.columns if is_partial else columns_of(batch, self.input_schema, self._schema)
            parts = self._state.residents.parts(self._state.key_columns(records), records.num_rows)
            for part, part_signs, _ in parts_of(parts, records, signs):
                arrays, kinds = self._state.process(part, part_signs, is_partial=is_partial)
                emit_changes(self.context, pa.RecordBatch.from_arrays(arrays, schema=self._output_schema), kinds)

    def _is_partial(self, batch: Batch) -> bool:
        """Whether a batch is of partial results of `headrace.engine.changelog.local_aggregate`."""
        return batch.schema is not None and RECORDS in batch.schema.names and RECORDS not in self._schema.names

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._replay.snapshot()
        with naming_operator(self.context):
            self._state.persist_all()

    def __repr__(self) -> str:
        return f"GroupAggregate({', '.join(self.keys)})"


def _can_take_back(aggregate: Aggregate) -> bool:
    if isinstance(aggregate, OfDistinct):
        return _can_take_back(aggregate.inner)
    if isinstance(aggregate, UserAggregate):
        return aggregate.can_take_back
    return aggregate.name in _CAN_TAKE_BACK or is_of_list(aggregate)


def _hint(aggregate: Aggregate) -> str:
    if isinstance(aggregate, OfDistinct):
        return _hint(aggregate.inner)
    if isinstance(aggregate, UserAggregate):
        return f"give {aggregate.label} a method retract(accumulator, ...)"
    return "count, sum, avg, min, max, count_distinct, lists, percentiles, first and last values are for all inputs"
