"""Files of data sets: reading a split of a source, writing a partition of a sink. Blocking; executors call it where
subtasks run.

All executors read and write by this code, so that a file means the same records everywhere. A split is a file, or some
row groups of a Parquet file. Columns and the condition that were pushed into a source are applied here, before records
leave the reader.

A sink's part is written under a temporary name into ``_temporary`` of its folder, one name per attempt; when all parts
are there, `headrace.engine.partitions.output_folders` gives them their names and removes the rest. So a job that
failed, or a subtask that was run twice, leaves nothing that a reader could take for a result.

Source: Hadoop's ``FileOutputCommitter``; Flink's ``FileInputFormat``, ``FileOutputFormat``.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.state.files.filesystem import filesystem_for, join_uri
from headrace.state.values.json_text import json_text

from ..columns.csv_text import csv_text
from ..columns.expressions import Expression
from ..columns.grouping import Groups
from ..columns.records import Batch
from ..errors import HeadraceError, SinkError, SourceError, TypeMismatchError
from ..plan.plan import FileSource, WriteFiles, row_kind
from .wire import MAX_BATCH_ROWS, conform, decode, empty_batch, gathered

__all__ = [
    "SUFFIXES",
    "TEMPORARY",
    "FileSplit",
    "OpenFile",
    "of_one_schema",
    "read_split",
    "splits_of",
    "write_empty",
    "write_part",
]

_ROW_GROUPS_BYTES = 64 << 20
"""Row groups of a Parquet file are put together into splits of about this size."""

_BLOCK_BYTES = 4 << 20


class FileSplit(NamedTuple):
    """A part of a source that one subtask reads.

    Attributes:
        path: The file.
        row_groups: Of a Parquet file; None for the whole file.
        folder_values: See `FileSource`.
    """

    path: str
    row_groups: tuple[int, ...] | None = None
    folder_values: tuple[Any, ...] = ()


# ------------------------------------------------------------------------------------------------------------- reading


def splits_of(source: FileSource) -> list[FileSplit]:
    """All splits of a source; without files whose folders say that the condition is not true.

    Raises:
        SourceError: If a file cannot be read.
    """
    files = _files_wanted(source)
    if source.format != "parquet":
        return [FileSplit(path, None, values) for path, values in files]
    import pyarrow.parquet as pq

    splits = []
    for path, values in files:
        with OpenFile(path, source.format) as file:
            metadata = pq.ParquetFile(file.handle).metadata
            groups: list[int] = []
            size = 0
            for index in range(metadata.num_row_groups):
                groups.append(index)
                size += metadata.row_group(index).total_byte_size
                if size >= _ROW_GROUPS_BYTES:
                    splits.append(FileSplit(path, tuple(groups), values))
                    groups, size = [], 0
            if groups:
                splits.append(FileSplit(path, tuple(groups), values))
    return splits


def _files_wanted(source: FileSource) -> list[tuple[str, tuple[Any, ...]]]:
    if not source.folder_columns:
        return [(path, ()) for path in source.paths]
    files = list(zip(source.paths, source.folder_values, strict=True))
    schema = pa.schema([source.file_schema.field(name) for name in source.folder_columns])
    for condition in _decided_first(source.condition, set(schema.names)):
        columns = [pa.array(column, field.type) for column, field in zip(_columns_of(files), schema, strict=True)]
        mask = condition.evaluate(pa.RecordBatch.from_arrays(columns, schema=schema)).to_pylist()
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


def read_split(source: FileSource, split: FileSplit) -> Iterator[pa.RecordBatch]:
    """The records of a split, as wire batches of the source's schema.

    Raises:
        SourceError: If the file cannot be read or decoded.
    """
    with OpenFile(split.path, source.format) as file:
        needed = _columns_needed(source)
        own = _in_files(source, needed)
        if source.format == "csv" and not file.has_records(has_header=source.options.get("column_names") is None):
            return
        schema = source.file_schema
        if needed is not None:
            schema = pa.schema([schema.field(name) for name in needed], schema.metadata)
        inside = replace(source, file_schema=_without_folders(source)) if source.folder_columns else source
        for batch in _READERS[source.format](inside, split, file.handle, own):
            if source.folder_columns:
                batch = _with_folders(source, split, batch, schema)
            # Its types first: the condition is about the records' types, which another file may not have.
            chosen = conform(Batch.of_columns(batch), schema).columns
            if source.condition is not None:
                mask = source.condition.evaluate(chosen)
                if pa.types.is_null(mask.type):
                    continue
                if not pa.types.is_boolean(mask.type):
                    message = f"a filter needs a condition that is true or false; {source.condition!r} is {mask.type}"
                    raise TypeMismatchError(message)
                chosen = chosen.filter(mask)
            if source.columns is not None:
                chosen = chosen.select(list(source.columns))
            if chosen.num_rows:
                yield conform(Batch.of_columns(chosen), source.schema).columns


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
    """The batch with the columns that its folders say, and without those that nobody needs."""
    known = dict(zip(source.folder_columns, split.folder_values, strict=True))
    arrays = []
    for field in schema:
        if field.name in known:
            arrays.append(pa.repeat(pa.scalar(known[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(field.name))
    fields = [pa.field(field.name, array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_HEADER_BYTES = 64 << 10


class OpenFile:
    """A file of a source while it is read, decompressed if its name says so; every failure is a SourceError that names
    it.

    Args:
        path: The file.
        form: Its format. Parquet compresses within.
    """

    def __init__(self, path: str, form: str) -> None:
        self._path = path
        name = path.partition("?")[0] if "://" in path else path
        ending = name[name.rfind(".") :].lower()
        self._compression = None if form == "parquet" else _COMPRESSIONS.get(ending)

    def __enter__(self) -> OpenFile:
        self._open()
        return self

    def _open(self) -> None:
        fs, path = filesystem_for(self._path)
        self._file: BinaryIO = fs.open_input(path)
        self.handle: Any = self._file
        if self._compression is not None:
            self.handle = pa.CompressedInputStream(self._file, self._compression)

    def _close(self) -> None:
        if self.handle is not self._file:
            self.handle.close()
        self._file.close()

    def has_records(self, *, has_header: bool) -> bool:
        """Whether a CSV file may hold records, which Arrow's reader wants; called before it is read."""
        head = b""
        while len(head) < _HEADER_BYTES and (more := self.handle.read(_HEADER_BYTES - len(head))):
            head += more
        if self._compression is None:
            self._file.seek(0)
        else:
            self._close()
            self._open()
        if len(head) >= _HEADER_BYTES:
            return True
        lines = head.removeprefix(codecs.BOM_UTF8).strip(b"\r\n")
        return bool(lines) and not (has_header and b"\n" not in lines and b"\r" not in lines)

    def __exit__(self, kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._close()
        if isinstance(error, HeadraceError):
            error.context.setdefault("path", self._path)
        elif isinstance(error, (pa.ArrowException, OSError, ValueError)):
            message = f"a file cannot be read: {error}"
            raise SourceError(message, path=self._path) from error


def _read_text(
    source: FileSource, _split: FileSplit, file: BinaryIO, _needed: list[str] | None
) -> Iterator[pa.RecordBatch]:
    decoder = codecs.getincrementaldecoder(source.options.get("encoding", "utf-8"))()
    left = ""
    while True:
        block = file.read(_BLOCK_BYTES)
        lines = (left + decoder.decode(block, final=not block)).split("\n")
        left = lines.pop() if block else ""
        if not block and lines and not lines[-1]:
            lines.pop()  # the end of the last line is not the beginning of another
        texts = [line.removesuffix("\r") for line in lines]
        if texts:
            yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=source.file_schema)
        if not block:
            return


def _read_csv(
    source: FileSource, _split: FileSplit, file: BinaryIO, needed: list[str] | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.csv as pacsv

    options = source.options
    names = options.get("column_names")
    convert: dict[str, Any] = {
        "column_types": source.file_schema,
        "include_columns": needed or source.file_schema.names,
    }
    if options.get("null_values") is not None:
        convert["null_values"] = list(options["null_values"])
    yield from pacsv.open_csv(
        file,
        pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=None if names is None else names),
        pacsv.ParseOptions(delimiter=options.get("delimiter", ","), newlines_in_values=True),
        pacsv.ConvertOptions(**convert),
    )


def _read_json(
    source: FileSource, _split: FileSplit, file: BinaryIO, needed: list[str] | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.json as pajson

    schema = source.file_schema
    if needed is not None:
        schema = pa.schema([schema.field(name) for name in needed])
    data = file.read().removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        return
    table = pajson.read_json(
        pa.BufferReader(data),
        pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    yield from table.select(schema.names).to_batches(max_chunksize=MAX_BATCH_ROWS)


def _read_parquet(
    source: FileSource, split: FileSplit, file: BinaryIO, needed: list[str] | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    groups = None if split.row_groups is None else list(split.row_groups)
    parquet = pq.ParquetFile(file)
    wanted = source.file_schema.names if needed is None else needed
    there = [name for name in wanted if name in parquet.schema_arrow.names]
    if source.is_uniform and len(there) < len(wanted):
        missing = next(name for name in wanted if name not in there)
        message = f"column {missing!r} is not in the file; its columns are {parquet.schema_arrow.names}"
        raise SourceError(message, hint="the file was another one when the program was written")
    for batch in parquet.iter_batches(MAX_BATCH_ROWS, row_groups=groups, columns=there):
        # Columns come in the file's order, whatever was asked for; the names decide.
        yield batch.select(there) if source.is_uniform else _as_declared(batch, source.file_schema, wanted)


def _as_declared(batch: pa.RecordBatch, schema: pa.Schema, names: list[str]) -> pa.RecordBatch:
    """The columns of a file in the types of the source; null where it has none."""
    arrays = []
    for name in names:
        kind = schema.field(name).type
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
    return pa.RecordBatch.from_arrays(arrays, names=names)


_READERS = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet, "text": _read_text}


# ------------------------------------------------------------------------------------------------------------- writing

SUFFIXES = {"csv": ".csv", "json": ".json", "parquet": ".parquet", "text": ".txt"}
"""The ending of a part's name, by format."""

TEMPORARY = "_temporary"
"""The folder in a sink's folder where parts are until all are written."""


def write_part(sink: WriteFiles, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Write one partition under temporary names: one file, or one for each folder.

    Args:
        sink: The sink.
        partition: Index of the partition.
        attempt: A text that is different for every try.
        batches: Wire batches of the sink's input.

    Returns:
        The names, for `output_folders.commit_output`; none if the partition has no record.

    Raises:
        SinkError: If it cannot be written. TypeMismatchError: If records are not of a form that the format can hold.
    """
    schema = sink.inputs[0].schema
    decoded = (decode(batch, schema) for batch in batches if batch.num_rows)
    first = next(decoded, None)
    if first is None:
        return []
    name = f"part-{partition:05d}-{attempt}{SUFFIXES[sink.format]}"
    if not sink.partition_by:
        return [_written(sink, f"{TEMPORARY}/{name}", _chained(first, decoded))]
    whole = gathered(_chained(first, decoded), schema)
    return [
        _written(sink, f"{TEMPORARY}/{folder}/{name}", [Batch.of_columns(columns)])
        for folder, columns in _by_folder(sink.partition_by, whole.columns)
    ]


def _by_folder(names: tuple[str, ...], columns: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The records of each folder, without the columns that its name says."""
    groups = Groups.of([columns.column(name) for name in names])
    by_group = np.argsort(groups.codes, kind="stable")
    ends = np.cumsum(np.bincount(groups.codes, minlength=groups.num_codes)[groups.occupied])
    keys = [groups.take_keys(columns.column(name)).to_pylist() for name in names]
    kept = columns.select([name for name in columns.schema.names if name not in names])
    start = 0
    for values, end in zip(zip(*keys, strict=True), ends.tolist(), strict=True):
        folder = "/".join(f"{_escaped(name)}={_folder_text(v)}" for name, v in zip(names, values, strict=True))
        yield folder, kept.take(pa.array(by_group[start:end]))
        start = end


def _folder_text(value: Any) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else _escaped(str(value))


def _escaped(text: str) -> str:
    """The text as a name of a folder: percent-encoded, as in URIs."""
    return "".join(chr(byte) if chr(byte) in _SAFE else f"%{byte:02X}" for byte in text.encode())


_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


def _written(sink: WriteFiles, name: str, batches: Iterable[Batch]) -> str:
    fs, path = filesystem_for(join_uri(sink.path, name))
    try:
        with fs.open_output(path) as file:
            _WRITERS[sink.format](sink, file, iter(batches))
    except (pa.ArrowException, OSError) as error:
        message = f"a part cannot be written: {error}"
        raise SinkError(message, operator=sink.name, path=path) from error
    return name


def _chained(first: Batch, rest: Iterable[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def write_empty(sink: WriteFiles) -> str | None:
    """Write a part without records, under a temporary name.

    Returns:
        Its name, for `of_one_schema`; None if the format needs columns and the records have no type.
    """
    schema = sink.inputs[0].schema
    if schema is None and sink.format in ("csv", "parquet"):
        return None
    nothing: list[Batch] = [] if schema is None else [Batch.of_columns(empty_batch(schema))]
    return _written(sink, f"{TEMPORARY}/part-00000-empty{SUFFIXES[sink.format]}", nothing)


def of_one_schema(sink: WriteFiles, parts: list[str]) -> list[str]:
    """Parts of which all have the same columns; those that differ are written again.

    Records without a declared type have the columns and types that the records of each partition show. In Parquet they
    become the type that holds all of them (null and int64 are int64, int64 and double are double); in CSV only the
    names count.

    Returns:
        The names of the parts, in the same order.

    Raises:
        TypeMismatchError: If there is no such type, or if CSV files would have different columns.
    """
    if sink.inputs[0].schema is not None or sink.format not in ("csv", "parquet") or len(parts) < 2:
        return parts
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    places = [filesystem_for(join_uri(sink.path, part)) for part in parts]
    schemas = []
    for fs, path in places:
        with fs.open_input(path) as file:
            if sink.format == "parquet":
                schemas.append(pq.read_schema(file))
            else:
                parse = pacsv.ParseOptions(delimiter=sink.options.get("delimiter", ","), newlines_in_values=True)
                names = pacsv.open_csv(file, parse_options=parse).schema.names
                has_header = sink.options.get("header", True)
                schemas.append(pa.schema([(n if has_header else f"f{i}", pa.string()) for i, n in enumerate(names)]))
    hint = "declare the records' type, by output_type or with_schema"
    try:
        common = pa.unify_schemas(schemas, promote_options="permissive")
        if sink.format == "parquet":
            return [
                part if schema.equals(common) else _rewritten(sink, part, common)
                for part, schema in zip(parts, schemas, strict=True)
            ]
    except pa.ArrowException as error:
        message = f"partitions have columns of different types: {error}"
        raise TypeMismatchError(message, operator=sink.name, path=sink.path, hint=hint) from error
    if any(schema.names != schemas[0].names for schema in schemas):
        message = f"partitions have different columns, and csv files of one folder cannot: {common.names}"
        raise TypeMismatchError(message, operator=sink.name, path=sink.path, hint=hint)
    return parts


def _rewritten(sink: WriteFiles, part: str, schema: pa.Schema) -> str:
    """A Parquet part with other types, and columns of null that it lacks."""
    import pyarrow.parquet as pq

    name = f"{TEMPORARY}/part-{part.split('-')[1]}-unified{SUFFIXES[sink.format]}"
    source_fs, source = filesystem_for(join_uri(sink.path, part))
    target_fs, target = filesystem_for(join_uri(sink.path, name))
    compression = sink.options.get("compression", "snappy")
    with (
        source_fs.open_input(source) as file,
        target_fs.open_output(target) as out,
        pq.ParquetWriter(out, schema, compression=compression) as writer,
    ):
        for batch in pq.ParquetFile(file).iter_batches(MAX_BATCH_ROWS):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return name


def _write_text(sink: WriteFiles, file: Any, batches: Iterator[Batch]) -> None:
    encoding = sink.options.get("encoding", "utf-8")
    for batch in batches:
        file.write("".join(f"{row}\n" for row in batch.rows).encode(encoding))


def _write_json(sink: WriteFiles, file: Any, batches: Iterator[Batch]) -> None:
    for batch in batches:
        try:
            lines = list(map(json_text, batch.rows))
        except TypeMismatchError as error:
            error.context.setdefault("operator", sink.name)
            raise
        file.write("".join(f"{line}\n" for line in lines).encode())


def _columns(sink: WriteFiles, batches: Iterator[Batch]) -> Iterator[pa.RecordBatch]:
    """Batches of one schema: the declared one, or that of all records of the partition."""
    schema = sink.inputs[0].schema
    if schema is not None:
        yield from (batch.columns for batch in batches)
    else:
        yield gathered(batches, None).columns


def _write_csv(sink: WriteFiles, file: Any, batches: Iterator[Batch]) -> None:
    has_header = sink.options.get("header", row_kind(sink.inputs[0].schema) != "tuple")
    for number, columns in enumerate(_columns(sink, batches)):
        is_first = number == 0
        file.write(csv_text(columns, header=has_header and is_first, delimiter=sink.options.get("delimiter", ",")))


def _write_parquet(sink: WriteFiles, file: Any, batches: Iterator[Batch]) -> None:
    import pyarrow.parquet as pq

    writer = None
    for columns in _columns(sink, batches):
        if writer is None:
            writer = pq.ParquetWriter(file, columns.schema, compression=sink.options.get("compression", "snappy"))
        writer.write_batch(columns)
    if writer is not None:
        writer.close()


_WRITERS = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet, "text": _write_text}
