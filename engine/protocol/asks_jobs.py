"""What a client needs of a cluster, whatever the cluster is made of."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.state.identifiers import JobId

__all__ = ["AsksJobs"]


class AsksJobs(Protocol):
    """The part of a cluster that a client needs."""

    def ask_job(self, job_id: JobId, request: Any, timeout_ms: int) -> Any:
        """Ask a job's JobManager, or the archive once it is gone."""
        ...

    def ask_machine(self, address: Any, request: Any, timeout_ms: int) -> Any:
        """Ask one machine, wherever it is now."""
        ...

    def wait(self, duration_ms: int) -> None:
        """Let time pass."""
        ...
