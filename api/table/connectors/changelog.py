"""The changes of a result on their way out: as texts for people, as blocks of columns for programs.

Source: Flink's ``RowData`` and ``Row.toString``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.columns.kernels import compute
from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.errors import UserFunctionError
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.transformations import OperatorTransformation
from headrace.engine.operators.column_operators import naming_operator

from ...stream.data_stream import DataStream

__all__ = [
    "KIND_COLUMN",
    "ChangelogBlocks",
    "ChangelogColumns",
    "ChangelogTexts",
    "ChangesOfColumn",
    "batch_of_block",
    "behind",
    "block_of",
    "text_of",
]

KIND_COLUMN = "$kind"
"""In a block: numbers of `RowKind`, as int8."""

_SHORT = tuple(kind.short for kind in RowKind)


def text_of(kind: str, row: Any) -> str:
    """Return a change as Flink shows it: ``+I[1, a, null]``."""
    return f"{kind}[{', '.join('null' if value is None else str(value) for value in row)}]"


def block_of(batch: Batch) -> bytes:
    """Return a batch as an Arrow stream, with the kinds of its changes in front."""
    kinds = np.zeros(batch.num_rows, np.int8) if batch.row_kinds is None else batch.row_kinds
    columns = batch.columns
    block = pa.RecordBatch.from_arrays(
        [pa.array(kinds, pa.int8()), *columns.columns], names=[KIND_COLUMN, *columns.schema.names]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_batch(block)
    return bytes(sink.getvalue())


def batch_of_block(block: bytes, schema: pa.Schema) -> Batch:
    """Return the batch that a block holds."""
    table = pa.ipc.open_stream(block).read_all()
    kinds = np.asarray(table.column(0)).astype(np.int8)
    rows = table.drop_columns([KIND_COLUMN]).cast(schema).combine_chunks()
    columns = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], schema=schema)
    return Batch.of_columns(columns, None, kinds if kinds.any() else None)


def behind(stream: DataStream, operator: Operator, name: str, schema: pa.Schema | None = None) -> DataStream:
    """Put an operator of changes, row by row, right behind what gives them.

    It has as many subtasks, also when the job is rescaled: dealt out to more of them a row could be taken back before
    it has come.
    """
    made = stream.transform(name, operator, None, name, known_columns=schema, keep_parallelism=True)
    before = stream.transformation
    if isinstance(before, OperatorTransformation) and not before.is_parallel:
        made.force_non_parallel()
    return made


class _OfChanges(Operator):
    """Takes changes, and gives records that say what each is."""

    takes_changes = True
    may_change_records = False


class ChangelogBlocks(_OfChanges):
    """Makes one record of every batch: a block."""

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows:
            self.context.output.emit(Batch.of_rows([block_of(batch)]))


class ChangelogTexts(_OfChanges):
    """Makes a text of every change."""

    def process_batch(self, batch: Batch, input_index: int) -> None:
        kinds = [0] * batch.num_rows if batch.row_kinds is None else batch.row_kinds.tolist()
        rows = zip(*(column.to_pylist() for column in batch.columns.columns), strict=True)
        texts = [text_of(_SHORT[kind], row) for kind, row in zip(kinds, rows, strict=True)]
        self.context.output.emit(Batch.of_rows(texts))


class ChangelogColumns(_OfChanges):
    """Makes records of changes, with a column that says what each is: ``+I``, ``-U``, ``+U``, ``-D``.

    Args:
        column: What it is called; it stands in front.
    """

    def __init__(self, column: str) -> None:
        self._column = column

    def process_batch(self, batch: Batch, input_index: int) -> None:
        kinds = np.zeros(batch.num_rows, np.int8) if batch.row_kinds is None else batch.row_kinds
        texts = pa.array(_SHORT, pa.string()).take(pa.array(kinds))
        columns = batch.columns
        named = pa.RecordBatch.from_arrays([texts, *columns.columns], names=[self._column, *columns.schema.names])
        self.context.output.emit(Batch.of_columns(named, batch.timestamps))


class ChangesOfColumn(Operator):
    """Makes changes of records that say what each is.

    Args:
        column: Where they say it; the changes are without it.
        input_schema: Of the records.
    """

    may_change_records = False

    def __init__(self, column: str, input_schema: pa.Schema) -> None:
        self._column = column
        self._input_schema = input_schema

    def process_batch(self, batch: Batch, input_index: int) -> None:
        columns = batch.columns_as(self._input_schema)
        texts = columns.column(columns.schema.get_field_index(self._column))
        kinds = compute().index_in(texts, pa.array(_SHORT, texts.type))
        if kinds.null_count:
            wrong = texts.filter(compute().is_null(kinds))[0].as_py()
            message = f"column {self._column!r} says what a change is: {', '.join(_SHORT)}; got {wrong!r}"
            with naming_operator(self.context):
                raise UserFunctionError(message)
        rows = columns.drop_columns([self._column])
        self.context.output.emit(Batch.of_columns(rows, batch.timestamps, np.asarray(kinds).astype(np.int8)))
