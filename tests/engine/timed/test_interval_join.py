"""The interval join of tables.

Families: oracle (plain loops), property (random types, kinds of joins, bounds, conditions, orders of arrival, cuts,
watermarks, restores at other parallelisms, both backends), example (lateness, what is kept, event time).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KEYS, KINDS, canonical, columns_of, multiset, random_value
from operator_harness import OperatorHarness
from timed_kit import TimedRunning
from timed_oracles import near

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import MAX_TIMESTAMP, MAX_WATERMARK, Batch, Watermark
from headrace.engine.errors import ProgramError
from headrace.engine.tables import row_store, run_log
from headrace.engine.timed import interval_state
from headrace.engine.timed.interval_join import IntervalJoinOfTables

PER_MS = {"ms": 1, "us": 1_000}
JOINS = ["inner", "inner", "left", "right", "full", "semi", "anti"]


def run_join(seed, backend, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(interval_state, "MAX_PAIRS", rng.choice([1, 7, 10_000]))
    for module in (row_store, interval_state):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5, 1_000]))
    num_keys, how, is_conditional = rng.randint(1, 2), rng.choice(JOINS), rng.random() < 0.4
    key_kinds = rng.choices(KEYS, k=num_keys)
    kinds = [key_kinds + rng.choices(list(KINDS), k=rng.randint(0, 2)) for _ in range(2)]
    units = [rng.choice(["ms", "us"]) for _ in range(2)]
    low = rng.randint(-30, 20)
    high = low + rng.choice([0, 5, 40])
    schemas = tuple(
        pa.schema([*((f"{'lr'[side]}{i}", KINDS[kind][0]) for i, kind in enumerate(kinds[side])), ("id", pa.int64()),
                   ("at", pa.timestamp(units[side]))])
        for side in (0, 1)
    )  # fmt: skip
    keys = tuple([f"{'lr'[side]}{i}" for i in range(num_keys)] for side in (0, 1))
    projection = [(side, name, f"{side}.{name}") for side in (0, 1) for name in schemas[side].names]
    operator = IntervalJoinOfTables(
        how, keys, ("at", "at"), (low, high), schemas=schemas, projection=projection,
        condition=(col("0.id") + col("1.id")) % 3 > 0 if is_conditional else None,
    )  # fmt: skip
    running = TimedRunning(operator, keys, rng.randint(1, 3), backend)
    sides, late, watermark, now, number = ([], []), 0, None, 0, 0
    last = [len(one) - 1 for one in schemas]

    def pairs():
        found = near(*sides, num_keys, last, low * 1_000, high * 1_000)
        ids = [(row[last[0] - 1], row[last[0] + last[1]]) for row in found]
        return [pair for pair in ids if not is_conditional or sum(pair) % 3 > 0]

    for _ in range(12):
        for side in rng.sample((0, 1), k=2):
            some = []
            for _ in range(rng.randint(0, 6)):
                at = max(0, now + rng.randint(-20, 30))
                sub = rng.randint(0, 2) if units[side] == "us" else 0
                values = [random_value(rng, kind) for kind in kinds[side]]
                some.append((*values, number, at * PER_MS[units[side]] + sub))
                number += 1
                if watermark is not None and at <= watermark:
                    late += 1
                else:
                    sides[side].append((*values, number - 1, at * 1_000 + sub))
            if some:
                running.feed(columns_of(some, schemas[side]), side)
        now += rng.choice([0, 5, 20, 60])
        if rng.random() < 0.7:
            watermark = max(watermark or 0, now - rng.randint(0, 25))
            running.watermark(watermark)
        if how == "inner":
            check(running, wanted(how, sides, pairs(), last), how, last)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3))
    running.watermark(MAX_TIMESTAMP)
    check(running, wanted(how, sides, pairs(), last), how, last)
    assert running.num_late == late
    running.close()


def wanted(how, sides, pairs, last):
    """Numbers of rows, in pairs with None for none; of semi and anti joins left rows only."""
    ids = [[row[last[side] - 1] for row in sides[side]] for side in (0, 1)]
    if how in ("semi", "anti"):
        known = {left for left, _ in pairs}
        return [(one,) for one in ids[0] if (one in known) == (how == "semi")]
    rows = list(pairs)
    if how in ("left", "full"):
        rows += [(one, None) for one in ids[0] if one not in {left for left, _ in pairs}]
    if how in ("right", "full"):
        rows += [(None, one) for one in ids[1] if one not in {right for _, right in pairs}]
    return rows


def check(running, rows, how, last):
    places = [last[0] - 1] if how in ("semi", "anti") else [last[0] - 1, last[0] + last[1]]
    assert multiset([tuple(row[place] for place in places) for row in running.rows]) == multiset(map(canonical, rows))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(4)
def test_pairs_are_those_that_plain_loops_find(seed, backend, monkeypatch):
    run_join(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_joins_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_join(seed, "rocksdb" if seed % 4 == 0 else "heap", monkeypatch)


# ------------------------------------------------------------------------------------------------------------ examples
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])
PROJECTION = [(0, "v", "v"), (1, "v", "w"), (0, "at", "at")]


def started(how="inner", bounds=(-5, 10), **options):
    operator = IntervalJoinOfTables(
        how, (["k"], ["k"]), ("at", "at"), bounds, schemas=(ROWS, ROWS), projection=PROJECTION
    )
    return OperatorHarness(operator, **options)


def give(harness, side, *rows):
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, ROWS)), side)
    return [(row["v"], row.get("w")) for row in harness.take_rows()]


def out(harness, watermark_ms):
    harness.watermark(watermark_ms)
    return [(row["v"], row.get("w")) for row in harness.take_rows()]


def test_pairs_go_out_at_once_and_late_rows_are_counted():
    harness = started()
    assert give(harness, 0, ("a", 1, 100)) == []
    assert give(harness, 1, ("a", 2, 95), ("a", 3, 110), ("a", 4, 94), ("a", 5, 111), ("b", 6, 100)) == [(1, 2), (1, 3)]
    harness.watermark(109)
    assert give(harness, 1, ("a", 7, 109), ("a", 8, 110)) == [(1, 8)]
    assert harness.metrics.counters["num_late_records_dropped"] == 1


def test_rows_are_kept_as_long_as_they_can_be_reached():
    harness = started()
    left, right = harness.operator._state._sides
    for number in range(100):
        give(harness, 0, ("a", 1, 10 * number))
        give(harness, 1, ("a", 1, 10 * number))
        harness.watermark(10 * number)
    assert left.store.num_live <= 2
    assert right.store.num_live <= 2


@pytest.mark.parametrize(("how", "first", "then"), [("left", [(1, 2)], [(3, None)]), ("anti", [], [(3, None)]),
                                                    ("semi", [(1, None)], [])])  # fmt: skip
def test_rows_without_a_pair_are_known_when_none_can_come(how, first, then):
    harness = started(how)
    give(harness, 0, ("a", 1, 100), ("b", 3, 100))
    assert give(harness, 1, ("a", 2, 100), ("a", 9, 300)) == first
    assert out(harness, 109) == []
    assert out(harness, 110) == then
    assert out(harness, MAX_TIMESTAMP) == []


def test_the_watermark_is_held_back_by_as_much_as_times_may_be_behind():
    harness = started()
    give(harness, 0, ("a", 1, 100))
    harness.watermark(105)
    assert harness.take_controls() == [Watermark(95)]
    harness.operator.process_batch(Batch.of_columns(columns_of([("a", 2, 110)], ROWS)), 1)
    assert harness.take()[0][1] == 100
    harness.watermark(MAX_TIMESTAMP)
    assert harness.take_controls() == [MAX_WATERMARK]


def test_rows_of_a_drained_program_find_pairs():
    harness = started("left")
    give(harness, 0, ("a", 1, 100), ("b", 2, 100))
    harness.watermark(90)
    assert out(harness, MAX_TIMESTAMP) == [(1, None), (2, None)]
    again = started("left", restored=harness.snapshot())
    assert give(again, 1, ("a", 3, 105)) == [(1, 3)]
    assert out(again, 200) == []


def test_what_means_nothing_is_refused():
    with pytest.raises(ProgramError, match="must not be above"):
        started(bounds=(1, 0))
    with pytest.raises(ProgramError, match="is no time"):
        IntervalJoinOfTables("inner", (["k"], ["k"]), ("v", "at"), (0, 0), schemas=(ROWS, ROWS), projection=PROJECTION)
