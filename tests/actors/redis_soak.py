"""Redis to Redis on Ray, while processes die: ``python tests/actors/redis_soak.py --faults 30``.

Numbers come from three streams, counts go into another one, exactly once (``tests/actors/server_soak.py`` says what
dies). ``redis-cli`` reads the counts. Needs ``redis-server``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from redis_server import RedisServer, executable
from server_soak import COUNTS, END, NUMBERS, main, make_row, num_records_of, soak_messages

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.connectors.redis import JsonMessages, RedisSink, RedisStream, RedisStreamSource

STREAMS = ("numbers:0", "numbers:1", "numbers:2")
TARGET = "counts"


def soak(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    server = RedisServer(executable(), directory)
    server.start()
    num_records = num_records_of(options)

    def write(first: int, last: int) -> None:
        """Entries have ids of their own, so one that is there already is refused."""
        with server.connect() as connection, connection.pipeline(transaction=False) as pipeline:
            rows = [(STREAMS[index % len(STREAMS)], index, make_row(index)) for index in range(first, last)]
            if last == num_records:
                rows += [(stream, last, END) for stream in STREAMS]
            for stream, index, row in rows:
                pipeline.xadd(stream, {"value": json.dumps(row)}, id=f"{index + 1}-0")
            for answer in pipeline.execute(raise_on_error=False):
                if isinstance(answer, Exception) and "equal or smaller" not in str(answer):
                    raise answer

    def build(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
        source = RedisStreamSource(server.url, STREAMS, value=JsonMessages(NUMBERS))
        strategy = WatermarkStrategy.for_bounded_out_of_orderness("100 ms").with_timestamp_assigner("ts")
        sink = RedisSink.exactly_once(server.url, RedisStream(TARGET, JsonMessages(COUNTS)))
        return env.from_source(source, strategy, "numbers"), sink

    def num_there() -> int:
        with server.connect() as connection:
            return int(connection.xlen(TARGET))

    return soak_messages(server, write, build, lambda: server.seen_by_cli(TARGET), num_there, options, directory)


if __name__ == "__main__":
    sys.exit(main(__doc__, soak))
