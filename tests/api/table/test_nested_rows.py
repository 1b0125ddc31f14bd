"""Fields of rows: found at any depth, and only those that somebody reads come from the table."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.table import TableEnvironment

ROWS = [{"id": i, "r": {"a": i, "b": f"x{i}", "c": {"d": i * 2, "e": None}}} for i in range(5)] + [{"id": 9, "r": None}]
KIND = pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.struct([("d", pa.int64()), ("e", pa.int64())]))])


@pytest.fixture(params=["batch", "streaming"])
def env(request, tmp_path):
    options = {"actor_system": "local"} if request.param == "streaming" else {}
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, ROWS)))
    with TableEnvironment.create(mode=request.param, parallelism=2, **options) as made:
        made.execute_sql(f"""
            CREATE TABLE files (id BIGINT, r ROW<a BIGINT, b STRING, c ROW<d BIGINT, e BIGINT>>)
            WITH ('connector' = 'filesystem', 'path' = '{tmp_path / "rows.json"}', 'format' = 'json')
        """)
        made.create_temporary_view("given", pa.Table.from_pylist(ROWS, pa.schema([("id", pa.int64()), ("r", KIND)])))
        yield made


@pytest.mark.parametrize("table", ["files", "given"])
@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT r.c.d, id FROM {}", [(None, 9), *((i * 2, i) for i in range(5))]),
        ("SELECT t.r.c.d FROM {} AS t WHERE t.r.b = 'x3'", [(6,)]),
        ("SELECT r FROM {} WHERE r.a > 3", [(ROWS[4]["r"],)]),
        ("SELECT r IS NULL, r.a IS NULL, COUNT(*) FROM {} GROUP BY r IS NULL, r.a IS NULL",
         [(False, False, 5), (True, True, 1)]),
        ("SELECT COUNT(*) FROM {}", [(6,)]),
        ("SELECT x.r.b, y.r.c.d FROM {} AS x JOIN {} AS y ON x.id = y.r.c.d", [("x0", 0), ("x2", 2), ("x4", 4)]),
        ("SELECT s.c.d FROM (SELECT r AS s FROM {}) AS q WHERE s.a = 1", [(2,)]),
    ],
)  # fmt: skip
def test_fields_of_rows_are_found(env, table, query, rows):
    found = env.execute_sql(query.replace("{}", table)).to_arrow()
    given = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert sorted(given, key=str) == sorted(rows, key=str)


def test_only_what_is_read_comes_from_a_table():
    with TableEnvironment.create(actor_system="local") as env:
        env.create_temporary_view("given", pa.Table.from_pylist(ROWS, pa.schema([("id", pa.int64()), ("r", KIND)])))
        assert "reads only id, r(a, c)" in env.explain_sql("SELECT r.c.d AS x, r.a AS a FROM given WHERE id > 1")
        assert "reads only" not in env.explain_sql("SELECT * FROM given")
        assert "reads only id\n" in env.explain_sql("SELECT COUNT(*) FROM given") + "\n"


def test_a_computed_column_that_nobody_reads_is_not_computed(tmp_path):
    (tmp_path / "rows.json").write_text('{"id": 1}')
    with TableEnvironment.create(actor_system="local") as env:
        env.execute_sql(f"""
            CREATE TABLE t (id BIGINT, bad AS 1 / (id - 1))
            WITH ('connector' = 'filesystem', 'path' = '{tmp_path / "rows.json"}', 'format' = 'json')
        """)
        assert env.execute_sql("SELECT id FROM t").to_arrow().to_pylist() == [{"id": 1}]


def test_fields_are_taken_out_before_a_condition_copies_rows():
    kind = pa.schema([("id", pa.int64()), ("r", KIND), ("r.a", pa.string())])
    rows = [{**row, "r.a": f"own {row['id']}"} for row in ROWS]
    for mode in ("streaming", "batch"):
        options = {"actor_system": "local"} if mode == "streaming" else {}
        with TableEnvironment.create(mode=mode, **options) as env:
            env.create_temporary_view("given", pa.Table.from_pylist(rows, kind))
            query = "SELECT r.a + r.c.d AS x, `r.a` AS y, r.c AS c FROM given WHERE r.a > 2 AND id < 9"
            if mode == "streaming":
                above, below = env.explain_sql(query).rpartition("Plan of streams")[2].split("where ")
                assert "select x, y, c" in above
                assert "select r.a, id, r.c.d, r.a#1, r.c [I]" in below
            found = env.execute_sql(query).to_arrow().to_pylist()
            assert sorted(found, key=lambda row: row["x"]) == [
                {"x": i + i * 2, "y": f"own {i}", "c": {"d": i * 2, "e": None}} for i in (3, 4)
            ]


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_times_of_96_bits_are_read_in_the_unit_of_the_table(mode, tmp_path):
    texts = pa.array(["2999-01-02 03:04:05.678", "1969-12-31 23:59:59.998", None])
    column = texts.cast(pa.timestamp("ms"))  # nanoseconds of 64 bits end in 2262
    rows = pa.table({"t": column, "r": pa.StructArray.from_arrays([column], names=["u"])})
    pq.write_table(rows, tmp_path / "rows.parquet", use_deprecated_int96_timestamps=True)
    with TableEnvironment.create(mode=mode, **({"actor_system": "local"} if mode == "streaming" else {})) as env:
        env.execute_sql(f"""
            CREATE TABLE files (t TIMESTAMP(3), r ROW<u TIMESTAMP(3)>)
            WITH ('connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = 'parquet')
        """)
        found = env.execute_sql("SELECT t, r.u AS u FROM files").to_arrow().to_pylist()
    assert sorted(found, key=str) == sorted([{"t": time, "u": time} for time in column.to_pylist()], key=str)
