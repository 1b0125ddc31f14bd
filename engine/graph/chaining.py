"""From a stream graph to a job graph: which operators run together in one task.

Two operators are chained when the edge between them is forward, the downstream one has no other input edge, both agree
in parallelism, maximum parallelism and slot sharing group, they are not in different co-location groups, and the
program has not switched chaining off (Flink's ``StreamingJobGraphGenerator.isChainable``). A hundred operators in a row
are enough for one task, as each calls the next one. The head of an iteration has at least two input edges, so it heads
a chain; what is behind it may be chained to it, the whole body even: then the feedback goes from the task to itself.

Source: Flink's ``StreamingJobGraphGenerator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.state.identifiers import OperatorId, VertexId
from headrace.state.keyed.managed_memory import MemoryUse

from ..kernel.config import JobSettings
from ..operators.row_types import DeclaredRows
from .job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, exchange_uid
from .stream_graph import StreamEdge, StreamGraph, StreamNode

__all__ = ["build_job_graph", "num_slots"]

_MOST_IN_A_ROW = 100
"""Operators of a chain that call each other, some calls deep each: Python allows a thousand."""


@dataclass(slots=True)
class _Chain:
    """A chain under construction: its head, its operators so far, and each node's index in it."""

    head: StreamNode
    operators: list[ChainedOperator]
    index_of: dict[int, int]
    """Where a node's own operator is: the one that has its side outputs."""
    output_of: dict[int, int]
    """Where a node's main output is: the check of its declared type, if it has one."""
    co_location_group: str | None
    """That of its operators; all that have one agree."""
    is_parallel: bool = True
    """Whether all of its operators can be parallel."""

    def takes(self, node: StreamNode, edge: StreamEdge) -> bool:
        """Return whether a node may join behind an edge: no chain is in two co-location groups, or too long."""
        if self._place_of(_output_index(self, edge)) >= _MOST_IN_A_ROW:
            return False
        return node.co_location_group is None or self.co_location_group in (None, node.co_location_group)

    def _place_of(self, index: int) -> int:
        """How many operators call each other down to one, itself included."""
        place, parent = 1, self.operators[index].parent
        while parent is not None:
            place, parent = place + 1, self.operators[parent].parent
        return place


def build_job_graph(stream_graph: StreamGraph, name: str, settings: JobSettings | None = None) -> JobGraph:
    """Chain a stream graph's operators into the vertices of a job graph.

    Args:
        stream_graph: The program.
        name: The job's, for people.
        settings: The job's; its buffer timeout is lowered to the lowest that an operator asks for.
    """
    settings = settings or JobSettings()
    chain_of: dict[int, _Chain] = {}
    chains: list[_Chain] = []
    for node in stream_graph.nodes.values():
        in_edges = stream_graph.in_edges(node.node_id)
        edge = in_edges[0] if len(in_edges) == 1 else None
        if edge is not None and stream_graph.is_chainable(edge) and chain_of[edge.source].takes(node, edge):
            chain = chain_of[edge.source]
            parent = _output_index(chain, edge)
            chain.co_location_group = chain.co_location_group or node.co_location_group
        else:
            edge, parent = None, None
            chain = _Chain(node, [], {}, {}, node.co_location_group)
            chains.append(chain)
        chain_of[node.node_id] = chain
        chain.is_parallel = chain.is_parallel and node.is_parallel
        index = len(chain.operators)
        chain.index_of[node.node_id] = chain.output_of[node.node_id] = index
        chain.operators.append(
            ChainedOperator(node.uid, node.name, node.operator, parent, edge.side_tag if edge else None)
        )
        if node.output_schema is not None:
            chain.output_of[node.node_id] = index + 1
            check = DeclaredRows(node.output_schema)
            chain.operators.append(ChainedOperator(OperatorId(f"{node.uid}:type"), node.name, check, index))
    vertices: dict[VertexId, JobVertex] = {}
    for chain in chains:
        head = chain.head
        vertices[VertexId(head.uid)] = JobVertex(
            vertex_id=VertexId(head.uid),
            name=_chain_name(chain.operators),
            chain=tuple(chain.operators),
            parallelism=head.parallelism,
            max_parallelism=head.max_parallelism,
            slot_sharing_group=head.slot_sharing_group,
            co_location_group=chain.co_location_group,
            is_parallel=chain.is_parallel,
        )
    if settings.is_batch:
        vertices = _with_memory_use(vertices, settings.state.backend)
    edges: list[JobEdge] = []
    num_alike: dict[tuple[str, str | None, str, int], int] = {}
    for edge in stream_graph.edges:
        source, target = chain_of[edge.source], chain_of[edge.target]
        if source is target and not edge.is_feedback:
            continue  # chained: what enters a chain from outside enters at its head
        ends = (stream_graph.nodes[edge.source].uid, edge.side_tag, target.head.uid, edge.input_index)
        num_alike[ends] = num_alike.get(ends, -1) + 1
        edges.append(
            JobEdge(
                edge_id=len(edges),
                source=VertexId(source.head.uid),
                source_operator=_output_index(source, edge),
                side_tag=edge.side_tag,
                target=VertexId(target.head.uid),
                input_index=edge.input_index,
                partitioner=edge.partitioner,
                target_max_parallelism=target.head.max_parallelism,
                is_feedback=edge.is_feedback,
                is_in_loop=edge.is_in_loop,
                uid=exchange_uid(*ends, num_alike[ends]),
                is_aligned=edge.is_aligned,
            )
        )
    return JobGraph(name, vertices, tuple(edges), _with_buffer_timeout(settings, stream_graph.nodes.values()))


def num_slots(job_graph: JobGraph) -> int:
    """Return how many slots a job needs: the largest parallelism of each slot sharing group, summed."""
    largest: dict[str, int] = {}
    for vertex in job_graph.vertices.values():
        largest[vertex.slot_sharing_group] = max(largest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(largest.values())


def _with_memory_use(vertices: dict[VertexId, JobVertex], backend: str) -> dict[VertexId, JobVertex]:
    """Say what the slots of each group have their managed memory for: a slot may run one subtask of each vertex."""
    use_of: dict[str, MemoryUse] = {}
    for vertex in vertices.values():
        use = use_of.get(vertex.slot_sharing_group, MemoryUse(0, keeps_state=False))
        operators = [chained.operator for chained in vertex.chain]
        use_of[vertex.slot_sharing_group] = MemoryUse(
            use.num_sorting + sum(any(order is not None for order in one.batch_orders) for one in operators),
            # Every operator opens its backend, keyed or not.
            use.keeps_state or backend == "rocksdb" or any(one.keeps_columns for one in operators),
        )
    return {name: replace(vertex, memory_use=use_of[vertex.slot_sharing_group]) for name, vertex in vertices.items()}


def _output_index(chain: _Chain, edge: StreamEdge) -> int:
    return chain.output_of[edge.source] if edge.side_tag is None else chain.index_of[edge.source]


def _chain_name(operators: Sequence[ChainedOperator]) -> str:
    """``a -> b -> c`` for a line, ``a -> (b -> c, d)`` where it branches; checks of declared types are not named."""
    behind: list[list[str]] = [[] for _ in operators]
    name = ""
    for index in reversed(range(len(operators))):
        followers = behind[index][::-1]
        rest = followers[0] if len(followers) == 1 else f"({', '.join(followers)})" if followers else ""
        own = "" if isinstance(operators[index].operator, DeclaredRows) else operators[index].name
        name = " -> ".join(part for part in (own, rest) if part)
        parent = operators[index].parent
        if parent is not None and name:
            behind[parent].append(name)
    return name


def _with_buffer_timeout(settings: JobSettings, nodes: Iterable[StreamNode]) -> JobSettings:
    wanted = [node.buffer_timeout_ms for node in nodes if node.buffer_timeout_ms is not None]
    lowest = min([settings.buffer_timeout_ms, *wanted])
    return settings if lowest == settings.buffer_timeout_ms else replace(settings, buffer_timeout_ms=lowest)
