"""Planted bugs in the restart of single regions, and in rescaling: each must be caught.

``python tests/simulation/region_mutants.py``; as `simulation.mutants`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.planted import Mutant, caught_by, planted_in
from simulation.regions import REGIONS
from simulation.rescaling import run_rescale_seed
from simulation.simulator import run_seed

from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint.coordinator import CheckpointCoordinator
from headrace.engine.execution.regions import PipelinedRegions
from headrace.engine.job.context import deployment
from headrace.engine.job.context.phase import Phase
from headrace.engine.job.context.record import JobRecord
from headrace.engine.job.context.running import JobExecution
from headrace.engine.job.job_manager import PHASES
from headrace.engine.job.phases import preparing, stopping
from headrace.engine.job.sources.split_assignment import SplitAssignment

REGION_MUTANTS: dict[str, Mutant] = {}
mutant = planted_in(REGION_MUTANTS)


@mutant
def healthy_regions_splits_are_given_back() -> Iterator[None]:
    """Whatever any reader was given since the checkpoint is handed out again."""
    original = SplitAssignment.take_back

    def take_back(self: SplitAssignment, subtasks: Any) -> Any:
        self._handed_out = [replace(one, subtask=min(subtasks, default=-1)) for one in self._handed_out]
        return original(self, subtasks)

    with mock.patch.object(SplitAssignment, "take_back", take_back):
        yield


@mutant
def failed_regions_later_splits_are_lost() -> Iterator[None]:
    """What a failed reader was given since the checkpoint is not handed out again."""

    def take_back(self: SplitAssignment, subtasks: Any) -> Any:
        self._handed_out = [one for one in self._handed_out if one.subtask not in subtasks]
        return []

    with mock.patch.object(SplitAssignment, "take_back", take_back):
        yield


@mutant
def splits_in_the_checkpoint_are_given_back_too() -> Iterator[None]:
    """It is not noticed that a checkpoint is complete: what its readers' snapshots hold comes back as well."""
    with mock.patch.object(SplitAssignment, "completed", return_value=[]):
        yield


@mutant
def checkpoint_completes_with_acknowledgements_of_dead_attempts() -> Iterator[None]:
    """The coordinator goes on with the checkpoints that were under way when a region failed."""
    stopped, started = CheckpointCoordinator._on_execution_stopped, CheckpointCoordinator._on_execution_started

    def on_stopped(self: Any, message: Any, now_ms: int) -> Any:
        pending, ready = dict(self._pending), dict(self._ready)
        commands = stopped(self, message, now_ms)
        self._pending, self._ready = pending, ready
        return commands

    def on_started(self: Any, message: Any, now_ms: int) -> Any:
        commands = started(self, message, now_ms)
        self._pending.clear()  # what the dead have not acknowledged never will be
        return [*commands, *self._publish_next(now_ms)]

    with (
        mock.patch.object(CheckpointCoordinator, "_on_execution_stopped", on_stopped),
        mock.patch.object(CheckpointCoordinator, "_on_execution_started", on_started),
    ):
        yield


@mutant
def one_member_of_a_region_runs_on() -> Iterator[None]:
    """A region is restarted without one of the subtasks that are connected to it."""
    original = PipelinedRegions.touched_by

    def touched_by(self: PipelinedRegions, subtasks: Any) -> Any:
        failed = set(subtasks)
        region = original(self, failed)
        return region - set(sorted(region - failed)[:1])

    with mock.patch.object(PipelinedRegions, "touched_by", touched_by):
        yield


@mutant
def restart_does_not_wait_for_the_coordinator() -> Iterator[None]:
    """A checkpoint may be chosen while another one is being published."""
    begin = stopping.begin

    def begin_without_waiting(job: Any, now_ms: int) -> Any:
        commands = begin(job, now_ms)
        job.state.has_coordinator_stopped = True
        return commands + stopping.advance(job, now_ms)

    with mock.patch.dict(PHASES, {Phase.STOPPING: stopping.STOPPING._replace(begin=begin_without_waiting)}):
        yield


@mutant
def lists_are_dealt_out_to_a_region() -> Iterator[None]:
    """A restarted subtask is given list state of those that run on."""

    def restore(manifest: Any, *arguments: Any) -> Any:
        operators = tuple(replace(one, parallelism=one.parallelism + 1) for one in manifest.operators)
        return assign(replace(manifest, operators=operators), *arguments)

    assign = deployment.assign_restore
    with mock.patch.object(deployment, "assign_restore", restore):
        yield


@mutant
def request_of_a_task_that_is_being_stopped_is_answered() -> Iterator[None]:
    """A reader that is being canceled is still given splits, and nobody remembers."""

    def split_requested(self: Any, request: Any) -> Any:
        answer = self._sources.requested(request)
        if answer is not None and not self.graph.find(request.attempt).is_wanted:
            for assignment in self._sources._assignments.values():
                assignment._handed_out = [one for one in assignment._handed_out if one.split is not answer.split]
        return [] if answer is None else self._answer([answer])

    with mock.patch.object(JobExecution, "split_requested", split_requested):
        yield


@mutant
def region_goes_back_to_the_beginning() -> Iterator[None]:
    """A restarted region does not restore the newest checkpoint, but nothing."""
    prepared = preparing.prepared

    def prepared_for_nothing(job: Any, preparation: Any, now_ms: int) -> Any:
        if not job.run.is_whole(job.state.scope):
            job.state.base_id = 0
            preparation = replace(preparation, restore_point=None)
        return prepared(job, preparation, now_ms)

    with mock.patch.object(preparing, "prepared", prepared_for_nothing):
        yield


@mutant
def rescale_is_forgotten_by_the_next_leader() -> Iterator[None]:
    """A leader that takes over deploys the job as it was submitted."""
    original = JobRecord._succeed

    def succeed(self: JobRecord, predecessor: Any) -> None:
        original(self, replace(predecessor, parallelism={}))

    with mock.patch.object(JobRecord, "_succeed", succeed):
        yield


@mutant
def rescale_writes_the_submitted_parallelism_into_checkpoints() -> Iterator[None]:
    """What a checkpoint says of its parallelism is not what it was taken at."""
    original = checkpoint_io._operator_states

    def operator_states(job: Any, snapshots: Any, parallelism: Any) -> Any:
        return original(job, snapshots, {})

    with mock.patch.object(checkpoint_io, "_operator_states", operator_states):
        yield


@mutant
def rescale_does_not_deal_lists_out() -> Iterator[None]:
    """Every subtask keeps the lists of its number, whatever the parallelism was."""

    def restore(manifest: Any, root: Any, operators: Any, subtask: int, parallelism: int) -> Any:
        alike = tuple(
            replace(one, parallelism=parallelism, subtasks=tuple(s for s in one.subtasks if s.subtask < parallelism))
            for one in manifest.operators
        )
        return assign(replace(manifest, operators=alike), root, operators, subtask, parallelism)

    assign = deployment.assign_restore
    with mock.patch.object(deployment, "assign_restore", restore):
        yield


def is_caught(name: str, max_seeds: int) -> tuple[int | None, str]:
    """Run seeds under a mutant; gives the seed that caught it and how."""
    with REGION_MUTANTS[name]():
        return caught_by(f"region: {name}", lambda seed: run_for(name, seed), max_seeds)


def run_for(name: str, seed: int) -> None:
    """Run one seed that can show a bug."""
    if name.startswith("rescale_"):
        run_rescale_seed(seed)
    else:
        run_seed(seed, shapes=REGIONS)


def main() -> int:
    survivors = 0
    for name in sys.argv[1:] or REGION_MUTANTS:
        seed, how = is_caught(name, 400)
        survivors += seed is None
        print(f"{name}: {'SURVIVED' if seed is None else f'caught by seed {seed}: {how}'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
