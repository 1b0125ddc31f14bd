"""What a test does in every run, and what it leaves to campaigns.

A newcomer waits for ``pytest -n 4``, so a test of many seeds runs some of them there. The others carry the mark
``campaign``, which is deselected unless asked for: ``pytest -n 4 -m campaign``. A test of many cases, each of which
takes a while, is marked ``sampled(n)``: every run has its first case and one of n of the others; with ``of="ray"`` all
but those that have that mark, and one of n of these. In the rooms of `WHOLE_JOBS` every test is, by itself,
unless a lane is run.
``HEADRACE_TIMES_THE_BLOCKS=10`` runs ten times as many blocks of seeds in a campaign, and with 0.3, as in ``.ci/run``,
it has its short form, in which each test has one block more than in every run at least. ``--part 1/3`` runs a third of
the tests that are selected, and ``--part 2/3`` and ``3/3`` the others: ``.ci/run`` has eighths, in turn.

Properties have four profiles of Hypothesis. In every run, with some more examples in the profile ``short``, and with
all of them in ``campaign`` (``--hypothesis-profile=campaign``), the examples are always the same: a change fails by
what it changes, not by luck.
The profile ``random`` draws new ones, and more of them. It looks for bugs that are there already, so it is run by
itself, from a tree that nobody edits: ``pytest -m hypothesis --hypothesis-profile=random``. What it finds becomes an
``@example``.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import settings

__all__ = [
    "EVERY_RUN",
    "RANDOM",
    "TIMES_THE_EXAMPLES",
    "WHOLE_JOBS",
    "blocks",
    "campaign",
    "examples",
    "in_part",
    "leave_most",
    "num_blocks",
    "part",
    "planted",
    "seeds",
]

EVERY_RUN = "headrace"
"""The Hypothesis profile that is used unless another one is asked for."""

RANDOM = "random"
"""The only one that draws new examples."""

TIMES_THE_EXAMPLES = {EVERY_RUN: 0.08, "short": 0.4, "campaign": 1, RANDOM: 5}
"""By profile, how many times the examples of a campaign a property sees."""


def campaign(*values: Any, lane: str | None = None) -> Any:
    """One parameter set of a test, for campaigns only; in that lane, if one is given (`tests/lanes.py`)."""
    return pytest.param(*values, marks=[pytest.mark.campaign, *([pytest.mark.lane(lane)] if lane else [])])


TIMES_THE_BLOCKS = "HEADRACE_TIMES_THE_BLOCKS"
"""The variable that says how many times as many blocks of seeds a campaign has; below 1 it is a short one."""


def num_blocks(in_every_run: int, in_a_campaign: int) -> int:
    """How many blocks of seeds, or seeds, a test has in this campaign, which has some that are in no other run."""
    return max(in_every_run + 1, round(in_a_campaign * float(os.environ.get(TIMES_THE_BLOCKS, "1"))))


def blocks(in_every_run: int, in_a_campaign: int) -> list[Any]:
    """Numbers of the blocks of seeds of a test, from 0 on; those from ``in_every_run`` on are for campaigns."""
    in_all = num_blocks(in_every_run, in_a_campaign)
    return [*range(in_every_run), *(campaign(block) for block in range(in_every_run, in_all))]


def seeds(block: int, number: int, first: int = 0, part: int = 6) -> range:
    """The seeds of a block: so many; block 0, which is in every run, has one in ``part`` of them, block 1 the rest."""
    few = first - (-number // part)
    start = first + number * block
    return range(few if block == 1 else start, few if block == 0 else start + number)


def planted(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    """Names of planted bugs, or of other cases, in order; the slow ones are for campaigns."""
    return [campaign(name) if name in slow else name for name in sorted(names)]


def examples(number: int) -> int:
    """How many examples of a property to look for in this run, of so many that it has."""
    times = TIMES_THE_EXAMPLES.get(settings.get_current_profile_name(), 1)  # processes of Spark import tests, too
    return max(3, int(number * times))


WHOLE_JOBS = ("api/connectors", "api/jobs", "api/stream", "api/table", "engine/timed", "engine/windows", "simulation")
"""Rooms of tests whose cases run whole jobs, or many windows and rows: by backend, parallelism, mode, query, bug."""

_OF_WHOLE_JOBS = pytest.mark.sampled(3).mark


def leave_most(items: Iterable[pytest.Item], lane: str | None = None) -> None:
    """Mark for campaigns what tests that are ``sampled`` leave out; it is the same on every machine.

    A lane that is asked for has all cases, but of tests that have that mark.
    """
    rooms = () if lane else tuple(f"tests/{room}/" for room in WHOLE_JOBS)
    begun: set[str] = set()
    for item in items:
        of_a_room = _OF_WHOLE_JOBS if item.nodeid.startswith(rooms) else None
        sampled = item.get_closest_marker("sampled") or of_a_room
        if sampled and not item.get_closest_marker("campaign"):
            name, of = item.nodeid.partition("[")[0], sampled.kwargs.get("of")
            is_of_them = of is None or item.get_closest_marker(of)
            if is_of_them and name in begun and zlib.crc32(item.nodeid.encode()) % sampled.args[0]:
                item.add_marker(pytest.mark.campaign)
            begun.add(name)


def part(text: str) -> tuple[int, int]:
    """The number of a part, from 1 on, and how many there are, of a text such as ``1/3``."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        message = f"a part is given as 1/3, 2/3 or 3/3, not as {text!r}"
        raise pytest.UsageError(message)
    return int(number), int(count)


def in_part(items: Iterable[pytest.Item], number: int, count: int) -> list[pytest.Item]:
    """The tests of one of ``count`` parts, the same on every machine; each test is in one.

    Tests of Ray, Spark and servers share what takes long to start, so those of a module stay together.
    """
    items = list(items)
    modules = sorted({_module_of(item) for item in items if _shares_its_start(item)})
    own = set(modules[number - 1 :: count])

    def is_in_it(item: pytest.Item) -> bool:
        if _shares_its_start(item):
            return _module_of(item) in own
        return zlib.crc32(item.nodeid.encode()) % count == number - 1

    return [item for item in items if is_in_it(item)]


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _shares_its_start(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("ray", "spark", "lane"))
