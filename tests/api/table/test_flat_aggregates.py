"""Aggregate functions of Python that give rows: in groups, in windows, of rows that change, and through failures.

Families: differential (plain loops, in both modes), failures, errors.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from campaigns import blocks, campaign
from query_kit import FailsNowAndThen, in_small_batches, multiset, tables_of, with_tables

from headrace import RestartStrategies
from headrace.engine.errors import HeadraceError, ProgramError
from headrace.table import (
    AggregateFunction,
    Slide,
    TableAggregateFunction,
    TableEnvironment,
    Tumble,
    call,
    col,
    lit,
    row_interval,
    udaf,
    udf,
    udtaf,
)

ROWS = "ROW<v BIGINT, place BIGINT>"


class Top2(TableAggregateFunction):
    """The two greatest values, with their places; of no values no row."""

    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, value):
        if value is not None:
            accumulator.append(value)

    def emit_value(self, accumulator):
        for place, value in enumerate(sorted(accumulator, reverse=True)[:2]):
            yield value, place + 1


class Longest(AggregateFunction):
    def create_accumulator(self):
        return [""]

    def accumulate(self, accumulator, value):
        accumulator[0] = max(accumulator[0], value or "", key=len)

    def get_value(self, accumulator):
        return accumulator[0]


class Retracting(Top2):
    def retract(self, accumulator, value):
        if value is not None:
            accumulator.remove(value)


class Merging(Retracting):
    def merge(self, accumulator, others):
        for one in others:
            accumulator.extend(one)


def top_two(values):
    return [(value, place + 1) for place, value in enumerate(sorted(values, reverse=True)[:2])]


def drawn(seed, num=60):
    rng = random.Random(seed)
    numbers = [None, *range(-2, 4)]
    rows = [(rng.choice(numbers), rng.choice(numbers), rng.choice([None, "", "x", "xy"])) for _ in range(num)]
    return tables_of(rows, [(rng.choice(numbers), rng.choice(numbers)) for _ in range(num // 2)])


def environments(tables, seed=0):
    yield with_tables(TableEnvironment.create(mode="batch", parallelism=3), tables)
    yield in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=seed), tables, 3)


def of_counts(tables):
    """The two greatest of how often a pair of each key is there."""
    counts = Counter(zip(tables["l"]["a"].to_pylist(), tables["l"]["c"].to_pylist(), strict=True))
    groups = defaultdict(list)
    for (key, _), number in counts.items():
        groups[key].append(number)
    return Counter((key, *row) for key, values in groups.items() for row in top_two(values))


def compare(seed):
    rng, tables = random.Random(seed), drawn(seed)
    function, kept = rng.choice([Retracting(), Merging()]), rng.choice([None, "ARRAY<BIGINT>"])
    groups = defaultdict(list)
    for key, value in zip(tables["l"]["a"].to_pylist(), tables["l"]["b"].to_pylist(), strict=True):
        groups[key] += [] if value is None else [value]
    wanted = Counter((key, *row) for key, values in groups.items() for row in top_two(values))
    everything = [value for values in groups.values() for value in values]
    for env in environments(tables, seed):
        with env:
            top2 = udtaf(function, result_type=ROWS, accumulator_type=kept)
            rows = env.from_path("l")
            found = rows.group_by(col("a")).flat_aggregate(top2(col("b")).alias("best")).select("a", "best", "place")
            assert multiset(found.to_arrow()) == wanted
            of_all = rows.flat_aggregate(top2(col("b"))).select(col("v"), col("place"))
            assert multiset(of_all.to_arrow()) == Counter(top_two(everything))
            # Rows that are updated are taken back.
            counted = env.sql_query("SELECT a, c, COUNT(*) AS n FROM l GROUP BY a, c")
            changing = counted.group_by(col("a").alias("k")).flat_aggregate(top2(col("n"))).select("k", "v", "place")
            assert multiset(changing.to_arrow()) == of_counts(tables)


@pytest.mark.parametrize("block", blocks(1, 6))
def test_rows_of_groups_are_those_of_a_loop(block):
    for seed in range(3 * block, 3 * block + 3):
        compare(seed)


@pytest.mark.parametrize("backend", [campaign("heap"), campaign("rocksdb")])
@pytest.mark.parametrize("function", [Retracting(), Merging()], ids=["retracting", "merging"])
def test_rows_of_groups_go_on_through_failures(function, backend, tmp_path):
    tables = drawn(4, 90)
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=5), tables, 3) as env:
        env.stream_environment.set_state_backend(backend)
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        shaky = udf(FailsNowAndThen(tmp_path / "calls", (30, 70, 120)), result_type="BIGINT")
        counted = env.sql_query("SELECT a, c, COUNT(*) AS n FROM l GROUP BY a, c").select(
            shaky(col("a")).alias("a"), col("n")
        )
        top2 = udtaf(function, result_type=ROWS)
        found = multiset(counted.group_by("a").flat_aggregate(top2(col("n"))).select("a", "v", "place").to_arrow())
    assert (tmp_path / "calls").stat().st_size > 120
    assert found == of_counts(tables)


@pytest.mark.parametrize("function", [Top2(), Merging()], ids=["plain", "merging"])
def test_rows_of_windows(function):
    rng = random.Random(7)
    times = sorted(rng.sample(range(100_000), 60))
    rows = pa.table({
        "k": [rng.choice([1, 2]) for _ in times], "v": [rng.choice([None, 1, 2, 3, 4]) for _ in times],
        "ts": pa.array(times, pa.timestamp("ms")),
    })  # fmt: skip
    by_time, by_number = defaultdict(list), defaultdict(list)
    for key, value, time in zip(rows["k"].to_pylist(), rows["v"].to_pylist(), times, strict=True):
        by_time[key, time // 20_000].append(value)
        by_number[key].append(value)
    present = {window: [one for one in values if one is not None] for window, values in by_time.items()}
    wanted = Counter((key, number * 20, *row) for (key, number), v in present.items() for row in top_two(v))
    counted = Counter(
        (key, *row)
        for key, values in by_number.items()
        for start in range(0, len(values) - 4, 3)
        for row in top_two([one for one in values[start : start + 5] if one is not None])
    )
    top2 = udtaf(function, result_type=ROWS)
    for mode, options in (("batch", {}), ("streaming", {"actor_system": "sim"})):
        with TableEnvironment.create(mode=mode, parallelism=3, **options) as env:
            table = env.from_rows(rows, event_time="ts")
            window = Tumble.over(lit(20).seconds).on(col("ts")).alias("w")
            grouped = table.window(window).group_by(col("w"), col("k")).flat_aggregate(top2(col("v")).alias("x", "n"))
            found = grouped.select(col("k"), col("w").start, col("x"), col("n")).to_arrow()
            assert (
                Counter((k, at.minute * 60 + at.second, x, n) for k, at, x, n in multiset(found).elements()) == wanted
            )
            five = Slide.over(row_interval(5)).every(row_interval(3)).on(col("ts")).alias("w")
            grouped = table.window(five).group_by(col("w"), col("k")).flat_aggregate(top2(col("v")))
            assert multiset(grouped.select("k", "v", "place").to_arrow()) == counted


def test_rows_are_tuples_dicts_and_values():
    class Given(Top2):
        def __init__(self, rows):
            self._rows = rows

        def emit_value(self, accumulator):
            return self._rows

    with with_tables(TableEnvironment.create(mode="batch"), drawn(1)) as env:
        rows = env.from_path("l")
        for given, kind, wanted in (
            ([(1, 2), {"v": 3, "place": None}], ROWS, {(1, 2), (3, None)}), ([5, (6,)], "BIGINT", {(5,), (6,)}),
            (None, "STRING", set()), ([[1], []], "ARRAY<BIGINT>", {((1,),), ((),)}),
        ):  # fmt: skip
            made = rows.flat_aggregate(udtaf(Given(given), result_type=kind)(col("b"))).select("*").to_arrow()
            plain = [[tuple(one) if isinstance(one, list) else one for one in row.values()] for row in made.to_pylist()]
            assert set(map(tuple, plain)) == wanted
        for given, kind, message in (
            ([1], ROWS, "a row of 1 values; it has 2 columns"), ([("a", 1)], ROWS, "gave a value that is no list"),
            ([{"v": 1}], ROWS, "a row of 1 values"),
        ):  # fmt: skip
            with pytest.raises(HeadraceError, match=message):
                rows.flat_aggregate(udtaf(Given(given), result_type=kind)(col("b"))).select("*").to_arrow()


def test_of_no_rows_there_is_no_group():
    class Number(Retracting):
        def emit_value(self, accumulator):
            return [(len(accumulator),)]

    number = udtaf(Number(), result_type="BIGINT")
    for env in environments(drawn(6)):
        with env:
            gone = env.sql_query("SELECT n FROM (SELECT a, COUNT(*) AS n FROM l GROUP BY a) AS t WHERE n < 0")
            left = env.sql_query("SELECT n FROM (SELECT COUNT(*) AS n FROM l) AS t WHERE n = 1")
            for rows in (gone, left):
                assert rows.flat_aggregate(number(col("n"))).select("*").to_arrow().num_rows == 0


def test_in_sql_they_are_arrays():
    with with_tables(TableEnvironment.create(mode="batch"), drawn(2)) as env:
        env.create_temporary_function("top2", udtaf(Merging(), result_type=ROWS))
        in_sql = env.sql_query("""
            SELECT a, v, place FROM (SELECT a, top2(b) AS best FROM l GROUP BY a) CROSS JOIN UNNEST(best) AS t(v, place)
        """)
        in_methods = env.from_path("l").group_by("a").flat_aggregate(call("top2", col("b"))).select("a", "v", "place")
        assert multiset(in_sql.to_arrow()) == multiset(in_methods.to_arrow())


def test_what_cannot_be_done_is_refused():
    top2 = udtaf(Top2(), result_type=ROWS)
    with in_small_batches(TableEnvironment.create(actor_system="sim"), drawn(1), 3) as env:
        rows = env.from_path("l")
        with pytest.raises(ProgramError, match="a function that gives rows; 'EXPR"):
            rows.group_by("a").flat_aggregate(col("b").sum)
        with pytest.raises(ProgramError, match="there are two columns 'a'"):
            rows.group_by("a").flat_aggregate(top2(col("b")).alias("a"))
        with pytest.raises(ProgramError, match="gives 2 columns and gets 3 names"):
            rows.group_by("a").flat_aggregate(top2(col("b")).alias("x", "y", "z"))
        with pytest.raises(HeadraceError, match="inputs that take no rows back"):
            changing = env.sql_query("SELECT a, COUNT(*) AS n FROM l GROUP BY a")
            changing.flat_aggregate(top2(col("n"))).select("*").to_arrow()
        with pytest.raises(HeadraceError, match=r"function '.*\.emit_value'"):
            broken = udtaf(type("Broken", (Top2,), {"emit_value": lambda self, _: 1 // 0})(), result_type=ROWS)
            rows.flat_aggregate(broken(col("b"))).select("*").to_arrow()
    with pytest.raises(ProgramError, match="has a method emit_value"):
        udtaf(Longest(), result_type=ROWS)
    with pytest.raises(ProgramError, match="has a method get_value"):
        udaf(Top2(), result_type=ROWS)
    with pytest.raises(ProgramError, match="has a type"):
        udtaf(Top2())
