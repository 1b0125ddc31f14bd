"""Families: crash (random faults against plain loops, over changes), mutation (bugs that are planted are noticed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks, campaign, planted, seeds
from simulation.changelogs import CHAINS, CHANGELOGS, FRAMED, IN_COMMON, IN_PHASES, LOOKED_UP, SPLIT
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.savepoints import run_savepoint_seed
from simulation.simulator import run_seed

from headrace.engine.changelog import grouped_state, join_state, partition_rows, rank_state
from headrace.engine.changelog.grouped_state import GroupedState
from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import StateSettings
from headrace.engine.lookups.async_table_join import AsyncLookupJoinOfTables
from headrace.engine.multi_joins.chain_state import ChainState
from headrace.engine.operators.mini_batch import MiniBatch
from headrace.engine.tables import row_store, run_log, value_counts
from headrace.engine.tables.hash_runs import SortedRun
from headrace.engine.tables.key_index import KeyIndex
from headrace.engine.tables.resident_keys import ResidentKeys
from headrace.engine.tables.row_store import RowStore
from headrace.engine.tables.value_counts import ValueCounts
from headrace.state.backends.rocksdb.database import SlotMemory

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large tables do now and then, small ones do often: logs are replaced, what is gone is forgotten."""
    for module in (grouped_state, join_state, partition_rows, rank_state, row_store, value_counts):
        monkeypatch.setattr(module, "_MIN_DEAD", 2)
    monkeypatch.setattr(run_log, "MIN_ROWS", 10)


@pytest.fixture
def on_rocksdb(tmp_path: Path) -> Callable[[JobGraph], JobGraph]:
    state = StateSettings("rocksdb", 16 << 20, str(tmp_path / "local"))
    return lambda graph: replace(graph, settings=replace(graph.settings, state=state))


@pytest.mark.parametrize("block", blocks(1, 6))
def test_changes_come_to_what_plain_loops_give(block: int) -> None:
    outcomes = [run_seed(seed, shapes=CHANGELOGS) for seed in seeds(block, 25)]
    assert sum(outcome.restarts for outcome in outcomes) > 3
    assert sum(outcome.checkpoints for outcome in outcomes) > 20


@pytest.mark.parametrize("block", blocks(1, 8))
@pytest.mark.campaign
def test_and_so_they_do_on_rocksdb(on_rocksdb: Any, block: int) -> None:
    for seed in range(5_000 + 5 * block, 5_005 + 5 * block):
        run_seed(seed, shapes=CHANGELOGS, mutate=on_rocksdb)


@pytest.fixture
def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for tables: every batch reads its keys from the logs, and puts them aside again."""
    monkeypatch.setattr(SlotMemory, "table_share", lambda _memory: 0)
    monkeypatch.setattr(run_log, "BLOCK_BYTES", 100)
    monkeypatch.setattr(run_log, "_BLOCKS_AT_ONCE", 2)


@pytest.mark.parametrize("block", blocks(1, 6))
@pytest.mark.campaign
def test_and_so_they_do_without_room_in_memory(on_rocksdb: Any, without_room: None, block: int) -> None:
    for seed in range(9_000 + 10 * block, 9_010 + 10 * block):
        run_seed(seed, shapes=CHANGELOGS, mutate=on_rocksdb)


@pytest.mark.parametrize("block", blocks(1, 5))
def test_tables_are_rescaled(block: int) -> None:
    assert sum(run_rescale_seed(seed, shapes=CHANGELOGS).done for seed in seeds(block, 3)) > 0


@pytest.mark.parametrize("block", blocks(1, 2))
def test_savepoints_hold_tables(block: int) -> None:
    ends = [run_savepoint_seed(seed, shapes=CHANGELOGS) for seed in seeds(block, 10)]
    assert set(ends) >= ({"taken", "stopped"} if block else {"stopped"})


@pytest.mark.parametrize("block", blocks(1, 5))
def test_phases_and_mini_batches_come_to_what_plain_loops_give(on_rocksdb: Any, block: int) -> None:
    outcomes = [
        run_seed(seed, shapes=IN_PHASES, mutate=on_rocksdb if seed % 12 == 0 else None)
        for seed in seeds(block, 12, part=3)
    ]
    assert sum(outcome.restarts for outcome in outcomes) > 1
    run_rescale_seed(block, shapes=IN_PHASES)
    run_savepoint_seed(block, shapes=IN_PHASES)


def seed_that_notices(bug: str, plant: Any, shapes: Any) -> str:
    """How a seed fails with a bug, without which it passes."""
    run = lambda seed: run_seed(seed, shapes=shapes)
    with plant:
        caught, how = caught_by(f"changelog: {bug}", run, 100)
    assert caught is not None, "the simulator did not notice"
    run(caught)
    return how


def test_planted_bug_rows_that_wait_at_a_barrier_and_are_not_worked_off() -> None:
    plant = mock.patch.object(MiniBatch, "prepare_snapshot", return_value=None)
    assert "lost" in seed_that_notices("rows_that_wait_are_not_worked_off", plant, IN_PHASES)


@pytest.mark.parametrize("block", blocks(1, 3))
def test_frames_of_changes_come_to_what_plain_loops_give(on_rocksdb: Any, block: int) -> None:
    for seed in seeds(block, 8):
        run_seed(seed, shapes=FRAMED, mutate=on_rocksdb if seed % 8 == 0 else None)
    run_rescale_seed(block, shapes=FRAMED)
    run_savepoint_seed(block, shapes=FRAMED)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_values_by_buckets_and_groups_that_live_long_come_to_the_same(on_rocksdb: Any, block: int) -> None:
    for seed in seeds(block, 8):
        run_seed(seed, shapes=SPLIT, mutate=on_rocksdb if seed % 4 == 0 else None)
    run_rescale_seed(block, shapes=SPLIT)
    run_savepoint_seed(block, shapes=SPLIT)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_chains_of_joins_come_to_what_plain_loops_give(on_rocksdb: Any, block: int) -> None:
    for seed in seeds(block, 4):
        run_seed(seed, shapes=CHAINS, mutate=on_rocksdb if seed % 4 == 1 else None)


@pytest.mark.parametrize("block", blocks(0, 3))
def test_chains_of_joins_are_rescaled_and_gone_on_with(block: int) -> None:
    for seed in seeds(block, 2):
        run_rescale_seed(seed, shapes=CHAINS)
        run_savepoint_seed(seed, shapes=CHAINS)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_joins_that_keep_an_input_in_common_come_to_what_plain_loops_give(on_rocksdb: Any, block: int) -> None:
    for seed in seeds(block, 4):
        run_seed(seed, shapes=IN_COMMON, mutate=on_rocksdb if seed % 4 == 1 else None)
    run_rescale_seed(block, shapes=IN_COMMON)
    run_savepoint_seed(block, shapes=IN_COMMON)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_rows_that_wait_for_a_tables_answer_are_joined_once(block: int) -> None:
    outcomes = [run_seed(seed, shapes=LOOKED_UP) for seed in seeds(block, 12, part=3)]
    assert sum(outcome.restarts for outcome in outcomes) > 1
    run_rescale_seed(block, shapes=LOOKED_UP)
    run_savepoint_seed(block, shapes=LOOKED_UP)


def test_planted_bug_rows_that_wait_and_are_not_in_the_snapshot() -> None:
    def nothing(self: Any, _checkpoint_id: int) -> None:
        self._state.update([])

    plant = mock.patch.object(AsyncLookupJoinOfTables, "snapshot_state", nothing)
    seed_that_notices("rows_that_wait_are_not_in_the_snapshot", plant, LOOKED_UP)


def test_planted_bug_a_chain_that_counts_no_matches() -> None:
    def none(self: Any, lines: Any, _own: Any) -> Any:
        return np.zeros(len(lines.codes), np.int64)

    seed_that_notices("no_matches_are_counted", mock.patch.object(ChainState, "_num_matches", none), CHAINS)


def test_planted_bug_a_join_in_common_that_sees_the_batch_already() -> None:
    """Rows are kept before the others that read them have looked."""
    original = ChainState.before

    def before(self: Any, arrived: Any, at: int) -> Any:
        found = original(self, arrived, at)
        return found if found.num_matches is None else found._replace(num_matches=found.num_matches + 1)

    seed_that_notices("a_join_sees_the_batch", mock.patch.object(ChainState, "before", before), IN_COMMON)


def test_planted_bug_a_frame_whose_rows_are_not_kept() -> None:
    plant = mock.patch.object(RowStore, "take_over", return_value=None)
    seed_that_notices("rows_of_a_frame_are_not_kept", plant, FRAMED)


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
def values_that_vanish_stay_summed() -> Iterator[None]:
    """Aggregates of different values are not told which ones vanish."""
    original = ValueCounts.changes

    def changes(self: Any, number: int) -> Any:
        codes, values, signs = original(self, number)
        return codes[signs > 0], values.filter(pa.array(signs > 0)), signs[signs > 0]

    with mock.patch.object(ValueCounts, "changes", changes):
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


@contextmanager
def what_is_put_aside_is_not_written() -> Iterator[None]:
    """Keys are forgotten with all that has changed."""

    original = ResidentKeys.keep

    def keep(self: Any, codes: Any) -> None:
        with ExitStack() as stack:
            for kind in (RowStore, ValueCounts, GroupedState):
                stack.enter_context(mock.patch.object(kind, "persist", return_value=None))
            original(self, codes)

    with mock.patch.object(ResidentKeys, "keep", keep):
        yield


@contextmanager
def what_is_put_aside_is_not_read() -> Iterator[None]:
    """Keys that come again are new."""
    with mock.patch.object(run_log.RunLog, "find", return_value=None):
        yield


@contextmanager
def a_merge_takes_the_first_row() -> Iterator[None]:
    """Of rows about one thing the one that was written first stays."""

    def last_rows(_form: Any, rows: Any) -> Any:
        num_rows, keys, columns = rows
        named = [*keys, *(columns[number] for number in _form._identity)]
        numbers, num = KeyIndex([column.type for column in named]).codes_of(named, num_rows)
        first = np.empty(num, np.int64)
        first[numbers[::-1]] = np.arange(num_rows)[::-1]
        return numbers, first

    with mock.patch.object(run_log.LogForm, "last_rows", last_rows):
        yield


@contextmanager
def every_merge_forgets_what_is_gone() -> Iterator[None]:
    """A merge drops what says that a row is gone, though an older run still has the row."""
    original = run_log.RunLog._merged
    everything = lambda self, runs, *, is_all: original(self, runs, is_all=True)
    with mock.patch.object(run_log.RunLog, "_merged", everything), mock.patch.object(run_log, "_FAN_IN", 2):
        yield


@contextmanager
def a_filter_misses_keys() -> Iterator[None]:
    """A block is said not to have the key that it has."""
    original = SortedRun.blocks_of
    with mock.patch.object(SortedRun, "blocks_of", lambda self, hashes: original(self, hashes[1:])):
        yield


PLANTED_ON_DISK = (
    what_is_put_aside_is_not_written,
    what_is_put_aside_is_not_read,
    a_merge_takes_the_first_row,
    every_merge_forgets_what_is_gone,
    a_filter_misses_keys,
)

PLANTED = (
    an_update_takes_nothing_back,
    values_that_vanish_stay_summed,
    matches_are_not_restored,
    changed_matches_are_not_logged,
    compaction_forgets_a_row,
    the_log_forgets_what_is_gone,
    equal_hashes_are_taken_for_equal_rows,
    counts_of_values_are_no_state,
    a_full_list_is_not_filled_again,
)

SLOW = (
    "a_full_list_is_not_filled_again",
    "compaction_forgets_a_row",
    "equal_hashes_are_taken_for_equal_rows",
    "values_that_vanish_stay_summed",
)


@pytest.mark.parametrize("name", planted((plant.__name__ for plant in PLANTED), SLOW))
@pytest.mark.sampled(4)
def test_planted_bug_is_caught(name: str) -> None:
    run = lambda seed: run_seed(seed, shapes=CHANGELOGS)
    with {plant.__name__: plant for plant in PLANTED}[name]():
        caught, _ = caught_by(f"changelog: {name}", run, 300)
    assert caught is not None, "the simulator did not notice"
    run(caught)  # without the bug the seed passes


@pytest.mark.parametrize("name", [campaign(plant.__name__) for plant in PLANTED_ON_DISK])
def test_planted_bug_of_what_is_put_aside_is_caught(name: str, on_rocksdb: Any, without_room: None) -> None:
    run = lambda seed: run_seed(seed, shapes=CHANGELOGS, mutate=on_rocksdb)
    with {plant.__name__: plant for plant in PLANTED_ON_DISK}[name]():
        caught, _ = caught_by(f"changelog: {name}", run, 100)
    assert caught is not None, "the simulator did not notice"
    run(caught)  # without the bug the seed passes
