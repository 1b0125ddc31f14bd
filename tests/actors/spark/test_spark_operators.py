"""Every operator gives on Spark what it gives on the reference executor (differential), and so do random programs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from campaigns import examples
from dataset_kit import assert_equal, programs
from hypothesis import HealthCheck, given, settings

from headrace import ExecutionEnvironment, GroupReduceFunction, JoinHint, MapFunction, avg, col, count, lit, when
from headrace.actors.spark.catalyst import aggregate_of
from headrace.actors.spark.columns import Layout
from headrace.engine.functions.aggregates.built_in import max as max_of
from headrace.engine.functions.aggregates.built_in import min as min_of
from headrace.engine.functions.aggregates.built_in import sum as sum_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Texts(GroupReduceFunction):
    """The texts of a group."""

    def reduce(self, values):
        rows = list(values)
        yield (rows[0]["k"], len(rows), "".join(sorted(str(row["s"]) for row in rows)))


def in_group(rows):
    yield [row["i"] for row in rows]


def by_k(row):
    return row["k"]


RECORD_BY_RECORD = {
    "map": lambda ds: ds.map(lambda row: (row["k"], str(row["s"]))),
    "map to a type": lambda ds: ds.map(lambda row: {"a": row["i"] * 2}, pa.schema([("a", pa.int64())])),
    "flat_map": lambda ds: ds.flat_map(lambda row: [row["s"]] * (row["i"] % 3)),
    "filter by a function": lambda ds: ds.filter(lambda row: row["i"] % 4 == 0),
    "filter by a comparison with NaN": lambda ds: ds.filter(col("v") > 3.0),
    "filter by what is not equal": lambda ds: ds.filter((col("v") != 0.0) | col("s").is_null()),
    "filter by text": lambda ds: ds.filter(col("s").starts_with("é") & ~(col("k") == 1)),
    "filter by a list": lambda ds: ds.filter(col("k").isin([1, 2, 5])),
    "filter Spark has no word for": lambda ds: ds.filter(col("s").like("é%") | (col("v") / 0.0 > 0)),
    "project": lambda ds: ds.project("s", "k"),
    "select": lambda ds: ds.select("k", double=col("i") * 2, half=col("v") * 0.5, big=col("v") + col("i")),
    "with_columns": lambda ds: ds.with_columns(
        k=when(col("k") > 2).then("many").otherwise("few"), length=col("s").length(), one=lit(1)
    ),
    "select in Python": lambda ds: ds.select(q=col("v") / col("i"), up=col("s").upper()),
    "map_batches": lambda ds: ds.map_batches(lambda batch: batch.select(["i"]), pa.schema([("i", pa.int64())])),
    "a chain": lambda ds: ds.map(lambda row: row["i"]).filter(lambda i: i % 2).map(lambda i: {"i": i}),
    "union": lambda ds: ds.filter(col("i") < 9).union(ds.filter(col("i") > 200), ds.filter(col("i") == 50)),
}

BY_KEY = {
    "aggregate": lambda ds: ds.group_by("k").aggregate(
        n=count(), c=count("v"), t=sum_of("i"), f=sum_of("v"), m=min_of("v"), x=max_of("v"), a=avg("i"), s=max_of("s")
    ),
    "aggregate by two": lambda ds: ds.group_by("k", "s").aggregate(n=count()),
    "aggregate by zero and NaN": lambda ds: ds.select("i", v=col("v") + 0.0).group_by("v").aggregate(n=count()),
    "aggregate by a function": lambda ds: ds.group_by(lambda row: row["i"] % 5).aggregate(n=count(), t=sum_of("i")),
    "aggregate everything": lambda ds: ds.aggregate(n=count(), t=sum_of("i"), m=min_of("v")),
    "aggregate nothing": lambda ds: ds.filter(col("i") < 0).aggregate(n=count(), t=sum_of("i")),
    "sum": lambda ds: ds.project("k", "i").group_by("k").sum("i"),
    "reduce": lambda ds: ds.map(lambda r: (r["k"], r["i"])).group_by(0).reduce(lambda a, b: (a[0], a[1] + b[1])),
    "reduce all": lambda ds: ds.map(lambda r: r["i"]).reduce(lambda a, b: a + b),
    "reduce_group": lambda ds: ds.group_by("k").reduce_group(Texts()),
    "reduce_group by a function": lambda ds: ds.group_by(by_k).reduce_group(Texts()),
    "reduce_group in order": lambda ds: ds.group_by("k").sort_group("i", ascending=False).reduce_group(in_group),
    "combine_group": lambda ds: (
        ds.partition_by_hash("k").group_by("k").combine_group(lambda rows: [(len(list(rows)),)]).rebalance()
    ),
    "max_by": lambda ds: ds.group_by("k").max_by("v", "i"),
    "min_by": lambda ds: ds.min_by("i"),
    "first in order": lambda ds: ds.group_by("k").sort_group("i").first(2),
    "first by a function in order": lambda ds: ds.group_by(by_k).sort_group("i").first(3),
    "distinct": lambda ds: ds.project("k", "s").distinct(),
    "distinct objects": lambda ds: ds.map(lambda row: {"of": [row["k"], {"v": row["s"]}]}).distinct(),
    "distinct by key": lambda ds: ds.project("k", "s").distinct("k").project("k"),
}


def small(ds):
    return ds.filter(col("i") < 40)


TWO_INPUTS = {
    **{
        f"{how} join": lambda ds, how=how: (
            ds.join(small(ds).filter(col("k").is_null() | (col("k") != 2)), how=how)
            .where("k").equal_to("k").project_first("i", "v").project_second("s")
        )
        for how in ("inner", "left", "right", "full")
    },
    "join by two": lambda ds: (
        ds.join(small(ds)).where("k", "s").equal_to("k", "s").project_second("i").project_first("s")
    ),
    "join by NaN and zero": lambda ds: (
        ds.join(small(ds)).where("v").equal_to("v").project_first("i").project_second("k")
    ),
    "join with a function": lambda ds: (
        small(ds).full_outer_join(ds.filter(col("i") > 220)).where("k").equal_to("k")
        .with_(lambda a, b: (a and a["i"], b and b["s"]))
    ),
    "join as pairs": lambda ds: small(ds).join(small(ds)).where("i").equal_to("i"),
    "join with a hint": lambda ds: (
        ds.join(small(ds), hint=JoinHint.BROADCAST_HASH_SECOND).where("k").equal_to("k").project_first("i")
    ),
    "merge join": lambda ds: (
        ds.join(small(ds), hint=JoinHint.REPARTITION_SORT_MERGE).where("k").equal_to("k").project_first("i")
    ),
    "join by functions": lambda ds: (
        ds.left_outer_join(small(ds)).where(lambda r: r["i"] % 30).equal_to("i").with_(lambda a, b: (a["i"], b))
    ),
    "join objects by a broadcast": lambda ds: (
        ds.map(lambda r: (r["k"], r["i"])).join_with_tiny(small(ds).map(lambda r: (r["k"], r["s"])))
        .where(lambda t: t[0]).equal_to(lambda t: t[0]).with_(lambda a, b: (*a, *b))
    ),
    "co_group": lambda ds: (
        ds.co_group(small(ds)).where("k").equal_to("k").with_(lambda a, b: [(len(list(a)), len(list(b)))])
    ),
    "co_group objects": lambda ds: (
        ds.map(lambda r: (r["s"], 1)).co_group(small(ds)).where(0).equal_to("s")
        .with_(lambda a, b: [(len(list(a)), sorted(row["i"] for row in b))])
    ),
    "cross": lambda ds: small(ds).cross(ds.filter(col("i") > 235)).with_(lambda a, b: a["i"] * b["i"]),
    "cross, projected": lambda ds: small(ds).cross(ds.filter(col("i") > 230)).project_first("s").project_second("i"),
    "cross objects": lambda ds: (
        small(ds).map(lambda r: r["i"]).cross_with_huge(small(ds)).with_(lambda a, b: (a, b["i"]))
    ),
}  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("name", RECORD_BY_RECORD)
def test_record_by_record(same, table, name):
    same(lambda env: RECORD_BY_RECORD[name](env.from_arrow(table)))


@pytest.mark.campaign
@pytest.mark.parametrize("name", BY_KEY)
def test_by_key(same, table, name):
    same(lambda env: BY_KEY[name](env.from_arrow(table)))


@pytest.mark.parametrize("name", TWO_INPUTS)
@pytest.mark.sampled(4)
def test_two_inputs(same, table, name):
    same(lambda env: TWO_INPUTS[name](env.from_arrow(table)))


@pytest.mark.parametrize("ascending", [True, False])
def test_sorted_over_partitions(same, table, ascending):
    """Nulls first, NaN last, texts by code point; the last key makes the order total."""
    program = lambda env: env.from_arrow(table).sort("s", "v", "i", ascending=ascending)
    same(program, in_order=True)


def test_sorted_by_a_function(same, table):
    same(
        lambda env: env.from_arrow(table).map(lambda r: (r["i"] % 7, r["i"])).sort(lambda t: (t[0], -t[1])),
        in_order=True,
    )


def partition_of(rows):
    found = list(rows)
    yield [row["i"] for row in found]


def test_partitioning_really_partitions(on_spark, table):
    data = on_spark.from_arrow(table)
    custom = data.partition_custom(lambda key, n: (key or 0) % n, "i").map_partition(partition_of).collect()
    assert [sorted({i % 3 for i in part}) for part in custom] == [[0], [1], [2]]
    by_hash = data.partition_by_hash("k").map_partition(lambda rows: [{row["k"] for row in rows}]).collect()
    assert len(by_hash) == 3
    assert sum(map(len, by_hash)) == len(set().union(*by_hash))
    by_range = data.partition_by_range("i").map_partition(partition_of).collect()
    assert [i for part in by_range for i in sorted(part)] == list(range(240))
    even = [len(part) for part in data.partition_by_hash("k").rebalance().map_partition(partition_of).collect()]
    assert max(even) - min(even) <= 3


def test_empty_partitions_are_ordinary_and_sorted_partitions_stay(on_spark, table):
    data = on_spark.from_arrow(table).partition_custom(lambda key, n: 1, "i")
    assert data.map_partition(lambda rows: [len(list(rows))]).collect() == [0, 240, 0]
    in_order = data.sort_partition("i", ascending=False).map_partition(partition_of).collect()
    assert in_order == [[], list(range(239, -1, -1)), []]


@pytest.mark.campaign
@settings(max_examples=examples(12), suppress_health_check=list(HealthCheck))
@given(program=programs(most_steps=5))
def test_random_programs(spark, program):
    """The first operator that differs is named."""
    assert_equal(
        program,
        lambda parallelism: ExecutionEnvironment(spark, parallelism, options={}),
        lambda parallelism: ExecutionEnvironment.get_execution_environment("local", parallelism),
    )


class Scaled(MapFunction):
    """Uses a broadcast set."""

    def open(self, runtime_context):
        self.factors = dict(runtime_context.get_broadcast_variable("factors"))

    def map(self, value):
        return value["i"] * self.factors.get(value["k"], 0)


def test_broadcast_sets(same, table):
    def program(env):
        factors = env.from_collection([(1, 10), (2, 100)])
        return env.from_arrow(table).map(Scaled()).with_broadcast_set(factors, "factors")

    same(program)


def test_built_in_aggregates_are_sparks_own_and_no_others(on_spark):
    """Only what they come to would not show it: without a form of Spark's they run in Python."""
    assert on_spark.from_collection([{"i": 1}]).collect() == [{"i": 1}]  # there is a session now
    layout = Layout(pa.schema([("i", pa.int64())]))
    whole, real = pa.int64(), pa.float64()
    for aggregate, kind in (
        (count(), whole), (count("i"), whole), (sum_of("i"), whole), (avg("i"), real), (min_of("i"), whole),
        (max_of("i"), whole), (sum_of("i").with_wide_parts(), whole), (avg("i").with_wide_parts(), real),
    ):  # fmt: skip
        assert aggregate_of(aggregate, layout, kind) is not None, aggregate

    class Sum(type(sum_of("i"))):
        """Somebody's own, which means something else by the name."""

    assert aggregate_of(Sum(col("i")), layout, whole) is None
