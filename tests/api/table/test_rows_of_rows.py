"""Rows that are made of a row: elements of arrays and maps, and functions that give tables, in both modes."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from query_kit import in_small_batches, multiset, with_tables

from headrace.engine.errors import JobFailedError, UserFunctionError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udtf

TEXTS = [["x", "y"], [], None, ["z", None], ["x", "x", "y"]]
ROWS = [[{"p": 1, "q": "a"}, None], [], [{"p": None, "q": "b"}], None, [{"p": 2, "q": None}]]
MAPS = [[("a", 1), ("b", None)], [], None, [("c", 3)], [("a", 1)]]
TABLE = pa.table({
    "id": pa.array([1, 2, 3, 4, 5], pa.int64()),
    "texts": pa.array(TEXTS, pa.list_(pa.string())),
    "rows": pa.array(ROWS, pa.list_(pa.struct({"p": pa.int64(), "q": pa.string()}))),
    "map": pa.array(MAPS, pa.map_(pa.string(), pa.int64())),
})  # fmt: skip
# Two chunks, so that arrays begin somewhere in their values.
TABLES = {"t": pa.concat_tables([TABLE, TABLE.slice(1, 4)])}


@udtf(result_types=["STRING", "BIGINT"])
def pieces(text, more):
    """Each letter so often, with its place."""
    for place, letter in enumerate(text or ""):
        yield from [(letter, place)] * more


def in_mode(mode, query, rows=2):
    if mode == "batch":
        env = with_tables(TableEnvironment.create(mode="batch", parallelism=3), TABLES)
    else:
        env = in_small_batches(TableEnvironment.create(parallelism=3, actor_system="sim"), TABLES, rows)
    with env:
        env.create_temporary_function("pieces", pieces)
        return multiset(env.execute_sql(query).to_arrow())


def by_hand(column, made_of):
    rows = zip(TABLES["t"]["id"].to_pylist(), TABLES["t"][column].to_pylist(), strict=True)
    return Counter((number, *row) for number, value in rows for row in made_of(value))


both = pytest.mark.parametrize("mode", ["batch", "streaming"])


@both
def test_elements_of_an_array_are_rows(mode):
    query = "SELECT id, s, n FROM t CROSS JOIN UNNEST(texts) WITH ORDINALITY AS u(s, n)"
    expected = by_hand("texts", lambda texts: [(text, i + 1) for i, text in enumerate(texts or [])])
    assert in_mode(mode, query) == expected
    assert in_mode(mode, query.replace("CROSS JOIN", ",")) == expected


@both
def test_a_left_join_keeps_rows_without_elements(mode):
    query = "SELECT id, u.s FROM t LEFT JOIN UNNEST(t.texts) AS u(s) ON TRUE"
    assert in_mode(mode, query) == by_hand("texts", lambda texts: [(text,) for text in texts or [None]])


@both
def test_rows_in_arrays_and_entries_of_maps_are_columns(mode):
    expected = by_hand("rows", lambda rows: [((row or {}).get("p"), (row or {}).get("q")) for row in rows or []])
    assert in_mode(mode, "SELECT id, u.p, q FROM t CROSS JOIN UNNEST(t.`rows`) AS u") == expected
    expected = by_hand("map", lambda entries: list(entries or []))
    assert in_mode(mode, "SELECT id, k, v FROM t CROSS JOIN UNNEST(`map`) AS u(k, v)") == expected


@both
def test_elements_are_grouped_and_joined_like_other_rows(mode):
    query = """
        SELECT s, COUNT(*) AS n, MAX(id) AS m FROM t CROSS JOIN UNNEST(texts) AS u(s)
        WHERE s IS NOT NULL AND id < 5 GROUP BY s
    """
    assert in_mode(mode, query) == Counter([("x", 1, 1), ("y", 1, 1), ("z", 2, 4)])
    assert in_mode(mode, "SELECT s FROM UNNEST(ARRAY[3, 1 + 1, NULL]) AS u(s)") == Counter([(3,), (2,), (None,)])


@both
def test_a_table_function_gives_rows_of_a_row(mode):
    expected = Counter((number, letter, place) for number, letter, place in _letters() for _ in range(2))
    call = "LATERAL TABLE(pieces(s, 2)) AS p(letter, place)"
    rows = "(SELECT id, CONCAT('x', CAST(id AS STRING)) AS s FROM t WHERE id > 3) AS r"
    assert in_mode(mode, f"SELECT id, letter, place FROM {rows}, {call}") == expected
    assert in_mode(mode, f"SELECT id, letter, place FROM {rows} LEFT JOIN {call} ON TRUE") == expected
    one = in_mode(mode, "SELECT id, f0 FROM t LEFT JOIN LATERAL TABLE(pieces('', 1)) AS p ON TRUE WHERE id = 1")
    assert one == Counter([(1, None)])


def _letters():
    ids = [one for one in TABLES["t"]["id"].to_pylist() if one > 3]
    return [(number, letter, place) for number in ids for place, letter in enumerate(f"x{number}")]


@both
def test_what_was_made_of_a_row_is_taken_back_with_it(mode):
    """Rows below change as others come; what is made of them follows."""
    query = """
        SELECT n, letter, COUNT(*) AS c
        FROM (SELECT MOD(id, 2) AS k, COUNT(*) AS n, CAST(SUM(id) AS STRING) AS s FROM t GROUP BY MOD(id, 2)) AS g,
             LATERAL TABLE(pieces(s, n)) AS p(letter, place)
        GROUP BY n, letter
    """
    expected: Counter = Counter()
    ids = TABLES["t"]["id"].to_pylist()
    for rest in (0, 1):
        own = [one for one in ids if one % 2 == rest]
        for letter, number in Counter(str(sum(own))).items():
            expected[len(own), letter, number * len(own)] += 1
    assert in_mode(mode, query, rows=1) == expected


@both
def test_a_table_function_that_fails_is_told(mode):
    with pytest.raises((UserFunctionError, JobFailedError), match=r"TypeError: .*function 'pieces'.* record \("):
        in_mode(mode, "SELECT letter FROM t, LATERAL TABLE(pieces(id, 1)) AS p(letter, place)")


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_rows_go_into_columns_by_the_places_of_their_fields(mode, tmp_path):
    options = {"actor_system": "local"} if mode == "streaming" else {}
    t = TableEnvironment.create(mode=mode, parallelism=1, **options)
    t.execute_sql(f"""
        CREATE TABLE t (n BIGINT, r ROW<x DOUBLE, s STRING>, l ARRAY<ROW<y BIGINT>>, m MAP<STRING, ROW<z BIGINT>>)
        WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/t', 'format' = 'parquet')
    """)
    t.execute_sql("INSERT INTO t SELECT n, ROW(n, 'a'), ARRAY[ROW(n)], MAP['k', ROW(n)] FROM (VALUES (1), (2)) AS s(n)")
    rows = t.execute_sql("SELECT n, r.x AS x, r.s AS s, l[1].y AS y, m['k'].z AS z FROM t").to_arrow().to_pylist()
    assert sorted(rows, key=str) == [{"n": n, "x": float(n), "s": "a", "y": n, "z": n} for n in (1, 2)]
    with pytest.raises(SqlError, match="column 'r' of table 't' is ROW"):
        t.execute_sql("INSERT INTO t SELECT 1, ROW(1), ARRAY[ROW(1)], MAP['k', ROW(1)]")


@pytest.mark.parametrize(
    ("query", "message", "hint"),
    [
        ("SELECT 1 FROM t, UNNEST(id) AS u(x)", "UNNEST takes an array or a map; got BIGINT", None),
        ("SELECT 1 FROM t, UNNEST(texts) AS u(x, y)", "u has 1 columns and gets 2 names", None),
        ("SELECT 1 FROM t, UNNEST(texts, texts) AS u(x, y)", "UNNEST takes one array or map", "for each"),
        ("SELECT 1 FROM t RIGHT JOIN UNNEST(texts) AS u(x) ON TRUE", "RIGHT JOIN beside rows", "ON TRUE"),
        ("SELECT 1 FROM t LEFT JOIN UNNEST(texts) AS u(x) ON x = 'a'", "a condition beside rows", "WHERE"),
        ("SELECT 1 FROM t, LATERAL TABLE(piecess('a', 1)) AS p", "there is no table function piecess", "'pieces'"),
        ("SELECT 1 FROM t, LATERAL TABLE(pieces('a')) AS p", "cannot be called with 1 argument", "pieces(x, x)"),
        ("SELECT pieces('a', 1) FROM t", "pieces gives rows, and stands in FROM", "LATERAL TABLE"),
    ],
)
def test_what_gives_no_rows_is_refused(query, message, hint):
    with pytest.raises(SqlError) as found:
        in_mode("batch", query)
    assert message in found.value.message
    assert hint is None or hint in (found.value.hint or "")
