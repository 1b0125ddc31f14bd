"""live() of queries: the table that a stream's changes come to, shown while they come, and stopped in order."""

from __future__ import annotations

import re

import pytest
from live_kit import outputs  # noqa: F401

from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment

PATIENCE_S = 60

READINGS = """
CREATE TABLE readings (sensor INT, degrees INT) WITH (
    'connector' = 'datagen', 'fields.sensor.min' = '1', 'fields.sensor.max' = '3',
    'fields.degrees.min' = '10', 'fields.degrees.max' = '30', {more})
"""
QUERY = "SELECT sensor, COUNT(*) AS n, SUM(degrees) AS total FROM readings GROUP BY sensor ORDER BY sensor"


def made(mode, more="'number-of-rows' = '600'"):
    options = {"executor": "local"} if mode == "batch" else {"actor_system": "local"}
    env = TableEnvironment.create(mode=mode, parallelism=2, **options)
    env.execute_sql(READINGS.format(more=more))
    return env


def rows_of(table):
    return [tuple(map(int, re.findall(r">(\d+)</td>", line))) for line in re.findall(r"<tr>(<td.*?)</tr>", table)]


def test_a_streaming_query_comes_to_the_table_of_batch_mode(outputs):  # noqa: F811
    with made("batch") as env:
        expected = [tuple(row.values()) for row in env.execute_sql(QUERY).to_arrow().to_pylist()]
        output = env.sql_query(QUERY).live()
        assert output.wait(PATIENCE_S)
        assert rows_of(outputs[-1].partition("records")[2]) == expected
    with made("streaming") as env:
        output = env.execute_sql(QUERY).live()
        assert output.wait(PATIENCE_S)
        assert "3 rows; " in outputs[-1]
        assert "FINISHED" in outputs[-1]
        assert rows_of(outputs[-1]) == expected
        assert output.client.view().state == "FINISHED"


def test_a_query_without_end_is_stopped_and_what_was_seen_stays(outputs):  # noqa: F811
    with made("streaming", "'rows-per-second' = '1000'") as env:
        output = env.sql_query(QUERY).live(limit=2)
        while not any("the first 2 are shown" in table for table in outputs):
            assert output.is_running
            output.wait(0.05)
        output.stop()
        assert not output.is_running
        assert output.client.view().state == "CANCELED"
        assert rows_of(outputs[-1])[0][1] > 0


def test_what_is_no_query_is_not_shown_live(outputs):  # noqa: F811
    with made("streaming") as env, pytest.raises(ProgramError, match="this statement is none"):
        env.execute_sql("SHOW TABLES").live()
    assert outputs == []
