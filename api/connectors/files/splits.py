"""One split of a file, being read: records of text and of containers, and what all kinds of splits have in common.

A split reader knows its position at any time, and reading on from it gives exactly the records behind it: no record
twice, none lost, and no bad record reported twice. For text this holds because blocks are cut by the file's bytes
alone: the block that begins at a byte is always the same block, wherever reading began.

Whatever a file system or parser raises becomes a SourceError with path, split and position; a column type that the
parser does not know, a TypeMismatchError with the same, as no retry would help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import ReaderContext, Split
from headrace.engine.errors import ConfigurationError, MalformedRecordError, SourceError, TypeMismatchError
from headrace.state.files.filesystem import FileSystem

from ...formats.blocks import READ_ERRORS, RecordFile, csv_records_of
from ...formats.containers.parquet_files import open_parquet, without_extensions
from ...formats.containers.typed_files import columns_in, container_records_of
from ...formats.contract import ContainedRecords, RecordFormat, Rejected, decode_all
from ...formats.json_lines import JsonColumns, JsonRows
from ...formats.text import TextLines
from .locations import find_files
from .same_file import head_of, manner_of, require_same_file, require_same_manner, source_of
from .settings import FileSettings

__all__ = [
    "ContainerSplit",
    "OpenSplit",
    "Reading",
    "TextSplit",
    "columns_in_files",
]


class OpenSplit(Protocol):
    """A split being read."""

    def read(self, max_records: int) -> Batch | None:
        """Return the next records, maybe none; None at the end."""
        ...

    def position(self) -> Any:
        """Return where to read on."""
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


def columns_in_files(settings: FileSettings) -> pa.Schema | None:
    """Return the columns that files on this machine give, by the first of them; None if it cannot be read from here.

    Files elsewhere are not asked: a program is built without waiting for a network.
    """
    for location in settings.locations:
        if "://" in location:
            continue
        try:
            fs, files = find_files(location, recursive=settings.recursive)
            if files:
                return _columns_in(fs, files[0][0], settings)
        except (SourceError, ConfigurationError, *READ_ERRORS):
            return None  # the reader names the file and what is wrong with it
    return None


def _columns_in(fs: FileSystem, path: str, settings: FileSettings) -> pa.Schema:
    if settings.format != "parquet":
        found = columns_in(settings.format, fs, path)
        missing = [name for name in settings.columns or () if name not in found.names]
        if missing:
            message = f"the file has no column {missing[0]!r}; it has {found.names}"
            raise SourceError(message, path=path)
        return found if settings.columns is None else pa.schema([found.field(name) for name in settings.columns])
    with fs.open_input(path) as file, open_parquet(file, settings.int96_unit) as parquet:
        columns = None if settings.columns is None else list(settings.columns)
        schema: pa.Schema = parquet.read_row_groups([], columns=columns).schema
        return without_extensions(schema).remove_metadata()


class TextSplit:
    """Lines of a file, or of a byte range of it: the lines that begin in the range.

    The position is ``{"byte", "line", "records", "manner", "head"}``: where the current block begins, the number of its
    first line (from 1; None in a range that begins within a file), and how many of its good records were given. Its bad
    records were dealt with if any good one was given. The last two tell whether it still means that: see
    `headrace.connectors.files.same_file`.
    """

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        self._split = split
        self._settings = settings
        self._context = context
        self._path: str = split.payload["path"]
        start, end = split.payload["range"] or (0, None)
        # How the records are decoded.
        self._format: RecordFormat
        # Where the next split begins; None for a whole file.
        self._end: int | None = end
        self._byte: int = start
        self._line: int | None = 1 if start == 0 else None
        self._records = 0
        # The current block's good records, and byte and line behind it; None between blocks.
        self._batch: Batch | None = None
        self._next: tuple[int, int | None] = (start, self._line)
        self._reading = Reading(split, self._where)
        with self._reading:
            fs = source_of(split, settings)
            require_same_file(split, fs)
            self._head = head_of(split, fs)
            self._manner = manner_of(settings)
            self._file = self._make_file(fs)
            if split.position is not None:
                require_same_manner(split, split.position, self._manner, self._head)
            self._format, first_byte, first_line = self._make_format()
            if split.position is not None:
                self._byte, self._line = split.position["byte"], split.position["line"]
                self._records = split.position["records"]
            elif start == 0:
                self._byte, self._line = first_byte, first_line
            elif start <= first_byte:
                # The header is longer than the ranges before.
                self._byte = first_byte
            else:
                self._byte = self._file.first_line_from(start, self._format.line_end)
            self._file.open_at(self._byte)

    def read(self, max_records: int) -> Batch | None:
        """Return the next records; an empty batch where a whole block was bad."""
        if self._batch is None:
            self._batch = self._next_batch()
            if self._batch is None:
                return None
        length = min(max_records, self._batch.num_rows - self._records)
        batch = self._batch.slice(self._records, length)
        self._records += length
        if self._records == self._batch.num_rows:
            self._byte, self._line = self._next
            self._records = 0
            self._batch = None
        return batch

    def position(self) -> dict[str, Any]:
        """Return where to read on."""
        position = {"byte": self._byte, "line": self._line, "records": self._records, "manner": self._manner}
        return position if self._head is None else {**position, "head": self._head}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _where(self) -> str:
        return f"byte {self._byte}" if self._line is None else f"line {self._line}"

    # ---------------------------------------------------------------------------------------------------------- records
    def _next_batch(self) -> Batch | None:
        """Good records of the block to read on in; None at the end. Blocks whose records were all given are passed."""
        while True:
            with self._reading:
                block = self._next_block()
            if not block:
                if self._records:
                    message = "a file has fewer records than were read from it before the restart: it was changed"
                    raise SourceError(message, path=self._path, split=self._split.split_id, position=self._where())
                return None
            batch = self._decode(block)
            line = None if self._line is None else self._line + self._format.num_lines(block)
            self._next = (self._byte + len(block), line)
            if batch.num_rows >= self._records:
                return batch
            self._records -= batch.num_rows
            self._byte, self._line = self._next

    def _decode(self, block: bytes) -> Batch:
        """A block's good records. Bad ones are dealt with, unless that was done before a restart."""
        good: list[Batch] = []
        bad: list[Rejected] = []
        try:
            for piece in self._pieces(block):
                if isinstance(piece, Batch):
                    good.append(piece)
                else:
                    self._require_tolerance(piece)
                    bad.append(piece)
        except pa.ArrowNotImplementedError as error:  # no record's fault: a type that the parser does not know
            message = f"cannot decode {self._settings.format} records: {error}"
            raise TypeMismatchError(
                message, path=self._path, split=self._split.split_id, position=self._where()
            ) from error
        if bad and self._records == 0:
            self._reject(bad)
        return Batch.concat(good) if good else Batch.of_rows([])

    def _require_tolerance(self, bad: Rejected) -> None:
        if self._settings.on_error == "fail":
            message = f"cannot decode a {self._settings.format} record: {bad.cause}"
            hint = "on_error='skip' or 'dead-letter' goes on without such records"
            raise MalformedRecordError(
                message, hint=hint, path=self._path, split=self._split.split_id, position=self._place(bad)
            )

    def _reject(self, bad: list[Rejected]) -> None:
        self._context.metrics.count("num_records_skipped", len(bad))
        if self._settings.on_error == "dead-letter":
            self._context.emit_dead_letter(self._letters(bad))
        else:
            self._context.note_skipped(lambda: self._letters(bad))

    def _letters(self, bad: list[Rejected]) -> Batch:
        return Batch.of_rows(
            [{"error": b.cause, "split": self._split.split_id, "position": self._place(b), "raw": b.text} for b in bad]
        )

    def _place(self, bad: Rejected) -> str:
        if self._line is None:
            return f"byte {self._byte + bad.byte_offset}"
        return f"line {self._line + bad.line_offset}"

    # ----------------------------------------------------------------------------------------------------------- format
    def _make_file(self, fs: FileSystem) -> RecordFile:
        return RecordFile(fs, self._path)

    def _pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        return decode_all(self._format, block)

    def _next_block(self) -> bytes:
        """The block that begins at the current byte, where the file stands; empty at the split's end."""
        return self._file.block_of_range(self._format, self._byte, self._end)

    def _make_format(self) -> tuple[RecordFormat, int, int | None]:
        """The format, and byte and line of the file's first record. Looks at the file's beginning where it must."""
        settings = self._settings
        if settings.format == "csv":
            try:
                return csv_records_of(
                    self._file, schema=settings.schema, has_header=settings.has_header,
                    delimiter=settings.delimiter, quoted_newlines=not settings.is_splittable,
                    null_values=settings.null_values,
                )  # fmt: skip
            except (TypeMismatchError, MalformedRecordError) as error:
                error.context.update(path=self._path, split=self._split.split_id)
                raise
        first_byte = self._file.first_byte(settings.encoding)
        if settings.format == "text":
            assert settings.schema is not None
            return TextLines(settings.schema, settings.encoding), first_byte, 1
        return (JsonRows() if settings.schema is None else JsonColumns(settings.schema)), first_byte, 1


class ContainerSplit(TextSplit):
    """Records of a file that says in its header what it holds: a SequenceFile of Hadoop, a file of Avro.

    Such files have marks where reading may begin: the records of a split are those behind the marks in its range of
    bytes, up to the first mark behind it. The position is as of text; a bad record is told by its byte, or by that of
    the block that it was compressed in.
    """

    _format: ContainedRecords  # type: ignore[assignment]

    def __init__(self, split: Split, settings: FileSettings, context: ReaderContext) -> None:
        try:
            super().__init__(split, settings, context)
        except ConfigurationError as error:  # the file has a type or a codec that is not known
            error.context.update(path=self._path, split=split.split_id)
            raise

    def _make_file(self, fs: FileSystem) -> RecordFile:
        return RecordFile(fs, self._path, is_compressed=False)

    def _make_format(self) -> tuple[ContainedRecords, int, None]:  # type: ignore[override]
        records = container_records_of(self._settings.format, self._file, self._settings.columns)
        return records, records.first_byte, None

    def _next_block(self) -> bytes:
        return self._file.block_between_marks(self._format, self._byte, self._end)

    def _pieces(self, block: bytes) -> Iterator[Batch | Rejected]:
        with self._reading:
            yield from self._format.pieces(block)
