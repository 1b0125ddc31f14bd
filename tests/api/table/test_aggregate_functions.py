"""Aggregate functions of Python, and aggregates of different values, in SQL and the Table API.

Families: differential (plain loops, DuckDB), example (windows, frames, errors).
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from statistics import median

import pyarrow as pa
import pytest
from campaigns import campaign
from query_kit import (
    FailsNowAndThen,
    by_duckdb,
    in_batch_mode,
    in_small_batches,
    in_streaming_mode,
    multiset,
    tables_of,
    with_tables,
)

from headrace import RestartStrategies
from headrace.engine.errors import HeadraceError, ProgramError, UserFunctionError
from headrace.sql.parsing.errors import SqlError
from headrace.table import AggregateFunction, TableEnvironment, Tumble, col, lit, udaf, udf


class Weighted(AggregateFunction):
    """An average that rows may be taken back from."""

    def create_accumulator(self):
        return [0, 0]

    def accumulate(self, accumulator, value, weight):
        self._add(accumulator, value, weight)

    def retract(self, accumulator, value, weight):
        self._add(accumulator, value, None if weight is None else -weight)

    def get_value(self, accumulator):
        return accumulator[0] / accumulator[1] if accumulator[1] else None

    def _add(self, accumulator, value, weight):
        if value is not None and weight is not None:
            accumulator[0] += value * weight
            accumulator[1] += weight


class MergedWeighted(Weighted):
    def merge(self, accumulator, others):
        for value, weight in others:
            accumulator[0] += value
            accumulator[1] += weight


class Longest(AggregateFunction):
    """Of rows that only come."""

    def create_accumulator(self):
        return {}

    def accumulate(self, accumulator, text):
        if text is not None:
            accumulator[text] = len(text)

    def get_value(self, accumulator):
        return max(accumulator, key=lambda text: (accumulator[text], text), default=None)


KEPT = [None, "ROW<total BIGINT, weights BIGINT>", "ARRAY<BIGINT>"]
FUNCTIONS = [(function, kept) for function in (Weighted(), MergedWeighted()) for kept in KEPT]


def weighted(rows):
    pairs = [(value, weight) for value, weight in rows if value is not None and weight is not None]
    divisor = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / divisor if divisor else None


def drawn(seed, num=60):
    generator = random.Random(seed)
    numbers = [None, *range(-2, 4)]
    rows = [
        (generator.choice(numbers), generator.choice(numbers), generator.choice([None, "", "x", "xy"]))
        for _ in range(num)
    ]
    return tables_of(rows, [(generator.choice(numbers), generator.choice(numbers)) for _ in range(num // 2)])


def environments(tables, seed=0):
    yield with_tables(TableEnvironment.create(mode="batch", parallelism=3), tables)
    yield in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=seed), tables, 3)


@pytest.mark.parametrize(("function", "kept"), FUNCTIONS)
def test_a_function_with_accumulators_gives_what_a_loop_gives(function, kept):
    tables = drawn(len(kept or ""))
    groups = defaultdict(list)
    for key, value, text in zip(*(one.to_pylist() for one in tables["l"].columns), strict=True):
        groups[key].append((value, 2 if text is None else len(text)))
    wanted = {
        (key, weighted(rows), weighted([row for row in rows if row[1] > 0]), weighted(set(rows)))
        for key, rows in groups.items()
    }
    for env in environments(tables):
        with env:
            env.create_temporary_function("wavg", udaf(function, result_type="DOUBLE", accumulator_type=kept))
            found = env.execute_sql("""
                SELECT a, wavg(b, w), wavg(b, w) FILTER (WHERE w > 0), wavg(DISTINCT b, w)
                FROM (SELECT a, b, CASE WHEN c IS NULL THEN 2 ELSE CHAR_LENGTH(c) END AS w FROM l) GROUP BY a
            """).to_arrow()
            assert set(multiset(found)) == wanted


def test_what_is_taken_back_is_retracted():
    tables = drawn(11)
    counts = defaultdict(int)
    for key, text in zip(tables["l"]["a"].to_pylist(), tables["l"]["c"].to_pylist(), strict=True):
        counts[key, text] += 1
    groups = defaultdict(list)
    for (key, _), number in counts.items():
        groups[key].append((number, 1))
    for env in environments(tables):
        with env:
            env.create_temporary_function("wavg", udaf(Weighted(), result_type="DOUBLE"))
            found = env.execute_sql(
                "SELECT a, wavg(n, 1) FROM (SELECT a, c, COUNT(*) AS n FROM l GROUP BY a, c) GROUP BY a"
            ).to_arrow()
            assert set(multiset(found)) == {(key, weighted(rows)) for key, rows in groups.items()}


@pytest.mark.parametrize("backend", ["heap", campaign("rocksdb")])
def test_accumulators_go_on_through_failures(backend, tmp_path):
    tables = drawn(4, 90)
    counts = defaultdict(int)
    for key, text in zip(tables["l"]["a"].to_pylist(), tables["l"]["c"].to_pylist(), strict=True):
        counts[key, text] += 1
    groups = defaultdict(list)
    for (key, _), number in counts.items():
        groups[key].append(number)
    with in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim", seed=5), tables, 3) as env:
        if backend == "rocksdb":
            env.stream_environment.set_state_backend(backend)
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        shaky = FailsNowAndThen(tmp_path / "calls", (30, 70))
        env.create_temporary_function("shaky", udf(shaky, result_type="BIGINT"))
        env.create_temporary_function("wavg", udaf(Weighted(), result_type="DOUBLE"))
        found = env.execute_sql("""
            SELECT shaky(a), wavg(n, 1), SUM(DISTINCT n)
            FROM (SELECT a, c, COUNT(*) AS n FROM l GROUP BY a, c) GROUP BY shaky(a)
        """).to_arrow()
    assert set(multiset(found)) == {(key, sum(v) / len(v), sum(set(v))) for key, v in groups.items()}


@pytest.mark.parametrize("function", [Weighted(), MergedWeighted()])
def test_overlapping_and_session_windows(function):
    generator = random.Random(8)
    seconds = sorted(generator.randrange(60) for _ in range(40))
    values = [generator.randrange(9) for _ in seconds]
    times = [dt.datetime(2026, 1, 1, 0, 0, second) for second in seconds]  # noqa: DTZ001
    rows = pa.table({"at": pa.array(times, pa.timestamp("ms")), "v": values})
    pairs = list(zip(seconds, values, strict=True))
    hops = {(start, sum(v) / len(v)) for start in range(-5, 60, 5)
            if (v := [value for at, value in pairs if start <= at < start + 10])}  # fmt: skip
    sessions, last = [], -100
    for at, value in pairs:
        if at - last > 3:
            sessions.append((at, []))
        sessions[-1][1].append(value)
        last = at
    for mode, options in (("batch", {}), ("streaming", {"actor_system": "sim"})):
        with TableEnvironment.create(mode=mode, parallelism=2, **options) as env:
            env.create_temporary_view("e", rows, event_time="at")
            env.create_temporary_function("mean", udaf(function, result_type="DOUBLE"))
            for window, wanted in (
                ("HOP(TABLE e, DESCRIPTOR(at), INTERVAL '5' SECOND, INTERVAL '10' SECOND)", hops),
                ("SESSION(TABLE e, DESCRIPTOR(at), INTERVAL '3' SECOND)", {(s, sum(v) / len(v)) for s, v in sessions}),
            ):
                query = f"SELECT window_start, mean(v, 1) FROM TABLE({window}) GROUP BY window_start, window_end"
                found = multiset(env.execute_sql(query).to_arrow())
                begin = dt.datetime(2026, 1, 1)  # noqa: DTZ001
                assert {((start - begin).total_seconds(), mean) for start, mean in found} == wanted


DISTINCT = [
    "SELECT a, SUM(DISTINCT b), AVG(DISTINCT CAST(b AS DOUBLE)), COUNT(DISTINCT b), SUM(b) FROM l GROUP BY a",
    """SELECT SUM(DISTINCT b) FILTER (WHERE a > 0), SUM(DISTINCT b),
        ROUND(VAR_POP(DISTINCT CAST(b AS DOUBLE)), 6) FROM l""",
    """SELECT m, SUM(DISTINCT n), SUM(DISTINCT n) FILTER (WHERE n > 2), COUNT(DISTINCT n) FROM (
        SELECT a, MAX(b) AS m, COUNT(*) AS n FROM l GROUP BY a) GROUP BY m""",
    """SELECT n, MAX(s) FROM (SELECT l.a AS a, COUNT(*) AS n, SUM(DISTINCT d) AS s
        FROM l LEFT JOIN r ON l.a = r.a GROUP BY l.a) GROUP BY n""",
]


@pytest.mark.parametrize("query", DISTINCT)
def test_different_values_are_those_of_duckdb(query):
    tables = drawn(len(query))
    wanted = by_duckdb(query, tables)
    assert in_batch_mode(query, tables) == wanted
    assert in_streaming_mode(query, tables) == wanted


def test_collections_of_different_values():
    query = """SELECT a, LISTAGG(DISTINCT c), ARRAY_AGG(DISTINCT b), COLLECT(DISTINCT b) FROM l GROUP BY a"""
    tables = drawn(5)
    groups = defaultdict(lambda: (set(), set()))
    for key, value, text in zip(*(one.to_pylist() for one in tables["l"].columns), strict=True):
        groups[key][0].add(text)
        groups[key][1].add(value)
    for env in environments(tables):
        with env:
            found = env.execute_sql(query).to_arrow()
        assert found.num_rows == len(groups)
        for key, texts, values, counted in zip(*(one.to_pylist() for one in found.columns), strict=True):
            there = groups[key][0] - {None}
            assert sorted((texts or "").split(",")) == sorted(there or [""])
            assert len(values) == len(set(values))
            assert set(values) == groups[key][1]
            assert dict(counted) == dict.fromkeys(groups[key][1] - {None}, 1)


def test_windows_and_columns_of_a_group():
    times = [dt.datetime(2026, 1, 1, 0, 0, second) for second in (1, 3, 9, 12, 14, 14, 27)]  # noqa: DTZ001
    rows = pa.table({"at": pa.array(times, pa.timestamp("ms")), "k": [1, 2, 1, 1, 2, 1, 1], "v": [3, 4, 5, 6, 7, 8, 9]})
    middle = udaf(lambda values: values.median(), result_type="DOUBLE", func_type="pandas")
    spread = udaf(lambda a, b: max(a.to_pylist()) - min(b.to_pylist()), result_type="BIGINT", func_type="arrow")
    plain, merged = (udaf(one(), result_type="DOUBLE") for one in (Weighted, MergedWeighted))
    groups = defaultdict(list)
    for time, key, value in zip(times, rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True):
        groups[key, time.second // 10 * 10].append(value)
    wanted = {
        (key, start, (sorted(v)[len(v) // 2] + sorted(v)[(len(v) - 1) // 2]) / 2, max(v) - min(v), sum(v) / len(v))
        for (key, start), v in groups.items()
    }
    for mode, options in (("batch", {}), ("streaming", {"actor_system": "sim"})):
        with TableEnvironment.create(mode=mode, parallelism=2, **options) as env:
            table = env.from_rows(rows, event_time="at")
            found = (
                table.window(Tumble.over(lit(10).seconds).on(col("at")).alias("w"))
                .group_by(col("w"), col("k"))
                .select(
                    col("k"),
                    col("w").start,
                    middle(col("v")),
                    spread(col("v"), col("v")),
                    plain(col("v"), 1),
                    merged(col("v"), 1),
                )
                .to_arrow()
            )
            got = multiset(found)
        assert {(key, start.second, *rest) for key, start, *rest in got} == {(*one, one[-1]) for one in wanted}


def test_a_row_of_results_becomes_columns():
    class Both(MergedWeighted):
        def get_value(self, accumulator):
            return tuple(accumulator)

    both = udaf(Both(), result_type="ROW<total BIGINT, weight BIGINT>")
    for env in environments(drawn(2)):
        with env:
            made = env.from_path("r").where(col("d").is_not_null).group_by(col("a")).aggregate(
                both(col("d"), 1).alias("s", "n")
            )  # fmt: skip
            found = made.select(col("a"), col("s"), col("n")).to_arrow()
            plain = env.sql_query("SELECT a, SUM(d) AS s, COUNT(d) AS n FROM r WHERE d IS NOT NULL GROUP BY a")
            assert multiset(found) == multiset(plain.to_arrow())


def test_no_rows_have_the_value_of_no_rows():
    class Number(AggregateFunction):
        def create_accumulator(self):
            return [0]

        def accumulate(self, accumulator):
            accumulator[0] += 1

        def get_value(self, accumulator):
            return accumulator[0]

    with with_tables(TableEnvironment.create(mode="batch"), drawn(1)) as env:
        env.create_temporary_function("number", udaf(Number(), result_type="BIGINT"))
        env.create_temporary_function("longest", udaf(Longest(), result_type="STRING"))
        found = env.execute_sql("SELECT number(), longest(c) FROM l WHERE a > 100").to_arrow()
        assert multiset(found) == {(0, None): 1}
        every = env.execute_sql("SELECT number(), longest(c) FROM l").to_arrow()
        assert multiset(every) == {(60, "xy"): 1}
        over = env.execute_sql("SELECT longest(c) OVER (ORDER BY c), SUM(DISTINCT b) OVER () FROM u").to_arrow()
        assert sorted(multiset(over)) == [(f"{number:03}", 3) for number in range(60)]


class Texts(Longest):
    def accumulate(self, accumulator, value):
        pass

    def get_value(self, accumulator):
        return "no number"


def test_a_subquery_of_no_rows_has_the_value_of_no_rows():
    class Sizes(Longest):
        def get_value(self, accumulator):
            return len(accumulator)

    query = "SELECT a, (SELECT sizes(c) FROM r JOIN l AS k ON r.a = k.a WHERE r.a = u.a AND d > 1) AS n FROM u"
    tables = drawn(3, 12)
    texts = defaultdict(set)
    for key, text in zip(tables["l"]["a"].to_pylist(), tables["l"]["c"].to_pylist(), strict=True):
        if any(
            a == key and (d or 0) > 1 for a, d in zip(*(one.to_pylist() for one in tables["r"].columns), strict=True)
        ):
            texts[key] |= {text} - {None}
    for env in environments(tables):
        with env:
            env.create_temporary_function("sizes", udaf(Sizes(), result_type="BIGINT"))
            found = env.execute_sql(query).to_arrow()
            wanted = [(key, 0 if key is None else len(texts[key])) for key in tables["u"]["a"].to_pylist()]
            assert sorted(multiset(found).elements(), key=str) == sorted(wanted, key=str)


OF_CHANGES = """SELECT a, LISTAGG(c, '-'), ARRAY_AGG(n), COLLECT(n), PERCENTILE(n, 0.5), LISTAGG(DISTINCT c),
    FIRST_VALUE(n) FILTER (WHERE b = 1), LAST_VALUE(c) FILTER (WHERE b = 2)
    FROM (SELECT a, b, COUNT(*) AS n, MAX(c) AS c FROM l GROUP BY a, b) AS t GROUP BY a"""


def test_collections_of_rows_that_change():
    tables = drawn(7)
    groups = defaultdict(list)
    for key, other, text in zip(*(one.to_pylist() for one in tables["l"].columns), strict=True):
        groups[key, other].append(text)
    rows = [
        (key, other, len(texts), max((one for one in texts if one is not None), default=None))
        for (key, other), texts in groups.items()
    ]
    wanted = {}
    for key in {key for key, *_ in rows}:
        own = [row for row in rows if row[0] == key]
        texts, counts = [row[3] for row in own if row[3] is not None], [row[2] for row in own]
        ends = [next((row[place] for row in own if row[1] == other), None) for other, place in ((1, 2), (2, 3))]
        wanted[key] = (sorted(texts), sorted(counts), Counter(counts), float(median(counts)), sorted(set(texts)), *ends)
    for env in environments(tables):
        with env:
            found = env.execute_sql(OF_CHANGES).to_arrow()
        got = {}
        for key, texts, counts, counted, middle, different, first, last in zip(
            *(one.to_pylist() for one in found.columns), strict=True
        ):
            parts = [
                [] if text is None else sorted(text.split(between))
                for text, between in ((texts, "-"), (different, ","))
            ]
            got[key] = (parts[0], sorted(counts), Counter(dict(counted)), middle, parts[1], first, last)
        assert got == wanted


CHANGED = "(SELECT a, COUNT(*) AS n, MAX(c) AS c FROM l GROUP BY a)"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"SELECT longest(c) FROM {CHANGED}", "inputs that take no rows back"),
        ("SELECT a, middle(b) FROM l GROUP BY a", "groups of a stream never end"),
        ("SELECT a, wavg(b) FROM l GROUP BY a", "cannot be called with 1 argument"),
        ("SELECT FIRST_VALUE(DISTINCT b) FROM l", "FIRST_VALUE\\(DISTINCT"),
        ("SELECT wavg(b, 1) + b FROM l", "neither in GROUP BY"),
        ("SELECT given(b) FROM l", "in place"),
        ("SELECT broken(b) FROM l", "ZeroDivisionError.*function 'broken.get_value'"),
        ("SELECT wrong(b) FROM l", "no int64"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(query, message):
    class Given(Longest):
        def accumulate(self, accumulator, value):
            return {**accumulator, "": value}

    class Broken(Longest):
        def accumulate(self, accumulator, value):
            pass

        def get_value(self, accumulator):
            return 1 // len(accumulator)

    with in_small_batches(TableEnvironment.create(actor_system="sim"), drawn(1, 6), 3) as env:
        made = {"longest": (Longest(), "STRING"), "wavg": (Weighted(), "DOUBLE"), "given": (Given(), "STRING"),
                "broken": (Broken(), "BIGINT"), "wrong": (Texts(), "BIGINT")}  # fmt: skip
        for name, (function, kind) in made.items():
            env.create_temporary_function(name, udaf(function, result_type=kind))
        env.create_temporary_function("middle", udaf(len, result_type="BIGINT", func_type="pandas"))
        with pytest.raises((SqlError, HeadraceError), match=message):
            env.execute_sql(query).to_arrow()


def test_a_function_that_is_none_is_refused():
    for given, message in (
        (Weighted, "not the class"),
        (len, "has a method create_accumulator"),
        (type("Open", (Weighted,), {"open": lambda self, context: None})(), "open of an aggregate function"),
    ):
        with pytest.raises(ProgramError, match=message):
            udaf(given, result_type="BIGINT")
    with pytest.raises(ProgramError, match="has a type"):
        udaf(Weighted())
    kept = udaf(MergedWeighted(), result_type="DOUBLE", accumulator_type="ARRAY<STRING>")
    with with_tables(TableEnvironment.create(mode="batch"), drawn(1)) as env:
        env.create_temporary_function("kept", kept)
        with pytest.raises(UserFunctionError, match="an accumulator is no list"):
            env.execute_sql("SELECT kept(b, 1) FROM l").to_arrow()
