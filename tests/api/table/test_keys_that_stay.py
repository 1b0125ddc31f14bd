"""Exchanges by the key that records came by: nothing is sent elsewhere, nor anything that belongs elsewhere kept."""

from __future__ import annotations

import pyarrow as pa
import pytest
from query_kit import FailsNowAndThen, by_duckdb, in_small_batches, multiset
from staying_kit import watched_staying

from headrace import RestartStrategies, col
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.functions.keys import KeySelector
from headrace.engine.graph.job_graph import JobEdge
from headrace.engine.kernel.config import JobSettings
from headrace.engine.kernel.machine import Address
from headrace.engine.kernel.metrics import MetricGroup
from headrace.engine.operators.exchange import HashPartitioner
from headrace.engine.protocol.task_messages import ChannelDescriptor, TaskDeployment
from headrace.engine.task.chain import ChainLink
from headrace.engine.task.inputs_outputs import TaskOutputs
from headrace.engine.task.processor_time import ProcessorTime
from headrace.state.identifiers import ExecutionAttemptId, JobId, VertexId
from headrace.table import TableEnvironment, udf

HERE = Address("host", "slot")


def table(rows):
    columns = list(zip(*rows, strict=True))
    return pa.table([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.int64()), columns[2]], names="kxs")


TABLES = {
    name: table([(None if (i + shift) % 11 == 0 else i * step % 23, i % 3, f"{name}{i}") for i in range(60)])
    for name, shift, step in (("a", 0, 7), ("b", 3, 5), ("c", 6, 3))
}

STAY = [
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k JOIN c ON c.k = b.k",
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k",
    "SELECT a.s, b.s, c.s FROM a RIGHT JOIN b ON a.k = b.k LEFT JOIN c ON b.k = c.k",
    "SELECT j.n, j.s, c.s FROM (SELECT a.k AS n, b.s FROM a, b WHERE a.k = b.k AND a.x <> b.x) j JOIN c ON j.n = c.k",
    "SELECT a.k, COUNT(*), MAX(b.s) FROM a JOIN b ON a.k = b.k GROUP BY a.k",
    "SELECT p.n, c.s FROM (SELECT k, COUNT(*) AS n FROM a GROUP BY k) p JOIN c ON p.k = c.k",
    "SELECT a.s, c.s FROM a JOIN c ON a.k = c.k WHERE a.k IN (SELECT k FROM b)",
    """SELECT k, s, r FROM (SELECT a.k, b.s, ROW_NUMBER() OVER (PARTITION BY a.k ORDER BY a.s, b.s) AS r
       FROM a JOIN b ON a.k = b.k) WHERE r <= 2""",
    # A key of several columns has them in the order in which its rows come, however it is written.
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k AND a.x = b.x JOIN c ON c.k = a.k AND c.x = b.x",
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k AND a.x = b.x JOIN c ON c.x = a.x AND c.k = b.k",
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k AND a.x = b.x LEFT JOIN c ON a.x = c.x AND a.k = c.k",
    "SELECT n, m, COUNT(*) FROM (SELECT a.k AS m, b.x AS n FROM a JOIN b ON a.k = b.k AND a.x = b.x) GROUP BY n, m",
    "SELECT p.n, c.s FROM (SELECT x, k, COUNT(*) AS n FROM a GROUP BY x, k) p JOIN c ON p.k = c.k AND p.x = c.x",
    "SELECT p.n, c.s FROM c JOIN (SELECT k, x, COUNT(*) AS n FROM a GROUP BY k, x) p ON p.x = c.x AND p.k = c.k",
    """SELECT k, x, s, r FROM (SELECT a.k, b.x, b.s, ROW_NUMBER() OVER (PARTITION BY b.x, a.k ORDER BY a.s, b.s) AS r
       FROM a JOIN b ON a.k = b.k AND a.x = b.x) WHERE r <= 2""",
    """SELECT j.z, MAX(c.s) FROM (SELECT a.x AS z, b.k AS y, a.s AS w FROM a JOIN b ON a.k = b.k AND a.x = b.x AND
       a.s <> b.s) j JOIN c ON c.k = j.y AND c.x = j.z AND c.s <> j.w GROUP BY j.y, j.z""",
]
MOVE = [
    "SELECT a.s, b.s, c.s FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON b.k = c.k",
    "SELECT a.s, b.s, c.s FROM a FULL JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k",
    "SELECT a.s, b.s, c.s FROM a JOIN b ON a.k = b.k JOIN c ON c.x = b.x WHERE b.x > 0",
    "SELECT j.s, c.s FROM (SELECT a.k + 1 AS n, b.s FROM a JOIN b ON a.k = b.k) j JOIN c ON j.n = c.k",
    "SELECT a.k, a.x, COUNT(*) FROM a JOIN b ON a.k = b.k GROUP BY a.k, a.x",
]


@pytest.fixture
def staying(monkeypatch):
    return watched_staying(monkeypatch)


@pytest.mark.parametrize("query", STAY + MOVE)
@pytest.mark.parametrize("is_in_mini_batches", [False, True])
def test_records_stay_exactly_where_their_keys_belong(query, is_in_mini_batches, staying):
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=0), TABLES, 5) as env:
        if is_in_mini_batches:
            for key, value in {"enabled": "true", "allow-latency": "50 ms", "size": "7"}.items():
                env.execute_sql(f"SET 'table.exec.mini-batch.{key}' = '{value}'")
        found = multiset(env.execute_sql(query).to_arrow())
    assert found == by_duckdb(query, TABLES)
    assert set(staying) == ({0, 1, 2} if query in STAY else set())


@pytest.mark.parametrize("names", [("k", "x"), ("x", "k"), ("first", "second"), ("second", "first"), ("b", "a")])
def test_keys_stay_whatever_their_names_are(names, staying):
    tables = {name: one.rename_columns([*names, "s"]) for name, one in TABLES.items()}
    one, other = names
    query = f"""SELECT p.n, c.s FROM (SELECT a.{one}, b.{other}, COUNT(*) AS n FROM a JOIN b ON a.{one} = b.{one}
                AND a.{other} = b.{other} GROUP BY b.{other}, a.{one}) p
                JOIN c ON p.{other} = c.{other} AND p.{one} = c.{one}"""
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=0), tables, 5) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, tables)
    assert len(staying) == 6  # from the first join to the group, and from there to the second one


def test_rows_of_both_inputs_stay_if_their_tables_call_the_key_alike(staying):
    query = """SELECT p.n, q.n AS m FROM (SELECT x, k, COUNT(*) AS n FROM a GROUP BY x, k) AS p
               JOIN (SELECT k, x, COUNT(*) AS n FROM b GROUP BY k, x) AS q ON p.x = q.x AND q.k = p.k"""
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=0), TABLES, 5) as env:
        assert multiset(env.execute_sql(query).to_arrow()) == by_duckdb(query, TABLES)
    assert len(staying) == 6


def test_what_was_dealt_out_in_between_goes_by_hash(staying):
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="sim", seed=0), TABLES, 5) as env:
        joined = env.to_data_stream(env.sql_query("SELECT a.k, b.s FROM a JOIN b ON a.k = b.k"))
        env.create_temporary_view("j", joined.filter(col("k") >= 0).set_parallelism(3))
        found = multiset(env.execute_sql("SELECT k, COUNT(*) FROM j GROUP BY k").to_arrow())
    assert found == by_duckdb("SELECT a.k, COUNT(*) FROM a JOIN b ON a.k = b.k GROUP BY a.k", TABLES)
    assert not staying


def outputs(keys, consumers, groups=128):
    """Those of the first of two subtasks of a join, to some consumers by ``n``."""
    schema = pa.schema([("k", pa.int64())])
    projection = [(0, "k", "n")]
    operator = ChangelogJoin(["k"], ["k"], "inner", left_schema=schema, right_schema=schema, projection=projection)
    link = ChainLink("join", "join", operator, 0, 2, MetricGroup())
    ours, theirs = VertexId("join"), VertexId("group")
    by = [HashPartitioner(KeySelector.of_field(key)) for key in keys]
    onward = HashPartitioner(KeySelector.of_field("n"))
    deployment = TaskDeployment(
        job_id=JobId("job"),
        job_name="job",
        attempt=ExecutionAttemptId(1, 0, ours, 1),
        vertex=b"",
        input_edges=tuple(JobEdge(at, VertexId("a"), 0, None, ours, at, one, 128) for at, one in enumerate(by)),
        output_edges=(JobEdge(9, ours, 0, None, theirs, 0, onward, groups),),
        inputs=(),
        outputs=tuple(ChannelDescriptor(9, ExecutionAttemptId(1, 0, theirs, at), HERE) for at in range(consumers)),
        settings=JobSettings(),
        job_manager=HERE,
        coordinator=HERE,
        restore=None,
    )
    return TaskOutputs(deployment, [link], lambda: 0, ProcessorTime())


@pytest.mark.parametrize(
    ("facts", "stays"),
    [
        ({"keys": ["k", "k"], "consumers": 2}, True),
        ({"keys": ["k", "k"], "consumers": 3}, False),
        ({"keys": ["k", "k"], "consumers": 2, "groups": 256}, False),
        ({"keys": ["k", "other"], "consumers": 2}, False),
    ],
)
def test_both_ends_must_be_alike(facts, stays, staying):
    outputs(**facts).stay(2)
    assert staying == ([1] if stays else [])


CHANGING = """
    SELECT p.k, p.n, q.n, c.s FROM (SELECT k, SUM(x) AS n FROM a GROUP BY k) AS p
    LEFT JOIN (SELECT shaky(k) AS k, SUM(x) AS n FROM b GROUP BY shaky(k)) AS q ON p.k = q.k JOIN c ON c.k = p.k
"""


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("is_unaligned", [False, True])
def test_records_stay_through_failures(backend, is_unaligned, staying, tmp_path):
    tables = {name: pa.concat_tables([one] * 3) for name, one in TABLES.items()}
    with in_small_batches(TableEnvironment.create(parallelism=2, actor_system="local"), tables, 2) as env:
        env.execute_sql(f"SET 'state.backend.type' = '{backend}'")
        env.execute_sql(f"SET 'execution.checkpointing.unaligned.enabled' = '{str(is_unaligned).lower()}'")
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {40, 110})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        found = multiset(env.execute_sql(CHANGING).to_arrow())
    assert found == by_duckdb(CHANGING.replace("shaky(k)", "k"), tables)
    assert set(staying) == {0, 1}
