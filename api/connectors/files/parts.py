"""The files that a file sink fills: Parquet, CSV and JSON lines, one *part* at a time."""

from __future__ import annotations

import csv
import dataclasses
import io
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.columns.csv_text import csv_text
from headrace.engine.columns.records import Batch
from headrace.engine.columns.write_mode import WriteMode
from headrace.engine.errors import TypeMismatchError
from headrace.state.values.json_text import json_text

__all__ = ["PARTS", "Compression", "FileSinkSettings", "NewerOutput", "Part"]

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 << 20
"""A Parquet row group is written when this much has come together (or at the end of its part): tiny ones make a file
slow to read."""

Compression = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
NewerOutput = Literal["error", "keep", "delete"]


@dataclasses.dataclass(frozen=True)
class FileSinkSettings:
    """What all writers of a file sink know."""

    format: Literal["parquet", "csv", "jsonl"]
    location: str
    max_part_bytes: int
    max_part_rows: int | None
    schema: pa.Schema | None = None
    has_header: bool = True
    delimiter: str = ","
    compression: Compression = "snappy"
    mode: WriteMode = "error"
    on_newer_output: NewerOutput = "error"
    is_private: bool = False
    """On a local disk: what is made is for its owner alone."""


class Part(Protocol):
    """One staged file being filled."""

    path: str
    num_rows: int

    def __init__(self, path: str, stream: Any, settings: FileSinkSettings) -> None: ...

    @property
    def num_bytes(self) -> int:
        """About how large the file is by now."""
        ...

    def write(self, batch: Batch) -> bool:
        """Take records; False if they do not fit into this part but would into a new one."""
        ...

    def finish(self) -> int:
        """Make the file complete and durable; gives its size in bytes."""
        ...

    def abandon(self) -> None:
        """Close without finishing."""
        ...


class _TextPart:
    def __init__(self, path: str, stream: Any, settings: FileSinkSettings) -> None:
        self.path = path
        self.num_rows = 0
        self.num_bytes = 0
        self._stream = stream
        self._settings = settings

    def _append(self, text: bytes, num_rows: int) -> None:
        self._stream.write(text)
        self.num_bytes += len(text)
        self.num_rows += num_rows

    def finish(self) -> int:
        self._stream.close()
        return self.num_bytes

    def abandon(self) -> None:
        self._stream.close()


class _JsonLinesPart(_TextPart):
    def write(self, batch: Batch) -> bool:
        lines = list(map(json_text, batch.rows))
        lines.append("")
        self._append("\n".join(lines).encode("utf-8"), batch.num_rows)
        return True


class _CsvPart(_TextPart):
    def __init__(self, path: str, stream: Any, settings: FileSinkSettings) -> None:
        super().__init__(path, stream, settings)
        self._names: list[str] | None = None

    def write(self, batch: Batch) -> bool:
        columns = _columns_of(batch, self._settings.schema)
        if self._names is None:
            names = columns.schema.names
            self._check_types(columns.schema)
            if self._settings.has_header:
                line = io.StringIO()
                csv.writer(line, delimiter=self._settings.delimiter, lineterminator="\n").writerow(names)
                self._append(line.getvalue().encode("utf-8"), 0)
            self._names = names
        columns = _in_order(columns, self._names)
        try:
            text = csv_text(columns, header=False, delimiter=self._settings.delimiter)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            self._check_types(columns.schema)
            message = f"cannot write the records as csv: {error}"
            raise TypeMismatchError(message) from error
        self._append(text, columns.num_rows)
        return True

    @staticmethod
    def _check_types(schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                message = f"csv has no place for column {field.name!r} of type {field.type}"
                raise TypeMismatchError(message, hint="select its fields, or write json lines or parquet")


class _ParquetPart:
    def __init__(self, path: str, stream: Any, settings: FileSinkSettings) -> None:
        self.path = path
        self.num_rows = 0
        self._stream = stream
        self._settings = settings
        self._writer: pq.ParquetWriter | None = None
        # The row group that is coming together.
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0

    @property
    def num_bytes(self) -> int:
        return int(self._stream.tell()) + self._gathered_bytes

    def write(self, batch: Batch) -> bool:
        columns = _columns_of(batch, self._settings.schema)
        if self._writer is None:
            compression = self._settings.compression
            self._writer = pq.ParquetWriter(self._stream, columns.schema, compression=compression)
            self._schema = columns.schema
        elif columns.schema != self._schema:
            columns = _in_order(columns, self._schema.names)
            try:
                columns = columns.cast(self._schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                return False
        self._gathered.append(columns)
        self._gathered_rows += columns.num_rows
        self._gathered_bytes += columns.nbytes
        self.num_rows += columns.num_rows
        if self._gathered_rows >= ROW_GROUP_ROWS or self._gathered_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()
        return True

    def _write_row_group(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._gathered_rows = self._gathered_bytes = 0
        if gathered and self._writer is not None:
            table = pa.Table.from_batches(gathered)
            self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self) -> int:
        self._write_row_group()
        if self._writer is not None:
            self._writer.close()
        size = int(self._stream.tell())
        self._stream.close()
        return size

    def abandon(self) -> None:
        self._gathered = []
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


PARTS: dict[str, type[Part]] = {"jsonl": _JsonLinesPart, "csv": _CsvPart, "parquet": _ParquetPart}


def _columns_of(batch: Batch, schema: pa.Schema | None) -> pa.RecordBatch:
    """The records as columns of the declared schema, if there is one."""
    columns = batch.columns_as(schema)
    if schema is None or columns.schema.equals(schema):
        return columns
    missing = [name for name in schema.names if name not in columns.schema.names]
    if missing:
        message = f"the records have no column {missing[0]!r}; they have {columns.schema.names}"
        raise TypeMismatchError(message)
    try:
        return columns.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        message = f"the records do not fit the sink's schema: {error}"
        raise TypeMismatchError(message) from error


def _in_order(columns: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """The same columns in the order in which their file began."""
    found = columns.schema.names
    if found == names:
        return columns
    if sorted(found) == sorted(names):
        return columns.select(names)
    message = f"all records of a file must have the same columns: it began with {names}, then came {found}"
    raise TypeMismatchError(message, hint="declare the sink's schema")
