"""Looking at subtasks on request: who waits for credit, and what the others do.

Risks and families: a job whose bottleneck is known by construction (oracle); many who ask (single flight); trees of
stacks (property, against counting).
"""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_kit import ask, rest_environment

from headrace.actors.hosts.observer import HostObserver, LoopThread
from headrace.actors.rest.resources.sampling import flame_graph
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ConfigurationError
from headrace.engine.kernel.rest_settings import RestSettings
from headrace.engine.kernel.sampling_settings import SamplingSettings
from headrace.engine.protocol.messages import RequestFailed
from headrace.engine.protocol.observation_messages import ObservedTask, SampleTasks, StackCount
from headrace.state.identifiers import ExecutionAttemptId, VertexId

PATIENCE_S = 20
QUICK = SamplingSettings(num_samples=40, delay_ms=10)


def spins(value):
    """A function that needs the processor."""
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass
    return value


def dozes(value):
    """A function that waits for something outside."""
    time.sleep(0.003)
    return value


class Looked:
    """A job whose second vertex is slow, so that its first one waits; and what REST says of it."""

    def __init__(self):
        self.env = rest_environment(rest={"backpressure": QUICK, "flame_graph": QUICK})
        numbers = self.env.from_source(GeneratorSource(lambda n: n), None, "numbers").uid("numbers")
        # In slots of its own: in the same slot the source would have to wait for its turn instead.
        slow = (
            numbers.rebalance()
            .map(spins)
            .name("spins")
            .uid("slow")
            .slot_sharing_group("slow")
            .map(dozes)
            .name("dozes")
            .uid("dozes")
        )
        slow.filter(lambda _n: False).uid("none").print()
        self.job = self.env.execute_async("slow on purpose")
        (self.address,) = self.env._cluster.rest_addresses()
        self.path = f"/jobs/{self.job.get_job_id()}/vertices"

    def json(self, path):
        response = ask(self.address.url, self.path + path, self.address.tokens.read)
        assert response.status == 200, response
        return response.json

    def until(self, path, is_done):
        deadline = time.monotonic() + PATIENCE_S
        while not is_done(found := self.json(path)):
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found


@pytest.fixture(scope="module")
def looked():
    looked = Looked()
    looked.until("/slow", lambda vertex: vertex["aggregated"]["metrics"]["read-records"] > 0)
    # An answer is kept for a minute, so nobody looks before the source has filled what is behind it.
    looked.until("/numbers", lambda vertex: vertex["aggregated"]["metrics"]["accumulated-backpressured-time"] > 0)
    yield looked
    looked.env.close()


def test_a_source_before_a_slow_operator_is_found_without_credit(looked):
    first = looked.json("/numbers/backpressure")
    assert first["status"] == "deprecated"
    found = looked.until("/numbers/backpressure", lambda found: found["status"] == "ok")
    assert found["backpressureLevel"] in ("low", "high")
    assert max(subtask["ratio"] for subtask in found["subtasks"]) > 0.1
    for subtask in found["subtasks"]:
        assert subtask["num-samples"] == QUICK.num_samples
        assert (subtask["ratio"] * QUICK.num_samples) % 1 == pytest.approx(0, abs=1e-9)

    def is_filled(vertex):
        job = ask(looked.address.url, f"/jobs/{looked.job.get_job_id()}", looked.address.tokens.read).json
        (queue,) = next(node["inputs"] for node in job["plan"]["nodes"] if node["id"] == "slow")
        return queue["queue-fill"] >= 0.5 and queue["records"] >= vertex["aggregated"]["metrics"]["read-records"]

    looked.until("/slow", is_filled)
    slow = looked.until("/slow/backpressure", lambda found: found["status"] == "ok")
    assert (slow["backpressureLevel"], [one["ratio"] for one in slow["subtasks"]]) == ("ok", [0, 0])


def test_an_answer_is_kept_for_all_who_ask(looked):
    found = looked.until("/numbers/backpressure", lambda found: found["status"] == "ok")
    again = looked.json("/numbers/backpressure")
    assert again["end-timestamp"] == found["end-timestamp"]
    assert [one["ratio"] for one in again["subtasks"]] == [one["ratio"] for one in found["subtasks"]]


def names_of(node):
    yield node["name"], node["value"]
    for child in node["children"]:
        yield from names_of(child)


def test_a_flame_graph_names_operators_and_functions_and_tells_waiting_from_work(looked):
    assert looked.json("/slow/flamegraph") == {"endTimestamp": -3, "data": None}
    full = looked.until("/slow/flamegraph", lambda found: found["endTimestamp"] > 0)
    trees = {kind: looked.json(f"/slow/flamegraph?type={kind}")["data"] for kind in ("FULL", "ON_CPU", "OFF_CPU")}
    assert trees["FULL"] == full["data"]
    assert trees["FULL"]["name"] == "root"
    assert trees["FULL"]["value"] == trees["ON_CPU"]["value"] + trees["OFF_CPU"]["value"]
    names = Counter()
    for name, value in names_of(trees["FULL"]):
        names[name.rpartition(":")[0] if "test_sampling" in name else name] += value
    assert names["operator spins"] > 0
    assert names["operator dozes"] > 0
    assert any("spins" in name for name in names if "test_sampling" in name)
    on_cpu, off_cpu = (dict(names_of(trees[kind])) for kind in ("ON_CPU", "OFF_CPU"))
    assert any("test_sampling" in name for name in on_cpu)
    assert not any(name.startswith("(waits") for name in on_cpu)
    one = looked.json("/slow/flamegraph?subtaskindex=0")["data"]["value"]
    other = looked.json("/slow/flamegraph?subtaskindex=1")["data"]["value"]
    assert one + other == trees["FULL"]["value"] <= 2 * QUICK.num_samples
    assert off_cpu["root"] > 0


def test_a_task_between_its_steps_has_no_calls_but_says_what_it_waits_for():
    """Not of a job: how often its source waits for credit is up to what else the machine has to do."""
    held, idle, steps = (ExecutionAttemptId(1, 0, VertexId(name), 0) for name in ("held", "idle", "steps"))
    tasks = [ObservedTask(held, True, False), ObservedTask(idle, False, False)]
    waits = {"held": "(waits for credit)", "idle": "(waits for input or time)"}
    for others, waits_of_idle in (
        ([], waits["idle"]),
        ([ObservedTask(steps, False, True)], "(waits for other tasks of its slot)"),
    ):
        observer = HostObserver(lambda others=others: [*tasks, *others], lambda: None)
        for name, waits_for in {**waits, "idle": waits_of_idle}.items():
            (samples,) = observer.answer(SampleTasks(VertexId(name), 3, 1, 10))
            assert samples.stacks == (StackCount((waits_for,), 0, 3),)
            assert samples.num_backpressured == (3 if name == "held" else 0)


def test_flame_graphs_may_be_forbidden_and_a_subtask_must_be_there(looked):
    response = ask(looked.address.url, f"{looked.path}/slow/flamegraph?subtaskindex=7", looked.address.tokens.read)
    assert response.status == 404
    response = ask(looked.address.url, f"{looked.path}/slow/flamegraph?type=ALL", looked.address.tokens.read)
    assert response.status == 400
    settings = RestSettings.from_configuration({"rest.flamegraph.enabled": "false"})
    assert not settings.flame_graph.is_enabled


frames = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple)


@given(st.lists(st.builds(StackCount, frames, st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_a_tree_has_each_call_as_often_as_stacks_begin_with_it(stacks):
    tree = flame_graph(stacks, lambda stack: stack.num_on_cpu)
    found = {}

    def walk(node, place):
        assert [child["value"] for child in node["children"]] == sorted(
            (child["value"] for child in node["children"]), reverse=True
        )
        found[place] = node["value"]
        for child in node["children"]:
            walk(child, (*place, child["name"]))

    walk(tree, ())
    wanted = Counter({(): 0})
    for stack in stacks:
        for depth in range(len(stack.frames) + 1):
            wanted[stack.frames[:depth]] += stack.num_on_cpu
    assert found == {place: value for place, value in wanted.items() if value or not place}


def test_options_have_flinks_names_and_bounds():
    settings = RestSettings.from_configuration(
        {
            "web.backpressure.num-samples": "50",
            "web.backpressure.delay-between-samples": "20",
            "web.backpressure.refresh-interval": "30 s",
            "rest.flamegraph.stack-depth": "10",
        }
    )
    assert (settings.backpressure.num_samples, settings.backpressure.delay_ms) == (50, 20)
    assert settings.backpressure.refresh_interval_ms == 30_000
    assert settings.flame_graph.stack_depth == 10
    default = RestSettings().backpressure
    assert (default.num_samples, default.delay_ms, default.refresh_interval_ms) == (100, 50, 60_000)
    for wrong in (
        {"web.backpressure.num-samples": "0"},
        {"web.backpressure.num-samples": "10000"},
        {"rest.flamegraph.stack-depth": "1000"},
        {"rest.flamegraph.depth": "1"},
    ):
        with pytest.raises(ConfigurationError):
            RestSettings.from_configuration(wrong)


def test_a_thread_that_has_ended_is_found_without_frames_and_harms_nobody():
    """A crash of the process, once: the C library must not be asked for the clock of a thread that is gone."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(LoopThread.this()))
    thread.start()
    thread.join()
    attempt = ExecutionAttemptId(1, 0, VertexId("v"), 0)
    observer = HostObserver(lambda: [ObservedTask(attempt, False, True)], lambda: seen[0])
    (samples,) = observer.answer(SampleTasks(VertexId("v"), 3, 1, 10))
    assert (samples.num_samples, samples.num_backpressured, samples.stacks) == (3, 0, ())
    assert observer.answer(SampleTasks(VertexId("other"), 1, 1)) == []
    assert isinstance(observer.answer(SampleTasks(VertexId("v"), 10_000, 1_000)), RequestFailed)
    assert isinstance(observer.answer("?"), RequestFailed)
