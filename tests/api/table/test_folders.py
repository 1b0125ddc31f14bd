"""Tables with PARTITIONED BY: folders ``name=value``, written and read in both modes; Nexmark's q10."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from nexmark_kit import DATA, Q10
from query_kit import FailsNowAndThen

from headrace import RestartStrategies
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import HeadraceError, ProgramError, TypeMismatchError
from headrace.sql.parsing.errors import SqlError
from headrace.table import TableEnvironment, udf

FORMATS = ("parquet", "csv", "json", "orc", "avro")
OPTIONS = {"batch": {}, "streaming": {"actor_system": "local"}}


def environment(mode):
    return TableEnvironment.create(mode=mode, parallelism=2, **OPTIONS[mode])


def table(path, form, name="t"):
    return f"""
        CREATE TABLE {name} (d DATE, v BIGINT, k STRING, n INT, at TIMESTAMP(3)) PARTITIONED BY (k, d, n)
        WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = '{form}')
    """


def rows():
    days = (dt.date(2024, 5, 1), None)
    at = dt.datetime.fromisoformat("2024-05-01 10:00:00.250")
    return [(days[i % 2], i, ("a/b", "007", "2024-05-01", None)[i % 4], i % 3, at) for i in range(60)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.sampled(4)
def test_rows_are_written_into_folders_and_read_from_them_in_both_modes(mode, form, tmp_path):
    other = next(one for one in OPTIONS if one != mode)
    given = pa.table(list(map(pa.array, zip(*rows(), strict=True))), ["d", "v", "k", "n", "at"])
    with environment(mode) as env:
        env.create_temporary_view("given", given.set_column(4, "at", given["at"].cast(pa.timestamp("ms"))))
        env.execute_sql(table(tmp_path, form))
        env.execute_sql("INSERT INTO t SELECT d, v, k, CAST(n AS INT), at FROM given")
    assert {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*") if path.is_file()} == {
        f"k={k}/d={d}/n={n}"
        for k, d in (("a%2Fb", "2024-05-01"), ("007", "__HIVE_DEFAULT_PARTITION__"), ("2024-05-01", "2024-05-01"),
                     ("__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__"))
        for n in range(3)
    }  # fmt: skip
    for one in (mode, other):
        with environment(one) as env:
            env.execute_sql(table(tmp_path, form))
            everything = env.execute_sql("SELECT d, v, k, n, at FROM t").to_arrow()
            assert [str(kind) for kind in everything.schema.types[:4]] == ["date32[day]", "int64", "string", "int32"]
            assert Counter(zip(*(column.to_pylist() for column in everything.columns), strict=True)) == Counter(rows())
            some = env.execute_sql("SELECT v FROM t WHERE k = '007' AND n = 1").to_arrow()["v"].to_pylist()
            assert sorted(some) == [i for i in range(60) if i % 4 == 1 and i % 3 == 1]
            pairs = env.execute_sql("""
                SELECT a.i, t.v FROM (SELECT i, PROCTIME() AS p FROM (VALUES (1), (2)) AS a(i)) AS a
                JOIN t FOR SYSTEM_TIME AS OF a.p ON t.n = a.i AND t.k = '007' WHERE t.v < 20
            """).to_arrow()
            assert Counter(zip(pairs["i"].to_pylist(), pairs["v"].to_pylist(), strict=True)) == Counter(
                (i % 3, i) for i in range(20) if i % 4 == 1 and i % 3
            )
            counts = env.execute_sql("SELECT n, COUNT(*) AS c FROM t GROUP BY n").to_arrow().to_pylist()
            assert sorted((row["n"], row["c"]) for row in counts) == [(0, 20), (1, 20), (2, 20)]


# ---------------------------------------------------------------------------------------------------------- Nexmark q10


def all_bids():
    events = pq.read_table(DATA / "events.parquet", columns=["event_type", "bid"])
    return pa.Table.from_pylist(
        [row["bid"] for row in events.to_pylist() if row["event_type"] == 2],
        pa.schema(
            {"auction": "int64", "bidder": "int64", "price": "int64", "dateTime": pa.timestamp("ms"), "extra": "string"}
        ),
    )


class Bids:
    """Gives them by number."""

    def __init__(self, rows):
        self._rows = rows

    def __call__(self, start, length):
        return self._rows.slice(start, length).combine_chunks().to_batches()[0]


def submitted(path, given, parallelism, savepoint=None):
    """Run q10 as a job that writes folders, over bids that take about a second to come, and fail now and then."""
    env = TableEnvironment.create(parallelism=parallelism, actor_system="local")
    streams = env.stream_environment
    streams.enable_checkpointing(50, directory=path / "checkpoints")
    streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
    streams.set_max_parallelism(12)
    source = GeneratorSource.batches(Bids(given), given.num_rows, given.num_rows, number_of_splits=2, batch_size=200)
    env.create_temporary_view("given", streams.from_source(source, type_info=given.schema))
    calls = FailsNowAndThen(path / "calls", {9_000, 20_000})
    env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
    env.execute_script(f"""
        CREATE VIEW bid AS SELECT auction, bidder, shaky(price) AS price, `dateTime`, extra FROM given;
        CREATE TABLE q10 (
            auction BIGINT, bidder BIGINT, price BIGINT, `dateTime` TIMESTAMP(3), extra VARCHAR, dt STRING, hm STRING
        ) PARTITIONED BY (dt, hm) WITH ('connector' = 'filesystem', 'path' = '{path / "q10"}', 'format' = 'csv');
        SET 'table.dml-sync' = 'false';
        SET 'execution.checkpointing.savepoint-dir' = '{path / "savepoints"}';
    """)
    if savepoint is not None:
        env.execute_sql(f"SET 'execution.savepoint.path' = '{savepoint}'")
    return env, env.execute_sql(f"INSERT INTO q10 {Q10}").to_arrow().column(0)[0].as_py()


def test_bids_are_in_the_folder_of_their_minute_through_failures_and_at_another_parallelism(tmp_path):
    given = all_bids()
    env, job = submitted(tmp_path, given, 2)
    with env:
        deadline = time.monotonic() + 20
        while not (tmp_path / "calls").exists() or (tmp_path / "calls").stat().st_size < 13_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        savepoint = env.execute_sql(f"STOP JOB '{job}' WITH SAVEPOINT").to_arrow().column(0)[0].as_py()
    assert 0 < len(found_in(tmp_path / "q10")) < given.num_rows
    env, _ = submitted(tmp_path, given, 3, savepoint)
    with env:
        env._execution.jobs[-1].result()
    assert (tmp_path / "calls").stat().st_size >= given.num_rows + 2
    expected = Counter(
        (row["auction"], row["bidder"], row["price"], row["dateTime"], row["extra"],
         f"dt={row['dateTime']:%Y-%m-%d}/hm={row['dateTime']:%H}%3A{row['dateTime']:%M}")
        for row in given.to_pylist()
    )  # fmt: skip
    assert Counter(found_in(tmp_path / "q10")) == expected
    assert len({row[-1] for row in expected}) > 2


def found_in(path):
    """Rows with the folder that their file is in, by Arrow's own reader."""
    names = ["auction", "bidder", "price", "dateTime", "extra"]
    types = pacsv.ConvertOptions(
        column_types={"extra": pa.string(), "dateTime": pa.timestamp("ms")}, strings_can_be_null=False
    )
    found = []
    for file in sorted(path.rglob("part-*.csv")):
        if ".staging" not in file.parts:
            rows = pacsv.read_csv(file, pacsv.ReadOptions(column_names=names), convert_options=types)
            columns = [column.to_pylist() for column in rows.columns]
            found += [(*row, file.parent.relative_to(path).as_posix()) for row in zip(*columns, strict=True)]
    return found


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("columns", "by", "message"),
    [
        ("k STRING", "k", "leaves none for the files"),
        ("k STRING, v BIGINT", "k, k", "names a field twice"),
        ("k STRING, v BIGINT", "x", "there is no field 'x'"),
        ("k DOUBLE, v BIGINT", "k", "'k' of type double cannot be a folder"),
        ("_k STRING, v BIGINT", "_k", "cannot be a folder"),
    ],
)
def test_what_cannot_be_a_folder_is_refused_when_the_table_is_created(columns, by, message):
    with environment("batch") as env, pytest.raises((ProgramError, TypeMismatchError), match=message):
        env.execute_sql(
            f"CREATE TABLE t ({columns}) PARTITIONED BY ({by}) "
            "WITH ('connector' = 'filesystem', 'path' = '/nowhere', 'format' = 'csv')"
        )


def test_a_partition_is_no_part_of_an_insert(tmp_path):
    with environment("batch") as env:
        env.execute_sql(table(tmp_path, "csv"))
        with pytest.raises(SqlError, match=r"INSERT INTO \.\.\. PARTITION is not supported"):
            env.execute_sql("INSERT INTO t PARTITION (k = 'x') SELECT 1")


@pytest.mark.parametrize(("mode", "message"), [("batch", "'d' does not exist"), ("streaming", "in no folder k=")])
def test_a_file_that_is_in_no_folder_is_told(mode, message, tmp_path):
    (tmp_path / "a.csv").write_text("1,2024-05-01 10:00:00\n")
    with environment(mode) as env:
        env.execute_sql(table(tmp_path, "csv"))
        with pytest.raises(HeadraceError, match=message):
            env.execute_sql("SELECT * FROM t").to_arrow()
