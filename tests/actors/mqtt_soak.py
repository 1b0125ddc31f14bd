"""MQTT to MQTT on Ray, while processes die: ``python tests/actors/mqtt_soak.py --faults 30``.

Numbers come from two topics, whose messages have ids of their own; counts go into a topic, at least once
(``tests/actors/server_soak.py`` says what dies). The broker is ended in order, and started again: what is killed has
lost what it had confirmed. A client of the tests' own takes the counts; one that comes again is the same, and counted
as written again. Needs what ``tests/mqtt_server.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from mqtt_server import MqttServer, program
from server_soak import COUNTS, END, NUMBERS, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.mqtt import JsonMessages, MqttSink, MqttSource

RATE = 400
NUM_TOPICS = 2
IDS_APART = 10**9


class Orderly(MqttServer):
    """A broker that is never killed."""

    def kill(self) -> None:
        if self._process is not None:
            self.end()


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = Orderly(program(), directory)
    server.start()
    num_records = num_records_of(options, RATE)
    topics, target = [server.new_topic() for _ in range(NUM_TOPICS)], server.new_topic()
    listener = server.listen(target)

    def write(first: int, last: int) -> None:
        """Messages have ids: what is written again is known."""
        for place, topic in enumerate(topics):
            indexes = [index for index in range(first, last) if index % NUM_TOPICS == place]
            rows = [json.dumps(make_row(index, RATE)) for index in indexes]
            rows += [json.dumps(END)] * (last == num_records)
            server.send(topic, rows, first=place * IDS_APART + first)

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        source = MqttSource(
            server.url, topics, value=JsonMessages(NUMBERS), client_id="soak", deduplicate_by="id",
            receive_maximum=20_000, patience="5 min",
        )  # fmt: skip
        server.begin(source)  # what is sent before is kept
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
        sink = MqttSink(server.url, target, value=JsonMessages(COUNTS))
        return env.from_source(source, strategy, "numbers"), sink

    def lines() -> list[str]:
        return list(dict.fromkeys(body.decode() for body in listener.bodies))

    figures = soak_messages(
        server, write, build, lines, lambda: len(lines()), options, directory, RATE, commits=False
    )  # fmt: skip
    return {**figures, "written again": len(listener.bodies) - len(lines())}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
