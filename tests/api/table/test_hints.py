"""Hints: a join with one gives what it gives without, the plan says so, and no hint is left out silently."""

from __future__ import annotations

import pytest
from query_kit import SAMPLE, by_duckdb, in_batch_mode, in_streaming_mode, tables_of, with_tables

from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

QUERY = "SELECT {} x.a, COUNT(*) FROM l AS x JOIN r ON x.a = r.a WHERE x.b > 0 GROUP BY x.a"
HINTS = "/*+ BROADCAST(r), shuffle_hash(x, r) */"


@pytest.fixture
def t():
    with with_tables(TableEnvironment.create(mode="batch"), tables_of(*SAMPLE)) as made:
        yield made


def test_a_hint_changes_nothing_and_the_plan_says_so(t):
    tables = tables_of(*SAMPLE)
    wanted = by_duckdb(QUERY.format(""), tables)
    assert in_batch_mode(QUERY.format(HINTS), tables) == wanted
    assert in_streaming_mode(QUERY.format(HINTS), tables) == wanted
    plan = "\n".join(t.execute_sql(f"EXPLAIN {QUERY.format(HINTS)}").to_arrow()[0].to_pylist())
    assert "hint BROADCAST(r) changes nothing" in plan
    assert "hint SHUFFLE_HASH(x, r) changes nothing" in plan


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (QUERY.format("/*+ BRODCAST(r) */"), "there is no hint BRODCAST(.|\n)*did you mean 'BROADCAST'"),
        (QUERY.format("/*+ BROADCAST(l) */"), "'l', which is no table of FROM"),
        (QUERY.format("/*+ NEST_LOOP */"), "names no table of FROM"),
        (QUERY.format("/*+ STATE_TTL('xx' = '1d') */"), "'xx', which is no table of FROM(.|\n)*did you mean 'x'"),
        (QUERY.format("/*+ STATE_TTL('l' = '1d') */"), "'l', which is no table of FROM"),
        (QUERY.format("/*+ STATE_TTL('x' = 'soon') */"), "STATE_TTL: a duration must be"),
        (QUERY.format("/*+ STATE_TTL('x' = '-1 s') */"), "is not negative"),
        (QUERY.format("/*+ STATE_TTL(x) */"), "takes 'table' = 'duration'"),
        (QUERY.format("/*+ LOOKUP('table' = 'r') */"), "no table that is looked up here"),
        ("SELECT * FROM l /*+ OPTIONS('a' = 'b') */", "was not expected here"),
        ("SELECT * FROM l AS x /*+ OPTIONS('a' = 'b') */ JOIN r ON x.a = r.a", "was not expected here"),
    ],
)
def test_a_hint_that_means_nothing_here_is_refused(query, message, t):
    with pytest.raises(SqlError, match=message):
        t.execute_sql(query)


def test_a_comment_is_no_hint(t):
    assert t.execute_sql("SELECT /* + a */ a /* OPTIONS('a' = 'b') */ FROM l /* NEST_LOOP */").to_arrow().num_rows == 24
