"""Tables of files: ``'connector' = 'filesystem'``. Columns of PARTITIONED BY are folders ``name=value``.

Source: Flink's documentation ("FileSystem SQL Connector").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.columns.expressions import col
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.lookups.keyed_rows import KeyedRows
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.engine.plan.plan import FileSource as FileSourceNode

from ...connectors.files import FileCompaction, FileSink, FileSource
from ...formats.containers.compression_codecs import AVRO_CODECS
from ...formats.containers.parquet_files import int96_unit_of
from ...formats.folders import require_folder_columns
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["FilesTable"]

_FORMATS = ("parquet", "orc", "avro", "csv", "json")
_ORC_COMPRESSIONS = ("ZLIB", "SNAPPY", "LZ4", "ZSTD", "NONE")


class FilesTable(TableConnector):
    """Files in a folder, in one format. Options: ``path``, ``format``, ``source.monitor-interval``,
    ``csv.field-delimiter``; of a sink ``avro.codec``, ``orc.compress``, ``auto-compaction``,
    ``compaction.file-size`` and ``sink.rolling-policy.rollover-interval`` and ``inactivity-interval``.
    """

    name = "filesystem"
    manner = ("source.monitor-interval", "compaction.file-size", "sink.rolling-policy.*")
    makes_watermarks = True
    waits_for_answers = False

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._path = options.need("path").removeprefix("file://")
        self._format = options.choice("format", _FORMATS)
        self._follow = options.take("source.monitor-interval", Options.duration)
        self._delimiter = options.take("csv.field-delimiter", str, ",")
        self._avro_codec = options.choice("avro.codec", tuple(AVRO_CODECS), "snappy")
        self._orc_compression: Any = options.choice("orc.compress", _ORC_COMPRESSIONS, "ZLIB").lower()
        self._compaction = _compaction_of(options)
        self.is_bounded = self._follow is None
        self.can_look_up = self.is_bounded
        self._schema = schema
        self._folders = partitioned_by
        if partitioned_by:
            require_folder_columns(partitioned_by, schema)
        # What is in the files.
        self._own = pa.schema([field for field in schema if field.name not in partitioned_by])

    def known_as(self, column: str) -> str:
        """CSV has no names."""
        is_by_place = self._format == "csv" and column not in self._folders
        return f"column {self._own.names.index(column) + 1}" if is_by_place else column

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the files, exactly once."""
        source: FileSource
        folders = pa.schema([self._schema.field(name) for name in self._folders]) if self._folders else None
        common: dict[str, Any] = {"recursive": True, "follow": self._follow, "folders": folders}
        if self._format == "parquet":
            # One column at least, to count rows by.
            own = [field for field in schema if field.name not in self._folders] or [self._own.field(0)]
            unit = int96_unit_of(pa.schema(own))
            source = FileSource.parquet(self._path, _paths(pa.schema(own)), int96_unit=unit, **common)
        elif self._format in ("orc", "avro"):
            own = [field.name for field in schema if field.name not in self._folders] or [self._own.field(0).name]
            source = getattr(FileSource, self._format)(self._path, own, **common)
        elif self._format == "csv":
            source = FileSource.csv(self._path, self._own, has_header=False, delimiter=self._delimiter, **common)
        else:
            source = FileSource.json_lines(self._path, self._own, **common)
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"{self._format} {self._path}")

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Read the files."""
        data = self._read(env, schema)
        if self._format != "csv" or not self._folders:
            return data
        return data.select(**{field.name: col(field.name).cast(field.type) for field in schema})

    def _read(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """The files. In CSV what folders say has the type that it looks like, which loses nothing of a text."""
        if self._format in ("parquet", "orc", "avro"):
            whole = pa.schema([self._schema.field(name) for name in schema.names])
            readers: dict[str, Any] = {"parquet": env.read_parquet, "orc": env.read_orc, "avro": env.read_avro}
            return readers[self._format](self._path, schema=whole)
        if self._format == "csv":
            return env.read_csv(self._path, self._own, header=False, delimiter=self._delimiter)
        return env.read_json(self._path, self._schema)

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Read all files where rows are looked up."""
        from ...dataset.environment import ExecutionEnvironment

        with ExecutionEnvironment.get_execution_environment("local") as env:
            files = self._read(env, schema).take_node()
        assert isinstance(files, FileSourceNode)
        return _FileLookup(files, keys, schema)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write files, exactly once."""
        sink: Any
        common: dict[str, Any] = {"mode": "append", "partition_by": self._folders, "compaction": self._compaction}
        if self._format == "parquet":
            sink = FileSink.parquet(self._path, schema=schema, **common)
        elif self._format == "orc":
            sink = FileSink.orc(self._path, schema=schema, compression=self._orc_compression, **common)
        elif self._format == "avro":
            sink = FileSink.avro(self._path, schema=schema, codec=self._avro_codec, **common)
        elif self._format == "csv":
            sink = FileSink.csv(self._path, schema=schema, header=False, delimiter=self._delimiter, **common)
        else:
            sink = FileSink.json_lines(self._path, **common)
        stream.sink_to(sink).name(table)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """Write files, all or none."""
        common: dict[str, Any] = {"mode": "append", "partition_by": self._folders}
        if self._format == "parquet":
            data.write_as_parquet(self._path, **common)
        elif self._format == "orc":
            data.write_as_orc(self._path, compression=self._orc_compression, **common)
        elif self._format == "avro":
            data.write_as_avro(self._path, codec=self._avro_codec, **common)
        elif self._format == "csv":
            data.write_as_csv(self._path, header=False, delimiter=self._delimiter, **common)
        else:
            data.write_as_json(self._path, **common)


class _FileLookup(TableLookup):
    """Finds rows of files by key. All files are read once, when a subtask begins.

    Which files there are is found when the program is made, so that a subtask that begins again, after a failure, reads
    the same ones.

    Args:
        files: The files.
        keys: Names of the key's columns.
        schema: The columns that are wanted.
    """

    def __init__(self, files: FileSourceNode, keys: Sequence[str], schema: pa.Schema) -> None:
        self._files = files
        self._keys = tuple(keys)
        self._schema = schema
        # None until it is opened.
        self._rows: KeyedRows | None = None

    def open(self) -> None:
        """Read all of them.

        Raises:
            SourceError: If one cannot be read.
        """
        reader, wanted = self._files.files, {field.name: col(field.name).cast(field.type) for field in self._schema}
        chosen = SelectColumns(wanted)
        parts = [
            chosen.select(batch) for split in reader.splits(self._files) for batch in reader.read(self._files, split)
        ]
        table = pa.Table.from_batches([part.cast(self._schema) for part in parts], schema=self._schema)
        arrays = [column.combine_chunks() for column in table.columns]
        self._rows = KeyedRows(pa.RecordBatch.from_arrays(arrays, schema=self._schema), self._keys)

    def lookup(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of some keys."""
        assert self._rows is not None
        return self._rows.of(keys)

    def close(self) -> None:
        """Forget the rows."""
        self._rows = None


def _compaction_of(options: Options) -> FileCompaction | None:
    """What the options say of small files."""
    compacts = options.take("auto-compaction", Options.boolean, False)
    size = options.take("compaction.file-size", Options.memory, None)
    intervals = {
        name: options.take(f"sink.rolling-policy.{name.replace('_', '-')}", Options.duration, None)
        for name in ("rollover_interval", "inactivity_interval")
    }
    given: dict[str, Any] = {"file_size": size, **intervals}
    return FileCompaction(**{name: value for name, value in given.items() if value is not None}) if compacts else None


def _paths(schema: pa.Schema) -> list[str]:
    """The columns of a file, and the fields of rows in them: ``bid.price``."""
    found = []
    for field in schema:
        if pa.types.is_struct(field.type):
            found += [f"{field.name}.{path}" for path in _paths(pa.schema(list(field.type)))]
        else:
            found.append(field.name)
    return found
