"""Tables of files: ``'connector' = 'filesystem'``.

Source: Flink's documentation ("FileSystem SQL Connector").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.errors import ConfigurationError
from headrace.engine.plan.plan import FileSource as FileSourceNode

from ...connectors.files.source import FileSink, FileSource
from .contract import Options, TableConnector
from .file_lookup import FileLookup

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["FilesTable"]

_FORMATS = ("parquet", "csv", "json")


class FilesTable(TableConnector):
    """Files in a folder, in one format. Options: ``path``, ``format``, ``source.monitor-interval``,
    ``csv.field-delimiter``.
    """

    name = "filesystem"

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._path = options.need("path").removeprefix("file://")
        self._format = options.choice("format", _FORMATS)
        self._follow = options.take("source.monitor-interval", Options.duration)
        self._delimiter = options.take("csv.field-delimiter", str, ",")
        self._schema = schema
        self.is_bounded = self._follow is None
        self.can_look_up = self.is_bounded
        if partitioned_by:
            message = "PARTITIONED BY is not supported for files"
            raise ConfigurationError(message)

    def stream(self, env: StreamExecutionEnvironment, schema: pa.Schema) -> DataStream:
        """Read the files, exactly once."""
        from headrace.engine.operators.event_time import WatermarkStrategy

        source: FileSource
        if self._format == "parquet":
            source = FileSource.parquet(self._path, _paths(schema), recursive=True, follow=self._follow)
        elif self._format == "csv":
            source = FileSource.csv(
                self._path, self._schema, has_header=False, delimiter=self._delimiter, recursive=True,
                follow=self._follow,
            )  # fmt: skip
        else:
            source = FileSource.json_lines(self._path, self._schema, recursive=True, follow=self._follow)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), f"{self._format} {self._path}")

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Read the files."""
        if self._format == "parquet":
            whole = pa.schema([self._schema.field(name) for name in schema.names])
            return env.read_parquet(self._path, schema=whole)
        if self._format == "csv":
            return env.read_csv(self._path, self._schema, header=False, delimiter=self._delimiter)
        return env.read_json(self._path, self._schema)

    def lookup(self, keys: Sequence[str], schema: pa.Schema) -> TableLookup:
        """Read all files where rows are looked up."""
        from ...dataset.environment import ExecutionEnvironment

        with ExecutionEnvironment.get_execution_environment("local") as env:
            files = self.data_set(env, schema).take_node()
        assert isinstance(files, FileSourceNode)
        return FileLookup(files, keys, schema)

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write files, exactly once."""
        sink: Any
        if self._format == "parquet":
            sink = FileSink.parquet(self._path, schema=schema, mode="append")
        elif self._format == "csv":
            sink = FileSink.csv(self._path, schema=schema, header=False, delimiter=self._delimiter, mode="append")
        else:
            sink = FileSink.json_lines(self._path, mode="append")
        stream.sink_to(sink).name(table)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """Write files, all or none."""
        if self._format == "parquet":
            data.write_as_parquet(self._path, mode="append")
        elif self._format == "csv":
            data.write_as_csv(self._path, header=False, delimiter=self._delimiter, mode="append")
        else:
            data.write_as_json(self._path, mode="append")


def _paths(schema: pa.Schema) -> list[str]:
    """The columns of a file, and the fields of rows in them: ``bid.price``."""
    found = []
    for field in schema:
        if pa.types.is_struct(field.type):
            found += [f"{field.name}.{path}" for path in _paths(pa.schema(list(field.type)))]
        else:
            found.append(field.name)
    return found
