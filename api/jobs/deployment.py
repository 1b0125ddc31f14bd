"""Where the jobs of a program run, and what their cluster is like, as the command line says in variables.

*Session*: a cluster is there already, takes the jobs of many programs, and outlives them. *Per job*: a cluster is
started for the job and ends with it. *Application*: the whole program runs in the cluster, which ends with it
(`headrace.cli.applications`); what that means for a program that is run again says `ApplicationRun`.

A detached program submits its jobs and goes: nothing waits for them, and nobody's end is theirs.

The deployment modes are those of Flink.

Source: Flink's ``execution.target`` and ``execution.attached``; ``DetachedJobExecutionResult``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from headrace.engine.errors import ConfigurationError, HeadraceError, ProgramError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.state.identifiers import JobId
from headrace.state.reading.signing import KEY_FILE_VARIABLE

from ..arguments.checks import duration_ms
from ..arguments.places import lasting_place
from .application_run import APPLICATION_VARIABLE
from .execution_result import JobExecutionResult

if TYPE_CHECKING:
    from ..rest.client import RestClient

__all__ = [
    "CLUSTER_VARIABLE",
    "DETACHED_VARIABLE",
    "REST_PORT_VARIABLE",
    "REST_VARIABLE",
    "TARGET_VARIABLE",
    "Deployment",
    "DeploymentTarget",
    "DetachedJobExecutionResult",
    "high_availability_from_environment",
    "is_link_wanted",
    "rest_client_of",
    "rest_from_environment",
    "rest_lines",
    "waiting_times_from_environment",
]

TARGET_VARIABLE = "HEADRACE_TARGET"
CLUSTER_VARIABLE = "HEADRACE_CLUSTER_ID"
DETACHED_VARIABLE = "HEADRACE_DETACHED"
REST_PORT_VARIABLE = "HEADRACE_REST_PORT"
"""The port of REST, or a range of ports, for clusters that programs start."""
REST_VARIABLE = "HEADRACE_REST"
"""``1``: clusters that programs start on Ray serve REST, also where no port was named; the links of jobs are shown."""

REST_START_DELAY_MS = 10_000
"""Nobody has asked for so long, as a link is not wanted, or a job does not run yet."""


class DeploymentTarget(Enum):
    """Flink's ``execution.target``."""

    SESSION = "session"
    """A cluster that runs already."""
    PER_JOB = "per-job"
    """A cluster of its own, which ends with its jobs."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was said from outside about a program.

    Attributes:
        target: Where its jobs run; None: on the cluster of that name if it runs, else on one that is started for them.
        cluster_name: Of the cluster; None for the only one there is, or a fresh one.
        is_detached: Whether the program submits its jobs and does not wait for them.
        is_application: Whether the program runs in the cluster as a whole, and with the cluster again.
    """

    target: DeploymentTarget | None = None
    cluster_name: str | None = None
    is_detached: bool = False
    is_application: bool = False

    @classmethod
    def from_environment(cls, actor_system: str) -> Deployment:
        """Read the variables that ``headrace run`` sets; they mean something on Ray only.

        Raises:
            ConfigurationError: If there is no such target.
        """
        if actor_system != "ray":
            return cls()
        text = os.environ.get(TARGET_VARIABLE) or None
        known = [target.value for target in DeploymentTarget]
        if text is not None and text not in known:
            message = f"{TARGET_VARIABLE} must be one of {', '.join(known)}; got {text!r}"
            raise ConfigurationError(message)
        target = None if text is None else DeploymentTarget(text)
        name = os.environ.get(CLUSTER_VARIABLE) or None
        return cls(target, name, os.environ.get(DETACHED_VARIABLE) == "1", os.environ.get(APPLICATION_VARIABLE) == "1")

    @property
    def joins_only(self) -> bool:
        """Whether no cluster is started."""
        return self.target is DeploymentTarget.SESSION

    @property
    def starts_only(self) -> bool:
        """Whether no cluster is joined."""
        return self.target is DeploymentTarget.PER_JOB


class DetachedJobExecutionResult(JobExecutionResult):
    """The result of ``execute`` in a detached program: the job's id and name. All else is not known, and raises."""

    def __init__(self, job_id: JobId, job_name: str) -> None:
        object.__setattr__(self, "job_id", job_id)
        object.__setattr__(self, "job_name", job_name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        message = f"job {self.job_name!r} was submitted detached: its {name} is not known here"
        raise ProgramError(message, hint=f"'headrace list' shows it, as {self.job_id}")


def high_availability_from_environment() -> dict[str, str]:
    """Return the settings of the command line, which passes them on in variables of the environment."""
    variables = {
        "HEADRACE_HA_DIR": "storageDir",
        "HEADRACE_CLUSTER_ID": "cluster-id",
        "HEADRACE_HA_ZOOKEEPER": "quorum",
        KEY_FILE_VARIABLE: "key-file",
    }
    given = {key: os.environ[name] for name, key in variables.items() if os.environ.get(name)}
    if "storageDir" not in given:
        return {}
    given["storageDir"] = lasting_place(given["storageDir"], "HEADRACE_HA_DIR")
    if "quorum" in given:
        quorum, _, root = given.pop("quorum").partition("/")
        given.update({"zookeeper.quorum": quorum, "zookeeper.path.root": f"/{root or 'headrace'}"})
    return {f"high-availability.{key}": value for key, value in given.items()}


def rest_from_environment(actor_system: str) -> RestSettings | None:
    """Return how a cluster serves REST that is started here, as the command line says; None: not at all.

    A cluster in this process does so only on a named port: it would need a thread of its own, and a breakpoint in a
    function is to stop in the thread that has called ``execute``.
    """
    ports = os.environ.get(REST_PORT_VARIABLE)
    if ports and actor_system != "sim":
        return RestSettings(bind_port=ports, start_delay_ms=REST_START_DELAY_MS)
    if os.environ.get(REST_VARIABLE) == "1" and actor_system == "ray":
        return RestSettings(start_delay_ms=REST_START_DELAY_MS)
    return None


def is_link_wanted() -> bool:
    """Return whether it is said where the dashboard shows a job, as the command line says."""
    return bool(os.environ.get(REST_PORT_VARIABLE)) or os.environ.get(REST_VARIABLE) == "1"


def waiting_times_from_environment() -> dict[str, int]:
    """Return how long jobs wait for slots, as variables of the environment say: milliseconds, or a text such as "10
    min".
    """
    variables = {
        "HEADRACE_SLOT_REQUEST_TIMEOUT": "slot_request_timeout_ms",
        "HEADRACE_NODE_LAUNCH_TIMEOUT": "node_launch_timeout_ms",
    }
    given = {name: os.environ[name] for name in variables if os.environ.get(name)}
    return {
        variables[name]: duration_ms(name, int(text) if text.isdecimal() else text, 0) for name, text in given.items()
    }


class ServesRest(Protocol):
    """The part of a cluster that is needed to find its REST."""

    def rest_addresses(self) -> list[Any]:
        """Return where it is served, head by head, with tokens."""
        ...


def rest_client_of(cluster: ServesRest, settings: RestSettings, *, read_only: bool) -> RestClient:
    """Return a client of the REST server of a cluster that this program has started.

    Args:
        cluster: The cluster.
        settings: How it serves REST.
        read_only: Whether the client may look only.
    """
    from ..rest.client import RestClient

    address = cluster.rest_addresses()[0]
    token = address.tokens.read if read_only else address.tokens.write
    return RestClient(address.url, token, certificate_file=settings.certificate_file)


def rest_lines(cluster: ServesRest) -> list[str]:
    """Say where REST is served; tokens are in a file, for this may be a log."""
    try:
        return [f"dashboard and REST: {one.url} (token: {one.file})" for one in cluster.rest_addresses()]
    except HeadraceError as error:
        return [f"REST is not served: {error}"]
