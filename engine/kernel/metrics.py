"""Metrics of one operator or task: counters, gauges, meters and distributions, in groups.

The engine counts by name, cheaply enough for every batch; user functions get an object per metric, as in PyFlink. A
name within a group is told apart by the group's scope: the counter ``x`` of the group ``g`` is reported as ``g.x``.
Metrics live as long as an attempt and are in no checkpoint. A task reports them at intervals; the JobManager adds them
up over subtasks (`combined`), where counts, gauges and rates add, and distributions merge.

A user's gauge is a function that is called for each report, on the operator's thread.

Source: PyFlink's ``MetricGroup``, ``Counter``, ``Meter``, ``Distribution``; Flink's ``MeterView``; metric names are
Flink's (``numRecordsIn`` ...) in snake_case.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..errors import ProgramError, TypeMismatchError, raise_from_outside

__all__ = [
    "Counter",
    "Distribution",
    "DistributionValue",
    "Meter",
    "MetricGroup",
    "MetricValue",
    "added",
    "as_numbers",
    "combined",
]

SAMPLE_MS = 5_000
"""A meter notes its count this often, at most: Flink's ``View.UPDATE_INTERVAL_SECONDS``."""


QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}
"""What is told of a distribution: those of Flink's histograms."""

_BASE = 1.02
_LOG_BASE = math.log(_BASE)
_ORIGIN = 1 << 20
"""Added to the number of a bucket, so that values next to 0 have small numbers on both sides."""


class DistributionValue(NamedTuple):
    """What a distribution has seen so far.

    Attributes:
        num: How many values.
        total: Their sum.
        low: The least.
        high: The greatest.
        buckets: How many there were of about one size, by the number of their bucket; those of subtasks add up.
    """

    num: int
    total: float
    low: float
    high: float
    buckets: dict[int, int] = {}

    def quantile(self, share: float) -> float:
        """Return the value that this share of all is not above, to 1 %; at least one value is not infinite."""
        left = share * sum(self.buckets.values())
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                break
        return min(max(_value_of(bucket), self.low), self.high)


def _bucket_of(value: float) -> int:
    """The number of a value's bucket: they grow by 2 %, and have the order of their values."""
    if value == 0:
        return 0
    size = math.ceil(math.log(abs(value)) / _LOG_BASE) + _ORIGIN
    return size if value > 0 else -size


def _value_of(bucket: int) -> float:
    """The middle of a bucket."""
    if bucket == 0:
        return 0.0
    lowest = _BASE ** (abs(bucket) - _ORIGIN - 1)  # the highest may be beyond what a float can be
    size = lowest * (2 * _BASE / (_BASE + 1))
    return size if bucket > 0 else -size


MetricValue = float | DistributionValue


class Counter:
    """Counts up and down. Made by `MetricGroup.counter`."""

    __slots__ = ("_counts", "_name")

    def __init__(self, counts: dict[str, int], name: str) -> None:
        self._counts = counts
        self._name = name

    def inc(self, n: int = 1) -> None:
        """Count up."""
        self._counts[self._name] += n

    def dec(self, n: int = 1) -> None:
        """Count down."""
        self._counts[self._name] -= n

    def get_count(self) -> int:
        """Return the count so far."""
        return self._counts[self._name]


class Meter:
    """Counts events and says how many there are per second. Made by `MetricGroup.meter`.

    Args:
        span_ms: The rate is that of about so long, up to now.
        now_ms: The clock.
    """

    __slots__ = ("_count", "_now_ms", "_samples", "_span_ms")

    def __init__(self, span_ms: int, now_ms: Callable[[], int]) -> None:
        self._span_ms = span_ms
        self._now_ms = now_ms
        self._count = 0
        # (time, count) at intervals, oldest first; the first is the last one that is older than the span.
        self._samples: deque[tuple[int, int]] = deque([(now_ms(), 0)])

    def mark_event(self, value: int = 1) -> None:
        """Count events."""
        self._count += value

    def get_count(self) -> int:
        """Return how many events there have been."""
        return self._count

    def get_rate(self) -> float:
        """Return events per second over the span, or since the beginning if that is shorter."""
        now_ms, samples = self._now_ms(), self._samples
        if now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append((now_ms, self._count))
        while len(samples) > 1 and samples[1][0] <= now_ms - self._span_ms:
            samples.popleft()
        since_ms, count = samples[0]
        elapsed_ms = now_ms - since_ms
        return 1_000 * (self._count - count) / elapsed_ms if elapsed_ms > 0 else 0.0


class Distribution:
    """Count, sum, least, greatest and quantiles of reported values. Made by `MetricGroup.distribution`."""

    __slots__ = ("_buckets", "_high", "_low", "_num", "_total")

    def __init__(self) -> None:
        self._num = 0
        self._total = 0.0
        self._low, self._high = math.inf, -math.inf
        self._buckets: dict[int, int] = {}

    def update(self, value: float) -> None:
        """Report a value."""
        self._num += 1
        self._total += value
        self._low, self._high = min(self._low, value), max(self._high, value)
        if math.isfinite(value):
            bucket = _bucket_of(value)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def value(self) -> DistributionValue | None:
        """What it has seen so far; None before the first value."""
        if not self._num:
            return None
        return DistributionValue(self._num, self._total, self._low, self._high, dict(self._buckets))


class MetricGroup:
    """Named metrics of one scope.

    Counters of the engine only grow within an attempt; gauges it sets hold the last value.

    Args:
        now_ms: The clock, epoch milliseconds; meters need it.
        scope: Names of the group and of those around it, outermost first; empty for an operator's own group.
    """

    __slots__ = ("_distributions", "_functions", "_groups", "_meters", "_now_ms", "_scope", "counters", "gauges")

    def __init__(self, now_ms: Callable[[], int] = lambda: 0, scope: tuple[str, ...] = ()) -> None:
        self._now_ms = now_ms
        self._scope = scope
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, float] = {}
        self._functions: dict[str, Callable[[], float]] = {}
        self._meters: dict[str, Meter] = {}
        self._distributions: dict[str, Distribution] = {}
        self._groups: dict[tuple[str, ...], MetricGroup] = {}

    # ------------------------------------------------------------------------------------------------- for the engine
    def count(self, name: str, increment: int = 1) -> None:
        """Add to a counter, e.g. ``num_late_records_dropped``."""
        self.counters[name] = self.counters.get(name, 0) + increment

    def gauge(self, name: str, value: float | Callable[[], float]) -> None:
        """Set a gauge, or name the function that gives its value for each report.

        Raises:
            ProgramError: If a function is given and another kind of metric has this name.
        """
        if callable(value):
            self._claim(name, self._functions, "gauge")
            self._functions[name] = value
        else:
            self.gauges[name] = value

    # ----------------------------------------------------------------------------------------- for user functions, too
    def counter(self, name: str) -> Counter:
        """Return the counter of that name; made on first use, at 0.

        Raises:
            ProgramError: If another kind of metric has this name; so for the others below.
        """
        self._claim(name, self.counters, "counter")
        self.counters.setdefault(name, 0)
        return Counter(self.counters, name)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter of that name, reported as ``name.count`` and ``name.rate`` (per second).

        Args:
            name: Its name.
            time_span_in_seconds: Its rate is that of about so long, up to now.
        """
        self._claim(name, self._meters, "meter")
        if name not in self._meters:
            self._meters[name] = Meter(time_span_in_seconds * 1_000, self._now_ms)
        return self._meters[name]

    def distribution(self, name: str) -> Distribution:
        """Return the distribution of that name."""
        self._claim(name, self._distributions, "distribution")
        return self._distributions.setdefault(name, Distribution())

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group of that name within this one.

        Args:
            name: Its name; the key, if ``extra`` is given.
            extra: The value of a key-value group, which is one more group within.
        """
        scope = (name,) if extra is None else (name, extra)
        group = self._groups.get(scope)
        if group is None:
            group = self._groups[scope] = MetricGroup(self._now_ms, (*self._scope, *scope))
        return group

    def get_scope_components(self) -> list[str]:
        """Return the names of this group and of those around it, outermost first."""
        return list(self._scope)

    def get_metric_identifier(self, metric_name: str) -> str:
        """Return the full name of a metric of this group."""
        return ".".join((*self._scope, metric_name))

    # -------------------------------------------------------------------------------------------------------- reporting
    def statistics(self) -> dict[str, MetricValue]:
        """Return all metrics by full name, of the groups within, too.

        Raises:
            ProgramError: If a gauge's function fails.
            TypeMismatchError: If it gives no number.
        """
        values: dict[str, MetricValue] = {**self.counters, **self.gauges}
        for name, function in self._functions.items():
            values[name] = _gauge_value(self.get_metric_identifier(name), function)
        for name, meter in self._meters.items():
            values[f"{name}.count"], values[f"{name}.rate"] = meter.get_count(), meter.get_rate()
        for name, distribution in self._distributions.items():
            seen = distribution.value
            if seen is not None:
                values[name] = seen
        for scope, group in self._groups.items():
            prefix = ".".join(scope)
            values.update((f"{prefix}.{name}", value) for name, value in group.statistics().items())
        return values

    def _claim(self, name: str, kind: dict[str, Any], what: str) -> None:
        if not isinstance(name, str) or not name:
            message = f"the name of a metric must be a text that is not empty; got {name!r}"
            raise ProgramError(message)
        others = (self.counters, self._functions, self._meters, self._distributions, self.gauges)
        if any(name in other for other in others if other is not kind):
            message = f"metric {self.get_metric_identifier(name)!r} cannot be a {what}: another metric has this name"
            raise ProgramError(message)


def _gauge_value(name: str, function: Callable[[], Any]) -> float:
    try:
        value = function()
    except BaseException as error:
        raise_from_outside(error)
        message = f"gauge {name!r} failed: {error!r}"
        raise ProgramError(message) from error
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        message = f"gauge {name!r} must give a number; got {value!r}"
        raise TypeMismatchError(message)
    return value


def combined(reports: Iterable[dict[str, MetricValue]]) -> dict[str, float]:
    """Add up the metrics of several subtasks, as plain numbers: a distribution becomes its figures."""
    return as_numbers(added(reports))


def added(reports: Iterable[dict[str, MetricValue]]) -> dict[str, MetricValue]:
    """Add up the metrics of several subtasks; distributions are merged."""
    totals: dict[str, MetricValue] = {}
    for report in reports:
        for name, value in report.items():
            known = totals.get(name)
            if known is None:
                totals[name] = value
            elif isinstance(value, DistributionValue):
                totals[name] = _merged(known, value) if isinstance(known, DistributionValue) else value
            else:
                totals[name] = value if isinstance(known, DistributionValue) else known + value
    return totals


def as_numbers(report: dict[str, MetricValue]) -> dict[str, float]:
    """Return the same of one subtask."""
    numbers: dict[str, float] = {}
    for name, value in report.items():
        if isinstance(value, DistributionValue):
            numbers.update({f"{name}.count": value.num, f"{name}.sum": value.total})
            numbers.update({f"{name}.min": value.low, f"{name}.max": value.high})
            numbers[f"{name}.mean"] = value.total / value.num
            if value.buckets:
                numbers.update({f"{name}.{which}": value.quantile(share) for which, share in QUANTILES.items()})
        else:
            numbers[name] = value
    return numbers


def _merged(one: DistributionValue, other: DistributionValue) -> DistributionValue:
    return DistributionValue(
        one.num + other.num,
        one.total + other.total,
        min(one.low, other.low),
        max(one.high, other.high),
        dict(Counts(one.buckets) + Counts(other.buckets)),
    )
