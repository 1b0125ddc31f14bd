"""Every place of a program that takes an object of the user's gives it all that it wants, or refuses it.

An object here wants everything there is: to be opened and closed, state of its subtask, and to hear of checkpoints.
`DRIVEN` and `REFUSED` have one entry for each place; that none is missing is checked against the public methods of all
streams, so that an operation added later needs an entry too.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from unittest.mock import Mock

import pytest

from headrace import (
    AggregateFunction,
    AllWindowFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategies,
    AsyncSink,
    AsyncSinkWriter,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CheckpointListener,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    CountEvictor,
    CountTrigger,
    ExecutionEnvironment,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    GlobalWindows,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    LookupFunction,
    MapFunction,
    MapStateDescriptor,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ProgramError,
    ReduceFunction,
    ReducingStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowFunction,
)
from headrace.connectors.datagen import GeneratorSource, RateLimitedSource
from headrace.connectors.scripted import ScriptedSource
from headrace.engine.connectors.contract import SinkWriter
from headrace.engine.functions.checkpointed import refuse_halves
from headrace.engine.lookups.enrichment import AsyncLookupFunction
from headrace.stream.async_data_stream import AsyncDataStream as AsyncStreams
from headrace.stream.connected_streams import BroadcastConnectedStream, ConnectedStreams
from headrace.stream.data_stream import DataStream
from headrace.stream.joined_streams import IntervalJoined, TemporalJoin, WindowedCoGroup, WindowedJoin
from headrace.stream.keyed_stream import KeyedStream
from headrace.stream.windowed_stream import AllWindowedStream, WindowedStream
from headrace.testing import PipelineTestHarness

pytestmark = pytest.mark.timeout(20)

CALLS = Counter()
FOUND = []


class Everything(CheckpointedFunction, CheckpointListener):
    """Wants all there is, and says what it got."""

    def initialize_state(self, context):
        CALLS["initialize_state"] += 1
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", int))
        FOUND.extend(self.state.get())

    def open(self, *_context):
        CALLS["open"] += 1

    def snapshot_state(self, context):
        CALLS["snapshot_state"] += 1
        self.state.update([41 + CALLS["initialize_state"]])

    def notify_checkpoint_complete(self, checkpoint_id):
        CALLS["notify_checkpoint_complete"] += 1

    def close(self):
        CALLS["close"] += 1


WANTED = {"initialize_state", "open", "snapshot_state", "notify_checkpoint_complete", "close"}


def gives(value):
    def method(self, *_arguments):
        return value

    return method


def function(base, value, *methods):
    """An object of a contract that wants everything beside."""
    return type(f"Every{base.__name__}", (Everything, base), dict.fromkeys(methods, gives(value)))()


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator


class EverySum(Everything, Sum):
    pass


class Asking(Everything, AsyncFunction):
    async def async_invoke(self, value):
        return [value]


class AskingInThread(Everything, AsyncFunction):
    def async_invoke(self, value):
        return [value]


class AskingTable(Everything, AsyncLookupFunction):
    async def async_lookup(self, key):
        return [key]


class Called(Everything):
    """Not one of ours, but callable."""

    def __call__(self, *arguments):
        return [arguments[-1]]


RULES = MapStateDescriptor("rules", str, int)
WINDOW = TumblingEventTimeWindows.of(1_000)


def keyed(stream):
    return stream.key_by(lambda n: n % 3)


def windows(stream):
    return keyed(stream).window(WINDOW)


def pair(stream):
    return stream.connect(stream.map(lambda n: n))


def keyed_pair(stream):
    return keyed(stream).connect(keyed(stream.map(lambda n: n)))


def joined(stream, kind="join"):
    other = stream.map(lambda n: n)
    both = getattr(stream, kind)(other)
    return both.where(lambda n: n % 3).equal_to(lambda n: n % 3).window(WINDOW)


def with_rules(stream, is_keyed=False):
    return (keyed(stream) if is_keyed else stream).connect(stream.map(lambda n: n).broadcast(RULES))


PAIR_METHODS = ("process_element1", "process_element2")
BROADCAST_METHODS = ("process_element", "process_broadcast_element")

DRIVEN = {
    "DataStream.map": lambda s: s.map(function(MapFunction, 1, "map")),
    "DataStream.map of a callable": lambda s: s.map(Called()),
    "DataStream.flat_map": lambda s: s.flat_map(function(FlatMapFunction, [1], "flat_map")),
    "DataStream.filter": lambda s: s.filter(function(FilterFunction, True, "filter")),
    "DataStream.process": lambda s: s.process(function(ProcessFunction, [1], "process_element")),
    "DataStream.map_batches": lambda s: s.map_batches(function(MapFunction, None, "map", "map_batches")),
    "DataStream.map_async": lambda s: s.map_async(Asking()),
    "DataStream.lookup": lambda s: s.lookup(function(LookupFunction, [1], "lookup"), lambda n: n),
    "DataStream.lookup of a coroutine": lambda s: s.lookup(AskingTable(), lambda n: n),
    "AsyncDataStream.ordered_wait": lambda s: AsyncDataStream.ordered_wait(s, Asking(), 1000),
    "AsyncDataStream.ordered_wait in a thread": lambda s: AsyncDataStream.ordered_wait(s, AskingInThread(), 1000),
    "AsyncDataStream.unordered_wait": lambda s: AsyncDataStream.unordered_wait(s, Asking(), 1000),
    "AsyncDataStream.ordered_wait_with_retry": lambda s: AsyncDataStream.ordered_wait_with_retry(
        s, Asking(), 1000, async_retry_strategy=AsyncRetryStrategies.fixed_delay(1, 10)
    ),
    "AsyncDataStream.unordered_wait_with_retry": lambda s: AsyncDataStream.unordered_wait_with_retry(
        s, Asking(), 1000, async_retry_strategy=AsyncRetryStrategies.fixed_delay(1, 10)
    ),
    "KeyedStream.map": lambda s: keyed(s).map(function(MapFunction, 1, "map")),
    "KeyedStream.flat_map": lambda s: keyed(s).flat_map(function(FlatMapFunction, [1], "flat_map")),
    "KeyedStream.filter": lambda s: keyed(s).filter(function(FilterFunction, True, "filter")),
    "KeyedStream.process": lambda s: keyed(s).process(function(KeyedProcessFunction, [1], "process_element")),
    "KeyedStream.reduce": lambda s: keyed(s).reduce(function(ReduceFunction, 1, "reduce")),
    "ConnectedStreams.map": lambda s: pair(s).map(function(CoMapFunction, 1, "map1", "map2")),
    "ConnectedStreams.flat_map": lambda s: pair(s).flat_map(function(CoFlatMapFunction, [1], "flat_map1", "flat_map2")),
    "ConnectedStreams.process": lambda s: pair(s).process(function(CoProcessFunction, [1], *PAIR_METHODS)),
    "ConnectedStreams.map of keyed streams": lambda s: keyed_pair(s).map(function(CoMapFunction, 1, "map1", "map2")),
    "ConnectedStreams.flat_map of keyed streams": lambda s: keyed_pair(s).flat_map(
        function(CoFlatMapFunction, [1], "flat_map1", "flat_map2")
    ),
    "ConnectedStreams.process of keyed streams": lambda s: keyed_pair(s).process(
        function(KeyedCoProcessFunction, [1], *PAIR_METHODS)
    ),
    "BroadcastConnectedStream.process": lambda s: with_rules(s).process(
        function(BroadcastProcessFunction, [1], *BROADCAST_METHODS)
    ),
    "BroadcastConnectedStream.process of a keyed stream": lambda s: with_rules(s, True).process(
        function(KeyedBroadcastProcessFunction, [1], *BROADCAST_METHODS)
    ),
    "WindowedStream.reduce": lambda s: windows(s).reduce(function(ReduceFunction, 1, "reduce")),
    "WindowedStream.reduce with a window function": lambda s: windows(s).reduce(
        max, function(ProcessWindowFunction, [1], "process")
    ),
    "WindowedStream.aggregate": lambda s: windows(s).aggregate(EverySum()),
    "WindowedStream.aggregate with a window function": lambda s: windows(s).aggregate(
        Sum(), function(ProcessWindowFunction, [1], "process")
    ),
    "WindowedStream.process": lambda s: windows(s).process(function(ProcessWindowFunction, [1], "process")),
    "WindowedStream.apply": lambda s: windows(s).apply(function(WindowFunction, [1], "apply")),
    "WindowedStream.apply of a callable": lambda s: windows(s).apply(Called()),
    "WindowedStream.apply_batches": lambda s: windows(s).apply_batches(Called()),
    "WindowedStream.process with a trigger": lambda s: (
        windows(s).trigger(CountTrigger.of(2)).process(function(ProcessWindowFunction, [1], "process"))
    ),
    "AllWindowedStream.reduce": lambda s: s.window_all(WINDOW).reduce(function(ReduceFunction, 1, "reduce")),
    "AllWindowedStream.reduce with a window function": lambda s: s.window_all(WINDOW).reduce(
        max, function(ProcessAllWindowFunction, [1], "process")
    ),
    "AllWindowedStream.aggregate": lambda s: s.window_all(WINDOW).aggregate(EverySum()),
    "AllWindowedStream.aggregate with a window function": lambda s: s.window_all(WINDOW).aggregate(
        Sum(), function(ProcessAllWindowFunction, [1], "process")
    ),
    "AllWindowedStream.process": lambda s: s.window_all(WINDOW).process(
        function(ProcessAllWindowFunction, [1], "process")
    ),
    "AllWindowedStream.process that clears": lambda s: s.window_all(WINDOW).process(
        function(ProcessAllWindowFunction, [1], "process", "clear")
    ),
    "AllWindowedStream.apply": lambda s: s.window_all(WINDOW).apply(function(AllWindowFunction, [1], "apply")),
    "AllWindowedStream.apply of a callable": lambda s: s.window_all(WINDOW).apply(Called()),
    "AllWindowedStream.apply_batches": lambda s: s.window_all(WINDOW).apply_batches(Called()),
    "WindowedJoin.apply": lambda s: joined(s).apply(function(JoinFunction, 1, "join")),
    "WindowedJoin.apply of a flat one": lambda s: joined(s).apply(function(FlatJoinFunction, [1], "join")),
    "WindowedJoin.apply of a callable": lambda s: joined(s).apply(Called()),
    "WindowedCoGroup.apply": lambda s: joined(s, "co_group").apply(function(CoGroupFunction, [1], "co_group")),
    "IntervalJoined.process": lambda s: (
        keyed(s)
        .interval_join(keyed(s.map(lambda n: n)))
        .between(-1, 1)
        .process(function(ProcessJoinFunction, [1], "process_element"))
    ),
    "TemporalJoin.apply": lambda s: (
        keyed(s).temporal_join(keyed(s.map(lambda n: n))).apply(function(JoinFunction, 1, "join"))
    ),
}

PLAIN = {
    "DataStream": (
        "get_name name uid set_uid_hash set_parallelism set_max_parallelism get_execution_environment select"
        " with_columns union connect join co_group get_side_output iterate window_all count_window_all"
        " rebalance rescale shuffle broadcast"
        " global_ forward start_new_chain disable_chaining co_locate_with slot_sharing_group"
        " print execute_and_collect live"
        " transform set_buffer_timeout set_description get_type cache force_non_parallel get_parallelism project"
    ),
    "KeyedStream": ("sum min max min_by max_by interval_join temporal_join as_queryable_state window count_window"),
    "ConnectedStreams": "",
    "BroadcastConnectedStream": "",
    "WindowedStream": (
        "get_execution_environment get_input_type allowed_lateness side_output_late_data combinable"
        " sum min max min_by max_by"
    ),
    "AllWindowedStream": (
        "get_execution_environment get_input_type allowed_lateness side_output_late_data combinable"
        " sum min max min_by max_by"
    ),
    "WindowedJoin": "allowed_lateness",
    "WindowedCoGroup": "allowed_lateness",
    "IntervalJoined": (
        "lower_bound_exclusive upper_bound_exclusive side_output_left_late_data side_output_right_late_data"
    ),
    "TemporalJoin": "side_output_late_data",
    "AsyncDataStream": "",
}
"""Public methods that take no object of the user's."""


class Source(Everything, ScriptedSource):
    pass


class Sink(Everything):
    def create_writer(self):
        return SinkWriter()


class EveryMap(Everything, MapFunction):
    def map(self, value):
        return value


class EveryTrigger(Everything, CountTrigger):
    pass


class EveryEvictor(Everything, CountEvictor):
    pass


class EveryWindows(Everything, GlobalWindows):
    pass


class Opened(MapFunction):
    """One of ours that wants to be opened, where that will not happen."""

    def open(self, runtime_context):
        pass

    def map(self, value):
        return value

    def __call__(self, *arguments):
        return arguments[-1]


def strategy(assigner):
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)


def environment(stream):
    return stream.get_execution_environment()


REFUSED = {
    "DataStream.map of a bound method": lambda s: s.map(Called().__call__),
    "DataStream.map of a partial": lambda s: s.map(functools.partial(EveryMap().map)),
    "DataStream.key_by": lambda s: s.key_by(Called()),
    "DataStream.key_by of one that opens": lambda s: s.key_by(Opened()),
    "DataStream.partition_custom": lambda s: s.partition_custom(Called(), lambda n: n),
    "DataStream.partition_custom by its key": lambda s: s.partition_custom(lambda n, _k: 0, Called()),
    "DataStream.assign_timestamps_and_watermarks": lambda s: s.assign_timestamps_and_watermarks(strategy(Called())),
    "DataStream.assign_timestamps_and_watermarks by a generator": lambda s: s.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_generator(Called())
    ),
    "DataStream.lookup and its join": lambda s: s.lookup(lambda n: [n], lambda n: n, join=Called()),
    "DataStream.sink_to": lambda s: s.sink_to(Sink()),
    "ConnectedStreams.map of a pair": lambda s: pair(s).map((Called(), Called())),
    "ConnectedStreams.map of a pair of bound methods": lambda s: pair(s).map((Called().__call__, str)),
    "ConnectedStreams.key_by": lambda s: pair(s).key_by(Called(), lambda n: n),
    "WindowedStream.trigger": lambda s: windows(s).trigger(EveryTrigger(2)).reduce(max),
    "WindowedStream.evictor": lambda s: windows(s).evictor(EveryEvictor(2)).reduce(max),
    "AllWindowedStream.trigger": lambda s: s.window_all(WINDOW).trigger(EveryTrigger(2)).reduce(max),
    "AllWindowedStream.evictor": lambda s: s.window_all(WINDOW).evictor(EveryEvictor(2)).reduce(max),
    "KeyedStream.window": lambda s: keyed(s).window(EveryWindows()).reduce(max),
    "WindowedJoin.trigger": lambda s: joined(s).trigger(EveryTrigger(2)).apply(lambda a, b: a),
    "WindowedJoin.evictor": lambda s: joined(s).evictor(EveryEvictor(2)).apply(lambda a, b: a),
    "WindowedCoGroup.trigger": lambda s: joined(s, "co_group").trigger(EveryTrigger(2)).apply(lambda a, b: a),
    "WindowedCoGroup.evictor": lambda s: joined(s, "co_group").evictor(EveryEvictor(2)).apply(lambda a, b: a),
    "from_source": lambda s: environment(s).from_source(Source([1]), None, "s"),
    "from_source at a limited rate": lambda s: RateLimitedSource(Source([1]), 10),
}

STREAMS = (
    DataStream,
    KeyedStream,
    ConnectedStreams,
    BroadcastConnectedStream,
    WindowedStream,
    AllWindowedStream,
    WindowedJoin,
    WindowedCoGroup,
    IntervalJoined,
    TemporalJoin,
    AsyncStreams,
)


def test_no_operation_is_left_out():
    known = {name.split(" ")[0] for name in [*DRIVEN, *REFUSED]}
    missing = []
    for kind in STREAMS:
        plain = PLAIN[kind.__name__].split()
        inherited = {"DataStream"} if issubclass(kind, DataStream) else set()
        for name, _ in inspect.getmembers(kind, callable):
            places = {f"{owner}.{name}" for owner in {kind.__name__, *inherited}}
            is_plain = name in plain or (inherited and name in PLAIN["DataStream"].split())
            if not name.startswith("_") and not is_plain and not places & known:
                missing.append(f"{kind.__name__}.{name}")
    assert not missing, "say for each what it does with a function that wants everything"


def run(build):
    """Feed a program, take a snapshot, and go on from it."""

    def program(numbers):
        return build(numbers)

    with PipelineTestHarness(program) as harness:
        harness.process_elements([1, 2, 3], [1, 2, 3])
        snapshot = harness.snapshot()
    with PipelineTestHarness(program).restore(snapshot) as harness:
        harness.process_elements([4], [5])
        harness.end_input()


@pytest.mark.parametrize("place", DRIVEN)
def test_what_it_wants_it_gets(place):
    CALLS.clear()
    FOUND.clear()
    run(DRIVEN[place])
    assert set(CALLS) == WANTED, f"never called: {WANTED - set(CALLS)}"
    # One that is canceled closes an asynchronous function outside, and does not wait for it.
    assert CALLS["open"] == CALLS["initialize_state"] >= CALLS["close"] >= CALLS["open"] // 2, CALLS
    assert FOUND == [42], "its state was not found again"


ALONE = (("open",), ("close",), ("initialize_state", "snapshot_state"), ("notify_checkpoint_complete",))
"""What an object may want that wants nothing else; by having the methods, of no class of ours."""


@pytest.mark.parametrize("wanted", ALONE, ids=lambda wanted: wanted[0])
@pytest.mark.sampled(9)
def test_who_wants_but_one_thing_gets_it_too(wanted, monkeypatch):
    """Nothing that an object wants depends on what else it wants."""
    methods = {name: vars(Everything)[name] for name in wanted}
    monkeypatch.setitem(globals(), "Everything", type("OneThing", (), methods))
    wrong = {}
    for place, build in DRIVEN.items():
        CALLS.clear()
        run(build)
        # Objects of a class that is written out above want everything all the same.
        if set(CALLS) not in (set(wanted), WANTED):
            wrong[place] = set(CALLS)
    assert not wrong, f"wanted {wanted}, called {wrong}"


@pytest.mark.parametrize("place", REFUSED)
def test_what_it_cannot_get_is_refused_when_the_graph_is_built(place):
    env = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ProgramError, match=r"would never be|pass the object"):
        REFUSED[place](env.from_collection([1, 2, 3]))


HALVES = ("initialize_state", "snapshot_state", "notify_checkpoint_complete")


@pytest.mark.parametrize("missing", HALVES)
@pytest.mark.parametrize("place", [*DRIVEN, *REFUSED])
def test_half_of_what_it_takes_to_want_something_is_refused_when_the_graph_is_built(place, missing, monkeypatch):
    """A function whose saved state nobody takes up would begin anew after a failure, without a word."""
    monkeypatch.setattr(Everything, missing, None)
    monkeypatch.setattr(Everything, "notify_checkpoint_aborted", gives(None), raising=False)
    env = StreamExecutionEnvironment.get_execution_environment("local")
    wanted = rf"has \w+ but no {missing}, so"
    if place.endswith("that opens"):  # wants nothing else
        wanted = "would never be"
    with pytest.raises(ProgramError, match=wanted):
        {**DRIVEN, **REFUSED}[place](env.from_collection([1, 2, 3]))


@pytest.mark.parametrize("missing", HALVES)
@pytest.mark.parametrize("place", ["reader", "limited reader", "writer"])
def test_readers_and_writers_with_half_of_it_are_refused_with_the_operators_name(place, missing, monkeypatch):
    monkeypatch.setattr(Everything, missing, None)
    monkeypatch.setattr(Everything, "notify_checkpoint_aborted", gives(None), raising=False)
    expected = rf"has \w+ but no {missing}, so"
    with pytest.raises(ProgramError, match=expected) as refused, PipelineTestHarness(life_of(place)) as harness:
        harness.advance("1 s")
    assert refused.value.context["operator"] == ("Sink: writing" if place == "writer" else "numbers")


def test_objects_with_any_attribute_are_taken():
    refuse_halves(Mock())


class Model:
    """Somebody else's, whose methods happen to have names of ours."""

    wrapped_function = "its own"

    def predict(self, value):
        return value + 1

    __call__ = predict


FOREIGN = {
    "no argument": {"snapshot_state": lambda self: {}},
    "another argument": {"initialize_state": lambda self, batch_size: None},
    "an optional one": {"initialize_state": lambda self, batch_size=None, device="cpu": None},
    "both, of another kind": {"initialize_state": lambda self, rows, columns: None, "snapshot_state": lambda self: {}},
    "no method": {"snapshot_state": True, "notify_checkpoint_aborted": "no"},
}


@pytest.mark.parametrize("methods", FOREIGN)
@pytest.mark.parametrize("use", ["method", "object", "key"])
def test_what_only_has_a_name_in_common_with_state_is_called_and_left_alone(use, methods):
    model = type("Model", (Model,), FOREIGN[methods])()
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    numbers = env.from_collection([1, 2])
    if use == "key":
        given = numbers.key_by(model.predict).map(lambda value: value + 1)
    else:
        given = numbers.map(model.predict if use == "method" else model)
    assert sorted(given.execute_and_collect()) == [2, 3]


def context_named(name):
    return eval(f"lambda self, {name}: None")


@pytest.mark.parametrize("name", ["context", "ctx", "_context", "_", "c", "function_context"])
@pytest.mark.parametrize("half", ["initialize_state", "snapshot_state"])
def test_half_of_a_contract_is_told_by_what_it_takes_where_no_class_of_ours_is_named(half, name):
    kind = type("Own", (Model,), {half: context_named(name)})
    env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    for function in (kind(), kind().predict):
        with pytest.raises(ProgramError, match=f"has {half} but no"):
            env.from_collection([1]).map(function)


def test_the_writer_of_an_asynchronous_sink_with_half_of_it_is_refused_when_the_graph_is_built():
    class Writer(AsyncSinkWriter):
        def submit_request_entries(self, request_entries):
            pass

        def snapshot_state(self, context):
            pass

    class Service(AsyncSink):
        def create_writer(self):
            return Writer()

    env = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ProgramError, match="Writer has snapshot_state but no initialize_state"):
        env.from_collection([1]).sink_to(Service())


def test_the_function_of_a_state_is_refused_where_it_is_asked_for():
    class Keeps(KeyedProcessFunction):
        def open(self, ctx):
            ctx.get_reducing_state(ReducingStateDescriptor("r", function(ReduceFunction, 1, "reduce"), int))

        def process_element(self, value, ctx):
            pass

    with pytest.raises(ProgramError, match="the function of a state is only called"):
        run(lambda s: keyed(s).process(Keeps()))


# ----------------------------------------------------------------------------------------------------- readers, writers
class Reading(GeneratorSource):
    """A source whose reader wants everything."""

    def create_reader(self):
        reader = super().create_reader()

        class Reader(Everything):
            def __getattr__(self, name):
                return getattr(reader, name)

            def open(self, context):
                super().open()
                reader.open(context)

            def pause_splits(self, split_ids):
                CALLS["pause_splits"] += 1

            def close(self):
                super().close()
                reader.close()

        return Reader()


class Writing:
    def create_writer(self):
        class Writer(Everything, SinkWriter):
            def write(self, batch):
                pass

        return Writer()


def reading(is_limited):
    source = Reading(lambda n: n, count=6, number_of_splits=1)
    return RateLimitedSource(source, 2) if is_limited else source


def life_of(place):
    """A program with a reader or writer that wants everything."""

    def build(env):
        is_writer = place == "writer"
        source = GeneratorSource(lambda n: n, count=6) if is_writer else reading(place.startswith("limited"))
        stream = env.from_source(RateLimitedSource(source, 2) if is_writer else source, None, "numbers")
        stream.sink_to(Writing()) if is_writer else stream.print()

    return build


@pytest.mark.parametrize("place", ["reader", "limited reader", "writer"])
def test_readers_and_writers_get_all_they_want(place):
    CALLS.clear()
    FOUND.clear()

    def started():
        return PipelineTestHarness(life_of(place))

    with started() as harness:
        harness.advance("1 s")
        snapshot = None if harness.is_finished else harness.snapshot()
    if snapshot is not None:
        with started().restore(snapshot) as harness:
            harness.advance("1 s")
        assert FOUND == [42]
    assert set(CALLS) >= WANTED, f"never called: {WANTED - set(CALLS)}"


def test_what_a_limited_reader_can_do_besides_it_can_still_do():
    inner, wrapped = ScriptedSource([1]), RateLimitedSource(ScriptedSource([1]), 10)
    for name in ("pause_splits", "wants_split"):
        assert hasattr(inner.create_reader(), name) == hasattr(wrapped.create_reader(), name)
    assert not hasattr(wrapped.create_reader(), "anything_else")


def test_data_sets_take_no_checkpoints_and_say_so():
    env = ExecutionEnvironment.get_execution_environment("local")
    numbers = env.from_collection([1, 2])
    for build in (
        lambda: numbers.map(EveryMap()),
        lambda: numbers.flat_map(Called()),
        lambda: numbers.filter(Called()),
        lambda: numbers.map_partition(Called()),
    ):
        with pytest.raises(ProgramError, match="data sets take no checkpoints"):
            build()


def test_methods_of_any_kind_are_those_of_a_contract():
    class Static:
        @staticmethod
        def notify_checkpoint_complete(checkpoint_id):
            pass

    class OfClass:
        @classmethod
        def notify_checkpoint_complete(cls, checkpoint_id):
            pass

    class Partial:
        def _tell(self, what, checkpoint_id):
            pass

        notify_checkpoint_complete = functools.partialmethod(_tell, "complete")

    for kind in (Static, OfClass, Partial):
        assert isinstance(kind(), CheckpointListener), kind
