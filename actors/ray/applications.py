"""Programs that run in the cluster: submitted to Ray's job server, which runs them on its head node.

Source: Ray's ``JobSubmissionClient``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace.engine.errors import ClusterUnavailableError, ConfigurationError, JobError
from headrace.state.extras import needs

__all__ = ["ApplicationClient"]

AGENT_PATIENCE_S = 60.0
"""The job server answers before the agent is there that starts programs."""

RETRY_S = 1.0


class ApplicationClient:
    """A connection to a job server.

    Args:
        address: Its URL.

    Raises:
        ConfigurationError: If the address is no URL, or what asks it is not installed.
        ClusterUnavailableError: If nothing answers there, or a Ray that is too old for this one.
    """

    def __init__(self, address: str) -> None:
        if not address.startswith(("http://", "https://")):  # Ray would take it for a cluster's, and try for a minute
            message = f"a job server of Ray is named by its URL; got {address!r}"
            raise ConfigurationError(message, hint="as http://HEAD:8265")
        with needs("Ray's job server is asked by parts of Ray that are not installed", "cluster"):
            from ray.job_submission import JobSubmissionClient
        try:
            self._client = JobSubmissionClient(address)
        except (OSError, RuntimeError) as error:
            message = f"no job server of Ray answers at {address!r}: {_first_line(error)}"
            raise ClusterUnavailableError(message, hint="'ray start --head' starts one; --address names it") from error

    def submit(self, submission: str, command: str, environment: dict[str, Any]) -> None:
        """Submit a program once: where an answer was lost, it is looked for before anything is repeated.

        Args:
            submission: Its id; must be fresh.
            command: What the cluster runs, in a copy of the working directory.
            environment: Ray's runtime environment of it.

        Raises:
            ClusterUnavailableError: If it was not taken.
        """
        deadline, is_repeated = time.monotonic() + AGENT_PATIENCE_S, False
        while not (is_repeated and self._is_there(submission)):
            try:
                self._client.submit_job(entrypoint=command, runtime_env=environment, submission_id=submission)
            except (RuntimeError, OSError) as error:
                is_transient = isinstance(error, OSError) or "No available agent" in str(error)
                if not is_transient or time.monotonic() > deadline:
                    message = f"the application was not taken: {_last_line(error)}"
                    raise ClusterUnavailableError(message) from error
                is_repeated = True
                time.sleep(RETRY_S)
            else:
                return

    def _is_there(self, submission: str) -> bool:
        try:
            self._client.get_job_info(submission)
        except (RuntimeError, OSError):  # the job server knows none of the id, or does not answer yet
            return False
        return True

    def follow(self, submission: str, show: Callable[[str], None]) -> None:
        """Hand on a program's log until it ends.

        Raises:
            JobError: If it did not succeed.
        """
        asyncio.run(self._follow(submission, show))
        status = self._client.get_job_status(submission)
        while not status.is_terminal():
            time.sleep(RETRY_S)
            status = self._client.get_job_status(submission)
        if status.value != "SUCCEEDED":
            message = f"application {submission} ended {status.value}"
            raise JobError(message, hint=self._client.get_job_info(submission).message)

    async def _follow(self, submission: str, show: Callable[[str], None]) -> None:
        async for lines in self._client.tail_job_logs(submission):
            show(lines)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[-1]
