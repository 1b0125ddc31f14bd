"""Families: crash (random faults against plain loops, over changes), mutation (bugs that are planted are noticed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from campaigns import blocks
from simulation.changelogs import CHANGELOGS
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.savepoints import run_savepoint_seed
from simulation.simulator import run_seed

from headrace.engine.changelog import grouped_state, join_state, rank_state
from headrace.engine.changelog.grouped_state import GroupedState
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import StateSettings
from headrace.engine.tables import row_store, run_log, value_counts
from headrace.engine.tables.row_store import RowStore
from headrace.engine.tables.value_counts import ValueCounts

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large tables do now and then, small ones do often: logs are replaced, what is gone is forgotten."""
    for module in (grouped_state, join_state, rank_state, row_store, value_counts):
        monkeypatch.setattr(module, "_MIN_DEAD", 2)
    monkeypatch.setattr(run_log, "MIN_ROWS", 10)


@pytest.fixture
def on_rocksdb(tmp_path: Path) -> Callable[[JobGraph], JobGraph]:
    state = StateSettings("rocksdb", 16 << 20, str(tmp_path / "local"))
    return lambda graph: replace(graph, settings=replace(graph.settings, state=state))


@pytest.mark.parametrize("block", blocks(1, 20))
def test_changes_come_to_what_plain_loops_give(block: int) -> None:
    outcomes = [run_seed(seed, shapes=CHANGELOGS) for seed in range(25 * block, 25 * block + 25)]
    assert sum(outcome.restarts for outcome in outcomes) > 3
    assert sum(outcome.checkpoints for outcome in outcomes) > 20


@pytest.mark.parametrize("block", blocks(1, 20))
def test_and_so_they_do_on_rocksdb(on_rocksdb: Any, block: int) -> None:
    for seed in range(5_000 + 10 * block, 5_010 + 10 * block):
        run_seed(seed, shapes=CHANGELOGS, mutate=on_rocksdb)


@pytest.mark.parametrize("block", blocks(1, 5))
def test_tables_are_rescaled(block: int) -> None:
    assert sum(run_rescale_seed(seed, shapes=CHANGELOGS).done for seed in range(3 * block, 3 * block + 3)) > 0


@pytest.mark.parametrize("block", blocks(1, 2))
def test_savepoints_hold_tables(block: int) -> None:
    ends = [run_savepoint_seed(seed, shapes=CHANGELOGS) for seed in range(10 * block, 10 * block + 10)]
    assert {"taken", "stopped"} <= set(ends)


# --------------------------------------------------------------------------------------------------------- planted bugs
@contextmanager
def an_update_takes_nothing_back() -> Iterator[None]:
    """One -U of a batch is lost."""
    original = GroupedState._changes

    def changes(self: Any, *given: Any) -> Any:
        arrays, kinds = original(self, *given)
        lost = np.flatnonzero(kinds == 1)[:1]
        left = np.delete(np.arange(len(kinds)), lost)
        return [array.take(left) for array in arrays], kinds[left]

    with mock.patch.object(GroupedState, "_changes", changes):
        yield


@contextmanager
def matches_are_not_restored() -> Iterator[None]:
    """A restored row has no matches."""
    original = RowStore._put

    def put(self: Any, codes: Any, columns: Any, numbers: Any, sequence: Any) -> None:
        original(self, codes, columns, np.zeros_like(numbers), sequence)

    with mock.patch.object(RowStore, "_put", put):
        yield


@contextmanager
def changed_matches_are_not_logged() -> Iterator[None]:
    """The log has the matches that a row had when it came."""

    def set_numbers(self: Any, ids: Any, numbers: Any) -> None:
        self.numbers[ids] = numbers

    with mock.patch.object(RowStore, "set_numbers", set_numbers):
        yield


@contextmanager
def compaction_forgets_a_row() -> Iterator[None]:
    """The last row that lives is not taken over."""
    original = RowStore._put

    def put(self: Any, codes: Any, columns: Any, numbers: Any, sequence: Any) -> None:
        kept = slice(0, max(len(codes) - 1, 1))
        original(self, codes[kept], [column[kept] for column in columns], numbers[kept], sequence[kept])

    with mock.patch.object(RowStore, "_put", put):
        yield


@contextmanager
def the_log_forgets_what_is_gone() -> Iterator[None]:
    """A row that was taken back comes back with a restore."""
    original = RowStore.persist

    def persist(self: Any) -> None:
        self._gone.clear()
        original(self)

    with mock.patch.object(RowStore, "persist", persist):
        yield


@contextmanager
def equal_hashes_are_taken_for_equal_rows() -> Iterator[None]:
    """Hashes have few bits, and nobody looks at the rows behind them."""
    everything = lambda left, right, num_rows: np.ones(num_rows, np.bool_)
    with mock.patch.object(RowStore, "hash_bits", 1), mock.patch.object(row_store, "same_rows", everything):
        yield


@contextmanager
def counts_of_values_are_no_state() -> Iterator[None]:
    with mock.patch.object(ValueCounts, "persist", return_value=None):
        yield


@contextmanager
def a_full_list_is_not_filled_again() -> Iterator[None]:
    """When one of the first rows is taken back, none takes its place."""
    original = rank_state.RankState._listed_anew

    def listed_anew(self: Any, come: Any, lost: Any) -> Any:
        with mock.patch.object(self, "_num_places", 1_000):
            return original(self, come, lost)

    with mock.patch.object(rank_state.RankState, "_listed_anew", listed_anew):
        yield


PLANTED = (
    an_update_takes_nothing_back,
    matches_are_not_restored,
    changed_matches_are_not_logged,
    compaction_forgets_a_row,
    the_log_forgets_what_is_gone,
    equal_hashes_are_taken_for_equal_rows,
    counts_of_values_are_no_state,
    a_full_list_is_not_filled_again,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bug_is_caught(plant: Any) -> None:
    run = lambda seed: run_seed(seed, shapes=CHANGELOGS)
    with plant():
        caught, _ = caught_by(f"changelog: {plant.__name__}", run, 300)
    assert caught is not None, "the simulator did not notice"
    run(caught)  # without the bug the seed passes
