"""What statements of SQL say, as data. Queries stay trees of sqlglot.

Source: Flink's documentation of its SQL (CREATE, DROP, INSERT, EXPLAIN, DESCRIBE, SHOW, SET statements).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

__all__ = [
    "ColumnSpec",
    "CompilePlan",
    "Conflict",
    "CreateCatalog",
    "CreateDatabase",
    "CreateTable",
    "CreateView",
    "Describe",
    "Drop",
    "ExecutePlan",
    "Explain",
    "ExplainJob",
    "ExplainUpgrade",
    "Insert",
    "InsertSet",
    "Query",
    "Reset",
    "Set",
    "Show",
    "Statement",
    "StopJob",
    "Use",
    "WatermarkSpec",
]


@dataclass(frozen=True)
class Query:
    """A query; also what an INSERT or a view is made of."""

    tree: exp.Expression


@dataclass(frozen=True)
class ColumnSpec:
    """A column of a table that is being created.

    Attributes:
        name: Its name.
        kind: Its type; None for a computed column, which has that of its expression.
        computed: How it is computed of the others; None for a column that the connector gives.
        metadata: The connector's name of what it tells about a record, for a metadata column.
        is_virtual: Whether that is read only.
    """

    name: str
    kind: pa.DataType | None = None
    computed: Any = None
    metadata: str | None = None
    is_virtual: bool = False


@dataclass(frozen=True)
class WatermarkSpec:
    """Which column is the event time, and how far behind it the watermark is."""

    column: str
    expression: Any


@dataclass(frozen=True)
class CreateTable:
    """CREATE TABLE."""

    name: str
    columns: tuple[ColumnSpec, ...]
    watermark: WatermarkSpec | None = None
    primary_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    like: str | None = None
    if_not_exists: bool = False
    is_temporary: bool = False


@dataclass(frozen=True)
class CreateView:
    """CREATE VIEW."""

    name: str
    columns: tuple[str, ...]
    query: Query
    if_not_exists: bool = False
    is_temporary: bool = False


@dataclass(frozen=True)
class CreateCatalog:
    """CREATE CATALOG."""

    name: str
    options: dict[str, str]
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateDatabase:
    """CREATE DATABASE."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class Use:
    """USE CATALOG and USE: where names are looked up."""

    kind: str
    name: str


@dataclass(frozen=True)
class Drop:
    """DROP TABLE, VIEW, FUNCTION, CATALOG, DATABASE.

    Attributes:
        kind: Which of them, in small letters.
        name: Of what is dropped.
        if_exists: Whether it need not be there.
        is_temporary: Whether only what is temporary is meant.
        is_cascade: Whether a database is dropped with all that is in it.
    """

    kind: str
    name: str
    if_exists: bool = False
    is_temporary: bool = False
    is_cascade: bool = False


@dataclass(frozen=True)
class Conflict:
    """ON CONFLICT DO: ``NOTHING``, ``ERROR`` or ``DEDUPLICATE``, and its place in the text."""

    action: str
    place: tuple[int, int]


@dataclass(frozen=True)
class Insert:
    """INSERT INTO: the columns that are named, empty for all in order."""

    table: str
    columns: tuple[str, ...]
    query: Query
    conflict: Conflict | None = None
    hinted: Any = None
    """The table with a hint behind its name; None without one."""


@dataclass(frozen=True)
class InsertSet:
    """Several INSERTs that are one job."""

    inserts: tuple[Insert, ...]


@dataclass(frozen=True)
class Explain:
    """EXPLAIN: how a statement would be run; with ANALYZE it is, and what was done is told."""

    statement: Query | Insert | InsertSet
    details: tuple[str, ...] = ()
    analyzes: bool = False


@dataclass(frozen=True)
class ExplainJob:
    """EXPLAIN ANALYZE JOB 'id': what a job that runs has done so far."""

    job: str


@dataclass(frozen=True)
class CompilePlan:
    """COMPILE PLAN and COMPILE AND EXECUTE PLAN.

    Attributes:
        place: Of the file.
        statement: What is compiled.
        text: Its text.
        if_not_exists: Whether a file that is there stays as it is.
        overwrites: Whether a file that is there is replaced.
        executes: Whether it is run, too.
    """

    place: str
    statement: Insert | InsertSet
    text: str
    if_not_exists: bool = False
    overwrites: bool = False
    executes: bool = False


@dataclass(frozen=True)
class ExecutePlan:
    """EXECUTE PLAN: run what a file says."""

    place: str


@dataclass(frozen=True)
class ExplainUpgrade:
    """EXPLAIN UPGRADE FROM: what a statement would make of the state of a savepoint."""

    savepoint: str
    statement: Query | Insert | InsertSet


@dataclass(frozen=True)
class Describe:
    """DESCRIBE: the columns of a table."""

    name: str


@dataclass(frozen=True)
class Show:
    """SHOW TABLES and its like.

    Attributes:
        what: What is shown, in small letters.
        name: Of the table of CREATE TABLE; of the database or catalog behind FROM; None for the current one.
        like: The pattern of names, with ``%`` and ``_``; None for all.
        is_negated: Whether those are shown that are not like it.
    """

    what: str
    name: str | None = None
    like: str | None = None
    is_negated: bool = False


@dataclass(frozen=True)
class StopJob:
    """STOP JOB 'id'."""

    job: str
    with_savepoint: bool = False
    with_drain: bool = False


@dataclass(frozen=True)
class Set:
    """SET: an option and its value, and where they stand; neither to show all."""

    key: str | None = None
    value: str | None = None
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reset:
    """RESET: an option, and where it stands; None for all."""

    key: str | None = None
    place: tuple[int, int] | None = None


Statement = (
    Query | CompilePlan | ExecutePlan | CreateTable | CreateView | CreateCatalog | CreateDatabase | Use | Drop | Insert
    | InsertSet | Explain | ExplainJob | ExplainUpgrade | Describe | Show | Set | Reset | StopJob
)  # fmt: skip
