"""Rows that a program has at hand, as a table: Arrow, pandas, a stream, another query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.engine.errors import ProgramError

from ...stream.data_stream import DataStream
from .contract import TableConnector

if TYPE_CHECKING:
    from ...dataset import DataSet, ExecutionEnvironment
    from ...stream.environment import StreamExecutionEnvironment

__all__ = ["GivenTable"]


class GivenTable(TableConnector):
    """Rows at hand.

    Args:
        rows: An Arrow table, or a stream of columns.
        schema: Their columns.
    """

    name = "given"

    def __init__(self, rows: pa.Table | DataStream, schema: pa.Schema) -> None:
        self._rows = rows
        self.schema = schema

    @classmethod
    def of(cls, rows: Any) -> GivenTable:
        """Return rows as a table.

        Raises:
            ProgramError: If they are none.
        """
        if isinstance(rows, DataStream):
            if rows.known_columns is None:
                message = "the columns of the stream are not known"
                raise ProgramError(message, hint="declare the type of its records: map(..., output_type=...)")
            return cls(rows, rows.known_columns.remove_metadata())
        if isinstance(rows, (pa.RecordBatch, pa.RecordBatchReader)):
            rows = pa.table(rows) if isinstance(rows, pa.RecordBatchReader) else pa.Table.from_batches([rows])
        if hasattr(rows, "to_records") and not isinstance(rows, pa.Table):
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        if not isinstance(rows, pa.Table):
            message = f"rows are an Arrow table, a pandas data frame or a stream; got {type(rows).__name__}"
            raise ProgramError(message)
        return cls(rows, rows.schema.remove_metadata())

    def stream(self, env: StreamExecutionEnvironment, schema: pa.Schema) -> DataStream:
        """Return the rows as a stream."""
        if isinstance(self._rows, DataStream):
            return self._rows
        return env.from_collection(self._rows.select(schema.names))

    def data_set(self, env: ExecutionEnvironment, schema: pa.Schema) -> DataSet:
        """Return the rows as a data set."""
        if isinstance(self._rows, DataStream):
            msg = "be read in batch mode: it is a stream"
            raise self._cannot(msg)
        return env.from_arrow(self._rows.select(schema.names))
