"""What PostgreSQL needs to be said differently, by the driver ``psycopg``; and its types.

Its ways of making something else of a value are shut: what it would round, cut, or fill up with blanks is refused
before it is sent, by the columns' types as they are declared, those of domains included.

Source: PostgreSQL's documentation; its ``pg_type.dat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headrace.state.extras import needs
from headrace.state.values.json_text import json_text

from .checks import ColumnCheck, blanks_beyond, digits_beyond, fractions_beyond, padded_texts, wide_integers
from .dialects import (
    IDLE_TRANSACTION_S,
    LOCK_TIMEOUT_S,
    Column,
    Convert,
    Dialect,
    Table,
    in_iso,
    timestamp_text,
    upsert_statement,
    usual_hint,
)

__all__ = ["POSTGRESQL", "TYPES", "PostgresqlType", "psycopg_driver"]


@dataclass(frozen=True)
class PostgresqlType:
    """A type that has values of its own here; all others are told and taken as texts.

    Attributes:
        name: What it is called.
        family: Which values it has; see `headrace.connectors.sql.dialects.Column`.
        array: The number of the type of its arrays; None if that is told as a text.
    """

    name: str
    family: str
    array: int | None


TYPES = {
    16: PostgresqlType("boolean", "bool", 1000),
    17: PostgresqlType("bytea", "bytes", 1001),
    20: PostgresqlType("bigint", "int", 1016),
    21: PostgresqlType("smallint", "int", 1005),
    23: PostgresqlType("integer", "int", 1007),
    25: PostgresqlType("text", "text", 1009),
    114: PostgresqlType("json", "json", 199),
    700: PostgresqlType("real", "float4", 1021),
    701: PostgresqlType("double precision", "float", 1022),
    1042: PostgresqlType("character", "text", 1014),
    1043: PostgresqlType("character varying", "text", 1015),
    1082: PostgresqlType("date", "date", 1182),
    1083: PostgresqlType("time without time zone", "time", 1183),
    1114: PostgresqlType("timestamp without time zone", "timestamp", 1115),
    1184: PostgresqlType("timestamp with time zone", "timestamptz", 1185),
    1186: PostgresqlType("interval", "interval", None),
    1700: PostgresqlType("numeric", "decimal", 1231),
    2950: PostgresqlType("uuid", "uuid", 2951),
    3802: PostgresqlType("jsonb", "json", 3807),
}
"""By number. One table for what is written, read and followed."""

_REWRITTEN = frozenset({'"char"', "money", "name", "time with time zone"})
"""Types that take most texts and numbers, and cut or round them."""

_DESCRIBE_COLUMNS = """
WITH RECURSIVE types (attnum, type, modifier) AS (
  SELECT attnum, atttypid, atttypmod FROM pg_attribute
  WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT attnum, typbasetype, typtypmod FROM types JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd'
)
SELECT a.attname, format_type(t.oid, types.modifier), t.oid, e.oid, e.typtype,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a',
       CASE WHEN t.typname = 'citext' THEN 'type citext'
            WHEN NOT c.collisdeterministic THEN 'collation ' || c.collname END
FROM types JOIN pg_type t ON t.oid = types.type AND t.typtype <> 'd'
JOIN pg_attribute a ON a.attrelid = to_regclass(%(table)s) AND a.attnum = types.attnum
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_collation c ON c.oid = a.attcollation
ORDER BY a.attnum
"""
"""What a domain is made of is said for it."""

_DESCRIBE_KEYS = """
SELECT array_agg(a.attname::text) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey, i.indcollation) WITH ORDINALITY AS k(number, letters, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
LEFT JOIN pg_collation c ON c.oid = k.letters
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid HAVING bool_and(c.collisdeterministic IS NOT FALSE OR c.oid = a.attcollation)
"""
"""But for indices that take texts for equal which their columns tell apart."""

_BOOKKEEPING_LOCK = 0x48656164  # "Head"


class _Postgresql:
    name = "postgresql"
    placeholder = "%s"
    blob = "BYTEA"
    key_text = "TEXT"
    table_options = ""
    or_nothing = " ON CONFLICT DO NOTHING"
    first_rows = "LIMIT {}"
    compares_rows = True
    keeps_books = True

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
        found = cursor.execute(_DESCRIBE_COLUMNS, {"table": name}).fetchall()
        if not found:
            return None
        columns = {row[0]: _column(name, *row) for row in found}
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

    def write_by_key(
        self, cursor: Any, target: str, columns: Sequence[str], keys: Sequence[str], rows: Iterable[Sequence[Any]]
    ) -> None:
        cursor.executemany(upsert_statement(target, columns, keys, self.placeholder), list(rows))

    def misfit(self, kind: pa.DataType, column: Column, *, fits: bool, is_stored: bool) -> str | None:
        is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
        if fits and kinds.is_floating(kind) and column.family == "decimal":
            fits = False
        elif fits and not is_stored:
            fits = not (column.family == "float" and kinds.is_floating(kind) and kind.bit_width < 64)
        elif fits and kinds.is_float64(kind) and column.family == "float4":
            return "declare the records' field as float32, or the column as DOUBLE PRECISION"
        elif fits and (column.kind in _REWRITTEN or (column.kind == "character" and not is_text)):
            fits = False
        elif fits and column.family == "interval":
            fits = column.kind == "interval" or column.kind.endswith("second")
        return None if fits else usual_hint(kind, column)

    def parameter_of(self, kind: pa.DataType, column: Column) -> Convert | None:
        if kinds.is_nested(kind) and column.family != "array":
            return json_text
        if column.family != "text":
            return None
        if kinds.is_date(kind) or kinds.is_time(kind):
            return in_iso
        if kinds.is_timestamp(kind):
            return timestamp_text
        return str if kinds.is_decimal(kind) else None

    def check_of(self, kind: pa.DataType, column: Column) -> ColumnCheck | None:
        family, numbers = column.family, column.numbers
        if kinds.is_integer(kind) and family in ("float", "float4"):
            return wide_integers(kind, 53 if family == "float" else 24)
        if (kinds.is_decimal(kind) or kinds.is_integer(kind)) and family == "decimal" and numbers:
            return digits_beyond(kind, numbers[1])
        if kinds.is_temporal(kind) and not kinds.is_date(kind):
            return fractions_beyond(kind, (*numbers, 6)[0] if family != "text" else 6)
        if numbers and family == "text" and (kinds.is_string(kind) or kinds.is_large_string(kind)):
            return (padded_texts if column.kind == "character" else blanks_beyond)(numbers[0])
        return None


def _column(
    table: str,
    name: str,
    declared: str,
    number: int,
    element: int | None,
    kind_of_element: str | None,
    is_required: bool,
    is_generated: bool,
    equates: str | None,
) -> Column:
    """A column by what the database says of it."""
    known = TYPES.get(number)
    column = Column(name, declared, "any" if known is None else known.family, is_required, is_generated)
    if declared.endswith("[]"):
        inner = TYPES.get(element or 0)
        family = "any" if inner is None else inner.family
        one = Column(name, declared.removesuffix("[]"), "domain" if kind_of_element == "d" else family, False)
        return replace(column, family="array", element=one)
    if equates is not None or declared == "bpchar":
        column = replace(column, equates=equates or "", overlooks_blanks=declared == "bpchar")
        quoted = '"' + name.replace('"', '""') + '"'
        return replace(column, remedy=f'ALTER TABLE {table} ALTER COLUMN {quoted} TYPE text COLLATE "C"')
    return column


def psycopg_driver() -> Any:
    """Import PostgreSQL's driver.

    Raises:
        ConfigurationError: If it is not installed.
    """
    with needs("PostgreSQL needs psycopg, which is not installed", "postgresql"):
        import psycopg
    return psycopg


POSTGRESQL: Dialect = _Postgresql()
