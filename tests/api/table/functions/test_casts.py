"""CAST: what Flink gives for it, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from expression_kit import bound, column_of, value_of

from headrace.engine.errors import UserFunctionError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("CAST(ARRAY[1] AS ARRAY<STRING>)", ["1"], "ARRAY<STRING>"),
        ("CAST(ARRAY[1] AS STRING)", "[1]", "STRING"),
        ("CAST(MAP['a',1] AS STRING)", "{a=1}", "STRING"),
        ("CAST(ROW(1,'a') AS STRING)", "(1, a)", "STRING"),
        ("CAST(ROW(1,'a') AS ROW<x BIGINT, y STRING>)", {"x": 1, "y": "a"}, "ROW<`x` BIGINT, `y` STRING>"),
        ("CAST(TRUE AS INT)", 1, "INT"),
        ("CAST(1 AS BOOLEAN)", True, "BOOLEAN"),
        ("CAST('yes' AS BOOLEAN)", True, "BOOLEAN"),
        ("CAST('true' AS BOOLEAN)", True, "BOOLEAN"),
        ("CAST(TRUE AS DOUBLE)", 1.0, "DOUBLE"),
        ("CAST('abc' AS BYTES)", b"abc", "BYTES"),
        ("CAST(X'616263' AS STRING)", "abc", "STRING"),
        ("CAST(DATE '2024-01-01' AS TIMESTAMP)", dt.datetime.fromisoformat("2024-01-01"), "TIMESTAMP(6)"),
        ("CAST(TIMESTAMP '2024-01-01 10:00:00' AS DATE)", dt.date(2024, 1, 1), "DATE"),
        ("CAST(TIMESTAMP '2024-01-01 10:00:00.500' AS STRING)", "2024-01-01 10:00:00.500", "STRING"),
        ("CAST(CAST(DATE '2024-01-01' AS TIMESTAMP(6)) AS STRING)", "2024-01-01 00:00:00.000000", "STRING"),
        ("CAST(CAST(DATE '2024-01-01' AS TIMESTAMP(0)) AS STRING)", "2024-01-01 00:00:00", "STRING"),
        ("CAST(CAST(1.5 AS DOUBLE) AS STRING)", "1.5", "STRING"),
        ("CAST(1E20 AS STRING)", "1.0E20", "STRING"),
        ("CAST(CAST(1 AS DOUBLE) AS STRING)", "1.0", "STRING"),
        ("CAST(1E-5 AS STRING)", "1.0E-5", "STRING"),
        ("CAST(INTERVAL '1' DAY AS STRING)", "+1 00:00:00.000", "STRING"),
        ("CAST('1.5' AS INT)", 1, "INT"),
        ("CAST(' 12 ' AS INT)", 12, "INT"),
        ("CAST('abcdef' AS VARCHAR(3))", "abc", "STRING"),
        ("CAST('abc' AS CHAR(5))", "abc  ", "STRING"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize(
    "expression",
    [
        "CAST(1 AS ROW<a INT>)", "CAST('a' AS ARRAY<INT>)", "CAST(DATE '2024-01-01' AS INT)", "CAST(1 AS DATE)",
        "CAST(1 AS TIMESTAMP)", "CAST(TRUE AS TIMESTAMP)", "CAST(X'01' AS INT)", "CAST(1 AS BYTES)",
        "CAST(INTERVAL '1' DAY AS BIGINT)", "CAST(TIMESTAMP '2024-01-01 10:00:00' AS BIGINT)",
        "CAST(ARRAY[1] AS ARRAY<DATE>)", "CAST(ROW(1) AS ROW<a INT, b INT>)", "TRY_CAST(1 AS DATE)",
        "CAST(MAP['a', 1] AS ARRAY<INT>)",
    ],
)  # fmt: skip
def test_a_cast_that_nothing_can_pass_is_refused_when_planned(expression):
    with pytest.raises(SqlError, match="cannot be cast to") as refused:
        bound(expression)
    assert "hint" in str(refused.value) or refused.value.hint


def test_an_impossible_cast_in_a_query_has_a_caret():
    with TableEnvironment.create(mode="batch", parallelism=1) as env, pytest.raises(SqlError) as refused:
        env.execute_sql("SELECT CAST(3 AS ROW<a INT>)")
    assert "INT cannot be cast to ROW<`a` INT>" in str(refused.value)
    assert "^" in str(refused.value)


@pytest.mark.parametrize(
    "expression",
    [
        "CAST('x' AS INT)",
        "CAST('maybe' AS BOOLEAN)",
        "CAST('1e' AS DOUBLE)",
        "CAST('nan' AS DOUBLE)",
        "CAST(' -inf' AS FLOAT)",
    ],
)
def test_a_text_that_is_no_value_fails_or_is_null(expression):
    with pytest.raises(UserFunctionError, match="failed"):
        column_of(expression)
    assert column_of(f"TRY_{expression}").to_pylist() == [None]


def test_rows_are_cast_by_the_order_of_their_fields():
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    table = pa.table({"r": pa.array([{"a": 1, "b": "2"}, None], kind)})
    assert column_of("CAST(r AS ROW<b STRING, a BIGINT>)", table).to_pylist() == [{"b": "1", "a": 2}, None]


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1.0"), (0.1, "0.1"), (1e20, "1.0E20"), (-0.0, "-0.0"), (123456.789, "123456.789"), (1e7, "1.0E7"),
     (9999999.0, "9999999.0"), (0.001, "0.001"), (0.00012, "1.2E-4"), (float("nan"), "NaN"),
     (float("-inf"), "-Infinity")],
)  # fmt: skip
def test_floats_are_written_as_java_writes_them(number, text):
    assert column_of("CAST(f AS STRING)", pa.table({"f": [number]})).to_pylist() == [text]


def test_a_time_as_a_text_has_the_digits_of_its_type():
    moment = dt.datetime.fromisoformat("2024-01-01 10:00:00.500")
    for unit, text in (("s", "10:00:00"), ("ms", "10:00:00.500"), ("us", "10:00:00.500000")):
        for zone in (None, "UTC"):
            column = pa.array([moment]).cast(pa.timestamp("us", zone)).cast(pa.timestamp(unit, zone), safe=False)
            table = pa.table({"t": column, "a": pa.array([[one] for one in column], pa.list_(column.type))})
            assert column_of("CAST(t AS STRING)", table).to_pylist() == [f"2024-01-01 {text}"]
            assert column_of("CAST(a AS STRING)", table).to_pylist() == [f"[2024-01-01 {text}]"]


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("COALESCE(ROW(x, 'a'), ROW(2.5, 'bb'))", {"EXPR$0": Decimal("1.0"), "EXPR$1": "a"},
         "ROW<`EXPR$0` DECIMAL(20, 1), `EXPR$1` STRING>"),
        ("CASE WHEN x > 1 THEN ROW(1, NULL) ELSE ROW(NULL, 'b') END", {"EXPR$0": None, "EXPR$1": "b"},
         "ROW<`EXPR$0` INT, `EXPR$1` STRING>"),
        ("COALESCE(ARRAY[x], ARRAY[2.5])", [Decimal("1.0")], "ARRAY<DECIMAL(20, 1)>"),
        ("COALESCE(MAP['a', x], MAP['b', 2.5])", [("a", Decimal("1.0"))], "MAP<STRING, DECIMAL(20, 1)>"),
        ("COALESCE(ARRAY[ROW(1, MAP[1, x])], ARRAY[ROW(CAST(2 AS DOUBLE), MAP[2.5, 7])])",
         [{"EXPR$0": 1.0, "EXPR$1": [(Decimal("1.0"), 1)]}],
         "ARRAY<ROW<`EXPR$0` DOUBLE, `EXPR$1` MAP<DECIMAL(11, 1), BIGINT>>>"),
        ("(x, 2) = (1, 2)", True, "BOOLEAN"),
        ("(x, 2) IN ((2, 2), (1, 2.0))", True, "BOOLEAN"),
    ],
)  # fmt: skip
def test_rows_arrays_and_maps_come_together_part_by_part(expression, value, kind):
    assert value_of(expression) == (value, kind)


def test_rows_of_values_and_unions_have_one_type():
    values = "SELECT p, q FROM (VALUES (ROW(1, 'x'), 1), (NULL, 2), (ROW(2.5, 'yyy'), 3)) AS t(p, q)"
    union = "SELECT ROW(q, 'a') AS p, q FROM (VALUES (7)) AS t(q) UNION ALL SELECT ROW(2.5, NULL), 8"
    for mode in ("streaming", "batch"):
        with TableEnvironment.create(mode=mode, **({"actor_system": "sim"} if mode == "streaming" else {})) as env:
            rows = {row["q"]: row["p"] for row in env.execute_sql(values).to_arrow().to_pylist()}
            assert rows[1] == {"EXPR$0": Decimal("1.0"), "EXPR$1": "x"}
            assert rows[2] is None
            assert rows[3] == {"EXPR$0": Decimal("2.5"), "EXPR$1": "yyy"}
            rows = {row["q"]: row["p"] for row in env.execute_sql(union).to_arrow().to_pylist()}
            assert rows == {7: {"EXPR$0": Decimal("7.0"), "EXPR$1": "a"}, 8: {"EXPR$0": Decimal("2.5"), "EXPR$1": None}}


@pytest.mark.parametrize("expression", ["COALESCE(ROW(1), ROW(1, 2))", "COALESCE(ROW(1), ROW('a'))",
                                        "COALESCE(ARRAY[1], MAP[1, 2])"])  # fmt: skip
def test_parts_without_a_type_in_common_are_refused(expression):
    with pytest.raises(SqlError, match="no type in common"):
        bound(expression)
