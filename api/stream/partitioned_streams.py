"""How records are dealt out to the subtasks of the operator behind a stream.

Source: PyFlink's ``DataStream``; Flink's ``StreamPartitioner``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, overload

from headrace.engine.errors import ProgramError
from headrace.engine.functions.life import refuse_life
from headrace.engine.operators.exchange import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    Partitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from headrace.state.keyed.descriptors import MapStateDescriptor
from headrace.state.type_variables import T1

from ..arguments.checks import key_selector_of
from .operator_settings import OperatorSettings

if TYPE_CHECKING:
    from .connected_streams import BroadcastStream
    from .data_stream import DataStream

__all__ = ["PartitionedStreams"]


class PartitionedStreams(OperatorSettings, Generic[T1]):
    """What a stream can be made to that says how its records are dealt out."""

    @abstractmethod
    def _partitioned(self, partitioner: Partitioner) -> DataStream[T1]:
        """Return the stream as it is dealt out by a partitioner."""

    def rebalance(self) -> DataStream[T1]:
        """Deal records out evenly over all subtasks of the next operator, in turn."""
        return self._partitioned(RebalancePartitioner())

    def rescale(self) -> DataStream[T1]:
        """Deal records out in turn over a share of the next operator's subtasks."""
        return self._partitioned(RescalePartitioner())

    def shuffle(self) -> DataStream[T1]:
        """Deal records out evenly at random."""
        return self._partitioned(ShufflePartitioner())

    @overload
    def broadcast(self) -> DataStream[T1]: ...

    @overload
    def broadcast(self, *descriptors: MapStateDescriptor) -> BroadcastStream[T1]: ...

    def broadcast(self, *descriptors: MapStateDescriptor) -> DataStream[T1] | BroadcastStream[T1]:
        """Send each record to all subtasks of the next operator.

        Args:
            *descriptors: The broadcast states that the records may change. With them the result is a broadcast stream,
                for ``connect``.
        """
        broadcast = self._partitioned(BroadcastPartitioner())
        if not descriptors:
            return broadcast
        from .connected_streams import BroadcastStream

        return BroadcastStream(broadcast, descriptors)

    def global_(self) -> DataStream[T1]:
        """Send all records to the first subtask of the next operator."""
        return self._partitioned(GlobalPartitioner())

    def forward(self) -> DataStream[T1]:
        """Send the records of each subtask to the next operator's subtask of the same number."""
        return self._partitioned(ForwardPartitioner())

    def partition_custom(self, partitioner: Any, key_selector: Any) -> DataStream[T1]:
        """Let a function choose the subtask.

        Args:
            partitioner: A callable of key and number of subtasks (or an object with ``partition``) that gives a number
                from 0.
            key_selector: As in `key_by`.
        """
        function = partitioner if callable(partitioner) else getattr(partitioner, "partition", None)
        refuse_life(partitioner, "a partitioner")
        if function is None:
            message = f"partitioner must be a callable of key and number of subtasks; got {partitioner!r}"
            raise ProgramError(message)
        keys = key_selector if isinstance(key_selector, (tuple, list)) else (key_selector,)
        return self._partitioned(CustomPartitioner(function, key_selector_of("partition_custom", tuple(keys))))
