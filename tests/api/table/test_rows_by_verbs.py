"""Verbs of tables that make rows of a row, tables under a name, and cuts of cuts, in both modes.

Families: differential (the same by plain loops, or by the query that says it), example (errors).
"""

from __future__ import annotations

import random

import pytest
from query_kit import in_small_batches, multiset, tables_of, with_tables

from headrace.engine.errors import ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, call, col, udf, udtf


@udtf(result_types=["STRING", "BIGINT"])
def letters(text):
    for place, letter in enumerate(text or ""):
        yield letter, place


@udtf(result_types="BIGINT")
def halves(number):
    return [] if number is None or number < 0 else [number // 2, number - number // 2]


both = udf(
    lambda a, b: (a, b, None if a is None or b is None else a + b), result_type="ROW<x BIGINT, y BIGINT, z BIGINT>"
)

ROWS = [(1, 2, "xy"), (None, -1, ""), (2, 3, None), (2, 4, "aab"), (3, 0, "x")] * 4


@pytest.fixture(params=["batch", "streaming"])
def t(request):
    tables = tables_of(ROWS, [(1, 2)])
    if request.param == "batch":
        made = with_tables(TableEnvironment.create(mode="batch", parallelism=2), tables)
    else:
        made = in_small_batches(TableEnvironment.create(parallelism=2, actor_system="sim"), tables, 3)
    with made:
        yield made


def bag(table):
    return sorted(multiset(table.to_arrow()).items(), key=str)


def counted(rows):
    found = {}
    for row in rows:
        found[row] = found.get(row, 0) + 1
    return sorted(found.items(), key=str)


def test_rows_are_made_of_rows(t):
    table = t.from_path("l")
    pairs = letters(col("c")).alias("letter", "place")
    made = [(a, letter, place) for a, _, c in ROWS for place, letter in enumerate(c or "")]
    assert bag(table.join_lateral(pairs).select("a", "letter", "place")) == counted(made)
    late = [row for row in made if row[2] > 0]
    assert bag(table.join_lateral(pairs, col("place") > 0).select("a", "letter", "place")) == counted(late)
    outer = made + [(a, None, None) for a, _, c in ROWS if not c]
    assert bag(table.left_outer_join_lateral(pairs).select("a", "letter", "place")) == counted(outer)
    assert bag(table.flat_map(pairs)) == counted(row[1:] for row in made)
    named = halves(col("b")).alias("half")
    assert bag(table.flat_map(named)) == counted((half,) for _, b, _ in ROWS if b >= 0 for half in (b // 2, b - b // 2))


def test_a_map_gives_the_fields_of_a_row(t):
    made = t.from_path("l").map(both(col("a"), col("b")).alias("p", "q"))
    assert made.schema.names == ["p", "q", "z"]
    assert bag(made) == counted((a, b, None if a is None else a + b) for a, b, _ in ROWS)
    assert bag(t.from_path("l").map(call("ABS", col("b")).alias("n"))) == counted((abs(b),) for _, b, _ in ROWS)


def test_rows_of_rows_that_change(t):
    counts = t.from_path("l").group_by("c").select("c", col("b").max.cast("BIGINT").alias("n"))
    made = counts.join_lateral(halves(col("n")).alias("half")).select("c", "half")
    best = {}
    for _, b, c in ROWS:
        best[c] = max(best.get(c, b), b)
    assert bag(made) == counted((c, half) for c, b in best.items() if b >= 0 for half in (b // 2, b - b // 2))


def test_a_table_has_a_name(t):
    t.create_temporary_view("some", t.from_path("l").where(col("b") > 0).select("a", "b"))
    assert bag(t.sql_query("SELECT s.a, COUNT(*) FROM some AS s JOIN some AS o ON s.b = o.b GROUP BY s.a")) == bag(
        t.sql_query("""
            WITH some AS (SELECT a, b FROM l WHERE b > 0)
            SELECT s.a, COUNT(*) FROM some AS s JOIN some AS o ON s.b = o.b GROUP BY s.a""")
    )
    assert "some" in [one[1] for one in t.execute_sql("SHOW VIEWS").collect()]
    with pytest.raises(SqlError, match="has no text"):
        t.execute_sql("SHOW CREATE VIEW some")
    with pytest.raises(ProgramError, match="has the event time of its rows"):
        t.create_temporary_view("other", t.from_path("l"), event_time="a")
    with TableEnvironment.create(mode="batch") as other, pytest.raises(ProgramError, match="of another environment"):
        other.create_temporary_view("foreign", t.from_path("l"))
    t.execute_sql("DROP TEMPORARY VIEW some")
    with pytest.raises(SqlError, match="there is no table 'some'"):
        t.from_path("some")


def test_cuts_of_cuts_keep_the_order(t):
    generator = random.Random(5)
    ordered = t.from_path("u").order_by(col("c").desc)
    rows = [f"{number:03}" for number in reversed(range(len(ROWS)))]
    for _ in range(4):
        table, left = ordered, rows
        for _ in range(generator.randint(1, 3)):
            count, offset = generator.randint(1, 12), generator.randint(0, 4)
            table, left = table.limit(count, offset), left[offset : offset + count]
        assert table.select("c").to_arrow()["c"].to_pylist() == left or sorted(
            table.select("c").to_arrow()["c"].to_pylist()
        ) == sorted(left)
    assert ordered.fetch(5).fetch(2).to_arrow()["c"].to_pylist() == rows[:2]


def test_what_is_no_table_function_is_refused(t):
    table = t.from_path("l")
    for function, message in (
        (letters(col("c")).alias("a", "b"), "two columns 'a'"),
        (letters(col("c")).alias("one"), "has 2 columns and gets 1 names"),
        (both(col("a"), col("b")), "there is no table function"),
    ):
        with pytest.raises((ProgramError, SqlError), match=message):
            table.join_lateral(function)
    with pytest.raises(ProgramError, match="a table function is called"):
        table.flat_map(letters)
    with pytest.raises(ProgramError, match="gives 3 columns and gets 4 names"):
        table.map(both(col("a"), col("b")).alias("p", "q", "r", "s"))
