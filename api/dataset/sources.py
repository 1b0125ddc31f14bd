"""What programs of data sets begin with: collections, tables, frames, files and snapshots.

Each method writes down a source of the plan; of files it looks at some, for their columns. Files are read when the plan
runs, by `headrace.dataset.files.reading`.

Source: the sources of Flink's ``ExecutionEnvironment``; PyFlink's names.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.errors import ProgramError, SourceError
from headrace.engine.partitions.wire_records import conform, table_of_rows
from headrace.engine.plan.plan import FileSource, Node, SequenceSource, TableSource, record_shape

from ..arguments.places import absolute_place
from ..formats.text import encoding_named
from .dataset import DataSet
from .file_types import (
    merged_type,
    plain_schema,
    refuse_doubled,
    require_one_type,
    types_in,
)  # fmt: skip
from .files.inputs import FolderColumns, InputFile, Paths, csv_headers, files_at, first_beginning, folder_columns
from .files.reading import FilesOfSource, Reading
from .record_types import declared_schema, schema_of_rows, schema_with_kind

if TYPE_CHECKING:
    from ..jobs.snapshots import Snapshot

__all__ = ["DataSetSources"]

_Record = TypeVar("_Record")


class DataSetSources(ABC):
    """The methods of an environment that begin a program."""

    @abstractmethod
    def new_id(self) -> int:
        """Return an id for the next node."""

    @abstractmethod
    def _data_set(self, node: Node) -> DataSet:
        """A data set of this environment that a node gives."""

    @overload
    def from_collection(self, collection: Iterable[_Record], type_info: None = None) -> DataSet[_Record]: ...

    @overload
    def from_collection(self, collection: Any, type_info: Any = None) -> DataSet[Any]: ...

    def from_collection(self, collection: Any, type_info: Any = None) -> DataSet[Any]:
        """Return the records of a collection, read at once.

        Args:
            collection: Finite. An Arrow table or a pandas data frame is read as columns.
            type_info: The records' type; None for the type they evidently have (flat dicts of the same fields, tuples
                of the same length, or values, of one plain type each), else they are any Python objects.
        """
        if isinstance(collection, (pa.Table, pa.RecordBatch)):
            return self.from_arrow(collection, type_info)
        if _is_data_frame(collection):
            return self.from_pandas(collection, type_info)
        if isinstance(collection, (str, bytes, Mapping)):
            message = f"a collection of records is needed; got {type(collection).__name__}"
            raise ProgramError(message, hint="wrap it in a list")
        rows = list(collection)
        schema = declared_schema(type_info) if type_info is not None else schema_of_rows(rows)
        return self._source(TableSource, "collection", schema, table=table_of_rows(rows, schema))

    @overload
    def from_elements(self, *elements: _Record, type_info: None = None) -> DataSet[_Record]: ...

    @overload
    def from_elements(self, *elements: Any, type_info: Any) -> DataSet[Any]: ...

    def from_elements(self, *elements: Any, type_info: Any = None) -> DataSet[Any]:
        """Make a data set of the given records."""
        return self.from_collection(elements, type_info)

    def generate_sequence(self, start: int, end: int) -> DataSet[int]:
        """Return the integers from ``start`` to ``end``, both included."""
        for what, value in (("start", start), ("end", end)):
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
                message = f"{what} must be an integer of 64 bits; got {value!r}"
                raise ProgramError(message)
        if end - start + 1 >= 2**63:
            message = f"a sequence has fewer than 2**63 integers; {start} to {end} are {end - start + 1}"
            raise ProgramError(message)
        schema = schema_with_kind([pa.field("value", pa.int64())], "value")
        return self._source(SequenceSource, f"sequence {start} to {end}", schema, start=start, end=end)

    def from_arrow(self, table: Any, type_info: Any = None) -> DataSet[Any]:
        """Return the records of an Arrow table, batch or batch reader; as dicts, if its schema says nothing else."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        elif hasattr(table, "read_all"):
            table = table.read_all()
        if not isinstance(table, pa.Table):
            message = f"an Arrow table is needed; got {type(table).__name__}"
            raise ProgramError(message)
        table = _plain(table)
        schema = declared_schema(type_info) if type_info is not None else table.schema
        if schema is None:
            rows = table.to_pylist()
            return self._source(TableSource, "table", None, table=table_of_rows(rows, None))
        if schema is not table.schema:
            batches = [conform(Batch.of_columns(batch), schema).columns for batch in table.to_batches()]
            table = pa.Table.from_batches(batches, schema)
        return self._source(TableSource, "table", schema, table=table)

    def from_pandas(self, frame: Any, type_info: Any = None) -> DataSet[Any]:
        """Return the records of a pandas data frame, without its index; NaN is null, also in columns of objects."""
        if not _is_data_frame(frame):
            message = f"a pandas data frame is needed; got {type(frame).__name__}"
            raise ProgramError(message)
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return self.from_arrow(table.replace_schema_metadata(None), type_info)

    def from_snapshot(
        self, path: str | os.PathLike[str] | Snapshot, uid: str, state_name: str, **options: Any
    ) -> DataSet:
        """Read a state in a checkpoint or savepoint at once: a record per value, list element or map entry.

        Neither the job nor its program is needed, and none of its code is run.

        Args:
            path: As of `Snapshot.open`, or an open snapshot, which stays open. A job that is running takes new
                checkpoints and deletes old ones: open its folder once, and read all states of that snapshot, where
                they have to belong together.
            uid: The operator's uid or name.
            state_name: The state's name.
            **options: As of `Snapshot.read_batches`: ``keys``, ``key_range``, ``allow_pickle`` ...

        Shape: dicts with the columns of `Snapshot.read`: ``key``, ``value`` ..., a column per field of a key or value
            that is a tuple or record (``key.f0``, ``value.name``), ``key_group``, ``subtask``.

        Raises:
            CheckpointNotFoundError: If there is no snapshot.
            CheckpointMismatchError: If it has no such operator or state.
            CheckpointCorruptError: If a file is damaged.
        """
        from ..jobs.snapshots import Snapshot

        if isinstance(path, Snapshot):
            table = path.read(uid, state_name, **options)
        else:
            with Snapshot.open(absolute_place(path)) as snapshot:
                table = snapshot.read(uid, state_name, **options)
        schema = plain_schema(table.schema)
        return self._source(
            TableSource, f"state {state_name} of {uid}", schema, table=table.replace_schema_metadata(None).cast(schema)
        )

    def read_text(self, path: Paths, encoding: str = "utf-8") -> DataSet[str]:
        """Read the lines of text files, without their ends.

        Args:
            path: A file, a folder (its files), a pattern (``*``, ``**/``), a URI, or several of these. What is there is
                looked up now and stays the input. Of a folder that a streaming job writes to these are the parts that
                its checkpoints have committed, which never change; what is staged is not seen.
            encoding: Of the text.

        Files that end in ``.gz``, ``.gzip``, ``.bz2``, ``.zst`` or ``.lz4`` are decompressed, also by `read_csv` and
        `read_json`; each is read by one subtask.

        Raises:
            ConfigurationError: If there is no such encoding.
        """
        schema = schema_with_kind([pa.field("value", pa.string())], "value")
        return self._files("text", files_at(path), schema, {"encoding": encoding_named(encoding)})

    read_text_file = read_text

    def read_csv(
        self,
        path: Paths,
        types: Any = None,
        *,
        header: bool = True,
        delimiter: str = ",",
        null_values: Sequence[str] | None = None,
    ) -> DataSet:
        """Read the records of CSV files.

        Args:
            path: As of `read_text`.
            types: Columns and their types (a schema, or a mapping from name to Arrow or Python type); with a header it
                chooses columns, without one it names them all. None takes all columns, their types from the beginning
                of the first file that is not empty.
            header: Whether files begin with the columns' names.
            delimiter: One character.
            null_values: Texts that mean null, but in text columns; None for Arrow's list.
        """
        from ..formats.csv_lexing import csv_fields, cut_csv, first_csv_record, require_delimiter
        from ..formats.csv_records import infer_csv_schema
        from ..formats.schemas import schema_of

        require_delimiter(delimiter)
        paths = files_at(path)
        given = schema_of(types)
        nulls = None if null_values is None else tuple(null_values)
        names: list[str] | None = None if header else (None if given is None else given.names)
        schema = given
        typed = {} if given is None else {field.name: field.type for field in given}
        if given is not None and header:
            folder_names = {name for name, _value in paths[0].folders} - set(csv_headers(paths[:1], delimiter)[0])
            schema = pa.schema([field for field in given if field.name not in folder_names], given.metadata)
        if schema is None or names is None:
            block, location = first_beginning(paths)
            end = first_csv_record(block, delimiter) or len(block)
            with Reading(location):
                first = csv_fields(block[:end], delimiter)
            if header:
                body, found = block[end:], first
            else:
                body, found = block, names or [f"f{i}" for i in range(len(first))]
                names = found
            if schema is None:
                whole_records = body[: cut_csv(body, delimiter)] or body
                schema = infer_csv_schema(whole_records, found, delimiter, nulls)
                _require_one_header(paths, found, delimiter, header=header)
            else:
                _require_columns(schema, found, location)
        options: dict[str, Any] = {"delimiter": delimiter, "null_values": nulls}
        if names is not None:
            options["column_names"] = names
        return self._files("csv", paths, schema, options, folder_columns(paths, schema.names, typed))

    def read_json(self, path: Paths, types: Any = None) -> DataSet:
        """Read the records of files with a JSON object per line.

        Args:
            path: As of `read_text`.
            types: Fields and their types, as of `read_csv`; None for those of the beginning of the first file
                that is not empty.
        """
        import pyarrow.json as pajson

        from ..formats.schemas import schema_of

        paths = files_at(path)
        schema = schema_of(types)
        typed = {} if schema is None else {field.name: field.type for field in schema}
        if schema is not None:
            in_folders = {name for name, _value in paths[0].folders}
            schema = pa.schema([field for field in schema if field.name not in in_folders], schema.metadata)
        if schema is None:
            block, location = first_beginning(paths)
            lines = block[: block.rfind(b"\n") + 1] or block
            if not lines.strip():
                message = "the type of an empty file is not known"
                raise SourceError(message, path=location, hint="pass types")
            try:
                schema = pajson.read_json(pa.BufferReader(lines)).schema
            except pa.ArrowException as error:
                message = f"a file cannot be read: {error}"
                raise SourceError(message, path=location) from error
        return self._files("json", paths, schema, {}, folder_columns(paths, schema.names, typed))

    def read_parquet(
        self, path: Paths, columns: Sequence[str] | None = None, *, schema: Any = None, merge_schema: bool = False
    ) -> DataSet:
        """Read the records of Parquet files.

        All files must have the same columns and types, as far as nothing else is asked for. A column that a file lacks
        is null then; a value that its column cannot hold exactly fails.

        Args:
            path: As of `read_text`.
            columns: Those that are read; None for all.
            schema: The columns and types of the records, whatever the files have, as of `read_csv`'s ``types``.
            merge_schema: Whether records have the columns of all files, in types that hold the values of all.

        Raises:
            SourceError: If files have different columns or types; with the file and the column.
        """
        return self._read_columns("parquet", path, columns, schema, merge_schema)

    def read_orc(
        self, path: Paths, columns: Sequence[str] | None = None, *, schema: Any = None, merge_schema: bool = False
    ) -> DataSet:
        """Read records of ORC files; `FileSource.orc` says of which types. All arguments are as of `read_parquet`."""
        return self._read_columns("orc", path, columns, schema, merge_schema)

    def read_avro(
        self, path: Paths, columns: Sequence[str] | None = None, *, schema: Any = None, merge_schema: bool = False
    ) -> DataSet:
        """Read the records of container files of Avro; `FileSource.avro` says of which types. All arguments are as of
        `read_parquet`. Large files are read in parallel.
        """
        return self._read_columns("avro", path, columns, schema, merge_schema)

    def _read_columns(
        self, form: str, path: Paths, columns: Sequence[str] | None, schema: Any, merge_schema: bool
    ) -> DataSet:
        from ..formats.schemas import schema_of

        paths = files_at(path)
        declared = schema_of(schema)
        if declared is not None and merge_schema:
            message = f"read_{form} takes a schema or merge_schema, not both"
            raise ProgramError(message)
        found = types_in(form, paths)
        if declared is not None:
            refuse_doubled("schema", declared)
            in_files = {name for one in found for name in one.names}
            folders = folder_columns(paths, sorted(in_files), {field.name: field.type for field in declared})
            kept = [field for field in declared if field.name not in folders.schema.names]
            own = schema_with_kind(kept, record_shape(declared))
            _require_columns(own, sorted(in_files), str(paths[0]))
        else:
            own = merged_type(paths, found) if merge_schema else require_one_type(paths, found)
            folders = folder_columns(paths, own.names)
        types = {field.name: field.type for field in own}
        is_uniform = all({field.name: field.type for field in one} == types for one in found)
        data = self._files(form, paths, own, {}, folders, is_uniform=is_uniform)
        return data if columns is None else data.project(*columns)

    def read_sequence_file(self, path: Paths) -> DataSet:
        """Read tuples of key and value out of SequenceFiles of Hadoop; `FileSource.sequence_file` says of which kinds.

        All files must have the same classes. Large ones are read in parallel.

        Args:
            path: As of `read_text`.

        Raises:
            SourceError: If a file is none, or has other classes than the first one.
            ConfigurationError: If it has a class or a codec that is not known.
        """
        paths = files_at(path)
        found = types_in("sequence", paths)
        schema = require_one_type(paths, found, "read files of other classes apart")
        return self._files("sequence", paths, schema, {}, folder_columns(paths, schema.names))

    def _files(
        self,
        form: str,
        paths: Sequence[InputFile],
        schema: pa.Schema,
        options: Mapping[str, Any],
        folders: FolderColumns | None = None,
        *,
        is_uniform: bool = True,
    ) -> DataSet:
        name = f"{form} {paths[0]}" if len(paths) == 1 else f"{form} {len(paths)} files"
        if folders is not None and len(folders.schema):
            schema = schema_with_kind([*schema, *folders.schema], record_shape(schema))
        return self._source(
            FileSource, name, schema, files=FilesOfSource(), format=form, paths=tuple(map(str, paths)),
            file_schema=schema, options=options,
            folder_columns=() if folders is None else tuple(folders.schema.names),
            folder_values=() if folders is None else folders.values, is_uniform=is_uniform,
        )  # fmt: skip

    def _source(self, kind: type[Node], name: str, schema: pa.Schema | None, /, **more: Any) -> DataSet:
        return self._data_set(kind(id=self.new_id(), name=name, schema=schema, **more))


def _is_data_frame(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.split(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def _plain(table: pa.Table) -> pa.Table:
    schema = plain_schema(table.schema)
    refuse_doubled("table", schema)
    return table.cast(schema)


def _require_one_header(paths: Sequence[InputFile], names: Sequence[str], delimiter: str, *, header: bool) -> None:
    """Refuse CSV files whose columns are not those of the first one: what they have more would be lost."""
    for path, found in zip(paths, csv_headers(paths, delimiter), strict=True):
        is_other = sorted(found) != sorted(names) if header else len(found) != len(names)
        if found and is_other:
            others = found if header else f"{len(found)} columns"
            message = f"the file's columns are {others}, and those of the first file {list(names)}"
            raise SourceError(message, path=str(path), hint="pass types: it chooses columns by name")


def _require_columns(schema: pa.Schema, names: Sequence[str], location: str) -> None:
    missing = [name for name in schema.names if name not in names]
    if missing:
        message = f"column {missing[0]!r} is not in the file; its columns are {list(names)}"
        raise SourceError(message, path=location)
