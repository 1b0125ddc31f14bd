"""Streams without a cluster: which operators a program becomes, and which arguments are refused at once."""

import json
from dataclasses import dataclass

import pyarrow as pa
import pytest

from headrace import (
    AggregateFunction,
    ConfigurationError,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProgramError,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WatermarkStrategy,
    avg,
    col,
    count,
    first,
)
from headrace import functions as f


@pytest.fixture
def env():
    return StreamExecutionEnvironment.get_execution_environment("local", parallelism=2)


@pytest.fixture
def stream(env):
    """Rows with fields k and n, in parallelism 2."""
    return env.from_collection(pa.table({"k": ["a", "b"], "n": [1, 2]})).rebalance().map(lambda row: row).name("start")


def plan(stream):
    env = stream.get_execution_environment()
    return json.loads(env.get_execution_plan())["nodes"]


def types(stream):
    return [node["type"] for node in plan(stream)][2:]


def operators(stream):
    """The engine's operators behind ``start``."""
    nodes = stream.get_execution_environment().get_stream_graph().nodes.values()
    return [type(node.operator).__name__ for node in nodes][2:]


def strategies(stream):
    return [p["ship_strategy"] for node in plan(stream)[2:] for p in node["predecessors"]]


# ----------------------------------------------------------------------------------------------------------- row by row


def test_functions_and_function_objects_are_taken_alike(stream):
    class Double(MapFunction):
        def map(self, value):
            return value * 2

    stream.map(Double()).map(lambda v: v).flat_map(lambda v: [v, v]).filter(lambda v: True)
    assert types(stream) == ["map", "map", "flat_map", "filter"]
    assert operators(stream) == ["MapOperator", "MapOperator", "FlatMapOperator", "FilterOperator"]


def test_process_takes_the_keyed_operator_behind_key_by(stream):
    class Plain(ProcessFunction):
        def process_element(self, value, ctx):
            yield value

    class Keyed(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

    stream.process(Plain())
    stream.key_by("k").process(Keyed())
    assert operators(stream) == ["ProcessOperator", "KeyedProcessOperator"]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.map(3),
        lambda s: s.flat_map("f"),
        lambda s: s.filter(None),
        lambda s: s.process(7),
        lambda s: s.map_batches({}),
        lambda s: s.map(MapFunction),
        lambda s: s.key_by("k").reduce(1),
        lambda s: s.key_by("k").process(0),
    ],
)
def test_what_is_no_function_is_refused_at_once(stream, call):
    with pytest.raises(ProgramError, match="function"):
        call(stream)


def test_an_output_type_becomes_a_check_behind_the_operator(stream):
    @dataclass
    class Pair:
        k: str
        n: int

    stream.map(lambda row: row, output_type=Pair).name("typed")
    (node,) = [n for n in stream.get_execution_environment().get_stream_graph().nodes.values() if n.name == "typed"]
    assert node.output_schema == pa.schema([("k", pa.string()), ("n", pa.int64())])
    with pytest.raises(ProgramError, match="a type must be one of Types"):
        stream.map(lambda row: row, output_type="Pair")
    stream.map(lambda row: row, output_type=Types.PICKLED_BYTE_ARRAY())


def test_hints_are_used_where_columns_are_made_and_not_checked_elsewhere(stream):
    def pair(row) -> tuple[str, int]:
        return row["k"], row["n"]

    paired = stream.map(pair)
    paired.filter(col("f1") > 1)
    nodes = list(stream.get_execution_environment().get_stream_graph().nodes.values())
    assert nodes[-2].output_schema is None
    assert nodes[-1].operator.input_schema.types == [pa.string(), pa.int64()]


# ----------------------------------------------------------------------------------------------------------- by columns


def test_expressions_take_the_columnar_operators(stream):
    stream.filter(col("n") > 1).select("k", col("n").alias("m"), twice=col("n") * 2, one=1).with_columns(z=col("m") + 1)
    assert operators(stream) == ["FilterColumns", "SelectColumns", "SelectColumns"]
    assert [node["path"] for node in plan(stream)][2:] == ["columns"] * 3


def test_selected_columns_need_names_and_come_once(stream):
    with pytest.raises(ProgramError, match="a selected column needs a name"):
        stream.select(col("n") * 2)
    with pytest.raises(ProgramError, match="column 'n' is selected twice"):
        stream.select("n", n=col("n") * 2)
    with pytest.raises(ProgramError, match="select needs at least one column"):
        stream.select()
    with pytest.raises(ProgramError, match="with_columns needs at least one column"):
        stream.with_columns()


# --------------------------------------------------------------------------------------------------------- partitioning


def test_every_partitioning_has_its_ship_strategy(stream):
    for partitioned in (
        stream.rebalance(),
        stream.rescale(),
        stream.shuffle(),
        stream.broadcast(),
        stream.global_(),
        stream.forward(),
        stream.partition_custom(lambda key, num: 0, "k"),
        stream.key_by("k"),
    ):
        partitioned.map(lambda row: row)
    assert strategies(stream) == ["REBALANCE", "RESCALE", "SHUFFLE", "BROADCAST", "GLOBAL", "FORWARD", "CUSTOM", "HASH"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (("k",), "KeySelector('k')"),
        (("k", "n"), "KeySelector('k', 'n')"),
        ((["k", "n"],), "KeySelector('k', 'n')"),
        ((col("k"),), "KeySelector('k')"),
        ((0,), "KeySelector(0)"),
    ],
)
def test_keys_can_be_written_in_many_ways(stream, key, text):
    stream.key_by(*key).map(lambda row: row)
    assert text in stream.get_execution_environment().explain()


@pytest.mark.parametrize("key", [(), (None,), (1.5,), (col("n") * 2,), ("k", lambda row: row)])
def test_what_is_no_key_is_refused(stream, key):
    with pytest.raises(ProgramError, match="key"):
        stream.key_by(*key)


def test_a_keyed_stream_cannot_be_partitioned_again(stream):
    with pytest.raises(ProgramError, match="a keyed stream cannot be partitioned by rebalance"):
        stream.key_by("k").rebalance()
    stream.key_by("k").key_by("n").map(lambda row: row)
    assert strategies(stream) == ["HASH"]


# ----------------------------------------------------------------------------------------------------- several streams


def test_union_is_of_one_environment(stream):
    other = StreamExecutionEnvironment.get_execution_environment("local").from_elements(1)
    with pytest.raises(ProgramError, match="streams of different environments cannot be combined"):
        stream.union(other)
    with pytest.raises(ProgramError, match="union takes streams; got 3"):
        stream.union(3)
    with pytest.raises(ProgramError, match="union needs at least one other stream"):
        stream.union()


def test_side_outputs_are_taken_from_operators(stream):
    tag = OutputTag("odd")
    stream.get_side_output(tag).map(lambda row: row)
    stream.get_side_output("dead-letter").map(lambda row: row)
    assert [p.get("side_output") for node in plan(stream)[2:] for p in node["predecessors"]] == ["odd", "dead-letter"]
    with pytest.raises(ProgramError, match="a side output belongs to operators"):
        stream.rebalance().get_side_output(tag)
    with pytest.raises(ProgramError, match="an output tag must be an OutputTag or its id; got 3"):
        stream.get_side_output(3)


# ------------------------------------------------------------------------------------------------------------- settings


def test_settings_reach_the_operator(stream):
    made = (
        stream.map(lambda row: row).name("n").uid("u").set_description("d").set_parallelism(3).set_max_parallelism(64)
    )
    made.slot_sharing_group("g").set_buffer_timeout("1 ms").disable_chaining()
    sink = made.print().name("shown").uid("s").set_parallelism(1).slot_sharing_group("default")
    assert sink is not None
    env = stream.get_execution_environment()
    described = {n["type"]: n for n in plan(stream)}
    expected = {"uid": "u", "contents": "d", "parallelism": 3, "max_parallelism": 64, "slot_sharing_group": "g"}
    assert {key: described["n"][key] for key in expected} == expected
    assert (described["Sink: shown"]["uid"], described["Sink: shown"]["parallelism"]) == ("s", 1)
    assert env.get_job_graph().settings.buffer_timeout_ms == 1


def test_settings_are_checked_where_they_are_written(stream):
    for call in (
        lambda: stream.set_parallelism(0),
        lambda: stream.set_max_parallelism(40_000),
        lambda: stream.set_buffer_timeout(-1),
        lambda: stream.uid(""),
        lambda: stream.name(3),
        lambda: stream.key_by("k").count_window(0),
        lambda: stream.execute_and_collect(limit=0),
    ):
        with pytest.raises(ConfigurationError, match="must be"):
            call()
    with pytest.raises(
        ProgramError, match="uid belongs to operators; this stream is a union, a partitioning or a side output"
    ):
        stream.rebalance().uid("u")


def test_chains_can_be_cut(stream):
    stream.map(lambda row: row).name("a").start_new_chain().map(lambda row: row).name("b")
    names = [v.name for v in stream.get_execution_environment().get_job_graph().vertices.values()]
    assert names == ["Source: collection", "start", "a -> b"]


def test_co_located_streams_share_a_group(stream):
    other = stream.rebalance().map(lambda row: row).name("other")
    other.co_locate_with(stream)
    nodes = stream.get_execution_environment().get_stream_graph().nodes.values()
    groups = {n.name: n.co_location_group for n in nodes}
    assert groups["start"] == groups["other"] is not None


def test_sinks_and_strategies_are_checked(stream):
    with pytest.raises(ProgramError, match="sink must be a Sink; got 'out'"):
        stream.sink_to("out")
    with pytest.raises(ProgramError, match="watermark_strategy must be a WatermarkStrategy"):
        stream.assign_timestamps_and_watermarks("4 s")
    stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())


# -------------------------------------------------------------------------------------------------------------- windows

TUMBLING = TumblingEventTimeWindows.of("10 s")


def test_built_in_aggregates_over_named_keys_run_on_columns_in_two_phases(stream):
    result = stream.key_by("k").window(SlidingEventTimeWindows.of("10 s", "2 s")).aggregate(n=count(), top=f.max("n"))
    result.name("counts").uid("counts")
    assert operators(stream) == ["LocalSliceAggregate", "GlobalSliceAggregate"]
    assert strategies(stream) == ["FORWARD", "HASH"]
    assert types(stream) == ["aggregate: local", "counts"]
    names = [v.name for v in stream.get_execution_environment().get_job_graph().vertices.values()]
    assert names == ["Source: collection", "start -> aggregate: local", "counts"]


def test_the_first_phase_has_the_parallelism_of_what_feeds_it(stream):
    stream.set_parallelism(3).key_by("k").window(TUMBLING).aggregate(n=count())
    assert [n["parallelism"] for n in plan(stream)[2:]] == [3, 2]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda s: s.key_by("k").window(TUMBLING).aggregate(n=first("n")), ["GlobalSliceAggregate"]),
        (
            lambda s: s.key_by("k").window(TUMBLING).side_output_late_data(OutputTag("late")).aggregate(n=count()),
            ["GlobalSliceAggregate"],
        ),
        (
            lambda s: s.key_by("k").window(TUMBLING).allowed_lateness("1 s").aggregate(n=count()),
            ["LocalSliceAggregate", "GlobalSliceAggregate"],
        ),
        (lambda s: s.key_by(lambda row: row["k"]).window(TUMBLING).aggregate(n=count()), ["WindowOperator"]),
        (
            lambda s: s.key_by("k").window(TumblingProcessingTimeWindows.of("1 s")).aggregate(n=avg("n")),
            ["WindowOperator"],
        ),
        (lambda s: s.key_by("k").count_window(3).aggregate(n=count()), ["WindowOperator"]),
        (lambda s: s.key_by("k").window(TUMBLING).reduce(lambda a, b: a), ["WindowOperator"]),
        (lambda s: s.key_by("k").window(TUMBLING).sum("n"), ["WindowOperator"]),
    ],
)
def test_the_path_follows_from_the_arguments(stream, make, expected):
    make(stream)
    assert operators(stream) == expected


def test_window_arguments_are_checked_where_they_are_written(stream):
    windowed = stream.key_by("k").window(TUMBLING)
    with pytest.raises(ProgramError, match="either an AggregateFunction or built-in aggregates by keyword"):
        windowed.aggregate()
    with pytest.raises(ProgramError, match="either an AggregateFunction or built-in aggregates by keyword"):
        windowed.aggregate(Summing(), n=count())
    with pytest.raises(ProgramError, match="aggregate"):
        windowed.aggregate(lambda a, b: a)
    with pytest.raises(ProgramError, match="'n' must be an aggregate; got 3"):
        windowed.aggregate(n=3)
    with pytest.raises(ProgramError, match="would have several columns called 'k'"):
        windowed.aggregate(k=count())
    with pytest.raises(ConfigurationError, match="allowed lateness must be at least 0 ms"):
        windowed.allowed_lateness(-1)
    with pytest.raises(ProgramError, match="window takes an assigner"):
        stream.key_by("k").window("10 s")
    with pytest.raises(ProgramError, match="allowed lateness makes no sense for count windows"):
        stream.key_by("k").count_window(2).allowed_lateness(1)


class Summing(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value["n"]

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


def test_an_aggregate_function_may_have_a_window_function(stream):
    stream.key_by("k").window(TUMBLING).aggregate(Summing(), lambda key, ctx, sums: [(key, *sums)])
    assert operators(stream) == ["WindowOperator"]
