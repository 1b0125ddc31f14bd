"""Whole jobs on Spark: iterations, failures, lost executors, files, what is counted, what is left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

import pyarrow as pa
import pytest
from campaigns import campaign
from spark_kit import java_children

from headrace import IntCounter, LongCounter, MapFunction, Types, UserFunctionError, col, count
from headrace.actors.spark import supersteps as spark_supersteps
from headrace.actors.spark.session import open_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.campaign
def test_the_example_of_an_iteration_runs_unchanged(on_spark):
    env = on_spark
    data = env.from_collection([1, 2, 3, 4, 5]).iterate(10, lambda ds: ds.map(lambda x: x + 1))
    assert sorted(data.collect()) == [11, 12, 13, 14, 15]


def test_functions_run_on_the_programs_own_python(on_spark):
    """Not on what PATH calls python3, which may be another one, and does not read this one's library."""
    pythons = on_spark.from_collection([1, 2, 3]).map(lambda _number: sys.executable).collect()
    assert set(pythons) == {os.environ.get("PYSPARK_PYTHON") or sys.executable}


def components(env, edges, supersteps=50):
    """Smallest vertex of each connected component, by delta iteration."""
    links = env.from_arrow(edges)
    links = links.union(links.select(a=col("b"), b=col("a")))
    vertices = links.select(vertex=col("a")).distinct().select("vertex", component=col("vertex"))
    loop = vertices.iterate_delta(vertices, supersteps, "vertex")
    candidates = (
        loop.get_workset().join(links).where("vertex").equal_to("a")
        .with_(lambda vertex, link: {"vertex": link["b"], "component": vertex["component"]}, vertices.schema)
        .group_by("vertex").min("component")
    )  # fmt: skip
    better = (
        candidates.join(loop.get_solution_set()).where("vertex").equal_to("vertex")
        .with_(lambda new, old: new if new["component"] < old["component"] else None, None)
        .filter(lambda row: row is not None).as_type(vertices.schema)
    )  # fmt: skip
    return loop.close_with(better, better)


def chain_of_edges(length):
    """A path, a star and a pair."""
    path = [(i, i + 1) for i in range(length)]
    star = [(1000, 1001 + i) for i in range(20)]
    return pa.table(
        {"a": [a for a, _ in [*path, *star, (7000, 6000)]], "b": [b for _, b in [*path, *star, (7000, 6000)]]}
    )


@pytest.mark.campaign
def test_connected_components_by_delta_iteration(on_spark, same):
    edges = chain_of_edges(4)
    found = same(lambda env: components(env, edges))
    assert {row["component"] for row in found} == {0, 1000, 6000}
    told = on_spark.get_last_job_execution_result().statistics["iterations"]
    (iteration,) = told.values()
    sizes = iteration["workset_sizes"]
    assert iteration["is_converged"]
    assert sizes[0] == 28  # all vertices
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 3


class Halved(MapFunction):
    """Counts what still changes, in an aggregator and in an accumulator."""

    def open(self, runtime_context):
        self.changed = runtime_context.get_iteration_aggregator("changed")
        self.previous = runtime_context.get_previous_iteration_aggregate("changed")
        self.calls = IntCounter()
        runtime_context.add_accumulator("calls", self.calls)

    def map(self, value):
        self.calls.add(1)
        if value > 1:
            self.changed.add(1)
        return max(value // 2, 1)


@pytest.mark.campaign
def test_aggregators_end_an_iteration_and_accumulators_count_every_call_once(on_spark, local):
    results = []
    for env in (on_spark, local):
        data = env.from_collection([1, 4, 64, 9, 3])
        loop = data.iterate(100)
        loop.register_aggregation_convergence_criterion("changed", LongCounter(), lambda superstep, n: n == 0)
        result = loop.close_with(loop.map(Halved())).collect()
        job = env.get_last_job_execution_result()
        (told,) = job.statistics["iterations"].values()
        results.append((sorted(result), told["supersteps"], job.get_accumulator_result("calls")))
    assert results[0] == results[1] == ([1] * 5, 7, 35)


@pytest.fixture
def without_collector():
    """Python frees what refers to itself only when it is told to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("supersteps", [20, campaign(200)])
@pytest.mark.campaign
def test_memory_stays_flat_over_many_supersteps(on_spark, supersteps, without_collector):
    """Neither what executors hold grows, nor what Python keeps alive in the driver's heap."""
    from py4j.java_gateway import JavaObject

    context = open_session().spark.sparkContext
    held, in_java = [], []

    def kept():
        return context._jsc.sc().getPersistentRDDs().size()

    def watched(superstep, _value):
        held.append(kept())
        if superstep % spark_supersteps.COLLECTED_SUPERSTEPS == 0:
            in_java.append(sum(type(thing) is JavaObject for thing in gc.get_objects()))
        return False

    before = kept()
    loop = on_spark.from_collection([0, 1, 2]).set_parallelism(1).iterate(supersteps)
    loop.register_aggregation_convergence_criterion("n", LongCounter(), watched)
    assert sorted(loop.close_with(loop.map(lambda x: x + 1)).collect()) == [supersteps + n for n in range(3)]
    assert len(held) == supersteps
    assert len(in_java) == supersteps // spark_supersteps.COLLECTED_SUPERSTEPS
    assert max(in_java) <= in_java[0] + spark_supersteps.COLLECTED_SUPERSTEPS  # a superstep leaves dozens
    assert set(held[1:]) == {held[1]}
    assert held[1] <= before + 2
    assert kept() == before


@pytest.mark.campaign
def test_estimates_of_one_superstep_do_not_go_into_those_of_the_next(on_spark, monkeypatch):
    """Sizes of joins are products: handed on, their digits filled the driver's heap after thirty supersteps."""
    sizes = []

    class Watched(spark_supersteps._Kept):
        def __init__(self, relation, job):
            super().__init__(relation, job)
            plan = self.relation.df._jdf.queryExecution().analyzed()
            assert plan.constraints().isEmpty()
            sizes.append(plan.stats().sizeInBytes())

    monkeypatch.setattr(spark_supersteps, "_Kept", Watched)
    components(on_spark, chain_of_edges(5), 4).collect()
    assert len(sizes) > 8
    assert max(sizes) < 2**64


def test_what_a_superstep_broadcasts_goes_with_it(on_spark, monkeypatch):
    from pyspark.broadcast import Broadcast

    class AddsLargest(MapFunction):
        def open(self, runtime_context):
            self.largest = max(runtime_context.get_broadcast_variable("all"))

        def map(self, value):
            return value + self.largest

    destroyed = []
    destroy = Broadcast.destroy
    monkeypatch.setattr(Broadcast, "destroy", lambda self, *more: destroyed.append(self) or destroy(self, *more))
    seen = []
    loop = on_spark.from_collection([0, 1], type_info=Types.LONG()).iterate(3)
    loop.register_aggregation_convergence_criterion(
        "n", LongCounter(), lambda superstep, _n: seen.append((superstep, len(destroyed)))
    )
    found = loop.close_with(loop.map(AddsLargest(), output_type=Types.LONG()).with_broadcast_set(loop, "all")).collect()
    assert sorted(found) == [7, 8]
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_a_failing_function_is_shown_with_its_own_traceback_and_not_called_again(on_spark, table, tmp_path):
    def fails_at_seven(row):
        if row["i"] == 7:
            (tmp_path / f"{time.monotonic_ns()}").touch()
            message = "seven is not allowed"
            raise ValueError(message)
        return row["i"]

    with pytest.raises(UserFunctionError) as failure:
        on_spark.from_arrow(table).map(fails_at_seven).name("sevens").collect()
    text = str(failure.value)
    assert "sevens" in text
    assert "subtask 1/3" in text
    assert "'i': 7" in text
    assert "ValueError: seven is not allowed" in text
    assert "fails_at_seven" in text
    assert "py4j" not in text
    assert "org.apache.spark" not in text
    assert len(text.splitlines()) < 12
    # Spark may have tried on the other executor, which knows nothing of the first attempt.
    assert len(list(tmp_path.iterdir())) <= 2


def test_overflow_is_an_error_in_spark_as_in_arrow(on_spark):
    data = on_spark.from_arrow(pa.table({"x": [2**62]}))
    with pytest.raises(UserFunctionError, match=r"overflow|OVERFLOW"):
        data.select(y=col("x") * 4).collect()


def killed_once(marker, victim):
    """A function that, in its first call of all, kills an executor."""

    def function(row):
        if row["i"] == 230 and not os.path.exists(marker):
            with open(marker, "w"):
                os.kill(victim, signal.SIGKILL)
        return row

    return function


def executors():
    """Process ids of Spark's executors."""
    found = []
    for pid in java_children():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"spark.driver.port" in file.read():
                found.append(pid)
    return found


def test_the_loss_of_an_executor_changes_nothing(on_spark, local, table, tmp_path):
    victims = executors()
    assert len(victims) == 2
    results = []
    for env, victim in ((local, None), (on_spark, victims[0])):
        function = (lambda row: row) if victim is None else killed_once(str(tmp_path / "killed"), victim)
        data = env.from_arrow(table).group_by("k").aggregate(n=count()).rebalance()
        grown = data.cross(env.from_arrow(table)).with_(lambda a, b: {"i": b["i"], "n": a["n"]})
        results.append(sorted(map(repr, grown.map(function).distinct().collect())))
    assert (tmp_path / "killed").exists()
    assert results[0] == results[1]


@pytest.mark.campaign
def test_the_loss_of_an_executor_in_an_iteration_replays_it(on_spark, tmp_path):
    marker = str(tmp_path / "killed")
    victims = executors()

    def step(x):
        if x == 6 and not os.path.exists(marker):
            with open(marker, "w"):
                for victim in victims:
                    os.kill(victim, signal.SIGKILL)
        return x + 1

    assert sorted(on_spark.from_collection([1, 2, 3]).iterate(8, lambda ds: ds.map(step)).collect()) == [9, 10, 11]
    assert os.path.exists(marker)


def test_files_are_read_and_written(on_spark, table, tmp_path):
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    for i in range(3):
        pq.write_table(table.slice(i * 80, 80), tmp_path / "in" / f"{i}.parquet")
    (tmp_path / "lines.txt").write_text("to be or not to be\nthat is\n" * 3)
    data = on_spark.read_parquet(str(tmp_path / "in"))
    assert data.filter(col("i") > 100).project("i").count() == 139
    data.filter(col("k") == 1).write_as_parquet(str(tmp_path / "out"))
    on_spark.execute()
    written = pq.read_table(tmp_path / "out")
    assert sorted(written["i"].to_pylist()) == [
        i for k, i in zip(table["k"].to_pylist(), range(240), strict=True) if k == 1
    ]
    words = on_spark.read_text(str(tmp_path / "lines.txt")).flat_map(str.split).map(lambda w: (w, 1))
    counts = dict(words.group_by(0).reduce(lambda a, b: (a[0], a[1] + b[1])).collect())
    assert counts == {"to": 6, "be": 6, "or": 3, "not": 3, "that": 3, "is": 3}


@pytest.mark.campaign
def test_objects_of_ray_and_frames_of_spark_are_sources(on_spark, table):
    import ray

    references = [ray.put(table.slice(0, 100)), ray.put(table.slice(100))]
    assert on_spark.from_ray(references).aggregate(n=count(), m=count("k")).collect() == [{"n": 240, "m": 225}]
    large = pa.table({"x": pa.array(range(1_000_000), pa.int64())})  # through the object store, too
    assert on_spark.from_arrow(large).filter(col("x") % 2 == 0).count() == 500_000
    frame = open_session().spark.createDataFrame([(1, "a"), (2, "b")], "n int, Text string")
    assert sorted(row["Text"] for row in on_spark.from_spark(frame).collect()) == ["a", "b"]


class Reads(MapFunction):
    """Reads a cached file."""

    def open(self, runtime_context):
        with open(runtime_context.get_distributed_cache().get_file("names"), encoding="utf-8") as file:
            self.names = file.read().split()

    def map(self, value):
        return self.names[value]


def test_cached_files_reach_every_executor(on_spark, tmp_path):
    (tmp_path / "names.txt").write_text("zero one two")
    on_spark.register_cached_file(str(tmp_path / "names.txt"), "names")
    assert sorted(on_spark.from_collection([0, 1, 2]).map(Reads()).collect()) == ["one", "two", "zero"]
