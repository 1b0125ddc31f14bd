"""Where a declared type meets the records: they become columns of that type, or the job is told which one cannot.

A stream of Python objects has no type until somebody says one (``output_type=``, or hints in front of a columnar
operator). The check sits right behind the operator that promised the type, in the same chain, so that the error names
it and the record, and so that everything behind it finds columns whose types do not depend on which values a batch
happens to hold.

Source: DESIGN 3 ("Types come from the source schema, type hints, dataclasses or an explicit output_type").
"""

from __future__ import annotations

import pyarrow as pa

from ..columns.records import Batch
from ..errors import TypeMismatchError
from ..functions.operator import Operator

__all__ = ["DeclaredRows"]


class DeclaredRows(Operator):
    """Gives every batch columns of one schema; rows that are there stay.

    A record that does not fit is a TypeMismatchError that names the field and the record's place in its batch.

    Args:
        schema: The declared type; its metadata ``headrace.row`` says whether records are dicts, tuples or single
            values.
    """

    may_change_records = False

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.has_columns:
            batch = self._cast(batch)
        else:
            batch.columns_as(self.schema)
        self.context.output.emit(batch)

    def _cast(self, batch: Batch) -> Batch:
        columns = batch.columns
        if columns.schema.equals(self.schema, check_metadata=True):
            return batch
        if sorted(columns.schema.names) != sorted(self.schema.names):
            message = f"the records' fields are {columns.schema.names}, declared are {self.schema.names}"
            raise TypeMismatchError(message)
        try:
            arrays = [columns.column(field.name).cast(field.type) for field in self.schema]
        except pa.ArrowException as error:
            message = f"records do not fit the declared type: {error}"
            raise TypeMismatchError(message) from error
        return batch.with_columns(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
