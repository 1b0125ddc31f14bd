"""What can be made of a stream and others: unions, connected streams, joins in windows, co-groups.

Source: PyFlink's ``DataStream``; Flink's ``JoinedStreams``, ``CoGroupedStreams``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from headrace.engine.errors import ProgramError
from headrace.engine.graph.transformations import UnionTransformation
from headrace.state.type_variables import T1

from ..arguments.checks import require_instance
from ..arguments.known_columns import check_union
from .partitioned_streams import PartitionedStreams

if TYPE_CHECKING:
    from .connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
    from .data_stream import DataStream
    from .joined_streams import CoGroupedStreams, JoinedStreams

__all__ = ["CombinedStreams"]

_Other = TypeVar("_Other")


class CombinedStreams(PartitionedStreams[T1]):
    """The part of a stream that takes other ones."""

    @property
    def _stream(self) -> DataStream[T1]:
        """Itself, as what it is."""
        return cast("DataStream[T1]", self)

    def union(self, *streams: DataStream[_Other]) -> DataStream[T1 | _Other]:
        """Unite this stream with others: all their records, in no order between them."""
        from .data_stream import DataStream

        for stream in streams:
            self._require_combinable("union takes streams", stream)
        if not streams:
            message = "union needs at least one other stream"
            raise ProgramError(message)
        members: tuple[DataStream, ...] = (self._stream, *streams)
        hinted = {stream.hinted_type for stream in members}
        known = check_union([stream.known_columns for stream in members])
        environment = self._stream.get_execution_environment()
        union = UnionTransformation(environment.new_id(), tuple(stream.transformation for stream in members))
        return DataStream(environment, union, hinted.pop() if len(hinted) == 1 else None, known)

    @overload
    def connect(self, other: DataStream[_Other]) -> ConnectedStreams[T1, _Other]: ...

    @overload
    def connect(self, other: BroadcastStream[_Other]) -> BroadcastConnectedStream[T1, _Other]: ...

    def connect(
        self, other: DataStream[_Other] | BroadcastStream[_Other]
    ) -> ConnectedStreams[T1, _Other] | BroadcastConnectedStream[T1, _Other]:
        """Put one operator behind this stream and another, which may be of another type.

        Args:
            other: A stream, or a broadcast stream made by ``broadcast(descriptor)``, whose records every subtask gets.
        """
        from .connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams

        if isinstance(other, BroadcastStream):
            self._require_combinable("connect takes a stream", other.stream)
            return BroadcastConnectedStream(self._stream, other)
        self._require_combinable("connect takes a stream or a broadcast stream", other)
        return ConnectedStreams(self._stream, other)

    def join(self, other: DataStream[_Other]) -> JoinedStreams[T1, _Other]:
        """Pair the records of both streams that have one key and fall in one window.

        ``a.join(b).where(key of a).equal_to(key of b).window(assigner).apply(function)``.
        """
        from .joined_streams import JoinedStreams

        self._require_combinable("join takes a stream", other)
        return JoinedStreams(self._stream, other)

    def co_group(self, other: DataStream[_Other]) -> CoGroupedStreams[T1, _Other]:
        """As `join`, but the function gets all records of a key and window at once: those of this stream, the other's.

        So it also learns of records that have no partner: ``co_group`` makes outer joins.
        """
        from .joined_streams import CoGroupedStreams

        self._require_combinable("co_group takes a stream", other)
        return CoGroupedStreams(self._stream, other)

    def _require_combinable(self, rule: str, other: Any) -> None:
        """Refuse what is no stream, or one of another environment."""
        from .data_stream import DataStream

        require_instance(rule, DataStream, other)
        if other.get_execution_environment() is not self._stream.get_execution_environment():
            message = "streams of different environments cannot be combined"
            raise ProgramError(message)
