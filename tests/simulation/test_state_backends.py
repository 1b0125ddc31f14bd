"""The simulator's programs on RocksDB: faults of all kinds, and the answers are still those of plain loops."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.planted import caught_by
from simulation.simulator import run_seed

from headrace.engine.graph.job_graph import JobGraph
from headrace.engine.kernel.config import StateSettings
from headrace.state.backends.rocksdb import cache, rows


@pytest.fixture
def on_rocksdb(tmp_path: Path) -> Iterator[Callable[[JobGraph], JobGraph]]:
    """Puts a job's state in databases, whose folder is empty in the end."""
    folder = tmp_path / "local"
    state = StateSettings("rocksdb", 16 << 20, str(folder))
    yield lambda graph: replace(graph, settings=replace(graph.settings, state=state))
    gc.collect()  # simulated processes that were killed are mere cycles of objects
    assert not folder.exists() or os.listdir(folder) == []


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that caches do with many entries they do with few: write, turn, and fetch for a batch."""
    monkeypatch.setattr(cache, "MAX_DIRTY_ENTRIES", 3)
    monkeypatch.setattr(cache, "MIN_CACHED_ENTRIES", 4)
    monkeypatch.setattr(cache, "_SLOT_BYTES", 1 << 20)
    monkeypatch.setattr(rows, "_MIN_FETCHED", 1)
    monkeypatch.setattr(rows, "_TRIAL_BATCHES", 2)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(1, 3))
def test_programs_on_rocksdb_survive_what_programs_on_the_heap_do(on_rocksdb: Any, block: int) -> None:
    outcomes = [run_seed(seed, mutate=on_rocksdb) for seed in range(7_000 + 10 * block, 7_010 + 10 * block)]
    assert sum(outcome.restarts for outcome in outcomes) > 1
    assert sum(outcome.checkpoints for outcome in outcomes) > 15


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(1, 6))
def test_programs_survive_with_caches_that_are_always_full(on_rocksdb: Any, small_caches: None, block: int) -> None:
    for seed in seeds(block, 5, first=7_100):
        run_seed(seed, mutate=on_rocksdb)


def is_noticed(bug: str, on_rocksdb: Any) -> bool:
    return caught_by(bug, lambda seed: run_seed(seed, mutate=on_rocksdb), 300)[0] is not None


@pytest.mark.slow
def test_a_dirty_cache_that_a_snapshot_leaves_out_is_noticed(on_rocksdb: Any) -> None:
    with mock.patch.object(cache.RowPool, "flush", return_value=None):
        assert is_noticed("dirty_cache_is_not_in_the_snapshot", on_rocksdb)


@pytest.mark.slow
def test_dirty_entries_that_a_full_cache_does_not_write_are_noticed(on_rocksdb: Any, small_caches: None) -> None:
    original, write = cache.RowPool.turn, rows.NamespaceRows.write_into

    def write_into(self: rows.NamespaceRows, batch: Any) -> None:
        if set(map(type, self._dirty.values())) != {int}:  # timers that come back would fire for ever
            write(self, batch)

    def turn(self: cache.RowPool) -> None:
        with mock.patch.object(rows.NamespaceRows, "write_into", write_into):
            original(self)

    with mock.patch.object(cache.RowPool, "turn", turn):
        assert is_noticed("full_cache_does_not_write", on_rocksdb)


@pytest.mark.campaign
@pytest.mark.slow
def test_fetched_rows_that_hide_newer_ones_are_noticed(on_rocksdb: Any, small_caches: None) -> None:
    original = rows.NamespaceRows._fetch

    def fetch(self: rows.NamespaceRows, keys: list[Any]) -> None:
        original(self, keys)
        self._dirty = {key: value for key, value in self._dirty.items() if key not in self._clean}

    def expect(self: rows.NamespaceRows, keys: Any) -> None:
        fetch(self, list(set(keys)))

    with mock.patch.object(rows.NamespaceRows, "expect", expect):
        assert is_noticed("fetched_rows_hide_newer_ones", on_rocksdb)
