"""Files as a table that rows are looked up in: all of them are read once, when a subtask begins.

Which files there are is found when the program is made, so that a subtask that begins again, after a failure, reads the
same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.engine.columns.expressions import col
from headrace.engine.connectors.table_lookup import TableLookup
from headrace.engine.joins.keyed_rows import KeyedRows
from headrace.engine.operators.column_operators import SelectColumns
from headrace.engine.plan.plan import FileSource

__all__ = ["FileLookup"]


class FileLookup(TableLookup):
    """Finds rows of files by key.

    Args:
        files: The files.
        keys: Names of the key's columns.
        schema: The columns that are wanted.
    """

    def __init__(self, files: FileSource, keys: Sequence[str], schema: pa.Schema) -> None:
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
