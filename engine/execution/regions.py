"""Pipelined regions: which subtasks of a job have to be restarted together.

Two subtasks are in one region if records can pass between them, directly or by way of others: the regions are the
connected components of the subtasks over their channels, feedback of loops included. A forward-only job of parallelism
p has p regions, every all-to-all exchange joins what is on its two sides, and pipelines that share no exchange are
apart. What is in different regions shares no channel, so a consistent cut through the job, a checkpoint, is a
consistent cut through each region, and a region can be put back to it while the others go on.

What is outside may join them, too: a sink that shuts out earlier attempts of the whole job is one region
(``Operator.is_one_region``).

Being in one slot, or in one co-location group, does not join regions: a slot hosts tasks of several, and a region goes
back to the slots it had.

Source: Flink's ``SchedulingPipelinedRegionComputeUtil`` and ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.state.identifiers import VertexId

from ..graph.job_graph import JobGraph
from .scheduling import connected_consumers

__all__ = ["PipelinedRegions", "Subtask"]

Subtask = tuple[VertexId, int]
"""A subtask, over all its runs: its vertex and its index."""


class PipelinedRegions:
    """The regions of one job graph.

    Args:
        job_graph: The job.
    """

    def __init__(self, job_graph: JobGraph) -> None:
        vertices = job_graph.vertices.values()
        subtasks = [(vertex.vertex_id, index) for vertex in vertices for index in range(vertex.parallelism)]
        # Each subtask's parent in a forest whose trees are the regions found so far.
        parents: dict[Subtask, Subtask] = {subtask: subtask for subtask in subtasks}
        for edge in job_graph.edges:
            num_producers = job_graph.vertices[edge.source].parallelism
            num_consumers = job_graph.vertices[edge.target].parallelism
            if not edge.partitioner.is_pointwise:
                # All are joined through the first consumer: as good as every pair, in linear time.
                for producer in range(num_producers):
                    _join(parents, (edge.source, producer), (edge.target, 0))
                for consumer in range(1, num_consumers):
                    _join(parents, (edge.target, consumer), (edge.target, 0))
                continue
            for producer in range(num_producers):
                for consumer in connected_consumers(edge, num_producers, num_consumers, producer):
                    _join(parents, (edge.source, producer), (edge.target, consumer))
        for vertex in vertices:
            if any(node.operator.is_one_region for node in vertex.chain):
                for index in range(1, vertex.parallelism):
                    _join(parents, (vertex.vertex_id, index), (vertex.vertex_id, 0))
        members: dict[Subtask, list[Subtask]] = {}
        for subtask in subtasks:
            members.setdefault(_root(parents, subtask), []).append(subtask)
        self.regions = tuple(frozenset(region) for region in members.values())
        self._region_of = {subtask: region for region in self.regions for subtask in region}

    def touched_by(self, subtasks: Iterable[Subtask]) -> frozenset[Subtask]:
        """Return all subtasks of the regions that these are in."""
        return frozenset(member for region in {self._region_of[one] for one in subtasks} for member in region)


def _root(parents: dict[Subtask, Subtask], subtask: Subtask) -> Subtask:
    while parents[subtask] != subtask:
        parents[subtask] = parents[parents[subtask]]
        subtask = parents[subtask]
    return subtask


def _join(parents: dict[Subtask, Subtask], one: Subtask, other: Subtask) -> None:
    parents[_root(parents, one)] = _root(parents, other)
