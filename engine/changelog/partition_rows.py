"""What OVER over changes keeps: the rows of each partition.

What a partition comes to is computed of its rows before a batch and of those after it, by the same steps, so that what
is taken back is what has been given, to the last bit. Nothing that was given is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..columns.records import RowKind, RowKinds
from ..frames.frame_calls import Frame
from ..frames.ordered_rows import first_of_runs
from ..frames.over_columns import OverColumns, by_distance, used_names
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, same_rows
from ..tables.expiring_rows import ExpiringRows
from ..tables.key_index import LocalCodes
from ..tables.ordering import sort_key, sorted_rows
from ..tables.resident_keys import ResidentKeys
from ..tables.run_log import LogRows
from .changes import refuse_unknown_row

__all__ = ["ChangingOverState"]

_MIN_DEAD = 1_024


class _Given(NamedTuple):
    """Rows of partitions with their new columns: those of a partition stand together, in order."""

    partitions: Integers
    ids: Integers
    columns: list[pa.Array]


class ChangingOverState:
    """The rows of one subtask.

    Args:
        context: The operator's.
        schema: Of the records.
        partition_keys: Names of the partition's columns.
        orders: Column, whether the smallest comes first, whether null does.
        columns: What is computed, and its type, by name.
        frame: Which rows aggregates see.
        ttl_ms: How long a partition lives in which nothing is written; 0 for ever.

    Attributes:
        residents: Which partitions are in memory.
        log: Where rows are kept.
    """

    def __init__(
        self,
        context: OperatorContext,
        schema: pa.Schema,
        partition_keys: Sequence[str],
        orders: Sequence[tuple[str, bool, bool | None]],
        columns: Mapping[str, tuple[Any, pa.DataType]],
        frame: Frame | None,
        ttl_ms: int = 0,
    ) -> None:
        keys = [schema.field(key) for key in partition_keys]
        self._schema = schema
        self._keys = list(partition_keys)
        self._orders = [(schema.names.index(column), ascending, nulls) for column, ascending, nulls in orders]
        self._columns = list(columns.values())
        self._used = [schema.names.index(name) for name in used_names({n: s for n, (s, _) in columns.items()}, schema)]
        self._used_schema = pa.schema([schema.field(index) for index in self._used])
        self._frame = frame
        self.residents = ResidentKeys(context.keyed_state, [key.type for key in keys])
        self._index = self.residents.index
        self._rows = ExpiringRows(context, keys, self._index, schema, ttl_ms, refuse_unknown_row)
        self._store = self._rows.store
        self.log = self._store.log
        self._local = LocalCodes()
        self.residents.attach(*self._rows.tables, self)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch, signs: Integers | None) -> tuple[list[pa.Array], RowKinds]:
        """Take records; returns the changes of the result: its columns, and kinds.

        Args:
            batch: The records.
            signs: -1 for those that are taken back; None if none is.

        Raises:
            UserFunctionError: If one is taken back that was not there.
        """
        codes = self.residents.codes_of(self.key_columns(batch), batch.num_rows)
        touched, _ = self._local.of(codes, len(self._index))
        self._rows.forget(self._rows.begin(codes))
        before, size = self._given(touched), self._store.size
        is_added = np.ones(batch.num_rows, np.bool_) if signs is None else signs > 0
        added = np.flatnonzero(is_added)
        columns = batch.columns if signs is None else [column.take(pa.array(added)) for column in batch.columns]
        ids = self._store.add(codes[added], columns)
        if signs is not None:
            self._store.remove(self._rows.taken_back(batch, codes, is_added, size)[1])
        made = self._changes(before, self._given(touched))
        self._rows.written(ids)
        self._rows.forget(self._rows.swept())
        self._make_room()
        return made

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of records' keys."""
        return [batch.column(key) for key in self._keys]

    def _given(self, touched: Integers) -> _Given:
        """The rows of partitions in order, with their new columns."""
        partitions, ids = self._store.by_key.of(touched)
        if not len(ids):
            return _Given(partitions, ids, [pa.array([], kind) for _, kind in self._columns])
        keys = [partitions]
        for column, ascending, nulls_first in self._orders:
            nulls, values = sort_key(self._store.take_column(column, ids), ascending=ascending, nulls_first=nulls_first)
            keys += [values] if nulls is None else [nulls, values]
        order = sorted_rows([*keys, ids])
        partitions, ids = partitions[order], ids[order]
        is_new = first_of_runs([key[order] for key in keys])
        used = [self._store.take_column(index, ids) for index in self._used]
        rows = OverColumns(
            pa.RecordBatch.from_arrays(used, schema=self._used_schema), first_of_runs([partitions]), is_new,
            *self._by_distance(ids),
        )  # fmt: skip
        columns = [pa.chunked_array(list(rows.pieces(spec, kind)), kind) for spec, kind in self._columns]
        return _Given(partitions, ids, [column.combine_chunks() for column in columns])

    def _by_distance(self, ids: Integers) -> tuple[Frame | None, Any]:
        """The frame of aggregates; and, if it goes by distance, what rows are ordered by."""
        if not self._orders:
            return self._frame, None
        # An order before it says that nulls are at its other end.
        column, ascending, nulls_first = self._orders[-1]
        if len(self._orders) > 1:
            nulls_first = not ascending
        values = self._store.take_column(column, ids)
        return by_distance(self._frame, values, ascending=ascending, nulls_first=nulls_first)

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _changes(self, before: _Given, after: _Given) -> tuple[list[pa.Array], RowKinds]:
        """Of each partition the rows that go, those that are other ones now (before and after), and those that come."""
        old_at, new_at = (self._places(one.ids) for one in (before, after))
        new_of_old = new_at[before.ids]
        stays = np.flatnonzero(new_of_old >= 0)
        same = same_rows(
            [column.take(pa.array(stays)) for column in before.columns],
            [column.take(pa.array(new_of_old[stays])) for column in after.columns],
            len(stays),
        )
        gone, come = np.flatnonzero(new_of_old < 0), np.flatnonzero(old_at[after.ids] < 0)
        old, new = stays[~same], new_of_old[stays[~same]]
        # Rows before the batch count first, then those after it; of each partition in this order:
        places = np.concatenate([gone, old, new + len(before.ids), come + len(before.ids)])
        sizes = [len(gone), len(old), len(new), len(come)]
        kinds = np.repeat(
            np.array([RowKind.DELETE, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.INSERT], np.int8), sizes
        )
        turn = np.concatenate([np.zeros(len(gone), np.int64), *([np.arange(1, len(old) + 1)] * 2),
                               np.full(len(come), len(old) + 1)])  # fmt: skip
        partitions = np.concatenate([before.partitions, after.partitions])[places]
        order = sorted_rows([partitions, turn, np.arange(len(places))])
        chosen = pa.array(places[order])
        columns = [
            pa.concat_arrays([one, other]).take(chosen)
            for one, other in zip(before.columns, after.columns, strict=True)
        ]
        ids = np.concatenate([before.ids, after.ids])[places[order]]
        return [*self._store.take(ids), *columns], kinds[order]

    def _places(self, ids: Integers) -> Integers:
        """By row where it is among some; -1 for others."""
        places = np.full(self._store.size, -1, np.int64)
        places[ids] = np.arange(len(ids))
        return places

    # -- room and state ------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        store = self._store
        if store.is_sparse:
            store.compact()
        if len(self._index) > 2 * store.num_live + _MIN_DEAD:
            self.residents.keep(np.flatnonzero(store.weights(len(self._index))))
        self.residents.make_room()

    @property
    def nbytes(self) -> int:
        """How many bytes rows take."""
        return self._store.nbytes

    def weights(self, num_keys: int) -> Integers:
        """Return how many rows each partition has."""
        return self._store.weights(num_keys)

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Forget all partitions but some; see `headrace.engine.tables.resident_keys.KeyedTable`."""
        self._store.keep(codes, new_codes)

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of partitions; codes are those of the rows."""
        self._store.take_over(rows, codes)

    def persist(self) -> None:
        """Write which rows have changed."""
        self._store.persist()

    def persist_all(self) -> None:
        """Write what has changed."""
        self._rows.forget(self._rows.before_snapshot())
        self.residents.persist()
