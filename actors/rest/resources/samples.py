"""Samples of the records of an exchange, where the cluster allows them.

Records may be private, so nobody sees any unless ``rest.record-samples.enabled`` says so, and then only with the token
that allows everything; fields of ``rest.record-samples.masked-fields`` are hidden from these, too.

Not of Flink.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from headrace.engine.errors import ClusterUnavailableError
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.details import JobDetails, SubtaskView, VertexDetails
from headrace.engine.protocol.observation_messages import (
    OBSERVER_ACTOR,
    FindHotKeys,
    RecordSample,
    RejectedSample,
    SampleRecords,
    ShowRejectedRecords,
)
from headrace.engine.protocol.states import TaskState
from headrace.engine.protocol.views import VertexView

from .questions import AsksCluster
from .routes import RestError, RestRequest
from .vertices import find_vertex, vertex_of

__all__ = ["LooksAtRecords", "RecordSamples", "RejectedRecordsOfVertices", "running_hosts"]

Question: TypeAlias = SampleRecords | ShowRejectedRecords | FindHotKeys

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


class LooksAtRecords:
    """What looking at the records of an exchange takes: who may, at which slots, and what is hidden.

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

    def require_enabled(self, what: str) -> None:
        """Refuse where the cluster shows no records.

        Raises:
            RestError: 403.
        """
        if not self._is_enabled:
            raise RestError(403, f"{what} are not shown by this cluster: rest.record-samples.enabled is false")

    def input_of(self, request: RestRequest, what: str) -> tuple[VertexView, VertexDetails, int]:
        """Return the vertex that is asked about, and the number of the input.

        Raises:
            RestError: 403 if the cluster shows no records, 404 if there is no such vertex or input.
        """
        self.require_enabled(what)
        vertex_id = request.path["vertexid"]
        details: JobDetails = request.cluster.details(request.path["jobid"], vertex_id)
        view, more = find_vertex(details, vertex_id)
        edge_id: int = request.query["edge"]
        if not any(edge.edge_id == edge_id and edge.target == view.vertex_id for edge in details.edges):
            known = sorted(edge.edge_id for edge in details.edges if edge.target == view.vertex_id)
            raise RestError(404, f"vertex {view.vertex_id!r} has no input by the number {edge_id}; it has {known}")
        return view, more, edge_id

    def masked(self, request: RestRequest) -> tuple[frozenset[str], bool]:
        """Return the names of fields that are hidden from who asks, and whether all values are."""
        wanted = request.query.get("mask") or []
        return self._masked | {name.lower() for name in wanted if name != ALL}, ALL in wanted

    def ask(self, request: RestRequest, hosts: list[str], question: Question) -> list[Any]:
        """Ask slots at the same time; gives all that they answer, of those that are there.

        Raises:
            RestError: 503 if others look.
        """
        look_ms = 0 if isinstance(question, ShowRejectedRecords) else question.duration_ms
        cluster, timeout_ms = request.cluster.cluster, look_ms + request.cluster.timeout_ms
        if not self._room.acquire(blocking=False):
            raise RestError(503, f"records are looked at by {MOST_LOOKS} others; ask again later")
        try:
            asked = [self._threads.submit(_ask, cluster, host, question, timeout_ms) for host in hosts[:MOST_HOSTS]]
            return [found for one in asked for found in one.result()]
        finally:
            self._room.release()


def running_hosts(subtasks: Iterable[SubtaskView]) -> list[str]:
    """Return the slots that run some subtasks."""
    return sorted({one.host for one in subtasks if one.state is TaskState.RUNNING})


def _ask(cluster: AsksCluster, host: str, question: Any, timeout_ms: int) -> list[Any]:
    try:
        found: list[Any] = cluster.ask_machine(Address(host, OBSERVER_ACTOR), question, timeout_ms)
    except ClusterUnavailableError:
        return []  # it has just ended
    return found


class RecordSamples(LooksAtRecords):
    """Answers with the newest records of an exchange."""

    def __call__(self, request: RestRequest) -> Any:
        """The newest records that the subtasks of a vertex are sent on one of its inputs; looks for two seconds."""
        view, more, edge_id = self.input_of(request, "records")
        number = _number(request)
        masked, hides_values = self.masked(request)
        hosts = running_hosts(more.subtasks)
        question = SampleRecords(view.vertex_id, edge_id, number, LOOK_MS, masked, hides_values)
        found: list[RecordSample] = self.ask(request, hosts, question)
        return {
            "id": view.vertex_id,
            "edge": edge_id,
            "masked-fields": sorted(masked),
            "left-out-hosts": max(len(hosts) - MOST_HOSTS, 0),
            "subtasks": [_as_json(one) for one in sorted(found, key=lambda one: one.attempt.subtask)],
        }


class RejectedRecordsOfVertices(LooksAtRecords):
    """Answers with the last records that the operators of a vertex have rejected."""

    def __call__(self, request: RestRequest) -> Any:
        """The last late records of a vertex's operators, and what they could not decode; also if nobody reads them."""
        self.require_enabled("rejected records")
        view, more = vertex_of(request)
        number = _number(request)
        masked, hides_values = self.masked(request)
        hosts = running_hosts(more.subtasks)
        question = ShowRejectedRecords(view.vertex_id, number, masked, hides_values)
        found: list[RejectedSample] = self.ask(request, hosts, question)
        return {
            "id": view.vertex_id,
            "masked-fields": sorted(masked),
            "left-out-hosts": max(len(hosts) - MOST_HOSTS, 0),
            "rejected": [
                {"uid": one.operator, "name": one.name, "kind": one.kind, **_as_json(one.sample)}
                for one in sorted(found, key=lambda one: (one.operator, one.kind, one.sample.attempt.subtask))
            ],
        }


def _number(request: RestRequest) -> int:
    number: int = request.query.get("num", DEFAULT_RECORDS)
    if not 1 <= number <= MOST_RECORDS:
        raise RestError(400, f"num must be from 1 to {MOST_RECORDS}")
    return number


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
