"""The same program at another parallelism: which vertices a request means, and the resulting job graph.

A vertex, a chain of operators, is rescaled as one. What was decided when the program was compiled stands: chains, key
groups, slot sharing and co-location groups. Only an exchange may have to change: where the two ends of a forward edge
come apart, records are dealt out in turn, as if the program had been written with these parallelisms; a ``forward``
that the program asks for itself refuses that. A graph is always made of the one that was submitted, so a forward edge
is one again as soon as its ends agree.

The operators of a loop are rescaled together or not at all. What cannot be parallel (a socket, a window over all
records) stays at parallelism 1, and so does what is chained to it.

Source: Flink's ``AdaptiveScheduler`` and ``JobResourceRequirements`` (FLIP-291); the exchange as in
``StreamGraphGenerator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.state.identifiers import VertexId

from ..errors import ConfigurationError
from ..operators.exchange import ForwardPartitioner, ImplicitForwardPartitioner, RebalancePartitioner
from ..operators.row_types import DeclaredRows
from .job_graph import JobEdge, JobGraph, JobVertex

__all__ = ["find_vertex", "loops_of", "requested_parallelism", "rescaled"]


def requested_parallelism(
    job_graph: JobGraph, parallelism: int | None, operators: Mapping[str, int]
) -> dict[VertexId, int]:
    """Say which vertices a request is about.

    Args:
        job_graph: The job as it was submitted.
        parallelism: For all vertices that can be parallel; None leaves those alone that ``operators`` does not name.
        operators: By operator uid or name, or the whole vertex's.

    Raises:
        ConfigurationError: If it asks for nothing, names something that is not there or is not alone in having its
            name, asks for more than the number of key groups, for different things of the members of one chain, for
            a part of a loop, or for more than one of what cannot be parallel.
    """
    if parallelism is None and not operators:
        message = "a rescale must name a parallelism, for the whole job or for operators"
        raise ConfigurationError(message, job=job_graph.name)
    loops = loops_of(job_graph)
    wanted: dict[VertexId, int] = {}
    if parallelism is not None:
        _check_number(parallelism, job_graph.name)
        fixed = {vertex.vertex_id for vertex in job_graph.vertices.values() if not vertex.is_parallel}
        fixed |= {member for loop in loops for member in loop if loop & fixed}
        wanted = {vertex: parallelism for vertex in job_graph.vertices if vertex not in fixed}
    named: dict[VertexId, tuple[str, int]] = {}
    for name, number in operators.items():
        _check_number(number, name)
        vertex = find_vertex(job_graph, name)
        if not vertex.is_parallel and number != 1:
            message = f"parallelism of {name!r} must stay 1, it cannot be split; got {number}"
            raise ConfigurationError(message, operator=vertex.name)
        other = named.setdefault(vertex.vertex_id, (name, number))
        if other[1] != number:
            message = (
                f"{other[0]!r} and {name!r} are in one chain, {vertex.name!r}, and have one parallelism; "
                f"got {other[1]} and {number}"
            )
            hint = "Give both the same, or break the chain in the program, with start_new_chain."
            raise ConfigurationError(message, hint=hint, job=job_graph.name)
    wanted.update({vertex: number for vertex, (_, number) in named.items()})
    for loop in loops:
        _check_loop(job_graph, loop, wanted)
    for vertex_id, number in wanted.items():
        vertex = job_graph.vertices[vertex_id]
        if number > vertex.max_parallelism:
            message = f"parallelism must be between 1 and max_parallelism ({vertex.max_parallelism}); got {number}"
            raise ConfigurationError(message, operator=vertex.name)
    return wanted


def rescaled(job_graph: JobGraph, parallelism: Mapping[VertexId, int]) -> JobGraph:
    """Make the job graph of the same program at another parallelism.

    Args:
        job_graph: The job as it was submitted.
        parallelism: Of vertices that get another one; names that the job does not have are ignored.

    Raises:
        ConfigurationError: If it would change the parallelism on an edge that the program wants to be forward.
    """
    vertices = {
        vertex_id: replace(vertex, parallelism=parallelism.get(vertex_id, vertex.parallelism))
        for vertex_id, vertex in job_graph.vertices.items()
    }
    edges = tuple(_fitted(edge, vertices[edge.source], vertices[edge.target]) for edge in job_graph.edges)
    return replace(job_graph, vertices=vertices, edges=edges)


def _fitted(edge: JobEdge, source: JobVertex, target: JobVertex) -> JobEdge:
    if source.parallelism == target.parallelism or not isinstance(edge.partitioner, ForwardPartitioner):
        return edge
    if not isinstance(edge.partitioner, ImplicitForwardPartitioner):
        message = (
            f"forward partitioning cannot change the parallelism: "
            f"{source.name!r} would have {source.parallelism}, {target.name!r} {target.parallelism}"
        )
        raise ConfigurationError(message, hint="Rescale both, or leave out forward() in the program.")
    return replace(edge, partitioner=RebalancePartitioner())


def _check_number(number: int, name: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        message = f"parallelism of {name!r} must be a whole number, 1 or more; got {number!r}"
        raise ConfigurationError(message)


def find_vertex(job_graph: JobGraph, name: str) -> JobVertex:
    """Return the vertex of an operator, by the operator's uid or name, or its own.

    Raises:
        ConfigurationError: If it is not there or not alone in having its name.
    """
    vertices = job_graph.vertices.values()
    by_uid = [vertex for vertex in vertices if any(node.uid == name for node in vertex.chain)]
    by_name = [
        vertex
        for vertex in vertices
        if vertex.name == name
        or any(node.name == name for node in vertex.chain if not isinstance(node.operator, DeclaredRows))
    ]
    found = by_uid or by_name
    if len(found) == 1:
        return found[0]
    known = ", ".join(
        f'"{node.uid}" ({node.name})'
        for vertex in vertices
        for node in vertex.chain
        if not isinstance(node.operator, DeclaredRows)
    )
    if not found:
        message = f"the job has no operator {name!r}"
        raise ConfigurationError(message, hint=f"It has {known}.", job=job_graph.name)
    message = f"{len(found)} vertices of the job have an operator called {name!r}"
    raise ConfigurationError(message, hint=f"Name it by its uid: {known}.", job=job_graph.name)


def loops_of(job_graph: JobGraph) -> list[set[VertexId]]:
    """Return the vertices of each loop."""
    loops: list[set[VertexId]] = []
    for edge in job_graph.edges:
        if not edge.is_in_loop:
            continue
        touched = [loop for loop in loops if edge.source in loop or edge.target in loop]
        loops = [loop for loop in loops if loop not in touched]
        loops.append({edge.source, edge.target}.union(*touched))
    return loops


def _check_loop(job_graph: JobGraph, loop: set[VertexId], wanted: Mapping[VertexId, int]) -> None:
    if not loop & wanted.keys():
        return
    missing = [job_graph.vertices[vertex].name for vertex in job_graph.vertices if vertex in loop - wanted.keys()]
    if missing:
        message = f"the operators of a loop are rescaled together; it has {', '.join(map(repr, missing))}, too"
        raise ConfigurationError(message, job=job_graph.name)
    if len({wanted[vertex] for vertex in loop}) > 1:
        members = ", ".join(f"{job_graph.vertices[v].name!r}: {wanted[v]}" for v in job_graph.vertices if v in loop)
        message = f"the operators of a loop are rescaled to one parallelism; got {members}"
        raise ConfigurationError(message, job=job_graph.name)
