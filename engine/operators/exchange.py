"""Exchanges: which subtask a record goes to.

A `Partitioner` cuts a batch into one piece per receiving channel, in one vectorised pass that keeps the order per
sender and receiver. How the pieces travel is the business of `headrace.engine.task.channels`.

Source: Flink's ``StreamPartitioner`` subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.state.keys.key_groups import key_groups_of, subtask_of

from ..columns.records import Batch
from ..errors import ProgramError
from ..functions.keys import KeySelector
from ..functions.tracebacks import taken_last
from ..functions.user_function import keys_of, raise_in_function

__all__ = [
    "BroadcastPartitioner",
    "CustomPartitioner",
    "ForwardPartitioner",
    "GlobalPartitioner",
    "HashPartitioner",
    "ImplicitForwardPartitioner",
    "Partitioner",
    "RebalancePartitioner",
    "RescalePartitioner",
    "ShufflePartitioner",
]

_MAX_DENSE_CHANNELS = 4

Pieces = list[tuple[int, Batch]]
"""Pairs of channel index and the records that go there, in their order."""


class Partitioner(ABC):
    """Chooses channels. Unbound on the client; each producing subtask binds a copy to its channels.

    Attributes:
        name: Flink's ship strategy, as shown in plans.
        is_pointwise: Whether a subtask is connected to some receivers only.
        supports_unaligned: Whether a barrier may overtake records. Not where records in flight could not be dealt out
            anew, at another parallelism, as if they had not been in flight;
            ``docs/design/023-exchanges-that-keep-order.md``.
    """

    name = "PARTITION"
    is_pointwise = False
    supports_unaligned = True
    num_channels: int = 0
    max_parallelism: int = 0

    def bind(self, num_channels: int, subtask: int, max_parallelism: int) -> Partitioner:
        """Return a copy for one producing subtask.

        Args:
            num_channels: Channels of this subtask on this edge.
            subtask: The producing subtask's index.
            max_parallelism: Of the receiving vertex.
        """
        bound = copy(self)
        bound.num_channels = num_channels
        bound.max_parallelism = max_parallelism
        bound.start(subtask)
        return bound

    def start(self, subtask: int) -> None:  # noqa: B027 - not all keep something
        """Prepare what the bound copy keeps between batches."""

    @abstractmethod
    def partition(self, batch: Batch) -> Pieces:
        """Cut a batch. Pieces are never empty; a channel occurs at most once."""

    def __repr__(self) -> str:
        return self.name


class ForwardPartitioner(Partitioner):
    """To the subtask of the same index: keeps partitioning and order."""

    name = "FORWARD"
    is_pointwise = True
    supports_unaligned = False

    def partition(self, batch: Batch) -> Pieces:
        return [(0, batch)]


class ImplicitForwardPartitioner(ForwardPartitioner):
    """Forward because nothing else was asked for and both ends have one parallelism: it may change with that."""


class GlobalPartitioner(Partitioner):
    """Everything to the first subtask."""

    name = "GLOBAL"

    def partition(self, batch: Batch) -> Pieces:
        return [(0, batch)]


class BroadcastPartitioner(Partitioner):
    """Every record to every subtask."""

    name = "BROADCAST"
    supports_unaligned = False

    def partition(self, batch: Batch) -> Pieces:
        if self.num_channels > 1:
            batch.shared()  # receivers in this process get the very batch
        return [(channel, batch) for channel in range(self.num_channels)]


class RebalancePartitioner(Partitioner):
    """Round robin. A batch is dealt out in runs of equal length, which keeps it columnar and spreads it as evenly as
    single records.
    """

    name = "REBALANCE"
    _next = 0

    def start(self, subtask: int) -> None:
        self._next = subtask % self.num_channels  # producers start at different receivers

    def partition(self, batch: Batch) -> Pieces:
        count, channels = batch.num_rows, self.num_channels
        if channels == 1:
            return [(0, batch)]
        whole, rest = divmod(count, channels)
        pieces: Pieces = []
        offset = 0
        for i in range(min(count, channels)):
            length = whole + (i < rest)
            pieces.append(((self._next + i) % channels, batch.slice(offset, length)))
            offset += length
        self._next = (self._next + rest) % channels
        return pieces


class RescalePartitioner(RebalancePartitioner):
    """Round robin over the few receivers this subtask is connected to."""

    name = "RESCALE"
    is_pointwise = True
    supports_unaligned = False

    def start(self, subtask: int) -> None:
        self._next = 0


class _TargetPartitioner(Partitioner):
    """Computes one target channel per record and cuts the batch by it."""

    @abstractmethod
    def targets(self, batch: Batch) -> npt.NDArray[np.integer[Any]]:
        """Return the channel of each record."""

    def partition(self, batch: Batch) -> Pieces:
        if self.num_channels == 1:
            return [(0, batch)]
        targets = self.targets(batch)
        pieces: Pieces = []
        for channel in range(self.num_channels):
            chosen = targets == channel
            num_rows = int(np.count_nonzero(chosen))
            if num_rows == batch.num_rows:
                return [(channel, batch)]
            if num_rows:
                # Going through all rows is the faster way as long as many of them are taken.
                is_dense = self.num_channels <= _MAX_DENSE_CHANNELS
                pieces.append((channel, batch.filter(chosen) if is_dense else batch.take(np.flatnonzero(chosen))))
        return pieces


class HashPartitioner(_TargetPartitioner):
    """By key group: all records of one key go to the subtask that owns its group."""

    name = "HASH"

    def __init__(self, key_selector: KeySelector) -> None:
        self.key_selector = key_selector

    def targets(self, batch: Batch) -> npt.NDArray[np.integer[Any]]:
        try:
            hashes = self.key_selector.hashes(batch)
        except BaseException as error:
            raise_in_function(error, repr(self.key_selector))
        groups = key_groups_of(hashes, self.max_parallelism)
        return subtask_of(groups, self.max_parallelism, self.num_channels)


class ShufflePartitioner(_TargetPartitioner):
    """Pseudo-random and even; the sequence depends on the subtask only, so that a replay repeats it."""

    name = "SHUFFLE"
    _counter = 0

    def start(self, subtask: int) -> None:
        self._counter = (subtask + 1) << 40

    def targets(self, batch: Batch) -> npt.NDArray[np.integer[Any]]:
        numbers = np.arange(self._counter, self._counter + batch.num_rows, dtype=np.uint64)
        self._counter += batch.num_rows
        mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (mixed >> np.uint64(33)) % np.uint64(self.num_channels)


class CustomPartitioner(_TargetPartitioner):
    """By a user's function of key and number of channels."""

    name = "CUSTOM"
    supports_unaligned = False

    def __init__(self, function: Callable[[Any, int], int], key_selector: KeySelector) -> None:
        self.function = function
        self.key_selector = key_selector

    def targets(self, batch: Batch) -> npt.NDArray[np.integer[Any]]:
        function, channels = self.function, self.num_channels
        keys = keys_of(self.key_selector, batch)
        pending = iter(keys)
        try:
            chosen = [function(key, channels) for key in pending]
        except BaseException as error:
            key = keys[taken_last(keys, pending)]
            raise_in_function(error, getattr(function, "__name__", repr(function)), key=key)
        for target in chosen:
            if not isinstance(target, (int, np.integer)) or not 0 <= target < channels:
                message = f"a custom partitioner must give an int from 0 to {channels - 1}; got {target!r}"
                raise ProgramError(message)
        return np.array(chosen, dtype=np.int64)

    def partition(self, batch: Batch) -> Pieces:
        if self.num_channels == 1:
            self.targets(batch)  # a wrong function must not wait for more parallelism to be noticed
        return super().partition(batch)
