"""What cannot be run is refused where it stands: line, column, what was meant, and a way round."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.errors import ConfigurationError, ProgramError
from headrace.sql.parsing.errors import SqlError
from headrace.sql.parsing.parser import parse_statements
from headrace.table import TableEnvironment


@pytest.fixture
def env():
    with TableEnvironment.create(mode="batch", parallelism=2) as made:
        rows = pa.table({"auction": [1], "price": [2], "channel": ["a"], "at": pa.array([0], pa.timestamp("ms"))})
        made.create_temporary_view("bid", rows, event_time="at")
        made.create_temporary_view("plain", rows)
        made.create_temporary_view("numbers", pa.table({"n": [1]}))
        yield made


@pytest.mark.parametrize(
    ("query", "place", "message", "hint"),
    [
        ("SELECT auctoin FROM bid", (1, 8), "there is no column 'auctoin'", "did you mean 'auction'"),
        ("SELECT 1,\n  bid.x FROM bid", (2, 3), "table 'bid' has no column 'x'", "it has auction"),
        ("SELECT * FROM bidd", (1, 15), "there is no table 'bidd'", "did you mean 'bid'"),
        ("SELECT price + channel FROM bid", (1, 8), "+ cannot be applied to BIGINT and STRING", "CAST"),
        ("SELECT auction, COUNT(*) FROM bid", (1, 8), "auction is neither in GROUP BY nor in an aggregate", "GROUP BY"),
        ("SELECT upperr(channel) FROM bid", (1, 8), "there is no function upperr", "did you mean 'UPPER'"),
        ("SELECT SUBSTR(price, 1) FROM bid", (1, 8), "expected a text; got BIGINT", None),
        ("SELECT ABS() FROM bid", (1, 8), "ABS cannot be called with 0 arguments", "ABS(x)"),
        ("SELECT price FROM bid WHERE price", (1, 29), "expected a condition; got BIGINT", None),
        ("SELECT 1 FROM bid WHERE SUM(price) > 1", (1, 25), "SUM is an aggregate", None),
        ("SELECT 1 FROM bid, plain WHERE price = 1", (1, 32), "'price' could be bid.price or plain.price", "the table"),
        ("SELECT 1 FROM bid, numbers, plain WHERE n = price", (1, 45), "'price' could be bid.price or plain", None),
        ("SELECT CAST(price AS foo) FROM bid", None, "type foo is not supported", "BOOLEAN"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1 AS a", (1, 19), "CREATE OR REPLACE is not", "IF EXISTS"),
        ("SELECT price FROM bid\nQUALIFY price = 1", (2, 9), "QUALIFY goes by a call of OVER", "WHERE is a condition"),
        ("SELECT 1 FROM bid WHERE EXISTS (SELECT SUM(n) FROM numbers QUALIFY COUNT(*) OVER () > 1)", (1, 68),
         "QUALIFY is not supported behind an aggregate without GROUP BY in a subquery", "HAVING"),
        ("SELECT RANK(price) OVER (ORDER BY at) FROM bid", (1, 8), "RANK takes no arguments; got 1", None),
        ("SELECT NTILE(DISTINCT 2) OVER (ORDER BY at) FROM bid", (1, 8), "NTILE takes no DISTINCT", None),
        ("SELECT (SELECT COUNT(*) + bid.price FROM numbers WHERE n > price) FROM bid", (1, 16),
         "a column of the query around it beside an aggregate", "outside"),
        ("SELECT (SELECT SUM(bid.price) FROM numbers) FROM bid GROUP BY price", (1, 16),
         "an aggregate of the query around", "in FROM"),
        ("SELECT 1 FROM bid WHERE price IN ()", (1, 25), "IN () has no values", "FALSE"),
        ("SELECT 1 FROM bid WHERE price IN plain", (1, 25), "IN takes values in paren", "(SELECT ... FROM plain)"),
        ("SELECT * FROM bid JOIN plain USING (prize)", (1, 37), "no column 'prize'", "'price'"),
        ("SELECT ARRAY[price] < ARRAY[1] FROM bid", (1, 14), "have no order|no type in common", None),
        ("SELECT MIN(ARRAY[price]) FROM bid", (1, 8), "MIN of ARRAY<BIGINT> is not supported", "parts"),
        ("SELECT DISTINCT ARRAY[price] FROM bid", None, "cannot be grouped or joined by a value of type ARRAY", "CAST"),
        ("SELECT ARRAY[price] || 'x' FROM bid", (1, 14), "|| cannot be applied to ARRAY<BIGINT>", "ARRAY_CONCAT"),
        ("SELECT price FROM bid ORDER BY ARRAY[price]", None, "rows have no order by a value of type ARRAY", "parts"),
        ("SELECT *", None, "stands for the columns of FROM", None),
        ("SELECT * FROM bid MATCH_RECOGNIZE (x)", (1, 36), "expecting", None),
        ("SELECT CURRENT_TIMESTAMP", (1, 8), "another value after each restart", "from the records"),
        ("SELECT 1 FROM bid WHERE price IN (SELECT 1, 2)", (1, 25), "IN takes a query of one column; it has 2", None),
        ("SELECT (SELECT 1, 2)", None, "a subquery that is a value takes a query of one column; it has 2", None),
        ("SELECT MAX((SELECT 1)) FROM bid", None, "a subquery here is not supported", "outside of aggregates"),
        ("SELECT 1 FROM bid JOIN plain ON EXISTS (SELECT 1)", None, "a subquery here is not supported", "in SELECT"),
        ("SELECT (SELECT MAX(prize) FROM plain) FROM bid", (1, 20), "there is no column 'prize'", "'price'"),
        ("SELECT (SELECT 1 FROM plain WHERE bid.prize = 1) FROM bid", (1, 35), "no column 'prize'", "'price'"),
        ("SELECT (SELECT 1 FROM plain WHERE bid.prize > n) FROM bid", (1, 35), "no column 'prize'", "'price'"),
        ("SELECT 1 FROM bid WHERE price + 1 > ALL (SELECT channel FROM bid)", (1, 25), "no type in common", "CAST"),
        (
            "SELECT GROUPING(auction) FROM bid GROUP BY CUBE (price)", (1, 17), "auction is not in GROUP BY",
            "GROUPING takes expressions of GROUP BY",
        ),
        ("SELECT 1 FROM bid GROUP BY price WITH ROLLUP", None, "ROLLUP is not supported", "GROUP BY CUBE"),
        (
            f"SELECT 1 FROM bid GROUP BY CUBE ({', '.join(f'price + {i}' for i in range(11))})",
            None, "2048 sets of keys; at most 1024", "GROUPING SETS",
        ),
        ("SELECT 1 FROM bid TABLESAMPLE (10 ROWS)", None, "not supported", None),
        ("SELECT DISTINCT ON (price) price FROM bid", None, "not supported", None),
        ("SELECT * EXCEPT (price) FROM bid", (1, 8), "EXCEPT is not supported in STAR", None),
        ("SELECT MAXI(price) OVER (PARTITION BY price) FROM bid", None, "no function MAXI", "did you mean 'MAX'"),
        ("SELECT 1 FROM bid JOIN plain ON price = price", (1, 33), "'price' could be bid.price or", "the table"),
        (
            "SELECT 1 FROM bid AS a LEFT JOIN bid AS b JOIN bid AS c ON TRUE ON TRUE",
            None, "a join inside a join is not supported", "subquery",
        ),
        (
            "SELECT 1 FROM bid AS a, bid AS b RIGHT JOIN bid AS c ON TRUE",
            None, "RIGHT JOIN behind a comma is not supported", "in place of the comma",
        ),
        (
            "SELECT 1 FROM bid WHERE EXISTS (SELECT MAX(price) FROM plain HAVING COUNT(*) > 1)",
            (1, 40), "an aggregate with HAVING and without GROUP BY is not supported here", "FROM (SELECT",
        ),
        ("SELECT 1 FROM bid LIMIT 10 PERCENT", None, "not supported|no SQL|not expected", None),
        ("SELECT 1 FROM bid FOR SYSTEM_TIME AS OF at", None, "FOR SYSTEM_TIME AS OF is not supported", None),
        ("SELECT 1 FROM plain CROSS JOIN UNNEST(price)", None, "UNNEST takes an array or a map; got BIGINT", None),
        ("SELECT LAG(price) IGNORE NULLS OVER (ORDER BY price) FROM bid", None, "not supported", None),
        (
            "SELECT 1 FROM TABLE(TUMBLE(TABLE plain, DESCRIPTOR(at), INTERVAL '1' SECOND))",
            (1, 52), "'at' is not the event time", "WATERMARK FOR at",
        ),
        (
            "SELECT 1 FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at)))", None, "TUMBLE needs SIZE", "DATA, TIMECOL, SIZE",
        ),
        (
            "SELECT 1 FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(at), INTERVAL '3' SECOND, INTERVAL '10' SECOND))",
            None, "multiple of their step", None,
        ),
        ("SELECT DATE_FORMAT(at, 'QQ') FROM bid", (1, 8), "a letter 'Q' that is not supported", "yyyy"),
        ("SELECT a FROM (VALUES (1), (1, 2)) AS t(a)", None, "as many values each", None),
        ("SELECT a FROM (VALUES (1), ('x')) AS t(a)", None, "INT and STRING have no type in common", "CAST"),
        ("SELECT 1 UNION SELECT 1, 2", None, "as many columns on both sides", None),
        ("SELECT 1 EXCEPT SELECT 1, 2", None, "EXCEPT needs as many columns on both sides", None),
        (
            "SELECT DISTINCT price FROM bid ORDER BY auction",
            (1, 41), "ORDER BY of SELECT DISTINCT goes by what is selected", "select what it goes by",
        ),
        ("SELECT 1 FROM", None, "this is no SQL", None),
        ("SELEKT 1", (1, 1), "a query begins with SELECT", None),
        ("SELECT 'x", None, "this is no SQL", None),
    ],
)  # fmt: skip
def test_a_query_is_refused_with_its_place(env, query, place, message, hint):
    with pytest.raises(SqlError) as found:
        env.execute_sql(query)
    error = found.value
    if "|" in message:
        assert any(part in error.message for part in message.split("|"))
    else:
        assert message in error.message
    assert hint is None or hint in (error.hint or "")
    if place is not None:
        assert (error.line, error.column) == place
        shown = error.message.splitlines()
        assert shown[-1].index("^") == place[1] + 1
        assert shown[-2][2:] == query.splitlines()[place[0] - 1]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE t (a INT) WITH ('connector' = 'kafkaa')", "there is no connector 'kafkaa'"),
        ("CREATE TABLE t (a INT) WITH ('path' = 'x')", "table t needs option 'connector'"),
        ("CREATE TABLE t (a INT) WITH ('connector' = 'filesystem', 'path' = 'x')", "option 'format'"),
        ("CREATE TABLE t (a INT) WITH ('connector' = 'print', 'colour' = 'x')", "no option 'colour'"),
        ("CREATE TABLE t (a INT, a INT) WITH ('connector' = 'print')", "'a' is there twice"),
        ("CREATE TABLE t (a INT, WATERMARK FOR a AS a) WITH ('connector' = 'print')", "the event time is a TIMESTAMP"),
        ("CREATE TABLE t (a INT, WATERMARK FOR b AS b) WITH ('connector' = 'print')", "there is no column 'b'"),
        (
            "CREATE TABLE t (a TIMESTAMP(3), WATERMARK FOR a AS a + INTERVAL '1' SECOND) WITH ('connector' = 'print')",
            "less an interval",
        ),
        ("CREATE TABLE t (a INT, b AS c + 1) WITH ('connector' = 'print')", "there is no column 'c'"),
        ("CREATE TABLE t (a INT METADATA) WITH ('connector' = 'print')", "metadata"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a)) WITH ('connector' = 'print')", "NOT ENFORCED"),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH ('connector' = 'print')", "NOT ENFORCED"),
        (
            "CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED, b INT, PRIMARY KEY (b) NOT ENFORCED) WITH"
            " ('connector' = 'print')",
            "has one primary key",
        ),
        ("CREATE TABLE t (a INT, CONSTRAINT c UNIQUE (a)) WITH ('connector' = 'print')", "is its PRIMARY KEY"),
        ("CREATE TEMPORARY VIEW bid AS SELECT 1", "there is a table or view 'bid' already"),
        ("CREATE VIEW v (a, b) AS SELECT 1", "has 1 columns and gets 2 names"),
        ("CREATE FUNCTION f AS 'x'", "functions are made in Python"),
        ("CREATE MODEL m", "is not supported"),
        ("DROP VIEW plain", "'plain' is a table"),
        ("DROP TABLE nothing", "there is no table 'nothing'"),
        ("INSERT INTO nothing SELECT 1", "there is no table 'nothing'"),
        ("SET 'a' = 'b'", "there is no option 'a'"),
        ("DELETE FROM bid", "DELETE is not supported"),
    ],
)
def test_a_statement_is_refused(env, statement, message):
    with pytest.raises((SqlError, ConfigurationError, ProgramError), match=message.replace("(", r"\(")):
        env.execute_sql(statement)


def test_a_view_that_is_made_of_itself_is_refused(env):
    env.execute_sql("CREATE VIEW v AS SELECT 1 AS a")
    env.execute_sql("CREATE VIEW w AS SELECT * FROM v")
    env.execute_sql("DROP VIEW v")
    with pytest.raises(SqlError, match="there is no table 'v'"):
        env.execute_sql("CREATE VIEW v AS SELECT * FROM w")


@pytest.mark.usefixtures("no_garbage_search")
def test_deep_nesting_is_an_error_and_no_crash():
    for text in ("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, "SELECT " + "NOT " * 20_000 + "TRUE"):
        with pytest.raises(SqlError, match=r"nested too deeply|no SQL"):
            parse_statements(text)


def test_a_batch_program_refuses_a_table_without_end():
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql("CREATE TABLE t (event_type INT) WITH ('connector' = 'nexmark')")
        with pytest.raises(ProgramError, match="has no end"):
            env.execute_sql("SELECT * FROM t")


def test_an_insert_of_changes_into_files_is_refused(tmp_path):
    with TableEnvironment.create(actor_system="local") as env:
        env.create_temporary_view("t", pa.table({"a": [1]}))
        env.execute_sql(
            f"CREATE TABLE f (n BIGINT) WITH ('connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = 'csv')"
        )
        with pytest.raises(ProgramError, match="takes rows that only come"):
            env.execute_sql("INSERT INTO f SELECT COUNT(*) FROM t")


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO f SELECT 'x', 1",
        "INSERT INTO f SELECT 1",
        "INSERT INTO f (c) SELECT 1",
        "INSERT INTO f (a, a) SELECT 1, 2",
        "INSERT INTO f SELECT 1, 2.5",
        "INSERT INTO f SELECT CAST(1 AS DOUBLE), 2",
    ],
)
def test_an_insert_must_fit_its_table(query, tmp_path):
    options = f"'connector' = 'filesystem', 'path' = '{tmp_path}', 'format' = 'csv'"
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql(f"CREATE TABLE f (a BIGINT, b INT) WITH ({options})")
        with pytest.raises(SqlError):
            env.execute_sql(query)


def test_a_stream_is_ordered_by_what_is_selected():
    with TableEnvironment.create(actor_system="local") as env:
        env.create_temporary_view("t", pa.table({"a": [1, 2, 3], "b": [2, 3, 1]}))
        with pytest.raises(ProgramError, match="goes by columns of the result"):
            env.execute_sql("SELECT a FROM t ORDER BY b")
        found = env.execute_sql("SELECT b AS x, a FROM t ORDER BY b DESC").to_arrow()
        assert found["x"].to_pylist() == [3, 2, 1]
        assert env.execute_sql("SELECT a + 0 AS c, b FROM t ORDER BY b LIMIT 2").to_arrow()["b"].to_pylist() == [1, 2]
