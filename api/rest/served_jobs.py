"""Jobs that commands reach by REST: those of programs whose Ray is their own, which nobody else has the token of.

Where such a program serves REST, as under ``headrace run``, address and token are in a file that its user may read.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.engine.errors import ClusterUnavailableError, HeadraceError
from headrace.engine.protocol.details import CheckpointProgress
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView, RescaleView, VertexView
from headrace.state.files.rest_addresses import read_addresses

from ..arguments.places import lasting_place

if TYPE_CHECKING:
    from .client import RestClient

__all__ = ["RestJobClient", "served_jobs"]


def served_jobs() -> Iterator[tuple[str, JobView, RestClient]]:
    """Yield the jobs of all clusters of this user that serve REST on this machine, with the name of their cluster."""
    from .client import RestClient

    for address in read_addresses():
        client = RestClient.at(address)
        try:
            jobs = [client.job(job["jid"]) for job in client.jobs()]
        except HeadraceError:
            continue  # it ends just now, or does not answer
        yield from ((address.cluster, _view_of(job), client) for job in jobs)


def _view_of(job: Mapping[str, Any]) -> JobView:
    return JobView(
        job_id=job["jid"],
        name=job["name"],
        state=JobStatus(job["state"]),
        version=0,
        started_ms=job["start-time"],
        ended_ms=None if job["end-time"] < 0 else job["end-time"],
        waiting=job.get("waiting"),
        num_restarts=job["num-restarts"],
        stages=() if job.get("job-type") == "DATASET" else None,
        vertices=tuple(_vertex_of(vertex) for vertex in job["vertices"]),
    )


def _vertex_of(vertex: Mapping[str, Any]) -> VertexView:
    """An operator chain with what commands tell of it."""
    return VertexView(vertex["id"], vertex["name"], vertex["parallelism"], {}, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, None)


def _progress_of(checkpoint: Mapping[str, Any]) -> CheckpointProgress:
    return CheckpointProgress(
        checkpoint["id"],
        checkpoint["is_savepoint"],
        checkpoint["is_last"],
        checkpoint["num_subtasks"],
        checkpoint["num_acknowledged_subtasks"],
        checkpoint["state_size"],
        checkpoint["checkpointed_size"],
    )


class RestJobClient:
    """What commands ask of one job, as they ask a `JobClient`.

    Args:
        client: Of its cluster.
        job_id: The job.
    """

    def __init__(self, client: RestClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id

    def view(self) -> JobView:
        """See `JobClient.view`; of operator chains names and parallelism alone, and how it was rescaled."""
        said = self._client.rescales(self._job_id)
        status = said["autoscaler"]
        return dataclasses.replace(
            _view_of(self._client.job(self._job_id)),
            autoscaler=status["status"] if status["enabled"] else None,
            rescales=tuple(RescaleView.from_json(one) for one in reversed(said["rescales"])),
        )

    def look(self) -> tuple[Sequence[CheckpointProgress], JobView]:
        """Checkpoints under way, newest first, and the job: see `headrace.jobs.operation_progress.Look`."""
        history = self._client.checkpoints(self._job_id)["history"]
        pending = [_progress_of(one) for one in history if one["status"] == "IN_PROGRESS"]
        return pending, _view_of(self._client.job(self._job_id))

    def stop(self, *, drain: bool) -> str | None:
        """See `JobClient.stop`.

        Raises:
            ClusterUnavailableError: If the program has ended with its job before it was heard where the checkpoint is.
        """
        with _ending(self._job_id):
            self._client.stop(self._job_id, drain=drain)
            latest = self._client.checkpoints(self._job_id)["latest"]["completed"]
        return None if latest is None else latest.get("external_path")

    def stop_with_savepoint(self, directory: str, *, drain: bool) -> str:
        """See `JobClient.stop_with_savepoint`.

        Raises:
            ClusterUnavailableError: If the program has ended with its job before it was heard where the savepoint is.
        """
        with _ending(self._job_id):
            place: str = self._client.stop_with_savepoint(self._job_id, _lasting(directory), drain=drain)
        return place

    def trigger_savepoint(self, directory: str | None) -> str:
        """See `JobClient.trigger_savepoint`."""
        place: str = self._client.savepoint(self._job_id, None if directory is None else _lasting(directory))
        return place

    def trigger_checkpoint(self, *, full: bool) -> str:
        """See `JobClient.trigger_checkpoint`."""
        place: str = self._client.trigger_checkpoint(self._job_id, full=full)["location"]
        return place

    def rescale(self, parallelism: int | None, operators: Mapping[str, int]) -> None:
        """See `JobClient.rescale`."""
        self._client.rescale(self._job_id, parallelism, operators)


@contextlib.contextmanager
def _ending(job_id: str) -> Iterator[None]:
    """Say of a server that goes while a job is ended that its program has ended, as it does with its last job."""
    try:
        yield
    except ClusterUnavailableError as error:
        message = f"the program of job {job_id} ends with it, and did so before it answered"
        raise ClusterUnavailableError(
            message, hint="it has said itself how the job ended, and where from it goes on"
        ) from error


def _lasting(directory: str) -> str:
    return lasting_place(directory, "the directory of a savepoint")
