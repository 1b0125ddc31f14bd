"""From placed executions to what their slots are sent: channels, pickled vertices, parts of a checkpoint.

Channels are ordered by (edge id, peer subtask), for producers and consumers alike, and a pointwise exchange has only
those that carry something.

Source: Flink's ``TaskDeploymentDescriptorFactory``.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.state.checkpoints.assignment import assign_restore
from headrace.state.checkpoints.snapshot import TaskRestore
from headrace.state.identifiers import VertexId
from headrace.state.reading.program_classes import ProgramClasses
from headrace.state.reading.program_pickles import dump_program_classes

from ...checkpoint.io import RestorePoint
from ...execution.graph import Execution, ExecutionGraph
from ...execution.scheduling import connected_consumers, connected_producers
from ...graph.job_graph import JobEdge, JobGraph
from ...kernel.config import JobSettings
from ...kernel.machine import Address
from ...protocol.messages import SubmitJob
from ...protocol.task_messages import ChannelDescriptor, TaskDeployment
from ...task.channel_state import ChannelFiles

__all__ = ["DeploymentFactory"]


class DeploymentFactory:
    """Builds the deployments of one job.

    Args:
        job: The job.
        graph: Its ExecutionGraph; the executions described are its current ones.
        job_manager: Where tasks report to.
        coordinator: Where they acknowledge checkpoints.
    """

    def __init__(self, job: SubmitJob, graph: ExecutionGraph, job_manager: Address, coordinator: Address) -> None:
        self._job = job
        self._graph = graph
        self._job_manager = job_manager
        self._coordinator = coordinator
        # Vertices never change, so each is pickled once, however often and widely it is deployed; and with all of them
        # the classes that they bring.
        self._pickled: dict[VertexId, bytes] = {}
        self._program_classes = b""
        self._classes = ProgramClasses(list)
        self._settings = _settings_in_force(job.settings, graph.job_graph)
        # The restore point that subtasks were last described for, and its records in flight.
        self._in_flight: tuple[RestorePoint, ChannelFiles] | None = None

    def describe(self, execution: Execution, restore: RestorePoint | None) -> TaskDeployment:
        """Return everything a slot needs to build one subtask.

        Raises:
            CheckpointMismatchError: If the checkpoint does not fit the subtask's operators.
        """
        attempt = execution.attempt
        job_graph = self._graph.job_graph
        input_edges = tuple(job_graph.inputs_of(attempt.vertex))
        output_edges = tuple(job_graph.outputs_of(attempt.vertex))
        return TaskDeployment(
            job_id=self._job.job_id,
            job_name=self._job.name,
            attempt=attempt,
            vertex=self._pickle(attempt.vertex),
            input_edges=input_edges,
            output_edges=output_edges,
            inputs=tuple(channel for edge in input_edges for channel in self._inputs(edge, attempt.subtask)),
            outputs=tuple(channel for edge in output_edges for channel in self._outputs(edge, attempt.subtask)),
            settings=self._settings,
            job_manager=self._job_manager,
            coordinator=self._coordinator,
            restore=self._restore(attempt.vertex, attempt.subtask, restore),
            consumer_parallelisms=tuple(job_graph.vertices[edge.target].parallelism for edge in output_edges),
            program_classes=b"" if restore is None else self._program_classes,
        )

    def _pickle(self, vertex: VertexId) -> bytes:
        if not self._pickled:
            vertices = self._graph.job_graph.vertices
            pickles, classes, self._program_classes = dump_program_classes(vertices.values())
            self._classes = ProgramClasses(lambda: classes)
            self._pickled = dict(zip(vertices, pickles, strict=True))
        return self._pickled[vertex]

    def _inputs(self, edge: JobEdge, consumer: int) -> list[ChannelDescriptor]:
        num_producers, num_consumers = self._parallelisms(edge)
        peers = connected_producers(edge, num_producers, num_consumers, consumer)
        return [self._channel(edge, edge.source, peer) for peer in peers]

    def _outputs(self, edge: JobEdge, producer: int) -> list[ChannelDescriptor]:
        num_producers, num_consumers = self._parallelisms(edge)
        peers = connected_consumers(edge, num_producers, num_consumers, producer)
        return [self._channel(edge, edge.target, peer) for peer in peers]

    def _parallelisms(self, edge: JobEdge) -> tuple[int, int]:
        vertices = self._graph.job_graph.vertices
        return vertices[edge.source].parallelism, vertices[edge.target].parallelism

    def _channel(self, edge: JobEdge, vertex: VertexId, subtask: int) -> ChannelDescriptor:
        peer = self._graph.vertices[vertex][subtask].current
        assert peer is not None
        return ChannelDescriptor(edge.edge_id, peer.attempt, peer.place.info.address)

    def _restore(self, vertex_id: VertexId, subtask: int, point: RestorePoint | None) -> TaskRestore | None:
        if point is None:
            return None
        job_graph = self._graph.job_graph
        vertex = job_graph.vertices[vertex_id]
        operators = [(node.uid, vertex.max_parallelism) for node in vertex.chain]
        with self._classes.in_use():
            assigned = assign_restore(point.manifest, point.root, operators, subtask, vertex.parallelism)
            if self._in_flight is None or self._in_flight[0] is not point:
                self._in_flight = (point, ChannelFiles(point.manifest, job_graph))
        proven = point.checkpoint_id if point.passed_over and point.must_prove else None
        repeats = bool(point.passed_over) and not point.must_prove
        return replace(
            assigned,
            channels=self._in_flight[1].of(vertex_id, subtask),
            must_prove_after=proven,
            repeats_output=repeats,
            starts_event_time_anew=self._has_new_source(vertex_id, point),
        )

    def _has_new_source(self, vertex_id: VertexId, point: RestorePoint) -> bool:
        """Whether a source that was not there when the checkpoint was taken feeds a vertex.

        What operators behind it remember of event time is not about its records, which may be older.
        """
        known = {*(state.uid for state in point.manifest.operators), *point.enumerators}
        job_graph = self._graph.job_graph
        seen: set[VertexId] = set()
        ahead = [vertex_id]
        while ahead:
            vertex = ahead.pop()
            if vertex in seen:
                continue
            seen.add(vertex)
            inputs = job_graph.inputs_of(vertex)
            head = job_graph.vertices[vertex].chain[0]
            if not inputs and head.operator.requests_split and head.uid not in known:
                return True
            ahead.extend(edge.source for edge in inputs)
        return False


def _settings_in_force(settings: JobSettings, job_graph: JobGraph) -> JobSettings:
    """Barriers of a job with a loop are always aligned: the head's log of its feedback relies on their order."""
    checkpoints = settings.checkpoints
    if checkpoints is None or not checkpoints.unaligned or not job_graph.has_loop:
        return settings
    return replace(settings, checkpoints=replace(checkpoints, unaligned=False))
