"""State per key and window, as triggers and window functions hold it.

A handle reads and writes at the backend's current key and current namespace, which the window operator sets before each
call. Names of a program are its own per holder: a trigger, the windows of a function and the function's state over all
windows may each have a state of one name.

Invariant: what was stored for a window is forgotten with it, whether or not its owner's ``clear`` has done so, as far
as the state has been asked for since the subtask was started.

Source: Flink's ``WindowOperator.Context.getPartitionedState``, ``WindowContext.windowState``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from headrace.state.keyed.contract import KeyedStateBackend, Namespace
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
from headrace.state.keyed.kinds import StateDescriptor, is_state_kind
from headrace.state.type_variables import IN, OUT, UK, UV, T

from ..errors import ProgramError

__all__ = ["WindowState"]


class WindowState:
    """The way to the state of the current key and window; what ``context.window_state()`` gives.

    Args:
        keyed_state: Where it is kept.
        owner: Put before names: ``trigger`` or ``window``.
    """

    __slots__ = ("_backend", "_handles", "_owner")

    def __init__(self, keyed_state: KeyedStateBackend, owner: str) -> None:
        self._backend = keyed_state
        self._owner = owner
        # (Name, kind) -> handle, as asked for since the start.
        self._handles: dict[tuple[str, str], Any] = {}

    def handle(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a state, of the descriptor's kind.

        Raises:
            ProgramError: If it is no descriptor of such state, or another kind of state has its name.
        """
        try:
            return self._handles[descriptor.name, descriptor.kind]
        except (AttributeError, KeyError):
            own = self._own(descriptor)
        handle = self._backend.handle(own, windowed=True)
        self._handles[descriptor.name, descriptor.kind] = handle
        return handle

    def _own(self, descriptor: StateDescriptor) -> StateDescriptor:
        if not is_state_kind(descriptor):
            message = f"state is asked for by a descriptor such as ValueStateDescriptor; got {descriptor!r}"
            raise ProgramError(message)
        return replace(descriptor, name=f"{self._owner}.{descriptor.name}")

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return the handle of a value."""
        return self.handle(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return the handle of a list."""
        return self.handle(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor[UK, UV]) -> MapState[UK, UV]:
        """Return the handle of a map."""
        return self.handle(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return the handle of a value that combines what is added to it."""
        return self.handle(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[IN, OUT]) -> AggregatingState[IN, OUT]:
        """Return the handle of an accumulator."""
        return self.handle(descriptor)

    def merge(self, descriptor: StateDescriptor, target: Namespace, sources: Iterable[Namespace]) -> None:
        """Move what the current key has in ``sources`` into the window ``target``.

        Raises:
            ProgramError: If such state cannot be merged.
        """
        self.handle(descriptor)
        self._backend.merge_namespaces(self._own(descriptor), target, sources)

    @property
    def is_used(self) -> bool:
        """Whether any state has been asked for."""
        return bool(self._handles)

    def forget(self) -> None:
        """Clear all state of the current key and window."""
        for handle in self._handles.values():
            handle.clear()
