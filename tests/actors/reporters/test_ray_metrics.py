"""Metrics as Ray's: what is set under which name and labels."""

from __future__ import annotations

import math

import pytest

from headrace.actors.reporters.ray_metrics import RayMetrics
from headrace.actors.rest.resources.metrics import Sample


class Gauges:
    """Ray's gauges: a value for each name and labels, and an error for labels that were not declared."""

    def __init__(self):
        self.values = {}
        self.names = []

    def make(self, name, description, tag_keys):
        self.names.append(name)
        return Gauge(self.values, name, tag_keys)


class Gauge:
    def __init__(self, values, name, tag_keys):
        self._values, self._name, self._tag_keys = values, name, tag_keys

    def set(self, value, tags):
        assert set(tags) == set(self._tag_keys), "Ray takes no others"
        self._values[self._name, tags["job"], tags["metric"]] = value


@pytest.fixture
def gauges(monkeypatch):
    made = Gauges()
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.util.metrics.Gauge", made.make)
    return made


def test_names_that_ray_writes_alike_stay_apart(gauges):
    metrics = {"a.b": 1.0, "a_b": 2.0, "aB": 3.0, "ab": 4.0}
    RayMetrics().export([Sample("task", metrics, {"job": "x"})])
    assert gauges.values == {
        ("headrace_task_a_b", "x", "a.b"): 1.0,
        ("headrace_task_a_b", "x", "a_b"): 2.0,
        ("headrace_task_ab", "x", "aB"): 3.0,
        ("headrace_task_ab", "x", "ab"): 4.0,
    }
    assert gauges.names == ["headrace_task_a_b", "headrace_task_ab"], "one each"


def test_what_has_gone_is_no_number_and_what_is_left_keeps_its_own(gauges):
    reporter = RayMetrics()
    reporter.export([Sample("task", {"a.b": 1.0, "a_b": 2.0}, {"job": "x"})])
    reporter.export([Sample("task", {"a_b": 5.0}, {"job": "x"})])
    assert math.isnan(gauges.values["headrace_task_a_b", "x", "a.b"])
    assert gauges.values["headrace_task_a_b", "x", "a_b"] == 5.0
