"""Plain text, a record per line."""

from __future__ import annotations

import codecs

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ConfigurationError
from headrace.engine.functions.user_function import texts_of

from .contract import Lines, encoded_lines

_WITH_STATE = ("iso2022", "hz", "utf-7", "utf_7")
"""Encodings in which characters mean what those before them say."""

__all__ = ["TextEncoder", "TextLines", "encoding_named", "is_cut_by_newlines"]


def encoding_named(name: str) -> str:
    """Return the encoding of a name, as Python calls it.

    Raises:
        ConfigurationError: If there is none, or it is none of text.
    """
    try:
        encoding = codecs.lookup(name).name
        "\n".encode(encoding)
    except (LookupError, TypeError, UnicodeError):
        message = f"there is no text encoding {name!r}"
        raise ConfigurationError(message) from None
    return encoding


def is_cut_by_newlines(encoding: str) -> bool:
    """Return whether lines can be told in an encoding before they are decoded, and be decoded one by one."""
    return "\n".encode(encoding) == b"\n" and not encoding.startswith(_WITH_STATE)


class TextLines(Lines):
    """Plain text: every line is a record, the empty ones, too, without its line end (LF or CR LF).

    Args:
        schema: Of one text column.
        encoding: Of the characters. If a line feed is more than one byte in it, a file is one block.
    """

    def __init__(self, schema: pa.Schema, encoding: str) -> None:
        self._schema = schema
        self._encoding = encoding
        self._is_cut = is_cut_by_newlines(encoding)

    def cut(self, data: bytes) -> int:
        return super().cut(data) if self._is_cut else 0

    def records(self, block: bytes) -> list[bytes]:
        return super().records(block) if self._is_cut else [block]

    def decode(self, block: bytes) -> Batch:
        lines = block.decode(self._encoding).split("\n")
        if not lines[-1]:
            lines.pop()
        texts = pa.array([line.removesuffix("\r") for line in lines], self._schema.field(0).type)
        return Batch.of_columns(pa.RecordBatch.from_arrays([texts], schema=self._schema))


class TextEncoder:
    """``str(record)`` per line."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def encode(self, batch: Batch) -> bytes:
        return encoded_lines([f"{text}\n" for text in texts_of(batch.rows)], self._encoding)

    def finish(self) -> bytes:
        return b""
