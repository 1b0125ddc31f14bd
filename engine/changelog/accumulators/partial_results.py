"""What batches come to, as columns: a row for each group, which `headrace.engine.changelog.grouped_state` merges.

A partial result has the group's key, the number of its records (those that are taken back less), the parts of its
aggregates, and for each argument whose values are counted a list of them, each with its counts.

Source: Flink's ``MiniBatchLocalGroupAggFunction``, whose partial results are accumulators as rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa

from headrace.state.errors import HeadraceError, InternalError

from ...functions.aggregates.contract import Aggregate
from ...tables.columns import Integers
from ...tables.key_index import KeyIndex, LocalCodes
from .contract import Accumulator, FoldedAccumulator, Touched, folded
from .counted_values import AskedValues
from .group_accumulators import accumulator_of
from .value_arguments import RECORDS, is_of_values

__all__ = ["Folding", "PartialColumns"]

_MOST_KEYS = 65_536

_MOST_GROUPS = 0.3
_MOST_VALUES = 0.1
"""Groups, and values of theirs that are counted, for a record, up to which folding is cheaper than not folding, by
``tests/bench/group_phases.py``. To count values costs as much in front of the shuffle as behind it."""


class PartialColumns:
    """The columns of partial results.

    Args:
        keys: Names and types of the key's columns.
        accumulators: How aggregates are kept, by name; there are no parts of those that are not folded.
        values: Which values are counted.
    """

    def __init__(self, keys: Sequence[pa.Field], accumulators: Mapping[str, Accumulator], values: AskedValues) -> None:
        self._parts = {
            name: [pa.field(f"{name}${part.name}", part.type) for part in accumulator.parts]
            for name, accumulator in accumulators.items()
            if isinstance(accumulator, FoldedAccumulator)
        }
        self._values = values.parts
        parts = [part for fields in self._parts.values() for part in fields]
        self.schema = pa.schema([*keys, pa.field(RECORDS, pa.int64()), *parts, *self._values])

    def num_records(self, batch: pa.RecordBatch) -> Integers:
        """Return how many records each row counts for."""
        numbers: Integers = batch.column(RECORDS).to_numpy()
        return numbers

    def parts_of(self, name: str, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the parts of an aggregate."""
        return [batch.column(part.name) for part in self._parts[name]]

    def values_of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the values that are counted."""
        return [batch.column(part.name) for part in self._values]


class Folding:
    """Folds batches: of each group that a batch touches, what its records come to. Nothing is kept between batches.

    Args:
        keys: Names of the key's columns.
        aggregates: By name.
        schema: Of the records.
        takes_back: Whether records are taken back.
    """

    def __init__(
        self, keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema, *, takes_back: bool
    ) -> None:
        self._keys = [schema.field(key) for key in keys]
        self._aggregates = aggregates
        self._values = AskedValues(aggregates, schema, takes_back=takes_back)
        self._accumulators = {
            name: folded(
                accumulator_of(aggregate, schema, takes_back=takes_back, next_order=lambda: 0, values_of=_refuse_values)
            )
            for name, aggregate in aggregates.items()
            if not is_of_values(aggregate, takes_back=takes_back)
        }
        self._columns = PartialColumns(self._keys, self._accumulators, self._values)
        self._local = LocalCodes()
        self._begin()

    def _begin(self) -> None:
        # Keys of earlier batches keep their codes: they come again, and are found faster than they are added.
        self._index = KeyIndex([key.type for key in self._keys])

    def pays(self, folded: pa.RecordBatch, num_records: int) -> bool:
        """Return whether folding so many records to these partial results was cheaper than sending them."""
        num_values = max((len(one.values) for one in self._columns.values_of(folded)), default=0)
        return folded.num_rows <= _MOST_GROUPS * num_records and num_values <= _MOST_VALUES * num_records

    def fold(self, batch: pa.RecordBatch, signs: Integers | None) -> pa.RecordBatch:
        """Return the partial results of records.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.

        Raises:
            UserError: As expressions do; naming the aggregate.
        """
        if len(self._index) > _MOST_KEYS:
            self._begin()
        codes, _ = self._index.codes_of([batch.column(key.name) for key in self._keys], batch.num_rows)
        touched = Touched(*self._local.of(codes, len(self._index)), signs)
        net = np.bincount(touched.local, signs, len(touched.groups)).astype(np.int64)
        columns = [*self._index.take(touched.groups), pa.array(net)]
        for name, accumulator in self._accumulators.items():
            try:
                columns += accumulator.fold(batch, touched)
            except HeadraceError as error:
                error.context.setdefault("aggregate", f"{name} = {self._aggregates[name]!r}")
                raise
        columns += self._values.fold(batch, touched)
        return pa.RecordBatch.from_arrays(columns, schema=self._columns.schema)


def _refuse_values(aggregate: Aggregate) -> NoReturn:
    message = f"{aggregate!r} reads counts of values, which partial results do not have"
    raise InternalError(message)
