"""A collector that speaks OTLP over HTTP and keeps what it is sent, as OpenTelemetry's protobuf messages say it."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


class Collector:
    """Listens on a free port of the loopback until it is closed.

    Attributes:
        url: Where.
        spans: All spans so far: (resource, scope, span, attributes).
        points: All points of metrics so far: (resource, metric, point, attributes).
        refuses: Answer 503 from now on.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], str, Any, dict[str, Any]]] = []
        self.points: list[tuple[dict[str, Any], Any, Any, dict[str, Any]]] = []
        self.refuses = False
        self.num_refused = 0
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    content = gzip.decompress(content)
                if collector.refuses:
                    collector.num_refused += 1
                    self.send_response(400)
                else:
                    collector._take(self.path, content)
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, path: str, content: bytes) -> None:
        with self._lock:
            if path == "/v1/traces":
                for found in ExportTraceServiceRequest.FromString(content).resource_spans:
                    resource = _plain(found.resource.attributes)
                    for scoped in found.scope_spans:
                        for span in scoped.spans:
                            self.spans.append((resource, scoped.scope.name, span, _plain(span.attributes)))
            elif path == "/v1/metrics":
                for of_resource in ExportMetricsServiceRequest.FromString(content).resource_metrics:
                    resource = _plain(of_resource.resource.attributes)
                    for in_scope in of_resource.scope_metrics:
                        for metric in in_scope.metrics:
                            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                                self.points.append((resource, metric, point, _plain(point.attributes)))

    def traces(self, name: str) -> dict[bytes, list[tuple[Any, dict[str, Any]]]]:
        """The traces whose root has a name: spans with their attributes by id, the root first."""
        with self._lock:
            by_id: dict[bytes, list[tuple[Any, dict[str, Any]]]] = {}
            for _resource, _scope, span, attributes in self.spans:
                by_id.setdefault(span.trace_id, []).append((span, attributes))
        return {trace: spans for trace, spans in by_id.items() if spans[0][0].name == name}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
