"""Changes on their way to where rows are found by a key: rows, and a column that says which of them are deleted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.functions.operator import Operator

from ...stream.data_stream import DataStream

__all__ = ["DELETED", "with_deletions"]

DELETED = "$deleted"
"""The column that says it."""


def with_deletions(
    stream: DataStream, key: tuple[str, ...], schema: pa.Schema, *, only_last: bool = False
) -> DataStream:
    """Return changes as rows with the column `DELETED`, those of a key in their order.

    Args:
        stream: The changes.
        key: The columns by which rows are found.
        schema: Of the changes.
        only_last: Whether of the changes of a key in one batch only the last one is wanted.
    """
    given = schema.append(pa.field(DELETED, pa.bool_()))
    operator = _DeletionsAsColumn(key if only_last else ())
    return stream.key_by(*key).transform("deletions", operator, None, "deletions", known_columns=given)


class _DeletionsAsColumn(Operator):
    """Makes rows of changes.

    Args:
        key: The columns of which only the last change in a batch is given; none for all changes.
    """

    takes_changes = True
    may_change_records = False

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key

    def process_batch(self, batch: Batch, input_index: int) -> None:
        kinds, rows = batch.row_kinds, batch.columns_as(None)
        is_gone = np.zeros(batch.num_rows, np.bool_)
        if kinds is not None:
            is_gone = (kinds == RowKind.DELETE) | (kinds == RowKind.UPDATE_BEFORE)
        marked = Batch.of_columns(rows.append_column(DELETED, pa.array(is_gone)), batch.timestamps)
        if self._key and batch.num_rows > 1:
            marked = marked.take(_last_of_each(rows.select(list(self._key))))
        self.context.output.emit(marked)


def _last_of_each(keys: pa.RecordBatch) -> npt.NDArray[np.intp]:
    """The last row of each key, in order."""
    from headrace.engine.tables.key_index import KeyIndex  # compiled where it runs, not where a program is written

    codes, num_keys = KeyIndex(keys.schema.types).codes_of(keys.columns, keys.num_rows)
    last = np.zeros(num_keys, np.intp)
    last[codes] = np.arange(keys.num_rows)  # of several to one place the last one stays
    return np.sort(last)
