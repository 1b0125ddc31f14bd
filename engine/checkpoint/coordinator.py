"""The CheckpointCoordinator of one job: when a checkpoint is triggered, when it is complete, and which ones stay.

It decides only. The JobManager snapshots the split enumerators and triggers the sources; tasks write their files and
acknowledge here; the store's work is offloaded. One checkpoint goes

    requested -> triggered -> all tasks acknowledged -> published -> completed (older ones subsumed)
                 `-> aborted (declined, expired, refused, publication failed, subsumed)

Invariants: ids only grow, over all leaders of a job, and so do published ids; nothing is published without the
acknowledgement of every task that was triggered; an aborted checkpoint never completes; at most one publication is
under way, and `CoordinatorStopped` is only said while there is none, so that no checkpoint of an old deployment turns
up after a restart has chosen its own. What is aborted or no longer retained is garbage; it is deleted once a newer
checkpoint is complete, so that nothing is ever deleted that a successor of this leader might restore from.

A savepoint goes the same way with a number of its own among the checkpoints, at once and besides them: neither
intervals, pauses nor the number in flight concern it, and its failure counts for nothing. It builds on nothing, nothing
builds on it, it subsumes nothing and is not subsumed, and it is not among the complete ones that the job restores from
or deletes. Its files go to a folder of its own, which is removed if it fails. The last checkpoint waits for savepoints
under way. Jobs that take no checkpoints may still take savepoints.

Source: Chandy-Lamport as in Flink's ``CheckpointCoordinator``, ``CheckpointRequestDecider``,
``CheckpointFailureManager``; FLIP-147 for the last checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.state.credentials import masked

from ..kernel.event_log import EventLog
from ..kernel.machine import (
    Address,
    CancelTimer,
    Command,
    Offload,
    OffloadCompleted,
    Reply,
    Send,
    StartTimer,
    kind_of,
)
from ..protocol.checkpoint_messages import (
    AcknowledgeCheckpoint,
    CheckpointEnded,
    CheckpointOutcome,
    CheckpointRequested,
    CheckpointTriggered,
    CheckpointWanted,
    CoordinatorStopped,
    DeclineCheckpoint,
    ExecutionStarted,
    ExecutionStopped,
    PendingCheckpointsAsked,
    ReportsPending,
    ReportsWanted,
    SavepointTarget,
)
from ..protocol.details import CheckpointView
from ..protocol.messages import SubmitJob
from ..protocol.states import CheckpointStatus
from .garbage import CheckpointGarbage, GarbageCollected, SavepointDiscarded, discard
from .io import (
    CheckpointInventory,
    Fenced,
    list_checkpoints,
    publish_checkpoint,
    publish_savepoint,
)
from .pending import AskedCheckpoints, PendingCheckpoint, checkpoint_key, refused, savepoint_key, who_is_missing
from .pending_reports import PendingReports

__all__ = [
    "CheckpointCoordinator",
    "CheckpointPublished",
    "CheckpointsListed",
]

FINAL_RETRY_MS = 100
"""Pause before a failed last checkpoint is tried again; twice that after each further failure in a row."""

MAX_FINAL_DOUBLINGS = 7
"""So often it is doubled at most."""

INVENTORY_RETRY_MS = 1_000
"""Pause before the store is asked again what it holds."""


SAVEPOINT_TIMEOUT_MS = 600_000
"""A savepoint of a job that takes no checkpoints is given up after this long."""


class _Phase(Enum):
    IDLE = "idle"  # no deployment runs
    RUNNING = "running"  # checkpoints may be triggered
    HALTED = "halted"  # the job is about to be stopped: trigger nothing more


@dataclass(frozen=True, slots=True)
class _IntervalElapsed:
    deployment: int


@dataclass(frozen=True, slots=True)
class _PauseElapsed:
    pass


@dataclass(frozen=True, slots=True)
class _CheckpointExpired:
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class _SavepointExpired:
    request_id: str


@dataclass(frozen=True, slots=True)
class _RetryFinal:
    deployment: int


@dataclass(frozen=True, slots=True)
class _RetryInventory:
    deployment: int


@dataclass(frozen=True, slots=True)
class CheckpointsListed:
    """Token of the offloaded look into the store."""

    deployment: int


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    """Token of an offloaded publication."""

    checkpoint_id: int


class CheckpointCoordinator:
    """The machine.

    Args:
        address: Its own address.
        job_manager: The JobManager on the same host.
        job: The job; its settings say whether and how checkpoints are taken.
    """

    def __init__(self, address: Address, job_manager: Address, job: SubmitJob) -> None:
        self.address = address
        self.log = EventLog(machine="CheckpointCoordinator", job=job.job_id)
        self._job_manager = job_manager
        self._job = job
        self._settings = job.settings.checkpoints
        self._phase = _Phase.IDLE
        # The leader epoch and deployment that checkpoints are taken for.
        self._epoch = 0
        self._deployment = -1
        # Id of the next checkpoint; None until the store has been listed under the present leadership.
        self._next_id: int | None = None
        # What the present deployment goes on from.
        self._restored_id = 0
        # Triggered, not yet fully acknowledged, by id.
        self._pending: dict[int, PendingCheckpoint] = {}
        # Fully acknowledged and waiting for the publication under way, by id; and that one.
        self._ready: dict[int, PendingCheckpoint] = {}
        self._publishing: PendingCheckpoint | None = None
        # Savepoints that were asked for and have not been triggered; and clients that wait for a checkpoint.
        self._wanted: list[SavepointTarget] = []
        self._asked = AskedCheckpoints()
        # Complete and retained, (id, path), oldest first; ids ascend.
        self._completed: list[tuple[int, str]] = []
        self._garbage = CheckpointGarbage(job, self.log)
        self._num_failed_in_a_row = 0
        # The interval has passed since the last trigger; the pause since the last end has.
        self._is_due = False
        self._is_pause_over = True
        # The last checkpoint is wanted; it may be tried now; it is complete.
        self._is_final_wanted = False
        self._may_try_final = True
        self._is_final_complete = False
        # Deployment of an `ExecutionStopped` that is not answered yet; and what it has ended.
        self._unanswered_stop: int | None = None
        self._stopped: tuple[CheckpointView, ...] = ()
        self._handlers: dict[type, Callable[[Any, int], list[Command]]] = {
            ExecutionStarted: self._on_execution_started,
            ExecutionStopped: self._on_execution_stopped,
            CheckpointWanted: self._on_wanted,
            CheckpointTriggered: self._on_triggered,
            AcknowledgeCheckpoint: self._on_acknowledged,
            DeclineCheckpoint: self._on_declined,
            ReportsPending: self._on_reports_pending,
            PendingCheckpointsAsked: self._on_asked_for_pending,
            CheckpointsListed: self._listed,
            CheckpointPublished: self._published,
            GarbageCollected: self._collected,
            SavepointDiscarded: self._garbage.discarded,
            _IntervalElapsed: self._on_interval,
            _PauseElapsed: self._on_pause_over,
            _CheckpointExpired: self._on_expired,
            _SavepointExpired: self._on_savepoint_expired,
            _RetryFinal: self._on_retry_final,
            _RetryInventory: self._on_retry_inventory,
        }

    def handle(self, event: Any, now_ms: int) -> list[Command]:
        """Take one message or event; see `headrace.engine.kernel.machine.Machine`."""
        handler = self._handlers.get(kind_of(event))
        return [] if handler is None else handler(event, now_ms)

    def _on_asked_for_pending(self, message: PendingCheckpointsAsked, _now_ms: int) -> list[Command]:
        pending = sorted(self._in_flight, key=lambda pending: -pending.checkpoint_id)
        return [Reply(message.ask_id, tuple(one.view() for one in pending))]

    # ---------------------------------------------------------------------------------------------------- deployments
    def _on_execution_started(self, message: ExecutionStarted, now_ms: int) -> list[Command]:
        if message.deployment <= self._deployment:
            return []
        self._epoch, self._deployment = message.epoch, message.deployment
        self.log.know(epoch=message.epoch)
        self._restored_id = message.restored_id
        self._phase = _Phase.RUNNING
        self._num_failed_in_a_row = 0
        self._is_due, self._is_pause_over = False, True
        self._is_final_wanted = self._is_final_complete = False
        self._may_try_final = True
        commands = self._garbage.sweep()
        if self._settings is None:
            return commands
        if not self._settings.only_last:
            commands.append(self._interval_timer())
        if self._next_id is None:
            commands.append(self._list_checkpoints())
        return commands

    def _on_execution_stopped(self, message: ExecutionStopped, now_ms: int) -> list[Command]:
        if message.deployment < self._deployment:
            return []
        self._deployment = message.deployment
        self._phase = _Phase.IDLE
        self._is_final_wanted = False
        commands: list[Command] = [CancelTimer("interval"), CancelTimer("pause"), CancelTimer("final")]
        for pending in [*self._pending.values(), *self._ready.values()]:
            if pending.savepoint is not None:
                commands += self._fail_savepoint(pending, "the job has ended or restarts", now_ms)
                continue
            self._note(pending, "aborted: the job stops", now_ms)
            self._stopped += (_failed_view(pending, "the job stops", now_ms),)
            commands += [CancelTimer(pending.expiry_key), *refused(pending.ask_ids, "the job has ended or restarts")]
        commands += refused(self._asked.take()[0], "the job has ended or restarts")
        for wanted in self._wanted:
            commands += self._refuse_savepoint(wanted, "the job has ended or restarts")
        self._wanted.clear()
        self._pending.clear()
        self._ready.clear()
        self._unanswered_stop = message.deployment
        return commands + self._answer_stop()

    def _answer_stop(self) -> list[Command]:
        if self._unanswered_stop is None or self._publishing is not None:
            return []
        stopped = CoordinatorStopped(self._unanswered_stop, self._stopped)
        self._unanswered_stop, self._stopped = None, ()
        return [Send(self._job_manager, stopped)]

    def _list_checkpoints(self) -> Offload:
        assert self._settings is not None
        work = functools.partial(list_checkpoints, self._settings.directory, self._job.job_id)
        return Offload("list_checkpoints", CheckpointsListed(self._deployment), work)

    def _listed(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        if self._next_id is not None:
            return []
        if event.error is not None:
            if self._phase is not _Phase.RUNNING:
                return []
            retry = StartTimer("inventory", INVENTORY_RETRY_MS, _RetryInventory(self._deployment))
            return [*self._failed(0, f"the checkpoint store cannot be listed: {event.error}"), retry]
        inventory: CheckpointInventory = event.result
        self._next_id = max(inventory.highest_id, self._restored_id) + 1
        self._completed = list(inventory.complete)
        return [*self._trigger_savepoints(now_ms), *self._trigger_if_wanted(now_ms)]

    def _on_retry_inventory(self, timer: _RetryInventory, now_ms: int) -> list[Command]:
        if self._next_id is not None or self._phase is not _Phase.RUNNING or timer.deployment != self._deployment:
            return []
        return [self._list_checkpoints()]

    # -------------------------------------------------------------------------------------------------------- triggers
    def _interval_timer(self) -> StartTimer:
        assert self._settings is not None
        return StartTimer("interval", self._settings.interval_ms, _IntervalElapsed(self._deployment))

    def _on_interval(self, timer: _IntervalElapsed, now_ms: int) -> list[Command]:
        if self._phase is not _Phase.RUNNING or timer.deployment != self._deployment:
            return []
        self._is_due = True
        return [self._interval_timer(), *self._trigger_if_wanted(now_ms)]

    def _on_pause_over(self, _timer: _PauseElapsed, now_ms: int) -> list[Command]:
        self._is_pause_over = True
        return self._trigger_if_wanted(now_ms)

    def _on_wanted(self, message: CheckpointWanted, now_ms: int) -> list[Command]:
        is_ours = (message.epoch, message.deployment) == (self._epoch, self._deployment)
        may_be_taken = is_ours and self._phase is _Phase.RUNNING
        if message.savepoint is not None:
            return self._on_savepoint_wanted(message.savepoint, now_ms, is_running=may_be_taken)
        if not may_be_taken or (message.ask_id is not None and self._is_final_complete):
            return refused([message.ask_id] if message.ask_id else [], "the job is finishing or restarts")
        self._asked.add(message)
        if message.is_last:
            self._is_final_wanted = True
        elif message.ask_id is None:
            self._is_due = self._is_pause_over = True
        return self._trigger_if_wanted(now_ms)

    def _on_retry_final(self, timer: _RetryFinal, now_ms: int) -> list[Command]:
        if timer.deployment != self._deployment:
            return []
        self._may_try_final = True
        return self._trigger_if_wanted(now_ms)

    @property
    def _in_flight(self) -> list[PendingCheckpoint]:
        publishing = [] if self._publishing is None else [self._publishing]
        return [*self._pending.values(), *self._ready.values(), *publishing]

    def _may_trigger(self) -> bool:
        assert self._settings is not None
        if self._phase is not _Phase.RUNNING or self._next_id is None or self._is_final_complete:
            return False
        if self._is_final_wanted:  # at once, but after those on the way: they are as good as done
            return self._may_try_final and not self._in_flight and not self._wanted
        # A barrier that overtakes would make a savepoint, whose barriers align, give up.
        counts_all = self._settings.unaligned
        num_in_flight = sum(counts_all or pending.savepoint is None for pending in self._in_flight)
        is_wanted = bool(self._asked) or (self._is_due and self._is_pause_over)
        return is_wanted and num_in_flight < self._settings.concurrency

    def _trigger_if_wanted(self, now_ms: int) -> list[Command]:
        if self._settings is None or not self._may_trigger():
            return []
        assert self._next_id is not None
        checkpoint_id = self._next_id
        self._next_id += 1
        self._is_due = False
        ask_ids, is_full = self._asked.take()
        base_id = self._completed[-1][0] if self._completed and not is_full else 0
        pending = PendingCheckpoint(
            checkpoint_id, now_ms, is_final=self._is_final_wanted, base_id=base_id, ask_ids=ask_ids
        )
        self._pending[checkpoint_id] = pending
        self._note(pending, "requested, the last one" if pending.is_final else "requested", now_ms)
        return [
            StartTimer(checkpoint_key(checkpoint_id), self._settings.timeout_ms, _CheckpointExpired(checkpoint_id)),
            Send(self._job_manager, CheckpointRequested(self._epoch, checkpoint_id, now_ms, base_id)),
        ]

    # ------------------------------------------------------------------------------------------------------ savepoints
    def _on_savepoint_wanted(self, wanted: SavepointTarget, now_ms: int, *, is_running: bool) -> list[Command]:
        if not is_running:
            return self._refuse_savepoint(wanted, "the job is not running")
        if self._is_final_complete:
            return self._refuse_savepoint(wanted, "the job is finishing")
        timeout_ms = SAVEPOINT_TIMEOUT_MS if self._settings is None else self._settings.timeout_ms
        expired = _SavepointExpired(wanted.request_id)
        commands: list[Command] = [StartTimer(savepoint_key(wanted.request_id), timeout_ms, expired)]
        self._wanted.append(wanted)
        if self._next_id is None and self._settings is None:  # else the list is on its way
            self._next_id = self._restored_id + 1
        return commands + self._trigger_savepoints(now_ms)

    def _trigger_savepoints(self, now_ms: int) -> list[Command]:
        commands: list[Command] = []
        while self._wanted and self._next_id is not None:
            wanted = self._wanted.pop(0)
            pending = PendingCheckpoint(self._next_id, now_ms, is_final=False, savepoint=wanted)
            self._next_id += 1
            self._pending[pending.checkpoint_id] = pending
            self._note(pending, f"requested, a savepoint in {wanted.root}", now_ms)
            request = CheckpointRequested(self._epoch, pending.checkpoint_id, now_ms, pending.base_id, wanted.root)
            commands.append(Send(self._job_manager, request))
        return commands

    def _on_savepoint_expired(self, timer: _SavepointExpired, now_ms: int) -> list[Command]:
        for wanted in self._wanted:
            if wanted.request_id == timer.request_id:
                self._wanted.remove(wanted)
                return self._refuse_savepoint(wanted, "expired; the checkpoint store could not be listed")
        for pending in self._pending.values():
            if pending.savepoint is not None and pending.savepoint.request_id == timer.request_id:
                return self._abort(pending, who_is_missing(pending), now_ms)
        return []

    def _refuse_savepoint(self, wanted: SavepointTarget, reason: str) -> list[Command]:
        failed = self._ended(0, CheckpointOutcome.ABORTED, reason=reason, request_id=wanted.request_id)
        return [CancelTimer(savepoint_key(wanted.request_id)), failed, discard(wanted.root)]

    def _ended(self, checkpoint_id: int, outcome: CheckpointOutcome, **how: Any) -> Send:
        return Send(self._job_manager, CheckpointEnded(self._epoch, checkpoint_id, outcome, **how))

    def _fail_savepoint(self, pending: PendingCheckpoint, reason: str, now_ms: int) -> list[Command]:
        """It will never be: tell, and remove what is there of it, now and when no task can write there any more."""
        wanted = pending.savepoint
        assert wanted is not None
        self._note(pending, f"aborted: {reason}", now_ms)
        self._garbage.abandon(wanted.root)
        commands = self._refuse_savepoint(wanted, reason)
        how = {"reason": reason, "request_id": wanted.request_id, "view": _failed_view(pending, reason, now_ms)}
        commands[1] = self._ended(pending.checkpoint_id, CheckpointOutcome.ABORTED, **how)
        return commands

    # ------------------------------------------------------------------------------------------------ acknowledgements
    def _on_triggered(self, message: CheckpointTriggered, now_ms: int) -> list[Command]:
        pending = self._pending.get(message.checkpoint_id)
        if pending is None or pending.awaited is not None:
            return []
        if not message.attempts:
            return self._abort(pending, message.reason or "refused", now_ms, is_failure=False)
        pending.awaited = frozenset(message.attempts)
        pending.enumerators, pending.collects = message.enumerators, message.collects
        pending.acknowledged = {a: ack for a, ack in pending.acknowledged.items() if a in pending.awaited}
        self._note(pending, f"triggered, {len(pending.awaited)} tasks", now_ms)
        return self._ready_if_acknowledged(pending, now_ms)

    def _on_acknowledged(self, message: AcknowledgeCheckpoint, now_ms: int) -> list[Command]:
        pending = self._pending.get(message.checkpoint_id)
        if pending is None or (pending.awaited is not None and message.attempt not in pending.awaited):
            return []  # late, doubled or foreign: its files are collected with the next complete checkpoint
        if message.attempt not in pending.acknowledged:
            pending.acknowledged[message.attempt] = message
            pending.acknowledged_ms[message.attempt] = now_ms
            self._note(pending, f"acknowledged by {message.attempt}", now_ms)
        return self._ready_if_acknowledged(pending, now_ms)

    def _on_declined(self, message: DeclineCheckpoint, now_ms: int) -> list[Command]:
        pending = self._pending.get(message.checkpoint_id)
        if pending is None or (pending.awaited is not None and message.attempt not in pending.awaited):
            return []
        if message.attempt.epoch != self._epoch:
            return []  # attempts of several deployments may run: those of regions that never failed are older
        return self._abort(pending, f"declined by {message.attempt}: {message.reason}", now_ms)

    def _on_expired(self, timer: _CheckpointExpired, now_ms: int) -> list[Command]:
        pending = self._pending.get(timer.checkpoint_id)
        if pending is None:
            return []
        return self._abort(pending, who_is_missing(pending), now_ms)

    def _ready_if_acknowledged(self, pending: PendingCheckpoint, now_ms: int) -> list[Command]:
        if not pending.is_fully_acknowledged:
            return []
        del self._pending[pending.checkpoint_id]
        self._ready[pending.checkpoint_id] = pending
        return [CancelTimer(pending.expiry_key), *self._publish_next(now_ms)]

    # ----------------------------------------------------------------------------------------------------- publication
    def _publish_next(self, now_ms: int) -> list[Command]:
        if self._publishing is not None or not self._ready or self._phase is _Phase.IDLE:
            return []
        pending = self._publishing = self._ready.pop(min(self._ready))
        self._note(pending, "publishing", now_ms)
        if pending.savepoint is None and pending.collects:
            return [Send(self._job_manager, ReportsWanted(pending.checkpoint_id))]
        return [self._publish(pending, ())]

    def _on_reports_pending(self, message: ReportsPending, _now_ms: int) -> list[Command]:
        pending = self._publishing
        if pending is None or pending.checkpoint_id != message.checkpoint_id or pending.is_offloaded:
            return []
        return [self._publish(pending, message.reports)]

    def _publish(self, pending: PendingCheckpoint, reports: PendingReports) -> Offload:
        pending.is_offloaded = True
        part: dict[str, Any] = {
            "job": self._job,
            "epoch": self._epoch,
            "checkpoint_id": pending.checkpoint_id,
            "timestamp_ms": pending.timestamp_ms,
            "snapshots": [snapshot for ack in pending.acknowledged.values() for snapshot in ack.snapshots],
            "enumerators": pending.enumerators,
            "parallelism": pending.parallelism,
        }
        if pending.savepoint is not None:
            work = functools.partial(publish_savepoint, pending.savepoint.root, **part)
        else:
            assert self._settings is not None
            work = functools.partial(publish_checkpoint, self._settings.directory, reports=reports, **part)
        return Offload("publish_checkpoint", CheckpointPublished(pending.checkpoint_id), work)

    def _published(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        pending = self._publishing
        if pending is None or pending.checkpoint_id != event.token.checkpoint_id:
            return []
        self._publishing = None
        if isinstance(event.result, Fenced):
            self._note(pending, f"refused by the store: {event.result.reason}", now_ms)
            self._phase = _Phase.HALTED
            given_up = (pending, *self._ready.values(), *self._pending.values())
            asked = [*(ask_id for one in given_up for ask_id in one.ask_ids), *self._asked.take()[0]]
            self._ready.clear()
            self._wanted.clear()
            fenced = self._ended(pending.checkpoint_id, CheckpointOutcome.FENCED, reason=event.result.reason)
            return [fenced, *refused(asked, "another process leads the job"), *self._answer_stop()]
        if event.error is not None:
            commands = self._abort(pending, f"could not be published: {event.error}", now_ms)
        else:
            commands = self._complete(pending, event.result, now_ms)
        return commands + self._publish_next(now_ms) + self._answer_stop()

    def _complete(self, pending: PendingCheckpoint, path: str, now_ms: int) -> list[Command]:
        checkpoint_id = pending.checkpoint_id
        self._note(pending, "completed", now_ms)
        how: dict[str, Any] = {"path": path, "view": pending.view(CheckpointStatus.COMPLETED, now_ms, path=path)}
        if pending.savepoint is not None:
            how |= {"request_id": pending.savepoint.request_id}
            done = self._ended(checkpoint_id, CheckpointOutcome.COMPLETED, **how)
            return [done, *self._trigger_if_wanted(now_ms)]
        assert self._settings is not None
        self._completed.append((checkpoint_id, path))
        self._num_failed_in_a_row = 0
        self._is_final_complete = self._is_final_complete or pending.is_final
        metrics = pending.metrics(now_ms)
        commands: list[Command] = [self._ended(checkpoint_id, CheckpointOutcome.COMPLETED, **how, metrics=metrics)]
        commands += [Reply(ask_id, how["view"]) for ask_id in pending.ask_ids]
        if self._is_final_complete:  # there is none behind it
            commands += refused(self._asked.take()[0], "the job is finishing")
        waiting = [*self._pending.values(), *self._ready.values()]
        for subsumed in [p for p in waiting if p.savepoint is None and p.checkpoint_id < checkpoint_id]:
            commands += self._drop(subsumed, f"subsumed by checkpoint {checkpoint_id}", now_ms, is_failure=False)
        del self._completed[: -self._settings.num_retained]
        return commands + self._collect_garbage() + self._after_end(now_ms)

    def _abort(self, pending: PendingCheckpoint, reason: str, now_ms: int, *, is_failure: bool = True) -> list[Command]:
        if pending.savepoint is not None:
            self._pending.pop(pending.checkpoint_id, None)
            return [*self._fail_savepoint(pending, reason, now_ms), *self._trigger_if_wanted(now_ms)]
        commands = self._drop(pending, reason, now_ms, is_failure=is_failure)
        if pending.is_final:
            self._may_try_final = False
            delay_ms = FINAL_RETRY_MS << min(max(self._num_failed_in_a_row - 1, 0), MAX_FINAL_DOUBLINGS)
            commands.append(StartTimer("final", delay_ms, _RetryFinal(self._deployment)))
        return commands + self._after_end(now_ms)

    def _drop(self, pending: PendingCheckpoint, reason: str, now_ms: int, *, is_failure: bool) -> list[Command]:
        """Forget a checkpoint and tell the JobManager so; a failure is counted, a subsumed checkpoint is not."""
        checkpoint_id = pending.checkpoint_id
        self._pending.pop(checkpoint_id, None)
        self._ready.pop(checkpoint_id, None)
        self._note(pending, f"aborted: {reason}", now_ms)
        commands: list[Command] = [CancelTimer(pending.expiry_key), *refused(pending.ask_ids, reason)]
        view = _failed_view(pending, reason, now_ms)
        if is_failure:
            return commands + self._failed(checkpoint_id, reason, view)
        return [*commands, self._ended(checkpoint_id, CheckpointOutcome.ABORTED, reason=reason, view=view)]

    def _failed(self, checkpoint_id: int, reason: str, view: CheckpointView | None = None) -> list[Command]:
        """Count a failure; too many in a row are the job's."""
        assert self._settings is not None
        self._num_failed_in_a_row += 1
        tolerable = self._settings.tolerable_failures
        outcome = CheckpointOutcome.ABORTED
        if 0 <= tolerable < self._num_failed_in_a_row and self._phase is _Phase.RUNNING:
            outcome, self._phase = CheckpointOutcome.INTOLERABLE, _Phase.HALTED
        return [self._ended(checkpoint_id, outcome, reason=reason, view=view)]

    def _after_end(self, now_ms: int) -> list[Command]:
        """Pause after the end of a checkpoint, and see whether another one is due."""
        assert self._settings is not None
        if self._phase is not _Phase.RUNNING:
            return []
        commands: list[Command] = []
        if self._settings.min_pause_ms:
            self._is_pause_over = False
            commands.append(StartTimer("pause", self._settings.min_pause_ms, _PauseElapsed()))
        return commands + self._trigger_if_wanted(now_ms)

    # --------------------------------------------------------------------------------------------------------- garbage
    def _collect_garbage(self) -> list[Command]:
        retained = tuple(checkpoint_id for checkpoint_id, _path in self._completed)
        bases = frozenset(pending.base_id for pending in self._in_flight if pending.base_id)
        return self._garbage.collect(self._epoch, retained, bases)

    def _collected(self, event: OffloadCompleted, now_ms: int) -> list[Command]:
        has_more = self._garbage.collected(event, now_ms)
        return self._collect_garbage() if has_more and self._phase is _Phase.RUNNING else []

    def _note(self, pending: PendingCheckpoint, text: str, now_ms: int) -> None:
        self.log.add(now_ms, f"checkpoint {pending.checkpoint_id}", text)


def _failed_view(pending: PendingCheckpoint, reason: str, now_ms: int) -> CheckpointView:
    return pending.view(CheckpointStatus.FAILED, now_ms, reason=masked(reason))
