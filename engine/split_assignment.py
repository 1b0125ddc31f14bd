"""Which splits of a source are known, which still wait for a reader, and who asked for one (row D9).

The engine's half of a split enumerator: the connector only discovers; what has been discovered, handed out and asked
for is kept here, once for all connectors. A split is handed out once per deployment; from then on the reader's
snapshots carry it. Invariant: at any cut made by a checkpoint, every known split that is not exhausted is either
unassigned here or in exactly one reader's snapshot, because the JobManager takes `SplitAssignment.snapshot` and
triggers the sources in one step, and answers overtake no trigger.

Restarted alone, a region's readers go back to the newest complete checkpoint while the others keep what they have. For
that it is remembered what was given to whom since that checkpoint was triggered: exactly this comes back.

A request is answered when there is something to say: a split, or that no more will come. Requests carry a number, so
that a doubled one gets the same answer instead of a second split.

Discovery blocks, so it is offloaded, one call per source at a time; the connector's enumerator lives as long as its
leader, the assignment as long as one deployment.

Source: FLIP-27's ``SplitEnumerator`` and ``SplitAssignmentTracker``; Flink's ``StaticFileSplitEnumerator``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.engine.connector import Discovery, EnumeratorContext, Split, SplitEnumerator
from headrace.engine.errors import CheckpointMismatchError, HeadraceError, SourceError
from headrace.engine.jobgraph import JobGraph
from headrace.engine.machine import CancelTimer, Command, Offload, OffloadCompleted, StartTimer
from headrace.engine.task_messages import NextInputSplit, RequestNextInputSplit
from headrace.state.identifiers import ExecutionAttemptId, OperatorId, VertexId

__all__ = ["DiscoveryDue", "SourceCoordinator", "SplitAssignment"]


class SplitAssignment:
    """The splits of one source during one deployment.

    Args:
        operator: The source's uid.
    """

    def __init__(self, operator: OperatorId) -> None:
        self.operator = operator
        # Ids of all splits ever discovered, exhausted ones included: what is known is never handed out again.
        self._known: set[str] = set()
        # Discovered and not handed out, oldest first.
        self._unassigned: deque[Split] = deque()
        # No further split will ever be discovered.
        self.is_final = False
        # Splits handed out since the newest complete checkpoint was triggered, oldest first.
        self._handed_out: list[_HandedOut] = []
        # Readers that wait, longest first, with the number of their request.
        self._waiting: dict[ExecutionAttemptId, int] = {}
        # The last answer to each reader, for doubled requests.
        self._answered: dict[ExecutionAttemptId, NextInputSplit] = {}

    @property
    def num_unassigned(self) -> int:
        """Splits that wait for a reader."""
        return len(self._unassigned)

    def discovered(self, discovery: Discovery) -> list[NextInputSplit]:
        """Take over what a discovery gave.

        Returns:
            Answers to readers that were waiting.
        """
        for split in discovery.splits:
            if split.split_id not in self._known:
                self._known.add(split.split_id)
                self._unassigned.append(split)
        self.is_final = self.is_final or discovery.is_final
        return self._answer_waiting()

    def _answer_waiting(self) -> list[NextInputSplit]:
        answers: list[NextInputSplit] = []
        for attempt, nonce in list(self._waiting.items()):
            answer = self._answer(attempt, nonce)
            if answer is None:
                break
            del self._waiting[attempt]
            answers.append(answer)
        return answers

    def requested(self, request: RequestNextInputSplit) -> NextInputSplit | None:
        """Take a reader's request; the caller has checked that its attempt is a current one.

        Returns:
            The answer, or None while there is nothing to say: then `discovered` will give it.
        """
        last = self._answered.get(request.attempt)
        if last is not None and request.nonce <= last.nonce:
            return last if request.nonce == last.nonce else None
        answer = self._answer(request.attempt, request.nonce)
        if answer is None:
            self._waiting[request.attempt] = max(request.nonce, self._waiting.get(request.attempt, request.nonce))
        return answer

    def _answer(self, attempt: ExecutionAttemptId, nonce: int) -> NextInputSplit | None:
        if self._unassigned:
            split = self._unassigned.popleft()
            self._handed_out.append(_HandedOut(split, attempt.subtask))
            answer = NextInputSplit(attempt, self.operator, nonce, split, no_more=False)
        elif self.is_final:
            answer = NextInputSplit(attempt, self.operator, nonce, None, no_more=True)
        else:
            return None
        self._answered[attempt] = answer
        return answer

    def triggered(self, checkpoint_id: int) -> None:
        """A checkpoint is triggered in this step: what was handed out before is in its readers' snapshots."""
        for handed_out in self._handed_out:
            if handed_out.held_by is None:
                handed_out.held_by = checkpoint_id

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: readers restored from it, or from a later one, have what it holds."""
        self._handed_out = [one for one in self._handed_out if one.held_by is None or one.held_by > checkpoint_id]

    def take_back(self, subtasks: Collection[int]) -> list[NextInputSplit]:
        """Some readers go back to the newest complete checkpoint; all others go on.

        What those were given since it was triggered is unassigned again, in its old order and before all else: no
        snapshot that is restored holds it.

        Args:
            subtasks: Which readers.

        Returns:
            Answers to other readers that were waiting.
        """
        returned = [one.split for one in self._handed_out if one.subtask in subtasks]
        self._handed_out = [one for one in self._handed_out if one.subtask not in subtasks]
        self._unassigned.extendleft(reversed(returned))
        self._waiting = {attempt: nonce for attempt, nonce in self._waiting.items() if attempt.subtask not in subtasks}
        self._answered = {attempt: last for attempt, last in self._answered.items() if attempt.subtask not in subtasks}
        return self._answer_waiting()

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint must hold, as JSON-able data."""
        return {
            "known": sorted(self._known),
            "unassigned": [
                {"split_id": split.split_id, "payload": split.payload, "position": split.position}
                for split in self._unassigned
            ],
            "is_final": self.is_final,
        }

    @classmethod
    def restore(cls, operator: OperatorId, snapshot: Any | None) -> SplitAssignment:
        """Begin a deployment from a checkpoint's part, or from nothing.

        Raises:
            CheckpointMismatchError: If the part is not one of a split assignment.
        """
        assignment = cls(operator)
        if snapshot is None:
            return assignment
        try:
            assignment._known = set(snapshot["known"])
            assignment._unassigned = deque(
                Split(split["split_id"], split["payload"], split["position"]) for split in snapshot["unassigned"]
            )
            assignment.is_final = bool(snapshot["is_final"])
        except (KeyError, TypeError) as error:
            message = f"the checkpoint's part for a source's splits cannot be read: {error!r}"
            raise CheckpointMismatchError(message, operator=operator) from error
        return assignment


@dataclass(slots=True)
class _HandedOut:
    """A split that a reader was given.

    Attributes:
        split: As it was given.
        subtask: To whom.
        held_by: The first checkpoint that was triggered afterwards: it and all later ones have it in the reader's
            snapshot, or exhausted. None if none was.
    """

    split: Split
    subtask: int
    held_by: int | None = None


@dataclass(frozen=True, slots=True)
class DiscoveryDue:
    """Timer: look for splits of a source again."""

    operator: OperatorId


class SourceCoordinator:
    """All sources of one job, within its JobManager.

    Args:
        job_graph: The job; operators with ``requests_split`` are its sources.

    Raises:
        SourceError: If an enumerator cannot be made.
    """

    def __init__(self, job_graph: JobGraph) -> None:
        self._enumerators: dict[OperatorId, SplitEnumerator] = {}
        self._names: dict[OperatorId, str] = {}
        self._vertices: dict[OperatorId, VertexId] = {}
        for vertex in job_graph.vertices.values():
            for node in vertex.chain:
                if node.operator.requests_split:
                    source = node.operator.source  # type: ignore[attr-defined]
                    self._names[node.uid] = node.name
                    self._vertices[node.uid] = vertex.vertex_id
                    self._enumerators[node.uid] = _create_enumerator(source, node.name, vertex.parallelism)
        self._assignments: dict[OperatorId, SplitAssignment] = {}
        # Counts the deployments; a discovery begun in an older one is welcome, its failure is not the newer one's.
        self._generation = 0
        self._is_active = False
        # Sources with a discovery under way.
        self._discovering: set[OperatorId] = set()

    def begin(self, snapshots: dict[OperatorId, Any]) -> list[Command]:
        """Begin a deployment.

        Args:
            snapshots: The restored checkpoint's enumerators; empty to begin afresh.

        Raises:
            CheckpointMismatchError: If a part cannot be read.
        """
        self._generation += 1
        self._is_active = True
        self._assignments = {uid: SplitAssignment.restore(uid, snapshots.get(uid)) for uid in self._enumerators}
        return [command for uid in self._enumerators for command in self._discover(uid)]

    def stop(self) -> list[Command]:
        """The deployment is over."""
        self._is_active = False
        return [CancelTimer(_timer_key(uid)) for uid in self._enumerators]

    def take_back(self, subtasks: Iterable[tuple[VertexId, int]]) -> list[NextInputSplit]:
        """Some subtasks go back to the newest complete checkpoint; see `SplitAssignment.take_back`."""
        by_vertex: dict[VertexId, set[int]] = {}
        for vertex, subtask in subtasks:
            by_vertex.setdefault(vertex, set()).add(subtask)
        answers: list[NextInputSplit] = []
        for uid, assignment in self._assignments.items():
            answers += assignment.take_back(by_vertex.get(self._vertices[uid], set()))
        return answers

    def snapshot(self, checkpoint_id: int) -> dict[OperatorId, Any]:
        """What a checkpoint triggered in the same step must hold."""
        for assignment in self._assignments.values():
            assignment.triggered(checkpoint_id)
        return {uid: assignment.snapshot() for uid, assignment in self._assignments.items()}

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete."""
        for assignment in self._assignments.values():
            assignment.completed(checkpoint_id)

    def requested(self, request: RequestNextInputSplit) -> NextInputSplit | None:
        """Take a request of a current attempt; see `SplitAssignment.requested`."""
        assignment = self._assignments.get(request.operator)
        return assignment.requested(request) if assignment is not None and self._is_active else None

    def discovery_due(self, timer: DiscoveryDue) -> list[Command]:
        """The pause between two discoveries is over."""
        return self._discover(timer.operator)

    def discovered(self, event: OffloadCompleted) -> tuple[list[NextInputSplit], list[Command]]:
        """Take the end of a discovery.

        Returns:
            Answers for waiting readers, and what is to be done.

        Raises:
            SourceError: If the present deployment's discovery failed.
        """
        uid, generation = event.token
        self._discovering.discard(uid)
        if not self._is_active:
            return [], []
        if event.error is not None:
            if generation != self._generation:
                return [], self._discover(uid)
            raise self._discovery_error(uid, event.error)
        answers = self._assignments[uid].discovered(event.result)
        interval = self._enumerators[uid].discovery_interval_ms
        if self._assignments[uid].is_final or interval is None:
            return answers, []
        return answers, [StartTimer(_timer_key(uid), interval, DiscoveryDue(uid))]

    def _discovery_error(self, uid: OperatorId, error: BaseException) -> BaseException:
        if isinstance(error, HeadraceError):
            error.context.setdefault("operator", self._names[uid])
            return error
        message = f"splits could not be discovered: {error!r}"
        return SourceError(message, operator=self._names[uid])

    def _discover(self, uid: OperatorId) -> list[Command]:
        if not self._is_active or uid in self._discovering or self._assignments[uid].is_final:
            return []
        self._discovering.add(uid)
        return [Offload("discover_splits", (uid, self._generation), self._enumerators[uid].discover)]


def _create_enumerator(source: Any, name: str, parallelism: int) -> SplitEnumerator:
    try:
        enumerator: SplitEnumerator = source.create_enumerator(EnumeratorContext(parallelism))
    except HeadraceError as error:
        error.context.setdefault("operator", name)
        raise
    except Exception as error:
        message = f"the split enumerator could not be made: {error!r}"
        raise SourceError(message, operator=name) from error
    return enumerator


def _timer_key(uid: OperatorId) -> str:
    return f"discover-{uid}"
