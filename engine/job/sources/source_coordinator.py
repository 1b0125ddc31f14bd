"""All sources of one job, within its JobManager: their enumerators, what they have found, and who speaks with whom.

What an enumerator does may block, so it is offloaded: one call per source at a time, whatever the call. The connector's
enumerator lives as long as its leader, the assignment (`headrace.engine.job.sources.split_assignment`) as long as one
deployment; an enumerator that goes on from what it said before is given that back with every call, so what it says and
what a checkpoint holds of it change in one step.

A look at the outside that fails is made again after a pause, as the outside may only be away for a while. That is not
the job's failure before it has been in vain many times; or a few times, if it never worked.

Without checkpoints a restart begins at the beginning. Where that would be another one now ("latest"), what this leader
found first counts.

Source: Flink's ``SourceCoordinator``; FLIP-27.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.state.identifiers import OperatorId, VertexId

from ...connectors.contract import Discovery, EnumeratorContext, Split, SplitEnumerator
from ...connectors.source_protocols import EnumeratorProgress, check_enumerator
from ...errors import ExternalError, HeadraceError, SourceError, raise_from_outside
from ...graph.job_graph import JobGraph
from ...kernel.machine import CancelTimer, Command, Offload, OffloadCompleted, StartTimer
from ...protocol.task_messages import NextInputSplit, RequestNextInputSplit, SourceEventToEnumerator
from .split_assignment import SplitAssignment

__all__ = ["DiscoveryDue", "Said", "SourceCoordinator", "SplitsDiscovered"]

FIRST_ATTEMPTS = 4
"""How often the first look is tried before the job fails: what never worked is likely a mistake."""

LATER_ATTEMPTS = 12
"""How often a later one is: about 40 s."""

INITIAL_DELAY_MS = 100
MAX_DELAY_MS = 5_000

_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, SyntaxError, TypeError)
"""Errors that say that the code is wrong."""


@dataclass(frozen=True, slots=True)
class DiscoveryDue:
    """Timer: look for splits of a source again."""

    operator: OperatorId


class SplitsDiscovered(NamedTuple):
    """Effect: an enumerator is called.

    Attributes:
        operator: Its source.
        generation: Number of the deployment that it was called in.
        is_event: Whether it was handed an event of a reader.
    """

    operator: OperatorId
    generation: int
    is_event: bool


@dataclass(slots=True)
class Said:
    """What a call of an enumerator asks for.

    Attributes:
        answers: For readers that waited for splits.
        events: For readers: operator, subtask or None for all, event.
        notes: For the job's history.
        commands: What is to be done.
    """

    answers: list[NextInputSplit] = field(default_factory=list)
    events: list[tuple[OperatorId, int | None, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)


@dataclass(slots=True)
class _Source:
    """One source of the job."""

    name: str
    vertex: VertexId
    enumerator: SplitEnumerator
    is_bounded: bool
    assignment: SplitAssignment
    # A call is under way; another look is due; events of readers that wait.
    is_busy: bool = False
    is_due: bool = False
    events: deque[SourceEventToEnumerator] = field(default_factory=deque)
    # Looks that failed in a row; whether one has ever gone well; whether it was told that all is exhausted.
    num_failures: int = 0
    has_looked: bool = False
    was_exhausted: bool = False
    # Splits that another look would find elsewhere, as they were found first.
    first_found: dict[str, Split] = field(default_factory=dict)

    @property
    def progresses(self) -> bool:
        return hasattr(self.enumerator, "discover_from")


class SourceCoordinator:
    """The machine part.

    Args:
        job_graph: The job; operators with ``requests_split`` are its sources.
        checkpointing: Whether checkpoints are taken.

    Raises:
        SourceError: If an enumerator cannot be made.
        ProgramError: If an enumerator is not one.
    """

    def __init__(self, job_graph: JobGraph, *, checkpointing: bool = False) -> None:
        self._checkpointing = checkpointing
        self._sources: dict[OperatorId, _Source] = {}
        for vertex in job_graph.vertices.values():
            for node in vertex.chain:
                if node.operator.requests_split:
                    source = node.operator.source  # type: ignore[attr-defined]
                    context = EnumeratorContext(vertex.parallelism, checkpointing)
                    enumerator = _create_enumerator(source, node.name, context)
                    assignment = SplitAssignment(node.uid, vertex.parallelism)
                    self._sources[node.uid] = _Source(
                        node.name, vertex.vertex_id, enumerator, source.is_bounded, assignment
                    )
        self._parallelisms: dict[VertexId, int] = {}
        self.become(job_graph)
        # Counts the deployments; a discovery begun in an older one is welcome, its failure is not the newer one's.
        self._generation = 0
        self._is_active = False

    def become(self, job_graph: JobGraph) -> None:
        """Take the same program at other parallelisms; it counts from the next deployment on."""
        self._parallelisms = {vertex.vertex_id: vertex.parallelism for vertex in job_graph.vertices.values()}

    def begin(self, snapshots: dict[OperatorId, Any]) -> list[Command]:
        """Begin a deployment.

        Args:
            snapshots: The restored checkpoint's enumerators; empty to begin afresh.

        Raises:
            CheckpointMismatchError: If a part cannot be read.
        """
        self._generation += 1
        self._is_active = True
        commands: list[Command] = []
        for uid, source in self._sources.items():
            source.events.clear()
            source.num_failures = 0
            source.was_exhausted = False
            source.assignment = SplitAssignment(
                uid,
                self._parallelisms[source.vertex],
                is_bounded=source.is_bounded,
                checkpointing=self._checkpointing,
            ).restore(snapshots.get(uid))
            commands += self._discover(uid)
        return commands

    def stop(self) -> list[Command]:
        """Stop, as the deployment is over."""
        self._is_active = False
        return [CancelTimer(_timer_key(uid)) for uid in self._sources]

    def take_back(self, subtasks: Iterable[tuple[VertexId, int]]) -> list[NextInputSplit]:
        """Let some subtasks go back to the newest complete checkpoint; see `SplitAssignment.take_back`."""
        by_vertex: dict[VertexId, set[int]] = {}
        for vertex, subtask in subtasks:
            by_vertex.setdefault(vertex, set()).add(subtask)
        answers: list[NextInputSplit] = []
        for source in self._sources.values():
            answers += source.assignment.take_back(by_vertex.get(source.vertex, set()))
        return answers

    def snapshot(self, checkpoint_id: int) -> dict[OperatorId, Any]:
        """Return what a checkpoint triggered in the same step must hold."""
        for source in self._sources.values():
            source.assignment.triggered(checkpoint_id)
        return {uid: source.assignment.snapshot() for uid, source in self._sources.items()}

    def completed(self, checkpoint_id: int) -> list[NextInputSplit]:
        """Note a complete checkpoint."""
        answers = [answer for one in self._sources.values() for answer in one.assignment.completed(checkpoint_id)]
        return answers if self._is_active else []

    def take_checkpoint_wish(self) -> bool:
        """Return whether splits have come up that wait for a checkpoint, and this has not been told."""
        return sum(source.assignment.take_checkpoint_wish() for source in self._sources.values()) > 0

    def requested(self, request: RequestNextInputSplit) -> Said:
        """Take a request of a current attempt; see `SplitAssignment.requested`."""
        source = self._sources.get(request.operator)
        if source is None or not self._is_active:
            return Said()
        said = Said(source.assignment.requested(request))
        said.commands = self._tell_of_exhaustion(request.operator)
        return said

    def _tell_of_exhaustion(self, uid: OperatorId) -> list[Command]:
        """Call an enumerator that wants to know, once, when all splits so far have been read to their end."""
        source = self._sources[uid]
        if not source.progresses or not source.assignment.is_exhausted or source.was_exhausted:
            return []
        source.was_exhausted = True
        return self._discover(uid)

    def event_received(self, message: SourceEventToEnumerator) -> list[Command]:
        """Take an event of a reader whose attempt is a current one."""
        source = self._sources.get(message.operator)
        if source is None or not self._is_active:
            return []
        source.events.append(message)
        return self._call_next(message.operator)

    def discovery_due(self, timer: DiscoveryDue) -> list[Command]:
        """Discover splits again, as the pause is over."""
        return self._discover(timer.operator)

    # ------------------------------------------------------------------------------------------------------------ calls
    def _discover(self, uid: OperatorId) -> list[Command]:
        if self._is_active and not self._sources[uid].assignment.is_final:
            self._sources[uid].is_due = True
        return self._call_next(uid)

    def _call_next(self, uid: OperatorId) -> list[Command]:
        """Make the next call of an enumerator, if none is under way: events first."""
        source = self._sources[uid]
        if source.is_busy or not self._is_active:
            return []
        work: Callable[[], Discovery]
        if source.events:
            event = source.events.popleft()
            handle = source.enumerator.handle_source_event  # type: ignore[attr-defined]
            work = functools.partial(handle, event.attempt.subtask, event.event, self._progress(source))
        elif source.is_due and not source.assignment.is_final:
            source.is_due = False
            work = source.enumerator.discover
            if source.progresses:
                work = functools.partial(source.enumerator.discover_from, self._progress(source))  # type: ignore[attr-defined]
            event = None
        else:
            return []
        source.is_busy = True
        return [Offload("discover_splits", SplitsDiscovered(uid, self._generation, event is not None), work)]

    @staticmethod
    def _progress(source: _Source) -> EnumeratorProgress:
        assignment = source.assignment
        return EnumeratorProgress(
            assignment.state, assignment.is_exhausted, assignment.parallelism, assignment.has_found
        )

    def discovered(self, event: OffloadCompleted) -> Said:
        """Take the end of a call.

        Raises:
            HeadraceError: If the present deployment's call failed, and trying again is no use.
        """
        uid, generation, is_event = event.token
        source = self._sources[uid]
        source.is_busy = False
        if not self._is_active:
            return Said()
        is_old = generation != self._generation
        if is_old and (is_event or event.error is not None or source.progresses):
            return Said(commands=self._call_next(uid) if is_event else self._discover(uid))
        if event.error is not None:
            if is_event:
                raise self._error(source, event.error, "a source event could not be handled")
            return self._discovery_failed(uid, event.error)
        discovery = event.result
        if not isinstance(discovery, Discovery):
            message = f"an enumerator gives a Discovery; got {type(discovery).__name__}"
            raise SourceError(message, operator=source.name)
        said = Said(source.assignment.discovered(self._as_found_first(source, discovery)))
        said.events = [(uid, one.subtask, one.event) for one in discovery.events]
        source.was_exhausted = source.was_exhausted and source.assignment.is_exhausted and not discovery.continues
        if not is_event:
            source.num_failures, source.has_looked = 0, True
            interval_ms = source.enumerator.discovery_interval_ms
            if interval_ms is not None and not source.assignment.is_final:
                said.commands.append(StartTimer(_timer_key(uid), interval_ms, DiscoveryDue(uid)))
        said.commands += self._tell_of_exhaustion(uid) or self._call_next(uid)
        return said

    @staticmethod
    def _as_found_first(source: _Source, discovery: Discovery) -> Discovery:
        """With the positions of this leader's first look, where another look at the same gives others."""
        first = source.first_found
        splits = []
        for split in discovery.splits:
            known = first.get(split.split_id)
            if known is not None and known.payload == split.payload:
                splits.append(known)
                continue
            if split.position is not None or discovery.is_repeatable is False:
                first[split.split_id] = split
            splits.append(split)
        return replace(discovery, splits=splits)

    def _discovery_failed(self, uid: OperatorId, error: BaseException) -> Said:
        source = self._sources[uid]
        source.num_failures += 1
        attempts = LATER_ATTEMPTS if source.has_looked else FIRST_ATTEMPTS
        is_ours = isinstance(error, HeadraceError) and not isinstance(error, ExternalError)
        if is_ours or isinstance(error, _MISTAKES) or source.num_failures >= attempts:
            source.num_failures = 0
            raise self._error(source, error, "splits could not be discovered")
        delay_ms = min(MAX_DELAY_MS, INITIAL_DELAY_MS << (source.num_failures - 1))
        which = f"{source.num_failures} of {attempts}"
        note = f"source {source.name!r} could not look for splits ({which}), tries again in {delay_ms} ms: {error}"
        commands: list[Command] = [StartTimer(_timer_key(uid), delay_ms, DiscoveryDue(uid)), *self._call_next(uid)]
        return Said(notes=[note], commands=commands)

    @staticmethod
    def _error(source: _Source, error: BaseException, what: str) -> BaseException:
        if isinstance(error, HeadraceError):
            error.context.setdefault("operator", source.name)
            return error
        return SourceError(f"{what}: {error!r}", operator=source.name)


def _create_enumerator(source: Any, name: str, context: EnumeratorContext) -> SplitEnumerator:
    try:
        enumerator: SplitEnumerator = source.create_enumerator(context)
    except HeadraceError as error:
        error.context.setdefault("operator", name)
        raise
    except BaseException as error:
        raise_from_outside(error)
        message = f"the split enumerator could not be made: {error!r}"
        raise SourceError(message, operator=name) from error
    check_enumerator(enumerator, name)
    return enumerator


def _timer_key(uid: OperatorId) -> str:
    return f"discover-{uid}"
