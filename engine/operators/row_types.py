"""Where a declared type meets the records: they become columns of that type, or the job is told which one cannot.

A stream of Python objects has no type until somebody says one (``output_type=``, or hints in front of a columnar
operator). The check sits right behind the operator that promised the type, in the same chain, so that the error names
it and the record, and so that everything behind it finds columns whose types do not depend on which values a batch
happens to hold.

Source: PyFlink's ``output_type``; hints of functions, which PyFlink does not read, are an addition.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.state.values.serde import columns_as

from ..columns.records import Batch
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
    takes_changes = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.has_columns:
            columns = columns_as(batch.columns, self.schema)
            if columns is not batch.columns:
                batch = batch.with_columns(columns)
        else:
            batch.columns_as(self.schema)
        self.context.output.emit(batch)
