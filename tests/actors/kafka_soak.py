"""Kafka to Kafka on Ray, while processes die: ``python tests/actors/kafka_soak.py --faults 30``.

A producer of its own writes numbers into a topic; a job counts them in windows by event time and writes the counts into
another topic, exactly once, from checkpoints or by open transactions (``--staging transaction``). At random moments a
slot, a TaskManager, the JobManager, the broker, or the broker and a slot are killed with signal 9; the broker is
started again a moment later. At the end Kafka's own console consumer reads what is committed: every window must be
there once, with its exact count, and those of a key in order. Prints one line per figure. Needs Java, and Kafka or
Maven (``tests/kafka_server.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kafka_server import KafkaServer, fetched_jars
from kill_soak import kind_of, living_hosts
from zookeeper_server import java

from headrace import StreamExecutionEnvironment, TumblingEventTimeWindows, WatermarkStrategy, count
from headrace.connectors.kafka import JsonMessages, KafkaOffsets, KafkaSink, KafkaSource

NUM_PARTITIONS = 4
NUM_KEYS = 40
WINDOW_MS = 500
RATE = 2_000
"""Records a second."""

SECONDS_PER_FAULT = 15.0
VICTIMS = ("slot", "slot", "TaskManager", "JobManager", "broker", "broker and slot")
NUMBERS = {"key": "int64", "ts": "int64"}
COUNTS = {"key": "int64", "window": "int64", "n": "int64"}


def make_row(index: int) -> dict[str, int]:
    """Numbers of a partition are in order of time; partitions differ by what the producer is ahead."""
    return {"key": index * 7 % NUM_KEYS, "ts": index * 1_000 // RATE}


def expected_counts(num_records: int) -> Counter[tuple[int, int]]:
    rows = map(make_row, range(num_records))
    return Counter((row["key"], row["ts"] // WINDOW_MS) for row in rows)


def window_of(row: dict[str, Any]) -> int:
    """The number of a window that begins at a time."""
    start = row["window_start"].replace(tzinfo=timezone.utc)
    return round(start.timestamp() * 1_000) // WINDOW_MS


class NumbersProducer(threading.Thread):
    """Writes the numbers at their rate, through restarts of the broker."""

    def __init__(self, server: KafkaServer, topic: str, num_records: int) -> None:
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


def build(
    env: StreamExecutionEnvironment, server: KafkaServer, topics: tuple[str, str], num_records: int, staging: Any
) -> None:
    ends = {
        (topics[0], partition): len(range(partition, num_records, NUM_PARTITIONS))
        for partition in range(NUM_PARTITIONS)
    }
    source = KafkaSource(
        server.address, topics[0], value=JsonMessages(NUMBERS), stop=KafkaOffsets.of(ends), group_id="soak"
    )
    sink = KafkaSink.exactly_once(
        server.address, topics[1], value=JsonMessages(COUNTS), key="key", transactional_id_prefix="soak",
        staging=staging,
    )  # fmt: skip
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
    (
        env.from_source(source, strategy, "numbers")
        .key_by("key")
        .window(TumblingEventTimeWindows.of(WINDOW_MS))
        .aggregate(n=count())
        .map(lambda row: {"key": row["key"], "window": window_of(row), "n": row["n"]})
        .key_by("key")
        .sink_to(sink)
    )


def strike(kind: str, server: KafkaServer, rng: random.Random) -> bool:
    """Kill something; False if there is none of the kind now."""
    if kind.startswith("broker"):
        server.kill()
    if kind != "broker":
        hosts = living_hosts()
        candidates = sorted(host for host in hosts if kind_of(host) == kind.removeprefix("broker and "))
        if candidates:
            os.kill(hosts[rng.choice(candidates)], signal.SIGKILL)
        elif kind in ("slot", "TaskManager", "JobManager"):
            return False
    if kind.startswith("broker"):
        time.sleep(rng.uniform(0.5, 4))
        server.start()
    return True


def judge(lines: list[str], num_records: int) -> dict[str, int]:
    """What is wrong with what is committed."""
    got: Counter[tuple[int, int]] = Counter()
    rows = Counter()
    last: dict[int, int] = {}
    num_misordered = 0
    for row in map(json.loads, lines):
        place = row["key"], row["window"]
        got[place] += row["n"]
        rows[place] += 1
        num_misordered += row["window"] <= last.get(row["key"], -1)
        last[row["key"]] = row["window"]
    expected = expected_counts(num_records)
    return {
        "lost": sum((expected - got).values()),
        "doubled": sum((got - expected).values()) + sum(rows.values()) - len(rows),
        "out of order": num_misordered,
    }


def soak(
    faults: int,
    seed: int,
    directory: Path,
    state_backend: str = "heap",
    staging: str = "checkpoint",
    parallelism: int = 2,
) -> dict[str, Any]:
    rng = random.Random(seed)
    executable = java()
    assert executable is not None, "there is no Java"
    server = KafkaServer(fetched_jars(), executable, directory)
    server.start()
    num_records = int(RATE * SECONDS_PER_FAULT * (faults + 1))
    topics = (server.create_topic(NUM_PARTITIONS), server.create_topic(2))
    producer = NumbersProducer(server, topics[0], num_records)
    struck: Counter[str] = Counter()
    try:
        with StreamExecutionEnvironment.get_execution_environment(actor_system="ray") as env:
            env.set_parallelism(parallelism)
            env.set_state_backend(state_backend)
            env.enable_checkpointing(500, directory=str(directory / "checkpoints"))
            build(env, server, topics, num_records, staging)
            client = env.execute_async("kafka soak")
            producer.start()
            while sum(struck.values()) < faults and client.view().state not in ("FINISHED", "FAILED"):
                time.sleep(rng.uniform(0.2, SECONDS_PER_FAULT / 2))
                kind = rng.choice(VICTIMS)
                if strike(kind, server, rng):
                    struck[kind] += 1
            client.result(timeout=600)
            view = client.view()
        producer.join()
        lines = server.seen_by_java(topics[1])
        seen = Counter(message.value().decode() for message in server.committed(topics[1]))
    finally:
        server.kill()
    return {
        "faults": sum(struck.values()),
        **{f"killed: {kind}": struck[kind] for kind in sorted(struck)},
        "restarts": view.num_restarts,
        "checkpoints": view.checkpoints_completed,
        "records": num_records,
        "windows": len(lines),
        "seen by one reader only": sum((seen - Counter(lines)).values()) + sum((Counter(lines) - seen).values()),
        "failures of the producer": len(producer.failures),
        **judge(lines, num_records),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state-backend", choices=("heap", "rocksdb"), default="heap")
    parser.add_argument("--staging", choices=("checkpoint", "transaction"), default="checkpoint")
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="headrace-kafka-soak-"))
    try:
        figures = soak(
            options.faults, options.seed, directory, options.state_backend, options.staging, options.parallelism
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name}: {value}")
    wrong = sum(
        figures[name]
        for name in ("lost", "doubled", "out of order", "failures of the producer", "seen by one reader only")
    )
    is_bad = bool(wrong) or figures["faults"] < options.faults
    print(f"{0 if is_bad else 1} passed, {1 if is_bad else 0} failed")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
