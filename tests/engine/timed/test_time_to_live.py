"""OVER and temporal joins whose state has a time to live, under a clock that is moved by hand.

Families: oracle (lists by key, forgotten when nothing was written for so long and no row waits), property (random
rows, orders of arrival, watermarks, restores at other parallelisms and under another time to live, both backends),
example (what is counted, what is really gone).
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from campaigns import blocks
from changelog_kit import KEYS, KINDS, columns_of, multiset, random_value
from expiry_oracles import ByKey
from operator_harness import OperatorHarness
from timed_kit import TimedRunning, in_unit
from timed_oracles import over, with_versions

from headrace.engine.columns.records import Batch, RowKind
from headrace.engine.frames.frame_calls import Frame, dense_rank, lag, row_number
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.tables import row_store, run_log
from headrace.engine.timed import over_by_time_state, temporal_state
from headrace.engine.timed.over_by_time import OverAggregate
from headrace.engine.timed.temporal_join import TemporalJoinOfTables
from headrace.state.keyed.stored_names import StoredNames

TTLS = [0, 3, 10, 40]
CASES = [
    ({"n": f.count(), "s": f.sum("v"), "d": f.count_distinct("v")},
     lambda at: [("count", None), ("sum", at), ("count_distinct", at)], None, None),
    ({"r": row_number(), "d": dense_rank()}, lambda _: [("row_number", None), ("dense_rank", None)], None, None),
    ({"b": lag("v", 2)}, lambda at: [("lag", at, 2)], None, None),
    ({"m": f.min("v"), "d": f.count_distinct("v")}, lambda at: [("min", at), ("count_distinct", at)],
     Frame(-2, 0), ("rows", -2, 0)),
]  # fmt: skip


class Waiting(ByKey):
    """Parts are [time, rows that wait, what is kept]; while rows wait it does not expire."""

    def expire(self, now):
        self.parts = {key: part for key, part in self.parts.items() if part[1] or not self.is_past(part[0], now)}

    def part(self, row, now):
        part = self.parts.setdefault(self.key_of(row), [now, [], []])
        part[0] = now
        return part

    def due(self, watermark, time, now):
        """Yield parts with the rows that the watermark passes, which wait no more."""
        for part in self.parts.values():
            due = [row for row in part[1] if row[time] <= watermark]
            if due:
                part[0], part[1] = now, [row for row in part[1] if row[time] > watermark]
                yield part, due


def follow(rng, make, model, running, steps, num_keys):
    """Take steps, move the clock between them, and restore now and then; ``steps`` are drawn by a function."""
    now = 1_000
    for _ in range(16):
        now += rng.choice([0, 0, 1, 2, 5, 20])
        for subtask in running.harness.subtasks:
            subtask.now_ms = now
        model.expire(now)
        steps(now)
        if rng.random() < 0.3:
            ttls = model.ttls if rng.random() < 0.7 else [rng.choice(TTLS)]
            running.harness._operator = known(make(ttls[0]))
            running.restore(rng.randint(1, 3) if num_keys else 1)
            model.restore(ttls, now)
    running.close()


def known(operator):
    """The operator as SQL makes it: columns of its state may be others after a restore."""
    operator.stored = StoredNames()
    return operator


def set_up(rng, monkeypatch):
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    for module in (over_by_time_state, row_store, temporal_state):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5]))


def found(running, times):
    return multiset(tuple(in_unit(value, "ms") if place in times and value is not None else value
                          for place, value in enumerate(row)) for row in running.rows)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------- OVER
def run_over(seed, backend, monkeypatch):
    rng = random.Random(f"over {seed}")
    set_up(rng, monkeypatch)
    num_keys, (columns, specs, frame, plain) = rng.randint(0, 2), rng.choice(CASES)
    key_kinds = rng.choices(KEYS, k=num_keys)
    time, specs = num_keys + 2, specs(num_keys)
    schema = pa.schema([*((f"c{i}", KINDS[kind][0]) for i, kind in enumerate(key_kinds)), ("v", pa.int64()),
                        ("id", pa.int64()), ("at", pa.timestamp("ms"))])  # fmt: skip
    keys = schema.names[:num_keys]

    def make(ttl_ms):
        return OverAggregate(keys, "at", columns, input_schema=schema, frame=frame, ttl_ms=ttl_ms)

    model, clock, given = Waiting(rng.choice(TTLS), num_keys), [0, -1], []
    running = TimedRunning(known(make(model.ttls[0])), [keys], rng.randint(1, 3) if num_keys else 1, backend)

    def step(now):
        rows = []
        for _ in range(rng.randint(0, 6)):
            values = [*(random_value(rng, kind) for kind in key_kinds), rng.choice([None, 0, 1, 2])]
            rows.append((*values, len(given) + len(rows), max(0, clock[0] + rng.randint(-20, 20))))
            if rows[-1][time] > clock[1]:
                model.part(rows[-1], now)[1].append(rows[-1])
        if rows:
            running.feed(columns_of(rows, schema))
        given.extend(rows)
        clock[0] += rng.choice([0, 5, 20])
        if rng.random() < 0.7:
            clock[1] = max(clock[1], clock[0] - rng.randint(0, 20))
            running.watermark(clock[1])
            for part, due in model.due(clock[1], time, now):
                part[2] += sorted(due, key=lambda row: row[time])
                for row in over(part[2], num_keys, time, specs, plain)[-len(due) :]:
                    model.give(row)
        assert found(running, [time]) == multiset(model.out.elements())

    follow(rng, make, model, running, step, num_keys)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(4)
def test_partitions_of_over_expire(seed, backend, monkeypatch):
    run_over(seed, backend, monkeypatch)


# -------------------------------------------------------------------------------------------------------- temporal join
def run_join(seed, backend, monkeypatch):
    rng = random.Random(f"join {seed}")
    set_up(rng, monkeypatch)
    kinds, is_left = rng.choices(KEYS, k=rng.randint(1, 2)), rng.random() < 0.5
    time = len(kinds) + 1
    schema = pa.schema([*((f"c{i}", KINDS[kind][0]) for i, kind in enumerate(kinds)), ("id", pa.int64()),
                        ("at", pa.timestamp("ms"))])  # fmt: skip
    keys = schema.names[: len(kinds)]
    projection = [(side, name, f"{'lr'[side]}{name}") for side in (0, 1) for name in schema.names]

    def make(ttl_ms):
        return TemporalJoinOfTables(
            (keys, keys), ("at", "at"), schemas=(schema, schema), is_left=is_left, projection=projection, ttl_ms=ttl_ms
        )

    model, clock, numbers = Waiting(rng.choice(TTLS), len(kinds)), [0, -1], [0]
    running = TimedRunning(known(make(model.ttls[0])), [keys, keys], rng.randint(1, 3), backend)

    def rows_of():
        made = []
        for _ in range(rng.randint(0, 4)):
            numbers[0] += 1
            made.append(
                (*(random_value(rng, kind) for kind in kinds), numbers[0], max(0, clock[0] + rng.randint(-20, 20)))
            )
        return made

    def step(now):
        versions, rows = rows_of(), rows_of()
        is_gone = [rng.random() < 0.2 for _ in versions]
        for row, gone in zip(versions, is_gone, strict=True):
            if None not in row[: len(kinds)]:
                model.part(row, now)[2].append((row, gone))
        for row in rows:
            if row[time] > clock[1]:
                model.part(row, now)[1].append(row)
        if versions:
            running.feed(
                columns_of(versions, schema), 1, np.where(is_gone, RowKind.DELETE, RowKind.INSERT).astype(np.int8)
            )
        if rows:
            running.feed(columns_of(rows, schema), 0)
        clock[0] += rng.choice([0, 5, 20])
        if rng.random() < 0.7:
            clock[1] = max(clock[1], clock[0] - rng.randint(0, 20))
            running.watermark(clock[1])
            nothing = [((None,) * (time + 1), True)]
            for part, due in model.due(clock[1], time, now):
                for row in with_versions(due, part[2] or nothing, len(kinds), (time, time), is_left):
                    model.give(row)
        assert found(running, [time, 2 * time + 1]) == multiset(model.out.elements())

    follow(rng, make, model, running, step, len(kinds))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(4)
def test_versions_of_keys_expire(seed, backend, monkeypatch):
    run_join(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 5))
def test_timed_state_expires_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        for run in (run_over, run_join):
            run(seed, "rocksdb" if seed % 4 == 0 else "heap", monkeypatch)


# ------------------------------------------------------------------------------------------------------------- examples
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms"))])


def give(harness, *rows, input_index=0):
    harness.operator.process_batch(Batch.of_columns(columns_of(rows, SCHEMA)), input_index)


def expired(harness):
    return harness.metrics.counters.get("num_state_entries_expired", 0)


@pytest.mark.parametrize("frame", [None, Frame(-1, 0)])
def test_what_has_expired_is_gone_and_counted(frame, monkeypatch):
    monkeypatch.setattr(over_by_time_state, "_MIN_DEAD", 3)
    monkeypatch.setattr(row_store, "_MIN_DEAD", 3)
    columns = {"n": f.count(), "d": f.count_distinct("v")}
    operator = OverAggregate(["k"], "at", columns, input_schema=SCHEMA, frame=frame, ttl_ms=10)
    harness = OperatorHarness(operator)
    for number in range(100):
        harness.now_ms = 5 * number
        give(harness, (f"k{number}", 1, number))
        harness.watermark(number)
    state = harness.operator._state
    kept = state._folds.num_live if frame is None else state._rows.num_live
    assert kept <= 4
    assert len(state._index) < 20
    assert expired(harness) == 100 - kept


def test_a_partition_with_rows_that_wait_does_not_expire():
    operator = OverAggregate(["k"], "at", {"n": f.count()}, input_schema=SCHEMA, ttl_ms=10)
    harness = OperatorHarness(operator)
    give(harness, ("a", 1, 1), ("a", 1, 50))
    harness.watermark(10)
    harness.now_ms = 100
    harness.watermark(60)
    assert [row["n"] for row in harness.take_rows()] == [1, 2]
    harness.now_ms = 109
    give(harness, ("a", 1, 70))
    harness.watermark(80)
    harness.now_ms = 119
    give(harness, ("a", 1, 90))
    harness.watermark(100)
    assert [row["n"] for row in harness.take_rows()] == [3, 1]
    assert expired(harness) == 1


def test_a_key_without_rows_loses_its_versions():
    projection = [(0, "v", "v"), (1, "v", "w")]
    operator = TemporalJoinOfTables(
        (["k"], ["k"]), ("at", "at"), schemas=(SCHEMA, SCHEMA), is_left=True, projection=projection, ttl_ms=10
    )
    harness = OperatorHarness(operator)
    give(harness, ("a", 7, 1), ("b", 8, 1), input_index=1)
    for number in range(1, 5):
        harness.now_ms = 9 * number
        give(harness, ("a", number, 10 * number))
        harness.watermark(10 * number)
    give(harness, ("b", 5, 60))
    harness.watermark(60)
    assert [(row["v"], row["w"]) for row in harness.take_rows()] == [(1, 7), (2, 7), (3, 7), (4, 7), (5, None)]
    assert expired(harness) == 1
