"""Results that two executors could give differently: exact values, files that differ, keys that come twice, iterations
that move between the processes. Oracle: the reference executor, or a value written by hand."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaigns import campaign
from dataset_kit import OPERATORS, Program, Step, assert_equal, row

from headrace import ExecutionEnvironment, LongCounter, ProgramError, SourceError, Types, UserFunctionError, col
from headrace import functions as f

from .test_spark_jobs import Halved, chain_of_edges, components

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MOST = 2**63 - 1
KIND = pa.decimal128(6, 2)


@pytest.fixture
def both(on_spark, local):
    """Runs a check on both executors."""

    def run(check):
        for env in (local, on_spark):
            check(env)

    return run


VERBS = [
    "rename and drop", "row_number, lag and lead", "ranks", "running aggregates", "aggregates of the whole group",
    "statistics", "collect_list and collect_set", "explode", "explode with empty lists", "expressions over aggregates",
    "semi join", "anti join", "anti join of objects", "join where", "left join where", "anti join where", "minus",
    "minus of objects", "minus_all", "intersect", "intersect_all", "sample", "sample of objects", "cache",
]  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("operator", VERBS)
def test_verbs_give_the_same_on_both_executors(spark, operator):
    assert operator in OPERATORS
    nan = float("nan")
    rows = tuple(
        row(k, s, v, x)
        for k, s, v, x in [
            (1, "a", 3, 0.5), (1, None, -2, None), (None, "b", 8, 1.0), (4, "", 6, nan), (1, "a", 3, 0.5),
            (5, "é", 2, -0.0),
        ]
    )  # fmt: skip
    assert_equal(
        Program((rows * 4, rows[1:4]), (True, True), (Step(operator, 0, 1),), 3),
        lambda parallelism: ExecutionEnvironment(spark, parallelism, options={}),
        lambda parallelism: ExecutionEnvironment.get_execution_environment("local", parallelism),
    )


@pytest.mark.campaign
def test_values_are_exact_or_refused(both):
    def check(env):
        data = env.from_collection([{"x": 1.005, "s": "-2.345", "i": 7}])
        found = data.select(x=col("x").cast(KIND), s=col("s").cast(KIND), i=col("i").cast(KIND)).collect()
        assert found == [{"x": Decimal("1.01"), "s": Decimal("-2.35"), "i": Decimal("7.00")}]
        for value in (123456.789, "123456.789", 123456):
            with pytest.raises(UserFunctionError, match="fit"):
                env.from_collection([{"v": value}]).select(v=col("v").cast(KIND)).collect()
        price = env.from_arrow(pa.table({n: pa.array([Decimal("0.05")], pa.decimal128(15, 2)) for n in "pdt"}))
        charge = price.select(c=col("p") * (1 - col("d")) * (1 + col("t"))).aggregate(c=f.sum("c"))
        assert charge.collect() == [{"c": Decimal("0.049875")}]

    both(check)


@pytest.mark.campaign
def test_sums_need_not_fit_on_the_way(both):
    def check(env):
        values = [MOST, MOST, MOST, 5, -MOST, -MOST, -MOST, None]
        data = env.from_collection([{"k": 1, "v": v} for v in values], type_info=Types.ROW_NAMED(
            ["k", "v"], [Types.LONG(), Types.LONG()]))  # fmt: skip
        assert data.group_by("k").sum("v").collect() == [{"k": 1, "v": 5}]
        assert data.filter(col("v") < 0).union(data.filter(col("v") == 5)).first(1).count() == 1
        least = env.from_collection([{"v": -MOST - 1}, {"v": MOST}, {"v": -MOST}])
        assert least.sum("v").collect() == [{"v": -MOST - 1}]
        assert data.filter(col("v").is_null()).sum("v").collect() == [{"v": None}]
        with pytest.raises(UserFunctionError):
            data.filter(col("v") > 0).sum("v").collect()

    both(check)


def test_a_sequence_may_end_with_the_greatest_integer(both):
    def check(env):
        assert sorted(env.generate_sequence(MOST - 4, MOST).collect()) == list(range(MOST - 4, MOST + 1))
        assert sorted(env.generate_sequence(-MOST - 1, -MOST).collect()) == [-MOST - 1, -MOST]

    both(check)


@pytest.mark.campaign
def test_files_that_differ_and_columns_of_folders(both, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    pq.write_table(pa.table({"v": pa.array([1], pa.int32())}), files / "a.parquet")
    pq.write_table(pa.table({"v": [2**40], "w": ["x"]}), files / "b.parquet")
    for day in (1, 2):
        folder = tmp_path / "days" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [day, day]}), folder / "x.parquet")

    def check(env):
        with pytest.raises(SourceError, match="column 'v' is int64"):
            env.read_parquet(str(files))
        merged = env.read_parquet(str(files), merge_schema=True).collect()
        assert sorted(merged, key=lambda r: r["v"]) == [{"v": 1, "w": None}, {"v": 2**40, "w": "x"}]
        with pytest.raises(SourceError, match="does not fit int32"):
            env.read_parquet(str(files), schema={"v": "int32"}).collect()
        days = env.read_parquet(str(tmp_path / "days"))
        assert days.filter(col("day") == 2).collect() == [{"v": 2, "day": 2}] * 2
        assert days.group_by("day").sum("v").sort("day").collect() == [{"day": 1, "v": 2}, {"day": 2, "v": 4}]

    both(check)


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


@pytest.mark.parametrize("is_typed", [True, campaign(False)])
def test_two_records_of_one_key_in_a_solution_set_are_refused(both, is_typed):
    def check(env):
        def made(rows):
            data = env.from_collection(rows, type_info=PAIR)
            return data if is_typed else data.with_schema(None)

        twice = made([(1, 5), (1, 5), (2, 6)])
        same = twice.iterate_delta(made([]), 3, 0, step=lambda solution, work: (work, work))
        assert sorted(same.collect()) == [(1, 5), (2, 6)]
        with pytest.raises(ProgramError, match="the initial solution set of 'iterate_delta' has two different records"):
            made([(1, 5), (1, 6)]).iterate_delta(made([]), 3, 0, step=lambda s, w: (w, w)).collect()

        def step(solution, work):
            return work.flat_map(lambda r: [r, (r[0], r[1] + 1)], output_type=PAIR if is_typed else None), work

        with pytest.raises(ProgramError, match="the delta of 'iterate_delta' has two different records"):
            made([(1, 5)]).iterate_delta(made([(1, 1)]), 3, 0, step=step).collect()

    both(check)


@pytest.mark.campaign
def test_an_iteration_that_its_limit_has_cut_short_says_so(both, caplog):
    def check(env):
        caplog.clear()
        components(env, chain_of_edges(6), 2).collect()
        (told,) = env.get_last_job_execution_result().statistics["iterations"].values()
        assert not told["is_converged"]
        assert "ended by its limit of 2 supersteps" in caplog.text

    both(check)


@pytest.mark.parametrize("limit", [1 << 20, 3_000, campaign(600)])
def test_small_iterations_run_in_this_process_and_move_when_they_grow(with_small_iterations, local, limit):
    """The same results, sizes and counts whether all, some or none of the supersteps run here."""
    results = []
    for env in (with_small_iterations(limit), local):
        found = sorted(r["component"] for r in components(env, chain_of_edges(6)).collect())
        (told,) = env.get_last_job_execution_result().statistics["iterations"].values()
        results.append((found, told))
        loop = env.from_collection([1, 4, 64, 9, 3]).iterate(100)
        loop.register_aggregation_convergence_criterion("changed", LongCounter(), lambda superstep, n: n == 0)
        grown = loop.map(Halved())
        found = sorted(loop.close_with(grown).collect())
        job = env.get_last_job_execution_result()
        results.append((found, job.get_accumulator_result("calls"), list(job.statistics["iterations"].values())))
    assert results[:2] == results[2:]


@pytest.mark.campaign
def test_an_iteration_that_doubles_is_handed_over(with_small_iterations, local):
    results = []
    for env in (with_small_iterations(2_000), local):
        start = env.from_collection([0], type_info=Types.LONG())
        data = start.iterate(9, lambda d: d.flat_map(lambda v: [v * 2, v * 2 + 1], output_type=Types.LONG()))
        found = sorted(data.collect())
        results.append((found, list(env.get_last_job_execution_result().statistics["iterations"].values())))
    assert results[0] == results[1]
    assert results[0][0] == list(range(512))


def test_partitions_that_the_plan_counts_on_are_made_again_here(with_small_iterations, local):
    results = []
    for env in (with_small_iterations(1 << 20), local):
        parts = env.generate_sequence(0, 99).map(lambda v: (v % 7, v), output_type=PAIR).rebalance()
        links = parts.map_partition(lambda rows: list(rows), output_type=PAIR).partition_by_hash(0)

        def step(sums, links=links):
            return sums.join(links).where(0).equal_to(0).project_first(0).project_second(1).group_by(0).sum(1)

        results.append(sorted(links.group_by(0).sum(1).iterate(3, step).collect()))
    assert results[0] == results[1]


def test_what_is_kept_is_computed_once(on_spark, tmp_path):
    path = tmp_path / "seen"

    def seen(value):
        with path.open("a") as file:
            file.write("x")
        return value

    kept = on_spark.from_elements(1, 2, 3).map(seen, output_type=Types.LONG()).cache()
    assert sorted(kept.collect()) == [1, 2, 3]
    assert kept.map(lambda v: v * 2).count() == 3
    assert sorted(kept.union(kept).collect()) == [1, 1, 2, 2, 3, 3]
    assert path.read_text() == "xxx"
