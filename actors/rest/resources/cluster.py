"""The cluster as such: its overview, its configuration, its TaskManagers.

Source: Flink's ``ClusterOverviewHandler``, ``DashboardConfigHandler``, ``TaskManagersHandler``,
``TaskManagerDetailsHandler``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.protocol.details import JobSummary
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import TaskManagerView

from .routes import RestError, RestRequest, Right

__all__ = ["Configuration", "overview", "slots_of", "task_manager", "task_managers"]


class Configuration:
    """Answers what pages need to know of the server.

    Args:
        version: Of Headrace.
        settings: The server's.
        takes_programs: Whether programs can be submitted to it.
    """

    def __init__(self, version: str, settings: RestSettings, *, takes_programs: bool) -> None:
        self._version = version
        self._refresh_interval_ms = settings.refresh_interval_ms
        self._takes_programs = takes_programs
        self._shows_records = settings.allows_record_samples

    def __call__(self, request: RestRequest) -> Any:
        """What pages need to know of the server."""
        here = time.localtime()
        may_write = request.right is Right.WRITE
        return {
            "refresh-interval": self._refresh_interval_ms,
            "timezone-name": here.tm_zone,
            "timezone-offset": here.tm_gmtoff * 1_000,
            "headrace-version": self._version,
            "cluster": request.cluster.cluster.name,
            # What the token of who asks allows.
            "features": {
                "web-submit": may_write and self._takes_programs,
                "web-cancel": may_write,
                "web-rescale": may_write,
                "web-history": False,
                "record-samples": may_write and self._shows_records,
            },
        }


def overview(request: RestRequest) -> Any:
    """Return slots and jobs of the cluster, counted."""
    jobs = request.cluster.summaries()
    views = request.cluster.task_managers()
    total, available = slots_of(views, jobs)
    states = Counter(one.state for one in jobs)
    ended = {
        "jobs-finished": JobStatus.FINISHED,
        "jobs-cancelled": JobStatus.CANCELED,
        "jobs-failed": JobStatus.FAILED,
    }
    return {
        "taskmanagers": len(views),
        "slots-total": total,
        "slots-available": available,
        "jobs-running": sum(number for state, number in states.items() if not state.is_terminal),
        **{key: states[state] for key, state in ended.items()},
    }


def slots_of(views: Sequence[TaskManagerView], jobs: Sequence[JobSummary]) -> tuple[int, int]:
    """Return how many slots there are, and how many of them have no task."""
    names = {view.name for view in views}
    total = sum(view.num_slots for view in views)
    used = {host for job in jobs for host, (task_manager, _) in job.slots.items() if task_manager in names}
    return total, max(total - len(used), 0)


def task_managers(request: RestRequest) -> Any:
    """Return all TaskManagers."""
    jobs = request.cluster.summaries()
    return {"taskmanagers": [_task_manager(view, jobs) for view in request.cluster.task_managers()]}


def task_manager(request: RestRequest) -> Any:
    """Return one TaskManager, with what its slots are used for."""
    wanted = request.path["taskmanagerid"]
    view = next((view for view in request.cluster.task_managers() if view.name == wanted), None)
    if view is None:
        raise RestError(404, f"there is no TaskManager {wanted[:200]!r}")
    jobs = request.cluster.summaries()
    found = [(host, number) for job in jobs for host, (name, number) in job.slots.items() if name == wanted]
    share = {"managedMemory": view.slot_memory_bytes}
    allocated = [
        {"jobId": view.job_id, "host": host, "resource": share, "assignedTasks": number, **_page_of(request, host)}
        for host, number in sorted(found)
    ]
    return {**_task_manager(view, jobs), **_page_of(request, wanted), "allocatedSlots": allocated}


def _page_of(request: RestRequest, host: str) -> dict[str, str]:
    """Ray's own page of a process, where there is one."""
    page = request.cluster.cluster.page_of(host)
    return {} if page is None else {"ray-page": page}


def _task_manager(view: TaskManagerView, jobs: Sequence[JobSummary]) -> dict[str, Any]:
    total, available = slots_of([view], jobs)
    machine = view.machine
    described: dict[str, Any] = {
        "id": view.name,
        "path": view.name,
        "job": view.job_id,
        "node": view.node,
        "slotsNumber": total,
        "freeSlots": available,
        "totalResource": {"managedMemory": view.managed_memory_bytes},
        "freeResource": {"managedMemory": available * view.slot_memory_bytes},
    }
    if machine is None:
        return {**described, "hardware": {"managedMemory": view.managed_memory_bytes}}
    return {
        **described,
        "host": machine.host_name,
        # As it found them at its start.
        "hardware": {
            "cpuCores": machine.cores,
            "physicalMemory": machine.memory_bytes,
            "freeMemory": machine.available_memory_bytes,
            "managedMemory": view.managed_memory_bytes,
        },
        "disk": {"path": machine.disk, "size": machine.disk_bytes, "free": machine.free_disk_bytes},
        "network": [{"name": one.name, "addresses": list(one.addresses)} for one in machine.interfaces],
    }
