"""Which splits of a source are known, which still wait for a reader, and who asked for one (row D9).

The engine's half of a split enumerator: the connector only discovers; what has been discovered, handed out and asked
for is kept here, once for all connectors. A split is handed out once per deployment; from then on the reader's
snapshots carry it. Invariant: at any cut made by a checkpoint, every known split that is not exhausted is either
unassigned here or in exactly one reader's snapshot, because the JobManager takes `SplitAssignment.snapshot` and
triggers the sources in one step, and answers overtake no trigger.

A request is answered when there is something to say: a split, or that no more will come. Requests carry a number, so
that a doubled one gets the same answer instead of a second split.

Discovery blocks, so it is offloaded, one call per source at a time; the connector's enumerator lives as long as its
leader, the assignment as long as one deployment.

Source: FLIP-27's ``SplitEnumerator`` and ``SplitAssignmentTracker``; Flink's ``StaticFileSplitEnumerator``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from headrace.engine.connector import Discovery, EnumeratorContext, Split, SplitEnumerator
from headrace.engine.errors import CheckpointMismatchError, HeadraceError, SourceError
from headrace.engine.jobgraph import JobGraph
from headrace.engine.machine import CancelTimer, Command, Offload, OffloadCompleted, StartTimer
from headrace.engine.messages import NextInputSplit, RequestNextInputSplit
from headrace.state.identifiers import ExecutionAttemptId, OperatorId

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
            answer = NextInputSplit(attempt, self.operator, nonce, self._unassigned.popleft(), no_more=False)
        elif self.is_final:
            answer = NextInputSplit(attempt, self.operator, nonce, None, no_more=True)
        else:
            return None
        self._answered[attempt] = answer
        return answer

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
        for vertex in job_graph.vertices.values():
            for node in vertex.chain:
                if node.operator.requests_split:
                    source = node.operator.source  # type: ignore[attr-defined]
                    self._names[node.uid] = node.name
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

    def snapshot(self) -> dict[OperatorId, Any]:
        """What a checkpoint triggered in the same step must hold."""
        return {uid: assignment.snapshot() for uid, assignment in self._assignments.items()}

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
