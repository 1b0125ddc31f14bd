"""The state of one operator subtask that lives outside of a task: made, restored, snapshotted, let go.

Harnesses hold their state here, so that in all of them a backend is chosen, and the parts of a snapshot find their way
back, as in a task.

Source: Flink's ``OperatorSubtaskState`` and ``StreamTaskStateInitializer`` of its test kit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.state.backends.choice import make_keyed_backend, restore_keyed_backend
from headrace.state.backends.heap.backend import HeapOperatorStateBackend
from headrace.state.checkpoints.snapshot import KEYED_KINDS, RestoredPart
from headrace.state.identifiers import OperatorId
from headrace.state.keyed.contract import ColumnarTable, KeyedStateBackend, OperatorStateBackend, StateTable
from headrace.state.keys.key_groups import key_group_range

__all__ = ["StateCounts", "SubtaskState"]

_EVENT_TIME_TIMERS = ("event-time-timers", "window-event-timers")
_PROCESSING_TIME_TIMERS = ("processing-time-timers", "window-clock-timers")
_WINDOW_TIMERS = ("window-event-timers", "window-clock-timers")
"""One value holds the timers of one time and key, for any number of windows."""


class SubtaskState:
    """Keyed and operator state of one subtask.

    Args:
        operator: The operator's uid.
        subtask: Which subtask.
        parallelism: Of how many.
        max_parallelism: How many key groups there are.
        now_ms: The clock.
        backend: ``heap`` or ``rocksdb``.
        restored: Parts of the snapshots of all subtasks of an earlier run.

    Raises:
        ConfigurationError: If there is no such backend.
        CheckpointMismatchError: If the parts are of another backend.
    """

    def __init__(
        self,
        operator: OperatorId,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        now_ms: Callable[[], int],
        backend: str = "heap",
        restored: Sequence[RestoredPart] = (),
    ) -> None:
        self._subtask = subtask
        owned = key_group_range(max_parallelism, parallelism, subtask)
        self.keyed: KeyedStateBackend = make_keyed_backend(
            backend, operator, subtask, owned, max_parallelism, now_ms, slot="test"
        )
        self.operator: OperatorStateBackend = HeapOperatorStateBackend(operator)
        restore_keyed_backend(self.keyed, backend, restored, operator)
        parts = [part for part in restored if part.kind not in KEYED_KINDS]
        if parts:
            self.operator.restore(parts, subtask, parallelism)

    def snapshot(self) -> tuple[RestoredPart, ...]:
        """Return what a restore reads, taken and written now."""
        parts = [*self.keyed.snapshot(), *self.operator.snapshot()]
        return tuple(RestoredPart(part.state, part.kind, part.metadata, part.write(), self._subtask) for part in parts)

    def close(self) -> None:
        """Let go of memory and files."""
        self.keyed.close()


class StateCounts:
    """How much keyed state there is.

    Args:
        backends: Of all subtasks that count.
    """

    def __init__(self, backends: Iterable[KeyedStateBackend]) -> None:
        # State -> values, over all keys and windows; rows of a columnar state.
        self._entries: Counter[str] = Counter()
        for backend in backends:
            for name, table in backend.tables().items():
                self._entries[name] += _num_entries(table, len if name in _WINDOW_TIMERS else None)

    def num_entries(self, state: str | None) -> int:
        """Return values of one state, or of all but timers."""
        if state is not None:
            return self._entries[state]
        return sum(self._entries.values()) - self.num_event_time_timers() - self.num_processing_time_timers()

    def num_event_time_timers(self) -> int:
        """Timers of process functions and triggers that wait for event time."""
        return sum(self._entries[name] for name in _EVENT_TIME_TIMERS)

    def num_processing_time_timers(self) -> int:
        """Return those that wait for the clock."""
        return sum(self._entries[name] for name in _PROCESSING_TIME_TIMERS)


def _num_entries(table: StateTable | ColumnarTable, size_of: Callable[[Any], int] | None) -> int:
    spaces = list(table.namespaces())
    known: Any = table
    if hasattr(table, "runs"):
        return sum(run.num_rows for space in spaces for run in known.runs(space))
    if size_of is not None:
        return sum(size_of(value) for space in spaces for value in known.namespace(space).values())
    return sum(len(known.namespace(space)) for space in spaces)
