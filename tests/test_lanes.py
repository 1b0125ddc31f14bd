"""Which tests a lane has, and which lanes a run of ``.ci/run`` has."""

from __future__ import annotations

import math
from types import SimpleNamespace

import lanes
import pytest
from lanes import IN_EVERY_RUN, TESTS, all_lanes, changed_lanes, in_turn, is_in_this_run, known, lanes_of, modules_of
from zookeeper_server import zookeeper  # noqa: F401 - a fixture

pytestmark = pytest.mark.xdist_group("lanes")  # one process reads all modules


def test_each_server_is_a_lane_that_has_tests():
    names = all_lanes()
    assert {"kafka", "postgresql", "registry", "s3", "zookeeper"} <= set(names)
    assert not [lane for lane in names if not modules_of(lane)]
    starts = {lane: (TESTS / f"{lane}_server.py").read_text(encoding="utf-8") for lane in names}
    assert not [lane for lane, text in starts.items() if "pytest.fixture" not in text], "other helpers have other names"


@pytest.mark.lane("kafka")
def test_a_mark_puts_a_test_into_a_lane(request):
    assert lanes_of(request.node) == {"kafka"}


@pytest.mark.lane("kafka")
def test_so_does_a_fixture_of_a_server(request, zookeeper):  # noqa: F811
    assert lanes_of(request.node) == {"kafka", "zookeeper"}


def test_a_run_of_no_lane_has_what_needs_no_other_servers_than_its_own():
    assert is_in_this_run(set(), None)
    assert is_in_this_run({"kafka", "postgresql"}, None)
    assert not is_in_this_run({"kafka", "zookeeper"}, None)
    assert is_in_this_run({"kafka", "zookeeper"}, "zookeeper")
    assert not is_in_this_run({"kafka"}, "zookeeper")
    assert not is_in_this_run(set(), "zookeeper")


def test_an_unknown_lane_is_named_with_the_nearest_one():
    with pytest.raises(pytest.UsageError, match=r"no lane 'zookeper', .* did you mean 'zookeeper'\?"):
        known("zookeper")


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_each_lane_has_its_turn(number):
    names = ["a", "b", "c", "d"]
    turns = [in_turn(names, number, turn) for turn in range(len(names))]
    assert {lane for turn in turns for lane in turn} == set(names)
    assert all(len(turn) == len(set(turn)) == min(number, len(names)) for turn in turns)


def test_what_has_changed_brings_its_lane():
    assert changed_lanes(["actors/zookeeper_lease.py", "docs/guide/kafka.md"]) == {"zookeeper"}
    assert changed_lanes(["state/checkpoints/leases.py"]) == {"s3", "zookeeper"}
    assert changed_lanes(["tests/registry_server.py", "tests/api/connectors/kafka/test_sink.py"]) >= {
        "registry",
        "kafka",
    }
    assert changed_lanes(["README.md", "engine/task/task.py"]) == set()
    assert frozenset(all_lanes()) - IN_EVERY_RUN >= {"registry", "zookeeper"}


def test_lanes_for_which_there_is_no_time_are_named(monkeypatch, capsys):
    moments = iter([0.0, 10.0, 250.0, 260.0])
    ran = []
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(lanes, "run_lane", lambda lane, with_campaigns: ran.append(lane) or True)
    assert not lanes.run_lanes(["a", "b", "c"], with_campaigns=False, within_s=240)
    assert ran == ["a"]
    assert capsys.readouterr().out == "left out, as 240 s are over: b, c\n"


def test_a_lane_that_fails_is_named_and_the_others_are_run(monkeypatch, capsys):
    monkeypatch.setattr(lanes, "run_lane", lambda lane, with_campaigns: lane != "b")
    assert lanes.run_lanes(["a", "b", "c"], with_campaigns=False, within_s=math.inf)
    assert capsys.readouterr().out == "FAILED: b\n"
