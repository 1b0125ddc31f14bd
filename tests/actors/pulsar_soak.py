"""Pulsar to Pulsar on Ray, while processes die: ``python tests/actors/pulsar_soak.py --faults 30``.

Numbers come from three topics, counts go into one with two partitions, exactly once (``tests/actors/server_soak.py``
says what dies). Pulsar's client in Java reads the counts; the connectors are on the one in C++. Needs Java, and Pulsar
or Maven (``tests/pulsar_server.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from java_homes import java_for
from pulsar_server import PulsarServer, fetched_jars
from server_soak import (
    COUNTS,
    END,
    NUMBERS,
    Producer,
    count_in_windows,
    expected_counts,
    finish_when,
    judge,
    main,
    make_row,
    num_records_of,
    run_job,
)

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.pulsar import JsonMessages, PulsarSink, PulsarSource

RATE = 1_000
NUM_TOPICS = 3


class Numbered:
    """Pulsar's own producers: what they send again after the broker's death has the number that it had."""

    def __init__(self, server: PulsarServer, topics: list[str], num_records: int) -> None:
        self._server, self._topics, self._num_records = server, topics, num_records
        self._producers: list[Any] = []

    def write(self, first: int, last: int) -> None:
        """Send the records of some numbers, and wait until they are there."""
        import pulsar

        if not self._producers:
            client = self._server.client()
            self._producers = [
                client.create_producer(topic, producer_name="numbers", batching_enabled=False, send_timeout_millis=0)
                for topic in self._topics
            ]
        results: list[Any] = []
        for place, producer in enumerate(self._producers):
            rows = [(index + 1, make_row(index, RATE)) for index in range(first, last) if index % NUM_TOPICS == place]
            if last == self._num_records:
                rows.append((last + 1, END))
            for number, row in rows:
                data = json.dumps(row).encode()
                producer.send_async(data, lambda result, _id: results.append(result), sequence_id=number)
            producer.flush()
        assert set(results) <= {pulsar.Result.Ok}, results


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = PulsarServer(fetched_jars(), java_for("Pulsar"), directory)
    server.start()
    num_records = num_records_of(options, RATE)
    expected = expected_counts(num_records, RATE)
    topics, target = [server.new_topic() for _ in range(NUM_TOPICS)], server.new_topic(2)

    def build(env: StreamExecutionEnvironment) -> None:
        source = PulsarSource(server.url, topics, value=JsonMessages(NUMBERS), subscription="soak")
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
        sink = PulsarSink(server.url, target, value=JsonMessages(COUNTS), key="key")
        count_in_windows(env.from_source(source, strategy, "numbers"), sink, directory)

    finish = finish_when(lambda: server.num_messages(target), len(expected), directory)
    producer = Producer(Numbered(server, topics, num_records).write, num_records, RATE)
    try:
        figures = run_job(server, producer, build, finish, options, directory)
        lines = server.seen_by_java(target)
    finally:
        server.kill()
    return {**figures, "records": num_records, **judge(lines, expected)}


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
