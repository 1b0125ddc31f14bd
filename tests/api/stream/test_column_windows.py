"""Windows with built-in aggregates as whole programs: on columns, whatever the records are, as on rows.

Family: differential. Random records run through a program twice: as users write it, which is on columns, and with the
row path's operator in its place. Results agree with their fields, types and values, at any parallelism and on both
state backends. Nothing is late here; what is late is compared where time is moved by hand
(``tests/engine/windows/columnar/test_sessions.py``).
"""

import json
import random
from unittest import mock

import pytest
from campaigns import campaign

from headrace import (
    EventTimeSessionWindows,
    OutputTag,
    RocksDBStateBackend,
    RuntimeExecutionMode,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WatermarkStrategy,
    avg,
    col,
    count,
)
from headrace import functions as f
from headrace.stream.windowed_stream import WindowedStream

ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(40, 7),
    "sliding": SlidingEventTimeWindows.of(50, 20),
    "with gaps": SlidingEventTimeWindows.of(10, 25),
    "session": EventTimeSessionWindows.with_gap(9),
}
SESSION, TUMBLING = ASSIGNERS["session"], ASSIGNERS["tumbling"]
AGGREGATES = {
    "n": count(),
    "known": count("v"),
    "total": f.sum("v"),
    "least": f.min("name"),
    "most": f.max(col("v") * 2),
    "mean": avg("v"),
    "names": f.count_distinct("name"),
}
DISORDER_MS = 30
WAYS = [("heap", True), ("rocksdb", False), campaign("heap", False), campaign("rocksdb", True)]
"""State backends, and whether records are columns before they are grouped."""


def records_of(seed):
    rng = random.Random(seed)
    return [
        {
            "user": rng.choice((None, "a", "b", "c", "d")),
            "part": rng.randrange(3),
            "v": rng.choice((None, rng.randint(-5, 100))),
            "name": f"n{rng.randrange(20)}",
            "at": at - rng.randrange(DISORDER_MS),
            "other": {1, 2},  # no column can hold it, and none is asked to
        }
        for at in sorted(rng.randrange(-500, 1_500) for _ in range(rng.choice((30, 300))))
    ]


def run(seed, make, *, on_columns=True, from_columns=False, parallelism=2, backend="heap", is_batch=False):
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
        env.set_state_backend(RocksDBStateBackend(16 << 20) if backend == "rocksdb" else backend)
        if is_batch:
            env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(DISORDER_MS).with_timestamp_assigner(
            lambda row, _: row["at"]
        )
        stream = env.from_collection(records_of(seed)).map(lambda row: row)
        if from_columns:
            kind = Types.ROW_NAMED(
                ["user", "part", "v", "name", "at"],
                [Types.STRING(), Types.LONG(), Types.LONG(), Types.STRING(), Types.LONG()],
            )
            stream = stream.map(lambda row: {name: row[name] for name in row if name != "other"}, kind)
            stream = stream.with_columns(v=col("v"))
        stream = stream.assign_timestamps_and_watermarks(strategy)
        path = mock.patch.object(WindowedStream, "_phases_on_columns", return_value=None)
        if on_columns:
            result = make(stream)
        else:
            with path:
                result = make(stream)
        vertices = str(env.get_job_graph().vertices)
        assert ("SliceAggregate" in vertices or "SessionAggregate" in vertices) == on_columns
        return sorted((list(row.items()) for row in result.execute_and_collect()), key=repr)


def keyed(assigner, *fields):
    return lambda stream: stream.key_by(*fields).window(assigner).aggregate(**AGGREGATES)


def of_all(assigner):
    return lambda stream: stream.window_all(assigner).aggregate(**AGGREGATES)


@pytest.mark.parametrize(("backend", "from_columns"), WAYS)
@pytest.mark.parametrize("kind", sorted(ASSIGNERS))
@pytest.mark.sampled(4)
def test_windows_of_a_whole_stream_are_those_of_the_row_path(kind, backend, from_columns):
    for parallelism in (1, 2, 3):
        seed = f"{kind}-{backend}-{from_columns}-{parallelism}"
        make, options = of_all(ASSIGNERS[kind]), {"parallelism": parallelism, "backend": backend}
        found = run(seed, make, from_columns=from_columns, **options)
        assert found
        assert repr(found) == repr(run(seed, make, on_columns=False, **options))


@pytest.mark.parametrize(("backend", "from_columns"), WAYS)
@pytest.mark.parametrize("fields", [("user",), ("part", "user")])
@pytest.mark.sampled(4)
def test_sessions_are_those_of_the_row_path(fields, backend, from_columns):
    for parallelism in (1, 2, 3):
        seed = f"{fields}-{backend}-{from_columns}-{parallelism}"
        make, options = keyed(ASSIGNERS["session"], *fields), {"parallelism": parallelism, "backend": backend}
        found = run(seed, make, from_columns=from_columns, **options)
        assert found
        assert repr(found) == repr(run(seed, make, on_columns=False, **options))


@pytest.mark.parametrize("kind", sorted(ASSIGNERS))
@pytest.mark.sampled(4)
def test_in_a_batch_too(kind):
    for make in (of_all(ASSIGNERS[kind]), keyed(ASSIGNERS[kind], "user")):
        assert repr(run(kind, make, is_batch=True)) == repr(run(kind, make, on_columns=False, is_batch=True))


@pytest.mark.parametrize("is_batch", [False, True])
def test_first_and_last_of_a_whole_stream_need_one_phase(is_batch):
    def make(stream):
        windows = stream.window_all(TumblingEventTimeWindows.of(40))
        return windows.aggregate(first=f.first("at"), last=f.last("at"), n=count())

    for from_columns in (False, True):
        options = {"parallelism": 1, "is_batch": is_batch}
        found = run(3, make, from_columns=from_columns, **options)
        assert repr(found) == repr(run(3, make, on_columns=False, **options))


@pytest.mark.parametrize("whole", [False, True])
def test_with_allowed_lateness_and_a_side_output_for_what_is_late(whole):
    """The single phase; what is late is none here, and is put beside the results."""

    def make(stream):
        windows = stream.window_all(SESSION) if whole else stream.key_by("user").window(SESSION)
        tag = OutputTag("late")
        result = windows.allowed_lateness(5).side_output_late_data(tag).aggregate(**AGGREGATES)
        return result.union(result.get_side_output(tag))

    found = run(7, make)
    assert all("window_start" in dict(row) for row in found)
    assert repr(found) == repr(run(7, make, on_columns=False))


def planned(make):
    """The operators behind the records, and the parallelism of each."""
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        make(env.from_collection(records_of(1)).map(lambda row: row))
        nodes = list(env.get_stream_graph().nodes.values())[2:]
        return [type(node.operator).__name__ for node in nodes], [node.parallelism for node in nodes]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (keyed(SESSION, "user"), ["LocalSessionAggregate", "GlobalSessionAggregate"]),
        (of_all(SESSION), ["LocalSessionAggregate", "GlobalSessionAggregate"]),
        (of_all(TUMBLING), ["LocalSliceAggregate", "GlobalSliceAggregate"]),
        (lambda s: s.key_by("user").window(SESSION).aggregate(n=f.first("v")), ["WindowOperator"]),
        (lambda s: s.window_all(TUMBLING).aggregate(n=f.first("v")), ["GlobalSliceAggregate"]),
        (lambda s: s.window_all(TumblingProcessingTimeWindows.of(5)).aggregate(n=count()), ["WindowOperator"]),
        (lambda s: s.count_window_all(5).aggregate(n=count()), ["WindowOperator"]),
        (
            lambda s: (
                s.key_by("user")
                .window(EventTimeSessionWindows.with_dynamic_gap(lambda row: row["v"]))
                .aggregate(n=count())
            ),
            ["WindowOperator"],
        ),
        (lambda s: s.key_by(lambda row: row["user"]).window(SESSION).aggregate(n=count()), ["WindowOperator"]),
        (
            lambda s: s.key_by("user").window(SESSION).side_output_late_data(OutputTag("late")).aggregate(n=count()),
            ["GlobalSessionAggregate"],
        ),
    ],
)
def test_the_path_follows_from_the_arguments(make, expected):
    assert planned(make)[0] == expected


def test_only_the_second_phase_of_a_whole_stream_is_in_one_place():
    assert planned(of_all(TUMBLING))[1] == [2, 1]
    assert planned(of_all(SESSION))[1] == [2, 1]


@pytest.mark.parametrize("assigner", ["tumbling", "sliding", "session"])
def test_a_plan_says_on_which_path_windows_are(assigner):
    """Both phases on columns; what needs a function of Python on rows."""

    def faces(_sink):
        nodes = json.loads(env.get_execution_plan())["nodes"]
        return [node["path"] for node in nodes if " in " in node["contents"]]

    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        rows = env.from_collection([{"k": 1, "v": 2}]).key_by("k").window(ASSIGNERS[assigner])
        assert faces(rows.aggregate(n=count()).print()) == ["columns", "columns"]
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2) as env:
        rows = env.from_collection([{"k": 1, "v": 2}]).key_by("k").window(ASSIGNERS[assigner])
        assert faces(rows.process(lambda key, context, elements: [key]).print()) == ["rows"]
