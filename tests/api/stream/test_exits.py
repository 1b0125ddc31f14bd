"""What users' code raises that is no `Exception`: it fails the job, wherever it is raised, and ends no thread of ours.

Left alone such an exception ends whichever thread drives the machines, in the middle of a batch; the next driver
finds the rest of that batch gone and the job FINISHED. `StopIteration` is of the family: inside ``map`` it
ends a list early.
"""

import os
import signal

import pytest

from headrace import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    CheckpointedFunction,
    CountTrigger,
    GlobalWindows,
    JobFailedError,
    KeyedProcessFunction,
    LookupFunction,
    MapFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.scripted import ScriptedSource
from headrace.engine.connectors.contract import Committer, SinkWriter

pytestmark = pytest.mark.timeout(20)

BAD = 150


class Odd(BaseException):
    """Of nobody's tree."""


EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit, Odd]


class Bomb:
    """Raises when it meets the bad record, or at once."""

    def __init__(self, kind):
        self.kind = kind

    def __call__(self, value):
        if value == BAD:
            raise self.kind(BAD)
        return value


def exploding(base, method, bomb, **others):
    """An object of a contract whose one method raises, whatever it is called with."""

    def fails(self, *_arguments):
        raise bomb.kind(BAD)

    return type("Exploding", (base,), {method: fails, **others})()


def passes(self, value, *_arguments):
    return [value]


class Timers(KeyedProcessFunction):
    def __init__(self, bomb):
        self.bomb = bomb

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1)

    def on_timer(self, timestamp, ctx):
        self.bomb(BAD)


class Asking(AsyncFunction):
    def __init__(self, bomb):
        self.bomb = bomb

    async def async_invoke(self, value):
        return [self.bomb(value)]


class Looking(LookupFunction):
    def __init__(self, bomb):
        self.bomb = bomb

    def lookup(self, key):
        return [self.bomb(key)]


class Reading(GeneratorSource):
    bomb = None

    def create_reader(self):
        reader, bomb = super().create_reader(), self.bomb

        class Wrapped:
            def __getattr__(self, name):
                return getattr(reader, name)

            def poll(self, max_records):
                return bomb(BAD)

        return Wrapped()


class Enumerating(GeneratorSource):
    bomb = None

    def create_enumerator(self, context):
        enumerator, bomb = super().create_enumerator(context), self.bomb

        class Wrapped:
            discovery_interval_ms = None

            def discover(self):
                return bomb(BAD)

        assert enumerator is not None
        return Wrapped()


class Sinking:
    def __init__(self, bomb, where):
        self.bomb = bomb
        self.where = where

    def create_writer(self):
        where, bomb = self.where, self.bomb

        class Writer(SinkWriter):
            def write(self, batch):
                if where == "write":
                    bomb(BAD)

            def prepare(self, checkpoint_id):
                return [bomb(BAD if where == "prepare" else 0)]

        return Writer()

    def create_committer(self):
        bomb = self.bomb

        class Of(Committer):
            def commit(self, committable):
                bomb(BAD)

        return Of()


def with_bomb(kind, bomb):
    source = kind(lambda n: n, count=4, number_of_splits=1)
    source.bomb = bomb
    return source


def keyed(stream):
    return stream.key_by(lambda n: n % 3)


def sums(bomb):
    class Sum(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return bomb(value)

        def get_result(self, accumulator):
            return accumulator

    return Sum()


def late(bomb):
    def reduce(_a, b):
        return bomb(b)

    return reduce


PLACES = {
    "map": lambda s, b: s.map(b),
    "filter": lambda s, b: s.filter(lambda n: b(n) >= 0),
    "generator": lambda s, b: s.flat_map(lambda n: (b(m) for m in [n])),
    "process": lambda s, b: s.process(lambda n, ctx: [b(n)]),
    "key": lambda s, b: s.key_by(b).reduce(max),
    "partitioner": lambda s, b: s.partition_custom(lambda key, n: b(key) % n, lambda n: n).map(str),
    "timestamps": lambda s, b: s.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _t: b(n))
    ),
    "batches": lambda s, b: s.map_batches(lambda _columns: b(BAD)),
    "reduce": lambda s, b: keyed(s).reduce(late(b)),
    "aggregate": lambda s, b: keyed(s).count_window(2).aggregate(sums(b)),
    "window": lambda s, b: (
        keyed(s).window(TumblingEventTimeWindows.of(1000)).process(exploding(ProcessWindowFunction, "process", b))
    ),
    "trigger": lambda s, b: (
        keyed(s)
        .window(GlobalWindows.create())
        .trigger(exploding(CountTrigger, "on_element", b, __init__=lambda self: CountTrigger.__init__(self, 2)))
        .reduce(max)
    ),
    "timer": lambda s, b: keyed(s).process(Timers(b)),
    "open": lambda s, b: s.map(exploding(MapFunction, "open", b, map=passes)),
    "close": lambda s, b: s.map(exploding(MapFunction, "close", b, map=passes)),
    "initialize_state": lambda s, b: s.map(
        exploding(
            type("Both", (CheckpointedFunction, MapFunction), {"map": passes}),
            "initialize_state",
            b,
            snapshot_state=passes,
        )
    ),
    "coroutine": lambda s, b: AsyncDataStream.ordered_wait(s, Asking(b), 1000, 10),
    "lookup": lambda s, b: s.lookup(Looking(b), lambda n: n),
    "source": lambda s, b: (
        s.get_execution_environment().from_source(with_bomb(Reading, b), None, "bad source").map(str)
    ),
    "enumerator": lambda s, b: (
        s.get_execution_environment().from_source(with_bomb(Enumerating, b), None, "bad split").map(str)
    ),
    "generator source": lambda s, b: (
        s.get_execution_environment()
        .from_source(GeneratorSource(b, count=200, number_of_splits=1), None, "bad source")
        .map(str)
    ),
    "writer": lambda s, b: s.sink_to(Sinking(b, "write")),
    "prepare": lambda s, b: s.sink_to(Sinking(b, "prepare")),
    "committer": lambda s, b: s.sink_to(Sinking(b, "commit")),
}


def run(system, place, bomb):
    with StreamExecutionEnvironment.get_execution_environment(system, parallelism=2) as env:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _t: n)
        stream = env.from_source(GeneratorSource(lambda n: n, count=200), strategy, "numbers")
        PLACES[place](stream, bomb)
        with pytest.raises(JobFailedError) as caught:
            env.execute(place)
    return str(caught.value)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("system", ["local", "sim"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.sampled(4)
def test_an_exit_in_users_code_fails_the_job(place, system):
    for kind in EXITS:
        text = run(system, place, Bomb(kind))
        assert kind.__name__ in text, text


@pytest.mark.parametrize("place", ["map", "key", "timestamps", "partitioner", "filter", "process"])
def test_stop_iteration_ends_no_list_early(place):
    assert "user function raised" in run("local", place, Bomb(StopIteration))


def test_in_the_background_the_thread_lives_on():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        env.from_source(GeneratorSource(lambda n: n, count=200), None, "numbers").map(Bomb(SystemExit))
        assert env.execute_async("exits").wait(15).state == "FAILED"
        env.from_source(GeneratorSource(lambda n: n, count=20), None, "numbers").map(str)
        assert env.execute_async("the next one").wait(15).state == "FINISHED"


@pytest.mark.campaign
@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("ray_session")
def test_on_ray_the_process_lives_on():
    with StreamExecutionEnvironment.get_execution_environment("ray", parallelism=1) as env:
        for kind in (SystemExit, KeyboardInterrupt):
            env.from_source(GeneratorSource(lambda n: n, count=200), None, "numbers").map(Bomb(kind))
            with pytest.raises(JobFailedError, match=f"user function raised {kind.__name__}"):
                env.execute("exits")


@pytest.mark.parametrize("own_handler", [False, True])
def test_ctrl_c_of_the_driver_is_no_failure_of_a_function(own_handler):
    """It strikes while a function runs: the turn ends, then the job is canceled in order."""

    def press(n):
        if n == BAD:
            os.kill(os.getpid(), signal.SIGINT)
        return n

    class Mine(Exception):
        pass

    def handler(_number, _frame):
        raise Mine

    before = signal.signal(signal.SIGINT, handler) if own_handler else None
    try:
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
            env.from_source(ScriptedSource([*range(200)]), None, "numbers").map(press)
            with pytest.raises(Mine if own_handler else KeyboardInterrupt):
                env.execute("pressed")
            assert signal.getsignal(signal.SIGINT) is (handler if own_handler else signal.default_int_handler)
    finally:
        if own_handler:
            signal.signal(signal.SIGINT, before)
