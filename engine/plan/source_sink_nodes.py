"""Where the records of a plan come from, and where they go.

Sources have no inputs and make ``parallelism`` partitions. Sinks are the roots of a plan, and nothing reads them; what
each gives to the program is a value of `headrace.engine.plan.plan.ExecutionResult`. Executors run both as their
docstrings say; neither has a function.

Nothing here opens a file: sources and sinks of files bring what reads and writes them (`FileReader`, `FileWriter`).
Spark pickles it with the node.

Source: Flink's ``DataSource`` and ``DataSink``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ..columns.expressions import Expression
from ..columns.write_mode import WriteMode
from .nodes import Node

__all__ = [
    "Collect",
    "Count",
    "FileReader",
    "FileSource",
    "FileWriter",
    "ForeignSource",
    "SequenceSource",
    "TableSource",
    "WriteFiles",
]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TableSource(Node):
    """Records in memory, dealt out in runs of equal length. ``table`` has ``wire_schema(schema)``."""

    table: pa.Table


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SequenceSource(Node):
    """The integers ``start`` to ``end``, both included; one column ``value`` of int64."""

    start: int
    end: int


class FileReader(Protocol):
    """Reads files where subtasks run, the same way for every executor. It blocks."""

    def splits(self, source: FileSource) -> list[Any]:
        """Return all splits of a source: parts that one subtask each reads; they can be pickled."""
        ...

    def read(self, source: FileSource, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a split, as wire batches of the source's schema."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FileSource(Node):
    """Records of files.

    Attributes:
        files: What reads them.
        format: ``text`` (a value per line), ``csv``, ``json`` (an object per line), ``parquet``, ``orc``,
            ``avro``, ``sequence``.
        paths: Files; folders and patterns are resolved already.
        file_schema: The type of the records in the files. ``schema`` is that of the columns that are read.
        condition: Records for which it is not true are left out, before ``columns`` are taken; None for all.
        columns: The columns that are read, in this order; None for all.
        options: Of the format, by name (``delimiter``, ``header``, ``encoding`` ...).
        folder_columns: Columns of ``file_schema`` that are not in the files: the names of their folders say them.
        folder_values: Their values, for each file.
        is_uniform: Whether all files have these columns in these types; else those that a file lacks are null, and
            values are taken over exactly or fail.
    """

    files: FileReader
    format: str
    paths: tuple[str, ...]
    file_schema: pa.Schema
    condition: Expression | None = None
    columns: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    folder_columns: tuple[str, ...] = ()
    folder_values: tuple[tuple[Any, ...], ...] = ()
    is_uniform: bool = True


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ForeignSource(Node):
    """Records that another system holds.

    Attributes:
        kind: ``spark`` (``handle`` is a Spark DataFrame) or ``ray`` (a sequence of object references of Arrow tables or
            batches). Everything else has been made a `TableSource` when the plan was made.
        handle: See above.
    """

    kind: str
    handle: Any


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Collect(Node):
    """Gives all records to the program, in order of the partitions: a ``pa.Table`` of ``wire_schema(schema)``."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Count(Node):
    """Gives the number of records: an int."""


class FileWriter(Protocol):
    """Writes files where subtasks run, and makes them the result where the plan is run. It blocks."""

    def prepare(self, sink: WriteFiles, roots: Sequence[Node]) -> None:
        """See that the sink can be written, before anything is read; ``roots`` are all sinks. Changes nothing."""
        ...

    def write(self, sink: WriteFiles, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> list[str]:
        """Write the wire batches of one partition; return the names of its parts. ``attempt`` is never repeated."""
        ...

    def commit(self, sink: WriteFiles, parts: Iterable[str]) -> list[str]:
        """Make the parts of all partitions the result, when all sinks are written; return the paths."""
        ...

    def abort(self, sink: WriteFiles) -> None:
        """Remove what has been written, instead of `commit`."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WriteFiles(Node):
    """Writes files, one per partition that has records, in the folder ``path``.

    Files get their final names when all are written, so a failed job leaves none, and what was there before stays.
    Gives the list of paths.

    Attributes:
        files: What writes them.
        format: ``text``, ``csv``, ``json``, ``parquet``, ``orc``, ``avro``, ``sequence``.
        path: A folder; a file system's URI or a local path.
        mode: What happens to what lies in the folder: ``error`` refuses one that is not empty, ``append`` leaves it,
            ``overwrite`` replaces it.
        run: Stands for this writing in the names of files that are appended.
        options: Of the format.
        partition_by: Columns that become folders ``name=value``, one in the other, and are left out of the files.
    """

    files: FileWriter
    format: str
    path: str
    mode: WriteMode = "error"
    run: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
