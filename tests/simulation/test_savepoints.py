"""Savepoints under faults, over many seeds, and planted bugs that must be noticed.

Crash family: whatever dies while a savepoint is taken, it is complete or absent, the job's output is what it would have
been, and a run from it gives exactly the rest. Mutation family: each rule of savepoints has a bug that breaks it.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.planted import caught_by
from simulation.savepoints import run_savepoint_seed

from headrace.connectors.files.writer import FileWriter
from headrace.engine.checkpoint import coordinator as checkpointing
from headrace.engine.checkpoint import garbage
from headrace.engine.checkpoint import io as checkpoint_io
from headrace.engine.checkpoint import pending as pending_checkpoint
from headrace.engine.job.context import savepoints as job_savepoints
from headrace.engine.job.context.savepoints import JobSavepoints
from headrace.engine.job.phases import preparing
from headrace.engine.kernel.config import StateSettings
from headrace.engine.kernel.machine import Send
from headrace.engine.protocol.checkpoint_messages import CheckpointRequested
from headrace.engine.task.checkpoints import TaskCheckpoints
from headrace.state.checkpoints.storage import CheckpointStorage
from headrace.state.files.memory import MemoryFileSystem

pytestmark = pytest.mark.slow


@pytest.fixture
def on_rocksdb(tmp_path):
    """Puts a program's state into databases."""
    state = StateSettings("rocksdb", 16 << 20, str(tmp_path))
    yield lambda graph: replace(graph, settings=replace(graph.settings, state=state))
    gc.collect()  # simulated processes that were killed are mere cycles of objects


@pytest.mark.parametrize("block", blocks(1, 12))
def test_a_savepoint_is_complete_or_absent_and_gives_exactly_the_rest(block: int) -> None:
    ends = Counter(run_savepoint_seed(seed) for seed in seeds(block, 10, part=3))
    assert ends["taken"] > 0
    assert ends["stopped"] > 0


@pytest.mark.parametrize("block", blocks(1, 3))
def test_savepoints_of_databases_are_self_contained(on_rocksdb: Any, block: int) -> None:
    first = 7_000 + 10 * block
    ends = Counter(run_savepoint_seed(seed, mutate=on_rocksdb) for seed in range(first, first + 10))
    assert ends["taken"] + ends["stopped"] > 3


# -------------------------------------------------------------------------------------------------------- planted bugs
def is_noticed(bug: str, max_seeds: int, mutate: Any = None, **options: Any) -> bool:
    def run(seed: int) -> None:
        run_savepoint_seed(seed, mutate=mutate, **options)

    return caught_by(f"savepoint: {bug}", run, max_seeds)[0] is not None


@contextmanager
def patched(*patches: tuple[Any, str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


@pytest.mark.campaign
def test_a_savepoint_that_builds_on_a_checkpoint_is_noticed(on_rocksdb: Any) -> None:
    original = checkpointing.CheckpointCoordinator._trigger_savepoints

    def trigger(self: Any, now_ms: int) -> Any:
        base = self._completed[-1][0] if self._completed else 0
        commands = original(self, now_ms)
        return [
            Send(c.to, replace(c.message, base_id=base)) if isinstance(c, Send) and asks(c.message) else c
            for c in commands
        ]

    def asks(message: Any) -> bool:
        return isinstance(message, CheckpointRequested)

    with patched((checkpointing.CheckpointCoordinator, "_trigger_savepoints", trigger)):
        assert is_noticed("savepoint_that_builds_on_a_checkpoint", 100, on_rocksdb)


def test_a_savepoint_that_becomes_a_base_is_noticed() -> None:
    original = checkpointing.CheckpointCoordinator._complete

    def complete(self: Any, pending: Any, path: str, now_ms: int) -> Any:
        commands = original(self, pending, path, now_ms)
        if pending.savepoint is not None and self._settings is not None:
            self._completed = [(pending.checkpoint_id, path)]
            commands = [*commands, *self._collect_garbage()]
        return commands

    with patched((checkpointing.CheckpointCoordinator, "_complete", complete)):
        assert is_noticed("savepoint_that_becomes_a_base", 200)


def test_checkpoints_that_name_files_of_a_savepoint_are_noticed(on_rocksdb: Any) -> None:
    original = checkpointing.CheckpointCoordinator._complete
    original_end = TaskCheckpoints.upload_ended

    def complete(self: Any, pending: Any, path: str, now_ms: int) -> Any:
        if pending.savepoint is not None and self._completed:
            self._completed.append((pending.checkpoint_id, path))
        return original(self, pending, path, now_ms)

    def upload_ended(self: Any, checkpoint_id: int, snapshots: Any, error: Any) -> None:
        taken = self._taken.get(checkpoint_id)
        if taken is not None and snapshots is not None:
            self._chain.snapshot_stored(checkpoint_id, snapshots)
        original_end(self, checkpoint_id, snapshots, error)

    with patched(
        (checkpointing.CheckpointCoordinator, "_complete", complete), (TaskCheckpoints, "upload_ended", upload_ended)
    ):
        assert is_noticed("checkpoints_that_name_files_of_a_savepoint", 400, on_rocksdb)


def test_a_savepoint_published_before_all_have_acknowledged_is_noticed() -> None:
    def is_fully_acknowledged(self: Any) -> bool:
        if self.awaited is None:
            return False
        return bool(self.acknowledged) if self.savepoint else len(self.acknowledged) == len(self.awaited)

    with patched((pending_checkpoint.PendingCheckpoint, "is_fully_acknowledged", property(is_fully_acknowledged))):
        assert is_noticed("savepoint_published_before_all_have_acknowledged", 100)


def test_a_clean_up_that_takes_savepoints_too_is_noticed() -> None:
    original = checkpoint_io.collect_garbage

    def collect(directory: str, *args: Any, **options: Any) -> Any:
        deleted = original(directory, *args, **options)
        files = MemoryFileSystem.named(directory.split("/")[2]).files
        for path in [path for path in files if path.startswith("savepoints/") and "/chk-" in path]:
            files.pop(path)
        return deleted

    with patched((garbage, "collect_garbage", collect)):
        assert is_noticed("clean_up_that_takes_savepoints_too", 100)


def test_a_claim_that_deletes_too_early_is_noticed() -> None:
    original = checkpoint_io.prepare_job

    def prepare(job: Any, *args: Any, **options: Any) -> Any:
        preparation = original(job, *args, **options)
        checkpoints = job.settings.checkpoints
        checkpoint_io._release_claim(CheckpointStorage.open(checkpoints.directory, job.job_id))
        return preparation

    with patched((preparing, "prepare_job", prepare)):
        assert is_noticed("claim_that_deletes_too_early", 100)


def test_a_job_that_goes_on_behind_the_savepoint_it_is_stopped_with_is_noticed() -> None:
    with patched((JobSavepoints, "suspends", lambda _self, _request: False)):
        assert is_noticed("job_that_goes_on_behind_the_savepoint_it_is_stopped_with", 200)


COMMITS = (("sink.commit.after", 3), ("recv.FinishTask", 1))
"""The last checkpoint of a stop is complete, and something dies before all of it is committed."""


@pytest.mark.parametrize("block", blocks(1, 3))
@pytest.mark.campaign
def test_a_job_that_dies_at_its_last_commits_has_been_stopped(block: int) -> None:
    ends = Counter(
        run_savepoint_seed(seed, kills_at=COMMITS[seed % 2 :][:1], stop=(False, False, True))
        for seed in range(20 * block, 20 * block + 20)
    )
    assert ends["stopped"] > 3


def test_a_last_checkpoint_that_does_not_name_its_savepoint_is_noticed() -> None:
    with patched((JobSavepoints, "marks", lambda _self, _request: {})):
        assert is_noticed(
            "last_checkpoint_that_does_not_name_its_savepoint", 100, kills_at=COMMITS[1:], stop=(True,)
        )  # it reads on behind windows that were drained


def test_a_job_that_runs_on_from_the_checkpoint_it_was_stopped_at_is_noticed() -> None:
    with patched((JobSavepoints, "is_stopped", property(lambda _self: False))):
        assert is_noticed("job_that_runs_on_from_its_last_checkpoint", 60, kills_at=COMMITS[1:], stop=(False,))


def test_a_checkpoint_between_the_drain_and_its_savepoint_is_noticed() -> None:
    with patched((JobSavepoints, "refuses", lambda _self, _request: False)):
        assert is_noticed(
            "checkpoint_between_the_drain_and_its_savepoint",
            200,
            kills_at=(("io.publish_checkpoint.before", 5),),
            stop=(True,),
        )


@pytest.mark.campaign
def test_a_sink_that_tidies_up_what_a_savepoint_holds_is_noticed() -> None:
    with patched((FileWriter, "retain", lambda _self, _committables: None)):
        assert is_noticed("sink_that_tidies_up_what_a_savepoint_holds", 400)


def test_a_savepoint_that_is_told_before_it_is_there_is_noticed() -> None:
    original = job_savepoints.JobSavepoints.begun

    def begun(self: Any, event: Any, *args: Any, now_ms: int, **options: Any) -> Any:
        commands = original(self, event, *args, now_ms=now_ms, **options)
        savepoint = self._requests.get(event.token.request_id)
        if savepoint is not None and savepoint.answer is None and savepoint.stop is None:
            status = job_savepoints.SavepointStatus(
                savepoint.epoch, job_savepoints.SavepointState.COMPLETE, savepoint.root
            )
            commands = [*commands, *self._decide(savepoint, status)]
        return commands

    with patched((job_savepoints.JobSavepoints, "begun", begun)):
        assert is_noticed("savepoint_that_is_told_before_it_is_there", 100)
