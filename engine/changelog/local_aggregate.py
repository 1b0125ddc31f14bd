"""The first of two phases of GROUP BY over changes: in front of the shuffle a batch is folded to a row for each key.

What goes to another process then, and what the second phase (`headrace.engine.changelog.group_aggregate`) has to look
up, are as many rows as a batch has keys. That pays where keys come again within a batch, and costs where they do not,
or where the values that are counted for them do not. So the phase looks what it has gained: when too much is left, the
next batches are passed on as they are, and one in some is folded to see whether that has changed. The second phase
takes both, in any order. A batch of very few keys is folded always: else one subtask would work for all.

Nothing is kept: what is folded goes out with its batch. So both plans, with this phase and without, have the same
state, and go on from each other's checkpoints.

Source: Flink's ``MiniBatchLocalGroupAggFunction``; that it stops where it does not pay is as in window aggregates of
Velox ("abandon partial aggregation").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ..columns.records import Batch
from ..functions.aggregates.contract import Aggregate
from ..functions.aggregates.distinct import OfDistinct
from ..functions.aggregates.user_defined import UserAggregate
from ..functions.operator import KeyFields, Operator, OperatorContext
from ..operators.column_operators import naming_operator
from .accumulators.value_arguments import RECORDS, is_of_list, is_of_values
from .changes import columns_of, plain_schema, signs_of

if TYPE_CHECKING:
    from .accumulators.partial_results import Folding

__all__ = ["LocalGroupAggregate", "why_in_one_phase"]

_IDLE = 4
"""Folded are also batches of so few keys that of so many subtasks all but one would be idle."""

_LEAST_RECORDS = 64
"""A batch of fewer records is passed on: there is little to gain."""

_TRIED_EVERY = 32
"""Where folding does not pay one of so many batches is folded all the same."""


def why_in_one_phase(
    keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema, *, takes_back: bool
) -> str | None:
    """Say what cannot be computed in two phases; None if all can.

    Args:
        keys: Names of the key's columns.
        aggregates: By name.
        schema: Of the records.
        takes_back: Whether records are taken back.
    """
    if RECORDS in schema.names:
        return f"column {RECORDS!r} is that of partial results"
    for name in keys:
        if name.startswith(("$values", *(f"{one}$" for one in aggregates))):
            return f"key {name!r} has a name like those of partial results"
    for aggregate in aggregates.values():
        why = _why_not_folded(aggregate, takes_back=takes_back)
        if why is not None:
            return f"{aggregate!r} {why}"
    return None


def _why_not_folded(aggregate: Aggregate, *, takes_back: bool) -> str | None:
    if isinstance(aggregate, OfDistinct):
        return None  # its values are counted, whatever is made of them
    if isinstance(aggregate, UserAggregate):
        if not aggregate.can_merge:
            return "has no method merge(accumulator, accumulators)"
        return "would have to take back what another batch has added" if takes_back else None
    if is_of_values(aggregate, takes_back=takes_back):
        return None
    if takes_back and is_of_list(aggregate):
        return "needs all values in order, as any of them may be taken back"
    return None if aggregate.is_mergeable else "depends on the order in which rows come"


class LocalGroupAggregate(Operator):
    """Folds batches of changes to partial results, by key; emits them, or the changes as they are.

    Args:
        keys: Names of the key's columns; none for one group.
        aggregates: By name; all of them can be folded (`why_in_one_phase`).
        input_schema: Type of the records.
        takes_back: Whether changes may take records back.
        adapts: Whether batches are passed on where folding does not pay.
    """

    may_change_records = False
    face = "columns"
    takes_changes = True

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, Aggregate],
        *,
        input_schema: pa.Schema,
        takes_back: bool,
        adapts: bool,
    ) -> None:
        self.keys = tuple(keys)
        self.aggregates = dict(aggregates)
        self.input_schema = input_schema
        self._schema = plain_schema(input_schema)
        self.takes_back = takes_back
        self.adapts = adapts

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        return frozenset(key for key in keys if set(key) <= set(self.keys))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # How many batches are passed on before one is folded again.
        self._num_passed_on = 0
        self._folded = context.metrics.counter("num_records_folded")
        with naming_operator(context):
            from .accumulators.partial_results import Folding

            self._folding: Folding = Folding(self.keys, self.aggregates, self._schema, takes_back=self.takes_back)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        if not self._folds(batch):
            self.context.output.emit(batch)
            return
        with naming_operator(self.context):
            signs = signs_of(batch, takes_back=self.takes_back)
            folded = self._folding.fold(columns_of(batch, self.input_schema, self._schema), signs)
        is_hot = _IDLE * folded.num_rows <= self.context.parallelism
        if not is_hot and not self._folding.pays(folded, batch.num_rows):
            self._num_passed_on = _TRIED_EVERY - 1
        self._folded.inc(batch.num_rows)
        self.context.output.emit(Batch.of_columns(folded))

    def _folds(self, batch: Batch) -> bool:
        if not self.adapts:
            return True
        if batch.num_rows < _LEAST_RECORDS:
            return False
        if self._num_passed_on:
            self._num_passed_on -= 1
            return False
        return True

    def __repr__(self) -> str:
        return f"LocalGroupAggregate({', '.join(self.keys)})"
