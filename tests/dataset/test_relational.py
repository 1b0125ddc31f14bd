"""Columns, sets, windows, joins without keys, statistics, samples, kept results. Oracle: values written by hand."""

import gc
import math
import statistics
from collections import Counter

import pyarrow as pa
import pytest
from campaigns import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ExecutionEnvironment, ProgramError, TypeMismatchError, Types, UserFunctionError, avg, col, count
from headrace import functions as f
from headrace.engine.optimizer.optimizer import optimize
from headrace.engine.partitions.wire_records import frozen
from headrace.engine.plan.plan import Collect, SemiJoin, ShipKind, TableSource, walk

NAN = math.nan
ROWS = [
    {"k": "a", "v": 3, "x": 1.5},
    {"k": "a", "v": None, "x": NAN},
    {"k": None, "v": 1, "x": None},
    {"k": "b", "v": 3, "x": 0.0},
    {"k": "a", "v": 3, "x": 2.5},
    {"k": None, "v": 7, "x": -0.0},
]
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64())])


@pytest.fixture
def rows(env):
    return env.from_collection(ROWS)


@pytest.fixture
def nothing(env):
    return env.from_collection([], type_info=SCHEMA)


def same(found, expected):
    return Counter(map(frozen, found)) == Counter(map(frozen, expected))


# -------------------------------------------------------------------------------------------------------------- columns


def test_rename_and_drop(rows, nothing):
    for data in (rows, rows.with_schema(None)):
        assert same(data.rename({"k": "key"}, v="n").drop("x").collect(), [{"key": r["k"], "n": r["v"]} for r in ROWS])
    assert nothing.rename(k="key").schema.names == ["key", "v", "x"]
    with pytest.raises(ProgramError, match="no field 'z'"):
        rows.rename(z="y")
    with pytest.raises(ProgramError, match="several fields called 'v'"):
        rows.rename(k="v")
    with pytest.raises(ProgramError, match="no field 'z'"):
        rows.drop("z")
    with pytest.raises(ProgramError, match="would leave no field"):
        rows.drop("k", "v", "x")


def test_explode(env):
    lists = [[1, 2], [], None, [None], [3]]
    data = env.from_arrow(pa.table({"i": range(5), "l": pa.array(lists, pa.list_(pa.int32()))}))
    assert same(data.explode("l").collect(), [{"i": i, "l": v} for i, v in [(0, 1), (0, 2), (3, None), (4, 3)]])
    expected = [(0, 1), (0, 2), (1, None), (2, None), (3, None), (4, 3)]
    assert same(data.explode("l", outer=True).collect(), [{"i": i, "l": v} for i, v in expected])
    assert data.filter(col("i") > 9).explode("l", outer=True).collect() == []
    with pytest.raises(TypeMismatchError, match="is no list"):
        data.explode("i")


# ----------------------------------------------------------------------------------------------------------------- sets


@pytest.mark.parametrize("is_typed", [True, False])
def test_sets_take_null_and_nan_for_values(env, rows, is_typed):
    other = env.from_collection([ROWS[1], ROWS[5], ROWS[0], ROWS[0]])
    data = rows.union(rows)
    if not is_typed:
        data, other = data.with_schema(None), other.with_schema(None)
    assert same(data.minus(other).collect(), ROWS[2:5])
    assert same(data.intersect(other).collect(), [ROWS[1], ROWS[5], ROWS[0]])
    assert same(data.minus_all(other).collect(), [*(r for r in ROWS[2:5] for _ in "12"), ROWS[1], ROWS[5]])
    assert same(data.intersect_all(other).collect(), [ROWS[1], ROWS[5], ROWS[0], ROWS[0]])


def test_sets_of_tuples_values_lists_and_nothing(env, rows, nothing):
    assert sorted(env.from_collection([(1, "a"), (2, "b")]).minus(env.from_collection([(2, "b")])).collect()) == [
        (1, "a")
    ]
    assert sorted(env.from_elements(1, 2, 2).intersect(env.from_elements(2, 3)).collect()) == [2]
    lists = [env.from_arrow(pa.table({"l": [[1], [2]]})), env.from_arrow(pa.table({"l": [[2]]}))]
    assert lists[0].minus(lists[1]).collect() == [{"l": [1]}]
    assert nothing.minus(rows).collect() == []
    assert rows.minus(nothing).count() == len(ROWS)
    with pytest.raises(TypeMismatchError, match="of one type"):
        rows.minus(rows.drop("x"))


def test_a_sample_is_the_same_for_any_partitioning_and_of_about_the_size(env):
    data = env.generate_sequence(1, 20_000)
    chosen = sorted(data.sample(0.3, 5).collect())
    assert 5_700 < len(chosen) < 6_300
    assert chosen == sorted(data.rebalance().set_parallelism(7).sample(0.3, 5).collect())
    assert chosen == sorted(data.with_schema(None).sample(0.3, 5).collect())
    assert len(set(chosen) & set(data.sample(0.3, 6).collect())) < 2_200
    assert data.sample(0.0).count() == 0
    assert data.sample(1.0).count() == 20_000
    with pytest.raises(ProgramError, match="between 0 and 1"):
        data.sample(1.5)


# ---------------------------------------------------------------------------------------------------------------- joins


@pytest.mark.parametrize("is_typed", [True, False])
def test_semi_and_anti_joins(env, rows, is_typed):
    other = env.from_collection([{"key": key, "n": 1} for key in ("a", "a", None, "z")])
    if not is_typed:
        rows, other = rows.with_schema(None), other.with_schema(None)
    assert same(rows.semi_join(other).where("k").equal_to("key").collect(), [r for r in ROWS if r["k"] == "a"])
    assert same(rows.anti_join(other).where("k").equal_to("key").collect(), [r for r in ROWS if r["k"] != "a"])
    none = other.filter(lambda r: False)
    assert rows.semi_join(none).where("k").equal_to("key").collect() == []
    assert rows.anti_join(none).where("k").equal_to("key").count() == len(ROWS)


def test_a_semi_join_by_nan_and_by_keys_that_are_never_equal(env, rows):
    assert rows.semi_join(rows.filter(col("x").is_not_null())).on("x").count() == 5
    with pytest.raises(TypeMismatchError, match="never equal"):
        rows.semi_join(rows).where("k").equal_to("v")


def test_the_optimiser_knows_semi_joins():
    env = ExecutionEnvironment.get_execution_environment("local", 3)
    large = env.from_arrow(pa.table({"k": range(200), "v": range(200), "w": range(200)}))
    small = env.from_arrow(pa.table({"k": range(5), "z": range(5)}))
    data = large.semi_join(small).on("k").select("v")
    sink = Collect(id=10_000, name="collect", inputs=(data.take_node(),), schema=data.schema, ships=())
    nodes = list(walk(*optimize((sink,), 3)))
    (join,) = (node for node in nodes if isinstance(node, SemiJoin))
    assert [ship.kind for ship in join.ships] == [ShipKind.FORWARD, ShipKind.BROADCAST]
    assert [node.schema.names for node in nodes if isinstance(node, TableSource) and node.schema] == [["k", "v"], ["k"]]
    grouped = large.anti_join(large).on("k").group_by("k").count()
    assert "no shuffle" in grouped.explain()


def test_joins_by_a_condition(env):
    orders = env.from_collection([{"id": i, "at": at} for i, at in enumerate([1, 5, None, 20])])
    prices = env.from_collection([{"since": 0, "till": 4, "p": 1.0}, {"since": 4, "till": 9, "p": 2.0}])
    condition = (col("at") >= col("since")) & (col("at") < col("till"))
    pairs = [(0, 1.0), (1, 2.0)]
    assert sorted((r["id"], r["p"]) for r in orders.join_where(prices, condition).collect()) == pairs
    left = orders.join_where(prices, condition, how="left").collect()
    assert sorted((r["id"], r["p"]) for r in left if r["p"]) == pairs
    assert sorted(r["id"] for r in left if r["p"] is None) == [2, 3]
    assert sorted(r["id"] for r in orders.join_where(prices, condition, how="semi").collect()) == [0, 1]
    assert sorted(r["id"] for r in orders.join_where(prices, condition, how="anti").collect()) == [2, 3]
    none = prices.filter(col("p") > 9)
    assert orders.join_where(none, condition).collect() == []
    assert [r["p"] for r in orders.join_where(none, condition, how="left").collect()] == [None] * 4
    self_join = orders.join_where(orders, col("id") < col("id_2"), suffix="_2")
    assert self_join.count() == 6
    with pytest.raises(ProgramError, match="both inputs have a field 'id'"):
        orders.join_where(orders, col("id") > 1)
    with pytest.raises(TypeMismatchError, match="true or false"):
        orders.join_where(prices, col("at") + 1)


def test_a_join_by_a_condition_looks_at_pairs_in_pieces(env):
    left = env.from_arrow(pa.table({"a": range(300)}))
    right = env.from_arrow(pa.table({"b": range(70_000)}))
    assert left.join_where(right, col("a") * 1000 == col("b")).count() == 70


# -------------------------------------------------------------------------------------------------------------- windows


def test_places_and_neighbours(rows):
    found = rows.over(
        "k", ["v", "x"], n=f.row_number(), before=f.lag("v"), second=f.lead("x", 2, 9.0), two=f.lag(col("v") * 2, 0)
    ).collect()
    expected = [
        ("a", None, NAN, 1, None, 2.5, None),
        ("a", 3, 1.5, 2, None, 9.0, 6),
        ("a", 3, 2.5, 3, 3, 9.0, 6),
        ("b", 3, 0.0, 1, None, 9.0, 6),
        (None, 1, None, 1, None, 9.0, 2),
        (None, 7, -0.0, 2, 1, 9.0, 14),
    ]
    assert same([tuple(r.values()) for r in found], expected)


def test_ranks_of_equals(rows):
    found = rows.over(None, "v", ascending=False, r=f.rank(), d=f.dense_rank()).collect()
    assert sorted(((r["v"], r["r"], r["d"]) for r in found), key=lambda t: t[1]) == [
        (7, 1, 1), (3, 2, 2), (3, 2, 2), (3, 2, 2), (1, 5, 3), (None, 6, 4),
    ]  # fmt: skip


def test_running_aggregates_see_equals_and_rows_are_counted(env):
    data = env.from_collection([{"i": i, "v": v} for i, v in enumerate([5, 5, 1, 2, None])])
    running = data.over(None, "v", total=f.sum("v"), n=count(), every=f.collect_list("v")).sort("i").collect()
    assert [(r["total"], r["n"]) for r in running] == [(13, 5), (13, 5), (1, 2), (3, 3), (None, 1)]
    assert sorted(running[3]["every"]) == [1, 2]
    rows = data.over(None, "i", rows_between=(-1, 0), s=f.sum("v"), m=avg("v")).sort("i").collect()
    assert [(r["s"], r["m"]) for r in rows] == [(5, 5.0), (10, 5.0), (6, 3.0), (3, 1.5), (2, 2.0)]
    ahead = data.over(None, "i", rows_between=(1, None), s=f.sum("v")).sort("i").collect()
    assert [r["s"] for r in ahead] == [8, 3, 2, None, None]
    beside = data.over(None, "i", rows_between=(2, 3), n=count()).sort("i").collect()
    assert [r["n"] for r in beside] == [2, 2, 1, 0, 0]
    group = data.over("v", n=count()).sort("i").collect()
    assert [r["n"] for r in group] == [2, 2, 1, 1, 1]


def test_windows_over_nothing_and_what_is_refused(rows, nothing):
    assert nothing.over("k", "v", n=f.row_number(), s=f.sum("v")).collect() == []
    with pytest.raises(ProgramError, match="goes by an order"):
        rows.over("k", n=f.row_number())
    with pytest.raises(ProgramError, match="a field 'v' already"):
        rows.over("k", "v", v=f.rank())
    with pytest.raises(ProgramError, match="no field 'z'"):
        rows.over("z", "v", n=f.rank())
    with pytest.raises(ProgramError, match="the first row cannot be behind"):
        rows.over("k", "v", rows_between=(1, -1), n=count())
    with pytest.raises(ProgramError, match="must be a place"):
        rows.over("k", "v", n=col("v"))
    with pytest.raises(ProgramError, match="known type"):
        rows.with_schema(None).over("k", "v", n=f.rank())
    with pytest.raises(TypeMismatchError, match="is no int64"):
        rows.over("k", "v", n=f.lag("v", 1, "none"))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=30),
    st.integers(-3, 3), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_windows_give_what_a_loop_gives(pairs, low, width, up):
    env = ExecutionEnvironment.get_execution_environment("local", 3)
    rows = [{"k": k, "v": v, "i": i} for i, (k, v) in enumerate(pairs)]
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("i", pa.int64())])
    data = env.from_collection(rows, type_info=schema)
    found = data.over("k", ["v", "i"], ascending=up, rows_between=(low, low + width), s=f.sum("v"), m=f.max("v"))
    expected = []
    for key in {r["k"] for r in rows}:
        group = sorted((r for r in rows if r["k"] == key), key=lambda r: (r["v"], r["i"]), reverse=not up)
        for place, r in enumerate(group):
            seen = [o["v"] for o in group[max(place + low, 0) : max(place + low + width + 1, 0)]]
            expected.append({**r, "s": sum(seen) if seen else None, "m": max(seen, default=None)})
    assert same(found.collect(), expected)


# ----------------------------------------------------------------------------------------------------------- aggregates


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("shift", [0.0, 1e9])
def test_statistics(env, is_typed, shift):
    """Also of values that are large beside their differences."""
    values = [shift + value for value in (1.0, 2.0, 4.0, 4.5, 9.0, 9.5, 11.0)]
    data = env.from_collection([{"k": i % 2, "x": x} for i, x in enumerate([*values, None])])
    data = data if is_typed else data.with_schema(None)
    (found,) = data.aggregate(
        s=f.stddev("x"), sp=f.stddev_pop("x"), v=f.variance("x"), vp=f.variance_pop("x"), m=f.median("x"),
        q=f.percentile("x", 0.25), top=f.percentile("x", 1),
    ).collect()  # fmt: skip
    plain = [value - shift for value in values]
    wanted = [
        statistics.stdev(plain),
        statistics.pstdev(plain),
        statistics.variance(plain),
        statistics.pvariance(plain),
    ]
    assert [found[name] for name in ("s", "sp", "v", "vp")] == pytest.approx(wanted, rel=1e-6)
    assert (found["m"], found["q"], found["top"]) == (values[3], (values[1] + values[2]) / 2, values[-1])


@pytest.mark.parametrize("is_typed", [True, False])
def test_statistics_of_little(rows, nothing, is_typed):
    specs = {"s": f.stddev("x"), "p": f.variance_pop("x"), "m": f.median("v"), "l": f.collect_list("v")}
    one, none = rows.filter(col("k") == "b"), nothing
    if not is_typed:
        one, none = one.with_schema(None), none.with_schema(None)
    assert one.aggregate(**specs).collect() == [{"s": None, "p": 0.0, "m": 3.0, "l": [3]}]
    assert none.aggregate(**specs, c=f.collect_set("k")).collect() == [
        {"s": None, "p": None, "m": None, "l": [], "c": []}
    ]
    assert none.group_by("k").aggregate(**specs).collect() == []
    nan = rows.with_schema(None) if not is_typed else rows
    (found,) = nan.aggregate(s=f.stddev("x"), m=f.percentile("x", 1.0), low=f.percentile("x", 0.0)).collect()
    assert found["s"] != found["s"]
    assert found["m"] != found["m"]
    assert found["low"] == 0.0
    with pytest.raises(TypeMismatchError, match="is for numbers"):
        rows.aggregate(s=f.stddev("k"))
    with pytest.raises(ProgramError, match="between 0 and 1"):
        f.percentile("x", 2)


@pytest.mark.parametrize("is_typed", [True, False])
def test_lists_and_sets_of_values(rows, is_typed):
    data = rows if is_typed else rows.with_schema(None)
    found = data.group_by("k").aggregate(l=f.collect_list("v"), s=f.collect_set("v"), x=f.collect_set("x")).collect()
    by_key = {r["k"]: r for r in found}
    assert {k: sorted(r["l"]) for k, r in by_key.items()} == {"a": [3, 3], "b": [3], None: [1, 7]}
    assert {k: sorted(r["s"]) for k, r in by_key.items()} == {"a": [3], "b": [3], None: [1, 7]}
    assert len(by_key["a"]["x"]) == 3
    if is_typed:
        assert data.group_by("k").aggregate(l=f.collect_list("v")).explode("l").count() == 5


def test_expressions_over_aggregates(rows):
    for data in (rows, rows.with_schema(None)):
        found = data.group_by("k").aggregate(
            n=count(), mean=f.sum("v") / count("v"), spread=(f.max("v") - f.min("v")) * 2, twice=f.sum("v") + f.sum("v")
        )
        expected = [("a", 3, 3.0, 0, 12), ("b", 1, 3.0, 0, 6), (None, 2, 4.0, 12, 16)]
        assert same([tuple(r.values()) for r in found.collect()], expected)
        assert data.aggregate(r=(f.sum("v").as_expression().cast(float) / 4).round(1)).collect() == [{"r": 4.3}]
    with pytest.raises(ProgramError, match=r"reads \['x'\] beside aggregates"):
        rows.group_by("k").aggregate(n=f.sum("v") * col("x"))
    with pytest.raises(ProgramError, match="must be an aggregate"):
        rows.aggregate(n=count() * 2, m=col("v"))
    with pytest.raises(UserFunctionError, match="zero"):
        rows.aggregate(n=f.sum("v") // (count() - count())).collect()


# -------------------------------------------------------------------------------------------------------------- results


def test_a_data_set_is_kept_for_further_jobs(env):
    calls = []

    def seen(value):
        calls.append(value)
        return value * 2

    kept = env.from_elements(1, 2, 3).map(seen, output_type=Types.LONG()).cache()
    assert sorted(kept.collect()) == [2, 4, 6]
    assert kept.map(lambda v: v + 1).count() == 3
    assert kept.union(kept).count() == 6
    assert sorted(calls) == [1, 2, 3]
    executor = env._get_executor()
    assert len(executor._caches) == 1
    del kept
    gc.collect()
    assert len(executor._caches) == 0


def test_what_is_kept_goes_with_the_environment(env):
    kept = env.from_elements(1).cache()
    assert kept.count() == 1
    executor = env._get_executor()
    env.close()
    assert not executor._caches
    assert kept.count() == 1


def test_distinct_and_first_of_typed_records_look_at_columns(monkeypatch, env):
    """Not at one record after the other."""
    from headrace.engine.partitions import groups, shipping

    def refused(*_arguments):
        raise AssertionError

    monkeypatch.setattr(groups, "canonical_keys", refused)
    monkeypatch.setattr(shipping, "canonical_keys", refused)
    data = env.from_collection(ROWS * 3)
    assert same(data.distinct().collect(), ROWS)
    assert data.distinct("k").count() == 3
    assert data.group_by("v").first(2).count() == 8


def test_distinct_of_many_records_keeps_the_first_of_each():
    env = ExecutionEnvironment.get_execution_environment("local", 1)
    table = pa.table({"a": [i % 70_000 for i in range(200_000)], "b": range(200_000)})
    found = env.from_arrow(table).distinct("a").to_arrow()
    assert found["b"].to_pylist() == list(range(70_000))
    two = env.from_arrow(table).group_by("a").first(2).to_arrow()
    assert two["b"].to_pylist() == list(range(140_000))
