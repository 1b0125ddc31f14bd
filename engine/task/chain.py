"""An operator chain: operators of one task joined by plain calls.

Each operator has a `ChainOutput` that hands what it emits to the operators chained behind it and to the gates of the
task's outgoing edges. Side outputs are told apart by tag; watermarks, idleness and markers go everywhere. An
exception that comes out of an operator is given the operator's name and subtask here, once, wherever it was raised.

Source: Flink's ``OperatorChain`` and ``ChainingOutput``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..columns.records import Batch, Element, LatencyMarker, RowKind, RowKinds, StreamStatus, Watermark
from ..columns.rejected_records import RejectedRecords
from ..errors import HeadraceError, InternalError, TypeMismatchError, raise_from_outside
from ..functions.accumulators import Accumulators
from ..functions.isolation import Handed, owned
from ..functions.operator import Operator, add_place, place_of
from ..kernel.metrics import MetricGroup
from ..operators.exchange import Partitioner
from ..operators.sorted_input import SortedInput
from .channels import CutBatch, OutputChannel
from .processor_time import Account, ProcessorTime

__all__ = ["ChainLink", "ChainOutput", "OutputGate", "raise_in_operator"]


def raise_in_operator(error: BaseException, uid: str, name: str, subtask: int, parallelism: int) -> NoReturn:
    """Re-raise an operator's failure with its place: as it is if it is one of ours, wrapped if not."""
    raise_from_outside(error)
    place = place_of(name, subtask, parallelism)
    if isinstance(error, HeadraceError):
        add_place(error, place, uid)
        raise error
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = f"operator failed: {error!r}"
    raise InternalError(message, **place, traceback=trace) from error


class OutputGate:
    """One outgoing edge of a task: a partitioner and its channels."""

    __slots__ = ("_now_ms", "_partition", "_time", "channels", "handed")

    def __init__(
        self,
        partitioner: Partitioner,
        channels: list[OutputChannel],
        now_ms: Callable[[], int],
        time: ProcessorTime | None = None,
    ) -> None:
        self._partition = partitioner.partition
        self._time = time or ProcessorTime()
        self._now_ms = now_ms
        self.channels = channels
        # Watches over the records while keys and receivers are found; None where records are not watched.
        self.handed: Handed | None = None

    def emit(self, batch: Batch) -> None:
        """Cut a batch and hand the pieces to the channels."""
        now_ms = self._now_ms()
        outer = self._time.switch(self._time.exchanges)
        if self.handed is not None:
            self.handed.over(batch)
        pieces = self._partition(batch)
        if self.handed is not None:
            self.handed.check()
        for index, piece in pieces:
            self.channels[index].add_batch(piece, now_ms)
        self._time.switch(outer)

    def stay(self, index: int) -> None:
        """Send all records to one channel from now on: that which each would be sent to anyway."""
        self._partition = lambda batch: [(index, batch)]

    def broadcast(self, element: Element, *, flush: bool = False) -> None:
        """Hand a control element to every channel."""
        now_ms = self._now_ms()
        for channel in self.channels:
            channel.add_control(element, now_ms, flush=flush)


class ChainLink:
    """One operator within its chain: the only way the task and its predecessor call it."""

    __slots__ = (
        "_handed",
        "_isolates",
        "_sorted",
        "_time",
        "_watermark",
        "accumulators",
        "is_open",
        "metrics",
        "name",
        "operator",
        "output",
        "parallelism",
        "processor",
        "rejected",
        "subtask",
        "uid",
    )

    def __init__(
        self,
        uid: str,
        name: str,
        operator: Operator,
        subtask: int,
        parallelism: int,
        metrics: MetricGroup,
        time: ProcessorTime | None = None,
    ) -> None:
        self.uid = uid
        self.name = name
        self.operator = operator
        self.subtask = subtask
        self.parallelism = parallelism
        self.metrics = metrics
        # Whether the operator has been opened, and not been closed: before that it has no state to tell of.
        self.is_open = False
        self.accumulators = Accumulators()
        # The last records that the operator has rejected; None where the cluster shows no records.
        self.rejected: RejectedRecords | None = None
        # The processor time of the operator itself, without those behind it.
        self.processor = Account()
        self._time = time or ProcessorTime()
        # Filled in when the chain is joined.
        self.output = ChainOutput(metrics)
        # Whether its operator gets copies of records that others hold.
        self._isolates = operator.may_change_records
        # Watches over records that it may not change; None where records are not watched.
        self._handed: Handed | None = None
        # In a batch: gathers what comes until all has; None if records are fed as they come, and once all are. And the
        # end of event time, which has come and waits until they are.
        self._sorted: SortedInput | None = None
        self._watermark: Watermark | None = None

    def isolate(self, *, reuses_objects: bool, watches: bool) -> None:
        """Say how records that others hold are kept from being changed."""
        changes = self.operator.may_change_records
        self._isolates = changes and not reuses_objects
        if watches and (reuses_objects or not changes):
            function = getattr(self.operator, "function", None)
            name = getattr(function, "name", None) or type(getattr(self.operator, "sink", self.operator)).__name__
            place = place_of(self.name, self.subtask, self.parallelism)
            self._handed = self.output.handed = Handed(f"function {name}", **place)

    def process_batch(self, batch: Batch, input_index: int) -> None:
        """Feed records to the operator, or gather them until all have come."""
        self.metrics.count("num_records_in", batch.num_rows)
        if batch.row_kinds is not None and not self.operator.takes_changes:
            self._refuse_changes(batch.row_kinds)
        if self._isolates and batch.is_shared:
            batch = owned(batch)
        if self._sorted is not None and self._sorted.takes(input_index):
            self.call(self._sorted.add, batch, input_index)
        else:
            self._feed(batch, input_index)

    def _refuse_changes(self, row_kinds: RowKinds) -> NoReturn:
        what = RowKind(int(row_kinds.max())).short
        message = f"the operator takes records that are inserted; it was given a change ({what})"
        place = place_of(self.name, self.subtask, self.parallelism)
        raise TypeMismatchError(message, **place)

    def _feed(self, batch: Batch, input_index: int) -> None:
        operator, outer = self.operator, self._time.switch(self.processor)
        try:
            if self._handed is not None and (batch.is_shared or not operator.may_change_records):
                self._handed.over(batch)
            operator.process_batch(batch, input_index)
            if self._handed is not None:
                self._handed.check()
            if operator.keyed:
                operator.context.keyed_state.batch_processed(batch.num_rows)
        except BaseException as error:
            raise_in_operator(error, self.uid, self.name, self.subtask, self.parallelism)
        finally:
            self._time.switch(outer)

    def process_watermark(self, watermark: Watermark) -> None:
        """Tell the operator how far event time is; the end waits until what was gathered has been fed."""
        if self._sorted is None:
            self.call(self.operator.process_watermark, watermark)
        else:
            self._watermark = watermark

    def sort_input(self, gathered: SortedInput) -> None:
        """Gather records, to be fed in order when all have come; once, before the first."""
        self._sorted = gathered

    @property
    def is_draining(self) -> bool:
        """Whether all records have come and some that were gathered are still to be fed."""
        return self._watermark is not None

    def drain(self, cut: CutBatch) -> bool:
        """Feed some of what was gathered, or get on with putting it in order; behind the last of it comes the end of
        event time. Gives whether records were fed.
        """
        gathered, watermark = self._sorted, self._watermark
        assert gathered is not None
        assert watermark is not None
        if self.call(gathered.merge_some):
            return False
        following = self.call(gathered.next)
        if following is None:
            self.stop_sorting()
            self.process_watermark(watermark)
            return False
        batch, input_index = following
        num_rows = cut(batch, 0)
        if num_rows < batch.num_rows:
            gathered.put_back(batch.slice(num_rows, batch.num_rows - num_rows), input_index)
            batch = batch.slice(0, num_rows)
        self._feed(batch, input_index)
        return True

    def check_drained(self) -> None:
        """See that nothing that was gathered is left when the operator finishes."""
        if self._sorted is not None:
            message = "a batch's input has ended without the end of event time"
            raise InternalError(message, operator=self.name)

    def stop_sorting(self) -> None:
        """Let go of what was gathered; also when the task ends early."""
        gathered, self._sorted, self._watermark = self._sorted, None, None
        if gathered is not None:
            self._note_sorting(gathered, 0)
            gathered.close()

    def note_sorting(self) -> None:
        """Say in the operator's metrics what sorting its input takes of memory and disk."""
        if self._sorted is not None:
            self._note_sorting(self._sorted, self._sorted.memory_bytes)

    def _note_sorting(self, gathered: SortedInput, memory_bytes: int) -> None:
        self.metrics.gauge("sorted_input.memory_bytes", memory_bytes)
        self.metrics.gauge("sorted_input.spilled_bytes", gathered.num_spilled_bytes)

    def process_marker(self, marker: LatencyMarker) -> None:
        """Note how long a marker has been on its way, and have the operator pass it on.

        It is noted as it comes, so what it waits for in an operator shows behind it. Two machines' clocks may differ.
        """
        latency_ms = max(self.operator.context.now_ms() - marker.emitted_ms, 0)
        self.metrics.add_group("source", marker.source).distribution("latency_ms").update(latency_ms)
        self.call(self.operator.process_marker, marker)

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call anything else of the operator, with its place in the error should it fail."""
        outer = self._time.switch(self.processor)
        try:
            return method(*arguments)
        except BaseException as error:
            raise_in_operator(error, self.uid, self.name, self.subtask, self.parallelism)
        finally:
            self._time.switch(outer)


class ChainOutput:
    """The `Output` of one operator of a chain."""

    __slots__ = (
        "_main_gates",
        "_main_links",
        "_metrics",
        "_side_gates",
        "_side_links",
        "all_gates",
        "all_links",
        "handed",
    )

    def __init__(self, metrics: MetricGroup) -> None:
        self._metrics = metrics
        self._main_links: list[ChainLink] = []
        self._main_gates: list[OutputGate] = []
        self._side_links: dict[str, list[ChainLink]] = {}
        self._side_gates: dict[str, list[OutputGate]] = {}
        self.handed: Handed | None = None
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

    @property
    def main_links(self) -> Sequence[ChainLink]:
        """The operators that get what is emitted to no side."""
        return self._main_links

    def emit(self, batch: Batch) -> None:
        if batch.num_rows == 0:
            return
        self._metrics.count("num_records_out", batch.num_rows)
        if self.handed is not None:
            self.handed.check()  # behind this operator a record may be changed by who owns it
        if len(self._main_links) + len(self._main_gates) > 1:
            batch.shared()
        for link in self._main_links:
            link.process_batch(batch, 0)
        for gate in self._main_gates:
            gate.emit(batch)

    def emit_side(self, tag: str, batch: Batch) -> None:
        if batch.num_rows == 0:
            return
        if self.handed is not None:
            self.handed.check()
        if len(self._side_links.get(tag, ())) + len(self._side_gates.get(tag, ())) > 1:
            batch.shared()
        for link in self._side_links.get(tag, ()):
            link.process_batch(batch, 0)
        for gate in self._side_gates.get(tag, ()):
            gate.emit(batch)

    def emit_watermark(self, watermark: Watermark) -> None:
        self._metrics.gauge("watermark_ms", watermark.timestamp_ms)
        for link in self.all_links:
            link.process_watermark(watermark)
        for gate in self.all_gates:
            gate.broadcast(watermark)

    def emit_status(self, status: StreamStatus) -> None:
        for link in self.all_links:
            link.call(link.operator.process_status, status)
        for gate in self.all_gates:
            gate.broadcast(status)

    def emit_marker(self, marker: LatencyMarker) -> None:
        for link in self.all_links:
            link.process_marker(marker)
        for gate in self.all_gates:
            gate.broadcast(marker)
