"""The stream graph: the operators of a program and the edges between them, with everything decided.

`build_stream_graph` makes nodes and edges of transformations (`headrace.engine.graph.transformations`): virtual ones
dissolve into properties of edges, every node gets a uid, a parallelism, a maximum parallelism and a slot sharing group.
Nothing here knows a user function, a record or a cluster; the same program always gives the same graph, byte for byte
in its uids. What of it runs in one task `headrace.engine.graph.chaining` decides.

The graph has no cycles but through feedback edges, each of which ends at an `IterationTransformation`. Operators that
can reach each other, feedback edges included, are one loop; it must have one head. Loops that are nested or share
operators are refused: for what is in a loop in which nothing is left one head's probes must go round it alone
(`headrace.engine.task.loop_head`).

A generated uid is a hash of the operator's ancestry and of how many operators of the same ancestry came before it. It
does not depend on names, parallelism, chaining or on unrelated parts of the program, so state finds its operator again
after such changes; it does change when an operator is put in upstream, but for one that is optional
(`OperatorTransformation.is_optional`). A program that needs more gives a uid.

Source: Flink's ``StreamGraphGenerator``, ``StreamGraphHasherV2``.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.state.checkpoints.manifest import Manifest
from headrace.state.identifiers import OperatorId

from ..connectors.sink_writers import check_output_places
from ..errors import ConfigurationError, ProgramError
from ..functions.operator import Operator
from ..operators.exchange import (
    BroadcastPartitioner,
    ForwardPartitioner,
    ImplicitForwardPartitioner,
    Partitioner,
    RebalancePartitioner,
)
from .transformations import (
    ChainingStrategy,
    IterationTransformation,
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
    inputs_of,
)

__all__ = [
    "DEFAULT_SLOT_SHARING_GROUP",
    "MAX_MAX_PARALLELISM",
    "AdoptedMaxParallelism",
    "StreamEdge",
    "StreamGraph",
    "StreamNode",
    "build_stream_graph",
    "default_max_parallelism",
]

DEFAULT_SLOT_SHARING_GROUP = "default"
MIN_DEFAULT_MAX_PARALLELISM = 128
MAX_MAX_PARALLELISM = 1 << 15


_NAME_PREFIX = {OperatorKind.SOURCE: "Source: ", OperatorKind.OPERATOR: "", OperatorKind.SINK: "Sink: "}


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
    is_aligned: bool = False


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
        """Return the edges that end at a node, in the order of its inputs."""
        return self._in_edges.get(node_id, [])

    def is_chainable(self, edge: StreamEdge) -> bool:
        """Return whether the two ends of an edge may run in one task."""
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
    adopted: AdoptedMaxParallelism | None = None,
) -> StreamGraph:
    """Make the graph of a program.

    Args:
        transformations: The program's operators and sinks; what feeds them is found from them.
        chaining_enabled: False for ``disable_operator_chaining``.
        max_parallelism: The program's; None for the default of each operator.
        adopted: What a snapshot that the job starts from has, for operators whose program says nothing.

    Raises:
        ProgramError: If there is nothing to run, an operator or union lacks its input, the program has a cycle other
            than an iteration's, an iteration is not closed, nested or not closed by what it feeds, two operators have
            one uid, a forward edge changes the parallelism, or co-located operators are in different slot sharing
            groups.
        ConfigurationError: If a parallelism is out of range, or two sinks would meet in one place.
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
        node_max_parallelism = _checked_max_parallelism(operator, uids[node_id], max_parallelism, adopted)
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
    check_output_places((node.name, node.operator) for node in nodes.values())
    heads = [operator for operator in operators if isinstance(operator, IterationTransformation)]
    return StreamGraph(nodes, tuple(_with_alignment(_with_loops(edges, nodes, heads), nodes)), chaining_enabled)


def default_max_parallelism(parallelism: int) -> int:
    """Number of key groups when none was chosen: the power of two from 1.5 times the parallelism on, 128 to 32768.

    Examples:
        >>> default_max_parallelism(2), default_max_parallelism(200), default_max_parallelism(30_000)
        (128, 512, 32768)
    """
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, MIN_DEFAULT_MAX_PARALLELISM), MAX_MAX_PARALLELISM)


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
        inputs = inputs_of(transformation)
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


def _with_alignment(edges: list[StreamEdge], nodes: dict[int, StreamNode]) -> list[StreamEdge]:
    """Mark the edges that committables take: what is prepared for a checkpoint is committed with no other."""
    behind: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    for edge in edges:
        behind.setdefault(edge.source, []).append(edge.target)
        before.setdefault(edge.target, []).append(edge.source)
    aligned: set[tuple[int, int]] = set()
    for committer in [node for node in nodes.values() if node.operator.takes_committables]:
        leading_here = _reachable(committer.node_id, before)
        writers = [node for node in leading_here if nodes[node].operator.gives_committables]
        if not writers:
            message = f"{committer.name!r} is to commit what no writer of its sink has prepared"
            hint = "add_pre_commit_topology must give a stream that is made of the one it is handed"
            raise ProgramError(message, hint=hint)
        way = leading_here & {node for writer in writers for node in _reachable(writer, behind)}
        aligned |= {(edge.source, edge.target) for edge in edges if edge.source in way and edge.target in way}
    return [replace(edge, is_aligned=(edge.source, edge.target) in aligned) for edge in edges]


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


def _needed(sources: Iterable[_Input], inputs: Mapping[int, list[list[_Input]]]) -> Iterator[_Input]:
    """Where records come from, with operators left out that are optional."""
    for source in sources:
        if source.operator.is_optional:
            for one_input in inputs[source.operator.transformation_id]:
                yield from _needed(one_input, inputs)
        else:
            yield source


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
                    [
                        (uids[source.operator.transformation_id], source.side_tag)
                        for source in _needed(one_input, inputs)
                    ]
                    for one_input in inputs[operator.transformation_id]
                ]
            )
            if operator.is_optional:  # it takes nobody's place
                ancestry += "?"
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


@dataclass(frozen=True, slots=True)
class AdoptedMaxParallelism:
    """The numbers of key groups that keyed state of a snapshot has: they cannot change for the life of that state.

    Attributes:
        of_operator: By uid, of operators with keyed state.
        place: Where the snapshot is, for errors.
    """

    of_operator: Mapping[str, int]
    place: str

    @classmethod
    def of(cls, manifest: Manifest, place: str) -> AdoptedMaxParallelism:
        """Return those of a snapshot."""
        return cls({str(state.uid): state.max_parallelism for state in manifest.operators if state.has_keys}, place)

    def default_for(self, uid: str, parallelism: int) -> int:
        """Return what an operator has that nobody chose it for: its own of the snapshot, or what all others there have,
        so that chains stay as they were; else the default.
        """
        own = self.of_operator.get(uid)
        if own is not None:
            return own
        others = set(self.of_operator.values())
        common = others.pop() if len(others) == 1 else 0
        return common if parallelism <= common else default_max_parallelism(parallelism)


def _checked_max_parallelism(
    operator: OperatorTransformation, uid: str, program_default: int | None, adopted: AdoptedMaxParallelism | None
) -> int:
    parallelism = operator.parallelism
    if not operator.is_parallel and parallelism != 1:
        message = f"parallelism must be 1, this operator cannot be split; got {parallelism}"
        raise ConfigurationError(message, operator=operator.name)
    maximum = operator.max_parallelism or program_default
    if not maximum:
        maximum = default_max_parallelism(parallelism) if adopted is None else adopted.default_for(uid, parallelism)
    if not 1 <= maximum <= MAX_MAX_PARALLELISM:
        message = f"max_parallelism must be between 1 and {MAX_MAX_PARALLELISM}; got {maximum}"
        raise ConfigurationError(message, operator=operator.name)
    if not 1 <= parallelism <= maximum:
        message = f"parallelism must be between 1 and max_parallelism ({maximum}); got {parallelism}"
        hint = None
        if adopted is not None and adopted.of_operator.get(uid) == maximum:
            hint = f"its state in {adopted.place} has {maximum} key groups for good: set_parallelism({maximum}) at most"
        raise ConfigurationError(message, operator=operator.name, hint=hint)
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
