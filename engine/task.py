"""One subtask: takes elements from its channels, drives its operator chain, answers barriers. Pure: time and
messages come in, messages go out.

Its life: built and restored (INITIALIZING), READY, started (RUNNING), all input processed (ENDED, still answering
barriers so that checkpoints go on until the job ends), FINISHED; or CANCELED or FAILED at any time. A step is
bounded: one batch of a source, or one element of a channel.

Order at barrier n (features row 0.10): operators flush pending output; state is snapshotted; the barrier is
forwarded; channels are unblocked; what waited behind the barriers is processed, oldest first, before anything newer
of the same channel.

Source: Flink's ``StreamTask``, ``StreamInputProcessor``; FLIP-147 (checkpoints after tasks have finished).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import cloudpickle

from headrace.engine.barriers import Alignment, BarrierAligner
from headrace.engine.chain import ChainLink, OutputGate
from headrace.engine.channels import InputChannel, OutputChannel
from headrace.engine.config import CheckpointingMode
from headrace.engine.errors import HeadraceError
from headrace.engine.eventtime import WatermarkCombiner
from headrace.engine.iterations import IterationHead, LoopTask
from headrace.engine.jobgraph import JobVertex
from headrace.engine.loop_progress import LoopGates, ProbeRelay, looping_links
from headrace.engine.machine import Address, CancelOffload, Command, Offload, OffloadKind, Send
from headrace.engine.messages import (
    AcknowledgeCheckpoint,
    AddCredit,
    DataMessage,
    DeclineCheckpoint,
    MetricsReported,
    NextInputSplit,
    ReportEmitted,
    ReportWatermark,
    RequestNextInputSplit,
    TaskDeployment,
    UpdateTaskExecutionState,
    WatermarkLimit,
)
from headrace.engine.metrics import MetricGroup, MetricValue
from headrace.engine.operators import OffloadEnd, OperatorContext
from headrace.engine.records import (
    Batch,
    CheckpointBarrier,
    Element,
    EndOfInput,
    LatencyMarker,
    LoopProbe,
    StreamStatus,
    Watermark,
)
from headrace.engine.snapshot_io import upload_snapshot
from headrace.engine.sources import PollResult, SourceOperator
from headrace.state.backend import KeyedStateBackend, RestoredPart, SnapshotPart
from headrace.state.backends import KEYED_KINDS, make_keyed_backend, restore_keyed_backend
from headrace.state.heap import HeapOperatorStateBackend
from headrace.state.identifiers import OperatorId
from headrace.state.keygroups import KeyGroupRange, key_group_range
from headrace.state.snapshot import OperatorSnapshot

__all__ = ["Task"]

DEFAULT_POLL_MS = 20
"""A source that has nothing now and names no time is asked again after this long."""


class Task:
    """One execution attempt of one subtask, in its slot.

    Args:
        deployment: What to run and with whom.
        address: The slot's own address.
        now_ms: The injected clock.
        probe: Marks protocol points.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        address: Address,
        now_ms: Callable[[], int],
        probe: Callable[[str], None],
    ) -> None:
        self.deployment = deployment
        self.attempt = deployment.attempt
        self.state = "INITIALIZING"
        # Commands that came up in the current call; the slot takes them with `take_commands`.
        self._commands: list[Command] = []
        self._address = address
        self._now_ms = now_ms
        self._probe = probe
        self._settings = deployment.settings
        self._num_reports = 0
        # Upload of snapshots under way: checkpoint id -> (started, alignment ms, sync ms).
        self._uploads: dict[int, tuple[int, int, int]] = {}
        # When the first barrier of the current alignment came.
        self._alignment_started_ms: int | None = None
        # Sources: number of the last split request; whether there is nothing to poll before this time.
        self._split_nonce = 0
        self._poll_again_ms: int | None = 0
        self._next_marker_ms = 0
        # Work of operators that runs outside: number -> whose it is and whom to tell of its end.
        self._works: dict[int, tuple[ChainLink, OffloadEnd]] = {}
        self._num_works = 0
        # All input is processed: index of the link that is to finish next, and whether it knows that its input ended.
        self._finishing: int | None = None
        self._knows_end = False
        vertex: JobVertex = cloudpickle.loads(deployment.vertex)
        self.name = vertex.name
        self._vertex = vertex
        self.links = self._build_chain(vertex)
        self._head = self.links[0]
        # The operators that may be blocked.
        self._offloaders = [link.operator for link in self.links if link.operator.offloads]
        # Keyed state of the operators that have been opened, or are about to be.
        self._keyed: dict[OperatorId, KeyedStateBackend] = {}
        # Index of the first link whose operator has a context: they are opened last first, and may fail half-way.
        self._first_opened = len(self.links)
        self.is_source = isinstance(self._head.operator, SourceOperator)
        self._iteration = self._head.operator if isinstance(self._head.operator, IterationHead) else None
        channels = self._build_inputs()
        self._input_by_peer = {(c.edge_id, c.producer): c for c in channels}
        # The channels that close a loop here, apart from all others: they are not aligned and hold nobody back.
        feedback = {edge.edge_id for edge in deployment.input_edges if edge.is_feedback}
        self._inputs = [c for c in channels if c.edge_id not in feedback]
        self._feedback = [c for c in channels if c.edge_id in feedback]
        # Snapshots of a head that wait for what is in the loop: checkpoint id -> parts.
        self._held: dict[int, list[tuple[OperatorId, list[SnapshotPart]]]] = {}
        # Whether the last step emitted from the head's backlog: it takes turns with input.
        self._was_backlog = False
        in_loop = {edge.edge_id for edge in deployment.input_edges if edge.is_in_loop and not edge.is_feedback}
        inner = [c.index for c in self._inputs if c.edge_id in in_loop]
        outer = [c.index for c in self._inputs if c.edge_id not in in_loop]
        self._relay = ProbeRelay(inner, outer) if inner else None
        self._next_input = 0
        mode = self._settings.checkpoints.mode if self._settings.checkpoints else CheckpointingMode.EXACTLY_ONCE
        self._aligner = BarrierAligner(len(self._inputs), mode)
        self._watermarks = WatermarkCombiner(len(self._inputs)) if self._inputs else None
        # Accounting, in milliseconds: measured by an integer clock at unrelated times, hence unbiased in the sum.
        self.busy_ms = self.backpressured_ms = 0
        self.deployed_ms = now_ms()
        # Since when output has been waiting for credit; None while it is not.
        self._backpressured_since_ms: int | None = None

    # -------------------------------------------------------------------------------------------------------- building
    def _build_chain(self, vertex: JobVertex) -> list[ChainLink]:
        subtask, parallelism = self.attempt.subtask, vertex.parallelism
        links = [
            ChainLink(node.uid, node.name, node.operator, subtask, parallelism, MetricGroup(self._now_ms))
            for node in vertex.chain
        ]
        for link, node in zip(links, vertex.chain, strict=True):
            if node.parent is not None:
                links[node.parent].output.add_link(link, node.side_tag)
        self._outputs: dict[tuple[int, Any], OutputChannel] = {}
        self._loop_gates = LoopGates()
        for edge in self.deployment.output_edges:
            peers = [channel for channel in self.deployment.outputs if channel.edge_id == edge.edge_id]
            channels = [
                OutputChannel(
                    edge.edge_id,
                    self.attempt,
                    peer.peer,
                    peer.peer_address,
                    self._settings.max_batch_rows,
                    self._settings.max_batch_bytes,
                )
                for peer in peers
            ]
            for channel in channels:
                self._outputs[(edge.edge_id, channel.consumer)] = channel
            partitioner = edge.partitioner.bind(len(channels), subtask, edge.target_max_parallelism)
            gate = OutputGate(partitioner, channels, self._now_ms)
            links[edge.source_operator].output.add_gate(gate, edge.side_tag)
            if edge.is_in_loop:
                self._loop_gates.gates.append(gate)
        self._loop_gates.links = looping_links(links, self._loop_gates.gates)
        self._gates: list[OutputGate] = [gate for link in links for gate in link.output.all_gates]
        self._channels = list(self._outputs.values())
        return links

    def _build_inputs(self) -> list[InputChannel]:
        input_of_edge = {edge.edge_id: edge.input_index for edge in self.deployment.input_edges}
        feedback = {edge.edge_id for edge in self.deployment.input_edges if edge.is_feedback}
        return [
            InputChannel(
                index,
                channel.edge_id,
                input_of_edge[channel.edge_id],
                channel.peer,
                self.attempt,
                channel.peer_address,
                self._settings.channel_credits,
                self._settings.channel_credit_bytes,
            )
            for index, channel in enumerate(sorted(self.deployment.inputs, key=lambda c: c.edge_id in feedback))
        ]

    def initialize(self, restored: dict[OperatorId, list[RestoredPart]]) -> None:
        """Restore state and open the operators, last first, so that whoever emits finds the next one open."""
        for link in reversed(self.links):
            link.call(self._open, link, restored.get(OperatorId(link.uid), []))
        if self._iteration is not None:
            mode = self._settings.checkpoints.mode if self._settings.checkpoints else CheckpointingMode.EXACTLY_ONCE
            task = LoopTask(
                [channel.index for channel in self._feedback],
                mode is CheckpointingMode.EXACTLY_ONCE,
                self._settings.max_batch_rows,
                self._loop_gates.send,
                self._end_of_input,
            )
            self._head.call(self._iteration.join, task)
        self._set_state("READY")

    def _open(self, link: ChainLink, parts: list[RestoredPart]) -> None:
        operator_id = OperatorId(link.uid)
        vertex, subtask = self._vertex, self.attempt.subtask
        owned = key_group_range(vertex.max_parallelism, vertex.parallelism, subtask)
        keyed = self._make_keyed_backend(operator_id, owned)
        operator_state = HeapOperatorStateBackend(operator_id)
        if parts:
            restore_keyed_backend(keyed, self._settings.state.backend, parts, operator_id)
            operator_state.restore(
                [part for part in parts if part.kind in ("list", "union", "broadcast")], subtask, vertex.parallelism
            )
        context = OperatorContext(
            operator=operator_id,
            name=link.name,
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt=f"{self.attempt.epoch}.{self.attempt.attempt}",
            job=self.deployment.job_id,
            output=link.output,
            keyed_state=keyed,
            operator_state=operator_state,
            metrics=link.metrics,
            now_ms=self._now_ms,
            probe=self._probe,
            is_restored=self.deployment.restore is not None,
            report=functools.partial(self._report, operator_id),
            checkpointing=self._settings.checkpoints is not None,
            accumulators=link.accumulators,
            offload=functools.partial(self._offload, link),
            cancel_offload=self._cancel_offload,
        )
        # Set here as well, so that `close` and snapshots never meet an operator without one.
        link.operator.context = context
        self._first_opened = self.links.index(link)
        link.operator.open(context)

    def start(self) -> None:
        """Run: from here on peers may send."""
        self._set_state("RUNNING")
        for channel in self._input_by_peer.values():
            self._send(channel.producer_address, channel.initial_credit())

    # ------------------------------------------------------------------------------------------------------- messages
    def receive(self, message: DataMessage) -> None:
        """Take a data message; unknown channels belong to other attempts and are ignored."""
        channel = self._input_by_peer.get((message.edge_id, message.producer))
        if channel is not None:
            channel.receive(message)

    def add_credit(self, credit: AddCredit) -> None:
        """Take a grant of a consumer."""
        channel = self._outputs.get((credit.edge_id, credit.consumer))
        if channel is not None:
            channel.add_credit(credit)

    def take_split(self, answer: NextInputSplit) -> None:
        """Take the answer to a split request; answers to earlier requests are ignored.

        A source that was stopped takes it too: once handed out a split is known to nobody else.
        """
        source = self._head.operator
        if not isinstance(source, SourceOperator) or answer.nonce != self._split_nonce:
            return
        if self.state not in ("RUNNING", "ENDED"):
            return
        self._split_nonce += 1  # a doubled answer is an old one
        if answer.split is not None:
            self._head.call(source.add_split, answer.split)
        elif answer.no_more:
            source.no_more_splits()
        self._poll_again_ms = 0

    def stop_source(self, *, drain: bool) -> None:
        """Read no more, from before the start on if that is still to come."""
        source = self._head.operator
        if isinstance(source, SourceOperator):
            source.stop(drain=drain)
            self._poll_again_ms = 0

    def limit_watermark(self, limit: WatermarkLimit) -> None:
        """Take the answer to a report of the source's watermark."""
        source = self._head.operator
        if isinstance(source, SourceOperator) and source.limit_watermark(limit.number, limit.limit_ms):
            self._poll_again_ms = 0

    def trigger_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """A source begins a checkpoint."""
        if self.state in ("RUNNING", "ENDED"):
            self._checkpoint(barrier, alignment_ms=0)
        else:
            self._decline(barrier.checkpoint_id, f"task is {self.state}")

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable: operators commit."""
        for link in self.links:
            link.call(link.operator.notify_checkpoint_complete, checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up: nothing waits for it any more."""
        self._uploads.pop(checkpoint_id, None)
        self._held.pop(checkpoint_id, None)
        self._apply(self._aligner.on_abort(checkpoint_id), None)
        for link in self.links:
            link.call(link.operator.notify_checkpoint_aborted, checkpoint_id)

    def finish_job(self) -> None:
        """All of the job's data is processed and durable: end in order."""
        for link in self.links:
            link.call(link.operator.finish_job)
        self.report_metrics()
        failure = self.close()
        if failure is not None:
            raise failure
        self._set_state("FINISHED")

    def fail(self, error: BaseException) -> None:
        """End with an error; what goes wrong while closing is a footnote to it."""
        failure = self.close()
        if failure is not None and isinstance(error, HeadraceError):
            error.context.setdefault("on_closing", str(failure).splitlines()[0])
        self._set_state("FAILED", error)

    def cancel(self) -> None:
        """End on request; what goes wrong while closing is told with it."""
        self._set_state("CANCELED", self.close())

    def _make_keyed_backend(self, operator_id: OperatorId, owned: KeyGroupRange) -> KeyedStateBackend:
        settings = self._settings.state
        backend = make_keyed_backend(
            settings.backend,
            operator_id,
            self.attempt.subtask,
            owned,
            self._vertex.max_parallelism,
            self._now_ms,
            slot=self._address.host,
            managed_memory_bytes=settings.managed_memory_bytes,
            local_directory=settings.local_directory,
        )
        self._keyed[operator_id] = backend
        return backend

    def close(self) -> Exception | None:
        """Close every operator that was opened, and all state, whatever happens; gives the first failure."""
        failure: Exception | None = None
        closes: list[Callable[[], Any]] = [
            functools.partial(link.call, link.operator.close) for link in self.links[self._first_opened :]
        ]
        for close in [*closes, *(backend.close for backend in self._keyed.values())]:
            try:
                close()
            except Exception as error:
                failure = failure or error
        return failure

    # ----------------------------------------------------------------------------------------------------------- steps
    @property
    def is_backpressured(self) -> bool:
        """Whether output waits for credit, so that no more may be produced."""
        return any(channel.is_full for channel in self._channels)

    def is_runnable(self, now_ms: int) -> bool:
        """Whether `step` would do something now."""
        if self.state not in ("RUNNING", "ENDED"):
            return False
        if self._feedback and any(channel.has_element for channel in self._feedback):
            return True  # with or without credit for output, else the loop could stand still
        if self.is_backpressured:
            return False
        if self.state == "RUNNING" and (self._timers_due(now_ms) or self._can_finish):
            return True
        if self.is_source:
            due = self._poll_due_ms
            return self.state == "RUNNING" and due is not None and due <= now_ms
        if self._is_blocked:
            return any(channel.has_control for channel in self._inputs)
        if self._can_emit_backlog:
            return True
        return any(channel.has_element for channel in self._inputs)

    def wake_at_ms(self) -> int | None:
        """When a step may be wanted although no message has come: a timer, or a source's next poll.

        None while output waits for credit: only the message that brings it makes a step possible.
        """
        if self.state != "RUNNING" or self.is_backpressured:
            return None
        times = [time for link in self.links if (time := link.operator.next_processing_time()) is not None]
        poll_ms = self._poll_due_ms
        if poll_ms is not None:
            times.append(poll_ms)
        return min(times, default=None)

    def step(self, now_ms: int) -> None:
        """Fire due timers, then take one batch or one element."""
        if self._feedback:
            self._take_feedback()
            if self.is_backpressured:
                return
        if self.state == "RUNNING":  # once all input has ended nothing may be emitted any more
            self._fire_timers(now_ms)
            if self._finishing is not None:
                self._finish_links()
        is_blocked = self._is_blocked
        if self.is_source:
            if self.state == "RUNNING" and self._finishing is None and not is_blocked:
                self._poll(now_ms)
            return
        if not is_blocked and self._can_emit_backlog and self._is_turn_of_backlog():
            assert self._iteration is not None
            self._head.call(self._iteration.emit_next)
            return
        count = len(self._inputs)
        for offset in range(count):
            channel = self._inputs[(self._next_input + offset) % count]
            if channel.has_control if is_blocked else channel.has_element:
                self._next_input = (channel.index + 1) % count
                self._take_from(channel)
                return

    def flush(self, now_ms: int) -> int | None:
        """Send what is due; gives the time at which more will be, None if nothing waits for time."""
        timeout = self._settings.buffer_timeout_ms
        wake: int | None = None
        for channel in self._channels:
            due = channel.due_ms(timeout)
            if due is None:
                continue
            if due <= now_ms:
                self._send(channel.consumer_address, channel.take_message())
            elif wake is None or due < wake:
                wake = due
        return wake

    def account(self, now_ms: int) -> None:
        """Count time spent waiting for credit; called after every step of the slot."""
        if self._backpressured_since_ms is not None:
            self.backpressured_ms += now_ms - self._backpressured_since_ms
        self._backpressured_since_ms = now_ms if self.is_backpressured else None

    def take_commands(self) -> list[Command]:
        """The commands that have come up, in order."""
        commands, self._commands = self._commands, []
        return commands

    def _timers_due(self, now_ms: int) -> bool:
        for link in self.links:
            due = link.operator.next_processing_time()
            if due is not None and due <= now_ms:
                return True
        return False

    def _fire_timers(self, now_ms: int) -> None:
        for link in self.links:
            due = link.operator.next_processing_time()
            if due is not None and due <= now_ms:
                link.call(link.operator.on_processing_time, now_ms)

    def _poll(self, now_ms: int) -> None:
        source = self._head.operator
        assert isinstance(source, SourceOperator)
        self._emit_marker(now_ms)
        result = self._head.call(source.poll_next, self._settings.max_batch_rows)
        if result is PollResult.ENDED:
            self._end_of_input()
            return
        if result is PollResult.MORE:
            self._poll_again_ms = 0
        elif source.is_waiting_for_split:
            self._poll_again_ms = source.next_poll_ms()
        else:
            due = source.next_poll_ms()
            self._poll_again_ms = now_ms + DEFAULT_POLL_MS if due is None else due
        if source.wants_split:
            source.split_requested()
            request = RequestNextInputSplit(self.attempt, OperatorId(self._head.uid), self._split_nonce)
            self._send(self.deployment.job_manager, request)
        report = source.take_watermark_report(now_ms)
        if report is not None:
            self._send(self.deployment.job_manager, ReportWatermark(self.attempt, OperatorId(self._head.uid), *report))

    def _emit_marker(self, now_ms: int) -> None:
        interval = self._settings.latency_interval_ms
        if interval and now_ms >= self._next_marker_ms:
            self._next_marker_ms = now_ms + interval
            self._head.output.emit_marker(LatencyMarker(now_ms, self._head.name, self.attempt.subtask))

    def _take_from(self, channel: InputChannel) -> None:
        element = channel.take()
        if isinstance(element, Batch):
            self._head.process_batch(element, channel.input_index)
        elif isinstance(element, Watermark):
            self._advance_time(functools.partial(self._combiner.update, channel.index, element.timestamp_ms))
        elif isinstance(element, CheckpointBarrier):
            self._apply(self._aligner.on_barrier(channel.index, element), element)
        elif isinstance(element, StreamStatus):
            self._advance_time(functools.partial(self._combiner.set_idle, channel.index, element.idle))
        elif isinstance(element, EndOfInput):
            self._end_channel(channel)
        elif not isinstance(element, LoopProbe):
            self._head.call(self._head.operator.process_marker, element)
        if self._relay is not None and isinstance(element, (LoopProbe, Watermark, StreamStatus)):
            self._pass_probes(self._relay, channel, element)
        credit = channel.credit_due()
        if credit is not None:
            self._send(channel.producer_address, credit)

    # ----------------------------------------------------------------------------------------- work outside the mailbox
    def _offload(self, link: ChainLink, work: Callable[[], Any], on_end: OffloadEnd, kind: OffloadKind) -> int:
        self._num_works += 1
        number = self._num_works
        self._works[number] = (link, on_end)
        self._commands.append(Offload("operator_work", (self.attempt, number), work, kind))
        return number

    def _cancel_offload(self, number: int) -> None:
        if self._works.pop(number, None) is not None:
            self._commands.append(CancelOffload("operator_work", (self.attempt, number)))

    def work_ended(self, number: int, result: Any, error: BaseException | None) -> None:
        """Work of an operator has ended; that of which nobody wants to know any more is ignored."""
        entry = self._works.pop(number, None)
        if entry is not None:
            link, on_end = entry
            link.call(on_end, result, error)

    @property
    def _is_blocked(self) -> bool:
        """Whether an operator can take no more records for now."""
        return any(operator.is_blocked for operator in self._offloaders)

    @property
    def _can_finish(self) -> bool:
        """Whether the operator whose turn it is to finish waits for nothing any more."""
        return self._finishing is not None and not self.links[self._finishing].operator.has_pending

    @property
    def _poll_due_ms(self) -> int | None:
        """When a source is to be polled next; None for never, as long as nothing happens."""
        if not self.is_source or self._finishing is not None or self._is_blocked:
            return None
        return self._poll_again_ms

    @property
    def _combiner(self) -> WatermarkCombiner:
        assert self._watermarks is not None
        return self._watermarks

    def _advance_time(self, update: Callable[[], int | None]) -> None:
        """Let the combiner take something in, and pass on what came of it: progress, then a change of idleness."""
        was_idle = self._combiner.is_idle
        watermark_ms = update()
        if watermark_ms is not None:
            self._head.call(self._head.operator.process_watermark, Watermark(watermark_ms))
        if self._combiner.is_idle != was_idle:
            self._head.call(self._head.operator.process_status, StreamStatus(self._combiner.is_idle))

    def _end_channel(self, channel: InputChannel) -> None:
        channel.is_ended = True
        same_input = [c for c in self._inputs if c.input_index == channel.input_index]
        if all(c.is_ended for c in same_input):
            self._head.call(self._head.operator.end_input, channel.input_index)
        if self._relay is not None:
            self._pass_probes(self._relay, channel, EndOfInput())
        if all(c.is_ended for c in self._inputs) and self._iteration is None:  # the head of a loop ends by itself
            self._end_of_input()

    # ----------------------------------------------------------------------------------------------------------- loops
    def _take_feedback(self) -> None:
        """Take all that has come back, into the head's backlog: see `headrace.engine.iterations`."""
        assert self._iteration is not None
        for channel in self._feedback:
            while channel.has_element:
                self._head.call(self._iteration.take, channel.index, channel.take())
            credit = channel.credit_due()
            if credit is not None:
                self._send(channel.producer_address, credit)
        self._upload_logged()

    @property
    def _can_emit_backlog(self) -> bool:
        head = self._iteration
        return head is not None and head.has_backlog and self.state == "RUNNING" and self._finishing is None

    def _is_turn_of_backlog(self) -> bool:
        """Whether the backlog is next; it and input take turns, unless there is too much of it."""
        assert self._iteration is not None
        has_input = self._iteration.wants_input and any(channel.has_element for channel in self._inputs)
        self._was_backlog = not (has_input and self._was_backlog)
        return self._was_backlog

    def _pass_probes(self, relay: ProbeRelay, channel: InputChannel, element: Element) -> None:
        for probe in relay.take(channel.index, element):
            self._loop_gates.send(probe)

    def _upload_logged(self) -> None:
        """Write the snapshots of a head whose logs have become complete."""
        assert self._iteration is not None
        for checkpoint_id, parts in self._iteration.take_complete_logs():
            drafts = self._held.pop(checkpoint_id, None)
            if drafts is not None:
                drafts[0][1].extend(parts)
                self._upload(checkpoint_id, drafts)

    def _upload(self, checkpoint_id: int, drafts: list[tuple[OperatorId, list[SnapshotPart]]]) -> None:
        work = functools.partial(upload_snapshot, self.deployment, checkpoint_id, drafts)
        self._commands.append(Offload("upload_snapshot", (self.attempt, checkpoint_id), work))

    def _end_of_input(self) -> None:
        """All input is processed: let every operator finish, in turn."""
        self._finishing = 0
        self._finish_links()

    def _finish_links(self) -> None:
        """Go on finishing until an operator waits for work outside; after the last tell receivers and JobManager."""
        assert self._finishing is not None
        while self._finishing < len(self.links):
            link = self.links[self._finishing]
            if not self._knows_end:
                self._knows_end = True
                if link is not self._head:  # which was told of each input's end
                    link.call(link.operator.end_input, 0)
            if link.operator.has_pending:
                return
            link.call(link.operator.finish)
            self._finishing += 1
            self._knows_end = False
        self._finishing = None
        for gate in self._gates:
            gate.broadcast(EndOfInput(), flush=True)
        self.report_metrics()  # a short job may end before its first report is due
        self._set_state("ENDED")

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def _apply(self, alignment: Alignment, barrier: CheckpointBarrier | None) -> None:
        if alignment.superseded is not None:
            self._decline(alignment.superseded, "superseded by a newer checkpoint")
        if alignment.unblock:
            self._unblock()
        if alignment.block is not None:
            self._probe("task.align.first_barrier" if self._alignment_started_ms is None else "task.align.barrier")
            if self._alignment_started_ms is None:
                self._alignment_started_ms = self._now_ms()
            self._inputs[alignment.block].is_blocked = True
        if alignment.trigger is not None:
            assert barrier is not None
            started = self._alignment_started_ms
            self._checkpoint(alignment.trigger, 0 if started is None else self._now_ms() - started)
            self._unblock()

    def _unblock(self) -> None:
        self._alignment_started_ms = None
        for channel in self._inputs:
            channel.is_blocked = False

    def _checkpoint(self, barrier: CheckpointBarrier, alignment_ms: int) -> None:
        checkpoint_id = barrier.checkpoint_id
        started = self._now_ms()
        self._probe("task.snapshot.before")
        for link in self.links:
            link.call(link.operator.prepare_snapshot, checkpoint_id)
        drafts: list[tuple[OperatorId, list[SnapshotPart]]] = []
        for link in self.links:
            link.call(link.operator.take_snapshot, checkpoint_id)
            context = link.operator.context
            parts = [*context.keyed_state.snapshot(barrier.base_id), *context.operator_state.snapshot()]
            drafts.append((OperatorId(link.uid), parts))
        self._probe("task.snapshot.after")
        for gate in self._gates:
            gate.broadcast(barrier, flush=True)
        self._probe("task.barrier.forwarded")
        sync_ms = self._now_ms() - started
        self._uploads[checkpoint_id] = (started, alignment_ms, sync_ms)
        if self._iteration is None:
            self._upload(checkpoint_id, drafts)
        else:
            self._held[checkpoint_id] = drafts
            self._upload_logged()
        if barrier.suspends and self.state == "RUNNING":
            self._suspend()

    def _suspend(self) -> None:
        """The job is stopped at the snapshot just taken: whatever would come behind it belongs to a later run."""
        for number in list(self._works):
            self._cancel_offload(number)
        self._finishing = None
        self.report_metrics()
        self._set_state("ENDED")

    def upload_ended(
        self, checkpoint_id: int, snapshots: tuple[OperatorSnapshot, ...] | None, error: BaseException | None
    ) -> None:
        """The asynchronous part of a snapshot has ended: acknowledge it, or decline."""
        upload = self._uploads.pop(checkpoint_id, None)
        if upload is None:
            return  # aborted meanwhile
        if error is not None or snapshots is None:
            self._decline(checkpoint_id, f"could not write the snapshot: {error}")
            return
        for snapshot in snapshots:
            self._keyed[snapshot.operator].snapshot_stored(
                checkpoint_id, [file for file in snapshot.files if file.kind in KEYED_KINDS]
            )
        started, alignment_ms, sync_ms = upload
        files = [file for snapshot in snapshots for file in snapshot.files]
        metrics = {
            "alignment_ms": float(alignment_ms),
            "sync_ms": float(sync_ms),
            "async_ms": float(self._now_ms() - started - sync_ms),
            "bytes": float(sum(file.size for file in files)),
            "uploaded_bytes": float(sum(file.size for file in files if file.is_made_for(checkpoint_id))),
        }
        acknowledgement = AcknowledgeCheckpoint(self.attempt, checkpoint_id, snapshots, metrics)
        self._send(self.deployment.coordinator, acknowledgement)

    def _decline(self, checkpoint_id: int, reason: str) -> None:
        self._uploads.pop(checkpoint_id, None)
        self._send(self.deployment.coordinator, DeclineCheckpoint(self.attempt, checkpoint_id, reason))

    # --------------------------------------------------------------------------------------------------------- telling
    def _send(self, to: Address, message: Any) -> None:
        self._commands.append(Send(to, message))

    def _set_state(self, state: str, error: BaseException | None = None) -> None:
        self.state = state
        self.report_state(error)

    def report_state(self, error: BaseException | None = None) -> None:
        """Tell the JobManager the current state (again)."""
        self._send(self.deployment.job_manager, UpdateTaskExecutionState(self.attempt, self.state, error))

    def _report(self, operator: OperatorId, name: str, value: Any) -> None:
        report = ReportEmitted(self.attempt, operator, name, value, self._num_reports)
        self._num_reports += 1
        self._send(self.deployment.job_manager, report)

    def report_metrics(self) -> None:
        """Tell the JobManager the task's numbers and what its functions have accumulated."""
        accumulated = {
            OperatorId(link.uid): link.call(link.accumulators.report, link.name)
            for link in self.links
            if link.accumulators
        }
        report = MetricsReported(self.attempt, *self.statistics(), accumulated)
        self._send(self.deployment.job_manager, report)

    def statistics(self) -> tuple[dict[str, float], dict[OperatorId, dict[str, MetricValue]]]:
        """Numbers of the task, and of each of its operators."""
        operators = {OperatorId(link.uid): link.call(link.metrics.statistics) for link in self.links}
        numbers: dict[str, float] = {
            "busy_ms": self.busy_ms,
            "backpressured_ms": self.backpressured_ms,
            "elapsed_ms": self._now_ms() - self.deployed_ms,
            "records_in": _records_in(self._head),
            "records_out": _records_out(self.links),
        }
        watermark = self.links[0].metrics.gauges.get("watermark_ms")
        if watermark is not None:
            numbers["watermark_ms"] = watermark
        return numbers, operators


def _records_in(head: ChainLink) -> int:
    """Records that came into the chain; what a source, which is fed by nobody, has read."""
    name = "num_records_out" if isinstance(head.operator, SourceOperator) else "num_records_in"
    return head.metrics.counters.get(name, 0)


def _records_out(links: Iterable[ChainLink]) -> int:
    """Records that left the chain: what its last operators emitted."""
    return sum(link.metrics.counters.get("num_records_out", 0) for link in links if not link.output.all_links)
