"""Text formats as blocks of whole records: where records end, how a block becomes columns, which record is bad.

A file is read in blocks that are cut at the end of a record. A block is decoded as a whole, at the speed of Arrow's own
parsers; only when that fails is it halved, again and again, until the bad records stand alone. So a good file costs
nothing for the chance of a bad one, and a bad record is told with its line, its byte and the parser's own words.

Nothing here opens a file or knows a split. Invariant: decoding depends on the block's bytes and the format's settings
alone, so reading a block again after a restart gives the same records in the same order.

Source: Flink's ``CsvReaderFormat`` and ``JsonRowDataDeserializationSchema``; RFC 4180.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError

__all__ = [
    "CsvFormat",
    "JsonColumns",
    "JsonRows",
    "RecordFormat",
    "Rejected",
    "TextLines",
    "csv_fields",
    "cut_at_newline",
    "cut_csv",
    "decode_all",
    "first_csv_record",
    "infer_csv_schema",
    "schema_of",
]

_PYTHON_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: pa.timestamp("us"),
    date: pa.date32(),
    time: pa.time64("us"),
    Decimal: pa.decimal128(38, 18),
}


def schema_of(types: pa.Schema | Mapping[str, Any] | None) -> pa.Schema | None:
    """Turn what people write for column types into a schema.

    Args:
        types: A schema, or a mapping from column to an Arrow type, its name (``"int64"``) or a Python type; None stays
            None.

    Raises:
        ConfigurationError: If a type is none of these.
    """
    if types is None or isinstance(types, pa.Schema):
        return types
    fields = []
    for name, kind in types.items():
        if isinstance(kind, pa.DataType):
            fields.append(pa.field(name, kind))
            continue
        try:
            fields.append(pa.field(name, _PYTHON_TYPES[kind] if isinstance(kind, type) else pa.type_for_alias(kind)))
        except (KeyError, ValueError, TypeError) as error:
            message = f"the type of column {name!r} must be an arrow type, its name or a python type; got {kind!r}"
            raise ConfigurationError(message) from error
    return pa.schema(fields)


class RecordFormat(Protocol):
    """How bytes are records.

    Contract:
        * ``decode`` of a block gives the records of ``records(block)``, in order, or raises (*trusted*).
    """

    def cut(self, data: bytes) -> int:
        """How many bytes of ``data``, which begins at a record's start, are whole records; 0 if not even one is."""
        ...

    def decode(self, block: bytes) -> Batch:
        """The records of a block.

        Raises:
            ValueError: (``ArrowInvalid`` is one) if any record of it is bad.
        """
        ...

    def records(self, block: bytes) -> list[bytes]:
        """The block cut into single records, line ends included; their concatenation is the block."""
        ...


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that cannot be decoded: where it begins in its block, its bytes and why."""

    byte_offset: int
    line_offset: int
    raw: bytes
    cause: str

    @property
    def text(self) -> str:
        """The record without its line end, undecodable bytes shown as such."""
        return self.raw.decode("utf-8", errors="backslashreplace").rstrip("\r\n")


def decode_all(format_: RecordFormat, block: bytes) -> Iterator[Batch | Rejected]:
    """Decode what can be decoded of a block, in order."""
    try:
        yield format_.decode(block)
        return
    except ValueError:
        records = format_.records(block)
    starts = [0]
    for record in records:
        starts.append(starts[-1] + len(record))

    def decode_between(first: int, last: int) -> Iterator[Batch | Rejected]:
        """Records ``first`` to ``last - 1``, by halves."""
        part = block[starts[first] : starts[last]]
        try:
            yield format_.decode(part)
        except ValueError as error:
            if last - first == 1:
                yield Rejected(starts[first], block.count(b"\n", 0, starts[first]), part, _first_line(error))
                return
            middle = (first + last) // 2
            yield from decode_between(first, middle)
            yield from decode_between(middle, last)

    yield from decode_between(0, len(records))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def cut_at_newline(data: bytes) -> int:
    """How many bytes are whole lines."""
    return data.rfind(b"\n") + 1


class _Lines:
    """One record per line, whatever the line holds."""

    def cut(self, data: bytes) -> int:
        return cut_at_newline(data)

    def records(self, block: bytes) -> list[bytes]:
        return _split_lines(block)


def _split_lines(block: bytes) -> list[bytes]:
    *lines, rest = block.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


class JsonRows(_Lines):
    """JSON lines without a schema: every line is one value, a row as Python's own parser makes it.

    ``NaN`` and ``Infinity`` are not JSON and are refused. Empty lines are not records.
    """

    def __init__(self) -> None:
        def refuse(name: str) -> None:
            message = f"{name} is not a json value"
            raise ValueError(message)

        self._decode = json.JSONDecoder(parse_constant=refuse).decode

    def decode(self, block: bytes) -> Batch:
        decode = self._decode
        return Batch.of_rows(
            [decode(line) for line in block.decode("utf-8").split("\n") if line and not line.isspace()]
        )


class TextLines(_Lines):
    """Plain text: every line is a record, the empty ones, too, without its line end (LF or CR LF).

    Args:
        schema: Of one text column.
        encoding: Of the characters; one in which a line feed is one byte that is part of no other character.
    """

    def __init__(self, schema: pa.Schema, encoding: str) -> None:
        self._schema = schema
        self._encoding = encoding

    def decode(self, block: bytes) -> Batch:
        lines = block.decode(self._encoding).split("\n")
        if not lines[-1]:
            lines.pop()
        texts = pa.array([line.removesuffix("\r") for line in lines], self._schema.field(0).type)
        return Batch.of_columns(pa.RecordBatch.from_arrays([texts], schema=self._schema))


class JsonColumns(_Lines):
    """JSON lines with a schema: a line is an object; fields the schema lacks are dropped, missing ones are null."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def decode(self, block: bytes) -> Batch:
        block.decode("utf-8")  # the parser takes bytes for text unseen
        if not block or block.isspace():
            return Batch.of_columns(pa.RecordBatch.from_pylist([], schema=self._schema))
        options = pajson.ReadOptions(use_threads=False, block_size=len(block) + 1)
        table = pajson.read_json(io.BytesIO(block), options, self._parse)
        # The parser reads value after value and does not mind where lines end: a broken line could lend its rest to the
        # next.
        if table.num_rows != block.count(b"\n"):
            num_lines = sum(1 for line in block.split(b"\n") if line and not line.isspace())
            if table.num_rows != num_lines:
                message = f"a line must hold one json object; {num_lines} lines hold {table.num_rows}"
                raise ValueError(message)
        return Batch.of_columns(_one_batch(table.select(self._schema.names).cast(self._schema)))


class CsvFormat:
    """Comma-separated values (RFC 4180): names and types of the columns are fixed before the first record.

    Args:
        names: All columns of the file, in order.
        schema: The columns to give, with their types; a subset of ``names``.
        delimiter: One character between fields.
        quoted_newlines: Whether a quoted field may hold a line end, so that record ends are found by counting quotes.
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
        return cut_csv(data) if self._quoted_newlines else cut_at_newline(data)

    def decode(self, block: bytes) -> Batch:
        if not block or block.isspace():
            return Batch.of_columns(pa.RecordBatch.from_pylist([], schema=self._schema))
        return Batch.of_columns(_one_batch(_read_csv(block, self._names, self._delimiter, self._convert)))

    def records(self, block: bytes) -> list[bytes]:
        if not self._quoted_newlines or b'"' not in block:
            return _split_lines(block)
        records = []
        start = 0
        is_quoted = False
        position = 0
        while (end := block.find(b"\n", position)) >= 0:
            is_quoted ^= block.count(b'"', position, end) % 2 == 1
            position = end + 1
            if not is_quoted:
                records.append(block[start:position])
                start = position
        if start < len(block):
            records.append(block[start:])
        return records


def cut_csv(data: bytes) -> int:
    """How many bytes are whole records, where quoted fields may hold line ends.

    A line end is a record's end if the quotes before it are even in number: an escaped quote is two.
    """
    end = data.rfind(b"\n")
    if end < 0:
        return 0
    num_quotes = data.count(b'"', 0, end)
    while num_quotes % 2:
        previous = data.rfind(b"\n", 0, end)
        if previous < 0:
            return 0
        num_quotes -= data.count(b'"', previous, end)
        end = previous
    return end + 1


def first_csv_record(data: bytes) -> int:
    """Length of the first record of ``data``, its line end included; 0 if it has no end."""
    position = 0
    num_quotes = 0
    while (end := data.find(b"\n", position)) >= 0:
        num_quotes += data.count(b'"', position, end)
        position = end + 1
        if num_quotes % 2 == 0:
            return position
    return 0


def csv_fields(record: bytes, delimiter: str) -> list[str]:
    """The fields of one record, as text."""
    text = record.decode("utf-8")
    # To the csv module of Python 3.10 a NUL is an error, later a character like others, as to Arrow.
    stand_in = "\ufdd0"
    if "\0" not in text:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    fields = next(csv.reader(io.StringIO(text.replace("\0", stand_in), newline=""), delimiter=delimiter), [])
    return [field.replace(stand_in, "\0") for field in fields]


def infer_csv_schema(block: bytes, names: list[str], delimiter: str, null_values: tuple[str, ...] | None) -> pa.Schema:
    """Types of all columns, judged by a file's first block; records of another width are left out of it.

    Columns of nothing but nulls, or of bytes that are no text, are taken for text.
    """
    if not block or block.isspace():
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


def _convert_options(null_values: tuple[str, ...] | None, **more: Any) -> pacsv.ConvertOptions:
    if null_values is not None:
        more["null_values"] = list(null_values)
    return pacsv.ConvertOptions(**more)


def _read_csv(
    block: bytes, names: list[str], delimiter: str, convert: pacsv.ConvertOptions, *, skip_invalid: bool = False
) -> pa.Table:
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


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
