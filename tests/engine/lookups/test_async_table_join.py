"""Asynchronous lookup joins of tables. Oracle: a loop over a list of rows, whatever the order of answers."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from campaigns import blocks
from lookup_kit import LEFT, PROJECTION, RIGHT, Table, oracle
from operator_harness import OperatorHarness

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import Batch
from headrace.engine.errors import HeadraceError, UserFunctionError
from headrace.engine.lookups.async_table_join import MAX_ROWS, AsyncLookupJoinOfTables, missing_keys_again
from headrace.engine.lookups.batch_questions import LookupTerms
from headrace.engine.lookups.enrichment import LookupCache
from headrace.state.keyed.stored_names import StoredNames

KEYS = (("a", "b"), ("k", "t"))


@pytest.fixture(autouse=True)
def table():
    Table.rows = [(1, "x", 10), (1, "x", 11), (2, "y", 12)]


def operator(*, cache=None, stored=None, left=LEFT, names=("a", "b"), **options):
    known = {"ordered": True, "capacity": 3, "timeout_ms": 0}
    terms = {"is_left": True, "projection": PROJECTION, "condition": None}
    terms |= {key: options.pop(key) for key in list(options) if key in terms}
    own = AsyncLookupJoinOfTables(
        Table(), LookupTerms((names, KEYS[1]), KEYS[1], schemas=(left, RIGHT), **terms), cache, **{**known, **options}
    )
    own.stored = stored
    return own


def batch_of(rows, schema=LEFT):
    columns = [pa.array(one, field.type) for one, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return Batch.of_columns(pa.record_batch(columns, schema))


def given_to(run, rows):
    run.operator.process_batch(batch_of(rows), 0)


def taken(run):
    return [tuple(row.values()) for row in run.take_rows()]


def random_rows(rng, first):
    return [(first + i, rng.choice([None, 0, 1, 2]), rng.choice([None, "x", "y"])) for i in range(rng.randint(1, 8))]


@pytest.mark.parametrize("seed", blocks(15, 100))
def test_answers_in_any_order_and_restores_on_the_way(seed):
    """Each row is joined once, in order if that was asked for."""
    rng = random.Random(seed)
    Table.rows = [(rng.choice([0, 1, 2]), rng.choice("xy"), rng.randint(0, 5)) for _ in range(rng.randint(0, 8))]
    ordered, is_left, least = rng.random() < 0.5, rng.random() < 0.5, rng.choice([None, 3])
    options = {
        "ordered": ordered, "is_left": is_left, "condition": None if least is None else col("v") >= least,
        "capacity": rng.randint(1, 4), "cache": LookupCache(max_rows=3) if rng.random() < 0.5 else None,
        "retry": missing_keys_again(2, 5) if rng.random() < 0.5 else None,
    }  # fmt: skip
    run = OperatorHarness(operator(**options))
    rows, found = [], []
    for _ in range(rng.randint(5, 25)):
        step = rng.random()
        if step < 0.4 and not run.operator.is_blocked:
            some = random_rows(rng, len(rows))
            rows += some
            given_to(run, some)
        elif step < 0.7 and run.works:
            run.do_work(rng.choice(list(run.works)))
            run.advance_clock(run.now_ms + rng.randint(0, 10))
        elif step < 0.8:
            parts = run.snapshot()
            found += taken(run)
            run = OperatorHarness(operator(**options), restored=parts)
        found += taken(run)
    while run.works or run.operator.is_blocked or run.operator.next_processing_time() is not None:
        run.do_all_work()
        run.advance_clock(run.now_ms + 10)
    found += taken(run)
    expected = oracle(rows, Table.rows, is_left=is_left, least=least)
    assert Counter(found) == Counter(expected)
    if ordered:
        assert [row[0] for row in found] == [row[0] for row in expected]


def test_several_questions_are_under_way_and_no_more_than_capacity():
    run = OperatorHarness(operator(capacity=2, ordered=False))
    for i in range(3):
        given_to(run, [(i, 1, "x")])
    assert (len(run.works), run.operator.is_blocked) == (2, True)
    run.do_work(2)
    run.advance_clock(0)
    assert [row[0] for row in taken(run)] == [1, 1]
    assert (len(run.works), run.operator.is_blocked) == (2, False)


def test_a_large_batch_is_several_questions():
    run = OperatorHarness(operator(capacity=10))
    given_to(run, [(i, i, "x") for i in range(2 * MAX_ROWS + 1)])
    assert len(run.works) == 3
    run.do_all_work()
    assert [row[0] for row in taken(run)] == sorted([*range(2 * MAX_ROWS + 1), 1])


def test_rows_pass_no_watermark():
    run = OperatorHarness(operator(ordered=False))
    given_to(run, [(0, 1, "x")])
    run.watermark(5)
    given_to(run, [(1, 2, "y")])
    run.do_work(2)
    run.advance_clock(0)
    assert run.output.elements == []
    run.do_all_work()
    assert [row[0] for row in taken(run)] == [0, 0, 1]


def test_event_times_are_kept_also_by_a_snapshot():
    run = OperatorHarness(operator())
    run.process([{"id": i, "a": 1, "b": "x"} for i in range(2)], [7, 3])
    again = OperatorHarness(operator(), restored=run.snapshot())
    again.do_all_work()
    assert [time for _, time in again.take()] == [7, 7, 3, 3]


def test_rows_that_wait_are_found_under_the_names_of_the_plan():
    """Another text of the query: other names, another order, a column less."""
    stored = {"requests": {"row.id": "row.id~1", "row.a": "row.a~1", "row.b": "row.b~1"}}
    run = OperatorHarness(operator(stored=StoredNames({}, stored)))
    given_to(run, [(0, 1, "x"), (1, 5, "y")])
    other = {"requests": {"row.n": "row.a~1", "row.text": "row.b~1"}}
    left = pa.schema({"text": "string", "n": "int64"})
    projection = ((0, "n", "n"), (1, "v", "v"))
    again = OperatorHarness(
        operator(stored=StoredNames({}, other), left=left, names=("n", "text"), projection=projection),
        restored=run.snapshot(),
    )
    again.do_all_work()
    assert taken(again) == [(1, 10), (1, 11), (5, None)]


def test_keys_without_a_row_are_asked_for_again_and_they_alone():
    run = OperatorHarness(operator(retry=missing_keys_again(2, 10), cache=LookupCache()))
    given_to(run, [(0, 1, "x"), (1, 5, "x"), (2, 6, "x")])
    run.do_all_work()
    assert (Table.asked, run.output.elements) == ([[(1, "x"), (5, "x"), (6, "x")]], [])
    Table.rows = [*Table.rows, (5, "x", 50)]
    for _ in range(2):
        run.advance_clock(run.now_ms + 10)
        run.do_all_work()
    assert Table.asked[1:] == [[(5, "x"), (6, "x")], [(6, "x")]]
    assert taken(run) == [(0, "x", 10, "x"), (0, "x", 11, "x"), (1, "x", 50, "x"), (2, "x", None, None)]
    given_to(run, [(3, 5, "x"), (4, 6, "x")])  # what has come to be known, also that there is no row
    assert taken(run) == [(3, "x", 50, "x"), (4, "x", None, None)]


def test_an_answer_that_does_not_come_in_time_fails_the_job():
    run = OperatorHarness(operator(timeout_ms=100))
    given_to(run, [(0, 1, "x")])
    with pytest.raises(UserFunctionError, match="no result within 100 ms") as raised:
        run.advance_clock(100)
    assert raised.value.context["function"] == "Table"
    assert "1 rows" in raised.value.context["record"]


def test_a_table_that_cannot_be_asked_fails_the_job(monkeypatch):
    monkeypatch.setattr(Table, "fails", True)
    run = OperatorHarness(operator())
    given_to(run, [(0, 1, "x")])
    with pytest.raises(HeadraceError, match="gone") as raised:
        run.do_all_work()
    assert raised.value.context["operator"] == "op"


def test_each_question_has_a_lookup_of_its_own_and_all_are_closed(monkeypatch):
    log = []
    monkeypatch.setattr(Table, "open", lambda self: log.append(("open", id(self))))
    monkeypatch.setattr(Table, "close", lambda self: log.append(("close", id(self))))
    run = OperatorHarness(operator(capacity=2))
    given_to(run, [(0, 1, "x")])
    run.do_all_work()
    given_to(run, [(1, 1, "x")])
    run.operator.end_input(0)
    run.do_all_work()
    assert [what for what, _ in log] == ["open", "close"]
    assert not run.operator.has_pending
