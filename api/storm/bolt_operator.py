"""The operator of a bolt: tuples that the bolt has not acknowledged are part of the snapshot, and given to it again.

Storm has the spout emit a message again whose tuples are not all acknowledged in time. Here each bolt answers for what
it was given: what it has not acknowledged at a barrier is in the snapshot, and what it has emitted by then is on its
way. So a message is covered by a checkpoint as soon as its barrier has passed, whether its tuples are worked off or
not.

A tuple that the bolt fails, or has not acknowledged within ``topology.message.timeout.secs``, is given to it again
after a pause that doubles; at last the subtask fails. Tuples that nobody waits for (of messages without an id, or not
anchored) are given once, and lost with the bolt, as in Storm.

Results have no event times, and watermarks end here, but for the last one, which comes behind all results.

Source: Storm's ``ShellBolt``, ``Acker``; "Guaranteeing Message Processing".
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.columns.records import MAX_WATERMARK, Batch, Watermark
from headrace.engine.errors import CheckpointMismatchError, ConfigurationError, UserFunctionError
from headrace.engine.functions.operator import Operator, OperatorContext
from headrace.state.values.sharing import shown

from .bolt_tasks import Acked, BoltTask, Given, InFlight, PythonBoltTask, ShellBoltTask
from .components import Bolt, ShellBolt
from .groupings import Emission, Router, Sent, emit_all
from .layout import Layout
from .shell_program import ShellProgram

__all__ = ["BoltOperator", "Retries", "program_of"]

POLL_MS = 5
"""How soon to ask a program's task again when it had nothing."""

DUE_NOW = -(2**63)

MESSAGE_TIMEOUT_S, SUBPROCESS_TIMEOUT_S = 30.0, 30.0
"""Storm's defaults of ``topology.message.timeout.secs`` and of ``topology.subprocess.timeout.secs``."""


@dataclass(frozen=True)
class Retries:
    """How often a bolt is given a tuple again that it has failed.

    Attributes:
        most: How often.
        pause_ms: How long after the first failure; twice that after each further one, up to `longest_ms`.
    """

    most: int
    pause_ms: int
    longest_ms: int = 30_000

    def pause_after(self, num_failures: int) -> int:
        """Return how long to wait after so many failures, in milliseconds."""
        return min(self.longest_ms, self.pause_ms << min(num_failures - 1, 20))


def program_of(component: Any, layout: Layout, name: str, task: int) -> ShellProgram:
    """Return the program of a component's task, not started."""
    timeout_s = layout.number(name, "topology.subprocess.timeout.secs", SUBPROCESS_TIMEOUT_S)
    place = f"component {name!r}, task {task}"
    return ShellProgram(component.command, place, component.env, component.resources, timeout_s)


class BoltOperator(Operator):
    """Runs the tasks of a bolt, one in each subtask.

    Args:
        bolt: Of Python, or an external program.
        layout: The topology.
        component: Its name in it.
        retries: How often a tuple is given again.
        max_pending: How many tuples a task may have that it has not acknowledged; then it takes no more.
    """

    offloads = True

    def __init__(
        self, bolt: Bolt | ShellBolt, layout: Layout, component: str, retries: Retries, max_pending: int
    ) -> None:
        self._bolt = bolt
        self._layout = layout
        self._component = component
        self._retries = retries
        self._max_pending = max_pending
        self._timeout_s = layout.number(component, "topology.message.timeout.secs", MESSAGE_TIMEOUT_S)
        self._tick_s = layout.number(component, "topology.tick.tuple.freq.secs", 0)
        self._task: BoltTask | None = None

    # ------------------------------------------------------------------------------------------------- life of the task
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        layout, component = self._layout, self._component
        num_tasks = layout.components[component].num_tasks
        if context.parallelism != num_tasks:
            message = f"bolt {component!r} has {num_tasks} tasks, which know each other: a topology cannot be rescaled"
            raise ConfigurationError(message, hint="take a savepoint, and start the topology with other hints from it")
        self._in_flight = InFlight(layout)
        # (time, number, tuple, failures) of tuples that are to be given again.
        self._again: list[tuple[int, int, Sent, int]] = []
        self._num_again = 0
        self._last_watermark: Watermark | None = None
        now_ms = context.now_ms()
        self._poll_due_ms = now_ms
        self._tick_due_ms = now_ms + int(self._tick_s * 1_000)
        self._state = context.operator_state.union_list_state("tuples-in-flight")
        self._restore()
        context.metrics.gauge("num_tuples_in_flight", lambda: len(self._in_flight.tracked))
        router = Router(layout, component, context.subtask, context.subtask)
        self._task = self._make_task(router, context)
        self._task.start()

    def _restore(self) -> None:
        """Plan to give what the bolt had not acknowledged."""
        context, layout = self.context, self._layout
        for subtask, parallelism, component, index, stream, values, failures in self._state.get():
            source = layout.components.get(component)
            if parallelism != context.parallelism or source is None or index >= source.num_tasks:
                message = (
                    f"the checkpoint holds tuples of task {index + 1} of {component!r} for bolt {self._component!r},"
                )
                message += f" which had {parallelism} tasks: the topology has not all of these"
                hint = "start with the hints of before, stop with drain=True, and go on from that savepoint"
                raise CheckpointMismatchError(message, hint=hint)
            if subtask == context.subtask:
                task = layout.task(component, index)
                sent = Sent(task, stream, tuple(values), is_tracked=True, target=subtask)
                self._plan(sent, failures, DUE_NOW)

    def _make_task(self, router: Router, context: OperatorContext) -> BoltTask:
        layout, component, bolt = self._layout, self._component, self._bolt
        if isinstance(bolt, Bolt):
            return PythonBoltTask(bolt, router, self._in_flight, layout, context)
        if context.checkpointing and not context.is_restored and context.subtask == 0:
            context.warn(
                f"bolt {component!r} is an external program: what it keeps in its memory is no part of checkpoints,"
                " and is lost when its task is restarted"
            )
        program = program_of(bolt, layout, component, router.task)
        setup = (layout.conf_of(component), layout.context_of(component, router.task))
        place = f"component {component!r}, task {router.task}"
        return ShellBoltTask(program, place, router, self._in_flight, setup, context)

    def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.close()

    def _opened(self) -> BoltTask:
        assert self._task is not None
        return self._task

    # --------------------------------------------------------------------------------------------------------- elements
    def process_batch(self, batch: Batch, input_index: int) -> None:
        self._give([self._in_flight.add(sent) for sent in batch.rows])

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark == MAX_WATERMARK:
            self._last_watermark = watermark

    def _give(self, tuples: Sequence[Given]) -> None:
        self._opened().give(tuples)
        self._take()

    def _take(self) -> bool:
        """Act on what the bolt has done; gives whether it has done something."""
        events = self._opened().take()
        emissions = [event for event in events if isinstance(event, Emission)]
        emit_all(self._layout, self._component, emissions, self.context.output)
        num_acked = 0
        for event in events:
            if isinstance(event, Emission):
                continue
            given = self._in_flight.done(event.number)
            if given is None:
                continue  # said twice, or too late
            if isinstance(event, Acked):
                num_acked += 1
            elif given.sent.is_tracked:
                self._failed(given, "the bolt has failed it")
        if num_acked:
            self.context.metrics.count("num_tuples_acked", num_acked)
        return bool(events)

    def _failed(self, given: Given, reason: str) -> None:
        """Plan to give a tuple again."""
        self.context.metrics.count("num_tuples_failed")
        failures = given.attempts + 1
        if failures > self._retries.most:
            message = f"bolt {self._component!r} was given a tuple {failures} times, and at last {reason}"
            hint = "create_topology(max_retries=...) gives it again more often; or have the bolt acknowledge it"
            raise UserFunctionError(message, hint=hint, record=shown(list(given.sent.values)))
        self._plan(given.sent, failures, self.context.now_ms() + self._retries.pause_after(failures))

    def _plan(self, sent: Sent, failures: int, due_ms: int) -> None:
        self._num_again += 1
        heapq.heappush(self._again, (due_ms, self._num_again, sent, failures))

    # -------------------------------------------------------------------------------------------------------------- end
    def end_input(self, input_index: int) -> None:
        self._opened().sync()

    @property
    def is_blocked(self) -> bool:
        return max(len(self._in_flight.tracked), self._opened().num_waiting) >= self._max_pending

    @property
    def has_pending(self) -> bool:
        return bool(self._in_flight.tracked or self._again) or not self._opened().is_synced

    def holds_records(self) -> bool:
        return bool(self._in_flight.tracked or self._again)

    def finish(self) -> None:
        self._take()
        if self._last_watermark is not None:
            self.context.output.emit_watermark(self._last_watermark)

    # ------------------------------------------------------------------------------------------------------------- time
    def next_processing_time(self) -> int | None:
        times = [self._again[0][0]] if self._again else []
        if self._tick_s:
            times.append(self._tick_due_ms)
        if self._opened().polls or self._in_flight.tracked:
            times.append(self._poll_due_ms)
        return min(times, default=None)

    def on_processing_time(self, now_ms: int) -> None:
        if self._tick_s and self._tick_due_ms <= now_ms:
            self._tick_due_ms = now_ms + int(self._tick_s * 1_000)
            self._give([self._in_flight.tick(self._tick_s)])
        due: list[Given] = []
        while self._again and self._again[0][0] <= now_ms:
            _, _, sent, failures = heapq.heappop(self._again)
            due.append(self._in_flight.add(sent, failures))
        if due:
            self._give(due)
        has_more = self._take()
        self._give_up_late()
        self._poll_due_ms = now_ms + (1 if has_more else POLL_MS)

    def _give_up_late(self) -> None:
        """Take those for failed that the bolt has not acknowledged in time."""
        now, heard_since = time.monotonic(), self._opened().heard_since
        while self._timeout_s and (first := self._in_flight.first_since()) is not None:
            given, since = first
            if now - max(since, heard_since) <= self._timeout_s:
                return
            self._in_flight.done(given.number)
            self._failed(given, f"it has not acknowledged it within {self._timeout_s:g} s")

    # -------------------------------------------------------------------------------------------------------- snapshots
    def snapshot_state(self, checkpoint_id: int) -> None:
        # What the bolt has done and nobody has taken yet comes behind the barrier. It is not taken before: a job that
        # was stopped with a savepoint takes a last checkpoint behind that, and must emit nothing more.
        waiting = [(sent, failures) for _, _, sent, failures in sorted(self._again)]
        given = [(given.sent, given.attempts) for given in self._in_flight.tracked.values()]
        place = (self.context.subtask, self.context.parallelism)
        stored = []
        for sent, failures in given + waiting:
            source = self._layout.owner_of(sent.task)
            assert source is not None  # ticks are not tracked
            stored.append((*place, *source, sent.stream, sent.values, failures))
        self._state.update(stored)
