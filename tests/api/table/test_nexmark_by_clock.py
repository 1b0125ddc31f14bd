"""Nexmark's queries by processing time: q13 gives the rows of a direct computation, q12 its totals."""

from __future__ import annotations

import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nexmark_kit import (
    BY_THE_CLOCK,
    as_multiset,
    auction_environment,
    bids,
    bids_per_bidder,
    expected,
    with_side_input,
)
from query_kit import FailsNowAndThen, Rows

from headrace import RestartStrategies
from headrace.connectors.datagen import GeneratorSource
from headrace.table import TableEnvironment, udf


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_bids_are_enriched_from_a_side_table(mode, tmp_path):
    options = {"actor_system": "local"} if mode == "streaming" else {}
    with auction_environment(mode, **options) as env:
        with_side_input(env, tmp_path / "side.csv")
        assert as_multiset(env.execute_sql(BY_THE_CLOCK["q13"]).to_arrow()) == expected("q13")


def test_all_bids_of_a_bidder_are_in_some_window(tmp_path):
    with auction_environment("streaming", actor_system="local") as env:
        with_side_input(env, tmp_path / "side.csv")
        found = env.execute_sql(BY_THE_CLOCK["q12"]).to_arrow()
    assert found.schema.field("starttime").type == pa.timestamp("ms")
    assert totals(found) == bids_per_bidder()


def totals(table):
    found = Counter()
    for row in table.to_pylist():
        found[row["bidder"]] += row["bid_count"]
    return found


class Program:
    """Both queries as one job that writes files, over bids that take about a second to come."""

    def __init__(self, path):
        self._path = path
        self._bids = pa.Table.from_pylist(bids(), pa.schema({
            "auction": "int64", "bidder": "int64", "price": "int64", "dateTime": pa.timestamp("ms"),
        }))  # fmt: skip

    def submitted(self, parallelism, savepoint=None):
        """An environment at whose other end the job runs, and the job's id."""
        env = TableEnvironment.create(parallelism=parallelism, actor_system="local")
        streams = env.stream_environment
        streams.enable_checkpointing(50, directory=self._path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        streams.set_max_parallelism(12)
        rows = self._bids.num_rows
        source = GeneratorSource.batches(Rows(self._bids), rows, rows, number_of_splits=2, batch_size=200)
        env.create_temporary_view("given", streams.from_source(source, type_info=self._bids.schema))
        calls = FailsNowAndThen(self._path / "calls", {9_000, 20_000})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW bid AS SELECT auction, bidder, shaky(price) AS price, `dateTime` FROM given")
        with_side_input(env, self._path / "side.csv")
        options = "WITH ('connector' = 'filesystem', 'format' = 'parquet', 'path' = '{}')"
        env.execute_script(f"""
            CREATE TABLE q12 (bidder BIGINT, bid_count BIGINT, starttime TIMESTAMP(3), endtime TIMESTAMP(3))
            {options.format(self._path / "q12")};
            CREATE TABLE q13 (auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3), `value` VARCHAR)
            {options.format(self._path / "q13")};
            SET 'table.dml-sync' = 'false';
            SET 'execution.checkpointing.savepoint-dir' = '{self._path / "savepoints"}';
        """)
        if savepoint is not None:
            env.execute_sql(f"SET 'execution.savepoint.path' = '{savepoint}'")
        query = BY_THE_CLOCK["q12"].replace("'10' SECOND", "'0.1' SECOND")
        [job] = (
            env.execute_sql(f"""
            EXECUTE STATEMENT SET BEGIN INSERT INTO q12 {query}; INSERT INTO q13 {BY_THE_CLOCK["q13"]}; END
        """)
            .to_arrow()
            .column(0)
            .to_pylist()
        )
        return env, job


@pytest.mark.campaign
def test_both_go_on_through_failures_and_at_another_parallelism(tmp_path):
    program = Program(tmp_path)
    env, job = program.submitted(2)
    with env:
        deadline = time.monotonic() + 20
        while not (tmp_path / "calls").exists() or (tmp_path / "calls").stat().st_size < 13_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        savepoint = env.execute_sql(f"STOP JOB '{job}' WITH SAVEPOINT").to_arrow().column(0)[0].as_py()
    first = pq.read_table(tmp_path / "q13").num_rows
    env, job = program.submitted(3, savepoint)
    with env:
        env._execution.jobs[-1].result()
    assert 0 < first < len(bids())
    assert (tmp_path / "calls").stat().st_size >= len(bids()) + 2
    assert as_multiset(pq.read_table(tmp_path / "q13")) == expected("q13")
    windows = pq.read_table(tmp_path / "q12")
    assert totals(windows) == bids_per_bidder()
    assert len(set(windows["starttime"].to_pylist())) > 5
