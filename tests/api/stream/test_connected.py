"""Connected, broadcast and joined streams as programs write them, on the local and the simulated cluster.

Families: oracle (answers computed again in plain Python over the same input), crash (the same programs while processes
die), and what is refused where it is written.
"""

from collections import Counter, defaultdict

import pytest

from headrace import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.engine.errors import ConfigurationError, JobFailedError, ProgramError
from headrace.testing import run_simulated

RULES = MapStateDescriptor("rules", Types.LONG(), Types.STRING())


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as environment:
        yield environment


def collected(stream):
    return sorted(stream.execute_and_collect(), key=repr)


def timed(env, rows, bound=20):
    """A stream of (key, event time in ms, ...) whose watermark is ``bound`` ms behind the latest."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(lambda row, _: row[1])
    return env.from_collection(rows).assign_timestamps_and_watermarks(strategy)


# Out of order by less than 20 ms, 3 keys; the sides differ.
LEFT = [(f"k{n % 3}", 10 * n + n * 7 % 19, f"l{n}") for n in range(60)]
RIGHT = [(f"k{n * n % 3}", 8 * n + n * 5 % 19, f"r{n}") for n in range(70)]


# ---------------------------------------------------------------------------------------------------- connected streams


class Both(CoMapFunction):
    def map1(self, value) -> str:
        return f"first {value}"

    def map2(self, value) -> str:
        return f"second {value}"


class Repeated(CoFlatMapFunction):
    def flat_map1(self, value):
        return [value] * value

    def flat_map2(self, value):
        yield value


def test_streams_of_different_types_are_connected(env):
    numbers, words = env.from_collection([1, 2, 3]), env.from_collection(["a", "b"])
    expected = ["first 1", "first 2", "first 3", "second a", "second b"]
    connected = numbers.connect(words)
    assert connected.map(Both()).hinted_type == Types.STRING()
    assert collected(connected.map(Both())) == expected


def test_flat_map_pairs_of_callables_and_declared_types(env):
    numbers, words = env.from_collection([1, 2]), env.from_collection(["a"])
    assert collected(numbers.connect(words).flat_map(Repeated())) == ["a", 1, 2, 2]
    mapped = numbers.connect(words).map(
        (lambda n: (n, "x"), lambda word: (0, word)), Types.TUPLE([Types.LONG(), Types.STRING()])
    )
    assert collected(mapped) == [(0, "a"), (1, "x"), (2, "x")]


def test_process_without_keys_has_side_outputs(env):
    class Sorting(CoProcessFunction):
        def process_element1(self, value, ctx):
            yield value if value % 2 else (OutputTag("even"), value)

        def process_element2(self, value, ctx):
            ctx.output("words", value)

    both = env.from_collection([1, 2, 3]).connect(env.from_collection(["a"])).process(Sorting())
    assert collected(both.union(both.get_side_output("words"), both.get_side_output("even"))) == ["a", 1, 2, 3]


class Enriching(KeyedCoProcessFunction):
    """Left records wait for the key's right ones for 50 ms of event time, then tell how many have come."""

    def open(self, runtime_context):
        self.lefts = runtime_context.get_state(ValueStateDescriptor("lefts"))
        self.rights = runtime_context.get_state(ValueStateDescriptor("rights", default=()))

    def process_element1(self, value, ctx):
        self.lefts.update({**(self.lefts.value() or {}), value[1]: value[2]})
        ctx.timer_service().register_event_time_timer(value[1] + 50)

    def process_element2(self, value, ctx):
        self.rights.update((*self.rights.value(), value[1]))

    def on_timer(self, timestamp, ctx):
        known = [time for time in self.rights.value() if time <= timestamp]
        yield ctx.get_current_key(), self.lefts.value()[timestamp - 50], len(known)


def enriched(env):
    left, right = timed(env, LEFT), timed(env, RIGHT)
    return left.connect(right).key_by(0, lambda row: row[0]).process(Enriching())


ENRICHED = sorted(
    (key, name, sum(other == key and then <= time + 50 for other, then, _ in RIGHT)) for key, time, name in LEFT
)


def test_keyed_streams_share_state_and_timers(env):
    assert collected(enriched(env)) == ENRICHED
    keyed_before = timed(env, LEFT).key_by(0).connect(timed(env, RIGHT).key_by(0)).process(Enriching())
    assert collected(keyed_before) == ENRICHED


# ------------------------------------------------------------------------------------------------------ broadcast state


class Known(KeyedBroadcastProcessFunction):
    """Tells, when event time has passed a record, which broadcast record was the last at its time."""

    def open(self, runtime_context):
        self.names = runtime_context.get_state(ValueStateDescriptor("names"))

    def process_element(self, value, ctx):
        self.names.update({**(self.names.value() or {}), value[1]: value[2]})
        ctx.timer_service().register_event_time_timer(value[1])

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value[1], value[2])

    def on_timer(self, timestamp, ctx):
        times = [time for time in ctx.get_broadcast_state(RULES).keys() if time <= timestamp]  # noqa: SIM118
        rule = ctx.get_broadcast_state(RULES).get(max(times)) if times else None
        yield self.names.value()[timestamp], rule


RULE_ROWS = [("", 100 * n, f"rule {n}") for n in range(1, 6)]
KNOWN = sorted((name, f"rule {time // 100}" if time >= 100 else None) for _, time, name in LEFT if time < 600)


def known(env):
    rules = timed(env, RULE_ROWS).broadcast(RULES)
    return timed(env, [row for row in LEFT if row[1] < 600]).key_by(0).connect(rules).process(Known())


def test_broadcast_records_steer_a_keyed_stream(env):
    assert collected(known(env)) == sorted(KNOWN, key=repr)


def test_broadcast_records_reach_every_subtask_without_keys(env):
    class Telling(BroadcastProcessFunction):
        def process_element(self, value, ctx):
            return None

        def process_broadcast_element(self, value, ctx):
            state = ctx.get_broadcast_state(RULES)
            state.put(value, "x")
            yield value, len(list(state.keys()))

    rules = env.from_collection([7, 8]).set_parallelism(1).broadcast(RULES)
    told = env.from_collection([1]).connect(rules).process(Telling()).set_parallelism(3)
    assert collected(told) == [(7, 1)] * 3 + [(8, 2)] * 3


def test_a_plain_broadcast_is_still_a_partitioning(env):
    assert collected(env.from_collection([1]).broadcast().map(lambda n: n).set_parallelism(3)) == [1, 1, 1]


# ---------------------------------------------------------------------------------------------------------------- joins


def pairs(near):
    return sorted((a[2], b[2]) for a in LEFT for b in RIGHT if a[0] == b[0] and near(a[1], b[1]))


def names(left, right, _ctx=None):
    return left[2], right[2]


def interval_joined(env):
    left, right = timed(env, LEFT).key_by(0), timed(env, RIGHT).key_by(0)
    return (
        left.interval_join(right)
        .between(-15, "0.03 s")
        .upper_bound_exclusive()
        .process(lambda a, b, ctx: [(*names(a, b), ctx.get_timestamp())])
    )


INTERVAL_JOINED = sorted(
    (a[2], b[2], max(a[1], b[1])) for a in LEFT for b in RIGHT if a[0] == b[0] and -15 <= b[1] - a[1] < 30
)


def test_interval_join(env):
    assert collected(interval_joined(env)) == INTERVAL_JOINED
    left, right = timed(env, LEFT).key_by(0), timed(env, RIGHT).key_by(0)
    between = left.interval_join(right).between(-3, 3).lower_bound_exclusive().upper_bound_exclusive()
    assert collected(between.process(lambda a, b, _: [names(a, b)])) == pairs(lambda a, b: -3 < b - a < 3)


def test_late_records_of_an_interval_join_go_to_side_outputs():
    rows = [("a", time, time) for time in (0, 100, 200, 300, 1)]  # the last one is late once its watermark is 299

    def program(env):
        stream = timed(env, rows, 0)
        right = stream.filter(lambda row: row[1] != 1)
        joined = (
            stream.key_by(0)
            .interval_join(right.key_by(0))
            .between(-1, 0)
            .side_output_left_late_data(OutputTag("left"))
            .side_output_right_late_data("right")
            .process(lambda a, b, _: [(a[2], b[2])])
        )
        return joined.union(joined.get_side_output("left"), joined.get_side_output("right"))

    outcomes = {
        tuple(sorted(run_simulated(program, seed=seed, parallelism=1, max_batch_rows=1).values, key=repr))
        for seed in range(3)
    }
    assert outcomes == {(("a", 1, 1), (0, 0), (100, 100), (200, 200), (300, 300))}


def temporally_joined(env):
    left, right = timed(env, LEFT).key_by(0), timed(env, RIGHT).key_by(0)
    return left.temporal_join(right, how="left").apply(lambda a, b: (a[2], b and b[2]))


def version(left):
    """The name of the latest right record of the key at or before a left one; RIGHT has no equal times of one key."""
    begun = [right for right in RIGHT if right[0] == left[0] and right[1] <= left[1]]
    return max(begun, key=lambda right: right[1])[2] if begun else None


TEMPORALLY_JOINED = sorted(((left[2], version(left)) for left in LEFT), key=repr)


def test_temporal_join(env):
    assert len({right[:2] for right in RIGHT}) == len(RIGHT)
    assert collected(temporally_joined(env)) == TEMPORALLY_JOINED
    inner = timed(env, LEFT).key_by(0).temporal_join(timed(env, RIGHT).key_by(0)).apply(names)
    assert collected(inner) == [row for row in TEMPORALLY_JOINED if row[1] is not None]


def window_joined(env):
    joined = timed(env, LEFT).join(timed(env, RIGHT)).where(0).equal_to(lambda row: row[0])
    return joined.window(TumblingEventTimeWindows.of(40)).apply(names)


WINDOW_JOINED = pairs(lambda a, b: a // 40 == b // 40)


def test_window_join(env):
    assert collected(window_joined(env)) == WINDOW_JOINED


def test_co_group_sees_records_without_a_partner(env):
    grouped = (
        timed(env, LEFT).co_group(timed(env, RIGHT[:20])).where(0).equal_to(0).window(TumblingEventTimeWindows.of(50))
    )
    sizes = defaultdict(lambda: [0, 0])
    for side, rows in enumerate((LEFT, RIGHT[:20])):
        for key, time, _ in rows:
            sizes[key, time // 50][side] += 1
    result = grouped.apply(lambda first, second: [(len(first), len(second))], Types.TUPLE([Types.LONG(), Types.LONG()]))
    assert Counter(result.execute_and_collect()) == Counter(map(tuple, sizes.values()))


def test_a_join_takes_lateness(env):
    joined = timed(env, LEFT).join(timed(env, RIGHT)).where(0).equal_to(0).window(TumblingEventTimeWindows.of(40))
    assert collected(joined.allowed_lateness("1 s").apply(names)) == WINDOW_JOINED


# ------------------------------------------------------------------------------------------------------- while it fails


EVERY_KIND = pytest.mark.parametrize(
    ("program", "expected"),
    [
        (enriched, ENRICHED),
        (known, KNOWN),
        (interval_joined, INTERVAL_JOINED),
        (temporally_joined, TEMPORALLY_JOINED),
        (window_joined, WINDOW_JOINED),
    ],
    ids=["co-process", "broadcast", "interval join", "temporal join", "window join"],
)


@EVERY_KIND
def test_answers_do_not_depend_on_the_state_backend(env, program, expected):
    env.set_state_backend("rocksdb")
    assert collected(program(env)) == sorted(expected, key=repr)


@EVERY_KIND
@pytest.mark.sampled(4)
def test_kills_change_no_answer(program, expected):
    num_kills = num_restarts = 0
    for seed in range(2):
        run = run_simulated(program, seed=seed, kills=3, parallelism=2)
        assert sorted(run.values, key=repr) == sorted(expected, key=repr), f"seed {seed}"
        num_kills, num_restarts = num_kills + run.num_kills, num_restarts + run.num_restarts
    assert num_kills, "nothing was tried"
    assert num_restarts


# ------------------------------------------------------------------------------------------------------ what is refused


def test_streams_of_different_environments_are_refused(env):
    other = StreamExecutionEnvironment.get_execution_environment("local").from_collection([(1, 2)])
    stream = env.from_collection([(1, 2)])
    for combine in (
        lambda: stream.connect(other),
        lambda: stream.connect(other.broadcast(RULES)),
        lambda: stream.join(other),
        lambda: stream.co_group(other),
        lambda: stream.key_by(0).interval_join(other.key_by(0)),
        lambda: stream.key_by(0).temporal_join(other.key_by(0)),
        lambda: stream.union(other),
    ):
        with pytest.raises(ProgramError, match="different environments"):
            combine()


def test_functions_must_fit_the_keys(env):
    plain, keyed = env.from_collection([(1, 2)]), env.from_collection([(1, 2)]).key_by(0)
    for first, second in ((plain, plain), (keyed, plain), (plain, keyed)):
        with pytest.raises(ProgramError, match="Enriching is a keyed function"):
            first.connect(second).process(Enriching())
    with pytest.raises(ProgramError, match="Known is a keyed function"):
        plain.connect(plain.broadcast(RULES)).process(Known())

    class Unkeyed(BroadcastProcessFunction):
        process_element = process_broadcast_element = lambda self, value, ctx: None

    with pytest.raises(ProgramError, match="Unkeyed is a function without keys"):
        keyed.connect(plain.broadcast(RULES)).process(Unkeyed())
    with pytest.raises(ProgramError, match="takes a keyed stream"):
        keyed.interval_join(plain)
    with pytest.raises(ProgramError, match="takes a keyed stream"):
        keyed.temporal_join(plain)


def test_wrong_arguments_are_refused(env):
    stream = env.from_collection([(1, 2)])
    keyed = stream.key_by(0)
    with pytest.raises(ProgramError, match="connect takes a stream"):
        stream.connect([1])
    with pytest.raises(ProgramError, match="methods map1 and map2"):
        stream.connect(stream).map(len)
    with pytest.raises(ProgramError, match="declared by a MapStateDescriptor"):
        stream.broadcast(ValueStateDescriptor("x"))
    with pytest.raises(ProgramError, match="'rules' is declared twice"):
        stream.broadcast(RULES, RULES)
    with pytest.raises(ProgramError, match="lower bound must not be above its upper bound; got '5 s', '-5 s'"):
        keyed.interval_join(keyed).between("5 s", "-5 s")
    with pytest.raises(ProgramError, match="lower bound must not be above"):
        keyed.interval_join(keyed).between(0, 0).upper_bound_exclusive().process(names)
    with pytest.raises(ProgramError, match="'inner' or 'left'; got 'outer'"):
        keyed.temporal_join(keyed, how="outer")
    with pytest.raises(ProgramError, match="window takes an assigner"):
        stream.join(stream).where(0).equal_to(0).window(5)
    joined = stream.join(stream).where(0).equal_to(0).window(TumblingEventTimeWindows.of(5))
    with pytest.raises(ConfigurationError, match="at least 0 ms"):
        joined.allowed_lateness(-1)
    with pytest.raises(ProgramError, match="must be callable"):
        joined.apply(5)


def test_undeclared_broadcast_state_and_missing_event_time_fail_the_job(env):
    stream = env.from_collection([(1, 2)])
    other = MapStateDescriptor("other")
    pair = (lambda _, ctx: None, lambda value, ctx: ctx.get_broadcast_state(other).put(value, 1))
    with pytest.raises(JobFailedError, match="broadcast state 'other' was not declared"):
        collected(stream.connect(stream.broadcast(RULES)).process(pair))
    with pytest.raises(JobFailedError, match="record without event time"):
        collected(stream.key_by(0).interval_join(stream.key_by(0)).between(0, 0).process(lambda a, b, _: [a]))
