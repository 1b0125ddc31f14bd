"""Generated queries give what DuckDB gives, in both modes; `tests/conformance/queries.py` runs thousands of them."""

from __future__ import annotations

import pytest
from campaigns import blocks
from query_comparison import broken_thirds, mismatches
from query_generator import QueryGenerator

QUERIES_OF_A_BLOCK = 10


def seeds_of(block):
    return [f"block {block}/{number}" for number in range(QUERIES_OF_A_BLOCK)]


@pytest.mark.parametrize("block", blocks(1, 20))
@pytest.mark.sampled(9)
def test_generated_queries_give_what_duckdb_gives(block):
    assert [found for seed in seeds_of(block) for found in mismatches(seed)] == []


@pytest.mark.parametrize("block", blocks(1, 8))
@pytest.mark.sampled(4)
def test_rows_are_those_for_which_a_condition_is_true_false_or_null(block):
    assert [found for seed in seeds_of(block) for found in broken_thirds(seed)] == []


def test_a_seed_gives_one_query():
    queries = [QueryGenerator(f"same {number}").query() for number in range(20)]
    assert queries == [QueryGenerator(f"same {number}").query() for number in range(20)]
    assert len(set(queries)) == 20
