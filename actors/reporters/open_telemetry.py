"""Metrics and traces for a collector, over OTLP, by OpenTelemetry's own library.

Numbers are handed over as they are, with the time since which they count; nothing is counted a second time here, so
the library's instruments and its threads are not used, only its exporters.

Source: OpenTelemetry's OTLP 1.x; Flink's ``OpenTelemetryMetricReporter`` and ``OpenTelemetryTraceReporter``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError
from headrace.engine.kernel.reporter_settings import ExporterSettings

from ..rest.resources.metrics import Sample
from .spans import Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = ["MetricExporter", "TraceExporter"]

PREFIX = "headrace"

_COUNTERS = frozenset(
    {
        "numRecordsIn",
        "numRecordsOut",
        "numLateRecordsDropped",
        "accumulateBusyTimeMs",
        "accumulateBackPressuredTimeMs",
        "accumulateIdleTimeMs",
    }
)
"""What only grows as long as a task lives; all else is what it is now. Users' counters may go down."""

_MODULES = {
    "HTTP": "opentelemetry.exporter.otlp.proto.http",
    "gRPC": "opentelemetry.exporter.otlp.proto.grpc",
}


def _exporter(settings: ExporterSettings, module: str, kind: str, path: str) -> Any:
    """Make one of the library's exporters.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        found = getattr(importlib.import_module(f"{_MODULES[settings.protocol]}.{module}"), kind)
    except ImportError as error:
        package = f"opentelemetry-exporter-otlp-proto-{settings.protocol.lower()}"
        message = f"a reporter for OpenTelemetry needs {package}, which is not installed"
        hint = "pip install 'headrace[opentelemetry]'" if settings.protocol == "HTTP" else f"pip install {package}"
        raise ConfigurationError(message, hint=hint) from error
    endpoint = settings.endpoint
    if settings.protocol == "HTTP" and not urlsplit(endpoint).path.strip("/"):
        endpoint = endpoint.rstrip("/") + path
    return found(endpoint=endpoint, timeout=settings.timeout_ms / 1_000)


def _resource(settings: ExporterSettings, cluster: str, version: str) -> Resource:
    from opentelemetry.sdk.resources import Resource

    name = settings.service_name or cluster
    return Resource.create({"service.name": name, "service.version": settings.service_version or version})


class MetricExporter:
    """Sends metrics to a collector.

    Args:
        settings: Whom to, and how.
        cluster: The cluster's name.
        version: Of Headrace.

    Raises:
        ConfigurationError: If the library is not installed.
    """

    def __init__(self, settings: ExporterSettings, cluster: str, version: str) -> None:
        self._exporter = _exporter(settings, "metric_exporter", "OTLPMetricExporter", "/v1/metrics")
        self._resource = _resource(settings, cluster, version)
        self._endpoint = settings.endpoint
        self._version = version

    def export(self, samples: Iterable[Sample], now_ms: int) -> None:
        """Send all of it; blocks.

        Raises:
            ClusterUnavailableError: If the collector does not take it.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = _metrics_of(samples, now_ms)
        scope = InstrumentationScope("headrace", self._version)
        data = MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")])
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            message = f"the collector at {self._endpoint} takes no metrics"
            raise ClusterUnavailableError(message)

    def close(self) -> None:
        """Send no more."""
        self._exporter.shutdown()


def _metrics_of(samples: Iterable[Sample], now_ms: int) -> list[Any]:
    """One metric for each name, with a point for each thing that has it."""
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    points: dict[tuple[str, bool], list[Any]] = {}
    for sample in samples:
        scope = sample.scope.replace("_", ".")
        for name, value in sample.metrics.items():
            is_counter = name in _COUNTERS and sample.since_ms > 0
            point = NumberDataPoint(
                sample.labels, sample.since_ms * 1_000_000 if is_counter else 0, now_ms * 1_000_000, value
            )
            points.setdefault((f"{PREFIX}.{scope}.{name}", is_counter), []).append(point)
    return [
        Metric(
            name, "", "", Sum(found, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(found)
        )
        for (name, counts), found in points.items()
    ]


class TraceExporter:
    """Sends traces to a collector.

    Args:
        settings: Whom to, and how.
        cluster: The cluster's name.
        version: Of Headrace.

    Raises:
        ConfigurationError: If the library is not installed.
    """

    def __init__(self, settings: ExporterSettings, cluster: str, version: str) -> None:
        self._exporter = _exporter(settings, "trace_exporter", "OTLPSpanExporter", "/v1/traces")
        self._resource = _resource(settings, cluster, version)
        self._endpoint = settings.endpoint

    def export(self, traces: Sequence[Trace]) -> None:
        """Send them; blocks.

        Raises:
            ClusterUnavailableError: If the collector does not take them.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = [span for trace in traces for span in self._spans_of(trace)]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            message = f"the collector at {self._endpoint} takes no traces"
            raise ClusterUnavailableError(message)

    def _spans_of(self, trace: Trace) -> list[Any]:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        scope = InstrumentationScope(trace.scope)

        def context(span_id: int) -> SpanContext:
            return SpanContext(trace.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return [
            ReadableSpan(
                span.name,
                context(span.span_id),
                None if span.parent_id is None else context(span.parent_id),
                self._resource,
                span.attributes,
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=span.began_ms * 1_000_000,
                end_time=span.ended_ms * 1_000_000,
                instrumentation_scope=scope,
            )
            for span in trace.spans
        ]

    def close(self) -> None:
        """Send no more."""
        self._exporter.shutdown()
