"""Keyed state of running jobs, asked for from outside.

Families: oracle (what is answered is what the program's functions would say), over restarts, refusals, no torn reads
(two states that always change together are never seen apart).
"""

from __future__ import annotations

import dataclasses
import time
from decimal import Decimal
from pathlib import Path

import pytest
from snapshot_programs import Account, Mean, environment

from headrace import (
    AggregatingStateDescriptor,
    CountTrigger,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    PurgingTrigger,
    ReducingStateDescriptor,
    RestartStrategies,
    StateTtlConfig,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.scripted import Pause, ScriptedSource
from headrace.engine.errors import (
    ConfigurationError,
    JobError,
    ProgramError,
    StateQueryError,
    StateUnavailableError,
    TypeMismatchError,
)

NUM_KEYS = 7
NUM_RECORDS = 70


class Point:
    def __init__(self, x):
        self.x = x


class Broken(Mean):
    def get_result(self, accumulator):
        message = "on purpose"
        raise ValueError(message)


class Answering(KeyedProcessFunction):
    """Holds numbers in every kind of state that may be asked for, and one that may not."""

    def open(self, context):
        descriptors = {
            "last": ValueStateDescriptor("last", int),
            "account": ValueStateDescriptor("account", Account),
            "all": ListStateDescriptor("all", int),
            "odd": MapStateDescriptor("odd", str, int),
            "sum": ReducingStateDescriptor("sum", lambda a, b: a + b, int),
            "mean": AggregatingStateDescriptor("mean", Mean(), tuple[int, int]),
            "short": ValueStateDescriptor("short", int, ttl=StateTtlConfig(1)),
            "long": ValueStateDescriptor("long", int, ttl=StateTtlConfig("1 d")),
            "point": ValueStateDescriptor("point"),
            "broken": AggregatingStateDescriptor("broken", Broken()),
        }
        for name, descriptor in descriptors.items():
            descriptor.set_queryable(f"the {name}")
        self.last = context.get_state(descriptors["last"])
        self.account = context.get_state(descriptors["account"])
        self.all = context.get_list_state(descriptors["all"])
        self.odd = context.get_map_state(descriptors["odd"])
        self.sum = context.get_reducing_state(descriptors["sum"])
        self.mean = context.get_aggregating_state(descriptors["mean"])
        self.short = context.get_state(descriptors["short"])
        self.long = context.get_state(descriptors["long"])
        self.point = context.get_state(descriptors["point"])
        self.broken = context.get_aggregating_state(descriptors["broken"])
        self.own = context.get_state(ValueStateDescriptor("own", int))

    def process_element(self, value, context):
        key, number = value
        self.last.update(number)
        self.account.update(Account(key, number, []))
        self.all.add(number)
        self.odd.put("odd" if number % 2 else "even", number)
        self.sum.add(number)
        self.mean.add(number)
        self.short.update(number)
        self.long.update(number)
        self.point.update(Point(number))
        self.broken.add(number)
        self.own.update(number)


def script():
    return [(f"key-{n % NUM_KEYS}", n) for n in range(NUM_RECORDS)]


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def client(request, tmp_path_factory):
    """A job that has taken all of its records and goes on."""
    with environment(tmp_path_factory.mktemp("asked"), request.param, 3, interval_ms=50) as env:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
        source = ScriptedSource([*script(), Pause()], is_bounded=False)
        numbers = env.from_source(source, strategy, "numbers").key_by(lambda value: value[0])
        numbers.process(Answering()).uid("answering").name("answers").print()
        (
            numbers.window(TumblingEventTimeWindows.of(40))
            .trigger(PurgingTrigger.of(CountTrigger.of(1_000)))
            .reduce(lambda one, other: other)
            .uid("windows")
            .print()
        )
        numbers.as_queryable_state("newest").uid("newest")
        made = env.execute_async("asked")
        made.query_state("answering", "the last", [], timeout=30)
        newest = list(range(NUM_RECORDS - NUM_KEYS, NUM_RECORDS))
        asked = [f"key-{n % NUM_KEYS}" for n in newest]
        deadline = time.monotonic() + 30
        while (
            made.query_state("newest", "newest", asked)["found"].to_pylist().count(False)
            or made.query_state("answering", "the last", asked)["value"].to_pylist() != newest
        ):
            assert time.monotonic() < deadline
        done = made.view().checkpoints_completed
        for view in made.views():
            if view.checkpoints_completed >= done + 2:
                break
        yield made
        made.cancel()


KEYS = ["key-3", "nobody", "key-0", "key-3", "key-6"]


def numbers_of(key):
    return [n for name, n in script() if name == key]


EXPECTED = {
    "the last": lambda numbers: numbers[-1],
    "the all": lambda numbers: numbers,
    "the sum": sum,
    "the long": lambda numbers: numbers[-1],
}


@pytest.mark.parametrize("consistency", ["live", "checkpoint"])
@pytest.mark.parametrize("state", sorted(EXPECTED))
@pytest.mark.sampled(3)
def test_values_come_in_the_order_asked(client, state, consistency):
    table = client.query_state("answering", state, KEYS, consistency=consistency)
    assert table.column_names == ["key", "found", "value"]
    assert table["key"].to_pylist() == KEYS
    assert table["found"].to_pylist() == [True, False, True, True, True]
    wanted = [EXPECTED[state](numbers_of(key)) if numbers_of(key) else None for key in KEYS]
    assert table["value"].to_pylist() == wanted
    by_name = client.query_state("answers", state.removeprefix("the "), KEYS, consistency=consistency)
    assert by_name.equals(table), "by the operator's name and the state's own"


@pytest.mark.parametrize("consistency", ["live", "checkpoint"])
def test_maps_records_and_aggregates(client, consistency):
    def ask(state, **options):
        return client.query_state("answering", state, ["key-3", "key-9"], consistency=consistency, **options)

    numbers = numbers_of("key-3")
    table = ask("the odd")
    odd, even = ([n for n in numbers if n % 2 == rest][-1] for rest in (1, 0))
    assert dict(table["value"].to_pylist()[0]) == {"odd": odd, "even": even}
    assert table["value"].to_pylist()[1] is None
    assert ask("the account")["value"].to_pylist() == [
        dataclasses.asdict(Account("key-3", numbers[-1], [])),
        None,
    ]
    mean = ask("the mean")
    if consistency == "live":
        assert mean["value"].to_pylist() == [sum(numbers) / len(numbers), None]
    else:
        assert mean["accumulator"].to_pylist()[0] == {"f0": sum(numbers), "f1": len(numbers)}
    assert ask("the short")["found"].to_pylist() == [False, False], "its time to live is over"
    with pytest.raises(StateQueryError, match="objects of a type that is not declared"):
        ask("the point")
    assert ask("the point", allow_pickle=True)["found"].to_pylist() == [True, False]


def test_a_stream_is_kept_as_queryable_state(client):
    newest = client.query_state("newest", "newest", ["key-1", "key-2", "x"])
    assert newest["value"].to_pylist() == [
        {"f0": key, "f1": numbers_of(key)[-1]} if key != "x" else None for key in ("key-1", "key-2", "x")
    ]


def test_a_function_that_fails_fails_the_question_alone(client):
    with pytest.raises(StateQueryError, match="could not be told: ValueError"):
        client.query_state("answering", "the broken", ["key-1"], timeout=0.2)
    assert client.view().num_restarts == 0


def test_many_keys_are_asked_for_piece_by_piece(client):
    keys = [f"key-{n}" for n in range(5_000)]
    table = client.query_state("answering", "the last", keys)
    assert table["key"].to_pylist() == keys
    assert sum(table["found"].to_pylist()) == NUM_KEYS


def test_no_keys_no_rows(client):
    assert client.query_state("answering", "the last", []).num_rows == 0


@pytest.mark.parametrize("consistency", ["live", "checkpoint"])
def test_what_is_not_answered_for_is_refused(client, consistency):
    options = {"consistency": consistency, "timeout": 0.2}
    with pytest.raises(StateQueryError, match=r"does not answer for state 'own'.*the last"):
        client.query_state("answering", "own", ["key-1"], **options)
    with pytest.raises(StateQueryError, match="operator 'nobody'"):
        client.query_state("nobody", "own", ["key-1"], **options)
    with pytest.raises(StateQueryError, match="not one of windows"):
        client.query_state("answering", "the last", ["key-1"], window=(0, 10), **options)
    with pytest.raises(TypeMismatchError):
        client.query_state("answering", "the last", [["key-1"]], **options)
    with pytest.raises(ConfigurationError, match="consistency must be"):
        client.query_state("answering", "the last", ["key-1"], consistency="some")


def test_keys_of_another_type_are_refused(client):
    with pytest.raises(TypeMismatchError, match="the state's keys are of type string; got 5"):
        client.query_state("answering", "the last", [5])


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_keys_that_hold_nan_are_found(tmp_path, backend):
    """A client's NaN is never the object that a dictionary holds."""
    keys = [float("nan"), (1, float("nan")), 1.5]
    with environment(tmp_path, backend, 2, interval_ms=30) as env:
        source = ScriptedSource([*range(len(keys)), Pause()], is_bounded=False)
        env.from_source(source, None, "numbers").key_by(lambda n: keys[n]).as_queryable_state("newest").uid("newest")
        client = env.execute_async("nan")
        asked = [float("nan"), (1, float("nan")), 1.5, Decimal("NaN")]
        for consistency in ("live", "checkpoint"):
            deadline = time.monotonic() + 30
            while True:
                assert time.monotonic() < deadline
                try:
                    table = client.query_state("newest", "newest", asked, consistency=consistency, allow_pickle=True)
                except (StateQueryError, TypeMismatchError):
                    continue  # the first record has not come, or no checkpoint holds it
                if table["value"].to_pylist() == [0, 1, 2, 0]:
                    break
        client.cancel()


# -------------------------------------------------------------------------------------------------------------- windows
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_state_of_windows_is_asked_for_by_window_or_all_at_once(tmp_path, backend):
    from headrace import ProcessWindowFunction

    class Calls(ProcessWindowFunction):
        def process(self, key, context, elements):
            descriptor = ValueStateDescriptor("calls", int, queryable="calls")
            state = context.window_state().get_state(descriptor)
            state.update(len(list(elements)))
            return []

        def clear(self, context):
            pass

    with environment(tmp_path, backend, 2, interval_ms=50) as env:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
        source = ScriptedSource([*script(), Pause()], is_bounded=False)
        (
            env.from_source(source, strategy, "numbers")
            .key_by(lambda value: value[0])
            .window(TumblingEventTimeWindows.of(40))
            .trigger(CountTrigger.of(1))
            .process(Calls())
            .uid("windows")
            .print()
        )
        client = env.execute_async("windows")
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline
            try:
                rows = client.query_state("windows", "calls", ["key-1", "key-9"], timeout=20).to_pylist()
            except StateQueryError:
                continue  # state of windows is declared with the first of them
            assert [row["found"] for row in rows if row["key"] == "key-9"] == [False]
            in_last = [row["value"] for row in rows if row["found"] and row["window_start"] == 40]
            if in_last == [len([n for n in numbers_of("key-1") if n >= 40])]:
                break
        last = [n for n in numbers_of("key-1") if n >= 40]
        [one] = client.query_state("windows", "calls", ["key-1"], window=(40, 80)).to_pylist()
        assert (one["found"], one["value"], one["window_start"]) == (True, len(last), 40)
        [none] = client.query_state("windows", "calls", ["key-1"], window=(80, 120)).to_pylist()
        assert (none["found"], none["value"]) == (False, None)
        client.cancel()


# ------------------------------------------------------------------------------------------------------------- failures
class Twice(KeyedProcessFunction):
    """Two states that always change together; fails once."""

    def __init__(self, mark):
        self._mark = mark

    def open(self, context):
        self.one = context.get_state(ValueStateDescriptor("one", int, queryable="one"))
        self.two = context.get_map_state(MapStateDescriptor("two", str, int, queryable="two"))

    def process_element(self, value, context):
        count = (self.one.value() or 0) + 1
        self.one.update(count)
        self.two.put("a", count)
        self.two.put("b", -count)
        if count > 300 and not Path(self._mark).exists():
            Path(self._mark).touch()
            message = "on purpose"
            raise OSError(message)


@pytest.mark.parametrize("system", ["local", "sim"])
@pytest.mark.sampled(9)
def test_a_restart_is_waited_for_and_nothing_is_torn(tmp_path, system):
    from headrace import StreamExecutionEnvironment

    with StreamExecutionEnvironment.get_execution_environment(system, parallelism=2) as env:
        env.enable_checkpointing(30, directory=str(tmp_path / "checkpoints"))
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 50))
        numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=4_000), None, "numbers")
        numbers.key_by(lambda n: n % 5).process(Twice(str(tmp_path / "mark"))).uid("twice").print()
        client = env.execute_async("twice")
        highest = 0
        for _ in range(5_000):
            table = client.query_state("twice", "two", range(5), timeout=60)
            for row in table.to_pylist():
                if row["found"]:
                    value = dict(row["value"])
                    assert value.get("a", 0) == -value.get("b", 0), "a map half changed"
                    highest = max(highest, value["a"])
            if highest > 400 and client.view().num_restarts:
                break
        assert client.view().num_restarts == 1
        client.cancel()
        with pytest.raises((JobError, StateUnavailableError)):
            client.query_state("twice", "two", range(5), timeout=0.1)


def test_a_subtask_that_does_not_come_back_is_told_after_the_time_is_up(tmp_path):
    with environment(tmp_path, "heap", 2) as env:
        env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 60_000))
        source = ScriptedSource([*script(), Pause()], is_bounded=False)
        numbers = env.from_source(source, None, "numbers")
        numbers.key_by(lambda value: value[0]).process(Answering()).uid("answering").print()
        client = env.execute_async("killed")
        client.query_state("answering", "the last", ["key-1"], timeout=30)
        client.kill_slot(0)
        started = time.monotonic()
        for view in client.views():
            if view.state != "RUNNING":
                break
        with pytest.raises(StateUnavailableError, match=r"could not be asked for within 0.3 s"):
            client.query_state("answering", "the last", ["key-1"], timeout=0.3)
        assert time.monotonic() - started < 20
        client.cancel()


def test_descriptors_are_queryable_under_one_name():
    descriptor = ValueStateDescriptor("x", int)
    assert not descriptor.is_queryable()
    descriptor.set_queryable("y")
    descriptor.set_queryable("y")
    assert (descriptor.is_queryable(), descriptor.get_queryable_state_name()) == (True, "y")
    assert dataclasses.replace(descriptor, name="z").queryable == "y"
    for made in (
        MapStateDescriptor("m", int, int, queryable="q"),
        ReducingStateDescriptor("r", max, int, queryable="q"),
        AggregatingStateDescriptor("a", Mean(), queryable="q"),
        ListStateDescriptor("l", int, queryable="q"),
    ):
        assert dataclasses.replace(made, name="z").queryable == "q"
    with pytest.raises(ProgramError, match="queryable as 'y' already"):
        descriptor.set_queryable("z")
    with pytest.raises(ProgramError, match="non-empty string"):
        ValueStateDescriptor("x", queryable="")
