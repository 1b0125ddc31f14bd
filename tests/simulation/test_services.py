"""Families: crash (random faults against a reference, into a service that turns entries away), mutation.

Beside the reference, which every entry must reach at least once, entries of a key must come in order; see
`simulation.services`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.batches import as_batch
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.savepoints import run_savepoint_seed
from simulation.services import SERVED, in_order, to_service
from simulation.simulator import run_seed

from headrace.engine.connectors.async_sink_operator import AsyncSinkOperator

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 8))
def test_every_entry_is_accepted_and_in_order(block: int) -> None:
    for seed in seeds(block, 8):
        run_seed(seed, shapes=SERVED)


@pytest.mark.campaign
def test_a_seed_replays_exactly() -> None:
    for seed in (3, 17):
        assert run_seed(seed, shapes=SERVED).digest == run_seed(seed, shapes=SERVED).digest


@pytest.mark.campaign
def test_buffers_are_dealt_out_anew() -> None:
    assert sum(run_rescale_seed(seed, shapes=SERVED).done for seed in range(15)) > 5


@pytest.mark.parametrize("block", blocks(1, 4))
def test_jobs_go_on_from_savepoints_with_what_was_not_sent(block: int) -> None:
    """Stopped or not, drained or not, at another parallelism, after kills; as `simulation.savepoints` draws it."""
    ways = Counter(run_savepoint_seed(seed, shapes=SERVED) for seed in range(8 * block, 8 * block + 8))
    assert ways["stopped"] + ways["taken"] > 2


def test_a_batch_is_sent() -> None:
    for seed in range(6):
        run_seed(seed, shapes=(to_service,), mutate=as_batch)


# --------------------------------------------------------------------------------------------------------- planted bugs
@contextmanager
def requests_under_way_are_no_state() -> Iterator[None]:
    """A snapshot holds what waits, and not what has been sent without an answer."""

    def snapshot_state(self: Any, _checkpoint_id: int) -> None:
        place = (self.context.subtask, self.context.parallelism)
        self._state.update([(place, entry.value) for entry in self._buffer])

    with mock.patch.object(AsyncSinkOperator, "snapshot_state", snapshot_state):
        yield


@contextmanager
def what_was_turned_away_is_dropped() -> Iterator[None]:
    """Every answer is taken for an acceptance."""
    with mock.patch.object(AsyncSinkOperator, "_turned_away", lambda _self, _request, _result: []):  # noqa: PT008
        yield


@contextmanager
def what_was_turned_away_goes_to_the_end() -> Iterator[None]:
    """Entries that are sent again come behind those that were written later."""
    original = AsyncSinkOperator._request_ended

    def request_ended(self: Any, request: Any, failed: list[Any]) -> None:
        later = list(self._buffer)
        self._buffer.clear()
        original(self, request, failed)
        self._buffer.extendleft(reversed(later))

    with mock.patch.object(AsyncSinkOperator, "_request_ended", request_ended):
        yield


@contextmanager
def job_ends_before_its_requests() -> Iterator[None]:
    """The end of input is the end, whatever waits."""
    with mock.patch.object(AsyncSinkOperator, "has_pending", False):
        yield


@contextmanager
def restored_entries_are_forgotten() -> Iterator[None]:
    """A subtask goes on with its own entries only if the parallelism is what it was."""

    def is_mine(self: Any, subtask: int, parallelism: int) -> bool:
        return (subtask, parallelism) == (self.context.subtask, self.context.parallelism)

    with mock.patch.object(AsyncSinkOperator, "_is_mine", is_mine):
        yield


@contextmanager
def job_starts_before_restored_entries_are_sent() -> Iterator[None]:
    """Records come while another subtask has older ones of their key to send."""
    with mock.patch.object(AsyncSinkOperator, "is_settled", property(lambda self: self._is_open)):
        yield


PLANTED = (
    requests_under_way_are_no_state,
    what_was_turned_away_is_dropped,
    what_was_turned_away_goes_to_the_end,
    job_ends_before_its_requests,
)

PLANTED_IN_RESCALES = (restored_entries_are_forgotten, job_starts_before_restored_entries_are_sent)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(f"service: {plant.__name__}", lambda seed: run_seed(seed, shapes=SERVED), 300)
    assert caught is not None, "the simulator did not notice"
    run_seed(caught, shapes=SERVED)  # without the bug the seed passes


@pytest.mark.parametrize("plant", PLANTED_IN_RESCALES, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_noticed_by_rescales(plant: Any) -> None:
    def run(seed: int) -> Any:
        return run_rescale_seed(seed, shapes=(in_order,))

    with plant():
        caught, _ = caught_by(f"service: {plant.__name__}", run, 300)
    assert caught is not None, "the simulator did not notice"
    run(caught)
