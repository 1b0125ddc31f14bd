"""How often a host's process looks for garbage.

Risks: garbage that gathers, and thresholds of the user's that are lost.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace.actors.hosts.garbage import LOOK_MS, MOST_DOUBLINGS, MUCH_GARBAGE, SparingCollector

OWN = 700


@pytest.fixture
def collector() -> Iterator[SparingCollector]:
    """One that runs, in a process with Python's own thresholds and no garbage."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(OWN, 10, 10)
    collector = SparingCollector()
    collector.start()
    yield collector
    collector.stop()
    gc.set_threshold(*before)


def leave_garbage(num_circles: int) -> None:
    for _ in range(num_circles):
        circle: list[object] = []
        circle.append(circle)


def raise_threshold() -> list[tuple[int]]:
    """Make tuples that live until the threshold is the highest; gives them."""
    kept: list[tuple[int]] = []
    while gc.get_threshold()[0] < OWN << MOST_DOUBLINGS:
        kept.append((len(kept),))
        assert len(kept) < OWN << (MOST_DOUBLINGS + 1)
    return kept


def test_python_looks_less_often_as_long_as_nothing_is_found(collector: SparingCollector) -> None:
    kept = raise_threshold()
    assert gc.get_threshold() == (OWN << MOST_DOUBLINGS, 10, 10)
    collections = gc.get_stats()[0]["collections"]
    kept += [(i,) for i in range(20 * OWN)]
    assert gc.get_stats()[0]["collections"] == collections


def test_python_looks_as_often_as_ever_where_garbage_is_found(collector: SparingCollector) -> None:
    raise_threshold()
    leave_garbage(OWN << MOST_DOUBLINGS)
    found = gc.get_stats()[0]["collected"]
    leave_garbage(20 * OWN)
    assert gc.get_threshold()[0] <= 2 * OWN
    # So of what has been left since then no more waits than that.
    assert gc.get_stats()[0]["collected"] - found >= 18 * OWN


def test_a_little_garbage_changes_nothing(collector: SparingCollector) -> None:
    raise_threshold()
    leave_garbage(MUCH_GARBAGE // 2)
    gc.collect(0)
    assert gc.get_threshold()[0] == OWN << MOST_DOUBLINGS


def test_garbage_is_noticed_at_the_next_look(collector: SparingCollector) -> None:
    raise_threshold()
    collector.turn(0)
    collector.turn(LOOK_MS - 1)
    assert gc.get_threshold()[0] == OWN << MOST_DOUBLINGS
    found = gc.get_stats()[0]["collected"]
    leave_garbage(2 * OWN)
    assert gc.get_stats()[0]["collected"] == found
    collector.turn(LOOK_MS)
    leave_garbage(OWN)
    assert gc.get_stats()[0]["collected"] - found >= 2 * OWN
    assert gc.get_threshold()[0] < OWN << MOST_DOUBLINGS


def test_thresholds_that_somebody_else_sets_stay(collector: SparingCollector) -> None:
    raise_threshold()
    gc.set_threshold(12_345, 6, 7)
    gc.collect(0)
    collector.look()
    collector.stop()
    assert gc.get_threshold() == (12_345, 6, 7)


def test_python_gets_its_own_thresholds_back() -> None:
    before = gc.get_threshold()
    gc.collect()  # of what other tests have left: much of it would leave the threshold where it is
    collector = SparingCollector()
    collector.start()
    gc.collect(0)
    assert gc.get_threshold() != before
    collector.stop()
    assert gc.get_threshold() == before
    gc.collect(0)
    assert gc.get_threshold() == before
