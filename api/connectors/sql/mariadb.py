"""What MariaDB needs to be said differently, by the driver ``PyMySQL``.

Its ways of making something else of a value are all shut: a session is strict, takes 0 as a number and no zero dates,
and what it would round, cut or fill up without a word (fractions, digits, blanks) is refused before it is sent.
Transactions are only where InnoDB is, and a commit that has returned is only there to stay where its log is written at
each: tables of other engines and servers with other settings are refused as sinks. "On duplicate key" means any unique
key, so a table that is written by key may have no other one.

A transaction of ours ends after `IDLE_TRANSACTION_S` without a statement, and waits for others `LOCK_TIMEOUT_S`.

Source: MariaDB's documentation of 10.11; Flink's ``MySqlDialect``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.engine.errors import ConfigurationError
from headrace.state.extras import needs
from headrace.state.values.json_text import json_text

from .checks import (
    ColumnCheck,
    blanks_beyond,
    digits_beyond,
    filled_bytes,
    fractions_beyond,
    short_years,
    wide_integers,
)
from .dialects import (
    IDLE_TRANSACTION_S,
    LOCK_TIMEOUT_S,
    Column,
    Convert,
    Dialect,
    Table,
    in_iso,
    timestamp_text,
    usual_hint,
)

__all__ = ["MARIADB", "of_mariadb", "pymysql_driver"]

_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)

_NO_LIMIT = 2**64 - 1

_FAMILIES = {
    "tinyint": "int",
    "smallint": "int",
    "mediumint": "int",
    "int": "int",
    "bigint": "int",
    "year": "int",
    "double": "float",
    "decimal": "decimal",
    "char": "text",
    "varchar": "text",
    "tinytext": "text",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    "binary": "bytes",
    "varbinary": "bytes",
    "tinyblob": "bytes",
    "blob": "bytes",
    "mediumblob": "bytes",
    "longblob": "bytes",
    "date": "date",
    "time": "time",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "uuid": "uuid",
}
"""By type. Others take no values, ``float`` among them: the server shows six digits of one."""

_DESCRIBE_TABLE = "SELECT engine FROM information_schema.tables WHERE table_schema = {schema} AND table_name = %s"

_DESCRIBE_COLUMNS = """
SELECT column_name, data_type, column_type, character_set_name, collation_name, is_nullable = 'YES',
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%',
       is_generated <> 'NEVER', is_nullable = 'NO' AND data_type = 'timestamp'
FROM information_schema.columns WHERE table_schema = {schema} AND table_name = %s ORDER BY ordinal_position
"""

_DESCRIBE_KEYS = """
SELECT index_name, column_name, sub_part IS NULL
FROM information_schema.statistics WHERE table_schema = {schema} AND table_name = %s AND non_unique = 0
"""

_DATA_ERRORS = frozenset({1048, 1062, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1451, 1452, 4025})
"""Of a row: nulls, doubles, ranges, cuts, wrong values, lengths, foreign keys, CHECK."""


class _Mariadb:
    name = "mariadb"
    placeholder = "%s"
    blob = "LONGBLOB"
    key_text = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    table_options = " ENGINE = InnoDB"
    or_nothing = " ON DUPLICATE KEY UPDATE sink_id = sink_id"
    first_rows = "LIMIT {}"
    compares_rows = True
    keeps_books = True

    def quoted(self, *names: str) -> str:
        return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)

    def write_by_key(
        self, cursor: Any, target: str, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        rest = [name for name in columns if name not in keys] or [keys[0]]
        changes = ", ".join(f"{name} = VALUES({name})" for name in rest)
        marks = ", ".join("%s" for _ in columns)
        statement = f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks}) ON DUPLICATE KEY UPDATE {changes}"
        cursor.executemany(statement, list(rows))

    def prepare(self, connection: Any, *, only_reads: bool = False) -> None:
        driver = pymysql_driver()
        if connection.client_flag & driver.constants.CLIENT.FOUND_ROWS:
            message = "a connection to MariaDB must not be made with CLIENT.FOUND_ROWS: rows that are there would count"
            raise ConfigurationError(message)
        connection.set_character_set("utf8mb4")  # the server's, and the driver's
        with connection.cursor(driver.cursors.Cursor) as cursor:
            cursor.execute(
                f"SET SESSION sql_mode = '{_SQL_MODE}', time_zone = '+00:00', autocommit = 0,"
                f" sql_select_limit = {_NO_LIMIT},"
                f" innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, lock_wait_timeout = {LOCK_TIMEOUT_S},"
                f" idle_transaction_timeout = {IDLE_TRANSACTION_S}"
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if not only_reads:
                cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
                [setting] = cursor.fetchone()
                if setting not in (1, 3):
                    message = (
                        f"innodb_flush_log_at_trx_commit of the server is {setting}: it may lose what it committed"
                    )
                    raise ConfigurationError(message, hint="set it to 1")
        connection.commit()

    def begin(self, connection: Any, *, only_reads: bool = False) -> Any:
        connection.begin()
        return connection.cursor(pymysql_driver().cursors.Cursor)

    def commit(self, connection: Any) -> None:
        connection.commit()

    def rollback(self, connection: Any) -> None:
        if connection.open:
            connection.rollback()

    def errors(self) -> tuple[type[Exception], ...]:
        return (pymysql_driver().err.Error,)

    def is_about_records(self, error: Exception) -> bool:
        driver = pymysql_driver()
        if isinstance(error, (driver.err.DataError, driver.err.IntegrityError)):
            return True
        if isinstance(error, driver.err.ProgrammingError) and "can not be used with MySQL" in str(error):
            return True  # what is no number
        return bool(error.args) and error.args[0] in _DATA_ERRORS

    def describe(self, cursor: Any, path: tuple[str, ...]) -> Table | None:
        schema = "%s" if len(path) == 2 else "DATABASE()"
        cursor.execute(_DESCRIBE_TABLE.format(schema=schema), path)
        found = cursor.fetchone()
        if found is None:
            return None
        cursor.execute(_DESCRIBE_COLUMNS.format(schema=schema), path)
        columns = {row[0]: _column(self.quoted(*path).replace("%%", "%"), *row) for row in cursor.fetchall()}
        cursor.execute(_DESCRIBE_KEYS.format(schema=schema), path)
        keys: dict[str, set[str]] = {}
        of_parts = set()
        for index, name, is_whole in cursor.fetchall():
            keys.setdefault(index, set()).add(name)
            if not is_whole:
                of_parts.add(index)
        whole = tuple(frozenset(names) for index, names in keys.items() if index not in of_parts)
        # Of a view the engine is none.
        return Table(columns, whole, is_transactional=found[0] in (None, "InnoDB"), num_unique=len(keys))

    def lock_bookkeeping(self, cursor: Any) -> None:
        """Making a table locks its name."""

    def share_lock(self) -> str:
        return " LOCK IN SHARE MODE"

    def exclusive_lock(self) -> str:
        return " FOR UPDATE"

    def insert_many(self, cursor: Any, target: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("%s" for _ in columns)
        some = list(rows)
        if some:
            cursor.executemany(f"INSERT INTO {target} ({', '.join(columns)}) VALUES ({marks})", some)

    def misfit(self, kind: pa.DataType, column: Column, *, fits: bool, is_stored: bool) -> str | None:
        if kinds.is_boolean(kind):
            fits = column.type.startswith("tinyint(1)")
        elif kinds.is_floating(kind):
            # It rounds what a decimal, or a DOUBLE(5, 2), has no digits for.
            fits = fits and column.family == "float" and not column.numbers
            fits = fits and (is_stored or kind.bit_width == 64)
        elif column.family == "float":
            fits = fits and not column.numbers
        return None if fits else usual_hint(kind, column)

    def parameter_of(self, kind: pa.DataType, column: Column) -> Convert | None:
        is_text = column.family == "text"
        if kinds.is_boolean(kind):
            return int
        if kinds.is_nested(kind):
            return json_text
        if kinds.is_timestamp(kind):
            return timestamp_text if is_text else _in_utc
        if kinds.is_time(kind) or kinds.is_date(kind):
            return in_iso if is_text else None
        return str if kinds.is_decimal(kind) and is_text else None

    def check_of(self, kind: pa.DataType, column: Column) -> ColumnCheck | None:
        family, name, numbers = column.family, column.kind, column.numbers
        if kinds.is_integer(kind) and name == "year":
            return short_years()
        if kinds.is_integer(kind) and family == "float":
            return wide_integers(kind, 53)
        if kinds.is_decimal(kind) and family == "decimal":
            return digits_beyond(kind, (*numbers, 0, 0)[1])
        if kinds.is_temporal(kind) and not kinds.is_date(kind):
            return fractions_beyond(kind, (*numbers, 0)[0] if family != "text" else 6)
        if (kinds.is_string(kind) or kinds.is_large_string(kind)) and family == "text":
            limit = 0 if name == "char" else (*numbers, _TEXT_BYTES.get(name, 1 << 32))[0]
            return blanks_beyond(limit, of_bytes="char" not in name)
        if family == "bytes" and name == "binary":
            return filled_bytes((*numbers, 1)[0])
        return None


_TEXT_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215}


def _column(
    table: str, name: str, kind: str, declared: str, letters: str | None, collation: str | None, *flags: int
) -> Column:
    """A column by what the database says of it."""
    may_be_null, is_required, is_generated, replaces_null = map(bool, flags)
    column = Column(name, declared, _FAMILIES.get(kind, "other"), is_required, is_generated, replaces_null)
    if collation is None or collation.endswith("_nopad_bin"):
        return column
    quoted = MARIADB.quoted(name).replace("%%", "%")
    remedy = (
        f"ALTER TABLE {table} MODIFY {quoted} {declared} CHARACTER SET {letters} COLLATE {letters}_nopad_bin"
        f"{'' if may_be_null else ' NOT NULL'}"
    )
    equates = "" if collation.endswith("_bin") else f"collation {collation}"
    return replace(column, equates=equates, overlooks_blanks=True, remedy=remedy)


def _in_utc(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)


def pymysql_driver() -> Any:
    """Import MariaDB's driver.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("MariaDB needs PyMySQL, which is not installed", "mariadb"):
        import pymysql
        import pymysql.constants.CLIENT
        import pymysql.cursors
    return pymysql


MARIADB: Dialect = _Mariadb()


# ------------------------------------------------------------------------------------------------------ what it answers
def of_mariadb(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what makes a value of a type of what the driver gives; None for as it is."""
    if kinds.is_boolean(kind):
        return _truth
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return lambda value: value if isinstance(value, str) else json_text(value) if _is_number(value) else str(value)
    if kinds.is_nested(kind):
        return json.loads
    if kinds.is_date(kind):
        return _date
    if kinds.is_time(kind):
        return _time_of_day
    if kinds.is_timestamp(kind):
        return functools.partial(_moment, timezone.utc if kind.tz else None)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _truth(value: Any) -> bool:
    if value not in (0, 1):
        message = f"expected 0 or 1; got {value!r}"
        raise ValueError(message)
    return bool(value)


def _date(value: Any) -> date:
    if not isinstance(value, date):  # the driver gives as a text what is none
        message = f"{value!r} is no date: MariaDB's zero dates have no counterpart"
        raise ValueError(message)
    return value


def _moment(zone: timezone | None, value: Any) -> datetime:
    found = _date(value)
    assert isinstance(found, datetime)
    return found.replace(tzinfo=zone)


def _time_of_day(value: timedelta) -> time:
    if not timedelta() <= value < timedelta(days=1):
        message = f"{value} is no time of a day: MariaDB's TIME may be negative, and beyond 24 hours"
        raise ValueError(message)
    minutes, seconds = divmod(value.seconds, 60)
    return time(*divmod(minutes, 60), seconds, value.microseconds)
