"""The simulator's programs on RocksDB: faults of all kinds, and the answers are still those of plain loops."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest
from campaigns import blocks
from simulation.simulator import run_seed

from headrace.engine.kernel.config import StateSettings


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(1, 3))
def test_programs_on_rocksdb_survive_what_programs_on_the_heap_do(tmp_path, block):
    # Local databases flush every file to their disk: into memory, where there is such a place.
    folder = Path("/dev/shm", *tmp_path.parts[1:]) if os.access("/dev/shm", os.W_OK) else tmp_path
    state = StateSettings("rocksdb", 16 << 20, str(folder))
    outcomes = [
        run_seed(seed, mutate=lambda graph: replace(graph, settings=replace(graph.settings, state=state)))
        for seed in range(7_000 + 10 * block, 7_010 + 10 * block)
    ]
    assert sum(outcome.restarts for outcome in outcomes) > 1
    assert sum(outcome.checkpoints for outcome in outcomes) > 15
    gc.collect()  # simulated processes that were killed are mere cycles of objects
    assert not folder.exists() or os.listdir(folder) == []
