"""The parts of a job that are scaled together, and how its vertices feed each other.

A *unit* is vertices that must have one parallelism: ends of an edge that the program wants to be forward, the members
of a loop, co-located vertices. A *group* is units whose tasks share slots. A slot has one thread, so that the work of
all of a group's tasks adds up in it: what a group needs is slots, and its units get as many subtasks as there are, as
far as each may. (In Flink each task has a thread, and vertices are scaled one by one.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.state.identifiers import VertexId

from ..errors import nearest
from ..graph.job_graph import JobGraph, JobVertex
from ..graph.rescaling import loops_of
from ..kernel.autoscaler_settings import AutoscalerSettings
from ..operators.exchange import ForwardPartitioner, ImplicitForwardPartitioner

__all__ = ["Group", "Topology", "Unit", "unknown_exclusions"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Vertices of one parallelism.

    Attributes:
        members: The vertices, in the order of the graph.
        low: The least parallelism they may have.
        high: The largest; as ``low`` if they are left as they are.
    """

    members: tuple[VertexId, ...]
    low: int
    high: int

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.low == self.high

    def within(self, parallelism: int) -> int:
        """Return what it gets where its group has so many slots."""
        return max(self.low, min(parallelism, self.high))


@dataclass(frozen=True, slots=True)
class Group:
    """Units whose tasks share slots.

    Attributes:
        name: Of the slot sharing group; of several that are tied, the first.
        units: They.
    """

    name: str
    units: tuple[Unit, ...]

    @property
    def vertices(self) -> tuple[VertexId, ...]:
        """All its vertices."""
        return tuple(member for unit in self.units for member in unit.members)

    @property
    def _free(self) -> list[Unit]:
        return [unit for unit in self.units if not unit.is_fixed]

    @property
    def high(self) -> int:
        """More slots than this are of no use to what may be scaled in it."""
        return max((unit.high for unit in self._free), default=1)

    @property
    def low(self) -> int:
        """Fewer than this do not make anything smaller."""
        return min((unit.low for unit in self._free), default=1)

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return not self._free

    def at(self, num_slots: int) -> dict[VertexId, int]:
        """Return the parallelism of its vertices with so many slots."""
        return {member: unit.within(num_slots) for unit in self.units for member in unit.members}


@dataclass(frozen=True, slots=True)
class Topology:
    """A job as the autoscaler sees it.

    Attributes:
        names: Of vertices, for people; in the order of the graph, sources first.
        inputs: By vertex, those that feed it; without feedback. Sources have none.
        groups: What is scaled together.
        left: Why vertices keep their parallelism, in words that follow "which"; of those that do.
    """

    names: dict[VertexId, str]
    inputs: dict[VertexId, tuple[VertexId, ...]]
    groups: tuple[Group, ...]
    left: dict[VertexId, str]

    @classmethod
    def of(cls, job_graph: JobGraph, parallelism: Mapping[VertexId, int], settings: AutoscalerSettings) -> Topology:
        """Look at a job.

        Args:
            job_graph: As it was submitted: which edges are forward may have changed since.
            parallelism: What its vertices have now.
            settings: For the bounds.
        """
        vertices = job_graph.vertices
        units = [
            _unit([vertices[member] for member in vertices if member in tied], parallelism, settings)
            for tied in _joined(vertices, _ties(job_graph))
        ]
        of_vertex = {member: unit for unit in units for member in unit.members}
        sharing = [
            {member for vertex in vertices.values() if vertex.slot_sharing_group == name for member in
             of_vertex[vertex.vertex_id].members}
            for name in dict.fromkeys(vertex.slot_sharing_group for vertex in vertices.values())
        ]  # fmt: skip
        groups = tuple(
            Group(
                next(vertex.slot_sharing_group for vertex in vertices.values() if vertex.vertex_id in shared),
                tuple(unit for unit in units if unit.members[0] in shared),
            )
            for shared in _joined(vertices, sharing)
        )
        inputs = {
            vertex: tuple(dict.fromkeys(edge.source for edge in job_graph.inputs_of(vertex) if not edge.is_feedback))
            for vertex in vertices
        }
        left = {
            member: _why_left(unit, vertices, settings) for unit in units if unit.is_fixed for member in unit.members
        }
        return cls({vertex.vertex_id: vertex.name for vertex in vertices.values()}, inputs, groups, left)


def unknown_exclusions(job_graph: JobGraph, settings: AutoscalerSettings) -> list[tuple[str, str | None]]:
    """Return the uids of ``vertex.exclude.ids`` that no operator of a job has, each with a hint of what was meant."""
    known = {str(node.uid) for vertex in job_graph.vertices.values() for node in vertex.chain}
    known |= {str(vertex_id) for vertex_id in job_graph.vertices}
    return [(uid, nearest(uid, known)) for uid in settings.vertex_exclude_ids if uid not in known]


def _why_left(unit: Unit, vertices: Mapping[VertexId, JobVertex], settings: AutoscalerSettings) -> str:
    members = [vertices[member] for member in unit.members]
    if not all(member.is_parallel for member in members):
        return "runs as one task and cannot be split"
    return (
        "vertex.exclude.ids leaves as it is"
        if any(_is_excluded(one, settings) for one in members)
        else (f"may have {unit.high} and no other parallelism")
    )


def _is_excluded(vertex: JobVertex, settings: AutoscalerSettings) -> bool:
    return not set(settings.vertex_exclude_ids).isdisjoint((vertex.vertex_id, *(node.uid for node in vertex.chain)))


def _unit(members: list[JobVertex], parallelism: Mapping[VertexId, int], settings: AutoscalerSettings) -> Unit:
    ids = tuple(member.vertex_id for member in members)
    now = parallelism.get(ids[0], members[0].parallelism)
    if any(not member.is_parallel or _is_excluded(member, settings) for member in members):
        return Unit(ids, now, now)
    high = min(settings.vertex_max_parallelism, *(member.max_parallelism for member in members))
    return Unit(ids, min(settings.vertex_min_parallelism, high), high)


def _ties(job_graph: JobGraph) -> list[set[VertexId]]:
    """Vertices that must have one parallelism."""
    ties = loops_of(job_graph)
    for edge in job_graph.edges:
        is_wanted = not isinstance(edge.partitioner, ImplicitForwardPartitioner)
        if isinstance(edge.partitioner, ForwardPartitioner) and is_wanted:
            ties.append({edge.source, edge.target})
    located: dict[str, set[VertexId]] = {}
    for vertex in job_graph.vertices.values():
        if vertex.co_location_group is not None:
            located.setdefault(vertex.co_location_group, set()).add(vertex.vertex_id)
    return [*ties, *located.values()]


def _joined(vertices: Iterable[VertexId], ties: Iterable[set[VertexId]]) -> list[set[VertexId]]:
    """All vertices, in sets of those that are tied, directly or not; in the order of their first members."""
    sets = [{vertex} for vertex in vertices]
    for tie in ties:
        touched = [one for one in sets if one & tie]
        merged = set().union(*touched)
        sets = [merged if one is touched[0] else one for one in sets if one is touched[0] or not one & tie]
    return sets
