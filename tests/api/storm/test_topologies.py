"""Topologies: who gets a tuple, what bolts of Python do, what a builder refuses.

Risks and families: tuples at the wrong task, doubled or lost (each grouping, at several parallelisms, against what was
emitted); tuples that fail, wait or are never acknowledged; wrong topologies.
"""

from __future__ import annotations

from collections import Counter

import pytest
from storm_kit import rows_in, wait_until

from headrace import CheckpointedFunction, ListStateDescriptor, RestartStrategies, StreamExecutionEnvironment
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import ScriptedSource
from headrace.engine.errors import JobFailedError, ProgramError
from headrace.storm import Bolt, Fields, ShellBolt, Stream, TopologyBuilder
from headrace.storm.groupings import Router
from headrace.storm.layout import Component, Grouping, Layout, Subscription

NUM_RECORDS = 60


class Tell(Bolt):
    """Says who got a tuple, and from whom."""

    outputs = ("task", "component", "stream", "from_task", "value")

    def initialize(self, storm_conf, context):
        self.task = context["taskid"]

    def process(self, tup):
        self.emit([self.task, tup.component, tup.stream, tup.task, tup.values[0]])


def told(group, num_tasks=3, source_tasks=2):
    """What tasks of a bolt get of a stream of numbers."""
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        builder.set_spout("numbers", env.from_collection(list(range(NUM_RECORDS))), source_tasks, outputs=["n"])
        group(builder.set_bolt("tell", Tell(), num_tasks))
        return list(builder.create_topology(env).stream("tell").execute_and_collect())


# ------------------------------------------------------------------------------------------------------------ groupings
@pytest.mark.parametrize("name", ["shuffle_grouping", "none_grouping", "local_or_shuffle_grouping"])
def test_tuples_are_dealt_out_evenly(name):
    rows = told(lambda bolt: getattr(bolt, name)("numbers"))
    assert sorted(row["value"] for row in rows) == list(range(NUM_RECORDS))
    tasks = Counter(row["task"] for row in rows)
    # Tasks 1 and 2 are those of the spout; a task of the spout has a neighbour in its slot.
    assert set(tasks) == ({3, 4} if name.startswith("local") else {3, 4, 5})
    assert max(tasks.values()) - min(tasks.values()) <= 2
    assert {(row["component"], row["stream"]) for row in rows} == {("numbers", "default")}
    if name.startswith("local"):
        assert {(row["from_task"], row["task"]) for row in rows} == {(1, 3), (2, 4)}


def test_equal_values_go_to_one_task():
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        pairs = env.from_collection([(n % 7, n) for n in range(NUM_RECORDS)])
        builder.set_spout("pairs", pairs, 2, outputs=["key", "n"])
        builder.set_bolt("tell", Tell(), 3).fields_grouping("pairs", Fields("key"))
        builder.set_bolt("two", Tell(), 3).partial_key_grouping("pairs", "default", Fields("key"))
        topology = builder.create_topology(env)
        both = topology.stream("tell").map(lambda row: ("tell", row))
        rows = list(both.union(topology.stream("two").map(lambda row: ("two", row))).execute_and_collect())
    for name, most in (("tell", 1), ("two", 2)):
        tasks = {}
        for bolt, row in rows:
            if bolt == name:
                tasks.setdefault(row["value"], set()).add(row["task"])
        assert len(tasks) == 7
        assert max(map(len, tasks.values())) <= most
        assert len(set().union(*tasks.values())) > 1
    assert len(rows) == 2 * NUM_RECORDS


def test_all_tasks_or_the_first_one():
    rows = told(lambda bolt: bolt.all_grouping("numbers"))
    assert Counter((row["task"], row["value"]) for row in rows) == Counter(
        (task, n) for task in (3, 4, 5) for n in range(NUM_RECORDS)
    )
    assert Counter(row["task"] for row in told(lambda bolt: bolt.global_grouping("numbers"))) == {3: NUM_RECORDS}


class ToTask(Bolt):
    """Sends each tuple to a task that it chooses."""

    outputs = (Stream(["n"], name="chosen", direct=True), Stream(["n"], name="odd"))

    def initialize(self, storm_conf, context):
        self.tasks = sorted(int(task) for task, name in context["task->component"].items() if name == "tell")

    def process(self, tup):
        n = tup.values[0]
        self.emit([n], stream="chosen", direct_task=self.tasks[n % len(self.tasks)])
        if n % 2:
            assert self.emit([n], stream="odd", need_task_ids=True) == [self.tasks[0]]


def test_direct_streams_and_several_streams():
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        builder.set_spout("numbers", env.from_collection(list(range(NUM_RECORDS))), outputs=["n"])
        builder.set_bolt("choose", ToTask(), 2).shuffle_grouping("numbers")
        tell = builder.set_bolt("tell", Tell(), 3)
        tell.direct_grouping("choose", "chosen").global_grouping("choose", "odd")
        rows = list(builder.create_topology(env).stream("tell").execute_and_collect())
    first = min(row["task"] for row in rows)
    chosen = {(row["value"], row["task"] - first) for row in rows if row["stream"] == "chosen"}
    assert chosen == {(n, n % 3) for n in range(NUM_RECORDS)}
    odd = Counter(row["value"] for row in rows if row["stream"] == "odd" and row["task"] == first)
    assert odd == Counter(range(1, NUM_RECORDS, 2))


def test_a_router_refuses_what_nobody_takes():
    taken = Subscription("a", "chosen", "b", Grouping("DIRECT"))
    streams = {"chosen": Stream(("n",), "chosen", direct=True), "default": Stream(("n",))}
    layout = Layout("t", [Component("a", streams, 1), Component("b", {}, 2, inputs=(taken,))], {})
    router = Router(layout, "a", 0, 0)
    assert router.route("chosen", [1], is_tracked=True, direct=3).targets == (("b", 1),)
    assert router.route("default", [1], is_tracked=True).targets == ()
    for stream, values, direct, reason in (
        ("chosen", [1], 1, "task 1 does not take"),
        ("chosen", [1], 99, "task 99 does not take"),
        ("default", [1], 2, "task 2 does not take"),
        ("chosen", [1], None, "must name their task"),
        ("chosen", [1, 2], 2, "1 fields; 2 values"),
        ("other", [1], None, "no stream 'other'"),
    ):
        with pytest.raises(ProgramError, match=reason):
            router.route(stream, values, is_tracked=True, direct=direct)


# ---------------------------------------------------------------------------------------------------------------- bolts
class FailsFirst(Bolt):
    """Fails each tuple when it comes first, and never works off one."""

    outputs = ("n",)
    auto_ack = False

    def initialize(self, storm_conf, context):
        self.seen = Counter()

    def process(self, tup):
        n = tup.values[0]
        self.seen[n] += 1
        if n == storm_limit and self.seen[n] <= 2:
            return  # neither acknowledged nor failed: its time runs out
        if self.seen[n] == 1:
            self.fail(tup)
        else:
            self.emit([n])
            self.ack(tup)


storm_limit = 5


def run_bolt(bolt, numbers, num_tasks=2, **settings):
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.set_restart_strategy(RestartStrategies.no_restart())
        builder.set_spout("numbers", env.from_collection(numbers), outputs=["n"])
        builder.set_bolt("bolt", bolt, num_tasks).shuffle_grouping("numbers")
        topology = builder.create_topology(env, **settings)
        return [row["n"] for row in topology.stream("bolt").execute_and_collect()]


def test_what_a_bolt_fails_or_forgets_is_given_to_it_again():
    conf = {"topology.message.timeout.secs": 0.05}
    assert sorted(run_bolt(FailsFirst(), list(range(20)), conf=conf, retry_pause=1)) == list(range(20))


class Fails(Bolt):
    outputs = ("n",)

    def process(self, tup):
        self.fail(tup)


def test_a_tuple_that_fails_again_and_again_fails_the_subtask():
    with pytest.raises(JobFailedError) as failed:
        run_bolt(Fails(), [7], retry_pause=1, max_retries=2)
    assert "bolt 'bolt' was given a tuple 3 times, and at last the bolt has failed it" in str(failed.value)
    assert "[7]" in str(failed.value)


class Raises(Bolt):
    outputs = ("n",)

    def process(self, tup):
        return 1 / tup.values[0]


def test_what_a_bolt_raises_fails_the_subtask_by_name():
    with pytest.raises(JobFailedError, match=r"ZeroDivisionError.*Raises.process', record .0."):
        run_bolt(Raises(), [0])


class Gathers(Bolt):
    """Emits what it has gathered when the clock ticks, and acknowledges it then."""

    outputs = ("n",)
    auto_ack = False

    def initialize(self, storm_conf, context):
        self.gathered = []

    def process(self, tup):
        self.gathered.append(tup)

    def process_tick(self, tup):
        assert self.is_tick(tup)
        for one in self.gathered:
            self.emit(one.values, anchors=[one])
            self.ack(one)
        self.gathered.clear()


def test_bolts_that_gather_until_the_clock_ticks():
    conf = {"topology.tick.tuple.freq.secs": 0.02}
    # More come than may wait: the stream is held back until the next tick.
    assert sorted(run_bolt(Gathers(), list(range(200)), conf=conf, max_pending=10)) == list(range(200))


class Sums(Bolt, CheckpointedFunction):
    """Keeps its sum in state."""

    outputs = ("n",)

    def __init__(self, marks):
        self.marks = marks

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("sum"))
        self.total = sum(self.state.get())

    def snapshot_state(self, context):
        self.state.update([self.total])

    def process(self, tup):
        self.total += tup.values[0]
        if tup.values[0] == 400 and self.total > 60_000 and not (self.marks / "failed").exists():
            (self.marks / "failed").touch()
            message = "made to fail"
            raise OSError(message)
        self.emit([self.total])


def test_a_bolt_of_python_may_have_state(tmp_path):
    builder = TopologyBuilder()
    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing(5, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1))
        numbers = env.from_sequence(0, 499)
        builder.set_spout("numbers", numbers, outputs=["n"])
        builder.set_bolt("sum", Sums(tmp_path)).global_grouping("numbers")
        rows = list(builder.create_topology(env).stream("sum").execute_and_collect())
    assert (tmp_path / "failed").exists()
    assert max(row["n"] for row in rows) == sum(range(500))


# -------------------------------------------------------------------------------------------------------------- refused
def test_wrong_topologies_are_refused():
    def refused(build, **settings):
        builder = TopologyBuilder()
        with StreamExecutionEnvironment.get_execution_environment("local") as env:
            builder.set_spout("in", env.from_collection([1]), outputs=["n"])
            with pytest.raises(ProgramError) as found:
                build(builder)
                builder.create_topology(env, **settings)
        return str(found.value)

    def loop(builder):
        builder.set_bolt("a", Fails()).shuffle_grouping("in").shuffle_grouping("b")
        builder.set_bolt("b", Fails()).shuffle_grouping("a")

    assert "a loop, through 'a', 'b'" in refused(loop)
    assert "takes nothing" in refused(lambda b: b.set_bolt("a", Fails()))
    assert "'inn', which is not in the topology" in refused(lambda b: b.set_bolt("a", Fails()).shuffle_grouping("inn"))
    assert "no stream 's'" in refused(lambda b: b.set_bolt("a", Fails()).shuffle_grouping("in", "s"))
    assert "none of its fields: n" in refused(lambda b: b.set_bolt("a", Fails()).fields_grouping("in", Fields("m")))
    assert "by no field" in refused(lambda b: b.set_bolt("a", Fails()).fields_grouping("in"))
    assert "is not direct" in refused(lambda b: b.set_bolt("a", Fails()).direct_grouping("in"))
    assert "twice" in refused(lambda b: b.set_bolt("a", Fails()).shuffle_grouping("in").all_grouping("in"))
    assert "already" in refused(lambda b: b.set_bolt("in", Fails()))
    assert "must be a bolt" in refused(lambda b: b.set_bolt("a", Fails))
    assert "does not begin with __" in refused(lambda b: b.set_bolt("__a", Fails()))
    assert "choose the task" in refused(lambda b: b.set_bolt("a", Fails()).custom_grouping("in", None))
    assert "needs a command" in refused(lambda b: b.set_bolt("a", ShellBolt()))
    assert "outputs of component 'a'" in refused(lambda b: b.set_bolt("a", Fails(), outputs=[1]))
    bolt = lambda b: b.set_bolt("a", Fails()).shuffle_grouping("in")
    assert "must be a number" in refused(bolt, conf={"topology.message.timeout.secs": "30"})


class Keeps(Bolt):
    """Acknowledges nothing, and marks what it got."""

    auto_ack = False
    outputs = ("n",)

    def __init__(self, marks):
        self.marks = marks

    def process(self, tup):
        (self.marks / str(tup.values[0])).touch()


class Passes(Bolt):
    outputs = ("n",)

    def process(self, tup):
        self.emit(tup.values)


def test_what_a_bolt_has_not_acknowledged_is_in_a_savepoint(tmp_path):
    (marks := tmp_path / "marks").mkdir()

    def start(env, bolt, num_tasks, path=None):
        builder = TopologyBuilder()
        numbers = env.from_source(ScriptedSource(range(10), is_bounded=False), None, "numbers").uid("numbers")
        builder.set_spout("numbers", numbers, outputs=["n"])
        builder.set_bolt("bolt", bolt, num_tasks).fields_grouping("numbers", Fields("n"))
        topology = builder.create_topology(env, {"topology.message.timeout.secs": 0})
        topology.stream("bolt").sink_to(FileSink.json_lines(str(tmp_path / "out"))).uid("out")
        return env.execute_async("kept", from_savepoint=path)

    with StreamExecutionEnvironment.get_execution_environment("local") as env:
        env.enable_checkpointing(10, directory=str(tmp_path / "checkpoints"))
        client = start(env, Keeps(marks), 2)
        wait_until(lambda: len(list(marks.iterdir())) == 10, client)
        path = client.stop_with_savepoint(str(tmp_path / "savepoints"))
        with pytest.raises(JobFailedError, match=r"task 1 of 'numbers' for bolt 'bolt', which had 2 tasks"):
            start(env, Passes(), 3, path).result()
        client = start(env, Passes(), 2, path)
        wait_until(lambda: rows_in(tmp_path / "out"), client)
        client.stop_with_savepoint(str(tmp_path / "savepoints"), drain=True)
    assert sorted(row["n"] for row in rows_in(tmp_path / "out")) == list(range(10))
