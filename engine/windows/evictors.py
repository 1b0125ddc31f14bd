"""Evictors: which records a window forgets right before or after its function sees them.

An evictor is handed the window's records in order of arrival, as a list that it changes in place; what it takes out is
gone for good. A window with an evictor keeps all its records, also under a reduce or aggregate function, which is then
run over what is left whenever the window fires.

Invariant: an evictor keeps nothing in itself; one object serves all windows of an operator.

Source: Flink's ``Evictor``, ``CountEvictor``, ``TimeEvictor``, ``DeltaEvictor``, ``TimestampedValue``. PyFlink
has no evictors; the names are Flink's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ..errors import ConfigurationError
from ..kernel.config import parse_duration_ms
from .triggers import delta_of

if TYPE_CHECKING:
    from ..kernel.metrics import MetricGroup
    from .windows import Window

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "EvictorContext", "TimeEvictor", "TimestampedValue"]


class TimestampedValue(NamedTuple):
    """A record of a window and its event time, epoch milliseconds; None if it has none."""

    value: Any
    timestamp: int | None

    def has_timestamp(self) -> bool:
        """Return whether the record has an event time."""
        return self.timestamp is not None


class EvictorContext(Protocol):
    """What an evictor may know besides the records; valid during the call only."""

    def get_current_processing_time(self) -> int:
        """Return the clock's reading, epoch milliseconds."""
        ...

    def get_current_watermark(self) -> int:
        """Return how far event time is, epoch milliseconds."""
        ...

    def get_metric_group(self) -> MetricGroup:
        """Return the operator's counters and gauges."""
        ...


_Context: TypeAlias = EvictorContext


class Evictor(ABC):
    """Takes records out of windows. Subclasses are picklable and keep nothing in themselves."""

    EvictorContext: TypeAlias = _Context

    def __class_getitem__(cls, _types: Any) -> type[Evictor]:
        return cls

    @abstractmethod
    def evict_before(self, elements: list[TimestampedValue], size: int, window: Window, ctx: EvictorContext) -> None:
        """Take records out before the window function is called.

        Args:
            elements: The window's records in order of arrival; take out by changing the list in place.
            size: How many there are.
            window: The window that fires.
            ctx: Clocks and metrics.
        """

    @abstractmethod
    def evict_after(self, elements: list[TimestampedValue], size: int, window: Window, ctx: EvictorContext) -> None:
        """Take records out after the window function has been called; as `evict_before`."""


class _BuiltIn(Evictor):
    """An evictor that does the same thing, before or after the function."""

    def __init__(self, do_evict_after: bool) -> None:
        self._do_evict_after = do_evict_after

    def evict_before(self, elements: list[TimestampedValue], size: int, window: Window, ctx: EvictorContext) -> None:
        if not self._do_evict_after:
            self._evict(elements)

    def evict_after(self, elements: list[TimestampedValue], size: int, window: Window, ctx: EvictorContext) -> None:
        if self._do_evict_after:
            self._evict(elements)

    @abstractmethod
    def _evict(self, elements: list[TimestampedValue]) -> None:
        """Take records out."""


class CountEvictor(_BuiltIn):
    """Keeps the last ``max_count`` records.

    Args:
        max_count: How many, at least 0.
        do_evict_after: Whether records are taken out after the function instead of before.

    Raises:
        ConfigurationError: If ``max_count`` is not such a number.
    """

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        if not isinstance(max_count, int) or isinstance(max_count, bool) or max_count < 0:
            message = f"a count evictor keeps a number of records, at least 0; got {max_count!r}"
            raise ConfigurationError(message)
        self._max_count = max_count

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Make the evictor."""
        return cls(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        surplus = len(elements) - self._max_count
        if surplus > 0:
            del elements[:surplus]

    def __repr__(self) -> str:
        return f"CountEvictor({self._max_count})"


class TimeEvictor(_BuiltIn):
    """Keeps the records whose event time is less than ``window_size`` before the latest one's.

    Records without event time are all kept.

    Args:
        window_size: A duration as in `parse_duration_ms`.
        do_evict_after: Whether records are taken out after the function instead of before.

    Raises:
        ConfigurationError: If ``window_size`` is not a duration, or negative.
    """

    def __init__(self, window_size: Any, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._size_ms = parse_duration_ms(window_size)
        if self._size_ms < 0:
            message = f"a time evictor's size must not be negative; got {window_size!r}"
            raise ConfigurationError(message)

    @classmethod
    def of(cls, window_size: Any, do_evict_after: bool = False) -> TimeEvictor:
        """Make the evictor."""
        return cls(window_size, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if times:
            cutoff = max(times) - self._size_ms
            elements[:] = [e for e in elements if e.timestamp is None or e.timestamp > cutoff]

    def __repr__(self) -> str:
        return f"TimeEvictor({self._size_ms} ms)"


class DeltaEvictor(_BuiltIn):
    """Keeps the records that differ from the last one by less than ``threshold``.

    Args:
        threshold: How much is too much.
        delta_function: ``(record, last record) -> number``, or an object with ``get_delta`` of that form.
        do_evict_after: Whether records are taken out after the function instead of before.
    """

    def __init__(self, threshold: float, delta_function: Any, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._threshold = threshold
        self._delta = delta_of(delta_function)

    @classmethod
    def of(cls, threshold: float, delta_function: Any, do_evict_after: bool = False) -> DeltaEvictor:
        """Make the evictor."""
        return cls(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            delta, last, threshold = self._delta, elements[-1].value, self._threshold
            elements[:] = [e for e in elements if delta(e.value, last) < threshold]

    def __repr__(self) -> str:
        return f"DeltaEvictor({self._threshold})"
