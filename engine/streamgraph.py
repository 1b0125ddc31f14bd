"""From transformations to a job graph: what is one step of the program, what runs where, and what runs together.

The API records *transformations*, one per call, virtual ones (union, partitioning, side output) included.
`build_stream_graph` makes nodes and edges of them: virtual transformations dissolve into properties of edges, every
node gets a uid, a parallelism, a maximum parallelism and a slot sharing group. `build_job_graph` then chains what may
run in one task. Nothing here knows a user function, a record or a cluster; the same program always gives the same
graph, byte for byte in its uids.

Two operators are chained when the edge between them is forward, the downstream one has no other input edge, both agree
in parallelism, maximum parallelism and slot sharing group, they are not in different co-location groups, and nobody has
switched chaining off (rows A7 to A11, D14, D15, D17). The head of an iteration has at least two input edges, so it
heads a chain; what is behind it may be chained to it, the whole body even: then the feedback goes from the task to
itself.

The graph has no cycles but through feedback edges, each of which ends at an `IterationTransformation`. Operators that
can reach each other, feedback edges included, are one loop; it must have one head. Loops that are nested or share
operators are refused: for what is in a loop in which nothing is left one head's probes must go round it alone
(`headrace.engine.iterations`).

A generated uid is a hash of the operator's ancestry and of how many operators of the same ancestry came before it. It
does not depend on names, parallelism, chaining or on unrelated parts of the program, so state finds its operator again
after such changes; it does change when an operator is put in upstream. Whoever needs more gives a uid.

Source: Flink's ``StreamGraphGenerator``, ``StreamGraphHasherV2``, ``StreamingJobGraphGenerator.isChainable``.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa

from headrace.engine.config import JobSettings
from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.engine.exchange import (
    BroadcastPartitioner,
    ForwardPartitioner,
    ImplicitForwardPartitioner,
    Partitioner,
    RebalancePartitioner,
)
from headrace.engine.jobgraph import ChainedOperator, JobEdge, JobGraph, JobVertex, exchange_uid
from headrace.engine.operators import Operator
from headrace.engine.rowtypes import DeclaredRows
from headrace.state.identifiers import OperatorId, VertexId

__all__ = [
    "DEFAULT_SLOT_SHARING_GROUP",
    "MAX_MAX_PARALLELISM",
    "ChainingStrategy",
    "IterationTransformation",
    "OperatorKind",
    "OperatorTransformation",
    "PartitionTransformation",
    "SideOutputTransformation",
    "StreamEdge",
    "StreamGraph",
    "StreamNode",
    "Transformation",
    "UnionTransformation",
    "build_job_graph",
    "build_stream_graph",
    "default_max_parallelism",
    "is_behind",
    "num_slots",
]

DEFAULT_SLOT_SHARING_GROUP = "default"
MIN_DEFAULT_MAX_PARALLELISM = 128
MAX_MAX_PARALLELISM = 1 << 15


class ChainingStrategy(Enum):
    """How an operator wants to be chained."""

    ALWAYS = "always"
    HEAD = "head"
    """Never to what feeds it, but what it feeds may be chained to it (``start_new_chain``)."""
    NEVER = "never"


class OperatorKind(Enum):
    """Where an operator stands in the program; the value is Flink's ``pact`` in plans."""

    SOURCE = "Data Source"
    OPERATOR = "Operator"
    SINK = "Data Sink"


_NAME_PREFIX = {OperatorKind.SOURCE: "Source: ", OperatorKind.OPERATOR: "", OperatorKind.SINK: "Sink: "}


# ------------------------------------------------------------------------------------------------------ transformations


@dataclass(eq=False, slots=True)
class Transformation:
    """One recorded call of the API; ``transformation_id`` counts them within a program, inputs first."""

    transformation_id: int


@dataclass(eq=False, slots=True)
class OperatorTransformation(Transformation):
    """A source, an operator or a sink; the API's setters change it until the graph is built.

    Attributes:
        name: For people.
        operator: Unopened; every subtask works on a copy.
        inputs: One transformation per input of the operator; none for sources.
        parallelism: Number of subtasks.
        max_parallelism: Number of key groups; None for the program's, else the default.
        is_parallel: False for what must have parallelism 1, such as a socket.
        uid: The user's; None for a generated one.
        description: Longer than the name, for plans; None for the name.
        slot_sharing_group: None for that of the inputs if they agree, else ``default``.
        output_schema: The declared type of its output: checked and made columns of right there.
        buffer_timeout_ms: The user's wish for its output; None for the job's.
    """

    name: str
    kind: OperatorKind
    operator: Operator
    inputs: tuple[Transformation, ...]
    parallelism: int
    max_parallelism: int | None = None
    is_parallel: bool = True
    uid: str | None = None
    description: str | None = None
    slot_sharing_group: str | None = None
    co_location_group: str | None = None
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    output_schema: pa.Schema | None = None
    buffer_timeout_ms: int | None = None


@dataclass(eq=False, slots=True)
class IterationTransformation(OperatorTransformation):
    """The head of an iteration.

    Attributes:
        feedbacks: What comes back to it; they are fed by it, so they are no inputs in the order of the program.
    """

    feedbacks: list[Transformation] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class UnionTransformation(Transformation):
    """All records of several streams."""

    inputs: tuple[Transformation, ...]


@dataclass(eq=False, slots=True)
class PartitionTransformation(Transformation):
    """The same records, dealt out to the next operator's subtasks by ``partitioner``."""

    input: Transformation
    partitioner: Partitioner


@dataclass(eq=False, slots=True)
class SideOutputTransformation(Transformation):
    """The records that ``input``, an operator, emits to the side output ``tag``."""

    input: Transformation
    tag: str


# --------------------------------------------------------------------------------------------------------- stream graph


@dataclass(frozen=True, slots=True)
class StreamNode:
    """An operator with everything decided; fields as in `OperatorTransformation` and `ChainedOperator`."""

    node_id: int
    uid: OperatorId
    has_user_uid: bool
    name: str
    description: str
    kind: OperatorKind
    operator: Operator
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    co_location_group: str | None
    chaining: ChainingStrategy
    output_schema: pa.Schema | None
    buffer_timeout_ms: int | None
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class StreamEdge:
    """The way of records between two operators."""

    source: int
    target: int
    input_index: int
    side_tag: str | None
    partitioner: Partitioner
    is_feedback: bool = False
    is_in_loop: bool = False


@dataclass(frozen=True, slots=True)
class StreamGraph:
    """The program as operators and edges, not yet chained.

    Attributes:
        nodes: By id, inputs before what they feed.
        edges: In the order of their targets, then of their inputs, feedback last.
        chaining_enabled: False keeps every operator in a task of its own.
    """

    nodes: dict[int, StreamNode]
    edges: tuple[StreamEdge, ...]
    chaining_enabled: bool = True
    _in_edges: dict[int, list[StreamEdge]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for edge in self.edges:
            self._in_edges.setdefault(edge.target, []).append(edge)

    def in_edges(self, node_id: int) -> list[StreamEdge]:
        """The edges that end at a node, in the order of its inputs."""
        return self._in_edges.get(node_id, [])

    def is_chainable(self, edge: StreamEdge) -> bool:
        """Whether the two ends of an edge may run in one task."""
        upstream, downstream = self.nodes[edge.source], self.nodes[edge.target]
        return (
            self.chaining_enabled
            and len(self.in_edges(edge.target)) == 1
            and isinstance(edge.partitioner, ForwardPartitioner)
            and not edge.is_feedback
            and upstream.chaining is not ChainingStrategy.NEVER
            and downstream.chaining is ChainingStrategy.ALWAYS
            and upstream.parallelism == downstream.parallelism
            and upstream.max_parallelism == downstream.max_parallelism
            and upstream.slot_sharing_group == downstream.slot_sharing_group
        )


@dataclass(frozen=True, slots=True)
class _Input:
    """Where one input edge comes from, with the virtual transformations on its way dissolved."""

    operator: OperatorTransformation
    side_tag: str | None
    partitioner: Partitioner | None


def build_stream_graph(
    transformations: Iterable[OperatorTransformation],
    *,
    chaining_enabled: bool = True,
    max_parallelism: int | None = None,
) -> StreamGraph:
    """Make the graph of a program.

    Args:
        transformations: The program's operators and sinks; what feeds them is found from them.
        chaining_enabled: False for ``disable_operator_chaining``.
        max_parallelism: The program's; None for the default of each operator.

    Raises:
        ProgramError: If there is nothing to run, an operator or union lacks its input, the program has a cycle other
            than an iteration's, an iteration is not closed, nested or not closed by what it feeds, two operators have
            one uid, a forward edge changes the parallelism, or co-located operators are in different slot sharing
            groups.
        ConfigurationError: If a parallelism is out of range.
    """
    roots = list(transformations)
    if not roots:
        message = "the program has no operator to run"
        raise ProgramError(message, hint="call an operation such as map, print or sink_to on a stream before execute")
    operators = [t for t in _in_program_order(roots) if isinstance(t, OperatorTransformation)]
    inputs = {operator.transformation_id: [_resolve(i, None, None) for i in operator.inputs] for operator in operators}
    uids = _assign_uids(operators, inputs)
    nodes: dict[int, StreamNode] = {}
    edges: list[StreamEdge] = []
    for operator in operators:
        node_id = operator.transformation_id
        node_max_parallelism = _checked_max_parallelism(operator, max_parallelism)
        sources = [source for one_input in inputs[node_id] for source in one_input]
        nodes[node_id] = StreamNode(
            node_id=node_id,
            uid=uids[node_id],
            has_user_uid=operator.uid is not None,
            name=_NAME_PREFIX[operator.kind] + operator.name,
            description=operator.description or _NAME_PREFIX[operator.kind] + operator.name,
            kind=operator.kind,
            operator=operator.operator,
            parallelism=operator.parallelism,
            max_parallelism=node_max_parallelism,
            slot_sharing_group=operator.slot_sharing_group or _inherited_group(nodes, sources),
            co_location_group=operator.co_location_group,
            chaining=operator.chaining,
            output_schema=operator.output_schema,
            buffer_timeout_ms=operator.buffer_timeout_ms,
            is_parallel=operator.is_parallel,
        )
        for input_index, one_input in enumerate(inputs[node_id]):
            for source in one_input:
                partitioner = _checked_partitioner(source, operator)
                edges.append(
                    StreamEdge(source.operator.transformation_id, node_id, input_index, source.side_tag, partitioner)
                )
        if isinstance(operator, IterationTransformation):
            edges.extend(_feedback_edges(operator))
    _check_co_location(nodes.values())
    heads = [operator for operator in operators if isinstance(operator, IterationTransformation)]
    return StreamGraph(nodes, tuple(_with_loops(edges, nodes, heads)), chaining_enabled)


def default_max_parallelism(parallelism: int) -> int:
    """Number of key groups when nobody chose one: the power of two from 1.5 times the parallelism on, 128 to 32768.

    Examples:
        >>> default_max_parallelism(2), default_max_parallelism(200), default_max_parallelism(30_000)
        (128, 512, 32768)
    """
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, MIN_DEFAULT_MAX_PARALLELISM), MAX_MAX_PARALLELISM)


def _inputs_of(transformation: Transformation) -> tuple[Transformation, ...]:
    if isinstance(transformation, (OperatorTransformation, UnionTransformation)):
        return transformation.inputs
    if isinstance(transformation, (PartitionTransformation, SideOutputTransformation)):
        return (transformation.input,)
    message = f"a transformation must be one of this module's; got {transformation!r}"
    raise ProgramError(message)


def _in_program_order(roots: Sequence[Transformation]) -> list[Transformation]:
    """Everything the roots need, inputs first, else in the order of the program; detects cycles (Kahn's algorithm)."""
    by_id: dict[int, Transformation] = {}
    waiting_for: dict[int, int] = {}
    feeds: dict[int, list[int]] = {}
    open_ends: list[Transformation] = list(roots)
    while open_ends:
        transformation = open_ends.pop()
        own_id = transformation.transformation_id
        known = by_id.setdefault(own_id, transformation)
        if known is not transformation:
            message = f"two transformations have the id {own_id}: streams of different environments cannot be combined"
            raise ProgramError(message)
        if own_id in waiting_for:
            continue
        inputs = _inputs_of(transformation)
        is_source = isinstance(transformation, OperatorTransformation) and transformation.kind is OperatorKind.SOURCE
        if is_source == bool(inputs):
            name = getattr(transformation, "name", type(transformation).__name__)
            message = f"{name!r} is a source and cannot have an input" if is_source else f"{name!r} has no input"
            raise ProgramError(message)
        waiting_for[own_id] = len(inputs)
        for one in inputs:
            feeds.setdefault(one.transformation_id, []).append(own_id)
            open_ends.append(one)
        if isinstance(transformation, IterationTransformation):
            open_ends.extend(transformation.feedbacks)
    ready = [own_id for own_id, missing in waiting_for.items() if missing == 0]
    heapq.heapify(ready)
    ordered: list[Transformation] = []
    while ready:
        own_id = heapq.heappop(ready)
        ordered.append(by_id[own_id])
        for fed in feeds.get(own_id, ()):
            waiting_for[fed] -= 1
            if waiting_for[fed] == 0:
                heapq.heappush(ready, fed)
    if len(ordered) < len(by_id):
        stuck = sorted(
            str(getattr(by_id[i], "name", type(by_id[i]).__name__)) for i, missing in waiting_for.items() if missing > 0
        )
        message = f"the program has a cycle through {', '.join(map(repr, stuck))}"
        raise ProgramError(message)
    return ordered


def is_behind(transformation: Transformation, head: Transformation) -> bool:
    """Whether a stream is made of another one, in one step or many."""
    seen: set[int] = set()
    open_ends = [transformation]
    while open_ends:
        one = open_ends.pop()
        if one is head:
            return True
        if one.transformation_id not in seen:
            seen.add(one.transformation_id)
            open_ends.extend(_inputs_of(one))
    return False


def _feedback_edges(head: IterationTransformation) -> list[StreamEdge]:
    if not head.feedbacks:
        message = f"iteration {head.name!r} is not closed: nothing comes back"
        raise ProgramError(message, hint="call close_with on the stream that iterate gave")
    edges: list[StreamEdge] = []
    for source in (source for feedback in head.feedbacks for source in _resolve(feedback, None, None)):
        if source.operator is head:
            message = f"iteration {head.name!r} is closed with itself: every record would come back for ever"
            raise ProgramError(message, hint="put an operation such as filter or map between")
        partitioner = _checked_partitioner(source, head)
        if isinstance(partitioner, BroadcastPartitioner):
            message = f"the feedback of iteration {head.name!r} cannot be broadcast: after a restore at another "
            message += "parallelism its copies could not be told from each other"
            raise ProgramError(message, hint="broadcast the iteration's stream, at the beginning of the body")
        source_id = source.operator.transformation_id
        edges.append(StreamEdge(source_id, head.transformation_id, 1, source.side_tag, partitioner, is_feedback=True))
    return edges


def _with_loops(
    edges: list[StreamEdge], nodes: dict[int, StreamNode], heads: Sequence[IterationTransformation]
) -> list[StreamEdge]:
    """Mark the edges that are part of a loop."""
    behind: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for edge in edges:
        behind.setdefault(edge.source, []).append(edge.target)
        before.setdefault(edge.target, []).append(edge.source)
    loop_of: dict[int, int] = {}
    for head in heads:
        own_id = head.transformation_id
        body = _reachable(own_id, behind) & _reachable(own_id, before)
        for edge in edges:
            if edge.is_feedback and edge.target == own_id and edge.source not in body:
                message = f"iteration {head.name!r} is closed with {nodes[edge.source].name!r}, which it does not feed"
                raise ProgramError(message, hint="close it with a stream that is made of the one that iterate gave")
        for node in sorted(body):
            other = loop_of.setdefault(node, own_id)
            if other != own_id:
                message = (
                    f"iterations {nodes[other].name!r} and {nodes[own_id].name!r} are nested or share operators; "
                    f"{nodes[node].name!r} is in the loops of both"
                )
                hint = "a loop may follow another one, behind what leaves it; put both into one loop, or one behind"
                raise ProgramError(message, hint=hint)
    return [
        replace(edge, is_in_loop=edge.source in loop_of and loop_of[edge.source] == loop_of.get(edge.target))
        for edge in edges
    ]


def _reachable(start: int, neighbours: dict[int, list[int]]) -> set[int]:
    """All nodes that can be reached, the start among them."""
    seen: set[int] = set()
    open_ends = [start]
    while open_ends:
        node = open_ends.pop()
        if node not in seen:
            seen.add(node)
            open_ends.extend(neighbours.get(node, ()))
    return seen


def _resolve(transformation: Transformation, side_tag: str | None, partitioner: Partitioner | None) -> list[_Input]:
    """Follow virtual transformations up to operators; of several partitionings the one next to the consumer counts."""
    while isinstance(transformation, (PartitionTransformation, SideOutputTransformation)):
        if isinstance(transformation, PartitionTransformation):
            partitioner = partitioner or transformation.partitioner
        else:
            side_tag = transformation.tag
            if not isinstance(transformation.input, OperatorTransformation):
                message = f"side output {side_tag!r} must be taken from the operator that emits it"
                raise ProgramError(message)
        transformation = transformation.input
    if isinstance(transformation, UnionTransformation):
        return [source for one in transformation.inputs for source in _resolve(one, side_tag, partitioner)]
    assert isinstance(transformation, OperatorTransformation)
    return [_Input(transformation, side_tag, partitioner)]


def _assign_uids(
    operators: Sequence[OperatorTransformation], inputs: dict[int, list[list[_Input]]]
) -> dict[int, OperatorId]:
    uids: dict[int, OperatorId] = {}
    holders: dict[OperatorId, str] = {}
    num_alike: dict[str, int] = {}
    for operator in operators:
        if operator.uid is not None:
            uid = OperatorId(operator.uid)
        else:
            ancestry = repr(
                [
                    [(uids[source.operator.transformation_id], source.side_tag) for source in one_input]
                    for one_input in inputs[operator.transformation_id]
                ]
            )
            index = num_alike.get(ancestry, 0)
            num_alike[ancestry] = index + 1
            # 64 bits: a collision among a thousand operators is a matter of 1 to 10^13, and is refused below
            uid = OperatorId(hashlib.sha256(f"{ancestry}#{index}".encode()).hexdigest()[:16])
        if uid in holders:
            message = f"uid must be unique in a job; {uid!r} is given to both {holders[uid]!r} and {operator.name!r}"
            raise ProgramError(message)
        holders[uid] = operator.name
        uids[operator.transformation_id] = uid
    return uids


def _checked_max_parallelism(operator: OperatorTransformation, program_default: int | None) -> int:
    parallelism = operator.parallelism
    if not operator.is_parallel and parallelism != 1:
        message = f"parallelism must be 1, this operator cannot be split; got {parallelism}"
        raise ConfigurationError(message, operator=operator.name)
    maximum = operator.max_parallelism or program_default or default_max_parallelism(parallelism)
    if not 1 <= maximum <= MAX_MAX_PARALLELISM:
        message = f"max_parallelism must be between 1 and {MAX_MAX_PARALLELISM}; got {maximum}"
        raise ConfigurationError(message, operator=operator.name)
    if not 1 <= parallelism <= maximum:
        message = f"parallelism must be between 1 and max_parallelism ({maximum}); got {parallelism}"
        raise ConfigurationError(message, operator=operator.name)
    return maximum


def _checked_partitioner(source: _Input, target: OperatorTransformation) -> Partitioner:
    is_same = source.operator.parallelism == target.parallelism
    if source.partitioner is None:
        return ImplicitForwardPartitioner() if is_same else RebalancePartitioner()
    if isinstance(source.partitioner, ForwardPartitioner) and not is_same:
        message = (
            f"forward partitioning cannot change the parallelism: "
            f"{source.operator.name!r} has {source.operator.parallelism}, {target.name!r} has {target.parallelism}"
        )
        raise ProgramError(
            message, hint="use rebalance, rescale or shuffle between them, or give both the same parallelism"
        )
    return source.partitioner


def _inherited_group(nodes: dict[int, StreamNode], sources: Sequence[_Input]) -> str:
    groups = {nodes[source.operator.transformation_id].slot_sharing_group for source in sources}
    return groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP


def _check_co_location(nodes: Iterable[StreamNode]) -> None:
    first: dict[str, StreamNode] = {}
    for node in nodes:
        if node.co_location_group is None:
            continue
        other = first.setdefault(node.co_location_group, node)
        if other.slot_sharing_group != node.slot_sharing_group:
            message = (
                f"co-located operators must be in one slot sharing group; "
                f"{other.name!r} is in {other.slot_sharing_group!r}, {node.name!r} is in {node.slot_sharing_group!r}"
            )
            raise ProgramError(message)


# ------------------------------------------------------------------------------------------------------------ job graph


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

    def takes(self, node: StreamNode) -> bool:
        """Whether a node may join: no chain can be in two co-location groups."""
        return node.co_location_group is None or self.co_location_group in (None, node.co_location_group)


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
        if edge is not None and stream_graph.is_chainable(edge) and chain_of[edge.source].takes(node):
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
            )
        )
    return JobGraph(name, vertices, tuple(edges), _with_buffer_timeout(settings, stream_graph.nodes.values()))


def num_slots(job_graph: JobGraph) -> int:
    """How many slots a job needs: the largest parallelism of each slot sharing group, summed (row D14)."""
    largest: dict[str, int] = {}
    for vertex in job_graph.vertices.values():
        largest[vertex.slot_sharing_group] = max(largest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(largest.values())


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
