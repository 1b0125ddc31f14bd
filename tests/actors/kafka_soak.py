"""Kafka to Kafka on Ray, while processes die: ``python tests/actors/kafka_soak.py --faults 30``.

Numbers come from one topic, counts go into another one, exactly once, from checkpoints or by transactions that are left
open (``--staging transaction``). ``tests/actors/server_soak.py`` says what dies.
Kafka's own console consumer reads what is committed. Needs Java, and Kafka or Maven (``tests/kafka_server.py``).

There are three brokers, as where it matters, and one of them dies at a time. With ``--brokers 1`` it dies at random
moments only: a broker that is killed between its decision to commit and its markers, and is alone, may say after its
start that all is done, and write none (Kafka 4.3.1). Then the soak stands still, which may happen at random moments,
too; ``kafka-transactions.sh`` tells.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kafka_server import KafkaBrokers, KafkaServer, KafkaTopics, fetched_jars
from server_soak import (
    COUNTS,
    NUMBERS,
    RATE,
    count_in_windows,
    expected_counts,
    judge,
    main,
    make_row,
    num_records_of,
    run_job,
)
from zookeeper_server import java

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.kafka import JsonMessages, KafkaOffsets, KafkaSink, KafkaSource

NUM_PARTITIONS = 4


class NumbersProducer(threading.Thread):
    """Writes the numbers at their rate, through restarts of the broker."""

    def __init__(self, server: KafkaTopics, topic: str, num_records: int) -> None:
        super().__init__(daemon=True)
        self._server, self._topic, self._num_records = server, topic, num_records
        self.failures: list[str] = []

    def run(self) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self._server.address, "enable.idempotence": True, "log_level": 0}
        producer = Producer({**settings, "delivery.timeout.ms": 300_000})
        started = time.monotonic()
        for index in range(self._num_records):
            producer.produce(
                self._topic, json.dumps(make_row(index)), partition=index % NUM_PARTITIONS, on_delivery=self._delivered
            )
            if index % 200 == 199:
                producer.poll(0)
                time.sleep(max(0.0, started + index / RATE - time.monotonic()))
        if producer.flush(300):
            self.failures.append("not all numbers were written")

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    executable = java()
    assert executable is not None, "there is no Java"
    is_alone = options.brokers == "1"
    server: KafkaServer | KafkaBrokers
    if is_alone:
        server = KafkaServer(fetched_jars(), executable, directory)
    else:
        server = KafkaBrokers(fetched_jars(), executable, directory, random.Random(options.seed))
    try:
        return soak_server(server, options, directory, server_at_commits=not is_alone)
    finally:
        server.stop()


def soak_server(
    server: KafkaServer | KafkaBrokers, options: argparse.Namespace, directory: Path, *, server_at_commits: bool
) -> dict[str, Any]:
    server.start()
    num_records = num_records_of(options)
    topics = (server.create_topic(NUM_PARTITIONS), server.create_topic(2))
    producer = NumbersProducer(server, topics[0], num_records)

    def build(env: StreamExecutionEnvironment) -> None:
        ends = {
            (topics[0], partition): len(range(partition, num_records, NUM_PARTITIONS))
            for partition in range(NUM_PARTITIONS)
        }
        source = KafkaSource(
            server.address, topics[0], value=JsonMessages(NUMBERS), stop=KafkaOffsets.of(ends), group_id="soak"
        )
        sink = KafkaSink.exactly_once(
            server.address,
            topics[1],
            value=JsonMessages(COUNTS),
            key="key",
            transactional_id_prefix="soak",
            staging=options.staging,
        )
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
        count_in_windows(env.from_source(source, strategy, "numbers"), sink, directory)

    figures = run_job(
        server,
        producer,
        build,
        lambda client: client.result(timeout=600),
        options,
        directory,
        server_at_commits=server_at_commits,
    )
    lines = server.seen_by_java(topics[1])
    seen = Counter(message.value().decode() for message in server.committed(topics[1]))
    return {
        **figures,
        "records": num_records,
        "seen by one reader only": (seen - Counter(lines)).total() + (Counter(lines) - seen).total(),
        "failures of the producer": len(producer.failures),
        **judge(lines, expected_counts(num_records)),
    }


if __name__ == "__main__":
    wrong = ["failures of the producer", "seen by one reader only"]
    sys.exit(main(__doc__, soak, wrong, {"staging": ("checkpoint", "transaction"), "brokers": ("3", "1")}))
