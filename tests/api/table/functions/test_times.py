"""Dates and times: what Flink gives for them."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest
from expression_kit import bound, column_of, value_of

from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment


@pytest.mark.parametrize(
    ("expression", "value", "kind"),
    [
        ("CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'America/Los_Angeles')", "1969-12-31 16:00:00", "STRING"),
        ("CONVERT_TZ('1970-01-01 08:00:00', 'GMT+08:00', 'UTC')", "1970-01-01 00:00:00", "STRING"),
        ("CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'PST')", "1969-12-31 16:00:00", "STRING"),
        ("CONVERT_TZ('nope', 'UTC', 'PST')", None, "STRING"),
        ("CONVERT_TZ('1970-01-01 00:00:00', 'UTC', 'Nowhere/X')", "1970-01-01 00:00:00", "STRING"),
        ("UNIX_TIMESTAMP('nope')", -9223372036854775808, "BIGINT"),
        (
            "TO_TIMESTAMP('2024-02-29 13:45:06.789')",
            dt.datetime.fromisoformat("2024-02-29 13:45:06.789000"),
            "TIMESTAMP(3)",
        ),
        ("TO_TIMESTAMP('2024-02-29')", dt.datetime.fromisoformat("2024-02-29 00:00:00"), "TIMESTAMP(3)"),
        (
            "TO_TIMESTAMP('2024-02-29 13:45:06.789123')",
            dt.datetime.fromisoformat("2024-02-29 13:45:06.789000"),
            "TIMESTAMP(3)",
        ),
        (
            "TO_TIMESTAMP('2024-02-29 13:45:06.789', 'yyyy-MM-dd HH:mm:ss.SSS')",
            dt.datetime.fromisoformat("2024-02-29 13:45:06.789000"),
            "TIMESTAMP(3)",
        ),
        ("TO_DATE('2024-2-9')", dt.date(2024, 2, 9), "DATE"),
        ("TO_DATE('20240229', 'yyyyMMdd')", dt.date(2024, 2, 29), "DATE"),
        ("TIMESTAMPADD(DAY, 1, DATE '2024-01-31')", dt.date(2024, 2, 1), "DATE"),
        ("DATE '2020-01-31' + INTERVAL '1' DAY", dt.date(2020, 2, 1), "DATE"),
        ("DATE '2020-01-31' + INTERVAL '30' HOUR", dt.date(2020, 2, 1), "DATE"),
        ("DATE '2020-01-31' - INTERVAL '1' SECOND", dt.date(2020, 1, 31), "DATE"),
        ("DATE '1970-01-01' - INTERVAL '1 12:00' DAY TO MINUTE", dt.date(1969, 12, 31), "DATE"),
        ("TIMESTAMPDIFF(QUARTER, DATE '2024-01-01', DATE '2024-12-31')", 3, "INT"),
        ("TIMESTAMPDIFF(WEEK, DATE '2024-01-01', DATE '2024-12-31')", 52, "INT"),
        ("TIMESTAMPDIFF(SECOND, TIMESTAMP '2024-01-01 00:00:00', TIMESTAMP '2023-12-31 23:59:58.5')", -1, "INT"),
        ("EXTRACT(HOUR FROM TIME '10:20:30')", 10, "BIGINT"),
        ("EXTRACT(EPOCH FROM TIMESTAMP '2024-01-01 00:00:00.5')", 1704067200, "BIGINT"),
        ("EXTRACT(MILLISECOND FROM TIMESTAMP '2024-01-01 00:00:01.567')", 567, "BIGINT"),
        ("EXTRACT(ISODOW FROM DATE '2024-01-07')", 7, "BIGINT"),
        ("EXTRACT(ISOYEAR FROM DATE '2021-01-01')", 2020, "BIGINT"),
        ("EXTRACT(DECADE FROM DATE '2021-01-01')", 202, "BIGINT"),
        ("EXTRACT(CENTURY FROM DATE '2021-01-01')", 21, "BIGINT"),
        ("EXTRACT(MILLENNIUM FROM DATE '2021-01-01')", 3, "BIGINT"),
        ("EXTRACT(MICROSECOND FROM TIMESTAMP '2024-01-01 00:00:01.567')", 567000, "BIGINT"),
        ("EXTRACT(NANOSECOND FROM TIMESTAMP '2024-01-01 00:00:01.567')", 567000000, "BIGINT"),
        ("EXTRACT(DOW FROM DATE '2024-02-25')", 1, "BIGINT"),
        ("EXTRACT(WEEK FROM DATE '2024-01-01')", 1, "BIGINT"),
        ("FLOOR(DATE '2024-02-29' TO MONTH)", dt.date(2024, 2, 1), "DATE"),
        (
            "FLOOR(TIMESTAMP '2024-02-29 13:45:06.789' TO WEEK)",
            dt.datetime.fromisoformat("2024-02-25 00:00:00"),
            "TIMESTAMP(3)",
        ),
        ("DATE_FORMAT('2024-02-29 13:45:06', 'yyyy')", "2024", "STRING"),
        ("FROM_UNIXTIME(44, 'yyyy')", "1970", "STRING"),
    ],
)
def test_an_expression_has_the_value_and_type_of_flink(expression, value, kind):
    assert value_of(expression) == (value, kind)


@pytest.mark.parametrize("unit", ["YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"])
def test_a_time_on_a_border_is_its_own_floor_and_ceiling(unit):
    times = pa.table({"t": pa.array([f"20{year}-01-01" for year in range(10, 40)]).cast(pa.timestamp("ms"))})
    floors = column_of(f"FLOOR(t TO {unit})", times)
    assert column_of(f"CEIL(CAST(FLOOR(t TO {unit}) AS TIMESTAMP(3)) TO {unit})", times).equals(floors)


def test_months_are_added_to_the_last_day_that_there_is():
    days = [dt.date(2024, 1, 31), dt.date(2024, 3, 31), dt.date(2024, 2, 29), dt.date(2024, 1, 1)]
    table = pa.table({"n": [1, -1, 12, None], "d": days})
    later = [dt.date(2024, 2, 29), dt.date(2024, 2, 29), dt.date(2025, 2, 28), None]
    assert column_of("TIMESTAMPADD(MONTH, n, d)", table).to_pylist() == later


@pytest.mark.parametrize(
    ("span", "months"),
    [("INTERVAL '2' MONTH", 2), ("INTERVAL '1-3' YEAR TO MONTH", 15), ("(INTERVAL '1' YEAR)", 12),
     ("INTERVAL '1' QUARTER", 3), ("-INTERVAL '5' MONTHS", -5), ("INTERVAL '-0-1' YEAR TO MONTH", -1)],
)  # fmt: skip
def test_intervals_of_months_are_added_and_taken_off(span, months):
    days = [dt.date(2024, 1, 31), dt.date(2023, 12, 1), dt.date(2024, 2, 29), None]
    moments = [None if day is None else dt.datetime.fromisoformat(f"{day} 07:08:09") for day in days]
    for kind, values in ((pa.date32(), days), (pa.timestamp("ms"), moments), (pa.timestamp("us"), moments)):
        table = pa.table({"t": pa.array(values, kind)})
        for text, count in ((f"t + {span}", months), (f"{span} + t", months), (f"t - {span}", -months)):
            assert column_of(text, table).equals(column_of(f"TIMESTAMPADD(MONTH, {count}, t)", table)), text
    assert value_of("DATE '2024-01-31' + INTERVAL '1' MONTH") == (dt.date(2024, 2, 29), "DATE")


def test_texts_that_are_no_times_are_null():
    table = pa.table({"t": ["2024-02-30", "2024-13-01 00:00:00", "", "2024-02-29 24:00:00", None, "2024-2-29T1:2:3"]})
    found = column_of("TO_TIMESTAMP(t)", table).to_pylist()
    assert found == [None] * 5 + [dt.datetime.fromisoformat("2024-02-29 01:02:03")]
    assert column_of("UNIX_TIMESTAMP(t)", table).to_pylist()[3:5] == [-(2**63), None]


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("DATE_FORMAT(DATE '2024-01-01', 'QQ')", "is not supported"),
        ("EXTRACT(FORTNIGHT FROM DATE '2024-01-01')", "a time has no"),
        ("FLOOR(DATE '2024-01-01' TO CENTURY)", "cannot be rounded"),
        ("INTERVAL '1' MONTH", "no fixed length"),
        ("INTERVAL '1' MONTH - DATE '2024-01-01'", "taken off an interval"),
        ("DATE '2024-01-01' + INTERVAL '1.5' MONTH", "no interval of MONTH"),
        ("DATE '2024-01-01' + INTERVAL '1' YEAR TO MONTH", "no interval of YEAR TO MONTH"),
        ("TIMESTAMPADD(ERA, 1, DATE '2024-01-01')", "no unit of time"),
        ("NOW()", "after each restart"),
        ("CURRENT_TIMESTAMP", "after each restart"),
    ],
)
def test_what_is_not_there_is_refused_when_planned(expression, error):
    with pytest.raises(SqlError, match=error):
        bound(expression)


def test_times_as_texts_are_those_of_python():
    """Times of one day or minute have one text: all patterns, before 1970 too, each beside its neighbours."""
    draw = random.Random(7)
    start, steps = dt.datetime.fromisoformat("1969-12-31 23:59:58"), (1, 999, 60_000, 86_399_000, 10**10)
    moments = [start + dt.timedelta(milliseconds=draw.choice(steps) * n) for n in range(-40, 40)]
    table = pa.table({"at": pa.array([*moments, None], pa.timestamp("ms"))})
    patterns = {
        "yyyy-MM-dd": "%Y-%m-%d", "HH:mm": "%H:%M", "ss": "%S", "yy DDD a hh": "%y %j %p %I", "'%M' dd": "%%M %d",
        "EEE": "%a",
    }  # fmt: skip
    with TableEnvironment.create(mode="batch") as env:
        env.create_temporary_view("t", table)
        for java, python in patterns.items():
            quoted = java.replace("'", "''")
            found = env.execute_sql(f"SELECT DATE_FORMAT(at, '{quoted}') AS x FROM t").to_arrow()["x"].to_pylist()
            assert found == [*(one.strftime(python) for one in moments), None], java
        found = env.execute_sql("SELECT DATE_FORMAT(at, 'HH.SSS') AS x FROM t").to_arrow()["x"].to_pylist()
        assert found == [*(f"{one:%H}.{one.microsecond // 1000:03}" for one in moments), None]
