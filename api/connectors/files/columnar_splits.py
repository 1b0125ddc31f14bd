"""One split of a file of columns, being read: row groups of Parquet, stripes of ORC. The position is the number of rows
that were given.

Source: Flink's ``ParquetColumnarRowInputFormat``, ``OrcColumnarRowInputFormat``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import SourceError

from ...formats.containers.orc_files import open_orc, stripe_batches
from ...formats.containers.parquet_files import Footers, has_column, row_group_batches
from .same_file import require_same_file, source_of
from .settings import FileSettings
from .splits import Reading

__all__ = ["ColumnarSplit", "OrcSplit", "ParquetSplit"]


class ColumnarSplit(ABC):
    """A run of what a file is decoded by."""

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        self._split = split
        self._settings = settings
        self._columns = None if settings.columns is None else list(settings.columns)
        self._position: int = split.position or 0
        # Decoded and not yet given; None before the first and after the last batch.
        self._rest: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        with self._reading():
            fs = source_of(split, settings)
            require_same_file(split, fs)
            self._input = fs.open_input(split.payload["path"])
            names = self._open()
        missing = [name for name in self._columns or () if not self._has(name)]
        if missing:
            message = f"the file has no column {missing[0]!r}; it has {names}"
            raise SourceError(message, path=split.payload["path"])

    @abstractmethod
    def _open(self) -> list[str]:
        """Open the file; return the names of its columns."""

    @abstractmethod
    def _has(self, name: str) -> bool:
        """Whether it has a column."""

    @abstractmethod
    def _start(self, to_skip: int) -> tuple[Iterator[pa.RecordBatch], int]:
        """Begin to decode; return batches, and how many rows of those are still to be skipped."""

    def read(self, max_records: int) -> Batch | None:
        """Return the next records; None at the end."""
        with self._reading():
            if self._batches is None:
                self._batches = self._behind(*self._start(self._position))
            while self._rest is None or self._rest.num_rows == 0:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return None
        rows = self._rest.slice(0, max_records)
        self._rest = self._rest.slice(rows.num_rows)
        self._position += rows.num_rows
        return Batch.of_columns(rows)

    @staticmethod
    def _behind(batches: Iterator[pa.RecordBatch], to_skip: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            dropped = min(to_skip, batch.num_rows)
            to_skip -= dropped
            yield batch.slice(dropped)

    def _reading(self) -> Reading:
        return Reading(self._split, lambda: f"row {self._position}")

    def position(self) -> int:
        """Return where to read on."""
        return self._position

    def close(self) -> None:
        """Let go of the file."""
        self._input.close()


class ParquetSplit(ColumnarSplit):
    """A run of row groups.

    Args:
        split: Which.
        settings: The source's.
        context: The reader's.
        footers: What the reader knows of the file that it has opened last.
    """

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext, footers: Footers) -> None:
        self._footers = footers
        super().__init__(split, settings, context)

    def _open(self) -> list[str]:
        self._file = self._footers.open(self._input, self._settings.int96_unit)
        return list(self._file.schema_arrow.names)

    def _has(self, name: str) -> bool:
        return has_column(self._file, name)

    def _start(self, to_skip: int) -> tuple[Iterator[pa.RecordBatch], int]:
        """Whole row groups are skipped unread."""
        first, last = self._split.payload["row_groups"]
        metadata = self._file.metadata
        while first < last and to_skip >= (num_rows := metadata.row_group(first).num_rows):
            to_skip -= num_rows
            first += 1
        return row_group_batches(self._file, range(first, last), self._columns), to_skip

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        super().close()


class OrcSplit(ColumnarSplit):
    """A run of stripes. How many rows one has is known when it is decoded, so those before a position are, too."""

    def _open(self) -> list[str]:
        self._file: Any = open_orc(self._input)
        return list(self._file.schema.names)

    def _has(self, name: str) -> bool:
        return name in self._file.schema.names

    def _start(self, to_skip: int) -> tuple[Iterator[pa.RecordBatch], int]:
        return stripe_batches(self._file, range(*self._split.payload["stripes"]), self._columns), to_skip
