"""PREPARING: claim leadership in the checkpoint store, and find the checkpoint to go on from.

Begun with every deployment. Nothing of what is to be deployed lives, and no checkpoint can complete meanwhile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from headrace.state.checkpoints.manifest import SAVEPOINT

from ...checkpoint.io import Preparation, RestorePoint, check_restorable, prepare_job
from ...checkpoint.restore_choice import JobPast
from ...errors import CheckpointCorruptError, CheckpointError, CheckpointLostError, SupersededError
from ...kernel.machine import Command, Offload, OffloadCompleted
from ...protocol.details import RestoredCheckpoint
from ...protocol.states import JobStatus
from ..context.job import Job, PhaseRules
from ..context.phase import Phase
from .failures import fail_behind, fail_job, handle_failure, leave, may_fall_back

__all__ = ["PREPARING"]


@dataclass(frozen=True, slots=True)
class JobPrepared:
    """Effect: the store is looked into."""

    serial: int


LOOK_AGAIN_MS = 500
"""Pause before the store is looked at again that lacks a complete checkpoint; twice that after each further look."""

MAX_LOSSES = 4
"""After so many looks in vain the checkpoint is lost."""


def begin(job: Job, now_ms: int) -> list[Command]:
    """Look into the store."""
    state = job.state
    state.serial += 1
    if job.settings.checkpoints is None and job.settings.restore_from is None:
        return prepared(job, Preparation(state.epoch, None), now_ms)
    past = JobPast(
        newest=state.newest_own,
        has_run=state.was_run_before,
        damaged=dict(state.damaged),
        given_up=frozenset(state.given_up),
        may_pass_over=may_fall_back(job),
    )
    work = functools.partial(prepare_job, job.submission, state.epoch, past, is_claimed=state.has_claimed)
    return [Offload("prepare_job", JobPrepared(state.serial), work)]


def on_preparation(job: Job, event: OffloadCompleted, now_ms: int) -> list[Command]:
    """Go on with what was found in the store, or see to its failure."""
    if event.token.serial != job.state.serial:
        return []
    error = event.error
    if error is None:
        return prepared(job, event.result, now_ms)
    if isinstance(error, SupersededError):
        return leave(job, str(error), now_ms)
    if isinstance(error, CheckpointLostError) and job.state.num_losses < MAX_LOSSES:
        return _look_again(job, error, now_ms)
    if isinstance(error, (CheckpointCorruptError, CheckpointLostError)):
        return fail_behind(job, error, now_ms)
    if isinstance(error, CheckpointError) or job.is_first_try:
        return fail_job(job, error, now_ms)
    return handle_failure(job, error, now_ms, ())


def _look_again(job: Job, error: CheckpointLostError, now_ms: int) -> list[Command]:
    """Look again later, as the store lacks what it must have: an empty mount point, or a listing that lags behind."""
    state = job.state
    state.look_again_ms = LOOK_AGAIN_MS << state.num_losses
    state.num_losses += 1
    job.record.note(now_ms, f"looks again in {state.look_again_ms / 1_000:g} s: {error.message}")
    return job.stop(JobStatus.RESTARTING, now_ms, state.scope)


def prepared(job: Job, preparation: Preparation, now_ms: int) -> list[Command]:
    """Wait for slots, as it is known what the job goes on from."""
    state, run = job.state, job.run
    state.has_claimed = True
    state.num_losses = 0
    state.epoch = preparation.epoch
    job.record.log.know(epoch=state.epoch)
    state.restore_point = point = preparation.restore_point
    if state.restored_id != state.base_id and not run.is_whole(state.scope):
        job.record.note(now_ms, f"restarts everything: checkpoint {state.base_id} cannot be restored")
        return job.stop(JobStatus.RESTARTING, now_ms)
    commands = job.savepoints.restored(point, state.epoch, now_ms)
    if point is not None:
        try:
            allowed = job.settings.allow_non_restored_state
            check_restorable(point, run.graph.job_graph, allow_non_restored_state=allowed)
        except CheckpointError as error:
            return commands + fail_job(job, error, now_ms)
        _note_restore(job, point, now_ms)
        job.record.reports.restore(point.reports)
        job.wish.restored(point, now_ms)
    return commands + job.go(Phase.WAITING_FOR_SLOTS, now_ms)


def _note_restore(job: Job, point: RestorePoint, now_ms: int) -> None:
    if not point.is_requested and not point.passed_over:
        job.state.newest_own = max(job.state.newest_own, point.checkpoint_id)
    for problem in point.passed_over:
        repeated = "after a proof that its output is not public" if point.must_prove else "output comes twice"
        job.record.note(now_ms, f"falls back to checkpoint {point.checkpoint_id}, {repeated}: {problem}")
    job.record.note(now_ms, f"restores checkpoint {point.checkpoint_id}")
    restored = RestoredCheckpoint(point.checkpoint_id, now_ms, point.manifest.kind == SAVEPOINT, point.path)
    job.record.checkpoints.restored(restored)


PREPARING = PhaseRules(begin, lambda _job, _now_ms: [], {JobPrepared: on_preparation})
