"""The job graph: what the client submits (Flink's ``JobGraph``).

Its vertices are operator chains: operators joined by forward edges of equal parallelism run in one task, by plain
calls. Its edges are exchanges between tasks. The graph is data plus unopened operators; it is made by
`headrace.engine.graph.chaining`, pickled once (cloudpickle) and never changed.

Source: Flink's ``JobGraph``, ``JobVertex``, ``StreamConfig`` (chains are trees: one operator may feed several
chained ones).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.state.identifiers import OperatorId, VertexId
from headrace.state.keyed.managed_memory import MemoryUse

from ..functions.operator import Operator
from ..kernel.config import JobSettings
from ..operators.exchange import Partitioner

__all__ = ["ChainedOperator", "JobEdge", "JobGraph", "JobVertex", "exchange_uid"]


@dataclass(frozen=True, slots=True)
class ChainedOperator:
    """One operator of a chain.

    Attributes:
        uid: Unique in the job; state is matched by it.
        name: For people.
        operator: The unopened operator; every subtask works on a copy of its own.
        parent: Index in the chain of the operator that feeds it; None for the head.
        side_tag: The parent's side output that feeds it; None for the main output.
    """

    uid: OperatorId
    name: str
    operator: Operator
    parent: int | None = None
    side_tag: str | None = None


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain with its parallelism: ``parallelism`` subtasks will run.

    Attributes:
        vertex_id: The head's uid.
        name: The operators' names joined by `` -> ``.
        chain: The operators, parents before children; the first is the head and the only one with channel inputs.
        slot_sharing_group: Subtasks of one group may share a slot, one of each vertex.
        co_location_group: Subtasks of equal index of all its vertices are in one slot; None for no such wish.
        is_parallel: Whether its parallelism may be other than 1.
        memory_use: What the managed memory of its slots is for.
    """

    vertex_id: VertexId
    name: str
    chain: tuple[ChainedOperator, ...]
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str = "default"
    co_location_group: str | None = None
    is_parallel: bool = True
    memory_use: MemoryUse = field(default_factory=MemoryUse)


@dataclass(frozen=True, slots=True)
class JobEdge:
    """An exchange from an operator of one vertex to the head of another.

    Attributes:
        edge_id: Unique in the job, counted from 0 in the order of the program.
        source_operator: Index in the source vertex's chain of the operator whose output this is.
        side_tag: Which side output; None for the main output.
        input_index: Which input of the target's head; edges of equal index are a union.
        partitioner: Unbound; every producing subtask binds a copy.
        target_max_parallelism: Of the target vertex: how many key groups a hash partitioner works with.
        is_feedback: Whether it closes a loop: the only edges against the order of the vertices.
        is_in_loop: Whether it is part of a loop, feedback edges included.
        is_aligned: Whether barriers are aligned on it whatever its partitioner would allow.
        uid: What records in flight are matched by when a checkpoint is restored; see `exchange_uid`.
    """

    edge_id: int
    source: VertexId
    source_operator: int
    side_tag: str | None
    target: VertexId
    input_index: int
    partitioner: Partitioner
    target_max_parallelism: int
    is_feedback: bool = False
    is_in_loop: bool = False
    uid: str = ""
    is_aligned: bool = False

    @property
    def keeps_order(self) -> bool:
        """Whether no barrier overtakes a record on it."""
        return self.is_aligned or not self.partitioner.supports_unaligned


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A whole job.

    Attributes:
        name: For people.
        vertices: By id, sources before what they feed (feedback edges apart).
        edges: All exchanges.
        settings: Checkpointing, restart strategy, buffers and so on.
    """

    name: str
    vertices: dict[VertexId, JobVertex]
    edges: tuple[JobEdge, ...]
    settings: JobSettings = field(default_factory=JobSettings)

    def inputs_of(self, vertex: VertexId) -> list[JobEdge]:
        """Return the edges that end at a vertex, by edge id."""
        return [edge for edge in self.edges if edge.target == vertex]

    def outputs_of(self, vertex: VertexId) -> list[JobEdge]:
        """Return the edges that start at a vertex, by edge id."""
        return [edge for edge in self.edges if edge.source == vertex]

    @property
    def has_loop(self) -> bool:
        """Whether something is fed back."""
        return any(edge.is_feedback for edge in self.edges)

    @property
    def collects(self) -> bool:
        """Whether a sink collects rows for the client."""
        return any(node.operator.collects for vertex in self.vertices.values() for node in vertex.chain)


def exchange_uid(source: str, side_tag: str | None, target: str, input_index: int, number: int = 0) -> str:
    """Name the way from one operator to another, the same in every run of the program, chained or not.

    Args:
        source: Uid of the operator whose output it is; that of the check of its declared type does as well.
        side_tag: Which side output.
        target: Uid of the operator it leads to.
        input_index: Which input of it.
        number: Tells equal ones apart: a stream that is united with itself.
    """
    parts = (source.removesuffix(":type"), "" if side_tag is None else f"[{side_tag}]", target, str(input_index))
    return "|".join(parts if number == 0 else (*parts, str(number)))
