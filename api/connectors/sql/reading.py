"""Rows of a table of a database, as columns: whole, page by page in the order of a key, and by keys.

Values are taken column by column; what the database has no type for comes back from what `headrace.connectors.sql.rows`
makes of it. A value that its declared type cannot hold exactly is an error, and so is a time with a zone for one
without.

Every question is a transaction of its own that only reads; if it fails it is asked again on a fresh connection.

Source: Flink's ``JdbcRowDataInputFormat``, ``JdbcRowDataLookupFunction``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.connectors.contract import CommitRetry
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError, SourceError, TypeMismatchError, nearest
from headrace.state.values.json_text import json_text

from .database import Database
from .dialects import Dialect, Table
from .mariadb import MARIADB, of_mariadb
from .rows import converter_of

__all__ = ["PAGE_ROWS", "ReadSettings", "SqlLookup", "TableRows"]

PAGE_ROWS = 10_000
"""Most rows of one question, where there may be many."""

_MOST_VALUES = 900
"""How many values one statement is given: SQLite takes 999, older ones."""


@dataclass(frozen=True)
class ReadSettings:
    """What is read, and how.

    Attributes:
        dialect: Of the database.
        connect: Makes a connection.
        table: Its name, maybe behind a schema's.
        schema: The columns that are read, with their types.
        max_retries: How often a question that failed is asked again.
    """

    dialect: Dialect
    connect: Callable[[], Any] = field(repr=False)
    table: tuple[str, ...]
    schema: pa.Schema
    max_retries: int = 3


class TableRows:
    """Reads rows of one table, over one connection.

    Args:
        settings: What is read.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        name = ".".join(settings.table)
        self._database = Database(settings.dialect, settings.connect, {"table": name}, SourceError)
        # What the database says of the table; None before the first question.
        self._table: Table | None = None

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    @property
    def mark(self) -> str:
        """What stands for a value in a statement."""
        return self._settings.dialect.placeholder

    def quoted(self, *names: str) -> str:
        """Return columns as a piece of a statement."""
        return ", ".join(self._settings.dialect.quoted(name) for name in names)

    def first(self, number: int) -> str:
        """Return what stands behind a statement that gives so many rows at most."""
        return self._settings.dialect.first_rows.format(number)

    def behind(self, names: Sequence[str], last: Sequence[Any]) -> tuple[str, list[Any]]:
        """Return the condition of rows that come behind one in the order of some columns, and its values."""
        columns = [self.quoted(name) for name in names]
        if self._settings.dialect.compares_rows:
            return f"({', '.join(columns)}) > ({', '.join([self.mark] * len(columns))})", list(last)
        ways: list[str] = []
        values: list[Any] = []
        for place, column in enumerate(columns):
            ways.append(" AND ".join([*(f"{one} = {self.mark}" for one in columns[:place]), f"{column} > {self.mark}"]))
            values += last[: place + 1]
        return f"({' OR '.join(f'({one})' for one in ways)})", values

    def parameters(self, name: str, values: pa.Array) -> list[Any]:
        """Return values that are compared with a column's as parameters of a statement.

        Raises:
            TypeMismatchError: If the column has no such values.
        """
        convert = converter_of(self._described().columns[name], values.type, self._settings.dialect, is_stored=False)
        found = values.to_pylist()
        return found if convert is None else [None if one is None else convert(one) for one in found]

    def rows(self, where: str = "", values: Sequence[Any] = (), behind: str = "") -> pa.RecordBatch:
        """Return rows.

        Args:
            where: A condition, with `mark` for each value; empty for all.
            values: The values.
            behind: What follows: an order, a limit.

        Raises:
            SourceError: If the database does not answer.
            TypeMismatchError: If it has values that the types cannot hold.
        """
        self._described()
        settings = self._settings
        target = settings.dialect.quoted(*settings.table)
        condition = f" WHERE {where}" if where else ""
        statement = f"SELECT {self.quoted(*settings.schema.names)} FROM {target}{condition} {behind}"
        found = self._try("read rows", lambda cursor: _fetched(cursor, statement, values))
        columns = list(zip(*found, strict=True)) or [()] * len(settings.schema)
        arrays = [self._column(one, item) for one, item in zip(columns, settings.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=settings.schema)

    def are_unique(self, names: Sequence[str]) -> bool:
        """Return whether no two rows that have values of all of some columns share them, by what the database says."""
        return any(key <= frozenset(names) for key in self._described().keys)

    def are_lacked(self, names: Sequence[str]) -> bool:
        """Return whether a row has no value of one of some columns."""
        if not names:
            return False
        target = self._settings.dialect.quoted(*self._settings.table)
        without = " OR ".join(f"{self.quoted(name)} IS NULL" for name in names)
        statement = f"SELECT {self.quoted(names[0])} FROM {target} WHERE {without} {self.first(1)}"
        return bool(self._try("read rows", lambda cursor: _fetched(cursor, statement, ())))

    def bounds(self, name: str) -> tuple[int, int] | None:
        """Return the least and the greatest value of a column of integers; None if it has none.

        Raises:
            SourceError: If the database does not answer.
            ConfigurationError: If there is no such column, or it is of another type.
        """
        table, described = ".".join(self._settings.table), self._described()
        column = described.columns.get(name)
        if column is None:
            message = f"table {table!r} has no column {name!r}"
            raise ConfigurationError(message, hint=nearest(name, list(described.columns)))
        target = self._settings.dialect.quoted(*self._settings.table)
        statement = f"SELECT MIN({self.quoted(name)}), MAX({self.quoted(name)}) FROM {target}"
        [(least, greatest)] = self._try("read bounds", lambda cursor: _fetched(cursor, statement, ()))
        if least is None:
            return None
        if not (isinstance(least, int) and isinstance(greatest, int)):
            message = f"a table is cut by a column of integers; {name!r} of {table!r} is of type {column.type}"
            raise ConfigurationError(message)
        return least, greatest

    def greatest(self, name: str, where: str = "", values: Sequence[Any] = ()) -> pa.Scalar | None:
        """Return the greatest value of a column that is read; None if it has none.

        Args:
            name: The column.
            where: A condition for the rows, with `mark` for each value; empty for all.
            values: The values.

        Raises:
            SourceError: If the database does not answer.
            TypeMismatchError: If its type cannot hold the value.
        """
        self._described()
        target = self._settings.dialect.quoted(*self._settings.table)
        condition = f" WHERE {where}" if where else ""
        statement = f"SELECT MAX({self.quoted(name)}) FROM {target}{condition}"
        found = self._try("read the greatest value", lambda cursor: _fetched(cursor, statement, values))
        [value] = self._column([found[0][0]], self._settings.schema.field(name))
        return value if value.is_valid else None

    def _column(self, values: Sequence[Any], item: pa.Field) -> pa.Array:
        convert = _CONVERSIONS[self._settings.dialect.name](item.type)
        try:
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            if kinds.is_timestamp(item.type):  # nothing may be cut
                return pa.array(values, pa.timestamp("us", item.type.tz)).cast(item.type)
            return pa.array(values, item.type)
        except (pa.ArrowException, ValueError, ArithmeticError, TypeError) as error:
            message = f"column {item.name!r} has a value that is no {item.type}: {error}"
            raise TypeMismatchError(message, table=".".join(self._settings.table)) from error

    def _described(self) -> Table:
        """What the database says of the table.

        Raises:
            ConfigurationError: If there is no such table, or it has no such columns.
            TypeMismatchError: If a column has values of another type.
        """
        if self._table is not None:
            return self._table
        settings = self._settings
        found: Table | None = self._try(
            "look at the table", lambda cursor: self._database.describe(cursor, settings.table)
        )
        if found is None:
            message = f"there is no table {'.'.join(settings.table)!r}"
            raise ConfigurationError(message)
        for item in settings.schema:
            if item.name not in found.columns:
                message = f"table {'.'.join(settings.table)!r} has no column {item.name!r}"
                raise ConfigurationError(message, hint=nearest(item.name, list(found.columns)))
            converter_of(found.columns[item.name], item.type, settings.dialect, is_stored=False)
        self._table = found
        return found

    def _try(self, what: str, action: Callable[[Any], Any]) -> Any:
        retry = CommitRetry()
        for failures in range(1, self._settings.max_retries + 2):
            try:
                with self._database.transaction(what, only_reads=True) as cursor:
                    return action(cursor)
            except SourceError:
                if failures > self._settings.max_retries:
                    raise
                time.sleep(retry.delay_ms(failures) / 1_000)
        raise AssertionError


def _fetched(cursor: Any, statement: str, values: Sequence[Any]) -> list[Any]:
    cursor.execute(statement, tuple(values))
    return list(cursor.fetchall())


class SqlLookup(TableLookup):
    """Finds rows of a table of a database by key.

    Args:
        settings: What is read, the columns of the key among it.
        keys: Names of the key's columns.
    """

    def __init__(self, settings: ReadSettings, keys: Sequence[str]) -> None:
        self._settings = settings
        self._keys = tuple(keys)
        # None until it is opened.
        self._rows: TableRows | None = None

    def open(self) -> None:
        """Connect with the first question."""
        self._rows = TableRows(self._settings)

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some keys."""
        assert self._rows is not None
        rows, width = self._rows, len(self._keys)
        columns = [rows.parameters(name, values) for name, values in zip(self._keys, keys.columns, strict=True)]
        wanted = list(zip(*columns, strict=True))
        parts = []
        for start in range(0, len(wanted), max(1, _MOST_VALUES // width)):
            some = wanted[start : start + max(1, _MOST_VALUES // width)]
            where = self._is_one_of(rows, len(some))
            parts.append(rows.rows(where, [value for key in some for value in key]))
        table = pa.Table.from_batches(parts, schema=self._settings.schema).combine_chunks()
        found = table.to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], schema=self._settings.schema)

    def _is_one_of(self, rows: TableRows, number: int) -> str:
        """The condition of some keys."""
        width = len(self._keys)
        if width == 1:
            return f"{rows.quoted(*self._keys)} IN ({', '.join([rows.mark] * number)})"
        if self._settings.dialect is MARIADB or not self._settings.dialect.compares_rows:
            # Of a list of rows it finds none where a text is of another character set, and a table of them is an error.
            one = " AND ".join(f"{rows.quoted(name)} = {rows.mark}" for name in self._keys)
            return " OR ".join([f"({one})"] * number)
        one = f"({', '.join([rows.mark] * width)})"
        return f"({rows.quoted(*self._keys)}) IN (VALUES {', '.join([one] * number)})"

    def close(self) -> None:
        """Close the connection."""
        if self._rows is not None:
            self._rows.close()


def _of_sqlite(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a value of a type of what SQLite keeps for it; None for as it is."""
    if kinds.is_boolean(kind):
        return _truth
    if kinds.is_decimal(kind):
        return lambda value: Decimal(str(value))
    if kinds.is_date(kind):
        return date.fromisoformat
    if kinds.is_time(kind):
        return time_of_day.fromisoformat
    if kinds.is_timestamp(kind):
        return datetime.fromisoformat
    if kinds.is_floating(kind):
        return float
    return json.loads if kinds.is_nested(kind) else None


def _truth(value: Any) -> bool:
    if value not in (0, 1):
        message = f"expected 0 or 1; got {value!r}"
        raise ValueError(message)
    return bool(value)


def _of_postgresql(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """As `_of_sqlite`, of what PostgreSQL's driver gives."""
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return lambda value: value if isinstance(value, str) else json_text(value) if _is_json(value) else str(value)
    if kinds.is_nested(kind):
        return lambda value: json.loads(value) if isinstance(value, str) else value
    return None


def _of_jdbc(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """As `_of_sqlite`, of what drivers of Java give."""
    return json.loads if kinds.is_nested(kind) else None


def _is_json(value: Any) -> bool:
    return isinstance(value, (dict, list, int, float, bool))


_CONVERSIONS = {"sqlite": _of_sqlite, "postgresql": _of_postgresql, "mariadb": of_mariadb, "jdbc": _of_jdbc}
"""By dialect, what finds a conversion for a type."""
