"""Windows on columns under faults. Families: crash (random faults against a reference, on both state backends, rescales
and unaligned checkpoints among them), mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.column_windows import COLUMN_WINDOWS, sessions_on_columns
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.simulator import run_seed
from simulation.test_state_backends import on_rocksdb as on_rocksdb  # a fixture
from simulation.unaligned import run_cut_off_seed

from headrace.engine.windows.columnar import session_grouping, session_runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 12))
def test_nothing_is_lost_or_doubled(block: int) -> None:
    for seed in seeds(block, 4):
        run_seed(seed, shapes=COLUMN_WINDOWS)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_on_rocksdb(on_rocksdb: Callable[[Any], Any], block: int) -> None:
    for seed in seeds(block, 4, first=1_000):
        run_seed(seed, shapes=COLUMN_WINDOWS, mutate=on_rocksdb)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_if_the_job_is_rescaled_meanwhile(block: int) -> None:
    for seed in seeds(block, 4):
        run_rescale_seed(seed, shapes=COLUMN_WINDOWS)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_if_it_goes_on_from_an_unaligned_checkpoint(block: int) -> None:
    for seed in seeds(block, 4):
        run_cut_off_seed(seed, COLUMN_WINDOWS)


@contextmanager
def sessions_that_have_fired_are_in_checkpoints() -> Iterator[None]:
    """Dead rows stay in the table."""
    with mock.patch.object(session_runs.SessionRuns, "purge", return_value=None):
        yield


@contextmanager
def sessions_that_go_on_are_forgotten() -> Iterator[None]:
    """A row that was due has been fetched, its session goes on, and is not put back."""
    with mock.patch.object(session_runs.SessionRuns, "_add_again", return_value=None):
        yield


@contextmanager
def what_a_restore_brings_is_not_found() -> Iterator[None]:
    """It is in the table, and nobody knows when it is due."""
    with mock.patch.object(session_runs.SessionRuns, "load", return_value=None):
        yield


@contextmanager
def sessions_that_touch_are_two() -> Iterator[None]:
    original = session_grouping._latest
    with mock.patch.object(session_grouping, "_latest", lambda *given: original(*given) - 1):
        yield


PLANTED = (
    sessions_that_have_fired_are_in_checkpoints,
    sessions_that_go_on_are_forgotten,
    what_a_restore_brings_is_not_found,
    sessions_that_touch_are_two,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(
            f"column windows: {plant.__name__}", lambda seed: run_seed(seed, shapes=(sessions_on_columns,)), 100
        )
    assert caught is not None, "the simulator did not notice"
    run_seed(caught, shapes=(sessions_on_columns,))  # and it is the bug that was noticed
