"""Functions and operators of SQL: what Flink's documentation says of them, and what they do with NULL."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.errors import UserFunctionError
from headrace.sql.functions.registry import FunctionRegistry
from headrace.sql.parsing.errors import SqlError
from headrace.sql.parsing.sql_types import sql_name
from headrace.table import TableEnvironment, udaf, udf, udtf


@pytest.fixture(scope="module")
def env():
    with TableEnvironment.create(mode="batch", parallelism=1) as made:
        made.create_temporary_view("one", pa.table({"x": [1]}))
        yield made


def at(text):
    """A time without a zone."""
    return dt.datetime.fromisoformat(text)


SEVENS = 38 * "7"


def value_of(env, expression):
    """The value of an expression, computed for a row of a table, and its type."""
    table = env.execute_sql(f"SELECT {expression} AS v FROM one").to_arrow()
    return table.column(0).to_pylist()[0], sql_name(table.schema.field(0).type)


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("1 + 2", 3, "INT"),
        ("1 + 9999999999", 10000000000, "BIGINT"),
        ("7 / 2", 3, "INT"),
        ("-7 / 2", -3, "INT"),
        ("MOD(-7, 3)", -1, "INT"),
        ("-7 % 3", -1, "INT"),
        ("7 / 2.0", Decimal("3.500000"), "DECIMAL(17, 6)"),
        ("1.5 * 2", Decimal("3.0"), "DECIMAL(13, 1)"),
        ("0.1 + 0.25", Decimal("0.35"), "DECIMAL(3, 2)"),
        ("1e0 / 4", 0.25, "DOUBLE"),
        ("CAST(7 AS DOUBLE) / 2", 3.5, "DOUBLE"),
        ("CAST(NULL AS INT) + 1", None, "INT"),
        ("TRUE AND NULL", None, "BOOLEAN"),
        ("FALSE AND NULL", False, "BOOLEAN"),
        ("TRUE OR NULL", True, "BOOLEAN"),
        ("NOT CAST(NULL AS BOOLEAN)", None, "BOOLEAN"),
        ("NULL IS NULL", True, "BOOLEAN"),
        ("1 IS NOT NULL", True, "BOOLEAN"),
        ("1 IN (2, NULL)", None, "BOOLEAN"),
        ("1 NOT IN (2, 3)", True, "BOOLEAN"),
        ("NULL IS DISTINCT FROM 1", True, "BOOLEAN"),
        ("1 = 1.0", True, "BOOLEAN"),
        ("'10' = CAST(10 AS STRING)", True, "BOOLEAN"),
        ("'a' || 'b' || NULL", None, "STRING"),
        ("'100%' LIKE '100!%' ESCAPE '!'", True, "BOOLEAN"),
        (r"'a\b' LIKE 'a\b'", True, "BOOLEAN"),
        ("'abc' SIMILAR TO '(a|x)%'", True, "BOOLEAN"),
        ("'a.c' SIMILAR TO 'a.c'", True, "BOOLEAN"),
        ("'abc' SIMILAR TO 'a.c'", False, "BOOLEAN"),
        ("CASE WHEN FALSE THEN 1 END", None, "INT"),
        ("CASE 2 WHEN 1 THEN 'a' WHEN 2 THEN 'b' ELSE 'c' END", "b", "STRING"),
        ("IF(1 < 2, 'yes', 'no')", "yes", "STRING"),
        ("NULLIF(1, 1)", None, "INT"),
        ("COALESCE(NULL, 2, 3)", 2, "INT"),
        ("GREATEST(1, 3, 2)", 3, "INT"),
        ("LEAST(1, NULL)", None, "INT"),
        # numbers
        ("ABS(-3)", 3, "INT"),
        ("SIGN(-2.5)", Decimal("-1.0"), "DECIMAL(2, 1)"),
        ("ROUND(2.675, 2)", Decimal("2.68"), "DECIMAL(4, 2)"),
        ("ROUND(-0.5)", Decimal("-1"), "DECIMAL(1, 0)"),
        ("TRUNCATE(42.345, 2)", Decimal("42.34"), "DECIMAL(5, 2)"),
        ("FLOOR(-1.5)", Decimal("-2"), "DECIMAL(2, 0)"),
        # What needs a digit more in front.
        ("FLOOR(CAST(-99999999.99 AS DECIMAL(10, 2)))", Decimal(-100000000), "DECIMAL(10, 0)"),
        ("CEIL(CAST(99.5 AS DECIMAL(3, 1)))", Decimal(100), "DECIMAL(3, 0)"),
        ("FLOOR(CAST(-1E-18 AS DECIMAL(38, 18)))", Decimal(-1), "DECIMAL(38, 0)"),
        (f"MOD(CAST('{SEVENS}' AS DECIMAL(38, 0)), CAST(1000003 AS DECIMAL(38, 0)))", Decimal(int(SEVENS) % 1000003),
         "DECIMAL(38, 0)"),
        # A FLOAT stays one beside integers, and becomes a DOUBLE beside decimals.
        ("CAST(0.1 AS FLOAT) - 1", float(np.float32(0.1) - np.float32(1)), "FLOAT"),
        ("CAST(3 AS BIGINT) * CAST(0.1 AS FLOAT)", float(np.float32(3) * np.float32(0.1)), "FLOAT"),
        ("CAST(0.5 AS FLOAT) + 1.5", 2.0, "DOUBLE"),
        ("COALESCE(CAST(0.5 AS FLOAT), 1)", 0.5, "FLOAT"),
        ("CAST(CAST(1E-18 AS DECIMAL(38, 18)) AS STRING)", "0.000000000000000001", "STRING"),
        ("TRY_CAST(12345 AS VARCHAR(3))", "123", "STRING"),
        ("TRY_CAST(1 AS CHAR(3))", "1  ", "STRING"),
        ("CAST(x = 1 AS DECIMAL(3, 1))", Decimal("1.0"), "DECIMAL(3, 1)"),
        ("CAST(' 12 ' AS DECIMAL(3, 1))", Decimal("12.0"), "DECIMAL(3, 1)"),
        ("CEIL(1.2)", Decimal("2"), "DECIMAL(2, 0)"),
        ("CEIL(CAST(0.5 AS DECIMAL(38, 38)))", Decimal(1), "DECIMAL(38, 0)"),
        ("FLOOR(CAST(-9.5 AS DECIMAL(38, 37)))", Decimal(-10), "DECIMAL(38, 0)"),
        ("ROUND(CAST(9.99 AS DECIMAL(38, 37)), 1)", Decimal("10.0"), "DECIMAL(3, 1)"),
        ("TRUNCATE(CAST(123.45 AS DECIMAL(5, 2)), -3)", Decimal(0), "DECIMAL(4, 0)"),
        ("FLOOR(7)", 7, "INT"),
        ("POWER(2, 10)", 1024.0, "DOUBLE"),
        ("SQRT(2.25)", 1.5, "DOUBLE"),
        ("LOG(2, 8)", 3.0, "DOUBLE"),
        ("LN(1)", 0.0, "DOUBLE"),
        ("PI()", math.pi, "DOUBLE"),
        ("BIN(5)", "101", "STRING"),
        ("HEX(255)", "FF", "STRING"),
        # texts
        ("CHAR_LENGTH('héllo')", 5, "INT"),
        ("UPPER('aé')", "AÉ", "STRING"),
        ("INITCAP('hello wORLD')", "Hello World", "STRING"),
        ("REVERSE('abc')", "cba", "STRING"),
        ("SUBSTRING('abcdef' FROM 2 FOR 3)", "bcd", "STRING"),
        ("SUBSTRING('abcdef' FROM -2)", "ef", "STRING"),
        ("SUBSTR('abc', 5)", "", "STRING"),
        ("SUBSTR('abc', x + 1)", "bc", "STRING"),
        ("TRIM('  a ')", "a", "STRING"),
        ("TRIM(LEADING 'x' FROM 'xxax')", "ax", "STRING"),
        ("LTRIM('  a ')", "a ", "STRING"),
        ("LPAD('hi', 4, '??')", "??hi", "STRING"),
        ("RPAD('hi', 1, 'x')", "h", "STRING"),
        ("REPLACE('hello world', 'world', 'flink')", "hello flink", "STRING"),
        ("OVERLAY('This is an old string' PLACING ' new' FROM 10 FOR 5)", "This is a new string", "STRING"),
        ("POSITION('is' IN 'This is')", 3, "INT"),
        ("LOCATE('x', 'abc')", 0, "INT"),
        ("REPEAT('ab', 3)", "ababab", "STRING"),
        ("SPLIT_INDEX('a,b,c', ',', 1)", "b", "STRING"),
        ("SPLIT_INDEX('a,b,c', ',', 3)", None, "STRING"),
        ("SPLIT_INDEX('a,b,c', ',', -1)", None, "STRING"),
        ("REGEXP_EXTRACT('foothebar', 'foo(.*?)(bar)', 2)", "bar", "STRING"),
        ("REGEXP_EXTRACT('x', 'y')", None, "STRING"),
        ("REGEXP_REPLACE('foobar', 'oo|ar', '')", "fb", "STRING"),
        ("REGEXP_REPLACE('ab', '(a)(b)', '$2$1')", "$2$1", "STRING"),
        ("REGEXP_REPLACE('ab', '(a)(b)', '\\2\\&')", "\\2\\&", "STRING"),
        ("REGEXP('abc', 'b')", True, "BOOLEAN"),
        ("CONCAT_WS('~', 'AA', NULL, 'BB')", "AA~BB", "STRING"),
        ("MD5('')", "d41d8cd98f00b204e9800998ecf8427e", "STRING"),
        ("TO_BASE64('hello world')", "aGVsbG8gd29ybGQ=", "STRING"),
        ("FROM_BASE64('aGVsbG8gd29ybGQ=')", "hello world", "STRING"),
        ("ASCII('abc')", 97, "INT"),
        ("CHR(97)", "a", "STRING"),
        ("LEFT('abc', 2) || RIGHT('abc', 1)", "abc", "STRING"),
        # times
        ("TIMESTAMP '2024-02-29 13:45:06.789'", at("2024-02-29 13:45:06.789000"), "TIMESTAMP(3)"),
        ("DATE '2024-02-29'", dt.date(2024, 2, 29), "DATE"),
        ("TIMESTAMP '2024-02-29 00:00:00' + INTERVAL '1' DAY", at("2024-03-01 00:00:00"), "TIMESTAMP(3)"),
        ("TIMESTAMP '2024-01-01 00:01:00' - INTERVAL '1:30' MINUTE TO SECOND",
         at("2023-12-31 23:59:30"), "TIMESTAMP(3)"),
        ("DATE_FORMAT(TIMESTAMP '2024-02-29 13:45:06.789', 'yyyy-MM-dd HH:mm:ss.SSS')", "2024-02-29 13:45:06.789",
         "STRING"),
        ("DATE_FORMAT(TIMESTAMP '2024-02-09 03:05:06', 'yy/MM/dd''T''hh')", "24/02/09T03", "STRING"),
        ("EXTRACT(DAY FROM DATE '2024-02-29')", 29, "BIGINT"),
        ("YEAR(TIMESTAMP '2024-02-29 13:45:06')", 2024, "BIGINT"),
        ("QUARTER(DATE '2024-05-01')", 2, "BIGINT"),
        ("DAYOFWEEK(DATE '2024-02-25')", 1, "BIGINT"),
        ("HOUR(TIMESTAMP '2024-02-29 13:45:06')", 13, "BIGINT"),
        ("FLOOR(TIMESTAMP '2024-02-29 13:45:06' TO HOUR)", at("2024-02-29 13:00:00"), "TIMESTAMP(3)"),
        ("CEIL(TIMESTAMP '2024-02-29 13:45:06' TO DAY)", at("2024-03-01 00:00:00"), "TIMESTAMP(3)"),
        ("TO_TIMESTAMP('2024-02-29 13:45:06')", at("2024-02-29 13:45:06"), "TIMESTAMP(3)"),
        ("TO_TIMESTAMP('29.02.2024', 'dd.MM.yyyy')", at("2024-02-29 00:00:00"), "TIMESTAMP(3)"),
        ("TO_TIMESTAMP('nonsense')", None, "TIMESTAMP(3)"),
        ("TO_DATE('2024-02-29')", dt.date(2024, 2, 29), "DATE"),
        ("FROM_UNIXTIME(0)", "1970-01-01 00:00:00", "STRING"),
        ("UNIX_TIMESTAMP('1970-01-02 00:00:00')", 86400, "BIGINT"),
        ("TIMESTAMPDIFF(DAY, DATE '2024-02-28', DATE '2024-03-01')", 2, "INT"),
        ("TIMESTAMPDIFF(MONTH, DATE '2024-01-31', DATE '2024-03-01')", 1, "INT"),
        ("TIMESTAMPADD(HOUR, 3, TIMESTAMP '2024-01-01 22:00:00')", at("2024-01-02 01:00:00"), "TIMESTAMP(3)"),
        # casts
        ("CAST('12' AS INT)", 12, "INT"),
        ("CAST(12.6 AS INT)", 12, "INT"),
        ("CAST(1 AS STRING)", "1", "STRING"),
        ("CAST(TRUE AS STRING)", "TRUE", "STRING"),
        ("CAST(1.005 AS DECIMAL(3, 2))", Decimal("1.01"), "DECIMAL(3, 2)"),
        ("TRY_CAST('x' AS INT)", None, "INT"),
        ("X'ff00'", b"\xff\x00", "BYTES"),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_and_type_of_flink(env, expression, value, kind):
    found = value_of(env, expression)
    assert found[0] == value or (isinstance(value, float) and math.isclose(found[0], value))
    assert found[1] == kind
    assert type(found[0]) is type(value)


@pytest.mark.parametrize(
    "expression", ["1 / (x - 1)", "2147483647 + CAST(x AS INT)", "CAST('x' AS INT)", "CAST(300 AS TINYINT)"]
)
def test_what_has_no_value_fails_and_names_the_expression(env, expression):
    with pytest.raises(UserFunctionError, match="failed"):
        value_of(env, expression)


def test_a_branch_of_case_sees_only_its_rows(env):
    assert value_of(env, "CASE WHEN x > 1 THEN 1 / (x - 1) ELSE 0 END")[0] == 0


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("n > 3 AND 12 / (n - 3) > 2", [4, 5, 6, 7]),
        ("n = 3 OR 12 / (n - 3) > 3", [3, 4, 5, 6]),
        ("NOT (n <= 3 OR 12 / (n - 3) <= 2)", [4, 5, 6, 7]),
        ("CAST(NULL AS BOOLEAN) AND n > 3", []),
    ],
)
def test_a_condition_guards_the_one_behind_it(condition, numbers):
    with TableEnvironment.create(mode="batch", parallelism=1) as env:
        env.create_temporary_view("t", pa.table({"n": [*range(9), None]}))
        found = env.execute_sql(f"SELECT n FROM t WHERE {condition}").to_arrow()
    assert sorted(found["n"].to_pylist()) == numbers


def test_functions_of_python_take_rows_or_arrays(env):
    @udf(result_type="BIGINT")
    def longer(text, by=1):
        return None if text is None else len(text) + by

    env.create_temporary_function("longer", longer)
    arrow = udf(lambda numbers: pa.array([n.as_py() * 2 for n in numbers]), result_type=pa.int64(), func_type="arrow")
    env.create_temporary_function("doubled", arrow)
    assert value_of(env, "longer('ab', 3)") == (5, "BIGINT")
    assert value_of(env, "LONGER('ab')") == (3, "BIGINT")
    assert value_of(env, "longer(CAST(NULL AS STRING))") == (None, "BIGINT")
    assert value_of(env, "doubled(x + 4)") == (10, "BIGINT")
    with pytest.raises(SqlError, match="cannot be called with 3 arguments"):
        value_of(env, "longer('a', 2, 3)")
    env.execute_sql("DROP FUNCTION longer")
    with pytest.raises(SqlError, match="there is no function"):
        value_of(env, "longer('ab')")


def test_functions_of_python_without_arguments(env):
    env.create_temporary_function("one", udf(lambda: 1, result_type="BIGINT"))
    env.create_temporary_function("two", udf(lambda: pa.array([2]), result_type="BIGINT", func_type="arrow"))
    assert value_of(env, "one()") == (1, "BIGINT")
    assert value_of(env, "two() + x") == (3, "BIGINT")


def test_functions_of_python_are_called_for_every_row(env):
    calls = iter(range(100))
    env.create_temporary_function("counter", udf(lambda: next(calls), result_type="BIGINT"))
    more = iter(range(100))
    env.create_temporary_function("counted", udf(lambda step: next(more) * step, result_type="BIGINT"))
    env.create_temporary_view("three", pa.table({"x": [7, 8, 9]}))
    found = env.execute_sql("SELECT x, counter() AS c, counted(2) AS d FROM three").to_arrow()
    assert len(set(found["c"].to_pylist())) == 3
    assert len(set(found["d"].to_pylist())) == 3


def _inverse(text, n):
    return 1 // n


class _Sum:
    """Fails at what is no number."""

    def create_accumulator(self):
        return [0]

    def accumulate(self, accumulator, n):
        accumulator[0] += 1 // n

    def get_value(self, accumulator):
        return accumulator[0]


FAILING = [
    ("SELECT bad(s, n) FROM some", "bad", "('c', 0)", "ZeroDivisionError"),
    ("SELECT n FROM some WHERE bad(s, n) > 0", "bad", "('c', 0)", "ZeroDivisionError"),
    ("SELECT wrong(n) FROM some", "wrong", "(0,)", "gave a value that is no BIGINT"),
    ("SELECT m FROM some, LATERAL TABLE(rows_of(n)) AS r(m)", "rows_of", "(0,)", "ZeroDivisionError"),
    ("SELECT total(n) FROM some", "total.accumulate", "(0,)", "ZeroDivisionError"),
    ("SELECT arrays(n) FROM some", "arrays", None, "KeyError"),
]


@pytest.mark.parametrize(("query", "function", "record", "message"), FAILING)
def test_a_function_of_python_that_fails_is_named_with_its_row(env, query, function, record, message):
    env.create_temporary_function("bad", udf(_inverse, result_type="BIGINT"))
    env.create_temporary_function("wrong", udf(lambda n: n or "none", result_type="BIGINT"))
    env.create_temporary_function("rows_of", udtf(lambda n: [1 // n], result_types="BIGINT"))
    env.create_temporary_function("total", udaf(_Sum(), result_type="BIGINT"))
    env.create_temporary_function("arrays", udf(lambda n: {}[0], result_type="BIGINT", func_type="arrow"))
    rows = pa.table({"s": ["a", "b" * 400, "c", "d"], "n": [1, 2, 0, 3]})
    env.execute_sql("DROP TEMPORARY TABLE IF EXISTS some")
    env.create_temporary_view("some", rows)
    with pytest.raises(UserFunctionError, match=message) as failed:
        env.execute_sql(query).to_arrow()
    context = failed.value.context
    assert (context["function"], context.get("record")) == (function, record)
    assert {"operator", "subtask"} <= context.keys()
    assert record is not None or context["rows"] == "4"


def test_all_functions_have_names_in_capitals():
    names = FunctionRegistry().names()
    assert len(names) > 100
    assert all(name == name.upper() for name in names)
