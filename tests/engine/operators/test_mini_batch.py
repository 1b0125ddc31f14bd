"""Rows that wait in front of an operator over changes.

Families: example (when they are worked off, and what may not overtake them), oracle (what goes out comes to what the
operator alone gives, with fewer changes).
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from changelog_kit import BACKENDS, Changelog, Running, batch_of, chosen_backend, cut, multiset
from changelog_oracles import aggregated, joined
from operator_harness import OperatorHarness

from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.local_aggregate import LocalGroupAggregate
from headrace.engine.columns.records import MAX_WATERMARK, Batch, RowKind, StreamStatus, Watermark
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.operators.mini_batch import MiniBatch

INS, UB, UA, D = RowKind
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
CALLS = {"n": f.count(), "s": f.sum("v")}


def grouping():
    return GroupAggregate(["k"], CALLS, input_schema=SCHEMA, takes_back=True)


def harness(latency_ms=100, size=10):
    return OperatorHarness(MiniBatch(grouping(), latency_ms, size))


def feed(subject, *rows):
    subject.operator.process_batch(batch_of([(INS, row) for row in rows], SCHEMA), 0)


def out(subject):
    """What has come out: rows, and what is no batch."""
    elements, subject.output.elements = subject.output.elements, []
    return [one.columns.to_pylist() if isinstance(one, Batch) else one for one in elements]


def test_rows_wait_until_the_first_has_waited_long_enough():
    subject = harness()
    feed(subject, ("a", 1))
    subject.advance_clock(60)
    feed(subject, ("a", 2))
    subject.advance_clock(99)
    assert out(subject) == []
    subject.advance_clock(100)
    assert out(subject) == [[{"k": "a", "n": 2, "s": 3}]]
    assert subject.operator.next_processing_time() is None
    feed(subject, ("a", 3))
    assert subject.operator.next_processing_time() == 200


def test_rows_wait_until_there_are_enough():
    subject = harness(size=3)
    feed(subject, ("a", 1), ("b", 1))
    assert out(subject) == []
    feed(subject, ("a", 2))
    assert out(subject) == [[{"k": "a", "n": 2, "s": 3}, {"k": "b", "n": 1, "s": 1}]]


def test_a_watermark_waits_behind_the_rows_before_it():
    subject = harness()
    subject.watermark(5)
    assert out(subject) == [Watermark(5)]
    feed(subject, ("a", 1))
    subject.watermark(6)
    subject.watermark(7)
    assert out(subject) == []
    subject.advance_clock(100)
    assert out(subject) == [[{"k": "a", "n": 1, "s": 1}], Watermark(7)]


@pytest.mark.parametrize(
    ("end", "behind"),
    [
        (lambda one: one.process_watermark(MAX_WATERMARK), [MAX_WATERMARK]),
        (lambda one: one.process_status(StreamStatus(idle=True)), [Watermark(7), StreamStatus(idle=True)]),
        (lambda one: one.prepare_snapshot(1), [Watermark(7)]),
        (lambda one: one.end_input(0), [Watermark(7)]),
        (lambda one: one.finish(), [Watermark(7)]),
    ],
)
def test_nothing_overtakes_what_waits(end, behind):
    subject = harness()
    feed(subject, ("a", 1))
    subject.watermark(7)
    end(subject.operator)
    assert out(subject) == [[{"k": "a", "n": 1, "s": 1}], *behind]


def test_partial_results_wait_beside_rows_in_their_order():
    local = OperatorHarness(
        LocalGroupAggregate(["k"], CALLS, input_schema=SCHEMA, takes_back=True, adapts=False)
    )  # fmt: skip
    subject = harness()
    feed(local, ("a", 1), ("a", 5))
    (folded,) = local.output.elements
    subject.operator.process_batch(folded, 0)
    subject.operator.process_batch(batch_of([(D, ("a", 1)), (D, ("a", 5))], SCHEMA), 0)
    subject.operator.process_batch(folded, 0)
    subject.advance_clock(100)
    assert out(subject)[-1] == [{"k": "a", "n": 2, "s": 6}]


@pytest.mark.parametrize("seed", range(8))
def test_fewer_changes_come_to_the_same(seed, monkeypatch):
    rng = random.Random(seed)
    backend = chosen_backend(BACKENDS[seed % 3], rng, monkeypatch)
    changelog = Changelog(rng, ["text", "int"])
    aggregates = {"n": f.count(), "m": f.max("c1"), "d": f.count_distinct("c1")}
    operator = GroupAggregate(["c0"], aggregates, input_schema=changelog.schema, takes_back=True)
    wanted = [("count", None), ("max", 1), ("count_distinct", 1)]
    alone, waiting = (Running(one, [["c0"]], 2, backend) for one in (operator, MiniBatch(operator, 10, 40)))
    for _ in range(8):
        for part in cut(rng, changelog.changes(30)):
            for one in (alone, waiting):
                one.feed(batch_of(part, changelog.schema))
        if rng.random() < 0.5:
            for subtask in waiting.harness.subtasks:
                subtask.operator.prepare_snapshot(1)
            waiting.collect()
            assert waiting.out.rows == multiset(aggregated(changelog.live, 1, wanted))
            waiting.restore(rng.randint(1, 3))
    for subtask in waiting.harness.subtasks:
        subtask.operator.finish()
    waiting.collect()
    assert waiting.out.rows == alone.out.rows == multiset(aggregated(changelog.live, 1, wanted))
    assert sum(waiting.kinds.values()) < sum(alone.kinds.values())
    alone.close()
    waiting.close()


@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
def test_both_inputs_of_a_join_wait(how):
    rng = random.Random(how)
    left, right = Changelog(rng, ["small", "int"]), Changelog(rng, ["small", "int"])
    projection = [(side, name, f"{side}{name}") for side in (0, 1) for name in ("c0", "c1")]
    join = ChangelogJoin(
        ["c0"], ["c0"], how, left_schema=left.schema, right_schema=right.schema, projection=projection
    )  # fmt: skip
    running = Running(MiniBatch(join, 10, 25), [["c0"], ["c0"]], 2)
    for _ in range(6):
        for side, one in enumerate((left, right)):
            for part in cut(rng, one.changes(12)):
                running.feed(batch_of(part, one.schema), side)
    for subtask in running.harness.subtasks:
        subtask.advance_clock(10)
    running.collect()
    assert running.out.rows == multiset(joined(left.live, right.live, how, 1, (2, 2), lambda one, other: True))
    running.close()


def test_a_batch_as_large_as_may_wait_does_not():
    subject = harness(size=2)
    subject.operator.process_batch(Batch.of_columns(pa.record_batch({"k": ["a", "b"], "v": np.array([1, 2])})), 0)
    assert len(out(subject)) == 1
