"""What the lookup joins of tables have in common: a batch's question for keys, and its rows with what was answered.

Each key of a batch is asked for once, unless it is known. Answers may come in parts; what has not been answered with a
row is still open, and may be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..changelog.changes import check_names, columns_of, plain_schema
from ..columns.conditions import where_true
from ..columns.expressions import Expression
from ..columns.records import MAX_BATCH_ROWS, Batch, Timestamps
from ..errors import TypeMismatchError
from ..tables.keyed_records import pairs_of
from .enrichment import CachedRows, LookupCache
from .keyed_rows import all_valid

if TYPE_CHECKING:
    from ..tables.columns import Integers

__all__ = ["LookupMetrics", "LookupTerms", "Question", "RememberedRows"]

Step = Callable[[pa.RecordBatch], pa.RecordBatch]


class LookupTerms:
    """What is looked up, and what a row with what was found comes to.

    Args:
        keys: Names of the keys' columns: of the records, and of the rows behind ``steps``; their types are the same.
        asked: What the table calls its key columns.
        schemas: Types of the records, and of the rows behind ``steps``.
        is_left: Whether a record without a row goes out with nulls, instead of being left out.
        projection: What goes out: pairs of the side and the column, and the name.
        steps: What is made of the table's rows, one after another.
        condition: What else is true of a pair, over those names; None if the keys say all.

    Raises:
        ProgramError: If a column is not there.
    """

    def __init__(
        self,
        keys: tuple[Sequence[str], Sequence[str]],
        asked: Sequence[str],
        *,
        schemas: tuple[pa.Schema, pa.Schema],
        is_left: bool,
        projection: Sequence[tuple[int, str, str]],
        steps: Sequence[Step] = (),
        condition: Expression | None = None,
    ) -> None:
        self.keys = keys
        self.asked = tuple(asked)
        self.is_left = is_left
        self._steps = tuple(steps)
        self._schemas = schemas
        self._projection = tuple(projection)
        self._condition = condition
        self._plain = (plain_schema(schemas[0]), plain_schema(schemas[1]))
        for side in (0, 1):
            check_names("keys", keys[side], schemas[side])
            check_names("projection", [column for at, column, _ in self._projection if at == side], schemas[side])
        self.output_schema = pa.schema(
            [(name, self._plain[side].field(column).type) for side, column, name in self._projection]
        )

    @property
    def record_names(self) -> list[str]:
        """Names of the records' columns."""
        return list(self._plain[0].names)

    def records_of(self, batch: Batch) -> pa.RecordBatch:
        """Return the columns of records."""
        return columns_of(batch, self._schemas[0], self._plain[0])

    def question(self, records: pa.RecordBatch, times: Timestamps | None) -> Question:
        """Return what is asked for records."""
        return Question(records, times, self.keys, self.asked, self._plain[1])

    def answer(self, question: Question, rows: pa.RecordBatch) -> None:
        """Take rows that the table has given."""
        for step in self._steps:
            rows = step(rows)
        question.answer(columns_of(Batch.of_columns(rows), self._schemas[1], self._plain[1]))

    def pairs(self, question: Question) -> Iterator[Batch]:
        """Yield the records with the rows that were found, in the order of the records."""
        records, rows = question.records, question.rows()
        left, right = question.pairs()
        if self._condition is not None and len(left):
            kept = where_true(self._condition, self._columns(records, rows, left, right))
            left, right = left[kept], right[kept]
        if self.is_left:
            lonely = np.flatnonzero(np.bincount(left, minlength=records.num_rows) == 0)
            left, right = np.concatenate([left, lonely]), np.concatenate([right, np.full(len(lonely), -1, np.int64)])
            order = np.argsort(left, kind="stable")
            left, right = left[order], right[order]
        for start in range(0, len(left), MAX_BATCH_ROWS):
            some = slice(start, start + MAX_BATCH_ROWS)
            times = None if question.times is None else question.times[left[some]]
            yield Batch.of_columns(self._columns(records, rows, left[some], right[some]), times)

    def _columns(
        self, records: pa.RecordBatch, rows: pa.RecordBatch, left: Integers, right: Integers
    ) -> pa.RecordBatch:
        places = (pa.array(left), pa.array(right, mask=right < 0))
        sides = (records, rows)
        arrays = [sides[side].column(column).take(places[side]) for side, column, _ in self._projection]
        return pa.RecordBatch.from_arrays(arrays, schema=self.output_schema)

    def __repr__(self) -> str:
        keys = ", ".join(f"{one} = {other}" for one, other in zip(*self.keys, strict=True))
        return f"{keys}; {'left' if self.is_left else 'inner'}"


class Question:
    """The records of a batch, the different keys that they have, and the rows that were found for those.

    Args:
        records: The records; those of which a part of the key is null have none.
        times: Their event times.
        keys: Names of the keys' columns, of the records and of the rows.
        asked: What the table calls its key columns.
        schema: Of the rows.

    Attributes:
        keys: The keys.
        open: Places of the keys that no row is known for.
    """

    def __init__(
        self,
        records: pa.RecordBatch,
        times: Timestamps | None,
        keys: tuple[Sequence[str], Sequence[str]],
        asked: Sequence[str],
        schema: pa.Schema,
    ) -> None:
        from ..tables.key_index import KeyIndex

        self.records = records
        self.times = times
        self._row_keys = tuple(keys[1])
        self._schema = schema
        columns = [records.column(key) for key in keys[0]]
        has_key = all_valid(columns, records.num_rows)
        self._index = KeyIndex([column.type for column in columns])
        # The place of each record's key; -1 for none.
        self._codes = np.full(records.num_rows, -1, np.int64)
        self._codes[has_key] = self._index.codes_of([column.filter(pa.array(has_key)) for column in columns])[0]
        places = np.arange(len(self._index))
        self.keys = pa.RecordBatch.from_arrays(self._index.take(places), names=list(asked))
        self.open: Integers = places
        # Rows, and of each the place of its key, as they were found.
        self._found: list[tuple[pa.RecordBatch, Integers]] = []

    def open_keys(self) -> pa.RecordBatch:
        """Return the keys that no row is known for."""
        return self.keys.take(pa.array(self.open))

    def know(self, places: Integers, rows: Sequence[Sequence[pa.RecordBatch]]) -> None:
        """Take rows that are known of some keys, maybe none; they are not open any more."""
        parts = [part for own in rows for part in own]
        counts = [sum(part.num_rows for part in own) for own in rows]
        self._found.append((_in_one(parts, self._schema), np.repeat(places, counts)))
        self.open = np.setdiff1d(self.open, places, assume_unique=True)

    def answer(self, rows: pa.RecordBatch) -> None:
        """Take rows that the table has given; those of other keys than were asked for are left out."""
        columns = [rows.column(key) for key in self._row_keys]
        owners, _ = self._index.codes_of(columns, rows.num_rows, add=False)
        owners[~all_valid(columns, rows.num_rows)] = -1
        own = np.flatnonzero(np.isin(owners, self.open))
        self._found.append((rows.take(pa.array(own)), owners[own]))
        self.open = np.setdiff1d(self.open, owners[own], assume_unique=False)

    def rows(self) -> pa.RecordBatch:
        """Return all rows that were found, those of one key behind those of another."""
        self._gather()
        return self._found[0][0]

    def rows_of(self, places: Integers) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each of some keys, as batches of their own."""
        self._gather()
        rows, owners = self._found[0]
        starts, ends = np.searchsorted(owners, places), np.searchsorted(owners, places, side="right")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            # A copy: a slice would keep all rows of its batch in memory.
            yield rows.take(pa.array(np.arange(start, end)))

    def pairs(self) -> tuple[Integers, Integers]:
        """Return each record with each row of its key, in the order of the records."""
        self._gather()
        return pairs_of(self._codes, self._found[0][1], len(self._index))

    def _gather(self) -> None:
        """Put all that was found into one batch, by keys."""
        if len(self._found) == 1 and bool((np.diff(self._found[0][1]) >= 0).all()):
            return
        rows = _in_one([part for part, _ in self._found], self._schema)
        owners = np.concatenate([np.zeros(0, np.int64), *(own for _, own in self._found)])
        order = np.argsort(owners, kind="stable")
        self._found = [(rows.take(pa.array(order)), owners[order])]


class RememberedRows:
    """What one subtask remembers of a table's answers.

    Args:
        settings: What to remember.
    """

    def __init__(self, settings: LookupCache) -> None:
        self._known = CachedRows(settings)

    def __len__(self) -> int:
        return len(self._known)

    def fill(self, question: Question, now_ms: int) -> int:
        """Give a question what is known of its keys; returns how many that are.

        Raises:
            TypeMismatchError: If keys cannot be remembered.
        """
        names = _as_tuples(question.keys)
        try:
            found = [self._known.get(name, now_ms) for name in names]
        except TypeError as error:
            message = f"a lookup key must be hashable to be remembered; got {names[0]!r}"
            raise TypeMismatchError(message, hint="'lookup.cache' = 'NONE' remembers none") from error
        places = np.array([place for place, rows in enumerate(found) if rows is not None], np.int64)
        question.know(places, [found[place] or [] for place in places.tolist()])
        return len(places)

    def keep(self, question: Question, places: Integers, now_ms: int) -> None:
        """Remember what was answered for some keys."""
        names = _as_tuples(question.keys.take(pa.array(places)))
        for name, rows in zip(names, question.rows_of(places), strict=True):
            self._known.put(name, [rows] if rows.num_rows else [], now_ms)


class LookupMetrics:
    """Figures of a lookup, in the group ``lookup``.

    Args:
        metrics: Of the operator.
        known: What it remembers; None for nothing.
    """

    def __init__(self, metrics: Any, known: RememberedRows | None) -> None:
        group = metrics.add_group("lookup")
        self.hits, self.misses = group.counter("hit_count"), group.counter("miss_count")
        self.loads, self.failures = group.counter("load_count"), group.counter("num_load_failures")
        if known is not None:
            group.gauge("num_cached_records", lambda: len(known))

    def count_known(self, num_known: int, question: Question) -> None:
        """Count the keys of a question that were known, and those that are asked for."""
        self.hits.inc(num_known)
        self.misses.inc(len(question.open))


def _as_tuples(keys: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def _in_one(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, schema=schema)
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=schema)
