"""Catalogs: names of one to three parts, what is temporary, and tables that are there again after a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.errors import ConfigurationError
from headrace.sql.parsing.errors import SqlError
from headrace.sql.parsing.names import parts_of, path_of
from headrace.table import TableEnvironment


@pytest.fixture
def env():
    with TableEnvironment.create(mode="batch", parallelism=2) as made:
        yield made


def texts(env, statement):
    return env.execute_sql(statement).to_arrow().column(0).to_pylist()


def rows(env, query):
    return env.execute_sql(query).to_arrow().to_pylist()


def with_files(env, folder, name="kept"):
    env.execute_sql(f"CREATE CATALOG {name} WITH ('type' = 'file', 'path' = '{folder}')")


@given(st.lists(st.text(min_size=0, max_size=5), min_size=1, max_size=3))
def test_a_name_as_text_gives_its_parts_back(parts):
    assert parts_of(path_of(parts)) == tuple(parts)


def test_names_are_looked_up_where_they_stand(env):
    env.execute_script("""
        CREATE DATABASE other;
        CREATE CATALOG second WITH ('type' = 'generic_in_memory');
        CREATE DATABASE second.d;
        CREATE VIEW v AS SELECT 1 AS x;
        CREATE VIEW other.v AS SELECT 2 AS x;
        CREATE VIEW second.d.v AS SELECT 3 AS x;
    """)
    for name, x in (("v", 1), ("default_database.v", 1), ("default_catalog.other.v", 2), ("second.d.v", 3)):
        assert rows(env, f"SELECT v.x FROM {name}") == [{"x": x}]
    env.execute_sql("USE other")
    assert rows(env, "SELECT x FROM v") == [{"x": 2}]
    env.execute_script("USE CATALOG second; USE d")
    assert rows(env, "SELECT x FROM v") == [{"x": 3}]
    assert rows(env, "WITH v AS (SELECT 9 AS x) SELECT x FROM v") == [{"x": 9}]
    assert texts(env, "SHOW CURRENT CATALOG") + texts(env, "SHOW CURRENT DATABASE") == ["second", "d"]
    assert texts(env, "SHOW CATALOGS") == ["default_catalog", "second"]
    assert texts(env, "SHOW DATABASES") == ["d", "default"]
    assert texts(env, "SHOW DATABASES FROM default_catalog NOT LIKE 'o%'") == ["default_database"]
    assert texts(env, "SHOW TABLES FROM default_catalog.other") == ["v"]


def test_a_view_means_what_it_meant_where_it_was_made(env):
    env.execute_script("""
        CREATE VIEW t AS SELECT 1 AS x;
        CREATE VIEW v AS SELECT x FROM t;
        CREATE DATABASE d;
        USE d;
        CREATE VIEW t AS SELECT 2 AS x;
    """)
    assert rows(env, "SELECT v.x AS v, t.x AS t FROM default_database.v, t") == [{"v": 1, "t": 2}]


def test_what_is_temporary_hides_what_is_kept(env):
    env.execute_sql("CREATE VIEW v AS SELECT 1 AS x")
    env.create_temporary_view("v", pa.table({"x": [2]}))
    assert rows(env, "SELECT x FROM v") == [{"x": 2}]
    with pytest.raises(SqlError, match="temporary, and there is one that is kept") as caught:
        env.execute_sql("DROP TABLE v")
    assert "DROP TEMPORARY TABLE" in caught.value.hint
    env.execute_sql("DROP TEMPORARY TABLE v")
    assert rows(env, "SELECT x FROM v") == [{"x": 1}]
    with pytest.raises(SqlError, match="no temporary view 'v'"):
        env.execute_sql("DROP TEMPORARY VIEW v")
    env.execute_sql("DROP TEMPORARY VIEW IF EXISTS v")


def test_names_with_dots_stand_in_back_ticks(env):
    env.create_temporary_view("`a.b`", pa.table({"x": [1]}))
    env.execute_sql("CREATE VIEW `c.d` AS SELECT x + 1 AS y FROM `a.b`")
    assert env.from_path("`c.d`").to_arrow().to_pylist() == [{"y": 2}]
    assert env.execute_sql("DESCRIBE `c.d`").to_arrow().column(0).to_pylist() == ["y"]
    assert env.list_tables() == ["a.b", "c.d"]


def test_tables_of_a_folder_are_there_after_a_restart(tmp_path):
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        with_files(env, tmp_path / "kept")
        env.execute_script(f"""
            USE CATALOG kept;
            CREATE DATABASE shop;
            USE shop;
            CREATE TABLE bids (item STRING, price BIGINT, cents AS price * 100) -- with a computed column
              WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/bids', 'format' = 'csv');
            CREATE VIEW dear AS SELECT item, cents FROM bids WHERE price > 1;
            CREATE TEMPORARY VIEW passing AS SELECT 1 AS x;
            INSERT INTO bids VALUES ('a', 1), ('b', 2);
        """)
    with TableEnvironment.create(mode="batch", parallelism=2) as env:
        with_files(env, tmp_path / "kept", "again")
        assert texts(env, "SHOW TABLES FROM again.shop") == ["bids", "dear"]
        assert texts(env, "SHOW VIEWS FROM again.shop") == ["dear"]
        assert rows(env, "SELECT * FROM again.shop.dear") == [{"item": "b", "cents": 200}]
        [shown] = texts(env, "SHOW CREATE TABLE again.shop.bids")
        assert shown.startswith("CREATE TABLE bids (item STRING")
        assert shown.endswith("'format' = 'csv')")
        env.execute_sql("DROP TABLE again.shop.bids")
        with pytest.raises(SqlError, match="there is no table 'bids'"):
            env.execute_sql("SELECT * FROM again.shop.dear").to_arrow()
        env.execute_sql("DROP DATABASE again.shop CASCADE")
        assert texts(env, "SHOW DATABASES FROM again") == ["default"]
    assert not list((tmp_path / "kept" / "default").glob("*.sql"))
    assert not (tmp_path / "kept" / "shop").exists()


def test_no_name_leads_out_of_the_folder(env, tmp_path):
    with_files(env, tmp_path / "kept")
    env.execute_sql("USE CATALOG kept")
    names = ["..", ".", "../x", "a/b", ".hidden", "Ä ö", "a.sql", "%2E"]
    for name in names:
        env.execute_sql(f"CREATE VIEW `{name}` AS SELECT 1 AS x")
        env.execute_sql(f"CREATE DATABASE `{name}`")
        assert rows(env, f"SELECT x FROM `{name}`") == [{"x": 1}]
    assert env.list_tables() == sorted(names)
    assert texts(env, "SHOW DATABASES") == sorted([*names, "default"])
    assert {one.name for one in tmp_path.iterdir()} == {"kept"}


def test_of_two_that_create_the_same_table_one_is_refused(tmp_path):
    def create(index):
        with TableEnvironment.create(mode="batch") as env:
            with_files(env, tmp_path)
            try:
                env.execute_script(f"USE CATALOG kept; CREATE VIEW v AS SELECT {index} AS x")
            except SqlError as error:
                return error.message
            return index

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(create, range(8)))
    [winner] = [one for one in results if isinstance(one, int)]
    assert {one for one in results if one != winner} == {"there is a table or view 'v' already"}
    assert f"SELECT {winner} AS x" in (tmp_path / "default" / "v.sql").read_text()
    assert [one.name for one in (tmp_path / "default").iterdir() if one.name.endswith(".tmp")] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"CREATE VIEW v AS SELECT (1", "this is no SQL"),
        (b"CREATE VIEW w AS SELECT 1 AS x", "it makes 'w'"),
        (b"DROP TABLE v", "it holds one CREATE TABLE or CREATE VIEW"),
        (b"", "it holds one CREATE TABLE"),
        (b"CREATE VIEW v AS SELECT 1 AS x; CREATE VIEW v AS SELECT 2 AS x", "it holds one CREATE"),
        (b"CREATE TABLE v (x INT) WITH ('connector' = 'printt')", "there is no connector 'printt'"),
        (b"CREATE TABLE v LIKE w", "LIKE cannot be kept"),
        (b"\xff\xfe", "can't decode byte 0xff"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(env, tmp_path, content, message):
    with_files(env, tmp_path)
    (tmp_path / "default" / "v.sql").write_bytes(content)
    with pytest.raises(SqlError, match=message) as caught:
        env.execute_sql("SELECT * FROM kept.`default`.v")
    assert str(tmp_path / "default" / "v.sql") in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "message", "hint"),
    [
        ("USE CATALOG kpt", "there is no catalog 'kpt'", "did you mean 'kept'"),
        ("USE x.y", "there is no catalog 'x'", "default_catalog"),
        ("USE CATALOG default_catalog; USE defaul_database", "there is no database", "did you mean 'default_database'"),
        ("SELECT * FROM kept.`default`.x", "there is no table 'kept.default.x'", "there are none"),
        ("SELECT * FROM kept.d.x", "there is no database 'd'", "default"),
        ("SELECT * FROM nowhere.d.x", "there is no catalog 'nowhere'", "kept"),
        ("SELECT * FROM a.b.c.d", "has 4 parts", None),
        ("CREATE CATALOG kept WITH ('type' = 'generic_in_memory')", "a catalog 'kept' already", "IF NOT EXISTS"),
        ("CREATE DATABASE kept.`default`", "a database 'default' already", "IF NOT EXISTS"),
        ("CREATE DATABASE nowhere.d", "there is no catalog 'nowhere'", None),
        ("DROP CATALOG default_catalog", "is the current catalog", "USE CATALOG another"),
        ("DROP DATABASE default_database", "is the current database", None),
        ("DROP DATABASE kept.`default`", "is the default database", None),
        ("CREATE DATABASE d; CREATE VIEW d.v AS SELECT 1 AS x; DROP DATABASE d", "something in database", "CASCADE"),
        ("CREATE VIEW kept.`default`.v AS SELECT 1 AS x", "own database, which is not", "USE kept.default first"),
        (
            "CREATE TABLE p (x INT) WITH ('connector' = 'print'); CREATE TABLE kept.`default`.q LIKE p",
            "keeps no table that is LIKE", "write its columns",
        ),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(env, tmp_path, statement, message, hint):
    with_files(env, tmp_path)
    with pytest.raises(SqlError) as caught:
        for result in env.execute_script(statement):
            result.to_arrow()
    assert message in str(caught.value)
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'type' = 'fil'", "is one of generic_in_memory, file"),
        ("'type' = 'file'", "needs option 'path'"),
        ("'type' = 'generic_in_memory', 'path' = 'x'", "has no option 'path'"),
    ],
)
def test_options_of_catalogs_are_checked(env, options, message):
    with pytest.raises(ConfigurationError, match=message):
        env.execute_sql(f"CREATE CATALOG c WITH ({options})")


def test_if_exists_asks_for_nothing(env):
    env.execute_script("""
        DROP CATALOG IF EXISTS c; DROP DATABASE IF EXISTS d; DROP DATABASE IF EXISTS c.d;
        CREATE CATALOG IF NOT EXISTS default_catalog WITH ('type' = 'generic_in_memory');
        CREATE DATABASE IF NOT EXISTS default_database;
        CREATE VIEW v AS SELECT 1 AS x; CREATE VIEW IF NOT EXISTS v AS SELECT 2 AS x;
        CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT 3 AS x; CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT 4 AS x;
    """)
    assert rows(env, "SELECT x FROM v") == [{"x": 3}]


def test_what_a_table_is_made_of_is_shown_without_passwords():
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql("""
            CREATE TABLE t (k BIGINT) WITH ('connector' = 'jdbc', 'url' = 'jdbc:postgresql://h/d?password=p4ss',
                                            'table-name' = 't', 'username' = 'u', 'password' = 'p4ss ''p4ss')
        """)
        [shown] = texts(env, "SHOW CREATE TABLE t")
        assert "p4ss" not in shown
        assert "'table-name' = 't'" in shown
        with pytest.raises(SqlError) as raised:
            env.execute_sql("CREATE TABLE u (k BIGNT) WITH ('connector' = 'jdbc', 'password' = 'p4ss')")
        assert "p4ss" not in str(raised.value)
