"""Windows on columns as a job runs them: a first phase, a shuffle by key, the second phase in some subtasks.

Rows of key columns go to the subtask that owns their key group; a snapshot is what a restore would read.
"""

from __future__ import annotations

import dataclasses

from operator_harness import keyed_state, restore_keyed_state

from headrace.engine.columns.records import Watermark
from headrace.engine.functions.operator import OperatorContext
from headrace.engine.kernel.metrics import MetricGroup
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart
from headrace.state.keys.column_hashing import hash_columns
from headrace.state.keys.key_groups import key_groups_of, subtask_of

MAX_PARALLELISM = 16


class Collected:
    def __init__(self):
        self.batches = []
        self.watermarks = []
        self.side = []

    def emit(self, batch):
        if batch.num_rows:
            self.batches.append(batch)

    def emit_watermark(self, watermark):
        self.watermarks.append(watermark)

    def emit_status(self, status):
        pass

    def emit_side(self, tag, batch):
        self.side.append((tag, batch))

    def take(self):
        rows = [
            (row, int(t))
            for batch in self.batches
            for row, t in zip(batch.columns.to_pylist(), batch.timestamps, strict=True)
        ]
        self.batches = []
        return rows


def context_of(subtask=0, parallelism=1, parts=()):
    keyed = keyed_state(subtask, parallelism, max_parallelism=MAX_PARALLELISM)
    operator_state = HeapOperatorStateBackend("op")
    restore_keyed_state(keyed, parts)
    operator_state.restore([part for part in parts if part.kind == "union"], subtask, parallelism)
    return OperatorContext(
        operator="op",
        name="windows",
        subtask=subtask,
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        attempt="a",
        job="j",
        output=Collected(),
        keyed_state=keyed,
        operator_state=operator_state,
        metrics=MetricGroup(),
        now_ms=lambda: 0,
        probe=lambda _name: None,
        is_restored=bool(parts),
    )


class ColumnPipeline:
    """One local operator (or none), a shuffle by key, some global operators.

    Args:
        keys: Names of the key columns; none for windows of a whole stream, whose second phase is one subtask.
        make_local: Makes the first phase; None for none.
        make_global: Makes one subtask of the second.
        parallelism: Of the second phase.
        parts: A snapshot to begin with.
        anew: Whether event time starts anew.
    """

    def __init__(self, keys, make_local, make_global, *, parallelism=1, parts=(), anew=False):
        self.keys = list(keys)
        self.local = None if make_local is None else make_local()
        if self.local is not None:
            self.local.open(dataclasses.replace(context_of(), is_restored=bool(parts)))
        self.subtasks = []
        for subtask in range(parallelism):
            operator = make_global()
            context = context_of(subtask, parallelism, parts)
            operator.open(dataclasses.replace(context, starts_event_time_anew=anew))
            self.subtasks.append(operator)

    def process(self, batch):
        if self.local is not None:
            self.local.process_batch(batch, 0)
            pieces, self.local.context.output.batches = self.local.context.output.batches, []
        else:
            pieces = [batch]
        for piece in pieces:
            if not self.keys:
                self.subtasks[0].process_batch(piece, 0)
                continue
            groups = key_groups_of(hash_columns([piece.columns.column(key) for key in self.keys]), MAX_PARALLELISM)
            owners = subtask_of(groups, MAX_PARALLELISM, len(self.subtasks))
            for subtask, operator in enumerate(self.subtasks):
                part = piece.filter(owners == subtask)
                if part.num_rows:
                    operator.process_batch(part, 0)

    def watermark(self, time_ms):
        for operator in [*self.subtasks, *([self.local] if self.local is not None else [])]:
            operator.process_watermark(Watermark(time_ms))

    def take(self):
        return [row for operator in self.subtasks for row in operator.context.output.take()]

    def late(self):
        return [
            row
            for operator in self.subtasks
            for tag, batch in operator.context.output.side
            if tag == "late"
            for row in batch.columns.to_pylist()
        ]

    def num_late(self):
        return sum(operator.context.metrics.counters.get("num_late_records_dropped", 0) for operator in self.subtasks)

    def snapshot(self):
        parts = []
        for subtask, operator in enumerate(self.subtasks):
            operator.prepare_snapshot(1)
            operator.snapshot_state(1)
            for backend in (operator.context.keyed_state, operator.context.operator_state):
                parts += [
                    RestoredPart(part.state, part.kind, part.metadata, part.write(), subtask)
                    for part in backend.snapshot()
                ]
        return parts

    def num_runs(self):
        return sum(
            len(operator._held.table.runs(namespace))
            for operator in self.subtasks
            if operator._held.table is not None
            for namespace in operator._held.table.namespaces()
        )
