"""What a function may know of its place, and the way to its state: what its ``open`` is given.

Source: Flink's ``RuntimeContext``.
"""

from __future__ import annotations

from typing import Any, Protocol

from headrace.state.keyed.contract import KeyedStateBackend
from headrace.state.keyed.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from headrace.state.keyed.kinds import StateDescriptor
from headrace.state.type_variables import IN, OUT, UK, UV, T

from ..errors import ProgramError, StateAccessError
from ..kernel.metrics import MetricGroup
from .accumulators import Accumulator, Accumulators, DoubleCounter, Histogram, IntCounter, LongCounter
from .life import refuse_life

__all__ = ["FunctionPlace", "RuntimeContext"]


class FunctionPlace(Protocol):
    """Where a function is called: a subtask of an operator of a stream, or of a node of a data set's plan."""

    @property
    def name(self) -> str:
        """The operator's name, for its user."""
        ...

    @property
    def operator(self) -> str:
        """What tells the operator from all others."""
        ...

    @property
    def subtask(self) -> int:
        """Which subtask this is, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        ...

    @property
    def max_parallelism(self) -> int:
        """How many there could be."""
        ...

    @property
    def job(self) -> str:
        """The job's id."""
        ...

    @property
    def attempt(self) -> str:
        """Text of the execution attempt: leader epoch and number of the deployment."""
        ...

    @property
    def metrics(self) -> MetricGroup:
        """The operator's metrics."""
        ...

    @property
    def accumulators(self) -> Accumulators:
        """What functions count for the job's result."""
        ...


class RuntimeContext:
    """What a function may know of its place, and the way to its state; handed to ``open``."""

    __slots__ = ("_context", "_keyed_state")

    def __init__(self, context: FunctionPlace, keyed_state: KeyedStateBackend | None = None) -> None:
        self._context = context
        # None where the function sees no keys.
        self._keyed_state = keyed_state

    def get_task_name(self) -> str:
        """Return the operator's name."""
        return self._context.name

    def get_task_name_with_subtasks(self) -> str:
        """Return the operator's name and which subtask of how many, counted from 1."""
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism})"

    def get_index_of_this_subtask(self) -> int:
        """Return which subtask this is, from 0."""
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Return how many subtasks the operator has."""
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return how many it could have at most: the number of key groups."""
        return self._context.max_parallelism

    def get_job_id(self) -> str:
        """Return the job's id."""
        return self._context.job

    def get_operator_id(self) -> str:
        """Return what tells the operator from all others of the job."""
        return self._context.operator

    def get_attempt(self) -> str:
        """Return which execution of the job this is: leader epoch and number of the deployment, with a dot between.

        Of two attempts of one job the one with the larger pair of numbers is the newer.
        """
        return self._context.attempt

    def get_metrics_group(self) -> MetricGroup:
        """Return the operator's metrics, and the way to groups of one's own."""
        return self._context.metrics

    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        """Register an accumulator; call it in ``open``. The job's result has the total over all subtasks.

        Raises:
            ProgramError: If the operator has one of that name.
        """
        self._context.accumulators.add(name, accumulator)

    def get_accumulator(self, name: str) -> Any:
        """Return this subtask's accumulator of that name.

        Raises:
            ProgramError: If there is none.
        """
        return self._context.accumulators.get(name)

    def get_int_counter(self, name: str) -> IntCounter:
        """Return the accumulator of that name, an `IntCounter`; made if there is none. So for those below.

        Raises:
            ProgramError: If there is one of another kind.
        """
        return self._context.accumulators.get_or_add(name, IntCounter)

    def get_long_counter(self, name: str) -> LongCounter:
        """Return a `LongCounter`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, LongCounter)

    def get_double_counter(self, name: str) -> DoubleCounter:
        """Return a `DoubleCounter`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, DoubleCounter)

    def get_histogram(self, name: str) -> Histogram:
        """Return a `Histogram`; else as `get_int_counter`."""
        return self._context.accumulators.get_or_add(name, Histogram)

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of keyed state of any kind, bound to the key of the record or timer that is processed.

        Raises:
            StateAccessError: If the stream is not keyed.
            ProgramError: If it is no descriptor of such state.
        """
        return self._state_of_key(descriptor, StateDescriptor)

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return the handle of a keyed value; else as `get_partitioned_state`.

        Raises:
            StateAccessError: If the stream is not keyed.
            ProgramError: If the descriptor is one of another kind of state.
        """
        handle: ValueState[T] = self._state_of_key(descriptor, ValueStateDescriptor)
        return handle

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the handle of a keyed list; else as `get_state`."""
        handle: ListState[T] = self._state_of_key(descriptor, ListStateDescriptor)
        return handle

    def get_map_state(self, descriptor: MapStateDescriptor[UK, UV]) -> MapState[UK, UV]:
        """Return the handle of a keyed map; else as `get_state`."""
        handle: MapState[UK, UV] = self._state_of_key(descriptor, MapStateDescriptor)
        return handle

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return the handle of a keyed value that combines what is added to it; else as `get_state`."""
        handle: ReducingState[T] = self._state_of_key(descriptor, ReducingStateDescriptor)
        return handle

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[IN, OUT]) -> AggregatingState[IN, OUT]:
        """Return the handle of a keyed accumulator; else as `get_state`."""
        handle: AggregatingState[IN, OUT] = self._state_of_key(descriptor, AggregatingStateDescriptor)
        return handle

    def _state_of_key(self, descriptor: Any, kind: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, kind):
            message = f"this state is asked for by a {kind.__name__}; got {descriptor!r}"
            raise ProgramError(message, operator=self._context.name)
        if self._keyed_state is None:
            message = f"keyed state {descriptor.name!r} exists only after key_by"
            raise StateAccessError(message, operator=self._context.name)
        if descriptor.function is not None:
            refuse_life(descriptor.function, "the function of a state")
        return self._keyed_state.handle(descriptor)
