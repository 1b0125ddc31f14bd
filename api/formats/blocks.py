"""A file of text, read as blocks of whole records from any byte on; decompressed if its name says so.

Invariant: the block that begins at a byte is always the same block, wherever reading began and however the file system
cuts its answers: it depends on the file's bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa

from headrace.engine.errors import MalformedRecordError, StorageError
from headrace.state.files.filesystem import FileSystem

from .contract import BYTE_ORDER_MARK, ContainedRecords, RecordFormat
from .csv_lexing import csv_fields, cut_at_line_end, cut_csv, first_csv_record, num_line_ends
from .csv_records import CsvFormat, check_header, infer_csv_schema

__all__ = ["BLOCK_BYTES", "READ_ERRORS", "RecordFile", "compression_of", "csv_records_of"]

BLOCK_BYTES = 1 << 20
"""How much text is decoded at once: enough for Arrow's parsers to run at speed, little enough to read again after a
restart."""

READ_ERRORS = (OSError, EOFError, pa.ArrowException, StorageError)
"""What file systems and parsers raise."""

Compression = Literal["gzip", "bz2", "zstd", "lz4"]

_COMPRESSIONS: dict[str, Compression] = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".lz4": "lz4",
}


def compression_of(path: str) -> Compression | None:
    """Return the codec that a file's name tells of."""
    return _COMPRESSIONS.get(path[path.rfind(".") :].lower()) if "." in path else None


class RecordFile:
    """A file that is open at a byte.

    Args:
        fs: Its file system.
        path: Its path there.
        is_compressed: Whether it is decompressed if its name says so.
    """

    def __init__(self, fs: FileSystem, path: str, *, is_compressed: bool = True) -> None:
        self._fs = fs
        self._path = path
        self._compression = compression_of(path) if is_compressed else None
        self._input: Any = None
        # Bytes that were read and lie behind the last block.
        self._carry = b""

    def open_at(self, byte: int) -> None:
        """Open the file anew and go to a byte; a compressed file is read up to it."""
        self.close()
        self._input = self._fs.open_input(self._path)
        self._carry = b""
        if self._compression is None:
            self._input.seek(byte)
            return
        self._input = pa.CompressedInputStream(self._input, self._compression)
        while byte > 0:
            skipped = len(self._input.read(min(byte, BLOCK_BYTES)))
            if not skipped:
                break
            byte -= skipped

    @property
    def stream(self) -> Any:
        """The file itself where it stands, decompressed; for readers that cut records by themselves."""
        return self._input

    def close(self) -> None:
        """Let go of the file."""
        file, self._input = self._input, None
        if file is not None:
            file.close()

    def block(self, cut: Callable[[bytes], int], *, is_range: bool = False) -> bytes:
        """Return whole records from where the file stands: about `BLOCK_BYTES`, or one record that is larger.

        The file's last record may lack its line end. Looks one byte further than it may cut, so that a block depends on
        nothing but where it begins.

        Args:
            cut: See `RecordFormat.cut`.
            is_range: Whether what follows the last cut belongs to somebody else, though the file ends behind it.
        """
        data = self._carry
        wanted = BLOCK_BYTES
        while True:
            data = self._filled(data, wanted + 1)
            is_last = len(data) <= wanted
            window = data if is_last else data[:wanted]
            length = cut(window)
            if is_last and (length == 0 or not is_range):
                length = len(window)
            if length or is_last:
                self._carry = data[length:]
                return data[:length]
            wanted *= 2

    def block_of_range(self, form: RecordFormat, byte: int, end: int | None) -> bytes:
        """Return whole records of a range from where the file stands; none at its end.

        A range has the lines that begin in it, to the end of the last one.

        Args:
            form: The records' format.
            byte: Where the file stands.
            end: Where the next range begins; None for a whole file.
        """
        if end is None:
            return self.block(form.cut)
        if byte >= end:
            return b""
        last_byte = end - 1 - byte  # the line that holds it is the range's last one

        def cut(data: bytes) -> int:
            return form.line_end(data, last_byte) if len(data) > last_byte else form.cut(data)

        return self.block(cut, is_range=True)

    def block_between_marks(self, form: ContainedRecords, byte: int, end: int | None) -> bytes:
        """Return whole records of a range from where the file stands; none at its end.

        A range has the lines that begin in it, to the end of the last one; a line is what lies between two marks, or
        the header and the first mark.

        Args:
            form: The records' format.
            byte: Where the file stands.
            end: Where the next range begins; None for a whole file.

        Raises:
            DamagedFileError: As of `ContainedRecords.cut` and `ContainedRecords.require_end`.
        """
        if end is not None:
            if end <= form.first_byte:
                return b""
            if byte >= end:
                self._carry = self._filled(self._carry, len(form.mark))
                if self._carry.startswith(form.mark):
                    return b""
        length = 0

        def cut(data: bytes) -> int:
            nonlocal length
            length = form.cut(data, None if end is None else end - byte)
            return length

        block = self.block(cut, is_range=True)
        if block and not length:
            form.require_end(block)
            return b""
        return block

    def beginning(self, length: int) -> bytes:
        """Return the next bytes; fewer only at the end. The file has to be opened anew afterwards."""
        return self._filled(b"", length)

    def first_byte(self, encoding: str = "utf-8") -> int:
        """Return where the first record begins: behind a byte order mark. The file has to be opened anew afterwards."""
        self.open_at(0)
        has_mark = self._filled(b"", len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK and encoding == "utf-8"
        return len(BYTE_ORDER_MARK) if has_mark else 0

    def first_csv_record(self, delimiter: str) -> bytes:
        """Return the record where the file stands, with the blank lines before it. The file has to be opened anew
        afterwards.
        """
        return self._first(lambda data: first_csv_record(data, delimiter))

    def first_line_from(self, start: int, line_end: Callable[[bytes, int], int]) -> int:
        """Return where the first line begins that begins at ``start`` or behind it.

        Args:
            start: A byte of the file, not the first one.
            line_end: See `RecordFormat.line_end`.
        """
        self.open_at(start - 1)
        return start - 1 + len(self._first(lambda data: line_end(data, 0)))

    def _first(self, end_of: Callable[[bytes], int]) -> bytes:
        """What ends first of what follows in the file; all of it if nothing does."""
        data = b""
        wanted = BLOCK_BYTES
        while True:
            data = self._filled(data, wanted)
            length = end_of(data)
            if length or len(data) < wanted:
                return data[: length or len(data)]
            wanted *= 2

    def _filled(self, data: bytes, length: int) -> bytes:
        """``data`` and what follows in the file, until there are ``length`` bytes; fewer only at its end."""
        while len(data) < length:
            more = self._input.read(length - len(data))
            if not more:
                break
            data += more
        return data


def csv_records_of(
    file: RecordFile,
    *,
    schema: pa.Schema | None,
    has_header: bool,
    delimiter: str = ",",
    quoted_newlines: bool = True,
    null_values: tuple[str, ...] | None = None,
) -> tuple[RecordFormat, int, int]:
    """Look at the beginning of a CSV file; return its format, and byte and line of its first record.

    Args:
        file: The file; it has to be opened anew afterwards.
        schema: The columns to give; None for all, in types that the first block shows. Without a header it names all
            columns of the file; without both they are ``f0``, ``f1`` ....
        has_header: Whether the first record names the columns.
        delimiter: As of `CsvFormat`.
        quoted_newlines: As of `CsvFormat`.
        null_values: As of `CsvFormat`.

    Raises:
        TypeMismatchError: If the header lacks a column that is wanted, or names one twice.
        MalformedRecordError: If the first record is looked at and is no text.
    """
    first_byte, first_line = file.first_byte(), 1
    names = None if schema is None else schema.names
    if has_header or names is None:
        file.open_at(first_byte)
        header = file.first_csv_record(delimiter)
        try:
            fields = csv_fields(header, delimiter)
        except UnicodeDecodeError as error:
            message = f"the first csv record must be utf-8 text: {error}"
            raise MalformedRecordError(message, position="line 1") from error
        if has_header:
            names = fields
            first_byte += len(header)
            first_line += num_line_ends(header)
            check_header(fields, schema)
        else:
            names = [f"f{i}" for i in range(len(fields))]
    assert names is not None
    if schema is None:
        file.open_at(first_byte)
        block = file.block(lambda data: cut_csv(data, delimiter) if quoted_newlines else cut_at_line_end(data))
        schema = infer_csv_schema(block, names, delimiter, null_values)
    return CsvFormat(names, schema, delimiter, quoted_newlines, null_values), first_byte, first_line
