"""Batches as records: what keeps a stream as it is, event times and arbitrary Python objects included, in any store.

A packed record is one batch of the stream, in the form in which batches travel between processes. Like those, and like
pickled state, opening it runs code of the one who wrote it. So each one is signed with a key that the program has
made for it, and none is opened that is not: those who can write where packed records are kept can make a job fail, and
have records of the same stream come twice or not at all, but runs nothing.

Source: the records of Flink's cluster partitions, which ``DataStream.cache`` is read from; RFC 2104 (HMAC).
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
from typing import Any

import pyarrow as pa

from headrace.state.reading.program_pickles import load_program

from ..columns.records import Batch
from ..errors import ExternalError, InternalError
from ..functions.operator import Operator, OperatorContext

__all__ = ["COUNTS_TAG", "PACKED_SCHEMA", "TOTAL_SCHEMA", "PackOperator", "TotalOperator", "UnpackOperator"]

PACKED_SCHEMA = pa.schema([pa.field("packed", pa.large_binary())])

TOTAL_SCHEMA = pa.schema([pa.field("total", pa.int64())])

_SIGNATURE_BYTES = hashlib.sha256().digest_size
"""Of a packed record; the batch's pickle is behind it."""

COUNTS_TAG = "counts"
"""Side output of `PackOperator`: how many batches each subtask has packed."""


class PackOperator(Operator):
    """Makes one record of each batch; at the end says to `COUNTS_TAG` how many those are.

    State ``batches``: numbers of batches that have not been said. Each is said once, by the subtask that holds it in
    the end.

    Args:
        key: What packed records are signed with.
    """

    may_change_records = False
    takes_changes = True

    def __init__(self, key: bytes) -> None:
        self._key = key

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
        pickled = pickle.dumps(batch.without_keys(), protocol=5)
        packed = pa.array([_signature(self._key, pickled) + pickled], PACKED_SCHEMA.field(0).type)
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


def _signature(key: bytes, pickled: bytes | memoryview) -> bytes:
    return hmac.digest(key, pickled, "sha256")


def _parts(packed: Any) -> tuple[bytes, memoryview]:
    whole = packed if type(packed) is bytes else b""
    return whole[:_SIGNATURE_BYTES], memoryview(whole)[_SIGNATURE_BYTES:]


class UnpackOperator(Operator):
    """Gives the batches that packed records are made of.

    Args:
        key: What they were signed with.

    Raises:
        ExternalError: If a record is not as it was packed, or an object of it cannot be built.
    """

    may_change_records = False

    def __init__(self, key: bytes) -> None:
        self._key = key

    def process_batch(self, batch: Batch, input_index: int) -> None:
        for packed in batch.columns.column(0).to_pylist():
            signature, pickled = _parts(packed)
            if not hmac.compare_digest(signature, _signature(self._key, pickled)):
                message = "a cached batch is not as it was written: its file is damaged, or somebody else's"
                raise ExternalError(message, hint="call invalidate on the cached stream: it is computed anew then")
            try:
                unpacked = load_program(pickled)
            except Exception as error:
                message = f"a cached batch cannot be read: {error!r}"
                raise ExternalError(message) from error
            if not isinstance(unpacked, Batch):
                message = f"a packed record is a batch; got {type(unpacked).__name__}"
                raise InternalError(message)
            self.context.output.emit(unpacked)
