"""WAITING_FOR_SLOTS: slots are asked for, and waited for as long as the cluster does something about them."""

from __future__ import annotations

from ...errors import NoResourceAvailableError
from ...kernel.machine import Command, Send, StartTimer
from ...protocol.messages import SlotsAwaited, StandInRequested
from ..context.job import Job, PhaseRules
from ..context.phase import HeartbeatDue, Phase, SlotRequestTimedOut
from .failures import fail_job, handle_failure

__all__ = [
    "WAITING_FOR_SLOTS",
    "give_back",
    "give_back_unused",
    "on_slots_awaited",
    "patience_ms",
    "slots_missing",
    "stand_in_requested",
]

MIN_PATIENCE_MS = 1_000
"""While nodes are being launched, slots are given so much longer at least."""


def begin(job: Job, now_ms: int) -> list[Command]:
    """Ask for slots; maybe they are there already."""
    state, settings = job.state, job.settings
    state.awaited, state.waited_ms = None, 0
    return [
        job.request_slots(job.run.num_slots_needed),
        StartTimer("slots", settings.slot_request_timeout_ms, SlotRequestTimedOut(state.serial)),
        StartTimer("heartbeat", settings.heartbeat_interval_ms, HeartbeatDue()),
        *advance(job, now_ms),
    ]


def advance(job: Job, now_ms: int) -> list[Command]:
    """Deploy the job if it has its slots."""
    has_slots = job.run.registry.num_slots >= job.run.num_slots_needed
    return job.go(Phase.DEPLOYING, now_ms) if has_slots else []


def on_timed_out(job: Job, timer: SlotRequestTimedOut, now_ms: int) -> list[Command]:
    """Give up, or wait on, as the slots have not come in time."""
    state = job.state
    if timer.serial != state.serial:
        return []
    state.waited_ms = state.waited_ms or job.settings.slot_request_timeout_ms
    longer_ms = patience_ms(job, state.waited_ms)
    if longer_ms:
        state.waited_ms += longer_ms
        return [StartTimer("slots", longer_ms, timer)]
    error = slots_missing(job, job.run.num_slots_needed, state.waited_ms)
    return fail_job(job, error, now_ms) if job.is_first_try else handle_failure(job, error, now_ms, ())


def patience_ms(job: Job, waited_ms: int) -> int:
    """Return how much longer to wait for slots after so long; 0 if they are given up.

    That is if no node was being launched for all the time since this was last asked: a launch that has failed is
    tried again only after a while.
    """
    left_ms = job.settings.node_launch_timeout_ms - waited_ms
    has_launched, job.state.has_launched = job.state.has_launched, False
    if not has_launched or left_ms <= 0:
        return 0
    return min(left_ms, max(job.settings.slot_request_timeout_ms, MIN_PATIENCE_MS))


def slots_missing(job: Job, needed: int, waited_ms: int) -> NoResourceAvailableError:
    """Return the error of slots that did not come."""
    awaited, available = job.state.awaited, job.run.registry.num_slots
    why = "" if awaited is None else f": {awaited.text}"
    message = f"{needed} slots needed, {available} available after {waited_ms / 1_000:g} s{why}"
    hint = "a lower parallelism needs fewer slots; where machines are slow or busy, --slot-timeout '2 min' waits longer"
    return NoResourceAvailableError(message, hint=hint, job=job.submission.name)


def on_slots_awaited(job: Job, message: SlotsAwaited, now_ms: int) -> list[Command]:
    """Note what the cluster does about slots that have not come, in whatever phase."""
    state = job.state
    if message.epoch != state.epoch:
        return []
    before, state.awaited = state.awaited, message
    state.has_launched |= message.is_launching
    if not message.is_launching and (before is None or not before.is_launching):
        return []  # processes may only be starting; if slots do not come, the error says what the cluster did
    if state.phase is Phase.WAITING_FOR_SLOTS:
        job.record.waiting = message.text
    if before is None or message.text != before.text:
        job.record.note(now_ms, f"waits for slots: {message.text}")
    job.record.has_news = True
    return []


def stand_in_requested(job: Job, message: StandInRequested, now_ms: int, *, is_rescaling: bool) -> list[Command]:
    """Note, in whatever phase, that more TaskManagers than are needed have been requested, as some are silent.

    Args:
        job: The job.
        message: What the ResourceManager says.
        now_ms: The time.
        is_rescaling: Whether slots are awaited beside those that run; then the end of that gives back the rest.
    """
    if message.epoch != job.state.epoch:
        return []
    job.record.note(now_ms, message.text)
    job.record.clients.changed()
    job.state.has_stand_ins = True
    runs = job.state.phase in (Phase.DEPLOYING, Phase.EXECUTING) and not is_rescaling
    return give_back_unused(job) if runs else []


def give_back_unused(job: Job) -> list[Command]:
    """Say which TaskManagers the deployment uses, if there may be others."""
    if not job.state.has_stand_ins:
        return []
    job.state.has_stand_ins = False
    return [give_back(job)]


def give_back(job: Job) -> Send:
    """Ask for no more than the job needs as it is, and name the TaskManagers that it does not use."""
    unused = job.run.let_go_of_unused()
    return job.request_slots(job.run.num_slots_needed, unused, job.run.task_managers_in_use)


WAITING_FOR_SLOTS = PhaseRules(begin, advance, {SlotRequestTimedOut: on_timed_out})
