"""Parquet: row groups decoded by bytes, and records gathered into row groups.

Source: the Parquet format's row groups; Flink's ``ParquetColumnarRowInputFormat``, ``ParquetBulkWriter``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..contract import in_types

__all__ = [
    "Footers", "ParquetEncoder", "has_column", "int96_unit_of", "open_parquet", "row_group_batches",
    "without_extensions",
]  # fmt: skip

DECODED_ROWS = 65_536
"""Rows decoded at once, however few are asked for: a slow-paced reader must not decode row by row."""

DECODED_BYTES = 16 << 20
"""Fewer of them if they take more than this, by what the file says of its columns. What is compressed or repeated takes
more once it is decoded; one row is always decoded."""

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 << 20
"""A row group is written when this much has come together (or at the end of its file): tiny ones make a file slow to
read."""


_TAIL_BYTES = 64 << 10
"""Read at once from the end of a file: most footers are shorter."""


class Footers:
    """Opens files one after the other, and parses the footer of a file that comes again only once.

    It tells of all row groups, so each split of a large file would take it apart anew. It is read each time, and known
    by its bytes: a file that was replaced meanwhile is another one.
    """

    def __init__(self) -> None:
        self._bytes = b""
        # What they say.
        self._metadata: pq.FileMetaData | None = None

    def open(self, file: Any, int96_unit: str | None = None) -> pq.ParquetFile:
        """Open a file; see `open_parquet`."""
        footer = _footer_of(file)
        if not footer or footer != self._bytes:
            opened = open_parquet(file, int96_unit)
            self._bytes, self._metadata = footer, opened.metadata
            return opened
        return open_parquet(file, int96_unit, self._metadata)


def _footer_of(file: Any) -> bytes:
    """The bytes of a file's footer with its length; none where that is not told."""
    size: int = file.seek(0, os.SEEK_END)
    file.seek(max(size - _TAIL_BYTES, 0))
    tail: bytes = file.read(_TAIL_BYTES)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if not tail.endswith(b"PAR1") or not 8 < length <= size:
        return b""
    if length <= len(tail):
        return tail[-length:]
    file.seek(size - length)
    return bytes(file.read(length - len(tail))) + tail


def open_parquet(file: Any, int96_unit: str | None = None, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file.

    Args:
        file: Where its bytes are.
        int96_unit: In which times of 96 bits are read; None for nanoseconds.
        metadata: What its footer says, where that is known.

    Raises:
        ArrowInvalid: If it is none, or names a type that somebody has registered in this process and that cannot be
            made of what the file says of it.
    """
    try:
        return pq.ParquetFile(file, metadata=metadata, coerce_int96_timestamp_unit=int96_unit)
    except (pa.ArrowException, OSError):
        raise
    except Exception as error:
        # Types that others register bring code that reads what a file says of them.
        message = f"a column has a type that cannot be made of what the file says of it: {error!r:.300}"
        raise pa.ArrowInvalid(message) from error


def without_extensions(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types that values are stored in.

    Whether Arrow makes a column one of an extension type depends on what else this process has imported (Ray Data
    registers one whose values are pickles), and values of such types are made by code that trusts the file.
    """
    return pa.schema([field.with_type(_storage_of(field.type)) for field in schema], schema.metadata)


def _storage_of(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _storage_of(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage_of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_storage_of(kind.key_type), kind.item_field.with_type(_storage_of(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_of(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage_of(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_of(kind.value_type)), kind.list_size)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _storage_of(kind.value_type), kind.ordered)
    return kind


def row_group_batches(
    file: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups, one group after the other, so that those before a broken one are still read.

    Args:
        file: The file.
        groups: The row groups.
        columns: Columns to decode; None for all. They come in the file's order.
    """
    wanted = None if columns is None else list(columns)
    parts = _parts_of(file, columns)
    # The same for all batches of a file; None before the first.
    stored: pa.Schema | None = None
    for group in groups:
        rows = _rows_at_once(file.metadata.row_group(group), parts)
        for batch in file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
            if stored is None:
                stored = without_extensions(batch.schema)
            yield batch if stored.equals(batch.schema) else batch.cast(stored)


def _parts_of(file: pq.ParquetFile, columns: Sequence[str] | None) -> list[int]:
    """Which of the columns that a file is made of belong to those that are wanted; None for all."""
    paths = [file.schema.column(i).path for i in range(file.metadata.num_columns)]
    return [i for i, path in enumerate(paths) if columns is None or any(_is_of(path, name) for name in columns)]


def _rows_at_once(group: Any, parts: Sequence[int]) -> int:
    """How many rows of a row group to decode at once, if these parts are."""
    num_bytes = sum(group.column(i).total_uncompressed_size for i in parts)
    return max(1, min(DECODED_ROWS, DECODED_BYTES * group.num_rows // max(num_bytes, 1)))


def int96_unit_of(schema: pa.Schema) -> str | None:
    """Return the unit in which times of 96 bits are best read: the finest one that columns or their fields have.

    Decoded as nanoseconds, which is the default, they would be converted afterwards, and end in the year 2262.

    Args:
        schema: The columns that are wanted.

    Returns:
        ``s``, ``ms``, ``us`` or ``ns``; None if no column is a time.
    """
    found = {one.unit for field in schema for one in _leaves(field.type) if pa.types.is_timestamp(one)}
    return max(found, key=("s", "ms", "us", "ns").index, default=None)


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if kind.num_fields == 0:
        yield kind
    for index in range(kind.num_fields):
        yield from _leaves(kind.field(index).type)


def has_column(file: pq.ParquetFile, name: str) -> bool:
    """Return whether a file has a column of a name, at its top."""
    paths = file.schema
    return any(_is_of(paths.column(i).path, name) for i in range(len(paths)))


def _is_of(path: str, name: str) -> bool:
    """Whether a column of a Parquet file is the named one, or a part of it."""
    return path == name or path.startswith(f"{name}.")


class ParquetEncoder:
    """Records gathered into row groups of a file. Its columns are those of the first records.

    Args:
        stream: Where bytes are written.
        compression: Of the pages.
    """

    def __init__(self, stream: Any, compression: str = "snappy") -> None:
        self._stream = stream
        self._compression = compression
        self._writer: pq.ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        # The row group that is coming together.
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self.gathered_bytes = 0

    def write(self, columns: pa.RecordBatch) -> bool:
        """Take records; False if their types do not fit into the file.

        Raises:
            TypeMismatchError: If they have other columns than those before.
        """
        if self._schema is None:
            self._writer = pq.ParquetWriter(self._stream, columns.schema, compression=self._compression)
            self._schema = columns.schema
        fitting = in_types(columns, self._schema)
        if fitting is None:
            return False
        self._gathered.append(fitting)
        self._gathered_rows += fitting.num_rows
        self.gathered_bytes += fitting.nbytes
        if self._gathered_rows >= ROW_GROUP_ROWS or self.gathered_bytes >= ROW_GROUP_BYTES:
            self._write_row_group()
        return True

    def finish(self) -> None:
        """Write what is left, and the footer."""
        self._write_row_group()
        self.abandon()

    def abandon(self) -> None:
        """Close without what is gathered."""
        self._gathered = []
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write_row_group(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._gathered_rows = self.gathered_bytes = 0
        if gathered and self._writer is not None:
            table = pa.Table.from_batches(gathered)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
