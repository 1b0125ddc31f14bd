"""State with a time to live, under a clock that is moved by hand.

Families: oracle (dictionaries and lists, one change at a time: `expiry_oracles`), property (random operators,
changelogs that take back what has expired, cuts, snapshots, restores at other parallelisms and under another time to
live, all backends), example (what is counted, what is really gone).
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from aggregate_kit import aggregate_of
from campaigns import blocks, campaign
from changelog_kit import BACKENDS, KEYS, RUNS, Changelog, Running, batch_of, chosen_backend, cut
from expiry_oracles import Groups, Joined, numbered, ranked

from headrace.engine.changelog import grouped_state, join_state, rank_state
from headrace.engine.changelog.group_aggregate import GroupAggregate
from headrace.engine.changelog.join import ChangelogJoin
from headrace.engine.changelog.over_changes import ChangingOver
from headrace.engine.changelog.rank import Rank
from headrace.engine.columns.conditionals import when
from headrace.engine.columns.expressions import col
from headrace.engine.columns.records import RowKind
from headrace.engine.frames.frame_calls import Frame, row_number
from headrace.engine.functions.aggregates import built_in as f
from headrace.engine.functions.aggregates.statistics import collect_list, median
from headrace.engine.tables import row_store, run_log, value_counts
from headrace.engine.tables.row_store import RowStore
from headrace.state.keyed.stored_names import StoredNames

INS, UB, UA, D = RowKind
TTLS = [0, 3, 10, 40]


def set_up(rng, backend, monkeypatch):
    """A backend of few blocks and hashes, whose tables are made anew often."""
    backend = chosen_backend(backend, rng, monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", rng.choice([0, 20, 4_096]))
    for module in (grouped_state, join_state, rank_state, row_store, value_counts):
        monkeypatch.setattr(module, "_MIN_DEAD", rng.choice([0, 5]))
    monkeypatch.setattr(RowStore, "hash_bits", rng.choice([1, -1]))
    return backend


def known(operator):
    """The operator as SQL makes it: columns of its state may be others after a restore."""
    operator.stored = StoredNames()
    return operator


def follow(rng, make, model, changelogs, keys, backend, steps=14):
    """Run an operator and its model side by side; ``make`` makes it with times to live."""
    running = Running(known(make(model.ttls)), keys, rng.randint(1, 3) if keys[0] else 1, backend)
    now = 1_000
    for _ in range(steps):
        side = rng.randrange(len(changelogs))
        for part in cut(rng, changelogs[side].changes(rng.randint(1, 10))):
            now += rng.choice([0, 0, 1, 2, 5, 20])
            for subtask in running.harness.subtasks:
                subtask.now_ms = now
            running.feed(batch_of(part, changelogs[side].schema), side)
            model.feed(part, now, *([side] if len(changelogs) > 1 else []))
            assert running.out.rows == model.out
        if rng.random() < 0.3:
            ttls = model.ttls if rng.random() < 0.7 else [rng.choice(TTLS) for _ in model.ttls]
            running.harness._operator = known(make(ttls))
            running.restore(rng.randint(1, 3) if keys[0] else 1)
            model.restore(ttls, now)
    running.close()


# --------------------------------------------------------------------------------------------------------------- groups
def argument(name, column, other):
    """The n-th column, where another one is not null."""
    if column == other:
        return col(f"c{column}")
    return when(~col(f"c{other}").is_null()).then(col(f"c{column}"))


def calls(rng, first, *, takes_back):
    """Aggregates by name, and what the model must give of them: columns from one on are integers."""
    names = ["count", "sum", "avg", "min", "max", "count_distinct", "sum_distinct"]
    names += ["collect_list", "median", "last"] if takes_back else []
    made, wanted = {"n": f.count()}, []
    for name in rng.sample(names, rng.randint(0, 4)):
        column, other = first + rng.randrange(2), first + rng.randrange(2)
        if name in ("avg", "collect_list", "median", "last"):
            other = column
        value = argument(name, column, other)
        if name in ("collect_list", "median"):
            made[name] = {"collect_list": collect_list, "median": median}[name](value)
        else:
            made[name] = aggregate_of(name, value, pa.int64())
        wanted.append((name, column, other))
    return made, wanted


def run_groups(seed, backend, monkeypatch):
    rng = random.Random(f"groups {seed}")
    backend = set_up(rng, backend, monkeypatch)
    takes_back, num_keys = rng.random() < 0.7, rng.randint(0, 2)
    changelog = Changelog(rng, [*rng.choices(KEYS, k=num_keys), "int", "int"], takes_back=takes_back, nulls=0.3)
    aggregates, wanted = calls(rng, num_keys, takes_back=takes_back)
    names = [f"c{index}" for index in range(num_keys)]

    def make(ttls):
        return GroupAggregate(names, aggregates, input_schema=changelog.schema, takes_back=takes_back, ttl_ms=ttls[0])

    follow(rng, make, Groups(rng.choice(TTLS), num_keys, wanted), [changelog], [names], backend)


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_groups_expire(seed, backend, monkeypatch):
    run_groups(seed, backend, monkeypatch)


# ---------------------------------------------------------------------------------------------------------------- joins
def run_join(seed, backend, monkeypatch):
    rng = random.Random(f"join {seed}")
    backend = set_up(rng, backend, monkeypatch)
    how, num_keys = rng.choice(["inner", "left", "right", "full", "semi", "anti"]), rng.randint(1, 2)
    kinds = [*rng.choices(KEYS, k=num_keys), "int"]
    changelogs = [Changelog(rng, kinds, takes_back=rng.random() < 0.8) for _ in range(2)]
    projection = [(side, f"c{index}", f"{'lr'[side]}{index}") for side in (0, 1) for index in range(len(kinds))]
    condition, is_match = None, lambda one, other: True
    if rng.random() < 0.5:
        condition = col(f"l{num_keys}") < col(f"r{num_keys}")
        is_match = lambda one, other: None not in (one[num_keys], other[num_keys]) and one[num_keys] < other[num_keys]
    names = [f"c{index}" for index in range(num_keys)]

    def make(ttls):
        return ChangelogJoin(
            names, names, how, left_schema=changelogs[0].schema, right_schema=changelogs[1].schema,
            projection=projection, condition=condition, ttls_ms=tuple(ttls),
        )  # fmt: skip

    model = Joined([rng.choice(TTLS), rng.choice(TTLS)], how, num_keys, (len(kinds), len(kinds)), is_match)
    follow(rng, make, model, changelogs, [names, names], backend)


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_rows_of_a_join_expire(seed, backend, monkeypatch):
    run_join(seed, backend, monkeypatch)


# ----------------------------------------------------------------------------------------------------------- partitions
def run_rank(seed, backend, monkeypatch):
    rng = random.Random(f"rank {seed}")
    backend = set_up(rng, backend, monkeypatch)
    takes_back, num_keys = rng.random() < 0.6, rng.randint(0, 2)
    changelog = Changelog(rng, [*rng.choices(KEYS, k=num_keys), "int", "text"], takes_back=takes_back)
    orders = rng.choice([[], [(num_keys, True, None)], [(num_keys, False, None)]])
    options = {"limit": rng.choice([1, 2, 3]), "offset": rng.choice([0, 0, 1])}
    is_numbered, ties_keep_last = rng.random() < 0.5, rng.random() < 0.3
    names = [f"c{index}" for index in range(num_keys)]

    def make(ttls):
        return Rank(
            names, [(f"c{column}", ascending, nulls) for column, ascending, nulls in orders],
            input_schema=changelog.schema, number="number" if is_numbered else None, takes_back=takes_back,
            ties_keep_last=ties_keep_last, ttl_ms=ttls[0], **options,
        )  # fmt: skip

    model = ranked(rng.choice(TTLS), num_keys, orders, takes_back=takes_back, numbered=is_numbered,
                   ties_keep_last=ties_keep_last, **options)  # fmt: skip
    follow(rng, make, model, [changelog], [names], backend)


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_partitions_of_a_rank_expire(seed, backend, monkeypatch):
    run_rank(seed, backend, monkeypatch)


def run_over(seed, backend, monkeypatch):
    rng = random.Random(f"over {seed}")
    backend = set_up(rng, backend, monkeypatch)
    num_keys = rng.randint(0, 2)
    changelog = Changelog(rng, [*rng.choices(KEYS, k=num_keys), "int", "text"])
    orders = rng.choice([[], [(num_keys, True, None)]])
    names = [f"c{index}" for index in range(num_keys)]
    columns = {"place": row_number(), "total": f.sum(col(f"c{num_keys}"))}

    def make(ttls):
        named = [(f"c{column}", ascending, nulls) for column, ascending, nulls in orders]
        return ChangingOver(names, named, columns, input_schema=changelog.schema, frame=Frame(None, 0), ttl_ms=ttls[0])

    specs = [("row_number", None), ("sum", num_keys)]
    model = numbered(rng.choice(TTLS), num_keys, orders, specs, ("rows", None, 0))
    follow(rng, make, model, [changelog], [names], backend)


@pytest.mark.parametrize(("seed", "backend"), RUNS)
@pytest.mark.sampled(4)
def test_partitions_of_over_expire(seed, backend, monkeypatch):
    run_over(seed, backend, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks(0, 10))
def test_expiry_over_many_seeds(block, monkeypatch):
    for seed in range(1_000 + 20 * block, 1_020 + 20 * block):
        for run in (run_groups, run_join, run_rank, run_over):
            run(seed, BACKENDS[(0, 2, 0, 1)[seed % 4]], monkeypatch)
            monkeypatch.undo()


# ------------------------------------------------------------------------------------------------------------- examples
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("backend", ["heap", "rocksdb", campaign("rocksdb without room")])
def test_what_has_expired_is_gone_from_memory_files_and_restores(backend, monkeypatch):
    """Keys that never come back: what there is stays as large as what came in one time to live, about."""
    backend = chosen_backend(backend, random.Random(1), monkeypatch)
    monkeypatch.setattr(run_log, "MIN_ROWS", 0)
    aggregates = {"n": f.count(), "d": f.count_distinct("v")}
    operator = GroupAggregate(["k"], aggregates, input_schema=SCHEMA, takes_back=False, ttl_ms=10)
    running = Running(known(operator), [["k"]], 1, backend)
    most = 0
    for now in range(0, 240, 5):
        running.harness.subtasks[0].now_ms = now
        running.feed(batch_of([(INS, (1_000 * now + key, key)) for key in range(20)], SCHEMA))
        if now % 20 == 0:
            running.restore(1)
            state = running.harness.subtasks[0].operator._state
            logs = [state.log, state._times.log, *(table.log for table in state._values.tables)]
            most = max(most, *(log.num_rows for log in logs))
    assert most <= 640  # of 960 groups that were
    assert state._num_live <= 3 * 20
    running.close()


def test_what_expires_and_what_is_ignored_is_counted():
    operator = GroupAggregate(["k"], {"n": f.count()}, input_schema=SCHEMA, takes_back=True, ttl_ms=10)
    running = Running(known(operator), [["k"]])
    (subtask,) = running.harness.subtasks
    running.feed(batch_of([(INS, (1, 1)), (INS, (2, 2))], SCHEMA))
    subtask.now_ms = 10
    assert running.feed(batch_of([(D, (1, 1)), (INS, (3, 3))], SCHEMA)) == [[(INS, (3, 1))]]
    counts = subtask.metrics.statistics()
    assert counts["num_state_entries_expired"] == 2
    assert counts["num_retractions_ignored"] == 1
    subtask.now_ms = 19
    assert running.feed(batch_of([(UB, (3, 3)), (UA, (3, 4))], SCHEMA)) == [[(UB, (3, 1)), (UA, (3, 1))]]
    subtask.now_ms = 28  # the group has been heard of since
    assert running.feed(batch_of([(INS, (3, 5))], SCHEMA)) == [[(UB, (3, 1)), (UA, (3, 2))]]


def test_without_a_time_to_live_there_is_nothing_for_it():
    operator = GroupAggregate(["k"], {"n": f.count()}, input_schema=SCHEMA, takes_back=True)
    running = Running(operator, [["k"]])
    running.feed(batch_of([(INS, (1, 1))], SCHEMA))
    states = {part.state for part in running.harness.subtasks[0].snapshot()}
    assert states == {"groups", "orders"}
