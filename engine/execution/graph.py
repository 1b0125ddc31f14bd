"""The ExecutionGraph: the parallel form of a job graph, and which states its job and tasks may go through.

An `ExecutionVertex` stands for one subtask; each run of it is an `Execution` with an `ExecutionAttemptId` of its own
(Flink's ``ExecutionVertex`` and ``Execution``). A failure never revives an execution: the next run is a new one. All
legal changes of state stand in two tables here; a change that is not in its table raises `InvalidTransition`, which
carries the story of the thing concerned from the `EventLog`.

Source: Flink's ``ExecutionGraph``, ``Execution``, ``ExecutionState``, ``JobStatus``; dask's ``story``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from headrace.state.identifiers import ExecutionAttemptId, VertexId

from ..errors import InternalError
from ..graph.job_graph import JobGraph, JobVertex
from ..kernel.event_log import EventLog
from ..protocol.states import JobStatus, TaskState
from ..protocol.views import SlotInfo

__all__ = [
    "JOB_TRANSITIONS",
    "TASK_TRANSITIONS",
    "Execution",
    "ExecutionGraph",
    "ExecutionVertex",
    "InvalidTransition",
    "SlotPlace",
    "check_transition",
]


_J = JobStatus
JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.CREATED: frozenset({_J.RUNNING, _J.RESTARTING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.RUNNING: frozenset({_J.FINISHED, _J.RESTARTING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.RESTARTING: frozenset({_J.RUNNING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.FAILING: frozenset({_J.FAILED, _J.CANCELLING, _J.SUSPENDED}),
    _J.CANCELLING: frozenset({_J.CANCELED, _J.SUSPENDED}),
    _J.FINISHED: frozenset(),
    _J.CANCELED: frozenset(),
    _J.FAILED: frozenset(),
    _J.SUSPENDED: frozenset(),
}
"""Every legal change of a job's state. It is RUNNING once all its tasks run, and RESTARTING until they do again."""

_T = TaskState
TASK_TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    _T.CREATED: frozenset({_T.SCHEDULED, _T.CANCELED, _T.FAILED}),
    _T.SCHEDULED: frozenset({_T.DEPLOYING, _T.CANCELED, _T.FAILED}),
    # A slot may be quick enough to report only the outcome of initialising.
    _T.DEPLOYING: frozenset({_T.INITIALIZING, _T.READY, _T.CANCELING, _T.FAILED}),
    _T.INITIALIZING: frozenset({_T.READY, _T.CANCELING, _T.FAILED}),
    _T.READY: frozenset({_T.RUNNING, _T.CANCELING, _T.FAILED}),
    _T.RUNNING: frozenset({_T.ENDED, _T.CANCELING, _T.FAILED}),
    _T.ENDED: frozenset({_T.FINISHED, _T.CANCELING, _T.FAILED}),
    # FINISHED: the task was done before the order to cancel reached it.
    _T.CANCELING: frozenset({_T.CANCELED, _T.FAILED, _T.FINISHED}),
    _T.FINISHED: frozenset(),
    _T.CANCELED: frozenset(),
    _T.FAILED: frozenset(),
}
"""Every legal change of an execution's state."""


class InvalidTransition(InternalError):
    """A change of state that is in no table.

    ``context``: ``about``, ``start``, ``finish`` and ``story`` (the log lines about the thing). Survives pickling.
    """

    @classmethod
    def of(cls, about: object, start: Enum, finish: Enum, log: EventLog) -> InvalidTransition:
        """Make one, with the story so far."""
        message = f"{about} cannot go from {start.value} to {finish.value}"
        return cls(message, about=str(about), start=start.value, finish=finish.value, story=log.story(about))


def check_transition(about: object, start: Any, finish: Any, log: EventLog) -> None:
    """Raise unless a change of state is in its table.

    Raises:
        InvalidTransition: If it is not.
    """
    table: dict[Any, frozenset[Any]] = JOB_TRANSITIONS if isinstance(start, JobStatus) else TASK_TRANSITIONS
    if finish not in table[start]:
        raise InvalidTransition.of(about, start, finish, log)


class SlotPlace:
    """A slot as the scheduler sees it: which TaskManager it is of and which process it is now."""

    __slots__ = ("info", "task_manager")

    def __init__(self, task_manager: str, info: SlotInfo) -> None:
        self.task_manager = task_manager
        self.info = info

    @property
    def host(self) -> str:
        """The slot's process."""
        return self.info.address.host

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotPlace) and (self.task_manager, self.host) == (other.task_manager, other.host)

    def __hash__(self) -> int:
        return hash((self.task_manager, self.host))

    def __repr__(self) -> str:
        return f"{self.task_manager}/{self.host}"


class Execution:
    """One run of one subtask.

    Attributes:
        attempt: Its id, never used again.
        place: The slot it was given.
        state: Changed by `transition` only.
        entered_ms: When it came into each state, by the state's name, epoch milliseconds.
    """

    __slots__ = ("attempt", "entered_ms", "place", "state")

    @property
    def subtask(self) -> tuple[VertexId, int]:
        """What it is a run of."""
        return (self.attempt.vertex, self.attempt.subtask)

    @property
    def is_wanted(self) -> bool:
        """Whether it has neither ended nor been told to."""
        return not self.state.is_terminal and self.state is not TaskState.CANCELING

    def __init__(self, attempt: ExecutionAttemptId, place: SlotPlace) -> None:
        self.attempt = attempt
        self.place = place
        self.state = TaskState.CREATED
        self.entered_ms: dict[str, int] = {}

    def can_become(self, state: TaskState) -> bool:
        """Return whether the table allows the change."""
        return state in TASK_TRANSITIONS[self.state]

    def transition(self, state: TaskState, log: EventLog, now_ms: int, why: str = "") -> None:
        """Change the state.

        Raises:
            InvalidTransition: If the table does not allow it.
        """
        check_transition(self.attempt, self.state, state, log)
        log.add(now_ms, self.attempt, f"{self.state.value} -> {state.value}{f' ({why})' if why else ''}")
        self.state = state
        self.entered_ms[state._value_] = now_ms


class ExecutionVertex:
    """One subtask of a job vertex, over all its runs."""

    __slots__ = ("current", "job_vertex", "subtask")

    def __init__(self, job_vertex: JobVertex, subtask: int) -> None:
        self.job_vertex = job_vertex
        self.subtask = subtask
        # The newest run; None before the first.
        self.current: Execution | None = None


class ExecutionGraph:
    """All subtasks of a job and their current executions."""

    def __init__(self, job_graph: JobGraph) -> None:
        self.job_graph = job_graph
        self.vertices: dict[VertexId, list[ExecutionVertex]] = {
            vertex.vertex_id: [ExecutionVertex(vertex, subtask) for subtask in range(vertex.parallelism)]
            for vertex in job_graph.vertices.values()
        }
        # Current executions by attempt id.
        self._by_attempt: dict[ExecutionAttemptId, Execution] = {}
        # Current executions by state, so that "all READY" is not a scan per message.
        self._num_in: Counter[TaskState] = Counter()
        # Those of the newest deployment.
        self.newest: list[Execution] = []

    @property
    def num_subtasks(self) -> int:
        """Subtasks of all vertices."""
        return sum(len(subtasks) for subtasks in self.vertices.values())

    def subtasks(self) -> frozenset[tuple[VertexId, int]]:
        """Return all subtasks."""
        return frozenset(
            (vertex, index) for vertex, subtasks in self.vertices.items() for index in range(len(subtasks))
        )

    def source_vertices(self) -> list[VertexId]:
        """Return the vertices that read no other one: checkpoints start there."""
        return [vertex for vertex in self.vertices if not self.job_graph.inputs_of(vertex)]

    def schedule(self, epoch: int, attempt: int, places: dict[tuple[VertexId, int], SlotPlace]) -> list[Execution]:
        """Make a new execution, in state CREATED, of every subtask that is given a place; others keep theirs.

        Args:
            epoch: The leader's.
            attempt: Number of the deployment: no execution before had it, so no attempt id is ever used again.
            places: A slot for each of these subtasks. Their last executions have ended.

        Returns:
            The new executions, sources first.
        """
        scheduled: list[Execution] = []
        for (vertex, index), place in places.items():
            subtask = self.vertices[vertex][index]
            assert subtask.current is None or subtask.current.state.is_terminal, subtask.current.attempt
            subtask.current = Execution(ExecutionAttemptId(epoch, attempt, vertex, index), place)
            scheduled.append(subtask.current)
        current = [subtask.current for subtasks in self.vertices.values() for subtask in subtasks]
        self._by_attempt = {execution.attempt: execution for execution in current if execution is not None}
        self._num_in = Counter(execution.state for execution in self._by_attempt.values())
        self.newest = scheduled
        return scheduled

    def executions_of(self, subtasks: Iterable[tuple[VertexId, int]]) -> list[Execution]:
        """Return the current executions of some subtasks; those that have none are left out."""
        current = (self.vertices[vertex][index].current for vertex, index in subtasks)
        return [execution for execution in current if execution is not None]

    def attempt_numbers(self, vertex: VertexId) -> tuple[int, ...]:
        """Return the deployment that each subtask's current execution is of, -1 before its first."""
        current = [subtask.current for subtask in self.vertices[vertex]]
        return tuple([-1 if execution is None else execution.attempt.attempt for execution in current])

    def find(self, attempt: ExecutionAttemptId) -> Execution | None:
        """Return the current execution of that id; None for an old or foreign one."""
        return self._by_attempt.get(attempt)

    def executions(self) -> Iterator[Execution]:
        """The current executions, sources first."""
        return iter(self._by_attempt.values())

    def live_executions(self) -> list[Execution]:
        """Return the current executions that have not ended."""
        return [execution for execution in self._by_attempt.values() if not execution.state.is_terminal]

    def transition(self, execution: Execution, state: TaskState, log: EventLog, now_ms: int, why: str = "") -> None:
        """Change the state of a current execution.

        Raises:
            InvalidTransition: If the table does not allow it.
        """
        before = execution.state
        execution.transition(state, log, now_ms, why)
        self._num_in[before] -= 1
        self._num_in[state] += 1

    def are_all_in(self, *states: TaskState) -> bool:
        """Return whether there are executions and every one is in one of these states."""
        return bool(self._by_attempt) and sum(self._num_in[state] for state in states) == len(self._by_attempt)

    def are_new_ones_ready(self) -> bool:
        """Return whether every execution of the newest deployment is READY."""
        return 0 < len(self.newest) == self._num_in[TaskState.READY]

    def have_all_ended(self) -> bool:
        """Return whether no execution is left that could do anything."""
        terminal = sum(count for state, count in self._num_in.items() if state.is_terminal)
        return terminal == len(self._by_attempt)

    def occupation(self) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
        """Return how many subtasks are in which state; and which slots have some that have not ended, by host: of which
        TaskManager, and how many.
        """
        slots: dict[str, tuple[str, int]] = {}
        for execution in self.live_executions():
            host = execution.place.info.address.host
            slots[host] = (execution.place.task_manager, slots.get(host, ("", 0))[1] + 1)
        counts = {state.value: number for state, number in self._num_in.items() if number}
        num_waiting = sum(map(len, self.vertices.values())) - len(self._by_attempt)
        if num_waiting:
            counts[_T.CREATED.value] = counts.get(_T.CREATED.value, 0) + num_waiting
        return counts, slots

    def state_counts(self, vertex: VertexId) -> dict[str, int]:
        """Return how many subtasks of a vertex are in which state."""
        counts = Counter(
            [subtask.current.state if subtask.current else _T.CREATED for subtask in self.vertices[vertex]]
        )
        return {state.value: number for state, number in counts.items()}
