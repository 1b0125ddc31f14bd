"""The temporal join of tables.

Families: oracle (plain loops), property (random types, orders of arrival, cuts, watermarks, restores at other
parallelisms, both backends), example (lateness, what is kept, errors).
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KEYS, KINDS, columns_of, multiset, random_value
from operator_harness import OperatorHarness
from timed_kit import TimedRunning
from timed_oracles import with_versions

from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import MAX_TIMESTAMP, Batch, RowKind
from headrace.engine.errors import ProgramError
from headrace.engine.tables import row_store, run_log
from headrace.engine.timed import temporal_state
from headrace.engine.timed.temporal_join import TemporalJoinOfTables

PER_MS = {"ms": 1, "us": 1_000}


def run_join(seed, backend, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    for module in (row_store, temporal_state):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5, 1_000]))
    num_keys = rng.randint(1, 2)
    key_kinds = rng.choices(KEYS, k=num_keys)
    kinds = [key_kinds + rng.choices(list(KINDS), k=rng.randint(0, 2)) for _ in range(2)]
    units = [rng.choice(["ms", "us"]) for _ in range(2)]
    schemas = tuple(
        pa.schema([*((f"{'lr'[side]}{i}", KINDS[kind][0]) for i, kind in enumerate(kinds[side])), ("id", pa.int64()),
                   ("at", pa.timestamp(units[side]))])
        for side in (0, 1)
    )  # fmt: skip
    keys = tuple([f"{'lr'[side]}{i}" for i in range(num_keys)] for side in (0, 1))
    is_left = rng.random() < 0.5
    projection = [(side, name, f"{side}.{name}") for side in (0, 1) for name in schemas[side].names]
    has_condition = seed % 2 == 1
    operator = TemporalJoinOfTables(
        keys, ("at", "at"), schemas=schemas, is_left=is_left, projection=projection,
        condition=col("0.id") > col("1.id") if has_condition else None,
    )  # fmt: skip

    def wanted(passed):
        found = with_versions(passed, versions, num_keys, [len(one) - 1 for one in schemas], is_left)
        return matched(found, schemas, is_left=is_left) if has_condition else found

    running = TimedRunning(operator, keys, rng.randint(1, 3), backend)
    rows, versions, late, watermark, now, number = [], [], 0, None, 0, 0
    for _ in range(12):
        for side in rng.sample((0, 1), k=2):
            some, gone = [], []
            for _ in range(rng.randint(0, 6)):
                at = max(0, now + rng.randint(-20, 30))
                if side == 1 and watermark is not None:
                    at = max(at, watermark + 1)
                is_late = watermark is not None and at <= watermark
                values = [random_value(rng, kind) for kind in kinds[side]]
                sub = rng.randint(0, 2) if units[side] == "us" else 0
                some.append((*values, number, at * PER_MS[units[side]] + sub))
                gone.append(side == 1 and rng.random() < 0.2)
                number += 1
                exact = (*some[-1][:-1], at * 1_000 + sub)
                if side == 1:
                    versions.append((exact, gone[-1]))
                elif is_late:
                    late += 1
                else:
                    rows.append(exact)
            if some:
                kinds_of = np.where(gone, np.int8(RowKind.DELETE), np.int8(RowKind.INSERT))
                running.feed(columns_of(some, schemas[side]), side, kinds_of if side == 1 else None)
        now += rng.choice([0, 5, 20, 60])
        if rng.random() < 0.7:
            watermark = max(watermark or 0, now - rng.randint(0, 25))
            running.watermark(watermark)
        passed = [row for row in rows if watermark is not None and row[-1] // 1_000 <= watermark]
        check(running, wanted(passed), schemas)
        if rng.random() < 0.3:
            running.restore(rng.randint(1, 3))
    running.watermark(MAX_TIMESTAMP)
    check(running, wanted(rows), schemas)
    assert running.num_late == late
    running.close()


def matched(rows, schemas, *, is_left):
    """Rows whose numbers are larger than those of their versions; the others have none."""
    own, other = len(schemas[0]) - 2, len(schemas[0]) + len(schemas[1]) - 2
    found = []
    for row in rows:
        is_matched = len(row) > other and row[other] is not None and row[own] > row[other]
        found += [row] if is_matched else [(*row[: own + 2], *[None] * len(schemas[1]))] if is_left else []
    return found


def check(running, wanted, schemas):
    """Rows are told apart by their numbers, and so are versions."""
    ids = len(schemas[0]) - 2, len(schemas[0]) + len(schemas[1]) - 2
    assert multiset([tuple(row[i] for i in ids) for row in running.rows]) == multiset(
        [(row[ids[0]], row[ids[1]] if len(row) > ids[1] else None) for row in wanted]
    )
    by_id = {row[ids[0]]: row for row in wanted}
    for row, stamp in zip(running.rows, running.times, strict=True):
        assert stamp == by_id[row[ids[0]]][ids[0] + 1] // 1_000


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(4)
def test_rows_have_the_versions_that_plain_loops_find(seed, backend, monkeypatch):
    run_join(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_joins_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        run_join(seed, "rocksdb" if seed % 4 == 0 else "heap", monkeypatch)


# ------------------------------------------------------------------------------------------------------------ examples
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])
PROJECTION = [(0, "v", "v"), (1, "v", "w")]


def started(is_left=False, **options):
    operator = TemporalJoinOfTables(
        (["k"], ["k"]), ("at", "at"), schemas=(ROWS, ROWS), is_left=is_left, projection=PROJECTION
    )
    return OperatorHarness(operator, **options)


def give(harness, side, *rows):
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, ROWS)), side)


def out(harness, watermark_ms):
    harness.watermark(watermark_ms)
    return [(row["v"], row["w"]) for row in harness.take_rows()]


def test_rows_wait_for_the_watermark_and_late_ones_are_counted():
    harness = started()
    give(harness, 1, ("a", 10, 5), ("a", 20, 15))
    give(harness, 0, ("a", 1, 15), ("a", 2, 14), ("b", 3, 9))
    assert out(harness, 14) == [(2, 10)]
    give(harness, 0, ("a", 4, 14))
    assert out(harness, 30) == [(1, 20)]
    assert harness.metrics.counters["num_late_records_dropped"] == 1


def test_of_versions_that_have_begun_the_last_one_is_kept():
    harness = started()
    for number in range(100):
        give(harness, 1, ("a", number, number), ("b", number, number))
        harness.watermark(number)
    assert harness.operator._state._versions.store.num_live == 2


def test_a_version_that_comes_late_counts_for_rows_that_wait():
    harness = started()
    give(harness, 0, ("a", 1, 50))
    harness.watermark(40)
    give(harness, 1, ("a", 10, 5), ("a", 20, 30), ("a", 15, 20))
    assert out(harness, 60) == [(1, 20)]
    give(harness, 1, ("a", 30, 10))
    give(harness, 0, ("a", 2, 70))
    assert out(harness, 80) == [(2, 20)]


def test_a_version_that_comes_late_does_not_bring_back_a_key_that_was_gone_later():
    harness = started(is_left=True)
    give(harness, 0, ("a", 1, 50), ("a", 2, 25))
    gone = Batch.of_columns(columns_of([("a", 0, 30)], ROWS)).with_row_kinds(np.array([RowKind.DELETE], np.int8))
    harness.operator.process_batch(gone, 1)
    assert out(harness, 40) == [(2, None)]
    give(harness, 1, ("a", 10, 20))
    assert out(harness, 60) == [(1, None)]
    give(harness, 1, ("a", 20, 65))
    give(harness, 0, ("a", 3, 70))
    assert out(harness, 80) == [(3, 20)]
    assert harness.operator._state._versions.store.num_live == 1


def test_versions_of_a_drained_program_stay():
    harness = started()
    give(harness, 1, ("a", 10, 5), ("a", 20, 30))
    assert out(harness, 12) == []
    assert out(harness, MAX_TIMESTAMP) == []
    again = started(restored=harness.snapshot())
    give(again, 0, ("a", 1, 20), ("a", 2, 30), ("a", 3, 12))
    assert out(again, 40) == [(1, 10), (2, 20)]
    assert again.metrics.counters["num_late_records_dropped"] == 1


def test_rows_that_are_taken_back_are_refused():
    harness = started()
    batch = Batch.of_columns(columns_of([("a", 1, 1)], ROWS)).with_row_kinds(np.array([RowKind.DELETE], np.int8))
    with pytest.raises(ProgramError, match="have no version of their time"):
        harness.operator.process_batch(batch, 0)


def test_versions_need_times():
    with pytest.raises(ProgramError, match="is no time"):
        TemporalJoinOfTables((["k"], ["k"]), ("at", "v"), schemas=(ROWS, ROWS), is_left=False, projection=PROJECTION)
