"""Counters and gauges of one operator or task, cheap enough for every batch and plain enough to send.

Source: Flink's metric names (``numRecordsIn`` ...) in snake_case.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["MetricGroup"]


@dataclass(slots=True)
class MetricGroup:
    """Named numbers of one scope. Counters only grow within an attempt; gauges hold the last value set."""

    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, increment: int = 1) -> None:
        """Add to a counter, e.g. ``num_late_records_dropped``."""
        self.counters[name] = self.counters.get(name, 0) + increment

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        self.gauges[name] = value

    def statistics(self) -> dict[str, float]:
        """All numbers by name."""
        return {**self.counters, **self.gauges}
