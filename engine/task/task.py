"""One subtask: takes elements from its channels, drives its operator chain, answers barriers. Pure: time and
messages come in, messages go out.

Its life: built and restored (INITIALIZING), READY, started (RUNNING), all input processed (ENDED, still answering
barriers so that checkpoints go on until the job ends), FINISHED; or CANCELED or FAILED at any time. A step is
bounded: one element of a channel, or as much of a batch as `headrace.engine.functions.steps` allows.

How to read it. A *record* comes in by `Task.receive`, is taken in `Task.step`, goes through the operators by plain
calls and leaves by `Task.flush`. A *barrier* is taken like a record and handed to `headrace.engine.task.checkpoints`;
behind it, what waited is processed, oldest first, before anything newer of the same channel. One that may overtake
records is handed over when it arrives. A *restart* makes a new task: the slot has the state read, and `Task.initialize`
gives it to the operators, in `headrace.engine.task.operator_chain`; what was in flight is processed first
(`headrace.engine.task.channel_state`). Loops are joined in `headrace.engine.task.loops`, channels in
`headrace.engine.task.inputs_outputs`; sources are asked in `headrace.engine.task.source_turns`.

Source: Flink's ``StreamTask``, ``StreamInputProcessor``; FLIP-147 (checkpoints after tasks have finished).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from headrace.state.checkpoints.snapshot import OperatorSnapshot, RestoredPart
from headrace.state.identifiers import ExecutionAttemptId, OperatorId
from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.managed_memory import ManagedMemory
from headrace.state.reading.program_classes import ProgramClasses
from headrace.state.reading.program_pickles import load_program

from ..columns.records import (
    MIN_TIMESTAMP,
    Batch,
    CheckpointBarrier,
    Element,
    EndOfInput,
    LatencyMarker,
    StreamStatus,
    Watermark,
)
from ..connectors.sources import SourceOperator
from ..errors import HeadraceError
from ..functions.keys import KeySelector
from ..functions.steps import StepMeter
from ..graph.job_graph import JobVertex
from ..kernel.machine import Address, Command
from ..operators.watermark_valve import TaskWatermark
from ..protocol.states import TaskState
from ..protocol.task_messages import (
    AddCredit,
    DataMessage,
    NextInputSplit,
    SourceEventToReader,
    TaskDeployment,
    WatermarkLimit,
)
from .channel_state import Replay
from .channels import InputChannel
from .checkpoints import TaskCheckpoints
from .debloating import BufferDebloater
from .inputs_outputs import TaskInputs, TaskOutputs
from .loop_head import IterationHead, LoopTask
from .loops import LoopBody, LoopFeedback
from .operator_chain import OperatorChain
from .outbox import TaskMetrics, TaskOutbox
from .processor_time import ProcessorTime
from .source_turns import SourceTurns

__all__ = ["Task"]


class Task:
    """One execution attempt of one subtask, in its slot.

    Args:
        deployment: What to run and with whom.
        address: The slot's own address.
        now_ms: The injected clock.
        probe: Marks protocol points.
        stopwatch_us: Measures what records cost; None takes whole batches whatever they cost.
        memory: The slot's managed memory; None bounds nothing.
        processor_us: Processor time of the thread that calls; None measures none.

    Attributes:
        attempt: The execution attempt.
        classes: Those of the program that state which was restored consists of; None if nothing was.
        state: See the module's docstring.
        name: The operators' names.
        job_id: The job that it is of.
        links: The operators, the head first.
        metrics: Where its time goes.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        address: Address,
        now_ms: Callable[[], int],
        probe: Callable[[str], None],
        stopwatch_us: Callable[[], int] | None = None,
        memory: ManagedMemory | None = None,
        processor_us: Callable[[], int] | None = None,
    ) -> None:
        vertex: JobVertex = load_program(deployment.vertex)
        self.attempt = deployment.attempt
        pickled = deployment.program_classes
        self.classes = ProgramClasses(lambda: load_program(pickled)) if pickled else None
        self.state = TaskState.INITIALIZING
        self.name = vertex.name
        self._parallelism = vertex.parallelism
        self.job_id = deployment.job_id
        self._settings = deployment.settings
        self._outbox = TaskOutbox(deployment)
        settings = deployment.settings
        self._meter = StepMeter(stopwatch_us, settings.max_batch_rows, 2 * settings.max_batch_bytes, settings.step_us)
        # Where processor time goes, within steps.
        self._time = ProcessorTime(processor_us)
        self._chain = OperatorChain(
            vertex,
            deployment,
            address.host,
            now_ms,
            probe,
            self._outbox,
            self._meter,
            self._time,
            memory or ManagedMemory(),
        )
        self.links = self._chain.links
        self._head = self._chain.head
        is_source = isinstance(self._head.operator, SourceOperator)
        self._source = SourceTurns(self._head, self.attempt, settings, self._meter, self._outbox) if is_source else None
        self._outputs = TaskOutputs(deployment, self.links, now_ms, self._time)
        inputs = self._task_inputs = TaskInputs(deployment)
        self._input_by_peer = inputs.by_peer
        # The channels that are taken in turn, and which of them is next.
        self._inputs = inputs.channels
        self._next_input = 0
        self._watermarks = TaskWatermark([channel.input_index for channel in self._inputs])
        # What was in flight when the checkpoint was taken that is restored: comes before anything of the channels.
        self._replay = Replay(deployment, vertex, self.links)
        self._now_ms = now_ms
        # None while channels keep their size.
        self._debloater: BufferDebloater | None = None
        if deployment.settings.buffer_debloat_enabled and self._inputs:
            self._debloater = BufferDebloater(self._inputs, deployment.settings.buffer_debloat_target_ms, now_ms())
        # The task's part in a loop: the head's, or one in the body's middle.
        is_head = isinstance(self._head.operator, IterationHead)
        self._feedback = LoopFeedback(self._head, inputs.feedback) if is_head else None
        self._body = LoopBody(inputs, self._outputs.loop_gates) if inputs.in_loop else None
        self._checkpoints = TaskCheckpoints(
            deployment,
            self._chain,
            self._inputs,
            self._outputs,
            self._outbox,
            now_ms,
            probe,
            self._feedback,
            self._replay.log,
        )
        self.metrics = TaskMetrics(self.links, self._outbox, now_ms, self._time)
        # Whether the job has finished: this task does as soon as nothing is under way for its operators.
        self._has_job_finished = False

    # ------------------------------------------------------------------------------------------------------------- life
    def initialize(self, restored: dict[OperatorId, list[RestoredPart]]) -> None:
        """Restore state and open the operators."""
        self._chain.open(restored)
        self._replay.restore(restored)
        if not self._replay:  # which may hold records from within the chain, of another subtask
            self._outputs.stay(self._parallelism)
        if self._feedback is not None:
            self._feedback.join(
                LoopTask(
                    self._feedback.channels,
                    self._checkpoints.is_aligned,
                    self._settings.max_batch_rows,
                    self._outputs.loop_gates.send,
                    self._end_of_input,
                )
            )
        self._settle()

    def start(self) -> None:
        """Run: from here on peers may send."""
        self._set_state(TaskState.RUNNING)
        for channel in self._input_by_peer.values():
            self._outbox.send(channel.producer_address, channel.initial_credit())

    def finish_job(self) -> None:
        """End in order, once all is committed: all of the job's data is processed and durable."""
        if not self._has_job_finished:
            self._has_job_finished = True
            self._chain.finish_job()
            self._settle()

    def _settle(self) -> None:
        """Become READY, or FINISHED, unless something is under way that must end before."""
        if not self._chain.is_settled:
            return
        if self.state is TaskState.INITIALIZING:
            self._set_state(TaskState.READY)
        elif self.state is TaskState.ENDED and self._has_job_finished:
            self._finish_job()

    def _finish_job(self) -> None:
        self.report_metrics()
        failure = self.close()
        if failure is not None:
            raise failure
        self._set_state(TaskState.FINISHED)

    def fail(self, error: BaseException) -> None:
        """End with an error; what goes wrong while closing is a footnote to it."""
        failure = self.close()
        if failure is not None and isinstance(error, HeadraceError):
            error.context.setdefault("on_closing", str(failure).splitlines()[0])
        self._set_state(TaskState.FAILED, error)

    def cancel(self) -> None:
        """End on request; what goes wrong while closing is told with it."""
        self._set_state(TaskState.CANCELED, self.close())

    def close(self) -> BaseException | None:
        """Give up checkpoints, close every operator that was opened, and all state; gives the first failure."""
        self._checkpoints.close()
        return self._chain.close()

    def _set_state(self, state: TaskState, error: BaseException | None = None) -> None:
        self.state = state
        self.report_state(error)

    def report_state(self, error: BaseException | None = None) -> None:
        """Tell the JobManager the current state (again)."""
        self._outbox.report_state(self.state, error)

    def report_metrics(self) -> None:
        """Tell the JobManager the task's numbers and what its functions have accumulated."""
        self._chain.note_memory()
        self.metrics.report(self._channel_numbers())

    def _channel_numbers(self) -> dict[str, float]:
        """How full channels are, and where event time is in what has been taken from them."""
        numbers = self._outputs.numbers() | self._task_inputs.numbers()
        if self._inputs:
            watermark_ms = self._watermarks.watermark_ms
            if watermark_ms > MIN_TIMESTAMP:
                numbers["input_watermark_ms"] = watermark_ms
        return numbers

    def tap(self, edge_id: int, tap: Callable[[ExecutionAttemptId, DataMessage], None] | None) -> None:
        """Have a call made for each message that arrives on an exchange, or none any more.

        Changes nothing else, and may be called from another thread; the call is made on the task's.
        """
        for channel in self._task_inputs.by_peer.values():
            if channel.edge_id == edge_id:
                channel.tap = None if tap is None else functools.partial(tap, self.attempt)

    def key_selector(self, edge_id: int) -> KeySelector | None:
        """By what keys are found of what comes on an exchange; None if it is not dealt out by key."""
        return self._task_inputs.key_selectors.get(edge_id)

    def take_commands(self) -> list[Command]:
        """Return the commands that have come up, in order."""
        return self._outbox.take()

    # --------------------------------------------------------------------------------------------------------- messages
    def receive(self, message: DataMessage) -> None:
        """Take a data message; unknown channels belong to other attempts and are ignored."""
        channel = self._input_by_peer.get((message.edge_id, message.producer))
        if channel is None or not channel.receive(message):
            return
        if self._debloater is not None and self._debloater.is_idle and channel.has_element:
            self._debloater.wakes(self._now_ms())
        if self._checkpoints.may_overtake:
            self._checkpoints.arrived(channel, message)
            if message.overtakes:
                self._grant(channel)

    def add_credit(self, credit: AddCredit) -> None:
        """Take a grant of a consumer."""
        self._outputs.add_credit(credit)

    def take_split(self, answer: NextInputSplit) -> None:
        """Take the answer to a split request.

        A source that was stopped takes it too: once handed out a split is known to no other.
        """
        if self._source is not None and self.state in (TaskState.RUNNING, TaskState.ENDED):
            self._source.take_split(answer)

    def take_source_event(self, message: SourceEventToReader) -> None:
        """Take what the source's enumerator tells; nothing if there is no reader yet, or any more."""
        if self._source is not None and self.state in (TaskState.READY, TaskState.RUNNING, TaskState.ENDED):
            self._source.take_event(message.event)

    def stop_source(self, *, drain: bool) -> None:
        """Read no more, from before the start on if that is still to come."""
        if self._source is not None:
            self._source.stop(drain=drain)

    def limit_watermark(self, limit: WatermarkLimit) -> None:
        """Take the answer to a report of the source's watermark."""
        if self._source is not None:
            self._source.limit_watermark(limit)

    def work_ended(self, number: int, result: Any, error: BaseException | None) -> None:
        """Tell an operator that its work has ended; work that was given up is ignored."""
        self._chain.works.ended(number, result, error)
        if self.state is TaskState.INITIALIZING or self._has_job_finished:
            self._settle()

    def trigger_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint at a source."""
        if self.state in (TaskState.RUNNING, TaskState.ENDED):
            self._checkpoints.take_snapshot(barrier)
            self._snapshot_taken(barrier)
        else:
            self._checkpoints.decline(barrier.checkpoint_id, f"task is {self.state.value}")

    def upload_ended(
        self, checkpoint_id: int, snapshots: tuple[OperatorSnapshot, ...] | None, error: BaseException | None
    ) -> None:
        """Take the end of the asynchronous part of a snapshot."""
        self._checkpoints.upload_ended(checkpoint_id, snapshots, error)

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let operators commit, as a checkpoint is durable."""
        self._chain.checkpoint_complete(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Drop a checkpoint that was given up: nothing waits for it any more."""
        self._checkpoints.abort(checkpoint_id)
        self._chain.checkpoint_aborted(checkpoint_id)

    def keyed_state(self, operator: OperatorId) -> KeyedStateBackend | None:
        """Return the keyed state of one of its operators, to be read between two steps; None if it has none such."""
        return self._chain.keyed_state(operator)

    # ------------------------------------------------------------------------------------------------------------ steps
    @property
    def is_source(self) -> bool:
        """Whether the head is a source."""
        return self._source is not None

    @property
    def is_backpressured(self) -> bool:
        """Whether it runs and has output that waits for credit."""
        return self.state is TaskState.RUNNING and self._outputs.is_full

    def is_runnable(self, now_ms: int) -> bool:
        """Return whether `step` would do something now."""
        due_ms = self.next_step_ms()
        return due_ms is not None and due_ms <= now_ms

    def next_step_ms(self) -> int | None:
        """Return when `step` would do something: 0 for at once, later for a timer or a source's next poll.

        None for when a message has come: while output waits for credit, only the one that brings it makes a step
        possible. The answer must follow from the task's state: it is kept until something happens to the task
        (`headrace.engine.task.turns`).
        """
        if self.state not in (TaskState.RUNNING, TaskState.ENDED):
            return None
        due_ms, work_ms = self._checkpoints.due_ms, self._next_work_ms()
        if due_ms is None or work_ms is None:
            return work_ms if due_ms is None else due_ms
        return min(due_ms, work_ms)

    def _next_work_ms(self) -> int | None:
        """The same, but for barriers that are to overtake: those do so whatever the task waits for."""
        state, feedback, chain = self.state, self._feedback, self._chain
        if feedback is not None and feedback.has_element:
            return 0  # with or without credit for output
        if self._outputs.is_full:
            return None
        is_blocked = chain.is_blocked
        if chain.is_draining and state is TaskState.RUNNING:
            return chain.next_time() if is_blocked else 0
        if self._replay and state is TaskState.RUNNING:
            return chain.next_time() if is_blocked else 0
        if self._ready_input(is_blocked) is not None:
            return 0
        if state is TaskState.ENDED:  # nothing may be emitted any more
            return None
        if chain.is_finishing:
            return 0 if chain.can_finish else chain.next_time()
        timer_ms = chain.next_time()
        if is_blocked:
            return timer_ms
        if feedback is not None and feedback.has_backlog:
            return 0
        poll_ms = None if self._source is None else self._source.poll_again_ms
        if poll_ms is None or timer_ms is None:
            return timer_ms if poll_ms is None else poll_ms
        return min(poll_ms, timer_ms)

    def step(self, now_ms: int) -> None:
        """Fire due timers, then take one batch or one element, or as much of a batch as makes no long step."""
        self._time.switch(self._time.exchanges)
        try:
            self._step(now_ms)
        finally:
            self._time.switch(None)

    def _step(self, now_ms: int) -> None:
        feedback, chain = self._feedback, self._chain
        due_ms = self._checkpoints.due_ms
        if due_ms is not None and due_ms <= now_ms:
            self._checkpoints.overtake_due(now_ms)
            return
        if feedback is not None:
            feedback.take(self._outbox)
            self._checkpoints.upload_logged()
            if self._outputs.is_full:
                return
        if self.state is TaskState.RUNNING:  # once all input has ended nothing may be emitted any more
            chain.fire_timers(now_ms)
            if chain.is_finishing:
                self._finish()
        began_us = self._meter.begin()
        while self._take_piece(now_ms) and self._meter.goes_on(began_us) and not self._outputs.is_full:
            pass
        if self._meter.is_cut and self._inputs:  # the rest waits for its turn, as other channels do
            self._next_input = (self._next_input + 1) % len(self._inputs)

    def _take_piece(self, now_ms: int) -> bool:
        """`_take_one`, and no more of a batch than its consumers want."""
        if not self._settings.buffer_debloat_enabled:
            return self._take_one(now_ms)
        self._meter.want(self._outputs.wanted_rows())
        has_more = self._take_one(now_ms)
        self._outputs.note_taken(self._meter.num_rows)
        return has_more

    def _take_one(self, now_ms: int) -> bool:
        """Take one batch, a piece of one, or one element; gives whether a batch may have been taken in part."""
        feedback, chain, meter = self._feedback, self._chain, self._meter
        is_blocked = chain.is_blocked
        if chain.is_draining and self.state is TaskState.RUNNING:
            if not is_blocked:
                if chain.drain(meter.rows_of):
                    meter.took()
                else:
                    meter.is_cut = False
            return not is_blocked
        can_emit = self.state is TaskState.RUNNING and not is_blocked and not chain.is_finishing
        if self._replay:
            if can_emit:
                self._replay.process_next(meter.rows_of)
                meter.took()
            return can_emit
        if self._source is not None:
            if can_emit and self._source.poll(now_ms):
                self._end_of_input()
            return can_emit
        if can_emit and feedback is not None and feedback.emit_in_turn(self._inputs, meter.rows_of):
            meter.took()
            return False  # input and backlog take turns
        channel = self._ready_input(is_blocked)
        if channel is None:
            return False
        # What is left of a batch comes first while the step lasts.
        self._take_from(channel)
        self._next_input = channel.index if meter.is_cut else (channel.index + 1) % len(self._inputs)
        return meter.is_cut

    def flush(self, now_ms: int) -> int | None:
        """Send what is due; gives the time at which more will be, None if nothing waits for time.

        Called after every step of the slot, so it also accounts for the time spent waiting for credit.
        """
        wake_ms = self._outputs.flush(now_ms, self._outbox)
        if self._checkpoints.holds_barriers:
            self._checkpoints.outputs_flushed()
        self.metrics.account(now_ms, is_backpressured=self._outputs.is_full)
        if self._debloater is not None and self._chain.may_block and self.state is TaskState.RUNNING:
            self._debloater.note_blocked(now_ms, is_blocked=self._chain.is_blocked)
        return wake_ms

    def _ready_input(self, is_blocked: bool) -> InputChannel | None:
        """The next channel to take an element from; while an operator is blocked, one that is no batch."""
        channels, count = self._inputs, len(self._inputs)
        for index in range(self._next_input - count, self._next_input):  # from the next one on, and round
            channel = channels[index]
            if channel.has_control if is_blocked else channel.has_element:
                return channel
        return None

    def _take_from(self, channel: InputChannel) -> None:
        debloater, consumed_bytes = self._debloater, channel.consumed_bytes
        if debloater is not None and debloater.is_idle:  # an alignment has ended
            debloater.wakes(self._now_ms())
        element = channel.take(self._meter.rows_of)
        work_us, wanted_share = 0, math.inf
        if isinstance(element, Batch):
            self._head.process_batch(element, channel.input_index)
            work_us, wanted_share = self._meter.took(), self._meter.wanted_share
        else:
            self._meter.is_cut = False
            self._take_control(channel, element)
        if debloater is not None:
            num_bytes = channel.consumed_bytes - consumed_bytes
            if debloater.took(num_bytes, self._now_ms(), work_us, wanted_share):
                for one in self._inputs:
                    self._outbox.send(one.producer_address, one.grant())
        self._grant(channel)

    def _take_control(self, channel: InputChannel, element: Element) -> None:
        if isinstance(element, (Watermark, StreamStatus)):
            self._advance_time(channel, element)
            if self._body is not None:
                self._body.take(channel, element)
        elif isinstance(element, CheckpointBarrier):
            if self._checkpoints.on_barrier(channel, element):
                self._snapshot_taken(element)
        elif isinstance(element, EndOfInput):
            self._end_channel(channel)
        elif isinstance(element, LatencyMarker):
            self._head.process_marker(element)
        elif self._body is not None:  # it is a probe; outside of loops there are none
            self._body.take(channel, element)

    def _grant(self, channel: InputChannel) -> None:
        credit = channel.credit_due()
        if credit is not None:
            self._outbox.send(channel.producer_address, credit)

    def _advance_time(self, channel: InputChannel, element: Watermark | StreamStatus) -> None:
        """Combine it with the other channels, and pass on the result: progress, then a change of idleness."""
        combiner, operator = self._watermarks, self._head.operator
        was_idle = combiner.is_idle
        if isinstance(element, Watermark):
            watermark_ms = combiner.update(channel.index, element.timestamp_ms)
        else:
            watermark_ms = combiner.set_idle(channel.index, element.idle)
        if watermark_ms is not None:
            self._head.process_watermark(Watermark(watermark_ms))
        if combiner.is_idle != was_idle:
            self._head.call(operator.process_status, StreamStatus(combiner.is_idle))

    def _snapshot_taken(self, barrier: CheckpointBarrier) -> None:
        """If the job is stopped at this snapshot, whatever would come behind it belongs to a later run."""
        if barrier.suspends and self.state is TaskState.RUNNING:
            self._chain.suspend()
            self.report_metrics()
            self._set_state(TaskState.ENDED)

    # ---------------------------------------------------------------------------------------------------------- the end
    def _end_channel(self, channel: InputChannel) -> None:
        channel.is_ended = True
        if all(other.is_ended for other in self._inputs if other.input_index == channel.input_index):
            self._head.call(self._head.operator.end_input, channel.input_index)
        if self._body is not None:
            self._body.take(channel, EndOfInput())
        if self._feedback is None and all(other.is_ended for other in self._inputs):
            self._end_of_input()  # the head of a loop ends by itself

    def _end_of_input(self) -> None:
        """Let every operator finish, in turn, as all input is processed."""
        self._chain.begin_finishing()
        self._finish()

    def _finish(self) -> None:
        """Go on finishing until an operator waits for work outside; after the last tell receivers and JobManager."""
        if not self._chain.finish():
            return
        self._outputs.broadcast(EndOfInput())
        self.report_metrics()  # a short job may end before its first report is due
        self._set_state(TaskState.ENDED)
