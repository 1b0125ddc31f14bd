"""Tables of HBase: ``'connector' = 'hbase-2.2'``, a row key and a ROW for each column family.

Options are named as those of Flink's connector, but for where HBase is: its Thrift server is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.errors import ConfigurationError
from headrace.engine.operators.event_time import WatermarkStrategy

from ...connectors.hbase import HbaseClient, HbaseSink, HbaseSource, UpsertOptions
from ...connectors.hbase.cell_values import TableFields
from ..connectors.contract import Options, TableConnector
from ..connectors.deletions import DELETED, with_deletions

if TYPE_CHECKING:
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["HbaseTable"]


class HbaseTable(TableConnector):
    """A table of HBase, which must be there; changes are applied by its row key.

    Options: ``table-name``, ``thrift.host`` (maybe with a port), ``thrift.transport`` (buffered, framed),
    ``thrift.protocol`` (binary, compact), ``null-string-literal``, ``sink.numbers-table``,
    ``sink.buffer-flush.max-rows``, ``sink.buffer-flush.max-size``, ``sink.buffer-flush.interval``, ``sink.patience``.
    """

    name = "hbase-2.2"
    manner = ("thrift.*", "sink.buffer-flush.*", "sink.patience")
    takes_changes = True
    applies_by_key = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        if partitioned_by:
            message = "PARTITIONED BY is not supported for tables of HBase"
            raise ConfigurationError(message)
        self._client = HbaseClient(
            options.need("thrift.host"),
            options.choice("thrift.transport", ("buffered", "framed"), "buffered"),
            options.choice("thrift.protocol", ("binary", "compact"), "binary"),
        )
        self._table = options.need("table-name")
        self._null_text = options.take("null-string-literal", str, "null")
        self._numbers_table = options.take("sink.numbers-table", str, "headrace_numbers")
        self._writing = UpsertOptions(
            batch_size=options.take("sink.buffer-flush.max-rows", int, 1_000),
            batch_bytes=options.take("sink.buffer-flush.max-size", Options.memory, 2 << 20),
            batch_interval=options.take("sink.buffer-flush.interval", Options.duration, 1_000),
            patience=options.take("sink.patience", Options.duration, 60_000),
        )
        fields = TableFields(schema, self._null_text)
        assert fields.key is not None
        self._row_key = fields.key

    def keyed_by(self, primary_key: tuple[str, ...]) -> None:
        """Take the PRIMARY KEY, which is the row key; without one that is meant.

        Raises:
            ConfigurationError: If it is something else.
        """
        if primary_key not in ((), (self._row_key,)):
            message = f"the PRIMARY KEY of a table of HBase is its row key, {self._row_key!r}"
            message += f"; got {', '.join(primary_key)}"
            raise ConfigurationError(message)
        super().keyed_by((self._row_key,))

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Read the table once."""
        source = HbaseSource(
            self._client, self._table, schema=schema, null_text=self._null_text, patience=self._writing.patience
        )
        return env.from_source(source, watermarks or WatermarkStrategy.no_watermarks(), f"hbase {self._table}")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Write each change by its row key."""
        sink = HbaseSink(
            self._client,
            self._table,
            schema=schema,
            delete_column=DELETED,
            null_text=self._null_text,
            numbers_table=self._numbers_table,
            options=self._writing,
        )
        with_deletions(stream, self.primary_key, schema).sink_to(sink).name(table)
