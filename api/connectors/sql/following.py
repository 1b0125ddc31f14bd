"""A table of a database followed by a column that only grows: what comes to it later is read, too, in that order.

A row that has a greater number than another one may become visible after it: numbers are given when rows are inserted,
rows are visible when their transaction commits. So a row is not read as soon as it is there. The table is asked for its
greatest value again and again, and rows up to a value are read when the `GrowingColumn.commit_lag` has passed since it
was first seen: by then all below it, and all that share it, are there. They are read page by page, in the order of the
column and of the key, and the position is that of the last row. No clock is in it: who goes on from a checkpoint waits
that long again.

Source: Debezium's and Kafka Connect's "incrementing" and "timestamp" modes of the JDBC source.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import (
    ALL_SPLITS_FINISHED,
    NOTHING_NOW,
    Polled,
    ReaderContext,
    SourceReader,
    Split,
)
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, nearest
from headrace.state.values.durations import parse_duration_ms

from .dialects import SQLITE
from .jdbc import JDBC
from .ranges import in_range
from .reading import PAGE_ROWS, ReadSettings, TableRows

__all__ = ["FollowingReader", "GrowingColumn", "followed_split", "order_of"]


@dataclass(frozen=True)
class GrowingColumn:
    """How rows are found that come to a table later.

    Attributes:
        name: A column of integers, or of times except on SQLite, whose values only grow: each row that comes, or is
            changed and is to be read again, has one at least as great as all before. Rows without a value are not read.
        interval: How often the table is asked for its greatest value: milliseconds or text.
        commit_lag: How long after a row can be seen another one with a smaller or equal value may still become visible:
            at least as long as the longest transaction that writes into the table, and how long a replica is behind.
            Rows are read that much later. What becomes visible later still is never read. 0 is right where rows become
            visible in the order of their values, and no two have the same: one writer, or SQLite, whose writers wait
            for each other.

    Raises:
        ConfigurationError: If a duration makes no sense.
    """

    name: str
    interval: int | str = "1 s"
    commit_lag: int | str = "5 s"

    def __post_init__(self) -> None:
        if parse_duration_ms(self.interval) < 1:
            message = f"the interval of a column that is followed must be positive; got {self.interval!r}"
            raise ConfigurationError(message)
        if parse_duration_ms(self.commit_lag) < 0:
            message = f"commit_lag must not be negative; got {self.commit_lag!r}"
            raise ConfigurationError(message)

    def check(self, settings: ReadSettings, key: tuple[str, ...]) -> None:
        """See that a table can be followed by it, by what the program says.

        Raises:
            ConfigurationError: If not.
        """
        names = settings.schema.names
        if settings.dialect is JDBC:
            message = "a table behind a driver of Java is read once: it is not followed"
            raise ConfigurationError(message, hint="read it again in each run, from the last value on, by a view")
        for name in (self.name, *key):
            if name not in names:
                message = f"a table is followed by columns that are read, and {name!r} is none of them"
                raise ConfigurationError(message, hint=nearest(name, names))
        kind = settings.schema.field(self.name).type
        if not (kinds.is_integer(kind) or (kinds.is_timestamp(kind) and settings.dialect is not SQLITE)):
            message = f"a table is followed by a column of integers or times; {self.name!r} is of type {kind}"
            hint = "SQLite keeps times as texts: follow by integers" if kinds.is_timestamp(kind) else None
            raise ConfigurationError(message, hint=hint)
        for name in key:
            if not _is_key_type(settings.schema.field(name).type) and name != self.name:
                message = f"the key of a table that is followed is of integers and texts; {name!r} is not"
                raise ConfigurationError(message)


def _is_key_type(kind: pa.DataType) -> bool:
    return kinds.is_integer(kind) or kinds.is_string(kind)


def order_of(column: str, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns by which rows are read, the one that is followed first; no two rows have the same of them."""
    return tuple(dict.fromkeys((column, *key)))


def followed_split(order: tuple[str, ...], part: dict[str, Any] | None) -> Split:
    """Return what one reader follows: the table, or a range of it."""
    column, *key = order
    name = f"table by {column}" if part is None else f"{part['column']} from {part['from']} to {part['to']} by {column}"
    return Split(name, {"follow": column, "key": key, "range": part or {}}, origin=f"table by {column}")


class _Followed:
    """A split, how far it has been read, and how far it may be."""

    def __init__(self, split: Split) -> None:
        self.split = split
        # Value, of times in microseconds, and key of the last row that was given; None before the first.
        self.position: list[Any] | None = split.position
        # Greatest values that were found, and when at the latest they were there; both only grow.
        self.seen: deque[tuple[int, int]] = deque()
        self.greatest: int | None = None
        # Up to which value rows are being read; None: all that may be read has been.
        self.bound: int | None = None
        self.next_look_ms = 0

    def saw(self, greatest: int, now_ms: int) -> None:
        """Take a greatest value that was found."""
        if self.greatest is None or greatest > self.greatest:
            self.greatest = greatest
            self.seen.append((now_ms, greatest))

    def ripen(self, now_ms: int, lag_ms: int) -> None:
        """Let rows be read up to what has been there for long enough."""
        while self.seen and self.seen[0][0] + lag_ms <= now_ms:
            self.bound = self.seen.popleft()[1]

    def due_ms(self, lag_ms: int) -> int:
        """When there is something to do next."""
        return min(self.next_look_ms, self.seen[0][0] + lag_ms) if self.seen else self.next_look_ms


class FollowingReader(SourceReader):
    """Follows splits side by side, one page of one of them at a time.

    Args:
        settings: What is read.
        key: By which the database tells rows apart; empty if the column does.
        growing: The column.
    """

    def __init__(self, settings: ReadSettings, key: tuple[str, ...], growing: GrowingColumn) -> None:
        self._settings = settings
        self._column = growing.name
        kind = settings.schema.field(growing.name).type
        # The type of its values as positions have them, whichever unit the program reads them in.
        self._kind = pa.timestamp("us", kind.tz) if kinds.is_timestamp(kind) else kind
        self._order = order_of(growing.name, key)
        self._key = key or (growing.name,)
        self._interval_ms = parse_duration_ms(growing.interval)
        self._lag_ms = parse_duration_ms(growing.commit_lag)
        self._followed: deque[_Followed] = deque()
        self._rows: TableRows | None = None
        self._is_checked = False

    def open(self, context: ReaderContext) -> None:
        self._now_ms = context.now_ms
        self._rows = TableRows(self._settings)

    def add_splits(self, splits: list[Split]) -> None:
        for split in splits:
            position = split.position
            payload = split.payload
            is_right = payload.get("follow") == self._column and payload.get("key") == list(self._order[1:])
            is_right = is_right and (
                position is None
                or (isinstance(position, list) and len(position) == len(self._order) and type(position[0]) is int)
            )
            if not is_right:
                message = "the checkpoint holds a table that was not followed by this column and key"
                raise CheckpointMismatchError(message, split=split.split_id, position=position, column=self._column)
            self._followed.append(_Followed(split))

    def poll(self, max_records: int) -> Any:
        if not self._followed:
            return ALL_SPLITS_FINISHED
        rows = self._checked()
        for _ in range(len(self._followed)):
            one = self._followed[0]
            self._followed.rotate(-1)  # the next one has its turn, whatever this one gives
            found = self._step(rows, one, max_records)
            if found is not None and found.num_rows:
                return Polled(one.split.split_id, Batch.of_columns(found))
        return NOTHING_NOW

    def next_poll_ms(self) -> int | None:
        return min((one.due_ms(self._lag_ms) for one in self._followed), default=None)

    def _checked(self) -> TableRows:
        rows = self._rows
        assert rows is not None
        if not self._is_checked:
            if not rows.are_unique(self._key):
                self._refuse(f"{list(self._key)} is no key of the table: rows that share a value could be missed")
            self._is_checked = True
        return rows

    def _refuse(self, message: str) -> NoReturn:
        hint = "name as key what is unique in the database and nowhere NULL"
        raise ConfigurationError(message, hint=hint, table=".".join(self._settings.table))

    def _step(self, rows: TableRows, one: _Followed, max_records: int) -> pa.RecordBatch | None:
        """Look at the table if it is time, and read a page of what may be read."""
        where, values = in_range(rows, one.split.payload["range"])
        if self._now_ms() >= one.next_look_ms:
            if rows.are_lacked(self._order[1:]):  # such a row is in no order with others
                self._refuse(f"a row has no value of the key {list(self._order[1:])}: it could be missed")
            greatest = rows.greatest(self._column, where, values)
            now_ms = self._now_ms()
            if greatest is not None:
                one.saw(self._number(greatest), now_ms)
            one.next_look_ms = now_ms + self._interval_ms
        one.ripen(self._now_ms(), self._lag_ms)
        if one.bound is None:
            return None
        limit = min(max_records, PAGE_ROWS)
        found = self._page(rows, one, where, values, limit)
        if found.num_rows:
            last = {name: found.column(name)[-1] for name in self._order}
            one.position = [self._number(last[self._column]), *(last[name].as_py() for name in self._order[1:])]
        if found.num_rows < limit:
            one.bound = None
        return found

    def _page(self, rows: TableRows, one: _Followed, where: str, values: list[Any], limit: int) -> pa.RecordBatch:
        """The next rows behind the position, up to the bound."""
        column, order = rows.quoted(self._column), rows.quoted(*self._order)
        conditions = [*([where] if where else []), f"{column} <= {rows.mark}"]
        given = [*values, self._parameter(rows, one.bound)]
        if one.position is not None:
            value, *others = one.position
            conditions += [f"{column} >= {rows.mark}", f"({order}) > ({', '.join([rows.mark] * len(self._order))})"]
            given += [self._parameter(rows, value), self._parameter(rows, value), *others]
        return rows.rows(" AND ".join(conditions), given, f"ORDER BY {order} LIMIT {limit}")

    def _number(self, value: pa.Scalar) -> int:
        """A value of the column as positions have it."""
        return int(value.cast(self._kind).value if kinds.is_timestamp(self._kind) else value.as_py())

    def _parameter(self, rows: TableRows, number: Any) -> Any:
        return rows.parameters(self._column, pa.array([number], self._kind))[0]

    def snapshot(self) -> list[Split]:
        return [Split(one.split.split_id, one.split.payload, one.position) for one in self._followed]

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
