"""Files of data sets, read: how a source is cut into splits, and a split becomes records. It blocks; executors call it
where subtasks run.

The executor in process and Spark's Python processes read by this code, so that a file means the same records
everywhere; Spark reads by itself only Parquet whose types are all its own. A split is a file, some row groups of a
Parquet file, a stripe of an ORC file, or a range of bytes of a SequenceFile or a file of Avro. Columns and the
condition that were pushed into a source are applied here, before records leave the reader.

Source: Flink's ``FileInputFormat``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.engine.columns.conditions import where_true
from headrace.engine.columns.expressions import Expression
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError, SourceError, StorageError
from headrace.engine.partitions.wire_records import conform
from headrace.engine.plan.plan import FileSource
from headrace.state.files.filesystem import filesystem_for

from ...formats.blocks import READ_ERRORS, RecordFile
from ...formats.containers.orc_files import open_orc, stripe_batches
from ...formats.containers.typed_files import CONTAINERS, container_records_of
from ...formats.contract import BYTE_ORDER_MARK, RecordFormat, Rejected, decode_all
from ...formats.csv_records import read_csv_stream
from ...formats.json_lines import JsonColumns
from ...formats.text import TextLines

__all__ = ["FileSplit", "FilesOfSource", "Reading"]

_ROW_GROUPS_BYTES = 64 << 20
"""Row groups of a Parquet file are put together into splits of about this size."""


_RANGE_BYTES = 64 << 20
"""SequenceFiles and files of Avro are cut into splits of this size."""

_HEADER_BYTES = 64 << 10
"""How much of a CSV file is looked at to see whether it has a record, which Arrow's reader wants."""


class FileSplit(NamedTuple):
    """A part of a source that one subtask reads.

    Attributes:
        path: The file.
        row_groups: Of a Parquet file, or stripes of an ORC file; None for the whole file.
        folder_values: See `FileSource`.
        byte_range: Of a SequenceFile or a file of Avro: where the split begins, and where the next one does.
    """

    path: str
    row_groups: tuple[int, ...] | None = None
    folder_values: tuple[Any, ...] = ()
    byte_range: tuple[int, int] | None = None


class FilesOfSource:
    """The reader of the sources of files; see `headrace.engine.plan.source_sink_nodes.FileReader`."""

    def splits(self, source: FileSource) -> list[FileSplit]:
        """Return all splits of a source; without files whose folders say that the condition is not true.

        Raises:
            SourceError: If a file cannot be read.
        """
        files = _files_wanted(source)
        if source.format == "parquet":
            return [split for path, values in files for split in _parquet_splits(path, values)]
        if source.format == "orc":
            return [split for path, values in files for split in _stripes(path, values)]
        if source.format in CONTAINERS:
            return [split for path, values in files for split in _ranges(path, values)]
        return [FileSplit(path, None, values) for path, values in files]

    def read(self, source: FileSource, split: FileSplit) -> Iterator[pa.RecordBatch]:
        """Yield the records of a split, as wire batches of the source's schema.

        Raises:
            SourceError: If the file cannot be read or decoded.
        """
        needed = _columns_needed(source)
        schema = source.file_schema
        if needed is not None:
            schema = pa.schema([schema.field(name) for name in needed], schema.metadata)
        with Reading(split.path):
            for batch in _batches(source, split, _in_files(source, needed)):
                if source.folder_columns:
                    batch = _with_folders(source, split, batch, schema)
                # Its types first: the condition is about the records' types, which another file may not have.
                chosen = conform(Batch.of_columns(batch), schema).columns
                if source.condition is not None:
                    chosen = chosen.filter(pa.array(where_true(source.condition, chosen)))
                if source.columns is not None:
                    chosen = chosen.select(list(source.columns))
                if chosen.num_rows:
                    yield conform(Batch.of_columns(chosen), source.schema).columns


class Reading:
    """Turns what is raised while a file is read into a SourceError that names it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, HeadraceError) and not isinstance(error, StorageError):
            error.context.setdefault("path", self._path)
        elif isinstance(error, (*READ_ERRORS, ValueError)):
            message = f"a file cannot be read: {error}"
            raise SourceError(message, path=self._path) from error


def _parquet_splits(path: str, folder_values: tuple[Any, ...]) -> Iterator[FileSplit]:
    from ...formats.containers.parquet_files import open_parquet

    fs, inside = filesystem_for(path)
    with Reading(path), fs.open_input(inside) as file, open_parquet(file) as parquet:
        groups: list[int] = []
        size = 0
        for index in range(parquet.metadata.num_row_groups):
            groups.append(index)
            size += parquet.metadata.row_group(index).total_byte_size
            if size >= _ROW_GROUPS_BYTES:
                yield FileSplit(path, tuple(groups), folder_values)
                groups, size = [], 0
        if groups:
            yield FileSplit(path, tuple(groups), folder_values)


def _stripes(path: str, folder_values: tuple[Any, ...]) -> Iterator[FileSplit]:
    fs, inside = filesystem_for(path)
    with Reading(path), fs.open_input(inside) as file:
        count = open_orc(file).nstripes
    for stripe in range(count):
        yield FileSplit(path, (stripe,), folder_values)


def _ranges(path: str, folder_values: tuple[Any, ...]) -> Iterator[FileSplit]:
    fs, inside = filesystem_for(path)
    with Reading(path):
        size = fs.size(inside)
    for start in range(0, size, _RANGE_BYTES):
        yield FileSplit(path, None, folder_values, (start, min(start + _RANGE_BYTES, size)))


def _files_wanted(source: FileSource) -> list[tuple[str, tuple[Any, ...]]]:
    if not source.folder_columns:
        return [(path, ()) for path in source.paths]
    files = list(zip(source.paths, source.folder_values, strict=True))
    schema = pa.schema([source.file_schema.field(name) for name in source.folder_columns])
    for condition in _decided_first(source.condition, set(schema.names)):
        columns = [pa.array(column, field.type) for column, field in zip(_columns_of(files), schema, strict=True)]
        mask = where_true(condition, pa.RecordBatch.from_arrays(columns, schema=schema))
        files = [file for file, is_wanted in zip(files, mask, strict=True) if is_wanted]
        if not files:
            break
    return files


def _columns_of(files: list[tuple[str, tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return list(zip(*(values for _path, values in files), strict=True))


def _decided_first(condition: Expression | None, names: set[str]) -> list[Expression]:
    """The conditions over columns of folders that are looked at before all others: a file may be left out by them."""
    if condition is None:
        return []
    if condition.columns_used() <= names:
        return [condition]
    if condition.structure[0] == "case":
        # What the optimiser makes of filters behind each other: the first one guards the others.
        return _decided_first(condition.children[0], names)
    return []


def _columns_needed(source: FileSource) -> list[str] | None:
    """Columns to decode, in the file's order; None for all."""
    if source.columns is None:
        return None
    wanted = set(source.columns) | (source.condition.columns_used() if source.condition is not None else set())
    return [name for name in source.file_schema.names if name in wanted]


def _without_folders(source: FileSource) -> pa.Schema:
    kept = [field for field in source.file_schema if field.name not in source.folder_columns]
    return pa.schema(kept, source.file_schema.metadata)


def _in_files(source: FileSource, needed: list[str] | None) -> list[str] | None:
    """Those of the needed columns that files have; one at least, to count records by."""
    if needed is None:
        return None
    own = _without_folders(source).names
    return [name for name in needed if name in own] or own[:1]


def _with_folders(source: FileSource, split: FileSplit, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns that its folders say, and without those that are not needed."""
    known = dict(zip(source.folder_columns, split.folder_values, strict=True))
    arrays = []
    for field in schema:
        if field.name in known:
            arrays.append(pa.repeat(pa.scalar(known[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(field.name))
    fields = [pa.field(field.name, array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _batches(source: FileSource, split: FileSplit, own: list[str] | None) -> Iterator[pa.RecordBatch]:
    """The records of a split, in columns that the file has itself; None for all of these."""
    schema = _without_folders(source)
    if own is not None:
        schema = pa.schema([schema.field(name) for name in own])
    if source.format == "parquet":
        yield from _parquet_batches(source, split, schema)
        return
    if source.format == "csv":
        yield from _csv_batches(source, split, schema)
        return
    if source.format == "orc":
        yield from _orc_batches(source, split, schema)
        return
    if source.format in CONTAINERS:
        yield from _contained_batches(source, split, schema)
        return
    fs, inside = filesystem_for(split.path)
    with closing(RecordFile(fs, inside)) as file:
        form, byte, line = _format_of(source, file, schema)
        file.open_at(byte)
        while block := file.block(form.cut):
            yield from _decoded(form, block, line)
            line += form.num_lines(block)


def _contained_batches(source: FileSource, split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records behind the marks that are in the range of a split."""
    fs, inside = filesystem_for(split.path)
    with closing(RecordFile(fs, inside, is_compressed=False)) as file:
        form = container_records_of(source.format, file)
        start, end = split.byte_range or (0, None)
        byte = form.first_byte if start <= form.first_byte else file.first_line_from(start, form.line_end)
        file.open_at(byte)
        while block := file.block_between_marks(form, byte, end):
            for piece in form.pieces(block):
                if isinstance(piece, Rejected):
                    message = f"a file cannot be read: {piece.cause}"
                    raise SourceError(message, position=f"byte {byte + piece.byte_offset}")
                yield _in_schema(source, piece.columns, schema)
            byte += len(block)


def _decoded(form: RecordFormat, block: bytes, line: int) -> Iterator[pa.RecordBatch]:
    """The records of a block, which begins with a line of this number."""
    try:
        for piece in decode_all(form, block):
            if isinstance(piece, Rejected):
                message = f"a file cannot be read: {piece.cause}"
                raise SourceError(message, position=f"line {line + piece.line_offset}")
            if piece.num_rows:
                yield piece.columns
    except pa.ArrowException as error:  # no record's fault, as a type that the parser does not know
        message = f"a file cannot be read: {error}"
        raise SourceError(message, position=f"line {line}") from error


def _format_of(source: FileSource, file: RecordFile, schema: pa.Schema) -> tuple[RecordFormat, int, int]:
    """How the records of a file of text are decoded, and byte and line of the first one."""
    encoding = source.options.get("encoding", "utf-8")
    form = JsonColumns(schema) if source.format == "json" else TextLines(schema, encoding)
    return form, file.first_byte(encoding), 1


def _csv_batches(source: FileSource, split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A file that is read from its beginning to its end: Arrow's reader itself finds where records end."""
    options = source.options
    names = options.get("column_names")
    fs, inside = filesystem_for(split.path)
    with closing(RecordFile(fs, inside)) as file:
        file.open_at(0)
        head = file.beginning(_HEADER_BYTES)
        lines = head.removeprefix(BYTE_ORDER_MARK).strip(b"\r\n")
        has_line_end = b"\n" in lines or b"\r" in lines or len(head) == _HEADER_BYTES
        if not lines or (names is None and not has_line_end):
            return
        file.open_at(0)
        yield from read_csv_stream(
            file.stream, schema, names=names, delimiter=options.get("delimiter", ","),
            null_values=options.get("null_values"),
        )  # fmt: skip


def _parquet_batches(source: FileSource, split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from ...formats.containers.parquet_files import int96_unit_of, open_parquet, row_group_batches

    fs, inside = filesystem_for(split.path)
    unit = int96_unit_of(schema)
    with fs.open_input(inside) as file, open_parquet(file, unit) as parquet:
        there = _columns_there(source, schema, parquet.schema_arrow.names)
        groups = range(parquet.metadata.num_row_groups) if split.row_groups is None else split.row_groups
        for batch in row_group_batches(parquet, groups, there):
            yield _in_schema(source, batch, schema)


def _orc_batches(source: FileSource, split: FileSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    fs, inside = filesystem_for(split.path)
    with fs.open_input(inside) as file:
        stripes = open_orc(file)
        there = _columns_there(source, schema, stripes.schema.names)
        for batch in stripe_batches(stripes, split.row_groups or range(stripes.nstripes), there):
            yield _in_schema(source, batch, schema)


def _columns_there(source: FileSource, schema: pa.Schema, names: list[str]) -> list[str]:
    """Those of the columns that a file has; all of them, where all files are alike."""
    there = [name for name in schema.names if name in names]
    if source.is_uniform and len(there) < len(schema.names):
        missing = next(name for name in schema.names if name not in there)
        message = f"column {missing!r} is not in the file; its columns are {names}"
        raise SourceError(message, hint="the file was another one when the program was written")
    return there


def _in_schema(source: FileSource, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that are wanted. They come in the file's order, whatever was asked for; the names decide."""
    if not source.is_uniform:
        return _as_declared(batch, schema)
    _columns_there(source, schema, batch.schema.names)
    return batch.select(schema.names)


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a file in the types of the source; null where it has none."""
    if not schema.names:
        return batch.select([])  # folders say all that is asked for; the file says how many records there are
    arrays = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, kind))
            continue
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind):
            arrays.append(column)  # zones are looked at with all other records of a declared type
            continue
        try:
            arrays.append(column.cast(kind))
        except pa.ArrowException as error:
            message = f"column {name!r} of type {column.type} does not fit {kind}: {error}"
            raise SourceError(message, hint="declare a type that holds the values of all files") from error
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)
