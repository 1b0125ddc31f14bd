"""A stream that is kept as a table that clients ask, by key.

Source: Flink's ``KeyedStream.asQueryableState``.
"""

from __future__ import annotations

from typing import Any

from headrace.engine.functions.contract import KeyedProcessFunction

__all__ = ["KeepState"]


class KeepState(KeyedProcessFunction):
    """Puts every record into a queryable state of its key; what ``as_queryable_state`` runs.

    Args:
        descriptor: Of a kind that can keep a stream: value state keeps the newest record, reducing state folds, list
            state gathers.
    """

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def open(self, runtime_context: Any) -> None:
        """Declare the state."""
        self._state = runtime_context.get_partitioned_state(self._descriptor)

    def process_element(self, value: Any, ctx: Any) -> None:
        """Keep a record."""
        self._descriptor.keep(self._state, value)
