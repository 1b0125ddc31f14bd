"""Statements with mistakes in them, from a seed: tokens left out, doubled, swapped and replaced, odd characters, depth.

What comes of one is an answer, or an error of ours that says where; `outcome` tells which.
"""

from __future__ import annotations

import random
import re
from typing import Any

from nexmark_kit import QUERIES, add_events

from headrace.engine.errors import HeadraceError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

__all__ = ["environment", "mutated", "outcome"]

EVENTS = "'connector' = 'nexmark'"
STATEMENTS = (
    *QUERIES.values(),
    "SELECT a, COUNT(*) FILTER (WHERE b > 1) AS n FROM l GROUP BY GROUPING SETS ((a), ()) HAVING COUNT(*) > 1",
    "SELECT l.a, r.d FROM l LEFT JOIN r ON l.a = r.a AND l.b BETWEEN 1 AND 3 WHERE l.c LIKE 'x%' ESCAPE '#'",
    "SELECT SUM(b) OVER w AS s, LAG(b, 1, 0) OVER w FROM l WINDOW w AS (PARTITION BY a ORDER BY b ROWS 2 PRECEDING)",
    "WITH q AS (SELECT a FROM l UNION ALL SELECT a FROM r) SELECT * FROM q WHERE a IN (SELECT a FROM r) "
    "ORDER BY 1 LIMIT 3",
    "SELECT CAST(b AS DECIMAL(10, 2)), ARRAY[1, 2][1], MAP['k', 1]['k'], ROW(1, 'x') FROM l, "
    "UNNEST(ARRAY[1, 2]) AS t (v)",
    "CREATE TABLE n (id BIGINT, ts TIMESTAMP(3), t AS ts, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND, "
    "PRIMARY KEY (id) NOT ENFORCED) PARTITIONED BY (id) WITH ('connector' = 'blackhole')",
    "CREATE VIEW v (x, y) AS SELECT a, b FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.a = l.a)",
    "INSERT INTO sink SELECT a, MAX(b) FROM l GROUP BY a ON CONFLICT DO NOTHING",
    "EXPLAIN SELECT DISTINCT a FROM l EXCEPT SELECT a FROM r",
    "SELECT * FROM bid MATCH_RECOGNIZE (PARTITION BY channel ORDER BY dateTime, price MEASURES LAST(B.price) - "
    "FIRST(A.price, 1) AS d, COUNT(B.*) AS n AFTER MATCH SKIP TO LAST B PATTERN (A B{2,3}? (C | D)+) WITHIN "
    "INTERVAL '1' HOUR DEFINE B AS B.price < PREV(B.price), C AS SUM(C.price) > A.price) AS m (k, x, y)",
    "VALUES (1, 'x'), (2, NULL)",
    "SET 'parallelism.default' = '2'",
    "SELECT TIMESTAMP '2020-01-01 00:00:00' + INTERVAL '1-2' YEAR TO MONTH, DATE '2020-02-30', X'41', 1e400, .5",
    "DESCRIBE l",
    "SHOW TABLES LIKE 'l%'",
    "DROP VIEW IF EXISTS v",
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|`[^`]*`|\w+|\s+|.", re.DOTALL)
_ODD = (
    "",
    "\x00",
    "\ufeff",
    "'",
    '"',
    "`",
    "\\",
    "--",
    "/*",
    "*/",
    ";",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "::",
    "\u202e",
    "\U0001d4b3",
    "é",
    "\u00a0",
    "?",
    ":x",
    "@",
    "#",
    "$1",
    "!",
    "~",
    "|",
    "||",
    "=>",
    "0x",
    "1e",
    "1_000",
    "9" * 60,
    "-" + "9" * 400,
    "1e99999",
    "'" + "x" * 5000 + "'",
    "NULL",
    "DEFAULT",
    "ALL",
    "ANY",
    "CASE",
    "END",
    "OVER",
    "ORDER",
    "NOT",
    "*",
    "a.b.c.d.e",
    "CAST(NULL AS ROW<a INT>)",
    "INTERVAL '1' DECADE",
    "DATE 'no'",
    "DESCRIPTOR(x)",
    "TABLE",
    "U&'\\0041'",
    "N'x'",
    "b'1'",
    "LATERAL",
    "UNNEST",
    "DECIMAL(99, 99)",
    "VARCHAR(0)",
    "COUNT(DISTINCT *)",
    "1/0",
    "GROUPING(a)",
    "SUM(SUM(b))",
    "CURRENT_TIMESTAMP",
)
_DEEP = (("(", ")"), ("NOT (", ")"), ("ABS(", ")"), ("-", ""), ("CASE WHEN TRUE THEN ", " END"), ("ARRAY[", "]"))


def mutated(seed: Any) -> str:
    """Return a statement with some mistakes."""
    draw = random.Random(f"mutation {seed}")
    tokens = _TOKEN.findall(draw.choice(STATEMENTS))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        places = [i for i, one in enumerate(tokens) if not one.isspace()]
        if not places:
            break
        at, other = draw.choice(places), draw.choice(places)
        kind = draw.choice(("delete", "double", "swap", "replace", "insert", "cut", "deep", "borrow"))
        if kind == "delete":
            del tokens[at]
        elif kind == "double":
            tokens.insert(at, tokens[at])
        elif kind == "swap":
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == "replace":
            tokens[at] = draw.choice(_ODD)
        elif kind == "insert":
            tokens.insert(at, f" {draw.choice(_ODD)} ")
        elif kind == "cut":
            del tokens[at : at + draw.randint(1, 12)]
        elif kind == "borrow":
            tokens[at] = draw.choice(_TOKEN.findall(draw.choice(STATEMENTS)))
        else:
            before, behind = draw.choice(_DEEP)
            depth = draw.choice((5, 20, 40, 400, 3000))
            tokens[at] = f"{before * depth}{tokens[at]}{behind * depth}"
    return "".join(tokens)


def environment() -> TableEnvironment:
    """Return the tables that the statements are about; nothing of them is run."""
    env = TableEnvironment.create(mode="streaming", parallelism=2, actor_system="local")
    add_events(env, EVENTS)
    env.execute_script("""
        CREATE TABLE l (a BIGINT, b BIGINT, c STRING) WITH ('connector' = 'datagen', 'number-of-rows' = '10');
        CREATE TABLE r (a BIGINT, d BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '10');
        CREATE TABLE sink (a BIGINT, b BIGINT, PRIMARY KEY (a) NOT ENFORCED) WITH ('connector' = 'blackhole');
    """)
    return env


def outcome(env: TableEnvironment, statement: str) -> str:
    """Return ``planned``, ``refused``, or what was wrong with how the statement was refused."""
    try:
        env.explain_sql(statement)
    except SqlError as error:
        return "refused" if str(error).startswith("line ") else f"no place: {error!s:.300}"
    except HeadraceError as error:
        return f"no place: {type(error).__name__}: {error!s:.300}"
    except BaseException as error:  # any other is not one of ours
        return f"{type(error).__name__}: {error!s:.300}"
    return "planned"
