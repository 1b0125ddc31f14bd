"""Comma-separated values (RFC 4180): cut, decoded, and written.

Arrow writes null as nothing. In a file of one column that is an empty line, which readers, Arrow's own among them,
skip; there null is an empty field in quotes, so that every reader finds as many records as were written. It is null
again where the column is no text; in text null and the empty one are the same to CSV.

Source: RFC 4180; Flink's ``CsvReaderFormat``; Python's ``csv.writer``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.engine.columns.records import Batch
from headrace.engine.errors import TypeMismatchError

from .contract import BYTE_ORDER_MARK, columns_to_write, in_order, one_batch
from .csv_lexing import csv_records, cut_at_line_end, cut_csv, line_end, num_line_ends

__all__ = [
    "CsvEncoder",
    "CsvFormat",
    "check_header",
    "csv_text",
    "infer_csv_schema",
    "read_csv_stream",
]

_STREAM_BYTES = 4 << 20


class CsvFormat:
    """Comma-separated values (RFC 4180): names and types of the columns are fixed before the first record.

    Args:
        names: All columns of the file, in order.
        schema: The columns to give, with their types; a subset of ``names``.
        delimiter: One character between fields.
        quoted_newlines: Whether a quoted field may hold a line end, so that quotes are looked at to find record ends.
        null_values: Texts that mean null, in columns that are not text.
    """

    def __init__(
        self,
        names: list[str],
        schema: pa.Schema,
        delimiter: str = ",",
        quoted_newlines: bool = True,
        null_values: tuple[str, ...] | None = None,
    ) -> None:
        self._schema = schema
        self._names = names
        self._delimiter = delimiter
        self._quoted_newlines = quoted_newlines
        self._convert = _convert_options(null_values, column_types=schema, include_columns=schema.names)

    def cut(self, data: bytes) -> int:
        return cut_csv(data, self._delimiter) if self._quoted_newlines else cut_at_line_end(data)

    def decode(self, block: bytes) -> Batch:
        if not block.strip(b"\r\n"):  # blanks may be fields
            return Batch.of_columns(pa.RecordBatch.from_pylist([], schema=self._schema))
        return Batch.of_columns(one_batch(_read_csv(block, self._names, self._delimiter, self._convert)))

    def records(self, block: bytes) -> list[bytes]:
        return csv_records(block, self._delimiter) if self._quoted_newlines else block.splitlines(keepends=True)

    def line_end(self, data: bytes, start: int) -> int:
        return line_end(data, start)

    def num_lines(self, data: bytes) -> int:
        return num_line_ends(data)


def check_header(header: list[str], schema: pa.Schema | None) -> None:
    """See that a header names all columns of a schema once, or each of its own columns if there is no schema.

    Raises:
        TypeMismatchError: If it does not. A file without a header has no records either, and lacks nothing.
    """
    missing = [] if schema is None else [name for name in schema.names if name not in header]
    repeated = [name for name in (header if schema is None else schema.names) if header.count(name) > 1]
    if (missing and header) or repeated:
        fault = f"repeats column {repeated[0]!r}" if repeated else f"has no column {missing[0]!r}"
        message = f"the file's header {fault}; it names {header}"
        raise TypeMismatchError(message, position="line 1")


def infer_csv_schema(block: bytes, names: list[str], delimiter: str, null_values: tuple[str, ...] | None) -> pa.Schema:
    """Return types of all columns, judged by a file's first block; records of another width are left out of it.

    Columns of nothing but nulls, or of bytes that are no text, are taken for text.
    """
    if not block.strip(b"\r\n"):
        return pa.schema([(name, pa.string()) for name in names])
    fields = []
    for field in _read_csv(block, names, delimiter, _convert_options(null_values), skip_invalid=True).schema:
        kind = field.type
        if pa.types.is_null(kind) or pa.types.is_binary(kind):
            kind = pa.string()
        elif pa.types.is_timestamp(kind) and kind.unit == "s":
            kind = pa.timestamp("ms", kind.tz)  # a later value may well have a fraction
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def read_csv_stream(
    stream: Any,
    schema: pa.Schema,
    *,
    names: list[str] | None = None,
    delimiter: str = ",",
    null_values: tuple[str, ...] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a whole file, without positions between them: Arrow's reader finds where each one ends.

    Args:
        stream: The file at its beginning. It must hold a record, as far as lines tell.
        schema: The columns to give, with their types.
        names: All columns of a file without a header; None for one with it.
        delimiter: As of `CsvFormat`.
        null_values: As of `CsvFormat`.
    """
    yield from pacsv.open_csv(
        stream,
        pacsv.ReadOptions(use_threads=False, block_size=_STREAM_BYTES, column_names=names),
        pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        _convert_options(null_values, column_types=schema, include_columns=schema.names),
    )


def _convert_options(null_values: tuple[str, ...] | None, **more: Any) -> pacsv.ConvertOptions:
    if null_values is not None:
        more["null_values"] = list(null_values)
    return pacsv.ConvertOptions(**more)


def _read_csv(
    block: bytes, names: list[str], delimiter: str, convert: pacsv.ConvertOptions, *, skip_invalid: bool = False
) -> pa.Table:
    """Records that begin behind a file's own byte order mark: a mark before the first is a part of its field."""
    if block.startswith(BYTE_ORDER_MARK):
        block = BYTE_ORDER_MARK + block  # the parser skips one
    return pacsv.read_csv(
        io.BytesIO(block),
        pacsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
        pacsv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=b'"' in block,
            invalid_row_handler=(lambda _row: "skip") if skip_invalid else None,
        ),
        convert,
    )


# ------------------------------------------------------------------------------------------------------------- writing


class CsvEncoder:
    """CSV with the columns of the first records, in their order.

    Args:
        delimiter: One character between fields.
        has_header: Whether the file begins with the names of the columns.
        schema: The columns to write; None for those that the records have.
    """

    def __init__(self, delimiter: str = ",", *, has_header: bool = True, schema: pa.Schema | None = None) -> None:
        self._delimiter = delimiter
        self._has_header = has_header
        self._schema = schema
        self._names: list[str] | None = None

    def encode(self, batch: Batch) -> bytes:
        columns = columns_to_write(batch, self._schema)
        header = b""
        if self._names is None:
            _check_types(columns.schema)
            self._names = columns.schema.names
            if self._has_header:
                header = self._header(self._names)
        columns = in_order(columns, self._names)
        try:
            return header + csv_text(columns, header=False, delimiter=self._delimiter)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            _check_types(columns.schema)
            message = f"cannot write the records as csv: {error}"
            raise TypeMismatchError(message) from error

    def finish(self) -> bytes:
        return b""

    def _header(self, names: list[str]) -> bytes:
        line = io.StringIO()
        # What a reader could take for the end of a line, or for a byte order mark, is quoted.
        is_plain = not any("\r" in name or "\ufeff" in name for name in names)
        writer = csv.writer(
            line,
            delimiter=self._delimiter,
            lineterminator="\n",
            quoting=csv.QUOTE_MINIMAL if is_plain else csv.QUOTE_ALL,
        )
        writer.writerow(names)
        return line.getvalue().encode("utf-8")


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if pa.types.is_nested(field.type):
            message = f"csv has no place for column {field.name!r} of type {field.type}"
            raise TypeMismatchError(message, hint="select its fields, or write json lines or parquet")


def csv_text(columns: pa.RecordBatch, *, header: bool, delimiter: str) -> bytes:
    """Return records as CSV, a line end behind each.

    Args:
        columns: The records.
        header: Whether the names come first.
        delimiter: One character.

    Raises:
        pyarrow.ArrowException: If a column has a type that CSV has no form for.
    """
    import pyarrow.csv as pacsv

    options = pacsv.WriteOptions(include_header=header, delimiter=delimiter)
    kind = columns.schema.types[0] if columns.num_columns == 1 and columns.column(0).null_count else None
    if kind is not None:
        column = columns.column(0)
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif pa.types.is_fixed_size_binary(kind):
            column = column.cast(pa.binary())
        if _is_text(column.type):
            column = column.fill_null(pa.scalar(b"", pa.binary()).cast(column.type))
        columns = pa.RecordBatch.from_arrays([column], names=columns.schema.names)
    buffer = pa.BufferOutputStream()
    pacsv.write_csv(columns, buffer, options)
    text: bytes = buffer.getvalue().to_pybytes()
    if kind is None or not columns.column(0).null_count:
        return text
    # Values that are no text have no line ends in them; a name may.
    lines = text.split(b"\n")
    first = len(lines) - 1 - columns.num_rows
    return b"\n".join([*lines[:first], *(line or b'""' for line in lines[first:-1]), b""])


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary_view(kind)
    )
