"""Hints: a join with one gives what it gives without, the plan says so, and no hint is left out silently."""

from __future__ import annotations

import pytest
from query_kit import SAMPLE, by_duckdb, in_batch_mode, in_streaming_mode, tables_of, with_tables

from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment

QUERY = "SELECT {} x.a, COUNT(*) FROM l AS x JOIN r ON x.a = r.a WHERE x.b > 0 GROUP BY x.a"
HINTS = "/*+ BROADCAST(r), shuffle_hash(x, r) */"


@pytest.fixture
def t():
    with with_tables(TableEnvironment.create(mode="batch"), tables_of(*SAMPLE)) as made:
        made.execute_script("""
            CREATE TABLE g (a INT) WITH ('connector' = 'datagen', 'number-of-rows' = '10');
            CREATE VIEW v AS SELECT * FROM g;
        """)
        yield made


def test_a_hint_changes_nothing_and_the_plan_says_so(t):
    tables = tables_of(*SAMPLE)
    wanted = by_duckdb(QUERY.format(""), tables)
    assert in_batch_mode(QUERY.format(HINTS), tables) == wanted
    assert in_streaming_mode(QUERY.format(HINTS), tables) == wanted
    plan = "\n".join(t.execute_sql(f"EXPLAIN {QUERY.format(HINTS)}").to_arrow()[0].to_pylist())
    assert "hint BROADCAST(r) changes nothing" in plan
    assert "hint SHUFFLE_HASH(x, r) changes nothing" in plan


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (QUERY.format("/*+ BRODCAST(r) */"), "there is no hint BRODCAST(.|\n)*did you mean 'BROADCAST'"),
        (QUERY.format("/*+ BROADCAST(l) */"), "'l', which is no table of FROM"),
        (QUERY.format("/*+ NEST_LOOP */"), "names no table of FROM"),
        (QUERY.format("/*+ STATE_TTL('xx' = '1d') */"), "'xx', which is no table of FROM(.|\n)*did you mean 'x'"),
        (QUERY.format("/*+ STATE_TTL('l' = '1d') */"), "'l', which is no table of FROM"),
        (QUERY.format("/*+ STATE_TTL('x' = 'soon') */"), "STATE_TTL: a duration must be"),
        (QUERY.format("/*+ STATE_TTL('x' = '-1 s') */"), "is not negative"),
        (QUERY.format("/*+ STATE_TTL(x) */"), "takes 'table' = 'duration'"),
        (QUERY.format("/*+ LOOKUP('table' = 'r') */"), "no table that is looked up here"),
        ("SELECT * FROM l /*+ OPTIONS('a' = 'b') */", "line 1, column 15: (.|\n)*is of tables that CREATE TABLE made"),
        ("SELECT * FROM v /*+ OPTIONS('a' = 'b') */", "is of tables that CREATE TABLE made"),
        ("WITH w AS (SELECT 1) SELECT * FROM w /*+ OPTIONS('a' = 'b') */", "is a query of WITH"),
        ("SELECT * FROM (SELECT 1) /*+ OPTIONS('a' = 'b') */", "was not expected here"),
        ("SELECT 1\nFROM g /*+ OPTIONS('number-of-row' = '3') */", "line 2, column 6: (.|\n)*'number-of-rows'"),
        ("SELECT * FROM g /*+ OPTIONS('number-of-rows' = 'x') */", "number-of-rows"),
        ("SELECT * FROM g /*+ OPTIONS('connector' = 'print') */", "cannot name another connector"),
        ("SELECT * FROM g /*+ OPTIONS(x) */", "takes 'key' = 'value'; got x"),
        ("SELECT * FROM g /*+ BROADCAST(g) */", "BROADCAST does not stand behind a table"),
        ("SELECT /*+ OPTIONS('a' = 'b') */ * FROM g", "line 1, column 8: (.|\n)*stands behind the name of a table"),
        ("INSERT INTO g /*+ OPTIONS('x' = 'b') */ SELECT 1", "line 1, column 15: (.|\n)*has no option 'x'"),
        ("SELECT * FROM l AS x /*+ OPTIONS('a' = 'b') */ JOIN r ON x.a = r.a", "was not expected here"),
    ],
)
def test_a_hint_that_means_nothing_here_is_refused(query, message, t):
    with pytest.raises(SqlError, match=message):
        t.execute_sql(query)


def test_a_comment_is_no_hint(t):
    assert t.execute_sql("SELECT /* + a */ a /* OPTIONS('a' = 'b') */ FROM l /* NEST_LOOP */").to_arrow().num_rows == 24


# -------------------------------------------------------------------------------------------------------------- OPTIONS
FILES = """CREATE TABLE {} (k INT, v INT, at TIMESTAMP(3){})
    WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'csv')"""
ROWS = {"a": [(1, 10, 0), (2, 20, 5)], "b": [(1, 11, 1), (3, 30, 7), (1, 12, 8)]}


@pytest.fixture(params=["batch", "streaming"])
def files(request, tmp_path):
    """The table ``t`` of one folder, of which there is another one."""
    for name, rows in ROWS.items():
        (tmp_path / name).mkdir()
        lines = [f"{k},{v},1970-01-01 00:00:{at:02}\n" for k, v, at in rows]
        (tmp_path / name / "rows.csv").write_text("".join(lines))
    options = {"actor_system": "local"} if request.param == "streaming" else {}
    with TableEnvironment.create(mode=request.param, parallelism=2, **options) as made:
        time = ", WATERMARK FOR at AS at - INTERVAL '1' MINUTE"
        made.execute_sql(FILES.format("t", time, tmp_path / "a"))
        made.execute_sql(FILES.format("o", "", tmp_path / "o"))
        made.execute_sql(FILES.format("versions", f"{time}, PRIMARY KEY (k) NOT ENFORCED", tmp_path / "nowhere"))
        yield made, tmp_path, f"/*+ OPTIONS('path' = '{tmp_path / 'b'}') */"


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT v FROM t {}", [11, 12, 30]),
        ("SELECT v FROM t", [10, 20]),
        ("SELECT x.v FROM t {} AS x WHERE x.k = 1", [11, 12]),
        ("SELECT y.v * 100 + x.v FROM t AS x JOIN t {} AS y ON x.k = y.k", [1110, 1210]),
        ("SELECT v FROM t UNION ALL SELECT v FROM t {}", [10, 11, 12, 20, 30]),
        ("SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE t {}, DESCRIPTOR(at), INTERVAL '5' SECOND)) "
         "GROUP BY window_start, window_end", [1, 2]),
        ("SELECT r.v FROM t AS x LEFT JOIN versions {} FOR SYSTEM_TIME AS OF x.at AS r ON x.k = r.k", [None, None]),
        ("SELECT r.v FROM t {} AS x JOIN versions {} FOR SYSTEM_TIME AS OF x.at AS r ON x.k = r.k", [11, 12, 30]),
        ("SELECT v FROM w", [11, 12, 30]),
    ],
)  # fmt: skip
def test_a_table_is_read_with_other_options_in_one_place(files, query, wanted):
    env, _, hint = files
    env.execute_sql(f"CREATE VIEW w AS SELECT v FROM t {hint}")
    found = env.execute_sql(query.replace("{}", hint)).to_arrow().column(0).to_pylist()
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_and_written(files):
    env, folder, _ = files
    env.execute_script(f"""
        EXECUTE STATEMENT SET BEGIN
            INSERT INTO o SELECT * FROM t;
            INSERT INTO o /*+ OPTIONS('path' = '{folder / "other"}') */ (k, at, v) SELECT k + 7, at, v FROM t;
        END;
    """)
    for name, wanted in (("o", [1, 2]), ("other", [8, 9])):
        lines = [line for path in (folder / name).glob("part-*") for line in path.read_text().splitlines()]
        assert sorted(int(line.partition(",")[0]) for line in lines) == wanted
