"""Windows of so many rows in the Table API: each row of a key is in those that its number says, and none is half full.

Families: differential (plain loops over the rows of a key, in both modes), failures, errors.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from campaigns import blocks, campaign
from query_kit import FailsNowAndThen, Rows, multiset

from headrace import RestartStrategies
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import (
    UNBOUNDED_ROW,
    AggregateFunction,
    Session,
    Slide,
    TableEnvironment,
    Tumble,
    col,
    lit,
    row_interval,
    udaf,
    udf,
)


def drawn(seed, num=70):
    """Rows whose times are all different, in their order or not."""
    rng = random.Random(seed)
    times = [1_000 * number + rng.randrange(900) for number in range(num)]
    if rng.random() < 0.5:
        rng.shuffle(times)
    numbers = [None, *range(-2, 4)]
    return pa.table({
        "k": pa.array([rng.choice([None, 0, 1, 2]) for _ in times], pa.int64()),
        "v": pa.array([rng.choice(numbers) for _ in times], pa.int64()),
        "s": [rng.choice([None, "", "x", "xy"]) for _ in times],
        "ts": pa.array(times, pa.timestamp("ms")),
    })  # fmt: skip


def windows_of(table, size, slide, *, by_key=True, by_time=True):
    """The rows of each full window."""
    groups = defaultdict(list)
    for row in sorted(table.to_pylist(), key=lambda row: row["ts"]) if by_time else table.to_pylist():
        groups[row["k"] if by_key else None].append(row)
    for rows in groups.values():
        for start in range(0, len(rows) - size + 1, slide):
            yield rows[start : start + size]


def wanted_of(table, size, slide, *, by_key=True, by_time=True):
    found = Counter()
    for rows in windows_of(table, size, slide, by_key=by_key, by_time=by_time):
        values = [row["v"] for row in rows if row["v"] is not None]
        key = (rows[0]["k"],) if by_key else ()
        row = (
            len(rows), len(values), sum(values) if values else None, max(values, default=None), len(set(values)) + 1,
            values[-1] if values else None,
        )  # fmt: skip
        found[(*key, *row)] += 1
    return found


def counted(table, size, slide, time="ts", *, by_key=True):
    window = Tumble.over(row_interval(size)) if size == slide else (
        Slide.over(row_interval(size)).every(row_interval(slide))
    )  # fmt: skip
    keys = [col("k")] if by_key else []
    v = col("v")
    return (
        table.window(window.on(col(time)).alias("w"))
        .group_by(*keys, col("w"))
        .select(*keys, lit(1).count, v.count, v.sum, v.max, v.distinct.count + 1, v.last_value)
    )


def streaming(table, seed=0, num_splits=2, **options):
    """An environment with the rows as stream ``e``, a few at a time."""
    env = TableEnvironment.create(**{"parallelism": 3, "actor_system": "sim", "seed": seed, **options})
    source = GeneratorSource.batches(Rows(table), table.num_rows, number_of_splits=num_splits, batch_size=3)
    stream = env.stream_environment.from_source(source, type_info=table.schema)
    env.create_temporary_view("e", stream, event_time="ts", delay="100 s")
    return env


def compare(seed):
    rng = random.Random(seed)
    table, size, slide, by_key = drawn(seed), rng.randint(1, 5), rng.randint(1, 6), rng.random() < 0.8
    wanted = wanted_of(table, size, slide, by_key=by_key)
    with TableEnvironment.create(mode="batch", parallelism=3) as env:
        env.create_temporary_view("e", table, event_time="ts")
        assert multiset(counted(env.from_path("e"), size, slide, by_key=by_key).to_arrow()) == wanted
    with streaming(table, seed) as env:
        changes = list(counted(env.from_path("e"), size, slide, by_key=by_key).execute().collect())
    assert {kind for kind, *_ in changes} <= {"+I"}
    assert Counter(tuple(row) for _, *row in changes) == wanted


@pytest.mark.parametrize("block", blocks(1, 8))
def test_windows_are_those_of_a_loop(block):
    for seed in range(5 * block, 5 * block + 5):
        compare(seed)


@pytest.mark.parametrize(("size", "slide"), [(3, 3), campaign(4, 1), campaign(2, 3)])
def test_by_the_clock_rows_go_in_the_order_of_their_arrival(size, slide):
    table = drawn(size)
    with streaming(table, num_splits=1) as env:
        rows = env.sql_query("SELECT *, PROCTIME() AS p FROM e")
        found = multiset(counted(rows, size, slide, "p").to_arrow())
        plan = counted(rows, size, slide, "p").explain()
    assert found == wanted_of(table, size, slide, by_time=False)
    assert "unbounded" not in plan


@pytest.mark.parametrize("time", ["p", "ts"])
@pytest.mark.parametrize("backend", [campaign("heap"), campaign("rocksdb")])
def test_windows_go_on_through_failures(backend, time, tmp_path):
    table = drawn(3, 150)
    with streaming(table, seed=5, num_splits=1) as env:
        env.stream_environment.set_state_backend(backend)
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        shaky = udf(FailsNowAndThen(tmp_path / "calls", (40, 110, 170)), result_type="BIGINT")
        rows = env.sql_query("SELECT *, PROCTIME() AS p FROM e").add_or_replace_columns(shaky(col("k")).alias("k"))
        found = multiset(counted(rows, 4, 3, time).to_arrow())
    assert (tmp_path / "calls").stat().st_size > 170
    assert found == wanted_of(table, 4, 3, by_time=time == "ts")


class Joined(AggregateFunction):
    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value or "-")

    def get_value(self, accumulator):
        return "".join(accumulator)


def test_functions_of_python_aggregate_them():
    table, joined = drawn(9), udaf(Joined(), result_type="STRING")
    wanted = Counter((rows[0]["k"], "".join(row["s"] or "-" for row in rows)) for rows in windows_of(table, 3, 2))
    with streaming(table) as env:
        window = Slide.over(row_interval(3)).every(row_interval(2)).on(col("ts")).alias("w")
        grouped = env.from_path("e").window(window).group_by(col("w"), col("k"))
        assert multiset(grouped.select(col("k"), joined(col("s"))).to_arrow()) == wanted
        assert multiset(grouped.aggregate(joined(col("s")).alias("t")).select(col("k"), col("t")).to_arrow()) == wanted


def numbered(num, num_times):
    """Rows of few times, each with a bit of its own."""
    rng = random.Random(num)
    times = [1_000 * rng.randrange(num_times) for _ in range(num)]
    return pa.table({
        "k": pa.array([rng.choice([None, 1]) for _ in times], pa.int64()), "s": [f"{i:02}" for i in range(num)],
        "v": [1 << i for i in range(num)], "ts": pa.array(times, pa.timestamp("ms")),
    })  # fmt: skip


@pytest.mark.parametrize("time", ["ts", "p"])
def test_functions_see_rows_of_one_time_in_the_order_of_their_number(time):
    table, joined = numbered(40, 4), udaf(Joined(), result_type="STRING")
    windows = windows_of(table, 3, 2, by_time=time == "ts")
    wanted = Counter((rows[0]["k"], "".join(row["s"] for row in rows)) for rows in windows)
    with streaming(table, num_splits=1) as env:
        rows = env.sql_query("SELECT *, PROCTIME() AS p FROM e")
        window = Slide.over(row_interval(3)).every(row_interval(2)).on(col(time)).alias("w")
        found = rows.window(window).group_by(col("w"), col("k")).select(col("k"), joined(col("s"))).to_arrow()
    assert multiset(found) == wanted


def test_rows_that_are_taken_back_leave_their_windows():
    table = numbered(45, 5)
    last = {}
    for row in sorted(table.to_pylist(), key=lambda row: (row["ts"], row["v"])):
        last[row["v"] % 11] = row
    with streaming(table) as env:
        rows = env.sql_query("""
            SELECT v, ts FROM
            (SELECT *, ROW_NUMBER() OVER (PARTITION BY MOD(v, 11) ORDER BY ts DESC, v DESC) AS n FROM e) WHERE n = 1
        """)
        window = Tumble.over(row_interval(2)).on(col("ts")).alias("w")
        grouped = rows.window(window).group_by(col("w"))
        found = grouped.select(col("ts").min, col("ts").max, col("v").sum).to_arrow()
    ordered = sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))
    pairs = [{v for v in table["v"].to_pylist() if v & total} for _, _, total in ordered]
    times = sorted(row["ts"] for row in last.values())
    assert [time for low, high, _ in ordered for time in (low, high)] == times[: len(times) // 2 * 2]
    assert [len(pair) for pair in pairs] == [2] * len(pairs)
    assert len(set().union(*pairs)) == 2 * len(pairs)
    assert set().union(*pairs) <= {row["v"] for row in last.values()}


OF_ROWS, SECOND = row_interval(2), lit(1).second
MISTAKES = {
    "neither in GROUP BY": (Tumble.over(OF_ROWS), "ts", "v"),
    "is not the event time": (Tumble.over(OF_ROWS), "later", "COUNT(*)"),
    "windows need a time": (Tumble.over(OF_ROWS), "v", "COUNT(*)"),
    "can give its start here": (Tumble.over(OF_ROWS), "ts", col("w").start),
    "both lengths of a window": (Slide.over(OF_ROWS).every(SECOND), "ts", "COUNT(*)"),
    "of rows, or of time": (Slide.over(SECOND).every(OF_ROWS), "ts", "COUNT(*)"),
    "sessions go by time": (Session.with_gap(OF_ROWS), "ts", "COUNT(*)"),
    "one row at least": (Tumble.over(row_interval(0)), "ts", "COUNT(*)"),
    "got Bound": (Tumble.over(UNBOUNDED_ROW), "ts", "COUNT(*)"),
    "FILTER in windows": (Tumble.over(OF_ROWS), "ts", "SUM(v) FILTER (WHERE v > 1)"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_what_means_nothing_is_refused(message):
    window, time, column = MISTAKES[message]
    with TableEnvironment.create(mode="batch") as env, pytest.raises((ProgramError, SqlError), match=message):
        env.create_temporary_view("e", drawn(1), event_time="ts")
        rows = env.sql_query("SELECT *, TIMESTAMPADD(SECOND, v, ts) AS later FROM e")
        rows.window(window.on(col(time)).alias("w")).group_by(col("w")).select(column).to_arrow()


def test_in_batch_mode_the_clock_gives_no_order():
    with TableEnvironment.create(mode="batch") as env, pytest.raises(ProgramError, match="no meaning in batch mode"):
        env.create_temporary_view("e", drawn(1), event_time="ts")
        counted(env.sql_query("SELECT *, PROCTIME() AS p FROM e"), 2, 2, "p").to_arrow()
