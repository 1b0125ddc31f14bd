"""One subtask of a source, driven as a task drives it, with a source whose splits carry their records and a clock by
hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.columns.records import Batch, StreamStatus, Watermark
from headrace.engine.connectors.contract import ALL_SPLITS_FINISHED, NOTHING_NOW, Polled, Split, SplitFinished
from headrace.engine.connectors.sources import SourceOperator
from headrace.engine.errors import SourceError
from headrace.engine.functions.operator import OperatorContext
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.event_time import WatermarkStrategy
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import RestoredPart

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row)


@dataclass
class ListSource:
    """Splits whose payload is their records; None among them means: nothing now."""

    is_bounded: bool = True
    is_concurrent: bool = False
    readers: list[Any] = field(default_factory=list)

    def create_enumerator(self, context):
        raise NotImplementedError

    def create_reader(self):
        self.readers.append(ListReader(self))
        return self.readers[-1]


class ListReader:
    def __init__(self, source):
        self.source = source
        self.splits = {}
        self.is_closed = False
        self.due = None

    def open(self, context):
        self.context = context

    @property
    def wants_split(self):
        return self.source.is_concurrent and len(self.splits) < 2

    def add_splits(self, splits):
        for split in splits:
            self.splits[split.split_id] = [split, split.position or 0]

    def poll(self, max_records):
        if not self.splits:
            return ALL_SPLITS_FINISHED
        split_id = next(iter(self.splits))
        entry = self.splits.pop(split_id)
        split, position = entry
        rows = split.payload["rows"][position : position + max_records]
        if rows and rows[0] == "fail":
            message = "cannot read"
            raise SourceError(message, split=split_id, position=position)
        if rows and rows[0] == "bad":
            self.context.emit_dead_letter(Batch.of_rows([{"raw": "bad"}]))
            entry[1] += 1
            self.splits[split_id] = entry
            return Polled(split_id, Batch.of_rows([]))
        if not rows:
            return SplitFinished(split_id)
        if rows[0] is None:
            self.splits[split_id] = [split, position + 1]
            return NOTHING_NOW
        rows = rows[: rows.index(None)] if None in rows else rows
        self.splits[split_id] = [split, position + len(rows)]
        return Polled(split_id, Batch.of_rows(rows))

    def next_poll_ms(self):
        return self.due

    def snapshot(self):
        return [Split(split.split_id, split.payload, position) for split, position in self.splits.values()]

    def close(self):
        self.is_closed = True


class Recorder:
    """An output that remembers."""

    def __init__(self):
        self.elements = []
        self.side = []

    def emit(self, batch):
        assert batch.num_rows
        self.elements.append(batch.rows)

    def emit_watermark(self, watermark):
        self.elements.append(watermark)

    def emit_status(self, status):
        self.elements.append(status)

    def emit_side(self, tag, batch):
        self.side.append((tag, batch.rows))

    @property
    def rows(self):
        return [row for element in self.elements if isinstance(element, list) for row in element]

    @property
    def watermarks(self):
        return [element.timestamp_ms for element in self.elements if isinstance(element, Watermark)]

    @property
    def statuses(self):
        return [element.idle for element in self.elements if isinstance(element, StreamStatus)]


class Harness:
    """One subtask of a source, driven as a task drives it."""

    def __init__(self, source=None, strategy=MONOTONOUS, parts=(), now_ms=0):
        self.source = source or ListSource()
        self.output = Recorder()
        self.now_ms = now_ms
        self.warnings = []
        self.state = HeapOperatorStateBackend("source")
        self.state.restore(parts, 0, 1)
        self.operator = SourceOperator(self.source, strategy)
        context = OperatorContext(
            operator="source",
            name="source",
            subtask=0,
            parallelism=1,
            max_parallelism=128,
            attempt="source[0]#0.0",
            job="job",
            output=self.output,
            keyed_state=None,
            operator_state=self.state,
            metrics=MetricGroup(),
            now_ms=lambda: self.now_ms,
            probe=lambda point: None,
            report=lambda name, value: self.warnings.append((name, value)),
        )
        self.operator.open(context)

    def poll(self, max_records=100):
        return self.operator.poll_next(max_records)

    def add(self, split_id, *rows):
        self.operator.split_requested()
        self.operator.add_splits([Split(split_id, {"rows": list(rows)})])

    def snapshot(self):
        self.operator.snapshot_state(1)
        return [
            RestoredPart(p.state, p.kind, json.loads(json.dumps(p.metadata)), p.write(), 0)
            for p in self.state.snapshot()
        ]
