"""Transformations: the calls of a program, as the API records them.

There is one per call, virtual ones (union, partitioning, side output) included: those have no operator, and become
properties of edges when `headrace.engine.graph.stream_graph` makes a graph of the program. Until then the API's setters
may change what they record.

Source: Flink's ``Transformation`` and its subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from ..errors import ProgramError
from ..functions.operator import Operator
from ..operators.exchange import Partitioner

__all__ = [
    "ChainingStrategy",
    "IterationTransformation",
    "OperatorKind",
    "OperatorTransformation",
    "PartitionTransformation",
    "SideOutputTransformation",
    "Transformation",
    "UnionTransformation",
    "inputs_of",
    "is_behind",
]


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
        is_optional: Whether the operator behind it does the same without it: then generated uids do not depend on it.
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
    is_optional: bool = False


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


def inputs_of(transformation: Transformation) -> tuple[Transformation, ...]:
    """Return what feeds a transformation; what comes back to an iteration is not among it.

    Raises:
        ProgramError: If it is of another kind than those here.
    """
    if isinstance(transformation, (OperatorTransformation, UnionTransformation)):
        return transformation.inputs
    if isinstance(transformation, (PartitionTransformation, SideOutputTransformation)):
        return (transformation.input,)
    message = f"a transformation must be one of this module's; got {transformation!r}"
    raise ProgramError(message)


def is_behind(transformation: Transformation, head: Transformation) -> bool:
    """Return whether a stream is made of another one, in one step or many."""
    seen: set[int] = set()
    open_ends = [transformation]
    while open_ends:
        one = open_ends.pop()
        if one is head:
            return True
        if one.transformation_id not in seen:
            seen.add(one.transformation_id)
            open_ends.extend(inputs_of(one))
    return False
