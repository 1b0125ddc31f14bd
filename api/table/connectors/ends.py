"""Tables that only take rows: ``print`` shows them, ``blackhole`` forgets them.

Source: Flink's documentation ("Print SQL Connector", "BlackHole SQL Connector").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.columns.records import Batch
from headrace.engine.connectors.contract import SinkWriter, WriterContext
from headrace.engine.functions.operator import Operator

from ...connectors.print import PrintSink
from .changelog import ChangelogTexts, behind
from .contract import Options, TableConnector

if TYPE_CHECKING:
    from ...dataset import DataSet
    from ...stream.data_stream import DataStream

__all__ = ["BlackholeTable", "PrintTable"]


class PrintTable(TableConnector):
    """Shows each change, as ``+I[1, a]``. Option: ``print-identifier``."""

    name = "print"
    takes_changes = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        self._identifier = options.take("print-identifier", str, "")

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Show the changes where the job was started."""
        texts = behind(stream, ChangelogTexts(), "changes as texts")
        texts.sink_to(PrintSink(self._identifier)).name(table)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """Show the rows."""
        data.print()


class BlackholeTable(TableConnector):
    """Takes all rows and keeps none."""

    name = "blackhole"
    takes_changes = True

    def __init__(self, options: Options, schema: pa.Schema, partitioned_by: tuple[str, ...]) -> None:
        pass

    def write_stream(self, stream: DataStream, schema: pa.Schema, table: str) -> None:
        """Forget the changes."""
        behind(stream, _Forget(), "forget").sink_to(_Blackhole()).name(table)

    def write_data_set(self, data: DataSet, table: str) -> None:
        """Count the rows, so that they are made."""
        data.count()


class _Blackhole:
    def create_writer(self) -> SinkWriter:
        return _Nothing()


class _Forget(Operator):
    """Takes changes, and gives nothing."""

    takes_changes = True
    may_change_records = False

    def process_batch(self, batch: Batch, input_index: int) -> None:
        pass


class _Nothing(SinkWriter):
    def open(self, context: WriterContext) -> None:
        pass

    def write(self, batch: Any) -> None:
        pass
