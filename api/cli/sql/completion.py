"""What may come next in a statement: words of SQL, tables, their columns, functions, and keys of SET.

Tables of the statement that is being written are looked up for their columns; what cannot be looked up has none.

Source: Flink's ``SqlCompleter``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.engine.errors import HeadraceError

from ...sql.parsing.names import quoted
from ...table import TableEnvironment
from ...table.settings import Settings

__all__ = ["Completion", "completions"]

_KEYWORDS = frozenset(
    """
    ALL ANALYZE AND AS ASC BETWEEN BY CASE CAST CATALOG CATALOGS CLEAR COMPILE CREATE CROSS CURRENT DATABASE DATABASES
    DESC DESCRIBE DISTINCT DROP ELSE END EXCEPT EXECUTE EXISTS EXIT EXPLAIN FILTER FOR FROM FULL FUNCTIONS GROUP HAVING
    HELP IF IN INNER INSERT INTERSECT INTERVAL INTO IS JOBS JOIN LEFT LIKE LIMIT NOT NULL OFFSET ON OR ORDER OUTER
    OVER PARTITION PLAN PRIMARY KEY QUIT RANGE RESET RIGHT ROWS SELECT SET SHOW STATEMENT STOP JOB TABLE TABLES
    TEMPORARY THEN TRY_CAST UNION UPGRADE USE USING VALUES VIEW VIEWS WATERMARK WHEN WHERE WINDOW WITH BIGINT BOOLEAN
    BYTES DATE DECIMAL DOUBLE FLOAT INT ROW SMALLINT STRING TIME TIMESTAMP TIMESTAMP_LTZ TINYINT VARCHAR TUMBLE
    HOP CUMULATE SESSION DESCRIPTOR
    """.split()  # noqa: SIM905
)

_BEHIND_NAMES = re.compile(r"(?:FROM|JOIN|INTO|TABLE|VIEW|DESCRIBE|DESC)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?$", re.I)
_TABLES = re.compile(r"(?:FROM|JOIN|INTO|TABLE|,)\s+((?:`[^`]+`|[\w$]+)(?:\.(?:`[^`]+`|[\w$]+))*)", re.I)
_WORD = re.compile(r"[\w$]*$")
_KEY = re.compile(r"\b(?:RESET|SET)\s+'([^']*)$", re.I)
_PLAIN = re.compile(r"[A-Za-z_][\w$]*$")

Completion = tuple[str, str, int]
"""The word, what it is, and how many characters before the cursor it replaces."""


def completions(env: TableEnvironment, before: str, after: str = "") -> list[Completion]:
    """Return what may stand at the cursor.

    Args:
        env: Whose tables there are.
        before: The text before the cursor.
        after: The text behind it: its tables count, too.
    """
    key = _KEY.search(before)
    if key is not None:
        return [(one, "option", -len(key[1])) for one in Settings.known_keys() if one.startswith(key[1].lower())]
    found = _WORD.search(before)
    word = found[0] if found else ""
    if before.count("'") % 2:
        return []
    start = before[: len(before) - len(word)]
    last = before.rsplit(";", 1)[-1]
    named = sorted({*_names(env, start, last + after, word)})
    return [(text, kind, -len(word)) for text, kind in named if text.lower().lstrip("`").startswith(word.lower())]


def _names(env: TableEnvironment, start: str, statement: str, word: str) -> Iterator[tuple[str, str]]:
    if re.search(r"USE\s+CATALOG\s+$", start, re.I):
        yield from ((_plain(name), "catalog") for name in env.list_catalogs())
        return
    if re.search(r"USE\s+$", start, re.I):
        yield from ((_plain(name), "database") for name in env.list_databases())
        yield ("CATALOG", "keyword")
        return
    if _BEHIND_NAMES.search(start):
        yield from ((_plain(name), "table") for name in env.list_tables())
        return
    for name in dict.fromkeys(_TABLES.findall(statement)):
        yield from ((_plain(column), "column") for column in _columns(env, name))
    if start.endswith("."):
        return
    yield from ((_plain(name), "table") for name in env.list_tables())
    if word:
        yield from ((name, "function") for name in env.list_functions())
        yield from ((name, "keyword") for name in _KEYWORDS)


def _columns(env: TableEnvironment, name: str) -> list[str]:
    try:
        found: list[Any] = env.execute_sql(f"DESCRIBE {name}").to_arrow().column(0).to_pylist()
    except HeadraceError:
        return []
    return found


def _plain(name: str) -> str:
    return name if _PLAIN.match(name) and name.upper() not in _KEYWORDS else quoted(name)
