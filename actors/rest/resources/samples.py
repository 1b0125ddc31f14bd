"""Samples of the records of an exchange, where the cluster allows them.

Records may be private, so nobody sees any unless ``rest.record-samples.enabled`` says so, and then only with the token
that allows everything; fields of ``rest.record-samples.masked-fields`` are hidden from these, too.

Not of Flink.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.observation_messages import OBSERVER_ACTOR, RecordSample, SampleRecords
from headrace.engine.protocol.states import TaskState

from .questions import AsksCluster
from .routes import RestError, RestRequest
from .vertices import find_vertex

__all__ = ["RecordSamples"]

DEFAULT_RECORDS = 10
MOST_RECORDS = 50
"""Of each subtask."""

LOOK_MS = 2_000
"""So long records are waited for."""

MOST_LOOKS = 2
"""At the same time."""

MOST_HOSTS = 16
"""Slots that are looked at; other subtasks are left out."""

ALL = "*"


class RecordSamples:
    """Answers with the newest records of an exchange.

    Args:
        settings: The server's.
    """

    def __init__(self, settings: RestSettings) -> None:
        self._is_enabled = settings.allows_record_samples
        self._masked = frozenset(name.lower() for name in settings.masked_fields)
        self._room = threading.BoundedSemaphore(MOST_LOOKS)
        self._threads = ThreadPoolExecutor(MOST_LOOKS * MOST_HOSTS, thread_name_prefix="headrace-records")

    def close(self) -> None:
        """Look no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __call__(self, request: RestRequest) -> Any:
        """The newest records that the subtasks of a vertex are sent on one of its inputs; looks for two seconds."""
        if not self._is_enabled:
            raise RestError(403, "records are not shown by this cluster: rest.record-samples.enabled is false")
        details = request.cluster.details(request.path["jobid"])
        view, more = find_vertex(details, request.path["vertexid"])
        edge_id = request.query["edge"]
        if not any(edge.edge_id == edge_id and edge.target == view.vertex_id for edge in details.edges):
            known = sorted(edge.edge_id for edge in details.edges if edge.target == view.vertex_id)
            raise RestError(404, f"vertex {view.vertex_id!r} has no input by the number {edge_id}; it has {known}")
        number = request.query.get("num", DEFAULT_RECORDS)
        if not 1 <= number <= MOST_RECORDS:
            raise RestError(400, f"num must be from 1 to {MOST_RECORDS}")
        wanted = request.query.get("mask") or []
        masked = self._masked | {name.lower() for name in wanted if name != ALL}
        question = SampleRecords(view.vertex_id, edge_id, number, LOOK_MS, masked, ALL in wanted)
        hosts = sorted({one.host for one in more.subtasks if one.state == TaskState.RUNNING.value})
        if not self._room.acquire(blocking=False):
            raise RestError(503, f"records are looked at by {MOST_LOOKS} others; ask again later")
        try:
            found = self._ask(request, hosts[:MOST_HOSTS], question)
        finally:
            self._room.release()
        return {
            "id": view.vertex_id,
            "edge": edge_id,
            "masked-fields": sorted(masked),
            "left-out-hosts": max(len(hosts) - MOST_HOSTS, 0),
            "subtasks": [_as_json(one) for one in sorted(found, key=lambda one: one.attempt.subtask)],
        }

    def _ask(self, request: RestRequest, hosts: list[str], question: SampleRecords) -> list[RecordSample]:
        cluster, timeout_ms = request.cluster.cluster, question.duration_ms + request.cluster.timeout_ms
        asked = [self._threads.submit(_sample, cluster, host, question, timeout_ms) for host in hosts]
        return [sample for one in asked for sample in one.result()]


def _sample(cluster: AsksCluster, host: str, question: SampleRecords, timeout_ms: int) -> list[RecordSample]:
    try:
        found: list[RecordSample] = cluster.ask_machine(Address(host, OBSERVER_ACTOR), question, timeout_ms)
    except ClusterUnavailableError:
        return []  # it has just ended
    return found


def _as_json(one: RecordSample) -> dict[str, Any]:
    return {
        "subtask": one.attempt.subtask,
        "attempt-number": one.attempt.attempt,
        "schema": one.schema,
        "records": [
            {
                "text": record.text,
                **({} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}),
                **({} if record.kind is None else {"kind": record.kind}),
            }
            for record in one.records
        ],
    }
