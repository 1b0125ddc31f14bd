"""What a program meets when something about it, its input or its surroundings is wrong.

Each case must end with a typed error that names what and where, within a bounded time, and leave nothing running. The
bound is the alarm of `pytest` for every test (`BOUND_S`); nothing here sleeps. Most cases run on the local actor
system, those where processes matter on Ray, too.
"""

import gc
import json
import os
import shutil
import socket
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import (
    BroadcastProcessFunction,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ClusterUnavailableError,
    ConfigurationError,
    CountTrigger,
    Evictor,
    ExternalizedCheckpointRetention,
    GlobalWindows,
    JobFailedError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MalformedRecordError,
    MapFunction,
    NoResourceAvailableError,
    OutputTag,
    ProcessFunction,
    ProgramError,
    RestartStrategies,
    SinkError,
    SourceError,
    StateAccessError,
    StorageError,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TypeMismatchError,
    Types,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
    col,
    count,
)
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink, FileSource

BOUND_S = 20

pytestmark = pytest.mark.timeout(BOUND_S)


@pytest.fixture
def env():
    """A local environment; when a test is over, nothing of it may run."""
    threads = set(threading.enumerate())
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as environment:
        yield environment
    for thread in set(threading.enumerate()) - threads:
        thread.join(BOUND_S)
        assert not thread.is_alive(), f"left running: {thread.name}"


def failure_of(env, *names, kind, name="bad"):
    """Run the program; its error's text must contain all ``names``, its cause be of ``kind``."""
    with pytest.raises(JobFailedError) as caught:
        env.execute(name)
    text = str(caught.value)
    missing = [part for part in names if part not in text]
    assert not missing, f"{missing} not in:\n{text}"
    assert isinstance(caught.value.__cause__, kind), repr(caught.value.__cause__)
    return text


def rows_of(stream, *tags):
    """What comes out, and what comes out of side outputs."""
    main = stream.map(lambda row: ("main", row))
    sides = [stream.get_side_output(OutputTag(tag)).map(lambda row, tag=tag: (tag, row)) for tag in tags]
    return list((main.union(*sides) if sides else main).execute_and_collect())


# --------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["parquet", "csv", "json_lines"])
def test_a_missing_file_is_named_with_its_source(env, tmp_path, kind):
    env.from_source(getattr(FileSource, kind)(tmp_path / "none.data"), None, "orders").print()
    failure_of(env, "none.data", "no file found", "orders", kind=SourceError)


@pytest.mark.parametrize("pattern", ["*.csv", "part-??.csv", "deep/**/x.csv", ""])
@pytest.mark.sampled(3)
def test_a_glob_or_directory_without_files_is_named(env, tmp_path, pattern):
    env.from_source(FileSource.csv(tmp_path / pattern), None, "orders").print()
    failure_of(env, str(tmp_path / pattern), "no file found", "orders", kind=SourceError)


@pytest.mark.parametrize(("kind", "operator"), [("parquet", "orders"), ("csv", "orders"), ("json_lines", "orders")])
def test_a_file_of_another_kind_is_named_with_its_place(env, tmp_path, kind, operator):
    path = tmp_path / "noise"
    path.write_bytes(bytes(range(256)) * 40 + b"\n")
    env.from_source(getattr(FileSource, kind)(path), None, "orders").print()
    failure_of(env, "noise", operator, kind=(SourceError, MalformedRecordError))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(env, tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    path.chmod(0)
    env.from_source(FileSource.csv(path), None, "orders").print()
    failure_of(env, "secret.csv", "orders", "subtask", kind=SourceError)


def test_a_truncated_parquet_file_is_named(env, tmp_path):
    path = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"a": list(range(10_000))}), path)
    path.write_bytes(path.read_bytes()[:-100])
    env.from_source(FileSource.parquet(path), None, "orders").print()
    failure_of(env, "cut.parquet", "orders", kind=SourceError)


def test_a_damaged_row_group_is_named_with_split_and_position(env, tmp_path):
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"a": [f"{n:09}" for n in range(20_000)]}), path, row_group_size=10_000, compression="zstd")
    data = bytearray(path.read_bytes())
    middle = len(data) * 6 // 10
    data[middle : middle + 500] = bytes(500)
    path.write_bytes(data)
    env.set_parallelism(1)
    env.from_source(FileSource.parquet(path), None, "orders").print()
    text = failure_of(env, "damaged.parquet", "orders", "subtask 1/1", "split", "position", kind=SourceError)
    assert "damaged.parquet#1-2', position 'row 0'" in text  # the second row group, from its first row on


def test_an_unknown_scheme_is_refused(env):
    env.from_source(FileSource.csv("nowhere://bucket/x.csv"), None, "orders").print()
    failure_of(env, "nowhere", "orders", kind=(ConfigurationError, SourceError))


# ------------------------------------------------------------------------------------------------------ malformed lines

LINES = {
    "csv": ("id,price\n1,10\n2,cheap\n3,30\n4\n5,50\n", {"id": "int64", "price": "int64"}, [3, 5]),
    "json_lines": (
        '{"id": 1, "price": 10}\n{"id": 2, "pri\n{"id": 3, "price": 30}\n'
        '{"id": 4, "price": "x"}\n{"id": 5, "price": 50}\n',
        {"id": "int64", "price": "int64"},
        [2, 4],
    ),
}


def bad_lines(tmp_path, kind, policy):
    text, schema, _ = LINES[kind]
    path = tmp_path / f"prices.{kind}"
    path.write_text(text)
    return getattr(FileSource, kind)(path, schema, on_error=policy)


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
def test_a_malformed_line_fails_the_job_with_file_line_and_cause(env, tmp_path, kind):
    env.from_source(bad_lines(tmp_path, kind, "fail"), None, "prices").print()
    line = LINES[kind][2][0]
    failure_of(env, f"prices.{kind}", f"line {line}", "prices", "subtask", "split", kind=MalformedRecordError)


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
def test_malformed_lines_are_skipped_and_counted(env, tmp_path, kind):
    env.from_source(bad_lines(tmp_path, kind, "skip"), None, "prices").sink_to(FileSink.json_lines(tmp_path / "out"))
    result = env.execute("skips")
    assert [row["id"] for row in committed(tmp_path / "out")] == [1, 3, 5]
    assert sum(vertex.metrics.get("num_records_skipped", 0) for vertex in result.view.vertices) == 2


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
def test_malformed_lines_go_to_the_dead_letter_output(env, tmp_path, kind):
    stream = env.from_source(bad_lines(tmp_path, kind, "dead-letter"), None, "prices")
    seen = Counter(where if where == "main" else row["position"] for where, row in rows_of(stream, "dead-letter"))
    assert seen == Counter({"main": 3, **{f"line {line}": 1 for line in LINES[kind][2]}})


def committed(folder):
    files = sorted(path for path in Path(folder).glob("*.jsonl") if not path.name.startswith((".", "_")))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


# ----------------------------------------------------------------------------------------------------------- wrong type


def test_a_record_that_is_not_of_its_declared_type_is_shown(env):
    row_type = Types.ROW_NAMED(["n"], [Types.LONG()])
    stream = env.from_elements(1, "two").map(lambda n: {"n": n}, output_type=row_type).name("to row")
    stream.print()
    failure_of(env, "to row", "subtask", "'n'", "'two'", kind=TypeMismatchError)


@pytest.mark.parametrize("time", ["yesterday", None, 1.5e300, {"a": 1}, -(2**80)])
def test_a_timestamp_that_is_none_is_shown_with_its_operator(env, time):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: time)
    stream = env.from_elements(1).assign_timestamps_and_watermarks(strategy).name("times")
    stream.key_by(lambda n: n).window(TumblingEventTimeWindows.of("1 s")).reduce(lambda a, b: a).print()
    failure_of(env, "times", "subtask", kind=(TypeMismatchError, UserFunctionError))


def test_a_timestamp_column_that_is_missing_or_of_another_type_is_named(env):
    table = pa.table({"a": [1, 2], "text": ["x", "y"]})
    for column in ("when", "text"):
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(column)
        stream = env.from_collection(table).assign_timestamps_and_watermarks(strategy).name("times")
        stream.map(lambda row: row).print()
        failure_of(env, "times", "subtask", column, kind=TypeMismatchError)


@pytest.mark.parametrize("columns", [True, False])
def test_a_key_field_that_is_missing_is_named(env, columns):
    rows = [{"a": 1}, {"a": 2}]
    untold = env.from_collection(pa.table({"a": [1, 2]})).map_batches(lambda batch: batch)  # known only as it runs
    stream = timed(untold if columns else env.from_collection(rows).map(dict), "a" if columns else explode_not)
    keyed = stream.key_by("shop")
    (keyed.window(TumblingEventTimeWindows.of("1 s")).aggregate(n=count()) if columns else keyed.sum("a")).print()
    failure_of(env, "shop", "subtask", "operator", kind=(ProgramError, TypeMismatchError))


def test_an_unknown_column_of_an_expression_is_named(env):
    untold = env.from_collection(pa.table({"a": [1, 2]})).map_batches(lambda batch: batch)
    untold.filter(col("b") > 1).name("only b").print()
    failure_of(env, "only b", "'b'", "subtask", kind=ProgramError)


def test_the_traceback_shows_the_users_lines_and_not_ours(env):
    env.from_elements(1, 2).map(explode).print()
    with pytest.raises(JobFailedError) as caught:
        env.execute()
    error, frames = caught.value.__cause__, []
    while error is not None:
        frames += traceback.extract_tb(error.__traceback__)
        error = error.__cause__ or error.__context__
    assert [frame.name for frame in frames] == ["explode"]


def test_a_key_that_cannot_be_hashed_is_named(env):
    env.from_elements(1, 2).key_by(lambda n: [n]).reduce(lambda a, b: a).print()
    failure_of(env, "subtask", "operator", kind=(TypeMismatchError, UserFunctionError))


def test_a_record_that_has_no_time_in_a_window_says_what_to_do(env):
    env.from_elements(1).key_by(lambda n: n).window(TumblingEventTimeWindows.of("1 s")).reduce(lambda a, b: a).print()
    failure_of(env, "operator", "subtask", "hint", kind=Exception)


# ----------------------------------------------------------------------------------------------------- failing
# functions


def explode_not(*_):
    return 5


def explode(*_):
    message = "boom"
    raise ValueError(message)


class ExplodingProcess(KeyedProcessFunction):
    def process_element(self, value, ctx):
        explode()


class ExplodingTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(10)

    def on_timer(self, timestamp, ctx):
        explode()


class ExplodingOpen(KeyedProcessFunction):
    def open(self, runtime_context):
        explode()

    def process_element(self, value, ctx):
        return []


def timed(stream, assigner=lambda row, _: 5):
    return stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    )


ROW_TYPE = Types.ROW_NAMED(["n"], [Types.LONG()])

FAILING = {
    "map": lambda s: s.map(explode),
    "flat map": lambda s: s.flat_map(explode),
    "filter": lambda s: s.filter(explode),
    "map batches": lambda s: s.map(lambda n: {"n": n}, output_type=Types.ROW_NAMED(["n"], [Types.LONG()])).map_batches(
        explode
    ),
    "key selector": lambda s: s.key_by(explode).reduce(lambda a, b: a),
    "reduce": lambda s: s.key_by(lambda n: 0).reduce(explode),
    "window reduce": lambda s: timed(s).key_by(lambda n: 0).window(TumblingEventTimeWindows.of(10)).reduce(explode),
    "process": lambda s: s.key_by(lambda n: 0).process(ExplodingProcess()),
    "on timer": lambda s: timed(s).key_by(lambda n: 0).process(ExplodingTimer()),
    "open": lambda s: s.key_by(lambda n: 0).process(ExplodingOpen()),
    "timestamp assigner": lambda s: timed(s, explode),
    "partitioner": lambda s: s.partition_custom(explode, lambda n: n).map(lambda n: n),
}


@pytest.mark.parametrize(
    ("where", "checkpoints"),
    [(where, False) for where in FAILING]
    + [  # processes of a cluster import this module, and do not find `campaigns`
        pytest.param(where, True, marks=() if where in ("map", "on timer", "open") else pytest.mark.campaign)
        for where in FAILING
    ],
)
@pytest.mark.sampled(3)
def test_a_failing_function_is_shown_with_operator_subtask_and_its_own_lines(env, tmp_path, where, checkpoints):
    """With checkpoints the job is tried again, but not without end."""
    if checkpoints:
        env.enable_checkpointing(20, directory=tmp_path / "ckpt")
    stream = FAILING[where](env.from_elements(1, 2, 3))
    (stream.name("culprit") if hasattr(stream, "name") else stream).print()
    text = failure_of(
        env, "ValueError: boom", "raise ValueError(message)", "operator", "subtask", kind=UserFunctionError
    )
    assert where == "partitioner" or where == "key selector" or "culprit" in text


def test_a_poisonous_record_fails_the_job_after_a_few_tries_although_checkpoints_complete_before_it(env, tmp_path):
    env.set_parallelism(1).enable_checkpointing(20, directory=tmp_path / "ckpt")
    numbers = env.from_source(GeneratorSource(lambda n: n, count=1_000, records_per_second=1_000), None, "numbers")
    numbers.map(lambda n: 1 // (300 - n)).name("invert").sink_to(FileSink.json_lines(tmp_path / "out"))
    client = env.execute_async("poison")
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        client.result(timeout=BOUND_S)
    assert 2 <= client.view().num_restarts < 10


def test_a_failing_function_under_no_restart_fails_at_once(env, tmp_path):
    env.enable_checkpointing(20, directory=tmp_path / "ckpt").set_restart_strategy(RestartStrategies.no_restart())
    env.from_elements(1).map(explode).name("culprit").print()
    client = env.execute_async("no restart")
    with pytest.raises(JobFailedError, match="boom"):
        client.result(timeout=BOUND_S)
    assert client.view().num_restarts == 0


def test_what_cannot_be_pickled_is_refused_where_it_is_submitted(env):
    lock = threading.Lock()
    env.from_elements(1).map(lambda n: (lock, n)).name("locks").print()
    with pytest.raises(ProgramError, match="locks"):
        env.execute("unpicklable")


# -----------------------------------------------------------------------------------------------------------
# checkpoints


def test_a_checkpoint_directory_that_is_a_file_is_named(env, tmp_path):
    (tmp_path / "taken").write_text("not a directory")
    env.enable_checkpointing(20, directory=tmp_path / "taken")
    env.from_elements(1).map(lambda n: n).print()
    failure_of(env, "taken", kind=StorageError)


def test_a_checkpoint_directory_that_cannot_be_made_is_named(env):
    env.enable_checkpointing(20, directory="/proc/none/ckpt")
    env.from_elements(1).map(lambda n: n).print()
    failure_of(env, "/proc/none", kind=StorageError)


def test_a_checkpoint_directory_on_an_unknown_scheme_is_named(env):
    env.enable_checkpointing(20, directory="nowhere://bucket/ckpt")
    env.from_elements(1).map(lambda n: n).print()
    failure_of(env, "nowhere", kind=(ConfigurationError, StorageError))


@pytest.mark.campaign  # storage is tried for ten seconds before it is given up
def test_an_output_directory_that_cannot_be_made_is_named(env):
    env.from_elements(1).map(lambda n: n).sink_to(FileSink.json_lines("/proc/none/out")).name("files")
    failure_of(env, "/proc/none", "files", "subtask", kind=(SinkError, StorageError))


@pytest.fixture(scope="module")
def retained(tmp_path_factory):
    """The manifest of a checkpoint of the job that `counting` builds; tests take copies of it."""
    folder = tmp_path_factory.mktemp("retained")
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=1) as env:
        env.enable_checkpointing(10, directory=folder)
        env.get_checkpoint_config().set_externalized_checkpoint_retention(
            ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
        )
        counting(env, 10**9)
        client = env.execute_async("counting")
        for view in client.views():
            if view.checkpoints_completed:
                break
        client.cancel()
        return client.view().last_checkpoint_path


def counting(env, num_records):
    source = GeneratorSource(lambda n: n, count=num_records, records_per_second=1_000)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    numbers.key_by(lambda n: n % 7).reduce(lambda a, b: a + b).uid("sums").name("sums").map(lambda n: n)


@pytest.fixture
def copied(retained, tmp_path):
    """A copy of the job's checkpoints: the path of the manifest in it."""
    manifest = Path(retained.removeprefix("file://"))
    shutil.copytree(manifest.parent.parent, tmp_path / "copy")
    return tmp_path / "copy" / "manifests" / manifest.name


def test_a_sound_checkpoint_is_restored(env, copied):
    env.set_parallelism(1)
    counting(env, 10)
    env.execute("goes on", from_checkpoint=copied)


def test_a_missing_checkpoint_is_named(env, tmp_path):
    env.from_elements(1).map(lambda n: n)
    with pytest.raises(JobFailedError, match="chk-9") as caught:
        env.execute("restored", from_checkpoint=tmp_path / "chk-9")
    assert isinstance(caught.value.__cause__, CheckpointNotFoundError)


def state_files(checkpoint):
    return sorted(checkpoint.parent.parent.glob("chk-*/**/*.arrow"))


def test_a_damaged_manifest_is_refused_before_the_first_record(env, copied):
    text = copied.read_text()
    for damaged in (text.replace("sums", "sumz", 1), text[: len(text) // 2], "", "{}"):
        copied.write_text(damaged)
        seen = []
        env.from_elements(1).map(seen.append)
        with pytest.raises(JobFailedError, match=copied.name) as caught:
            env.execute("restored", from_checkpoint=copied)
        assert isinstance(caught.value.__cause__, CheckpointCorruptError)
        assert seen == []


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_state_file_is_refused_before_the_first_record(env, copied, damage):
    assert state_files(copied)
    for path in state_files(copied):
        data = path.read_bytes()
        if not data:
            continue
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if damage == "truncate" else bytes([data[0] ^ 1]) + data[1:])
    env.set_parallelism(1)
    counting(env, 10)
    with pytest.raises(JobFailedError) as caught:
        env.execute("restored", from_checkpoint=copied)
    assert isinstance(caught.value.__cause__, CheckpointError), repr(caught.value.__cause__)


def test_a_checkpoint_of_another_program_is_refused_with_the_operator(env, copied):
    env.from_elements(1).map(lambda n: n).uid("something else")
    with pytest.raises(JobFailedError, match="sums") as caught:
        env.execute("restored", from_checkpoint=copied)
    assert isinstance(caught.value.__cause__, CheckpointMismatchError)


# --------------------------------------------------------------------------------------------------- clusters and slots


def test_too_few_slots_are_said_in_numbers():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=5, max_slots=2) as env:
        env.from_elements(1).map(lambda n: n)
        with pytest.raises(NoResourceAvailableError, match=r"5 slots.*2"):
            env.execute("too wide")


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.ray
@pytest.mark.usefixtures("no_ray")
def test_an_address_where_no_cluster_is_is_named():
    address = f"127.0.0.1:{closed_port()}"
    env = StreamExecutionEnvironment.get_execution_environment(address=address)
    env.from_elements(1).map(lambda n: n)
    with pytest.raises(ClusterUnavailableError, match=address):
        env.execute("nowhere")


@pytest.mark.ray
@pytest.mark.usefixtures("no_ray")
def test_an_address_of_the_ray_client_is_refused_with_what_to_do_instead():
    env = StreamExecutionEnvironment.get_execution_environment(address="ray://127.0.0.1:10001")
    env.from_elements(1).map(lambda n: n)
    with pytest.raises(ConfigurationError, match="ray job submit"):
        env.execute("through a proxy")


@pytest.mark.ray
@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("address", ["localhost", "local host:1", ":"])
def test_an_address_that_is_none_is_refused(address):
    env = StreamExecutionEnvironment.get_execution_environment(address=address)
    env.from_elements(1).map(lambda n: n)
    with pytest.raises((ConfigurationError, ClusterUnavailableError), match=address):
        env.execute("nowhere")


@pytest.mark.campaign
@pytest.mark.ray
@pytest.mark.usefixtures("no_ray")
@pytest.mark.slow
@pytest.mark.timeout(90)
def test_on_ray_a_bad_program_is_told_the_same_and_leaves_nothing(tmp_path):
    import ray

    was_initialized = ray.is_initialized()
    options = {"parallelism": 2, "max_slots": 2}
    with StreamExecutionEnvironment.get_execution_environment("ray", address="local", **options) as env:
        env.from_source(FileSource.csv(tmp_path / "none.csv"), None, "orders").print()
        failure_of(env, "none.csv", "orders", kind=SourceError)
        env.enable_checkpointing(50, directory=tmp_path / "ckpt")
        env.from_elements(1, 2).map(explode).name("culprit").print()
        shown = ("ValueError: boom", "raise ValueError(message)", "operator 'culprit'", "subtask")
        failure_of(env, *shown, kind=UserFunctionError)
        env.from_elements(1).map(lambda n: n).set_parallelism(5)
        with pytest.raises(NoResourceAvailableError, match=r"5 slots.*2"):
            env.execute("too wide")
        (tmp_path / "taken").write_text("not a directory")
        env.enable_checkpointing(50, directory=tmp_path / "taken")
        env.from_elements(1).map(lambda n: n).print()
        failure_of(env, "taken", kind=StorageError)
    assert ray.is_initialized() == was_initialized


class FailsTwice(MapFunction):
    """Fails, and then fails to close."""

    def map(self, value):
        message = "the first failure"
        raise ValueError(message)

    def close(self):
        message = "the second failure"
        raise OSError(message)


def test_a_function_that_also_fails_to_close_does_not_hide_its_first_failure(env):
    """It once took the slot down with it, and all that was told was the loss of the slot."""
    env.from_elements(1).map(FailsTwice()).print()
    failure_of(env, "the first failure", "the second failure", kind=UserFunctionError)


# ------------------------------------------------------------------------------------- functions with states and timers


class Written(KeyedProcessFunction):
    """Does as it is told, when it is opened or for each record."""

    def __init__(self, on_open=None, on_record=None):
        self.on_open = on_open
        self.on_record = on_record

    def open(self, runtime_context):
        if self.on_open is not None:
            self.on_open(runtime_context)

    def process_element(self, value, ctx):
        if self.on_record is not None:
            self.on_record(value, ctx)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("function", "kind", "names"),
    [
        (
            Written(lambda context: context.get_state(ValueStateDescriptor("tally")).value()),
            StateAccessError,
            ("'tally'", "no current key", "Written.open"),
        ),
        (
            Written(lambda context: context.get_state(ListStateDescriptor("tally"))),
            ProgramError,
            ("ValueStateDescriptor", "'tally'", "Written.open"),
        ),
        (Written(lambda context: context.get_map_state("tally")), ProgramError, ("MapStateDescriptor", "'tally'")),
        (
            Written(
                lambda context: [
                    context.get_state(ValueStateDescriptor("tally")),
                    context.get_list_state(ListStateDescriptor("tally")),
                ]
            ),
            ProgramError,
            ("'tally' is declared twice",),
        ),
        (
            Written(on_record=lambda _, ctx: ctx.timer_service().register_event_time_timer(2**63)),
            TypeMismatchError,
            ("a timer's time", str(2**63)),
        ),
    ],
)
def test_misused_state_and_timers_are_told_with_the_operators_name(env, backend, function, kind, names):
    env.set_state_backend(backend)
    env.from_elements(1).key_by(lambda n: n).process(function).name("culprit").print()
    failure_of(env, *names, "operator 'culprit'", "subtask", "/2", kind=kind)


class KeepsLocks(KeyedProcessFunction):
    def open(self, runtime_context):
        self.lock = runtime_context.get_state(ValueStateDescriptor("lock"))

    def process_element(self, value, ctx):
        self.lock.update(threading.Lock())


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_value_that_no_checkpoint_can_hold_is_told_with_state_and_operator(env, tmp_path, backend):
    env.set_state_backend(backend)
    env.enable_checkpointing(50, directory=tmp_path / "ckpt")
    numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=1_000), None, "numbers")
    numbers.key_by(lambda n: n % 3).process(KeepsLocks()).name("culprit").print()
    failure_of(env, "type lock", "state 'lock'", "operator 'culprit'", kind=TypeMismatchError)


class TimerWithoutKey(ProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1)


def test_a_timer_without_a_key_is_refused(env):
    env.from_elements(1).process(TimerWithoutKey()).name("culprit").print()
    failure_of(env, "only after key_by", "operator 'culprit'", kind=StateAccessError)


class PutsIn(Evictor):
    """Leaves something else than records in the list."""

    def __init__(self, when):
        self.when = when

    def evict_before(self, elements, size, window, ctx):
        if self.when == "before":
            elements.append("nonsense")

    def evict_after(self, elements, size, window, ctx):
        if self.when == "after":
            elements[:] = ["nonsense"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_evictor_that_puts_something_in_is_named(env, when):
    windows = env.from_elements(1).key_by(lambda n: n).window(GlobalWindows.create()).trigger(CountTrigger.of(1))
    windows.evictor(PutsIn(when)).reduce(lambda a, b: a).name("culprit").print()
    failure_of(env, "PutsIn", "'nonsense'", "operator 'culprit'", kind=TypeMismatchError)


def test_a_broadcast_function_without_broadcast_state_is_refused_where_it_is_written(env):
    class Rules(BroadcastProcessFunction):
        def process_element(self, value, ctx): ...

        def process_broadcast_element(self, value, ctx): ...

    stream = env.from_elements(1)
    with pytest.raises(ProgramError, match="needs a broadcast stream"):
        stream.connect(stream.broadcast()).process(Rules())


# ----------------------------------------------------------------------------------------------- asynchronous functions


async def raises(_value):
    message = "boom"
    raise ValueError(message)


async def exits(_value):
    sys.exit(3)


def test_what_an_asynchronous_function_raises_is_shown_without_what_called_it(env):
    env.from_elements(1).map_async(raises).name("culprit").print()
    text = failure_of(env, "ValueError: boom", "raise ValueError", "operator 'culprit'", kind=UserFunctionError)
    assert "offloads.py" not in text


def test_an_asynchronous_function_that_exits_fails_its_job_alone(env):
    env.from_elements(1).map_async(exits).name("culprit").print()
    failure_of(env, "SystemExit(3)", "operator 'culprit'", "record 1", kind=UserFunctionError)


def test_a_coroutine_that_nobody_awaits_is_told_once(env, recwarn):
    env.from_elements(1, 2).map_async(lambda value: raises(value)).name("culprit").print()
    failure_of(env, "write it as async def", "operator 'culprit'", kind=ProgramError)
    gc.collect()
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


@pytest.mark.parametrize(("record", "row"), [({"a": 1}, 5), ((1, 2), {"x": 1})])
def test_fields_of_a_row_that_is_no_dict_are_not_looked_up_silently(env, record, row):
    stream = env.from_collection([record])
    stream.lookup(lambda key: row, key=lambda record: 1, fields=["x"]).name("culprit").print()
    failure_of(env, "for dicts in dicts only", "operator 'culprit'", kind=TypeMismatchError)


# --------------------------------------------------------------------------------------------------- restored elsewhere


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("change", ["type", "kind", "backend"])
def test_state_that_a_checkpoint_has_otherwise_fails_the_job_at_once(env, tmp_path, backend, change):
    """Also with the restart strategy of jobs with checkpoints, which is to try without end."""

    def build(function):
        numbers = env.from_source(GeneratorSource(lambda n: n, records_per_second=1_000), None, "numbers").uid(
            "numbers"
        )
        numbers.key_by(lambda n: n % 3).process(function).name("culprit").uid("culprit").print()

    def tally(kind, value_type):
        return Written(lambda context: getattr(context, f"get_{kind}")(descriptors[kind]("tally", value_type)))

    descriptors = {"state": ValueStateDescriptor, "list_state": ListStateDescriptor}
    env.enable_checkpointing(50, directory=tmp_path / "ckpt")
    env.set_state_backend(backend)

    class Tally(KeyedProcessFunction):
        def open(self, runtime_context):
            self.tally = runtime_context.get_state(ValueStateDescriptor("tally", int))

        def process_element(self, value, ctx):
            self.tally.update(value)

    build(Tally())
    client = env.execute_async("before")
    next(view for view in client.views() if view.checkpoints_completed)
    path = client.stop()

    if change == "backend":
        env.set_state_backend("heap" if backend == "rocksdb" else "rocksdb")
    build(tally("list_state" if change == "kind" else "state", str if change == "type" else int))
    with pytest.raises(JobFailedError, match="operator 'culprit'") as caught:
        env.execute("after", from_checkpoint=path)
    assert isinstance(caught.value.__cause__, CheckpointMismatchError)
    assert "tally" in str(caught.value) or change == "backend"
