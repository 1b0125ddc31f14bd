"""Flink's list of functions beside what there is here: what is written with signs and words, and what is not there.

The page `docs/guide/sql-functions.md` is made of this and of the functions themselves.

Source: Flink's documentation ("System (Built-in) Functions").
"""

from __future__ import annotations

from typing import NamedTuple

from ..parsing.errors import SqlError

__all__ = ["ABSENT", "SYNTAX", "Syntax", "absent"]

_CLOCK = "it would give another value after each restart; take a time from the records"
_CHANCE = "it would give another value after each restart; take a number from the records"
_VARIANT = "there is no type VARIANT; JSON_VALUE and JSON_QUERY read JSON"
_BITMAP = "there is no type BITMAP; COUNT(DISTINCT x) counts exactly"

ABSENT: dict[str, str] = {
    "CURRENT_DATE": _CLOCK,
    "CURRENT_TIME": _CLOCK,
    "CURRENT_TIMESTAMP": _CLOCK,
    "CURRENT_ROW_TIMESTAMP": _CLOCK,
    "LOCALTIME": _CLOCK,
    "LOCALTIMESTAMP": _CLOCK,
    "NOW": _CLOCK,
    "RAND": _CHANCE,
    "RAND_INTEGER": _CHANCE,
    "UUID": _CHANCE,
    "CURRENT_WATERMARK": "an expression does not see the watermark; operators count the late rows that they drop",
    "PARSE_JSON": _VARIANT,
    "TRY_PARSE_JSON": _VARIANT,
    "OBJECT_OF": "there are no objects without a type; ROW(...) makes a row",
    "OBJECT_UPDATE": "there are no objects without a type; ROW(...) makes a row",
    "ML_PREDICT": "there are no models in catalogs; a udf calls one",
    **{
        f"BITMAP_{name}": _BITMAP
        for name in ("AND", "ANDNOT", "AND_AGG", "AND_CARDINALITY_AGG", "BUILD", "BUILD_AGG", "BUILD_CARDINALITY_AGG",
                     "CARDINALITY", "FROM_BYTES", "OR", "OR_AGG", "OR_CARDINALITY_AGG", "TO_ARRAY", "TO_BYTES",
                     "TO_STRING", "XOR", "XOR_AGG", "XOR_CARDINALITY_AGG")
    },
}  # fmt: skip
"""Why functions of Flink are not there, by their names."""


def absent(name: str) -> SqlError:
    """Return the error of a name of `ABSENT`: why it is not there, and what there is instead."""
    why, _, instead = ABSENT[name].partition("; ")
    return SqlError(f"{name} is not supported: {why}", hint=instead or None)


class Syntax(NamedTuple):
    """What is written with signs and words, and not as a call.

    Attributes:
        usage: How it is written.
        meaning: What it gives.
        differs: What Flink does otherwise; empty if nothing is known.
    """

    usage: str
    meaning: str
    differs: str = ""


_WRAPS = "an overflow is an error, where Flink wraps around"

SYNTAX: dict[str, tuple[Syntax, ...]] = {
    "Comparisons": (
        Syntax("a = b, a <> b, a < b, a <= b, a > b, a >= b", "Whether it is so; null if one is."),
        Syntax("a IS [NOT] NULL", "Whether it is null."),
        Syntax("a IS [NOT] DISTINCT FROM b", "As <> and =, but null is a value like others."),
        Syntax("a [NOT] BETWEEN [ASYMMETRIC | SYMMETRIC] b AND c", "Whether it lies between, bounds with it."),
        Syntax("a [NOT] LIKE b [ESCAPE c]", "Whether a text is of a form: % is any text, _ any character."),
        Syntax("a [NOT] SIMILAR TO b", "Whether a text matches a regular expression of SQL.",
               "no ESCAPE; what is no sign of SQL is passed to RE2"),
        Syntax("a [NOT] IN (b, ...)", "Whether it is one of them."),
        Syntax("a [NOT] IN (SELECT ...), [NOT] EXISTS (SELECT ...)", "Whether a query has such a row."),
    ),
    "Logic": (
        Syntax("a AND b, a OR b, NOT a", "Three-valued; AND and OR guard their right side."),
        Syntax("a IS [NOT] TRUE, a IS [NOT] FALSE, a IS [NOT] UNKNOWN", "Never null.",
               "IS UNKNOWN takes values that are no conditions, too"),
    ),
    "Arithmetic": (
        Syntax("+a, -a, a + b, a - b, a * b", "Computed in the wider type.", _WRAPS),
        Syntax("a / b", "The quotient; of integers its whole part; of doubles by zero, infinite."),
        Syntax("a % b", "The remainder, with the sign of the first."),
    ),
    "Texts": (Syntax("a || b", "The texts one after the other; null if one is."),),
    "Times": (
        Syntax("DATE '...', TIME '...', TIMESTAMP '...'", "A literal.",
               "a time has 3, 6 or 9 digits behind the second"),
        Syntax("INTERVAL '...' unit [TO unit]", "A span of time.",
               "one of months or years stands beside `+` or `-` and a time only"),
        Syntax("time + interval, time - interval", "The time that much later or earlier.",
               "TIME is not moved"),
        Syntax("PROCTIME()", "The clock's time as the row passes, as TIMESTAMP_LTZ(3): another one in each run.",
               "in SELECT and as a computed column; in batch mode one time for all rows"),
        Syntax("EXTRACT(unit FROM time)", "A part of a time, as BIGINT."),
        Syntax("FLOOR(time TO unit), CEIL(time TO unit)", "The time rounded to a unit.", "no DECADE and above"),
        Syntax("TIMESTAMPADD(unit, count, time)", "The time some units later.",
               "of a DATE and hours it is TIMESTAMP(3)"),
        Syntax("TIMESTAMPDIFF(unit, time, time)", "How many whole units lie between two times."),
        Syntax("(time, time or interval) OVERLAPS (...)", "Whether two spans of time have a moment in common.",
               "TIME takes no interval"),
    ),
    "Conditions": (
        Syntax("CASE [a] WHEN b THEN c ... [ELSE d] END", "The first value whose condition is true."),
    ),
    "Types": (
        Syntax("CURRENT_DATABASE()", "The name of the current database, when the statement is planned."),
        Syntax("CAST(a AS type)", "The value in another type; one that has none there fails.",
               "dates of a text have two digits for month and day; TIME is not cast to TIMESTAMP"),
        Syntax("TRY_CAST(a AS type)", "The value in another type; null where it has none."),
    ),
    "Collections": (
        Syntax("ARRAY[a, ...]", "An array.", "an empty one is refused, as it has no type"),
        Syntax("array[place]", "The element at a place, from 1; null if there is none."),
        Syntax("MAP[key, value, ...]", "A map.", "a NULL key is an error"),
        Syntax("map[key]", "The value of a key; null if there is none."),
        Syntax("(a, b, ...), ROW(a, ...)", "A row, with fields EXPR$0, EXPR$1."),
        Syntax("row.field", "A field of a row."),
    ),
    "JSON": (
        Syntax("a IS [NOT] JSON [VALUE | SCALAR | ARRAY | OBJECT]", "Whether a text is JSON; never null.",
               "what follows a value makes it none: Flink reads no further than that"),
        Syntax("JSON_OBJECT([KEY] name VALUE a, ... [{NULL | ABSENT} ON NULL])", "An object of values, as a text.",
               "dates are taken, too"),
        Syntax("JSON_ARRAY(a, ... [{NULL | ABSENT} ON NULL])", "An array of values, as a text.",
               "dates are taken, too"),
        Syntax("JSON(text)", "In JSON_OBJECT and JSON_ARRAY: a text that is JSON already."),
    ),
    "Groups": (
        Syntax("GROUPING(a, ...), GROUPING_ID(a, ...)", "Which keys a grouping set leaves out, as bits."),
        Syntax("GROUP_ID()", "How many equal grouping sets stand before the one that a row is of.",
               "a set that is there twice has its own keys alone; Flink 2.3 groups the second one by all keys"),
    ),
    "Windows": (
        Syntax("ROW_NUMBER(), RANK(), DENSE_RANK() OVER (...)", "The place in an order."),
        Syntax("NTILE(n), PERCENT_RANK(), CUME_DIST() OVER (...)",
               "In which of n equal parts of the partition a row is; which share of the others is before it; which "
               "share is not behind it.", "on streams, too, where they are updated as rows come"),
        Syntax("LAG(a[, offset[, default]]), LEAD(...) OVER (...)", "The value of a row before or behind.",
               "LEAD on streams, too"),
    ),
}  # fmt: skip
