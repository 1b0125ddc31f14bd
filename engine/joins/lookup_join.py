"""Rows joined with what a table outside has for their keys when they come: the lookup join of tables.

All rows of a batch are looked up at once: each key that occurs is asked for once, unless a cache of this subtask knows
it. The cache is memory of one attempt, in no snapshot; the operator has no state, and what it gives for a row is out
before the next barrier, so each row is joined once in what counts. After a failure rows that come again may find other
rows than before.

While the table is asked the task waits, as it does for Flink's synchronous lookups.

Source: Flink's ``LookupJoinRunner``, ``DefaultLookupCache``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..changelog.changes import check_names, columns_of, plain_schema
from ..columns.conditions import where_true
from ..columns.expressions import Expression
from ..columns.records import MAX_BATCH_ROWS, Batch
from ..connectors.table_lookup import TableLookup
from ..errors import TypeMismatchError
from ..functions.operator import Operator, OperatorContext
from ..operators.columnar import naming_operator
from .keyed_rows import all_valid, pairs_of
from .lookup import CachedRows, LookupCache

if TYPE_CHECKING:
    from ..tables.columns import Integers

__all__ = ["LookupJoinOfTables"]

Step = Callable[[pa.RecordBatch], pa.RecordBatch]


class LookupJoinOfTables(Operator):
    """Joins rows with those that a table has for their keys. Metrics are in the group ``lookup``.

    Args:
        lookup: The table.
        keys: Names of the keys' columns: of the records, and of the rows behind ``steps``; their types are the same.
        asked: What the table calls its key columns.
        steps: What is made of the table's rows, one after another.
        schemas: Types of the records, and of the rows behind ``steps``.
        is_left: Whether a record without a row goes out with nulls, instead of being left out.
        projection: What goes out: pairs of the side and the column, and the name.
        condition: What else is true of a pair, over those names; None if the keys say all.
        cache: What to remember; None for nothing.

    Raises:
        ProgramError: If a column is not there.
    """

    may_change_records = False

    def __init__(
        self,
        lookup: TableLookup,
        keys: tuple[Sequence[str], Sequence[str]],
        asked: Sequence[str],
        *,
        steps: Sequence[Step] = (),
        schemas: tuple[pa.Schema, pa.Schema],
        is_left: bool,
        projection: Sequence[tuple[int, str, str]],
        condition: Expression | None = None,
        cache: LookupCache | None = None,
    ) -> None:
        self.lookup = lookup
        self.keys = keys
        self.asked = tuple(asked)
        self.steps = tuple(steps)
        self.schemas = schemas
        self.is_left = is_left
        self.projection = tuple(projection)
        self.condition = condition
        self.cache = cache
        self._plain = (plain_schema(schemas[0]), plain_schema(schemas[1]))
        for side in (0, 1):
            check_names("keys", keys[side], schemas[side])
            check_names("projection", [column for at, column, _ in self.projection if at == side], schemas[side])
        self._output = self.output_schema()

    def output_schema(self, input_schema: pa.Schema | None = None) -> pa.Schema:
        """Return the schema of the output."""
        return pa.schema([(name, self._plain[side].field(column).type) for side, column, name in self.projection])

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._known = None if self.cache is None else CachedRows(self.cache)
        group = context.metrics.add_group("lookup")
        self._hits, self._misses = group.counter("hit_count"), group.counter("miss_count")
        self._loads, self._failures = group.counter("load_count"), group.counter("num_load_failures")
        known = self._known
        if known is not None:
            group.gauge("num_cached_records", lambda: len(known))
        with naming_operator(context):
            self.lookup.open()

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        from ..tables.key_index import KeyIndex

        with naming_operator(self.context):
            records = columns_of(batch, self.schemas[0], self._plain[0])
            columns = [records.column(key) for key in self.keys[0]]
            has_key = all_valid(columns, records.num_rows)
            index = KeyIndex([column.type for column in columns])
            codes = np.full(records.num_rows, -1, np.int64)
            codes[has_key] = index.codes_of([column.filter(pa.array(has_key)) for column in columns])[0]
            keys = pa.RecordBatch.from_arrays(index.take(np.arange(len(index))), names=list(self.asked))
            rows, owners = self._rows_of(keys, index)
            left, right = pairs_of(codes, owners, len(index))
            self._give(records, rows, left, right, batch)

    # -- rows of keys --------------------------------------------------------------------------------------------------

    def _rows_of(self, keys: pa.RecordBatch, index: Any) -> tuple[pa.RecordBatch, Integers]:
        """The rows that keys have, those of one behind those of another, and for each the place of its key."""
        if self._known is None:
            return self._asked_for(keys, index)
        names = _as_tuples(keys)
        now_ms = self.context.now_ms()
        try:
            found = [self._known.get(name, now_ms) for name in names]
        except TypeError as error:
            message = f"a lookup key must be hashable to be remembered; got {names[0]!r}"
            raise TypeMismatchError(message, hint="'lookup.cache' = 'NONE' remembers none") from error
        missing = np.array([place for place, rows in enumerate(found) if rows is None], np.int64)
        self._hits.inc(len(names) - len(missing))
        if len(missing):
            self._misses.inc(len(missing))
            rows, owners = self._asked_for(keys.take(pa.array(missing)), index)
            starts = np.searchsorted(owners, missing)
            ends = np.searchsorted(owners, missing, side="right")
            for place, start, end in zip(missing.tolist(), starts.tolist(), ends.tolist(), strict=True):
                # A copy: a slice would keep all rows of its batch in memory.
                found[place] = [rows.take(pa.array(np.arange(start, end)))] if end > start else []
                self._known.put(names[place], found[place] or [], now_ms)
        parts = [part for rows in found for part in rows or ()]
        owners = np.repeat(np.arange(len(found)), [sum(part.num_rows for part in rows or ()) for rows in found])
        return _in_one(parts, self._plain[1]), owners

    def _asked_for(self, keys: pa.RecordBatch, index: Any) -> tuple[pa.RecordBatch, Integers]:
        """The rows that the table has for keys."""
        if keys.num_rows == 0:
            return _in_one([], self._plain[1]), np.zeros(0, np.int64)
        try:
            rows = self.lookup.lookup(keys)
        except BaseException:
            self._failures.inc()
            raise
        self._loads.inc()
        for step in self.steps:
            rows = step(rows)
        rows = columns_of(Batch.of_columns(rows), self.schemas[1], self._plain[1])
        owners, _ = index.codes_of([rows.column(key) for key in self.keys[1]], rows.num_rows, add=False)
        owners[~all_valid([rows.column(key) for key in self.keys[1]], rows.num_rows)] = -1
        order = np.argsort(owners, kind="stable")
        order = order[owners[order] >= 0]
        return rows.take(pa.array(order)), owners[order]

    # -- pairs ---------------------------------------------------------------------------------------------------------

    def _give(
        self, records: pa.RecordBatch, rows: pa.RecordBatch, left: Integers, right: Integers, batch: Batch
    ) -> None:
        """Emit pairs, in the order of the records."""
        if self.condition is not None and len(left):
            kept = where_true(self.condition, self._columns(records, rows, left, right))
            left, right = left[kept], right[kept]
        if self.is_left:
            lonely = np.flatnonzero(np.bincount(left, minlength=records.num_rows) == 0)
            left, right = np.concatenate([left, lonely]), np.concatenate([right, np.full(len(lonely), -1, np.int64)])
            order = np.argsort(left, kind="stable")
            left, right = left[order], right[order]
        for start in range(0, len(left), MAX_BATCH_ROWS):
            some = slice(start, start + MAX_BATCH_ROWS)
            times = None if batch.timestamps is None else batch.timestamps[left[some]]
            self.context.output.emit(Batch.of_columns(self._columns(records, rows, left[some], right[some]), times))

    def _columns(
        self, records: pa.RecordBatch, rows: pa.RecordBatch, left: Integers, right: Integers
    ) -> pa.RecordBatch:
        places = (pa.array(left), pa.array(right, mask=right < 0))
        sides = (records, rows)
        arrays = [sides[side].column(column).take(places[side]) for side, column, _ in self.projection]
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)

    def close(self) -> None:
        self.lookup.close()

    def __repr__(self) -> str:
        keys = ", ".join(f"{one} = {other}" for one, other in zip(*self.keys, strict=True))
        return f"LookupJoinOfTables({keys}; {'left' if self.is_left else 'inner'})"


def _as_tuples(keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def _in_one(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, schema=schema)
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=schema)
