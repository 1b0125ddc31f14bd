"""One split of a file, being read: row groups of Parquet, or lines and CSV records of text.

A split reader knows its position at any time, and reading on from it gives exactly the records behind it: no record
twice, none lost, and no bad record reported twice. For text this holds because blocks are cut by the file's bytes
alone: the block that begins at a byte is always the same block, wherever reading began.

Whatever a file system or parser raises becomes a SourceError with path, split and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import MalformedRecordError, SourceError, StorageError, TypeMismatchError

from .formats import (
    CsvFormat,
    JsonColumns,
    JsonRows,
    RecordFormat,
    Rejected,
    TextLines,
    csv_fields,
    cut_at_newline,
    cut_csv,
    decode_all,
    first_csv_record,
    infer_csv_schema,
)
from .identity import head_of, manner_of, require_same_file, require_same_manner, source_of
from .locations import find_files

__all__ = [
    "READ_ERRORS",
    "ErrorPolicy",
    "FileSettings",
    "OpenSplit",
    "ParquetSplit",
    "TextSplit",
    "compression_of",
    "parquet_columns",
]

ErrorPolicy = Literal["fail", "skip", "dead-letter"]

BLOCK_BYTES = 1 << 20
"""How much text is decoded at once: enough for Arrow's parsers to run at speed, little enough to read again after a
restart."""

READ_ERRORS = (OSError, EOFError, pa.ArrowException, StorageError)
"""What file systems and parsers raise."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_COMPRESSION: dict[str, Literal["gzip", "bz2", "zstd", "lz4"]] = {
    ".gz": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".lz4": "lz4",
}


@dataclass(frozen=True)
class FileSettings:
    """What all parts of a file source know; the meaning of each is at `FileSource`'s constructors."""

    format: Literal["parquet", "csv", "json lines", "text"]
    locations: tuple[str, ...]
    recursive: bool
    follow_ms: int | None
    split_bytes: int
    columns: tuple[str, ...] | None = None
    schema: pa.Schema | None = None
    on_error: ErrorPolicy = "fail"
    is_splittable: bool = False
    has_header: bool = True
    delimiter: str = ","
    null_values: tuple[str, ...] | None = None
    encoding: str = "utf-8"


def compression_of(path: str) -> Literal["gzip", "bz2", "zstd", "lz4"] | None:
    """The codec that a file's name tells of."""
    return _COMPRESSION.get(path[path.rfind(".") :].lower()) if "." in path else None


class OpenSplit(Protocol):
    """A split being read."""

    def read(self, max_records: int) -> Batch | None:
        """The next records, maybe none; None at the end."""
        ...

    def position(self) -> Any:
        """Where to read on."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class Reading:
    """Turns what a file system or parser raises into a SourceError that names split and position."""

    def __init__(self, split: Split, position: Any) -> None:
        self._split = split
        self._position = position

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, READ_ERRORS):
            cause = str(error).strip().replace("\n", "; ")
            message = f"cannot read a file: {cause}"
            raise SourceError(
                message, path=self._split.payload["path"], split=self._split.split_id, position=self._position()
            ) from error


DECODED_ROWS = 65_536
"""Parquet rows decoded at once, however few are asked for: a slow-paced reader must not decode row by row."""


class ParquetSplit:
    """A run of row groups; the position is the number of rows read."""

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        self._split = split
        self._columns = None if settings.columns is None else list(settings.columns)
        self._position: int = split.position or 0
        # Decoded and not yet given; None before the first and after the last batch.
        self._rest: pa.RecordBatch | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        with self._reading():
            fs = source_of(split, settings)
            require_same_file(split, fs)
            self._input = fs.open_input(split.payload["path"])
            self._file = pq.ParquetFile(self._input)
        missing = [name for name in self._columns or () if not self._has_column(name)]
        if missing:
            message = f"the file has no column {missing[0]!r}; it has {self._file.schema_arrow.names}"
            raise SourceError(message, path=split.payload["path"])

    def _has_column(self, name: str) -> bool:
        paths = self._file.schema
        return any((p := paths.column(i).path) == name or p.startswith(f"{name}.") for i in range(len(paths)))

    def read(self, max_records: int) -> Batch | None:
        with self._reading():
            if self._batches is None:
                self._batches = self._start()
            while self._rest is None or self._rest.num_rows == 0:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return None
        rows = self._rest.slice(0, max_records)
        self._rest = self._rest.slice(rows.num_rows)
        self._position += rows.num_rows
        return Batch.of_columns(rows)

    def _start(self) -> Iterator[pa.RecordBatch]:
        """Batches from the position on: whole row groups are skipped unread, what is left is decoded and dropped."""
        first, last = self._split.payload["row_groups"]
        to_skip = self._position
        metadata = self._file.metadata
        while first < last and to_skip >= (num_rows := metadata.row_group(first).num_rows):
            to_skip -= num_rows
            first += 1
        if first == last:
            return
        # One row group after the other: rows before a broken one are still read, and the error names where it begins.
        for group in range(first, last):
            for batch in self._file.iter_batches(
                DECODED_ROWS, row_groups=[group], columns=self._columns, use_threads=False
            ):
                dropped = min(to_skip, batch.num_rows)
                to_skip -= dropped
                yield batch.slice(dropped)

    def _reading(self) -> Reading:
        return Reading(self._split, lambda: f"row {self._position}")

    def position(self) -> int:
        return self._position

    def close(self) -> None:
        self._file.close()
        self._input.close()


def parquet_columns(settings: FileSettings) -> pa.Schema | None:
    """The columns that Parquet files on this machine give, by the first of them; None if it cannot be read from here.

    Files elsewhere are not asked: a program is built without waiting for a network.
    """
    for location in settings.locations:
        if "://" in location:
            continue
        try:
            fs, files = find_files(location, recursive=settings.recursive)
            if files:
                with fs.open_input(files[0][0]) as file, pq.ParquetFile(file) as parquet:
                    columns = None if settings.columns is None else list(settings.columns)
                    schema: pa.Schema = parquet.read_row_groups([], columns=columns).schema
                    return schema.remove_metadata()
        except (SourceError, *READ_ERRORS):
            return None  # the reader names the file and what is wrong with it
    return None


class TextSplit:
    """Lines of a file, or of a byte range of it: the lines that begin in the range.

    The position is ``{"byte", "line", "records", "manner", "head"}``: where the current block begins, the number of its
    first line (from 1; None in a range that begins within a file), and how many of its good records were given. Its bad
    records were dealt with if any good one was given. The last two tell whether it still means that: see
    `headrace.connectors.files.identity`.
    """

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        self._split = split
        self._settings = settings
        self._context = context
        self._path: str = split.payload["path"]
        start, end = split.payload["range"] or (0, None)
        # Where the next split begins; None for a whole file.
        self._end: int | None = end
        self._byte: int = start
        self._line: int | None = 1 if start == 0 else None
        self._records = 0
        # The current block's good records, and byte and line behind it; None between blocks.
        self._batch: Batch | None = None
        self._next: tuple[int, int | None] = (start, self._line)
        # Bytes that were read and lie behind the current block.
        self._carry = b""
        self._input: Any = None
        self._reading = Reading(split, self._where)
        with self._reading:
            self._fs = source_of(split, settings)
            require_same_file(split, self._fs)
            self._head = head_of(split, self._fs)
            self._manner = manner_of(settings)
            if split.position is not None:
                require_same_manner(split, split.position, self._manner, self._head)
            self._format, first_byte, first_line = self._make_format()
            if split.position is not None:
                self._byte, self._line = split.position["byte"], split.position["line"]
                self._records = split.position["records"]
            elif start == 0:
                self._byte, self._line = first_byte, first_line
            else:
                self._byte = self._first_line_from(start)
            self._open_at(self._byte)

    def read(self, max_records: int) -> Batch | None:
        """The next records; an empty batch where a whole block was bad."""
        if self._batch is None:
            with self._reading:
                block = self._read_block(self._byte)
            if not block:
                return None
            self._batch = self._decode(block)
            line = None if self._line is None else self._line + block.count(b"\n")
            self._next = (self._byte + len(block), line)
        length = min(max_records, self._batch.num_rows - self._records)
        batch = self._batch.slice(self._records, length)
        self._records += length
        if self._records == self._batch.num_rows:
            self._byte, self._line = self._next
            self._records = 0
            self._batch = None
        return batch

    def position(self) -> dict[str, Any]:
        """Where to read on."""
        position = {"byte": self._byte, "line": self._line, "records": self._records, "manner": self._manner}
        return position if self._head is None else {**position, "head": self._head}

    def close(self) -> None:
        """Let go of the file."""
        file, self._input = self._input, None
        if file is not None:
            file.close()

    def _where(self) -> str:
        return f"byte {self._byte}" if self._line is None else f"line {self._line}"

    # ---------------------------------------------------------------------------------------------------------- records
    def _decode(self, block: bytes) -> Batch:
        """A block's good records. Bad ones are dealt with, unless that was done before a restart."""
        good: list[Batch] = []
        bad: list[Rejected] = []
        for piece in decode_all(self._format, block):
            if isinstance(piece, Batch):
                good.append(piece)
                continue
            if self._settings.on_error == "fail":
                message = f"cannot decode a {self._settings.format} record: {piece.cause}"
                hint = "on_error='skip' or 'dead-letter' goes on without such records"
                raise MalformedRecordError(
                    message, hint=hint, path=self._path, split=self._split.split_id, position=self._place(piece)
                )
            bad.append(piece)
        if bad and self._records == 0:
            self._reject(bad)
        batch = Batch.concat(good) if good else Batch.of_rows([])
        if batch.num_rows < self._records:
            message = "a file has fewer records than were read from it before the restart: it was changed"
            raise SourceError(message, path=self._path, split=self._split.split_id, position=self._where())
        return batch

    def _reject(self, bad: list[Rejected]) -> None:
        self._context.metrics.count("num_records_skipped", len(bad))
        if self._settings.on_error == "dead-letter":
            letters = [
                {"error": b.cause, "split": self._split.split_id, "position": self._place(b), "raw": b.text}
                for b in bad
            ]
            self._context.emit_dead_letter(Batch.of_rows(letters))

    def _place(self, bad: Rejected) -> str:
        if self._line is None:
            return f"byte {self._byte + bad.byte_offset}"
        return f"line {self._line + bad.line_offset}"

    # ----------------------------------------------------------------------------------------------------------- format
    def _make_format(self) -> tuple[RecordFormat, int, int]:
        """The format, and byte and line of the file's first record. Looks at the file's beginning where it must."""
        settings = self._settings
        self._open_at(0)
        first_byte, first_line = 0, 1
        if self._fill(b"", len(_BYTE_ORDER_MARK)) == _BYTE_ORDER_MARK and settings.encoding == "utf-8":
            first_byte = len(_BYTE_ORDER_MARK)
        if settings.format == "text":
            assert settings.schema is not None
            return TextLines(settings.schema, settings.encoding), first_byte, first_line
        if settings.format != "csv":
            return (JsonRows() if settings.schema is None else JsonColumns(settings.schema)), first_byte, first_line
        self._open_at(first_byte)
        names = None if settings.schema is None else settings.schema.names
        if settings.has_header or names is None:
            header = self._first_record()
            fields = csv_fields(header, settings.delimiter)
            if settings.has_header:
                names = fields
                first_byte += len(header)
                first_line += header.count(b"\n")
                self._check_header(fields)
            else:
                names = [f"f{i}" for i in range(len(fields))]
        schema = settings.schema
        if schema is None:
            self._open_at(first_byte)
            block = self._cut_block(cut_at_newline if settings.is_splittable else cut_csv)
            schema = infer_csv_schema(block, names, settings.delimiter, settings.null_values)
        return (
            CsvFormat(names, schema, settings.delimiter, not settings.is_splittable, settings.null_values),
            first_byte,
            first_line,
        )

    def _check_header(self, header: list[str]) -> None:
        wanted = self._settings.schema.names if self._settings.schema is not None else []
        missing = [name for name in wanted if name not in header]
        repeated = [name for name in header if header.count(name) > 1]
        if (missing and header) or repeated:
            fault = f"repeats column {repeated[0]!r}" if repeated else f"has no column {missing[0]!r}"
            message = f"the file's header {fault}; it names {header}"
            raise TypeMismatchError(message, path=self._path, split=self._split.split_id, position="line 1")

    # ------------------------------------------------------------------------------------------------------------ bytes
    def _open_at(self, byte: int) -> None:
        """Open the file anew and go to a byte; a compressed file is read up to it."""
        self.close()
        self._input = self._fs.open_input(self._path)
        self._carry = b""
        compression = compression_of(self._path)
        if compression is None:
            self._input.seek(byte)
            return
        self._input = pa.CompressedInputStream(self._input, compression)
        while byte > 0:
            skipped = len(self._input.read(min(byte, BLOCK_BYTES)))
            if not skipped:
                break
            byte -= skipped

    def _fill(self, data: bytes, length: int) -> bytes:
        """Append what follows in the file until there are ``length`` bytes, fewer only at its end."""
        while len(data) < length:
            more = self._input.read(length - len(data))
            if not more:
                break
            data += more
        return data

    def _read_block(self, byte: int) -> bytes:
        """The block that begins at ``byte``, where the file stands; empty at the split's end."""
        if self._end is None:
            return self._cut_block(self._format.cut)
        if byte >= self._end:
            return b""
        last_byte = self._end - 1 - byte  # the line that holds it is the split's last one

        def cut(data: bytes) -> int:
            return data.find(b"\n", last_byte) + 1 if len(data) > last_byte else self._format.cut(data)

        return self._cut_block(cut)

    def _cut_block(self, cut: Callable[[bytes], int]) -> bytes:
        """Whole records from where the file stands: about `BLOCK_BYTES`, or one record that is larger.

        The file's last record may lack its line end. Looks one byte further than it may cut, so that a block depends on
        nothing but where it begins.
        """
        data = self._carry
        wanted = BLOCK_BYTES
        while True:
            data = self._fill(data, wanted + 1)
            is_last = len(data) <= wanted
            window = data if is_last else data[:wanted]
            length = cut(window)
            if is_last and (length == 0 or self._end is None):
                length = len(window)
            if length or is_last:
                self._carry = data[length:]
                return data[:length]
            wanted *= 2

    def _first_record(self) -> bytes:
        """The record where the file stands; the file has to be opened anew afterwards."""
        data = b""
        while True:
            wanted = len(data) + BLOCK_BYTES
            data = self._fill(data, wanted)
            length = first_csv_record(data)
            if length or len(data) < wanted:
                return data[: length or len(data)]

    def _first_line_from(self, start: int) -> int:
        """Where the first line begins that begins at ``start`` or behind it."""
        byte = start - 1
        self._open_at(byte)
        while data := self._fill(b"", BLOCK_BYTES):
            newline = data.find(b"\n")
            if newline >= 0:
                return byte + newline + 1
            byte += len(data)
        return byte
