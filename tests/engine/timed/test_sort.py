"""Rows in the order of event time.

Families: oracle (Python's sort of what the watermark has passed), property (random types, orders, orders of arrival,
watermarks, restores, both backends), example (lateness, what is kept, errors).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KINDS, ORDERED, canonical, columns_of, random_value
from operator_harness import OperatorHarness
from timed_kit import TimedRunning, in_unit

from headrace.engine.columns.records import MAX_TIMESTAMP, Batch, Watermark
from headrace.engine.errors import ProgramError
from headrace.engine.tables import row_store, run_log
from headrace.engine.timed.sort import TemporalSort

UNITS = {"s": 1_000, "ms": 1, "us": 1, "ns": 1}
PER_MS = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}


def sorted_by(rows, orders):
    """Rows in order, by one column after the other from the last one: Python's sort keeps equal ones as they are."""
    for column, ascending, nulls_first in reversed(orders):
        first = ascending if nulls_first is None else nulls_first
        known = [row for row in rows if row[column] is not None]
        unknown = [row for row in rows if row[column] is None]
        known.sort(key=lambda row, column=column: _rank(row[column]), reverse=not ascending)
        rows = unknown + known if first else known + unknown
    return rows


def _rank(value):
    return (value != value, 0 if value != value else value)  # NaN behind all other numbers


def run_sort(seed, backend, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    monkeypatch.setattr(row_store, "_MIN_DEAD", rng.choice([0, 5, 1_000]))
    unit, kinds = rng.choice(list(UNITS)), rng.choices(ORDERED, k=rng.randint(1, 3))
    time = len(kinds)
    schema = pa.schema([*((f"c{i}", KINDS[kind][0]) for i, kind in enumerate(kinds)), ("at", pa.timestamp(unit)),
                        ("id", pa.int64())])  # fmt: skip
    others = [(column, rng.random() < 0.5, rng.choice([None, True, False]))
              for column in rng.sample(range(time), k=rng.randint(0, time))]  # fmt: skip
    orders = [(time, True, None), *others]
    named = [(schema.names[column], ascending, nulls) for column, ascending, nulls in orders]
    running = TimedRunning(TemporalSort(named, input_schema=schema), [[]], 1, backend)
    waiting, given, late, watermark, now, number = [], [], 0, None, 0, 0
    for _ in range(12):
        rows = []
        for _ in range(rng.randint(0, 10)):
            at = max(0, now + rng.randint(-30, 30)) * PER_MS[unit] + (rng.randint(0, 2) if PER_MS[unit] > 1 else 0)
            rows.append((*(random_value(rng, kind) for kind in kinds), at, number))
            number += 1
            if watermark is not None and at * UNITS[unit] // PER_MS[unit] <= watermark:
                late += 1
            else:
                waiting.append(rows[-1])
        if rows:
            running.feed(columns_of(rows, schema))
        now += rng.choice([0, 5, 20, 60])
        if rng.random() < 0.7:
            watermark = max(watermark or 0, (now - rng.randint(0, 25)) * UNITS[unit])
            running.watermark(watermark)
            given, waiting = passed(given, waiting, watermark, orders, unit)
        assert found(running, unit, time) == list(map(canonical, given))
        if rng.random() < 0.3:
            running.restore(1)
    running.watermark(MAX_TIMESTAMP)
    given, _ = passed(given, waiting, MAX_TIMESTAMP, orders, unit)
    assert found(running, unit, time) == list(map(canonical, given))
    assert running.times == [row[time] * UNITS[unit] // PER_MS[unit] for row in given]
    assert running.num_late == late
    running.close()


def passed(given, waiting, watermark, orders, unit):
    """What is out, and what still waits, when the watermark has passed some rows."""
    is_due = [row[orders[0][0]] * UNITS[unit] // PER_MS[unit] <= watermark for row in waiting]
    due = sorted_by([row for row, due in zip(waiting, is_due, strict=True) if due], orders)
    return given + due, [row for row, due in zip(waiting, is_due, strict=True) if not due]


def found(running, unit, time):
    return [(*row[:time], in_unit(row[time], unit), *row[time + 1 :]) for row in running.rows]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(4)
def test_rows_come_out_as_they_are_sorted(seed, backend, monkeypatch):
    run_sort(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 5))
def test_sort_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_sort(seed, "rocksdb" if seed % 4 == 0 else "heap", monkeypatch)


# ------------------------------------------------------------------------------------------------------------ examples
SCHEMA = pa.schema([("v", pa.int64()), ("at", pa.timestamp("ms"))])


def give(harness, *rows):
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, SCHEMA)), 0)


def started(*others, **options):
    return OperatorHarness(TemporalSort([("at", True, None), *others], input_schema=SCHEMA), **options)


def out(harness, watermark_ms):
    harness.watermark(watermark_ms)
    return [row["v"] for row in harness.take_rows()]


def test_rows_wait_for_the_watermark_and_late_ones_are_counted():
    harness = started()
    give(harness, (3, 30), (1, 10), (2, 20), (4, 10))
    assert harness.take_rows() == []
    assert out(harness, 20) == [1, 4, 2]
    give(harness, (5, 20), (6, 25), (7, 21))
    assert out(harness, MAX_TIMESTAMP) == [7, 6, 3]
    assert harness.metrics.counters["num_late_records_dropped"] == 1
    assert harness.take_controls() == [Watermark(20), Watermark(MAX_TIMESTAMP)]


def test_rows_of_one_time_go_by_the_other_columns():
    harness = started(("v", False, None))
    give(harness, (1, 10), (3, 10), (None, 10), (2, 10), (9, 11))
    assert out(harness, 12) == [3, 2, 1, None, 9]


def test_rows_that_are_out_are_forgotten():
    harness = started()
    for number in range(5_000):
        give(harness, (number, number))
        harness.watermark(number)
    assert harness.operator._state._rows.store.size < 3_000


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ([("at", False, None)], "event time first, ascending"),
        ([("v", True, None), ("at", True, None)], "event time first"),
        ([("at", True, None), ("w", True, None)], "'w'"),
    ],
)
def test_other_orders_are_refused(orders, message):
    with pytest.raises(ProgramError, match=message):
        TemporalSort(orders, input_schema=SCHEMA)


def test_rows_without_a_time_are_refused():
    with pytest.raises(ProgramError, match="event time 'at' of a record is null"):
        give(started(), (1, None))


def test_there_is_one_subtask():
    with pytest.raises(ProgramError, match="works in one subtask"):
        started(parallelism=2)
