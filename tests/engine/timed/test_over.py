"""OVER on streams.

Families: oracle (plain loops over sorted lists), property (random types, frames, orders of arrival, cuts, watermarks,
restores at other parallelisms, both backends), example (lateness, what is kept, errors).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KEYS, KINDS, canonical, columns_of, multiset, random_value
from operator_harness import OperatorHarness
from timed_kit import TimedRunning, in_unit
from timed_oracles import over

from headrace.engine.columns.records import MAX_TIMESTAMP, Batch, Watermark
from headrace.engine.errors import ProgramError, UserFunctionError
from headrace.engine.frames.frame_calls import Frame, dense_rank, lag, lead, ntile, rank, row_number
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.tables import row_store, run_log
from headrace.engine.timed import over_by_time_state
from headrace.engine.timed.over_by_time import OverAggregate

UNITS = {"s": 1_000, "ms": 1, "us": 1, "ns": 1}
PER_MS = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}
MAKERS = {"row_number": row_number, "rank": rank, "dense_rank": dense_rank, "lag": lag, "count": f.count, "sum": f.sum,
          "avg": f.avg, "min": f.min, "max": f.max, "count_distinct": f.count_distinct, "first": f.first,
          "last": f.last}  # fmt: skip
OF_NUMBERS = ["int", "small", "float", "decimal"]
COMPARED = ["int", "small", "float", "text", "decimal", "time", "date", "truth"]


def draw_specs(rng, num_keys, kinds):
    """Names with columns, all of one kind of call."""
    columns = range(num_keys, num_keys + len(kinds))
    what = rng.choice(["places", "neighbours", "aggregates", "aggregates", "aggregates"])
    if what == "places":
        return [(name, None) for name in rng.sample(["row_number", "rank", "dense_rank"], k=2)]
    if what == "neighbours":
        return [("lag", rng.choice(columns), rng.randint(0, 3)) for _ in range(rng.randint(1, 2))]
    specs = [("count", None)]
    for column, kind in zip(columns, kinds, strict=True):
        names = ["count", "first", "last"]
        names += ["count_distinct"] * 2 if kind != "list" else []
        names += ["sum", "sum", "avg"] if kind in OF_NUMBERS else []
        names += ["min", "max"] if kind in COMPARED else []
        specs.append((rng.choice(names), column))
    return specs


def draw_frame(rng, unit):
    kind = rng.choice([None, "rows", "range"])
    if kind is None:
        return None, None
    low, high = rng.choice([(None, 0), (-2, 0), (0, 0), (-5, 0), (-4, -2)])
    if kind == "rows":
        return Frame(low, high), ("rows", low, high)
    scale = 10 * UNITS[unit]
    frame = Frame(None if low is None else low * scale, high * scale, is_range=True)
    scale = scale // UNITS[unit] * PER_MS[unit]
    return frame, ("range", None if low is None else low * scale, high * scale)


def spec_of(spec):
    name, column, *rest = spec
    return MAKERS[name](*([] if column is None else [f"c{column}"]), *rest)


def run_over(seed, backend, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    for module in (row_store, over_by_time_state):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5, 1_000]))
    unit, num_keys = rng.choice(["s", "ms", "us", "ns"]), rng.randint(0, 2)
    kinds = rng.choices(list(KINDS), k=rng.randint(1, 3))
    key_kinds = rng.choices(KEYS, k=num_keys)
    specs, (frame, plain_frame) = draw_specs(rng, num_keys, kinds), draw_frame(rng, unit)
    if any(name in ("row_number", "rank", "dense_rank", "lag") for name, *_ in specs):
        frame = plain_frame = None
    fields = [(f"c{i}", KINDS[kind][0]) for i, kind in enumerate([*key_kinds, *kinds])]
    schema = pa.schema([*fields, ("id", pa.int64()), ("at", pa.timestamp(unit))])
    keys = [name for name, _ in fields[:num_keys]]
    operator = OverAggregate(
        keys, "at", {f"o{i}": spec_of(one) for i, one in enumerate(specs)}, input_schema=schema, frame=frame
    )
    running = TimedRunning(operator, [keys], rng.randint(1, 3) if num_keys else 1, backend)
    accepted, late, watermark, now, number = [], 0, None, 0, 0
    for _ in range(12):
        rows = []
        for _ in range(rng.randint(0, 10)):
            at = max(0, now + rng.randint(-30, 30)) * PER_MS[unit] + (rng.randint(0, 2) if PER_MS[unit] > 1 else 0)
            values = [random_value(rng, kind) for kind in [*key_kinds, *kinds]]
            rows.append((*values, number, at))
            number += 1
            if watermark is not None and at * UNITS[unit] // PER_MS[unit] <= watermark:
                late += 1
            else:
                accepted.append(rows[-1])
        if rows:
            running.feed(columns_of(rows, schema))
        now += rng.choice([0, 5, 20, 60])
        if rng.random() < 0.7:
            watermark = max(watermark or 0, (now - rng.randint(0, 25)) * UNITS[unit])
            running.watermark(watermark)
        passed = [row for row in accepted if watermark is not None and
                  row[-1] * UNITS[unit] // PER_MS[unit] <= watermark]  # fmt: skip
        check(running, over(passed, num_keys, len(schema) - 1, specs, plain_frame), unit, len(schema) - 1)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3) if num_keys else 1)
    running.watermark(MAX_TIMESTAMP)
    check(running, over(accepted, num_keys, len(schema) - 1, specs, plain_frame), unit, len(schema) - 1)
    assert running.num_late == late
    running.close()


def check(running, wanted, unit, time):
    found = [(*row[:time], in_unit(row[time], unit), *row[time + 1 :]) for row in running.rows]
    assert multiset(map(rounded, found)) == multiset(map(rounded, map(canonical, wanted)))
    for row, stamp in zip(running.rows, running.times, strict=True):
        assert in_unit(row[time], unit) * UNITS[unit] // PER_MS[unit] == stamp


def rounded(row):
    return tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(4)
def test_rows_have_what_plain_loops_give(seed, backend, monkeypatch):
    run_over(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_over(seed, "rocksdb" if seed % 4 == 0 else "heap", monkeypatch)


# ------------------------------------------------------------------------------------------------------------ examples
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])


def started(columns=None, frame=None, schema=SCHEMA, **options):
    columns = {"s": f.sum("v")} if columns is None else columns
    return OperatorHarness(OverAggregate(["k"], "at", columns, input_schema=schema, frame=frame), **options)


def give(harness, *rows):
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, SCHEMA)), 0)


def out(harness, watermark_ms):
    harness.watermark(watermark_ms)
    return [(row["v"], row["s"]) for row in harness.take_rows()]


def test_rows_wait_for_the_watermark_and_late_ones_are_counted():
    harness = started()
    give(harness, ("a", 2, 20), ("a", 1, 10), ("b", 7, 15))
    assert harness.take_rows() == []
    assert out(harness, 14) == [(1, 1)]
    give(harness, ("a", 9, 14), ("a", 4, 15))
    assert sorted(out(harness, 20)) == [(2, 7), (4, 5), (7, 7)]
    assert harness.metrics.counters["num_late_records_dropped"] == 1
    assert harness.take_controls() == [Watermark(14), Watermark(20)]


def test_rows_that_no_frame_can_reach_are_forgotten():
    for frame in (Frame(-2, 0), Frame(-50, 0, is_range=True)):
        harness = started(frame=frame)
        for number in range(200):
            give(harness, ("a", 1, 10 * number), ("b", 1, 10 * number))
            harness.watermark(10 * number)
        assert harness.operator._state._rows.num_live <= 2 * 7


def test_partitions_without_rows_are_forgotten(monkeypatch):
    monkeypatch.setattr(over_by_time_state, "_MIN_DEAD", 3)
    harness = started(frame=Frame(-50, 0, is_range=True))
    for number in range(100):
        give(harness, (f"k{number}", 1, 10 * number))
        harness.watermark(10 * number)
    assert len(harness.operator._state._index) < 20


def test_of_an_unbounded_frame_only_the_sums_are_kept():
    harness = started()
    for number in range(100):
        give(harness, ("a", 1, number), ("b", 1, number))
        harness.watermark(number)
    assert harness.operator._state._rows.num_live == 0
    assert harness.operator._state._folds._store.num_live == 2


def test_sums_are_exact_or_fail():
    decimals = pa.schema([("k", pa.string()), ("v", pa.decimal128(38, 0)), ("at", pa.timestamp("ms"))])
    largest = 10**38 - 1
    from decimal import Decimal

    for schema, value, kind in ((SCHEMA, 2**63 - 1, int), (decimals, largest, Decimal)):
        harness = started(frame=Frame(-1, 0), schema=schema)
        rows = [("a", kind(value), 1), ("a", kind(-value), 2), ("a", kind(value), 3)]
        harness.operator.process_batch(Batch.of_columns(columns_of(rows, schema)), 0)
        assert [sums for _, sums in out(harness, 3)] == [value, 0, 0]
        harness.operator.process_batch(Batch.of_columns(columns_of([("a", kind(1), 4)], schema)), 0)
        with pytest.raises(UserFunctionError, match="does not fit"):
            harness.watermark(4)


def test_large_floats_leave_a_frame_without_a_trace():
    schema = pa.schema([("k", pa.string()), ("v", pa.float64()), ("at", pa.timestamp("ms"))])
    harness = started(frame=Frame(-1, 0), schema=schema)
    rows = [("a", value, at) for at, value in enumerate([1e300, 1.0, 2.0, float("inf"), 3.0, 4.0])]
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, schema)), 0)
    assert [sums for _, sums in out(harness, 9)] == [1e300, 1e300, 3.0, float("inf"), float("inf"), 7.0]


def test_rows_of_before_the_end_of_a_drained_program_find_what_is_kept():
    harness = started(frame=Frame(-10, 0, is_range=True))
    give(harness, ("a", 1, 10), ("a", 2, 20))
    assert out(harness, 12) == [(1, 1)]
    assert out(harness, MAX_TIMESTAMP) == [(2, 3)]
    again = started(frame=Frame(-10, 0, is_range=True), restored=harness.snapshot())
    give(again, ("a", 5, 15), ("a", 7, 25), ("a", 9, 12))
    assert out(again, 30) == [(5, 6), (7, 14)]
    assert again.metrics.counters["num_late_records_dropped"] == 1


@pytest.mark.parametrize(
    ("columns", "frame", "message"),
    [
        ({"n": lead("v")}, None, "LEAD waits for rows"),
        ({"n": ntile(4)}, None, r"ntile\(4\) waits for all rows"),
        ({"n": f.sum("v")}, Frame(-1, 1), "is not supported on streams"),
        ({"n": f.sum("v")}, Frame(None, -1), "is not supported on streams"),
        ({"n": f.sum("v"), "m": row_number()}, None, "by operators of their own"),
        ({"v": f.sum("v")}, None, "there already"),
        ({"n": f.sum("w")}, None, "'w'"),
    ],
)
def test_what_cannot_be_computed_is_refused(columns, frame, message):
    with pytest.raises(ProgramError, match=message):
        OverAggregate(["k"], "at", columns, input_schema=SCHEMA, frame=frame)


def test_rows_without_a_time_are_refused():
    harness = started()
    with pytest.raises(ProgramError, match="event time 'at' of a record is null"):
        give(harness, ("a", 1, None))
