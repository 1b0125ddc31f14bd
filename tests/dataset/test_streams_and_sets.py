"""Data sets of what streams leave behind, and streams of what data sets give.

Families: oracle (sums of the records that a job was given, in plain Python) over real jobs at parallelism 2 in memory
and on RocksDB; crash (a job with a model from a data set fails and goes on); a sink's directory step by step under the
sink harness, where what is committed and what is only staged is known exactly.
"""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from headrace import (
    ExecutionEnvironment,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RestartStrategies,
    Snapshot,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    avg,
    col,
    count,
)
from headrace import functions as f
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import Fail, Pause, ScriptedSource, Timed
from headrace.engine.errors import CheckpointMismatchError, CheckpointNotFoundError, ConfigurationError, SourceError
from headrace.testing.sinks.harness import SinkTestHarness

PARALLELISM = 2
BACKENDS = pytest.mark.parametrize("backend", ["heap", "rocksdb"])

TOTAL = ValueStateDescriptor("total", int)
AMOUNTS = ListStateDescriptor("amounts", int)
PER_DIGIT = MapStateDescriptor("per digit", str, int)


class Booking(KeyedProcessFunction):
    """Keeps sum, list and a map of what is booked; gives the sum."""

    def open(self, context):
        self.total = context.get_state(dataclasses.replace(TOTAL))
        self.amounts = context.get_list_state(dataclasses.replace(AMOUNTS))
        self.per_digit = context.get_map_state(dataclasses.replace(PER_DIGIT))

    def process_element(self, value, context):
        account, amount = value
        self.total.update((self.total.value() or 0) + amount)
        self.amounts.add(amount)
        digit = str(amount % 10)
        self.per_digit.put(digit, (self.per_digit.get(digit) or 0) + 1)
        yield account, self.total.value()


def bookings(first, last):
    return [(f"account {n % 11}", n) for n in range(first, last)]


def totals(records):
    sums = Counter()
    for account, amount in records:
        sums[account] += amount
    return dict(sums)


@pytest.fixture
def env():
    return ExecutionEnvironment.get_execution_environment("local", 3)


@pytest.fixture
def stream_env(tmp_path):
    """Makes local streaming environments, and closes them."""
    made = []

    def make(backend="heap", parallelism=PARALLELISM):
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
        env.set_state_backend(backend)
        env.set_max_parallelism(32)
        env.enable_checkpointing(50, directory=str(tmp_path / "checkpoints"))
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def book(env, records, num_results=None):
    """Run a job over records that then waits, until it has given so many results; stop it and give its checkpoint."""
    source = ScriptedSource([*records, Pause()], is_bounded=False)
    booked = env.from_source(source, None, "bookings").uid("bookings").key_by(lambda booking: booking[0])
    results = booked.process(Booking()).uid("accounts").name("the accounts").execute_and_collect("bank")
    for _ in range(len(records) if num_results is None else num_results):
        next(results)
    return results.stop()


# ------------------------------------------------------------------------------------------------- data sets of state


@BACKENDS
def test_state_is_a_data_set(env, stream_env, backend):
    records = bookings(0, 400)
    path = book(stream_env(backend), records)
    found = env.from_snapshot(path, "accounts", "total").select("key", "value")
    assert {row["key"]: row["value"] for row in found.collect()} == totals(records)
    listed = env.from_snapshot(path, "the accounts", "amounts").group_by("key").aggregate(sum=f.sum("value"), n=count())
    assert {row["key"]: row["sum"] for row in listed.collect()} == totals(records)
    assert sum(row["n"] for row in listed.collect()) == len(records)
    digits = env.from_snapshot(path, "accounts", "per digit").group_by("map_key").sum("value")
    assert {row["map_key"]: row["value"] for row in digits.collect()} == Counter(str(n % 10) for _, n in records)


@BACKENDS
def test_states_of_one_snapshot_are_joined(env, stream_env, backend):
    records = bookings(0, 200)
    with Snapshot.open(book(stream_env(backend), records)) as snapshot:
        total = env.from_snapshot(snapshot, "accounts", "total")
        largest = env.from_snapshot(snapshot, "accounts", "amounts").group_by("key").max("value")
    joined = total.join(largest).where("key").equal_to("key").with_(lambda t, m: (t["key"], t["value"], m["value"]))
    by_account = {account: max(n for other, n in records if other == account) for account, _ in records}
    assert {(key, value) for key, value, _ in joined.collect()} == set(totals(records).items())
    assert {key: most for key, _, most in joined.collect()} == by_account


@BACKENDS
def test_a_data_set_becomes_state_and_state_a_data_set(env, stream_env, tmp_path, backend):
    """History is summed as a data set, a stream goes on from there, at another parallelism, and is read again."""
    history, live = bookings(0, 300), bookings(300, 450)
    table = env.from_collection(history).group_by(0).sum(1).to_arrow()
    writer = Snapshot.builder(max_parallelism=32, parallelism=3, backend=backend)
    writer.with_keyed_state("accounts", TOTAL, table, key_columns="f0", value_columns="f1")
    job = stream_env(backend)
    job.set_restore_path(writer.write(str(tmp_path / "bootstrap")))
    path = book(job, live)
    found = env.from_snapshot(path, "accounts", "total").select("key", "value").collect()
    assert {row["key"]: row["value"] for row in found} == totals(history + live)
    amounts = env.from_snapshot(path, "accounts", "amounts")
    assert sorted(row["value"] for row in amounts.collect()) == [amount for _, amount in live]


def test_parts_of_a_state_are_read_by_key(env, stream_env, tmp_path, monkeypatch):
    path = book(stream_env(), bookings(0, 50))
    some = env.from_snapshot(path, "accounts", "total", keys=["account 3", "nobody"])
    assert [row["key"] for row in some.collect()] == ["account 3"]
    assert env.from_snapshot(path, "accounts", "total", keys=["nobody"]).collect() == []
    monkeypatch.chdir(tmp_path)
    relative = env.from_snapshot(Path(path).relative_to(tmp_path), "accounts", "total")
    assert relative.count() == 11


def test_what_a_snapshot_lacks_is_said(env, stream_env, tmp_path):
    path = book(stream_env(), bookings(0, 20))
    with pytest.raises(CheckpointMismatchError, match=r"operator 'accounts' has no state 'balance'; it has: .*total"):
        env.from_snapshot(path, "accounts", "balance")
    with pytest.raises(CheckpointMismatchError, match="has no operator 'acounts'"):
        env.from_snapshot(path, "acounts", "total")
    with pytest.raises(CheckpointNotFoundError):
        env.from_snapshot(tmp_path / "nowhere", "accounts", "total")


# ------------------------------------------------------------------------------------- data sets of what a sink writes

FORMATS = {
    "parquet": (FileSink.parquet, ExecutionEnvironment.read_parquet),
    "csv": (FileSink.csv, ExecutionEnvironment.read_csv),
    "json": (FileSink.json_lines, ExecutionEnvironment.read_json),
}


def rows_from(first, last):
    return [{"n": n, "text": f"text {n}"} for n in range(first, last)]


def numbers_in(data):
    return sorted(row["n"] for row in data.collect())


@pytest.mark.parametrize("form", FORMATS)
def test_staged_files_are_no_input(env, tmp_path, form):
    sink, read = FORMATS[form]
    folder = tmp_path / "out"
    harness = SinkTestHarness(sink(folder, max_part_rows=4), parallelism=2)
    harness.start()
    harness.write(rows_from(0, 6), subtask=0)
    harness.write(rows_from(6, 10), subtask=1)
    harness.checkpoint(1, notifies=False)
    assert [path for path in folder.rglob("*") if path.is_file()], "parts are staged"
    with pytest.raises(SourceError, match="there is no file"):
        read(env, folder)

    harness.notify(1)
    first = read(env, folder)
    assert numbers_in(first) == list(range(10))
    harness.write(rows_from(10, 20), subtask=0)
    harness.checkpoint(2, notifies=False)
    harness.write(rows_from(20, 22), subtask=1)
    assert numbers_in(read(env, folder)) == list(range(10))
    assert numbers_in(read(env, str(folder / "part-*"))) == list(range(10))

    harness.notify(2)
    assert numbers_in(first) == list(range(10)), "what it reads was looked up when it was made"
    assert numbers_in(read(env, folder)) == list(range(20))
    harness.checkpoint(3)
    assert numbers_in(read(env, folder)) == list(range(22))
    harness.close()


def test_the_files_of_a_running_job_are_a_data_set_at_any_time(env, stream_env, tmp_path):
    """Whatever is committed while the job runs: every record at most once, and never less than a moment ago."""
    folder = tmp_path / "out"
    job = stream_env()
    scripts = [
        [step for n in range(start, 60, PARALLELISM) for step in ({"n": n}, Pause("10 ms"))]
        for start in range(PARALLELISM)
    ]
    job.from_source(ScriptedSource(*scripts), None, "numbers").sink_to(FileSink.json_lines(folder))
    client = job.execute_async("files")
    seen = set()
    for _view in client.views():
        if any(folder.glob("part-*")):
            found = numbers_in(env.read_json(folder))
            assert len(found) == len(set(found))
            assert seen <= set(found) <= set(range(60))
            seen = set(found)
    client.result()
    assert numbers_in(env.read_json(folder)) == list(range(60))


# ---------------------------------------------------------------------------------------------- streams of data sets


@pytest.mark.parametrize(
    "records",
    [
        [{"k": 1, "s": "a"}, {"k": 2, "s": None}],
        [(1, "a"), (2, None)],
        [1.5, None, 3.0],
        [{"any": 1}, "objects", (1, 2, 3)],
        [],
    ],
    ids=["dicts", "tuples", "values", "objects", "nothing"],
)
def test_a_stream_has_the_records_of_its_data_set(env, stream_env, records):
    stream = env.from_collection(records).to_stream(stream_env()).rebalance().map(lambda record: [record])
    found = [record for [record] in stream.execute_and_collect()]
    assert sorted(map(repr, found)) == sorted(map(repr, records))


def test_the_columns_of_a_data_set_stay_columns(env, stream_env):
    data = env.from_collection([{"k": k, "v": k * 10} for k in range(20)]).filter(col("k") >= 5)
    stream = data.to_stream(stream_env()).filter(col("k") < 8).select("v")
    assert sorted(row["v"] for row in stream.execute_and_collect()) == [50, 60, 70]


DELAYS = [("A", 10), ("A", 30), ("B", 4), ("B", 6)]
LIVE = [{"route": "ABC"[n % 3], "delay": n} for n in range(90)]
EXPECTED = sorted((row["route"], row["delay"] - {"A": 20, "B": 5, "C": row["delay"]}[row["route"]]) for row in LIVE)


def usual_delays(env):
    history = env.from_collection([{"route": route, "delay": delay} for route, delay in DELAYS])
    return history.group_by("route").aggregate(usual=avg("delay"))


def live(job):
    """Flights of known and unknown routes; the first deployment fails in the middle."""
    job.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    timed = [Timed(row, n) for n, row in enumerate(LIVE)]
    script = [*timed[:45], Pause("200 ms"), Fail(RuntimeError("as planned")), *timed[45:]]
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    return job.from_source(ScriptedSource(script), strategy, "live").uid("live")


def test_a_small_result_enriches_a_stream_as_a_lookup(env, stream_env):
    usual = {row["route"]: row for row in usual_delays(env).collect()}
    enriched = live(stream_env()).lookup(usual.get, key="route", fields=["usual"])
    rows = list(enriched.execute_and_collect())
    known = [(row["route"], row["delay"] - (row["delay"] if row["usual"] is None else row["usual"])) for row in rows]
    assert sorted(known) == EXPECTED


@BACKENDS
def test_a_large_result_enriches_a_stream_as_state(env, stream_env, backend):
    """The model is the first version of a table; the join waits for all of it, so no record comes too early."""
    job = stream_env(backend)
    flights = live(job)
    before_all = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda _row, _ts: -1)
    model = usual_delays(env).to_stream(job).assign_timestamps_and_watermarks(before_all)
    joined = (
        flights.key_by("route")
        .temporal_join(model.key_by("route"), how="left")
        .apply(lambda row, known: (row["route"], row["delay"] - (known["usual"] if known else row["delay"])))
    )
    assert sorted(joined.execute_and_collect()) == EXPECTED


# ----------------------------------------------------------------------------------------- what the command line says


def test_the_environment_follows_the_command_line(monkeypatch):
    monkeypatch.setenv("HEADRACE_PARALLELISM", "5")
    env = ExecutionEnvironment.get_execution_environment("local")
    assert env.get_parallelism() == 5
    assert ExecutionEnvironment.get_execution_environment("local", 2).get_parallelism() == 2
    assert sorted(env.generate_sequence(1, 20).collect()) == list(range(1, 21))
    monkeypatch.setenv("HEADRACE_PARALLELISM", "many")
    with pytest.raises(ConfigurationError, match="HEADRACE_PARALLELISM must be a whole number, 1 or more; got 'many'"):
        ExecutionEnvironment.get_execution_environment("local")
