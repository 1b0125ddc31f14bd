"""Whole programs on the local actor system, from the user's first line to the records that come out.

Oracle tests: each program's answer is computed again in a few lines of Python over the same input; where a program can
be written for both paths, the two must agree.
"""

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import (
    AggregateFunction,
    CheckpointError,
    JobCanceledError,
    JobFailedError,
    KeyedProcessFunction,
    NoResourceAvailableError,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RestartStrategies,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    avg,
    col,
    count,
)
from headrace import functions as f
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource
from headrace.connectors.nexmark import NexmarkGenerator
from headrace.connectors.scripted import ScriptedSource, Timed, Watermark

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times of records are naive UTC


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as environment:
        yield environment


def collected(stream):
    return sorted(stream.execute_and_collect())


def lines_in(folder):
    """What a reader sees: files that are hidden, or in a hidden folder, are not committed."""
    visible = [
        path
        for path in Path(folder).rglob("*.jsonl")
        if not any(p.startswith((".", "_")) for p in path.relative_to(folder).parts)
    ]
    return [json.loads(line) for file in sorted(visible) for line in file.read_text().splitlines()]


def timed(env, pairs):
    """A stream of (key, event time in ms), watermarks one behind the other."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(2_000).with_timestamp_assigner(lambda row, _: row[1])
    return env.from_collection(pairs).assign_timestamps_and_watermarks(strategy)


# -------------------------------------------------------------------------------------------- the program of the README


@pytest.fixture
def events(tmp_path, monkeypatch):
    """2,000 Nexmark events over 20 s of event time in ``events.parquet``, in a working directory of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_ACTOR_SYSTEM", "local")
    columns = NexmarkGenerator(events_per_second=100).events(0, 2_000).columns
    pq.write_table(pa.Table.from_batches([columns]), "events.parquet", row_group_size=500)
    return columns.to_pylist()


def per_auction(events, size, slide):
    """How many bids came for each (auction, start of a window)."""
    counts = Counter()
    for row in events:
        if row["event_type"] == 2:
            millis = (row["bid"]["dateTime"] - EPOCH) // timedelta(milliseconds=1)
            last = millis - millis % slide
            counts.update((row["bid"]["auction"], start) for start in range(last, millis - size, -slide))
    return counts


def test_bids_per_auction_by_rows(events):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(500, directory="ckpt")
    source = env.from_source(
        FileSource.parquet("events.parquet"),
        WatermarkStrategy.for_bounded_out_of_orderness("4 s").with_timestamp_assigner(
            lambda row, _: (row["bid"] or row["auction"] or row["person"])["dateTime"]
        ),
        "events",
    )
    (
        source.filter(lambda row: row["event_type"] == 2)
        .map(lambda row: (row["bid"]["auction"], 1))
        .key_by(lambda t: t[0])
        .window(TumblingEventTimeWindows.of("10 s"))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .sink_to(FileSink.json_lines("out"))
    )
    result = env.execute("bids per auction")
    env.close()
    expected = per_auction(events, 10_000, 10_000)
    assert Counter(map(tuple, lines_in("out"))) == Counter((auction, n) for (auction, _), n in expected.items())
    assert result.job_name == "bids per auction"
    assert result.checkpoints_completed >= 1
    assert Path("ckpt").is_dir()


def test_bids_per_auction_by_columns(events):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    bids = (
        env.from_source(FileSource.parquet("events.parquet"), None, "events")
        .filter(col("event_type") == 2)
        .select(auction=col("bid").field("auction"), ts=col("bid").field("dateTime"))
        .assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness("4 s").with_timestamp_assigner("ts")
        )
    )
    counts = bids.key_by("auction").window(SlidingEventTimeWindows.of("10 s", "2 s")).aggregate(n=count())
    rows = list(counts.execute_and_collect("bids per auction"))
    env.close()
    expected = per_auction(events, 10_000, 2_000)
    assert {tuple(row.values()) for row in rows} == {
        (auction, EPOCH + timedelta(milliseconds=start), EPOCH + timedelta(milliseconds=start + 10_000), n)
        for (auction, start), n in expected.items()
    }
    assert len(rows) == len(expected)
    assert list(rows[0]) == ["auction", "window_start", "window_end", "n"]


# ----------------------------------------------------------------------------------------------------------- row by row


def test_word_count(env):
    words = env.from_collection(["to be or not to be", "that is the question"]).flat_map(str.split)
    counts = words.map(lambda word: (word, 1)).key_by(0).sum(1)
    last = {}
    for word, n in counts.execute_and_collect("word count"):
        last[word] = max(n, last.get(word, 0))
    assert last == Counter(["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"])


def test_every_partitioning_delivers_every_record_as_often_as_it_should(env):
    numbers = env.from_collection(range(100))
    streams = [
        (numbers.rebalance(), 1),
        (numbers.rescale(), 1),
        (numbers.shuffle(), 1),
        (numbers.global_(), 1),
        (numbers.broadcast(), 2),
        (numbers.partition_custom(lambda key, num: key % num, lambda n: n), 1),
        (numbers.key_by(lambda n: n % 7), 1),
    ]
    mapped = [stream.map(lambda n, index=index: (index, n)) for index, (stream, _) in enumerate(streams)]
    seen = Counter(mapped[0].union(*mapped[1:]).execute_and_collect())
    assert seen == Counter({(index, n): times for index, (_, times) in enumerate(streams) for n in range(100)})


def test_filters_maps_and_flat_maps_in_different_parallelism(env):
    stream = env.from_collection(range(50)).rebalance().map(lambda n: n * 2).set_parallelism(3)
    stream = stream.filter(lambda n: n % 4 == 0).set_parallelism(1).flat_map(lambda n: [n] * (n % 3))
    assert collected(stream) == sorted(n for m in range(50) for n in [m * 2] * (m * 2 % 3) if n % 4 == 0)


def test_keyed_process_with_state_and_timers(env):
    class Total(KeyedProcessFunction):
        def open(self, runtime_context):
            self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

        def process_element(self, value, ctx):
            self.sum.update((self.sum.value() or 0) + 1)
            ctx.timer_service().register_event_time_timer(2**40)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), self.sum.value()

    pairs = [(f"k{n % 5}", n * 100) for n in range(83)]
    totals = timed(env, pairs).key_by(lambda row: row[0]).process(Total())
    assert collected(totals) == sorted(Counter(key for key, _ in pairs).items())


def test_side_outputs_of_a_process_function(env):
    odd = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            if value % 2:
                yield odd, value
            else:
                yield value

    even = env.from_collection(range(10)).process(Split())
    both = even.map(lambda n: ("even", n)).union(even.get_side_output(odd).map(lambda n: ("odd", n)))
    assert collected(both) == sorted(("odd" if n % 2 else "even", n) for n in range(10))


def test_running_aggregates_of_a_key(env):
    sales = [("a", 3), ("b", 9), ("a", 1), ("a", 5)]
    rows = [{"shop": shop, "price": price, "no": no} for no, (shop, price) in enumerate(sales)]
    stream = env.from_collection(rows)
    tagged = [
        getattr(stream.key_by("shop"), kind)("price").map(
            lambda row, kind=kind: (kind, row["shop"], row["price"], row["no"])
        )
        for kind in ("sum", "min", "max", "min_by", "max_by")
    ]
    seen = set(tagged[0].union(*tagged[1:]).execute_and_collect())
    assert {row for row in seen if row[1] == "a"} == {
        ("sum", "a", 3, 0), ("sum", "a", 4, 0), ("sum", "a", 9, 0),
        ("min", "a", 3, 0), ("min", "a", 1, 0),
        ("max", "a", 3, 0), ("max", "a", 5, 0),
        ("min_by", "a", 3, 0), ("min_by", "a", 1, 2),
        ("max_by", "a", 3, 0), ("max_by", "a", 5, 3),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- windows

PAIRS = [(f"k{n % 3}", n * 700 % 30_000) for n in range(100)]
PAIRS.sort(key=lambda pair: pair[1] + (1_500 if pair[0] == "k1" else 0))


def per_window(size):
    return Counter((key, time - time % size) for key, time in PAIRS)


def window_row(key, start, size, n):
    return {
        "key": key, "window_start": EPOCH + timedelta(milliseconds=start),
        "window_end": EPOCH + timedelta(milliseconds=start + size), "n": n,
    }  # fmt: skip


@pytest.mark.parametrize("path", ["columns", "rows"])
def test_built_in_aggregates_agree_on_both_paths(env, path):
    stream = timed(env, PAIRS).map(lambda pair: {"key": pair[0], "t": pair[1]})
    keyed = stream.key_by("key" if path == "columns" else lambda row: row["key"])
    result = keyed.window(TumblingEventTimeWindows.of("5 s")).aggregate(n=count(), least=f.min("t"), mean=avg("t"))
    assert ("LocalSliceAggregate" in str(env.get_job_graph().vertices)) == (path == "columns")
    rows = sorted(result.execute_and_collect(), key=str)
    expected = []
    for (key, start), n in per_window(5_000).items():
        times = [t for k, t in PAIRS if k == key and start <= t < start + 5_000]
        row = window_row(key, start, 5_000, n)
        expected.append({**row, "least": min(times), "mean": sum(times) / n})
    assert rows == sorted(expected, key=str)


def test_aggregate_functions_with_and_without_window_functions(env):
    class Count(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + 1

        def get_result(self, accumulator):
            return accumulator

        def merge(self, acc_a, acc_b):
            return acc_a + acc_b

    class Named(ProcessWindowFunction):
        def process(self, key, context, elements):
            yield key, context.window().start, *elements

    windowed = timed(env, PAIRS).key_by(lambda p: p[0]).window(TumblingEventTimeWindows.of(5_000))
    plain = windowed.aggregate(Count()).map(lambda n: ("plain", n))
    named = windowed.aggregate(Count(), Named())
    applied = windowed.apply(lambda key, window, rows: [("applied", key, window.start, len(list(rows)))])
    seen = Counter(plain.union(named, applied).execute_and_collect())
    expected = Counter()
    for (key, start), n in per_window(5_000).items():
        expected.update([("plain", n), (key, start, n), ("applied", key, start, n)])
    assert seen == expected


def test_late_records_go_to_their_side_output(env):
    late = OutputTag("late")
    script = [Timed(("a", 1_000), 1_000), Timed(("a", 20_000), 20_000), Watermark(19_999),
              Timed(("a", 1_500), 1_500), Timed(("a", 20_500), 20_500)]  # fmt: skip

    stream = env.from_source(ScriptedSource(script), WatermarkStrategy.no_watermarks(), "script").set_parallelism(1)
    for make in ("row", "columns"):
        rows = stream.map(lambda p: {"k": p[0], "t": p[1]}).set_parallelism(1)  # by two ways one could be overtaken
        keyed = rows.key_by("k").window(TumblingEventTimeWindows.of("5 s")).side_output_late_data(late)
        on_time = keyed.aggregate(n=count()) if make == "columns" else keyed.reduce(lambda a, b: a)
        assert list(on_time.get_side_output(late).map(lambda r: r["t"]).execute_and_collect()) == [1_500]


def test_count_windows(env):
    stream = env.from_collection([("a", n) for n in range(7)] + [("b", 1)]).key_by(0)
    assert collected(stream.count_window(3).sum(1)) == [("a", 0 + 1 + 2), ("a", 3 + 4 + 5)]
    stream = env.from_collection([("a", n) for n in range(7)]).key_by(0)
    sliding = stream.count_window(3, 2).aggregate(n=count(), top=f.max("f1"))
    assert collected(sliding.map(lambda row: tuple(row.values()))) == [("a", 2, 1), ("a", 3, 3), ("a", 3, 5)]


# -------------------------------------------------------------------------------------------------------------- columns


def test_select_with_columns_and_map_batches(env):
    table = pa.table({"a": list(range(20)), "b": [f"x{n % 3}" for n in range(20)]})
    stream = env.from_collection(table).rebalance().filter(col("a") % 2 == 0).with_columns(c=col("a") * 10)
    stream = stream.select("b", col("c").alias("d"), one=1)

    def double(batch):
        return batch.set_column(1, "d", pa.array([2 * d for d in batch.column("d").to_pylist()], pa.int64()))

    rows = stream.map_batches(double).execute_and_collect()
    assert sorted(tuple(r.values()) for r in rows) == sorted((f"x{n % 3}", n * 20, 1) for n in range(0, 20, 2))


def test_hinted_types_give_columns_that_do_not_depend_on_the_batch(env):
    def half(n) -> tuple[str, float]:
        return f"k{n % 2}", n // 2

    schemas = []

    def look(batch):
        schemas.append(batch.schema.types)
        return batch

    stream = env.from_collection(range(10)).map(half).map_batches(look)
    assert collected(stream) == sorted((f"k{n % 2}", n // 2) for n in range(10))


def test_a_record_that_does_not_fit_its_declared_type_is_named(env):
    row_type = Types.ROW_NAMED(["n"], [Types.LONG()])
    stream = env.set_parallelism(1).from_collection([1, 2, "three"]).map(lambda n: {"n": n}, output_type=row_type)
    with pytest.raises(JobFailedError) as caught:
        list(stream.name("to row").execute_and_collect())
    assert all(text in str(caught.value) for text in ("operator 'to row'", "subtask ", "field 'n'", "row ", "'three'"))


# ----------------------------------------------------------------------------------------------------- running programs


def test_printed_lines_appear_with_their_subtask(env, capsys):
    env.from_collection(["a", "b", "c"]).rebalance().map(str.upper).print("out")
    env.from_collection(["x"]).print().set_parallelism(1)
    env.execute("print")
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines.pop() == "x"
    assert {line[:6] for line in lines} == {"out:1>", "out:2>"}
    assert sorted(line[7:] for line in lines) == ["A", "B", "C"]


def test_a_failing_function_fails_the_job_with_operator_and_record_in_hand(env):
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("invert").print()
    with pytest.raises(JobFailedError, match="ZeroDivisionError") as caught:
        env.execute("fails")
    assert "operator 'invert'" in str(caught.value)
    assert "1 // n" in str(caught.value)


def _fails_at_zero(n, *_):
    return [1 // n] if n < 5 else []


class _FailingTimer(KeyedProcessFunction):
    def process_element(self, value, context):
        context.timer_service().register_event_time_timer(7_000)

    def on_timer(self, timestamp, context):
        raise ValueError(timestamp)


@pytest.mark.parametrize(
    ("apply", "key", "record"),
    [
        (lambda stream: stream.map(_fails_at_zero), None, 0),
        (lambda stream: stream.filter(_fails_at_zero), None, 0),
        (lambda stream: stream.flat_map(_fails_at_zero), None, 0),
        (lambda stream: stream.process(_fails_at_zero), None, 0),
        (lambda stream: stream.key_by(lambda n: (n, "k")).map(_fails_at_zero), "(0, 'k')", 0),
        (lambda stream: stream.key_by(lambda n: (n, "k")).process(_fails_at_zero), "(0, 'k')", 0),
        (lambda stream: stream.key_by(lambda n: n // 100).process(_FailingTimer()), "0", None),
    ],
)
def test_a_failing_function_says_key_and_event_time_of_its_record(env, apply, key, record):
    """The time is that of the record that was in hand, not of the batch, and of a timer the timer's."""
    source = ScriptedSource([Timed(3, 1_000), Timed(0, 5_000), Timed(2, 6_000), Watermark(60_000)])
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    apply(stream).print()
    with pytest.raises(JobFailedError) as caught:
        env.execute("fails")
    context = caught.value.__cause__.context
    at = "1970-01-01T00:00:05.000Z" if record is not None else "1970-01-01T00:00:07.000Z"
    assert (context.get("key"), context["event_time"]) == (key, at)
    assert context.get("record") == (None if record is None else str(record))
    assert f"event_time {at}" in str(caught.value)


def test_a_failing_function_says_nothing_of_what_its_record_has_not(env):
    env.from_collection([1, 0]).map(lambda n: 1 // n).print()
    with pytest.raises(JobFailedError) as caught:
        env.execute("fails")
    assert not {"event_time", "key"} & set(caught.value.__cause__.context)


def test_a_failed_job_is_restarted_from_its_checkpoint(env, tmp_path):
    marker = tmp_path / "failed-once"

    def fragile(n):
        if n == 300 and not marker.exists():
            marker.touch()
            message = "on purpose"
            raise ValueError(message)
        return n

    env.set_parallelism(1).enable_checkpointing(20, directory=tmp_path / "ckpt")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 10))
    numbers = env.from_source(GeneratorSource(lambda n: n, count=500, records_per_second=2_000), None, "numbers")
    sums = numbers.map(fragile).key_by(lambda n: n % 3).reduce(lambda a, b: a + b)
    sums.sink_to(FileSink.json_lines(tmp_path / "out"))
    result = env.execute("fragile")
    assert result.num_restarts == 1
    sums, expected = [0, 0, 0], []
    for n in range(500):
        sums[n % 3] += n
        expected.append(sums[n % 3])
    assert sorted(lines_in(tmp_path / "out")) == sorted(expected)


def test_a_job_starts_from_a_retained_checkpoint(env, tmp_path):
    from headrace import ExternalizedCheckpointRetention

    env.set_parallelism(1).enable_checkpointing(20, directory=tmp_path / "ckpt")
    env.get_checkpoint_config().set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    )

    def build(count):
        source = GeneratorSource(lambda n: n, count=count, records_per_second=500)
        env.from_source(source, None, "numbers").uid("numbers").sink_to(FileSink.json_lines(tmp_path / "out")).uid(
            "out"
        )

    build(100_000)
    client = env.execute_async("first")
    view = client.view()
    while view.checkpoints_completed < 3:
        view = client._conversation.poll(200)
    client.cancel()
    path = client.view().last_checkpoint_path
    done = len(lines_in(tmp_path / "out"))
    assert done > 0
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    build(done + 50)
    env.execute("second", from_checkpoint=path)
    assert sorted(lines_in(tmp_path / "out")) == list(range(done + 50))


def test_an_endless_job_is_canceled(env):
    env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").map(lambda n: n)
    client = env.execute_async("endless")
    with pytest.raises(TimeoutError):
        client.result(timeout=0.3)
    assert client.get_job_status() in ("CREATED", "RUNNING")
    client.cancel()
    assert client.get_job_status() == "CANCELED"
    with pytest.raises(JobCanceledError):
        client.result()


def test_several_jobs_follow_each_other_in_one_environment(env):
    assert collected(env.from_elements(1, 2)) == [1, 2]
    env.from_elements(3).map(lambda n: n)
    progress = []
    assert env.execute("second", on_progress=progress.append).job_name == "second"
    assert progress[-1].state == "FINISHED"


def test_a_job_can_be_awaited(env):
    env.from_elements(3).map(lambda n: n)
    client = env.execute_async("awaited")

    async def main():
        return await client

    assert asyncio.run(main()).job_name == "awaited"


def test_taking_a_few_records_ends_the_job(env):
    stream = env.from_source(GeneratorSource(lambda n: n, records_per_second=1_000), None, "endless").map(
        lambda n: n * 2
    )
    rows = stream.execute_and_collect(limit=3)
    assert len(rows) == 3
    with env.from_elements(1, 2, 3).execute_and_collect() as iterator:
        assert next(iterator) in (1, 2, 3)


def test_an_interrupt_cancels_the_job_and_closes_the_cluster(env):
    env.from_source(GeneratorSource(lambda n: n, records_per_second=100), None, "endless").map(lambda n: n)

    def interrupt(view):
        if view.state == "RUNNING":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        env.execute("interrupted", on_progress=interrupt)
    assert env._cluster is None


def test_a_missing_checkpoint_fails_the_job_before_the_first_record(env, tmp_path):
    seen = []
    env.set_parallelism(1).from_elements(1).map(seen.append)
    with pytest.raises(JobFailedError, match="chk-9") as caught:
        env.execute("restored", from_checkpoint=tmp_path / "chk-9")
    assert isinstance(caught.value.__cause__, CheckpointError)
    assert seen == []


def test_too_few_slots_are_an_error_that_says_so():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=5, max_slots=2) as env:
        env.from_elements(1).map(lambda n: n)
        with pytest.raises(NoResourceAvailableError, match="5"):
            env.execute("too wide")
