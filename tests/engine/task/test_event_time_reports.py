"""Reports of where event time is: they come at intervals, also while an operator waits for its state."""

from __future__ import annotations

from types import SimpleNamespace

from headrace.engine.functions.event_time_parts import OperatorEventTime, WatermarkPart
from headrace.engine.functions.operator import Operator
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.task.chain import ChainLink
from headrace.engine.task.outbox import TaskMetrics
from headrace.engine.task.processor_time import ProcessorTime
from headrace.state.identifiers import ExecutionAttemptId, VertexId


class Waits(Operator):
    """Has its timers from `open` on, as operators with state have."""

    def open(self, context):
        self.timers = [7_000, 5_000]

    def next_event_time(self):
        return min(self.timers)

    def watermark_parts(self):
        return [WatermarkPart("split", self.timers[0], 1)]


def reported(link):
    """What a task tells of its only operator."""
    told = []
    outbox = SimpleNamespace(attempt=ExecutionAttemptId(1, 0, VertexId("v"), 3), tell_job_manager=told.append)
    TaskMetrics([link], outbox, lambda: 0, ProcessorTime()).report()
    return told[0].event_time["op"]


def test_an_operator_that_is_not_open_is_not_asked():
    link = ChainLink("op", "op", Waits(), 0, 1, MetricGroup())
    assert reported(link) == OperatorEventTime(None, subtask=3)
    link.operator.open(None)
    link.is_open = True
    assert reported(link) == OperatorEventTime(None, 5_000, (WatermarkPart("split", 7_000, 1),), 1, 3)
    link.is_open = False
    assert reported(link) == OperatorEventTime(None, subtask=3)
