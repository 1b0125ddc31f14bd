"""Planted bugs of clusters with several heads: each must be caught by `heads.run_heads_seed`.

``python tests/simulation/head_mutants.py``, as `mutants.py`. Bugs that show only if a process is stopped between
looking at its clock and acting, which the simulator does not do, are planted in
``tests/engine/cluster/test_leadership.py`` and ``test_leading_dispatcher.py``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.heads import run_heads_seed
from simulation.planted import Mutant, caught_by, planted_in

from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.cluster import (
    dispatcher,
    job_manager_hosts,
    job_store_io,
    leadership,
    resource_manager,
    store_work,
)
from headrace.engine.kernel.machine import Offload, OffloadCompleted
from headrace.state.checkpoints import job_store, leases

HEAD_MUTANTS: dict[str, Mutant] = {}
mutant = planted_in(HEAD_MUTANTS)
patch = mock.patch.object


@mutant
def lease_is_taken_without_a_new_epoch() -> Iterator[None]:
    """The one that takes the lease keeps the epoch of the one before."""

    def acquire(self: leases.FileLease, record: Any, seen: Any) -> Any:
        epoch = max(1, seen.epoch)
        self.fs.write_bytes(self._path("epochs", epoch), record.to_json(self._term(epoch)))
        return leases.Acquisition(epoch, record.lease_ms)

    with patch(leases.FileLease, "acquire", acquire):
        yield


@mutant
def epoch_is_not_made_exclusively() -> Iterator[None]:
    """Two candidates with the same observation both take the lease."""

    def acquire(self: leases.FileLease, record: Any, seen: Any) -> Any:
        self.fs.write_bytes(self._path("epochs", seen.epoch + 1), record.to_json(self._term(seen.epoch + 1)))
        return leases.Acquisition(seen.epoch + 1, record.lease_ms)

    with patch(leases.FileLease, "acquire", acquire):
        yield


@mutant
def leader_leads_until_it_is_told() -> Iterator[None]:
    """A leader does not look at the clock: it goes on until a renewal is refused."""

    def look(self: leadership.LeaderElection, now_ms: int) -> None:
        if self._phase is not leadership._Phase.LEADING or self._is_giving_back:
            original(self, now_ms)

    original = leadership.LeaderElection._look_at_the_clock
    leads = property(lambda self: self._phase is leadership._Phase.LEADING)
    with (
        patch(leadership.LeaderElection, "_look_at_the_clock", look),
        patch(leadership.LeaderElection, "leads", leads),
    ):
        yield


@mutant
def lease_is_taken_early() -> Iterator[None]:
    """A standby waits for an eighth of the lease's length only."""

    def may_claim(self: leadership.LeaderElection, state: Any) -> bool:
        return original(self, state) or self._asked_at - self._unchanged_since >= self._record.lease_ms // 8

    original = leadership.LeaderElection._may_claim
    with patch(leadership.LeaderElection, "_may_claim", may_claim):
        yield


@mutant
def submission_is_acknowledged_before_it_is_stored() -> Iterator[None]:
    """The Dispatcher says yes and stores the job later."""

    def submit(self: dispatcher.Dispatcher, ask_id: str, submission: Any, now_ms: int) -> Any:
        commands = original(self, ask_id, submission, now_ms)
        if self._ha is not None and commands and submission.job_id in self._accepting:
            stored = OffloadCompleted("store_submission", store_work.SubmissionStored(submission.job_id), None, None)
            return [*commands, *self._submission_stored(stored, now_ms)]
        return commands

    original = dispatcher.Dispatcher._submit
    with patch(dispatcher.Dispatcher, "_submit", submit):
        yield


@mutant
def end_is_told_before_it_is_stored() -> Iterator[None]:
    """A job's end is told to clients, its checkpoints are deleted, and then it is stored."""

    def end(self: dispatcher.Dispatcher, job: Any, view: Any, now_ms: int) -> Any:
        original(self, job, view, now_ms)
        work = functools.partial(store_work.store_end, self._ha.jobs, self._ha.lease, self.term, view)
        job.view, job.ending = view, None
        return [*self._archived(job, now_ms), Offload("store_end", view.job_id, work)]

    original = dispatcher.Dispatcher._end
    with patch(dispatcher.Dispatcher, "_end", end):
        yield


@mutant
def ended_jobs_are_started_again() -> Iterator[None]:
    """A new leader does not look for ends."""
    original = job_store.JobStore._read

    def read(self: job_store.JobStore, job_id: str, names: dict[str, str]) -> Any:
        return original(self, job_id, {name: path for name, path in names.items() if not name.startswith("ended/")})

    def drop(self: job_store.JobStore, job_id: str) -> None:
        pass

    with patch(job_store.JobStore, "_read", read), patch(job_store.JobStore, "drop_submission", drop):
        yield


@mutant
def open_jobs_are_not_taken_over() -> Iterator[None]:
    """A new leader forgets the oldest job that has not ended."""
    original = job_store_io.recover_jobs

    def recover(jobs: Any, lease: Any, epoch: int) -> Any:
        return [job for job in original(jobs, lease, epoch) if job.view is not None]

    with patch(store_work, "recover_jobs", recover):
        yield


@mutant
def names_are_used_again() -> Iterator[None]:
    """A new leader counts JobManagers and TaskManagers from the beginning."""
    with (
        patch(job_manager_hosts, "TERM_BITS", 0),
        patch(resource_manager, "TERM_BITS", 62),
        patch(checkpoint_io, "end_of_term", lambda epoch: 2**62),
        mock.patch.object(
            dispatcher.Dispatcher, "term", property(lambda self: 0, lambda self, value: None), create=True
        ),
    ):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with HEAD_MUTANTS[name]():
        return caught_by(f"head: {name}", run_heads_seed, max_seeds)


def main() -> int:
    survivors = 0
    names = sys.argv[1:] or list(HEAD_MUTANTS)
    for name in names:
        seed, how = is_caught(name, 400)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    print(f"{len(names) - survivors} passed, {survivors} failed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
