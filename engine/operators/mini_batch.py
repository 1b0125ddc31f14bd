"""Mini-batches: what comes to an operator over changes waits a while, so that more of it is worked off at once.

Such an operator gives the net change of what it is handed at once. The more that is, the fewer changes go out, and the
less often a key is looked up; for that results come later. What waits is worked off when the first of it has waited
long enough, when there are enough rows, and before anything that must not be held up: a barrier, so that no checkpoint
has to keep what waits; idleness, and the end. A watermark waits behind the rows that it has come behind.

Rows of one input stay in order; what waits of a second input is worked off behind that of the first.

Source: Flink's ``MapBundleOperator``, ``RowTimeMiniBatchAssginerOperator``, ``CountBundleTrigger``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..columns.records import MAX_WATERMARK, Batch, StreamStatus, Watermark
from ..functions.operator import KeyFields, Operator, OperatorContext

__all__ = ["MiniBatch"]


class MiniBatch(Operator):
    """An operator, in front of which batches wait.

    Args:
        operator: What works them off: one over columns and changes, whose output has no event times.
        latency_ms: How long a row waits at most.
        size: How many rows wait at most; more only if they come in one batch.
    """

    may_change_records = True  # it keeps them for a while

    def __init__(self, operator: Operator, latency_ms: int, size: int) -> None:
        self.operator = operator
        self._latency_ms = latency_ms
        self._size = size
        self.keyed = operator.keyed
        self.keeps_columns = operator.keeps_columns
        self.face = operator.face
        self.takes_changes = operator.takes_changes
        self.compiled_loops = operator.compiled_loops

    def kept_keys(self, keys: Sequence[KeyFields]) -> frozenset[KeyFields]:
        return self.operator.kept_keys(keys)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.operator.open(context)
        # By input, what waits; how many rows that is, until when, and the watermark that came last behind it.
        self._waiting: dict[int, list[Batch]] = {}
        self._num_waiting = 0
        self._due_ms: int | None = None
        self._watermark: Watermark | None = None

    # -- what comes ----------------------------------------------------------------------------------------------------

    def process_batch(self, batch: Batch, input_index: int) -> None:
        if batch.num_rows == 0:
            return
        if self._due_ms is None:
            self._due_ms = self.context.now_ms() + self._latency_ms
        self._waiting.setdefault(input_index, []).append(batch)
        self._num_waiting += batch.num_rows
        if self._num_waiting >= self._size:
            self._work_off()

    def process_watermark(self, watermark: Watermark) -> None:
        self._watermark = watermark
        if self._due_ms is None or watermark == MAX_WATERMARK:
            self._work_off()

    def process_status(self, status: StreamStatus) -> None:
        self._work_off()
        self.operator.process_status(status)

    def _work_off(self) -> None:
        """Hand over all that waits, and then the watermark."""
        waiting, self._waiting = self._waiting, {}
        self._num_waiting, self._due_ms = 0, None
        for index in sorted(waiting):
            for _, batches in groupby(waiting[index], _columns_of):
                self.operator.process_batch(Batch.concat(list(batches)), index)
        if self._watermark is not None:
            watermark, self._watermark = self._watermark, None
            self.operator.process_watermark(watermark)

    # -- time, barriers and the end ------------------------------------------------------------------------------------

    def next_processing_time(self) -> int | None:
        due = self.operator.next_processing_time()
        times = [time for time in (due, self._due_ms) if time is not None]
        return min(times, default=None)

    def on_processing_time(self, now_ms: int) -> None:
        if self._due_ms is not None and self._due_ms <= now_ms:
            self._work_off()
        due = self.operator.next_processing_time()
        if due is not None and due <= now_ms:
            self.operator.on_processing_time(now_ms)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self._work_off()
        self.operator.prepare_snapshot(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> None:
        self.operator.snapshot_state(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.operator.notify_checkpoint_aborted(checkpoint_id)

    def end_input(self, input_index: int) -> None:
        self._work_off()
        self.operator.end_input(input_index)

    def finish(self) -> None:
        self._work_off()
        self.operator.finish()

    def close(self) -> None:
        self.operator.close()

    def __repr__(self) -> str:
        return f"MiniBatch({self.operator!r}, {self._latency_ms} ms, {self._size} rows)"


def _columns_of(batch: Batch) -> Any:
    """What tells batches apart that cannot be one: rows as they came, and partial results of an operator before."""
    return None if batch.schema is None else tuple(batch.schema.names)
