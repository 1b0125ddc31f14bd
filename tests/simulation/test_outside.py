"""Families: crash (random faults against a reference, reading from servers that nobody restores), mutation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation import simulator
from simulation.outside import OUTSIDE
from simulation.planted import caught_by
from simulation.simulator import run_seed

from headrace.engine.connectors import sources
from headrace.engine.job.sources import source_coordinator, split_assignment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 5))
def test_nothing_of_a_queue_or_log_is_lost_or_read_twice(block: int) -> None:
    for seed in seeds(block, 20):
        run_seed(seed, shapes=OUTSIDE)


@contextmanager
def readers_hear_of_checkpoints_that_are_only_begun() -> Iterator[None]:
    """What a reader acknowledges then is in no checkpoint when that fails."""
    original = sources.SourceOperator.snapshot_state

    def snapshot_state(self: Any, checkpoint_id: int) -> None:
        original(self, checkpoint_id)
        if hasattr(self._reader, "notify_checkpoint_complete"):
            self._reader.notify_checkpoint_complete(checkpoint_id)

    with mock.patch.object(sources.SourceOperator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def readers_hear_of_no_checkpoint() -> Iterator[None]:
    """Nothing is ever acknowledged."""
    with mock.patch.object(sources, "attach", return_value=None):
        yield


@contextmanager
def splits_are_read_before_a_checkpoint_holds_them() -> Iterator[None]:
    """The next leader finds another end of the log."""
    original = split_assignment.SplitAssignment.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "checkpointing": False})

    with mock.patch.object(split_assignment.SplitAssignment, "__init__", init):
        yield


@contextmanager
def only_one_endless_split_is_given_to_a_reader() -> Iterator[None]:
    """Partitions beyond the number of subtasks are never read."""
    deal_out, give = split_assignment.SplitAssignment._deal_out, split_assignment.SplitAssignment._give

    def deal_out_once(self: Any) -> Any:
        served = {attempt for attempt, answer in self._answered.items() if answer.splits}
        hidden = {attempt: one for attempt, one in self._waiting.items() if attempt in served}
        self._waiting = {attempt: one for attempt, one in self._waiting.items() if attempt not in served}
        answers = deal_out(self)
        self._waiting = {**hidden, **self._waiting}
        return answers

    def give_one(self: Any, attempt: Any, share: Any) -> Any:
        return give(self, attempt, share[:1])

    with (
        mock.patch.object(split_assignment.SplitAssignment, "_deal_out", deal_out_once),
        mock.patch.object(split_assignment.SplitAssignment, "_give", give_one),
    ):
        yield


@contextmanager
def a_look_that_fails_is_the_last_one() -> Iterator[None]:
    """It is noted and never made again."""
    original = source_coordinator.SourceCoordinator._discovery_failed

    def failed(self: Any, uid: Any, error: BaseException) -> Any:
        said = original(self, uid, error)
        said.commands = []
        return said

    with mock.patch.object(source_coordinator.SourceCoordinator, "_discovery_failed", failed):
        yield


PLANTED = (
    readers_hear_of_checkpoints_that_are_only_begun,
    readers_hear_of_no_checkpoint,
    splits_are_read_before_a_checkpoint_holds_them,
    only_one_endless_split_is_given_to_a_reader,
    a_look_that_fails_is_the_last_one,
)


ENOUGH_EVENTS = 20_000
"""More than a run without a bug takes, so that what hangs is noticed soon."""


def run_briefly(seed: int) -> Any:
    with mock.patch.multiple(simulator, MAX_EVENTS=ENOUGH_EVENTS, MAX_EVENTS_OF_RUN=ENOUGH_EVENTS):
        return run_seed(seed, shapes=OUTSIDE)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(f"source: {plant.__name__}", run_briefly, 300)
    assert caught is not None, "the simulator did not notice"
    run_briefly(caught)  # and it is the bug that was noticed
