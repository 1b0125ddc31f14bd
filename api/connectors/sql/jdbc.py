"""Databases that only have a driver of Java: JDBC in a JVM inside this process, by ``JPype``.

A process starts one JVM, with its first connection, in UTC. Values cross as the classes that say them exactly:
``BigDecimal``, and those of ``java.time`` for dates and times. What a column keeps is read from the driver's metadata;
names of types are SQL's own, so what PostgreSQL would change (`headrace.connectors.sql.postgresql`) is refused here.

What locks a row, and whether a commit survives, differs from database to database, and JDBC does not tell. So nothing
is written exactly once by books of ours: rows are added at least once, or written by key, an UPDATE first and an INSERT
where there was no row.

Source: JDBC 4.2 (``java.sql``); Flink's ``JdbcConnectionOptions``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.state.extras import needs

from .checks import ColumnCheck, filled_bytes
from .dialects import Column, Convert, Dialect, Table
from .postgresql import POSTGRESQL

__all__ = ["JDBC", "JdbcConnection"]

_JVM_OPTIONS = ("-Xrs", "-Duser.timezone=UTC")
"""Signals are Python's; and local times mean themselves."""

_CONNECT_TIMEOUT_S = 10

_FAMILIES = {
    -7: ("boolean", "bool"), 16: ("boolean", "bool"),
    -6: ("smallint", "int"), 5: ("smallint", "int"), 4: ("integer", "int"), -5: ("bigint", "int"),
    6: ("double precision", "float"), 8: ("double precision", "float"), 7: ("real", "float4"),
    2: ("numeric", "decimal"), 3: ("numeric", "decimal"),
    1: ("character", "text"), -15: ("character", "text"),
    12: ("character varying", "text"), -9: ("character varying", "text"),
    -1: ("character varying", "text"), -16: ("character varying", "text"),
    -2: ("binary", "bytes"), -3: ("binary varying", "bytes"), -4: ("binary varying", "bytes"),
    91: ("date", "date"), 92: ("time", "time"), 93: ("timestamp without time zone", "timestamp"),
    2014: ("timestamp with time zone", "timestamptz"),
}  # fmt: skip
"""By number of ``java.sql.Types``: SQL's name of a type, and its family."""

_starting = threading.Lock()


def _jpype() -> Any:
    with needs("drivers of Java need JPype1, which is not installed", "jdbc"):
        import jpype
    return jpype


@dataclass(frozen=True)
class JdbcConnection:
    """How a database is reached by a driver of Java.

    Attributes:
        url: As the driver wants it: ``jdbc:h2:tcp://host/path``.
        jars: The driver's jars, as paths on the machines where the job runs.
        driver: Its class, as ``org.h2.Driver``.
        user: Who asks; None for nobody.
        password: Of the user.
        properties: More of the driver's own settings.

    Raises:
        ConfigurationError: If one is missing.
    """

    url: str = field(repr=False)
    jars: tuple[str, ...]
    driver: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith("jdbc:") or not self.driver or not self.jars:
            message = "a driver of Java needs a url that begins with jdbc:, its jars, and the name of its class"
            raise ConfigurationError(message)

    def __call__(self) -> Any:
        """Return a connection of its own; the first one of a process starts its JVM.

        Raises:
            ConfigurationError: If JPype or Java is not there.
        """
        library = _started(self.jars)
        with _told(library):
            java = library.JPackage("java")
            java.lang.Class.forName(self.driver, True, library.JClass("java.lang.ClassLoader").getSystemClassLoader())
            settings = java.util.Properties()
            own = {"user": self.user, "password": self.password, **self.properties}
            for name, value in own.items():
                if value is not None:
                    settings.setProperty(name, value)
            java.sql.DriverManager.setLoginTimeout(_CONNECT_TIMEOUT_S)
            return _Session(library, java.sql.DriverManager.getConnection(self.url, settings))


def _started(jars: Sequence[str]) -> Any:
    library = _jpype()
    with _starting:
        if library.isJVMStarted():
            for jar in jars:
                library.addClassPath(jar)
            return library
        try:
            library.startJVM(*_JVM_OPTIONS, classpath=list(jars), convertStrings=False)
        except (library.JVMNotFoundException, OSError) as error:
            message = f"there is no Java for a driver of Java: {error}"
            raise ConfigurationError(message, hint="install one, and set JAVA_HOME if it is not found") from error
    return library


class JdbcError(Exception):
    """What a driver raises.

    Attributes:
        state: SQL's own number of it; empty if there is none.
    """

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state


@contextlib.contextmanager
def _told(library: Any) -> Iterator[None]:
    try:
        yield
    except library.JException as error:
        get_state = getattr(error, "getSQLState", None)
        state = get_state() if get_state is not None else None
        raise JdbcError(str(error), "" if state is None else str(state)) from None


class _Session:
    """A connection, as DB-API 2 has them."""

    def __init__(self, library: Any, java: Any) -> None:
        self.library = library
        self.java = java
        java.setAutoCommit(False)

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    def commit(self) -> None:
        with _told(self.library):
            self.java.commit()

    def rollback(self) -> None:
        with _told(self.library):
            self.java.rollback()

    def close(self) -> None:
        with _told(self.library):
            self.java.close()


class _Cursor:
    """Statements of a connection, one after another."""

    def __init__(self, session: _Session) -> None:
        self.session = session
        self.rowcount = -1
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> _Cursor:
        library = self.session.library
        with _told(library), self.session.java.prepareStatement(statement) as prepared:
            _set(library, prepared, values)
            self._rows, self.rowcount = [], -1
            if prepared.execute():
                self._rows = list(_rows_of(library, prepared.getResultSet()))
            else:
                self.rowcount = int(prepared.getUpdateCount())
        return self

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        library = self.session.library
        with _told(library), self.session.java.prepareStatement(statement) as prepared:
            is_empty = True
            for row in rows:
                _set(library, prepared, row)
                prepared.addBatch()
                is_empty = False
            if not is_empty:
                prepared.executeBatch()

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows


def _set(library: Any, prepared: Any, values: Sequence[Any]) -> None:
    for number, value in enumerate(values, 1):
        prepared.setObject(number, _to_java(library, value))


def _to_java(library: Any, value: Any) -> Any:
    """A parameter, as the class that says it exactly."""
    if value is None:
        return None
    java = library.JPackage("java")
    if isinstance(value, bool):
        return library.JBoolean(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return library.JObject(value, java.lang.Long)
    if isinstance(value, (int, Decimal)):
        return java.math.BigDecimal(format(value, "f") if isinstance(value, Decimal) else str(value))
    if isinstance(value, float):
        return library.JObject(value, java.lang.Double)
    if isinstance(value, bytes):
        return library.JArray(library.JByte)(value)
    if isinstance(value, datetime):
        parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond * 1_000)
        if value.tzinfo is None:
            return java.time.LocalDateTime.of(*parts)
        moment = value.astimezone(timezone.utc)
        local = _to_java(library, moment.replace(tzinfo=None))
        return java.time.OffsetDateTime.of(local, java.time.ZoneOffset.UTC)
    if isinstance(value, date):
        return java.time.LocalDate.of(value.year, value.month, value.day)
    if isinstance(value, time):
        return java.time.LocalTime.of(value.hour, value.minute, value.second, value.microsecond * 1_000)
    return library.JString(value)


def _rows_of(library: Any, results: Any) -> Iterator[tuple[Any, ...]]:
    described = results.getMetaData()
    numbers = range(1, int(described.getColumnCount()) + 1)
    getters = [_getter(library, int(described.getColumnType(number)), str(described.getColumnTypeName(number)))
               for number in numbers]  # fmt: skip
    while results.next():
        yield tuple([get(results, number) for number, get in zip(numbers, getters, strict=True)])


def _getter(library: Any, number: int, name: str) -> Callable[[Any, int], Any]:
    """What gives a column's value."""
    family = _FAMILIES.get(number, (name, "other"))[1]
    if family == "text":
        return lambda results, column: _but_null(str, results.getString(column))
    if family == "decimal":
        return lambda results, column: _but_null(
            lambda one: Decimal(str(one.toPlainString())), results.getBigDecimal(column)
        )
    if family == "bytes":
        return lambda results, column: _but_null(bytes, results.getBytes(column))
    if family in _PLAIN:
        method, convert = _PLAIN[family]

        def plain(results: Any, column: int) -> Any:
            value = getattr(results, method)(column)
            return None if results.wasNull() else convert(value)

        return plain
    if family in _TIMES:
        kind = library.JClass(f"java.time.{_TIMES[family][0]}")
        convert = _TIMES[family][1]
        return lambda results, column: _but_null(convert, results.getObject(column, kind.class_))
    message = f"values of the type {name} of the database are not read"
    raise ConfigurationError(message, hint="cast them in a view")


def _but_null(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


_PLAIN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("getBoolean", bool),
    "int": ("getLong", int),
    "float": ("getDouble", float),
    "float4": ("getFloat", float),
}


def _day(value: Any) -> date:
    return date(int(value.getYear()), int(value.getMonthValue()), int(value.getDayOfMonth()))


def _clock(value: Any) -> time:
    nanos = int(value.getNano())
    if nanos % 1_000:
        message = f"{value} has nanoseconds, and times here have microseconds"
        raise ValueError(message)
    return time(int(value.getHour()), int(value.getMinute()), int(value.getSecond()), nanos // 1_000)


def _moment(value: Any) -> datetime:
    return datetime.combine(_day(value), _clock(value))


def _moment_in_utc(value: Any) -> datetime:
    offset = int(value.getOffset().getTotalSeconds())
    return _moment(value.minusSeconds(offset)).replace(tzinfo=timezone.utc)


_TIMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "date": ("LocalDate", _day),
    "time": ("LocalTime", _clock),
    "timestamp": ("LocalDateTime", _moment),
    "timestamptz": ("OffsetDateTime", _moment_in_utc),
}


# -------------------------------------------------------------------------------------------------------------- dialect
class _Jdbc:
    name = "jdbc"
    placeholder = "?"
    blob = "BLOB"
    key_text = "VARCHAR(255)"
    table_options = ""
    or_nothing = ""
    first_rows = "FETCH FIRST {} ROWS ONLY"
    compares_rows = False
    keeps_books = False

    def quoted(self, *names: str) -> str:
        return ".".join('"' + name.replace('"', '""') + '"' for name in names)

    def prepare(self, connection: Any, *, only_reads: bool = False) -> None:
        with _told(connection.library):
            connection.java.setTransactionIsolation(2)  # what is committed

    def begin(self, connection: Any, *, only_reads: bool = False) -> Any:
        return connection.cursor()

    def commit(self, connection: Any) -> None:
        connection.commit()

    def rollback(self, connection: Any) -> None:
        connection.rollback()

    def errors(self) -> tuple[type[Exception], ...]:
        return (JdbcError,)

    def is_about_records(self, error: Exception) -> bool:
        # Data and constraints; but another writer may have added a row of a key since it was looked for.
        return isinstance(error, JdbcError) and error.state[:2] in ("22", "23") and error.state != "23505"

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        session = cursor.session
        with _told(session.library):
            metadata = session.java.getMetaData()
            schema = path[0] if len(path) == 2 else session.java.getSchema()
            escape = str(metadata.getSearchStringEscape())
            pattern = [_as_pattern(str(part), escape) if part is not None else None for part in (schema, path[-1])]
            columns = {}
            with metadata.getColumns(session.java.getCatalog(), *pattern, None) as found:
                while found.next():
                    column = _column(found)
                    columns[column.name] = column
            if not columns:
                return None
            keys = _keys_of(metadata, session.java.getCatalog(), schema, path[-1])
            return Table(_told_apart(session, self.quoted(*path), columns), tuple(map(frozenset, keys)))

    def lock_bookkeeping(self, cursor: Any) -> None:
        raise NotImplementedError

    def share_lock(self) -> str:
        raise NotImplementedError

    def exclusive_lock(self) -> str:
        raise NotImplementedError

    def insert_many(self, cursor: Any, target: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" for _ in columns)
        cursor.executemany(f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks})", rows)

    def write_by_key(
        self, cursor: Any, target: str, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        others = [place for place, name in enumerate(columns) if name not in keys]
        own = [columns.index(name) for name in keys]
        where = " AND ".join(f"{name} = ?" for name in keys)
        look = f"SELECT {keys[0]} FROM {target} WHERE {where}"
        change = f"UPDATE {target} SET {', '.join(f'{columns[place]} = ?' for place in others)} WHERE {where}"
        missing = []
        for row in rows:
            if others:
                is_there = cursor.execute(change, [row[place] for place in (*others, *own)]).rowcount > 0
            else:
                is_there = cursor.execute(look, [row[place] for place in own]).fetchone() is not None
            if not is_there:
                missing.append(row)
        self.insert_many(cursor, target, columns, missing)

    def misfit(self, kind: pa.DataType, column: Column, *, fits: bool, is_stored: bool) -> str | None:
        return POSTGRESQL.misfit(kind, column, fits=fits, is_stored=is_stored)

    def parameter_of(self, kind: pa.DataType, column: Column) -> Convert | None:
        return POSTGRESQL.parameter_of(kind, column)

    def check_of(self, kind: pa.DataType, column: Column) -> ColumnCheck | None:
        if column.kind == "binary":
            return filled_bytes((*column.numbers, 1)[0])
        return POSTGRESQL.check_of(kind, column)


def _as_pattern(name: str, escape: str) -> str:
    return "".join(f"{escape}{letter}" if letter in ("_", "%", escape) else letter for letter in name)


def _column(found: Any) -> Column:
    """A column, of a row of the driver's metadata."""
    number, size, digits = (int(found.getInt(name)) for name in ("DATA_TYPE", "COLUMN_SIZE", "DECIMAL_DIGITS"))
    knows_digits = not found.wasNull()
    name, family = _FAMILIES.get(number, (str(found.getString("TYPE_NAME")), "other"))
    if number == -7 and size > 1:
        family = "other"
    inside = ""
    if family == "decimal" and knows_digits and digits >= 0:
        inside = f"({size},{digits})"
    elif family in ("time", "timestamp", "timestamptz"):
        inside = f"({min(digits, 6) if knows_digits else 0})"
    elif family in ("text", "bytes") and size > 0:
        inside = f"({size})"
    is_nullable = int(found.getInt("NULLABLE")) != 0
    is_given = found.getString("COLUMN_DEF") is not None or str(found.getString("IS_AUTOINCREMENT")) == "YES"
    return Column(
        str(found.getString("COLUMN_NAME")), name + inside, family,
        is_required=not is_nullable and not is_given,
        is_generated=str(found.getString("IS_GENERATEDCOLUMN")) == "YES",
        overlooks_blanks=family == "text",  # most databases do, and drivers do not tell
    )  # fmt: skip


def _keys_of(metadata: Any, catalog: Any, schema: Any, table: str) -> list[set[str]]:
    """The columns of the primary key, and of each unique index of all rows."""
    keys: dict[str, set[str]] = {}
    with metadata.getPrimaryKeys(catalog, schema, table) as found:
        while found.next():
            keys.setdefault("", set()).add(str(found.getString("COLUMN_NAME")))
    partial = set()
    with metadata.getIndexInfo(catalog, schema, table, True, True) as found:
        while found.next():
            index, column = found.getString("INDEX_NAME"), found.getString("COLUMN_NAME")
            if index is None:  # a statistic
                continue
            if found.getString("FILTER_CONDITION") or column is None:
                partial.add(str(index))
            keys.setdefault(str(index), set()).add(str(column))
    return [columns for index, columns in keys.items() if index not in partial]


def _told_apart(session: _Session, target: str, columns: dict[str, Column]) -> dict[str, Column]:
    """The columns, with those said that overlook case: drivers tell it of columns, or of types."""
    overlooking = set()
    with session.java.getMetaData().getTypeInfo() as found:
        while found.next():
            if not found.getBoolean("CASE_SENSITIVE"):
                overlooking.add(str(found.getString("TYPE_NAME")))
    with session.java.prepareStatement(f"SELECT * FROM {target} WHERE 1 = 0") as prepared:
        described = prepared.executeQuery().getMetaData()
        for number in range(1, int(described.getColumnCount()) + 1):
            name, kind = str(described.getColumnName(number)), str(described.getColumnTypeName(number))
            if columns[name].family == "text" and (kind in overlooking or not described.isCaseSensitive(number)):
                columns[name] = replace(columns[name], equates=f"type {kind}")
    return columns


JDBC: Dialect = _Jdbc()
