"""EXECUTING, FINAL_CHECKPOINT, FINISHING: all tasks run, until all data is processed, durable and committed.

The last checkpoint: tasks that have processed all data stay and answer barriers. When all have, one more checkpoint
is taken; whatever is triggered then holds everything, so once it is complete the tasks may commit what is left and
finish. A job that is suspended on request takes its last checkpoint at once, with a barrier behind which nothing is
processed, and goes on from there in the same way. A savepoint that the job is stopped with comes before it.

Source: FLIP-147.
"""

from __future__ import annotations

from ...kernel.machine import Command
from ...protocol.checkpoint_messages import CheckpointWanted, ExecutionStarted
from ...protocol.states import JobStatus, TaskState
from ..context.job import Job, PhaseRules
from ..context.phase import Phase

__all__ = ["EXECUTING", "FINAL_CHECKPOINT", "FINISHING"]


def begin(job: Job, now_ms: int) -> list[Command]:
    """Let checkpoints be taken, as all tasks run."""
    job.record.become(JobStatus.RUNNING, now_ms)
    state, record = job.state, job.record
    record.initializations.ended(
        now_ms, record.num_restarts, state.deployment, len(state.scope), state.restored_id, record.history
    )
    started = ExecutionStarted(job.state.epoch, job.state.deployment, job.state.restored_id)
    return [job.to_coordinator(started), *advance(job, now_ms)]


def advance(job: Job, now_ms: int) -> list[Command]:
    """See whether all data is processed, or the job is to stop where it is."""
    if not job.wish.suspends and not job.run.graph.are_all_in(TaskState.ENDED):
        return []
    savepoint = job.savepoints.before_the_end()
    if savepoint is not None:
        return savepoint
    return job.go(Phase.FINISHING if job.settings.checkpoints is None else Phase.FINAL_CHECKPOINT, now_ms)


def begin_final_checkpoint(job: Job, _now_ms: int) -> list[Command]:
    """Ask for the last checkpoint."""
    return [job.to_coordinator(CheckpointWanted(job.state.epoch, job.state.deployment, is_last=True))]


def begin_finishing(job: Job, _now_ms: int) -> list[Command]:
    """Let the tasks commit the rest and end, as all data is processed and durable."""
    return job.run.finish_tasks()


def advance_finishing(job: Job, now_ms: int) -> list[Command]:
    """See whether all have."""
    return job.stop(JobStatus.FINISHED, now_ms) if job.run.graph.are_all_in(TaskState.FINISHED) else []


EXECUTING = PhaseRules(begin, advance, {})
FINAL_CHECKPOINT = PhaseRules(begin_final_checkpoint, lambda _job, _now_ms: [], {})
FINISHING = PhaseRules(begin_finishing, advance_finishing, {})
