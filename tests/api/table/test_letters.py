"""SQL's words are read in small letters as in capitals: generated queries give the same rows in both."""

from __future__ import annotations

import pytest
from campaigns import campaign
from query_generator import QueryGenerator, random_rows
from query_kit import in_batch_mode, tables_of
from stream_query_comparison import answer_of, write_streams
from stream_query_generator import StreamQueryGenerator

NUM_QUERIES = 40


@pytest.mark.parametrize("seed", ["one", campaign("two")])
def test_queries_are_read_in_small_letters(seed):
    for number in range(NUM_QUERIES):
        tables = tables_of(*random_rows(f"{seed} {number}"))
        query = QueryGenerator(f"letters {seed} {number}").query()
        assert in_batch_mode(query.lower(), tables) == in_batch_mode(query, tables), query


@pytest.mark.parametrize("block", [0, campaign(1), campaign(2), campaign(3)])
def test_queries_over_streams_are_read_in_small_letters(tmp_path, block):
    folder = write_streams(tmp_path, "letters")
    for number in range(block * NUM_QUERIES // 2, (block + 1) * NUM_QUERIES // 2):
        query = StreamQueryGenerator(f"letters {number}").query()
        assert answer_of(query.lower(), folder, "batch") == answer_of(query, folder, "batch"), query
