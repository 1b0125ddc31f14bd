"""An operator chain: operators of one task joined by plain calls.

Each operator has a `ChainOutput` that hands what it emits to the operators chained behind it and to the gates of the
task's outgoing edges. Side outputs are told apart by tag; watermarks, idleness and markers go everywhere. An
exception that comes out of an operator is given the operator's name and subtask here, once, wherever it was raised.

Source: Flink's ``OperatorChain`` and ``ChainingOutput``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.engine.accumulators import Accumulators
from headrace.engine.channels import OutputChannel
from headrace.engine.errors import HeadraceError, InternalError
from headrace.engine.exchange import Partitioner
from headrace.engine.metrics import MetricGroup
from headrace.engine.operators import Operator, add_place
from headrace.engine.records import Batch, Element, LatencyMarker, StreamStatus, Watermark

__all__ = ["ChainLink", "ChainOutput", "OutputGate", "raise_in_operator"]


def raise_in_operator(error: Exception, uid: str, name: str, subtask: int, parallelism: int) -> NoReturn:
    """Re-raise an operator's failure with its place: as it is if it is one of ours, wrapped if not."""
    place = {"operator": name, "subtask": f"{subtask + 1}/{parallelism}"}
    if isinstance(error, HeadraceError):
        add_place(error, place, uid)
        raise error
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"operator failed: {error!r}"
    raise InternalError(message, **place, traceback=trace) from error


class OutputGate:
    """One outgoing edge of a task: a partitioner and its channels."""

    __slots__ = ("_now_ms", "_partition", "channels")

    def __init__(self, partitioner: Partitioner, channels: list[OutputChannel], now_ms: Callable[[], int]) -> None:
        self._partition = partitioner.partition
        self._now_ms = now_ms
        self.channels = channels

    def emit(self, batch: Batch) -> None:
        """Cut a batch and hand the pieces to the channels."""
        now_ms = self._now_ms()
        for index, piece in self._partition(batch):
            self.channels[index].add_batch(piece, now_ms)

    def broadcast(self, element: Element, *, flush: bool = False) -> None:
        """Hand a control element to every channel."""
        now_ms = self._now_ms()
        for channel in self.channels:
            channel.add_control(element, now_ms, flush=flush)


class ChainLink:
    """One operator within its chain: the only way the task and its predecessor call it."""

    __slots__ = ("accumulators", "metrics", "name", "operator", "output", "parallelism", "subtask", "uid")

    def __init__(
        self, uid: str, name: str, operator: Operator, subtask: int, parallelism: int, metrics: MetricGroup
    ) -> None:
        self.uid = uid
        self.name = name
        self.operator = operator
        self.subtask = subtask
        self.parallelism = parallelism
        self.metrics = metrics
        self.accumulators = Accumulators()
        # Filled in when the chain is joined.
        self.output = ChainOutput(metrics)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Feed records to the operator."""
        self.metrics.count("num_records_in", batch.num_rows)
        operator = self.operator
        try:
            operator.process_batch(batch, input_index)
            if operator.keyed:
                operator.context.keyed_state.batch_processed(batch.num_rows)
        except Exception as error:
            raise_in_operator(error, self.uid, self.name, self.subtask, self.parallelism)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call anything else of the operator, with its place in the error should it fail."""
        try:
            return method(*arguments)
        except Exception as error:
            raise_in_operator(error, self.uid, self.name, self.subtask, self.parallelism)


class ChainOutput:
    """The `Output` of one operator of a chain."""

    __slots__ = ("_main_gates", "_main_links", "_metrics", "_side_gates", "_side_links", "all_gates", "all_links")

    def __init__(self, metrics: MetricGroup) -> None:
        self._metrics = metrics
        self._main_links: list[ChainLink] = []
        self._main_gates: list[OutputGate] = []
        self._side_links: dict[str, list[ChainLink]] = {}
        self._side_gates: dict[str, list[OutputGate]] = {}
        self.all_links: list[ChainLink] = []
        self.all_gates: list[OutputGate] = []

    def add_link(self, link: ChainLink, side_tag: str | None) -> None:
        """Join an operator behind this output."""
        (self._main_links if side_tag is None else self._side_links.setdefault(side_tag, [])).append(link)
        self.all_links.append(link)

    def add_gate(self, gate: OutputGate, side_tag: str | None) -> None:
        """Join an outgoing edge behind this output."""
        (self._main_gates if side_tag is None else self._side_gates.setdefault(side_tag, [])).append(gate)
        self.all_gates.append(gate)

    def emit(self, batch: Batch) -> None:
        if batch.num_rows == 0:
            return
        self._metrics.count("num_records_out", batch.num_rows)
        for link in self._main_links:
            link.process_batch(batch, 0)
        for gate in self._main_gates:
            gate.emit(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        if batch.num_rows == 0:
            return
        for link in self._side_links.get(tag, ()):
            link.process_batch(batch, 0)
        for gate in self._side_gates.get(tag, ()):
            gate.emit(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        self._metrics.gauge("watermark_ms", watermark.timestamp_ms)
        for link in self.all_links:
            link.call(link.operator.process_watermark, watermark)
        for gate in self.all_gates:
            gate.broadcast(watermark)

    def emit_status(self, status: StreamStatus) -> None:
        for link in self.all_links:
            link.call(link.operator.process_status, status)
        for gate in self.all_gates:
            gate.broadcast(status)

    def emit_marker(self, marker: LatencyMarker) -> None:
        for link in self._main_links:
            link.call(link.operator.process_marker, marker)
        for gate in self._main_gates:
            gate.broadcast(marker)
