"""Jobs that end while their leaders die: kills at the protocol points around the end, and planted bugs.

What a job may leave is judged by `simulation.leftovers`, here as in every other campaign; but those hardly ever strike
between the end and the last deletion. ``python tests/simulation/ends.py`` runs all points, then the planted bugs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.heads import run_heads_seed
from simulation.planted import caught_by
from simulation.savepoints import run_savepoint_seed
from simulation.simulator import run_seed
from simulation.stopping import run_stop_seed

from headrace.actors.sim.faults import FaultPlan
from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.cluster import dispatcher, job_store_io, store_work
from headrace.engine.kernel.machine import Offload
from headrace.state.checkpoints.storage import CheckpointStorage

__all__ = ["END_MUTANTS", "HEAD_POINTS", "JOB_POINTS", "end_with_a_kill", "is_caught"]

JOB_POINTS = (
    "recv.JobArchived",
    "send.ReleaseJob",
    "recv.CoordinatorStopped",
    "send.FinishTask",
    "io.collect_garbage.before",
    "io.collect_garbage.after",
)
"""Where a JobManager dies with one head that does not."""

HEAD_POINTS = (
    "recv.JobStatusChanged",
    "io.store_end.before",
    "io.store_end.after",
    "send.JobArchived",
    "io.clean_up_job.before",
    "io.clean_up_job.after",
)
"""Where a head dies."""


def end_with_a_kill(point: str, seed: int) -> None:
    """Run a job to its end with a kill at a point, on a cluster with one head or with several.

    Raises:
        AssertionError: If the run is not as it must be, or something is left behind.
    """
    kills = ((point, 1),)
    if point in HEAD_POINTS:
        run_heads_seed(seed, faults=FaultPlan(kills_at=kills, immortal=()))
    elif seed % 3 == 0:
        run_savepoint_seed(seed, kills_at=kills)
    elif seed % 3 == 1:
        run_stop_seed(seed, kills_at=kills)
    else:
        run_seed(seed, faults=FaultPlan(kills_at=kills))


# ------------------------------------------------------------------------------------------------------------- mutants
END_MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(plant: Callable[[], Any]) -> Callable[[], Any]:
    """Register a planted bug: a context manager that plants it."""
    END_MUTANTS[plant.__name__] = contextmanager(plant)
    return plant


@mutant
def nobody_cleans_up_after_a_lost_job_manager() -> Iterator[None]:
    """What a job has left is deleted on its JobManager's host, and is lost with that."""

    def archived(self: dispatcher.Dispatcher, job: Any, now_ms: int) -> Any:
        commands = original(self, job, now_ms)
        self._left_to = {
            **getattr(self, "_left_to", {}),
            **{c.token.job_id: c for c in commands if isinstance(c, Offload)},
        }
        return [command for command in commands if not isinstance(command, Offload)]

    def terminated(self: dispatcher.Dispatcher, event: Any, now_ms: int) -> Any:
        job = next((job for job in self._jobs.values() if job.host == event.host), None)
        work = None if job is None else getattr(self, "_left_to", {}).pop(job.submission.job_id, None)
        if work is None:
            return original_terminated(self, event, now_ms)
        if event.reason == "stopped":
            work.work()
        del self._cleanup._works[work.token.job_id]
        return original_terminated(self, event, now_ms)

    original, original_terminated = dispatcher.Dispatcher._archived, dispatcher.Dispatcher._on_terminated
    with (
        mock.patch.object(dispatcher.Dispatcher, "_archived", archived),
        mock.patch.object(dispatcher.Dispatcher, "_on_terminated", terminated),
    ):
        yield


@mutant
def a_stopped_job_keeps_the_epochs_of_all_its_leaders() -> Iterator[None]:
    """One file for each leader stays for ever."""
    with mock.patch.object(CheckpointStorage, "forget_old_epochs", return_value=None):
        yield


@mutant
def nobody_cleans_up_after_a_lost_leader() -> Iterator[None]:
    """The submission of an ended job goes when the end is stored, and nothing says that there is something to do."""
    original = job_store_io.store_end

    def end(jobs: Any, lease: Any, epoch: int, view: Any) -> None:
        original(jobs, lease, epoch, view)
        jobs.drop_submission(view.job_id)

    with mock.patch.object(store_work, "store_end", end):
        yield


@mutant
def checkpoints_are_deleted_before_the_end_is_stored() -> Iterator[None]:
    """The next leader runs the job on, and finds none of its checkpoints."""

    def end(self: dispatcher.Dispatcher, job: Any, view: Any, now_ms: int) -> Any:
        checkpoint_io.clean_up_job(job.submission.settings, view)
        return original(self, job, view, now_ms)

    original = dispatcher.Dispatcher._end
    with mock.patch.object(dispatcher.Dispatcher, "_end", end):
        yield


@mutant
def submission_goes_before_what_it_left() -> Iterator[None]:
    """A process that is killed while it deletes leaves the rest for ever."""

    def clean_up(jobs: Any, settings: Any, view: Any) -> None:
        jobs.drop_submission(view.job_id)

    def end(self: dispatcher.Dispatcher, event: Any, now_ms: int) -> Any:
        job = self._jobs.get(event.token.job_id)
        if job is not None and event.error is None:
            checkpoint_io.clean_up_job(job.submission.settings, job.view)
        return original(self, event, now_ms)

    original = dispatcher.Dispatcher._cleaned_up
    with (
        mock.patch.object(dispatcher, "clean_up_ended_job", clean_up),
        mock.patch.object(dispatcher.Dispatcher, "_cleaned_up", end),
    ):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[tuple[str, int] | None, str]:
    """Run under a planted bug; gives point and seed that caught it, and how."""
    runs = max_seeds * len((*HEAD_POINTS, *JOB_POINTS))
    with END_MUTANTS[name]():
        number, how = caught_by(f"ends: {name}", lambda each: end_with_a_kill(*_struck(each)), runs)
    return None if number is None else _struck(number), how


def _struck(number: int) -> tuple[str, int]:
    """The point and the seed of a run: every point with a seed, before the next one."""
    points = (*HEAD_POINTS, *JOB_POINTS)
    return points[number % len(points)], number // len(points)


def main() -> int:
    for point in (*HEAD_POINTS, *JOB_POINTS):
        for seed in range(100):
            end_with_a_kill(point, seed)
        print(f"{point}: 100 runs", flush=True)
    survivors = 0
    for name in END_MUTANTS:
        caught_by, how = is_caught(name, 20)
        survivors += caught_by is None
        print(f"{name}: {'SURVIVED' if caught_by is None else f'caught by {caught_by}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
