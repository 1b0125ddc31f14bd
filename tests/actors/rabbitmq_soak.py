"""RabbitMQ to RabbitMQ on Ray, while processes die: ``python tests/actors/rabbitmq_soak.py --faults 30``.

Numbers come from two queues, by correlation id, and from two streams; counts go into a stream, exactly once, or with
``--into queue`` into a queue, at least once (``tests/actors/server_soak.py`` says what dies). RabbitMQ's own client of
streams reads the counts, or pika, for which one that comes again is the same, and counted as written again; pika reads
what is left in the queues of numbers, too, which must be nothing. Needs Debian's ``rabbitmq-server``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rabbitmq_server import RabbitmqServer, program
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
from headrace.connectors.rabbitmq import (
    JsonMessages,
    RabbitQueueSink,
    RabbitQueueSource,
    RabbitStreamSink,
    RabbitStreamSource,
)
from headrace.connectors.rabbitmq.protocol.address import STREAM_PORT, Address
from headrace.connectors.rabbitmq.protocol.amqp10 import message_of
from headrace.connectors.rabbitmq.protocol.stream_client import StreamConnection

RATE = 1_000
NUM_PLACES = 4


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = RabbitmqServer(program(), directory)
    server.start()
    try:
        return _soak(server, options, directory)
    finally:
        server.stop()


def _soak(server: RabbitmqServer, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    num_records = num_records_of(options, RATE)
    expected = expected_counts(num_records, RATE)
    queues = [server.new_queue() for _ in range(2)]
    streams = [server.new_stream() for _ in range(2)]
    into_queue = options.into == "queue"
    taken: list[str] = []
    target = server.new_queue() if into_queue else server.new_stream()
    address = Address.of(server.stream_url, "rabbitmq-stream", STREAM_PORT)

    def write(first: int, last: int) -> None:
        """Messages have ids, and streams numbers: what is written again is known."""
        for place, name in enumerate([*queues, *streams]):
            indexes = [index for index in range(first, last) if index % NUM_PLACES == place]
            rows = [json.dumps(make_row(index, RATE)) for index in indexes]
            if last == num_records:
                rows.append(json.dumps(END))
            number = first // NUM_PLACES + 1
            if place < len(queues):
                server.send(name, rows, first=number)
            else:
                connection = StreamConnection(address)
                connection.publish("numbers", name, number, [message_of(row.encode()) for row in rows])
                connection.close()

    def build(env: StreamExecutionEnvironment) -> None:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("2 s").with_timestamp_assigner("ts")
        of_queues = RabbitQueueSource(server.url, queues, value=JsonMessages(NUMBERS), prefetch=50_000)
        of_streams = RabbitStreamSource(server.stream_url, streams, value=JsonMessages(NUMBERS))
        numbers = env.from_source(of_queues, strategy, "queues").union(env.from_source(of_streams, strategy, "streams"))
        if into_queue:
            count_in_windows(numbers, RabbitQueueSink(server.url, target, value=JsonMessages(COUNTS)), None)
        else:
            sink = RabbitStreamSink(server.stream_url, target, value=JsonMessages(COUNTS))
            count_in_windows(numbers, sink, directory)

    def lines() -> list[str]:
        if not into_queue:
            return [body.decode() for body in server.streamed(target)]
        taken.extend(body.decode() for body in server.left(target))  # nothing dies any more
        return list(dict.fromkeys(taken))

    def num_there() -> int:
        if into_queue:
            return len(lines())
        connection = StreamConnection(address)
        connection.subscribe(0, target, "last", 0, 1)
        chunk = connection.receive(2)
        connection.close()
        return 0 if chunk is None else chunk.first_offset + len(chunk.messages)

    producer = Producer(write, num_records, RATE)
    finish = finish_when(num_there, len(expected), directory)
    figures = run_job(server, producer, build, finish, options, directory, commits=not into_queue)
    judged = judge(lines(), expected)
    return {
        **figures,
        "records": num_records,
        "retries of the producer": producer.num_retries,
        "left in the queues": sum(len(server.left(queue)) for queue in queues),
        "written again": max(0, len(taken) - judged["windows"]),
        **judged,
    }


if __name__ == "__main__":
    sys.exit(main(__doc__, soak, ["left in the queues"], {"into": ("stream", "queue")}))
