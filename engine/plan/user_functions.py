"""The function objects that only data sets take; plain callables of the same arguments do as well.

Source: Flink's ``MapPartitionFunction``, ``GroupReduceFunction``, ``GroupCombineFunction``, ``CrossFunction``,
``Partitioner``, ``ConvergenceCriterion``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic

from headrace.state.type_variables import IN, IN1, IN2, OUT

from ..functions.contract import Function

__all__ = [
    "ConvergenceCriterion",
    "CrossFunction",
    "GroupCombineFunction",
    "GroupReduceFunction",
    "MapPartitionFunction",
    "Partitioner",
]


class MapPartitionFunction(Function, ABC, Generic[IN, OUT]):
    """A whole partition in, any number of records out."""

    @abstractmethod
    def map_partition(self, values: Iterator[IN]) -> Iterable[OUT] | None:
        """Yield or return records; ``values`` can be gone through once."""


class GroupReduceFunction(Function, ABC, Generic[IN, OUT]):
    """All records of a group in, any number of records out."""

    @abstractmethod
    def reduce(self, values: Iterator[IN]) -> Iterable[OUT] | None:
        """Yield or return records; ``values`` can be gone through once."""


class GroupCombineFunction(Function, ABC, Generic[IN, OUT]):
    """Makes fewer records of some records of a group, before they are sent to where the group is reduced.

    A GroupReduceFunction that is also one of these is used so by the optimiser.
    """

    @abstractmethod
    def combine(self, values: Iterator[IN]) -> Iterable[OUT] | None:
        """Yield or return records; in front of a ``reduce`` of the same kind as ``values``."""


class CrossFunction(Function, ABC, Generic[IN1, IN2, OUT]):
    """Makes one record of two."""

    @abstractmethod
    def cross(self, first: IN1, second: IN2) -> OUT:
        """Return the record of a pair."""


class Partitioner(ABC):
    """Chooses the partition of a key."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return a number from 0 to ``num_partitions - 1``; the same for equal keys."""


class ConvergenceCriterion(ABC):
    """Ends an iteration."""

    @abstractmethod
    def is_converged(self, superstep: int, value: Any) -> bool:
        """Return whether to stop after ``superstep`` (from 1), in which the aggregator came to ``value``."""
