"""What a table of upserts is known to be: the latest row of each key, by the key's code.

Keys whose row was deleted are forgotten when they are more than half of all; the others are numbered anew then. Keys
that are not in memory come back from the log (`headrace.engine.tables.resident_keys`), which has a row for each key
that has changed: whether it has a row, and its other columns.

With a time to live a row that has expired is forgotten, and nothing goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ..columns.records import RowKinds
from ..functions.operator import OperatorContext
from ..tables.columns import Integers, Truths, same_rows, stored_column
from ..tables.growing import grown
from ..tables.key_index import LocalCodes
from ..tables.key_times import KeyTimes
from ..tables.lifetime import lifetime_of
from ..tables.resident_keys import ResidentKeys
from ..tables.run_log import LogForm, LogRows, RunLog
from .changes import places_of_changes

__all__ = ["LatestRows"]

_MIN_DEAD = 1_024

_FORM = LogForm([], lambda columns: ~columns[0].to_numpy(zero_copy_only=False))


class LatestRows:
    """The rows of one subtask.

    Args:
        context: The operator's.
        keys: Names of the key's columns.
        schema: Of the rows.
        ttl_ms: How long a row lives that is not written; 0 for ever.

    Attributes:
        residents: Which keys are in memory.
        log: Where rows are kept.
    """

    def __init__(self, context: OperatorContext, keys: Sequence[str], schema: pa.Schema, *, ttl_ms: int = 0) -> None:
        backend = context.keyed_state
        self._schema = schema
        self._keys = [schema.field(key) for key in keys]
        self._others = [field for field in schema if field.name not in keys]
        self._local = LocalCodes()
        self.residents = ResidentKeys(backend, [field.type for field in self._keys])
        self._index = self.residents.index
        lifetime = lifetime_of(context, ttl_ms)
        self._times = None if lifetime is None else KeyTimes(backend, self._keys, self._index, lifetime)
        self._begin()
        is_over = None if self._times is None else self._times.is_over
        fields = [pa.field("is", pa.bool_()), *(pa.field(f"row.{field.name}", field.type) for field in self._others)]
        self.log = RunLog(backend, "rows", self._keys, fields, _FORM, is_over)
        self.residents.attach(*([] if self._times is None else [self._times]), self)

    def _begin(self) -> None:
        # By key: the other columns of its row, whether it has one, and whether the log has something else.
        self._columns = [stored_column(field.type) for field in self._others]
        self._has_row = np.zeros(0, np.bool_)
        self._is_changed = np.zeros(0, np.bool_)
        self._num_live = 0

    # -- records -------------------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch, signs: Integers | None) -> tuple[list[pa.Array], RowKinds]:
        """Take rows; returns the changes of the table: its columns, and kinds.

        Args:
            batch: The rows, each of which replaces the one before it.
            signs: -1 for those of which only the key counts: it has no row any more. None if there are none.
        """
        codes = self.residents.codes_of(self.key_columns(batch), batch.num_rows)
        self._make_room(len(self._index))
        touched, local = self._local.of(codes, len(self._index))
        last = np.empty(len(touched), np.int64)
        last[local] = np.arange(batch.num_rows)  # of several to one place the last one stays
        if self._times is not None:
            self._times.lifetime.begin()
            self._expire(self._times.expired(touched))
        had_row = self._has_row[touched]
        has_row = np.ones(len(touched), np.bool_) if signs is None else signs[last] > 0
        after = [batch.column(field.name).take(pa.array(last)) for field in self._others]
        made = self._changes(touched, after, had_row, has_row)
        self._write(touched, after, had_row, has_row)
        if len(self._index) - self._num_live > max(self._num_live, _MIN_DEAD):
            self.residents.keep(np.flatnonzero(self._has_row[: len(self._index)]))
        self.residents.make_room()
        return made

    def key_columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of rows' keys."""
        return [batch.column(key.name) for key in self._keys]

    def _changes(
        self, codes: Integers, after: list[pa.Array], had_row: Truths, has_row: Truths
    ) -> tuple[list[pa.Array], RowKinds]:
        """What the rows of keys were and are, key by key, where they differ.

        With a time to live all that is written goes out: what reads it has one, too, and hears that the row lives.
        """
        before, num = self._rows_of(codes, had_row), len(codes)
        differs = np.ones(num, np.bool_)
        if self._times is None and had_row.any():
            differs = ~same_rows(before, after, num)
        places, kinds = places_of_changes(had_row, has_row, differs)
        keys = self._index.take(np.concatenate([codes, codes])[places])
        chosen = pa.array(places)
        others = [pa.concat_arrays([one, other]).take(chosen) for one, other in zip(before, after, strict=True)]
        return self._in_order(keys, others), kinds

    def _rows_of(self, codes: Integers, is_there: Truths) -> list[pa.Array]:
        ids = np.where(is_there, codes, -1)
        return [column.take(ids) for column in self._columns]

    def _in_order(self, keys: Sequence[pa.Array], others: Sequence[pa.Array]) -> list[pa.Array]:
        names = [field.name for field in (*self._keys, *self._others)]
        by_name = dict(zip(names, (*keys, *others), strict=True))
        return [by_name[name] for name in self._schema.names]

    def _write(self, codes: Integers, rows: list[pa.Array], had_row: Truths, has_row: Truths) -> None:
        chosen = pa.array(has_row)
        for column, array in zip(self._columns, rows, strict=True):
            column.put(codes[has_row], array.filter(chosen))
        self._has_row[codes] = has_row
        self._is_changed[codes[had_row | has_row]] = True
        self._num_live += int(has_row.sum()) - int(had_row.sum())
        if self._times is not None:
            self._times.touch(codes[has_row])
            self._times.forget(codes[~has_row])
            self._expire(self._times.swept())

    def _expire(self, codes: Integers) -> None:
        """Forget rows that have expired; some may be none."""
        assert self._times is not None
        live = codes[self._has_row[codes]]
        self._times.forget(codes)
        self._has_row[live] = False
        self._is_changed[live] = True
        self._num_live -= len(live)
        self._times.lifetime.count(num_expired=len(live))

    def all_rows(self) -> Iterator[list[pa.Array]]:
        """Yield the rows that there are, some at a time."""
        for codes in self.residents.in_parts():
            self._make_room(len(self._index))
            live = codes[self._has_row[codes]]
            if self._times is not None:
                self._times.lifetime.begin()
                live = np.setdiff1d(live, self._times.expired(live), assume_unique=True)
            if len(live):
                yield self._in_order(self._index.take(live), [column.take(live) for column in self._columns])
            self.residents.make_room()

    # -- room ----------------------------------------------------------------------------------------------------------

    def _make_room(self, size: int) -> None:
        self._has_row = grown(self._has_row, size, False)
        self._is_changed = grown(self._is_changed, size, False)

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return self._has_row.nbytes + self._is_changed.nbytes + sum(column.nbytes for column in self._columns)

    def weights(self, num_keys: int) -> Integers:
        """1 for each key that has a row."""
        self._make_room(num_keys)
        return self._has_row[:num_keys].astype(np.int64)

    def keep(self, codes: Integers, new_codes: Integers) -> None:
        """Forget all keys but some; see `headrace.engine.tables.resident_keys.KeyedTable`."""
        self._make_room(len(new_codes))
        codes = codes[self._has_row[codes]]
        rows = [column.take(codes) for column in self._columns]
        self._begin()
        self._put(new_codes[codes], rows)

    def _put(self, codes: Integers, rows: Sequence[pa.Array]) -> None:
        self._make_room(int(codes.max(initial=-1)) + 1)
        for column, array in zip(self._columns, rows, strict=True):
            column.put(codes, array)
        self._has_row[codes] = True
        self._num_live += len(codes)

    # -- state ---------------------------------------------------------------------------------------------------------

    def persist(self) -> None:
        """Write which rows have changed."""
        changed = np.flatnonzero(self._is_changed)
        has_row = self._has_row[changed]
        rows = (len(changed), self._index.take(changed), [pa.array(has_row), *self._rows_of(changed, has_row)])
        self.log.write(rows, self._num_live)
        self._is_changed[:] = False

    def persist_all(self) -> None:
        """Write what has changed of all that is kept."""
        if self._times is not None:
            self._times.lifetime.begin()
            self._expire(self._times.swept(is_forced=True))
            self._times.lifetime.snapshot()
        self.residents.persist()

    def take_over(self, rows: LogRows, codes: Integers) -> None:
        """Take over what the log has of keys; codes are those of the rows."""
        self._put(codes, rows[2][1:])
