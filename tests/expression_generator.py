"""Random expressions of SQL over a table of awkward values, from a seed: calls of functions, casts, arithmetic, tests.

Each expression has one meaning, whatever the engine: nothing asks for the clock or for chance. What Flink refuses or
fails at is told by the one that asks it.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

__all__ = ["COLUMNS", "ExpressionGenerator", "table_of_values"]

COLUMNS = (
    "id BIGINT, i INT, b BIGINT, d DOUBLE, m DECIMAL(10, 2), s STRING, u STRING, ts TIMESTAMP(3), dt DATE, f BOOLEAN"
)
"""What CREATE TABLE says of the values."""

_EXACT = ("0.00", "1.50", "-2.25", "99999999.99", "0.05", "-0.01")
_TEXTS = ("", "x", " x ", "Xy z", "a,b,,c", "12", "-3.75", "hello hello", "tRuE", "2024-02-29", "äöü", "1e3", "xx%y_z")
_TEMPLATES = {
    "text": """
        UPPER({text}) | LOWER({text}) | TRIM({text}) | LTRIM({text}) | RTRIM({text}) | TRIM(BOTH 'x' FROM {text})
        TRIM(LEADING 'h' FROM {text}) | BTRIM({text}, 'x ') | SUBSTRING({text} FROM {small})
        SUBSTR({text}, {small}) | SUBSTRING({text} FROM {small} FOR {small}) | SUBSTRING({text}, {small}, {small})
        LEFT({text}, {small}) | RIGHT({text}, {small}) | LPAD({text}, {small}, {short})
        RPAD({text}, {small}, {short}) | REVERSE({text}) | REPEAT({text}, {small})
        REPLACE({text}, {short}, {short}) | INITCAP({text}) | CONCAT({text}, {text})
        SPLIT_INDEX({text}, {short}, {small}) | CONCAT_WS({short}, {text}, {text}) | ({text} || {text})
        OVERLAY({text} PLACING {text} FROM {small}) | OVERLAY({text} PLACING {text} FROM {small} FOR {small})
        CHR({integer}) | TO_BASE64({text}) | MD5({text}) | SHA1({text}) | SHA256({text})
        TRANSLATE({text}, 'xyl', 'ab') | REGEXP_REPLACE({text}, {pattern}, {replacement})
        REGEXP_EXTRACT({text}, {pattern}, {group}) | REGEXP_EXTRACT({text}, {pattern})
        REGEXP_SUBSTR({text}, {pattern}) | URL_ENCODE({text}) | URL_DECODE({text}) | ELT({small}, {text}, {text})
        DATE_FORMAT({time}, {format}) | FROM_UNIXTIME({big}) | BIN({big}) | HEX({big}) | HEX({text})
        CAST({big} AS STRING) | CAST({real} AS STRING) | CAST({exact} AS STRING) | CAST({truth} AS STRING)
        CAST({time} AS STRING) | CAST({day} AS STRING) | CAST({text} AS CHAR(4)) | CAST({text} AS VARCHAR(3))
        COALESCE({text}, {text}) | NULLIF({text}, {text}) | IF({truth}, {text}, {text}) | IFNULL({text}, {text})
        CASE WHEN {truth} THEN {text} ELSE {text} END | GREATEST({text}, {text}) | LEAST({text}, {text})
        CASE {text} WHEN 'x' THEN 'one' WHEN {text} THEN 'two' END | PARSE_URL({text}, 'HOST')
        UNHEX('4142') || {text}
    """,
    "integer": """
        i | CHAR_LENGTH({text}) | CHARACTER_LENGTH({text}) | POSITION({short} IN {text}) | LOCATE({short}, {text})
        LOCATE({short}, {text}, {small}) | INSTR({text}, {short}) | ASCII({text}) | ABS({integer})
        MOD({integer}, 3) | ({integer} + {integer}) | ({integer} - {integer}) | -{integer} | SIGN({integer})
        REGEXP_COUNT({text}, {pattern}) | REGEXP_INSTR({text}, {pattern}) | CAST({real} AS INT)
        CAST({exact} AS INT) | CAST({truth} AS INT) | TRY_CAST({text} AS INT) | TRY_CAST({text} AS SMALLINT)
        TIMESTAMPDIFF({unit}, {time}, {time}) | TIMESTAMPDIFF(DAY, {day}, {day}) | COALESCE({integer}, {small})
        NULLIF({integer}, {small}) | CASE WHEN {truth} THEN {integer} ELSE {integer} END | {integer} / 2
        CARDINALITY(SPLIT({text}, {short})) | CAST({integer} AS TINYINT) | TRY_CAST({text} AS TINYINT)
        ROUND({integer}, {small}) | TRUNCATE({integer}, {small}) | CARDINALITY(ARRAY[{integer}, {integer}])
        ARRAY_POSITION(ARRAY[1, 2, 3], {integer}) | ARRAY[{integer}, 2][{place}] | LEVENSHTEIN({text}, {text})
    """,
    "big": """
        b | EXTRACT({unit} FROM {time}) | YEAR({time}) | QUARTER({time}) | MONTH({day}) | WEEK({time})
        DAYOFYEAR({time}) | DAYOFMONTH({day}) | DAYOFWEEK({time}) | HOUR({time}) | MINUTE({time}) | SECOND({time})
        ABS({big}) | MOD({big}, 7) | EXTRACT({part} FROM {day}) | ({big} * 2) | ({big} + {integer})
        ({integer} - {big}) | {big} / 3 | SIGN({big}) | CAST({real} AS BIGINT) | CAST({exact} AS BIGINT)
        TRY_CAST({text} AS BIGINT) | FLOOR({big}) | CEIL({big}) | UNIX_TIMESTAMP(CAST({time} AS STRING))
        GREATEST({big}, {big}) | LEAST({big}, {big}, 3) | COALESCE({big}, 0)
        UNIX_TIMESTAMP('2024-02-29', 'yyyy-MM-dd') + {big} | IF({truth}, {big}, NULL)
    """,
    "real": """
        d | ABS({real}) | FLOOR({real}) | CEIL({real}) | ROUND({real}, {small}) | ROUND({real})
        TRUNCATE({real}, {small}) | SQRT(ABS({real})) | EXP({integer}) | LN(ABS({real}) + 1)
        LOG10(ABS({real}) + 1) | LOG2(ABS({real}) + 1) | LOG(2, ABS({real}) + 1) | SIN({real}) | COS({real})
        TAN({real}) | ASIN(0.5) | ATAN({real}) | ATAN2({real}, 2) | COSH(1) | DEGREES({real}) | RADIANS({real})
        SIGN({real}) | POWER({integer}, 2) | POWER({real}, 2) | ({real} + {real}) | ({real} * {big})
        ({real} - {exact}) | ({big} / CAST(4 AS DOUBLE)) | -{real} | CAST({big} AS DOUBLE) | CAST({exact} AS DOUBLE)
        TRY_CAST({text} AS DOUBLE) | CAST({real} AS FLOAT) | PI() | E() | COALESCE({real}, {exact})
        IF({truth}, {real}, {real}) | COT({integer} + 1) | MOD({exact}, 2.5)
    """,
    "exact": """
        m | ABS({exact}) | FLOOR({exact}) | CEIL({exact}) | ROUND({exact}, {small}) | ROUND({exact}, 1)
        ROUND({exact}) | TRUNCATE({exact}, 1) | TRUNCATE({exact}, {small}) | SIGN({exact}) | (m + {integer})
        (m - {big}) | (m * m) | m / 3 | m / m | (m * {integer}) | -{exact} | CAST({integer} AS DECIMAL(12, 3))
        TRY_CAST({text} AS DECIMAL(6, 2)) | 0.908 * b | CAST({real} AS DECIMAL(20, 4)) | CAST(m AS DECIMAL(9, 1))
        MOD(m, 3) | COALESCE(m, {integer}) | GREATEST(m, 1.5) | CASE WHEN {truth} THEN m ELSE {integer} END
    """,
    "time": """
        ts | FLOOR({time} TO {part}) | CEIL({time} TO {part}) | {time} + INTERVAL '1' DAY
        {time} - INTERVAL '90' SECOND | {time} + INTERVAL '1' MONTH | TIMESTAMPADD({part}, {small}, {time})
        CAST({day} AS TIMESTAMP(3)) | TRY_CAST({text} AS TIMESTAMP(3))
        COALESCE({time}, TIMESTAMP '2020-01-01 00:00:00') | TO_TIMESTAMP(CAST({time} AS STRING))
        TO_TIMESTAMP({text}, 'yyyy-MM-dd') | {time} + INTERVAL '1 02:03' DAY TO MINUTE | IF({truth}, {time}, {time})
        {time} - INTERVAL '1-2' YEAR TO MONTH
    """,
    "day": """
        dt | CAST({time} AS DATE) | {day} + INTERVAL '1' DAY | {day} - INTERVAL '1' MONTH | FLOOR({day} TO MONTH)
        CEIL({day} TO YEAR) | TO_DATE({text}) | TO_DATE('29.02.2024', 'dd.MM.yyyy') | TRY_CAST({text} AS DATE)
        TIMESTAMPADD(DAY, {small}, {day}) | COALESCE({day}, DATE '1999-12-31') | FLOOR({day} TO WEEK)
    """,
    "truth": """
        f | {text} LIKE {like} | {text} NOT LIKE {like} | {text} SIMILAR TO {similar} | REGEXP({text}, {pattern})
        {text} = {text} | {text} < {text} | {big} > {integer} | {real} <= {exact} | {big} = {exact} | {big} IS NULL
        {text} IN ('x', '12', {text}) | {big} NOT IN (1, 2, {integer}) | {big} BETWEEN {small} AND {integer}
        ({truth} AND {truth}) | ({truth} OR {truth}) | NOT {truth} | {truth} IS TRUE | {truth} IS NOT FALSE
        {truth} IS UNKNOWN | {integer} IS DISTINCT FROM {big} | {time} > {time} | {day} < {time} | {day} = {day}
        STARTSWITH({text}, {short}) | ENDSWITH({text}, {short}) | TRY_CAST({text} AS BOOLEAN)
        CAST({integer} AS BOOLEAN) | IS_ALPHA({text}) | IS_DIGIT({text}) | IS_DECIMAL({text})
        ARRAY_CONTAINS(ARRAY['x', '12'], {text}) | {text} BETWEEN {text} AND {text} | {real} <> {real}
        {text} LIKE 'xx#%%' ESCAPE '#' | {text} BETWEEN SYMMETRIC {text} AND {text}
    """,
}
_FIXED = {
    "short": ("'x'", "','", "'l'", "''", "' '", "'lo'", "'ö'"),
    "small": ("0", "1", "2", "3", "5", "-1", "-2", "i"),
    "group": ("0", "1", "2"),
    "place": ("1", "2", "3"),
    "pattern": ("'l+'", "'(h)(e)'", "'[a-z]+'", "'^x'", "'(\\d+)-(\\d+)'", "'.'", "'z$'", "'(x|y)'", "''"),
    "replacement": ("'$1'", "'\\1'", "'-'", "''", "'a$'", "'[$0]'"),
    "like": ("'x%'", "'%y_z'", "'_'", "''", "'%'", "'xx%y\\_z'", "'h%o'", "'12'"),
    "similar": ("'x+'", "'(h|l|e|o| )*'", "'%x%'", "'[0-9]{2}'", "'_'"),
    "format": (
        "'yyyy-MM-dd'", "'HH:mm:ss.SSS'", "'yy/M/d'", "'yyyyMMddHHmmss'", "'E'", "'dd MMM yyyy'", "'hh a'", "'DDD'",
    ),
    "unit": ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"),
    "part": ("DAY", "MONTH", "YEAR", "QUARTER", "WEEK"),
}  # fmt: skip
_CONSTANTS = {
    "text": [f"'{text}'" for text in _TEXTS], "integer": ["1", "0", "-7"], "big": ["CAST(3 AS BIGINT)"],
    "real": ["CAST('1.5' AS DOUBLE)"], "exact": ["2.50", "0.05"], "time": ["TIMESTAMP '2021-03-28 01:30:00.123'"],
    "day": ["DATE '2020-02-29'"], "truth": ["TRUE", "FALSE"],
}  # fmt: skip
_OWN = {
    "text": ["s", "u"], "integer": ["i"], "big": ["b"], "real": ["d"], "exact": ["m"], "time": ["ts"], "day": ["dt"],
    "truth": ["f"],
}  # fmt: skip


def _listed(text: str) -> list[str]:
    return [one.strip() for line in text.strip().splitlines() for one in line.split(" | ") if one.strip()]


_SHAPES = {kind: _listed(text) for kind, text in _TEMPLATES.items()}


def table_of_values(seed: Any) -> pa.Table:
    """Return rows of the table; some are NULL."""
    draw = random.Random(f"values {seed}")

    def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([draw.choice([None, *values]) if draw.random() < 0.9 else None for _ in range(12)], kind)

    times = ["2024-02-29 12:34:56.789", "1999-12-31 23:59:59.999", "1970-01-01 00:00:00.000", "2021-01-03 08:00:00.500",
             "1969-07-20 20:17:40.001", "2030-06-15 00:00:00.000"]  # fmt: skip
    exact = [dt.datetime.fromisoformat(one) for one in times]
    return pa.table({
        "id": pa.array(range(12), pa.int64()),
        "i": column([0, 1, -1, 2, 3, 7, -12, 100], pa.int32()),
        "b": column([0, 1, -1, 5, 1 << 31, -(1 << 40), 1700000000], pa.int64()),
        "d": column([0.0, 1.0, -1.5, 0.1, 2.5, -2.5, 123456.789, 1e-7], pa.float64()),
        "m": column([Decimal(one) for one in _EXACT], pa.decimal128(10, 2)),
        "s": column(_TEXTS, pa.string()),
        "u": column(_TEXTS, pa.string()),
        "ts": column(exact, pa.timestamp("ms")),
        "dt": column([one.date() for one in exact], pa.date32()),
        "f": column([True, False], pa.bool_()),
    })  # fmt: skip


class ExpressionGenerator:
    """Draws expressions over the columns of the table.

    Args:
        seed: The same one draws the same expressions.
    """

    def __init__(self, seed: Any) -> None:
        self._draw = random.Random(f"expression {seed}")

    def expression(self) -> str:
        """Return an expression."""
        return self._of(self._draw.choice(list(_SHAPES)), 2)

    def _of(self, kind: str, depth: int) -> str:
        if kind in _FIXED:
            return self._draw.choice(_FIXED[kind])
        if depth <= 0:
            return self._draw.choice(_OWN[kind] if self._draw.random() < 0.8 else _CONSTANTS[kind])
        shape = self._draw.choice(_SHAPES[kind])
        next_depth = depth - 1 if self._draw.random() < 0.3 else 0
        return re.sub(r"\{([a-z]+)\}", lambda found: self._of(found[1], next_depth), shape)
