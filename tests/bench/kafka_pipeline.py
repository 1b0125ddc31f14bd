"""From topic to topic at full speed, and how late records are: ``python tests/bench/kafka_pipeline.py``.

Records are decoded and encoded again, as JSON of a kilobyte and as Avro of a hundred bytes; at least once, and exactly
once in both ways of staging. The ratio is against ``confluent-kafka`` alone, which does the same in one process, at
least once. Then 20,000 records a second go through, and a reader of committed records says how long each was on its
way, once all is warm. One line per figure. Needs Java, and Kafka or Maven (``tests/kafka_server.py``). The broker is on
this machine, too, and its processor time is in nobody's figure.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from measure import Rate, describe_machine, plain_rate, steady_rate

sys.path.insert(0, str(Path(__file__).parents[1]))

from kafka_server import KafkaServer, fetched_jars
from zookeeper_server import java

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.kafka import AvroMessages, JsonMessages, KafkaOffsets, KafkaSink, KafkaSource
from headrace.formats.avro_types import avro_schema_of

PARTITIONS = 4
WARM_UP_S = 10
"""Seconds for which records are late because a new topic's broker, its Java code and the clients are slow at first."""
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
PARSED = fastavro.parse_schema(avro_schema_of(SCHEMA, of_messages=True))
SINKS = ("at least once", "exactly once, staging checkpoint", "exactly once, staging transaction")


def json_message(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def avro_message(row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, PARSED, row)
    return stream.getvalue()


def avro_row(message: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(message), PARSED, None)


FORMATS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any], int]] = {
    "1 KB JSON": (JsonMessages(SCHEMA), json_message, json.loads, 960),
    "100 B Avro": (AvroMessages(SCHEMA), avro_message, avro_row, 80),
}
"""Ours, how a plain program encodes and decodes, and how long texts are."""


def fill(server: KafkaServer, topic: str, count: int, encode: Callable[[Any], bytes], length: int) -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcdefghij klmnop", k=length)) for _ in range(100)]
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 20})
    for number in range(count):
        message = encode({"id": number, "at": 0, "text": texts[number % 100]})
        while True:
            try:
                producer.produce(topic, message, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def consumer_of(address: str, topic: str) -> Consumer:
    settings = {"bootstrap.servers": address, "group.id": "bench", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    return consumer


def copy_plainly(
    address: str, topics: tuple[str, str], count: int, encode: Any, decode: Any, wait_s: float = 1.0
) -> int:
    consumer, producer = consumer_of(address, topics[0]), Producer({"bootstrap.servers": address})
    done = 0
    while done < count:
        for message in consumer.consume(10_000, wait_s):
            producer.produce(topics[1], encode(decode(message.value())))
            done += 1
        producer.poll(0)
        while len(producer) > 50_000:
            producer.poll(0.1)
    assert producer.flush(120) == 0
    consumer.close()
    return done


def sink_of(server: KafkaServer, topic: str, kind: str, value: Any) -> KafkaSink:
    if kind == "at least once":
        return KafkaSink.at_least_once(server.address, topic, value=value)
    staging: Any = kind.rpartition(" ")[2]
    return KafkaSink.exactly_once(
        server.address, topic, value=value, transactional_id_prefix=f"bench-{staging}", staging=staging
    )


def pipeline(env: StreamExecutionEnvironment, server: KafkaServer, source: KafkaSource, sink: KafkaSink) -> None:
    env.set_parallelism(2)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "topic").sink_to(sink)


def engine_rate(server: KafkaServer, topic: str, kind: str, value: Any, count: int) -> Rate:
    source = KafkaSource(server.address, topic, value=value, stop=KafkaOffsets.latest())
    with StreamExecutionEnvironment.get_execution_environment() as env, tempfile.TemporaryDirectory() as directory:
        env.enable_checkpointing("1 s", directory=directory)
        pipeline(env, server, source, sink_of(server, server.create_topic(PARTITIONS), kind, value))
        return steady_rate(env, count)


def send_at_rate(server: KafkaServer, topic: str, rate: int, seconds: float) -> None:
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 1})
    started = time.time()
    for number in range(int(rate * seconds)):
        while number > (time.time() - started) * rate:
            producer.poll(0.001)
        row = {"id": number, "at": time.time_ns(), "text": "x" * 60}
        producer.produce(topic, json_message(row), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def latencies(server: KafkaServer, topics: tuple[str, str], rate: int, seconds: float) -> np.ndarray:
    """How long records were on their way, in milliseconds, without those of the first `WARM_UP_S`."""
    sender = threading.Thread(target=send_at_rate, args=(server, topics[0], rate, seconds), daemon=True)
    consumer, found, wanted = consumer_of(server.address, topics[1]), [], int(rate * seconds)
    sender.start()
    while len(found) < wanted:
        messages, now = consumer.consume(10_000, 0.01), time.time_ns()
        found += [(now - json.loads(message.value())["at"]) / 1e6 for message in messages if message.error() is None]
    consumer.close()
    return np.array(found[rate * WARM_UP_S :])


def engine_latencies(server: KafkaServer, kind: str, interval_ms: int, rate: int, seconds: float) -> np.ndarray:
    topics, value = (server.create_topic(PARTITIONS), server.create_topic(PARTITIONS)), JsonMessages(SCHEMA)
    with StreamExecutionEnvironment.get_execution_environment() as env, tempfile.TemporaryDirectory() as directory:
        env.enable_checkpointing(interval_ms, directory=directory)
        pipeline(
            env, server, KafkaSource(server.address, topics[0], value=value), sink_of(server, topics[1], kind, value)
        )
        client = env.execute_async("latency")
        while client.view().state != "RUNNING":
            time.sleep(0.1)
        found = latencies(server, topics, rate, seconds)
        client.cancel()
        return found


def plain_latencies(server: KafkaServer, rate: int, seconds: float) -> np.ndarray:
    """Those of a plain program in a process of its own; it copies until it is ended."""
    topics = (server.create_topic(PARTITIONS), server.create_topic(PARTITIONS))
    arguments = (server.address, topics, sys.maxsize, json_message, json.loads, 0.01)
    process = multiprocessing.get_context("spawn").Process(target=copy_plainly, args=arguments, daemon=True)
    process.start()
    found = latencies(server, topics, rate, seconds)
    process.kill()
    process.join()
    return found


def print_latencies(rate: int, kind: str, found: np.ndarray) -> None:
    p50, p99 = np.percentile(found, [50, 99])
    print(f"{rate:,} records/s, {kind}: half within {p50:.0f} ms, 99 of 100 within {p99:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="of the first part; 0 leaves it out")
    parser.add_argument("--rate", type=int, default=20_000, help="records a second of the second part")
    parser.add_argument("--seconds", type=float, default=25.0, help="of the second part")
    parser.add_argument("--interval", type=int, default=200, help="milliseconds between checkpoints in the second part")
    options = parser.parse_args()
    print(describe_machine())
    executable = java()
    assert executable is not None, "there is no Java"
    with tempfile.TemporaryDirectory() as directory:
        server = KafkaServer(fetched_jars(), executable, Path(directory))
        server.start()
        try:
            for name, (value, encode, decode, length) in FORMATS.items() if options.records else ():
                topics = server.create_topic(PARTITIONS), server.create_topic(PARTITIONS)
                fill(server, topics[0], options.records, encode, length)
                count = min(options.records, 500_000)
                plain = plain_rate(lambda: copy_plainly(server.address, topics, count, encode, decode))
                print(f"{name}, confluent-kafka alone: {plain}", flush=True)
                for kind in SINKS:
                    rate = engine_rate(server, topics[0], kind, value, options.records)
                    print(f"{name}, {kind}: {rate}; ratio {rate.ratio_to(plain)}", flush=True)
            print_latencies(
                options.rate, "confluent-kafka alone", plain_latencies(server, options.rate, options.seconds)
            )
            for kind in SINKS:
                found = engine_latencies(server, kind, options.interval, options.rate, options.seconds)
                print_latencies(options.rate, f"{kind}, a checkpoint each {options.interval} ms", found)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
