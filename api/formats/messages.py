"""Formats of messages: the bytes of one are one record, and the way back.

A message is to a queue what a line is to a file. So JSON and CSV are those of `headrace.formats.json_lines` and
`headrace.formats.csv_records`: many messages are decoded at once, as the lines of a block, and halved where one is bad.
A message with several lines of its own is bad in CSV; in JSON a line end between values means nothing, and goes.

Source: Flink's ``DeserializationSchema`` and ``SerializationSchema``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError, TypeMismatchError
from headrace.engine.functions.user_function import texts_of
from headrace.state.type_variables import T

from .contract import Lines, RecordFormat, columns_to_write, decode_all
from .csv_records import CsvEncoder, CsvFormat
from .json_lines import JsonColumns, JsonEncoder, JsonRows
from .schemas import schema_of
from .text import encoding_named

__all__ = [
    "BadMessage",
    "BytesMessages",
    "CsvMessages",
    "Decoded",
    "JsonMessages",
    "MessageFormat",
    "TextMessages",
    "decode_or_null",
    "require_format",
]


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that cannot be decoded: its place among those that were decoded with it, its bytes and why."""

    index: int
    raw: bytes
    cause: str

    @property
    def text(self) -> str:
        """Its bytes as text, undecodable ones shown as such."""
        return self.raw.decode("utf-8", errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Decoded:
    """What messages came to.

    Attributes:
        batch: The good ones, in order.
        good: Their places; several changes of one message have the same.
        bad: The others.
    """

    batch: Batch
    good: npt.NDArray[np.intp]
    bad: list[BadMessage]


class MessageFormat(ABC, Generic[T]):
    """How messages are records; type checkers know which: ``TextMessages()`` is of ``str``.

    Attributes:
        schema: The columns of the records; None if they are rows of Python objects as they come.
        gives_changes: Whether messages say what becomes of rows: records are changes, and a message may be several.
    """

    schema: pa.Schema | None = None
    gives_changes = False

    @abstractmethod
    def decode(self, messages: Sequence[bytes]) -> Decoded:
        """Make records of messages: one of each that is good, or its changes."""

    @abstractmethod
    def encode(self, batch: Batch) -> list[bytes]:
        """Make a message of each record.

        Raises:
            TypeMismatchError: If the format has no form for a record.
        """


def require_format(value: Any) -> None:
    """See that something is a format of messages.

    Raises:
        ConfigurationError: If it is none.
    """
    if not isinstance(value, MessageFormat):
        message = f"value must be a format of messages, as JsonMessages(); got {value!r}"
        raise ConfigurationError(message)


def decode_or_null(value: MessageFormat, messages: Sequence[bytes | None]) -> Decoded:
    """Make records of messages, one of each that is good; of one that is not there a record of nulls.

    Args:
        value: A format of columns.
        messages: Their bytes; None for none.
    """
    assert value.schema is not None
    there = np.array([place for place, message in enumerate(messages) if message is not None], np.intp)
    if len(there) == len(messages):
        return value.decode([message for message in messages if message is not None])
    decoded = value.decode([message for message in messages if message is not None])
    rows = np.full(len(messages), -1)
    rows[there[decoded.good]] = np.arange(len(decoded.good))
    bad = [replace(one, index=int(there[one.index])) for one in decoded.bad]
    is_good = np.ones(len(messages), bool)
    is_good[[one.index for one in bad]] = False
    good = np.flatnonzero(is_good)
    columns = decoded.batch.columns_as(value.schema).take(pa.array(rows[good], mask=rows[good] < 0))
    return Decoded(Batch.of_columns(columns), good, bad)


class _LineMessages(MessageFormat[T]):
    """Messages that are lines of a format of files."""

    @abstractmethod
    def _lines(self) -> RecordFormat:
        """Decodes lines."""

    @abstractmethod
    def _line(self, message: bytes) -> bytes | str:
        """Return a message as a line without its end, or why it is none."""

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        lines: list[bytes] = []
        places: list[int] = []
        bad: list[BadMessage] = []
        for place, line in enumerate(map(self._line, messages)):
            if isinstance(line, str):
                bad.append(BadMessage(place, messages[place], line))
            else:
                lines.append(line)
                places.append(place)
        good: list[Batch] = []
        is_good = np.ones(len(lines), bool)
        num_read = 0
        block = b"\n".join([*lines, b""]) if lines else b""
        for piece in decode_all(_OneRecordALine(self._lines()), block):
            if isinstance(piece, Batch):
                good.append(piece)
                num_read += piece.num_rows
            else:
                place = places[num_read]
                bad.append(BadMessage(place, messages[place], piece.cause))
                is_good[num_read] = False
                num_read += 1
        bad.sort(key=lambda one: one.index)
        batch = Batch.concat(good) if good else Batch.of_rows([])
        return Decoded(batch, np.array(places, np.intp)[is_good], bad)


class _OneRecordALine(Lines):
    """A format of lines, in which a line that gives no record, or several, is bad."""

    def __init__(self, lines: RecordFormat) -> None:
        self._lines = lines

    def decode(self, block: bytes) -> Batch:
        batch = self._lines.decode(block)
        if batch.num_rows != (expected := block.count(b"\n")):
            message = f"{expected} messages hold {batch.num_rows} records"
            raise ValueError(message)
        return batch


class JsonMessages(_LineMessages[Any]):
    """A JSON value a message.

    Args:
        schema: The fields of objects, with their types: the records are columns then. Fields it lacks are dropped,
            missing ones are null. None: records are what Python's parser makes, mostly dicts.
    """

    def __init__(self, schema: pa.Schema | Mapping[str, Any] | None = None) -> None:
        self.schema = schema_of(schema)

    def _lines(self) -> RecordFormat:
        return JsonRows() if self.schema is None else JsonColumns(self.schema)

    def _line(self, message: bytes) -> bytes | str:
        # Line ends are white space in JSON: none can be inside of a value.
        line = message.replace(b"\n", b" ").replace(b"\r", b" ").strip() if b"\n" in message else message.strip()
        if not line:
            return "it is empty"
        # Arrow's parser reads value after value, wherever lines end; so far apart, none can lend its rest to the next.
        if self.schema is not None and not (line.startswith(b"{") and line.endswith(b"}")):
            return "it is no json object"
        return line

    def encode(self, batch: Batch) -> list[bytes]:
        if self.schema is not None:
            batch = Batch.of_columns(columns_to_write(batch, self.schema))
        return JsonEncoder().encode(batch).split(b"\n")[:-1]


class CsvMessages(_LineMessages[dict[str, Any]]):
    """A line of comma-separated values a message, without a header.

    Args:
        schema: The columns, in their order.
        delimiter: One character between fields.
    """

    schema: pa.Schema

    def __init__(self, schema: pa.Schema | Mapping[str, Any], delimiter: str = ",") -> None:
        found = schema_of(schema)
        if found is None or not found.names:
            message = "CSV has no names: its columns must be declared"
            raise ConfigurationError(message)
        self.schema = found
        self._delimiter = delimiter

    def _lines(self) -> RecordFormat:
        return CsvFormat(self.schema.names, self.schema, self._delimiter, quoted_newlines=False)

    def _line(self, message: bytes) -> bytes | str:
        line = message.removesuffix(b"\n").removesuffix(b"\r")
        if b"\n" in line or b"\r" in line:
            return "it has several lines"
        return "it is empty" if not line or line.isspace() else line

    def encode(self, batch: Batch) -> list[bytes]:
        lines = CsvEncoder(self._delimiter, has_header=False, schema=self.schema).encode(batch).split(b"\n")[:-1]
        if len(lines) != len(batch):
            message = "a text with a line end has no place in a message of CSV"
            raise TypeMismatchError(message, hint="JSON has one")
        return lines


class TextMessages(MessageFormat[T]):
    """A text a message.

    Args:
        encoding: Of its characters.
        column: The column that it is in; None for records that are texts themselves.
    """

    @overload
    def __init__(self: TextMessages[str], encoding: str = "utf-8", column: None = None) -> None: ...

    @overload
    def __init__(self: TextMessages[dict[str, Any]], encoding: str = "utf-8", *, column: str) -> None: ...

    def __init__(self, encoding: str = "utf-8", column: str | None = None) -> None:
        self._encoding = encoding_named(encoding)
        self._column = column
        self.schema = None if column is None else pa.schema([(column, pa.string())])

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        texts: list[str] = []
        good: list[int] = []
        bad: list[BadMessage] = []
        for place, message in enumerate(messages):
            try:
                texts.append(message.decode(self._encoding))
            except UnicodeDecodeError as error:
                bad.append(BadMessage(place, message, str(error)))
                continue
            good.append(place)
        return Decoded(_single(texts, self.schema), np.array(good, np.intp), bad)

    def encode(self, batch: Batch) -> list[bytes]:
        texts = texts_of(_values(batch, self._column))
        try:
            return [text.encode(self._encoding) for text in texts]
        except UnicodeEncodeError as error:
            message = f"cannot write {error.object[error.start : error.end]!r} as {self._encoding}: {error.reason}"
            raise TypeMismatchError(message) from error


class BytesMessages(MessageFormat[T]):
    """Messages as they are.

    Args:
        column: The column that they are in; None for records that are bytes themselves.
    """

    @overload
    def __init__(self: BytesMessages[bytes], column: None = None) -> None: ...

    @overload
    def __init__(self: BytesMessages[dict[str, Any]], column: str) -> None: ...

    def __init__(self, column: str | None = None) -> None:
        self._column = column
        self.schema = None if column is None else pa.schema([(column, pa.binary())])

    def decode(self, messages: Sequence[bytes]) -> Decoded:
        return Decoded(_single(list(messages), self.schema), np.arange(len(messages), dtype=np.intp), [])

    def encode(self, batch: Batch) -> list[bytes]:
        values = _values(batch, self._column)
        for row, value in enumerate(values):
            if not isinstance(value, bytes):
                message = f"a message is bytes; got {type(value).__name__}"
                raise TypeMismatchError(message, row=row)
        return values


def _single(values: list[Any], schema: pa.Schema | None) -> Batch:
    if schema is None:
        return Batch.of_rows(values)
    return Batch.of_columns(pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema))


def _values(batch: Batch, column: str | None) -> list[Any]:
    """The values of records of one column, or records that are values."""
    if column is not None:
        columns = batch.columns
        if column not in columns.schema.names:
            message = f"the records have no field {column!r}; they have {columns.schema.names}"
            raise TypeMismatchError(message)
        values: list[Any] = columns.column(columns.schema.get_field_index(column)).to_pylist()
        return values
    return batch.rows
