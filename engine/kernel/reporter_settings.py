"""Where a cluster's metrics and traces are sent: to whom, how often, and in how much detail.

Option names are Flink's where there are any.

Source: Flink's ``OpenTelemetryReporterOptions``, ``MetricOptions``, ``TraceOptions`` and
``TraceOptions.CheckpointSpanDetailLevel``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.state.values.durations import parse_duration_ms

from ..errors import ConfigurationError

__all__ = ["ExporterSettings", "ReporterSettings", "SpanDetail"]

_URL = re.compile(r"https?://[^/\s]+(/\S*)?")

PROTOCOLS = ("HTTP", "gRPC")

DEFAULT_INTERVAL_MS = 10_000
DEFAULT_TIMEOUT_MS = 10_000


class SpanDetail(Enum):
    """How much of a checkpoint, or of a start, its trace tells: Flink's ``traces.checkpoint.span-detail-level``."""

    JOB = "SPAN_PER_CHECKPOINT"
    TASKS = "CHILDREN_SPANS_PER_TASK"
    SUBTASKS = "CHILDREN_SPANS_PER_SUBTASK"


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """A collector that speaks OTLP.

    Attributes:
        endpoint: Its URL; without a path the usual one is meant (``/v1/metrics``, ``/v1/traces``).
        protocol: ``HTTP`` (protobuf) or ``gRPC``.
        timeout_ms: So long one report may take.
        service_name: What the cluster is called there; empty for the cluster's name.
        service_version: Its version there; empty for Headrace's.
    """

    endpoint: str
    protocol: str = "HTTP"
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    service_name: str = ""
    service_version: str = ""

    def __post_init__(self) -> None:
        if _URL.fullmatch(self.endpoint) is None:
            message = f"the endpoint of a collector must be a URL, as http://127.0.0.1:4318; got {self.endpoint!r}"
            raise ConfigurationError(message)
        if self.protocol not in PROTOCOLS:
            message = f"the protocol of a collector must be {' or '.join(PROTOCOLS)}; got {self.protocol!r}"
            raise ConfigurationError(message)
        _require_positive("timeout_ms", self.timeout_ms)


@dataclass(frozen=True, slots=True)
class ReporterSettings:
    """Where metrics and traces go.

    Attributes:
        metrics: Who gets metrics; None for nobody.
        traces: Who gets traces; None for nobody.
        interval_ms: ``metrics.reporter.otel.interval``: how often metrics are sent.
        ray_interval_ms: ``metrics.reporter.ray.interval``: how often Ray's own metrics are set, which its Prometheus
            endpoint shows; 0 for never.
        span_detail: ``traces.checkpoint.span-detail-level``.
    """

    metrics: ExporterSettings | None = None
    traces: ExporterSettings | None = None
    interval_ms: int = DEFAULT_INTERVAL_MS
    ray_interval_ms: int = 0
    span_detail: SpanDetail = SpanDetail.SUBTASKS

    def __post_init__(self) -> None:
        _require_positive("interval_ms", self.interval_ms)
        if self.ray_interval_ms < 0:
            message = f"metrics.reporter.ray.interval must not be negative; got {self.ray_interval_ms} ms"
            raise ConfigurationError(message)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, str]) -> ReporterSettings | None:
        """Read Flink's keys; those of others are left alone. None if nothing is to be reported.

        Understood are ``metrics.reporter.otel.*`` and ``traces.reporter.otel.*`` (``exporter.endpoint``,
        ``exporter.protocol``, ``exporter.timeout``, ``service.name``, ``service.version``, ``factory.class``),
        ``metrics.reporter.otel.interval``, ``traces.checkpoint.span-detail-level`` and, not of Flink,
        ``metrics.reporter.ray.interval``.

        Raises:
            ConfigurationError: If a value is illegal, or a key of a reporter is not known.
        """
        for key in configuration:
            if key.startswith(("metrics.reporter.", "traces.reporter.", "traces.")) and key not in _KEYS:
                message = f"no option is called {key}"
                raise ConfigurationError(message, hint=f"there are {', '.join(sorted(_KEYS))}")
        metrics = _exporter(configuration, "metrics.reporter.otel.")
        traces = _exporter(configuration, "traces.reporter.otel.")
        ray_interval_ms = _duration_ms(configuration.get("metrics.reporter.ray.interval", "0"))
        if metrics is None and traces is None and not ray_interval_ms:
            return None
        level = configuration.get("traces.checkpoint.span-detail-level", SpanDetail.SUBTASKS.value)
        try:
            detail = SpanDetail(level.upper())
        except ValueError:
            names = ", ".join(one.value for one in SpanDetail)
            message = f"traces.checkpoint.span-detail-level must be one of {names}; got {level!r}"
            raise ConfigurationError(message) from None
        interval_ms = _duration_ms(configuration.get("metrics.reporter.otel.interval", str(DEFAULT_INTERVAL_MS)))
        return cls(metrics, traces, interval_ms, ray_interval_ms, detail)


_PARTS = ("exporter.endpoint", "exporter.protocol", "exporter.timeout", "service.name", "service.version")

_KEYS = frozenset(
    {
        *(f"{what}.reporter.otel.{part}" for what in ("metrics", "traces") for part in (*_PARTS, "factory.class")),
        "metrics.reporter.otel.interval",
        "metrics.reporter.ray.interval",
        "traces.checkpoint.span-detail-level",
    }
)


def _exporter(configuration: Mapping[str, str], prefix: str) -> ExporterSettings | None:
    endpoint, protocol, timeout, name, version = (configuration.get(prefix + part, "") for part in _PARTS)
    if not endpoint:
        given = sorted(key for key in configuration if key.startswith(prefix) and not key.endswith(".interval"))
        if given:
            message = f"{given[0]} is set, and {prefix}exporter.endpoint is not"
            raise ConfigurationError(message)
        return None
    return ExporterSettings(
        endpoint,
        {one.upper(): one for one in PROTOCOLS}.get(protocol.upper(), protocol) or "HTTP",
        _duration_ms(timeout) if timeout else DEFAULT_TIMEOUT_MS,
        name,
        version,
    )


def _duration_ms(text: str) -> int:
    """A duration; a number alone is milliseconds, as in Flink."""
    return parse_duration_ms(int(text) if text.isdecimal() else text)


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        message = f"{name} of a reporter must be at least 1; got {value}"
        raise ConfigurationError(message)
