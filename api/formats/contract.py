"""What a format is: where records end, how a block of them becomes columns, which record is bad; and the way back.

A file is read in blocks that are cut at the end of a record. A block is decoded as a whole, at the speed of Arrow's own
parsers; only when that fails is it halved, again and again, until the bad records stand alone. So a good file costs
nothing for the chance of a bad one, and a bad record is told with its line, its byte and the parser's own words.

Invariant: decoding depends on the block's bytes and the format's settings alone, so reading a block again after a
restart gives the same records in the same order.

Source: Flink's ``BulkFormat``, ``DeserializationSchema`` and ``SerializationSchema``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import TypeMismatchError
from headrace.state.values.serde import columns_as

__all__ = [
    "BYTE_ORDER_MARK",
    "ContainedRecords",
    "Lines",
    "RecordEncoder",
    "RecordFormat",
    "Rejected",
    "by_halves",
    "columns_to_write",
    "cut_at_newline",
    "decode_all",
    "encoded_lines",
    "in_order",
    "in_types",
    "one_batch",
    "split_lines",
]


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""No part of the text at a file's beginning; anywhere else a character as others are."""


class RecordFormat(Protocol):
    """How bytes are records.

    Contract:
        * ``decode`` of a block gives the records of ``records(block)``, in order, or raises (*trusted*).
    """

    def cut(self, data: bytes) -> int:
        """Return how many bytes of ``data``, which begins at a record's start, are whole records; 0 if not even
        one is.
        """
        ...

    def decode(self, block: bytes) -> Batch:
        """Return the records of a block.

        Raises:
            ValueError: (``ArrowInvalid`` is one) if any record of it is bad.
        """
        ...

    def records(self, block: bytes) -> list[bytes]:
        """Return the block cut into single records, line ends included; their concatenation is the block."""
        ...

    def line_end(self, data: bytes, start: int) -> int:
        """Return where the line ends that holds byte ``start``; 0 if ``data`` does not tell."""
        ...

    def num_lines(self, data: bytes) -> int:
        """Return how many lines end in ``data``."""
        ...


class ContainedRecords(Protocol):
    """How bytes are records in a file whose header says what they are, and in which marks say where reading may begin.

    Attributes:
        mark: The bytes of a mark, which stand before a record.
        first_byte: Where the first record begins, behind the header; it needs no mark.
    """

    mark: bytes
    first_byte: int

    def cut(self, data: bytes, end: int | None) -> int:
        """As `RecordFormat.cut`, but that it may be fewer of them.

        Args:
            data: As there.
            end: Records from the first mark on that is there or behind are somebody else's; None for none.

        Raises:
            DamagedFileError: If it cannot be said.
        """
        ...

    def line_end(self, data: bytes, start: int) -> int:
        """Return where the first mark behind byte ``start`` is; 0 if ``data`` has none."""
        ...

    def require_end(self, rest: bytes) -> None:
        """See that a file may end with bytes that are no whole record.

        Raises:
            DamagedFileError: If not: it is cut off.
        """
        ...

    def pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        """As `decode_all`, of records that `cut` has cut off.

        Raises:
            DamagedFileError: If a part of it is no record, good or bad.
        """
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

    for piece in by_halves(len(records), lambda first, last: format_.decode(block[starts[first] : starts[last]])):
        if isinstance(piece, Batch):
            yield piece
        else:
            index, cause = piece
            yield Rejected(starts[index], format_.num_lines(block[: starts[index]]), records[index], cause)


def by_halves(num_records: int, decode: Callable[[int, int], Batch]) -> Iterator[Batch | tuple[int, str]]:
    """Decode records, by halves again and again where that fails, until the bad ones stand alone.

    Args:
        num_records: How many there are.
        decode: Decodes those from one index up to another, or raises a ValueError.

    Returns:
        Good ones in batches, in order; index and cause of each bad one between them.
    """

    def between(first: int, last: int) -> Iterator[Batch | tuple[int, str]]:
        try:
            yield decode(first, last)
        except ValueError as error:
            if last - first == 1:
                yield first, _first_line(error)
                return
            middle = (first + last) // 2
            yield from between(first, middle)
            yield from between(middle, last)

    yield from between(0, num_records)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def cut_at_newline(data: bytes) -> int:
    """Return how many bytes are whole lines."""
    return data.rfind(b"\n") + 1


class Lines:
    """One record per line, whatever the line holds."""

    def cut(self, data: bytes) -> int:
        return cut_at_newline(data)

    def records(self, block: bytes) -> list[bytes]:
        return split_lines(block)

    def line_end(self, data: bytes, start: int) -> int:
        return data.find(b"\n", start) + 1

    def num_lines(self, data: bytes) -> int:
        return data.count(b"\n")


def split_lines(block: bytes) -> list[bytes]:
    *lines, rest = block.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


class RecordEncoder(Protocol):
    """How records are bytes, from the beginning of a file to its end. An encoder is of one file."""

    def encode(self, batch: Batch) -> bytes:
        """Return the bytes of records; those of the first batch, even of an empty one, begin with a header, if any.

        Raises:
            TypeMismatchError: If the format has no form for a record.
        """
        ...

    def finish(self) -> bytes:
        """Return what has waited for more, and what ends the file."""
        ...


def encoded_lines(lines: list[str], encoding: str) -> bytes:
    """Return records of text as bytes.

    Raises:
        TypeMismatchError: If the encoding has no form for a character: it names the record, counted from 0.
    """
    text = "".join(lines)
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        row = length = 0
        while (length := length + len(lines[row])) <= error.start:
            row += 1
        message = f"cannot write {text[error.start : error.end]!r} as {encoding}: {error.reason}"
        raise TypeMismatchError(message, row=row) from error


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def columns_to_write(batch: Batch, schema: pa.Schema | None) -> pa.RecordBatch:
    """Return records as columns of the declared schema, if there is one, with what it says of them beside their types
    (the ids that a table gives its columns).
    """
    columns = batch.columns_as(schema)
    if schema is None:
        return columns
    columns = columns_as(columns, schema, drop_others=True)
    if columns.schema.equals(schema, check_metadata=True):
        return columns
    return pa.RecordBatch.from_arrays(columns.columns, schema=schema)


def in_order(columns: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return the same columns in the order in which their file began.

    Raises:
        TypeMismatchError: If they are not the same.
    """
    found = columns.schema.names
    if found == names:
        return columns
    if sorted(found) == sorted(names):
        return columns.select(names)
    message = f"all records of a file must have the same columns: it began with {names}, then came {found}"
    raise TypeMismatchError(message, hint="declare the schema of what is written")


def in_types(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the same columns in the order and in the types in which their file began; None if they do not fit.

    Raises:
        TypeMismatchError: If they are not the same, or none: nothing would tell how many records there are.
    """
    if not len(columns.schema):
        message = "records without fields have no columns, so no file of columns has them"
        raise TypeMismatchError(message)
    if columns.schema == schema:
        return columns
    columns = in_order(columns, schema.names)
    try:
        return columns.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
