"""Records are what the program made them, wherever they go: through exchanges, filters, columns and other branches.

Family: oracle. Each program runs at parallelism 1 and 3; what a function sees must not depend on that, nor on which
operators beside it look at columns.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from decimal import Decimal

import pytest

from headrace import (
    CoFlatMapFunction,
    CoMapFunction,
    KeyedProcessFunction,
    ReduceFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    col,
)
from headrace.state.errors import TypeMismatchError

NAN = float("nan")


@dataclasses.dataclass(frozen=True)
class Order:
    user: str
    at: int
    parts: tuple[int, ...] = ()


@pytest.fixture(params=[1, 3])
def env(request):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=request.param) as environment:
        yield environment


def collected(stream):
    return sorted(stream.execute_and_collect(), key=repr)


# --------------------------------------------------------------------------------------------------- what records are
ODD = [{"a": n, "t": (n, n), "n": n if n % 2 else n / 4, "s": {n}, "d": {n: "x"}} for n in range(40)]


def test_a_filter_by_columns_gives_the_records_themselves(env):
    odd = [{key: row[key] for key in ("a", "t", "n")} for row in ODD]
    kept = env.from_collection(odd).rebalance().filter(col("a") >= 7)
    assert collected(kept.map(lambda row: row)) == sorted(odd[7:], key=repr)


def test_another_branch_that_looks_at_columns_changes_nothing(env):
    odd = [{key: row[key] for key in ("a", "t", "n")} for row in ODD]
    source = env.from_collection(odd)
    source.filter(col("a") > 100).print()
    assert collected(source.rebalance().map(lambda row: row["t"])) == sorted(((n, n) for n in range(40)), key=repr)


def test_objects_stay_objects_behind_an_assigner_of_columns(env):
    orders = [Order(f"u{n % 5}", n, (n,)) for n in range(60)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(col("at"))
    timed = env.from_collection(orders).assign_timestamps_and_watermarks(strategy)
    assert collected(timed.key_by("user").map(lambda order: order)) == sorted(orders, key=repr)
    by_two = timed.key_by("user", "at").map(lambda order: order.parts)
    assert collected(by_two) == sorted([(n,) for n in range(60)], key=repr)


MAP, ROW = Types.MAP(Types.STRING(), Types.INT()), Types.ROW_NAMED(["a"], [Types.INT()])
TYPED = [
    (MAP, {"a": 1, "b": 2}),
    (Types.TUPLE([Types.INT(), Types.STRING()]), (2, "x")),
    (Types.TUPLE([Types.INT(), Types.TUPLE([Types.INT(), MAP])]), (1, (2, {"a": 3}))),
    (Types.LIST(Types.TUPLE([Types.INT(), Types.INT()])), [(1, 2), (3, 4)]),
    (Types.LIST(ROW), [{"a": 1}]),
    (Types.MAP(Types.STRING(), Types.LIST(MAP)), {"k": [{"a": 1}, {}]}),
    (Types.DOUBLE(), 1.1),
    (Types.SQL_TIMESTAMP(), dt.datetime.fromisoformat("2024-01-01T12:00")),
    (Types.BYTES(), b"\x00\x01"),
]


@pytest.mark.parametrize(("kind", "value"), TYPED, ids=[kind.name for kind, _ in TYPED])
def test_a_declared_type_gives_the_same_values_from_objects_and_from_columns(env, kind, value):
    pairs = Types.TUPLE([Types.INT(), kind])
    made = env.from_collection(list(range(20))).map(lambda n: (n, value), output_type=pairs)
    assert collected(made.key_by(lambda pair: pair[0]).map(lambda pair: pair[1])) == [value] * 20
    columns = env.from_collection([(n, value) for n in range(20)], type_info=pairs).select(v=col("f1"))
    assert collected(columns.rebalance().map(lambda row: row["v"])) == [value] * 20


def test_what_objects_a_declared_type_is_made_of_stay(env):
    big = Types.TUPLE([Types.INT(), Types.BIG_INT(), Types.FLOAT()])
    made = env.from_collection(list(range(20))).map(lambda n: (n, 2**70, 1.1), output_type=big)
    assert collected(made.key_by(lambda row: row[0]).map(lambda row: row[1:])) == [(2**70, 1.1)] * 20


def test_a_map_with_a_key_twice_is_refused():
    import pyarrow as pa

    from headrace.state.values.serde import pylist_from_array

    kind = pa.map_(pa.string(), pa.int64())
    assert pylist_from_array(pa.array([[("a", 1)], None, []], kind)) == [{"a": 1}, None, {}]
    with pytest.raises(TypeMismatchError, match="a key twice"):
        pylist_from_array(pa.array([[("a", 1), ("a", 2)]], kind), "m")


# --------------------------------------------------------------------------------------------------------- event times
class Times(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield (value, ctx.timestamp())


def test_records_with_and_without_event_time_travel_together(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[1])
    timed = env.from_collection([("a", n) for n in range(50)]).assign_timestamps_and_watermarks(strategy)
    both = timed.union(env.from_collection([("b", n) for n in range(50)])).rebalance().map(lambda row: row)
    expected = [(("a", n), n) for n in range(50)] + [(("b", n), None) for n in range(50)]
    assert collected(both.key_by(lambda row: row[1]).process(Times())) == sorted(expected, key=repr)


class WithTimers(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1)
        yield value

    def on_timer(self, timestamp, ctx):
        yield ("timer", -1)


def test_what_timers_of_processing_time_give_takes_no_time_from_other_records(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[1])
    timed = env.from_collection([(n % 3, n) for n in range(300)]).assign_timestamps_and_watermarks(strategy)
    mixed = timed.key_by(lambda row: row[0]).process(WithTimers()).rebalance()
    windows = mixed.filter(lambda row: row[0] != "timer").key_by(lambda row: row[0])
    counts = windows.window(TumblingEventTimeWindows.of(1_000)).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert collected(counts) == [(k, sum(range(k, 300, 3))) for k in range(3)]


# --------------------------------------------------------------------------------------------------------- keys, state
class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield self.count.value()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("make", [lambda: float("nan"), lambda: Decimal("NaN"), lambda: (1, float("nan"))])
def test_nan_is_one_key(env, backend, make):
    env.set_state_backend(backend)
    rows = [{"k": make(), "n": 1} for _ in range(6)]
    assert collected(env.from_collection(rows).key_by(lambda row: row["k"]).process(Count())) == [1, 2, 3, 4, 5, 6]


def test_nan_in_columns_is_the_key_that_it_is_in_rows(env):
    rows = [{"k": float("nan"), "n": 1} for _ in range(5)]
    sums = env.from_collection(rows).select("k", "n").key_by("k").sum("n")
    assert [row["n"] for row in sums.execute_and_collect()] == [1, 2, 3, 4, 5]


class CountBoth(CoMapFunction, CoFlatMapFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

    def map1(self, value):
        self.count.update(self.count.value() + 1)
        return (value % 4, self.count.value())

    def flat_map1(self, value):
        yield self.map1(value)
        yield "again"

    map2, flat_map2 = map1, flat_map1


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_co_functions_of_keyed_streams_share_the_keys_state(env, backend, method):
    env.set_state_backend(backend)
    numbers = env.from_collection(list(range(40)))
    both = numbers.connect(numbers).key_by(lambda n: n % 4, lambda n: n % 4)
    counts = Counter({(k, n): 1 for k in range(4) for n in range(1, 21)})
    if method == "flat_map":
        counts["again"] = 80
    assert Counter(getattr(both, method)(CountBoth()).execute_and_collect()) == counts


class Numbering(ReduceFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", default=0))

    def reduce(self, value1, value2):
        self.count.update(self.count.value() + 1)
        return (value1[0], value1[1] + value2[1], self.count.value())


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_reduce_function_may_have_state_of_the_key(env, backend):
    env.set_state_backend(backend)
    last = {}
    for key, total, number in (
        env.from_collection([(n % 3, 1, 0) for n in range(30)])
        .key_by(lambda row: row[0])
        .reduce(Numbering())
        .execute_and_collect()
    ):
        last[key] = max(last.get(key, (0, 0)), (total, number))
    assert last == {0: (10, 9), 1: (10, 9), 2: (10, 9)}


def test_plain_values_are_summed_and_compared_themselves(env):
    numbers = lambda: env.from_collection([4, 1, 3, 2]).key_by(lambda n: 0)
    assert sorted(numbers().sum().execute_and_collect()) == sorted([4, 5, 8, 10])
    assert min(numbers().min().execute_and_collect()) == 1
    assert set(numbers().max_by().execute_and_collect()) == {4}
    assert sorted(numbers().count_window(2).max().execute_and_collect()) == [3, 4]
    texts = env.from_collection(["b", "a"]).key_by(lambda _: 0)
    assert min(texts.min().execute_and_collect()) == "a"
