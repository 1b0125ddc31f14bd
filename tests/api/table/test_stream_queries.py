"""Generated queries over streams with event time: streams give what batch mode gives, however they are cut and placed,
and under settings that must not change what they come to.

Flink's answers to such queries are asked by ``tests/conformance/flink_queries.py``.
"""

from __future__ import annotations

import random

import pytest
from campaigns import blocks
from query_kit import FailsNowAndThen
from stream_query_comparison import answer_of, as_value, broken_thirds, tables_for, unlike, write_streams
from stream_query_generator import StreamQueryGenerator

from headrace import RestartStrategies
from headrace.table import TableEnvironment, udf

QUERIES_OF_A_BLOCK = 6


def query_of(block, number):
    return StreamQueryGenerator(f"block {block}/{number}").query()


@pytest.mark.parametrize("block", blocks(1, 20))
@pytest.mark.sampled(4)
def test_streams_give_what_batch_mode_gives(tmp_path, block):
    folders = [write_streams(tmp_path / f"{cut}", f"block {block}", cut) for cut in (0, 1)]
    for number in range(QUERIES_OF_A_BLOCK):
        query = query_of(block, number)
        assert unlike(query, folders, f"{block}/{number}") == {}, query


@pytest.mark.parametrize("block", blocks(1, 12))
@pytest.mark.sampled(3)
def test_rows_are_those_for_which_a_condition_is_true_false_or_null(tmp_path, block):
    folder = write_streams(tmp_path, f"block {block}")
    assert [broken_thirds(folder, f"{block}/{number}") for number in range(QUERIES_OF_A_BLOCK)] == [
        {} for _ in range(QUERIES_OF_A_BLOCK)
    ]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("block", blocks(1, 6))
@pytest.mark.sampled(3)
def test_and_through_failures_on_both_backends(tmp_path, block, backend):
    folder = write_streams(tmp_path / "tables", f"block {block}")
    draw = random.Random(block)
    for number in range(QUERIES_OF_A_BLOCK):
        query = query_of(block, number)
        expected = answer_of(query, folder, "batch")
        calls = tmp_path / f"calls-{number}"
        trips = udf(FailsNowAndThen(calls, set(draw.sample(range(2, 40), 2))), result_type="BIGINT")
        with TableEnvironment.create(parallelism=2, actor_system="local") as env:
            env.stream_environment.set_state_backend(backend)
            env.stream_environment.enable_checkpointing(10, directory=tmp_path / f"checkpoints-{number}")
            env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 10))
            env.create_temporary_function("trips", trips)
            for statement in tables_for(folder):
                env.execute_sql(statement.replace("TABLE e (", "TABLE raw_e (").replace("TABLE f (", "TABLE raw_f ("))
            env.execute_sql("CREATE TEMPORARY VIEW e AS SELECT trips(id) AS id, k, v, c, ts FROM raw_e")
            env.execute_sql("CREATE TEMPORARY VIEW f AS SELECT trips(id) AS id, k, w, ts FROM raw_f")
            table = env.execute_sql(query).to_arrow()
        rows = zip(*(one.to_pylist() for one in table.columns), strict=True)
        assert sorted(map(repr, (tuple(map(as_value, row)) for row in rows))) == sorted(
            map(repr, expected.elements())
        ), query
