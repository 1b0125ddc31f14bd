"""The end of a stream: what a sink becomes in the graph, and what can be set on it.

Source: PyFlink's ``DataStreamSink``; Flink's ``SinkTransformationTranslator``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator
from headrace.engine.connectors.async_sinks import AsyncSink
from headrace.engine.connectors.contract import Sink
from headrace.engine.connectors.global_commits import EmittingWriterOperator, GlobalCommitterOperator
from headrace.engine.connectors.sink_protocols import SupportsPreCommitTopology, SupportsPreWriteTopology
from headrace.engine.connectors.sinks import SinkOperator
from headrace.engine.errors import ProgramError
from headrace.engine.functions.life import refuse_life
from headrace.engine.functions.operator import Operator
from headrace.engine.graph.transformations import (
    OperatorKind,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
)
from headrace.engine.operators.exchange import GlobalPartitioner

from ..arguments.checks import require_instance, text
from .operator_settings import OperatorSettings

if TYPE_CHECKING:
    from .data_stream import DataStream

__all__ = ["DataStreamSink", "parallelism_behind", "sink_of", "users_sink_of"]

WRITER = "Writer"
GLOBAL_COMMITTER = "Global Committer"


class DataStreamSink(OperatorSettings):
    """The end of a stream; only for settings.

    Of a sink with a global committer ``set_parallelism`` and the like are about its writers; its name and uid give the
    committer's, too.
    """

    def __init__(self, transformation: OperatorTransformation, committer: OperatorTransformation | None = None) -> None:
        self.transformation = transformation
        self._committer = committer

    def name(self, name: str) -> DataStreamSink:
        """Name the sink, for people."""
        if self._committer is None:
            return super().name(name)
        self._committer.name = _part(text("name", name), GLOBAL_COMMITTER)
        return super().name(_part(name, WRITER))

    def uid(self, uid: str) -> DataStreamSink:
        """Give the sink the id by which its state is found again after a restart or a change of the program."""
        if self._committer is not None:
            self._committer.uid = _part(text("uid", uid), GLOBAL_COMMITTER)
        return super().uid(uid)

    def slot_sharing_group(self, group: str) -> DataStreamSink:
        """Put the sink in a slot sharing group."""
        if self._committer is not None:
            self._committer.slot_sharing_group = text("slot sharing group", group)
        return super().slot_sharing_group(group)


def users_sink_of(stream: DataStream, sink: Any) -> DataStreamSink:
    """Write a stream to what a program hands over as a sink.

    Raises:
        ProgramError: If it is none, or one that contradicts itself.
    """
    if not hasattr(sink, "create_writer"):
        message = f"sink must be a Sink; got {sink!r}"
        raise ProgramError(message)
    refuse_life(sink, "a sink", "its writer may have state and hear of checkpoints")
    name = type(sink).__name__.removesuffix("Sink").lower() or "sink"
    if isinstance(sink, SupportsPreWriteTopology):
        stream = _stream("add_pre_write_topology", sink.add_pre_write_topology(stream))
    if hasattr(sink, "create_global_committer"):
        return _with_global_committer(stream, sink, name)
    if isinstance(sink, SupportsPreCommitTopology):
        message = f"{type(sink).__name__} has an add_pre_commit_topology and no create_global_committer"
        raise ProgramError(message, hint="committables that subtasks commit themselves go through no stream")
    return sink_of(stream, sink, name)


def parallelism_behind(stream: DataStream, *, keep: bool) -> int:
    """Return the parallelism of a new operator: the environment's, or that of the operator in front of it."""
    before = stream.transformation
    while isinstance(before, SideOutputTransformation):
        before = before.input
    if keep and isinstance(before, OperatorTransformation):
        return before.parallelism
    return stream.get_execution_environment().get_parallelism()


def sink_of(stream: DataStream, sink: Sink | AsyncSink, name: str, *, keep_parallelism: bool = False) -> DataStreamSink:
    """End a stream in a sink whose subtasks commit themselves, or not at all."""
    operator = AsyncSinkOperator(sink) if isinstance(sink, AsyncSink) else SinkOperator(sink)
    parallelism = parallelism_behind(stream, keep=keep_parallelism)
    return DataStreamSink(_added(stream, name, OperatorKind.SINK, operator, stream.transformation, parallelism))


def _with_global_committer(stream: DataStream, sink: Any, name: str) -> DataStreamSink:
    """Writers in parallel, what the sink does with what they prepare, and one committer."""
    if hasattr(sink, "create_committer"):
        message = f"{type(sink).__name__} has a create_committer and a create_global_committer"
        raise ProgramError(message, hint="output is committed by each subtask, or by one committer for all")
    from .data_stream import DataStream

    parallelism = parallelism_behind(stream, keep=False)
    operator = EmittingWriterOperator(sink)
    writer = _added(stream, _part(name, WRITER), OperatorKind.OPERATOR, operator, stream.transformation, parallelism)
    committables = DataStream(stream.get_execution_environment(), writer)
    if isinstance(sink, SupportsPreCommitTopology):
        committables = _stream("add_pre_commit_topology", sink.add_pre_commit_topology(committables))
    together = PartitionTransformation(
        stream.get_execution_environment().new_id(), committables.transformation, GlobalPartitioner()
    )
    committer = _added(
        stream, _part(name, GLOBAL_COMMITTER), OperatorKind.SINK, GlobalCommitterOperator(sink), together, 1
    )
    committer.is_parallel = False
    return DataStreamSink(writer, committer)


def _added(
    stream: DataStream, name: str, kind: OperatorKind, operator: Operator, before: Transformation, parallelism: int
) -> OperatorTransformation:
    environment = stream.get_execution_environment()
    transformation = OperatorTransformation(environment.new_id(), name, kind, operator, (before,), parallelism)
    environment.add_operator(transformation)
    return transformation


def _stream(method: str, given: Any) -> Any:
    from .data_stream import DataStream

    require_instance(f"{method} must give a stream", DataStream, given)
    return given


def _part(name: str, part: str) -> str:
    return f"{name}: {part}"
