"""Records combined before the shuffle, under faults. Families: crash (random faults against a reference, on both state
backends, rescales and unaligned checkpoints among them), mutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from campaigns import blocks, seeds
from simulation.combined_windows import COMBINED_WINDOWS
from simulation.planted import caught_by
from simulation.rescaling import run_rescale_seed
from simulation.simulator import run_seed
from simulation.test_state_backends import on_rocksdb as on_rocksdb  # a fixture
from simulation.unaligned import run_cut_off_seed

from headrace.engine.windows import combining, contents

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are small here: none is passed on because another one did not pay."""
    monkeypatch.setattr(combining, "_TRIED_EVERY", 1)


@pytest.mark.parametrize("block", blocks(1, 12))
def test_nothing_is_lost_or_doubled(block: int) -> None:
    for seed in seeds(block, 4):
        run_seed(seed, shapes=COMBINED_WINDOWS)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_on_rocksdb(on_rocksdb: Callable[[Any], Any], block: int) -> None:
    for seed in seeds(block, 4, first=1_000):
        run_seed(seed, shapes=COMBINED_WINDOWS, mutate=on_rocksdb)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_if_the_job_is_rescaled_meanwhile(block: int) -> None:
    for seed in seeds(block, 4):
        run_rescale_seed(seed, shapes=COMBINED_WINDOWS)


@pytest.mark.parametrize("block", blocks(1, 4))
def test_nor_if_it_goes_on_from_an_unaligned_checkpoint(block: int) -> None:
    for seed in seeds(block, 4):
        run_cut_off_seed(seed, COMBINED_WINDOWS)


@contextmanager
def a_second_part_of_a_key_replaces_the_first() -> Iterator[None]:
    original = contents.CombinedContents.__init__

    def planted(self: Any, inner: Any, **options: Any) -> None:
        original(self, inner, **options)
        self.merge = lambda earlier, later: later

    with mock.patch.object(contents.CombinedContents, "__init__", planted):
        yield


@contextmanager
def a_batch_waits_for_the_next() -> Iterator[None]:
    """What waits is not in any checkpoint, and comes behind its watermark."""
    original = combining.LocalCombiner._pairs

    def planted(self: Any, keys: Any, rows: Any, times: Any) -> Any:
        found = original(self, keys, rows, times)
        waiting, self._waiting = getattr(self, "_waiting", ([], times[:0])), found
        return waiting

    with mock.patch.object(combining.LocalCombiner, "_pairs", planted):
        yield


@pytest.mark.parametrize(
    "plant",
    [a_second_part_of_a_key_replaces_the_first, a_batch_waits_for_the_next],
    ids=lambda plant: plant.__name__,
)
def test_planted_bug_is_caught(plant: Any) -> None:
    with plant():
        caught, _ = caught_by(
            f"combined windows: {plant.__name__}", lambda seed: run_seed(seed, shapes=COMBINED_WINDOWS), 100
        )
    assert caught is not None, "the simulator did not notice"
    run_seed(caught, shapes=COMBINED_WINDOWS)  # and it is the bug that was noticed
