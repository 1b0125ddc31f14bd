"""Iterations through the API, on the local and the simulated system: small algorithms against plain Python.

Oracle tests at parallelism 1 to 3; a stop in the middle of the loop, resumed at another parallelism; the ways to end.
"""

import time
from collections import Counter

import pytest
from campaigns import campaign

from headrace import (
    ConfigurationError,
    DataStream,
    JobFailedError,
    KeyedProcessFunction,
    MapFunction,
    ProgramError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.datagen import GeneratorSource

SYSTEMS = [(system, parallelism) for system in ("local", "sim") for parallelism in (1, 2, 3)]


@pytest.fixture(params=SYSTEMS, ids=lambda param: f"{param[0]}-{param[1]}")
def env(request):
    system, parallelism = request.param
    with StreamExecutionEnvironment.get_execution_environment(system, parallelism=parallelism) as environment:
        yield environment


@pytest.fixture
def local():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as environment:
        yield environment


def collected(stream):
    return sorted(stream.execute_and_collect())


def subtract_until_zero(stream):
    steps = stream.map(lambda n: (n, n)).iterate()
    minus_one = steps.map(lambda pair: (pair[0], pair[1] - 1))
    steps.close_with(minus_one.filter(lambda pair: pair[1] > 0))
    return minus_one.filter(lambda pair: pair[1] <= 0).map(lambda pair: pair[0])


def test_subtract_one_until_zero(env):
    assert collected(subtract_until_zero(env.from_collection(list(range(1, 60))))) == list(range(1, 60))


def collatz_length(n):
    length = 0
    while n != 1:
        n, length = (n // 2 if n % 2 == 0 else 3 * n + 1), length + 1
    return length


@pytest.mark.sampled(4)
def test_collatz_with_a_feedback_of_another_parallelism_and_two_ways_back(env):
    numbers = env.from_collection(list(range(1, 120))).map(lambda n: (n, n, 0))
    going = numbers.iterate()
    done = going.filter(lambda t: t[1] == 1)
    left = going.filter(lambda t: t[1] != 1)
    even = left.filter(lambda t: t[1] % 2 == 0).map(lambda t: (t[0], t[1] // 2, t[2] + 1))
    odd = left.filter(lambda t: t[1] % 2 == 1).map(lambda t: (t[0], 3 * t[1] + 1, t[2] + 1)).set_parallelism(1)
    going.close_with(even.rebalance().union(odd))
    assert collected(done.map(lambda t: (t[0], t[2]))) == [(n, collatz_length(n)) for n in range(1, 120)]


EDGES = [
    (1, 2),
    (2, 3),
    (3, 4),
    (5, 6),
    (7, 8),
    (8, 9),
    (9, 7),
    (10, 10),
    (12, 11),
    (11, 13),
    (13, 14),
    (14, 15),
    (4, 20),
]


class PropagateMinimum(KeyedProcessFunction):
    """Per node: keeps its neighbours and the least label heard of; tells the neighbours when that falls."""

    def open(self, runtime_context):
        self.neighbours = runtime_context.get_state(ValueStateDescriptor("neighbours"))
        self.label = runtime_context.get_state(ValueStateDescriptor("label"))

    def process_element(self, value, ctx):
        node, kind, content = value
        neighbours, label = self.neighbours.value() or (), self.label.value()
        if kind == "edge":
            self.neighbours.update((*neighbours, content))
            if label is None or node < label:  # a neighbour's label may have come around the loop before the edge
                self.label.update(label := node)
                yield (node, "is", label)
                for neighbour in neighbours:
                    yield (neighbour, "label", label)
            yield (content, "label", label)
        elif label is None or content < label:
            self.label.update(content)
            yield (node, "is", content)
            for neighbour in neighbours:
                yield (neighbour, "label", content)


def components(edges):
    label = {node: node for edge in edges for node in edge}
    for _ in label:
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    return label


def connected_components(edges):
    messages = edges.flat_map(lambda edge: [(edge[0], "edge", edge[1]), (edge[1], "edge", edge[0])]).iterate()
    updates = messages.key_by(lambda m: m[0]).process(PropagateMinimum()).uid("nodes")
    messages.close_with(updates.filter(lambda m: m[1] == "label"))
    return updates.filter(lambda m: m[1] == "is").map(lambda m: (m[0], m[2]))


def least(rows):
    labels = {}
    for node, label in rows:
        labels[node] = min(label, labels.get(node, label))
    return labels


def test_connected_components_by_the_least_label_in_a_keyed_loop(env):
    assert least(connected_components(env.from_collection(EDGES)).execute_and_collect()) == components(EDGES)


def test_a_loop_behind_a_loop_and_one_beside_it(env):
    first = subtract_until_zero(env.from_collection([3, 1, 7]))
    second = subtract_until_zero(first.map(lambda n: n + 1))
    beside = subtract_until_zero(env.from_collection([5]))
    assert collected(second.union(beside)) == [2, 4, 5, 8]


def test_an_empty_input_ends(env):
    assert collected(subtract_until_zero(env.from_collection([1]).filter(lambda n: n > 1))) == []


def test_a_loop_without_chaining(local):
    local.disable_operator_chaining()
    assert collected(subtract_until_zero(local.from_collection([4, 9]))) == [4, 9]


def test_small_buffers_do_not_stop_a_loop_that_multiplies_its_records(local):
    """Each record becomes two, ten times over: far more than all channels of the loop hold."""
    local.set_buffer_timeout(0)
    numbers = local.from_collection([0] * 8).iterate()
    doubled = numbers.flat_map(lambda n: [n + 1, n + 1])
    numbers.close_with(doubled.filter(lambda n: n < 10).rebalance())
    assert collected(doubled.filter(lambda n: n == 10)) == [10] * 8 * 1_024


# ---------------------------------------------------------------------------------------------------------- event time


def test_windows_behind_a_loop_see_no_record_late(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
    numbers = env.from_collection(list(range(200))).assign_timestamps_and_watermarks(strategy)
    going = numbers.map(lambda n: (n, n % 17)).iterate()
    body = going.map(lambda pair: (pair[0], pair[1] - 1))
    going.close_with(body.filter(lambda pair: pair[1] > 0))
    counted = (
        body.filter(lambda pair: pair[1] <= 0)
        .map(lambda pair: (pair[0] // 20, 1))
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(20))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    assert collected(counted) == [(n, 20) for n in range(10)]


def test_what_a_window_in_the_loop_holds_at_the_end_goes_round_as_well(env):
    """A window's result comes back after the end of event time has fired it, and is counted on its way out."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair, _: pair[1])
    pairs = [("a", 5), ("b", 6), ("a", 7)]
    going = env.from_collection(pairs).assign_timestamps_and_watermarks(strategy).iterate()
    sums = (
        going.filter(lambda pair: pair[1] < 1_000)
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(100))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .map(lambda pair: (pair[0], pair[1] + 1_000))
    )
    going.close_with(sums)
    assert collected(going.filter(lambda pair: pair[1] >= 1_000)) == [("a", 1_012), ("b", 1_006)]


class RetryLater(KeyedProcessFunction):
    """Holds each record for 20 ms of processing time before it goes on."""

    def open(self, runtime_context):
        self.held = runtime_context.get_state(ValueStateDescriptor("held"))

    def process_element(self, value, ctx):
        self.held.update(value)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 20)

    def on_timer(self, timestamp, ctx):
        key, n = self.held.value()
        yield (key, n - 1)


def test_a_processing_time_timer_in_the_loop_keeps_it_from_ending(env):
    going = env.from_collection([("a", 2), ("b", 3)]).iterate()
    body = going.key_by(lambda pair: pair[0]).process(RetryLater())
    going.close_with(body.filter(lambda pair: pair[1] > 0))
    assert collected(body.filter(lambda pair: pair[1] == 0)) == [("a", 0), ("b", 0)]


# -------------------------------------------------------------------------------------------------------------- ending


def test_max_wait_time_ends_a_loop_in_which_nothing_moves(env):
    going = env.from_collection([3, 5]).iterate(max_wait_time="200 ms")
    body = going.map(lambda n: n - 1)
    going.close_with(body.filter(lambda n: n > 0))
    assert collected(body.filter(lambda n: n <= 0)) == [0, 0]


def test_a_failing_body_fails_the_job(local):
    class Explode(MapFunction):
        def map(self, value):
            if value == 2:
                message = "two"
                raise ValueError(message)
            return value - 1

    going = local.from_collection([5]).iterate()
    body = going.map(Explode())
    going.close_with(body.filter(lambda n: n > 0))
    with pytest.raises(JobFailedError, match="two"):
        collected(body)


# ------------------------------------------------------------------------------------------------------------ stopping


def turning(env, count, rate):
    """Each number turns ``n % 40 + 1`` times in a keyed loop whose state counts the turns."""
    source = GeneratorSource(lambda n: n, count=count, records_per_second=rate, number_of_splits=2)
    going = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    going = going.map(lambda n: (n, n % 40 + 1)).uid("turns").iterate().uid("loop")
    body = going.key_by(lambda pair: pair[0] % 7).process(CountTurns()).uid("body")
    going.close_with(body.filter(lambda row: row[1] > 0).uid("more").map(lambda row: (row[0], row[1])).uid("back"))
    return body.map(lambda row: (row[0] % 7, row[2])).uid("out")


class CountTurns(KeyedProcessFunction):
    def open(self, runtime_context):
        self.turns = runtime_context.get_state(ValueStateDescriptor("turns"))

    def process_element(self, value, ctx):
        turns = (self.turns.value() or 0) + 1
        self.turns.update(turns)
        yield (value[0], value[1] - 1, turns)


@pytest.mark.parametrize("parallelism", [1, campaign(2), 3])
@pytest.mark.sampled(9)
def test_a_job_stopped_with_records_in_its_loop_goes_on_with_them_at_another_parallelism(local, tmp_path, parallelism):
    count, rows, path = 400, [], None
    local.enable_checkpointing(20, directory=str(tmp_path))
    collecting = turning(local, count, 50).execute_and_collect("first")
    deadline = time.monotonic() + 60
    for view in collecting._client.views():
        assert time.monotonic() < deadline
        if any(vertex.name.startswith("Source") and vertex.records_out > 30 for vertex in view.vertices):
            break
    path = collecting.stop()
    rows.extend(collecting)
    assert path is not None
    local.set_parallelism(parallelism)
    local.set_restore_path(path)
    rows.extend(turning(local, count, None).execute_and_collect("second"))
    totals = Counter()
    for n in range(count):
        totals[n % 7] += n % 40 + 1
    assert Counter(rows) == Counter((key, turn) for key, total in totals.items() for turn in range(1, total + 1))


# ----------------------------------------------------------------------------------------------------------- arguments


def test_wrong_arguments_are_refused_where_they_are_written(local):
    stream = local.from_collection([1])
    going = stream.iterate()
    assert isinstance(going, DataStream)
    with pytest.raises(ProgramError, match="made of it by at least one operation"):
        going.close_with(stream.map(lambda n: n))
    with pytest.raises(ProgramError, match="made of it by at least one operation"):
        going.close_with(going)
    with pytest.raises(ProgramError, match="takes a stream"):
        going.close_with("a stream")
    with pytest.raises(ConfigurationError, match="max_wait_time must be at least 1 ms"):
        stream.iterate(0)
    other = StreamExecutionEnvironment.get_execution_environment("local")
    with pytest.raises(ProgramError, match="different environments"):
        going.close_with(other.from_collection([1]))


def test_an_iteration_that_is_not_closed_and_nested_ones_are_refused(local):
    going = local.from_collection([1]).iterate()
    body = going.map(lambda n: n)
    body.print()
    with pytest.raises(ProgramError, match="is not closed"):
        local.execute()
    inner = body.iterate()
    inner.close_with(inner.map(lambda n: n))
    going.close_with(inner.filter(lambda n: n > 0))
    with pytest.raises(ProgramError, match="nested"):
        local.execute()
