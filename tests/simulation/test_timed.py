"""Tables by event time under faults. Families: crash (random faults against plain loops, on both state backends,
rescales, savepoints and unaligned checkpoints among them), mutation (bugs that are planted are noticed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from campaigns import blocks, seeds
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.savepoints import run_savepoint_seed
from simulation.simulator import run_seed
from simulation.test_state_backends import on_rocksdb as on_rocksdb  # a fixture
from simulation.timed import LATER, TIMED
from simulation.unaligned import run_cut_off_seed

from headrace.engine.operators.event_time import _IngestionTime
from headrace.engine.tables import row_store, run_log
from headrace.engine.tables.row_store import RowStore
from headrace.engine.timed import interval_state, over_by_time_state, temporal_state
from headrace.engine.timed.interval_state import IntervalState
from headrace.engine.timed.over_by_time_state import OverState
from headrace.engine.timed.sort_state import SortState
from headrace.engine.timed.temporal_state import TemporalState

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large tables do now and then, small ones do often."""
    for module in (interval_state, over_by_time_state, row_store, temporal_state):
        monkeypatch.setattr(module, "_MIN_DEAD", 2)
    monkeypatch.setattr(run_log, "MIN_ROWS", 10)


@pytest.mark.parametrize("block", blocks(1, 12))
def test_each_row_is_given_once_with_what_plain_loops_give(block: int) -> None:
    for seed in seeds(block, 5):
        run_seed(seed, shapes=TIMED)


@pytest.mark.parametrize("block", blocks(1, 8))
def test_rows_come_in_order_and_those_that_expire_once(block: int) -> None:
    for seed in seeds(block, 5):
        run_seed(seed, shapes=LATER)


@pytest.mark.parametrize("block", blocks(1, 5))
def test_and_so_they_do_on_rocksdb_and_rescaled(on_rocksdb: Callable[[Any], Any], block: int) -> None:
    for seed in seeds(block, 3, first=2_000):
        run_seed(seed, shapes=LATER, mutate=on_rocksdb)
        run_rescale_seed(seed, shapes=LATER)
        run_cut_off_seed(seed, LATER)


@pytest.mark.parametrize("block", blocks(1, 5))
def test_and_so_it_is_on_rocksdb(on_rocksdb: Callable[[Any], Any], block: int) -> None:
    for seed in seeds(block, 5, first=1_000):
        run_seed(seed, shapes=TIMED, mutate=on_rocksdb)


@pytest.mark.parametrize("block", blocks(1, 5))
def test_and_if_the_job_is_rescaled_meanwhile(block: int) -> None:
    assert sum(run_rescale_seed(seed, shapes=TIMED).done for seed in range(4 * block, 4 * block + 4)) > 0


@pytest.mark.parametrize("block", blocks(1, 5))
def test_and_if_it_goes_on_from_an_unaligned_checkpoint(block: int) -> None:
    for seed in seeds(block, 4):
        run_cut_off_seed(seed, TIMED)


@pytest.mark.parametrize("block", blocks(1, 2))
@pytest.mark.campaign
def test_and_from_savepoints(block: int) -> None:
    ends = [run_savepoint_seed(seed, shapes=TIMED) for seed in range(8 * block, 8 * block + 8)]
    assert "taken" in ends or "stopped" in ends


# --------------------------------------------------------------------------------------------------------- planted bugs
@contextmanager
def rows_that_are_out_wait_again() -> Iterator[None]:
    """What a row's number says is not in the log, so a restored row is given a second time."""
    original = RowStore._put

    def put(self: Any, codes: Any, columns: Any, numbers: Any, sequence: Any) -> None:
        original(self, codes, columns, np.zeros_like(numbers), sequence)

    with mock.patch.object(RowStore, "_put", put):
        yield


@contextmanager
def what_was_added_up_is_no_state() -> Iterator[None]:
    with mock.patch.object(over_by_time_state._FoldedRows, "persist", return_value=None):
        yield


@contextmanager
def rows_are_forgotten_too_soon() -> Iterator[None]:
    """Frames that go by distance lose a row that they begin with."""
    original = OverState._forget_until

    def forget_until(self: Any, watermark_ms: int) -> None:
        original(self, watermark_ms + 20)

    with mock.patch.object(OverState, "_forget_until", forget_until):
        yield


@contextmanager
def versions_are_forgotten_too_soon() -> Iterator[None]:
    """A version takes over before the watermark has passed its begin."""
    original = TemporalState._forget_until

    def forget_until(self: Any, watermark_ms: int) -> None:
        original(self, watermark_ms + 20)

    with mock.patch.object(TemporalState, "_forget_until", forget_until):
        yield


@contextmanager
def rows_with_a_version_wait_again() -> Iterator[None]:
    """That a row has gone out is not in the log."""
    original = RowStore.persist

    def persist(self: Any) -> None:
        self._gone.clear()
        original(self)

    with mock.patch.object(RowStore, "persist", persist):
        yield


@contextmanager
def rows_go_out_alone_too_soon() -> Iterator[None]:
    """A row that can still find a pair is forgotten, or given without one."""
    original = IntervalState.pass_time

    def pass_time(self: Any, watermark_ms: int) -> Any:
        return original(self, watermark_ms + 150)

    with mock.patch.object(IntervalState, "pass_time", pass_time):
        yield


@contextmanager
def that_a_row_has_a_pair_is_no_state() -> Iterator[None]:
    def set_numbers(self: Any, ids: Any, numbers: Any) -> None:
        self.numbers[ids] = numbers

    with mock.patch.object(RowStore, "set_numbers", set_numbers):
        yield


@contextmanager
def what_waits_for_its_turn_is_no_state() -> Iterator[None]:
    with mock.patch.object(SortState, "persist", return_value=None):
        yield


@contextmanager
def rows_go_out_as_they_have_come() -> Iterator[None]:
    with mock.patch.object(SortState, "_order_of", lambda _self, ids: np.arange(len(ids))):
        yield


@contextmanager
def forgotten_values_are_known() -> Iterator[None]:
    """A value that comes again, behind the end of its partition, is not counted."""
    with mock.patch.object(over_by_time_state._DifferentValues, "forget", return_value=None):
        yield


@contextmanager
def rows_of_the_watermarks_time_still_come() -> Iterator[None]:
    """Time of arrival says that nothing of a millisecond comes any more while that is not over."""
    with mock.patch.object(_IngestionTime, "on_batch", lambda _self, timestamps, _batch: int(timestamps.max())):
        yield


PLANTED = (
    rows_of_the_watermarks_time_still_come,
    rows_go_out_alone_too_soon,
    that_a_row_has_a_pair_is_no_state,
    rows_that_are_out_wait_again,
    what_was_added_up_is_no_state,
    rows_are_forgotten_too_soon,
    versions_are_forgotten_too_soon,
    rows_with_a_version_wait_again,
)


LATER_PLANTED = (what_waits_for_its_turn_is_no_state, rows_go_out_as_they_have_come, forgotten_values_are_known)


@pytest.mark.parametrize("plant", LATER_PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(9)
def test_planted_bug_of_order_or_time_is_caught(plant: Any) -> None:
    run = lambda seed: run_seed(seed, shapes=LATER)
    with plant():
        caught, _ = caught_by(f"timed: {plant.__name__}", run, 300)
    assert caught is not None, "the simulator did not notice"
    run(caught)  # without the bug the seed passes


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(9)
def test_planted_bug_is_caught(plant: Any) -> None:
    run = lambda seed: run_seed(seed, shapes=TIMED)
    with plant():
        caught, _ = caught_by(f"timed: {plant.__name__}", run, 300)
    assert caught is not None, "the simulator did not notice"
    run(caught)  # without the bug the seed passes
