"""Where metrics and traces go, by Flink's keys."""

import pytest

from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.reporter_settings import ExporterSettings, ReporterSettings, SpanDetail


def test_flinks_keys_are_read_and_those_of_others_left_alone():
    assert ReporterSettings.from_configuration({"rest.port": "8081"}) is None
    settings = ReporterSettings.from_configuration(
        {
            "metrics.reporter.otel.factory.class": "org.apache.flink.metrics.otel.OpenTelemetryMetricReporterFactory",
            "metrics.reporter.otel.exporter.endpoint": "http://collector:4318",
            "metrics.reporter.otel.exporter.protocol": "grpc",
            "metrics.reporter.otel.exporter.timeout": "3 s",
            "metrics.reporter.otel.interval": "1 min",
            "metrics.reporter.otel.service.name": "shop",
            "traces.reporter.otel.exporter.endpoint": "https://collector/v1/traces",
            "traces.checkpoint.span-detail-level": "CHILDREN_SPANS_PER_TASK",
            "metrics.reporter.ray.interval": "5 s",
        }
    )
    assert settings == ReporterSettings(
        ExporterSettings("http://collector:4318", "gRPC", 3_000, "shop"),
        ExporterSettings("https://collector/v1/traces"),
        60_000,
        5_000,
        SpanDetail.TASKS,
    )


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"metrics.reporter.otel.exporter.endpiont": "http://x"}, "no option is called"),
        ({"metrics.reporter.otel.service.name": "shop"}, "exporter.endpoint is not"),
        ({"traces.reporter.otel.exporter.endpoint": "collector:4318"}, "must be a URL"),
        (
            {
                "traces.reporter.otel.exporter.endpoint": "http://x",
                "traces.reporter.otel.exporter.protocol": "carrier pigeon",
            },
            "HTTP or gRPC",
        ),
        (
            {"traces.reporter.otel.exporter.endpoint": "http://x", "traces.checkpoint.span-detail-level": "ALL"},
            "CHILDREN_SPANS_PER_SUBTASK",
        ),
        (
            {"metrics.reporter.otel.exporter.endpoint": "http://x", "metrics.reporter.otel.interval": "0"},
            "at least 1",
        ),
        ({"metrics.reporter.ray.interval": "-5 s"}, "must not be negative; got -5000 ms"),
    ],
)
def test_what_is_wrong_is_said(configuration, said):
    with pytest.raises(ConfigurationError, match=said):
        ReporterSettings.from_configuration(configuration)
