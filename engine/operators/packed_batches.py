"""Batches as records: what keeps a stream as it is, event times and arbitrary Python objects included, in any store.

A packed record is one batch of the stream, in the form in which batches travel between processes. Like those, and like
pickled state, it runs code of whoever wrote it when it is opened, so what is packed stays within its program.

Source: the records of Flink's cluster partitions, which ``DataStream.cache`` is read from.
"""

from __future__ import annotations

import pickle

import pyarrow as pa

from headrace.state.values.program_pickles import load_program

from ..columns.records import Batch
from ..errors import ExternalError, InternalError
from ..functions.operator import Operator, OperatorContext

__all__ = ["COUNTS_TAG", "PACKED_SCHEMA", "TOTAL_SCHEMA", "PackOperator", "TotalOperator", "UnpackOperator"]

PACKED_SCHEMA = pa.schema([pa.field("packed", pa.large_binary())])

TOTAL_SCHEMA = pa.schema([pa.field("total", pa.int64())])

COUNTS_TAG = "counts"
"""Side output of `PackOperator`: how many batches each subtask has packed."""


class PackOperator(Operator):
    """Makes one record of each batch; at the end says to `COUNTS_TAG` how many those are.

    State ``batches``: numbers of batches that have not been said. Each is said once, by whoever holds it in the end.
    """

    may_change_records = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = context.operator_state.list_state("batches")
        self._num_batches = sum(self._state.get())

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state.update([self._num_batches] if self._num_batches else [])

    def finish(self) -> None:
        if self._num_batches:
            self.context.output.emit_side(COUNTS_TAG, _numbers([self._num_batches]))
        self._num_batches = 0

    def process_batch(self, batch: Batch, input_index: int) -> None:
        packed = pa.array([pickle.dumps(batch, protocol=5)], PACKED_SCHEMA.field(0).type)
        self.context.output.emit(Batch.of_columns(pa.RecordBatch.from_arrays([packed], schema=PACKED_SCHEMA)))
        self._num_batches += 1


class TotalOperator(Operator):
    """Adds up all counts, in one subtask, and gives their sum when all input has ended: once in the life of a job.

    State ``total``: the sum so far; and True behind it when it has been given.
    """

    may_change_records = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = context.operator_state.list_state("total")
        restored = self._state.get()
        self._total: int = restored[0] if restored else 0
        self._is_given = len(restored) > 1

    def process_batch(self, batch: Batch, input_index: int) -> None:
        self._total += sum(batch.columns.column(0).to_pylist())

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state.update([self._total, True] if self._is_given else [self._total])

    def finish(self) -> None:
        if not self._is_given:
            self._is_given = True
            self.context.output.emit(_numbers([self._total]))


def _numbers(numbers: list[int]) -> Batch:
    return Batch.of_columns(pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=TOTAL_SCHEMA))


class UnpackOperator(Operator):
    """Gives the batches that packed records are made of.

    Raises:
        ExternalError: If a record is none, or an object of it cannot be built.
    """

    may_change_records = False

    def process_batch(self, batch: Batch, input_index: int) -> None:
        for packed in batch.columns.column(0).to_pylist():
            try:
                unpacked = load_program(packed)
            except Exception as error:
                message = f"a cached batch cannot be read: {error!r}"
                raise ExternalError(message) from error
            if not isinstance(unpacked, Batch):
                message = f"a packed record is a batch; got {type(unpacked).__name__}"
                raise InternalError(message)
            self.context.output.emit(unpacked)
