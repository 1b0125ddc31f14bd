"""What differs between databases: connecting, quoting, types, locking, and which errors will not pass.

Three are known: SQLite through the standard library, PostgreSQL through ``psycopg``, and MariaDB, which has a module of
its own (`headrace.connectors.sql.mariadb`). Everything else of the SQL sink is written against `Dialect`. Identifiers
are always quoted by it, values are always parameters: no name and no record can become a piece of a statement.

A transaction of ours is short, and holds up others not for long if its process is stopped in the middle: on PostgreSQL
the server ends it after `IDLE_TRANSACTION_S`, on SQLite the operating system gives its lock back when the process dies.

Source: Flink's ``JdbcDialect``; DB-API 2 (PEP 249).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.engine.errors import HeadraceError
from headrace.state.credentials import masked
from headrace.state.extras import needs

__all__ = [
    "IDLE_TRANSACTION_S",
    "LOCK_TIMEOUT_S",
    "POSTGRESQL",
    "SQLITE",
    "Column",
    "Dialect",
    "Table",
    "psycopg_driver",
    "without_credentials",
]

BUSY_TIMEOUT_S = 30.0
"""How long SQLite waits for another writer of the same file."""

LOCK_TIMEOUT_S = 20
IDLE_TRANSACTION_S = 60


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its name.
        type: As declared.
        family: Which values it takes: ``bool``, ``int``, ``float``, ``decimal``, ``text``, ``bytes``, ``date``,
            ``time``, ``timestamp``, ``timestamptz``, ``interval``, ``json``, ``array``, ``uuid`` or ``any``.
        is_required: Whether a row cannot leave it out.
        is_generated: Whether it may not be written.
        replaces_null: Whether the database writes something of its own where it is given a null.
    """

    name: str
    type: str
    family: str
    is_required: bool
    is_generated: bool = False
    replaces_null: bool = False


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

    def quoted(self, *names: str) -> str:
        """Names as one identifier: schema and table, or a column."""
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

    def upsert(self, target: str, columns: Sequence[str], keys: Sequence[str]) -> str:
        """Return the statement that adds a row, or changes the one of its key; names are quoted."""
        ...


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
            parts = cursor.execute("SELECT name FROM pragma_index_info(?, ?)", (index, schema)).fetchall()
            keys.append(frozenset(name for (name,) in parts))
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

    def upsert(self, target: str, columns: Sequence[str], keys: Sequence[str]) -> str:
        return _upsert(target, columns, keys, self.placeholder)


# ----------------------------------------------------------------------------------------------------------- PostgreSQL
_POSTGRESQL_FAMILIES = {
    "boolean": "bool",
    "smallint": "int",
    "integer": "int",
    "bigint": "int",
    "real": "float",
    "double precision": "float",
    "numeric": "decimal",
    "text": "text",
    "character varying": "text",
    "character": "text",
    "bytea": "bytes",
    "date": "date",
    "time without time zone": "time",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "interval": "interval",
    "json": "json",
    "jsonb": "json",
    "uuid": "uuid",
}

_DESCRIBE_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_DESCRIBE_KEYS = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""

_BOOKKEEPING_LOCK = 0x48656164  # "Head"


class _Postgresql:
    name = "postgresql"
    placeholder = "%s"
    blob = "BYTEA"
    key_text = "TEXT"
    table_options = ""
    or_nothing = " ON CONFLICT DO NOTHING"

    def quoted(self, *names: str) -> str:
        return ".".join('"' + name.replace('"', '""').replace("%", "%%") + '"' for name in names)

    def prepare(self, connection: Any, *, only_reads: bool = False) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
            cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_S}s'")
            cursor.execute("SHOW synchronous_commit")
            if cursor.fetchone()[0] == "off":  # a commit that has returned must survive a crash of the server
                cursor.execute("SET synchronous_commit = on")
        connection.commit()

    def begin(self, connection: Any, *, only_reads: bool = False) -> Any:
        return connection.cursor()  # the first statement begins it

    def commit(self, connection: Any) -> None:
        connection.commit()

    def rollback(self, connection: Any) -> None:
        if not connection.closed:
            connection.rollback()

    def errors(self) -> tuple[type[Exception], ...]:
        return (psycopg_driver().Error,)

    def is_about_records(self, error: Exception) -> bool:
        psycopg = psycopg_driver()
        return isinstance(error, (psycopg.DataError, psycopg.IntegrityError)) or (
            isinstance(error, psycopg.ProgrammingError) and "cannot adapt" in str(error)
        )

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        name = ".".join('"' + part.replace('"', '""') + '"' for part in path)
        columns = {
            column: Column(column, declared, _postgresql_family(declared), is_required, is_generated)
            for column, declared, is_required, is_generated in cursor.execute(_DESCRIBE_COLUMNS, (name,)).fetchall()
        }
        if not columns:
            return None
        keys = cursor.execute(_DESCRIBE_KEYS, (name,)).fetchall()
        return Table(columns, tuple(frozenset(parts) for (parts,) in keys))

    def lock_bookkeeping(self, cursor: Any) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_BOOKKEEPING_LOCK,))

    def share_lock(self) -> str:
        return " FOR SHARE"

    def exclusive_lock(self) -> str:
        return " FOR UPDATE"

    def insert_many(self, cursor: Any, target: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        statement = f"COPY {target} ({', '.join(columns)}) FROM STDIN".replace("%%", "%")  # has no parameters
        with cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    def upsert(self, target: str, columns: Sequence[str], keys: Sequence[str]) -> str:
        return _upsert(target, columns, keys, self.placeholder)


def _upsert(target: str, columns: Sequence[str], keys: Sequence[str], mark: str) -> str:
    rest = [name for name in columns if name not in keys]
    marks = ", ".join(mark for _ in columns)
    change = f"DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in rest)}" if rest else "DO NOTHING"
    return f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) {change}"


def _postgresql_family(declared: str) -> str:
    return "array" if declared.endswith("[]") else _POSTGRESQL_FAMILIES.get(declared, "any")


def psycopg_driver() -> Any:
    """Import PostgreSQL's driver.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("PostgreSQL needs psycopg, which is not installed", "postgresql"):
        import psycopg
    return psycopg


SQLITE: Dialect = _Sqlite()
POSTGRESQL: Dialect = _Postgresql()


def without_credentials(error: BaseException) -> str:
    """Return what an error says, in one line and without passwords."""
    text = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    return masked(" ".join(text.split()))
