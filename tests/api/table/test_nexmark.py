"""Nexmark's queries: the tables that Flink 2.3 gives, in both modes."""

from __future__ import annotations

import pytest
from campaigns import planted
from nexmark_kit import QUERIES, as_multiset, auction_environment, expected


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.sampled(3)
def test_batch_gives_the_table_that_flink_gives(query):
    with auction_environment("batch") as env:
        assert as_multiset(env.execute_sql(QUERIES[query]).to_arrow()) == expected(query)


@pytest.mark.parametrize("query", planted(QUERIES, {"q4", "q16", "q17", "q23"}))
@pytest.mark.sampled(3)
def test_changes_of_a_stream_come_to_the_table_that_flink_gives(query):
    with auction_environment("streaming", actor_system="local") as env:
        assert as_multiset(env.execute_sql(QUERIES[query]).to_arrow()) == expected(query)
