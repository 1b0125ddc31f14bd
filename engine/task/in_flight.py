"""What is in flight at one checkpoint of one task: the log of an unaligned snapshot.

A snapshot may be taken before the barrier has come on every channel, and before it has left on every one. Then the
checkpoint also holds the records between: those that had come and were not processed, and those that come before the
barrier does (*input state*); those that waited for credit, before the barrier, when it overtook them (*output state*);
and, whether or not anything overtakes, what an earlier restore brought and has not been processed (`Replay`).

The log is *complete* when the barrier has come on every channel and has left on every one: only then may the snapshot
be written. Rows are encoded when they are logged, because they are processed while they wait to be written.

Source: Flink's ``ChannelStateWriterImpl``; FLIP-76; Chandy and Lamport's channel states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.state.checkpoints.snapshot import SnapshotPart
from headrace.state.identifiers import ExecutionAttemptId, OperatorId

from ..columns.records import Batch, CheckpointBarrier
from ..graph.job_graph import JobEdge, JobVertex
from ..protocol.task_messages import TaskDeployment
from .channel_state import INPUT, OUTPUT, Logged, channel_part
from .channels import InputChannel

__all__ = ["InFlightLog", "LogPlaces"]

_Target = tuple[OperatorId, int, str]
"""The operator that consumes records, which input of it, and the exchange's uid."""


class LogPlaces:
    """Where the records of a task's channels belong in a checkpoint.

    Args:
        deployment: The task.
        vertex: Its vertex.
    """

    def __init__(self, deployment: TaskDeployment, vertex: JobVertex) -> None:
        self.subtask = deployment.attempt.subtask
        self.parallelism = (vertex.parallelism, vertex.max_parallelism)
        inputs = {edge.edge_id: edge for edge in deployment.input_edges}
        # The consumer's end of each input edge, by edge id.
        self.targets: Mapping[int, _Target] = {edge_id: _target(edge) for edge_id, edge in inputs.items()}
        # Parallelism and max parallelism of each output edge's consumer; whose output it is.
        self.consumers = {
            edge.edge_id: (parallelism, edge.target_max_parallelism)
            for edge, parallelism in zip(deployment.output_edges, deployment.consumer_parallelisms, strict=False)
        }
        self.producers = {
            edge.edge_id: OperatorId(vertex.chain[edge.source_operator].uid) for edge in deployment.output_edges
        }


def _target(edge: JobEdge) -> _Target:
    return OperatorId(edge.target), edge.input_index, edge.uid


class InFlightLog:
    """The log of one snapshot.

    Args:
        barrier: The checkpoint's.
        places: Where the task's records belong.

    Attributes:
        barrier: The checkpoint's.
        awaited: Input channels on which the barrier has yet to come: what comes before it is logged.
        holds_barrier: Whether the barrier waits for credit somewhere; it may overtake what waits before it there.
        is_unaligned: Whether the barrier has overtaken anything, or might have.
    """

    def __init__(self, barrier: CheckpointBarrier, places: LogPlaces) -> None:
        self.barrier = barrier
        self.awaited: set[int] = set()
        self.holds_barrier = False
        self.is_unaligned = False
        self._places = places
        # What was in flight to this task, in the order of each channel; and by its output edges to other tasks.
        self._inputs: dict[_Target, list[Logged]] = {}
        self._outputs: dict[int, tuple[JobEdge, list[Logged]]] = {}

    @property
    def is_complete(self) -> bool:
        """Whether nothing can be added any more."""
        return not self.awaited and not self.holds_barrier

    def add_input(self, channel: InputChannel, batches: Iterable[Batch]) -> None:
        """Log records that have come before the barrier.

        Raises:
            TypeMismatchError: If a row cannot be stored.
        """
        logged = [Logged.of(batch, self._places.subtask) for batch in batches]
        if logged:
            self._inputs.setdefault(self._places.targets[channel.edge_id], []).extend(logged)

    def add_outputs(self, overtaken: Iterable[tuple[JobEdge, ExecutionAttemptId, Sequence[Batch]]]) -> None:
        """Log records that the barrier has overtaken on their way out.

        Raises:
            TypeMismatchError: If a row cannot be stored.
        """
        self.is_unaligned = True
        self.holds_barrier = False
        for edge, consumer, batches in overtaken:
            logged = [Logged.of(batch, consumer.subtask) for batch in batches]
            if logged:
                self._outputs.setdefault(edge.edge_id, (edge, []))[1].extend(logged)

    def add_replay(self, left: Iterable[tuple[OperatorId, int, str, Logged]]) -> None:
        """Log what an earlier restore brought; before anything else is."""
        for target, input_index, exchange, logged in left:
            self._inputs.setdefault((target, input_index, exchange), []).append(logged)

    def parts(self) -> list[tuple[OperatorId, SnapshotPart]]:
        """Return the files to write, with the operators of this task whose state they are."""
        places = self._places
        found = [
            (target, channel_part(exchange, INPUT, entries, target, input_index, places.parallelism))
            for (target, input_index, exchange), entries in self._inputs.items()
        ]
        for edge_id, (edge, entries) in self._outputs.items():
            target, input_index, exchange = _target(edge)
            part = channel_part(exchange, OUTPUT, entries, target, input_index, places.consumers[edge_id])
            found.append((places.producers[edge_id], part))
        return found
