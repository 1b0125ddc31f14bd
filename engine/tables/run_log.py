"""A table's log: runs of a columnar state, in which what is written later counts.

A run holds the keys of what has changed and what they are now, or that they are gone. Runs are written for snapshots,
and when a part of the table is put aside; they are never changed, only merged. So a snapshot costs what has changed
since the last one, and the state backend does the rest as for any columnar state: incremental checkpoints, key groups
of other subtasks after a rescale, open snapshots, managed memory.

On a backend that keeps all in memory the log is read once, when the operator is opened, and the whole of it is merged
when it has about twice as many rows as the table. On one that has a disk it is also the store of what is not in memory:
runs are sorted by the hash of their keys and cut into blocks (`hash_runs`), rows of keys are read when they are asked
for, and four runs of about one size are merged into one, block by block. So there are few runs to look into, and
neither a look nor a merge needs more memory than some blocks.

Source: log-structured merge trees, merged by size; `headrace.state.keyed.contract.ColumnarTable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.state.keyed.contract import KeyedStateBackend

from .columns import Integers, Truths, stored_type
from .hash_runs import SortedRun, hashes_of, runs_of
from .key_index import KeyIndex

__all__ = ["LogForm", "LogRows", "RunLog"]

LogRows = tuple[int, list[pa.Array], list[pa.Array]]
"""How many rows, their key columns, their other columns."""

MIN_ROWS = 4_096
"""Logs that are read as a whole and are not longer are left as they are."""

BLOCK_BYTES = 16 << 10
"""What is read for one key; many more would be read in vain, many less would not be worth a read."""

_MAX_RUN_ROWS = 65_536
_BLOCKS_AT_ONCE = 256
_FAN_IN = 4
_ALL = "key"


class LogForm:
    """What the rows of a log mean.

    Args:
        identity: The numbers of the columns that say, with the key, what a row is about.
        is_gone: Of the columns, which rows say that it is gone.
    """

    def __init__(self, identity: Sequence[int], is_gone: Callable[[Sequence[pa.Array]], Truths]) -> None:
        self._identity = list(identity)
        self.is_gone = is_gone

    def net(self, rows: LogRows) -> LogRows:
        """Return what rows come to, which are given in the order in which they were written: a row for each
        identity.
        """
        return self.taken(rows, self.last_rows(rows))

    def last_rows(self, rows: LogRows) -> tuple[Integers, Integers]:
        """For each identity its number and its last row: numbers by row, rows by number."""
        num_rows, keys, columns = rows
        named = [*keys, *(columns[number] for number in self._identity)]
        numbers, num = KeyIndex([column.type for column in named]).codes_of(named, num_rows)
        # Of several assignments to one place the last one stays.
        last = np.empty(num, np.int64)
        last[numbers] = np.arange(num_rows)
        return numbers, last

    def taken(self, rows: LogRows, found: tuple[Integers, Integers]) -> LogRows:
        """Return the rows that stay, of those that `last_rows` has found."""
        return _taken(rows, found[1])


class RunLog:
    """The runs of one table.

    Args:
        backend: The operator's keyed state.
        name: The state's.
        keys: Names and types of the key's columns; none for a table that is all of one key.
        columns: The other columns.
        form: What rows mean.
        is_over: Which of some rows, all that there is of what they are about, have outlived their time: they are left
            out when all runs are merged. Only asked where runs are sorted; None for none.

    Attributes:
        name: The state's.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        name: str,
        keys: Sequence[pa.Field],
        columns: Sequence[pa.Field],
        form: LogForm,
        is_over: Callable[[LogRows], Truths] | None = None,
    ) -> None:
        fields = [pa.field(f"key.{key.name}", stored_type(key.type)) for key in keys]
        self._has_keys = bool(fields)
        if not fields:
            fields = [pa.field(_ALL, pa.int8())]
        self._num_keys = len(fields)
        self._schema = pa.schema([*fields, *(pa.field(one.name, stored_type(one.type)) for one in columns)])
        self._table = backend.columnar_table(name, self._schema, tuple(field.name for field in fields))
        self._schema = self._table.schema  # the names under which it is kept may be others
        self.name = name
        self._form = form
        self._is_over = is_over
        self._is_sorted = backend.table_room() is not None
        if self._is_sorted:
            self._runs: list[SortedRun] = runs_of(self._measured(range(self._table.num_runs(None))))
        self._num_rows = 0 if self._is_sorted else sum(run.num_rows for run in self._table.runs(None))

    @property
    def num_rows(self) -> int:
        """How many rows there are in all runs."""
        return sum(run.num_rows for run in self._runs) if self._is_sorted else self._num_rows

    @property
    def nbytes(self) -> int:
        """How many bytes are kept in memory to find rows."""
        return sum(run.nbytes for run in self._runs) if self._is_sorted else 0

    @property
    def bytes_of_a_key(self) -> int:
        """How many bytes of rows a key has, about."""
        most = max((run.num_keys for run in self._runs), default=0) if self._is_sorted else 0
        return sum(run.num_bytes for run in self._runs) // most if most else 0

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self) -> LogRows | None:
        """Return what all rows come to, without what is gone; None if there are none."""
        if not self.num_rows:
            return None
        return self._live(self._form.net(self._joined(self._table.runs(None))))

    def read_keys(self) -> Iterator[tuple[int, list[pa.Array]]]:
        """Yield the keys of all rows that are not gone, some at a time, and how many rows these are; those of a key
        come together.
        """
        if self._is_sorted and self._runs:
            for rows in self._merged(self._runs, is_all=True):
                num_rows, keys, _ = self._joined([rows])
                yield num_rows, keys
        elif not self._is_sorted:
            whole = self.read()
            if whole is not None:
                yield whole[0], whole[1]

    def find(self, hashes: Integers) -> LogRows | None:
        """Return what the rows of keys come to, without what is gone; None if there are none.

        Args:
            hashes: `hashes_of` the keys, which ascend. Keys that have one of them by chance are found too.
        """
        parts = [self._found(batches, hashes) for run in self._runs for batches in self._blocks_of(run, hashes)]
        parts = [part for part in parts if part.num_rows]
        return self._live(self._form.net(self._joined(parts))) if parts else None

    def find_keys(self, keys: Sequence[pa.Array], num_rows: int) -> LogRows | None:
        """As `find`, of keys that may come several times."""
        return self.find(np.unique(hashes_of(keys, num_rows)))

    def _blocks_of(self, run: SortedRun, hashes: Integers) -> Iterator[list[pa.RecordBatch]]:
        places = run.place + run.blocks_of(hashes)
        for start in range(0, len(places), _BLOCKS_AT_ONCE):
            yield self._table.read(None, places[start : start + _BLOCKS_AT_ONCE].tolist())

    def _found(self, batches: Iterable[pa.RecordBatch], hashes: Integers) -> pa.RecordBatch:
        """The rows of blocks that have some of the hashes, which ascend."""
        rows = _one(batches, self._schema)
        held = self._hashes_of(rows)
        order = None
        if (held[1:] < held[:-1]).any():  # written by somebody else
            order = np.argsort(held, kind="stable")
            held = held[order]
        wanted = hashes[np.searchsorted(hashes, held[0]) : np.searchsorted(hashes, held[-1], "right")]
        begin = np.searchsorted(held, wanted)
        sizes = np.searchsorted(held, wanted, "right") - begin
        places = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        return rows.take(pa.array(places if order is None else np.sort(order[places])))

    def _hashes_of(self, rows: pa.RecordBatch) -> Integers:
        return hashes_of(rows.columns[: self._num_keys] if self._has_keys else [], rows.num_rows)

    def _measured(self, places: Iterable[int]) -> Iterator[tuple[Integers, int]]:
        """The hashes and sizes of blocks, which are read one by one."""
        for place in places:
            (block,) = self._table.read(None, [place])
            if block.num_rows:
                yield self._hashes_of(block), block.nbytes

    def _joined(self, batches: Sequence[pa.RecordBatch]) -> LogRows:
        rows = _one(batches, self._schema)
        return (
            rows.num_rows,
            rows.columns[: self._num_keys] if self._has_keys else [],
            rows.columns[self._num_keys :],
        )

    def _live(self, rows: LogRows) -> LogRows:
        return _taken(rows, np.flatnonzero(~self._form.is_gone(rows[2])))

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, changed: LogRows, num_live: int) -> None:
        """Add what has changed.

        Args:
            changed: The rows of it.
            num_live: How many rows the whole table has, if all of it is in memory.
        """
        if not changed[0]:
            return
        rows = self._batch_of(changed)
        if self._is_sorted:
            self._add_sorted(self._table.num_runs(None), [rows])
            self._merge_by_size()
            return
        self._table.replace_last(None, self._table.num_runs(None), _cut(rows, _MAX_RUN_ROWS))
        self._num_rows += rows.num_rows
        if self._num_rows > 2 * num_live + MIN_ROWS:
            whole = self.read()
            rows = self._batch_of(whole) if whole is not None else rows.slice(0, 0)
            self._table.replace(None, list(_cut(rows, _MAX_RUN_ROWS)))
            self._num_rows = rows.num_rows

    def _batch_of(self, rows: LogRows) -> pa.RecordBatch:
        num_rows, keys, columns = rows
        if not self._has_keys:
            keys = [pa.array(np.zeros(num_rows, np.int8))]
        fitted = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip([*keys, *columns], self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(fitted, schema=self._schema)

    def _add_sorted(self, place: int, parts: Iterable[pa.RecordBatch]) -> None:
        """Put a run in place of those from a place on; it comes in parts, whose hashes ascend from one to another."""
        made = SortedRun(place)

        def blocks() -> Iterator[pa.RecordBatch]:
            for part in parts:
                if not part.num_rows:  # all of it is gone
                    continue
                hashes = self._hashes_of(part)
                order = np.argsort(hashes, kind="stable")
                size = max(1, BLOCK_BYTES * part.num_rows // max(part.nbytes, 1))
                sizes = np.diff(np.append(np.arange(0, part.num_rows, size), part.num_rows))
                made.add(hashes[order], sizes, part.nbytes)
                yield from _cut(part.take(pa.array(order)), size)

        self._table.replace_last(None, place, blocks())
        self._runs = [run for run in self._runs if run.place < place]
        if made.num_blocks:
            self._runs.append(made)

    # -- merging -------------------------------------------------------------------------------------------------------

    def _merge_by_size(self) -> None:
        """Merge the last runs while several of them are of about one size."""
        while True:
            levels = [_level(run.num_rows) for run in self._runs]
            first = len(levels)
            while first and levels[first - 1] <= levels[-1]:
                first -= 1
            if len(levels) - first < _FAN_IN:
                return
            self._add_sorted(self._runs[first].place, self._merged(self._runs[first:], is_all=first == 0))

    def _merged(self, runs: Sequence[SortedRun], *, is_all: bool) -> Iterator[pa.RecordBatch]:
        """What runs come to, in parts, from the smallest hashes to the largest ones."""
        bounds = np.sort(np.concatenate([run.zones()[0] for run in runs]))[_BLOCKS_AT_ONCE::_BLOCKS_AT_ONCE]
        smallest, largest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        bounds = np.unique(bounds[bounds > smallest])
        for first, last in zip([smallest, *bounds], [*(bounds - 1), largest], strict=True):
            parts = [part for run in runs if (part := self._between(run, first, last)).num_rows]
            if parts:
                rows = self._form.net(self._joined(parts))
                yield self._batch_of(self._lasting(rows) if is_all else rows)

    def _lasting(self, rows: LogRows) -> LogRows:
        """What is neither gone nor over."""
        rows = self._live(rows)
        if self._is_over is None or not rows[0]:
            return rows
        return _taken(rows, np.flatnonzero(~self._is_over(rows)))

    def _between(self, run: SortedRun, first: int, last: int) -> pa.RecordBatch:
        """The rows of a run whose hashes are in a range."""
        firsts, lasts = run.zones()
        places = run.place + np.flatnonzero((lasts >= first) & (firsts <= last))
        rows = _one(self._table.read(None, places.tolist()), self._schema)
        hashes = self._hashes_of(rows)
        return rows.take(pa.array(np.flatnonzero((hashes >= first) & (hashes <= last))))


def _level(num_rows: int) -> int:
    """The size of a run, roughly: each is four times the one before."""
    return num_rows.bit_length() // 2


def _taken(rows: LogRows, places: Integers) -> LogRows:
    num_rows, keys, columns = rows
    if len(places) == num_rows and (np.diff(places) == 1).all():
        return rows
    chosen = pa.array(places)
    return len(places), [key.take(chosen) for key in keys], [column.take(chosen) for column in columns]


def _cut(rows: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    return (rows.slice(start, size) for start in range(0, rows.num_rows, size))


def _one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Batches as one."""
    held = [batch for batch in batches if batch.num_rows] or [_none(schema)]
    if len(held) == 1:
        return held[0]
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(parts) for parts in zip(*(batch.columns for batch in held), strict=True)], schema=schema
    )


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
