"""Event time over a restore, end to end, in rows and in columns.

After a drain nothing is late that was not read; a source that was not there before starts event time anew.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from campaigns import campaign

from headrace import (
    OutputTag,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from headrace.connectors.files import FileSink
from headrace.connectors.scripted import Pause, ScriptedSource, Timed
from headrace.functions import sum as sum_of

IN_ORDER = WatermarkStrategy.for_monotonous_timestamps()
WINDOWS = {"tumbling": TumblingEventTimeWindows.of(100), "sliding": SlidingEventTimeWindows.of(200, 100)}


@pytest.fixture
def env(tmp_path):
    made = StreamExecutionEnvironment.get_execution_environment("local", parallelism=1)
    made.enable_checkpointing(30, directory=tmp_path / "ckpt")
    made.set_default_savepoint_directory(tmp_path / "savepoints")
    made.set_max_parallelism(16)
    yield made
    made.close()


def rows_from(first, last):
    """Ten rows of three keys for each 100 ms of event time, each with a value of its own."""
    return [Timed({"k": n % 3, "v": n}, 10 * n) for n in range(first // 10, last // 10)]


def build(env, stream, assigner, folder, *, columns):
    keyed = stream.key_by("k" if columns else (lambda row: row["k"]))
    result = keyed.window(assigner).aggregate(n=count(), total=sum_of("v")).uid("windows")
    result.map(lambda row: {**row, "window_start": str(row["window_start"]), "window_end": str(row["window_end"])}).uid(
        "text"
    ).sink_to(FileSink.json_lines(folder)).uid("files")


def written(folder):
    """The rows of a folder, as (key, start of the window, number, total)."""
    rows = [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    return Counter((row.get("k", row.get("key")), row["window_start"], row["n"], row["total"]) for row in rows)


def stop_after(client, num_records, **how):
    """Stop a job that has read so much."""
    for view in client.views():
        if view.vertices and view.vertices[0].records_in >= num_records:
            break
    return client.stop(**how)


def num_late(result):
    return sum(
        value
        for vertex in result.view.vertices
        for operator in vertex.operators
        for name, value in operator.metrics.items()
        if "late" in name
    )


@pytest.mark.parametrize("parallelism", [campaign(1), 3])
@pytest.mark.parametrize("kind", WINDOWS)
def test_what_comes_after_a_drain_is_not_late_in_rows_nor_in_columns(env, tmp_path, parallelism, kind):
    """What windows hold at the drain comes out early, the rest of them after it: together each record once."""
    found = {}
    for columns in (False, True):
        folder = tmp_path / f"out-{columns}"
        # The same steps in both runs: the second one does not pause.
        for pause in (Pause(), Pause(0)):
            scripts = [[*rows_from(0, 350), pause, *rows_from(350, 800), Pause(0)]]
            stream = env.from_source(ScriptedSource(*scripts), IN_ORDER, "script").uid("script").set_parallelism(1)
            env.set_parallelism(parallelism)
            build(env, stream, WINDOWS[kind], folder, columns=columns)
            if pause == Pause():
                path = stop_after(env.execute_async("drained"), 35, drain=True)
                assert sum(row[2] * times for row, times in written(folder).items()) == 35 * (1 + (kind == "sliding"))
            else:
                result = env.execute("goes on", from_checkpoint=path)
                assert num_late(result) == 0
        found[columns] = written(folder)
        read = sum(row[2] * times for row, times in found[columns].items())
        assert read == 80 * (1 + (kind == "sliding"))
    assert found[True] == found[False]


@pytest.mark.parametrize(("columns", "parallelism"), [(False, 1), (True, 3), campaign(False, 3), campaign(True, 1)])
def test_an_older_source_that_is_added_starts_event_time_anew(env, tmp_path, parallelism, columns):
    """Its records are not late for windows that were past, and what was open keeps what it held."""
    script = ScriptedSource([*rows_from(1_000, 1_350), Pause()], is_bounded=False)
    live = env.from_source(script, IN_ORDER, "live").uid("live").set_parallelism(1)
    build(env, live, WINDOWS["sliding"], tmp_path / "out", columns=columns)
    path = stop_after(env.execute_async("live"), 35)
    before = written(tmp_path / "out")
    assert len(before) == 9, "of three keys the windows from 0.9, 1.0 and 1.1 s on"
    env.set_parallelism(parallelism)
    old = ScriptedSource([*rows_from(0, 300), *rows_from(1_000, 1_400)])
    backfill = env.from_source(old, IN_ORDER, "backfill").uid("backfill").set_parallelism(1)
    build(env, backfill, WINDOWS["sliding"], tmp_path / "out", columns=columns)
    result = env.execute("backfilled", from_checkpoint=path, allow_non_restored_state=True)
    assert num_late(result) == 0
    after = Counter(
        {(row[1], row[0]): row[2] for row in (written(tmp_path / "out") - before)},
    )
    per_window = Counter()
    for (start, _), number in after.items():
        per_window[start[17:23]] += number
    # 10 records a step of 100 ms. Open when the job was stopped were the windows from 1.2 s (and 1.3 s) on, with what
    # they held; older ones come to be again, with what is new.
    assert per_window["00"] == per_window["00.100"] == 20, per_window
    assert per_window["01"] == per_window["01.100"] == 20, "past, and again with the new records alone"
    assert per_window["01.200"] == 15 + 20, "open"
    assert per_window["01.300"] == 5 + 10


def test_a_source_that_was_there_does_not_start_event_time_anew(env, tmp_path):
    """What was late stays late over a restore of the same program."""
    late = OutputTag("late")
    for pause in (Pause(), Pause(0)):
        script = [*rows_from(0, 350), pause, Timed({"k": 0, "v": -1}, 20), *rows_from(350, 400)]
        stream = env.from_source(ScriptedSource(script), IN_ORDER, "script").uid("script")
        windows = stream.key_by(lambda row: row["k"]).window(WINDOWS["tumbling"]).side_output_late_data(late)
        result = windows.reduce(lambda a, b: {**a, "v": a["v"] + b["v"]}).uid("windows")
        result.get_side_output(late).map(lambda row: {"late": row["v"]}).uid("named").sink_to(
            FileSink.json_lines(tmp_path / "late")
        ).uid("f")
        if pause == Pause():
            path = stop_after(env.execute_async("one"), 35)
        else:
            env.execute("two", from_checkpoint=path)
    found = [json.loads(line) for path in (tmp_path / "late").glob("part-*") for line in path.read_text().splitlines()]
    assert found == [{"late": -1}]


def test_a_source_that_had_ended_does_not_start_event_time_anew(env, tmp_path):
    """No split of it is in the snapshot any more; that it was there says its enumerator."""
    late = OutputTag("late")
    by_value = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _time: row["t"])

    def row(time, value):
        return {"k": 0, "t": time, "v": value}

    for pause in (Pause(), Pause(0)):
        ended = env.from_source(ScriptedSource([row(0, 0), row(340, 1)]), None, "ended").uid("ended")
        script = ScriptedSource([*(row(350 + n, n) for n in range(10)), pause, row(20, -1), row(400, 2)])
        both = ended.union(env.from_source(script, None, "script").uid("script"))
        timed = both.rebalance().assign_timestamps_and_watermarks(by_value).uid("timed")
        windows = timed.key_by(lambda row: row["k"]).window(WINDOWS["tumbling"]).side_output_late_data(late)
        result = windows.reduce(lambda a, b: {**a, "v": a["v"] + b["v"]}).uid("windows")
        result.get_side_output(late).map(lambda row: {"late": row["v"]}).uid("named").sink_to(
            FileSink.json_lines(tmp_path / "late", mode="append")
        ).uid("f")
        if pause == Pause():
            client = env.execute_async("one")
            for view in client.views():
                if sum(vertex.records_in for vertex in view.vertices[:2]) >= 12 and view.checkpoints_completed > 2:
                    break
            path = client.stop()
            assert path is not None
        else:
            env.execute("two", from_checkpoint=path)
    found = [json.loads(line) for path in (tmp_path / "late").glob("part-*") for line in path.read_text().splitlines()]
    assert {"late": -1} in found
