"""Unaligned checkpoints over many seeds. Crash family: whatever dies, and however the next run is laid out, a run from
an unaligned checkpoint gives what an uninterrupted one gives. Planted bugs are in `simulation.unaligned_mutants`.
"""

from __future__ import annotations

from collections import Counter

import pytest
from campaigns import blocks, seeds
from simulation.ordered_exchanges import ORDERED
from simulation.unaligned import run_cut_off_seed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", blocks(1, 9))
def test_what_was_in_flight_is_processed_once_and_in_order(block: int) -> None:
    runs = [run_cut_off_seed(seed) for seed in seeds(block, 8)]
    restored = Counter(run.in_flight is not None and run.in_flight > 0 for run in runs)
    assert restored[True] > 0, "hardly anything was in flight"


@pytest.mark.parametrize("block", blocks(1, 8))
@pytest.mark.campaign
def test_exchanges_that_keep_order_have_nothing_in_flight(block: int) -> None:
    runs = [run_cut_off_seed(seed, ORDERED) for seed in range(5 * block, 5 * block + 5)]
    restored = Counter(run.in_flight is not None and run.in_flight > 0 for run in runs)
    assert restored[True] > 0, "nothing was in flight on other exchanges"
