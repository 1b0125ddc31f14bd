"""What tests cost, and which of the costly ones a run of all tests has.

A newcomer waits for ``pytest -n 4``, and a few hundred tests of thousands take most of that time. So the suite knows
what they take (`COSTS`). Of a test that takes c times what is cheap (`CHEAP_S`) a run has one of c cases, or of a test
with fewer cases perhaps none; the others are left to campaigns. Which ones is the same on every machine. A module of
which none would stay keeps its cheapest. Who runs a part of the tests (a room, a module) has all but what is for
campaigns anyway; ``pytest -n 4 --costly`` has that of all modules.

Costs are recorded from time to time, on a machine that does nothing else; a test that is not in the file is cheap::

    pytest -q -n 4 --costly --junitxml=times.xml -o junit_duration_report=call
    python tests/costs.py times.xml
"""

from __future__ import annotations

import csv
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

__all__ = ["CHEAP_S", "COSTS", "LONGEST_S", "above_longest", "costs", "leave_costly", "recorded"]

TESTS = Path(__file__).resolve().parent

COSTS = TESTS / "data" / "costs.csv"
"""Of each test that is not cheap, seconds that a case takes on average, beside three other processes on two cores."""

CHEAP_S = 0.2
"""A test that takes no longer is in every run."""

LONGEST_S = 20.0
"""No test of README's command takes longer, on a machine that does nothing else."""

MANY_MODULES = 100
"""A run of fewer is of a part of the tests: it has all of them."""


def costs(path: Path = COSTS) -> dict[str, float]:
    """By test, without its case, what one case of it takes, in seconds."""
    with path.open(newline="") as file:
        return {f"{module}::{test}": float(seconds) for module, test, seconds in csv.reader(file)}


def leave_costly(items: Iterable[pytest.Item], known: dict[str, float]) -> None:
    """Mark for campaigns what a run of all tests leaves out for its cost."""
    by_module = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("campaign"):
            by_module[item.nodeid.partition("::")[0]].append(item)
    if len(by_module) < MANY_MODULES:
        return
    for of_module in by_module.values():
        left = [item for item in of_module if _is_left(item.nodeid, _cost(item, known))]
        if len(left) == len(of_module):
            left.remove(min(left, key=lambda item: (_cost(item, known), item.nodeid)))
        for item in left:
            item.add_marker(pytest.mark.campaign)


def _cost(item: pytest.Item, known: dict[str, float]) -> float:
    return known.get(item.nodeid.partition("[")[0], 0.0)


def _is_left(name: str, seconds: float) -> bool:
    return seconds > CHEAP_S and zlib.crc32(name.encode()) >= CHEAP_S / seconds * 2**32


def above_longest(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The tests of a run that took longer than any may, each with its time, the longest first; setup does not count."""
    taken = {one.nodeid: one.duration for one in reports if one.when == "call" and one.duration > LONGEST_S}
    return [f"{taken[test]:.1f} s {test}" for test in sorted(taken, key=taken.__getitem__, reverse=True)]


def recorded(report: Path, before: dict[str, float]) -> dict[str, float]:
    """Costs by a report of pytest in JUnit's form; of tests that did not run, those of before, while they are there."""
    taken = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            module = case.get("classname", "").replace(".", "/") + ".py"
            taken[f"{module}::{case.get('name', '').partition('[')[0]}"].append(float(case.get("time", 0)))
    found = before | {test: sum(seconds) / len(seconds) for test, seconds in taken.items()}
    return {test: found[test] for test in sorted(found) if found[test] > CHEAP_S and _is_there(test)}


def _is_there(test: str) -> bool:
    module, _, name = test.partition("::")
    path = TESTS.parent / module
    return path.is_file() and f"def {name}(" in path.read_text(encoding="utf-8")


def main(report: str) -> None:
    """Write what a report says."""
    found = recorded(Path(report), costs())
    with COSTS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([*test.split("::"), f"{seconds:.1f}"] for test, seconds in found.items())


if __name__ == "__main__":
    main(sys.argv[1])
