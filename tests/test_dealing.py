"""Tests are dealt out as pytest-xdist deals them, whoever is quick and whoever is slow."""

from __future__ import annotations

from collections import deque
from random import Random
from types import SimpleNamespace

import pytest
from dealing import Dealing
from xdist.scheduler import LoadGroupScheduling


class Process:
    """One that is dealt tests, and says when each has ended."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.had, self.left, self.shutting_down = [], deque(), False

    def send_runtest_some(self, places):
        self.had += places
        self.left += places

    def shutdown(self):
        self.shutting_down = True


def dealt(kind, names, num_processes, seed):
    """What each process has had of the tests, and in the end whether all is said to be done."""
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * num_processes, option=SimpleNamespace(loadscopereorder=False, tx=[], debug=False)
    )
    scheduler = kind(config)
    scheduler.numnodes = num_processes
    processes = [Process(number) for number in range(num_processes)]
    for process in processes:
        scheduler.add_node(process)
    for process in processes:
        scheduler.add_node_collection(process, names)
    scheduler.schedule()
    chance = Random(seed)
    while busy := [process for process in processes if process.left]:
        process = chance.choices(busy, [1 + 5 * (one is busy[0]) for one in busy])[0]
        scheduler.mark_test_complete(process, process.left.popleft())
    assert scheduler.tests_finished
    assert not scheduler.has_pending
    return [process.had for process in processes]


@pytest.mark.parametrize("seed", range(5))
def test_each_process_has_what_xdist_would_give_it(seed):
    chance = Random(seed)
    groups = ["", "", "", "@ray", "@spark"]
    names = [f"test_a.py::test_{n}[{chance.random()}]{chance.choice(groups)}" for n in range(300)]
    had = dealt(Dealing, names, 4, seed)
    assert sorted(place for places in had for place in places) == list(range(300))
    assert had == dealt(LoadGroupScheduling, names, 4, seed)
