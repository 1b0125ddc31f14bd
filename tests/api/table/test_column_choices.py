"""Columns that are chosen by ranges and places, fields of rows, JSON of groups, views of the Table API.

Families: differential (the same query with its columns written out), behaviour, in batch and streaming mode.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import AggregateFunction, TableEnvironment, Tumble, udaf
from headrace.table import expressions as fn
from headrace.table.expressions import col, lit

ROWS = pa.table({
    "k": pa.array([1, 1, 2, 2, 2, None], pa.int64()),
    "a": pa.array([1, 2, 3, None, 5, 6], pa.int64()),
    "s": ["x", "y", None, "z", 'q"', "w"],
    "r": pa.array([{"n": i, "t": f"t{i}"} if i != 3 else None for i in range(6)]),
    "at": pa.array([0, 1_000, 2_000, 61_000, 62_000, 130_000], pa.timestamp("ms")),
})  # fmt: skip


@pytest.fixture(params=["batch", "streaming"])
def env(request):
    options = {"actor_system": "local"} if request.param == "streaming" else {}
    with TableEnvironment.create(mode=request.param, parallelism=2, **options) as made:
        yield made


def rows_of(table):
    return sorted((tuple(row.values()) for row in table.to_arrow().to_pylist()), key=str)


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (lambda t: t.select(fn.with_columns(fn.range_("a", "r"))), "SELECT a, s, r"),
        (lambda t: t.select(fn.with_columns(fn.range_(1, 2), col("at"))), "SELECT k, a, at"),
        (lambda t: t.select(fn.without_columns(fn.range_("s", "at"))), "SELECT k, a"),
        (lambda t: t.select(fn.with_columns(4, col("k")), col("a") + 1), "SELECT r, k, a + 1"),
        (lambda t: t.select(fn.with_columns(col("*"))), "SELECT *"),
        (lambda t: t.select(fn.without_columns(fn.with_columns(1, 2), col("s"))), "SELECT r, at"),
        (lambda t: t.select(fn.concat_ws("-", fn.with_columns(col("s"), 3), "e")), "SELECT CONCAT_WS('-', s, s, 'e')"),
        (lambda t: t.drop_columns(fn.range_("a", "s"), col("r")), "SELECT k, at"),
        (lambda t: t.add_or_replace_columns(fn.with_columns(1, 2), lit(1).alias("s")), "SELECT k, a, 1, r, at"),
        (lambda t: t.select(t.k, t.s), "SELECT k, s"),
        (lambda t: t.select(col("r").get(0), col("r").get(1).alias("b")), "SELECT r.n, r.t"),
        (
            lambda t: t.where(col("r").get(0) > 2).select(col("r").flatten, col("k")),
            "SELECT r.n, r.t, k FROM rows_of WHERE r.n > 2",
        ),
        (lambda t: t.select(fn.row(col("k"), "u").get(1)), "SELECT 'u'"),
        (lambda t: t.select(fn.array(col("k"), col("a"))[2]), "SELECT a"),
    ],
)  # fmt: skip
def test_columns_are_those_that_are_written_out(made, written, env):
    env.create_temporary_view("rows_of", ROWS)
    table = env.from_path("rows_of")
    query = written if "FROM" in written else f"{written} FROM rows_of"
    assert rows_of(made(table)) == rows_of(env.sql_query(query))


def test_columns_have_the_names_of_their_rows(env):
    table = env.from_arrow(ROWS)
    assert table.select(col("r").flatten, fn.with_columns(1)).schema.names == ["r$n", "r$t", "k"]
    grouped = table.group_by(fn.with_columns(fn.range_("k", "k"))).select(fn.with_columns(1), col("a").sum.alias("n"))
    assert rows_of(grouped) == [(1, 3), (2, 8), (None, 6)]


@pytest.mark.parametrize(
    ("made", "error", "text"),
    [
        (lambda t: t.select(fn.with_columns(fn.range_("s", "a"))), ProgramError, "column 's' is behind column 'a'"),
        (lambda t: t.select(fn.with_columns(fn.range_("aa", "s"))), ProgramError, "no column 'aa'"),
        (lambda t: t.select(fn.with_columns(6)), ProgramError, "columns 1 to 5; got 6"),
        (lambda t: t.select(fn.without_columns(col("*"))), ProgramError, "none is left"),
        (lambda t: t.select(fn.with_columns("a")), ProgramError, "columns are chosen by"),
        (lambda t: t.select(fn.with_columns(1).alias("x")), ProgramError, "a list of columns, which has no name"),
        (lambda t: t.order_by(fn.with_columns(1).desc), ProgramError, "which has no direction"),
        (lambda t: fn.range_("a", 2), ProgramError, "two names or two places"),
        (lambda t: t.select(col("r").get(2)), ProgramError, "has fields 0 to 1; got 2"),
        (lambda t: t.select(col("k").get(0)), ProgramError, "is no ROW; it is BIGINT"),
        (lambda t: list(col("k")), TypeError, "not iterable"),
        (lambda t: t.nope, AttributeError, "no attribute 'nope'"),
        (lambda t: t.select(fn.json_object_agg("NULL", col("k"), col("a"))), SqlError, "a name in JSON is a text"),
    ],
)  # fmt: skip
def test_mistakes_are_told(made, error, text):
    with TableEnvironment.create(mode="batch") as env, pytest.raises(error, match=text):
        made(env.from_arrow(ROWS))


def as_json(table):
    return {row["k"]: [json.loads(row[name]) for name in ("o", "l")] for row in table.to_arrow().to_pylist()}


@pytest.mark.parametrize("on_null", [fn.JsonOnNull.NULL, "ABSENT"])
def test_groups_are_json(on_null, env):
    table = env.from_arrow(ROWS).where(col("s").is_not_null)
    found = as_json(
        table.group_by(col("k")).select(
            col("k"),
            fn.json_object_agg(on_null, col("s"), col("a")).alias("o"),
            fn.json_array_agg(on_null, fn.json_object("NULL", "a", col("a"))).alias("l"),
        )
    )
    expected = {}
    for row in ROWS.to_pylist():
        if row["s"] is not None:
            names, values = expected.setdefault(row["k"], ({}, []))
            values.append({"a": row["a"]})
            if row["a"] is not None or on_null == "NULL":
                names[row["s"]] = row["a"]
    assert {key: (one, sorted(many, key=str)) for key, (one, many) in found.items()} == {
        key: (one, sorted(many, key=str)) for key, (one, many) in expected.items()
    }


def test_json_of_groups_follows_what_is_taken_back(env):
    env.create_temporary_view("rows_of", ROWS)
    sql = """SELECT n AS k, JSON_OBJECTAGG(CAST(k AS STRING) VALUE top) AS o, JSON_ARRAYAGG(top) AS l FROM
             (SELECT k, COUNT(*) AS n, MAX(a) AS top FROM rows_of WHERE k IS NOT NULL GROUP BY k) GROUP BY n"""
    assert as_json(env.sql_query(sql)) == {2: [{"1": 2}, [2]], 3: [{"2": 5}, [5]]}
    none = "SELECT JSON_ARRAYAGG(s NULL ON NULL) FILTER (WHERE a > 99) AS l, COUNT(*) AS n FROM rows_of"
    assert rows_of(env.sql_query(none)) == [("[]", 6)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("JSON_OBJECTAGG(s, a)", "takes a name and a value"),
        ("JSON_ARRAYAGG(a, k)", "takes a value"),
        ("JSON_ARRAYAGG(a) OVER (ORDER BY at)", "over a window is not supported"),
        ("JSON_ARRAYAGG(a RETURNING INT)", "takes no RETURNING"),
    ],
)
def test_calls_of_json_that_mean_nothing_are_refused(call, text):
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("rows_of", ROWS)
        with pytest.raises(SqlError, match=text):
            env.sql_query(f"SELECT {call} FROM rows_of")


def test_a_name_that_is_there_twice_fails_the_query(env):
    table = env.from_arrow(pa.table({"s": ["a", "a"], "n": [1, 2]}))
    with pytest.raises(Exception, match="'a' twice"):
        table.select(fn.json_object_agg("NULL", col("s"), col("n"))).to_arrow()


class Spread(AggregateFunction):
    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value)

    def merge(self, accumulator, others):
        for one in others:
            accumulator.extend(one)

    def get_value(self, accumulator):
        there = [one for one in accumulator if one is not None]
        return {"low": min(there), "high": max(there)}


def test_windows_are_aggregated_by_a_function(env):
    rows = env.from_rows(ROWS, event_time="at")
    spread = udaf(Spread(), result_type="ROW<low BIGINT, high BIGINT>")
    window = Tumble.over(lit(1).minutes).on(col("at")).alias("w")
    found = rows.window(window).group_by(col("w")).aggregate(spread(col("a")).alias("least", "most"))
    made = found.select(col("w").start, col("most") - col("least"))
    written = env.sql_query(f"SELECT TUMBLE_START(at, INTERVAL '1' MINUTE), MAX(a) - MIN(a) FROM {rows_named(env)} "
                            "GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)")  # fmt: skip
    assert rows_of(made) == rows_of(written)


def rows_named(env):
    env.create_temporary_view("timed", ROWS, event_time="at")
    return "timed"


def test_a_table_is_kept_as_a_view(env, tmp_path):
    table = env.from_arrow(ROWS).group_by(col("k")).select(col("k"), col("a").count.alias("n"))
    env.create_view("counts", table)
    env.create_view("counts", table, ignore_if_exists=True)
    with pytest.raises(SqlError, match="counts"):
        env.create_view("counts", table)
    assert rows_of(env.sql_query("SELECT n FROM counts WHERE k = 2")) == [(2,)]
    assert (env.list_views(), env.list_temporary_views()) == (["counts"], [])
    assert env.drop_view("counts")
    env.create_catalog("files", {"type": "file", "path": str(tmp_path)})
    env.use_catalog("files")
    with pytest.raises(SqlError, match="keeps texts"):
        env.create_view("counts", table)


def test_the_current_database_is_told(env):
    env.execute_sql("CREATE DATABASE shop")
    env.use_database("shop")
    assert rows_of(env.from_arrow(ROWS).limit(1).select(fn.current_database())) == [("shop",)]
