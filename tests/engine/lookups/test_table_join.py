"""Lookup joins of tables: each row with what the table has for its key. Oracle: a loop over a list of rows."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup_kit import LEFT, PROJECTION, RIGHT, Table, oracle
from operator_harness import OperatorHarness

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError
from headrace.engine.lookups.batch_questions import LookupTerms
from headrace.engine.lookups.enrichment import LookupCache
from headrace.engine.lookups.table_join import LookupJoinOfTables


def harness(keys=(("a", "b"), ("k", "t")), cache=None, **options):
    return OperatorHarness(LookupJoinOfTables(Table(), terms_of(keys, **options), cache))


def terms_of(keys=(("a", "b"), ("k", "t")), **options):
    known = {"schemas": (LEFT, RIGHT), "is_left": False, "projection": PROJECTION}
    return LookupTerms(keys, keys[1], **{**known, **options})


def given_to(run, rows, times=None):
    columns = [pa.array(one, field.type) for one, field in zip(zip(*rows, strict=True), LEFT, strict=True)]
    run.operator.process_batch(Batch.of_columns(pa.record_batch(columns, LEFT)), 0)
    return [tuple(row.values()) for row in run.take_rows()]


keys_of = st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.sampled_from("xy")))


@given(
    st.lists(st.lists(keys_of, min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(st.tuples(keys_of, st.integers(0, 5)), max_size=10),
    st.booleans(), st.sampled_from([None, 3]), st.booleans(),
)  # fmt: skip
def test_each_row_is_joined_with_the_rows_of_its_key(batches, table, is_left, least, caches):
    Table.rows = [(*key, v) for key, v in table]
    condition = None if least is None else col("v") >= least
    run = harness(is_left=is_left, condition=condition, cache=LookupCache(max_rows=3) if caches else None)
    number, asked = 0, Counter()
    for batch in batches:
        rows = [(number + i, *key) for i, key in enumerate(batch)]
        number += len(rows)
        found = given_to(run, rows)
        expected = oracle(rows, Table.rows, is_left=is_left, least=least)
        assert [row[0] for row in found] == [row[0] for row in expected]
        assert Counter(found) == Counter(expected)
    for keys in Table.asked:
        assert len(keys) == len(set(keys))
        assert all(None not in key for key in keys)
        asked.update(keys)
    if caches and len({key for batch in batches for key in batch if None not in key}) <= 3:
        assert set(asked.values()) <= {1}


def test_what_is_known_is_forgotten_by_the_clock_and_counted():
    Table.rows = [(1, "x", 10)]
    run = harness(cache=LookupCache(expire_after_write=100), is_left=True)
    rows = [(0, "x", 10, "x"), (1, "x", 10, "x"), (2, "x", None, None)]
    assert given_to(run, [(0, 1, "x"), (1, 1, "x"), (2, 2, "x")]) == rows
    Table.rows = [(1, "x", 11), (2, "x", 12)]
    run.advance_clock(99)
    assert given_to(run, [(3, 1, "x"), (4, 2, "x")]) == [(3, "x", 10, "x"), (4, "x", None, None)]
    run.advance_clock(100)
    assert given_to(run, [(5, 1, "x"), (6, 2, "x")]) == [(5, "x", 11, "x"), (6, "x", 12, "x")]
    figures = {name.removeprefix("lookup."): n for name, n in run.metrics.statistics().items() if "lookup." in name}
    assert figures == {
        "hit_count": 2, "miss_count": 4, "load_count": 2, "num_load_failures": 0, "num_cached_records": 2
    }  # fmt: skip


def test_what_is_made_of_the_tables_rows_is_joined():
    Table.rows = [(1, "x", 10), (1, "x", 3), (2, "x", 5)]
    steps = [
        lambda rows: rows.filter(pc.greater(rows.column("v"), 4)),
        lambda rows: pa.record_batch([rows.column("k"), pc.multiply(rows.column("v"), 2)], ["key", "w"]),
    ]
    terms = LookupTerms(
        (["a"], ["key"]), ["k"], steps=steps, schemas=(LEFT, pa.schema({"key": "int64", "w": "int64"})),
        is_left=False, projection=[(0, "id", "id"), (1, "w", "w")],
    )  # fmt: skip
    run = OperatorHarness(LookupJoinOfTables(Table(), terms))
    assert given_to(run, [(0, 1, "?"), (1, 2, "?"), (2, 3, "?")]) == [(0, 20), (1, 10)]


def test_event_times_are_those_of_the_rows():
    Table.rows = [(1, "x", 10), (1, "x", 11), (2, "y", 12)]
    run = harness(is_left=True)
    run.process([{"id": i, "a": a, "b": b} for i, (a, b) in enumerate([(1, "x"), (2, "x"), (2, "y")])], [5, 3, 9])
    assert [time for _, time in run.take()] == [5, 5, 3, 9]


def test_a_table_that_cannot_be_asked_fails_the_job(monkeypatch):
    monkeypatch.setattr(Table, "fails", True)
    run = harness()
    with pytest.raises(HeadraceError, match="gone") as raised:
        given_to(run, [(0, 1, "x")])
    assert raised.value.context["operator"] == "op"
