"""What a client is told of windows that do not fire: what waits, and which split holds it back.

Families: the story of a held-back window through a running job; what is said of views (idle and ended inputs, splits
that bring nothing, watermarks in the middle of a stream, output that is on its way).
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy
from headrace.connectors.scripted import Pause, ScriptedSource, Timed
from headrace.engine.functions.event_time_parts import MOST_PARTS, OperatorEventTime, WatermarkPart
from headrace.engine.protocol.states import JobStatus
from headrace.engine.protocol.views import JobView, OperatorView, VertexView
from headrace.jobs.event_time import explain_event_time
from headrace.state.identifiers import JobId, OperatorId, VertexId

TWO_SECONDS = WatermarkStrategy.for_bounded_out_of_orderness("2 s")


@pytest.fixture
def env():
    with StreamExecutionEnvironment.get_execution_environment("local", parallelism=2, metrics_interval_ms=20) as made:
        yield made


def told(client, is_enough, seconds=20.0):
    """What is said once it is enough."""
    deadline = time.monotonic() + seconds
    while not is_enough(text := client.explain_event_time()):
        assert time.monotonic() < deadline, text
        time.sleep(0.02)
    return text


def counted(stream):
    keyed = stream.key_by(lambda record: record[0])
    return keyed.window(TumblingEventTimeWindows.of(10_000)).reduce(lambda one, other: (one[0], one[1] + other[1]))


def test_the_split_that_holds_a_window_back_is_named(env):
    source = ScriptedSource(
        [Timed(("a", 1), 1_000), Timed(("a", 1), 65_000), Pause()],
        [Timed(("b", 1), 3_000), Pause()],
        [Timed(("c", 1), 70_000), Pause()],
        is_bounded=False,
    )
    counted(env.from_source(source, TWO_SECONDS, "clicks")).print()
    client = env.execute_async("held back")
    parts = ("script-1", "behind the furthest", "short of it")
    lines = told(client, lambda text: all(part in text for part in parts)).splitlines()
    client.cancel()
    assert lines[0].startswith("reduce ")
    assert "waits for event time 1970-01-01 00:00:09.999" in lines[0]
    assert "it is at 1970-01-01 00:00:00.999, 9.0 s short of it" in lines[0]
    assert lines[1].startswith("  Source: clicks")
    assert "has come to 1970-01-01 00:00:00.999, 1 min 2 s behind the furthest" in lines[1]
    assert "split 'script-1' is at 1970-01-01 00:00:00.999 since " in lines[2]
    assert not [line for line in lines if "script-0" in line or "script-2" in line]


def test_a_process_function_that_waits_for_its_timer_is_told_of(env):
    from headrace import KeyedProcessFunction

    class Later(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(value[1] + 60_000)
            yield value

    source = ScriptedSource([Timed(("a", 5), 5), Pause()], is_bounded=False)
    env.from_source(source, TWO_SECONDS, "clicks").key_by(lambda record: record[0]).process(Later()).print()
    client = env.execute_async("timers")
    text = told(client, lambda text: "split 'script-0'" in text)
    client.cancel()
    assert "waits for event time 1970-01-01 00:01:00.005" in text


def test_watermarks_of_the_middle_of_a_stream_are_what_comes(env):
    source = ScriptedSource([("a", 7_000), Pause()], is_bounded=False)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "clicks").map(lambda record: record)
    timed = TWO_SECONDS.with_timestamp_assigner(lambda record, _time: record[1])
    counted(stream.assign_timestamps_and_watermarks(timed)).print()
    client = env.execute_async("in the middle")
    text = told(client, lambda text: "what comes to it is at 1970-01-01 00:00:04.999" in text)
    client.cancel()
    assert "timestamps and watermarks" in text
    assert "split" not in text.replace("it has no split", "")


# ------------------------------------------------------------------------------------------------------------ of views


def vertex(name, states, *inputs):
    operator = OperatorView(
        OperatorId(name), name, {}, tuple(replace(state, subtask=i) for i, state in enumerate(states))
    )
    return VertexView(
        VertexId(name), name, len(states), {}, 0, 0, 0.0, 0.0, 0.0, 1.0, 0.0, None,
        operators=(operator,), inputs=tuple(map(VertexId, inputs)),
    )  # fmt: skip


def explained(*vertices):
    view = JobView(JobId("j"), "job", JobStatus.RUNNING, 1, 0, None, vertices, 0, 0, 0, None, None, None, None, None)
    return explain_event_time(view)


def source_state(watermark_ms, *parts):
    return OperatorEventTime.of(watermark_ms, None, list(parts))


WAITING = vertex("window", [OperatorEventTime(1_000, 9_999)], "source")


def test_what_waits_for_nothing_is_not_told_of():
    reached = vertex("window", [OperatorEventTime(9_999, 9_999), OperatorEventTime(5, None)], "source")
    assert explained(vertex("source", [source_state(5)]), reached) == "no operator waits for event time"


def test_idle_and_ended_inputs_hold_nothing_back():
    idle = source_state(None, WatermarkPart("quiet", None, 0, is_idle=True))
    ended = source_state(2**63 - 1)
    behind = source_state(1_000, WatermarkPart("slow", 1_000, 0), WatermarkPart("fast", 20_000, 0))
    text = explained(vertex("source", [idle, ended, behind]), WAITING)
    assert "source 3/3 has come to 1970-01-01 00:00:01" in text
    assert "split 'slow' is at 1970-01-01 00:00:01 since 1970-01-01 00:00:00, by the clock, 19.0 s behind" in text
    assert "1 that make watermarks are idle" in text
    assert "quiet" not in text
    assert "fast" not in text


def test_a_source_that_waits_for_a_split_is_said_to():
    assert "it has no split to read" in explained(vertex("source", [source_state(None)]), WAITING)


def test_what_is_on_its_way_is_no_splits_fault():
    assert "it is on its way; look for backpressure" in explained(vertex("source", [source_state(20_000)]), WAITING)
    assert "all input above it has ended" in explained(vertex("source", [source_state(2**63 - 1)]), WAITING)


def test_a_source_that_is_held_by_its_group_is_not_slow():
    held = source_state(1_000, WatermarkPart("ahead", 1_000, 0, is_held=True))
    assert "not read, as it is ahead of its alignment group" in explained(vertex("source", [held]), WAITING)


def test_the_way_up_goes_past_what_makes_no_watermarks_and_ends_where_some_are_made():
    origin = vertex("origin", [source_state(3, WatermarkPart("hidden", 3, 0))])
    maker = vertex("maker", [source_state(1_000, WatermarkPart("", 1_000, 0))], "origin")
    between = vertex("between", [OperatorEventTime(1_000)], "maker")
    text = explained(origin, maker, between, replace(WAITING, inputs=(VertexId("between"),)))
    assert "maker 1/1 has come to" in text
    assert "hidden" not in text


def test_of_many_splits_those_furthest_behind_are_told():
    parts = [WatermarkPart(str(i), i, 0) for i in range(100, 0, -1)]
    state = OperatorEventTime.of(1, None, parts)
    assert [part.name for part in state.parts] == [str(i) for i in range(1, MOST_PARTS + 1)]
    text = explained(vertex("source", [state]), WAITING)
    assert "split '1'" in text
    assert "(100 in all)" in text
    many = vertex("source", [source_state(i, WatermarkPart(f"s{i}", i, 0)) for i in range(10)])
    assert "and 7 more that are not there yet" in explained(many, WAITING)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (8_999, "9.0 s"),
        (60_000 + 999, "1 min"),
        (7_500_000, "2 h 5 min"),
        (100 * 3_600_000, "4 d 4 h"),
        (500, "500 ms"),
    ],
)
def test_durations_are_as_people_read_them(milliseconds, text):
    waiting = vertex("window", [OperatorEventTime(1_000, 1_000 + milliseconds)], "source")
    assert f", {text} short of it" in explained(vertex("source", [source_state(1_000)]), waiting)
