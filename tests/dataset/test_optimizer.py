"""What the optimiser decides, rule by rule, as it shows in the plan; that results stay is for random plans to say."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import ExecutionEnvironment, JoinHint, MapFunction, col, count, lit
from headrace import functions as f
from headrace.engine.optimizer.optimizer import RULES, optimize
from headrace.engine.plan.plan import (
    Aggregation,
    Collect,
    FileSource,
    FilterColumns,
    Join,
    ReduceGroup,
    Repartition,
    ShipKind,
    Sort,
    TableSource,
    walk,
)

ROWS = [{"k": i % 5, "v": i, "w": i * 2} for i in range(20)]


@pytest.fixture
def env():
    return ExecutionEnvironment.get_execution_environment("local", 3)


def plan(data, rules=None):
    sink = Collect(id=10_000, name="collect", inputs=(data.take_node(),), schema=data.schema, ships=())
    return {type(node): node for node in walk(*optimize((sink,), 3, rules))}


def test_a_combiner_is_put_before_the_shuffle(env):
    data = env.from_collection(ROWS).group_by("k").sum("v")
    assert plan(data)[Aggregation].combine
    assert not plan(data, ())[Aggregation].combine


def test_what_needs_all_values_at_once_is_not_combined(env):
    from headrace import first

    data = env.from_collection(ROWS).group_by("k").aggregate(v=first("v"))
    assert not plan(data)[Aggregation].combine


def test_there_is_no_second_shuffle_by_the_same_key(env):
    partitioned = env.from_collection(ROWS).partition_by_hash("k").filter(lambda r: r["v"] > 3)
    grouped = partitioned.group_by("k").reduce_group(list)
    assert plan(grouped)[ReduceGroup].ships[0].kind is ShipKind.FORWARD
    finer = partitioned.group_by("k", "v").reduce_group(list)
    assert plan(finer)[ReduceGroup].ships[0].kind is ShipKind.FORWARD
    other = partitioned.group_by("v").reduce_group(list)
    assert plan(other)[ReduceGroup].ships[0].kind is ShipKind.HASH


def test_a_function_that_may_change_the_key_ends_what_is_known(env):
    mapped = env.from_collection(ROWS).partition_by_hash("k").map(lambda r: {**r, "k": 0})
    assert plan(mapped.group_by("k").reduce_group(list))[ReduceGroup].ships[0].kind is ShipKind.HASH
    replaced = env.from_collection(ROWS).partition_by_hash("k").with_columns(k=lit(1))
    assert plan(replaced.group_by("k").reduce_group(list))[ReduceGroup].ships[0].kind is ShipKind.HASH


def test_another_number_of_partitions_needs_a_shuffle(env):
    data = env.from_collection(ROWS).partition_by_hash("k").set_parallelism(2)
    grouped = data.group_by("k").reduce_group(list).set_parallelism(3)
    assert plan(grouped)[ReduceGroup].ships[0].kind is ShipKind.HASH


def test_a_join_leaves_the_side_where_it_is_that_is_grouped_by_the_key(env):
    totals = env.from_collection(ROWS).group_by("k").sum("v")
    joined = totals.join(env.from_collection(ROWS), hint=JoinHint.REPARTITION_HASH_FIRST).on("k").merge(suffix="_2")
    kinds = [ship.kind for ship in plan(joined)[Join].ships]
    assert kinds == [ShipKind.FORWARD, ShipKind.HASH]


def test_keys_of_two_types_are_hashed_anew(env):
    totals = env.from_collection(ROWS).group_by("k").sum("v")
    floats = env.from_collection([{"k": 1.0}])
    joined = totals.join(floats, hint=JoinHint.REPARTITION_HASH_FIRST).where("k").equal_to("k")
    assert [ship.kind for ship in plan(joined)[Join].ships] == [ShipKind.HASH, ShipKind.HASH]


def test_small_inputs_are_broadcast_unless_their_unmatched_records_are_kept(env):
    large, small = env.generate_sequence(1, 1_000_000), env.generate_sequence(1, 5)

    def ships(how, hint=JoinHint.OPTIMIZER_CHOOSES):
        return [s.kind.value for s in plan(large.join(small, how=how, hint=hint).on("value"))[Join].ships]

    assert ships("inner") == ["forward", "broadcast"]
    assert ships("left") == ["forward", "broadcast"]
    assert ships("right") == ["hash", "hash"]
    assert ships("inner", JoinHint.REPARTITION_SORT_MERGE) == ["hash", "hash"]
    assert ships("inner", JoinHint.BROADCAST_HASH_FIRST) == ["broadcast", "forward"]


def test_what_is_sorted_is_not_sorted_again(env):
    data = env.from_collection(ROWS).sort("k", "v")
    assert plan(data.sort("k", "v"))[Sort].is_sorted
    groups = env.from_collection(ROWS).partition_by_hash("k").sort_partition("k").sort_partition("v")
    grouped = groups.group_by("k").sort_group("v").reduce_group(lambda rows: [[r["v"] for r in rows]])
    found = plan(grouped)[ReduceGroup]
    assert found.is_sorted
    assert found.ships[0].kind is ShipKind.FORWARD
    assert sorted(grouped.collect()) == [[k, k + 5, k + 10, k + 15] for k in range(5)]
    down = groups.group_by("k").sort_group("v", ascending=False).reduce_group(list)
    assert not plan(down)[ReduceGroup].is_sorted


def test_the_first_records_of_a_sort_need_no_sort(env):
    data = env.from_collection(ROWS).sort("v", ascending=False).first(2)
    assert Sort not in plan(data)
    assert [r["v"] for r in data.collect()] == [19, 18]


def test_a_move_before_a_move_is_left_out(env):
    assert Repartition not in plan(env.from_collection(ROWS).rebalance().group_by("k").reduce_group(list))


@pytest.fixture
def files(env, tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    return env.read_parquet(tmp_path)


def test_filters_and_columns_are_pushed_into_files(files):
    data = files.rebalance().filter(col("v") > 15).group_by("k").aggregate(n=count())
    found = plan(data)
    assert FilterColumns not in found
    assert found[FileSource].columns == ("k",)
    assert "col('v') > 15" in repr(found[FileSource].condition)
    assert sorted(r["k"] for r in data.collect()) == [1, 2, 3, 4]


def test_a_second_condition_is_looked_at_only_where_the_first_is_true(files):
    data = files.filter(col("v") != 0).filter(lit(100) // col("v") > 20).select("v")
    found = plan(data)
    assert FilterColumns not in found
    assert found[FileSource].columns == ("v",)
    assert sorted(r["v"] for r in data.collect()) == [1, 2, 3, 4]


def test_a_source_that_others_read_is_not_filtered(files):
    few = files.filter(col("v") > 15)
    joined = few.join(files).on("v").merge(suffix="_2")
    found = plan(joined)
    assert found[FileSource].condition is None
    assert found[FileSource].is_shared
    assert joined.count() == 4


def test_a_filter_behind_a_filter_that_moved_stays_if_others_read_that_one(env, files):
    for source in (files, files.rebalance(), files.select("k", "v"), env.from_collection(ROWS).sort("v")):
        some = source.filter(col("v") > 10)
        both = some.union(some.filter(col("v") > 17))
        assert sorted(r["v"] for r in both.collect()) == sorted([*range(11, 20), 18, 19])
        branches = some.filter(col("k") == 1).union(some.filter(col("k") == 2))
        assert sorted(r["v"] for r in branches.collect()) == [11, 12, 16, 17]
        joined = some.join(some.filter(col("v") > 17), how="left").on("v").merge(suffix="_2")
        assert joined.count() == 9
    chain = files.rebalance().filter(col("v") > 10).filter(col("v") > 12).filter(col("v") > 17)
    assert FilterColumns not in plan(chain)  # alone, all of them move
    assert sorted(r["v"] for r in chain.collect()) == [18, 19]


def test_columns_that_nobody_reads_are_left_in_tables(env):
    data = env.from_collection(ROWS).filter(col("w") > 4).select("v")
    assert plan(data)[TableSource].schema.names == ["v", "w"]


def test_columns_are_pruned_through_added_columns_and_joins(env):
    wide = env.from_collection(ROWS).with_columns(w=col("w") + 1).project("k", "w")
    assert plan(wide)[TableSource].schema.names == ["k", "w"]
    assert wide.count() == 20
    joined = env.from_collection(ROWS).join(env.from_collection(ROWS)).on("k").merge(suffix="_2").select("v_2")
    assert plan(joined)[Join].schema.names == ["v_2"]
    assert plan(joined)[TableSource].schema.names == ["k", "v"]
    assert joined.count() == 80


def test_what_every_superstep_reads_is_computed_once(env):
    class Counts(MapFunction):
        def open(self, runtime_context):
            self.counter = runtime_context.get_long_counter("calls")

        def map(self, value):
            self.counter.add(1)
            return value

    constant = env.from_elements(1, 2, 3).map(Counts())
    data = env.from_elements(1, 2, 3).iterate(
        5, lambda d: d.join(constant).where(lambda x: x).equal_to(lambda x: x).with_(lambda a, b: a)
    )
    assert sorted(data.collect()) == [1, 2, 3]
    assert env.get_last_job_execution_result().get_accumulator_result("calls") == 3


def test_explain_shows_plan_and_decisions(env, files):
    data = files.filter(col("v") > 3).group_by("k").aggregate(total=f.sum("v")).sort("total")
    text = data.explain()
    assert "reads only columns k, v" in text
    assert "combined before it is moved" in text
    assert "by hash key('k')" in text
    described = json.loads(data.explain(as_json=True))["nodes"]
    assert [node["operator"] for node in described] == ["FileSource", "Aggregation", "Sort", "Collect"]
    assert described[1]["combined"] is True
    assert "FilterColumns" in data.explain(optimized=False)


def test_explain_shows_step_plans(env):
    loop = env.from_elements(1).iterate(3, lambda d: d.map(lambda x: x + 1))
    text = loop.explain()
    assert "at most 3 times" in text
    (iteration,) = [n for n in json.loads(loop.explain(as_json=True))["nodes"] if n["operator"] == "BulkIteration"]
    assert [node["operator"] for node in iteration["step"]] == ["IterationInput", "Map"]


def test_every_rule_has_a_name():
    assert len({rule.name for rule in RULES}) == len(RULES)
