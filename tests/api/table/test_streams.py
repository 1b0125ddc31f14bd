"""Queries over streams: windows, results that go on through failures, and tables that are written."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from campaigns import campaign
from nexmark_kit import QUERIES, as_multiset, auction_environment, expected
from query_kit import FailsNowAndThen

from headrace import RestartStrategies, RocksDBStateBackend
from headrace.connectors.datagen import GeneratorSource
from headrace.engine.errors import ProgramError
from headrace.table import TableEnvironment, udf
from headrace.table.connectors.changelog import ChangelogBlocks, behind
from headrace.table.lowering.streams import Streams

NUM_EVENTS = 600


class Events:
    """Events out of order by up to two seconds: number, key, time in ms."""

    def __call__(self, start: int, length: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + length)
        times = numbers * 97 + (numbers * 7919 % 2_000)
        return pa.record_batch({"id": numbers, "k": numbers * 31 % 5, "at": pa.array(times).cast(pa.timestamp("ms"))})


def rows() -> list[tuple[int, int, int]]:
    batch = Events()(0, NUM_EVENTS)
    times = batch.column("at").cast(pa.int64()).to_pylist()
    return list(zip(batch.column("id").to_pylist(), batch.column("k").to_pylist(), times, strict=True))


def environment(parallelism=2, delay="3 s", **options):
    """An environment with the events as view ``e``."""
    env = TableEnvironment.create(parallelism=parallelism, **{"actor_system": "local", **options})
    source = GeneratorSource.batches(Events(), NUM_EVENTS, number_of_splits=2, batch_size=40)
    stream = env.stream_environment.from_source(source, type_info=Events()(0, 1).schema)
    env.create_temporary_view("e", stream, event_time="at", delay=delay)
    return env


def windowed(query: str, **options) -> Counter:
    with environment(**options) as env:
        table = env.execute_sql(query).to_arrow()
    columns = [
        column.cast(pa.timestamp("ms")).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def by_hand(windows_of) -> Counter:
    """Counts per key and window, by a plain loop."""
    counted: Counter = Counter()
    for _, key, time in rows():
        for start, end in windows_of(time):
            counted[key, start, end] += 1
    return Counter((*place, number) for place, number in counted.items())


def test_tumbling_windows_with_an_offset():
    found = windowed("""
        SELECT k, window_start, window_end, COUNT(*) FROM TABLE(
            TUMBLE(DATA => TABLE e, TIMECOL => DESCRIPTOR(at), SIZE => INTERVAL '5' SECOND,
                   OFFSET => INTERVAL '1' SECOND)
        ) GROUP BY k, window_start, window_end
    """)

    def window(time):
        start = (time - 1_000) // 5_000 * 5_000 + 1_000
        return [(start, start + 5_000)]

    assert found == by_hand(window)


def test_hopping_windows():
    found = windowed("""
        SELECT k, window_start, window_end, COUNT(*)
        FROM TABLE(HOP(TABLE e, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '6' SECOND))
        GROUP BY k, window_start, window_end
    """)
    assert found == by_hand(lambda time: [(s, s + 6_000) for s in range((time // 2_000 - 2) * 2_000, time + 1, 2_000)])


def test_groups_by_a_border_under_two_names_are_those_of_batch_mode():
    rows = pa.table({"at": pa.array([1, 2, 5_500, 5_600, 9_000], pa.timestamp("ms"))})
    query = """
        SELECT s, t, COUNT(*) AS n FROM (
            SELECT window_start AS s, window_start AS t, window_end AS u
            FROM TABLE(TUMBLE(TABLE r, DESCRIPTOR(at), INTERVAL '5' SECOND))
        ) AS w GROUP BY s, t, u
    """
    found = []
    for options in ({"mode": "batch"}, {"actor_system": "sim"}):
        with TableEnvironment.create(parallelism=2, **options) as env:
            env.create_temporary_view("r", rows, event_time="at")
            found.append(sorted(env.execute_sql(query).to_arrow()["n"].to_pylist()))
    assert found == [[2, 3], [2, 3]]


@pytest.mark.parametrize("unit", ["s", "us"])
@pytest.mark.parametrize(
    "windows",
    [
        "CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '6' SECOND)",
        "CUMULATE(TABLE t, DESCRIPTOR(at), INTERVAL '0.5' SECOND, INTERVAL '2' SECOND)",
        "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(at), INTERVAL '2' SECOND)",
    ],
)
def test_times_of_any_unit_and_before_1970_fall_in_the_same_windows_in_both_modes(windows, unit):
    seconds = pa.array([-9, -7, -4, -3, 0, 1, 4, 5])
    times = seconds.cast(pa.timestamp("s")) if unit == "s" else pc.multiply(seconds, 1_000_123).cast(pa.timestamp(unit))
    rows = pa.table({"k": [1, 2] * 4, "at": times})
    query = f"""
        SELECT k, window_start, window_end, window_time, COUNT(*) AS n FROM TABLE({windows})
        GROUP BY k, window_start, window_end, window_time
    """
    found = []
    for options in ({"mode": "batch"}, {"actor_system": "sim"}):
        with TableEnvironment.create(parallelism=2, **options) as env:
            env.create_temporary_view("t", rows, event_time="at")
            found.append(sorted(env.execute_sql(query).to_arrow().to_pylist(), key=repr))
    assert found[0] == found[1]


def test_cumulating_windows():
    found = windowed("""
        SELECT k, window_start, window_end, COUNT(*)
        FROM TABLE(CUMULATE(TABLE e, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '6' SECOND))
        GROUP BY k, window_start, window_end
    """)

    def windows(time):
        start = time // 6_000 * 6_000
        return [(start, end) for end in range(start + 2_000, start + 6_001, 2_000) if end > time]

    assert found == by_hand(windows)


def test_cumulating_windows_are_given_once_and_go_on_in_event_time():
    query = """
        WITH steps AS (
            SELECT k, window_start AS s, window_end AS e, window_time AS t, COUNT(*) AS n FROM TABLE(
                CUMULATE(DATA => TABLE e, TIMECOL => DESCRIPTOR(at), STEP => INTERVAL '2' SECOND,
                         SIZE => INTERVAL '6' SECOND, OFFSET => INTERVAL '1' SECOND)
            ) GROUP BY k, window_start, window_end, window_time
        ) SELECT {}
    """
    with environment() as env:
        assert {kind for kind, *_ in env.execute_sql(query.format("k, s FROM steps")).collect()} == {"+I"}

    def windows(time):
        start = (time - 1_000) // 6_000 * 6_000 + 1_000
        return [(start, end) for end in range(start + 2_000, start + 6_001, 2_000) if end > time]

    steps = by_hand(windows)
    assert windowed(query.format("k, s, e, n FROM steps")) == steps
    outer = "window_start, SUM(n) FROM TABLE(TUMBLE(TABLE steps, DESCRIPTOR(t), INTERVAL '3' SECOND)) "
    sums: Counter = Counter()
    for _, _, end, number in steps.elements():
        sums[(end - 1) // 3_000 * 3_000] += number
    assert windowed(query.format(outer + "GROUP BY window_start, window_end")) == Counter(sums.items())


@pytest.mark.parametrize(
    "query",
    [
        """SELECT k, window_start, window_end, COUNT(*)
           FROM TABLE(SESSION(TABLE e PARTITION BY k, DESCRIPTOR(at), INTERVAL '1' SECOND))
           GROUP BY k, window_start, window_end""",
        """SELECT k, SESSION_START(at, INTERVAL '1' SECOND), SESSION_END(at, INTERVAL '1' SECOND), COUNT(*)
           FROM e GROUP BY k, SESSION(at, INTERVAL '1' SECOND)""",
    ],
)
def test_sessions(query):
    sessions: Counter = Counter()
    for key in range(5):
        times = sorted(time for _, one, time in rows() if one == key)
        start = last = times[0]
        count = 0
        for time in [*times, None]:
            if time is None or time - last > 1_000:
                sessions[key, start, last + 1_000, count] += 1
                start, count = time, 0
            last, count = time, count + 1
    assert windowed(query) == sessions


def test_windows_of_the_whole_stream():
    found = windowed("""
        SELECT window_start, window_end, COUNT(*), MAX(id)
        FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '5' SECOND)) GROUP BY window_start, window_end
    """)
    kept: dict[int, list[int]] = {}
    for number, _, time in rows():
        kept.setdefault(time // 5_000 * 5_000, []).append(number)
    assert found == Counter((start, start + 5_000, len(ids), max(ids)) for start, ids in kept.items())


def test_windows_over_results_of_windows():
    found = windowed("""
        WITH small AS (
            SELECT window_time AS t, COUNT(*) AS n
            FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '2' SECOND))
            GROUP BY window_start, window_end, window_time
        )
        SELECT window_start, MAX(n) FROM TABLE(TUMBLE(TABLE small, DESCRIPTOR(t), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end
    """)
    small = Counter(time // 2_000 * 2_000 for _, _, time in rows())
    large: dict[int, int] = {}
    for start, number in small.items():
        place = start // 10_000 * 10_000
        large[place] = max(large.get(place, 0), number)
    assert found == Counter(large.items())


def test_a_filter_above_windows_leaves_them_windows():
    query = """
        SELECT k, window_start, window_end, COUNT(*)
        FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '5' SECOND)) WHERE k > 2 AND k < 9
        GROUP BY k, window_start, window_end
    """
    with environment() as env:
        assert {kind for kind, *_ in env.execute_sql(query).collect()} == {"+I"}
    all_windows = by_hand(lambda time: [(time // 5_000 * 5_000, time // 5_000 * 5_000 + 5_000)])
    assert windowed(query) == Counter({row: count for row, count in all_windows.items() if row[0] > 2})


def test_sets_of_keys_are_grouped_in_windows():
    """Each window ends, and gives its rows once."""
    query = """
        SELECT k, id % 3, GROUPING(k), window_start, window_end, COUNT(*)
        FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '5' SECOND))
        GROUP BY window_start, window_end, ROLLUP (k, id % 3)
    """
    with environment() as env:
        assert {kind for kind, *_ in env.execute_sql(query).collect()} == {"+I"}
    counted: Counter = Counter()
    for number, key, time in rows():
        start = time // 5_000 * 5_000
        for group in ((key, number % 3, 0), (key, None, 0), (None, None, 1)):
            counted[(*group, start, start + 5_000)] += 1
    assert windowed(query) == Counter((*place, number) for place, number in counted.items())


def test_a_filter_above_sessions_moves_below_only_by_what_they_are_apart_by():
    query = """
        SELECT k, window_start, window_end, COUNT(*)
        FROM TABLE(SESSION(TABLE e PARTITION BY k, DESCRIPTOR(at), INTERVAL '1' SECOND))
        {} GROUP BY k, window_start, window_end
    """
    sessions = windowed(query.format(""))
    assert windowed(query.format("WHERE k > 2")) == Counter({row: n for row, n in sessions.items() if row[0] > 2})
    with environment() as env, pytest.raises(ProgramError, match="rows of SESSION windows"):
        env.execute_sql(query.format("WHERE id > 100")).to_arrow()


@pytest.mark.parametrize("windows", ["TUMBLE", "HOP"])
def test_windows_over_rows_in_windows_go_by_the_time_of_the_first(windows):
    """A row's event time is ``window_time``, which may fall in another window than the row's own time."""
    inner = {"TUMBLE": "INTERVAL '7' SECOND", "HOP": "INTERVAL '2' SECOND, INTERVAL '10' SECOND"}[windows]
    found = windowed(f"""
        WITH inside AS (SELECT k, window_time AS t FROM TABLE({windows}(TABLE e, DESCRIPTOR(at), {inner})))
        SELECT k, window_start, window_end, COUNT(*)
        FROM TABLE(TUMBLE(TABLE inside, DESCRIPTOR(t), INTERVAL '5' SECOND))
        GROUP BY k, window_start, window_end
    """)

    def ends(time):
        if windows == "TUMBLE":
            return [time // 7_000 * 7_000 + 7_000]
        return [start + 10_000 for start in range((time // 2_000 - 4) * 2_000, time + 1, 2_000)]

    def outer(time):
        starts = [(end - 1) // 5_000 * 5_000 for end in ends(time)]
        return [(start, start + 5_000) for start in starts]

    assert found == by_hand(outer)


def test_columns_of_windows_are_known_under_other_names():
    found = windowed("""
        SELECT from_, till, MAX(s) FROM (
            SELECT from_, till, CAST(till AS STRING) AS s FROM (
                SELECT window_start AS from_, window_end AS till
                FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(at), INTERVAL '5' SECOND))
            )
        ) GROUP BY from_, till
    """)
    starts = {time // 5_000 * 5_000 for _, _, time in rows()}
    assert found == Counter(
        (start, start + 5_000, f"1970-01-01 00:{(start // 1_000 + 5) // 60:02}:{(start // 1_000 + 5) % 60:02}.000")
        for start in starts
    )


def test_sessions_of_computed_keys():
    found = windowed("""
        SELECT k % 2, SESSION_START(at, INTERVAL '1' SECOND), COUNT(*) FROM e
        GROUP BY k % 2, SESSION(at, INTERVAL '1' SECOND)
    """)
    by_name = windowed("""
        WITH halves AS (SELECT k % 2 AS h, at FROM e)
        SELECT h, window_start, COUNT(*)
        FROM TABLE(SESSION(TABLE halves PARTITION BY h, DESCRIPTOR(at), INTERVAL '1' SECOND))
        GROUP BY h, window_start, window_end
    """)
    assert found == by_name
    assert sum(row[2] for row in found.elements()) == NUM_EVENTS


def test_windows_over_joined_rows_are_refused():
    with environment() as env, pytest.raises(ProgramError, match="no event time"):
        env.execute_sql("""
            WITH pairs AS (SELECT a.at FROM e AS a JOIN e AS b ON a.id = b.id)
            SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE pairs, DESCRIPTOR(at), INTERVAL '5' SECOND))
            GROUP BY window_start, window_end
        """).to_arrow()


def test_windows_over_changes_are_refused():
    with environment() as env, pytest.raises(ProgramError, match="takes rows that only come"):
        env.execute_sql("""
            WITH last AS (
                SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY id DESC) AS n FROM e) WHERE n = 1
            )
            SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE last, DESCRIPTOR(at), INTERVAL '5' SECOND))
            GROUP BY window_start, window_end
        """).to_arrow()


# ------------------------------------------------------------------------------------------------------------- failures


# A join, windows, distinct aggregates and Top-N. In campaigns also both backends, and queries of several of them.
IN_EVERY_RUN = (("q3", "rocksdb"), ("q15", "heap"), ("q19", "rocksdb"))


@pytest.mark.parametrize(
    ("query", "backend"),
    [
        each if each in IN_EVERY_RUN else campaign(*each)
        for each in product(("q3", "q4", "q7", "q9", "q15", "q19"), ("heap", "rocksdb"))
    ],
)
@pytest.mark.sampled(9)
def test_a_query_goes_on_through_failures(query, backend, tmp_path):
    with auction_environment("streaming", actor_system="local") as env:
        streams = env.stream_environment
        streams.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        streams.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        if backend == "rocksdb":
            streams.set_state_backend(RocksDBStateBackend())
        calls = FailsNowAndThen(tmp_path / "calls", {700, 1_300, 2_100})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW sure_auction AS SELECT * FROM auction")
        env.execute_sql("DROP VIEW auction")
        env.execute_sql("""
            CREATE VIEW auction AS
            SELECT shaky(auction.id) AS id, auction.itemName, auction.description, auction.initialBid, auction.reserve,
                   `dateTime`, auction.expires, auction.seller, auction.category, auction.extra
            FROM events WHERE event_type = 1
        """)
        env.execute_sql("DROP VIEW bid")
        env.execute_sql("""
            CREATE VIEW bid AS
            SELECT bid.auction, bid.bidder, CASE WHEN MOD(bid.price, 10) = 0 THEN shaky(bid.price) ELSE bid.price END
                   AS price, bid.channel, bid.url, `dateTime`, bid.extra
            FROM events WHERE event_type = 2
        """)
        assert as_multiset(env.execute_sql(QUERIES[query]).to_arrow()) == expected(query)
    # It failed twice at least: of 1,800 auctions there is a third time only if enough of them are repeated.
    assert (tmp_path / "calls").stat().st_size > 1_300


def test_files_are_written_exactly_once(tmp_path):
    options = f"'connector' = 'filesystem', 'path' = '{tmp_path / 'out'}', 'format' = 'parquet'"
    with environment() as env:
        env.stream_environment.enable_checkpointing(10, directory=tmp_path / "checkpoints")
        env.stream_environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 1))
        calls = FailsNowAndThen(tmp_path / "calls", {150, 420, 700})
        env.create_temporary_function("shaky", udf(calls, result_type="BIGINT"))
        env.execute_sql(f"CREATE TABLE out (k INT, id BIGINT) WITH ({options})")
        env.execute_sql("INSERT INTO out SELECT k, shaky(id) FROM e WHERE MOD(id, 3) > 0")
    found = pq.read_table(tmp_path / "out")
    assert found.schema.field("k").type == pa.int32()
    expected_rows = Counter((key, number) for number, key, _ in rows() if number % 3)
    assert Counter(zip(found["k"].to_pylist(), found["id"].to_pylist(), strict=True)) == expected_rows


# -------------------------------------------------------------------------------------------------------------- results


def test_changes_have_their_kinds_in_front():
    with TableEnvironment.create(parallelism=1, actor_system="local") as env:
        source = GeneratorSource.batches(lambda start, n: pa.record_batch({"v": [start % 2] * n}), 4, batch_size=1)
        env.create_temporary_view("t", env.stream_environment.from_source(source, type_info=pa.schema({"v": "int64"})))
        changes = list(env.execute_sql("SELECT v, COUNT(*) AS n FROM t GROUP BY v").collect())
    # How many records come at once is the engine's choice: the changes of a key are net.
    for key in (0, 1):
        of_key = [(kind, number) for kind, v, number in changes if v == key]
        assert of_key in ([("+I", 2)], [("+I", 1), ("-U", 1), ("+U", 2)])


def test_a_result_is_printed_as_flink_shows_it(capsys):
    with TableEnvironment.create(mode="batch") as env:
        env.execute_sql("SELECT a, b FROM (VALUES (1, 'x'), (2, NULL)) AS t(a, b)").print()
    assert capsys.readouterr().out == "op[a INT, b STRING]\n+I[1, x]\n+I[2, null]\n"


def test_statements_tell_what_there_is():
    with environment() as env:
        env.execute_sql("CREATE VIEW v (a) AS SELECT id FROM e")
        assert env.execute_sql("SHOW TABLES").to_arrow().column(0).to_pylist() == ["e", "v"]
        assert env.execute_sql("SHOW VIEWS").to_arrow().column(0).to_pylist() == ["v"]
        described = env.execute_sql("DESCRIBE e").to_arrow().to_pylist()
        assert described[2] == {"name": "at", "type": "TIMESTAMP(3)", "extras": "event time"}
        plan = env.explain_sql("SELECT k, COUNT(*) FROM e GROUP BY k")
    assert "== Plan of streams ==" in plan
    assert "group by k: count() [I,UB,UA,D]" in plan


def test_several_inserts_are_one_job_that_reads_once(tmp_path):
    with environment(parallelism=1) as env:
        for name in ("even", "odd"):
            options = f"'connector' = 'filesystem', 'path' = '{tmp_path / name}', 'format' = 'json'"
            env.execute_sql(f"CREATE TABLE {name} (id BIGINT) WITH ({options})")
        seen = FailsNowAndThen(tmp_path / "calls", ())
        env.create_temporary_function("seen", udf(seen, result_type="BIGINT"))
        env.execute_sql("CREATE VIEW s AS SELECT seen(id) AS id FROM e")
        env.execute_sql("""
            EXECUTE STATEMENT SET BEGIN
                INSERT INTO even SELECT id FROM s WHERE MOD(id, 2) = 0;
                INSERT INTO odd SELECT id FROM s WHERE MOD(id, 2) = 1;
            END
        """)
    assert (tmp_path / "calls").stat().st_size == NUM_EVENTS
    for name in ("even", "odd"):
        lines = [line for file in (tmp_path / name).glob("*.json*") for line in file.read_text().splitlines()]
        assert len(lines) == NUM_EVENTS // 2


def test_of_a_refused_statement_set_nothing_is_written_by_the_next_insert(tmp_path):
    with TableEnvironment.create(mode="batch") as env:
        for name in ("a", "b"):
            options = f"'connector' = 'filesystem', 'path' = '{tmp_path / name}', 'format' = 'parquet'"
            env.execute_sql(f"CREATE TABLE {name} (id INT) WITH ({options})")
        options = f"'connector' = 'jdbc', 'url' = 'jdbc:sqlite:{tmp_path}/db', 'table-name' = 'c'"
        env.execute_sql(f"CREATE TABLE c (id INT) WITH ({options})")
        with pytest.raises(ProgramError, match="cannot be written in batch mode"):
            env.execute_sql("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO c SELECT 2; END")
        env.execute_sql("INSERT INTO b SELECT 3")
        assert not (tmp_path / "a").exists()
        env.execute_sql("INSERT INTO a SELECT 4")
    assert pq.read_table(tmp_path / "a").column("id").to_pylist() == [4]


def test_tables_begin_with_what_others_have():
    with TableEnvironment.create(actor_system="local") as env:
        env.execute_script("""
            CREATE TABLE a (id BIGINT, at TIMESTAMP(3), WATERMARK FOR at AS at) WITH ('connector' = 'blackhole');
            CREATE TABLE b (more AS id + 1) WITH ('connector' = 'print') LIKE a;
        """)
        described = env.execute_sql("DESCRIBE b").to_arrow()
        assert described["name"].to_pylist() == ["id", "at", "more"]
        assert described["extras"].to_pylist() == ["", "event time", ""]


def test_what_follows_an_operator_without_a_key_has_one_subtask_too():
    """Also when the job is rescaled: dealt out to more of them, a row could be taken back before it has come."""
    with environment(parallelism=2) as env:
        table = env.sql_query("SELECT k, n FROM (SELECT MAX(id) AS n, COUNT(*) AS k FROM e) AS t WHERE n >= 0")
        stream = Streams(env.stream_environment, env.settings).of(table.relation.node)
        changes = behind(stream, ChangelogBlocks(), "changelog")
        while changes.transformation.name != "Aggregation" and not changes.transformation.name.startswith("group by"):
            assert not changes.transformation.is_parallel
            (before,) = changes.transformation.inputs
            changes.transformation = before
        assert not changes.transformation.is_parallel
