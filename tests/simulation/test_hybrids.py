"""Families: crash (random faults around switches against a reference, rescales among them), mutation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation import simulator
from simulation.hybrids import HYBRIDS, archived, chained
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.simulator import run_seed

from headrace.connectors.hybrid import enumerator as hybrid_enumerator
from headrace.connectors.hybrid import reader as hybrid_reader
from headrace.engine.connectors import sources

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 6))
def test_nothing_is_lost_doubled_or_late_around_a_switch(block: int) -> None:
    for seed in seeds(block, 8):
        run_seed(seed, shapes=HYBRIDS)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(4)
def test_nor_if_the_job_is_rescaled_meanwhile(seed: int) -> None:
    run_rescale_seed(seed, shapes=HYBRIDS)


@contextmanager
def the_next_source_begins_before_the_last_one_is_read() -> Iterator[None]:
    """Readers are still reading what was handed out."""
    original = hybrid_enumerator.HybridEnumerator.discover_from

    def discover_from(self: Any, progress: Any) -> Any:
        discovery = original(self, dataclasses.replace(progress, is_exhausted=True))
        self.discovery_interval_ms = 5
        return discovery

    with mock.patch.object(hybrid_enumerator.HybridEnumerator, "discover_from", discover_from):
        yield


@contextmanager
def a_switch_is_remembered_by_the_leader_only() -> Iterator[None]:
    """Checkpoints hold the splits, and not which source they were of."""
    original = hybrid_enumerator.HybridEnumerator._said

    def said(self: Any, begun: Any, discovery: Any) -> Any:
        self.remembered = begun
        return original(self, begun, discovery)

    def begun_of(self: Any, _progress: Any) -> Any:
        return getattr(self, "remembered", None) or [hybrid_enumerator._Begun()]

    with (
        mock.patch.object(hybrid_enumerator.HybridEnumerator, "_said", said),
        mock.patch.object(hybrid_enumerator.HybridEnumerator, "_begun", begun_of),
    ):
        yield


@contextmanager
def a_source_that_is_over_is_looked_at_once_more() -> Iterator[None]:
    """Where it has ended is asked at the switch, when more is there than was read."""
    original = hybrid_enumerator._as_stored

    def look_again(end_position: Any, index: int) -> Any:
        if isinstance(end_position, dict) and "end" in end_position:
            end_position = {"end": end_position["end"] + 1}
        return original(end_position, index)

    with mock.patch.object(hybrid_enumerator, "_as_stored", look_again):
        yield


@contextmanager
def readers_that_finish_everything_do_not_say_so() -> Iterator[None]:
    """The one request that is under way still counts splits that are finished."""
    original = sources.SourceOperator.wants_split.fget
    assert original is not None

    def wants_split(self: Any) -> bool:
        return not self._requested and original(self)

    with mock.patch.object(sources.SourceOperator, "wants_split", property(wants_split)):
        yield


@contextmanager
def splits_of_later_sources_are_in_no_checkpoint() -> Iterator[None]:
    """The reader tells of its first source's splits only."""
    original = hybrid_reader.HybridReader.snapshot_for

    def snapshot_for(self: Any, checkpoint_id: int) -> Any:
        return [split for split in original(self, checkpoint_id) if split.payload["source"] == 0]

    with mock.patch.object(hybrid_reader.HybridReader, "snapshot_for", snapshot_for):
        yield


PLANTED = (
    (the_next_source_begins_before_the_last_one_is_read, archived),
    (a_switch_is_remembered_by_the_leader_only, archived),
    (a_source_that_is_over_is_looked_at_once_more, archived),
    (readers_that_finish_everything_do_not_say_so, chained),
    (splits_of_later_sources_are_in_no_checkpoint, archived),
)

ENOUGH_EVENTS = 20_000
"""More than a run without a bug takes, so that what hangs is noticed soon."""


@pytest.mark.parametrize(("plant", "shape"), PLANTED, ids=lambda value: value.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(plant: Any, shape: Any) -> None:
    def run_briefly(seed: int) -> Any:
        with mock.patch.multiple(simulator, MAX_EVENTS=ENOUGH_EVENTS, MAX_EVENTS_OF_RUN=ENOUGH_EVENTS):
            return run_seed(seed, shapes=(shape,))

    with plant():
        caught, _ = caught_by(f"hybrid: {plant.__name__}", run_briefly, 100)
    assert caught is not None, "the simulator did not notice"
    run_briefly(caught)  # and it is the bug that was noticed
