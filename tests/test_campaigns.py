"""Parts of campaigns: each test is in one, and tests that share what takes long to start stay together."""

from __future__ import annotations

from collections import Counter

import pytest
from campaigns import WHOLE_JOBS, in_part, leave_most, part, seeds
from costs import CHEAP_S, MANY_MODULES, above_longest, costs, leave_costly, recorded


class Item:
    """What parts ask of a test."""

    def __init__(self, nodeid, *marks):
        self.nodeid = nodeid
        self.marks = marks

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, mark):
        self.marks += (mark.name,)


ITEMS = [Item(f"tests/test_{module}.py::test_{n}") for module in "abc" for n in range(40)] + [
    Item(f"tests/test_{module}_on_ray.py::test_{n}", "ray") for module in "abcdef" for n in range(3)
]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_test_is_in_one_part(count):
    parts = [in_part(ITEMS, number, count) for number in range(1, count + 1)]
    assert sorted(item.nodeid for found in parts for item in found) == sorted(item.nodeid for item in ITEMS)
    assert min(len(found) for found in parts) > len(ITEMS) / count / 2


def test_tests_of_a_module_on_ray_are_in_one_part_and_modules_are_dealt_out():
    first = [item.nodeid.partition("::")[0] for item in in_part(ITEMS, 1, 2) if item.marks]
    assert first == [f"tests/test_{module}_on_ray.py" for module in "ace" for _ in range(3)]


def test_parts_are_counted_from_one():
    assert part("2/3") == (2, 3)
    for text in ("0/2", "3/2", "1", "a/b", "1/0"):
        with pytest.raises(pytest.UsageError, match="a part is given as 1/3"):
            part(text)


@pytest.mark.parametrize("number", [1, 2, 3, 20])
def test_each_seed_is_in_one_block_and_the_first_block_is_short(number):
    blocks = [seeds(block, number, first=1_000) for block in range(4)]
    assert [seed for block in blocks for seed in block] == list(range(1_000, 1_000 + 4 * number))
    assert len(blocks[0]) == (number + 5) // 6


class Case(Item):
    """A case of a test that is sampled."""

    def __init__(self, nodeid, *marks, n, of):
        super().__init__(nodeid, *marks)
        self.sampled = pytest.mark.sampled(n, of=of).mark

    def get_closest_marker(self, name):
        return self.sampled if name == "sampled" else super().get_closest_marker(name)


SYSTEMS = ("sim", "local", "ray")


def test_a_run_has_the_first_case_of_each_test_and_one_of_n_of_the_others():
    cases = [Case(f"test_{name}[{n}]", n=4, of=None) for name in range(20) for n in range(9)]
    leave_most(cases)
    assert all("campaign" not in case.marks for case in cases[::9])
    others = [case for number, case in enumerate(cases) if number % 9]
    assert 0.15 < sum("campaign" not in case.marks for case in others) / len(others) < 0.35


def test_cases_that_run_whole_jobs_are_sampled_without_a_mark():
    def cases(room):
        return [Item(f"tests/{room}/test_a.py::test_{name}[{n}]") for name in range(20) for n in range(9)]

    for room in WHOLE_JOBS:
        of_room = cases(room)
        leave_most(of_room)
        assert all("campaign" not in case.marks for case in of_room[::9])
        assert 0.3 < sum("campaign" not in case.marks for case in of_room) / len(of_room) < 0.5
    others = cases("state/keyed")
    leave_most(others)
    assert not any("campaign" in case.marks for case in others)


def test_only_cases_with_a_mark_are_left_out():
    cases = [Case(f"test_{name}[{on}]", *["ray"][: on == "ray"], n=4, of="ray") for name in range(80) for on in SYSTEMS]
    leave_most(cases)
    assert {case.nodeid.partition("[")[2] for case in cases if "campaign" in case.marks} == {"ray]"}
    assert 10 <= sum("campaign" not in case.marks for case in cases if "ray" in case.marks) <= 30


def test_the_longer_a_test_takes_the_fewer_of_its_cases_are_in_a_run_of_all():
    seconds = {"cheap": CHEAP_S, "four": 4 * CHEAP_S, "hundred": 100 * CHEAP_S}
    known = {f"tests/test_{n}.py::test_{name}": took for n in range(MANY_MODULES) for name, took in seconds.items()}
    cases = [Item(f"{test}[{case}]") for test in known for case in range(40)]
    leave_costly(cases, known)
    kept = Counter(case.nodeid.partition("::test_")[2].partition("[")[0] for case in cases if not case.marks)
    assert kept["cheap"] == MANY_MODULES * 40
    assert kept["four"] / kept["cheap"] == pytest.approx(1 / 4, abs=0.03)
    assert kept["hundred"] / kept["cheap"] == pytest.approx(1 / 100, abs=0.01)


def test_a_module_whose_tests_are_all_costly_keeps_the_cheapest_and_a_part_of_the_tests_all():
    known = {f"tests/test_{n}.py::test_{took}": float(took) for n in range(MANY_MODULES) for took in (900, 800, 1000)}
    tests = [Item(test) for test in known]
    leave_costly(tests[3:], known)
    assert not [test for test in tests if test.marks]
    leave_costly(tests, known)
    kept = [test.nodeid.split("::test_") for test in tests if not test.marks]
    assert len({module for module, _ in kept}) == MANY_MODULES
    assert len(kept) < 1.2 * MANY_MODULES
    assert Counter(took for _, took in kept)["800"] > 0.8 * MANY_MODULES


def test_what_is_for_campaigns_anyway_keeps_no_module_in_the_run():
    known = {f"tests/test_{n}.py::test_a": 900.0 for n in range(MANY_MODULES)}
    tests = [Item(test) for test in known]
    campaigns = [Item(f"tests/test_{n}.py::test_b", "campaign") for n in range(MANY_MODULES)]
    leave_costly([*campaigns, *tests], known)
    assert not [test for test in tests if test.marks]


def test_costs_are_of_tests_that_are_there_and_the_newest_count(tmp_path):
    report = tmp_path / "times.xml"
    here, name = "tests.test_campaigns", "test_costs_are_of_tests_that_are_there_and_the_newest_count"
    cases = [(name + "[a]", 1), (name + "[b]", 2), ("test_parts_are_counted_from_one", 0.1), ("test_no_more", 9)]
    texts = [f'<testcase classname="{here}" name="{case}" time="{seconds}"/>' for case, seconds in cases]
    skipped = f'<testcase classname="{here}" name="{name}[c]" time="0.0"><skipped/></testcase>'
    report.write_text(f"<testsuites><testsuite>{''.join(texts)}{skipped}</testsuite></testsuites>")
    module = "tests/test_campaigns.py::"
    before = {module + "test_parts_are_counted_from_one": 7.0, module + "test_each_test_is_in_one_part": 3.0}
    assert recorded(report, before) == {module + "test_each_test_is_in_one_part": 3.0, module + name: 1.5}


def test_what_is_recorded_is_of_tests_that_take_longer_than_cheap_ones():
    known = costs()
    assert len(known) > 100
    assert min(known.values()) >= CHEAP_S


def test_tests_that_take_longer_than_any_may_are_named_the_longest_first():
    taken = [("a", "call", 20.5), ("b", "call", 20.0), ("c", "setup", 90.0), ("d", "call", 31.0)]
    reports = [pytest.TestReport(name, ("", 0, ""), {}, "passed", None, when, duration=s) for name, when, s in taken]
    assert above_longest(reports) == ["31.0 s d", "20.5 s a"]
