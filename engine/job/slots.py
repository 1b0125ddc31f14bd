"""What TaskManagers and the ResourceManager say of a job's slots, in whatever phase it is.

A slot process that is gone takes its tasks with it: they have failed. A TaskManager that does not answer is taken for
gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import NoResourceAvailableError, ProcessLostError
from ..kernel.machine import Command, StartTimer
from ..protocol.control_messages import JobNote
from ..protocol.messages import (
    Heartbeat,
    RegisterTaskManager,
    RequestHeartbeat,
    SlotLost,
    SlotRequestFailed,
    SlotsAwaited,
    StandInRequested,
    TaskManagerLost,
)
from . import rescale
from .context.job import Job
from .context.phase import HeartbeatDue, Phase
from .phases import slot_requests
from .phases.failures import fail_job, handle_failure

__all__ = ["SLOT_EVENTS"]


def on_registration(job: Job, message: RegisterTaskManager, now_ms: int) -> list[Command]:
    """Take a TaskManager's announcement."""
    if message.epoch != job.state.epoch:
        return []
    lost, commands = job.run.register(message)
    job.record.log.add(now_ms, message.task_manager, f"registered, revision {message.revision}")
    job.record.clients.changed()
    commands += _lose_hosts(job, lost, "it was replaced", now_ms)
    return commands + (job.advance(now_ms) if job.state.phase is Phase.WAITING_FOR_SLOTS else [])


def on_slot_lost(job: Job, message: SlotLost, now_ms: int) -> list[Command]:
    """Fail what ran in a slot whose process is gone."""
    host = message.slot.address.host
    if message.epoch != job.state.epoch or not job.run.registry.lose_slot(message.task_manager, host):
        return []
    return _lose_hosts(job, [host], f"{message.reason}{_at_node(message.slot.node)}", now_ms)


def on_task_manager_lost(job: Job, message: TaskManagerLost, now_ms: int) -> list[Command]:
    """Fail what ran on a TaskManager that is gone."""
    hosts = job.run.registry.bury_task_manager(message.task_manager)
    reason = f"TaskManager {message.task_manager} is gone: {message.reason}{_at_node(message.node)}"
    return _lose_hosts(job, hosts, reason, now_ms)


def _lose_hosts(job: Job, hosts: Iterable[str], reason: str, now_ms: int) -> list[Command]:
    """Fail what ran in slot processes that are gone."""
    job.record.clients.changed()
    dead = job.run.lose_hosts(hosts, now_ms)
    if not dead:
        return []
    message = f"slot {dead[0].place.host} was lost: {reason}"
    return handle_failure(job, ProcessLostError(message, task=str(dead[0].attempt)), now_ms, dead)


def on_heartbeat_due(job: Job, _timer: HeartbeatDue, now_ms: int) -> list[Command]:
    """Ask the TaskManagers for a sign of life."""
    interval_ms, timeout_ms = job.settings.heartbeat_interval_ms, job.settings.heartbeat_timeout_ms
    job.state.heartbeat_nonce += 1
    nonce, sender = job.state.heartbeat_nonce, job.peers.job_manager
    request = RequestHeartbeat(job.submission.job_id, job.state.epoch, nonce, sender)
    silent, commands = job.run.request_heartbeats(request, max(timeout_ms // interval_ms, 1))
    commands.append(StartTimer("heartbeat", interval_ms, HeartbeatDue()))
    for name in silent:
        reason = f"TaskManager {name} gave no sign of life for {timeout_ms / 1_000:g} s"
        commands += _lose_hosts(job, job.run.registry.lose_task_manager(name), reason, now_ms)
    return commands


def on_heartbeat(job: Job, message: Heartbeat, _now_ms: int) -> list[Command]:
    """Note a TaskManager's sign of life."""
    job.run.registry.heartbeat(message)
    return []


def on_note(job: Job, message: JobNote, now_ms: int) -> list[Command]:
    """Write into the job's history what the ResourceManager says."""
    job.record.note(now_ms, message.text)
    job.record.clients.changed()
    return []


def on_stand_in_requested(job: Job, message: StandInRequested, now_ms: int) -> list[Command]:
    """Note that more TaskManagers than are needed have been requested."""
    return slot_requests.stand_in_requested(job, message, now_ms, is_rescaling=rescale.is_under_way(job))


def on_slot_request_failed(job: Job, message: SlotRequestFailed, now_ms: int) -> list[Command]:
    """Fail the job, or refuse its rescale, as the slots can never be had."""
    if message.epoch != job.state.epoch or job.state.phase is Phase.STOPPING:
        return []
    refused = rescale.slots_refused(job, message.reason, now_ms)
    if refused is not None:
        return refused
    return fail_job(job, NoResourceAvailableError(message.reason, job=job.submission.name), now_ms)


def _at_node(node: str) -> str:
    return f" (on node {node})" if node else ""


SLOT_EVENTS: dict[type, Callable[[Job, Any, int], list[Command]]] = {
    RegisterTaskManager: on_registration,
    SlotLost: on_slot_lost,
    TaskManagerLost: on_task_manager_lost,
    HeartbeatDue: on_heartbeat_due,
    Heartbeat: on_heartbeat,
    JobNote: on_note,
    StandInRequested: on_stand_in_requested,
    SlotRequestFailed: on_slot_request_failed,
    SlotsAwaited: slot_requests.on_slots_awaited,
    rescale.RescaleTimedOut: rescale.timed_out,
}
"""By kind of event; they mean something as long as there is something to execute."""
