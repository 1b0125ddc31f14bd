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

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.errors import ProgramError

from ..columns.records import Batch, RowKinds
from ..functions.aggregates.contract import Aggregate, checked_aggregates
from ..functions.aggregates.distinct import OfDistinct
from ..functions.aggregates.user_defined import ColumnFunction, UserAggregate
from ..functions.operator import KeyFields, OperatorContext
from ..operators.column_operators import naming_operator
from .accumulators.value_arguments import RECORDS, is_of_list
from .by_key import ReplayingInput
from .changes import check_names, require_one_subtask

if TYPE_CHECKING:
    from ..tables.columns import Integers
    from .grouped_state import GroupedState

__all__ = ["GroupAggregate"]

_CAN_TAKE_BACK = frozenset(["count", "sum", "avg", "min", "max", "count_distinct"])


class GroupAggregate(ReplayingInput):
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

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        input_schema: pa.Schema,
        takes_back: bool,
        ttl_ms: int = 0,
    ) -> None:
        super().__init__(input_schema, takes_back=takes_back)
        self.keys = tuple(keys)
        self.aggregates = checked_aggregates(aggregates) if aggregates or not keys else {}
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

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        return frozenset(keys) & {self.keys}

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

    def _columns_of(self, batch: Batch, input_index: int) -> pa.RecordBatch:
        return batch.columns if self._is_partial(batch.schema) else super()._columns_of(batch, input_index)

    def _process(
        self, part: pa.RecordBatch, signs: Integers | None, kinds: RowKinds | None, input_index: int
    ) -> Iterable[Batch]:
        return self._changes(*self._state.process(part, signs, is_partial=self._is_partial(part.schema)))

    def _is_partial(self, schema: pa.Schema | None) -> bool:
        """Whether records are partial results of `headrace.engine.changelog.local_aggregate`."""
        return schema is not None and RECORDS in schema.names and RECORDS not in self._schema.names

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
