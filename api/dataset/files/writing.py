"""Files of data sets, written: a partition becomes a part under a temporary name. It blocks; executors call it where
subtasks run.

A part is written into ``_temporary`` of its folder, under one name per attempt; when all parts are there,
`headrace.dataset.files.outputs` gives them their names and removes the rest. So a job that failed, or a subtask that
was run twice, leaves nothing that a reader could take for a result.

Source: Hadoop's ``FileOutputCommitter``; Flink's ``FileOutputFormat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import SinkError, TypeMismatchError, UserFunctionError
from headrace.engine.partitions.wire_records import decode, empty_batch, gathered
from headrace.engine.plan.plan import WriteFiles, record_shape
from headrace.state.files.filesystem import FileSystem, filesystem_for, join_uri

from ...formats.containers.sequence_files import SequenceEncoder
from ...formats.containers.typed_files import batches_of, columns_encoder, columns_in
from ...formats.contract import RecordEncoder
from ...formats.csv_records import CsvEncoder
from ...formats.folders import by_folder
from ...formats.json_lines import JsonEncoder
from ...formats.text import TextEncoder

__all__ = ["SUFFIXES", "TEMPORARY", "of_one_schema", "write_empty", "write_part"]

SUFFIXES = {
    "avro": ".avro", "csv": ".csv", "json": ".json", "orc": ".orc", "parquet": ".parquet", "sequence": ".seq",
    "text": ".txt",
}  # fmt: skip
"""The ending of a part's name, by format."""

_OF_COLUMNS = ("parquet", "orc", "avro")
"""Formats whose files say the types of their columns."""

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
        The names, for `headrace.dataset.files.outputs.commit_output`; none if the partition has no record.

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
        for folder, columns in by_folder(sink.partition_by, whole.columns)
    ]


def _written(sink: WriteFiles, name: str, batches: Iterable[Batch]) -> str:
    fs, path = filesystem_for(join_uri(sink.path, name))
    try:
        with fs.open_output(path) as file:
            _write(sink, file, batches)
    except (TypeMismatchError, UserFunctionError) as error:
        error.context.setdefault("operator", sink.name)
        error.context.setdefault("path", path)
        raise
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
    if schema is None and sink.format in ("csv", "sequence", *_OF_COLUMNS):
        return None
    nothing: list[Batch] = [] if schema is None else [Batch.of_columns(empty_batch(schema))]
    return _written(sink, f"{TEMPORARY}/part-00000-empty{SUFFIXES[sink.format]}", nothing)


def of_one_schema(sink: WriteFiles, parts: list[str]) -> list[str]:
    """Parts of which all have the same columns; those that differ are written again.

    Records without a declared type have the columns and types that the records of each partition show. In Parquet,
    ORC and Avro they become the type that holds all of them (null and int64 are int64, int64 and double are double); in
    CSV only the names count.

    Returns:
        The names of the parts, in the same order.

    Raises:
        TypeMismatchError: If there is no such type, or if CSV files would have different columns.
    """
    if sink.inputs[0].schema is not None or sink.format not in ("csv", *_OF_COLUMNS) or len(parts) < 2:
        return parts
    places = [filesystem_for(join_uri(sink.path, part)) for part in parts]
    schemas = [
        columns_in(sink.format, fs, path) if sink.format in _OF_COLUMNS else _csv_columns(sink, fs, path)
        for fs, path in places
    ]
    hint = "declare the records' type, by output_type or with_schema"
    try:
        common = pa.unify_schemas(schemas, promote_options="permissive")
        if sink.format in _OF_COLUMNS:
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


def _csv_columns(sink: WriteFiles, fs: FileSystem, path: str) -> pa.Schema:
    import pyarrow.csv as pacsv

    parse = pacsv.ParseOptions(delimiter=sink.options.get("delimiter", ","), newlines_in_values=True)
    with fs.open_input(path) as file:
        names = pacsv.open_csv(file, parse_options=parse).schema.names
    has_header = sink.options.get("header", True)
    return pa.schema([(name if has_header else f"f{i}", pa.string()) for i, name in enumerate(names)])


def _rewritten(sink: WriteFiles, part: str, schema: pa.Schema) -> str:
    """A part with other types, and columns of null that it lacks."""
    name = f"{TEMPORARY}/part-{part.split('-')[1]}-unified{SUFFIXES[sink.format]}"
    source_fs, source = filesystem_for(join_uri(sink.path, part))
    target_fs, target = filesystem_for(join_uri(sink.path, name))
    with target_fs.open_output(target) as out:
        encoder = columns_encoder(sink.format, out, sink.options["compression"])
        for batch in batches_of(sink.format, source_fs, source):
            columns = [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            encoder.write(pa.RecordBatch.from_arrays(columns, schema=schema))
        encoder.finish()
    return name


def _write(sink: WriteFiles, file: Any, batches: Iterable[Batch]) -> None:
    options = sink.options
    if sink.format in _OF_COLUMNS:
        whole = columns_encoder(sink.format, file, options["compression"])
        for columns in _columns(sink, batches):
            if not whole.write(columns):
                message = f"records of one partition are of different types: {columns.schema}"
                raise TypeMismatchError(message, hint="declare the records' type, by output_type or with_schema")
        whole.finish()
        return
    encoder: RecordEncoder
    if sink.format == "csv":
        has_header = options.get("header", record_shape(sink.inputs[0].schema) != "tuple")
        encoder = CsvEncoder(options.get("delimiter", ","), has_header=has_header)
        batches = map(Batch.of_columns, _columns(sink, batches))
    elif sink.format == "sequence":
        encoder = SequenceEncoder(options["settings"], sink.inputs[0].schema)
    else:
        encoder = JsonEncoder() if sink.format == "json" else TextEncoder(options.get("encoding", "utf-8"))
    for batch in batches:
        file.write(encoder.encode(batch))
    file.write(encoder.finish())


def _columns(sink: WriteFiles, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
    """Batches of one schema: the declared one, or that of all records of the partition."""
    schema = sink.inputs[0].schema
    if schema is not None:
        yield from (batch.columns for batch in batches)
    else:
        yield gathered(batches, None).columns
