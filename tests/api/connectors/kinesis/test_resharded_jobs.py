"""Whole jobs over streams of Kinesis that are resharded in the middle: sums by key and window, against what was put in.

Risks and families: lost, doubled and late records (oracle: the sums of what was put in; slots that fail at random
records, a restore at another parallelism, a server that is killed).
"""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from campaigns import campaign
from failing_functions import FailsAtFirst
from kinesis_server import kinesis_server  # noqa: F401 - a fixture

from headrace import (
    ProcessWindowFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.connectors.files import FileSink
from headrace.connectors.kinesis import JsonMessages, KinesisSource
from headrace.engine.errors import SavepointError

WINDOW_MS = 100
FAR_MS = 10_000_000


class Sums:
    """What is put in, and what must come of it."""

    def __init__(self, server, stream, chosen):
        self.server, self.stream, self.chosen = server, stream, chosen
        self.expected, self.sent = Counter(), 0

    def put(self, number):
        rows = [
            {"key": f"k{self.chosen.randrange(7)}", "n": n, "t": 2 * n} for n in range(self.sent, self.sent + number)
        ]
        self.sent += number
        for row in rows:
            self.expected[row["key"], row["t"] // WINDOW_MS * WINDOW_MS] += row["n"]
        self.server.put(self.stream, map(json.dumps, rows), keys=[f"{row['key']}-{row['n'] % 5}" for row in rows])

    def kept(self):
        """What the server has of it, by the same sums: what it loses itself is nobody's fault here."""
        found = Counter()
        for row in map(json.loads, self.server.values(self.stream)):
            found[row["key"], row["t"] // WINDOW_MS * WINDOW_MS] += row["n"]
        return {place: total for place, total in found.items() if place[0] != "end"}

    def end(self):
        """Have event time pass all windows, in every shard."""
        for place in range(len(self.server.open_shards(self.stream))):
            self.server.put(self.stream, [json.dumps({"key": "end", "n": 0, "t": FAR_MS})], place)


class Total(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield {"key": key, "start": context.window().start, "total": sum(row["n"] for row in elements)}


def found_in(folder):
    rows = [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]
    return [(row["key"], row["start"], row["total"]) for row in rows if row["key"] != "end"]


def graph(env, server, stream, tmp_path, failing):
    value = JsonMessages({"key": "string", "n": "int64", "t": "int64"})
    source = KinesisSource(
        stream, value=value, read_interval=20, discovery_interval="1 s", max_records_per_read=50, **server.arguments()
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(0).with_timestamp_assigner("t")
    rows = env.from_source(source, strategy, "in").uid("in")
    rows = rows.map(FailsAtFirst(tmp_path, failing, lambda row: row["n"])).uid("map")
    windows = rows.key_by("key").window(TumblingEventTimeWindows.of(WINDOW_MS))
    sums = windows.process(Total()).uid("sums")
    sums.sink_to(FileSink.json_lines(tmp_path / "out")).uid("out")


def num_late(client):
    """How many records came behind their windows."""
    operators = [operator for vertex in client.view().vertices for operator in vertex.operators]
    return sum(operator.metrics.get("num_late_records_dropped", 0) for operator in operators)


def savepoint_of(client, server, folder):
    """End a job with a savepoint, as soon as it is at none of its failures; gives where that is."""
    found = []
    server.wait_until(lambda: found.append(client.stop_with_savepoint(folder)) or is_stopped(client), SavepointError)
    return found[-1]


def is_stopped(client):
    assert client.view().state == "FINISHED"
    return True


def is_alive(client):
    view = client.view()
    assert view.state not in ("FAILED", "FINISHED"), view.failures
    return True


@pytest.mark.parametrize("seed", [0, campaign(1), campaign(2)])
def test_windows_over_a_stream_that_is_resharded(seed, kinesis_server, tmp_path):  # noqa: F811
    chosen = random.Random(seed)
    sums = Sums(kinesis_server, kinesis_server.new_stream(6), chosen)  # no subtask is ever without a shard
    failing, path = chosen.sample(range(1_000), 4), None
    sums.put(250)
    for parallelism in (2, 3):
        with StreamExecutionEnvironment.get_execution_environment("local", parallelism=parallelism) as env:
            env.enable_checkpointing(100, directory=str(tmp_path / "checkpoints"))
            env.set_restart_strategy(RestartStrategies.fixed_delay_restart(50, 100))
            graph(env, kinesis_server, sums.stream, tmp_path, failing)
            client = env.execute_async("part", from_savepoint=path)
            kinesis_server.split(sums.stream, 0)
            sums.put(250)
            kinesis_server.merge(sums.stream, 1)
            sums.put(250)
            if parallelism == 2:
                kinesis_server.wait_until(lambda client=client: is_alive(client) and found_in(tmp_path / "out"))
                path = savepoint_of(client, kinesis_server, str(tmp_path / "savepoints"))
                continue
            kinesis_server.kill()
            kinesis_server.start()
            sums.end()
            kinesis_server.wait_until(
                lambda client=client: is_alive(client) and len(found_in(tmp_path / "out")) >= len(sums.expected)
            )
            late = num_late(client)
            client.cancel()
    assert sums.kept() == sums.expected, "the server has lost what it had confirmed"
    assert late == 0
    assert len(list(tmp_path.glob("failed-*"))) == 4
    assert Counter(found_in(tmp_path / "out")) == Counter((*place, total) for place, total in sums.expected.items())
