"""Tables whose rows are kept in the program that has them written: ``collect``.

What INSERT INTO writes is read back under the table's name. With checkpoints a row counts when the one that it belongs
to is complete, and each once, whatever fails between; changes are applied, so that the table is what they come to.

Source: Flink's ``CollectSinkFunction``, ``CollectDynamicSink``; the table factory ``values`` of its tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.engine.changelog.final_table import FinalTable
from headrace.engine.columns.records import Batch

from ...connectors.collect import CollectSink
from ...stream.collected_rows import CollectedRows
from ...stream.data_stream_sink import sink_of
from .changelog import ChangelogBlocks, batch_of_block, behind
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from headrace.engine.operators.event_time import WatermarkStrategy

    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.data_stream import DataStream
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["CollectTable"]


class CollectTable(TableConnector):
    """Keeps the rows that are written, in memory. Without options.

    Reading gives what is there when the job that reads is started, as rows that only come.
    """

    name = "collect"
    takes_changes = True
    is_of_program = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._schema = schema
        self._rows = FinalTable(schema)
        # Of each job that writes here, the rows that it has given and that are not among `_rows` yet.
        self._jobs: list[CollectedRows] = []

    def stream(
        self, env: StreamExecutionEnvironment, schema: pa.Schema, watermarks: WatermarkStrategy | None = None
    ) -> DataStream:
        """Return the rows that are there now."""
        return env.from_collection(self._now().select(schema.names))

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Return the rows that are there now."""
        return env.from_arrow(self._now().select(schema.names))

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Have the changes brought here, while the job runs."""
        blocks = behind(stream, ChangelogBlocks(), "changelog")
        sink = sink_of(blocks, CollectSink(), table, keep_parallelism=True)
        rows = CollectedRows()
        stream.get_execution_environment().add_collector(sink.transformation, rows)
        self._jobs.append(rows)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """Bring the rows here."""
        for batch in data.to_arrow().combine_chunks().to_batches():
            self._rows.add(Batch.of_columns(batch))

    def _now(self) -> pa.Table:
        for job in self._jobs:
            for block in job.arrived():
                self._rows.add(batch_of_block(block, self._schema))
        self._jobs = [job for job in self._jobs if not job.is_over]
        return self._rows.rows()
