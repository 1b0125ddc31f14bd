"""Files as a sink: Parquet, CSV and JSON lines, exactly once.

A writer fills *parts* under ``<path>/.staging``, out of every reader's sight, and closes them at each barrier and
whenever one is large enough. A closed part is a committable; its commit renames it to its final name. So what a reader
of the directory sees is whole and is never taken back, and the same commit done twice changes nothing: the part is
either still staged or already there.

Final names hold a hash of job, operator and attempt, the checkpoint and a counter: no two parts are ever given the same
one. What an attempt staged and no checkpoint holds is garbage; it is deleted by the next attempt once its own first
checkpoint is complete. What a savepoint holds is noted beside it (``savepoint-<subtask>-<attempt>.json``), and spared
until it has been committed.

Source: Flink's ``FileSink``, ``FileWriter``, ``FileCommitter``; rows G15 to G17.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import errno
import hashlib
import io
import json
import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.formats import schema_of
from headrace.connectors.locations import absolute_location
from headrace.engine.connector import Committer, CommitterContext, SinkWriter, WriterContext
from headrace.engine.csv_text import csv_text
from headrace.engine.errors import (
    ConfigurationError,
    NotFoundError,
    PossibleLossError,
    SinkError,
    StorageError,
    TypeMismatchError,
)
from headrace.engine.records import Batch
from headrace.state.filesystem import FileSystem, filesystem_for
from headrace.state.json_text import json_text
from headrace.state.local_filesystem import LocalFileSystem

__all__ = ["FileSink"]

STAGING = ".staging"
_NOTE = "savepoint-"

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 << 20
"""A Parquet row group is written when this much has come together (or at the end of its part): tiny ones make a file
slow to read."""

Compression = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]

_WRITE_ERRORS = (OSError, StorageError, pa.ArrowException)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What all writers of a file sink know."""

    format: Literal["parquet", "csv", "jsonl"]
    location: str
    max_part_bytes: int
    max_part_rows: int | None
    schema: pa.Schema | None = None
    has_header: bool = True
    delimiter: str = ","
    compression: Compression = "snappy"


class FileSink:
    """Writes files into a directory. Made by `parquet`, `csv` or `json_lines`.

    Common arguments of all three:
        path: The directory: a local path or any ``pyarrow.fs`` URI; made if it is not there. A relative path is the
            client's. Files that are there already stay.
        max_part_bytes: A part is closed when it has this many bytes (about), even between checkpoints.
        max_part_rows: A part is closed when it has this many rows; None for no such limit.

    Guarantees: exactly-once with checkpoints: parts appear when the checkpoint that holds them is complete. Without
    checkpoints they appear when the job ends.
    """

    subtasks_are_independent = True
    """No two subtasks ever touch the same file."""

    def __init__(self, settings: _Settings) -> None:
        for name in ("max_part_bytes", "max_part_rows"):
            limit = getattr(settings, name)
            if limit is not None and limit < 1:
                message = f"{name} must be at least 1; got {limit}"
                raise ConfigurationError(message)
        if len(settings.delimiter) != 1:
            message = f"delimiter must be one character; got {settings.delimiter!r}"
            raise ConfigurationError(message)
        self._settings = settings

    @classmethod
    def parquet(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        compression: Compression = "snappy",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
    ) -> FileSink:
        """Write Parquet files.

        Args:
            path: See the class.
            schema: Columns of the files; None takes the records' own. When those change their types (not their names),
                a new part begins.
            compression: ``snappy``, ``zstd``, ``gzip``, ``lz4``, ``brotli`` or ``none``.
            max_part_bytes: See the class.
            max_part_rows: See the class.
        """
        return cls(
            _Settings(
                "parquet",
                absolute_location(path),
                max_part_bytes,
                max_part_rows,
                schema_of(schema),
                compression=compression,
            )
        )

    @classmethod
    def csv(
        cls,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | Mapping[str, Any] | None = None,
        header: bool = True,
        delimiter: str = ",",
        max_part_bytes: int = 128 << 20,
        max_part_rows: int | None = None,
    ) -> FileSink:
        """Write CSV files.

        Columns are the records' keys, or ``f0``, ``f1`` ... for tuples. Null is an empty field, an empty text ``""``.

        Args:
            path: See the class.
            schema: Columns of the files; None takes the records' own, which must keep their names.
            header: Whether each file begins with the columns' names.
            delimiter: One character.
            max_part_bytes: See the class.
            max_part_rows: See the class.
        """
        return cls(
            _Settings(
                "csv", absolute_location(path), max_part_bytes, max_part_rows, schema_of(schema), header, delimiter
            )
        )

    @classmethod
    def json_lines(
        cls, path: str | os.PathLike[str], *, max_part_bytes: int = 128 << 20, max_part_rows: int | None = None
    ) -> FileSink:
        """Write one JSON value per line.

        Dictionaries and dataclasses are objects; lists and tuples are arrays; dates and times ISO 8601 text; durations
        seconds; decimals and UUIDs text; bytes base64 text; enum members their value; sets arrays. JSON knows no
        ``NaN`` and no infinity: they are null, and refused as keys of an object.

        Args:
            path: See the class.
            max_part_bytes: See the class.
            max_part_rows: See the class.
        """
        return cls(_Settings("jsonl", absolute_location(path), max_part_bytes, max_part_rows))

    def create_writer(self) -> SinkWriter:
        """Make the writer of one subtask."""
        return _FileWriter(self._settings)

    def create_committer(self) -> Committer:
        """Make the committer of one subtask."""
        return _FileCommitter(self._settings)


# -------------------------------------------------------------------------------------------------------------- writing


class _FileWriter(SinkWriter):
    """Fills staged parts."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        # The part being filled, and where; None between parts.
        self._part: _Part | None = None
        # Closed parts that no checkpoint holds yet: (staged name, size in bytes, rows).
        self._closed: list[tuple[str, int, int]] = []
        # Counts this attempt's parts.
        self._num_parts = 0
        # Staged names that a savepoint holds and that may not be committed yet.
        self._retained: set[str] = set()
        # None until opened, so that `close` after a failed start has nothing to do.
        self._fs: FileSystem | None = None

    def open(self, context: WriterContext) -> None:
        self._context = context
        location = self._settings.location
        self._attempt = _token(context.job, context.operator, context.attempt)
        fs, self._root = filesystem_for(location)
        self._staging = f"{self._root}/{STAGING}/{_token(context.job, context.operator)}"
        self._note = f"{self._staging}/{_NOTE}{context.subtask:05d}-{self._attempt}.json"
        try:
            _make_directory(fs, self._root)
        except _WRITE_ERRORS as error:
            failure = _failed(context, "cannot use the output directory", location, error)
            raise failure from error
        self._fs = fs

    def write(self, batch: Batch) -> None:
        limit = self._settings.max_part_rows
        while batch.num_rows:
            part = self._part or self._start_part()
            taken = batch.num_rows if limit is None else min(batch.num_rows, limit - part.num_rows)
            piece = batch if taken == batch.num_rows else batch.slice(0, taken)
            try:
                is_taken = part.write(piece)
            except _WRITE_ERRORS as error:
                failure = _failed(self._context, "cannot write", part.path, error)
                raise failure from error
            if not is_taken:
                self._close_part()
                continue
            if part.num_bytes >= self._settings.max_part_bytes or (limit is not None and part.num_rows >= limit):
                self._close_part()
            if taken == batch.num_rows:
                return
            batch = batch.slice(taken, batch.num_rows - taken)

    def prepare(self, checkpoint_id: int) -> list[Any]:
        if self._part is not None:
            self._close_part()
        closed, self._closed = self._closed, []
        subtask = self._context.subtask
        committables = []
        for number, (staged, size, rows) in enumerate(closed, self._num_parts - len(closed)):
            name = f"part-{subtask:05d}-{self._attempt}-{checkpoint_id:05d}-{number:05d}.{self._settings.format}"
            final = f"{self._root}/{name}"
            committables.append(
                {"location": self._settings.location, "staged": staged, "final": final, "size": size, "rows": rows}
            )
        return committables

    def retain(self, committables: list[Any]) -> None:
        assert self._fs is not None
        self._forget_committed()
        self._retained.update(committable["staged"] for committable in committables)
        try:
            self._fs.write_bytes(self._note, json.dumps(sorted(self._retained)).encode())
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "cannot note what a savepoint holds", self._note, error)
            raise failure from error

    def _forget_committed(self) -> None:
        """What is not staged any more has been committed."""
        assert self._fs is not None
        self._retained = {name for name in self._retained if self._fs.exists(name)}

    def close(self) -> None:
        if self._fs is None:
            return
        part, self._part = self._part, None
        doomed = [staged for staged, _, _ in self._closed]
        self._closed = []
        if part is not None:
            with contextlib.suppress(*_WRITE_ERRORS):  # it is thrown away; whatever failed before has been told
                part.abandon()
            doomed.append(part.path)
        if self._retained:
            self._forget_committed()
            doomed += [] if self._retained else [self._note]
        _delete(self._fs, doomed, self._context)
        for directory in (self._staging, f"{self._root}/{STAGING}"):
            _remove_if_empty(self._fs, directory)

    # ------------------------------------------------------------------------------------------------------------ parts
    def _start_part(self) -> _Part:
        assert self._fs is not None
        settings = self._settings
        name = f"{self._staging}/{self._context.subtask:05d}-{self._attempt}-{self._num_parts:05d}.{settings.format}"
        try:
            try:
                stream = self._fs.open_output(name)
            except NotFoundError:
                # Another subtask, closing, removed the empty directory between its making and its use.
                stream = self._fs.open_output(name)
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "cannot begin a file", name, error)
            raise failure from error
        self._part = _PARTS[settings.format](name, stream, settings)
        self._num_parts += 1
        return self._part

    def _close_part(self) -> None:
        part, self._part = self._part, None
        assert part is not None
        try:
            size = part.finish()
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "cannot finish a file", part.path, error)
            raise failure from error
        self._closed.append((part.path, size, part.num_rows))


class _FileCommitter(Committer):
    """Renames staged parts to their final names."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        # What earlier attempts of this job staged and left, as found at the start.
        self._leftovers: list[str] = []
        # Directories that parts were in: those of another job, too, whose checkpoint this job began from.
        self._emptied: set[str] = set()
        # None until opened, so that `close` after a failed start has nothing to do.
        self._fs: FileSystem | None = None

    def open(self, context: CommitterContext) -> None:
        self._context = context
        location = self._settings.location
        try:
            fs, root = filesystem_for(location)
            staging = f"{root}/{STAGING}/{_token(context.job, context.operator)}"
            staged = {path for path, _ in fs.list_files(staging)}
            spared = staged & {name for path in staged for name in _noted(fs, path)}
            self._leftovers = []
            for path in sorted(staged - spared):
                owner = path[len(staging) + 1 :].removeprefix(_NOTE).split("-", 1)[0]
                # Parallelism may have changed: whoever has the old subtask's number, modulo, sees to its leftovers.
                is_mine = owner.isdigit() and int(owner) % context.parallelism == context.subtask
                if is_mine and spared.isdisjoint(_noted(fs, path)):
                    self._leftovers.append(path)
        except _WRITE_ERRORS as error:
            failure = _failed(context, "could not read the output directory", location, error)
            raise failure from error
        self._fs = fs
        self._root = root

    def commit(self, committable: Any) -> None:
        staged, final, size = committable["staged"], committable["final"], committable["size"]
        try:
            fs, _ = filesystem_for(committable["location"])
            try:
                fs.rename(staged, final)
                self._emptied.add(staged.rpartition("/")[0])
            except NotFoundError:
                if fs.exists(final) and fs.size(final) == size:
                    return  # committed before: by an attempt that failed afterwards, or by an old one still running
                message = "prepared output is gone and was never committed: possible loss"
                raise PossibleLossError(message, path=staged, final=final, rows=committable["rows"]) from None
        except _WRITE_ERRORS as error:
            failure = _failed(self._context, "could not commit", final, error)
            raise failure from error

    def abort_leftovers(self) -> None:
        assert self._fs is not None
        _delete(self._fs, self._leftovers, self._context)
        self._leftovers = []

    def close(self) -> None:
        if self._fs is not None:
            for directory in (*sorted(self._emptied), f"{self._root}/{STAGING}"):
                _remove_if_empty(self._fs, directory)


def _delete(fs: FileSystem, paths: list[str], context: WriterContext | CommitterContext) -> None:
    for path in paths:
        try:
            fs.delete(path)
        except _WRITE_ERRORS as error:
            failure = _failed(context, "cannot delete a staged file", path, error)
            raise failure from error


def _failed(context: WriterContext | CommitterContext, what: str, path: str, error: Exception) -> SinkError:
    place = f"{context.subtask + 1}/{context.parallelism}"
    return SinkError(f"{what}: {error}", path=path, operator=context.operator_name, subtask=place)


def _noted(fs: FileSystem, path: str) -> list[str]:
    """The staged names that a note spares; none if the file is no note, or its writer has just removed it."""
    if not path.rpartition("/")[2].startswith(_NOTE):
        return []
    try:
        return [str(name) for name in json.loads(fs.read_bytes(path))]
    except NotFoundError:
        return []


def _make_directory(fs: FileSystem, path: str) -> None:
    """Elsewhere than on a disk directories mean nothing."""
    if isinstance(fs, LocalFileSystem):
        os.makedirs(path, exist_ok=True)


def _remove_if_empty(fs: FileSystem, path: str) -> None:
    if isinstance(fs, LocalFileSystem):
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise


def _token(*parts: str) -> str:
    """Twelve characters that stand for names of any length and alphabet."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


# ---------------------------------------------------------------------------------------------------------------- parts


class _Part(Protocol):
    """One staged file being filled."""

    path: str
    num_rows: int

    def __init__(self, path: str, stream: Any, settings: _Settings) -> None: ...

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
    def __init__(self, path: str, stream: Any, settings: _Settings) -> None:
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
    def __init__(self, path: str, stream: Any, settings: _Settings) -> None:
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
    def __init__(self, path: str, stream: Any, settings: _Settings) -> None:
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


_PARTS: dict[str, type[_Part]] = {"jsonl": _JsonLinesPart, "csv": _CsvPart, "parquet": _ParquetPart}


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
