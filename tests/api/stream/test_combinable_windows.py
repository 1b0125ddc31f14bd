"""``combinable()`` windows as whole programs: what they give is what the same program gives without it.

Family: differential, at several parallelisms, on both state backends, and through a savepoint either way. What is late,
idle and restored is compared where time is moved by hand (``tests/engine/windows/test_combining.py``).
"""

import json
import random
from collections import Counter

import pytest

from headrace import (
    AggregateFunction,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    OutputTag,
    ProgramError,
    RocksDBStateBackend,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from headrace import functions as f
from headrace.connectors.datagen import GeneratorSource
from headrace.connectors.files import FileSink

ASSIGNERS = {"tumbling": TumblingEventTimeWindows.of(40, 7), "sliding": SlidingEventTimeWindows.of(50, 20)}


class Mean(AggregateFunction):
    """Accumulators are lists, which are changed in place."""

    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value[1]
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


def total(left, right):
    """Not the key of its records: 30 and 40 are of key 2, and 70 of 0."""
    return (left[0], left[1] + right[1], max(left[2], right[2]))


def with_window(key, context, results):
    return [(key, context.window().start, result) for result in results]


PROGRAMS = {
    "reduce": lambda windows: windows.reduce(total, with_window),
    "reduce alone": lambda windows: windows.reduce(total),
    "aggregate": lambda windows: windows.aggregate(Mean(), with_window),
    "built-in": lambda windows: windows.aggregate(n=count(), least=f.min("f1")),
    "field": lambda windows: windows.max(1).map(lambda row: row[1]),
}


def windows_of(env, seed, assigner, *, of_all):
    rng = random.Random(seed)
    records = [("x", rng.randrange(100), at - rng.randrange(30)) for at in sorted(rng.choices(range(-300, 900), k=500))]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(30).with_timestamp_assigner(lambda row, _: row[2])
    stream = env.from_collection(records).assign_timestamps_and_watermarks(strategy).map(lambda row: row)
    return stream.window_all(assigner) if of_all else stream.key_by(lambda row: row[1] % 7).window(assigner)


@pytest.mark.parametrize("of_all", [False, True], ids=["keyed", "all"])
@pytest.mark.parametrize("kind", ASSIGNERS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.sampled(6)
def test_results_are_those_of_records_that_are_not_combined(program, kind, of_all):
    def run(is_combined, parallelism, backend):
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.set_state_backend(RocksDBStateBackend(16 << 20) if backend == "rocksdb" else backend)
            windows = windows_of(env, f"{program}/{kind}", ASSIGNERS[kind], of_all=of_all)
            if is_combined:
                windows.combinable()
            if of_all and program in ("reduce", "aggregate"):
                function = {"reduce": (windows.reduce, total), "aggregate": (windows.aggregate, Mean())}[program]
                result = function[0](function[1], lambda context, results: with_window("all", context, results))
            else:
                result = PROGRAMS[program](windows)
            assert ("LocalCombiner" in str(env.get_job_graph().vertices)) == (is_combined and not_on_columns)
            return sorted(map(repr, result.execute_and_collect()))

    not_on_columns = not (of_all and program == "built-in")
    expected = run(False, 2, "heap")
    assert expected
    for parallelism, backend in ((1, "heap"), (2, "rocksdb"), (3, "heap")):
        assert run(True, parallelism, backend) == expected


COUNT = 3_000


@pytest.mark.parametrize(("before", "after", "backend"), [(True, False, "heap"), (False, True, "rocksdb")])
@pytest.mark.sampled(4)
def test_a_savepoint_can_be_restored_with_or_without_it(tmp_path, before, after, backend):
    def started(is_combined, parallelism, rate, **options):
        env = StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism)
        env.set_state_backend(RocksDBStateBackend(16 << 20) if backend == "rocksdb" else backend)
        env.enable_checkpointing(20, directory=str(tmp_path / "checkpoints"))
        source = GeneratorSource(lambda n: (n % 3, 1, n), count=COUNT, records_per_second=rate)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row[2])
        windows = (
            env.from_source(source, strategy, "numbers")
            .uid("numbers")
            .key_by(0)
            .window(TumblingEventTimeWindows.of(900))
        )
        if is_combined:
            windows.combinable()
        counted = windows.reduce(lambda a, b: (a[0], a[1] + b[1], b[2]), with_window)  # without a uid as well
        rows = counted.map(lambda row: {"key": row[0], "start": row[1], "n": row[2][1]})
        rows.sink_to(FileSink.json_lines(str(tmp_path / "out"))).uid("files")
        return env.execute_async("job", **options)

    first = started(before, 2, 1_500)
    for view in first.views():
        if view.checkpoints_completed > 2 and view.vertices[0].records_in > 400:
            break
    path = first.stop_with_savepoint(tmp_path / "savepoints")
    started(after, 3, None, from_checkpoint=path).result()
    lines = [line for file in sorted((tmp_path / "out").glob("part-*")) for line in file.read_text().splitlines()]
    found = Counter((row["key"], row["start"], row["n"]) for row in map(json.loads, lines))
    numbers = Counter((n % 3, n - n % 900) for n in range(COUNT))
    assert found == Counter((key, start, n) for (key, start), n in numbers.items())


def test_what_needs_every_record_is_refused_by_name():
    with StreamExecutionEnvironment.get_execution_environment("local") as env:

        def windows(assigner=ASSIGNERS["tumbling"]):
            return windows_of(env, 1, assigner, of_all=False).combinable()

        for make, reason in (
            (lambda: windows().process(lambda key, context, elements: elements), "given the records of a window"),
            (lambda: windows().trigger(CountTrigger.of(3)).reduce(total), "a trigger"),
            (lambda: windows().evictor(CountEvictor.of(3)).reduce(total), "an evictor"),
            (lambda: windows().side_output_late_data(OutputTag("late")).reduce(total), "a side output of late records"),
            (lambda: windows().aggregate(first=f.first("f1")), "an aggregate that depends on their order"),
            (lambda: windows(EventTimeSessionWindows.with_gap(5)).reduce(total), "tumbling and sliding windows"),
        ):
            with pytest.raises(ProgramError, match=reason):
                make()

        def on_columns():
            stream = env.from_collection([{"key": 1, "value": 2}])
            return stream.key_by("key").window(ASSIGNERS["tumbling"]).combinable()

        on_columns().aggregate(n=count())
        with pytest.raises(ProgramError, match="a side output of late records"):
            on_columns().side_output_late_data(OutputTag("late")).aggregate(n=count())
        with pytest.raises(ProgramError, match="an aggregate that depends on their order"):
            on_columns().aggregate(first=f.first("value"))
