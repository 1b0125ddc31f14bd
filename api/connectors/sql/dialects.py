"""What differs between databases: connecting, quoting, types, locking, and which errors will not pass.

Three are known: SQLite through the standard library, here, and PostgreSQL and MariaDB, each with a module of its own
(`headrace.connectors.sql.postgresql`, `headrace.connectors.sql.mariadb`), and what others say of themselves through
drivers of Java (`headrace.connectors.sql.jdbc`). Everything else of the SQL sink is written
against `Dialect`. Identifiers are always quoted by it, values are always parameters: no name and no record can become a
piece of a statement.

A transaction of ours is short, and holds up others not for long if its process is stopped in the middle: on PostgreSQL
the server ends it after `IDLE_TRANSACTION_S`, on SQLite the operating system gives its lock back when the process dies.

Source: Flink's ``JdbcDialect``; DB-API 2 (PEP 249).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import HeadraceError
from headrace.state.credentials import masked
from headrace.state.values.json_text import json_text

from .checks import ColumnCheck, fractions_beyond, no_numbers, number_like, wide_integers

__all__ = [
    "IDLE_TRANSACTION_S",
    "LOCK_TIMEOUT_S",
    "SQLITE",
    "Column",
    "Convert",
    "Dialect",
    "Table",
    "in_iso",
    "timestamp_text",
    "upsert_statement",
    "usual_hint",
    "without_credentials",
]

BUSY_TIMEOUT_S = 30.0
"""How long SQLite waits for another writer of the same file."""

LOCK_TIMEOUT_S = 20
IDLE_TRANSACTION_S = 60

Convert = Callable[[Any], Any]
"""Makes a parameter of a value that is not null."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        type: As declared.
        family: Which values it takes: ``bool``, ``int``, ``float`` of 64 bits and ``float4`` of 32, ``decimal``,
            ``text``, ``bytes``, ``date``, ``time``, ``timestamp``, ``timestamptz``, ``interval``, ``json``, ``array``,
            ``uuid``, ``any`` for what its text says, or another, which takes none.
        is_required: Whether a row cannot leave it out.
        is_generated: Whether it may not be written.
        replaces_null: Whether the database writes something of its own where it is given a null.
        equates: What takes texts for equal that differ, as ``collation nocase``; empty if nothing does.
        overlooks_blanks: Whether texts are equal that differ in blanks at their end only.
        remedy: What makes it tell all texts apart; empty if that is not known.
        element: Of an array, what its elements are.
    """

    name: str
    type: str
    family: str
    is_required: bool
    is_generated: bool = False
    replaces_null: bool = False
    equates: str = ""
    overlooks_blanks: bool = False
    remedy: str = ""
    element: Column | None = None

    @property
    def kind(self) -> str:
        """The type without what is in brackets: ``numeric`` of ``numeric(9,2)``."""
        before, _, rest = self.type.partition("(")
        return before + rest.partition(")")[2]

    @property
    def numbers(self) -> list[int]:
        """The numbers that are in brackets, if nothing else is."""
        inside = self.type.partition("(")[2].partition(")")[0]
        return [int(part) for part in inside.split(",")] if re.fullmatch(r"-?\d+(, ?-?\d+)*", inside) else []


@dataclass(frozen=True)
class Table:
    """What a database says of a table.

    Attributes:
        columns: By name.
        keys: Sets of columns that are unique together.
        is_transactional: Whether what is written can be taken back.
        num_unique: How many unique keys there are, if a row that is written by key is found by any of them; else 0.
    """

    columns: dict[str, Column]
    keys: tuple[frozenset[str], ...]
    is_transactional: bool = True
    num_unique: int = 0


class Dialect(Protocol):
    """What a database needs to be said differently."""

    name: str
    placeholder: str
    blob: str
    """The type of bytes."""
    key_text: str
    """The type of texts that are a part of a key, told apart by each of their letters."""
    table_options: str
    """Behind a ``CREATE TABLE`` of ours."""
    or_nothing: str
    """Behind an insert into one of ours: what is there stays, and does not count."""
    first_rows: str
    """Behind a select, with a number for ``{}``: no more rows than that."""
    compares_rows: bool
    """Whether it knows ``(a, b) > (1, 2)``."""
    keeps_books: bool
    """Whether it has what exactly once needs: locks of rows, and commits that last."""

    def quoted(self, *names: str) -> str:
        """Return names as one identifier: schema and table, or a column."""
        ...

    def prepare(self, connection: Any, *, only_reads: bool = False) -> None:
        """Make a fresh connection fit for us, which may be one that only reads."""
        ...

    def begin(self, connection: Any, *, only_reads: bool = False) -> Any:
        """Begin a transaction, which may be one that only reads; gives a cursor for it."""
        ...

    def commit(self, connection: Any) -> None:
        """End it, durably."""
        ...

    def rollback(self, connection: Any) -> None:
        """Take it back."""
        ...

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what the driver raises."""
        ...

    def is_about_records(self, error: Exception) -> bool:
        """Return whether the records are at fault, so that trying again is no use."""
        ...

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        """Return what the database says of a table; None if there is none."""
        ...

    def lock_bookkeeping(self, cursor: Any) -> None:
        """Have the bookkeeping tables made by one at a time."""
        ...

    def share_lock(self) -> str:
        """Behind a select: others may read the row, but not change it, before our transaction ends."""
        ...

    def exclusive_lock(self) -> str:
        """Behind a select: others may not lock the row."""
        ...

    def insert_many(self, cursor: Any, target: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows in bulk; names are quoted."""
        ...

    def write_by_key(
        self, cursor: Any, target: str, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        """Add rows, or change those of their keys; names are quoted, and keys are among the columns."""
        ...

    def misfit(self, kind: pa.DataType, column: Column, *, fits: bool, is_stored: bool) -> str | None:
        """Return what may be done where a column does not have values of a type, or would change them; None if it has.

        Args:
            kind: The type.
            column: The column.
            fits: Whether its family has such values.
            is_stored: Whether it is to keep them; else they are read, or compared with it.
        """
        ...

    def parameter_of(self, kind: pa.DataType, column: Column) -> Convert | None:
        """Return what makes the driver's values of those of a type; None for as they are."""
        ...

    def check_of(self, kind: pa.DataType, column: Column) -> ColumnCheck | None:
        """Return what finds values of a type that a column would change without a word; None if there are none."""
        ...


def usual_hint(kind: pa.DataType, column: Column) -> str:
    """Return what may be done about values that do not fit a column."""
    if kinds.is_timestamp(kind) and column.family.startswith("timestamp"):
        return "times with a zone and times without are not the same: say in the program which zone is meant"
    return "cast them in the program, or declare another column type"


# --------------------------------------------------------------------------------------------------------------- SQLite
_SQLITE_FAMILIES = (
    ("TIMESTAMP", "timestamp"),
    ("DATETIME", "timestamp"),
    ("DATE", "date"),
    ("TIME", "time"),
    ("BOOL", "bool"),
    ("INT", "int"),
    ("CHAR", "text"),
    ("CLOB", "text"),
    ("TEXT", "text"),
    ("JSON", "json"),
    ("UUID", "text"),
    ("BLOB", "any"),
    ("REAL", "float"),
    ("FLOA", "float"),
    ("DOUB", "float"),
    ("DEC", "decimal"),
    ("NUMERIC", "decimal"),
)
"""The first that a declared type contains says what it is for; SQLite itself hardly minds."""


class _Sqlite:
    name = "sqlite"
    placeholder = "?"
    blob = "BLOB"
    key_text = "TEXT"
    table_options = ""
    or_nothing = " ON CONFLICT DO NOTHING"
    first_rows = "LIMIT {}"
    compares_rows = True
    keeps_books = True

    def quoted(self, *names: str) -> str:
        return ".".join('"' + name.replace('"', '""') + '"' for name in names)

    def prepare(self, connection: Any, *, only_reads: bool = False) -> None:
        connection.isolation_level = None  # we say ourselves when a transaction begins
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1_000)}")
        if only_reads:
            return  # what follows would write into the file
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for writers
        connection.execute("PRAGMA synchronous = FULL")  # a commit that has returned survives a power cut

    def begin(self, connection: Any, *, only_reads: bool = False) -> Any:
        cursor = connection.cursor()
        # One writer at a time, and no upgrade that could fail.
        cursor.execute("BEGIN" if only_reads else "BEGIN IMMEDIATE")
        return cursor

    def commit(self, connection: Any) -> None:
        connection.execute("COMMIT")

    def rollback(self, connection: Any) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error, OverflowError)

    def is_about_records(self, error: Exception) -> bool:
        return isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)) or (
            # What cannot be bound; which class says so depends on the version of Python.
            isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError)) and "binding" in str(error)
        )

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        schema = path[0] if len(path) == 2 else "main"
        query = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?, ?)'
        columns: dict[str, Column] = {}
        primary: dict[str, int] = {}
        found = cursor.execute(query, (path[-1], schema)).fetchall()
        for name, declared, not_null, default, key_part, hidden in found:
            if key_part:
                primary[name] = key_part
            upper = declared.upper()
            family = next((family for part, family in _SQLITE_FAMILIES if part in upper), "any")
            columns[name] = Column(name, declared, family, bool(not_null) and default is None, hidden in (2, 3))
        if not columns:
            return None
        keys = [frozenset(primary)] if primary else []
        if len(primary) == 1:  # an alias of the row's number: left out, it is given by the database
            [alias] = primary
            if columns[alias].type.upper() == "INTEGER":
                columns[alias] = Column(alias, "INTEGER", "int", is_required=False)
        indexes = 'SELECT name FROM pragma_index_list(?, ?) WHERE "unique" AND NOT partial'
        for (index,) in cursor.execute(indexes, (path[-1], schema)).fetchall():
            query = "SELECT name, coll FROM pragma_index_xinfo(?, ?) WHERE key"
            parts = cursor.execute(query, (index, schema)).fetchall()
            keys.append(frozenset(name for name, _ in parts))
            for name, collation in parts:
                if collation != "BINARY" and name in columns:
                    found = f"collation {collation}"
                    columns[name] = replace(columns[name], equates=found, remedy="make the table without it")
        return Table(columns, tuple(keys))

    def lock_bookkeeping(self, cursor: Any) -> None:
        """A transaction that writes is alone anyway."""

    def share_lock(self) -> str:
        return ""

    def exclusive_lock(self) -> str:
        return ""

    def insert_many(self, cursor: Any, target: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" for _ in columns)
        cursor.executemany(f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks})", rows)

    def write_by_key(
        self, cursor: Any, target: str, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        cursor.executemany(upsert_statement(target, columns, keys, self.placeholder), list(rows))

    def misfit(self, kind: pa.DataType, column: Column, *, fits: bool, is_stored: bool) -> str | None:
        if not fits:  # it has fewer types
            fits = (kinds.is_boolean(kind) and column.family == "int") or (
                kinds.is_timestamp(kind) and column.family == "timestamp"
            )
        # Whether it makes numbers of text that looks like one: it does not know the column's type.
        makes_numbers = column.family == "any" and bool(column.type) and "BLOB" not in column.type.upper()
        if kinds.is_decimal(kind) and (column.family == "decimal" or makes_numbers):
            fits = fits and kind.precision <= MAX_SQLITE_DIGITS
        if (kinds.is_string(kind) or kinds.is_large_string(kind)) and makes_numbers:
            return f"SQLite makes numbers of digits in a column of type {column.type}: use a TEXT column"
        if fits:
            return None
        if kinds.is_decimal(kind):
            return f"SQLite keeps {MAX_SQLITE_DIGITS} digits of a number: use a TEXT column for more"
        return usual_hint(kind, column)

    def parameter_of(self, kind: pa.DataType, column: Column) -> Convert | None:
        if kinds.is_boolean(kind):
            return int
        if kinds.is_decimal(kind):
            return str
        if kinds.is_date(kind) or kinds.is_time(kind):
            return in_iso
        if kinds.is_timestamp(kind):
            return timestamp_text
        return json_text if kinds.is_nested(kind) else None

    def check_of(self, kind: pa.DataType, column: Column) -> ColumnCheck | None:
        if kinds.is_integer(kind) and column.family == "float":
            return wide_integers(kind, 53)
        if kinds.is_temporal(kind) and not kinds.is_date(kind):
            return fractions_beyond(kind)
        if kinds.is_string(kind) or kinds.is_large_string(kind):
            is_kept = any(part in column.type.upper() for part in ("CHAR", "CLOB", "TEXT", "BLOB"))
            return None if is_kept or not column.type else number_like()
        return no_numbers() if kinds.is_floating(kind) else None


MAX_SQLITE_DIGITS = 15
"""Digits of a decimal that a column of SQLite keeps which is meant for numbers."""


def in_iso(value: date | time) -> str:
    """Return a date or a time of day as a text."""
    return value.isoformat()


def timestamp_text(value: datetime) -> str:
    """Return a time as a text."""
    return value.isoformat(sep=" ")


def upsert_statement(target: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    """Return the statement that SQLite has of PostgreSQL: it adds a row, or changes the one of its key."""
    rest = [name for name in columns if name not in keys]
    marks = ", ".join(mark for _ in columns)
    change = f"DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "DO NOTHING"
    return f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) {change}"


SQLITE: Dialect = _Sqlite()


def without_credentials(error: BaseException) -> str:
    """Return what an error says, in one line and without passwords."""
    text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    return masked(" ".join(text.split()))
